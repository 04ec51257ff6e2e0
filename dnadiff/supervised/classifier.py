"""What the head of a classifier reads: the features of a network, and on request those of its first
layers, the bases, and the length."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, PositiveInt, checked
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.layers import strands
from dnadiff.store.objects import PACKAGE, build, locate
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.heads import Head, HeadWithBases, length_features, lengths_of
from dnadiff.supervised.items import (
    ItemBatch,
    Items,
    TaskData,
    flipped_rows,
    reverse_complement_rows,
    strand_batches,
)
from dnadiff.supervised.targets import TaskTarget

_Output: TypeAlias = Tensor | tuple[Tensor, Tensor]
_LENGTH_WAVES = 6  # wavelengths of 4 to 724 bases
LENGTH_WIDTH = 1 + 2 * _LENGTH_WAVES


@checked
@dataclass(frozen=True)
class HeadInputs:
    """Features of each position, concatenated.

    Args:
        layers: also the outputs of these layers (1 is the first), each normalized to zero mean and
            unit variance over its channels.
        one_hot: also the token itself, as one channel for each id that samples may contain; the
            last channels.
        length: also the number of bases (`length_features`), the same at each position. It can
            reveal the class where the parts of a data set differ in length.
    """

    layers: tuple[PositiveInt, ...] = ()
    one_hot: bool = False
    length: bool = False

    def describe(self) -> str:
        """What the head reads besides the features, in words; empty if there is nothing."""
        parts = {
            f"layers {', '.join(map(str, self.layers))}": bool(self.layers),
            "the bases": self.one_hot,
            "the length, which can reveal the class (inputs.length=true; compare with "
            "baselines=all)": self.length,
        }
        return ", ".join(part for part, is_read in parts.items() if is_read)

    def check(self, backbone: Backbone) -> None:
        """Raise ValueError for layers that the network does not have."""
        if not self.layers:
            return
        name = type(backbone).__name__
        if backbone.trunk is None or backbone.reads_both_strands:
            raise ValueError(
                f"inputs.layers {list(self.layers)}: the layers of a {name} cannot be read one by "
                "one; set inputs.layers=[]"
            )
        if max(self.layers) > len(backbone.trunk):
            raise ValueError(
                f"inputs.layers {max(self.layers)} is not one of the {len(backbone.trunk)} layers "
                f"of this {name}"
            )

    def width(self, backbone: Backbone | None, vocab: Vocab, stranded: bool) -> int:
        """Channels of each position."""
        own = self.length * LENGTH_WIDTH + self.bases_width(vocab)
        if backbone is None:
            return own
        return own + pooled_width(backbone, stranded) + len(self.layers) * backbone.d_model

    def bases_width(self, vocab: Vocab) -> int:
        """The number of last channels that are the bases."""
        return len(vocab.emitted) if self.one_hot else 0

    def read(
        self,
        backbone: Backbone | None,
        vocab: Vocab,
        ids: Tensor,
        valid: Tensor | None,
        stranded: bool,
        cond: Tensor | None = None,
    ) -> list[Tensor]:
        """Features (B, L, D) float32, of the given strand; of a network that reads both, one for
        each strand as it is read there.

        The strands of an unstranded task are exchanged by the reverse complement of the sequence,
        so that a mean over the results of a head does not depend on which strand is given.
        """
        if backbone is None:
            return [self._with_tokens([], vocab, ids, valid)]
        with self._recorded(backbone) as recorded:
            features = backbone.features(ids, None, backbone.beside(cond), valid).float()
        if stranded or not backbone.reads_both_strands:
            return [self._with_tokens([features, *map(_normalized, recorded)], vocab, ids, valid)]
        lengths = lengths_of(ids, valid)
        first, second = strands(features)
        second = flipped_rows(second, lengths, 0)  # from its own beginning
        other = reverse_complement_rows(ids, lengths, vocab)
        return [
            self._with_tokens([first], vocab, ids, valid),
            self._with_tokens([second], vocab, other, valid),
        ]

    def _with_tokens(
        self, parts: list[Tensor], vocab: Vocab, ids: Tensor, valid: Tensor | None
    ) -> Tensor:
        if self.length:
            number = length_features(lengths_of(ids, valid), _LENGTH_WAVES)
            parts.append(number[:, None].expand(-1, ids.shape[1], -1))
        if self.one_hot:
            tokens = torch.arange(vocab.size, device=ids.device)
            bases = (tokens[:, None] == torch.tensor(vocab.emitted, device=ids.device)).float()
            # An embedding, so that gradients with respect to the bases are found as those of a
            # network (`dnadiff.design.predicted`).
            parts.append(nn.functional.embedding(ids, bases))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    @contextmanager
    def _recorded(self, backbone: Backbone) -> Iterator[list[_Output]]:
        """The outputs of the layers, in their order, after the network has run in the block."""
        found: list[_Output] = [torch.empty(0)] * len(self.layers)
        trunk = cast(nn.ModuleList, backbone.trunk)

        def keep(number: int, module: nn.Module, inputs: object, output: _Output) -> None:
            # Nothing is computed here: activation checkpointing runs the layer again without the
            # hook.
            found[number] = output

        handles = [
            trunk[layer - 1].register_forward_hook(partial(keep, number))
            for number, layer in enumerate(self.layers)
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def _normalized(output: _Output) -> Tensor:
    """The output of a layer with zero mean and unit variance over its channels."""
    # A Mamba layer returns the residual stream and what is to be added to it.
    value = output if isinstance(output, Tensor) else output[0] + output[1]
    return nn.functional.layer_norm(value.float(), value.shape[-1:])


MEAN_HEAD: Config = {"_target_": "dnadiff.supervised.heads.MeanHead"}


def is_strand_invariant(backbone: Backbone, stranded: bool) -> bool:
    """Whether what a head reads is merged over both strands: the same for a sequence and its
    reverse complement."""
    return backbone.reads_both_strands and not stranded


def pooled_width(backbone: Backbone, stranded: bool) -> int:
    """The number of features of each position, of one strand for a strand-invariant network."""
    return backbone.d_model // 2 if is_strand_invariant(backbone, stranded) else backbone.d_model


class SequenceClassifier(nn.Module, ABC):
    """Maps token ids to C outputs, class logits by default; `invariant` if a sequence and its
    reverse complement have the same ones.

    Attributes:
        target: what the outputs predict; for regression with the mean and standard deviation of the
            training items.
    """

    vocab: Vocab
    num_classes: int
    invariant = False
    dtype = torch.float32  # of predictions
    target: TaskTarget = ClassTarget()

    @abstractmethod
    def forward(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> Tensor:
        """Outputs (B, C) float32 of `ids (B, L)`, and of columns `cond (B, L, CHANNELS)` if its
        network reads them; positions outside `valid (B, L)` have no influence."""

    def predictions(self, strands: Sequence[ItemBatch]) -> Tensor:
        """Predictions (B, C) of the target from the same items on one strand or on both; an
        invariant network reads only the first."""
        read = strands[:1] if self.invariant else strands
        return self.target.predictions([self(*batch[:3]) for batch in read])

    @torch.no_grad()
    def predict(self, items: Items, batch_size: int, both_strands: bool) -> Tensor:
        """Predictions (S, C) of the target in evaluation mode, on the CPU: of classes, normalized
        log-probabilities.

        Items of similar length are batched together. With `both_strands` predictions are averaged
        over the two strands.
        """
        training = self.training
        device = next(self.parameters()).device
        self.eval()
        result = torch.empty(len(items), self.num_classes, dtype=self.dtype)
        for index, batches in strand_batches(
            items, batch_size, self.vocab, both_strands and not self.invariant
        ):
            result[index] = self.predictions([batch.to(device) for batch in batches]).cpu()
        self.train(training)
        return result


class Classifier(SequenceClassifier):
    """Features of the unmasked sequence -> head; the network runs without a noise level.

    Unless `stranded`, a network that reads both strands becomes strand-invariant: the head reads
    each strand from its own beginning, and the outputs are averaged.

    Args:
        backbone: the network; None for a head on the inputs alone (`HeadInputs.one_hot`).
        head: built for `inputs.width`.
        vocab: needed without a network.
    """

    def __init__(
        self,
        backbone: Backbone | None,
        head: Head,
        stranded: bool = True,
        inputs: HeadInputs | None = None,
        vocab: Vocab | None = None,
    ) -> None:
        super().__init__()
        known = vocab if backbone is None else backbone.vocab
        if known is None:
            raise ValueError("a classifier without a network needs a vocabulary: pass vocab")
        self.vocab = known
        self.stranded = stranded
        self.inputs = inputs or HeadInputs()
        self.backbone = backbone
        self.head = head
        self.num_classes = head.num_outputs
        self.invariant = backbone is not None and is_strand_invariant(backbone, stranded)

    @property
    def fixed_length(self) -> int | None:
        """The only length of sequences that it takes; None for any."""
        return self.head.fixed_length

    @property
    def max_length(self) -> int | None:
        """Longest sequence that it takes; None for any."""
        of_network = None if self.backbone is None else self.backbone.max_length
        return min(filter(None, (self.fixed_length, of_network)), default=None)

    def forward(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> Tensor:
        return self.logits(self.read(ids, valid, cond), valid)

    def read(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> list[Tensor]:
        """What the head reads: features (B, L, D), of both strands for a strand-invariant
        network."""
        return self.inputs.read(self.backbone, self.vocab, ids, valid, self.stranded, cond)

    def logits(self, features: Sequence[Tensor], valid: Tensor | None = None) -> Tensor:
        """Logits (B, C) from what `read` returns."""
        outputs = [self.head(one, valid) for one in features]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)


def build_classifier(
    backbone: Backbone | None,
    head: Config,
    inputs: HeadInputs,
    num_classes: int,
    max_length: int,
    stranded: bool,
    trust: Sequence[str] | None = (PACKAGE,),
    vocab: Vocab | None = None,
) -> Classifier:
    """A classifier with a new head; with `inputs.one_hot` and a network, with two of them
    (`HeadWithBases`).

    Args:
        backbone: the network; None for a head on the inputs alone.
        head: a configuration as in `configs/head`.
        max_length: of the longest sequence.
        trust: packages whose classes `head` may name; None is any.
        vocab: needed without a network.
    """
    if backbone is None:
        assert vocab is not None
        widths = [inputs.width(None, vocab, stranded)]
    else:
        inputs.check(backbone)
        bases = inputs.bases_width(backbone.vocab)
        own = inputs.width(backbone, backbone.vocab, stranded) - bases
        widths = [own, *([bases] if bases else [])]
    heads = [
        build(head, width=width, num_outputs=num_classes, max_length=max_length, trust=trust)
        for width in widths
    ]
    made = heads[0] if len(heads) == 1 else HeadWithBases(*heads)
    return Classifier(backbone, made, stranded, inputs, vocab)


def check_head(head: Config, data: TaskData) -> None:
    """Raise ValueError if a head does not take the lengths of a task."""
    kind: Any = locate(head.get("_target_"), None)
    if not isinstance(kind, type) or not issubclass(kind, Head):
        raise ValueError(
            f"head {head.get('_target_')} is not a head (dnadiff.supervised.heads.Head)"
        )
    kind.check_lengths(data.min_length, data.max_length)


def keep_first_layers(backbone: Backbone, num_layers: int | None) -> Backbone:
    """Remove all layers after the first `num_layers`, in place; the final norm stays. None keeps
    all.

    Raises:
        ValueError: if the network has fewer layers, or no list of layers.
    """
    if num_layers is None:
        return backbone
    if backbone.trunk is None:
        raise ValueError(
            f"a {type(backbone).__name__} has no list of layers to cut; leave layer at null"
        )
    total = len(backbone.trunk)
    if not 0 < num_layers <= total:
        raise ValueError(
            f"layer {num_layers} is not one of this network's {total}; set layer to 1..{total}, or "
            "to null for all"
        )
    del backbone.trunk[num_layers:]
    return backbone


def check_length(backbone: Backbone, data: TaskData) -> None:
    """ValueError for a task with a sequence longer than the network accepts; nothing is truncated
    silently."""
    if backbone.max_length is not None and data.max_length > backbone.max_length:
        raise ValueError(
            f"{data.name} holds a sequence of {data.max_length} bases and this "
            f"{type(backbone).__name__} takes at most {backbone.max_length}; "
            "use a checkpoint trained with a larger data.length, or shorter sequences"
        )


def draw_mixture(alpha: float, size: int, seed: int, step: int) -> tuple[float, Tensor]:
    """A share from Beta(alpha, alpha) and a random order of a batch: item i has the share of itself
    and the rest of item `order[i]`. The same seed and step give the same."""
    random = np.random.default_rng(hash64(seed, "mixup", step))
    return float(random.beta(alpha, alpha)), torch.from_numpy(random.permutation(size))


def mixed_logits(
    classifier: Classifier,
    ids: Tensor,
    valid: Tensor | None,
    share: float,
    order: Tensor,
    cond: Tensor | None = None,
) -> Tensor:
    """Logits (B, C) of mixed features. The shorter sequence of a pair ends with zeros."""
    mixed = []
    for features in classifier.read(ids, valid, cond):
        if valid is not None:
            features = torch.where(valid[..., None], features, 0.0)
        mixed.append(share * features + (1 - share) * features[order])
    return classifier.logits(mixed, None if valid is None else valid | valid[order])
