"""Guided design of E. coli promoters: one oracle for the design, other judges for the verdict, at
equal reward calls.

    python scripts/studies/design/promoters.py --tss FILE --sigma70 FILE [--checkpoint ecoli]
    [--output DIR] [--only NAME] [--table] [--collect FILE]

`ecoli_tss` is divided into halves by genome position. The oracle A is the checkpoint fine-tuned on
half a, and the only one that methods and their settings see. The judges are of other kinds and
fitted on other data: a CNN without pretraining (B1) and a 6-mer ridge regression (B2) on half b, a
6-mer ridge regression on `ecoli_sigma70`, and the -10/-35 matrix. A judge counts if its Spearman
correlation on the official test part is above .3. They are read once, by the piece `judge`, after
all designs are finished.

Every method has the same number of reward calls per design; a gradient counts as two. Settings are
chosen by the mean of A over a small grid, on other designs than those that are judged. Ledidi is a
peer from PyPI: its pieces exist if the package is installed.

`--conditional` is a smaller study: a generator that is fine-tuned on half a with LoRA and
conditioned on log(1 + expression), against rewards of A on the same generator without a condition,
at equal network calls. A call is one sequence read by the generator or by A, a gradient counts as
two, and guidance above 1 reads each sequence twice.

The tables of the run folder are derived from data that may not be redistributed; the pieces that
`--collect` writes have no measured value and no sequence. The picture `reward_hacking.png` is drawn
with the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "variants")]
import comparison
import designers
import halves
import judging
import peer_methods as peers
import scoring
import study
from designers import BASELINE, POOL, Settings

import dnadiff
from dnadiff.data.base import run_data
from dnadiff.design.predicted import PredictedReward
from dnadiff.genomics.metrics import memorization
from dnadiff.training.optim import peak_memory

FULL = {
    "designs": 200,
    "tuned": 40,  # designs of each setting of a grid
    "calls": 128,  # reward calls per design
    "draws": 8,  # of the bound on the likelihood
    "finetune": [
        "head=attention",
        "inputs.one_hot=false",
        "seeds=1",
    ],  # unlike the judges, it does not read the bases themselves
    "judge_seeds": 3,
    "judge_epochs": 10,
    "throughput": [100, 1000],  # designs
    "throughput_calls": 8,
}
CONDITIONAL = {  # of the smaller study of a conditional generator
    "designs": 64,
    "calls": 64,  # of a network, for each design
    "finetune": ["seeds=1", "epochs=1", "head_epochs=0", "lr=0.01"],
    "judge_seeds": 1,
    "judge_epochs": 3,
    "steps": 400,  # of the generator
}
QUICK = {
    "designs": 4,
    "tuned": 2,
    "calls": 8,
    "draws": 2,
    "finetune": ["seeds=1", "epochs=1", "batch_size=8", "lr=0.01"],
    "judge_seeds": 1,
    "judge_epochs": 1,
    "throughput": [2, 4],
    "steps": 2,
}
TUNE_SEED = 1
DESIGN_SEED = 2
REAL = "strong promoters"
STORED = 20  # predictions of a judge on the test part, to recognize it
PICTURE = "reward_hacking.png"


class Promoters:
    """The pieces of the study."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.size = {**FULL, **(CONDITIONAL if options.conditional else {})}
        self.size |= QUICK if options.quick else {}
        folder = options.output / "quick" if options.quick else options.output
        inputs = {
            "tss": scoring.file_digest(options.tss),
            "sigma70": scoring.file_digest(options.sigma70),
        }
        self.kept = study.Kept(
            folder,
            {
                **self.size,
                **inputs,
                "checkpoint": str(options.checkpoint),
                "genome": str(options.genome),
            },
            strict=True,
        )
        self.methods = designers.available(options.conditional)
        if not peers.has_ledidi():
            print(peers.MISSING, flush=True)
        self.pieces = {
            "tables": self.tables,
            **({"generator": self.generator} if options.conditional else {}),
            "oracle": self.oracle,
            "judges": self.judges,
            **{f"tune-{name}": partial(self.tune, name) for name in self.methods},
            **{f"design-{name}": partial(self.design, name) for name in self.methods},
            "judge": self.judge,
            **{
                f"throughput-{name}": partial(self.throughput, name)
                for name in self.methods
                if not options.conditional
            },
        }
        self.collected = [name for name in self.pieces if not name.startswith("design-")]

    @cached_property
    def halves(self) -> halves.Halves:
        """The divided table; written to the run folder by `tables`."""
        return halves.Halves(
            halves.read_promoters(self.options.tss), halves.genome_bases(str(self.options.genome))
        )

    @cached_property
    def task(self) -> designers.Task:
        """What the methods design for."""
        run = self.kept.folder / "oracle"
        if "oracle" not in self.kept or not (run / "models").is_dir():
            raise study.NotYet(f"{run} has no fine-tuned model; run it first: --only oracle")
        strong = self.halves.strongest(self.halves.of("a train"))
        reward = designers.TimedReward(PredictedReward(str(run), batch_size=designers.BATCH))
        own = self.kept.folder / "generator"
        model = dnadiff.load(own if self.options.conditional else self.options.checkpoint)
        return designers.Task(model, reward, self.halves.length, strong)

    def table_of(self, half: str) -> Path:
        """The table of a half, written again if it is missing."""
        path = self.kept.folder / f"half_{half}.csv"
        if not path.is_file():
            self.halves.write(self.kept.folder)
        return path

    def tables(self) -> dict:
        """Sizes of the parts, and what was left out."""
        return {
            "counts": self.halves.counts,
            "sha256": self.halves.write(self.kept.folder),
            "length": self.halves.length,
        }

    def generator(self) -> dict:
        """Fine-tune the checkpoint on half a to a generator that is conditioned on activity."""
        rows = self.halves.of("a train") + self.halves.of("a valid")
        table = self.kept.folder / "activity.csv"
        lines = (f"{row.sequence},{np.log1p(row.expression):.5f}" for row in rows)
        table.write_text("\n".join(["sequence,activity", *lines]))
        given = [
            *(f"init_from={self.options.checkpoint}", "data=sequences", f"data.path={table}"),
            *("data.condition_columns=[activity]", f"data.length={self.halves.length}"),
            *("data.stranded=true", "data.batch_size=32", "adapter=lora", "optimizer.lr=0.002"),
            *("callbacks.ema.decay=0.99", "trainer.val_check_interval=100"),
            f"trainer.max_steps={self.size['steps']}",
        ]
        return {"valid_nll": study.train(self.kept.folder / "generator", given)["valid_nll"]}

    def oracle(self) -> dict:
        """Fine-tune A on half a; its metrics on the official test part."""
        run = self.kept.folder / "oracle"
        given = [
            f"checkpoint={self.options.checkpoint}",
            *judging.TSS,
            f"task.path={self.table_of('a')}",
            "scratch=false",
            "average=false",
        ]
        study.command(
            "finetune", *given, *self.size["finetune"], f"hydra.run.dir={run}", "overwrite=true"
        )
        found = study.read_json(run / "finetune.json")["models"]["fine-tuned"]
        return {
            "spearman": {"value": found["spearman"], "low": found["low"], "high": found["high"]},
            "metrics": found["metrics"],
        }

    @cached_property
    def fitted(self) -> dict[str, judging.Judge]:
        """The judges."""
        return judging.judges(
            self.table_of("b"),
            self.options.sigma70,
            self.size["judge_seeds"],
            self.size["judge_epochs"],
        )

    def judges(self) -> dict:
        """Spearman's correlation of each judge on the official test part."""
        rows = self.halves.of("test")
        scores = judging.predicted(self.fitted, [row.sequence for row in rows])
        start = self.halves.start[self.halves.part == "test"]
        found = judging.spearman(scores, np.array([row.expression for row in rows]), start)
        return {
            "spearman": found,
            "first": {name: score[:STORED].tolist() for name, score in scores.items()},
        }

    def tune(self, name: str) -> dict:
        """The mean of A for each setting of the grid; the best one is chosen."""
        method, grid = self.methods[name]
        if len(grid) == 1:
            return {"chosen": grid[0], "grid": []}
        rows = []
        for settings in grid:
            found, price = designers.measured(
                method, self.task, self.size["tuned"], self.size["calls"], TUNE_SEED, settings
            )
            rows.append(
                {
                    "settings": settings,
                    "mean": float(np.mean(found.rewards)),
                    **price,
                }
            )
            print(rows[-1], flush=True)
        return {"chosen": max(rows, key=lambda row: row["mean"])["settings"], "grid": rows}

    def design(self, name: str) -> dict:
        """Designs with the chosen settings, their rewards under A, and the price."""
        settings = self.kept[f"tune-{name}"]["chosen"]
        num = self.size["designs"]
        task = self.task
        task.reward.seen = {} if name == BASELINE else None
        method = self.methods[name][0]
        found, price = designers.measured(
            method, task, num, self.size["calls"], DESIGN_SEED, settings
        )
        pool = sorted((task.reward.seen or {}).items(), key=lambda each: -each[1])[:num]
        task.reward.seen = None
        return {
            "settings": settings,
            "sequences": found.sequences,
            "rewards": found.rewards,
            "groups": found.groups,
            "price": price,
            "pool": [text for text, _ in pool],
        }

    @property
    def designs(self) -> dict[str, dict]:
        """The designs of all methods."""
        return {name: self.kept[f"design-{name}"] for name in self.methods}

    def judged_sequences(self) -> tuple[dict[str, list[str]], list[str]]:
        """The sequences of each row of the tables, and the strong promoters that 6-mers are
        compared with, which are others."""
        rows = {name: row["sequences"] for name, row in self.designs.items()}
        rows[POOL] = self.designs[BASELINE]["pool"]
        strong = self.halves.strongest(self.halves.rows)
        shown = (
            np.random.default_rng(0)
            .permutation(len(strong))[: min(self.size["designs"], len(strong) // 2)]
            .tolist()
        )
        rows[REAL] = [strong[row] for row in shown]
        return rows, [text for row, text in enumerate(strong) if row not in set(shown)]

    def judge(self) -> dict:
        """Everything that the tables show of the designs; needs all of them."""
        sequences, strong = self.judged_sequences()
        first = self.kept["judges"]["first"]
        test = [row.sequence for row in self.halves.of("test")]
        flat = [text for texts in sequences.values() for text in texts]
        ends = np.cumsum([len(texts) for texts in sequences.values()])[:-1]
        scores = judging.predicted(self.fitted, test + flat)
        for name, score in scores.items():
            judging.checked(name, first[name], score[: len(first[name])])
        values = {name: score[len(test) :] for name, score in scores.items()}
        values |= self.measures_of(flat)
        each = {name: np.split(score, ends) for name, score in values.items()}
        found = {}
        for number, (name, texts) in enumerate(sequences.items()):
            groups = self.designs.get(name, {}).get("groups", range(len(texts)))
            ordered = {value: each[value][number] for value in comparison.VALUES}
            found[name] = comparison.described(ordered, groups, texts, strong)
        return {
            "methods": found,
            "minus": comparison.differences(found, comparison.VALUES),
            "price": {name: row["price"] for name, row in self.designs.items()},
        }

    def measures_of(self, letters: list[str]) -> dict[str, np.ndarray]:
        """The reward, the likelihood, the longest match with the genome of the model's training
        part, and the nearest measured promoter."""
        data = run_data(self.task.model.config.get("data"), self.task.model.tokenizer, ())
        data.prepare()
        nearest = comparison.hamming(letters, [row.sequence for row in self.halves.rows]).min(1)
        return {
            comparison.ORACLE: self.task.reward(letters),
            comparison.LOG_PROB: -self.task.model.nll(letters, self.size["draws"]),
            comparison.MATCH: memorization.indexed(data)
            .longest_match(halves.bases_of(letters))
            .astype(float),
            comparison.NEAREST: nearest.astype(float),
        }

    def throughput(self, name: str) -> dict:
        """Speed and peak memory, each number of designs in a process of its own."""
        self.task  # noqa: B018 - raises NotYet in this process if the oracle is missing
        settings = self.kept[f"tune-{name}"]["chosen"]
        runs = []
        for num in self.size["throughput"]:
            file = self.kept.folder / f"throughput-{name}-{num}.tmp"
            given = [
                f"--{key}={getattr(self.options, key)}"
                for key in ("tss", "sigma70", "checkpoint", "genome", "output")
            ]
            given += ["--quick"] if self.options.quick else []
            measure = json.dumps(
                {"method": name, "designs": num, "settings": settings, "file": str(file)}
            )
            subprocess.run(
                [sys.executable, str(Path(__file__).resolve()), *given, f"--measure={measure}"],
                check=True,
            )
            runs.append(study.read_json(file))
            file.unlink()
        return {"runs": runs, "calls": self.size["throughput_calls"]}

    def measure(self, method: str, designs: int, settings: Settings, file: str) -> None:
        """What a process of `throughput` does."""
        _, price = designers.measured(
            self.methods[method][0],
            self.task,
            designs,
            self.size["throughput_calls"],
            DESIGN_SEED,
            settings,
        )
        row = {"designs": designs, **price, "megabytes": peak_memory() / 1e6}
        Path(file).write_text(json.dumps(row), encoding="utf-8")

    def table(self) -> str:
        """The tables of finished pieces; draws the picture."""
        parts = []
        if "judges" in self.kept and "oracle" in self.kept:
            parts.append(comparison.judges_table(self.kept["judges"], self.kept["oracle"]))
        if "judge" in self.kept:
            found = self.kept["judge"]
            judges = self.kept["judges"]
            counted = comparison.counting(judges)
            parts += [comparison.designs_table(found["methods"], key) for key in ("mean", "top")]
            parts.append(comparison.differences_table(found["minus"], counted))
            parts += comparison.peer_tables(found["methods"], counted)
            parts.append(comparison.natural_table(found["methods"], found["price"]))
            comparison.picture(
                found["methods"], counted or [judging.CNN], self.kept.folder / PICTURE
            )
        measured = {
            name: self.kept[f"throughput-{name}"]
            for name in self.methods
            if f"throughput-{name}" in self.kept
        }
        return "\n\n".join([*parts, comparison.throughput_table(measured)] if measured else parts)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = study.arguments(__doc__, "runs/design/promoters")
    parser.add_argument(
        "--tss",
        type=Path,
        required=True,
        help="ecoli_tss_lb.csv.gz: columns sequence, expression, split",
    )
    parser.add_argument(
        "--sigma70",
        type=Path,
        required=True,
        help="ecoli_sigma70_minimal.csv.gz: columns sequence, expression, name",
    )
    parser.add_argument(
        "--checkpoint",
        default="ecoli",
        help="the generative model, which is fine-tuned to the oracle (default: %(default)s)",
    )
    parser.add_argument(
        "--genome", default=scoring.ECOLI, help="genome of the promoters (default: the bundled one)"
    )
    parser.add_argument(
        "--conditional",
        action="store_true",
        help="a generator that is conditioned on activity, at equal network calls",
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    scoring.configure_process()
    made = Promoters(options)
    if options.measure:
        made.measure(**json.loads(options.measure))
        return
    study.work(made.pieces, made.kept, options, made.collected)
    if not options.list:
        print(f"\n{made.table()}")


if __name__ == "__main__":
    main()
