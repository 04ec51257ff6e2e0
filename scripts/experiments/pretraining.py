"""Pretraining objectives compared on classification: no pretraining, mlm, ar, sedd, mdlm, and mlm
followed by mdlm.

    python scripts/experiments/pretraining.py --data FOLDER [--output DIR] [--only NAME] [--list]
    [--table] [--write DIR] [--quick]

One network (Caduceus 64x4; for AR the causal counterpart, a Mamba with one more layer and 0.3 %
more parameters), one genome (human chr20), 12 M tokens each in windows of 512, the same weight
averaging and the same reverse-complement augmentation. Every objective tries the same two learning
rates with a sixth of the tokens and uses the one with the better validation loss of its own kind;
`mlm_mdlm` uses half of the tokens for each objective, with the rate of each. `sedd` is not
conditioned on time, so that its network is the same.

Then all are fine-tuned in the same way on the complete official test set of
`human_nontata_promoters`, divided 80/20 by shared 24-mers: two learning rates, chosen on validation
with a separate seed; three seeds; paired differences on the same test items. Both networks are also
trained from scratch. The question is whether diffusion pretraining preserves accuracy: it does
unless the interval of the difference excludes 0.
"""

import itertools
from pathlib import Path

import study
from downstream import MAIN, TASKS, Study
from downstream_tables import (
    SPENT,
    Titles,
    kept_together,
    number,
    seeds,
    signed,
    why,
    with_interval,
)

from dnadiff.progress import configure_logging

CADUCEUS, MAMBA = ["backbone=caduceus"], ["backbone=mamba"]
OBJECTIVES = {
    "mdlm": ["objective=mdlm", *CADUCEUS],
    "mlm": ["objective=mlm", *CADUCEUS],
    "ar": ["objective=ar", *MAMBA],
    "sedd": ["objective=sedd", "time_conditioning=false", *CADUCEUS],
}
THEN = "mlm_mdlm"
COMMAND = (
    "python scripts/experiments/pretraining.py --data FOLDER --write genomic_benchmarks/results"
)
FULL = {
    "tasks": {MAIN: TASKS[MAIN]},
    "pretraining": {"mdlm": None},  # its genome decides which items overlap the pretraining data
    "genome": ["data=fasta", "data/split=chr20", "data.path={data}/genomes/GRCh37_chr20.fa.gz"],
    "windows": ["data.length=512", "data.batch_size=16"],
    "sizes": {
        "caduceus": ["backbone.d_model=64", "backbone.n_layers=4"],
        "mamba": ["backbone.d_model=64", "backbone.n_layers=5"],
    },
    **{
        "steps": 1464,
        "tune_steps": 244,
        "pretraining_rates": ("3e-3", "6e-3"),
        "rates": (1e-3, 2e-3),
        "seeds": (1, 2, 3),
    },
    **{"batch": 32, "epochs": 5, "tuning_epochs": 2},
}
QUICK = {
    "tasks": {MAIN: ("ecoli_coding", None, ("task.max_train=40",))},
    "pretraining": {"mdlm": None},
    "genome": ["data=ecoli"],
    "windows": ["data.length=128", "data.batch_size=4", "data.max_valid_windows=8"],
    "sizes": {
        name: ["backbone.d_model=16", "backbone.n_layers=1"] for name in ("caduceus", "mamba")
    },
    **{
        "steps": 4,
        "tune_steps": 2,
        "pretraining_rates": ("3e-3", "6e-3"),
        "rates": (1e-3,),
        "seeds": (1, 2),
    },
    **{"batch": 16, "epochs": 1, "tuning_epochs": 1},
}


class Objectives(Study):
    """`pretune-OBJECTIVE-RATE`, `pretrain-OBJECTIVE`, then `tune-NETWORK-RATE` and
    `run-NETWORK-sSEED`."""

    networks = {  # noqa: RUF012
        "scratch": "mdlm",
        **{name: name for name in OBJECTIVES},
        THEN: THEN,
        "scratch-mamba": "ar",
    }

    def all_pieces(self) -> dict:
        """Name to function."""
        size = self.size
        pairs = itertools.product(OBJECTIVES, size["pretraining_rates"])
        pieces = {
            f"pretune-{o}-{rate}": lambda o=o, r=rate: self.pretune(o, r) for o, rate in pairs
        }
        pieces |= {f"pretrain-{o}": lambda o=o: self.pretrain(o) for o in OBJECTIVES} | {
            f"pretrain-{THEN}": self.twice
        }
        pieces |= {
            f"tune-{n}-{r:g}": lambda n=n, r=r: self.tune(n, r)
            for n in self.networks
            for r in size["rates"]
        }
        runs = itertools.product(size["seeds"], self.networks)
        pieces |= {
            f"run-{n}-s{s}": lambda n=n, s=s: self.fine_tuned(MAIN, n, s, size["epochs"])
            for s, n in runs
        }
        return pieces | {"inside-mdlm": lambda: self.inside("mdlm")}

    def read_genome(self, run: str, objective: str, rate: str, steps: int, *more: str) -> dict:
        """Train in `runs/RUN`."""
        arguments = [
            argument.format(data=self.data) for argument in self.size["genome"]
        ] + self.size["windows"]
        network = "mamba" if objective == "ar" else "caduceus"
        arguments += [*OBJECTIVES[objective], *self.size["sizes"][network], f"optimizer.lr={rate}"]
        arguments += [
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={max(steps // 6, 2)}",
            *more,
        ]
        return {"rate": rate, **study.train(self.folder / "runs" / run, arguments)}

    def pretune(self, objective: str, rate: str) -> dict:
        """A sixth of the tokens with one learning rate."""
        return self.read_genome(
            f"pretune-{objective}-{rate}", objective, rate, self.size["tune_steps"]
        )

    def pretraining_rate(self, objective: str) -> str:
        """The learning rate with the lower validation loss."""
        losses = {
            rate: self.kept[f"pretune-{objective}-{rate}"]["best_valid_nll"]
            for rate in self.size["pretraining_rates"]
        }
        return min(losses, key=losses.get)

    def pretrain(self, name: str) -> dict:
        """All tokens with the better learning rate."""
        return self.read_genome(name, name, self.pretraining_rate(name), self.size["steps"])

    def twice(self) -> dict:
        """Half of the tokens with mlm, then the same number of other tokens with mdlm."""
        half, first = self.size["steps"] // 2, f"{THEN}-first"
        before = self.read_genome(first, "mlm", self.pretraining_rate("mlm"), half)
        more = (
            f"init_from={self.folder / 'runs' / first}",
            "seed=2",
        )  # another seed gives other windows
        after = self.read_genome(THEN, "mdlm", self.pretraining_rate("mdlm"), half, *more)
        return {**after, "tokens": before["tokens"] + after["tokens"]}

    def table(self) -> str:
        """The table of the finished pieces."""
        data, how = self.task(MAIN)
        title = {name: Titles.tuned(name) for name in self.networks}
        pairs = [
            (title["mdlm"], other)
            for name, other in title.items()
            if name not in ("mdlm", "scratch-mamba")
        ]
        pairs += [
            (title[name], title[self.untrained(name)])
            for name in title
            if not name.startswith("scratch") and name != "mdlm"
        ]
        subsets = self.subsets(MAIN, "mdlm")
        result = self.predictions.compared(
            MAIN, data, how, list(title.values()), self.size["seeds"], pairs=pairs, subsets=subsets
        )
        rows = []
        for name, model in title.items():
            if model not in result["models"]:
                continue
            m = result["models"][model]
            inside, outside = (
                m["subsets"].get(f"{where} mdlm", {}) for where in ("inside", "outside")
            )
            pretrained = (
                ""
                if name.startswith("scratch")
                else f"{self.kept[f'pretrain-{name}']['tokens'] / 1e6:.1f} M"
            )
            cells = [
                with_interval(m),
                seeds(m),
                number(m["metrics"]["mcc"]["value"]),
                number(m["metrics"]["auroc"]["value"]),
            ]
            parts = (
                f"{number(inside.get('accuracy'))} ({inside.get('items', 0):,}) / "
                f"{number(outside.get('accuracy'))}"
            )
            rows.append([model, pretrained, *cells, parts, f"{self.rate(name)[0]:g}"])
        header = [
            "model",
            "tokens",
            "accuracy (95 %)",
            "over seeds",
            "MCC",
            "AUROC",
            "items inside / outside the training part",
            "rate",
        ]
        said = [
            [f"{d['a']} - {d['b']}", signed(d), f"{d['p_value']:.4f}", verdict(d)]
            for d in result["differences"]
        ]
        train, test = len(data.train) + len(data.valid), len(data.test)
        sizes = (
            f"{train:,} sequences for training and validation, {test:,} for test; "
            f"{kept_together(data)}."
        )
        text = [
            "# Pretraining objectives compared",
            f"`{COMMAND}`",
            f"`{MAIN}`: {sizes}",
            study.markdown(header, rows),
        ]
        text += (
            [
                study.markdown(
                    ["difference", "accuracy (95 %)", "p (items alone)", "conclusion"], said
                )
            ]
            if said
            else []
        )
        return "\n\n".join([*text, self.tried(), f"{why(MAIN, train, test)} {SPENT}"])

    def untrained(self, name: str) -> str:
        """The network of the same kind from scratch."""
        return "scratch-mamba" if name == "ar" else "scratch"

    def tried(self) -> str:
        """The learning rates tried, and their validation accuracy."""
        found = []
        for name in self.networks:
            if all(f"tune-{name}-{rate:g}" in self.kept for rate in self.size["rates"]):
                found.append(
                    f"{name}: "
                    + ", ".join(
                        f"{rate} {accuracy:.3f}" for rate, accuracy in self.rate(name)[1].items()
                    )
                )
        return (
            "Rates of fine-tuning tried, with their accuracy on the validation items: "
            f"{'; '.join(found)}."
        )


def verdict(difference: dict) -> str:
    """Preserved to within the largest loss in the interval; better or worse only if the interval
    excludes 0."""
    if difference["low"] <= 0 <= difference["high"]:
        return f"preserved to within {-difference['low']:.3f}"
    return f"the first is {difference['verdict']}"


def main() -> None:
    parser = study.arguments(__doc__, "runs/pretraining")
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
        help="write the table there, such as genomic_benchmarks/results",
    )
    options = parser.parse_args()
    configure_logging()
    it = Objectives(
        options.output / "quick" if options.quick else options.output,
        QUICK if options.quick else FULL,
        options.data,
    )
    study.work(it.pieces, it.kept, options)
    if options.list:
        return
    text = it.table()
    print(f"\n{text}")
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "pretraining.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
