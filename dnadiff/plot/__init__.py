"""Figures of frames, arrays and runs, as Matplotlib axes: of what Python returns, and of what
pandas reads of our files.

from dnadiff import plot
axes = plot.logo(["TTGACA", "TTGACT"])
axes.figure.savefig("logo.svg")

Each function draws on the `axes` that it gets, or on those of a new figure, and returns them;
`axes.figure.savefig("x.svg")` writes a file. Drawing and saving happen inside `style`, so that
matplotlib's settings stay as the user has them; pyplot is not used. The same input gives the same
bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy import ndarray

from dnadiff.fields import Json, is_number

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Gene: TypeAlias = Sequence[Json]  # record, start, end, name, strand, as a `Region`
BASES = "ACGT"
ROWS = (*BASES, "-")
ARROWS = {"+": "→", "-": "←"}
# inches: half the width of a page, about the width of a phone
WIDTH = 4.7
HEIGHT = 3.3
# Okabe and Ito's palette: distinguishable by color-blind readers, and in grayscale by lightness and
# marker
MODEL = "#0072B2"
OTHER = "#D55E00"
REAL = "#3D3D3D"
FAINT = "#B4BCC4"
BAND: Json = {"color": FAINT, "alpha": 0.55, "lw": 0}  # of real windows
LOGO_COLORS = {"A": "#009E73", "C": "#0072B2", "G": "#E69F00", "T": "#D55E00"}
# of the groups of a chart, in their order
PALETTE = [MODEL, OTHER, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6F47", "#7F7F7F"]
LINE = 60  # positions in a line of a picture, at most
_SMALLEST_LETTER = 0.01  # of the axis; smaller letters are left out
_LOGO_TOPS = (0.25, 0.5, 1.0, 2.0)  # bits
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
}  # None: left out
# Columns of effects of a language model and of a fine-tuned one, with their labels.
SCORES = {"LLR": "LLR, nats", "difference": "change of the prediction"}
# Columns of metrics.csv, with their labels and colors.
LOSSES = {
    "train_nll": ("training", FAINT),
    "valid_nll": ("validation, averaged weights", MODEL),
    "valid_nll_live": ("validation, live weights", OTHER),
}


@contextmanager
def style() -> Iterator[None]:
    """A context with matplotlib's defaults and the settings in `figures.mplstyle`."""
    import matplotlib

    settings: Json = dict(
        matplotlib.rc_params_from_file(Path(__file__).parent / "figures.mplstyle")
    )
    del settings["backend"]  # the user's
    with matplotlib.rc_context(settings):
        yield


@contextmanager
def figure(
    width: float = WIDTH, height: float = HEIGHT, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[tuple[Figure, ndarray]]:
    """A figure, in inches, with its axes row by row, which are drawn on in this context."""
    from matplotlib.figure import Figure

    with style():
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, made.subplots(rows, columns, squeeze=False, **grid).ravel()


def rendered(figure: Figure, kind: str, pixels: int | None = 1200) -> bytes:
    """The bytes of a picture, `png` or `svg`, `pixels` wide; None is the size of the figure."""
    buffer = io.BytesIO()
    dpi = "figure" if pixels is None else pixels / figure.get_figwidth()
    with style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return buffer.getvalue()


def draw_logo(axes: Axes, heights: ndarray, width: int, top: float, low: float = 0.0) -> None:
    """Draw letters of these `heights` (n, 4), the largest farthest from 0, negative ones below it,
    with room for `width` positions from `low` to `top`; NaN is nothing."""
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    shapes = {base: TextPath((0, 0), base, size=1) for base in LOGO_COLORS}
    for place, of_position in enumerate(np.nan_to_num(heights)):
        above = below = 0.0
        for height, base in sorted(
            zip(of_position, LOGO_COLORS), key=lambda letter: abs(letter[0])
        ):
            if abs(height) < _SMALLEST_LETTER * (top - low):
                continue
            box = shapes[base].get_extents()
            fit = Affine2D()
            fit.translate(-box.x0, -box.y0).scale(0.9 / box.width, abs(height) / box.height)
            bottom = above if height > 0 else below + height
            shape = shapes[base].transformed(fit.translate(place - 0.45, bottom))
            axes.add_patch(PathPatch(shape, color=LOGO_COLORS[base], lw=0))
            above, below = (above + height, below) if height > 0 else (above, below + height)
    ticks = (low, 0, top) if low else (0, top / 2, top)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(low, top), yticks=ticks, xticks=())
    if low:
        axes.axhline(0, color=REAL, lw=0.6)
    axes.yaxis.set_major_formatter("{x:.2g}")
    axes.grid(False)


def information(counts: ndarray) -> ndarray:
    """Heights of A, C, G, T in a sequence logo, (L, 4) in bits, from counts (L, 4 or more); 0 at
    positions without a known base.

    A letter is as high as its frequency times the information of its position, 2 - H - e, where e =
    3 / (2 ln 2 N) corrects the entropy H of N letters for the small sample (Schneider and Stephens
    1990, Nucleic Acids Research 18:6097).
    """
    known = counts[:, :4].astype(float)
    number = np.maximum(known.sum(1, keepdims=True), 1)
    share = known / number
    logs = np.log2(np.where(share > 0, share, 1))
    entropy = -np.where(share > 0, share * logs, 0).sum(1, keepdims=True)
    return share * np.maximum(2 - entropy - 3 / (2 * math.log(2) * number), 0)


def top_of(heights: ndarray) -> float:
    """The end of an axis of bits that fits all letters: 0.25, 0.5, 1 or 2."""
    highest = np.nan_to_num(heights).sum(-1).max(initial=0)
    return next((top for top in _LOGO_TOPS if highest <= top), _LOGO_TOPS[-1])


def mark_tens(axes: Axes, first: int, count: int) -> None:
    """Ticks at those of `count` positions from number `first` on that are multiples of 10."""
    places = [i for i in range(count) if (first + i) % 10 == 0]
    axes.set(xticks=places, xticklabels=[f"{first + i:,}" for i in places])


def legend_below(axes: Axes) -> None:
    """A legend below the label of the x axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    half_an_inch = ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + half_an_inch,
        ncols=2,
        borderaxespad=0,
        columnspacing=1,
        handlelength=1.6,
    )


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
    def end(self) -> int:
        """One past the last base, from 0."""
        return self.start + len(self.bases)

    @property
    def has_information(self) -> bool:
        """Whether the heights of the letters are bits."""
        return bool(np.isfinite(self.information).any())

    @property
    def name(self) -> str:
        """Of the region, 1-based, as in genome browsers."""
        return f"{self.chrom}:{self.start + 1}-{self.end}"

    def variants(self) -> Iterator[tuple[int, str, str, float, float]]:
        """Position (from 1), base, allele, effect and information of each variant."""
        for place, row in zip(*(each.tolist() for each in np.nonzero(np.isfinite(self.effects)))):
            base, allele = self.bases[place], ROWS[row]
            if allele != base:
                values = float(self.effects[place, row]), float(self.information[place])
                yield self.start + place + 1, base, allele, *values

    def overlapping(self, genes: Iterable[Gene]) -> list[tuple[int, int, Gene]]:
        """The genes with a base in the region, after the ends of their part in it, from 0."""
        return [
            (max(gene[1], self.start), min(gene[2], self.end), gene)
            for gene in genes
            if gene[0] == self.chrom and gene[1] < self.end and gene[2] > self.start
        ]

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


@style()
def heat_map(
    frame: pandas.DataFrame | Saturation,
    region: tuple[str, int, int] | None = None,
    genes: Iterable[Gene] | None = None,
    axes: ndarray | None = None,
) -> ndarray:
    """Effects of all variants of a region, positions x alleles, in lines of 60 positions: above
    them a logo of the prediction, below them the genes.

    Args:
        frame: see `saturation`.
        genes: regions (record, start, end, name, strand), such as `formats.regions.read_gtf`
            returns; None draws none.

    Returns:
        An array of axes with a row for each line of positions and two or three columns, which are
        letters, heat map and genes. Coordinates are those of the genome, from 1. Colors are
        symmetric and end at the 99th percentile of the absolute effects; the letters in the cells
        are the bases of the genome.
    """
    found = frame if isinstance(frame, Saturation) else saturation(frame, region)
    size = len(found.bases)
    lines = -(-size // LINE)
    width = -(-size // lines)
    tracks = found.overlapping(genes or ())
    heights = [1.0, 0.28 * len(found.rows), *[0.5] * bool(tracks)]
    every = axes
    if every is None:
        inches = (
            max(10.5 * min(size, LINE) / LINE, 3.0),
            0.8 * sum(heights) * lines + 0.5,
        )
        rows = len(heights) * lines
        with figure(*inches, rows, height_ratios=heights * lines) as (_, every):
            pass
    grid = every.reshape(lines, len(heights))
    if found.has_information:
        low, top = 0.0, top_of(found.letters)
    else:
        low = float(np.nanmin(found.letters)) or -1e-3
        top = float(np.nanmax(found.letters)) or 1e-3
    for line, (above, middle, *below) in enumerate(grid):
        part = slice(line * width, min((line + 1) * width, size))
        first, last = found.start + part.start, found.start + part.stop
        draw_logo(above, found.letters[part], width, top, low)
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
        mark_tens(middle, first + 1, values.shape[1])
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


def _draw_genes(axes: Axes, genes: Iterable[tuple[int, int, Gene]], first: int, last: int) -> None:
    """Bars with names, those of strand - below the others; an arrow is the strand."""
    for start, end, (_, _, _, name, strand, *_) in genes:
        left, right = max(start, first), min(end, last)
        if left < right:
            place = left - first - 0.5
            y = -0.5 if strand == "-" else 0.5
            bar: Json = {"color": FAINT, "alpha": 0.5, "lw": 0}
            axes.broken_barh([(place, right - left)], (y - 0.4, 0.8), **bar)
            text = f"{name} {ARROWS.get(strand, '')}"
            axes.text(place + 0.3, y, text, size=7, va="center", clip_on=True)


@style()
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
        heights = information(np.stack([(letters == base).sum(0) for base in BASES], 1))
    else:
        heights = np.asarray(values[list(BASES)] if hasattr(values, "columns") else values, float)
    size = len(heights)
    lines = -(-size // LINE) if axes is None else 1
    width = -(-size // lines)
    every: Sequence[Any] | ndarray = [axes]
    if axes is None:
        inches = max(WIDTH, 10.5 * width / LINE), 1.25 * lines + 0.3
        with figure(*inches, lines) as (_, every):
            pass
    lowest = float(np.minimum(heights, 0).sum(1).min())
    highest = float(np.maximum(heights, 0).sum(1).max())
    top = top_of(heights) if unit == "bits" else highest or 1.0
    for start, each in zip(range(0, size, width), every):
        part = heights[start : start + width]
        draw_logo(each, part, width, top, lowest)
        each.set_ylabel(unit)
        mark_tens(each, first + start, len(part))
    return every[0]


@style()
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
        axes.scatter(*points.T, color=MODEL, **dots)
    elif all(map(is_number, labels)):
        drawn = axes.scatter(points[:, 0], points[:, 1], c=list(labels), cmap="viridis", **dots)
        axes.figure.colorbar(drawn, ax=axes)
    else:
        given = np.array([*map(str, labels)])
        for number, name in enumerate(dict.fromkeys(given.tolist())):
            color = PALETTE[number % len(PALETTE)]
            axes.scatter(*points[given == name].T, color=color, label=name, **dots)
        legend_below(axes)
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


@style()
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
    legend_below(axes)
    return axes


@style()
def designs(designs: Json, unguided: Json = None, axes: Axes | None = None) -> Axes:
    """Reward against log-probability of designs, and of unguided samples: what `Model.design`
    returns, or a frame with the columns reward and log_prob. Log-probabilities are per base where
    the frame has the sequences."""
    unguided = getattr(designs, "unguided", None) if unguided is None else unguided
    axes = axes or _axes()
    drawn: Json = {"unguided": (unguided, REAL), "designs": (designs, MODEL)}
    for label, (values, color) in drawn.items():
        if values is None:
            continue
        frame: Json = values.to_frame() if hasattr(values, "to_frame") else values
        sizes = frame["sequence"].str.len() if "sequence" in frame else 1
        place = frame["log_prob"] / sizes
        axes.plot(place, frame["reward"], "o", ms=4, mew=0, alpha=0.6, color=color, label=label)
    axes.set(xlabel="log-probability, nats per base", ylabel="reward")
    legend_below(axes)
    return axes


def _axes() -> Axes:
    with figure() as (_, (axes,)):
        return axes
