"""Panels of the page about designs: reward against likelihood with the Pareto front, and
distributions of designs and real sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dnadiff.metrics.designs import MAX_SEQUENCES, pareto_front
from dnadiff.metrics.real_windows import evenly_spaced
from dnadiff.report.panels import FAINT, MODEL, OTHER, REAL, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 24  # at most one more
_MAX_GRID = 1000  # values on a grid, such as GC content, are at most so many steps apart


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
            _percent(real, edges), edges, color=REAL, lw=1.2, fill=False, label="real sequences"
        )
    axes.stairs(_percent(designs, edges), edges, color=MODEL, alpha=0.25, fill=True, lw=0)
    axes.stairs(_percent(designs, edges), edges, color=MODEL, lw=1.8, label="designs")
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


def _percent(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return 100 * np.histogram(values, edges)[0] / len(values)
