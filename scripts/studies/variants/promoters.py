"""Designed sigma-70 promoters and the saturated HNF4A promoter: does the likelihood follow the
measured expression?

    python scripts/studies/variants/promoters.py --csv FILE --checkpoint RUN [--output DIR] [--list]
    [--table] [--collect FILE] python scripts/studies/variants/promoters.py --mpra FILE --genome
    FILE [--checkpoint RUN] [--train] [--output DIR] ...

Sigma-70: Spearman's correlation between log expression and log-likelihood within each background,
where it orders promoters as the likelihood ratio to any one of them does, and the mean over
backgrounds with an interval over them. Only the inner 150 bases are read, on the strand given;
controls are left out. The network's NELBO uses the same masks for all promoters. Compared with the
best pair of -35 and -10 (TTGACA, 16 to 18 bases, TATAAT; a weight matrix) and with Markov models of
the training part.

HNF4A: Spearman's correlation of the measured effect and the LLR of all SNVs, with an interval over
    blocks of 10 positions, compared with Markov models on the same SNVs. Without --checkpoint a
    network is trained first (`experiment=chr20_hnf4a`, 15 minutes on two cores); it resumes. The
promoter must be in the test part of the network.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

sys.path += [str(Path(__file__).parent)]
import measures
import scoring
import study

from dnadiff.data.kmers import KmerSet
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.likelihood.estimators import WindowBatch
from dnadiff.model import Model

MINUS_35 = "TTGACA"
MINUS_10 = "TATAAT"
SPACERS = (16, 17, 18)
INNER = slice(24, 174)
MARKOV = ("order 6", "order 12")
MATRIX = "weight matrix"
EXPERIMENT = "chr20_hnf4a"
BLOCK = 10  # positions that are resampled together
CONTEXT = 512  # bases on each side whose 24-mers are compared with the training part
FULL = {"draws": 8, "repeats": 2, "batch": 64}
QUICK = {"draws": 2, "repeats": 2, "batch": 64}
_MATCH = np.log(0.7 / 0.25), np.log(0.1 / 0.25)  # of a consensus base and of another one


def sigma70_score(letters: str) -> float:
    """The best pair of hexamers of the weight matrix in a sequence, on its own strand: log odds in
    nats."""
    minus_35, minus_10 = (_matches(letters, motif) for motif in (MINUS_35, MINUS_10))
    best = [
        minus_35[: len(minus_10) - 6 - spacer] + minus_10[6 + spacer :]
        for spacer in SPACERS
        if len(minus_10) > 6 + spacer
    ]
    return float(max(each.max() for each in best))


def _matches(letters: str, motif: str) -> np.ndarray:
    match, other = _MATCH
    hits = [
        [match if a == b else other for a, b in zip(letters[i:], motif)]
        for i in range(len(letters) - len(motif) + 1)
    ]
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


def log_likelihoods(
    model: Model, letters: list[str], num_draws: int, seed: int, batch_size: int
) -> np.ndarray:
    """Minus the NELBO of sequences of one length in nats, with the same masks for all: (S,).

    Common masks cancel in differences where the sequences agree.
    """
    ids = torch.stack(
        [torch.from_numpy(model.tokenizer.encode(each).astype(np.int64)) for each in letters]
    )
    batches = [
        WindowBatch(
            x,
            {"all": torch.ones_like(x, dtype=torch.bool)},
            rows=torch.zeros(len(x), dtype=torch.int64),
        )
        for x in ids.split(batch_size)
    ]
    return -likelihood.estimate(
        model.denoiser, model.process, batches, num_draws, seed
    ).per_sequence()


class Sigma70:
    """The pieces of the designed promoters."""

    tables = "promoters", "spearman"

    def __init__(self, options) -> None:
        self.size = QUICK if options.quick else FULL
        rows = read_promoters(options.csv)
        self.rows = rows[:: max(len(rows) // 400, 1)] if options.quick else rows
        self.letters = [row["inner"] for row in self.rows]
        self.subject = scoring.Subject(options.checkpoint, scoring.ECOLI)
        self.kept = self.subject.kept(
            options,
            options.output / "sigma70",
            **self.size,
            promoters=scoring.file_digest(options.csv),
            split=self.subject.split,
        )
        self.networks = [f"network_{repeat + 1}" for repeat in range(self.size["repeats"])]
        self.pieces = {
            "promoters": lambda: {
                "promoters": len(self.rows),
                "weights": self.subject.hashes["weights"],
                **self.size,
            },
            **{
                name: lambda seed=seed: self.network(seed)
                for seed, name in enumerate(self.networks)
            },
            "weight_matrix": lambda: {MATRIX: [sigma70_score(each) for each in self.letters]},
            "markov": self.markov,
            "spearman": self.spearman,
        }

    def network(self, seed: int) -> dict:
        """Log-likelihoods with a set of masks of their own."""
        found = log_likelihoods(
            self.subject.model, self.letters, self.size["draws"], seed, self.size["batch"]
        )
        return {"network": found.tolist()}

    def markov(self) -> dict:
        """Log-likelihoods by Markov models."""
        bases = [DNATokenizer().bases(DNATokenizer().encode(each)) for each in self.letters]
        models = self.subject.markov.items()
        return {
            f"order {order}": [float(model.log_probs(each, order).sum()) for each in bases]
            for order, model in models
        }

    def spearman(self) -> dict:
        """Spearman's correlation with log expression in each background, its mean over backgrounds,
        and the noise of the network's score."""
        repeats = [np.array(self.kept[name]["network"]) for name in self.networks]
        scores = {
            "network": np.mean(repeats, 0),
            MATRIX: np.array(self.kept["weight_matrix"][MATRIX]),
        }
        scores |= {name: np.array(self.kept["markov"][name]) for name in MARKOV}
        groups = defaultdict(list)
        for number, row in enumerate(self.rows):
            groups[row["background"]].append(number)
        expression = np.log([float(row["expression"]) for row in self.rows])
        found = {}
        reliability = []
        for name, used in groups.items():

            def measure(score, weight, used=used):
                return measures.spearman(score, expression[used], weight)

            here = {n: s[used] for n, s in scores.items()}
            found[name] = {
                "promoters": len(used),
                **measures.bootstrap(measure, here, np.arange(len(used)), num_resamples=400),
            }
            reliability.append(
                measures.spearman(repeats[0][used], repeats[1][used], np.ones(len(used)))
            )
        values = {
            name: np.array([each[name]["value"] for each in found.values()]) for name in scores
        }
        mean = measures.over_sets(values, (MATRIX, *MARKOV))
        return {"backgrounds": found, "mean": mean, "between_masks": float(np.mean(reliability))}


class HNF4A:
    """The pieces of the saturated promoter."""

    tables = "snvs", "spearman"

    def __init__(self, options) -> None:
        self.rows = read_snvs(options.mpra, options.release)
        self.rows = self.rows[:60] if options.quick else self.rows
        self.positions = np.array([int(row["Pos"]) for row in self.rows])
        self.subject = scoring.Subject(options.checkpoint, options.genome)
        record = self.rows[0]["Chrom"]
        low = self.positions.min() - 1
        high = self.positions.max()
        self.region = record, int(low), int(high)
        self.check_held_out()
        self.kept = self.subject.kept(
            options,
            options.output / "hnf4a",
            snvs=scoring.file_digest(options.mpra),
            region=self.region,
            split=self.subject.split,
        )
        self.pieces = {
            "snvs": self.snvs,
            "network": self.network,
            "markov": self.markov,
            "spearman": self.spearman,
        }

    def check_held_out(self) -> None:
        """Raise ValueError unless the promoter is in the test part of the network."""
        (record, low, high), data = self.region, self.subject.data
        if not any(
            data.names[i.record] == record and i.start <= low and high <= i.end
            for i in data.intervals["test"]
        ):
            raise ValueError(
                f"{record}:{low + 1}-{high} is not in the test part of {self.subject.checkpoint}; "
                f"train it with experiment={EXPERIMENT}"
            )

    def snvs(self) -> dict:
        """How many SNVs there are, and how much of the promoter and its flanks occurs in the
        training part."""
        (record, low, high), to_bases = self.region, DNATokenizer().bases
        around = to_bases(self.subject.genome.window(record, low - CONTEXT, high + CONTEXT))
        covered = KmerSet([to_bases(ids) for ids in self.subject.data.sequences("train")]).covered(
            around
        )
        counts = {
            "snvs": len(self.rows),
            "positions": len(set(self.positions.tolist())),
            "weights": self.subject.hashes["weights"],
        }
        promoter = covered[CONTEXT:-CONTEXT]
        flanks = np.concatenate([covered[:CONTEXT], covered[-CONTEXT:]])
        return counts | {
            "repeated": float(promoter.mean()),
            "repeated_flanks": float(flanks.mean()),
            "split": self.subject.data.split.describe(),
        }

    def network(self) -> dict:
        """LLR by `masked`, the default for SNVs, on both strands."""
        rows = [
            scoring.Variant(row["Chrom"], int(row["Pos"]), row["Ref"], row["Alt"])
            for row in self.rows
        ]
        return {"network": self.subject.scores(self.kept, "network", rows)["LLR"].tolist()}

    def markov(self) -> dict:
        """LLR by Markov models of the training part."""
        where = (
            self.subject.genome,
            self.region[0],
            self.positions - 1,
            np.array(["ACGT".index(row["Alt"]) for row in self.rows]),
        )
        return {
            f"order {order}": measures.markov_llr(model, order, *where).tolist()
            for order, model in self.subject.markov.items()
        }

    def spearman(self) -> dict:
        """Spearman's correlation of each score with the measured effect."""
        pieces = {**self.kept["network"], **self.kept["markov"]}
        scores = {name: np.array(pieces[name]) for name in ("network", *MARKOV)}
        effect = np.array([float(r["Coefficient"]) for r in self.rows])
        return measures.bootstrap(
            lambda score, weight: measures.spearman(score, effect, weight),
            scores,
            self.positions // BLOCK,
            MARKOV,
        )


def read_snvs(path: Path, release: str) -> list[dict[str, str]]:
    """The SNVs of the table in one release of the genome; its deletions are left out."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["Release"] == release]
    if not rows:
        raise ValueError(f"{path} has no row of release {release}; set --release")
    return [row for row in rows if row["Ref"] in "ACGT" and row["Alt"] in "ACGT"]


def train(options) -> Path:
    """The network of human chr20, trained in the output folder; an interrupted run resumes."""
    folder = options.output / EXPERIMENT
    small = (
        [
            "trainer.max_steps=4",
            "trainer.val_check_interval=2",
            "backbone.d_model=16",
            "backbone.n_layers=1",
        ]
        if options.quick
        else []
    )
    folder = folder / "quick" if options.quick else folder
    study.train(folder, [f"experiment={EXPERIMENT}", f"data.path={options.genome}", *small])
    return folder


def table(rows: dict) -> str:
    """Correlations with intervals, from the file that `--collect` writes."""
    if "spearman" not in rows:
        return ""
    return sigma70_table(rows["spearman"]) if "mean" in rows["spearman"] else hnf4a_table(rows)


def compared(found: dict, references: tuple[str, ...], title: str) -> str:
    """A row for each score with its differences to the references."""
    scores = {name: each for name, each in found.items() if isinstance(each, dict)}
    minus = {
        name: [each["minus"].get(other) for other in references] for name, each in scores.items()
    }
    lines = [
        [
            name,
            measures.shown(each),
            *(measures.shown(m, sign=True) if m else "" for m in minus[name]),
        ]
        for name, each in scores.items()
    ]
    return study.markdown(["score", title, *(f"minus {other}" for other in references)], lines)


def sigma70_table(found: dict) -> str:
    """The means over backgrounds, and each background."""
    means = compared(found["mean"], (MATRIX, *MARKOV), "mean Spearman (95 %)")
    said = (
        "Spearman's correlation of the network's scores by two sets of masks: "
        f"{found['between_masks']:.2f} (mean over backgrounds)."
    )
    sets = [
        [name, f"{each['promoters']:,}", *(measures.shown(each[score]) for score in found["mean"])]
        for name, each in found["backgrounds"].items()
    ]
    return (
        f"{means}\n\n{said}\n\n{study.markdown(['background', 'promoters', *found['mean']], sets)}"
    )


def hnf4a_table(rows: dict) -> str:
    """The correlation of each score, and how much of the promoter occurs in the training part."""
    means = compared(rows["spearman"], MARKOV, "Spearman (95 %)")
    counts = rows["snvs"]
    said = (
        f"{counts['snvs']} SNVs at {counts['positions']} positions. Bases in a 24-mer of the "
        f"training part: {counts['repeated']:.0%} of the promoter, "
        f"{counts['repeated_flanks']:.0%} of the {CONTEXT} bases on each side."
    )
    return f"{means}\n\n{said}"


def main() -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/variants/promoters")
    parser.add_argument(
        "--checkpoint", help="with --mpra: a network of chr20 instead of the one that is trained"
    )
    parser.add_argument("--csv", type=Path, help="ecoli_sigma70_minimal.csv.gz")
    parser.add_argument("--mpra", type=Path, help="kircher2019_HNF4A_chr20.tsv.gz, with --genome")
    parser.add_argument("--genome", type=Path, help="chr20 in the release of the table")
    parser.add_argument(
        "--release", default="GRCh37", help="of the rows of the table (default: %(default)s)"
    )
    parser.add_argument(
        "--train", action="store_true", help="with --mpra: train the network of chr20 and stop"
    )
    options = parser.parse_args()
    if (options.csv is None) == (options.mpra is None or options.genome is None) or (
        options.csv and not options.checkpoint
    ):
        parser.error("give --csv and --checkpoint, or --mpra and --genome")
    if options.mpra and not options.checkpoint:
        options.checkpoint = train(options)
    if options.train:
        return
    scoring.run(lambda: Sigma70(options) if options.csv else HNF4A(options), options, table)


if __name__ == "__main__":
    main()
