"""Fine-tuning from the bundled models: all sets, few labels, regression, and what head, recipe and
pretraining contribute.

    python scripts/studies/fine_tuning.py --data FOLDER [--output DIR] [--minutes 3] [--only
    NAME] [--list] [--table] [--collect FILE] [--quick]

FOLDER holds `benchmarks/` and `expression/`. Each piece is one `python -m dnadiff.finetune` with
default settings and the changes below; all share one folder of predictions, so that nothing is
trained twice, and an interrupted piece resumes with its next seed. In `set-`, `seeds-`, `features-`
and `values-` networks are trained as the command does by default, without a limit; in `few-` and
`ablation-` each has `--minutes` with its trials, in `head-` four times that, and in `combined-` the
predictor of a seed has them. The baselines without a network have epochs of their own. With
`--minutes 1` all pieces take about 25 hours on one core with AVX-512; several processes with the
same `--output` share them. scripts/gpu/fine_tuning.sh runs them on a GPU. The model is that of the
organism, for others `multi`. Predictions of test items are made by every piece, but settings are
chosen on validation.

Pieces: `combined-TASK` on all sets (the combination, its members, from scratch and boosting, three
seeds), `minutes-TASK-M` on six sets (budgets of M minutes), `set-TASK` on all sets (one seed, all
    baselines, without a combination like all that follow), `seeds-TASK` (three seeds on six
    sets), `features-TASK` on six sets (heads that do not read the bases), `values-TASK`
    (regression, three seeds), `few-TASK-N-KIND` (N training items, three seeds up to 1,000; KIND is
full, lora or probe), `ablation-TASK-CHANGE` on six sets, `head-TASK` on six sets (`head=auto` on
the features; only validation scores are kept), `length-TASK` where the length alone decides (heads
that read it), `overlap-TASK` (the predictions of `set-TASK` inside and outside the pretraining
data; needs `FOLDER/genomes`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import study

from dnadiff.progress import configure_logging
from dnadiff.supervised.intervals import interval_text

REDIVIDED = ("task.redivide=true", "task.cluster_kmer=24")
BENCHMARKS = "benchmarks/genomic_benchmarks/"
GUE = "benchmarks/gue/"
PARTIAL = "benchmarks/gue_partial/"
# name -> (task, file, overrides)
TASKS = {
    "human_nontata_promoters": (
        "human_nontata_promoters",
        BENCHMARKS + "human_nontata_promoters.official_test",
        REDIVIDED,
    ),
    "human_ocr_ensembl": ("human_ocr_ensembl", BENCHMARKS + "human_ocr_ensembl.chr20", ()),
    "human_enhancers_ensembl": (
        "human_enhancers_ensembl",
        BENCHMARKS + "human_enhancers_ensembl.chr20",
        (),
    ),
    "human_ensembl_regulatory": (
        "human_ensembl_regulatory",
        BENCHMARKS + "human_ensembl_regulatory.chr20",
        (),
    ),
    "demo_human_or_worm": ("demo_human_or_worm", BENCHMARKS + "demo_human_or_worm.chr20_chrI", ()),
    "human_ocr_ensembl, sample": (
        "human_ocr_ensembl",
        BENCHMARKS + "human_ocr_ensembl.train_sample1000",
        ("task.folds=5",),
    ),
    "human_ensembl_regulatory, sample": (
        "human_ensembl_regulatory",
        BENCHMARKS + "human_ensembl_regulatory.train_sample1500",
        ("task.folds=5",),
    ),
    **{
        name: (name, f"{GUE}prom_{name}", ())
        for name in ("prom_core_tata", "prom_300_tata", "prom_core_notata", "prom_core_all")
    },
    **{
        name: (name, GUE + name, ())
        for name in ("tf_0", "tf_1", "tf_2", "tf_3", "mouse_2", "mouse_4")
    },
    "uci_splice": ("uci_splice", "benchmarks/uci/splice_junctions", ()),
    "emp_h3": ("emp_h3", PARTIAL + "EMP_H3.dev_test_only", REDIVIDED),
    "emp_h4": ("emp_h4", PARTIAL + "EMP_H4.dev_test_only", REDIVIDED),
    "splice_reconstructed": (
        "splice_reconstructed",
        PARTIAL + "splice_reconstructed.dev_test_only",
        REDIVIDED,
    ),
    "prom_300_all": ("prom_300_all", PARTIAL + "prom_prom_300_all.dev_test_only", REDIVIDED),
    **{
        f"cnnprom_{name}": (
            "csv",
            f"benchmarks/cnnprom/{name}",
            (f"task.name=cnnprom_{name}", "task.stranded=true", "task.cluster_kmer=24"),
        )
        for name in ("ecoli", "bacillus", "arabidopsis_tata", "mouse_tata")
    },
}
FEATURES = "inputs.one_hot=false"  # the head reads the features of the network alone
SIX = ("human_nontata_promoters", "mouse_2", "emp_h3", "uci_splice", "cnnprom_ecoli", "tf_0")
VALUES = {
    "ecoli_tss": "expression/ecoli_tss_lb",
    "ecoli_sigma70": "expression/ecoli_sigma70_minimal",
}
FEW = ("human_nontata_promoters", "mouse_2", "emp_h3", "uci_splice", "cnnprom_ecoli", "ecoli_tss")
# The first that a name begins with; human sets have names of many kinds, and mouse is a mammal.
ORGANISMS = {
    **dict.fromkeys(("cnnprom_ecoli", "ecoli"), "ecoli"),
    **dict.fromkeys(("emp",), "yeast"),
    **dict.fromkeys(("cnnprom_bacillus", "cnnprom_arabidopsis", "demo_human_or_worm"), "multi"),
}
LENGTHS = (
    "human_ensembl_regulatory, sample",
    "human_ensembl_regulatory",
)  # whose classes differ in length
# The genomes of the models that have only one, in FOLDER/genomes.
GENOMES = {
    "ecoli": "ecoli_K12_MG1655",
    "yeast": "scerevisiae_R64-1-1",
    "human_chr20": "GRCh37_chr20",
}
PLAIN = [
    "lr=1e-3",
    "lr_scratch=1e-3",
    "layer_decay=1.0",
    "patience=null",
    "head_epochs=0",
]  # one fixed rate, as published
ABLATION = {
    "plain": ["head=mean", FEATURES, *PLAIN],
    "head": [FEATURES, *PLAIN],
    "recipe": ["head=mean", FEATURES],
    "both": [FEATURES],
    "default": [],  # with a second head on the bases
}
KINDS = {
    "full": ["baselines=all"],
    "lora": ["adapter=lora", "scratch=false"],
    "probe": ["fine_tune=false", "scratch=false", "probe=true"],
}
KINDS_OF_SETS = ("combined", "minutes", "set", "seeds", "features", "length", "values")
MANY_ITEMS = 3000  # from here on, one seed: results depend less on the items that were drawn
LARGE = ("human_nontata_promoters", "ecoli_tss")  # of FEW, with more training items than that
COLUMNS = {  # of tables: the models and their titles
    "6-mer logistic regression": "6-mers",
    "6-mer ridge regression": "6-mers",
    "4-mer gradient boosting": "boosting",
    "boosting": "boosting",
    "CNN": "CNN",
    "-10/-35 weight matrix": "weight matrix",
    "conv head on one-hot": "conv baseline",
    "same head on one-hot": "head on bases",
    "small network on the bases": "head on bases",
    "frozen + logistic regression": "frozen",
    "frozen + ridge regression": "frozen",
    "scratch": "scratch",
    "fine-tuned": "fine-tuned",
    "fine-tuned, 3 seeds averaged": "3 seeds averaged",
    "combination": "combination",
    "combination, 3 seeds averaged": "combination, 3 seeds averaged",
    "fine-tuned + 6-mers, stacked": "stacked with 6-mers",
}
OVERLAP = (
    "fine-tuned",
    "scratch",
)  # whose scores inside and outside the pretraining data are compared
# That the fine-tuned network, or the combination, is compared with.
MEMBER = "best member"
GROUPS = ("best baseline", "scratch", "best head on the bases", MEMBER)
BOOSTING = "+baselines.boosting={_target_: dnadiff.supervised.baselines.KmerBoosting}"
BUDGETS = (0.25, 1, 5)  # minutes of a predictor
# of the defaults: 2 has a second head on the bases; pieces of another version count as not finished
VERSION = 2
FULL = {
    "version": VERSION,
    "tasks": TASKS,
    "seeds": 3,
    "few": (100, 300, 1000, MANY_ITEMS, None),
    "model": None,
    "more": (),
}
QUICK = {
    "version": VERSION,
    "tasks": {name: ("ecoli_coding", None, ("task.max_train=60",)) for name in SIX[:1]},
    **{
        "seeds": 2,
        "few": (40,),
        "model": "ecoli",
        "minutes": None,
        "more": ("epochs=1", "patience=null", "lr=1e-3", "lr_scratch=1e-3"),
    },
}


def run_finetune(output: Path, *arguments: str) -> dict[str, Any]:
    """Run `python -m dnadiff.finetune` and return what it writes to `output`."""
    study.command("finetune", *arguments)
    return study.read_json(output)


class Study:
    """The pieces and their tables.

    Args:
        finetune: runs the command with some arguments, which let it write a file; returns the
            content of this file.
    """

    def __init__(
        self,
        folder: Path,
        size: dict,
        data: Path,
        finetune: Callable[..., dict[str, Any]] = run_finetune,
    ) -> None:
        self.finetune = finetune
        self.kept = study.Kept(folder, size, strict=True)
        self.size = size
        self.folder = folder
        self.data = data
        self.tasks = {
            **size["tasks"],
            **({} if size is QUICK else {name: (name, path, ()) for name, path in VALUES.items()}),
        }
        six = [t for t in SIX if t in self.tasks]
        sets = list(size["tasks"])
        several = f"seeds={size['seeds']}"
        best = ["baselines=all"]
        limit = [] if size["minutes"] is None else [f"minutes={size['minutes']}"]
        runs = {f"set-{t}": (t, ["seeds=1", *best]) for t in sets}
        runs |= {
            f"values-{t}": (t, [several, *best, "baselines=ecoli_promoter"])
            for t in VALUES
            if t in self.tasks
        }
        runs |= {f"combined-{t}": (t, [several, "combine=true", BOOSTING, *limit]) for t in sets}
        runs |= {
            f"minutes-{t}-{m}": (t, ["seeds=1", "combine=true", "scratch=false", f"minutes={m}"])
            for t in six
            for m in BUDGETS
            if limit
        }
        runs |= {f"features-{t}": (t, ["seeds=1", FEATURES]) for t in six}
        few = [
            (n, t)
            for n in size["few"]
            for t in FEW
            if t in self.tasks and (n != MANY_ITEMS or t in LARGE)
        ]
        runs |= {
            f"few-{t}-{n or 'all'}-{k}": (t, [*self.few(t, n, k), *limit])
            for n, t in few
            for k in KINDS
        }
        runs |= {
            f"ablation-{t}-{c}": (t, ["seeds=1", *changes, *limit])
            for t in six
            for c, changes in ABLATION.items()
        }
        runs |= {f"seeds-{t}": (t, [several, *best]) for t in six}
        runs |= {
            f"length-{t}": (t, ["seeds=1", *best, "inputs.length=true", "scratch=false"])
            for t in LENGTHS
            if t in sets
        }
        genomes = (
            {}
            if size is QUICK
            else {
                t: data / "genomes" / f"{GENOMES[m]}.fa.gz"
                for t in sets
                if (m := self.model(t)) in GENOMES
            }
        )
        self.pieces: dict[str, study.Piece] = {f"head-{t}": lambda t=t: self.head(t) for t in six}
        compared = {
            t: ["seeds=1", *best, f"pretraining_overlap='{genome}'"]
            for t, genome in genomes.items()
        }
        self.pieces |= {
            f"overlap-{t}": lambda t=t, more=more: self.subsets(t, more)
            for t, more in compared.items()
        }
        self.pieces |= {
            name: lambda n=name, t=t, more=more: self.run(n, t, more)
            for name, (t, more) in runs.items()
        }

    def few(self, task: str, number: int | None, kind: str) -> list[str]:
        """The arguments for a number of training items."""
        seeds = 1 if number is None or number >= MANY_ITEMS else self.size["seeds"]
        return [f"seeds={seeds}", f"train_items={number or 'null'}", *KINDS[kind]]

    def model(self, task: str) -> str:
        """The bundled model to start from."""
        return self.size["model"] or next(
            (name for start, name in ORGANISMS.items() if task.startswith(start)), "human_chr20"
        )

    def command(self, piece: str, task: str, more: Sequence[str]) -> dict[str, Any]:
        """Run `finetune` and return what it writes."""
        reader, file, overrides = self.tasks[task]
        output = self.folder / "runs" / piece / "finetune.json"
        path = [] if file is None else [f"task.path='{self.data / file}.csv.gz'"]
        # Also of tasks whose default is cross-validation, with ten networks for each row.
        fixed = [] if reader == "ecoli_coding" else ["task.folds=null"]
        arguments = [
            f"checkpoint={self.model(task)}",
            f"task={reader}",
            *path,
            *overrides,
            *fixed,
            "combine=false",
            *more,
            *self.size["more"],
        ]
        arguments = list(
            {argument.partition("=")[0]: argument for argument in arguments}.values()
        )  # the last of each key counts
        where = [
            f"results='{output.parents[2]}/results'",
            f"hydra.run.dir='{output.parent}'",
            "save_models=[]",
            "overwrite=true",
        ]
        return self.finetune(output, *arguments, *where) | {
            "arguments": [argument.replace(str(self.data), "DATA") for argument in arguments]
        }

    def head(self, task: str) -> dict[str, Any]:
        """The validation scores of every head that fits."""
        minutes = (
            [] if self.size["minutes"] is None else [f"minutes={4 * self.size['minutes']}"]
        )  # the heads share them
        result = self.command(
            f"head-{task}", task, ["seeds=1", "head=auto", FEATURES, "scratch=false", *minutes]
        )
        return {
            "tried": result["models"]["fine-tuned"]["found"][0][0]["tried"],
            "arguments": result["arguments"],
        }

    def subsets(self, task: str, more: Sequence[str]) -> dict[str, Any]:
        """The scores inside and outside the pretraining data."""
        result = self.command(f"overlap-{task}", task, more)
        subsets = {name: m["subsets"] for name, m in result["models"].items() if name in OVERLAP}
        return {
            "metric": result["task"]["metric"],
            "subsets": subsets,
            "arguments": result["arguments"],
        }

    def run(self, piece: str, task: str, more: Sequence[str]) -> dict[str, Any]:
        """The scores and differences of one command."""
        result = self.command(piece, task, more)
        metric = result["task"]["metric"]
        models = {
            name: {
                "value": m[metric],
                **{key: m[key] for key in ("low", "high", "per_seed", "seconds")},
                "calibration_error": m.get("metrics", {}).get("calibration_error", {}).get("value"),
            }
            for name, m in result["models"].items()
        }
        outside = outside_training(result)
        differences = [
            {key: value for key, value in one.items() if key != "subsets"}
            for one in result["differences"]
        ]
        keys = ("task", "warning", "arguments", "predictor", "members")
        kept = {key: result.get(key) for key in keys} | {
            "models": models,
            "differences": differences,
        }
        return kept | ({"outside_training": outside} if outside else {})

    def table(self) -> str:
        """The tables of the finished pieces."""
        parts = [
            self.head_table(),
            *map(self.comparison, KINDS_OF_SETS),
            self.training_overlap(),
            self.few_table(),
            self.ablation(),
            self.overlap(),
        ]
        return "\n\n".join(filter(None, parts))

    def finished(self, kind: str) -> dict[str, dict[str, Any]]:
        """The rest of the name -> result of the finished pieces of one kind."""
        return {
            n.removeprefix(f"{kind}-"): self.kept[n]
            for n in self.pieces
            if n.startswith(f"{kind}-") and n in self.kept
        }

    def head_table(self) -> str:
        """Validation scores of the heads."""
        found = {
            task: {one["head"]: one for one in row["tried"]}
            for task, row in self.finished("head").items()
        }
        heads = list(dict.fromkeys(head for row in found.values() for head in row))
        rows = [
            [
                t,
                *(
                    f"{row[h]['valid_accuracy']:.3f} ({row[h]['valid_loss']:.3f})"
                    if h in row
                    else ""
                    for h in heads
                ),
            ]
            for t, row in found.items()
        ]
        return study.markdown(["validation accuracy (loss)", *heads], rows) if rows else ""

    def comparison(self, kind: str) -> str:
        """One row for each set: the models, and the fine-tuned network minus the best of each group
        of others."""
        found = self.finished(kind)
        names = [name for name in COLUMNS if any(name in row["models"] for row in found.values())]
        rows = []
        for task, row in found.items():
            cells = [
                f"{row['models'][name]['value']:.3f}" if name in row["models"] else ""
                for name in names
            ]
            size = f"{sum(row['task']['items']['train'].values()):,} / {row['task']['tested']:,}"
            metric = "" if row["task"]["metric"] == "accuracy" else f" ({row['task']['metric']})"
            rows.append(
                [
                    f"`{task}`{metric}",
                    size,
                    *cells,
                    *(best_of_group(row, group) for group in GROUPS),
                ]
            )
        header = [
            kind,
            "train / test",
            *(COLUMNS[name] for name in names),
            *(f"minus {group}" for group in GROUPS),
        ]
        return study.markdown(header, rows) + "\n\n" + summary(found) if rows else ""

    def training_overlap(self) -> str:
        """Accuracies on the test items of each set that do not overlap its training part, where
        some do."""
        outside = {
            task: row["outside_training"]
            for task, row in self.finished("set").items()
            if row.get("outside_training")
        }
        rows = []
        for task, row in outside.items():
            inside, *scores = (
                row["inside"],
                *(f"{row['models'][name]['value']:.3f}" for name in OVERLAP),
            )
            size = f"{inside['items']:,} / {row['items']:,}"
            rows.append(
                [
                    f"`{task}`",
                    size,
                    f"{inside['value']:.3f}",
                    *scores,
                    *(best_of_group(row, group) for group in GROUPS),
                ]
            )
        header = [
            "fine-tuned, inside",
            *(f"{name}, outside" for name in OVERLAP),
            *(f"minus {group}" for group in GROUPS),
        ]
        return (
            study.markdown(["set", "test items inside / outside", *header], rows)
            + "\n\n"
            + summary(outside)
            if rows
            else ""
        )

    def few_table(self) -> str:
        """The models by the number of training items."""
        merged: dict[tuple[str, str], dict[str, str]] = {}
        for name, row in self.finished("few").items():
            task, number, kind = name.rsplit("-", 2)
            for model, m in row["models"].items():
                title = "LoRA" if kind == "lora" and model == "fine-tuned" else COLUMNS.get(model)
                if title is not None:
                    spread = (
                        f" ± {(max(m['per_seed']) - min(m['per_seed'])) / 2:.3f}"
                        if len(m["per_seed"]) > 1
                        else ""
                    )
                    merged.setdefault((task, title), {}).setdefault(
                        number, f"{m['value']:.3f}{spread}"
                    )  # of `full`, which is first
        numbers = [str(n or "all") for n in self.size["few"]]
        titles = ["fine-tuned", "LoRA", "frozen", "scratch", *dict.fromkeys(COLUMNS.values())]
        rows = [
            [f"`{task}`", title, *(row.get(n, "") for n in numbers)]
            for (task, title), row in merged.items()
        ]
        rows.sort(
            key=lambda row: (
                FEW.index(row[0].strip("`")) if row[0].strip("`") in FEW else 0,
                titles.index(row[1]),
            )
        )
        return (
            study.markdown(
                ["set", "model", *("all" if n is None else f"{n:,}" for n in self.size["few"])],
                rows,
            )
            if rows
            else ""
        )

    def ablation(self) -> str:
        """Fine-tuned and from scratch, with each change."""
        found = self.finished("ablation")
        rows = []
        for task in dict.fromkeys(name.rpartition("-")[0] for name in found):
            for model in ("scratch", "fine-tuned"):
                each = [
                    found.get(f"{task}-{change}", {}).get("models", {}).get(model)
                    for change in ABLATION
                ]
                rows.append(
                    [
                        task,
                        model,
                        *(
                            f"{m['value']:.3f} ({m['low']:.3f} to {m['high']:.3f})" if m else ""
                            for m in each
                        ),
                    ]
                )
        return study.markdown(["set", "network", *ABLATION], rows) if rows else ""

    def overlap(self) -> str:
        """Scores of test items inside and outside the pretraining data."""
        rows = []
        for task, row in self.finished("overlap").items():
            parts = [
                [row["subsets"][name][f"{part} pretraining"] for name in OVERLAP]
                for part in ("inside", "outside")
            ]
            scores = [
                f"{m[row['metric']]:.3f}" if m["items"] else "-" for part in parts for m in part
            ]
            rows.append(
                [f"`{task}`", " / ".join(f"{part[0]['items']:,}" for part in parts), *scores]
            )
        header = [
            f"{COLUMNS.get(name, name)}, {part}"
            for part in ("inside", "outside")
            for name in OVERLAP
        ]
        return study.markdown(["set", "test items inside / outside", *header], rows) if rows else ""


def outside_training(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scores and differences on the test items that do not overlap the training part; None if
    all are outside."""
    metric = result["task"]["metric"]
    name = "outside training"
    models = {
        model: m["subsets"]
        for model, m in result["models"].items()
        if m.get("subsets", {}).get(name, {}).get("items")
    }
    if "fine-tuned" not in models:
        return None
    inside = models["fine-tuned"]["inside training"]
    return {
        "items": models["fine-tuned"][name]["items"],
        "inside": {"items": inside["items"], "value": inside[metric]},  # of the fine-tuned network
        "models": {model: {"value": m[name][metric]} for model, m in models.items()},
        "differences": [
            {"a": d["a"], "b": d["b"], **d["subsets"][name]} for d in result["differences"]
        ],
    }


def against_best(
    row: Mapping[str, Any], groups: Sequence[str]
) -> tuple[str, Mapping[str, Any] | None]:
    """The model of some groups with the best score, and the difference of the predictor from it:
    of the fine-tuned network, or the combination."""
    predictor, members = row.get("predictor") or "fine-tuned", row.get("members") or ()
    known = {
        d["b"]: d for d in row["differences"] if d["a"] == predictor and d["b"] in row["models"]
    }
    others = {
        name: d
        for name, d in known.items()
        if group_of(name) in groups or (MEMBER in groups and name in members)
    }
    if not others:
        return "", None
    best = max(others, key=lambda name: row["models"][name]["value"])
    return best, others[best]


def group_of(model: str) -> str:
    """What a model is compared with the fine-tuned network as."""
    return (
        model
        if model in ("scratch", "fine-tuned")
        else "best head on the bases"
        if "one-hot" in model or "bases" in model
        else "best baseline"
    )


def best_of_group(row: Mapping[str, Any], group: str) -> str:
    """The difference from the best of a group, with its name if the group has several."""
    name, difference = against_best(row, [group])
    title = COLUMNS.get(
        name, name.replace(" logistic regression", "s").replace(" ridge regression", "s")
    )
    return shown(difference) + (f", {title}" if difference and group != "scratch" else "")


def shown(difference: Mapping[str, Any] | None) -> str:
    """A difference with its interval."""
    if not difference:
        return ""
    ends = interval_text(difference, "{:+.3f}").replace("..", "to")
    return f"{difference['difference']:+.3f} ({ends})"


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """How often the fine-tuned network is better, worse, and more than .005 worse than the best of
    other models."""
    lines = []
    for title, groups in {
        **{group: [group] for group in GROUPS},
        "best baseline, scratch included": GROUPS[:2],
    }.items():
        differences = [
            difference for row in found.values() if (difference := against_best(row, groups)[1])
        ]
        better = sum((d["low"] or 0) > 0 for d in differences)
        worse = sum((d["high"] or 0) < 0 for d in differences)
        behind = sum(
            round(d["difference"], 6) < -0.005 for d in differences
        )  # 124 of 200 minus 125 of 200 is not exactly -.005
        counts = (
            f"better with an interval on {better}, worse on {worse}, more than .005 below on "
            f"{behind}"
        )
        lines += [f"{title}: of {len(differences)} {counts}"] if differences else []
    return "Compared with the " + "; ".join(lines) + "."


def main() -> None:
    parser = study.arguments(__doc__, "runs/fine_tuning")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        help="folder with benchmarks/ and expression/",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=3,
        help="of each trained network, with its trials (default: %(default)g)",
    )
    options = parser.parse_args()
    configure_logging()
    quick = options.quick
    it = Study(
        options.output / "quick" if quick else options.output,
        QUICK if quick else FULL | {"minutes": options.minutes},
        options.data,
    )
    study.work(it.pieces, it.kept, options)
    if not options.list:
        print("\n" + it.table())


if __name__ == "__main__":
    main()
