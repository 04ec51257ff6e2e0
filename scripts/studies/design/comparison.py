"""What the designs of each method are worth: rewards, judges, likelihood, naturalness and
diversity, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import halves
import judging
import measures
import numpy as np
import study
from designers import BASELINE, METHODS, PEERS, TRANSFERRED, UNGUIDED
from matplotlib.axes import Axes

from dnadiff.genomics.metrics import composition

ORACLE = "A"
LOG_PROB = "log p per base"
MATCH = "longest match"
NEAREST = "nearest promoter"
VALUES = (ORACLE, *judging.JUDGES, LOG_PROB, MATCH, NEAREST)
KMER = 6
Rows = Mapping[str, Mapping]


def mean(score: np.ndarray, weight: np.ndarray) -> float:
    """The mean over designs that are repeated `weight` times."""
    return float((score * weight).sum() / weight.sum())


def decile(score: np.ndarray, weight: np.ndarray, by: np.ndarray) -> float:
    """The mean of a score over the tenth of the designs with the highest `by`."""
    rows = np.repeat(np.arange(len(score)), weight.astype(int))
    top = rows[np.argsort(-by[rows], kind="stable")[: max(len(rows) // 10, 1)]]
    return float(score[top].mean())


def hamming(letters: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """Hamming distances (S, R) between sequences of one length."""
    a, b = (
        np.eye(5, dtype=np.float32)[np.stack(halves.bases_of(each))][..., :4].reshape(len(each), -1)
        for each in (letters, others)
    )
    return np.rint(len(letters[0]) - a @ b.T).astype(int)


def diversity(letters: Sequence[str]) -> float:
    """The mean Hamming distance of two designs."""
    found = hamming(letters, letters)
    return float(found.sum() / max(len(letters) * (len(letters) - 1), 1))


def kmer_distance(letters: Sequence[str], strong: Sequence[str]) -> dict[str, float]:
    """Jensen-Shannon divergence in bits of the 6-mer frequencies of designs and strong promoters,
    with its 95 % interval."""
    ours, real = (
        composition.kmer_counts(halves.bases_of(each), KMER, both_strands=False)
        for each in (letters, strong)
    )
    value = composition.jensen_shannon(ours, real)
    low, high = composition.bootstrap_interval(composition.jensen_shannon, ours, real, value)
    return {"value": value, "low": low, "high": high}


def described(
    values: Mapping[str, np.ndarray],
    groups: Sequence[int],
    letters: Sequence[str],
    strong: Sequence[str],
) -> dict:
    """Means and top deciles (by A) with 95 % intervals over groups of dependent designs, 6-mer
    distance, diversity, and the values.

    A single group has no interval: its designs are then resampled as if they were independent, and
    `independent` says so.
    """
    group = np.asarray(groups)
    # an interval over fewer groups is meaningless
    several = len(np.unique(group)) >= min(5, len(group))
    group = group if several else np.arange(len(group))
    means = measures.bootstrap(mean, values, group)
    top = measures.bootstrap(
        lambda score, weight: decile(score, weight, values[ORACLE]), values, group
    )
    return {
        "mean": {name: _interval(found) for name, found in means.items()},
        "top": {name: _interval(found) for name, found in top.items()},
        "groups": len(np.unique(group)),
        "independent": not several,
        "kmers": kmer_distance(letters, strong),
        "diversity": diversity(letters),
        "different": len(set(letters)),
        "values": {name: [float(f"{x:.5g}") for x in each] for name, each in values.items()},
        "group": group.tolist(),
    }


def _interval(found: Mapping) -> dict[str, float]:
    return {key: found[key] for key in ("value", "low", "high")}


def differences(
    rows: Rows, names: Sequence[str], base: str = BASELINE, num_resamples: int = 1000
) -> dict[str, dict[str, dict[str, float]]]:
    """The mean of each method minus that of `base`, with a 95 % interval; designs of two methods
    are resampled independently."""
    random = np.random.default_rng(0)
    draws = {name: _replicates(row, names, num_resamples, random) for name, row in rows.items()}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for method in (name for name in rows if name != base):
        minus = {name: draws[method][name] - draws[base][name] for name in names}
        low_high = {name: np.quantile(each[1:], (0.025, 0.975)) for name, each in minus.items()}
        found[method] = {
            name: {"value": float(minus[name][0]), "low": float(low), "high": float(high)}
            for name, (low, high) in low_high.items()
        }
    return found


def _replicates(
    row: Mapping, names: Sequence[str], num_resamples: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    _, index = np.unique(row["group"], return_inverse=True)
    size = index.max() + 1
    counts = np.stack(
        [np.ones(size), *random.multinomial(size, np.full(size, 1 / size), num_resamples)]
    )[:, index]
    return {name: counts @ np.asarray(row["values"][name]) / counts.sum(1) for name in names}


def counting(judges: Mapping) -> list[str]:
    """The judges that count: Spearman's correlation on the official test part above the limit."""
    return [name for name in judging.JUDGES if judges["spearman"][name]["value"] > judging.LOWEST]


def judges_table(judges: Mapping, oracle: Mapping) -> str:
    """Spearman's correlation of each judge and of the oracle with the measured expression."""
    counted = counting(judges)
    lines = [
        [name, measures.shown(each), "yes" if name in counted else "no"]
        for name, each in judges["spearman"].items()
    ]
    lines.insert(0, [f"{ORACLE} (the oracle)", measures.shown(oracle["spearman"]), "no judge"])
    return study.markdown(["judge", "Spearman on the official test part (95 %)", "counts"], lines)


def designs_table(found: Rows, key: str) -> str:
    """Means, or means of the top decile, of all methods."""
    lines = [
        [name, *(measures.shown(row[key][value], 2) for value in (ORACLE, *judging.JUDGES))]
        for name, row in found.items()
    ]
    return study.markdown(
        ["method", *(f"{value} (95 %)" for value in (ORACLE, *judging.JUDGES))], lines
    )


def natural_table(found: Rows, prices: Rows) -> str:
    """Likelihood, distances, diversity, and the price."""
    lines = []
    for name, row in found.items():
        price = prices.get(name, {})
        numbers = [measures.shown(row["mean"][value], 2) for value in (LOG_PROB, MATCH, NEAREST)]
        share = [f"{price['in_model']:.0%}", f"{price['in_oracle']:.0%}"] if price else ["", ""]
        cost = ["", ""]
        if price:
            cost = [f"{price['calls_per_design']:.1f}", f"{price['seconds']:.0f}"]
        lines.append(
            [
                name,
                *numbers,
                measures.shown(row["kmers"], 4),
                f"{row['diversity']:.1f}",
                f"{row['different']}",
                *cost,
                *share,
            ]
        )
    header = [
        "method",
        "log p per base, nats",
        "longest match, bases",
        "nearest promoter, differences",
        "6-mer divergence, bits",
    ]
    return study.markdown(
        [
            *header,
            "pairwise differences",
            "different",
            "calls per design",
            "seconds",
            "in the model",
            "in the oracle",
        ],
        lines,
    )


def differences_table(found: Mapping, counted: Sequence[str], base: str = BASELINE) -> str:
    """Each method minus `base`, under A and the judges that count."""
    lines = [
        [name, *(measures.shown(row[value], 2, sign=True) for value in (ORACLE, *counted))]
        for name, row in found.items()
    ]
    return study.markdown(
        [f"method minus {base}", *(f"{value} (95 %)" for value in (ORACLE, *counted))], lines
    )


def peer_tables(found: Rows, counted: Sequence[str]) -> list[str]:
    """The methods of the package minus each peer that starts from the same kind of sequences."""
    tables = []
    for peer in (name for name in PEERS if name in found):
        own = [
            name
            for name in METHODS
            if name not in (*PEERS, BASELINE, UNGUIDED)
            and (name in TRANSFERRED) == (peer in TRANSFERRED)
        ]
        rows = {name: found[name] for name in (*own, peer) if name in found}
        tables.append(differences_table(differences(rows, (ORACLE, *counted), peer), counted, peer))
    return tables


def throughput_table(rows: Rows) -> str:
    """Speed and memory for two numbers of designs."""
    lines = []
    for name, row in rows.items():
        for each in row["runs"]:
            speed = f"{each['designs'] / each['seconds']:.2f}"
            shares = [f"{each['in_model']:.0%}", f"{each['in_oracle']:.0%}"]
            lines.append(
                [
                    name,
                    f"{each['designs']:,}",
                    f"{row['calls']}",
                    speed,
                    *shares,
                    f"{each['megabytes']:.0f}",
                ]
            )
    return study.markdown(
        [
            "method",
            "designs",
            "calls per design",
            "designs/s",
            "in the model",
            "in the oracle",
            "peak MB",
        ],
        lines,
    )


def picture(found: Rows, judges: Sequence[str], path: Path) -> None:
    """A against each judge: all designs, and the mean of each method with its interval. Reward
    hacking is to the right and down."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(judges), 5.5), layout="constrained")
    panels = figure.subplots(1, len(judges), squeeze=False)[0]
    for axes, judge in zip(panels, judges):
        _panel(axes, found, judge)
    panels[-1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _panel(axes: Axes, found: Rows, judge: str) -> None:
    for number, (name, row) in enumerate(found.items()):
        color, (x, y) = f"C{number % 10}", (row["mean"][value] for value in (ORACLE, judge))
        axes.scatter(
            row["values"][ORACLE], row["values"][judge], s=6, alpha=0.3, color=color, linewidths=0
        )
        errors = [
            [[each["value"] - each["low"]], [each["high"] - each["value"]]] for each in (x, y)
        ]
        marker = "os^Dv"[number // 10 % 5]
        axes.errorbar(
            x["value"],
            y["value"],
            xerr=np.abs(errors[0]),
            yerr=np.abs(errors[1]),
            fmt=marker,
            color=color,
            label=name,
            markeredgecolor="black",
        )
    unit = "bits" if judge == judging.MATRIX else "log(1 + expression)"
    axes.set(
        xlabel="reward: prediction of A, log(1 + expression)", ylabel=f"judge: {judge}, {unit}"
    )
