"""The timings of `sampling.py`: MDLM's `ddpm_cache`, our samplers and `ar`, extrapolated from steps
if the complete run takes too long.

`ddpm_cache` (arXiv 2406.07524, and its published code): logits and probabilities at every position,
    uniform times from 1 to 1e-5, one categorical draw at every position and step by dividing
    probabilities by exponential noise (in float32, as published; the tails
of that draw are not exact), probabilities kept while no token of the batch changes, and at the end
one more call whose most probable token fills the remaining masks. It runs with our kernels, and
bans the ids that are never emitted, as ours do: only the sampler differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from measuring import peak_memory
from torch import Tensor

from dnadiff.denoiser import CausalDenoiser, Denoiser, MaskedDenoiser
from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.ar import Autoregressive
from dnadiff.sampler.base import Plan, PlannedSampler, Samples
from dnadiff.vocab import Vocab

EPS = 1e-5  # the last time of MDLM's grid
ROUNDS = 3  # minimum number of passes of each part, of which the fastest counts


def subs_log_probs(denoiser: Denoiser, x: Tensor) -> Tensor:
    """Log-probabilities (B, L, V) of x0 at every position, as MDLM's code computes them, in place
    where it does so."""
    logits, mask_id = denoiser.logits(x).float(), denoiser.vocab.mask_id
    banned = torch.zeros(logits.shape[-1])
    banned[list(denoiser.vocab.never_emitted)] = -torch.inf
    logits += banned
    logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    known = x != mask_id
    logits[known] = -torch.inf
    logits[known, x[known]] = 0.0
    return logits


def ddpm_step(
    denoiser: Denoiser, x: Tensor, t: float, dt: float, probs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One step of the published sampler: the probabilities that it used, and the next x."""
    if probs is None:
        probs = subs_log_probs(denoiser, x).exp()
    q = (
        probs * dt
    )  # log-linear: a mask has probability t, being unmasked in this step dt (over t, which argmax ignores)
    q[..., denoiser.vocab.mask_id] = t - dt
    noise = 1e-10 - (torch.rand_like(q) + 1e-10).log()
    drawn = (q / noise).argmax(-1)
    return probs, torch.where(x == denoiser.vocab.mask_id, drawn, x)


@torch.no_grad()
def ddpm_cache(denoiser: Denoiser, x: Tensor, num_steps: int) -> Samples:
    """The complete published sampler from masks `x (B, L)`, with noise from PyTorch's generator."""
    times, dt = torch.linspace(1, EPS, num_steps + 1).tolist(), (1 - EPS) / num_steps
    probs, calls = None, 0
    for t in times[:-1]:
        calls += probs is None
        probs, following = ddpm_step(denoiser, x, t, dt, probs)
        probs = probs if torch.equal(following, x) else None
        x = following
    x = torch.where(x == denoiser.vocab.mask_id, subs_log_probs(denoiser, x).argmax(-1), x)
    return Samples(x, calls + 1, (calls + 1) * len(x))


def ddpm_calls(batch: int, length: int, num_steps: int, seed: int = 0) -> int:
    """Network calls of `ddpm_cache`, including the last one, simulated: the step that unmasks a
    position does not depend on tokens."""
    u = np.random.default_rng(seed).random(batch * length)
    left = np.linspace(1, EPS, num_steps + 1)[1:]  # fraction of masks left after each step
    unmasked_at = np.searchsorted(-left, -u)  # first step with left <= u
    changed = np.bincount(unmasked_at, minlength=num_steps + 1)[:num_steps] > 0
    return 1 + int(changed[:-1].sum()) + 1


def ddpm_seconds(costs: tuple[float, float], batch: int, length: int, num_steps: int) -> float:
    """Seconds of MDLM's sampler from the costs of a step with a call and of one without; the last
    call draws nothing."""
    calls = ddpm_calls(batch, length, num_steps)
    return calls * costs[0] + (num_steps - calls) * costs[1]


@dataclass
class Timed:
    """The measurement of a cell.

    Attributes:
        seconds: of the complete run.
        calls: network calls of the complete run.
        rows: sequences evaluated in these calls.
        fraction: the fraction of the rows that was run.
        memory_mb: growth of the process, for as many sequences as `DDPM` has.
        ddpm_costs: seconds of a step of `ddpm_cache` with a call and without, measured in
            alternation.
    """

    seconds: float
    calls: int
    rows: int
    fraction: float
    memory_mb: float | None
    ddpm_costs: tuple[float, float] | None


def in_turns(
    parts: Mapping[str, Callable[[], Any]], seconds: float
) -> dict[str, tuple[float, Any]]:
    """Seconds of the fastest pass of each part and its result, in alternation; at least `ROUNDS`
    passes."""
    best: dict[str, tuple[float, Any]] = {}
    began, rounds = time.perf_counter(), 0
    while rounds < ROUNDS or (
        rounds < 100 and (time.perf_counter() - began) * (rounds + 1) / rounds < seconds
    ):
        for name, part in parts.items():
            start = time.perf_counter()
            result = part()
            took = time.perf_counter() - start
            if name not in best or took < best[name][0]:
                best[name] = took, result
        rounds += 1
    return best


class DDPM:
    """Steps of MDLM's sampler on `rows` sequences, half of whose tokens are masked.

    Args:
        denoiser: the network.
        rows: number of sequences.
        length: tokens in each.
        seconds: time limit of one pass, which has at least one step.
    """

    def __init__(self, denoiser: Denoiser, rows: int, length: int, seconds: float) -> None:
        masks = torch.full((rows, length), denoiser.vocab.mask_id)
        self.denoiser, self.rows = denoiser, rows
        self.half = torch.where(
            torch.rand(masks.shape) < 0.5, masks, denoiser.vocab.emitted[0]
        )  # the state after half of the steps
        with torch.no_grad():
            self.memory = peak_memory(lambda: ddpm_step(denoiser, masks, 1.0, 1e-3, None))
            start = time.perf_counter()
            self.probs = ddpm_step(denoiser, masks, 1.0, 1e-3, None)[0]
        self.one = time.perf_counter() - start
        self.num_steps = max(1, min(64, int(seconds / self.one)))

    def parts(self) -> dict[str, Callable[[], Any]]:
        """A pass of steps with a network call, and a pass of steps that keep the probabilities."""
        return {"call": lambda: self._steps(None), "kept": lambda: self._steps(self.probs)}

    @torch.no_grad()
    def _steps(self, probs: Tensor | None) -> None:
        for _ in range(self.num_steps):
            ddpm_step(self.denoiser, self.half, 0.5, 1e-3, probs)

    def costs(self, found: Mapping[str, tuple[float, Any]], batch: int) -> tuple[float, float]:
        """Seconds of a step with a call and of one without, for the whole batch."""
        return found["call"][0] / self.num_steps * batch / self.rows, found["kept"][
            0
        ] / self.num_steps * batch / self.rows


def time_ddpm(
    denoiser: Denoiser,
    batch: int,
    rows: int,
    length: int,
    num_steps: int,
    known: Mapping[str, Any],
    seconds: float,
) -> Timed:
    """MDLM's sampler: run completely if that takes less than twice `seconds`, otherwise
    extrapolated from the cost of a step (`known`)."""
    calls, costs = ddpm_calls(batch, length, num_steps), tuple(known["ddpm_costs"])
    estimate = ddpm_seconds(costs, batch, length, num_steps)
    if rows < batch or estimate > 2 * seconds:
        return Timed(estimate, calls, calls * batch, 0.0, known["memory_mb"], costs)
    x = torch.full((batch, length), denoiser.vocab.mask_id)
    took, result = in_turns({"complete": lambda: ddpm_cache(denoiser, x, num_steps)}, seconds)[
        "complete"
    ]
    return Timed(took, result.nfe, result.rows, 1.0, known["memory_mb"], costs)


class Uniform(MaskedDenoiser):
    """A uniform denoiser without cost, to count calls and rows."""

    def log_probs(self, x: Tensor, t: Tensor, cond: None, positions: Tensor, valid: None) -> Tensor:
        """Log-probabilities of the two tokens."""
        return torch.tensor([0.0, 0.0, -torch.inf]).expand(int(positions.sum()), -1)


def counted(sampler: PlannedSampler, process: AbsorbingProcess, batch: int, length: int) -> Samples:
    """Calls and rows of a sampler whose order does not depend on tokens, by running it without a
    network."""
    uniform = AbsorbingProcess(Vocab(3, 2, 2, (2,)), process.noise)
    return sampler.sample(
        Uniform(uniform.vocab), uniform, uniform.prior(batch, length), Draws.for_batch(0, batch)
    )


class PartialPlan(PlannedSampler):
    """The `chosen` steps of a sampler's plan; positions that other earlier steps unmask are
    given."""

    def __init__(self, plan: Plan, chosen: Tensor) -> None:
        super().__init__()
        self.step = plan.step.masked_fill(~torch.isin(plan.step, chosen), -1)
        self.given = (plan.step >= 0) & (plan.step < chosen[-1]) & (self.step < 0)

    def num_steps_for(self, length: int) -> int:
        """The maximum number of steps."""
        return length

    def template(self, process: AbsorbingProcess) -> Tensor:
        """The initial x (B, L): random letters where earlier steps unmask."""
        letters = torch.tensor(process.vocab.emitted)[
            torch.randint(len(process.vocab.emitted), self.step.shape)
        ]
        return torch.where(self.given, letters, process.vocab.mask_id)

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """The chosen steps."""
        return Plan(self.step)


def time_planned(
    sampler: PlannedSampler,
    denoiser: Denoiser,
    process: AbsorbingProcess,
    batch: int,
    few: int,
    ddpm_rows: int,
    length: int,
    seconds: float,
) -> Timed:
    """One of our samplers, alternating with MDLM's: run completely if it is short, otherwise its
    first call and some others, evenly spread.

    The first call has one row for any batch, but is scaled by the batch if fewer sequences are
    timed.
    """
    count = counted(sampler, process, batch, length)
    plan = sampler.plan(torch.ones(few, length, dtype=torch.bool), process, Draws.for_batch(0, few))
    steps = plan.step.unique()

    def part(chosen: Tensor, rows: int = few) -> Callable[[], Samples]:
        some = PartialPlan(Plan(plan.step[:rows]), chosen)
        x, draws = some.template(process), Draws.for_batch(0, rows)
        return lambda: some.sample(denoiser, process, x, draws)

    memory, middle = peak_memory(part(steps[:2], ddpm_rows)), part(steps[len(steps) // 2 :][:1])
    middle()
    start = time.perf_counter()
    middle()
    one = time.perf_counter() - start
    theirs = DDPM(denoiser, ddpm_rows, length, seconds / 20)
    if few == batch and one * len(steps) < seconds / 4:
        found = in_turns({"ours": part(steps)} | theirs.parts(), seconds)
        return Timed(
            found["ours"][0], count.nfe, count.rows, 1.0, memory, theirs.costs(found, batch)
        )
    others = steps[1:]
    number = max(1, min(len(others), int(seconds / 20 / one)))
    spread = others[((torch.arange(number) + 0.5) * (len(others) / number)).long()]
    found = in_turns({"first": part(steps[:1]), "others": part(spread)} | theirs.parts(), seconds)
    first, (took, result) = found["first"], found["others"]
    total = first[0] * batch / few + took / result.rows * (count.rows - first[1].rows)
    return Timed(
        total,
        count.nfe,
        count.rows,
        (first[1].rows + result.rows) / count.rows,
        memory,
        theirs.costs(found, batch),
    )


def time_ar(
    denoiser: CausalDenoiser,
    process: AbsorbingProcess,
    batch: int,
    few: int,
    ddpm_rows: int,
    length: int,
    seconds: float,
) -> Timed:
    """Left to right with its cache; a step of Mamba costs the same at every position, so a shorter
    sequence is timed."""

    def run(tokens: int, rows: int = few) -> Samples:
        return Autoregressive().sample(
            denoiser, process, process.prior(rows, tokens), Draws.for_batch(0, rows)
        )

    memory = peak_memory(lambda: run(min(16, length), ddpm_rows))
    start = time.perf_counter()
    run(min(16, length))
    some = max(1, min(length, int(seconds / 4 / (time.perf_counter() - start) * min(16, length))))
    took, _ = in_turns({"ar": lambda: run(some)}, seconds)["ar"]
    return Timed(
        took * length / some * batch / few,
        length,
        length * batch,
        some * few / (length * batch),
        memory,
        None,
    )
