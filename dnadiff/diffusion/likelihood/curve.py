"""h(n), the mean cross-entropy of a masked token when n random other tokens are visible, and the
expected code length of sampling with K network calls.

Unmasking groups of s_1, ..., s_K tokens costs sum_k s_k h(n_k) nats in expectation, with n_k = s_1
+ ... + s_{k-1}. Given the random order this is exact; if the order is not given, it is an upper
bound on -log p of the sampler. One token per call gives the NELBO, one call for all tokens gives L
h(0). The formula holds for `sampler=grouped` at temperature 1 without truncation or guidance, not
for orders that depend on the tokens.

`CurveSums` fits the curve to measurements, `code_length_table` is what `evaluate` reports and
stores next to a checkpoint, and `StoredCurve` chooses numbers of groups from it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from dnadiff.diffusion.bootstrap import MIN_BLOCKS, blocks
from dnadiff.diffusion.likelihood.estimates import Cells, Floats, Likelihood
from dnadiff.fields import Json, is_number
from dnadiff.progress import log, pasted
from dnadiff.store.disk import read_json
from dnadiff.weights.tensors import fingerprint

_CANDIDATES = 1024  # group boundaries that the dynamic program considers
# fraction of the structure that samples may lose when the number of groups is chosen automatically
MAX_LOST = 0.02


def uniform_sizes(length: int, num_groups: int) -> ndarray:
    """Sizes of the groups that `dnadiff.diffusion.sampler.grouped.Grouped` unmasks: `(K,)`, their
    sum is `length`.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    _check_groups(length, num_groups)
    starts = -(-np.arange(num_groups + 1) * length // num_groups)  # rank r is in group r K // L
    return np.diff(starts)


def optimal_sizes(h: ndarray, num_groups: int) -> ndarray:
    """`optimal_sizes_for` a single number of groups."""
    return optimal_sizes_for(h, [num_groups])[num_groups]


def optimal_sizes_for(h: ndarray, group_counts: Sequence[int]) -> dict[int, ndarray]:
    """Sizes of K groups that minimize the code length under `h (L,)`, for each K: `(K,)` in
    unmasking order, their sum is L.

    Dynamic programming over boundaries: best(k, m) = min_j best(k - 1, j) + (m - j) h(j). For more
    than 1,024 tokens, boundaries are multiples of about L/1024.

    Raises:
        ValueError: if there are more groups than tokens, or none.
    """
    length = len(h)
    largest = max(group_counts)
    for num_groups in group_counts:
        _check_groups(length, num_groups)
    candidates = np.linspace(0, length, min(length, max(_CANDIDATES, largest)) + 1)
    boundary = np.unique(np.round(candidates).astype(np.int64))
    size = boundary[None, :] - boundary[:-1, None]  # (from, to)
    step = np.where(size > 0, size * h[boundary[:-1], None], np.inf)
    best = np.full(len(boundary), np.inf)
    back = []
    best[0] = 0.0
    for _ in range(largest):
        total = best[:-1, None] + step
        back.append(total.argmin(0))
        best = total.min(0)
    sizes = {}
    for num_groups in group_counts:
        at = len(boundary) - 1
        ends = []
        for k in range(num_groups - 1, -1, -1):
            ends.append(boundary[at])
            at = back[k][at]
        sizes[num_groups] = np.diff([0, *reversed(ends)])
    return sizes


def code_length(h: ndarray, sizes: Sequence[int] | ndarray) -> float:
    """sum_k s_k h(n_k) in nats, for `h (L,)` at n = 0 .. L-1 and `sizes (K,)` in unmasking order.

    Raises:
        ValueError: if the sizes are not positive or do not add up to L.
    """
    sizes = np.asarray(sizes)
    if (sizes < 1).any() or sizes.sum() != len(h):
        raise ValueError(
            f"sizes of {len(sizes)} groups add up to {sizes.sum()}; they must be positive and add "
            f"up to the {len(h)} tokens"
        )
    visible = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return float((sizes * h[visible]).sum())


def lost_structure(h: ndarray, nats: float, alone: float | None = None) -> float:
    """(code length - NELBO)/(L h(0) - NELBO): 0 for one token per call, 1 for a single call; NaN if
    there is no structure to lose.

    `alone` replaces h(0): the nats of a token without any context, where h is of blocks that see
    those before them.
    """
    nelbo = h.sum()
    independent = len(h) * (h[0] if alone is None else alone)
    structure = independent - nelbo
    return float((nats - nelbo) / structure) if structure > 1e-12 * independent else math.nan


def fewest_groups(
    h: ndarray, max_lost: float = MAX_LOST, optimal: bool = False, alone: float | None = None
) -> ndarray | None:
    """Sizes of the fewest equal (or `optimal`) groups with at most `max_lost` lost structure:
    `(K,)`; None without structure to lose.

    `alone` is as in `lost_structure`.
    """
    if math.isnan(lost_structure(h, 0.0, alone)):
        return None

    def enough(sizes: ndarray) -> bool:
        return lost_structure(h, code_length(h, sizes), alone) <= max_lost + 1e-12

    equal = next(sizes for k in range(1, len(h) + 1) if enough(sizes := uniform_sizes(len(h), k)))
    if not optimal:
        return equal
    best = optimal_sizes_for(h, range(1, len(equal) + 1))
    return next((best[k] for k in sorted(best) if enough(best[k])), equal)


def curve_from(content: Json, length: int) -> ndarray:
    """h(0) .. h(length - 1) in nats from a `code_length_table`, by linear interpolation at equal
    fractions of visible tokens.

    At the length of the table this is the measured h. At other lengths it assumes that h depends on
    n/L only.
    """
    visible, bits = (np.asarray(content["h"][key], dtype=float) for key in ("visible", "bits"))
    bits = np.interp(np.arange(length) / length, visible / int(content["length"]), bits)
    return np.minimum.accumulate(bits) * math.log(2)


def optimal_sizes_help(content: Json, num_groups: int) -> bool:
    """Whether optimal sizes cost less than equal ones on windows not used to choose them, at the
    nearest K of a `code_length_table`."""
    rows = [row for row in content.get("rows", ()) if row["groups"] > 1]
    nearest = min(rows, key=lambda row: abs(math.log(row["groups"] / num_groups)), default=None)
    return nearest is not None and nearest["optimal"]["bits"] < nearest["uniform"]["bits"]


def _check_groups(length: int, num_groups: int) -> None:
    if not 1 <= num_groups <= length:
        raise ValueError(
            f"num_groups {num_groups} must be from 1 to {length}, the number of tokens"
        )


NUM_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
APPLIES_TO = "sampler=grouped, temperature 1, nothing cut, no guidance; n/a for other orders"


def stored_points(length: int) -> ndarray:
    """The n at which a `code_length_table` stores h: dense at both ends, where h may be steep, and
    sparse in the middle."""
    near = np.unique(np.round(np.geomspace(1, length, min(length, 64))).astype(np.int64)) - 1
    return np.unique([*near, *(length - 1 - near)])


@dataclass(frozen=True)
class CurveSums:
    """Measurements of h, summed over the windows of each of U units of the bootstrap, to which
    smooth curves are fitted.

    Attributes:
        cells: rows are units.
        tokens: (U,) tokens of each unit.
        start: (U,) nats of these tokens at h(0), exact.
        nats: (U,) nats of these tokens at the NELBO: the mean over draws.
        length: L, tokens of a sequence; of a block, where "sequences" are blocks that see those
            before them.
        alone: h(0) without any context, where sequences are blocks; None is h(0).
    """

    cells: Cells
    tokens: Floats
    start: Floats
    nats: Floats
    length: int
    alone: float | None = None

    @classmethod
    def of(
        cls,
        masked: ndarray,
        nats: ndarray,
        start: ndarray,
        tokens: ndarray,
        unit: ndarray,
        length: int,
    ) -> CurveSums:
        """From one measurement for each sequence and draw.

        Args:
            masked: (S, draws) masked tokens of each sequence.
            nats: (S, draws) mean cross-entropy of the masked tokens.
            start: (S,) h(0) of each sequence.
            tokens: (S,) tokens of each sequence.
            unit: (S,) unit of the bootstrap, 0..U-1.
        """
        each = (np.broadcast_to(x[:, None], nats.shape).ravel() for x in (unit, tokens, start))
        row, a, zero = each
        cells = Cells.of(row, a, masked.ravel(), nats.ravel(), zero, length)
        sums = _per_unit(unit, tokens, tokens * start, tokens * nats.mean(1))
        return cls(cells, sums[0], sums[1], sums[2], length)

    @classmethod
    def from_estimates(cls, result: Likelihood, length: int) -> CurveSums:
        """From estimates in count form of windows of `length` tokens, by `likelihood.estimate` with
        `curve=True`. The curve of a block diffusion model is that of a block.

        Raises:
            ValueError: if there are no measurements: see `Likelihood.check_curve`.
        """
        result.check_curve()
        if result.start is None:
            raise ValueError("h(n) was not measured; call likelihood.estimate with curve=True")
        unit = blocks(len(result.available), result.block_size)
        of_blocks = result.by_block
        if of_blocks is None:
            used = result.available > 0
            tokens = result.available[used]
            zero = result.start[used]
            measured = result.counts[used], result.cross_entropy()[used]
            return cls.of(*measured, zero / tokens, tokens, unit[used], length)
        cells = Cells.joined([of_blocks.cells._replace(row=unit[of_blocks.cells.row])])
        alone = of_blocks.first_start / max(of_blocks.first_tokens, 1)
        sums = _per_unit(unit, result.available, result.start, result.per_sequence())
        return cls(cells, sums[0], sums[1], sums[2], of_blocks.length, alone)

    def fit(self, weight: Floats | None = None, coarse: bool = False) -> Floats:
        """h(0) .. h(L - 1), piecewise linear between means over bins of n; their sum is the NELBO
        of the draws.

        h(0) is measured without Monte Carlo error and is used as it is. Elsewhere a bin holds the
        mean difference from each sequence's own h(0), which has less variance when few tokens are
        visible. Bins are single counts at both ends, where h may be steep; they widen with the
        distance from the ends and where draws are few. An increase of h with n is treated as noise
        and removed, unless it exceeds three standard deviations: on data unlike its training data,
        a network can do worse with more context.

        Args:
            weight: (U,) bootstrap weights of the units; None is 1.
            coarse: use bins of twice the size, to estimate the bias of the bins.
        """
        weight = np.ones(len(self.tokens)) if weight is None else weight
        return self._fits(weight[None], coarse)[0]

    def _fits(self, weights: Floats, coarse: bool = False) -> Floats:
        """`fit` for each row of `weights (R, U)`: (R, L)."""
        cells = self.cells
        length = self.length
        units = len(self.tokens)
        tokens = weights @ self.tokens
        h0 = weights @ self.start / tokens
        nelbo = weights @ self.nats / tokens
        inner = cells.n > 0
        n = cells.n[inner]
        row = cells.row[inner]
        if length == 1 or not len(n):
            return np.repeat(h0[:, None], length, 1)
        edges = _edges(np.bincount(n, cells.number[inner], length))
        edges = np.append(edges[:-1:2], edges[-1]) if coarse else edges
        bins = len(edges) - 1
        place = row * bins + np.searchsorted(edges, n, "right") - 1

        def binned(values: Floats, weights: Floats = weights) -> Floats:  # (R, bins)
            return weights @ np.bincount(place, values[inner], units * bins).reshape(units, bins)

        total, squares = binned(cells.tokens), binned(cells.squares, weights**2)
        sums = (binned(x) for x in (cells.tokens * cells.n, cells.rise, cells.rise_squares))
        each = zip(h0, nelbo, total, squares, *sums)
        return np.stack([_through_bins(length, *sums) for sums in each])

    def bootstrap_replicates(self, num_resamples: int = 100) -> Floats:
        """Fits to resampled units, `(num_resamples, L)`: their spread is the error of the fit."""
        units = len(self.tokens)
        counts = np.random.default_rng(0).multinomial(
            units, np.full(units, 1 / units), size=num_resamples
        )
        return self._fits(counts[counts @ self.tokens > 0].astype(float))

    def optimal_gains(self, group_counts: Sequence[int]) -> dict[int, float]:
        """Cost of optimal minus equal sizes in nats, two-fold cross-validated: chosen on half of
        the units, measured on the other half.

        Measured on the curve that they were chosen on, optimal sizes would profit from its noise
        and look too good.
        """
        halves = np.stack([np.arange(len(self.tokens)) % 2 == i for i in range(2)]).astype(float)
        gains = dict.fromkeys(group_counts, 0.0)
        if not (halves @ self.tokens).all():
            return gains
        first, second = self._fits(halves)
        for chosen_on, h in ((first, second), (second, first)):
            for k, sizes in optimal_sizes_for(chosen_on, group_counts).items():
                gains[k] += (code_length(h, sizes) - code_length(h, uniform_sizes(len(h), k))) / 2
        return gains

    def standard_error(self, values: ndarray, bias: float = 0.0) -> float | None:
        """Standard error of a number from its `values` in the `bootstrap_replicates`; None for
        fewer than 5 units.

        The bootstrap of n units underestimates by sqrt((n-1)/n), which is corrected. `bias` is the
        bias of the number due to the bins.
        """
        n = int((self.tokens > 0).sum())
        if n < MIN_BLOCKS or np.isnan(values).any():
            return None
        return math.hypot(float(values.std(ddof=1)) * math.sqrt(n / (n - 1)), bias)


def _per_unit(unit: ndarray, *values: ndarray) -> list[Floats]:
    """The sums of `values (S,)` over the sequences of each unit: (U,)."""
    return [np.bincount(unit, each).astype(np.float64) for each in values]


def _through_bins(
    length: int,
    h0: float,
    nelbo: float,
    total: Floats,
    squares: Floats,
    n: Floats,
    rise: Floats,
    rise_squares: Floats,
) -> Floats:
    """The curve (L,) through h(0) and the means of the bins, from sums over the measurements of
    each bin, (bins,)."""
    used = total > 0
    if not used.any():
        return np.full(length, h0)
    total = total[used]
    squares = squares[used]
    center = n[used] / total
    mean = rise[used] / total
    second = rise_squares[used] / total
    variance = (second - mean**2).clip(min=1e-24) * squares / total**2
    value = _without_noise_increases(h0 + mean, total, variance)
    grid = np.arange(length)
    h = np.interp(grid, [0, *center], [h0, *value])
    if len(center) > 1:
        slope = (value[-1] - value[-2]) / (center[-1] - center[-2])
        h = np.where(grid > center[-1], np.maximum(value[-1] + slope * (grid - center[-1]), 0), h)
    rest = length * nelbo - h0
    now = h[1:].sum()
    h[1:] = h[1:] * (rest / now) if now > 0 else rest / (length - 1)
    return h


def _edges(draws: ndarray) -> ndarray:
    """Bins of n = 1 .. L-1, `(bins + 1,)` edges: one n at both ends, then a quarter of the distance
    to the nearer end, up to L/64.

    Bins are joined until each has 64 masked tokens in eight draws, with `draws (L,)` at each n, and
    there are at most sqrt(draws)/2 of full size.
    """
    length = len(draws)
    widest = max(1, round(length / np.clip(math.sqrt(draws.sum()) / 2, 2, 64)))
    edges = [1]
    now = 0
    tokens = 0
    for n in range(1, length):
        now = now + draws[n]
        tokens = tokens + draws[n] * (length - n)
        width = min(widest, max(1, min(edges[-1], length - n - 1) // 4))
        if n + 1 - edges[-1] >= width and now >= 8 and tokens >= 64:
            edges.append(n + 1)
            now = tokens = 0
    if edges[-1] < length:  # the remainder joins the last bin
        edges = [*edges[:-1], length] if len(edges) > 1 else [1, length]
    return np.array(edges)


def _without_noise_increases(values: ndarray, weights: ndarray, variances: ndarray) -> ndarray:
    """The closest non-increasing sequence (isotonic regression), except where the values differ
    from it significantly."""
    from sklearn.isotonic import isotonic_regression

    level = isotonic_regression(values, sample_weight=weights, increasing=False)
    result = values.copy()
    deviation = (values - level) ** 2 / variances
    for pool in np.split(np.arange(len(values)), np.flatnonzero(np.diff(level)) + 1):
        freedom = len(pool) - 1
        # three standard deviations for a pair of bins
        if float(deviation[pool].sum()) <= freedom + 6 * math.sqrt(2 * freedom):
            result[pool] = level[pool]
    return result


def code_length_table(sums: CurveSums, num_groups: Sequence[int] = NUM_GROUPS) -> Json:
    """The code length of K equal and of K optimal groups, for each K up to L, in bits per token
    with standard errors."""
    length = sums.length
    alone = sums.alone
    h = sums.fit()
    coarse = sums.fit(coarse=True)
    replicates = sums.bootstrap_replicates()
    group_counts = [k for k in num_groups if k <= length]
    optimal = optimal_sizes_for(h, group_counts)
    gains = sums.optimal_gains(group_counts)
    bit = length * math.log(2)

    def cost(sizes: ndarray, nats: float | None = None) -> Json:
        """The cost of groups of these sizes; `nats` replaces their code length under h. Bins of
        twice the size err four times as much."""
        curves = [h, coarse, *replicates]
        fine_nats, coarse_nats, *totals = (code_length(w, sizes) for w in curves)
        each = zip(curves, (fine_nats, coarse_nats, *totals))
        fine_lost, coarse_lost, *lost = (lost_structure(w, t, alone) for w, t in each)
        nats = fine_nats if nats is None else nats
        found = lost_structure(h, nats, alone)
        error = sums.standard_error
        return {
            "bits": nats / bit,
            "se": error(np.array(totals) / bit, (fine_nats - coarse_nats) / bit / 3),
            "lost_structure": None if math.isnan(found) else found,
            "lost_se": error(np.array(lost), (fine_lost - coarse_lost) / 3),
        }

    rows = []
    for k in group_counts:
        equal = uniform_sizes(length, k)
        best = optimal[k] if gains[k] < 0 else equal
        at_best = cost(best, code_length(h, equal) + min(gains[k], 0.0)) | {"sizes": best.tolist()}
        rows.append({"groups": k, "uniform": cost(equal), "optimal": at_best})
    at = stored_points(length)
    return {
        "length": length,
        "applies_to": ("" if alone is None else "each block of sampler=block with ") + APPLIES_TO,
        "nelbo_bits": float(h.sum()) / bit,
        "h0_bits": float(h[0]) / math.log(2),
        "alone_bits": None if alone is None else alone / math.log(2),
        "h": {
            "visible": at.tolist(),
            "bits": (h[at] / math.log(2)).tolist(),
            "se": [sums.standard_error(replicates[:, n] / math.log(2)) for n in at.tolist()],
        },
        "rows": rows,
    }


FILE_NAME = "evaluate.json"
OPTIMAL = "optimal"
# What reading a file that something else wrote or damaged can raise.
_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


@dataclass(eq=False)
class StoredCurve:
    """h(n) of a model, read from `evaluate.json` in the folder of its run at every use.

    An evaluation of other weights, on other data than those of the training run, on its training
    part, or of both strands conjoined, or a damaged one, is ignored, with a warning that says why.

    Args:
        path: the checkpoint.
        network: the model with the weights of the checkpoint.
    """

    path: Path
    network: torch.nn.Module
    _warned: set[str] = field(default_factory=set, init=False)

    @functools.cached_property
    def fingerprint(self) -> str:
        """That of the weights, computed when it is first needed."""
        return fingerprint(self.network)

    @property
    def file(self) -> Path:
        """Where the evaluation of this run is."""
        folder = self.path.parent
        return (folder.parent if folder.name == "checkpoints" else folder) / FILE_NAME

    def groups(
        self, length: int, num_groups: int | None = None, sizes: str | Sequence[int] | None = None
    ) -> Json:
        """The arguments `num_groups` and `sizes` of `Grouped` for sequences of `length` tokens.

        If the folder of the run has an `evaluate.json` of this checkpoint, the number of groups is
        the smallest number of equal groups that loses at most 2 % of the structure
        (`code_length_table`).

        Args:
            length: L.
            num_groups: None chooses it.
            sizes: `optimal` for the sizes of minimum cost under h(n), if they also help on other
                windows; numbers of tokens; or None for equal groups.

        Raises:
            ValueError: if `optimal` is requested without an h(n).
        """
        given: Json = {"num_groups": num_groups, "sizes": sizes}
        optimal = sizes == OPTIMAL
        if not optimal and (sizes is not None or num_groups is not None):
            return given
        h = self.curve(length)
        if h is None:  # nothing measured
            if optimal:
                raise ValueError(
                    f"sizes=optimal needs the h(n) of this checkpoint: {self._remedy()} stores it"
                )
            return given
        stored = self._stored()
        bits = stored.get("alone_bits")  # of a token without context, of block diffusion
        alone = None if bits is None else bits * math.log(2)
        equal = fewest_groups(h, alone=alone)
        if equal is None:  # no structure to lose
            return {"num_groups": num_groups, "sizes": None}
        number = num_groups or len(equal)
        if not optimal or not optimal_sizes_help(stored, number):
            if optimal:
                log.warning(
                    f"sizes=optimal: by {FILE_NAME} optimal sizes save nothing on windows not used "
                    "to choose them; groups are equal"
                )
            return {"num_groups": number, "sizes": None}
        if num_groups is None:
            best = fewest_groups(h, optimal=True, alone=alone)
        else:
            best = optimal_sizes(h, num_groups)
        return {"num_groups": None, "sizes": (equal if best is None else best).tolist()}

    def curve(self, length: int) -> ndarray | None:
        """h(n) for sequences of `length` tokens, as stored by `evaluate`; None if there is none of
        this model."""
        try:
            h = curve_from(self._stored(), length)
        except _DAMAGED:
            return None
        return h if np.isfinite(h).all() and (h >= 0).all() else None

    def measured_length(self) -> int | None:
        """Tokens per sequence at which the stored h(n) was measured; at other lengths `curve`
        assumes a function of n/L."""
        return None if self.curve(1) is None else int(self._stored()["length"])

    def _stored(self) -> Json:
        """The code length in the run's `evaluate.json`; any error means that there is none of this
        model."""
        content = read_json(self.file)
        if not content["code_length"]:
            raise ValueError(f"{self.file} has no h(n)")
        if (reason := self._unusable(content)) is not None:
            if reason not in self._warned:
                log.warning(
                    f"the h(n) in {self.file} is ignored: {reason}; {self._remedy()} measures it"
                )
                self._warned.add(reason)
            raise ValueError(reason)
        return content["code_length"]

    def _unusable(self, content: Json) -> str | None:
        model = content["model"]
        if "fingerprint" not in model:
            return "an older version wrote it without a fingerprint of the weights"
        if model.get("conjoined"):
            return "it is of both strands conjoined, which is another denoiser"
        if not content["own_data"]:
            name = content["data"]["name"]
            return f"it was measured on different data from those of the run ({name})"
        if content["part"] == "train":
            return "it was measured on the training part"
        if model["fingerprint"] != self.fingerprint:
            return "it was measured with other weights"
        table = content["code_length"]
        try:
            for number in NUM_GROUPS:
                optimal_sizes_help(table, number)
            whole = is_number(table.get("alone_bits") or 0.0)
        except _DAMAGED:
            whole = False
        return None if whole else "it is damaged"

    def _remedy(self) -> str:
        given = f"{pasted('checkpoint', self.path)} {pasted('output', self.file)}"
        return f"python -m dnadiff.evaluate {given} overwrite=true"
