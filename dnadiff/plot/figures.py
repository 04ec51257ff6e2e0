"""Figures of frames, arrays and runs: what Python returns, and what pandas reads of our files.

Each function draws on the `axes` that it gets, or on those of a new figure, and returns them;
`axes.figure.savefig("x.svg")` writes a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy import ndarray

from dnadiff.fields import Json, is_number
from dnadiff.plot import style

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    Genes: TypeAlias = Iterable[Sequence[Json]]

BASES = "ACGT"
ROWS = (*BASES, "-")
_ARROWS = {"+": "→", "-": "←"}
# Columns of effects of a language model and of a fine-tuned one, with their labels.
SCORES = {"LLR": "LLR, nats", "difference": "change of the prediction"}
# Columns of metrics.csv, with their labels and colors.
LOSSES = {
    "train_nll": ("training", style.FAINT),
    "valid_nll": ("validation, averaged weights", style.MODEL),
    "valid_nll_live": ("validation, live weights", style.OTHER),
}


class Saturation(NamedTuple):
    """The effects of all variants of a region.

    Attributes:
        effects: (n, 5) of A, C, G, T and the deletion of the base; NaN where there is none, 0 for
            the base itself.
        bases: (n,) letters of the genome; N where there is no variant.
        letters: (n, 4) heights of the logo: information in bits, divided by the probabilities; or
            the contribution of the base itself, minus the mean effect of the four bases.
        score: LLR, difference, or what the effects are on.
        information: (n,) bits; NaN where there is none.
    """

    chrom: str
    start: int  # from 0
    effects: ndarray
    bases: list[str]
    letters: ndarray
    score: str
    information: ndarray

    @property
    def has_information(self) -> bool:
        """Whether the heights of the letters are bits."""
        return bool(np.isfinite(self.information).any())

    @property
    def name(self) -> str:
        """Of the region, 1-based, as in genome browsers."""
        return f"{self.chrom}:{self.start + 1}-{self.start + len(self.bases)}"

    def variants(self) -> Iterator[tuple[int, str, str, float, float]]:
        """Position (from 1), base, allele, effect and information of each variant."""
        for place, row in zip(*(each.tolist() for each in np.nonzero(np.isfinite(self.effects)))):
            base, allele = self.bases[place], ROWS[row]
            if allele != base:
                values = float(self.effects[place, row]), float(self.information[place])
                yield self.start + place + 1, base, allele, *values

    @property
    def limit(self) -> float:
        """The end of the colors: the 99th percentile of the absolute effects."""
        known = np.abs(self.effects[np.isfinite(self.effects) & (self.effects != 0)])
        return max(float(np.percentile(known, 99)), 1e-3) if len(known) else 1.0

    @property
    def rows(self) -> tuple[str, ...]:
        """The alleles; deletions only if there are some."""
        return ROWS if np.isfinite(self.effects[:, -1]).any() else ROWS[:-1]

    @property
    def unit(self) -> str:
        """The label of the effects."""
        return SCORES.get(self.score, self.score)


def saturation(frame: pandas.DataFrame, region: tuple[str, int, int] | None = None) -> Saturation:
    """The effects of a region (record, first base from 0, one past the last) from alleles with the
    columns chrom, pos (from 1), ref, alt, and LLR or difference. Without a region, it is from the
    first to the last position.

    Raises:
        ValueError: if a column is missing, or there are several records and no region.
    """
    score = next((name for name in SCORES if name in frame), None)
    missing = [name for name in ("chrom", "pos", "ref", "alt") if name not in frame]
    if missing or score is None:
        raise ValueError(
            f"the frame has no column {', '.join(missing) or 'LLR or difference'}; give what "
            "dnadiff.variants saturate= writes"
        )
    if region is None:
        names = frame["chrom"].unique()
        if len(names) != 1:
            raise ValueError(f"the frame has variants of {len(names)} records; give region=")
        region = str(names[0]), int(frame["pos"].min()) - 1, int(frame["pos"].max())
    chrom, start, end = region[:3]
    inside = frame[(frame["chrom"] == chrom) & frame["pos"].between(start, end)]
    size = end - start
    effects = np.full((size, len(ROWS)), np.nan)
    information = np.full(size, np.nan)
    bases = ["N"] * size
    for row in inside.to_dict("records"):
        ref, alt = row["ref"], row["alt"]
        for place in _places(row["pos"], ref, alt):
            if not start <= place < end:
                continue
            if len(ref) > 1:
                effects[place - start, -1] = row[score]
            elif alt in BASES:
                effects[place - start, [BASES.index(alt), BASES.index(ref)]] = row[score], 0.0
                bases[place - start] = ref
                information[place - start] = row.get("information", np.nan)
    of_bases = effects[:, :4]
    if np.isfinite(information).any():
        weight = np.exp(of_bases)
        letters = weight / weight.sum(1, keepdims=True) * np.maximum(information, 0)[:, None]
    else:
        letters = np.where(of_bases == 0, -of_bases.mean(1, keepdims=True), 0.0)
    return Saturation(chrom, start, effects, bases, letters, score, information)


def _places(pos: int, ref: str, alt: str) -> list[int]:
    """The base, from 0, that an SNV or a deletion of one base belongs to. A deletion is written
    with the base before it, or at the first position of the record with the base after it."""
    if len(ref) == 1 == len(alt):
        return [pos - 1] * (ref in BASES)
    if len(ref) != 2 or len(alt) != 1:
        return []
    return [pos - 1] * (pos == 1 and ref[1] == alt) + [pos] * (ref[0] == alt)


@style.style()
def heat_map(
    frame: pandas.DataFrame | Saturation,
    region: tuple[str, int, int] | None = None,
    genes: Genes | None = None,
    axes: ndarray | None = None,
) -> ndarray:
    """Effects of all variants of a region, positions x alleles, in lines of 60 positions: above
    them a logo of the prediction, below them the genes.

    Args:
        frame: see `saturation`.
        genes: regions (record, start, end, name, strand), such as `formats.regions.read_gtf`
            returns; None draws none.

    Returns:
        Axes (lines, 2 or 3): letters, heat map, genes. Coordinates are those of the genome, from 1.
        Colors are symmetric and end at the 99th percentile of the absolute effects; the letters in
        the cells are the bases of the genome.
    """
    found = frame if isinstance(frame, Saturation) else saturation(frame, region)
    size = len(found.bases)
    lines = -(-size // style.LINE)
    width = -(-size // lines)
    end = found.start + size
    tracks = [g for g in genes or () if g[0] == found.chrom and g[1] < end and g[2] > found.start]
    heights = [1.0, 0.28 * len(found.rows), *[0.5] * bool(tracks)]
    every = axes
    if every is None:
        inches = (
            max(10.5 * min(size, style.LINE) / style.LINE, 3.0),
            0.8 * sum(heights) * lines + 0.5,
        )
        rows = len(heights) * lines
        with style.figure(*inches, rows, height_ratios=heights * lines) as (_, every):
            pass
    grid = every.reshape(lines, len(heights))
    if found.has_information:
        low, top = 0.0, style.top_of(found.letters)
    else:
        low = float(np.nanmin(found.letters)) or -1e-3
        top = float(np.nanmax(found.letters)) or 1e-3
    for line, (above, middle, *below) in enumerate(grid):
        part = slice(line * width, min((line + 1) * width, size))
        first, last = found.start + part.start, found.start + part.stop
        style.logo(above, found.letters[part], width, top, low)
        above.set_ylabel("bits" if found.has_information else "")
        values = found.effects[part, : len(found.rows)].T
        drawn = middle.imshow(
            values,
            cmap="RdBu",
            vmin=-found.limit,
            vmax=found.limit,
            aspect="auto",
            interpolation="nearest",
        )
        middle.set(xlim=(-0.5, width - 0.5), yticks=range(len(found.rows)), yticklabels=found.rows)
        style.mark_tens(middle, first + 1, values.shape[1])
        middle.grid(False)
        for place, base in enumerate(found.bases[part]):
            if base in BASES:
                middle.text(
                    place,
                    BASES.index(base),
                    base,
                    size=6,
                    ha="center",
                    va="center",
                    color="#1D2125",
                )
        for each in below:
            _draw_genes(each, tracks, first, last)
            each.set(xlim=(-0.5, width - 0.5), ylim=(-1, 1), xticks=(), yticks=())
            each.set_frame_on(False)
    if axes is None:
        grid[0, 0].set_title(found.name)
        bar = grid[0, 0].figure.colorbar(drawn, ax=grid, fraction=0.02, pad=0.01)
        bar.set_label(found.unit)
    return grid


def _draw_genes(axes: Axes, genes: Genes, first: int, last: int) -> None:
    """Bars with names, those of strand - below the others; an arrow is the strand."""
    for _, start, end, name, strand, *_ in genes:
        left, right = max(start, first), min(end, last)
        if left < right:
            place = left - first - 0.5
            y = -0.5 if strand == "-" else 0.5
            bar: Json = {"color": style.FAINT, "alpha": 0.5, "lw": 0}
            axes.broken_barh([(place, right - left)], (y - 0.4, 0.8), **bar)
            text = f"{name} {_ARROWS.get(strand, '')}"
            axes.text(place + 0.3, y, text, size=7, va="center", clip_on=True)


@style.style()
def logo(values: Json, axes: Axes | None = None, first: int = 1, unit: str = "") -> Axes:
    """A sequence logo; without `axes` in lines of at most 60 positions, and the first line is
    returned.

    Args:
        values: heights (L, 4) of A, C, G, T, negative ones below the axis; a frame with these
            columns; or sequences of one length, whose information in bits is computed, with the
            correction for few sequences of Schneider and Stephens (1990).
        first: the number of the first position.
        unit: of heights; the axis of `bits` ends at .25, .5, 1 or 2.

    Raises:
        ValueError: if sequences differ in length.
    """
    if isinstance(values, list | tuple) and isinstance(values[0], str):
        if len({*map(len, values)}) != 1:
            raise ValueError("sequences have different lengths; a logo is of sequences of one")
        letters = np.array([list(sequence.upper()) for sequence in values])
        unit = "bits"
        heights = style.information(np.stack([(letters == base).sum(0) for base in BASES], 1))
    else:
        heights = np.asarray(values[list(BASES)] if hasattr(values, "columns") else values, float)
    size = len(heights)
    lines = -(-size // style.LINE) if axes is None else 1
    width = -(-size // lines)
    every: Sequence[Any] | ndarray = [axes]
    if axes is None:
        inches = max(style.WIDTH, 10.5 * width / style.LINE), 1.25 * lines + 0.3
        with style.figure(*inches, lines) as (_, every):
            pass
    lowest = float(np.minimum(heights, 0).sum(1).min())
    highest = float(np.maximum(heights, 0).sum(1).max())
    top = style.top_of(heights) if unit == "bits" else highest or 1.0
    for start, each in zip(range(0, size, width), every):
        part = heights[start : start + width]
        style.logo(each, part, width, top, lowest)
        each.set_ylabel(unit)
        style.mark_tens(each, first + start, len(part))
    return every[0]


@style.style()
def embedding(
    vectors: Json, labels: Sequence[Json] | None = None, axes: Axes | None = None
) -> Axes:
    """The first two principal components of vectors (S, D), such as `Model.embed` returns, or the
    numbers of a frame; numbers as labels are a color scale."""
    numeric = vectors.select_dtypes("number") if hasattr(vectors, "select_dtypes") else vectors
    points, shares = principal_components(np.asarray(numeric, float))
    axes = axes or _axes()
    dots: Json = {"s": 14, "alpha": 0.7, "lw": 0}
    if labels is None:
        axes.scatter(*points.T, color=style.MODEL, **dots)
    elif all(map(is_number, labels)):
        drawn = axes.scatter(points[:, 0], points[:, 1], c=list(labels), cmap="viridis", **dots)
        axes.figure.colorbar(drawn, ax=axes)
    else:
        given = np.array([*map(str, labels)])
        for number, name in enumerate(dict.fromkeys(given.tolist())):
            color = style.PALETTE[number % len(style.PALETTE)]
            axes.scatter(*points[given == name].T, color=color, label=name, **dots)
        style.legend_below(axes)
    names = [f"PC {i} ({100 * share:.0f} % of variance)" for i, share in enumerate(shares, 1)]
    axes.set(xlabel=names[0], ylabel=names[1])
    return axes


def principal_components(vectors: ndarray) -> tuple[ndarray, ndarray]:
    """Coordinates (S, 2) of centered vectors (S, D) on their first two principal components, and
    the share of the variance of each. The largest weight of a component is positive.

    Raises:
        ValueError: if there are fewer than two vectors or features.
    """
    from sklearn.decomposition import PCA

    if vectors.ndim != 2 or min(vectors.shape) < 2:
        raise ValueError(
            f"vectors have the shape {vectors.shape}; 2 principal components need at least 2 "
            "vectors of 2 numbers"
        )
    found = PCA(2, svd_solver="full")
    with np.errstate(invalid="ignore"):  # of equal vectors
        points = found.fit_transform(vectors)
    return points, np.nan_to_num(found.explained_variance_ratio_)


@style.style()
def training(run: Json, axes: Axes | None = None) -> Axes:
    """The loss of a run in nats per token against its steps: a run folder, or its metrics.csv as a
    frame."""
    import pandas

    frame = run
    if isinstance(run, str | Path):
        frame = pandas.read_csv(Path(run) / "metrics.csv")
    axes = axes or _axes()
    for column, (label, color) in LOSSES.items():
        known: Json = frame[["step", column]].dropna() if column in frame else ()
        if len(known):
            axes.plot(known["step"], known[column], color=color, lw=1.4, label=label)
    axes.set(xlabel="step", ylabel="nats per token")
    style.legend_below(axes)
    return axes


@style.style()
def designs(designs: Json, unguided: Json = None, axes: Axes | None = None) -> Axes:
    """Reward against log-probability of designs, and of unguided samples: what `Model.design`
    returns, or a frame with the columns reward and log_prob. Log-probabilities are per base where
    the frame has the sequences."""
    unguided = getattr(designs, "unguided", None) if unguided is None else unguided
    axes = axes or _axes()
    drawn: Json = {"unguided": (unguided, style.REAL), "designs": (designs, style.MODEL)}
    for label, (values, color) in drawn.items():
        if values is None:
            continue
        frame: Json = values.to_frame() if hasattr(values, "to_frame") else values
        sizes = frame["sequence"].str.len() if "sequence" in frame else 1
        place = frame["log_prob"] / sizes
        axes.plot(place, frame["reward"], "o", ms=4, mew=0, alpha=0.6, color=color, label=label)
    axes.set(xlabel="log-probability, nats per base", ylabel="reward")
    style.legend_below(axes)
    return axes


def _axes() -> Axes:
    with style.figure() as (_, (axes,)):
        return axes
