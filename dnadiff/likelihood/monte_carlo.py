"""Monte Carlo estimates of the NELBO, and the exact likelihood of autoregressive models in the same form.

Count form: with k uniform on 1..L and k positions masked at random, the expectation of (L/k) times their summed cross-entropy is an
upper bound on -log p, the NELBO of one position at a time (arXiv 2310.01334, section 2). Without time conditioning it equals MDLM's
integral over t for every schedule; a network that is conditioned on time gets the time at which the fraction k/L is masked. The counts
are stratified, two draws per stratum, so that the estimate of the Monte Carlo error is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser, next_nll, nll
from dnadiff.draws import Draws, hash64
from dnadiff.likelihood.record import COUNT, EXACT, MDLM, Likelihood
from dnadiff.noise import NoiseSchedule, refuse_cut
from dnadiff.process import AbsorbingProcess

T_MIN = 1e-3  # the smallest time that MDLM's protocol draws, as in its code


class WindowBatch(NamedTuple):
    """Sequences of one length.

    Attributes:
        ids: (B, L).
        groups: which tokens to count, `{name: (B, L) bool}`; must contain `all`, which includes the others.
        valid: (B, L) bool, False on padding that must not be read; None means no padding.
        cond: (B, C) labels that the network is conditioned on; None is no label.
        rows: (B,) int64, key of the noise of each sequence; None is its index in the order given.
    """

    ids: Tensor
    groups: Mapping[str, Tensor]
    valid: Tensor | None = None
    cond: Tensor | None = None
    rows: Tensor | None = None


Batches: TypeAlias = Iterable[WindowBatch | tuple[Tensor, Mapping[str, Tensor]]]
ProgressCallback: TypeAlias = Callable[[int], None]
_Draw: TypeAlias = tuple[Tensor, dict[str, Tensor]]


def check_num_draws(num_draws: int) -> int:
    """The number of draws; raises ValueError unless it is even and at least 2."""
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"num_draws {num_draws} must be even and at least 2: two draws per stratum give the Monte Carlo error")
    return num_draws


def stratified_counts(available: Tensor, draw: int, num_draws: int, draws: Draws) -> Tensor:
    """Number of masked tokens in draw number `draw`: `(B,)`, uniform on stratum draw // 2 of the num_draws // 2 strata of 1..L_i."""
    u = (draws.uniform("count") + draw // 2) / (num_draws // 2)
    return torch.minimum((u.to(available.device) * available).floor().long() + 1, available)


def estimate(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    num_draws: int = 8,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    first_draw: int = 0,
) -> Likelihood:
    """Monte Carlo NELBO of each sequence in count form.

    Args:
        denoiser: in evaluation mode.
        batches: positions outside the group `all` are neither masked nor counted; those that training can mask count as visible for the
            time that a network is conditioned on (`AbsorbingProcess.time_at`).
        num_draws: network calls per sequence, even and at least 2.
        seed: the noise of draw j of sequence i depends on (seed, i, j) only; its stratum also depends on `num_draws`.
        block_size: windows per bootstrap block.
        progress: called with the number of sequences of each finished batch.
        first_draw: index of the first draw, if earlier draws exist.

    Raises:
        ValueError: if `num_draws` is odd or below 2, or there is no sequence.
    """
    check_num_draws(num_draws)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        available = batch.groups["all"].sum(-1)
        results = []
        for j in range(num_draws):
            noise = draws.at(first_draw + j)
            count = stratified_counts(available, j, num_draws, noise)
            results.append(_at_count(denoiser, process, batch, available, count, noise))
        return results

    return _collect(denoiser, batches, one_batch, seed, block_size, COUNT, progress)


def estimate_to(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    target_se: float | None,
    num_draws: int = 8,
    max_draws: int = 1024,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    on_doubling: Callable[[int, float], None] | None = None,
    min_draws: int = 0,
) -> Likelihood:
    """`estimate` with the draws doubled until `se_mc` of all tokens is at most `target_se` (nats per token), up to `max_draws` draws.

    Nothing is computed twice: each doubling adds new draws, stratified among themselves, to the existing ones.

    Args:
        batches: iterated once per doubling: a list, or another object that can be iterated repeatedly.
        target_se: None makes `num_draws` draws.
        num_draws: initial number of draws.
        on_doubling: called before each doubling with the number of new draws and the current error.
        min_draws: double at least until this many draws: the draws of an earlier result, to evaluate another network with the same noise.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(f"target_se {target_se} must be positive, in nats per token; null makes num_draws draws")
    if target_se is not None and iter(batches) is batches:
        raise ValueError("batches can be iterated only once; target_se needs a list of batches")
    result = estimate(denoiser, process, batches, num_draws, seed, block_size, progress)

    def wanted() -> bool:
        return result.num_draws < min_draws or (target_se is not None and result.se_mc() > target_se)

    while wanted() and 2 * result.num_draws <= max_draws:
        done = result.num_draws
        if on_doubling is not None:
            on_doubling(done, result.se_mc())
        result = result.with_draws(estimate(denoiser, process, batches, done, seed, block_size, progress, first_draw=done))
    return result


def one_draw(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    mask_everything: bool = False,
) -> Likelihood:
    """The protocol of MDLM's tables (arXiv 2406.07524v2, and its code): one draw of Bernoulli masks for each sequence.

    Times are stratified over the batch on [1e-3, 1] and the weight is -alpha'/(1 - alpha): under the log-linear schedule a uniform
    predictor gets 0.999 log V. The assignment of strata to sequences depends on the seed and the batch, so that the mean over seeds is
    unbiased for each sequence. A single draw has no estimate of its Monte Carlo error.

    Args:
        mask_everything: also corrupt positions that are not counted (padding), as MDLM does for text.

    Raises:
        ValueError: as `check_one_draw`.
    """
    check_one_draw(process.noise)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        ids, counted = batch.ids, batch.groups["all"]
        first = hash64(draws.seed, "stratum", int(draws.rows[0])) % len(ids)
        stratum = (torch.arange(len(ids), device=ids.device) + first) % len(ids)
        u = (draws.uniform("time").to(ids.device) + stratum) / len(ids)
        t = T_MIN + (1 - T_MIN) * u
        batch = batch._replace(valid=None) if mask_everything else batch  # MDLM's network reads padding too
        xt = process.corrupt(ids, t, torch.ones_like(counted) if mask_everything else counted, draws)
        positions = (xt == process.vocab.mask_id) & counted
        nll = _cross_entropy(denoiser, batch, xt, t, positions)
        return [(positions.sum(-1), _per_group(process.noise.weight(t), nll, batch.groups))]

    return _collect(denoiser, batches, one_batch, seed, block_size, MDLM, progress)


def check_one_draw(noise: NoiseSchedule) -> None:
    """Raise ValueError unless MDLM's protocol gives a bound: the schedule masks little before t = 1e-3, and everything at t = 1."""
    refuse_cut(noise, noise.mask_probability(T_MIN), noise.mask_probability(1.0), f"t_min {T_MIN} of protocol=mdlm", "set protocol=count")


def chain_rule(denoiser: BaseDenoiser, batches: Batches, block_size: int = 16, progress: ProgressCallback | None = None) -> Likelihood:
    """The exact -log p of each sequence under a causal model, without a bound and without Monte Carlo."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        ids, counted = batch.ids, batch.groups["all"]
        nll = _scattered(next_nll(denoiser, ids, batch.cond, counted, batch.valid), counted)
        return [(counted.sum(-1), _per_group(torch.ones(len(ids), device=ids.device), nll, batch.groups))]

    return _collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


def all_masked(denoiser: BaseDenoiser, process: AbsorbingProcess, batches: Batches) -> Likelihood:
    """L h(0) of each sequence in nats: the cost when all its tokens are predicted in one call. Deterministic."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        available = batch.groups["all"].sum(-1)
        return [_at_count(denoiser, process, batch, available, available, draws)]

    return _collect(denoiser, batches, one_batch, 0, 1, EXACT, None)


@torch.no_grad()
def _collect(
    denoiser: BaseDenoiser,
    batches: Batches,
    one_batch: Callable[[WindowBatch, Draws], list[_Draw]],
    seed: int,
    block_size: int,
    protocol: str,
    progress: ProgressCallback | None,
) -> Likelihood:
    device = next(denoiser.parameters()).device
    nats: dict[str, list[Tensor]] = {}
    tokens: dict[str, list[Tensor]] = {}
    counts, available, done = [], [], 0
    for each in batches:
        ids, groups, valid, cond, rows = WindowBatch(*each)
        ids = ids.to(device).long()
        groups = {name: mask.to(device) for name, mask in groups.items()}
        rows = torch.arange(done, done + len(ids)) if rows is None else rows
        draws = Draws(hash64(seed, "likelihood"), rows.to(device))
        batch = WindowBatch(ids, groups, None if valid is None else valid.to(device), None if cond is None else cond.to(device))
        results = one_batch(batch, draws)
        counts.append(torch.stack([c for c, _ in results], 1).cpu())
        available.append(groups["all"].sum(-1).cpu())
        for name, mask in groups.items():
            nats.setdefault(name, []).append(torch.stack([n[name] for _, n in results], 1).cpu())
            tokens.setdefault(name, []).append(mask.sum(-1).cpu())
        done += len(ids)
        if progress is not None:
            progress(len(ids))
    if not counts:
        raise ValueError("there is no sequence to evaluate")
    if not sum(int(n.sum()) for n in tokens["all"]):
        raise ValueError("there is no token to count: all are unknown (N) or padding")
    return Likelihood(
        {name: torch.cat(parts).numpy() for name, parts in nats.items()},
        {name: torch.cat(parts).numpy() for name, parts in tokens.items()},
        torch.cat(counts).numpy(),
        torch.cat(available).numpy(),
        block_size,
        protocol,
    )


def _at_count(
    denoiser: BaseDenoiser, process: AbsorbingProcess, batch: WindowBatch, available: Tensor, count: Tensor, draws: Draws
) -> _Draw:
    """One mask of `count (B,)` of the `available (B,)` tokens per sequence: the counts and each group's estimate `(B,)` float64."""
    counted = batch.groups["all"]
    xt = process.corrupt_count(batch.ids, count, counted, draws)
    t = process.time_at(count, process.maskable(batch.ids, batch.valid).sum(-1))  # of the window, as in sampling: see `time_at`
    nll = _cross_entropy(denoiser, batch, xt, t, (xt == process.vocab.mask_id) & counted)
    return count, _per_group(available / count.clamp(min=1), nll, batch.groups)


def _cross_entropy(denoiser: BaseDenoiser, batch: WindowBatch, xt: Tensor, t: Tensor, positions: Tensor) -> Tensor:
    """-log p(x0) at the chosen positions, 0 elsewhere: (B, L) float64."""
    return _scattered(nll(denoiser, batch.ids, xt, t.float(), batch.cond, positions, batch.valid), positions)


def _scattered(values: Tensor, positions: Tensor) -> Tensor:
    where = positions.cpu() if positions.device.type == "mps" else positions  # Apple GPUs have no float64
    nll = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    nll[where] = values.to(nll)
    return nll


def _per_group(factor: Tensor, nll: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each group's part of factor * sum of nll: (B,) float64."""
    return {name: factor.to(nll) * (nll * mask.to(nll)).sum(-1) for name, mask in groups.items()}
