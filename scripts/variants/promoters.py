"""Designed sigma-70 promoters and the saturated HNF4A promoter: does the likelihood follow the measured expression?

    python scripts/variants/promoters.py --checkpoint RUN --csv FILE [--output DIR] [--list] [--table]
    python scripts/variants/promoters.py --checkpoint RUN --mpra FILE --genome FILE [--output DIR]

Sigma-70: Spearman's correlation within each background between log expression and the likelihood of the inner 150 bases (NELBO of the
strand given), compared with a weight matrix of -35 and -10 (TTGACA, 16 to 18 bases, TATAAT) and Markov models of the training part. Controls
are left out. HNF4A: Spearman's correlation of the measured effect and the LLR of the SNVs, with an interval over positions.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[1] / "experiments"), str(Path(__file__).parent)]
import measures
import study

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.markov.model import BackoffMarkov

MINUS_35, MINUS_10, SPACERS = "TTGACA", "TATAAT", (16, 17, 18)
INNER = slice(24, 174)
FASTA = "bundled:ecoli_K12_MG1655.fa.gz"
_MATCH = np.log(0.7 / 0.25), np.log(0.1 / 0.25)  # of a consensus base and of another one


def sigma70_score(letters: str) -> float:
    """The best pair of hexamers of the weight matrix in a sequence, on its own strand: log odds in nats."""
    minus_35, minus_10 = (_matches(letters, motif) for motif in (MINUS_35, MINUS_10))
    best = [minus_35[: len(minus_10) - 6 - spacer] + minus_10[6 + spacer :] for spacer in SPACERS if len(minus_10) > 6 + spacer]
    return float(max(each.max() for each in best))


def _matches(letters: str, motif: str) -> np.ndarray:
    match, other = _MATCH
    hits = [[match if a == b else other for a, b in zip(letters[i:], motif)] for i in range(len(letters) - len(motif) + 1)]
    return np.sum(hits, 1)


def read_promoters(path: Path) -> list[dict[str, str]]:
    """The rows of the grid, without controls, each with its background."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if not row["name"].startswith(("neg", "pos"))]
    return [
        row | {"background": row["name"].rpartition("_")[2], "inner": row["sequence"][INNER]}
        for row in rows
        if float(row["expression"]) > 0
    ]


def within(scores: dict[str, np.ndarray], rows: list[dict[str, str]]) -> dict:
    """Spearman's correlation with log expression in each background, and its mean over backgrounds."""
    groups = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row["background"]].append(number)
    expression, found = np.log([float(row["expression"]) for row in rows]), {}
    for name, used in groups.items():
        measure = lambda score, weight, used=used: measures.spearman(score, expression[used], weight)  # noqa: E731
        found[name] = measures.bootstrap(measure, {n: s[used] for n, s in scores.items()}, np.arange(len(used)), "weight matrix")
    return found


def sigma70(options, kept: study.Kept) -> dict:
    """The pieces of the designed promoters."""
    rows = read_promoters(options.csv)
    rows = rows[:: max(len(rows) // 400, 1)] if options.quick else rows

    def markov(order: int) -> dict:
        genome = Genome.open(FASTA)
        (record, length), to_bases = next(iter(genome.lengths.items())), DNATokenizer().bases
        bases = to_bases(genome.window(record, 0, length))
        model = BackoffMarkov.fit([bases[: round(0.8 * length)]], order).tuned([bases[round(0.9 * length) :]])
        return {"scores": [float(model.log_probs(to_bases(DNATokenizer().encode(row["inner"])), order).sum()) for row in rows]}

    def network() -> dict:
        nll = dnadiff.load(options.checkpoint).nll([row["inner"] for row in rows], num_draws=8 if options.quick else 64)
        return {"scores": (-nll * len(rows[0]["inner"])).tolist()}

    def compared() -> dict:
        names = {"network": "network", "weight_matrix": "weight matrix", "order_6": "order 6", "order_12": "order 12"}
        return {"backgrounds": within({label: np.array(kept[name]["scores"]) for name, label in names.items()}, rows)}

    return {
        "network": network,
        "weight_matrix": lambda: {"scores": [sigma70_score(row["inner"]) for row in rows]},
        "order_6": lambda: markov(6),
        "order_12": lambda: markov(12),
        "spearman": compared,
    }


def hnf4a(options, kept: study.Kept) -> dict:
    """The pieces of the saturated promoter: all its SNVs."""
    with gzip.open(options.mpra, "rt") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["Ref"] in "ACGT" and row["Alt"] in "ACGT"]
    rows = rows[:60] if options.quick else rows

    def network() -> dict:
        variants = [(row["Chrom"], int(row["Pos"]), row["Ref"], row["Alt"]) for row in rows]
        return {"scores": dnadiff.load(options.checkpoint).variants(variants, options.genome)["LLR"].tolist()}

    def compared() -> dict:
        effect, position = np.array([float(r["Coefficient"]) for r in rows]), np.array([int(r["Pos"]) for r in rows])
        measure = lambda score, weight: measures.spearman(score, effect, weight)  # noqa: E731
        scores = {"network": np.array(kept["network"]["scores"]), "nothing": np.random.default_rng(0).random(len(rows))}
        return {"HNF4A": measures.bootstrap(measure, scores, position, "nothing")}

    return {"network": network, "spearman": compared}


def signed(value: float | None) -> str:
    """A correlation with its sign; a dash where too few promoters leave it undefined."""
    return "-" if value is None else f"{value:+.3f}"


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/promoters")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--csv", type=Path, help="ecoli_sigma70_minimal.csv.gz")
    parser.add_argument("--mpra", type=Path, help="kircher2019_HNF4A_chr20.tsv.gz, with --genome")
    parser.add_argument("--genome", type=Path, help="of the release of the table")
    options = parser.parse_args()
    if (options.csv is None) == (options.mpra is None or options.genome is None):
        parser.error("give --csv, or --mpra and --genome")
    folder = options.output / ("sigma70" if options.csv else "hnf4a") / ("quick" if options.quick else "")
    kept = study.Kept(folder, {"checkpoint": options.checkpoint})
    study.work((sigma70 if options.csv else hnf4a)(options, kept), kept, options)
    if "spearman" in kept and not options.list:
        found = kept["spearman"]
        lines = [
            [name, score, signed(v["value"]), f"{signed(v['low'])} to {signed(v['high'])}"]
            for name, each in found.get("backgrounds", found).items()
            if isinstance(each, dict)
            for score, v in each.items()
        ]
        print("\n" + study.markdown(["set", "score", "Spearman", "95 %"], lines))


if __name__ == "__main__":
    main()
