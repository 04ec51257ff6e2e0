"""A request filled batch by batch, under its constraints; what its samples weigh, and how likely they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dnadiff import likelihood
from dnadiff.design.constraint import Constrained
from dnadiff.design.request import Request, Target
from dnadiff.design.template import FREE, Pattern, allowed_letters
from dnadiff.draws import Draws, hash64
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Sampler


class SampleBatch(NamedTuple):
    """A batch of samples.

    Attributes:
        targets: what was asked for.
        tokens: of each sample, (L_i,).
        nfe: network calls.
        rows: sequences evaluated in them.
        log_weight: (B,) log importance weights in nats, 0 where the law needs none; None where the sampler allows none.
    """

    targets: list[Target]
    tokens: list[NDArray[np.int64]]
    nfe: int
    rows: int
    log_weight: NDArray[np.float64] | None


class Design(str):
    """A sample as a string.

    Attributes:
        log_prob: a lower bound on log p of what was generated given what was fixed, nats (`ConditionalSampler.bounds`); None if not asked for.
        log_weight: its log importance weight, nats; 0 where the law needs none, None where the sampler allows none.
    """

    log_prob: float | None
    log_weight: float | None

    def __new__(cls, text: str, log_prob: float | None = None, log_weight: float | None = 0.0) -> Design:
        """The string with its two numbers."""
        design = super().__new__(cls, text)
        design.log_prob, design.log_weight = log_prob, log_weight
        return design


class ConditionalSampler:
    """Fills requests with one model and one sampler.

    Args:
        denoiser: guided or not.
        process: the absorbing process.
        tokenizer: letters and ids.
        sampler: fitted to the model.
        told: (1, C) labels, or None.
        tilt: log-odds added to G and C.
    """

    def __init__(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        tokenizer: Any,
        sampler: Sampler,
        told: Tensor | None = None,
        tilt: float = 0.0,
    ) -> None:
        self.denoiser, self.process, self.tokenizer, self.sampler, self.told = denoiser, process, tokenizer, sampler, told
        self.allowed = torch.from_numpy(allowed_letters(tokenizer))
        self.tilt = tilt

    def with_tilt(self, tilt: float) -> ConditionalSampler:
        """The same with another tilt."""
        return ConditionalSampler(self.denoiser, self.process, self.tokenizer, self.sampler, self.told, tilt)

    def batches(self, request: Request, seed: int, batch_size: int, first: int = 0) -> Iterator[SampleBatch]:
        """The samples from number `first` on, never more than a batch of them in memory; sample i depends on (seed, i)."""
        for start in range(first, len(request), batch_size):
            yield self.fill([(i, request[i]) for i in range(start, min(start + batch_size, len(request)))], hash64(seed, "sample"))

    def fill(self, numbered: Sequence[tuple[int, Target]], seed: int) -> SampleBatch:
        """One batch: targets with the numbers that their noise is keyed by. Shorter ones are padded; in windows each length goes alone."""
        targets = [target for _, target in numbered]
        lengths = [len(target.pattern.ids) for target in targets]
        apart = any(self.sampler.window_for(length) < length for length in lengths)
        parts = [[i for i, n in enumerate(lengths) if n == length] for length in sorted(set(lengths))] if apart else [range(len(lengths))]
        tokens: list[Any] = [None] * len(targets)
        weight, nfe, rows = np.zeros(len(targets)), 0, 0
        for part in parts:
            x, done, log_weight = self._together([targets[i] for i in part], [numbered[i][0] for i in part], seed)
            for place, i in enumerate(part):
                tokens[i], weight[i] = x[place, : lengths[i]], log_weight[place]
            nfe, rows = nfe + done.nfe, rows + done.rows
        return SampleBatch(targets, tokens, nfe, rows, weight if self.sampler.supports_weights else None)

    def has_weights(self, request: Request) -> bool | None:
        """Whether the samples of a request have weights that are not all alike; None if they would need them and the sampler allows none."""
        # Of free sequences the length says where motifs overlap, and so whether a letter is left partial.
        looked_at = (
            request.evenly_spaced() if request.num_groups == 1 else (request[group * request.each] for group in range(request.num_groups))
        )
        bent = self.tilt != 0 or any(map(self._bent, looked_at))
        return None if bent and not self.sampler.supports_weights else bent

    def late(self, target: Target) -> bool:
        """Whether something that is given comes too late for draws from left to right."""
        hidden = target.pattern.ids == self.process.vocab.mask_id
        return getattr(self.denoiser, "causal", False) and bool((~hidden & (hidden.cumsum() > 0)).any())

    def _bent(self, target: Target) -> bool:
        """Whether draws are restricted, or something that is given comes too late for them."""
        hidden = target.pattern.ids == self.process.vocab.mask_id
        return self.late(target) or bool((target.pattern.codes[hidden] != FREE).any())

    def _together(self, targets: Sequence[Target], numbers: Sequence[int], seed: int) -> tuple[NDArray, Any, NDArray]:
        """Tokens (B, L), what the sampler says, and log weights (B,)."""
        device = next(self.denoiser.parameters()).device
        x_init, kind, valid = (x.to(device) for x in padded([target.pattern for target in targets], self.process.vocab.pad_id))
        cond = None if self.told is None else self.told.expand(len(x_init), -1)
        law, bent = self.denoiser, self.tilt != 0 or any(map(self._bent, targets))
        if bent:
            law = Constrained(law, kind, self.allowed, self._added())
        draws = Draws(seed, torch.tensor(numbers, device=device))
        frozen = x_init != self.process.vocab.mask_id
        # Without anything given, masks alone say what is to be filled, as for samples without a template.
        valid, frozen = (None if bool(valid.all()) else valid), (frozen if bool(frozen.any()) else None)
        done = self.sampler.sample(law, self.process, x_init, draws, frozen, cond, valid)
        weight = (
            law.log_weight(x_init, done.tokens, cond).cpu().numpy() if bent and self.sampler.supports_weights else np.zeros(len(x_init))
        )
        return done.tokens.cpu().numpy(), done, weight

    def _added(self) -> Tensor | None:
        if not self.tilt:
            return None
        added = torch.zeros(self.tokenizer.vocab.size)
        added[torch.from_numpy(self.tokenizer.ids_from_bases([1, 2]).astype(np.int64))] = self.tilt
        return added

    def text(self, target: Target, tokens: NDArray[np.int64]) -> str:
        """What is written of a sample; what was given stands as it was given, in its case."""
        if target.pattern.letters is None:
            return self.tokenizer.decode(tokens)
        start, end = target.shown
        drawn = np.frombuffer(self.tokenizer.decode(tokens).encode("ascii"), np.uint8)
        return np.where(target.pattern.letters > 0, target.pattern.letters, drawn)[start:end].tobytes().decode("ascii")

    def gc(self, filled: SampleBatch) -> tuple[int, int]:
        """How many letters of what was designed are G or C, and how many are known at all."""
        ends = [target.designed for target in filled.targets]
        bases = np.concatenate([self.tokenizer.bases(tokens[start:end]) for tokens, (start, end) in zip(filled.tokens, ends)])
        return int(((bases == 1) | (bases == 2)).sum()), int((bases < 4).sum())

    def bounds(self, filled: SampleBatch, numbers: Sequence[int], num_draws: int, seed: int) -> NDArray[np.float64]:
        """A lower bound on log p of what was generated given what was fixed, in nats: (B,), by Monte Carlo with `num_draws` calls each.

        For an autoregressive model log p itself, of everything from the first generated token on. Constraints on letters do not
        enter: it is the model's own law, guidance left out.
        """
        patterns = [target.pattern for target in filled.targets]
        x_init, _, valid = padded(patterns, self.process.vocab.pad_id)
        ids = x_init.clone()
        for row, tokens in enumerate(filled.tokens):
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
        counted = x_init == self.process.vocab.mask_id
        cond = None if self.told is None else self.told.expand(len(ids), -1)
        causal = getattr(self.denoiser, "causal", False)
        counted = (counted.cumsum(-1) > 0) & valid if causal else counted
        plain = getattr(self.denoiser, "denoiser", self.denoiser)
        batch = likelihood.WindowBatch(ids, {"all": counted}, None if bool(valid.all()) else valid, cond, torch.tensor(numbers))
        result = (
            likelihood.chain_rule(plain, [batch], 1) if causal else likelihood.estimate(plain, self.process, [batch], num_draws, seed, 1)
        )
        return -result.per_sequence()


def padded(patterns: Sequence[Pattern], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, codes and which positions are none of padding, each (B, L)."""
    lengths = torch.tensor([len(pattern.ids) for pattern in patterns])
    shape = (len(patterns), int(lengths.max()))
    ids, codes = torch.full(shape, pad_id), torch.full(shape, FREE)
    for row, pattern in enumerate(patterns):
        ids[row, : len(pattern.ids)] = torch.from_numpy(pattern.ids)
        codes[row, : len(pattern.codes)] = torch.from_numpy(pattern.codes.astype(np.int64))
    return ids, codes, torch.arange(shape[1]) < lengths[:, None]


def effective_size(log_weight: NDArray[np.float64]) -> float:
    """(sum w)^2 / sum w^2: so many samples without weights would say as much."""
    w = np.exp(log_weight - log_weight.max())
    return float(w.sum() ** 2 / (w**2).sum())


def systematic_resample(log_weight: NDArray[np.float64], count: int, uniform: float) -> NDArray[np.int64]:
    """Numbers (count,) of samples taken in proportion to their weights, ascending: systematic resampling with one uniform in (0, 1)."""
    w = np.exp(log_weight - log_weight.max())
    ends = np.cumsum(w / w.sum())
    return np.minimum(np.searchsorted(ends, (np.arange(count) + uniform) / count, side="right"), len(w) - 1)
