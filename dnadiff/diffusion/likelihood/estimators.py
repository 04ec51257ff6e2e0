"""Ways to compute the NELBO of given sequences, or their exact likelihood.

Count form: with k uniform on 1..L and k positions masked at random, the expectation of (L/k) times
their summed cross-entropy is an upper bound on -log p, the NELBO of one position at a time (arXiv
2310.01334, section 2). Without time conditioning it equals MDLM's integral over t for every
schedule; a network that is conditioned on time gets the time at which the fraction k/L is masked.
The counts are stratified, two draws per stratum, so that the estimate of the Monte Carlo error is
unbiased.

Deterministic orders (DUEL, arXiv 2603.01367): the NELBO is a mean over random orders. If the next
position to unmask is a function of the tokens that are visible, each sequence has one path, and
-log p is the sum of its cross-entropies by the chain rule: exact, and a distribution over
sequences. It is the distribution of a sampler that unmasks one position at a time in this order. It
takes a network call for each token.

For comparisons with published numbers there is the protocol of MDLM's tables (`one_draw`), and for
sequences short enough the mean over all masks (`exact_nelbo`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, MaskedDenoiser, OptTensor, Query
from dnadiff.diffusion.draws import Draws, hash64, widest_dtype
from dnadiff.diffusion.likelihood.estimates import (
    BLOCKS,
    COUNT,
    EXACT,
    MDLM,
    OWN,
    BlockMeasurements,
    Likelihood,
)
from dnadiff.diffusion.noise import NoiseSchedule, float64_device, refuse_cut
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.process import AbsorbingProcess, block_rows, require, sequence_rows
from dnadiff.diffusion.vocab import Vocab, mirrored


class WindowBatch(NamedTuple):
    """Sequences of one length.

    Attributes:
        ids: (B, L).
        groups: which tokens to count, `{name: (B, L) bool}`; must contain `all`, which includes the
            others.
        valid: (B, L) bool, False on padding that must not be read; None means no padding.
        cond: labels or columns that the network is conditioned on (`Query`); None is none.
        rows: (B,) int64, key of the noise of each sequence; None is its index in the order given.
    """

    ids: Tensor
    groups: Mapping[str, Tensor]
    valid: OptTensor = None
    cond: OptTensor = None
    rows: OptTensor = None

    def to(self, device: torch.device) -> WindowBatch:
        """The same on a device, with ids of 64 bits."""
        ids, groups, *others = self
        moved = (None if x is None else x.to(device) for x in others)
        on_device = {name: mask.to(device) for name, mask in groups.items()}
        return WindowBatch(ids.to(device).long(), on_device, *moved)

    def draw(self, counts: Tensor, nll: Tensor, of_blocks: Any = None) -> Draw:
        """A draw from the masked tokens (B,) and the estimates of all tokens, `nll (B, L)`."""
        nats = {name: (nll * mask.to(nll)).sum(-1) for name, mask in self.groups.items()}
        return Draw(counts, nats, of_blocks)


Batches: TypeAlias = Iterable[WindowBatch | tuple[Tensor, Mapping[str, Tensor]]]
ProgressCallback: TypeAlias = Callable[[int], None]


class Draw(NamedTuple):
    """One draw of a batch: masked tokens (B,), each group's estimate (B,), and those of all tokens
    of each block (B, blocks)."""

    counts: Tensor
    nats: dict[str, Tensor]
    of_blocks: Any = None


def check_num_draws(num_draws: int) -> int:
    """The number of draws; raises ValueError unless it is even and at least 2."""
    if num_draws < 2 or num_draws % 2:
        raise ValueError(
            f"num_draws {num_draws} must be even and at least 2: two draws per stratum give the "
            "Monte Carlo error"
        )
    return num_draws


def stratified_counts(available: Tensor, draw: int, num_draws: int, draws: Draws) -> Tensor:
    """Number of masked tokens in draw number `draw`, of the shape of `available`, (B, blocks).

    Uniform on stratum draw // 2 of the num_draws // 2 strata of 1..L_i. The blocks of a sequence
    divide the stratum evenly, in a cyclic order that begins at random.
    """
    blocks = available.shape[1]
    u = draws.uniform("count", blocks)
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
    curve: bool = False,
    target_se: float | None = None,
    max_draws: int = 1024,
    on_doubling: Callable[[int, float], None] | None = None,
    min_draws: int = 0,
) -> Likelihood:
    """Monte Carlo NELBO of each sequence in count form; where one call is exact (`is_exact`), the
    -log p (`chain_rule`).

    For a block diffusion model, it is the sum of the blocks' NELBOs, each in count form given the
    tokens before the block. A denoiser with a bound of its own (another process than masks, a
    learned order) is asked for that (`Objective.token_bound`).

    With `target_se` the draws are doubled until `se_mc` of all tokens is at most that. Nothing is
    computed twice: each doubling adds new draws, stratified among themselves, to the existing ones.

    Args:
        denoiser: in evaluation mode.
        batches: positions outside the group `all` are neither masked nor counted; those that
            training can mask count as visible for the time that a network is conditioned on
            (`AbsorbingProcess.time_at`). Iterated once per doubling: `target_se` needs a list of
            batches, or another object that can be iterated repeatedly.
        num_draws: network calls per sequence before the first doubling, even and at least 2.
        seed: the noise of draw j of sequence i depends on (seed, i, j) only; its stratum also
            depends on the number of draws made together.
        block_size: windows per bootstrap block.
        progress: called with the number of sequences of each finished batch.
        curve: measure what h(n) needs (`CurveSums.from_estimates`), which takes one network call
            more.
        target_se: nats per token; None makes `num_draws` draws.
        max_draws: do not double to more draws.
        on_doubling: called before each doubling with the number of new draws and the current error.
        min_draws: double at least until this many draws: the draws of an earlier result, to
            evaluate another network with the same noise.

    Raises:
        ValueError: if `num_draws` is odd or below 2, where draws are needed, there is no sequence,
            or the model has no likelihood; with `curve`, see `BlockMeasurements.joined`.
    """
    if target_se is not None and not target_se > 0:
        raise ValueError(
            f"target_se {target_se} must be positive, in nats per token; null makes num_draws draws"
        )
    if target_se is not None and iter(batches) is batches:
        raise ValueError("batches can be iterated only once; target_se needs a list of batches")
    if is_exact(denoiser):
        return chain_rule(denoiser, batches, block_size, progress)
    check_num_draws(num_draws)
    size, starts = denoiser.block_size, list[np.ndarray]()  # (B, blocks), of the call for h(0)
    curve = curve and denoiser.bound is None

    def draws_from(first: int, number: int) -> Likelihood:
        measured = list[BlockMeasurements]()

        def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
            # tokens to mask in each block (B, blocks); without blocks, a sequence is one
            counted = batch.groups["all"]
            allowed = block_rows(counted, size or counted.shape[1])
            available = allowed.sum(-1).view(len(counted), -1)
            counts = []
            results = []
            for j in range(number):
                noise = draws.at(first + j)
                if denoiser.bound is not None:
                    results.append(_own_draw(denoiser, batch, j, number, noise))
                    continue
                counts.append(stratified_counts(available, j, number, noise))
                results.append(_at_count(denoiser, process, batch, counts[-1], noise))
            if curve and first == 0:
                start = _at_count(denoiser, process, batch, available, draws)
                starts.append(start.of_blocks.cpu().numpy())
            if curve and size is not None:
                nats = torch.stack([each.of_blocks for each in results])
                arrays = torch.stack(counts), available, nats
                k, a, x = (each.cpu().numpy() for each in arrays)
                x0 = starts[len(measured)]
                measured.append(BlockMeasurements.of(k, a, x, x0, min(size, batch.ids.shape[1])))
            return results

        protocol = OWN if denoiser.bound else COUNT if size is None else BLOCKS
        result = collect(denoiser, batches, one_batch, seed, block_size, protocol, progress)
        return replace(result, by_block=BlockMeasurements.joined(measured)) if measured else result

    result = draws_from(0, num_draws)

    target_se = math.inf if target_se is None else target_se
    while 2 * (done := result.num_draws) <= max_draws and (
        done < min_draws or result.se_mc() > target_se
    ):
        if on_doubling is not None:
            on_doubling(done, result.se_mc())
        result = result.with_draws(draws_from(done, done))
    if starts:
        result = replace(result, start=np.concatenate([x.sum(1) for x in starts]))
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
        xt = batch.ids.masked_fill(counted, denoiser.vocab.mask_id)  # read by blocks of one token
        nll = cross_entropy(denoiser, batch, xt, None, counted)
        return [batch.draw(counted.sum(-1), nll)]

    return collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


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
    if protocol != OWN:
        require(
            "a likelihood from masked tokens (bounds of samples: num_draws=0)",
            denoiser,
            AbsorbingProcess,
        )
    device = denoiser.device
    parts: list[tuple[WindowBatch, list[Draw]]] = []
    done = 0
    for each in batches:
        batch = WindowBatch(*each).to(device)
        rows = torch.arange(done, done + len(batch.ids)) if batch.rows is None else batch.rows
        draws = one_batch(batch, Draws(hash64(seed, "likelihood"), rows.to(device)))
        parts.append((batch, draws))
        done += len(batch.ids)
        if progress is not None:
            progress(len(batch.ids))
    if not parts:
        raise ValueError("there is no sequence to evaluate")

    def joined(tensors: Iterable[Tensor]) -> np.ndarray:
        return torch.cat([x.cpu() for x in tensors]).numpy()

    groups = parts[0][0].groups
    tokens = {name: joined(batch.groups[name].sum(-1) for batch, _ in parts) for name in groups}
    if not tokens["all"].sum():
        raise ValueError("there is no token to count: all are unknown (N) or padding")
    return Likelihood(
        {
            name: joined(torch.stack([x.nats[name] for x in draws], 1) for _, draws in parts)
            for name in groups
        },
        tokens,
        joined(torch.stack([x.counts for x in draws], 1) for _, draws in parts),
        tokens["all"],
        block_size,
        protocol,
    )


def _at_count(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batch: WindowBatch,
    count: Tensor,
    draws: Draws,
) -> Draw:
    """One mask of `count (B, blocks)` tokens, and each group's estimate `(B,)` float64."""
    ids = batch.ids
    counted = batch.groups["all"]
    size = denoiser.block_size or ids.shape[1]
    length = ids.shape[1]
    t = None
    if denoiser.block_size is None:  # of the window, as in sampling: see `time_at`
        t = process.time_at(count[:, 0], process.maskable(ids, batch.valid).sum(-1))
    rows = block_rows(ids, size, process.vocab.pad_id)
    allowed = block_rows(counted, size)
    noise = draws.for_blocks(count.shape[1])
    xt = sequence_rows(process.corrupt_count(rows, count.flatten(), allowed, noise), length)
    nll = cross_entropy(denoiser, batch, xt, t, (xt == process.vocab.mask_id) & counted)
    factor = (allowed.sum(-1) / count.flatten().clamp(min=1)).to(nll)[:, None]
    nll = nll * sequence_rows(factor.expand(rows.shape), length)
    of_blocks = block_rows(nll, size).sum(-1).view(count.shape)
    return batch.draw(count.sum(-1), nll, of_blocks)


def _own_draw(
    denoiser: BaseDenoiser, batch: WindowBatch, draw: int, num_draws: int, draws: Draws
) -> Draw:
    """Draw number `draw` of the bound of the objective, in stratum draw // 2 of num_draws // 2."""
    counted = batch.groups["all"]
    exact = float64_device(counted.device)
    u = (draws.uniform("count") + draw // 2) / (num_draws // 2)
    given = TrainingBatch(batch.ids, counted.float(), draws, batch.cond, batch.valid)
    assert denoiser.bound is not None
    nats = (
        denoiser.bound(denoiser, given, u.to(counted.device, widest_dtype(counted.device)))
        .to(exact)
        .double()
    )
    return batch.draw(counted.sum(-1), nats)


def cross_entropy(
    denoiser: BaseDenoiser, batch: WindowBatch, xt: Tensor, t: OptTensor, positions: Tensor
) -> Tensor:
    """-log p(x0) at the chosen positions, 0 elsewhere: (B, L) float64."""
    t = None if t is None else t.float().to(xt.device)
    values = denoiser.nll(batch.ids, xt, t, batch.cond, positions, batch.valid)
    where = positions.to(float64_device(positions.device))
    nll = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    nll[where] = values.to(nll)
    return nll


T_MIN = 1e-3  # the smallest time that MDLM's protocol draws, as in its code


def one_draw(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    mask_everything: bool = False,
) -> Likelihood:
    """The protocol of MDLM's tables (arXiv 2406.07524v2, and its code): one draw of Bernoulli masks
    for each sequence.

    Times are stratified over the batch on [1e-3, 1] and the weight is -alpha'/(1 - alpha): under
    the log-linear schedule a uniform predictor gets 0.999 log V. The assignment of strata to
    sequences depends on the seed and the batch, so that the mean over seeds is unbiased for each
    sequence. A single draw has no estimate of its Monte Carlo error.

    Args:
        mask_everything: also corrupt positions that are not counted (padding), as MDLM does for
            text.

    Raises:
        ValueError: as `check_one_draw`.
    """
    check_one_draw(denoiser, process.noise)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        ids = batch.ids
        counted = batch.groups["all"]
        first = hash64(draws.seed, "stratum", int(draws.rows[0])) % len(ids)
        exact = float64_device(ids.device)
        stratum = (torch.arange(len(ids), device=exact) + first) % len(ids)
        u = (draws.uniform("time").to(exact) + stratum) / len(ids)
        t = T_MIN + (1 - T_MIN) * u
        maskable = counted
        if mask_everything:  # MDLM's network reads padding too
            batch = batch._replace(valid=None)
            maskable = torch.ones_like(counted)
        xt = process.corrupt(ids, t, maskable, draws)
        positions = (xt == process.vocab.mask_id) & counted
        nll = cross_entropy(denoiser, batch, xt, t, positions)
        nll = process.noise.weight(t).to(torch.float64)[:, None] * nll
        return [batch.draw(positions.sum(-1), nll)]

    return collect(denoiser, batches, one_batch, seed, block_size, MDLM, progress)


def check_one_draw(denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
    """Raise ValueError unless MDLM's protocol gives a bound.

    It does for models that unmask in any order, with a schedule that masks little before t = 1e-3
    and everything at t = 1.
    """
    remedy = "set protocol=count"
    denoiser.require_any_order("protocol=mdlm", remedy)
    low, high = map(noise.mask_probability, (T_MIN, 1.0))
    refuse_cut(noise, low, high, f"t_min {T_MIN} of protocol=mdlm", remedy)


_STRIDE = 16  # positions of the strided order whose distance is at first the largest
# scores closer than this count as equal: the first position wins, whatever the rounding
_EQUAL = 1e-6


def strided(length: int) -> Tensor:
    """The place of each position (L,): every 16th position first, then those in the middle between
    two, and so on: 0, 16, 32, ..., 8, 24, ..., 4, 12, ..."""
    at = torch.arange(length)
    level = torch.full_like(at, 1 + _STRIDE.bit_length())
    for step, stride in enumerate(_STRIDE >> i for i in range(_STRIDE.bit_length())):
        level = torch.where((at % stride == 0) & (level > step), step, level)
    return (level * length + at).argsort().argsort()


# The place of each position, (L,), from the length; or None: the position whose most probable token
# is most probable is next, the first one of equals. The latter is the likelihood of
# `sampler=confidence sampler.order=max`, one position per call, except that the sampler chooses
# among equal positions at random.
Order: TypeAlias = Callable[[int], Tensor] | None
ORDERS: dict[str, Order] = {"left_to_right": torch.arange, "strided": strided, "confidence": None}


def ordered(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    order: Order,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
) -> Likelihood:
    """-log p of each sequence when the counted tokens are unmasked one by one in `order`, exact;
    other tokens are visible.

    Args:
        denoiser: a model that unmasks in any order.
        batches, block_size, progress: as in `estimate`.

    Raises:
        ValueError: for a model that goes from left to right.
    """
    model = require_ordered(denoiser)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        ids = batch.ids
        masked = batch.groups["all"].clone()
        nll = torch.zeros(masked.shape, dtype=torch.float64, device=float64_device(masked.device))
        place = None if order is None else order(ids.shape[1]).to(ids.device, torch.float32)
        while masked.any():
            active = masked.any(-1).nonzero()[:, 0]
            hidden = masked[active]
            requested = hidden if place is None else _first(place.expand(hidden.shape), hidden)
            xt = torch.where(masked, process.vocab.mask_id, ids)
            query = Query(xt, None, batch.cond, None, batch.valid).rows(active)
            t = process.time_of(query.xt, query.valid)
            found = model.log_probs(*query._replace(t=t, positions=requested))
            if place is None:
                largest = torch.zeros(hidden.shape, dtype=found.dtype, device=found.device)
                largest[hidden] = found.amax(-1)
                exact = largest.to(float64_device(largest.device)).double()
                requested = _first(-(exact / _EQUAL).round(), hidden)
                found = found[requested[hidden]]
            chosen = torch.zeros_like(masked)
            chosen[active] = requested
            nll[chosen.to(nll.device)] = -found.gather(-1, ids[chosen][:, None])[:, 0].to(nll)
            masked &= ~chosen
        counted = batch.groups["all"]
        return [batch.draw(counted.sum(-1), nll)]

    return collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


def require_ordered(denoiser: BaseDenoiser) -> MaskedDenoiser:
    """The model; raises ValueError for one that goes from left to right."""
    return denoiser.require_any_order("order", "leave it out")


def _first(priorities: Tensor, masked: Tensor) -> Tensor:
    """The masked position with the smallest value in each row, the first one of equals: (B, L) bool
    with one True per row."""
    at = priorities.masked_fill(~masked.to(priorities.device), torch.inf).argmin(-1, keepdim=True)
    return torch.zeros_like(masked).scatter(1, at.to(masked.device), True)


MAX_MASKED = 14
_ROWS = 1024  # masked sequences per network call


@torch.no_grad()
def exact_curve(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    x0: Tensor,
    maskable: OptTensor = None,
) -> Tensor:
    """h(n) of each sequence: the cross-entropy of a masked token, averaged over all masks that
    leave n tokens visible.

    Evaluates the network on each of the 2^L - 1 masks of each sequence.

    Args:
        denoiser: not conditioned on labels.
        x0: (B, L) tokens, L at most 14.
        maskable: (L,) bool; other tokens stay visible and count neither in the loss nor in n, but
            in the time that a network is conditioned on, as in sampling
            (`AbsorbingProcess.time_at`). None is all.

    Returns:
        (B, L) float64, nats, with L the number of maskable tokens; its sum over n is the NELBO.

    Raises:
        ValueError: if there are too many masks, or nothing to mask, or for a model that goes from
            left to right.
    """
    denoiser = denoiser.require_any_order("enumeration of all masks")
    require("enumeration of all masks", denoiser, AbsorbingProcess)
    places = torch.arange(x0.shape[1]) if maskable is None else maskable.nonzero()[:, 0].cpu()
    number = len(places)
    if not number:
        raise ValueError("there is no token to mask; exact enumeration needs at least one")
    if number > MAX_MASKED:
        raise ValueError(
            f"{number} tokens have 2^{number} masks; enumerate at most {MAX_MASKED}, or use "
            "likelihood.estimate"
        )
    some = torch.arange(1, 1 << number)[:, None] >> torch.arange(number - 1, -1, -1) & 1
    masks = torch.zeros(len(some), x0.shape[1], dtype=torch.bool)
    masks[:, places] = some.bool()
    count = masks.sum(-1)
    h = torch.zeros(len(x0), number, dtype=torch.float64)
    for row, x in enumerate(x0.long()):
        costs = []
        for m in masks.to(x.device).split(_ROWS):
            xt = torch.where(m, process.vocab.mask_id, x)
            batch = WindowBatch(x.expand_as(m), {})
            costs.append(cross_entropy(denoiser, batch, xt, process.time_of(xt), m).sum(-1))
        each = torch.cat(costs).cpu() / count
        for n in range(number):
            h[row, n] = each[count == number - n].mean()
    return h.to(float64_device(x0.device))


def exact_nelbo(
    denoiser: BaseDenoiser, process: AbsorbingProcess, x0: Tensor, maskable: OptTensor = None
) -> Tensor:
    """The NELBO of each sequence in nats, `(B,)` float64, by enumeration of all masks; see
    `exact_curve`.

    For a denoiser without time conditioning this is the mean over all orders of -log p by the chain
    rule.
    """
    return exact_curve(denoiser, process, x0, maskable).sum(-1)


@dataclass
class ReverseComplemented:
    """The batches with every sequence reverse-complemented and its groups mirrored; can be iterated
    as often as `batches`."""

    batches: Batches
    vocab: Vocab

    def __iter__(self) -> Iterator[WindowBatch]:
        for each in self.batches:
            batch = WindowBatch(*each)
            yield batch._replace(
                ids=self.vocab.reverse_complement(batch.ids),
                groups={name: mask.flip(-1) for name, mask in batch.groups.items()},
                valid=None if batch.valid is None else batch.valid.flip(-1),
                cond=mirrored(batch.cond),
            )


def both_strands(forward: Likelihood, reverse: Likelihood, group: str = "all") -> dict[str, float]:
    """NELBO of x (`forward`), of RC x (`reverse`), their mean, and the gap (x minus RC x) with its
    95 % interval: nats per token."""
    ours, theirs = (each.per_sequence(group) for each in (forward, reverse))
    gap = forward.interval_of(ours - theirs, group)
    mean = forward.interval_of((ours + theirs) / 2, group)
    return {
        "forward": forward.interval(group).value,
        "reverse": reverse.interval(group).value,
        "mean": mean.value,
        "mean_se": mean.se,
        "gap": gap.value,
        "gap_se": gap.se,
        "gap_low": gap.low,
        "gap_high": gap.high,
    }
