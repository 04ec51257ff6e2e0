"""Monte Carlo estimates of the NELBO, and exact likelihoods of autoregressive models in the same
form.

Count form: with k uniform on 1..L and k positions masked at random, the expectation of (L/k) times
their summed cross-entropy is an upper bound on -log p, the NELBO of one position at a time (arXiv
2310.01334, section 2). Without time conditioning it equals MDLM's integral over t for every
schedule; a network that is conditioned on time gets the time at which the fraction k/L is masked.
The counts are stratified, two draws per stratum, so that the estimate of the Monte Carlo error is
unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from dnadiff.blocks import block_rows, sequence_rows
from dnadiff.denoiser import BaseDenoiser
from dnadiff.draws import Draws, float64_device, hash64
from dnadiff.likelihood.measurements import BlockMeasurements, check_lengths
from dnadiff.likelihood.record import BLOCKS, COUNT, EXACT, Likelihood
from dnadiff.process import AbsorbingProcess, require


class WindowBatch(NamedTuple):
    """Sequences of one length.

    Attributes:
        ids: (B, L).
        groups: which tokens to count, `{name: (B, L) bool}`; must contain `all`, which includes the
            others.
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


class Draw(NamedTuple):
    """One draw of a batch: masked tokens (B,) and each group's estimate (B,); of block diffusion
    also the estimates (B, blocks)."""

    counts: Tensor
    nats: dict[str, Tensor]
    of_blocks: Tensor | None = None


def check_num_draws(num_draws: int) -> int:
    """The number of draws; raises ValueError unless it is even and at least 2."""
    if num_draws < 2 or num_draws % 2:
        raise ValueError(
            f"num_draws {num_draws} must be even and at least 2: two draws per stratum give the "
            "Monte Carlo error"
        )
    return num_draws


def stratified_counts(available: Tensor, draw: int, num_draws: int, draws: Draws) -> Tensor:
    """Number of masked tokens in draw number `draw`, of the shape of `available`, (B,) or (B,
    blocks).

    Uniform on stratum draw // 2 of the num_draws // 2 strata of 1..L_i. The blocks of a sequence
    divide the stratum evenly, in a cyclic order that begins at random.
    """
    u = draws.uniform("count", *available.shape[1:])
    if available.ndim == 2:
        blocks = available.shape[1]
        first = (draws.uniform("stratum")[:, None] * blocks).floor()
        u = ((torch.arange(blocks, device=u.device) + first) % blocks + u) / blocks
    exact = float64_device(available.device)
    u = (u.to(exact) + draw // 2) / (num_draws // 2)
    return torch.minimum(
        (u * available.to(exact)).floor().long().to(available.device) + 1, available
    )


def is_exact(denoiser: BaseDenoiser) -> bool:
    """Whether one network call gives the exact -log p: autoregressive, or block diffusion in blocks
    of one token."""
    return denoiser.autoregressive or denoiser.block_size == 1


def estimate(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    num_draws: int = 8,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    first_draw: int = 0,
    curve: bool = False,
    starts: list[Draw] | None = None,
) -> Likelihood:
    """Monte Carlo NELBO of each sequence in count form; where one call is exact (`is_exact`), the
    -log p (`chain_rule`).

    For a block diffusion model, it is the sum of the blocks' NELBOs, each in count form given the
    tokens before the block.

    Args:
        denoiser: in evaluation mode.
        batches: positions outside the group `all` are neither masked nor counted; those that
            training can mask count as visible for the time that a network is conditioned on
            (`AbsorbingProcess.time_at`).
        num_draws: network calls per sequence, even and at least 2.
        seed: the noise of draw j of sequence i depends on (seed, i, j) only; its stratum also
            depends on `num_draws`.
        block_size: windows per bootstrap block.
        progress: called with the number of sequences of each finished batch.
        first_draw: index of the first draw, if earlier draws exist.
        curve: measure what h(n) of a block diffusion model needs (`Likelihood.by_block`), which
            takes one network call more. Other models need nothing more.
        starts: that call of each batch. Calls for further draws of the same batches share the list,
            so that only the first one makes it.

    Raises:
        ValueError: if `num_draws` is odd or below 2, where draws are needed, or there is no
            sequence; with `curve`, see `check_lengths`.
    """
    if is_exact(denoiser):
        return chain_rule(denoiser, batches, block_size, progress)
    check_num_draws(num_draws)
    size, measured = denoiser.block_size, list[BlockMeasurements]()
    starts = [] if starts is None else starts
    if curve and size is not None and isinstance(batches, Sequence):
        check_lengths((batch[0].shape[1] for batch in batches), size)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        if curve and size is not None:  # batches of an iterator are not known before
            check_lengths((*(each.length for each in measured), batch.ids.shape[1]), size)
        available, counts, results = _available(denoiser, batch), [], []
        for j in range(num_draws):
            noise = draws.at(first_draw + j)
            counts.append(stratified_counts(available, j, num_draws, noise))
            results.append(_at_count(denoiser, process, batch, available, counts[-1], noise))
        if curve and size is not None:
            if len(starts) == len(measured):
                starts.append(_at_count(denoiser, process, batch, available, available, draws))
            nats = [
                each.of_blocks
                for each in (starts[len(measured)], *results)
                if each.of_blocks is not None
            ]
            k, a, x, x0 = (
                each.cpu().numpy()
                for each in (torch.stack(counts), available, torch.stack(nats[1:]), nats[0])
            )
            measured.append(BlockMeasurements.of(k, a, x, x0, min(size, batch.ids.shape[1])))
        return results

    result = collect(
        denoiser, batches, one_batch, seed, block_size, COUNT if size is None else BLOCKS, progress
    )
    return replace(result, by_block=BlockMeasurements.joined(measured)) if measured else result


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
    curve: bool = False,
) -> Likelihood:
    """`estimate` with the draws doubled until `se_mc` of all tokens is at most `target_se` (nats
    per token), up to `max_draws` draws.

    Nothing is computed twice: each doubling adds new draws, stratified among themselves, to the
    existing ones.

    Args:
        batches: iterated once per doubling: a list, or another object that can be iterated
            repeatedly.
        target_se: None makes `num_draws` draws.
        num_draws: initial number of draws.
        on_doubling: called before each doubling with the number of new draws and the current error.
        min_draws: double at least until this many draws: the draws of an earlier result, to
            evaluate another network with the same noise.
        curve: as in `estimate`.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(
            f"target_se {target_se} must be positive, in nats per token; null makes num_draws draws"
        )
    if target_se is not None and iter(batches) is batches:
        raise ValueError("batches can be iterated only once; target_se needs a list of batches")
    starts = list[Draw]()
    result = estimate(
        denoiser, process, batches, num_draws, seed, block_size, progress, 0, curve, starts
    )

    def wanted() -> bool:
        return not is_exact(denoiser) and (
            result.num_draws < min_draws or (target_se is not None and result.se_mc() > target_se)
        )

    while wanted() and 2 * result.num_draws <= max_draws:
        done = result.num_draws
        if on_doubling is not None:
            on_doubling(done, result.se_mc())
        result = result.with_draws(
            estimate(
                denoiser, process, batches, done, seed, block_size, progress, done, curve, starts
            )
        )
    return result


def chain_rule(
    denoiser: BaseDenoiser,
    batches: Batches,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
) -> Likelihood:
    """The exact -log p of each sequence in one network call, without a bound and without Monte
    Carlo, for a model with `is_exact`."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        counted = batch.groups["all"]
        xt = torch.where(
            counted, denoiser.vocab.mask_id, batch.ids
        )  # read by blocks of one token only
        nll = cross_entropy(denoiser, batch, xt, None, counted)
        return [Draw(counted.sum(-1), per_group(nll, batch.groups))]

    return collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


def all_masked(denoiser: BaseDenoiser, process: AbsorbingProcess, batches: Batches) -> Likelihood:
    """L h(0) of each sequence in nats: the cost when all its tokens are predicted in one call.
    Deterministic."""

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        available = _available(denoiser, batch)
        return [_at_count(denoiser, process, batch, available, available, draws)]

    return collect(denoiser, batches, one_batch, 0, 1, EXACT, None)


@torch.no_grad()
def collect(
    denoiser: BaseDenoiser,
    batches: Batches,
    one_batch: Callable[[WindowBatch, Draws], list[Draw]],
    seed: int,
    block_size: int,
    protocol: str,
    progress: ProgressCallback | None,
) -> Likelihood:
    """The likelihood of all batches from the draws that `one_batch` makes of each; other arguments
    as in `estimate`.

    Raises:
        ValueError: for a model of another process than the absorbing one; see `require`.
    """
    require(
        "a likelihood from masked tokens (bounds of samples: num_draws=0)",
        denoiser,
        AbsorbingProcess,
    )
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
        batch = WindowBatch(
            ids,
            groups,
            None if valid is None else valid.to(device),
            None if cond is None else cond.to(device),
        )
        results = one_batch(batch, draws)
        counts.append(torch.stack([draw.counts for draw in results], 1).cpu())
        available.append(groups["all"].sum(-1).cpu())
        for name, mask in groups.items():
            nats.setdefault(name, []).append(
                torch.stack([draw.nats[name] for draw in results], 1).cpu()
            )
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


def _available(denoiser: BaseDenoiser, batch: WindowBatch) -> Tensor:
    """The number of tokens to mask, (B,); in each block, (B, blocks), for a block diffusion
    model."""
    counted = batch.groups["all"]
    if denoiser.block_size is None:
        return counted.sum(-1)
    return block_rows(counted, denoiser.block_size, 0).sum(-1).view(len(counted), -1)


def _at_count(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batch: WindowBatch,
    available: Tensor,
    count: Tensor,
    draws: Draws,
) -> Draw:
    """One mask of `count` of the `available` tokens, both (B,) or (B, blocks), and each group's
    estimate `(B,)` float64."""
    ids, counted = batch.ids, batch.groups["all"]
    factor = available / count.clamp(min=1)
    if denoiser.block_size is None:
        xt = process.corrupt_count(ids, count, counted, draws)
        t = process.time_at(
            count, process.maskable(ids, batch.valid).sum(-1)
        )  # of the window, as in sampling: see `time_at`
        nll = cross_entropy(denoiser, batch, xt, t, (xt == process.vocab.mask_id) & counted)
        return Draw(count, per_group(factor.to(nll)[:, None] * nll, batch.groups))
    size, length = denoiser.block_size, ids.shape[1]
    rows, allowed = block_rows(ids, size, process.vocab.pad_id), block_rows(counted, size, 0)
    xt = sequence_rows(
        process.corrupt_count(rows, count.flatten(), allowed, draws.for_blocks(count.shape[1])),
        length,
    )
    nll = cross_entropy(denoiser, batch, xt, None, (xt == process.vocab.mask_id) & counted)
    nll = nll * sequence_rows(factor.to(nll).view(-1, 1).expand(rows.shape), length)
    return Draw(
        count.sum(-1),
        per_group(nll, batch.groups),
        block_rows(nll, size, 0).sum(-1).view(count.shape),
    )


def cross_entropy(
    denoiser: BaseDenoiser, batch: WindowBatch, xt: Tensor, t: Tensor | None, positions: Tensor
) -> Tensor:
    """-log p(x0) at the chosen positions, 0 elsewhere: (B, L) float64."""
    t = None if t is None else t.float().to(xt.device)
    return _scattered(denoiser.nll(batch.ids, xt, t, batch.cond, positions, batch.valid), positions)


def _scattered(values: Tensor, positions: Tensor) -> Tensor:
    where = positions.to(float64_device(positions.device))
    nll = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    nll[where] = values.to(nll)
    return nll


def per_group(nll: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each group's part of the sum of `nll (B, L)`: (B,) float64."""
    return {name: (nll * mask.to(nll)).sum(-1) for name, mask in groups.items()}
