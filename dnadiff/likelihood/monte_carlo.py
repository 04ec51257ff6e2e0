"""Monte-Carlo estimates of the NELBO, and the autoregressive control's exact likelihood in the same form.

Count form: with k uniform on 1..L and k positions masked at random, (L/k) times their summed cross-entropy has the
NELBO as its mean (arXiv 2310.01334, section 2; the equal of MDLM's integral over t for every schedule). The counts are
stratified, two draws a stratum, so that the Monte-Carlo error is estimated without bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from dnadiff.denoiser import next_nll, nll
from dnadiff.draws import Draws, hash64
from dnadiff.likelihood.record import COUNT, EXACT, MDLM, Likelihood
from dnadiff.noise import NoiseSchedule, refuse_cut
from dnadiff.process import AbsorbingProcess

T_MIN = 1e-3  # MDLM's protocol draws no time below, as its code


class WindowBatch(NamedTuple):
    """Sequences of one length.

    Attributes:
        ids: (B, L).
        groups: which tokens to count, `{name: (B, L) bool}`; `all` must be there and hold the others.
        valid: (B, L) bool, False on padding that must not be read; None reads everything.
        cond: (B, C) labels that the network is told; None is no label.
        rows: (B,) int64, what the noise of each sequence is keyed by; None is its number in the order given.
    """

    ids: Tensor
    groups: Mapping[str, Tensor]
    valid: Tensor | None = None
    cond: Tensor | None = None
    rows: Tensor | None = None


Batches: TypeAlias = Iterable[WindowBatch | tuple[Tensor, Mapping[str, Tensor]]]
_Draw: TypeAlias = tuple[Tensor, dict[str, Tensor]]


def stratified_counts(available: Tensor, draw: int, num_draws: int, draws: Draws) -> Tensor:
    """Masked tokens of draw number `draw`: `(B,)`, uniform on stratum draw // 2 of num_draws // 2 over 1..L_i."""
    strata = num_draws // 2
    u = (draws.uniform("count") + draw // 2) / strata
    count = (u.to(available.device) * available).floor().long() + 1
    return torch.minimum(count, available)


def estimate(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    batches: Batches,
    num_draws: int = 8,
    seed: int = 0,
    block_size: int = 16,
    progress: Callable[[int], None] | None = None,
    first_draw: int = 0,
) -> Likelihood:
    """Monte-Carlo NELBO of each sequence by the count form.

    Args:
        denoiser: in evaluation mode.
        process: the absorbing process.
        batches: positions outside the group `all` are never masked nor counted.
        num_draws: network calls per sequence, even and at least 2.
        seed: the noise of draw j of sequence number i depends on (seed, i, j) and, for the stratum, on `num_draws` alone.
        block_size: windows per bootstrap block.
        progress: called with the number of sequences done.
        first_draw: number of the first draw, where earlier ones were made before.

    Raises:
        ValueError: if `num_draws` is odd or below 2, or there is no sequence.
    """
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"num_draws {num_draws} must be even and at least 2: two draws a stratum give the Monte-Carlo error")

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
    denoiser: nn.Module,
    process: AbsorbingProcess,
    batches: Batches,
    target_se: float | None,
    num_draws: int = 8,
    max_draws: int = 1024,
    seed: int = 0,
    block_size: int = 16,
    progress: Callable[[int], None] | None = None,
    grown: Callable[[int, float], None] | None = None,
    min_draws: int = 0,
) -> Likelihood:
    """As `estimate`, with the draws doubled until `se_mc` of all tokens is at most `target_se` (nats per token) or `max_draws` are made.

    Nothing is computed twice: each doubling adds draws to those there are, stratified among themselves.

    Args:
        denoiser: see `estimate`.
        process: see `estimate`.
        batches: gone through once for each doubling: a list, or an object that can be iterated again.
        target_se: None makes `num_draws` draws.
        num_draws: to begin with.
        max_draws: no doubling goes beyond.
        seed: see `estimate`.
        block_size: see `estimate`.
        progress: see `estimate`.
        grown: called before each doubling with the draws to be made and the error so far.
        min_draws: double at least until there are so many: the draws of an earlier result, when another network is to be given its noise.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(f"target_se {target_se} must be positive, in nats per token; null makes num_draws draws")
    if target_se is not None and iter(batches) is batches:
        raise ValueError("batches can be gone through only once; to reach target_se give a list of them")
    result = estimate(denoiser, process, batches, num_draws, seed, block_size, progress)

    def wanted() -> bool:
        return result.num_draws < min_draws or (target_se is not None and result.se_mc() > target_se)

    while wanted() and 2 * result.num_draws <= max_draws:
        done = result.num_draws
        if grown is not None:
            grown(done, result.se_mc())
        result = result.joined(estimate(denoiser, process, batches, done, seed, block_size, progress, first_draw=done))
    return result


def one_draw(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    batches: Batches,
    seed: int = 0,
    block_size: int = 16,
    progress: Callable[[int], None] | None = None,
    mask_everything: bool = False,
) -> Likelihood:
    """The protocol of MDLM's tables (arXiv 2406.07524v2, and its code): one draw of coins for each sequence.

    Times are stratified over the batch on [1e-3, 1] and the weight is -alpha'/(1 - alpha): under the log-linear schedule a uniform
    predictor comes to 0.999 log V. Which stratum is whose depends on the seed and the batch, so that the mean over seeds is each
    sequence's own. One draw says nothing about its own Monte-Carlo error.

    Args:
        denoiser: see `estimate`.
        process: see `estimate`.
        batches: see `estimate`.
        seed: see `estimate`.
        block_size: see `estimate`.
        progress: see `estimate`.
        mask_everything: corrupt positions that are not counted as well (padding), as MDLM does for text.

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
        batch = batch._replace(valid=None) if mask_everything else batch  # that code does not tell the network of padding either
        xt = process.corrupt(ids, t, torch.ones_like(counted) if mask_everything else counted, draws)
        positions = (xt == process.vocab.mask_id) & counted
        nll = _cross_entropy(denoiser, batch, xt, t, positions)
        return [(positions.sum(-1), _share(process.noise.weight(t), nll, batch.groups))]

    return _collect(denoiser, batches, one_batch, seed, block_size, MDLM, progress)


def check_one_draw(noise: NoiseSchedule) -> None:
    """Refuse schedules for which MDLM's protocol gives no bound: those that mask much before t = 1e-3, or not all at t = 1.

    Raises:
        ValueError: naming what would be left out.
    """
    refuse_cut(noise, noise.mask_probability(T_MIN), noise.mask_probability(1.0), f"t_min {T_MIN} of protocol=mdlm", "set protocol=count")


def chain_rule(denoiser: nn.Module, batches: Batches, block_size: int = 16, progress: Callable[[int], None] | None = None) -> Likelihood:
    """-log p of each sequence under a causal model (`CausalDenoiser`), exactly: no bound and no Monte Carlo."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        ids, counted = batch.ids, batch.groups["all"]
        nll = _scattered(next_nll(denoiser, ids, batch.cond, counted, batch.valid), counted)
        return [(counted.sum(-1), _share(torch.ones(len(ids), device=ids.device), nll, batch.groups))]

    return _collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


def all_masked(denoiser: nn.Module, process: AbsorbingProcess, batches: Batches) -> Likelihood:
    """L h(0) of each sequence in nats: what it costs when all its tokens are guessed in one call. Not a matter of chance."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[_Draw]:
        available = batch.groups["all"].sum(-1)
        return [_at_count(denoiser, process, batch, available, available, draws)]

    return _collect(denoiser, batches, one_batch, 0, 1, EXACT, None)


@torch.no_grad()
def _collect(
    denoiser: nn.Module,
    batches: Batches,
    one_batch: Callable[[WindowBatch, Draws], list[_Draw]],
    seed: int,
    block_size: int,
    protocol: str,
    progress: Callable[[int], None] | None,
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
        raise ValueError("there is no token to count: every one is unknown (N) or padding")
    return Likelihood(
        {name: torch.cat(parts).numpy() for name, parts in nats.items()},
        {name: torch.cat(parts).numpy() for name, parts in tokens.items()},
        torch.cat(counts).numpy(),
        torch.cat(available).numpy(),
        block_size,
        protocol,
    )


def _at_count(denoiser: nn.Module, process: AbsorbingProcess, batch: WindowBatch, available: Tensor, count: Tensor, draws: Draws) -> _Draw:
    """One mask of `count (B,)` tokens per sequence: the counts and each group's estimate `(B,)` float64."""
    counted = batch.groups["all"]
    xt = process.corrupt_count(batch.ids, count, counted, draws)
    t = process.noise.inverse(1 - count / available.clamp(min=1)).clamp(max=1.0)
    nll = _cross_entropy(denoiser, batch, xt, t, (xt == process.vocab.mask_id) & counted)
    return count, _share(available / count.clamp(min=1), nll, batch.groups)


def _cross_entropy(denoiser: nn.Module, batch: WindowBatch, xt: Tensor, t: Tensor, positions: Tensor) -> Tensor:
    """-log p(x0) at the chosen positions, 0 elsewhere: (B, L) float64."""
    return _scattered(nll(denoiser, batch.ids, xt, t.float(), batch.cond, positions, batch.valid), positions)


def _scattered(values: Tensor, positions: Tensor) -> Tensor:
    where = positions.cpu() if positions.device.type == "mps" else positions  # Apple GPUs have no float64
    nll = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    nll[where] = values.to(nll)
    return nll


def _share(factor: Tensor, nll: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each group's part of factor * sum of nll: (B,) float64."""
    return {name: factor.to(nll) * (nll * mask.to(nll)).sum(-1) for name, mask in groups.items()}
