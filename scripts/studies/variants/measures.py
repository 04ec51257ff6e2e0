"""AUROC and Spearman's correlation with paired bootstrap intervals, and the scores of variants by
Markov models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import UNKNOWN, reverse_complement
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.bootstrap import student_t
from dnadiff.genomics.markov import BackoffMarkov

Scores = Mapping[str, np.ndarray]
Measure = Callable[[np.ndarray, np.ndarray], float]
Interval = dict[str, float | None]  # value, low, high


def auroc(score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> float:
    """P(score of a positive > score of a negative), ties count half."""
    return auroc_of_ranks(positive, np.unique(score, return_inverse=True)[1], weight)


def auroc_of_ranks(positive: np.ndarray, place: np.ndarray, weight: np.ndarray) -> float:
    """AUROC of ranks from 0, equal for equal scores: fast, for many weights of the same items."""
    above = np.bincount(place, weight * positive)
    below = np.bincount(place, weight * ~positive.astype(bool))
    return float((above * (np.cumsum(below) - below / 2)).sum() / (above.sum() * below.sum()))


def spearman(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """Spearman's correlation of items that are repeated `weight` times."""
    from scipy.stats import rankdata

    rows = np.repeat(np.arange(len(x)), weight.astype(int))
    return float(np.corrcoef(rankdata(x[rows]), rankdata(y[rows]))[0, 1])


def bootstrap(
    measure: Measure,
    scores: Scores,
    group: np.ndarray,
    references: Sequence[str] = (),
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Interval | dict[str, Interval]]]:
    """`measure(score, weight)` of each score with its 95 % interval over groups, and `minus` each
    reference score.

    All scores share the resamples, so that differences are paired.
    """
    names, index = np.unique(group, return_inverse=True)
    draw = np.random.default_rng(seed)
    counts = [
        np.ones(len(names)),
        *draw.multinomial(len(names), np.full(len(names), 1 / len(names)), num_resamples),
    ]
    values = {
        name: np.array([measure(score, count[index]) for count in counts])
        for name, score in scores.items()
    }
    return {
        name: {
            **_quantiles(value),
            "minus": {
                other: _quantiles(value - values[other]) for other in references if other != name
            },
        }
        for name, value in values.items()
    }


def _quantiles(values: np.ndarray) -> Interval:
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return {"value": float(values[0]), "low": float(low), "high": float(high)}


def over_sets(
    values: Scores, references: Sequence[str]
) -> dict[str, dict[str, Interval | dict[str, Interval]]]:
    """The mean of values that several sets gave, (n,) per name, with the 95 % interval of Student's
    t over the sets, and `minus` each reference."""
    return {
        name: {
            **_mean(value),
            "minus": {other: _mean(value - values[other]) for other in references if other != name},
        }
        for name, value in values.items()
    }


def _mean(values: np.ndarray) -> Interval:
    half = (
        student_t(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        if len(values) > 1
        else np.nan
    )
    mean = float(values.mean())
    return {"value": mean, "low": float(mean - half), "high": float(mean + half)}


def shown(found: Interval, digits: int = 3, sign: bool = False) -> str:
    """`value (low to high)`; a dash for what is not defined."""
    cells = [
        "-" if (x := found[key]) is None else f"{x:{'+' if sign else ''}.{digits}f}"
        for key in ("value", "low", "high")
    ]
    return f"{cells[0]} ({cells[1]} to {cells[2]})"


def markov_llr(
    model: BackoffMarkov,
    order: int,
    genome: Genome,
    record: str,
    positions: np.ndarray,
    alts: np.ndarray,
) -> np.ndarray:
    """log p(alt) - log p(ref) of SNVs under a Markov model, the mean of both strands: (n,).

    Args:
        positions: 0-based.
        alts: bases, 0 to 3.
    """
    tokenizer = DNATokenizer()
    length = genome.lengths[record]
    size = 2 * order + 1
    windows = np.full((len(positions), size), UNKNOWN, np.uint8)
    for row, position in enumerate(positions.tolist()):
        low = max(position - order, 0)
        high = min(position + order + 1, length)
        windows[row, low - position + order : high - position + order] = tokenizer.bases(
            genome.window(record, low, high)
        )
    changed = windows.copy()
    changed[:, order] = alts
    totals = []
    for allele in (changed, windows):
        both = (
            [allele, np.stack([reverse_complement(row) for row in allele])]
            if len(allele)
            else [allele, allele]
        )
        totals.append(sum(_log_p(model, order, each) for each in both) / 2)
    return totals[0] - totals[1]


def _log_p(model: BackoffMarkov, order: int, windows: np.ndarray) -> np.ndarray:
    """Sum of log p of the bases from the middle on: those that depend on it."""
    joined = np.concatenate([windows, np.full((len(windows), 1), UNKNOWN, np.uint8)], 1)
    log_p = model.log_probs(joined.ravel(), order).reshape(joined.shape)
    return np.nansum(log_p[:, order:], 1)
