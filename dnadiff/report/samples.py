"""Pictures of samples compared with real windows: k-mer frequencies and mutual information."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.fields import Json
from dnadiff.genomics.metrics.composition import KMER_LENGTHS
from dnadiff.plot.figures import BAND, MODEL, figure, legend_below, rendered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dnadiff.genomics.metrics.composition import Distance
    from dnadiff.genomics.metrics.sample_quality import SampleQuality


def overview(quality: SampleQuality) -> bytes:
    """A PNG file with both pictures in a row."""
    with figure(8, 3.1, 1, 2) as (made, (left, right)):
        made.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        divergences(left, KMER_LENGTHS, [quality[f"js_{k}"].distance for k in KMER_LENGTHS])
        mutual_information(right, quality)
    return rendered(made, "png")


def divergences(
    axes: Axes, lengths: Sequence[int], found: Sequence[Distance], name: str = "samples"
) -> None:
    """The distances of k-mer frequencies of these lengths from real windows; the band is the 95 %
    range of independent sets of real windows."""
    samples, low, high = np.array([(d.samples, d.low, d.high) for d in found]).T
    reach = np.abs(np.array([d.interval for d in found]).T - samples)
    reach[0] = np.minimum(reach[0], 0.9 * samples)  # the axis is logarithmic
    axes.fill_between(lengths, low, high, label="real vs. real, 95 %", **BAND)
    points: Json = {"fmt": "o-", "ms": 4, "lw": 1.3, "capsize": 2}
    axes.errorbar(lengths, samples, reach, color=MODEL, label=name, **points)
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
    axes.fill_between(at, low, high, label="real windows, 95 %", **BAND)
    axes.plot(at, samples, color=MODEL, lw=1.3, label="samples")
    axes.set(title="Mutual information", xlabel="distance, bases", ylabel="bits", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(axes)
