"""Conditional generation: requests are filled batch by batch under their constraints, with
importance weights, likelihood bounds, and a tilt of G and C that gives samples a target mean GC."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.process import AbsorbingProcess, after_first
from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.fields import InnerFraction, Json, JsonDict, check_value
from dnadiff.formats.sequences import Record, write_fasta
from dnadiff.progress import advance, log

if TYPE_CHECKING:
    import pandas

    from dnadiff.data.tokenizer import Tokenizer

# Bases of sequences -> longest match of each with the training data.
LongestMatch = Callable[[Iterable[ndarray]], ndarray]


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
        ess: effective number of distinct designs in its batch, of which copies count once; None if
            the method has no weights.
        changes: positions at which it differs from the sequence that it started from; None if it
            started from none.
        longest_match: the longest exact match with the training data, bases; None if not searched.
        judge: the value of a reward that was not optimized; None without one.
    """

    log_prob: float | None = None
    log_weight: float | None = 0.0
    reward: float | None = None
    reward_calls: float | None = None
    ess: float | None = None
    changes: int | None = None
    longest_match: int | None = None
    judge: float | None = None

    def __new__(cls, text: str, **numbers: float | None) -> Design:
        """The string with its numbers, by the names of its attributes."""
        design = super().__new__(cls, text)
        vars(design).update(numbers)
        return design


class Designs(list[Design]):
    """Samples in their order.

    Attributes:
        unguided: of designs for a reward: samples of the same model without it; else None.
        beta: of designs: the inverse temperature; None without one.
        seed: that they were drawn with.
    """

    unguided: Designs | None = None
    beta: float | None = None
    seed: int | None = None

    def to_frame(self) -> pandas.DataFrame:
        """A row for each: `sequence`, `log_prob`, `log_weight`, `reward`, and those other
        attributes of `Design` that one of them has."""
        import pandas

        names = list(Design.__annotations__)
        rows = [[str(each), *(getattr(each, name) for name in names)] for each in self]
        table = pandas.DataFrame(rows, columns=["sequence", *names])
        return table.drop(columns=[name for name in names[3:] if table[name].isna().all()])

    def to_fasta(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the records `design_1` and so on, with the numbers of each in its header, as in
        `reward=1.5`; errors as `dnadiff.formats.sequences.write_fasta`."""
        records = []
        for number, each in enumerate(self, 1):
            known = [f"{key}={x:.6g}" for key, x in vars(each).items() if x is not None]
            records.append(Record(f"design_{number}", " ".join(known), each.encode()))
        write_fasta(path, records, overwrite)


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
    tokens: list[ndarray]
    nfe: int
    rows: int
    log_weight: ndarray | None
    rewards: ndarray | None = None
    reward_calls: int = 0


class Prepared(NamedTuple):
    """The templates of a batch.

    Attributes:
        x_init: (B, L) tokens, masks to be filled.
        frozen: (B, L) bool, fixed tokens; None if there are none.
        cond: (B, C) labels, or (B, L, CHANNELS) columns of an alignment, or None.
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
        start_t: the time of the noise that is added to the sequences that targets start from; None
            adds none, for samplers that refine.
        num_draws: network calls for the bound on the log-probability of each sample; 0 leaves it
            out.
        longest_match: searches each sample in the training data; None leaves it out.
        judge: a `Reward` of the samples that nothing optimizes; None leaves it out.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    tokenizer: Tokenizer
    sampler: Sampler
    labels: Tensor | None = None
    tilt: float = 0.0
    start_t: float | None = None
    num_draws: int = 0
    longest_match: LongestMatch | None = None
    judge: Any = None

    def __post_init__(self) -> None:
        self.allowed = torch.from_numpy(allowed_letters(self.tokenizer))

    def with_tilt(self, tilt: float) -> ConditionalSampler:
        """A copy with another tilt."""
        other = copy.copy(self)
        other.tilt = tilt
        return other

    def units(self, request: Request, batch_size: int, first: int = 0) -> Iterator[range]:
        """The numbers of the samples of each batch, from a batch that begins with number `first`
        on."""
        for start in range(first, len(request), batch_size):
            yield range(len(request))[start : start + batch_size]

    def batches(
        self, request: Request, seed: int, batch_size: int, first: int = 0
    ) -> Iterator[SampleBatch]:
        """Generate the samples from number `first` on, one batch at a time; sample i depends on
        (seed, i)."""
        # For all samples of a request or for none, also where some are shorter.
        weighted = self.has_weights(request)
        for numbers in self.units(request, batch_size, first):
            batch = self.fill([(i, request[i]) for i in numbers], hash64(seed, "sample"))
            equal = None if weighted is None else np.zeros(len(numbers))
            yield batch if weighted else batch._replace(log_weight=equal)

    def fill(
        self, numbered: Sequence[tuple[int, Target]], seed: int, weighted: bool = True
    ) -> SampleBatch:
        """Generate one batch of targets, each with the number that keys its noise.

        Shorter sequences are padded. A sampler that moves a window over the sequence gets the
        sequences of each length separately. Without `weighted`, importance weights, and the network
        calls that only they need, are left out.
        """
        targets = [target for _, target in numbered]
        lengths = np.array([len(target.pattern.ids) for target in targets])
        groups = [list(range(len(targets)))]
        if any(self.sampler.window_for(length) < length for length in lengths.tolist()):
            groups = [np.flatnonzero(lengths == length).tolist() for length in np.unique(lengths)]
        tokens = [lengths] * len(targets)
        weighted = weighted and self.sampler.supports_weights(int(lengths.max()))
        weight = np.zeros(len(targets))
        nfe = 0
        rows = 0
        for group in groups:
            part = [targets[i] for i in group]
            made = self.prepared(part, weighted)
            numbers = torch.tensor([numbered[i][0] for i in group], device=made.x_init.device)
            x_init = made.x_init
            start = self.start_of(part, made.x_init)
            if start is not None and self.start_t is None:
                x_init = start
                start = None
            samples = self.sampler.sample(
                made.denoiser,
                self.process,
                x_init,
                Draws(seed, numbers),
                made.frozen,
                made.cond,
                made.valid,
                start,
                self.start_t or 1.0,
            )
            for i, ids in zip(group, samples.tokens.cpu().numpy()):
                tokens[i] = ids[: lengths[i]]
            if made.constrained is not None and weighted:
                weight[group] = made.constrained.log_weight().cpu().numpy()
            nfe += samples.nfe
            rows += samples.rows
        return SampleBatch(targets, tokens, nfe, rows, weight if weighted else None)

    def has_weights(self, request: Request) -> bool | None:
        """Whether the samples of a request have unequal weights; None if they would, but the
        sampler does not support weights, or they are changed versions of given sequences."""
        if not self.constrains(request):
            return False
        is_drawn = request[0].start is None
        return (is_drawn and self.sampler.supports_weights(request.lengths[1])) or None

    def constrains(self, request: Request) -> bool:
        """Whether a tilt, partial letters or unseen fixed tokens change the distribution of the
        samples of a request."""
        return self.tilt != 0 or any(map(self._is_constrained, request.distinct()))

    def has_fixed_after_mask(self, target: Target) -> bool:
        """Whether the model would generate tokens without seeing fixed ones to their right (outside
        the block, for block diffusion)."""
        masked = torch.from_numpy(target.pattern.ids == self.process.vocab.mask_id)[None]
        later = after_first(masked, self.denoiser.block_size)
        return self.denoiser.left_to_right and bool((later & ~masked).any())

    def _is_constrained(self, target: Target) -> bool:
        masked = target.pattern.ids == self.process.vocab.mask_id
        partial = bool((target.pattern.codes[masked] != FREE).any())
        return self.has_fixed_after_mask(target) or partial

    def prepared(self, targets: Sequence[Target], weighted: bool = True) -> Prepared:
        """The templates of a batch as tensors, with the denoiser that keeps their constraints and,
        if `weighted`, records weights."""
        device = self.denoiser.device
        vocab = self.process.vocab
        patterns = [target.pattern for target in targets]
        x_init, kind, valid = (x.to(device) for x in padded(patterns, vocab.pad_id))
        fixed = x_init != vocab.mask_id
        weighted = weighted and self.sampler.supports_weights(x_init.shape[1])
        constrained = None
        if self.tilt != 0 or any(map(self._is_constrained, targets)):
            added = None
            if self.tilt:
                added = torch.zeros(vocab.size)
                added[dna_tokenizer(self.tokenizer).ids_from_bases([1, 2]).tolist()] = self.tilt
            template = x_init if weighted else None
            constrained = Constrained(self.denoiser, kind, self.allowed, added, template)
        # Without padding or fixed tokens the sampler is called as without a template.
        return Prepared(
            x_init,
            fixed if bool(fixed.any()) else None,
            self._cond(targets),
            None if bool(valid.all()) else valid,
            constrained or self.denoiser,
            constrained,
        )

    def check_start(self, request: Request) -> None:
        """Raise ValueError if the samples of a request should start from given sequences, and
        sampler or model cannot."""
        if request[0].start is None:
            return
        if self.denoiser.left_to_right:
            raise ValueError(
                "start= changes sequences by a model that reads both sides of a token, and this "
                "one goes from left to right; use one of objective=mdlm"
            )
        if self.start_t is None and not self.sampler.refines:
            raise ValueError(
                "start= has complete sequences, which this sampler does not change; set start_t= "
                "to the time of the noise to add, such as start_t=0.2, or sampler=gibbs, or "
                "sampler=self_correction for noise that replaces tokens"
            )

    def start_of(self, targets: Sequence[Target], x_init: Tensor) -> Tensor | None:
        """The tokens that the targets of a batch start from, (B, L) with padding; None if there are
        none."""
        found = x_init.clone()
        for row, target in zip(found, targets):
            if target.start is None:
                return None
            row[: len(target.start)] = torch.from_numpy(target.start)
        return found

    def _cond(self, targets: Sequence[Target]) -> Tensor | None:
        """What samples are conditioned on: the columns of an alignment (B, L, CHANNELS), or
        labels."""
        found = [torch.as_tensor(x.columns).float() for x in targets if x.columns is not None]
        if found:
            return pad_sequence(found, True).to(self.denoiser.device)
        return None if self.labels is None else self.labels.expand(len(targets), -1)

    def text(self, target: Target, tokens: ndarray) -> str:
        """The text of a sample; given letters keep their case."""
        drawn = self.tokenizer.decode(tokens)
        letters = target.pattern.letters
        if letters is None:
            return drawn
        written = np.where(letters > 0, letters, np.frombuffer(drawn.encode(), np.uint8))
        return written[slice(*target.shown)].tobytes().decode()

    def facts(self, batch: SampleBatch, numbers: Sequence[int], seed: int) -> list[JsonDict]:
        """The attributes of `Design` of each sample of a batch other than its weight."""
        number = len(batch.targets)
        columns: dict[str, Sequence[Json]] = {}
        if batch.rewards is not None:
            columns["reward"] = batch.rewards.tolist()
            columns["reward_calls"] = [batch.reward_calls / number] * number
            if batch.log_weight is not None:
                distinct = effective_size(batch.log_weight, (x.tobytes() for x in batch.tokens))
                columns["ess"] = [distinct] * number
        pairs = list(zip(batch.targets, batch.tokens))
        if batch.targets[0].start is not None:
            columns["changes"] = [int(np.sum(target.start != x)) for target, x in pairs]
        if self.longest_match is not None:
            bases = dna_tokenizer(self.tokenizer).bases
            found = self.longest_match(bases(x[slice(*target.designed)]) for target, x in pairs)
            columns["longest_match"] = found.tolist()
        if self.judge is not None:
            columns["judge"] = self.judge([self.text(*pair) for pair in pairs]).tolist()
        if self.num_draws:
            columns["log_prob"] = self.bounds(batch, numbers, self.num_draws, seed).tolist()
        return [{key: values[i] for key, values in columns.items()} for i in range(number)]

    def bounds(
        self, batch: SampleBatch, numbers: Sequence[int], num_draws: int, seed: int
    ) -> ndarray:
        """Estimates of a lower bound on log p of the generated part given the fixed part, in nats:
        (B,), with `num_draws` calls each.

        For a model that goes from left to right it includes the fixed tokens that its draws do not
        see: those after the first generated token (autoregressive, exact) or after its block. It is
            the distribution of the model itself, without constraints and guidance.
        """
        ids, counted, valid = self._counted(batch.targets)
        for row, tokens in zip(ids, batch.tokens):
            row[: len(tokens)] = torch.from_numpy(tokens)
        padding = None if bool(valid.all()) else valid
        window = likelihood.WindowBatch(
            ids, {"all": counted}, padding, self._cond(batch.targets), torch.tensor(numbers)
        )
        return -likelihood.estimate(
            self.denoiser.unwrapped, self.process, [window], num_draws, seed, 1
        ).per_sequence()

    def check_bounds(self, longest: int, num_draws: int) -> None:
        """Raise ValueError if `bounds` cannot have so many draws, or are not defined for sequences
        of so many tokens."""
        most = self.denoiser.max_length
        if num_draws % 2:
            raise ValueError(
                f"num_draws {num_draws} must be even: two draws for each stratum; 0 leaves the "
                "bounds out"
            )
        if num_draws and most is not None and longest > most:
            raise ValueError(
                f"num_draws {num_draws}: bounds need whole sequences, and {longest} tokens are "
                f"more than the {most} that this network takes; set num_draws=0"
            )

    def _counted(self, targets: Sequence[Target]) -> tuple[Tensor, Tensor, Tensor]:
        """The templates, the tokens whose log-probability is in `bounds`, and which are no padding:
        (B, L) each."""
        vocab = self.process.vocab
        ids, _, valid = padded([target.pattern for target in targets], vocab.pad_id)
        counted = ids == vocab.mask_id
        if self.denoiser.left_to_right:
            counted |= after_first(counted, self.denoiser.block_size) & valid
        return ids, counted, valid

    def designs(self, request: Request, seed: int, batch_size: int) -> Designs:
        """All samples of a request as strings, with their numbers."""
        designs = Designs()
        for batch in self.batches(request, seed, batch_size):
            number = len(batch.targets)
            weights = [None] * number if batch.log_weight is None else batch.log_weight.tolist()
            facts = self.facts(batch, range(len(designs), len(designs) + number), seed)
            texts = map(request.placed, batch.targets, map(self.text, batch.targets, batch.tokens))
            of_each = zip(texts, weights, facts)
            designs += [Design(text, log_weight=weight, **x) for text, weight, x in of_each]
            advance(number, sum(map(len, batch.tokens)))
        return designs


def padded(patterns: Sequence[Pattern], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, codes and a mask that is False on padding, each (B, L)."""
    lengths = torch.tensor([len(pattern.ids) for pattern in patterns])
    ids = pad_sequence([torch.tensor(pattern.ids) for pattern in patterns], True, pad_id)
    codes = pad_sequence([torch.tensor(pattern.codes) for pattern in patterns], True, FREE)
    return ids, codes.long(), torch.arange(ids.shape[1]) < lengths[:, None]


def effective_size(log_weight: ndarray, sequences: Iterable[Hashable] | None = None) -> float:
    """The effective sample size (sum w)^2 / sum w^2; with `sequences`, the effective number of
    distinct ones: copies count once, with the sum of their weights."""
    w = np.exp(log_weight - log_weight.max())
    if sequences is not None:
        numbers: dict[Hashable, int] = {}
        w = np.bincount([numbers.setdefault(each, len(numbers)) for each in sequences], w)
    return float(w.sum() ** 2 / (w**2).sum())


def systematic_resample(log_weight: ndarray, count: int, uniform: float) -> ndarray:
    """Indices (count,) of samples drawn in proportion to their weights, ascending: systematic
    resampling with one uniform in (0, 1)."""
    w = np.exp(log_weight - log_weight.max())
    ends = np.cumsum(w / w.sum())
    return np.minimum(
        np.searchsorted(ends, (np.arange(count) + uniform) / count, side="right"), len(w) - 1
    )


def resample_group(log_weight: ndarray, count: int, seed: int, group: int) -> ndarray:
    """Indices (count,) of the proposals of template `group` that are kept."""
    return systematic_resample(log_weight, count, (hash64(seed, "resample", group) + 0.5) / 2**64)


PILOT = 32
TOLERANCE = 0.002  # of the calibration
MAX_ERROR = 0.02  # larger errors are an error
_MAX_CALLS = 16  # pilot batches


def check_gc(gc: float, request: Request, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the target is not a fraction, or the masked positions of the request
    cannot reach it."""
    check_value("gc", gc, InnerFraction)
    if tokenizer.vocab.complement is None:
        raise ValueError(f"gc={gc} is for models of DNA; leave it out")
    targets = request.evenly_spaced()
    codes = np.concatenate([x.pattern.codes[slice(*x.designed)] for x in targets])
    low, high = gc_bounds(codes)
    total = len(codes)
    if not low < gc * total < high:
        raise ValueError(
            f"gc {gc} cannot be reached: the fixed positions allow means between {low / total:.3f} "
            f"and {high / total:.3f}; set gc between them"
        )


class TiltFit(NamedTuple):
    """A tilt in log-odds, the mean GC of the pilot samples with it, and the network calls of the
    calibration with the sequences in them."""

    log_odds: float
    pilot: float
    calls: int
    rows: int


def fit_tilt(
    generator: ConditionalSampler, request: Request, gc: float, seed: int, batch_size: int
) -> TiltFit:
    """The tilt at which a pilot of at least 32 samples of the request has the mean `gc` (see
    `check`), or a ValueError.

    Pilot samples are evenly spaced over the request, and have no importance weights. All
    evaluations share their noise, which is derived from `seed`.
    """
    size = max(PILOT, batch_size)
    calls = 0
    rows = 0
    numbered = [(i, request[i * len(request) // size]) for i in range(size)]

    def mean(tilt: float) -> float:
        nonlocal calls, rows
        tilted = generator.with_tilt(tilt)
        key = hash64(seed, "pilot")
        of_known = np.zeros(2)
        for at in range(0, size, batch_size):
            batch = tilted.fill(numbered[at : at + batch_size], key, weighted=False)
            calls += batch.nfe
            rows += batch.rows
            parts = [x[slice(*target.designed)] for x, target in zip(batch.tokens, batch.targets)]
            bases = dna_tokenizer(generator.tokenizer).bases(np.concatenate(parts))
            of_known += ((bases == 1) | (bases == 2)).sum(), (bases < 4).sum()
        return float(of_known[0] / of_known[1])

    return TiltFit(*find_tilt(mean, gc), calls, rows)


def find_tilt(mean_gc: Callable[[float], float], target: float) -> tuple[float, float]:
    """The tilt at which the increasing function `mean_gc(tilt)` reaches `target`, and the value
    there, after at most 16 evaluations.

    The search first brackets the target, then uses the Illinois variant of regula falsi on
    log-odds. A target that no tilt reaches is a ValueError.
    """

    seen: list[tuple[float, float]] = []  # tilts, and what they reach

    def off(tilt: float) -> float:
        reached = mean_gc(tilt)
        seen.append((tilt, reached))
        wanted = math.log(target / (1 - target))
        return math.log(max(reached, 1e-6) / max(1 - reached, 1e-6)) - wanted

    def best() -> tuple[float, float]:
        return min(seen, key=lambda pair: abs(pair[1] - target))

    a = b = 0.0
    fa = fb = off(0.0)
    while abs(best()[1] - target) > TOLERANCE and len(seen) < _MAX_CALLS:
        is_between = (fa < 0) != (fb < 0)
        if is_between and abs(b - a) <= 1e-4:
            break
        if is_between:
            c = (a * fb - b * fa) / (fb - fa)
        else:
            c = b - math.copysign(max(abs(fb) * 1.25, 0.05), fb)
        fc = off(c)
        if is_between and (fc < 0) == (fb < 0):
            fa /= 2
        else:
            a, fa = b, fb
        b, fb = c, fc
    tilt, reached = best()
    if abs(reached - target) > MAX_ERROR:
        raise ValueError(
            f"gc {target} cannot be reached by this sampler: its pilot batch reaches "
            f"{reached:.3f}; choose another"
        )
    return tilt, reached


def check_weights(
    generator: ConditionalSampler,
    request: Request,
    resample: bool,
    is_dna: bool,
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
            "letters (R, Y, ...), with gc, and with templates that have given letters to the "
            "right of what sampler=ar or sampler=block generates"
        )
    low, high = request.lengths
    if resample and low < high and request.num_groups == 1:
        # Weights grow with the length (with a tilt, exponentially), so resampling would change the
        # distribution of lengths.
        raise ValueError(
            f"resample=true compares sequences of one length, and length={low}:{high} draws many; "
            "set length to a number"
        )
    if weighted is None and generator.constrains(request):
        log.info(
            "these designs have no importance weights: constraints hold, but the distribution is "
            "not corrected (docs/designing.md)"
        )
    if any(map(generator.has_fixed_after_mask, request.evenly_spaced())):
        where = " in later blocks" if generator.denoiser.block_size else ""
        log.warning(
            f"this model does not see fixed tokens to the right of a mask{where}; "
            f"{'weights correct' if weighted else 'nothing corrects'} for it (docs/designing.md)"
        )
    return bool(weighted)
