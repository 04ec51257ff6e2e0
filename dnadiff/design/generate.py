"""Conditional generation: requests are filled batch by batch under their constraints, with
importance weights, likelihood bounds, and a tilt of G and C that gives samples a target mean GC."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.design.conditioning import Constrained
from dnadiff.design.request import (
    FREE,
    Pattern,
    Request,
    Target,
    allowed_letters,
    dna_tokenizer,
    gc_bounds,
)
from dnadiff.diffusion import likelihood
from dnadiff.diffusion.blocks import after_first
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import Sampler, Samples
from dnadiff.fields import Json, fraction

if TYPE_CHECKING:
    import pandas

    from dnadiff.data.tokenizer import Tokenizer


log = logging.getLogger("dnadiff")
_OF_DESIGNS = ("reward_calls", "ess", "changes", "longest_match")
_OTHERS: dict[str, float | None] = dict.fromkeys(("reward", *_OF_DESIGNS))


class Design(str):
    """A sample as a string. All but the first two attributes are None unless it was designed for a
    reward.

    Attributes:
        log_prob: a Monte Carlo estimate of a lower bound on log p of the generated part given the
            fixed part, nats, which a single estimate may exceed; exact for an autoregressive model
            and for blocks of one token; None if not requested.
        log_weight: its log importance weight, nats; 0 if unconstrained, None if the sampler does
            not support weights.
        reward: of the sequence.
        reward_calls: the reward calls of its batch, divided by the designs of the batch.
        ess: effective sample size of its batch; None if the method has no weights.
        changes: positions at which it differs from the sequence that it started from; None if it
            started from none.
        longest_match: the longest exact match with the training data, bases; None if not searched.
    """

    log_prob: float | None
    log_weight: float | None
    reward: float | None
    reward_calls: float | None
    ess: float | None
    changes: int | None
    longest_match: int | None

    def __new__(
        cls,
        text: str,
        log_prob: float | None = None,
        log_weight: float | None = 0.0,
        **others: float | None,
    ) -> Design:
        """The string with its numbers, by the names of its attributes."""
        design = super().__new__(cls, text)
        vars(design).update(log_prob=log_prob, log_weight=log_weight, **_OTHERS | others)
        return design


class Designs(list[Design]):
    """Samples in their order."""

    def to_frame(self) -> pandas.DataFrame:
        """A row for each: `sequence`, `log_prob`, `log_weight`, `reward`, and those other
        attributes of `Design` that one of them has."""
        import pandas

        others = [
            name for name in _OF_DESIGNS if any(vars(each)[name] is not None for each in self)
        ]
        rows = [{"sequence": str(each), **vars(each)} for each in self]
        return pandas.DataFrame(
            rows, columns=["sequence", "log_prob", "log_weight", "reward", *others]
        )


class SampleBatch(NamedTuple):
    """A batch of samples.

    Attributes:
        targets: their templates.
        tokens: of each sample, (L_i,).
        nfe: network calls.
        rows: sequences evaluated in them.
        log_weight: (B,) log importance weights in nats, 0 if unconstrained; None if the sampler
            does not support weights.
        rewards: (B,) of designs.
        reward_calls: sequences whose reward was evaluated for the batch; a gradient counts twice.
    """

    targets: list[Target]
    tokens: list[NDArray[np.int64]]
    nfe: int
    rows: int
    log_weight: NDArray[np.float64] | None
    rewards: NDArray[np.float64] | None = None
    reward_calls: int = 0


class Prepared(NamedTuple):
    """The templates of a batch.

    Attributes:
        x_init: (B, L) tokens, masks to be filled.
        frozen: (B, L) bool, fixed tokens; None if there are none.
        cond: (B, C) labels, or None.
        valid: (B, L) bool, False on padding; None without padding.
        denoiser: keeps the constraints.
        constrained: the same, which records importance weights; None if nothing is constrained.
    """

    x_init: Tensor
    frozen: Tensor | None
    cond: Tensor | None
    valid: Tensor | None
    denoiser: BaseDenoiser
    constrained: Constrained | None


@dataclass(eq=False)
class ConditionalSampler:
    """Fills requests with one model and one sampler.

    Args:
        denoiser: the model, with or without guidance; `process` and `tokenizer` are the model's.
        sampler: fitted to the model.
        labels: (1, C) labels that the samples are conditioned on, or None.
        tilt: log-odds added to G and C.

    Attributes:
        is_design: whether its samples are designed for a reward.
    """

    is_design: ClassVar[bool] = False

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    tokenizer: Tokenizer
    sampler: Sampler
    labels: Tensor | None = None
    tilt: float = 0.0

    def __post_init__(self) -> None:
        self.allowed = torch.from_numpy(allowed_letters(self.tokenizer))

    def with_tilt(self, tilt: float) -> ConditionalSampler:
        """A copy with another tilt."""
        other = copy.copy(self)
        other.tilt = tilt
        return other

    def batch_starts(self, request: Request, batch_size: int, first: int = 0) -> Iterator[int]:
        """The number of the first sample of each batch, from a batch that begins with number
        `first` on."""
        yield from range(first, len(request), batch_size)

    def batches(
        self, request: Request, seed: int, batch_size: int, first: int = 0
    ) -> Iterator[SampleBatch]:
        """Generate the samples from number `first` on, one batch at a time; sample i depends on
        (seed, i)."""
        weighted = (
            self.has_weights(request) is not None
        )  # for all samples of a request or for none, also where some are shorter
        for start in self.batch_starts(request, batch_size, first):
            batch = self.fill(
                [(i, request[i]) for i in range(start, min(start + batch_size, len(request)))],
                hash64(seed, "sample"),
            )
            yield batch if weighted else batch._replace(log_weight=None)

    def fill(
        self, numbered: Sequence[tuple[int, Target]], seed: int, weighted: bool = True
    ) -> SampleBatch:
        """Generate one batch of targets, each with the number that keys its noise.

        Shorter sequences are padded. A sampler that moves a window over the sequence gets the
        sequences of each length separately. Without `weighted`, importance weights, and the network
        calls that only they need, are left out.
        """
        targets = [target for _, target in numbered]
        lengths = [len(target.pattern.ids) for target in targets]
        separate = any(self.sampler.window_for(length) < length for length in lengths)
        groups = [
            [i for i, n in enumerate(lengths) if n == length] for length in sorted(set(lengths))
        ]
        tokens: dict[int, NDArray[np.int64]] = {}
        weight, nfe, rows = np.zeros(len(targets)), 0, 0
        for group in groups if separate else [list(range(len(lengths)))]:
            samples, log_weight = self._fill_together(
                [targets[i] for i in group], [numbered[i][0] for i in group], seed, weighted
            )
            ids = samples.tokens.cpu().numpy()
            for row, i in enumerate(group):
                tokens[i], weight[i] = ids[row, : lengths[i]], log_weight[row]
            nfe, rows = nfe + samples.nfe, rows + samples.rows
        log_weights = weight if weighted and self.sampler.supports_weights(max(lengths)) else None
        return SampleBatch(
            targets, [tokens[i] for i in range(len(targets))], nfe, rows, log_weights
        )

    def has_weights(self, request: Request) -> bool | None:
        """Whether the samples of a request have unequal weights; None if they would, but the
        sampler does not support weights."""
        constrained = self.constrains(request)
        return (
            None
            if constrained and not self.sampler.supports_weights(request.lengths[1])
            else constrained
        )

    def constrains(self, request: Request) -> bool:
        """Whether a tilt, partial letters or unseen fixed tokens change the distribution of the
        samples of a request."""
        return self.tilt != 0 or any(map(self._is_constrained, request.distinct()))

    def has_fixed_after_mask(self, target: Target) -> bool:
        """Whether the model would generate tokens without seeing fixed ones to their right (outside
        the block, for block diffusion)."""
        masked = torch.from_numpy(target.pattern.ids == self.process.vocab.mask_id)[None]
        return self.denoiser.left_to_right and bool(
            (after_first(masked, self.denoiser.block_size or 1) & ~masked).any()
        )

    def _is_constrained(self, target: Target) -> bool:
        masked = target.pattern.ids == self.process.vocab.mask_id
        return self.has_fixed_after_mask(target) or bool(
            (target.pattern.codes[masked] != FREE).any()
        )

    def prepared(self, targets: Sequence[Target], weighted: bool = True) -> Prepared:
        """The templates of a batch as tensors, with the denoiser that keeps their constraints and,
        if `weighted`, records weights."""
        device = next(self.denoiser.parameters()).device
        x_init, kind, valid = (
            x.to(device)
            for x in padded([target.pattern for target in targets], self.process.vocab.pad_id)
        )
        fixed = x_init != self.process.vocab.mask_id
        # Without padding or fixed tokens the sampler is called as without a template.
        padding, frozen = (
            (None if bool(valid.all()) else valid),
            (fixed if bool(fixed.any()) else None),
        )
        constrained = None
        if self.tilt != 0 or any(map(self._is_constrained, targets)):
            template = (
                x_init if weighted and self.sampler.supports_weights(x_init.shape[1]) else None
            )
            constrained = Constrained(self.denoiser, kind, self.allowed, self._added(), template)
        return Prepared(
            x_init,
            frozen,
            self._cond(len(x_init)),
            padding,
            constrained or self.denoiser,
            constrained,
        )

    def _fill_together(
        self, targets: Sequence[Target], numbers: Sequence[int], seed: int, weighted: bool
    ) -> tuple[Samples, NDArray[np.float64]]:
        x, frozen, cond, padding, denoiser, constrained = self.prepared(targets, weighted)
        draws = Draws(seed, torch.tensor(numbers, device=x.device))
        samples = self.sampler.sample(denoiser, self.process, x, draws, frozen, cond, padding)
        if constrained is None or not (weighted and self.sampler.supports_weights(x.shape[1])):
            return samples, np.zeros(len(x))
        return samples, constrained.log_weight().cpu().numpy()

    def _cond(self, num_rows: int) -> Tensor | None:
        return None if self.labels is None else self.labels.expand(num_rows, -1)

    def _added(self) -> Tensor | None:
        if not self.tilt:
            return None
        added = torch.zeros(self.tokenizer.vocab.size)
        added[
            torch.from_numpy(dna_tokenizer(self.tokenizer).ids_from_bases([1, 2]).astype(np.int64))
        ] = self.tilt
        return added

    def text(self, target: Target, tokens: NDArray[np.int64]) -> str:
        """The text of a sample; given letters keep their case."""
        if target.pattern.letters is None:
            return self.tokenizer.decode(tokens)
        start, end = target.shown
        drawn = np.frombuffer(self.tokenizer.decode(tokens).encode("ascii"), np.uint8)
        return (
            np.where(target.pattern.letters > 0, target.pattern.letters, drawn)[start:end]
            .tobytes()
            .decode("ascii")
        )

    def facts(self, batch: SampleBatch) -> list[dict[str, Json]]:
        """The attributes of `Design` of each sample of a batch, other than its bound and its
        weight."""
        return [{}] * len(batch.targets)

    def about(self, batch: SampleBatch, numbers: Sequence[int], seed: int) -> list[dict[str, Json]]:
        """Further entries of the header of each sample."""
        return [{}] * len(batch.targets)

    def gc(self, batch: SampleBatch) -> tuple[int, int]:
        """The number of G and C in the designed parts, and of known bases."""
        tokenizer, spans = (
            dna_tokenizer(self.tokenizer),
            [target.designed for target in batch.targets],
        )
        bases = np.concatenate(
            [
                tokenizer.bases(tokens[start:end])
                for tokens, (start, end) in zip(batch.tokens, spans)
            ]
        )
        return int(((bases == 1) | (bases == 2)).sum()), int((bases < 4).sum())

    def bounds(
        self, batch: SampleBatch, numbers: Sequence[int], num_draws: int, seed: int
    ) -> NDArray[np.float64]:
        """Estimates of a lower bound on log p of the generated part given the fixed part, in nats:
        (B,), with `num_draws` calls each.

        For a model that goes from left to right it includes the fixed tokens that its draws do not
        see: those after the first generated token (autoregressive, exact) or after its block. It is
            the distribution of the model itself, without constraints and guidance.
        """
        x_init, _, valid = padded(
            [target.pattern for target in batch.targets], self.process.vocab.pad_id
        )
        ids = x_init.clone()
        for row, tokens in enumerate(batch.tokens):
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
        counted = self._counted(x_init, valid)
        padding = None if bool(valid.all()) else valid
        windows = [
            likelihood.WindowBatch(
                ids, {"all": counted}, padding, self._cond(len(ids)), torch.tensor(numbers)
            )
        ]
        return -likelihood.estimate(
            self.denoiser.unwrapped, self.process, windows, num_draws, seed, 1
        ).per_sequence()

    def num_counted(self, target: Target) -> int:
        """The number of tokens whose log-probability is in `bounds`."""
        x_init, _, valid = padded([target.pattern], self.process.vocab.pad_id)
        return int(self._counted(x_init, valid).sum())

    def _counted(self, x_init: Tensor, valid: Tensor) -> Tensor:
        masked = x_init == self.process.vocab.mask_id
        return (
            masked | (after_first(masked, self.denoiser.block_size or 1) & valid)
            if self.denoiser.left_to_right
            else masked
        )

    def designs(self, request: Request, seed: int, batch_size: int, num_draws: int = 0) -> Designs:
        """All samples of a request as strings, with bounds from `num_draws` network calls (0 leaves
        them out) and weights."""
        designs = Designs()
        no_weight = None if self.has_weights(request) is None else 0.0
        for batch in self.batches(request, seed, batch_size):
            numbers = range(len(designs), len(designs) + len(batch.targets))
            bounds = (
                self.bounds(batch, numbers, num_draws, seed).tolist()
                if num_draws
                else [None] * len(numbers)
            )
            weights = (
                [no_weight] * len(numbers)
                if batch.log_weight is None
                else batch.log_weight.tolist()
            )
            texts = map(self.text, batch.targets, batch.tokens)
            designs += [
                Design(*each, **facts)
                for *each, facts in zip(texts, bounds, weights, self.facts(batch))
            ]
        return designs


def padded(patterns: Sequence[Pattern], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, codes and a mask that is False on padding, each (B, L)."""
    lengths = torch.tensor([len(pattern.ids) for pattern in patterns])
    shape = (len(patterns), int(lengths.max()))
    ids, codes = torch.full(shape, pad_id), torch.full(shape, FREE)
    for row, pattern in enumerate(patterns):
        ids[row, : len(pattern.ids)] = torch.from_numpy(pattern.ids)
        codes[row, : len(pattern.codes)] = torch.from_numpy(pattern.codes.astype(np.int64))
    return ids, codes, torch.arange(shape[1]) < lengths[:, None]


def effective_size(log_weight: NDArray[np.float64]) -> float:
    """The effective sample size (sum w)^2 / sum w^2."""
    w = np.exp(log_weight - log_weight.max())
    return float(w.sum() ** 2 / (w**2).sum())


def systematic_resample(
    log_weight: NDArray[np.float64], count: int, uniform: float
) -> NDArray[np.int64]:
    """Indices (count,) of samples drawn in proportion to their weights, ascending: systematic
    resampling with one uniform in (0, 1)."""
    w = np.exp(log_weight - log_weight.max())
    ends = np.cumsum(w / w.sum())
    return np.minimum(
        np.searchsorted(ends, (np.arange(count) + uniform) / count, side="right"), len(w) - 1
    )


PILOT = 32
TOLERANCE = 0.002  # of the calibration
MAX_ERROR = 0.02  # larger errors are an error


def check_gc(gc: float, request: Request, tokenizer: Tokenizer) -> float:
    """The target GC fraction as a float; a ValueError if it is not a fraction, or the masked
    positions of the request cannot reach it."""
    gc = fraction("gc", gc, inclusive=False)
    if tokenizer.vocab.complement is None:
        raise ValueError(f"gc={gc} is for models of DNA; leave it out")
    low = high = total = 0
    for target in request.evenly_spaced():
        start, end = target.designed
        minimum, maximum = gc_bounds(target.pattern.codes[start:end])
        low, high, total = low + minimum, high + maximum, total + end - start
    if not low < gc * total < high:
        raise ValueError(
            f"gc {gc} cannot be reached: the fixed positions allow means between {low / total:.3f} "
            f"and {high / total:.3f}; set gc between them"
        )
    return gc


class TiltFit(NamedTuple):
    """A tilt in log-odds, the mean GC of the pilot samples with it, and the network calls of the
    calibration with the sequences in them."""

    tilt: float
    reached: float
    nfe: int
    rows: int


def fit_tilt(
    generator: ConditionalSampler, request: Request, gc: float, seed: int, batch_size: int
) -> TiltFit:
    """The tilt at which a pilot of at least 32 samples of the request has the mean `gc` (see
    `check`), or a ValueError.

    Pilot samples are evenly spaced over the request, and have no importance weights. All
    evaluations share their noise, which is derived from `seed`.
    """
    size, calls, rows = max(PILOT, batch_size), 0, 0
    numbered = [(i, request[i * len(request) // size]) for i in range(size)]

    def mean(tilt: float) -> float:
        nonlocal calls, rows
        tilted, key = generator.with_tilt(tilt), hash64(seed, "pilot")
        batches = [
            tilted.fill(numbered[at : at + batch_size], key, weighted=False)
            for at in range(0, size, batch_size)
        ]
        calls, rows = (
            calls + sum(batch.nfe for batch in batches),
            rows + sum(batch.rows for batch in batches),
        )
        counts = [generator.gc(batch) for batch in batches]
        return sum(gc for gc, _ in counts) / sum(known for _, known in counts)

    tilt, reached, _ = find_tilt(mean, gc)
    return TiltFit(tilt, reached, calls, rows)


def find_tilt(
    mean_gc: Callable[[float], float],
    target: float,
    tolerance: float = TOLERANCE,
    max_calls: int = 16,
) -> tuple[float, float, int]:
    """The tilt at which the increasing function `mean_gc(tilt)` reaches `target`, the value there,
    and the number of evaluations.

    The search first brackets the target, then uses the Illinois variant of regula falsi on
    log-odds. A target that no tilt reaches is a ValueError.
    """

    def off(tilt: float) -> float:
        return math.log(max(reached := mean_gc(tilt), 1e-6) / max(1 - reached, 1e-6)) - math.log(
            target / (1 - target)
        )

    def near(value: float) -> bool:
        return abs(_fraction(value, target) - target) <= tolerance

    a, fa, calls = 0.0, off(0.0), 1
    b, fb = a, fa
    while not near(fb) and (fa < 0) == (fb < 0) and calls < max_calls:
        a, fa = b, fb
        b = b - math.copysign(max(abs(fb) * 1.25, 0.05), fb)
        fb, calls = off(b), calls + 1
    best, f_best = min(((a, fa), (b, fb)), key=lambda pair: abs(pair[1]))
    while not near(f_best) and (fa < 0) != (fb < 0) and calls < max_calls and abs(b - a) > 1e-4:
        c = (a * fb - b * fa) / (fb - fa)
        fc, calls = off(c), calls + 1
        if (fc < 0) == (fb < 0):
            fa /= 2
        else:
            a, fa = b, fb
        b, fb = c, fc
        if abs(fc) < abs(f_best):
            best, f_best = c, fc
    reached = _fraction(f_best, target)
    if abs(reached - target) > MAX_ERROR:
        raise ValueError(
            f"gc {target} cannot be reached by this sampler: its pilot batch reaches "
            f"{reached:.3f}; choose another"
        )
    return best, reached, calls


def _fraction(off: float, target: float) -> float:
    # The fraction whose log-odds exceed those of `target` by `off`.
    odds = math.exp(off) * target / (1 - target)
    return odds / (1 + odds)


def check_weights(
    generator: ConditionalSampler,
    request: Request,
    resample: bool,
    is_dna: bool,
    length: int | str | None = None,
) -> bool:
    """Whether samples have weights; logs what the distribution of the samples is if it is not
    corrected.

    Resampling without weights is a ValueError.
    """
    weighted = generator.has_weights(request)
    if resample and not (weighted and is_dna):
        if weighted is None:
            raise ValueError(
                "resample=true needs a sampler with importance weights: not low_confidence, "
                "threshold, fast_dllm, remdm or forward_backward, "
                "gibbs only with num_groups equal to the length, and temperature, top_k, nucleus "
                "and noise_removal at their defaults; "
                "method=resample_move needs sampler=first_hitting and method.num_groups=null"
            )
        raise ValueError(
            "resample=true: these samples have no weights; samples of DNA have them with partial "
            "letters (R, Y, ...), with gc, and with "
            "templates that have given letters to the right of what sampler=ar or sampler=block "
            "generates"
        )
    if resample and request.lengths[0] < request.lengths[1] and request.num_groups == 1:
        # Weights grow with the length (with a tilt, exponentially), so resampling would change the
        # distribution of lengths.
        raise ValueError(
            f"resample=true compares sequences of one length, and length={length} draws "
            "many; set length to a number"
        )
    if weighted is None and not generator.is_design:
        log.info(
            "this sampler has no importance weights: constraints hold, but the distribution is not "
            "corrected (docs/designing.md)"
        )
    if any(map(generator.has_fixed_after_mask, request.evenly_spaced())):
        seen = "this model does not see fixed tokens to the right of a mask" + (
            " in later blocks" if generator.denoiser.block_size else ""
        )
        log.warning(
            f"{seen}; {'weights correct for it' if weighted else 'nothing corrects for it'} "
            "(docs/designing.md)"
        )
    return bool(weighted)
