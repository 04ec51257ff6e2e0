"""The tables of `downstream.py` in Markdown, with the difference of each number from the published
one, and the reasons."""

from collections.abc import Mapping

import study
from multiple_testing import Difference, sentence

from dnadiff.config import Json
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.tables import published_accuracies, published_counterpart

COMMAND = (
    "python scripts/experiments/downstream.py --data FOLDER --write genomic_benchmarks/results"
)
PRETRAINED = "Caduceus MDLM"  # published with this network and this objective
SPENT = (
    "Published networks were pretrained on the whole human genome with about 10^10 tokens, these "
    "with 1.2 * 10^7: the difference reflects "
    "the smaller budget, not which method is better."
)
Compared = tuple[TaskData, Mapping[str, Json]]


class Titles:
    """The names of the models in the tables, and the pairs that are compared."""

    PAIRS = frozenset(
        {
            ("fine-tuned, chr20", "scratch"),
            ("fine-tuned, yeast", "scratch"),
            ("fine-tuned, chr20", "fine-tuned, yeast"),
            ("fine-tuned, chr20", "CNN"),
            ("fine-tuned, chr20", "6-mer logistic regression"),
            ("probe, chr20", "probe, untrained"),
            ("probe, yeast", "probe, untrained"),
            ("probe, chr20", "probe, yeast"),
            ("probe, chr20", "6-mer logistic regression"),
        }
    )

    @staticmethod
    def tuned(network: str) -> str:
        """A fine-tuned network."""
        return network if network.startswith("scratch") else f"fine-tuned, {network}"

    @staticmethod
    def probe(network: str) -> str:
        """A logistic regression on the features of the frozen network."""
        return f"probe, {'untrained' if network == 'scratch' else network}"


def main_table(
    task: str,
    data: TaskData,
    result: Mapping[str, Json],
    tried: Mapping[str, Json],
    shuffled: Mapping[str, Json],
) -> str:
    """The complete results of one task."""
    train, test = len(data.train) + len(data.valid), len(data.test)
    rows = []
    for name, m in result["models"].items():
        outside = m["subsets"].get("outside chr20", {}).get("accuracy")
        inside = m["subsets"].get("inside chr20", {})
        rows.append(
            [
                name,
                with_interval(m),
                seeds(m),
                number(m["metrics"]["mcc"]["value"]),
                number(m["metrics"]["auroc"]["value"]),
                f"{number(inside.get('accuracy'))} ({inside.get('items', 0):,}) / "
                f"{number(outside)}",
                distance(task, name, m["accuracy"]),
            ]
        )
    header = [
        "model",
        "accuracy (95 %)",
        "over seeds",
        "MCC",
        "AUROC",
        "items inside / outside chr20's training part",
        "minus published",
    ]
    text = [
        f"# {task}",
        f"`{COMMAND}`",
        f"{train:,} sequences for training and validation, {test:,} for test; "
        f"{kept_together(data)}.",
    ]
    text += [study.markdown(header, rows)]
    if result["differences"]:
        text += [
            study.markdown(
                ["difference", "accuracy (95 %)", "p (items alone)", "first is"],
                [difference(d) for d in result["differences"]],
            )
        ]
    text += [f"{why(task, train, test)} {SPENT}"]
    if tried:
        lines = [
            f"{name}: " + ", ".join(f"{rate} {accuracy:.3f}" for rate, accuracy in of.items())
            for name, of in tried.items()
        ]
        text += [
            "Learning rates tried, with their accuracy on the validation items: "
            + "; ".join(lines)
            + "."
        ]
    if shuffled:
        chance = max(data.counts()["test"].values()) / test
        lines = [
            f"{'k-mers' if name == 'words' else Titles.tuned(name)} "
            f"{row['metrics']['accuracy']:.3f}"
            for name, row in shuffled.items()
        ]
        text += [
            f"With permuted training labels: {', '.join(lines)}; always the larger class: "
            f"{chance:.3f}."
        ]
    text += [
        f"Test sequences that are also in training or validation, on either strand: {shared(data)}."
    ]
    return "\n\n".join(text)


def probe_table(results: Mapping[str, Compared], counts: Mapping[str, Json]) -> str:
    """Frozen features on every task."""
    rows, every = [], []
    for task, (data, result) in results.items():
        models = result["models"]
        probes = [
            name for name in ("probe, untrained", "probe, yeast", "probe, chr20") if name in models
        ]
        if not probes:
            continue
        cells = [
            with_interval(models[name]) if name in models else ""
            for name in ("probe, untrained", "probe, yeast", "probe, chr20")
        ]
        words = next((with_interval(m) for name, m in models.items() if "mer logistic" in name), "")
        best = models[probes[-1]]["metrics"]
        said = {(d["a"], d["b"]): signed(d) for d in result["differences"]}
        pairs = [(f"probe, {n}", "probe, untrained") for n in ("yeast", "chr20")]
        gains = [said.get(pair, "") for pair in pairs]
        every += [
            Difference(d["difference"], d["low"], d["high"])
            for d in result["differences"]
            if (d["a"], d["b"]) in pairs
        ]
        far = distance(
            task.partition(",")[0], Titles.tuned("chr20"), models[probes[-1]]["accuracy"]
        )
        rows.append(
            [
                task,
                sizes(data, counts.get(task)),
                *cells,
                words,
                *gains,
                number(best["mcc"]["value"]),
                shared(data),
                far,
            ]
        )
    header = [
        "task",
        "train / tested (chance)",
        "untrained",
        "yeast",
        "chr20",
        "longest k-mers",
        "yeast - untrained",
        "chr20 - untrained",
    ]
    lines = [
        "# Linear probes",
        f"`{COMMAND}`",
        "Accuracy of a logistic regression on frozen mean features, five seeds (each draws its own "
        "validation part; kfold: its own folds), "
        "with 95 % intervals over items and seeds. MCC and the last column are for chr20.",
        study.markdown(
            [*header, "MCC", "test also in training or validation", "minus published (fine-tuned)"],
            rows,
        ),
        *([sentence(every)] if every else []),
        "Published numbers are from networks fine-tuned on the complete task, after pretraining on "
        "the human genome with about 10^10 tokens. "
        "Here only a linear layer is trained, on the available part of the task (see the sizes), "
        "after 1.2 * 10^7 tokens, and "
        "another part is tested. Tasks without an entry (GUE, UCI, CNNProm) have no published "
        "number in `published.csv`.",
    ]
    return "\n\n".join(lines)


def fine_tuning_table(results: Mapping[str, Compared], counts: Mapping[str, Json]) -> str:
    """Fine-tuning with one seed and baselines, on every other task."""
    names = (
        "scratch",
        "fine-tuned, chr20",
        "CNN",
        "6-mer logistic regression",
        "4-mer gradient boosting",
        "GC alone",
    )
    rows, reasons = [], []
    for task, (data, result) in results.items():
        models = result["models"]
        if not models:
            continue
        gain = next(
            (
                signed(d)
                for d in result["differences"]
                if (d["a"], d["b"]) == ("fine-tuned, chr20", "scratch")
            ),
            "",
        )
        cells = [
            number(models[name]["accuracy"]) if name in models else ""
            for name in (*names, "length alone")
        ]
        far = [
            d
            for name in ("fine-tuned, chr20", "CNN")
            if name in models and (d := distance(task, name, models[name]["accuracy"]))
        ]
        mcc = (
            number(models["fine-tuned, chr20"]["metrics"]["mcc"]["value"])
            if "fine-tuned, chr20" in models
            else ""
        )
        rows.append([task, sizes(data, counts.get(task)), *cells, gain, mcc, "; ".join(far)])
        if far:
            reasons.append(
                f"- {task}: " + why(task, len(data.train) + len(data.valid), len(data.test))
            )
    header = [
        "task",
        "train / tested (chance)",
        *names,
        "length alone",
        "chr20 - scratch (95 %)",
        "MCC, chr20",
        "minus published",
    ]
    text = ["# Fine-tuning, one seed, and baselines", f"`{COMMAND}`"]
    text += [
        "Accuracy on the test items. One seed, three epochs (two above 1 M bases, one above 2.2 M; "
        "the CNN eight), learning rates chosen on the promoters. "
        "Intervals of differences are over items alone."
    ]
    return "\n\n".join([*text, study.markdown(header, rows), "\n".join(reasons), SPENT])


def why(task: str, train: int, test: int) -> str:
    """Why a number is not comparable with the published one: the sizes of the sets."""
    known = published_accuracies(task)
    if not known:
        return "There are no published numbers for this task."
    return (
        f"Published numbers used {known[0].train:,} training sequences, these {train:,} "
        f"({100 * train / known[0].train:.0f} %); "
        f"here {test:,} sequences are scored, there the official test set."
    )


def distance(task: str, ours: str, accuracy: float) -> str:
    """The difference from the published number, with its name and training size."""
    row = published_counterpart(task, ours, PRETRAINED)
    return (
        f"{accuracy - row.accuracy:+.3f} ({row.model} {row.text}, {row.train:,} training sequences)"
        if row
        else ""
    )


def sizes(data: TaskData, counted: Mapping[str, Json] | None) -> str:
    """Sequences for training and validation, and for test, with the fraction of the larger class
    among the tested ones."""
    folds = counted is not None and counted["protocol"] == "kfold"
    parts = data.counts()
    tested = {
        name: sum(of_part[name] for of_part in parts.values()) if folds else parts["test"][name]
        for name in data.classes
    }
    total = sum(tested.values())
    said = (
        f"{total:,}, five folds" if folds else f"{len(data.train) + len(data.valid):,} / {total:,}"
    )
    return f"{said} ({max(tested.values()) / total:.3f})"


def shared(data: TaskData) -> str:
    """The number of test sequences that are also in training."""
    return f"{data.notes.get('test_sequences_also_in_training', 0):,}"


def kept_together(data: TaskData) -> str:
    """Which sequences the division keeps together."""
    return f"kept together: {data.notes.get('kept_together', 'nothing')}"


def with_interval(m: Mapping[str, Json]) -> str:
    """Accuracy with its interval."""
    return f"{m['accuracy']:.3f} ({m['low']:.3f} to {m['high']:.3f})"


def seeds(m: Mapping[str, Json]) -> str:
    """Smallest and largest accuracy over seeds."""
    each = m["per_seed"]
    return f"{min(each):.3f} to {max(each):.3f}, {len(each)}" if len(each) > 1 else "1"


def difference(d: Mapping[str, Json]) -> list[str]:
    """A row of a table of differences."""
    return [f"{d['a']} - {d['b']}", signed(d), f"{d['p_value']:.4f}", d["verdict"]]


def signed(d: Mapping[str, Json]) -> str:
    """A difference with its interval."""
    return f"{d['difference']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3f}"
