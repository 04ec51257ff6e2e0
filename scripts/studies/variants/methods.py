"""The methods against each other on a trained model: calibration of SE, variance at equal calls,
indels, several sites per window.

    python scripts/studies/variants/methods.py --checkpoint RUN [--genome FILE] [--region
    chrom:first-last] [--output DIR] [--list] [--table] [--collect FILE]

All variants are random ones of the validation part, or of `--region`. One strand, except for
`sites`.

calibration: the error that `block` and `window` report, over the spread of their results in 200
    repetitions with other random numbers.
variance: SNVs; the variance of one order of `block` times its calls, and that of one draw of
    `window` times its calls.
indels: `block` minus `window` for insertions and deletions of 1 to 6 bases.
sites: all SNVs of a stretch with several sites per window, minus the same with one.

Calibration and indels read windows of 256 bases: the noise of `window` grows with its length.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parent)]
import measures
import scoring
import study
from scoring import Variant

from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.regions import region_of

BLOCK = 16  # the default of variant_method=block
SMALL_BLOCKS = 4, 8  # others, of which the variance is measured too
FULL = {
    "calibration": {
        "snvs": 3,
        "indels": 1,
        "repetitions": 200,
        "window": 256,
        "orders": 4,
        "draws": 16,
    },
    "variance": {"snvs": 60, "orders": 4, "draws": 64},
    "indels": {"indels": 200, "window": 256, "orders": 4, "draws": 64},
    "sites": {"positions": 2048, "numbers": [4, 8, 16]},
}
QUICK = {
    "calibration": {
        "snvs": 1,
        "indels": 1,
        "repetitions": 4,
        "window": 16,
        "orders": 2,
        "draws": 2,
    },
    "variance": {"snvs": 3, "orders": 2, "draws": 4},
    "indels": {"indels": 4, "window": 32, "orders": 2, "draws": 4},
    "sites": {"positions": 16, "numbers": [2, 4, 8]},
}
Region = tuple[str, int, int]


def random_variants(
    genome: Genome, region: Region, number: int, indels: bool, seed: int = 0
) -> list[Variant]:
    """Random SNVs, or insertions and deletions of 1 to 6 bases after a base that REF and ALT share;
    no two at the same position."""
    draw, (record, low, high), found = np.random.default_rng(seed), region, {}
    while len(found) < number:
        start = int(draw.integers(low, high - 7))
        size = int(draw.integers(1, 7))
        letters = DNATokenizer().decode(genome.window(record, start, start + size + 1))
        new = "".join(draw.choice(list("ACGT"), size))
        if "N" in letters or start in found or (not indels and new[0] == letters[0]):
            continue
        pair = (
            ((letters[0], letters[0] + new) if draw.random() < 0.5 else (letters, letters[0]))
            if indels
            else (letters[0], new[0])
        )
        found[start] = Variant(record, start + 1, *pair)
    return [found[start] for start in sorted(found)]


class Study:
    """The pieces of the study."""

    def __init__(self, options) -> None:
        self.size = QUICK if options.quick else FULL
        self.subject = scoring.Subject(options.checkpoint, options.genome)
        genome = self.subject.genome
        self.region = (
            tuple(region_of(options.region, genome.lengths)[:3])
            if options.region
            else self.subject.part("valid")
        )
        self.kept = self.subject.kept(options, options.output, region=self.region, sizes=self.size)
        size = self.size["calibration"]
        self.calibrated = [
            random_variants(genome, self.region, size[kind], kind == "indels", seed=1)
            for kind in ("snvs", "indels")
        ]
        self.pieces = {
            f"calibration_{name}_{number + 1}": lambda name=name, variant=variant: self.calibration(
                name, variant
            )
            for name in ("block", "window")
            for number, variant in enumerate([*self.calibrated[0], *self.calibrated[1]])
        }
        self.pieces |= {
            f"variance_{block}": lambda block=block: self.variance(block) for block in SMALL_BLOCKS
        }
        self.pieces |= {
            "variance": self.variance,
            "indels": self.indels,
            "sites_1": lambda: self.all_snvs(1),
        }
        self.pieces |= {
            f"sites_{number}": lambda n=number: self.sites(n)
            for number in self.size["sites"]["numbers"]
        }
        self.tables = [name for name in self.pieces if name != "sites_1"]

    def methods(self, name: str, block: int = BLOCK) -> dict[str, list[str]]:
        """The settings of `block` and `window` in a piece."""
        size = self.size[name]
        return {
            "block": ["variant_method=block", f"block={block}", f"num_orders={size['orders']}"],
            "window": ["variant_method=window", f"num_draws={size['draws']}"],
        }

    def calibration(self, name: str, variant: Variant) -> dict:
        """Claimed errors and results of repetitions with different seeds, of one variant."""
        size = self.size["calibration"]
        method = scoring.method(*self.methods("calibration")[name])
        shared = {"method": method, "window": size["window"], "stranded": True}
        frames = [
            self.subject.model.variants([variant], self.subject.genome, seed=seed, **shared)
            for seed in range(size["repetitions"])
        ]
        llr, se = (
            np.array([float(frame[column].iloc[0]) for frame in frames]) for column in ("LLR", "SE")
        )
        return {
            "variant": f"{variant.ref}>{variant.alt}",
            "method": name,
            "mean": float(llr.mean()),
            **ratio(llr, se),
        }

    def variance(self, block: int = BLOCK) -> dict:
        """Variance times calls of both methods, and their ratio with an interval over SNVs."""
        size = self.size["variance"]
        rows = random_variants(self.subject.genome, self.region, size["snvs"], indels=False)
        # One order: its steps from the variant on for REF, and for ALT all of them but the first,
        # which both share: on average one for each base.
        factors = {"block": size["orders"] * (block + 1), "window": 2 * size["draws"]}
        costs = {}
        for name, overrides in self.methods("variance", block).items():
            found = self.subject.scores(
                self.kept, f"variance_{name}", rows, *overrides, "stranded=true"
            )
            costs[name] = found["SE"].to_numpy() ** 2 * factors[name]
        over_snvs = lambda cost, weight: float((cost * weight).sum() / weight.sum())  # noqa: E731
        each = measures.bootstrap(over_snvs, costs, np.arange(len(rows)))
        both = (
            np.arange(len(rows)),
            lambda _, weight: (
                over_snvs(costs["window"], weight) / over_snvs(costs["block"], weight)
            ),
        )
        ratios = measures.bootstrap(both[1], {"ratio": both[0]}, both[0])
        return {"snvs": len(rows), **each, "window_over_block": ratios["ratio"]}

    def indels(self) -> dict:
        """The approximation of `block` for indels: its difference to `window`, which has none."""
        size = self.size["indels"]
        rows = random_variants(self.subject.genome, self.region, size["indels"], indels=True)
        window = f"window={size['window']}"
        a, b = (
            self.subject.scores(
                self.kept, f"indels_{name}", rows, *overrides, window, "stranded=true"
            )
            for name, overrides in self.methods("indels").items()
        )
        known = (a["LLR"].notna() & b["LLR"].notna()).to_numpy()
        x, y, noise = (
            values[known].to_numpy() for values in (a["LLR"], b["LLR"], a["SE"] ** 2 + b["SE"] ** 2)
        )
        return {
            "indels": int(known.sum()),
            **agreement(x, y, noise, float((b["SE"] ** 2)[known].mean())),
        }

    def all_snvs(self, number: int) -> dict:
        """The LLR of all SNVs of a stretch, and the windows that the network read."""
        record, low, high = self.region
        rows = scoring.all_snvs(
            self.subject.genome, (record, low, min(high, low + self.size["sites"]["positions"]))
        )
        with scoring.windows_read(self.subject.model) as windows:
            llr = self.subject.scores(
                self.kept, f"sites_{number}", rows, f"sites_per_window={number}", resume=False
            )["LLR"]
        return {"LLR": llr.tolist(), "windows": sum(windows)}

    def sites(self, number: int) -> dict:
        """The error of several sites per window against one."""
        one = self.kept["sites_1"]
        several = self.all_snvs(number)
        x = np.array(several["LLR"])
        y = np.array(one["LLR"])
        return {
            "snvs": len(x),
            "spacing": self.subject.model.length // number,
            "sd": float(y.std()),
            "rms": float(np.sqrt(((x - y) ** 2).mean())),
            "mean": float((x - y).mean()),
            "correlation": float(np.corrcoef(x, y)[0, 1]),
            "fewer_windows": one["windows"] / several["windows"],
        }


def ratio(llr: np.ndarray, se: np.ndarray) -> dict:
    """The root mean square of the claimed errors over the standard deviation of the results, with
    an interval over repetitions."""
    index = np.arange(len(llr))

    def measure(rows: np.ndarray, weight: np.ndarray) -> float:
        rows = np.repeat(rows, weight.astype(int))
        return float(np.sqrt((se[rows] ** 2).mean()) / llr[rows].std(ddof=1))

    return {
        "sd": float(llr.std(ddof=1)),
        **measures.bootstrap(measure, {"ratio": index}, index)["ratio"],
    }


def agreement(x: np.ndarray, y: np.ndarray, noise: np.ndarray, noise_of_y: float) -> dict:
    """Two scores of the same variants, x with the smaller error: x - y with its 95 % interval, and
    correlations.

    Args:
        noise: the squared Monte Carlo error of each difference.
        noise_of_y: mean squared error of y. The correlation without noise divides by the spread of
            y without it.
    """
    index = np.arange(len(x))
    difference = x - y
    mean = measures.bootstrap(
        lambda rows, weight: float((difference[rows] * weight).sum() / weight.sum()),
        {"difference": index},
        index,
    )
    correlation = measures.bootstrap(
        lambda rows, weight: float(
            np.corrcoef(np.repeat(x, weight.astype(int)), np.repeat(y, weight.astype(int)))[0, 1]
        ),
        {"r": index},
        index,
    )
    clean = max(y.var(ddof=1) - noise_of_y, 0.0)
    spread = difference.var(ddof=1)
    return {
        "difference": mean["difference"],
        "correlation": correlation["r"],
        "correlation_without_noise": float(np.cov(x, y)[0, 1] / np.sqrt(x.var(ddof=1) * clean))
        if clean > 0
        else None,
        "sd": [float(x.std(ddof=1)), float(y.std(ddof=1))],
        "rms_error_of_difference": float(np.sqrt(noise.mean())),
        "sd_of_difference_without_noise": float(np.sqrt(max(spread - noise.mean(), 0.0))),
    }


def table(rows: dict) -> str:
    """All tables, from the file that `--collect` writes."""
    return "\n\n".join(part(rows) for part in (calibration_table, quantities_table, sites_table))


def calibration_table(rows: dict) -> str:
    """Claimed error over spread, of each variant and of all."""
    found = [row for name, row in rows.items() if name.startswith("calibration")]
    lines = [
        [
            row["method"],
            row["variant"],
            f"{row['mean']:+.3f}",
            f"{row['sd']:.3f}",
            measures.shown(row),
        ]
        for row in found
    ]
    for name in dict.fromkeys(row["method"] for row in found):
        logs = [
            np.log([row[key] for key in ("value", "low", "high")])
            for row in found
            if row["method"] == name
        ]
        value = np.mean([x[0] for x in logs])
        half = np.sqrt(sum(((x[2] - x[1]) / 2) ** 2 for x in logs)) / len(logs)
        pooled = dict(zip(("value", "low", "high"), np.exp([value, value - half, value + half])))
        lines.append([name, f"all {len(logs)}", "", "", measures.shown(pooled)])
    return study.markdown(
        ["method", "variant", "mean LLR", "spread", "claimed SE over spread (95 %)"], lines
    )


def quantities_table(rows: dict) -> str:
    """Variance at equal calls, and indels by both methods."""
    lines = []
    if "variance" in rows:
        row = rows["variance"]
        lines.append(
            [
                f"variance x calls of `window`, {row['snvs']} SNVs, nats^2",
                measures.shown(row["window"]),
            ]
        )
    for name, block in {
        **{f"variance_{block}": block for block in SMALL_BLOCKS},
        "variance": BLOCK,
    }.items():
        if name in rows:
            lines.append(
                [f"variance x calls of `block={block}`", measures.shown(rows[name]["block"])]
            )
            lines.append(
                [
                    f"`window` over `block={block}`",
                    measures.shown(rows[name]["window_over_block"], 0),
                ]
            )
    if "indels" in rows:
        row = rows["indels"]
        lines += [
            [
                f"`block` minus `window`, {row['indels']} indels, nats",
                measures.shown(row["difference"], sign=True),
            ]
        ]
        lines += [
            [
                "standard deviation of LLR by `block`, by `window`",
                f"{row['sd'][0]:.2f}, {row['sd'][1]:.2f}",
            ]
        ]
        lines += [
            ["Monte Carlo error of a difference (RMS)", f"{row['rms_error_of_difference']:.2f}"]
        ]
        lines += [
            [
                "standard deviation of the differences without it",
                f"{row['sd_of_difference_without_noise']:.2f}",
            ]
        ]
        lines += [["correlation", measures.shown(row["correlation"])]]
        clean = row["correlation_without_noise"]
        lines += [
            [
                "correlation, corrected for the noise of `window`",
                "-" if clean is None else f"{clean:.3f}",
            ]
        ]
    return study.markdown(["quantity", "value (95 %)"], lines)


def sites_table(rows: dict) -> str:
    """Errors of several sites per window."""
    lines = []
    for name in rows:
        if name.startswith("sites_") and "spacing" in (row := rows[name]):
            cells = [
                name.removeprefix("sites_"),
                str(row["spacing"]),
                f"{row['rms']:.4f}",
                f"{row['mean']:+.4f}",
                f"{row['rms'] / row['sd']:.1%}",
            ]
            lines.append([*cells, f"{row['correlation']:.4f}", f"{row['fewer_windows']:.1f}"])
    header = [
        "sites per window",
        "spacing",
        "RMS error, nats",
        "mean error",
        "of the spread of LLR",
        "correlation",
        "fewer windows, times",
    ]
    return study.markdown(header, lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/methods")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--genome", default=scoring.ECOLI)
    parser.add_argument("--region", help="default: the validation part of the network's split")
    options = parser.parse_args(argv)
    scoring.run(lambda: Study(options), options, table)


if __name__ == "__main__":
    main()
