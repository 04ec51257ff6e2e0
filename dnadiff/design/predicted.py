"""The prediction of a fine-tuned model as a reward."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dnadiff.design.reward import Reward, Values
from dnadiff.diffusion.vocab import Vocab
from dnadiff.progress import log
from dnadiff.supervised import ensemble
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.items import ItemBatch


class PredictedReward(Reward):
    """The prediction of a run of `python -m dnadiff.finetune`, averaged over its seeds.

    It is the log-odds of a class or a label, or a value on the scale of the task's transform.
    Sequences are read in the orientation that they are given in, and on both strands unless the
    task is stranded. A difference of two models is a `WeightedSum`.

    Args:
        checkpoint: the run folder, or a folder in its `models`.
        output: the class, label or column; None is the only one, or the second of two classes.
        batch_size: None is that of fine-tuning.
        device: of the network.
        trust: packages besides dnadiff whose classes the fine-tuned run may name.

    Raises:
        FileNotFoundError, ValueError: if there is no fine-tuned model of that name, or it has no
            such output.
    """

    has_gradient = True

    def __init__(
        self,
        checkpoint: str,
        output: str | None = None,
        batch_size: int | None = None,
        device: str = "cpu",
        trust: Sequence[str] = (),
    ) -> None:
        self.checkpoint = checkpoint
        self.output = output
        self.batch_size = batch_size
        self.device = device
        self.trust = trust
        self._model = ensemble.load(checkpoint, trust, device)
        try:
            self._number = self._model.number_of(output)
        except ValueError as error:
            raise ValueError(f"reward.output {str(error).removeprefix('target ')}") from None
        self.unit = self._model.target.contrast_name(self._model.classes[self._number])

    def check_length(self, length: int) -> None:
        limits = self._model.limits
        got = f"and designs have {length:,}"
        fixed = limits.fixed is not None
        allowed = limits.fixed if fixed else limits.maximum
        if allowed is not None and (length > allowed or (fixed and length < allowed)):
            takes = "head takes only sequences of" if fixed else "network takes at most"
            raise ValueError(
                f"reward.checkpoint {self.checkpoint}: its {takes} {allowed:,} bases, {got}; set "
                f"length={allowed}, or give templates that fit"
            )
        if length != self._model.longest:
            log.warning(
                f"reward.checkpoint {self.checkpoint} was fine-tuned on sequences of at most "
                f"{self._model.longest:,} bases, {got}; predictions "
                "may be less accurate at other lengths"
            )

    def inputs(self) -> dict[str, str]:
        return {str(member.folder): member.sha256 for member in self._model.members}

    def __call__(self, sequences: Sequence[str]) -> Values:
        each_seed = self._model.predict(sequences, self.batch_size).each_seed
        contrast = self._model.target.contrast(torch.from_numpy(each_seed).double())
        return contrast[..., self._number].mean(0).numpy()

    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        for text in sequences:
            self._model.limits.check("the design", len(text), len(text))
        rows = np.stack([self._model.tokenizer.encode(text) for text in sequences])
        ids = torch.from_numpy(rows.astype(np.int64)).to(self.device)
        bases = torch.tensor(
            self._model.tokenizer.ids_from_bases(range(4)).tolist(), device=self.device
        )
        members = [member.classifier for member in self._model.members]
        found = []
        for part in ids.split(self.batch_size or self._model.batch_size):
            seeds = [self._of_seed(classifier, part, bases) for classifier in members]
            found.append([torch.stack(each).mean(0) for each in zip(*seeds)])
        values, slopes = (torch.cat(each).double().cpu().numpy() for each in zip(*found))
        return values, slopes

    def _of_seed(
        self, classifier: SequenceClassifier, ids: Tensor, bases: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The reward (B,) by one seed, and its gradient (B, L, 4)."""
        # A further row shows which strand is embedded, also if all others are their own reverse
        # complements: neither its reverse, nor its complement, nor its reverse complement is it.
        asymmetric = torch.full_like(ids[:1], int(bases[0]))
        asymmetric[:, -1] = bases[1]
        strands = [ids := torch.cat([ids, asymmetric])]
        if not self._model.stranded:
            strands.append(classifier.vocab.reverse_complement(ids))
        with torch.enable_grad(), _Embeddings(ids, classifier.vocab) as read:
            predictions = classifier.predictions([*map(ItemBatch, strands)])
            value = self._model.target.contrast(predictions.double())[..., self._number]
            (slope,) = torch.autograd.grad(value.sum(), read.one_hot)
            return value.detach()[:-1], slope[:-1, :, bases]


class _Embeddings(TorchFunctionMode):
    """Embeds the one-hot sequences `one_hot (B, L, V)` wherever a network embeds their token ids,
    so that a value can be differentiated with respect to them.

    Networks also embed the other strand, alone or in one batch with the first.
    """

    def __init__(self, ids: Tensor, vocab: Vocab) -> None:
        super().__init__()
        identity = torch.arange(vocab.size, device=ids.device)
        self.ids = ids
        self.maps = (identity, torch.tensor(vocab.complement, device=ids.device))
        self.one_hot = functional.one_hot(ids, vocab.size).float().requires_grad_()

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if (
            func is not functional.embedding
            or args[0].shape[1:] != self.ids.shape[1:]
            or len(args[0]) % len(self.ids)
        ):
            return func(*args, **(kwargs or {}))
        strands = torch.cat([*map(self._strand, args[0].split(len(self.ids)))])
        weight = args[1][: strands.shape[-1]].detach()  # rows of padding have no token
        return strands.to(weight) @ weight

    def _strand(self, ids: Tensor) -> Tensor:
        """The one-hot sequences in the order, and through the map of tokens, that gives these
        ids."""
        for reverse in (False, True):
            own = self.ids.flip(1) if reverse else self.ids
            for tokens in self.maps:
                if torch.equal(ids, tokens[own]):
                    one_hot = self.one_hot.flip(1) if reverse else self.one_hot
                    return one_hot[..., tokens]  # each map is its own inverse
        raise ValueError(
            "this network reads the sequence in an order whose gradient is not known; set "
            "method.gradient=false"
        )
