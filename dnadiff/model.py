"""What `dnadiff.load` returns: a trained model for notebooks, with sampling, likelihood and embeddings and no configuration."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff import checkpoint, likelihood
from dnadiff.denoiser import Guided
from dnadiff.design import gc_tilt
from dnadiff.design.generate import ConditionalSampler, Design
from dnadiff.design.request import Request, Templates, check_request, from_text, opened, window_around
from dnadiff.draws import hash64
from dnadiff.likelihood.stored_curve import StoredCurve
from dnadiff.sampler.ar import Autoregressive
from dnadiff.sampler.base import Sampler
from dnadiff.sampler.grouped import Grouped


class Model:
    """A trained model.

    Args:
        loaded: from `dnadiff.checkpoint.load`.
        device: where to compute.
    """

    def __init__(self, loaded: checkpoint.Loaded, device: torch.device | str = "cpu") -> None:
        self.denoiser = loaded.denoiser.to(device)
        self.process, self.tokenizer, self.config, self.path = loaded.process, loaded.tokenizer, loaded.config, loaded.path
        self.step, self.labels = loaded.step, loaded.labels
        self.device = torch.device(device)
        self.stored_curve = StoredCurve(self.path, self.step)

    @property
    def length(self) -> int:
        """Tokens in a training window."""
        return int(self.config["data"]["length"])

    def sample(
        self,
        num_samples: int = 1,
        length: int | None = None,
        sampler: Sampler | None = None,
        seed: int = 1,
        batch_size: int = 32,
        label: str | Sequence[str] | None = None,
        guidance: float = 1.0,
        template: str | None = None,
        motif: str | Sequence[str] | None = None,
        prompt: str = "",
        gc: float | None = None,
        num_draws: int | None = None,
    ) -> list[Design]:
        """New sequences as strings, with their likelihoods where something was asked of them.

        Args:
            num_samples: how many.
            length: tokens in each; None is the training window.
            sampler: how; None reveals random groups (see `groups`), or goes from left to right if the model is autoregressive.
            seed: sample i depends on (seed, i) and, to the last bit, on the shape of its batch.
            batch_size: sequences at a time.
            label: what the sequences shall be, one or several of `labels`.
            guidance: weight of the label; 1 is the model's law given it.
            template: what each holds, in IUPAC letters for DNA (`ACGTNNNRY`), with `[MASK]` for text; it says the length.
            motif: one or several `MOTIF@start` or `MOTIF@start:strand`, on top.
            prompt: what each begins with.
            gc: mean share of G and C; see `dnadiff.design.gc_tilt`.
            num_draws: network calls for the bound on each sample's log-probability; None is 8 if one of the four above is given and the
                network takes the whole sequence at once, else 0.

        Raises:
            ValueError: for a length that the network cannot take, a label that it does not know, a sampler that does not fit it, or
                constraints that cannot be kept.
        """
        check_request(None, num_samples, 1 if length is None else length)
        request = from_text(self.tokenizer, num_samples, length, self.length, seed, template, motif, prompt)
        asked = template is not None or motif or prompt or gc is not None
        return self._fill(request, sampler, seed, batch_size, label, guidance, gc, num_draws if asked or num_draws is not None else 0)

    def infill(
        self,
        sequence: str,
        start: int,
        end: int,
        n: int = 1,
        length: int | None = None,
        sampler: Sampler | None = None,
        seed: int = 1,
        batch_size: int = 32,
        label: str | Sequence[str] | None = None,
        guidance: float = 1.0,
        gc: float | None = None,
        num_draws: int | None = None,
    ) -> list[Design]:
        """The sequence with [start, end) designed anew, `n` times; everything else is as it was.

        Args:
            sequence: letters, in either case; N is seen and stays.
            start: first position, counted from 0.
            end: one past the last.
            n: how many designs.
            length: what the network reads, with the interval in its middle; None is the training window.
            sampler, seed, batch_size, label, guidance: see `sample`.
            gc: mean share of G and C in the designs.
            num_draws: network calls for the bound on log p(design | flanks); 0 leaves it out, None is as in `sample`.

        Raises:
            ValueError: for an interval outside the sequence or wider than `length`, and as `sample`.
        """
        if hasattr(sequence, "reverse_complement"):  # Biopython's Seq and SeqRecord
            sequence = str(getattr(sequence, "seq", sequence))
        if not isinstance(sequence, str):
            raise ValueError(f"sequence is of type {type(sequence).__name__}; give its letters as a string")
        if not all(isinstance(at, Integral) for at in (start, end)):
            raise ValueError(f"start {start!r} and end {end!r} must be whole numbers, counted from 0")
        if not 0 <= start < end <= len(sequence):
            raise ValueError(f"start {start} and end {end} do not lie in a sequence of {len(sequence)} letters, one before the other")
        length = self.length if length is None else length
        check_request(None, n, length)
        if end - start > length:
            raise ValueError(f"[{start}, {end}) is wider than the {length} tokens that are read at once; set length to that and its flanks")
        if self.tokenizer.vocab.complement is None:
            raise ValueError("infill is for models of DNA, and this one was trained on text; give sample a template with [MASK]")
        self.refuse_causal("infill")
        low, high = window_around(start, end, len(sequence), length)
        ids = self.tokenizer.encode(sequence[low:high]).astype(np.int64)
        pattern = opened(self.tokenizer, ids, np.zeros(len(ids)), start - low, end - low)
        request = Templates([("infill", pattern)], n, self._mask_id, (start - low, end - low))
        designs = self._fill(request, sampler, seed, batch_size, label, guidance, gc, num_draws)
        return [
            Design(sequence[:start] + design[start - low : end - low] + sequence[end:], design.log_prob, design.log_weight)
            for design in designs
        ]

    def refuse_causal(self, what: str) -> None:
        """Refuse what needs a look to the right.

        Raises:
            ValueError: for an autoregressive model.
        """
        if getattr(self.denoiser, "causal", False):
            raise ValueError(f"{what}: an autoregressive model does not see the right flank; use a model trained to unmask, objective=mdlm")

    @property
    def _mask_id(self) -> int:
        return self.tokenizer.vocab.mask_id

    def _fill(
        self,
        request: Request,
        sampler: Sampler | None,
        seed: int,
        batch_size: int,
        label: str | Sequence[str] | None,
        guidance: float,
        gc: float | None,
        num_draws: int | None,
    ) -> list[Design]:
        most = self.denoiser.backbone.max_length
        too_long = most is not None and request.lengths[1] > most  # for one look at the whole, not for windows (`SemiAR`)
        num_draws = (0 if too_long else 8) if num_draws is None else num_draws
        if not isinstance(batch_size, Integral) or batch_size < 1:
            raise ValueError(f"batch_size {batch_size!r} must be at least 1, and a whole number")
        if not isinstance(num_draws, Integral) or num_draws < 0 or num_draws % 2:  # before hours of sampling, not behind them
            raise ValueError(f"num_draws {num_draws!r} must be even: two draws a stratum give the Monte-Carlo error; 0 leaves bounds out")
        filler = self.conditional_sampler(sampler or self.default_sampler(request.lengths[1]), request, label, guidance)
        if num_draws and too_long:
            raise ValueError(
                f"num_draws {num_draws}: bounds are of whole sequences, and {request.lengths[1]} tokens are more than the {most} that "
                "this network takes; set num_draws=0"
            )
        if gc is not None:
            filler = filler.with_tilt(gc_tilt.fit(filler, request, gc_tilt.check(gc, request, self.tokenizer), seed, batch_size).tilt)
        designs, done, none = [], 0, None if filler.has_weights(request) is None else 0.0
        for batch in filler.batches(request, seed, batch_size):
            numbers = range(done, done + len(batch.targets))
            bounds = filler.bounds(batch, numbers, num_draws, seed) if num_draws else [None] * len(numbers)
            weights = batch.log_weight if batch.log_weight is not None else [none] * len(numbers)
            designs += [
                Design(filler.text(target, tokens), *(None if x is None else float(x) for x in (bound, weight)))
                for target, tokens, bound, weight in zip(batch.targets, batch.tokens, bounds, weights)
            ]
            done += len(numbers)
        return designs

    def conditional_sampler(
        self, sampler: Sampler, request: Request, label: str | Sequence[str] | None = None, guidance: float = 1.0
    ) -> ConditionalSampler:
        """What fills the request with this model; what cannot be is refused before anything is computed.

        Raises:
            ValueError: as `check_sampler` and `conditioned`.
        """
        for length in sorted(set(request.lengths)):
            sampler = self.check_sampler(sampler, len(request), length)
        denoiser, told = self.conditioned(label, guidance)
        return ConditionalSampler(denoiser, self.process, self.tokenizer, sampler, told)

    def check_sampler(self, sampler: Sampler, num_samples: int, length: int) -> Sampler:
        """The sampler as it fits this model (its window); what it cannot do is refused before anything is computed.

        Raises:
            ValueError: for another kind of model, or a length that the network or the sampler cannot take.
        """
        sampler.check_model(self.denoiser)
        sampler = sampler.fitted(self.denoiser.backbone.max_length)
        longer = "" if sampler.causal else "sampler=semi_ar for longer sequences, "
        check_request(self.denoiser.backbone.max_length, num_samples, sampler.window_for(length), longer)
        sampler.check_length(length)
        return sampler

    def default_sampler(self, length: int) -> Sampler:
        """Random groups, or left to right for an autoregressive model."""
        return Autoregressive() if getattr(self.denoiser, "causal", False) else Grouped(**self.stored_curve.groups(length))

    def conditioned(self, label: str | Sequence[str] | None, guidance: float = 1.0) -> tuple[nn.Module, Tensor | None]:
        """The denoiser, guided if asked, and the labels `(1, C)` that it is to be told.

        Raises:
            ValueError: for a label that the model does not know, or guidance without one.
        """
        if isinstance(guidance, bool) or not isinstance(guidance, (int, float)) or not math.isfinite(guidance) or guidance < 0:
            raise ValueError(f"guidance {guidance!r} must be a number from 0; 1 is the model's law given the label")
        if label is None and guidance == 1:
            return self.denoiser, None
        if not self.labels:
            raise ValueError("this model was trained without labels; leave label and guidance out")
        known = f"this model knows {', '.join(self.labels)}"
        if label is None:
            raise ValueError(f"guidance={guidance} needs a label; {known}")
        names = [str(name) for name in (label if isinstance(label, (list, tuple)) else [label])]
        if not names:
            raise ValueError(f"label {label!r} names none; leave it out for sequences without a label; {known}")
        if guidance != 1 and self.config.get("data", {}).get("label_dropout") == 0:
            raise ValueError(
                f"guidance={guidance} needs a model that was also trained without labels, and this one has data.label_dropout=0; set guidance=1"
            )
        told = torch.zeros(1, len(self.labels), device=self.device)
        for name in names:
            if name not in self.labels:
                close = difflib.get_close_matches(name, self.labels, n=1, cutoff=0.5)
                raise ValueError(f"label {name!r} is not known{f'; did you mean {close[0]}?' if close else ''}; {known}")
            told[0, self.labels.index(name)] = 1
        return (self.denoiser if guidance == 1 else Guided(self.denoiser, guidance)), told

    def nll(self, sequences: Sequence[Any], num_draws: int = 8, seed: int = 1, batch_size: int = 32) -> np.ndarray:
        """Upper bound on -log p of each sequence, in nats per token: `(S,)`.

        The NELBO in count form, averaged over `num_draws` stratified masks; N and other letters that the model never
        emits are seen but not counted. A sequence without any countable letter gives NaN.

        Args:
            sequences: strings or Biopython SeqRecords.
            num_draws: network calls for each sequence, even.
            seed: of the masks.
            batch_size: sequences of equal length at a time.
        """
        encoded = self._encoded(sequences)
        result = np.full(len(encoded), np.nan)
        for chosen in self._by_length(encoded, batch_size):
            ids = torch.stack([encoded[i] for i in chosen]).to(self.device)
            counted = self.tokenizer.vocab.is_emitted(ids.device)[ids]
            if not counted.any():
                continue
            # Noise belongs to the sequence itself, so that its number does not depend on what else is asked in the same call.
            rows = torch.tensor([hash64(encoded[i].numpy().tobytes().hex()) >> 1 for i in chosen])
            batch = likelihood.WindowBatch(ids, {"all": counted}, rows=rows)
            estimate = likelihood.estimate(self.denoiser, self.process, [batch], num_draws, seed, 1)
            tokens = estimate.tokens["all"]
            result[chosen] = np.where(tokens > 0, estimate.per_sequence() / np.maximum(tokens, 1), np.nan)
        return result

    @torch.no_grad()
    def embed(self, sequences: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """Mean of the network's features over each clean sequence: `(S, D)` float32.

        Args:
            sequences: strings or Biopython SeqRecords.
            batch_size: sequences of equal length at a time.
        """
        encoded = self._encoded(sequences)
        result = np.zeros((len(encoded), 0), dtype=np.float32)
        for chosen in self._by_length(encoded, batch_size):
            ids = torch.stack([encoded[i] for i in chosen]).to(self.device)
            pooled = self.denoiser.backbone.features(ids).float().mean(1).cpu().numpy()
            if result.shape[1] == 0:
                result = np.zeros((len(encoded), pooled.shape[1]), dtype=np.float32)
            result[chosen] = pooled
        return result

    def _encoded(self, sequences: Sequence[Any]) -> list[Tensor]:
        if isinstance(sequences, (str, bytes)) or hasattr(sequences, "seq"):
            raise ValueError("sequences is a single sequence; put it into a list: [sequence]")
        return [self._ids(s) for s in sequences]

    def _ids(self, sequence: Any) -> Tensor:
        ids = torch.from_numpy(self.tokenizer.encode(sequence).astype(np.int64))
        check_request(self.denoiser.backbone.max_length, 1, len(ids))
        return ids

    @staticmethod
    def _by_length(encoded: Sequence[Tensor], batch_size: int) -> Iterator[list[int]]:
        """Indices of sequences of one length, in batches: no padding, so no network needs to know of any."""
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) == batch_size or len(encoded[i]) != len(encoded[batch[0]])):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def __repr__(self) -> str:
        return f"Model({type(self.denoiser.backbone).__name__}, {self.tokenizer.name}, {self.path})"


def load(run: str | os.PathLike[str], device: torch.device | str | None = None, trust: Sequence[str] = ()) -> Model:
    """The model of a run folder or checkpoint file, ready to use.

    Args:
        run: a run folder, a .ckpt file, or `latest`.
        device: None takes a CUDA device where there is one, else the CPU.
        trust: packages besides dnadiff whose classes its configuration may name.

    Raises:
        FileNotFoundError, ValueError: if it does not exist, is damaged, or asks for code that is not trusted.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Model(checkpoint.load(run, trust), device)
