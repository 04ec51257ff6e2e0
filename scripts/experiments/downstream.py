"""The downstream study: the effect of pretraining on classification, compared with k-mer counts, a
CNN and published numbers.

    python scripts/experiments/downstream.py --data FOLDER [--output DIR] [--only NAME] [--list]
    [--table] [--write DIR] [--quick]

FOLDER holds `genomes/` and `benchmarks/`. Two 64x4 Caduceus are pretrained in the same way (mdlm,
12 M tokens, windows of 512): on yeast, whose genome contains none of the sequences of most tasks (a
clean control), and on human chr20. Each piece is one model with one seed, or a few cheap models.
Several processes may share one DIR; each skips the pieces that another is working on.

`human_nontata_promoters`: the complete official test set, 9,034 sequences, divided 80/20 so that
    sequences that share a 24-mer stay together (promoters overlap). Three learning rates for each
    network, chosen on validation with three epochs instead of eight and a separate seed; three
seeds. All available tasks: linear probes with five seeds (`task.protocol=paper`: each draws its own
validation part) and baselines. All except the promoters of CNNProm and the samples of a task:
fine-tuning of the chr20 network and of an untrained one with one seed, three epochs (two above 1 M
bases, one above 2.2 M) and the learning rates chosen on the promoters. If only a part of a task is
available, the tables give its size next to the published number.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import study
import torch
from downstream_tables import Titles, fine_tuning_table, main_table, probe_table
from predictions import Predictions, task_data

from dnadiff.backbone.base import Backbone
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.progress import configure_logging
from dnadiff.supervised import baselines, overlap
from dnadiff.supervised.baselines import LinearProbe
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.networks import FineTunedModel, PublishedCNN
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded, build_denoiser

MAIN = "human_nontata_promoters"
REDIVIDED = ("task.redivide=true", "task.cluster_kmer=24")
BENCHMARKS, GUE, PARTIAL = (
    "benchmarks/genomic_benchmarks/",
    "benchmarks/gue/",
    "benchmarks/gue_partial/",
)
# name -> (task, file, overrides)
TASKS = {
    MAIN: (MAIN, BENCHMARKS + "human_nontata_promoters.official_test", REDIVIDED),
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
        ("task.protocol=kfold",),
    ),
    "human_ensembl_regulatory, sample": (
        "human_ensembl_regulatory",
        BENCHMARKS + "human_ensembl_regulatory.train_sample1500",
        ("task.protocol=kfold",),
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
FULL = {
    "tasks": TASKS,
    "pretraining": {
        "yeast": ["data=fasta", "data.path={data}/genomes/scerevisiae_R64-1-1.fa.gz"],
        "chr20": ["data=fasta", "data/split=chr20", "data.path={data}/genomes/GRCh37_chr20.fa.gz"],
    },
    "network": [
        "backbone=caduceus",
        "backbone.d_model=64",
        "backbone.n_layers=4",
        "objective=mdlm",
    ],
    "windows": ["data.length=512", "data.batch_size=16"],
    **{
        "steps": 1464,
        "rates": (5e-4, 1e-3, 2e-3),
        "seeds": (1, 2, 3),
        "probe_seeds": (1, 2, 3, 4, 5),
        "words": (3, 4, 5, 6),
    },
    **{
        "batch": 32,
        "epochs": 8,
        "tuning_epochs": 3,
        "few": {1_000_000: 3, 2_200_000: 2, 1_000_000_000: 1},
    },
}
QUICK = {
    "tasks": {
        MAIN: ("ecoli_coding", None, ("task.max_train=40",)),
        "uci_splice": ("ecoli_coding", None, ("task.max_train=60",)),
    },
    "pretraining": {
        name: ["data=ecoli", f"seed={number}"] for number, name in enumerate(("yeast", "chr20"), 1)
    },
    "network": [
        "backbone=caduceus",
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "objective=mdlm",
    ],
    "windows": ["data.length=128", "data.batch_size=4", "data.max_valid_windows=8"],
    **{"steps": 4, "rates": (1e-3, 2e-3), "seeds": (1, 2), "probe_seeds": (1, 2), "words": (3, 4)},
    **{"batch": 16, "epochs": 2, "tuning_epochs": 1, "few": {1_000_000_000: 1}},
}


class Study:
    """The pieces, the most important first.

    Attributes:
        networks: name of a network -> the run whose configuration describes it; the names of
            untrained ones begin with `scratch`.
    """

    networks = {"scratch": "chr20", "yeast": "yeast", "chr20": "chr20"}  # noqa: RUF012

    def __init__(self, folder: Path, size: dict, data: Path) -> None:
        self.kept, self.size, self.folder, self.data = study.Kept(folder, size), size, folder, data
        self.predictions, self.tokenizer = Predictions(folder / "predictions"), DNATokenizer()
        self.read: dict[tuple, tuple] = {}
        self.pieces = self.all_pieces()

    def all_pieces(self) -> dict:
        """Name to function."""
        size = self.size
        tasks, main = (
            list(size["tasks"]),
            {f"run-{n}-s{s}": (n, s) for s in size["seeds"] for n in self.networks},
        )
        pieces = {
            f"pretrain-{name}": lambda n=name: self.pretrain(n) for name in size["pretraining"]
        }
        pieces |= {
            f"base-{MAIN}": lambda: self.baselines(MAIN),
            f"cnn-{MAIN}-s1": lambda: self.cnn(MAIN, 1),
        }
        pieces |= {
            f"tune-{n}-{r:g}": lambda n=n, r=r: self.tune(n, r)
            for n in self.networks
            for r in size["rates"]
        }
        pieces |= {
            name: lambda n=n, s=s: self.fine_tuned(MAIN, n, s, self.size["epochs"])
            for name, (n, s) in main.items()
        }
        pieces |= {f"cnn-{MAIN}-s{s}": lambda s=s: self.cnn(MAIN, s) for s in size["seeds"][1:]}
        pieces |= {
            f"probe-{t}-{n}": lambda t=t, n=n: self.probe(t, n)
            for t in tasks
            for n in ("chr20", "yeast", "scratch")
        }
        pieces |= {f"inside-{n}": lambda n=n: self.inside(n) for n in size["pretraining"]} | {
            "counts": self.counts
        }
        pieces |= {f"permuted-{n}": lambda n=n: self.permuted(n) for n in ("words", "chr20")}
        pieces |= {f"base-{t}": lambda t=t: self.baselines(t) for t in tasks[1:]}
        pieces |= {
            f"cnn-{t}-s1": lambda t=t: self.cnn(t, 1)
            for t in tasks[1:]
            if not self.is_probed_alone(t)
        }
        some = [
            (t, n) for t in tasks[1:] for n in ("chr20", "scratch") if not self.is_probed_alone(t)
        ]
        pieces |= {
            f"full-{t}-{n}": lambda t=t, n=n: self.fine_tuned(t, n, 1, None) for t, n in some
        }
        return pieces

    @staticmethod
    def is_probed_alone(task: str) -> bool:
        """Whether the task is used for probes only: a sample of a few hundred sequences, or
        CNNProm."""
        return task.endswith(", sample") or task.startswith("cnnprom")

    def task(self, name: str, protocol: str | None = None) -> tuple:
        """The task and its protocol; `protocol` replaces `fixed`."""
        task, file, overrides = self.size["tasks"][name]
        path = [] if file is None else [f"task.path='{self.data / file}.csv.gz'"]
        if (name, protocol) not in self.read:
            data, how = task_data([f"task={task}", *path, *overrides], self.tokenizer)
            if protocol and how.name == "fixed":
                data, how = task_data(
                    [f"task={task}", *path, *overrides, f"task.protocol={protocol}"], self.tokenizer
                )
            self.read = {
                (name, protocol): (data, how)
            }  # keep only the last one, to limit the memory
        return self.read[name, protocol]

    def pretrain(self, name: str) -> dict:
        """Pretrain a network on a genome."""
        data = [argument.format(data=self.data) for argument in self.size["pretraining"][name]]
        steps = [
            f"trainer.max_steps={self.size['steps']}",
            f"trainer.val_check_interval={max(self.size['steps'] // 6, 2)}",
        ]
        return study.train(
            self.folder / "runs" / name,
            [*data, *self.size["windows"], *self.size["network"], *steps],
        )

    def loaded(self, run: str) -> Loaded:
        """A pretrained network.

        Raises:
            NotYet: if it has not finished.
        """
        if f"pretrain-{run}" not in self.kept:
            raise study.NotYet(
                f"piece pretrain-{run} is not finished; it comes first: --only pretrain-{run}"
            )
        return checkpoint.load(self.folder / "runs" / run)

    def backbone(self, name: str) -> Callable[[int], Backbone]:
        """A function that returns the network for a seed."""
        loaded = self.loaded(self.networks[name])

        def fresh(seed: int) -> Backbone:
            if not name.startswith("scratch"):
                return copy.deepcopy(loaded.denoiser.backbone)
            torch.manual_seed(hash64(seed, "scratch") % 2**63)
            return build_denoiser(loaded.config, loaded.tokenizer)[0].backbone

        return fresh

    def network(self, name: str, rate: float, epochs: int) -> FineTunedModel:
        """The network with a linear layer, to be fine-tuned."""
        settings = {
            "warmup": 0.01,
            "epochs": epochs,
            "batch_size": self.size["batch"],
            "trainer": {"accelerator": "cpu", "devices": 1},
        }
        return FineTunedModel(self.backbone(name), rate, about={"network": name}, **settings)

    def tune(self, name: str, rate: float) -> dict:
        """The validation score of a learning rate; the test items are not used."""
        model = self.network(name, rate, self.size["tuning_epochs"])
        model.fit(self.task(MAIN)[0], 0)
        return {
            "valid_accuracy": model.valid_score.accuracy,
            "valid_loss": -model.valid_score.negative_loss,
            **model.fit_info,
        }

    def rate(self, name: str) -> tuple[float, dict]:
        """The best learning rate of a network, and the accuracy of each."""
        tried = {rate: self.kept[f"tune-{name}-{rate:g}"] for rate in self.size["rates"]}
        best = max(
            tried, key=lambda rate: (tried[rate]["valid_accuracy"], -tried[rate]["valid_loss"])
        )
        return best, {f"{rate:g}": row["valid_accuracy"] for rate, row in tried.items()}

    def fine_tuned(self, task: str, name: str, seed: int, epochs: int | None) -> dict:
        """Fine-tune one network with one seed; with `epochs` None the size of the task decides how
        long."""
        (rate, tried), (data, how) = self.rate(name), self.task(task)
        bases = int(data.train.lengths.sum())
        epochs = epochs or next(
            number for most, number in self.size["few"].items() if bases <= most
        )
        row = self.predictions.add(
            task, Titles.tuned(name), seed, data, self.network(name, rate, epochs), how
        )
        return row | {"rates_tried": tried}

    def cnn(self, task: str, seed: int) -> dict:
        """The published CNN."""
        data, how = self.task(task)
        model = PublishedCNN(
            self.tokenizer,
            epochs=self.size["epochs"],
            batch_size=32,
            warmup=0.01,
            trainer={"accelerator": "cpu"},
        )
        return self.predictions.add(task, "CNN", seed, data, model, how)

    def baselines(self, task: str) -> dict:
        """Length, composition and k-mer counts."""
        data, how = self.task(task)
        models = {
            "length alone": baselines.LengthAlone(self.tokenizer),
            "GC alone": baselines.GCAlone(self.tokenizer),
        }
        models |= {
            f"{k}-mer logistic regression": baselines.KmerLogistic(self.tokenizer, k)
            for k in self.size["words"]
        }
        models |= {"4-mer gradient boosting": baselines.KmerBoosting(self.tokenizer, 4)}
        return {
            name: self.predictions.add(task, name, 1, data, model, how)
            for name, model in models.items()
        }

    def probe(self, task: str, name: str) -> dict:
        """Logistic regression on frozen features; each seed draws its own validation part."""
        data, how = self.task(task, protocol="paper")
        model = LinearProbe(
            self.backbone(name), random=name.startswith("scratch"), about={"network": name}
        )
        return {
            f"s{s}": self.predictions.add(task, Titles.probe(name), s, data, model, how)
            for s in self.size["probe_seeds"]
        }

    def permuted(self, name: str) -> dict:
        """Training and validation labels permuted: the accuracy on the test items is then
        chance."""
        data, how = self.task(MAIN)
        generator = torch.Generator().manual_seed(5)

        def shuffled(items: Items) -> Items:
            return replace(
                items, labels=items.labels[torch.randperm(len(items), generator=generator)]
            )

        data = replace(data, train=shuffled(data.train), valid=shuffled(data.valid))
        words = baselines.KmerLogistic(self.tokenizer, max(self.size["words"]))
        model = (
            words
            if name == "words"
            else self.network(name, self.rate(name)[0], self.size["tuning_epochs"] // 2 or 1)
        )
        return self.predictions.add(f"{MAIN}, labels permuted", name, 1, data, model, how)

    def counts(self) -> dict:
        """Sizes, test sequences that are also in training or validation, and differences from the
        known counts."""
        rows = {}
        for name in self.size["tasks"]:
            data, how = self.task(name)
            parts = {part: sum(of_class.values()) for part, of_class in data.counts().items()}
            rows[name] = {
                "classes": data.classes,
                "parts": parts,
                "protocol": how.name,
                "tested": len(how.tested(data)),
                **data.notes,
            }
        return rows

    def inside(self, name: str) -> dict:
        """Which items of each task overlap the pretraining data of a network."""
        kmers, rows = overlap.pretraining_kmers(self.loaded(name).config, self.tokenizer), {}
        for task in self.size["tasks"]:
            data, how = self.task(task)
            shares = overlap.overlap_fractions(how.tested(data), kmers, self.tokenizer)
            rows[task] = {
                "inside": int((shares >= overlap.MIN_OVERLAP).sum()),
                "tested": len(shares),
                "shares": shares.round(4).tolist(),
            }
        return {"words": len(kmers), "tasks": rows}

    def subsets(self, task: str, name: str = "chr20") -> dict[str, np.ndarray]:
        """The items inside and outside the pretraining data of a network, if known."""
        if f"inside-{name}" not in self.kept:
            return {}
        found = self.kept[f"inside-{name}"]["tasks"].get(task)
        if found is None:  # written before this task was added to the study
            return {}
        shares = np.array(found["shares"])
        return {
            f"inside {name}": shares >= overlap.MIN_OVERLAP,
            f"outside {name}": shares < overlap.MIN_OVERLAP,
        }

    def compared(
        self, task: str, models: list[str], seeds: tuple[int, ...], protocol: str | None = None
    ) -> tuple[TaskData, dict]:
        """The finished results of these models on a task."""
        data, how = self.task(task, protocol)
        pairs = [p for p in itertools.permutations(models, 2) if p in Titles.PAIRS]
        return data, dict(
            self.predictions.compared(
                task, data, how, models, seeds, pairs=pairs, subsets=self.subsets(task)
            )
        )

    def counted(self) -> dict:
        """The result of the piece `counts`, if finished."""
        return self.kept["counts"] if "counts" in self.kept else {}  # noqa: SIM401 (Kept has no get)

    def tables(self) -> dict[str, str]:
        """File name -> table of the finished pieces."""
        words = [f"{k}-mer logistic regression" for k in self.size["words"]]
        plain = ["length alone", "GC alone", *words, "4-mer gradient boosting", "CNN"]
        probes, tuned = (
            [Titles.probe(n) for n in self.networks],
            [Titles.tuned(n) for n in self.networks],
        )
        main = self.compared(MAIN, [*plain, *probes, *tuned], self.size["probe_seeds"])
        rest = [
            task for task in self.size["tasks"] if task != MAIN and not self.is_probed_alone(task)
        ]
        shuffled = {
            n: self.kept[f"permuted-{n}"]
            for n in ("words", "chr20")
            if f"permuted-{n}" in self.kept
        }
        tried = {
            n: self.rate(n)[1]
            for n in self.networks
            if all(f"tune-{n}-{r:g}" in self.kept for r in self.size["rates"])
        }
        every = {
            task: self.compared(task, [*probes, words[-1]], self.size["probe_seeds"], "paper")
            for task in self.size["tasks"]
        }
        counts = self.counted()
        return {
            f"{MAIN}.md": main_table(MAIN, *main, tried, shuffled),
            "linear_probes.md": probe_table(every, counts),
            "fine_tuning.md": fine_tuning_table(
                {task: self.compared(task, [*plain, *tuned], (1,)) for task in rest}, counts
            ),
        }


def main() -> None:
    parser = study.arguments(__doc__, "runs/downstream")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        help="folder with genomes/ and benchmarks/ (default: %(default)s)",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write the tables there, such as genomic_benchmarks/results",
    )
    options = parser.parse_args()
    configure_logging()
    it = Study(
        options.output / "quick" if options.quick else options.output,
        QUICK if options.quick else FULL,
        options.data,
    )
    study.work(it.pieces, it.kept, options)
    if options.list:
        return
    for name, text in it.tables().items():
        print(f"\n{text}")
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
