"""The panels of a report: each function draws one panel on matplotlib axes.
`dnadiff.report.figures` makes figures and files of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.fields import Json, is_number
from dnadiff.genomics.metrics.composition import (
    KMER_LENGTHS,
    MAX_SEQUENCES,
    Composition,
    Distance,
    evenly_spaced,
    pareto_front,
)
from dnadiff.report.results import (
    BIT,
    GROUPS,
    Columns,
    Results,
    chance_level,
    markov_models,
    metric_of,
    progress,
    short_count,
    smoothed,
)
from dnadiff.supervised.study import PublishedResult, num_training_sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dnadiff.genomics.metrics.sample_quality import SampleQuality

# Okabe and Ito's palette: distinguishable by color-blind readers, and in grayscale by lightness and
# marker
MODEL, OTHER, REAL, FAINT = "#0072B2", "#D55E00", "#3D3D3D", "#B4BCC4"
_COLORS = (MODEL, OTHER, "#009E73", "#CC79A7", REAL)
_LINES = ("-", "--", "-.", ":", (0, (5, 1)))
NETWORKS = ("fine-tuned", "scratch")
_BINS = 24  # at most one more
_MAX_GRID = 1000  # values on a grid, such as GC content, are at most so many steps apart


def loss_curve(axes: Axes, metrics: Columns, unit: str = "base") -> None:
    """Bits per base against tokens (or steps): training raw and smoothed, validation with averaged
    and with raw weights."""
    x, label = progress(metrics)
    train, shown = _column(metrics, "train_nll"), []
    if train is not None:
        axes.plot(
            x[train],
            metrics["train_nll"][train] / BIT,
            "-",
            color=FAINT,
            lw=0.6,
            alpha=0.55,
            label="training",
        )
        smooth = smoothed(metrics["train_nll"][train] / BIT)
        axes.plot(x[train], smooth, color=REAL, lw=1.4, label="training, smoothed")
        shown += [
            smooth[len(smooth) // 50 :],
            np.percentile(metrics["train_nll"][train] / BIT, [10, 90]),
        ]
    for name, color, marker, text in (
        ("valid_nll_live", OTHER, "s--", "validation, raw"),
        ("valid_nll", MODEL, "o-", "validation, averaged"),
    ):
        rows = _column(metrics, name)
        if rows is not None:
            axes.plot(
                x[rows], metrics[name][rows] / BIT, marker, color=color, ms=3.5, lw=1.4, label=text
            )
            shown.append(metrics[name][rows] / BIT)
    if shown:
        low, high = min(map(np.min, shown)), max(map(np.max, shown))
        axes.set_ylim(low - 0.06 * (high - low) - 1e-3, high + 0.12 * (high - low) + 1e-3)
    axes.set(title="Loss", xlabel=label, ylabel=f"bits per {unit}", xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    legend_below(axes)


def held_out_bits(axes: Axes, evaluation: Results, group: str = "all", unit: str = "base") -> None:
    """Bits per base of the model, with its 95 % interval, and of the Markov models on the same
    bases."""
    ours = evaluation["groups"][group]
    markov = [
        (f"order {m['order']}", m["groups"][group]["bits"])
        for m in markov_models(evaluation, group)
    ]
    low, high = ours.get("bits_low"), ours.get("bits_high")
    if is_number(low) and is_number(high):
        axes.axvspan(low, high, color=MODEL, alpha=0.12, lw=0)
        axes.plot([low, high], [0, 0], color=MODEL, lw=2)
    axes.plot(ours["bits"], 0, "o", color=MODEL, ms=6)
    axes.plot(
        [bits for _, bits in markov], range(1, len(markov) + 1), "s", color=REAL, mfc="white", ms=5
    )
    label_rows(
        axes,
        ["this model", *(name for name, _ in markov)],
        [f"{bits:.4f}" for bits in (ours["bits"], *(b for _, b in markov))],
    )
    axes.set(
        title=_group_title(evaluation, group, unit), xlabel=f"bits per {unit} (lower is better)"
    )


def paired_differences(
    axes: Axes, evaluation: Results, group: str = "all", unit: str = "base"
) -> None:
    """The model's bits minus those of each Markov model, with 95 % intervals; below 0 the model is
    better."""
    markov = markov_models(evaluation, group)
    rows = [
        (
            f"minus order {m['order']}",
            *(m["groups"][group].get(k) for k in ("difference_bits", "low", "high")),
        )
        for m in markov
    ]
    _forest(axes, rows, "{:+.4f}", better=-1)
    axes.set(
        title=_group_title(evaluation, group, unit),
        xlabel=f"difference in bits per {unit} (below 0: model better)",
    )


def visibility_curve(
    axes: Axes, evaluation: Results, unit: str = "base", uniform_bits: float | None = 2.0
) -> None:
    """h(n): bits per masked base when n others of its window are visible, with 95 % intervals over
    blocks of windows; its mean is the NELBO."""
    curve = {key: np.asarray(evaluation["curve"][key], float) for key in ("visible", "bits", "se")}
    mean = evaluation["groups"]["all"]["bits"]
    if uniform_bits is not None:
        axes.axhline(
            uniform_bits,
            color=REAL,
            lw=1,
            ls=(0, (1, 1.5)),
            label=f"uniform guessing, {uniform_bits:g}",
        )
    axes.axhline(mean, color=OTHER, lw=1.2, ls="--", label=f"mean = NELBO, {mean:.4f}")
    axes.errorbar(
        curve["visible"],
        curve["bits"],
        1.96 * curve["se"],
        color=MODEL,
        fmt="o-",
        ms=4,
        lw=1.3,
        elinewidth=1,
        capsize=2,
        label="h(n)",
    )
    axes.set(
        title="Bits against context",
        xlabel=f"visible {unit}s n",
        ylabel=f"bits per masked {unit}",
        xlim=(0, None),
    )
    axes.margins(y=0.12)
    legend_below(axes)


def kmer_frequencies(axes: Axes, composition: Composition) -> None:
    """k-mer frequencies of the samples against real windows; bars are the 95 % range of independent
    sets of real windows."""
    c, outside = composition, composition.outside_baseline
    every = 100 * np.concatenate([c.real_frequency, c.sample_frequency, c.kmer_low, c.kmer_high])
    limits = every.min() - 0.05 * np.ptp(every), every.max() + 0.05 * np.ptp(every)
    axes.plot(limits, limits, color=FAINT, lw=1, zorder=1)
    axes.vlines(
        100 * c.real_frequency,
        100 * c.kmer_low,
        100 * c.kmer_high,
        color=FAINT,
        lw=3,
        label="real windows, 95 %",
    )
    for rows, color, marker, text in (
        (~outside, MODEL, "o", "samples, within"),
        (outside, OTHER, "D", "samples, outside"),
    ):
        if rows.any():
            x, y = 100 * c.real_frequency[rows], 100 * c.sample_frequency[rows]
            axes.plot(x, y, marker, color=color, ms=3.6, label=f"{text} ({rows.sum()})")
    axes.set(
        title=f"{c.k}-mers",
        xlabel="frequency in the genome, %",
        ylabel="frequency in the samples, %",
        xlim=limits,
        ylim=limits,
    )
    _label_outliers(axes, c)
    legend_below(axes)


def gc_content(axes: Axes, composition: Composition) -> None:
    """GC content of the samples and of real windows; the band is the 95 % range of independent sets
    of real windows."""
    c = composition
    everything = 100 * np.concatenate([c.sample_gc, c.real_gc])
    edges = np.linspace(everything.min() - 0.5, everything.max() + 0.5, 21)
    sets = np.array([_percentages(100 * chosen, edges) for chosen in c.gc_sets])
    low, high = np.quantile(sets, [0.025, 0.975], axis=0)
    axes.stairs(
        high,
        edges,
        baseline=low,
        fill=True,
        color=FAINT,
        alpha=0.55,
        lw=0,
        label="real windows, 95 %",
    )
    axes.stairs(
        _percentages(100 * c.real_gc, edges), edges, color=REAL, lw=1.2, label="real windows"
    )
    axes.stairs(_percentages(100 * c.sample_gc, edges), edges, color=MODEL, lw=1.8, label="samples")
    axes.set(
        title=f"GC content, {c.length} bases",
        xlabel="GC content, %",
        ylabel="% of sequences",
        ylim=(0, None),
    )
    legend_below(axes)


def kmer_divergences(axes: Axes, quality: SampleQuality) -> None:
    """Jensen-Shannon divergence of k-mer frequencies for each k; the band is the 95 % range of
    independent sets of real windows."""
    divergences(axes, KMER_LENGTHS, [quality[f"js_{k}"].distance for k in KMER_LENGTHS])


def divergences(
    axes: Axes, lengths: Sequence[int], found: Sequence[Distance], name: str = "samples"
) -> None:
    """The distances of k-mer frequencies of these lengths from real windows; the band is the 95 %
    range of independent sets of real windows."""
    samples, low, high = np.array([(d.samples, d.low, d.high) for d in found]).T
    reach = np.abs(np.array([d.interval for d in found]).T - samples)
    reach[0] = np.minimum(reach[0], 0.9 * samples)  # the axis is logarithmic
    axes.fill_between(
        lengths, low, high, color=FAINT, alpha=0.55, lw=0, label="real vs. real, 95 %"
    )
    axes.errorbar(
        lengths, samples, reach, color=MODEL, fmt="o-", ms=4, lw=1.3, capsize=2, label=name
    )
    axes.set(
        title="k-mers, distance from real windows",
        xlabel="k",
        ylabel="Jensen-Shannon divergence, bits",
        yscale="log",
    )
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(axes)


def mutual_information(axes: Axes, quality: SampleQuality) -> None:
    """Mutual information of two bases against the distance between them; the band is the 95 % range
    of independent sets of real windows."""
    samples, (low, high) = quality.information
    at = np.arange(1, len(samples) + 1)
    axes.fill_between(at, low, high, color=FAINT, alpha=0.55, lw=0, label="real windows, 95 %")
    axes.plot(at, samples, color=MODEL, lw=1.3, label="samples")
    axes.set(title="Mutual information", xlabel="distance, bases", ylabel="bits", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(axes)


def accuracies(axes: Axes, finetune: Results) -> None:
    """Accuracy (or the metric of the task) of each model with its 95 % interval; small dots are
    seeds, the dotted line is chance."""
    models, metric = finetune["models"], metric_of(finetune)
    for row, result in enumerate(models.values()):
        color = MODEL if row == 0 else REAL
        seeds = [metric.factor * seed for seed in result.get("per_seed") or () if is_number(seed)]
        axes.plot(seeds, [row + 0.24] * len(seeds), "o", color=color, ms=3, alpha=0.45, mew=0)
        if is_number(result.get("low")) and is_number(result.get("high")):
            axes.plot(
                [metric.factor * result[end] for end in ("low", "high")],
                [row, row],
                color=color,
                lw=2,
            )
        axes.plot(metric.factor * result[metric.name], row, "o", color=color, ms=6)
    label_rows(
        axes,
        list(models),
        [metric.form.format(metric.factor * result[metric.name]) for result in models.values()],
    )
    chance = chance_level(finetune)
    if chance is not None:
        axes.axvline(100 * chance, color=REAL, lw=1, ls=(0, (1, 1.5)))
    axes.set(title=metric.title, xlabel=metric.axis + (" (dotted: chance)" if chance else ""))


def accuracy_differences(axes: Axes, finetune: Results) -> None:
    """Paired differences of accuracy in percentage points (or of the metric of the task), with 95 %
    intervals."""
    metric = metric_of(finetune)
    rows = [
        (
            f"{d['a']}\n− {d['b']}",
            *(metric.scaled(d.get(key)) for key in ("difference", "low", "high")),
        )
        for d in finetune["differences"]
    ]
    _forest(axes, rows, metric.signed, better=1)
    axes.set(
        title="Paired differences",
        xlabel=f"{'percentage points' if metric.unit else metric.title} (above 0: first is better)",
    )


def tradeoff(
    axes: Axes,
    log_prob: np.ndarray,
    reward: np.ndarray,
    real: tuple[np.ndarray, np.ndarray] | None,
    unit: str = "nats per base",
) -> None:
    """Reward against log-probability of each design, and of `real` sequences (log_prob, reward),
    with the Pareto front of the designs."""
    if real is not None:
        shown = evenly_spaced(len(real[0]), MAX_SEQUENCES)
        axes.plot(
            real[0][shown],
            real[1][shown],
            "s",
            color=REAL,
            mfc="none",
            ms=3.5,
            mew=0.8,
            alpha=0.6,
            label="real sequences",
        )
    shown = evenly_spaced(len(reward), MAX_SEQUENCES)
    axes.plot(
        log_prob[shown], reward[shown], "o", color=MODEL, ms=4.5, mew=0, alpha=0.6, label="designs"
    )
    front = pareto_front(log_prob, reward)  # of all designs, drawn or not
    axes.plot(
        log_prob[front],
        reward[front],
        "o-",
        color=OTHER,
        drawstyle="steps-pre",
        lw=1.4,
        ms=4.5,
        mew=0,
        label="Pareto front",
    )
    axes.set(
        title="Reward and likelihood",
        xlabel=f"log-probability under the model, {unit}",
        ylabel="reward",
    )
    legend_below(axes)


def histogram(
    axes: Axes, designs: np.ndarray, real: np.ndarray | None, title: str, label: str
) -> None:
    """The distribution of a value over designs, and over real sequences."""
    everything = designs if real is None else np.concatenate([designs, real])
    edges = bin_edges(everything)
    if real is not None:
        axes.stairs(
            _percentages(real, edges), edges, color=REAL, lw=1.2, fill=False, label="real sequences"
        )
    axes.stairs(_percentages(designs, edges), edges, color=MODEL, alpha=0.25, fill=True, lw=0)
    axes.stairs(_percentages(designs, edges), edges, color=MODEL, lw=1.8, label="designs")
    axes.axvline(float(designs.mean()), color=MODEL, lw=1, ls="--", label="mean of the designs")
    axes.set(title=title, xlabel=label, ylabel="% of sequences", ylim=(0, None))
    axes.tick_params(axis="x", color=FAINT)
    legend_below(axes)


def bin_edges(values: np.ndarray) -> np.ndarray:
    """Edges of at most 25 bins of one width; values on a grid are in the middle of bins, each with
    the same number of grid points."""
    low, high = float(values.min()), float(values.max())
    if high == low:
        return np.array([low - 0.5, high + 0.5])
    grid = np.unique(np.round((values - low) / (high - low), 5))  # headers have six digits
    step = float(np.diff(grid).min())
    if step * _MAX_GRID < 1:
        return np.linspace(low, high, _BINS + 1)
    steps = round(1 / step)
    each = -(-(steps + 1) // _BINS)
    number = -(-(steps + 1) // each)
    return low + (high - low) / steps * (each * np.arange(number + 1) - 0.5)


def in_order(result: Results) -> list[str]:
    """The names of the models: fully trained networks first, then the others by decreasing
    accuracy, or the metric of the task."""
    models, metric = result["models"], metric_of(result).name
    first = [name for name in NETWORKS if name in models]
    return first + sorted(
        (name for name in models if name not in first), key=lambda name: -models[name][metric]
    )


def accuracy_bars(axes: Axes, result: Results, published: Sequence[PublishedResult] = ()) -> None:
    """Accuracy (or the metric of the task) of each model with its 95 % interval; below, in gray,
    published accuracies."""
    models, names, metric = result["models"], in_order(result), metric_of(result)
    for row, name in enumerate(names):
        one = models[name]
        axes.barh(
            row,
            metric.factor * one[metric.name],
            height=0.62,
            color=MODEL if name in NETWORKS else OTHER,
            alpha=0.85,
            lw=0,
        )
        if is_number(one.get("low")) and is_number(one.get("high")):
            axes.plot(
                [metric.factor * one[end] for end in ("low", "high")],
                [row, row],
                color=REAL,
                lw=1.6,
            )
    for row, known in enumerate(published, len(names)):
        axes.barh(row, 100 * known.accuracy, height=0.62, color=FAINT, lw=0)
    labels = names + [f"{known.model}, published ({known.train:,})" for known in published]
    values = [metric.form.format(metric.factor * models[name][metric.name]) for name in names]
    values += [
        f"{100 * known.accuracy:.1f}"
        + ("" if known.spread is None else f" ± {100 * known.spread:.1f}")
        for known in published
    ]
    label_rows(axes, labels, values, width=30)
    axes.axvline(metric.factor * result["task"]["chance"], color=REAL, lw=1, ls=(0, (1, 1.5)))
    lowest = min(0.0, *(metric.factor * models[name][metric.name] for name in names)) * 1.1
    title = f"Trained on {num_training_sequences(result):,} sequences"
    axes.set(title=title, xlabel=f"{metric.axis} (dotted: chance)", xlim=(lowest, metric.factor))


def scatter(axes: Axes, result: Results, name: str, target: str) -> None:
    """Predicted against measured values of the test items, first seed, with the diagonal."""
    points = result["models"][name]["scatter"][target]
    axes.plot(points["measured"], points["predicted"], "o", color=MODEL, ms=2.5, alpha=0.35, mew=0)
    ends = [min(points["measured"]), max(points["measured"])]
    axes.plot(ends, ends, color=REAL, lw=1, ls=(0, (1, 1.5)))
    axes.set(title=name, xlabel=f"measured {target}", ylabel="predicted")


def roc(axes: Axes, result: Results, max_curves: int = 5) -> None:
    """ROC curves. Two classes: one for each model. More classes: one for each class against the
    rest, of the first model."""
    names = [name for name in in_order(result) if result["models"][name].get("roc")][:max_curves]
    classes = result["task"]["classes"]
    if len(classes) == 2:
        curves = [(name, result["models"][name]["roc"][0]) for name in names]
        title = f"ROC: {classes[1]} vs. {classes[0]}"
    else:
        curves = list(zip(classes, result["models"][names[0]]["roc"]))[:max_curves] if names else []
        title = f"ROC: {names[0]}, each class vs. the rest" if names else "ROC"
    axes.plot([0, 100], [0, 100], color=FAINT, lw=1)
    for number, (name, curve) in enumerate(curves):
        x, y = (100 * np.asarray(curve[key]) for key in ("false", "true"))
        axes.plot(
            x,
            y,
            ls=_LINES[number % len(_LINES)],
            color=_COLORS[number % len(_COLORS)],
            lw=1.5,
            label=name,
        )
    axes.set(
        title=title,
        xlabel="false positive rate, %",
        ylabel="true positive rate, %",
        xlim=(0, 100),
        ylim=(0, 100),
        aspect="equal",
    )
    legend_below(axes)


def confusion(axes: Axes, result: Results, name: str) -> None:
    """Test sequences of each true class (row) by predicted class (column), mean over seeds; the
    shade is the fraction of the row."""
    counts, classes = np.asarray(result["models"][name]["confusion"]), result["task"]["classes"]
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1e-9)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    for (row, column), fraction in np.ndenumerate(fractions):
        text = f"{counts[row, column]:,.0f}\n{100 * fraction:.0f} %"
        axes.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            fontsize=8.5,
            color="white" if fraction > 0.55 else REAL,
        )
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set(title=name, xlabel="predicted", ylabel="true")


def _forest(axes: Axes, rows: Sequence[tuple[Json, ...]], form: str, better: int) -> None:
    """Differences with intervals: blue if the first is better, orange if it is worse, gray if the
    interval contains 0."""
    axes.axvline(0, color=REAL, lw=1)
    for y, (_, value, low, high) in enumerate(rows):
        known = is_number(low) and is_number(high)
        sign = 0 if not known else int(low > 0) - int(high < 0)
        color = REAL if sign == 0 else (MODEL if sign == better else OTHER)
        if known:
            axes.plot([low, high], [y, y], color=color, lw=2)
        if is_number(value):
            axes.plot(value, y, "D", color=color, ms=5, mfc="white" if sign == 0 else color)
    values = [
        form.format(value).replace("-", "−") if is_number(value) else "" for _, value, *_ in rows
    ]
    label_rows(axes, [name for name, *_ in rows], values)
    axes.margins(x=0.08)


def label_rows(axes: Axes, names: Sequence[str], values: Sequence[str], width: int = 17) -> None:
    """Label rows with names on the left and values on the right, the first row at the top."""
    axes.set_yticks(range(len(names)), [_wrapped(name, width) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    for y, text in enumerate(values):
        axes.annotate(
            text,
            (1, y),
            (6, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.spines["left"].set_visible(False)


def _wrapped(text: str, width: int, max_lines: int = 3) -> str:
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, width)]
    return "\n".join(lines[:max_lines] + ["…"] * (len(lines) > max_lines))


def legend_below(axes: Axes) -> None:
    """A legend below the label of the x axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    below = axes.transAxes + ScaledTranslation(
        0, -0.5, axes.figure.dpi_scale_trans
    )  # half an inch at any height
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        ncols=2,
        borderaxespad=0,
        columnspacing=1,
        handlelength=1.6,
    )


def _group_title(evaluation: Results, group: str, unit: str) -> str:
    tokens = evaluation["groups"][group].get("tokens")
    return f"{GROUPS.get(group, group)} {unit}s" + (f", {tokens:,}" if is_number(tokens) else "")


def _column(metrics: Columns, name: str) -> np.ndarray | None:
    values = metrics.get(name)
    rows = np.flatnonzero(np.isfinite(values)) if values is not None else np.empty(0, int)
    return rows if len(rows) else None


def _label_outliers(axes: Axes, c: Composition, max_labels: int = 6) -> None:
    labeled: list[float] = []
    room = 0.07 * np.ptp(axes.get_ylim())
    excess = np.where(c.outside_baseline, np.abs(c.sample_frequency - c.real_frequency), 0)
    for index in np.argsort(-excess, kind="stable")[
        : min(max_labels, int(c.outside_baseline.sum()))
    ]:
        x, y = 100 * c.real_frequency[index], 100 * c.sample_frequency[index]
        if all(abs(y - other) > room for other in labeled):
            place, side = ((-6, 3), "right") if y > x else ((6, -3), "left")
            axes.annotate(
                c.kmers[index],
                (x, y),
                place,
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=7.5,
            )
            labeled.append(y)


def _percentages(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return 100 * np.histogram(values, edges)[0] / len(values)
