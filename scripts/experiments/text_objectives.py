"""Compare all objectives on small texts: one network, equal tokens, equal tuning, and differences
paired by window.

    python scripts/experiments/text_objectives.py [--data DIR] [--output DIR] [--only NAME] [--list]
    [--table] [--quick]

Tiny Shakespeare and War and Peace by characters, the Penn Treebank by BERT's word pieces; DIR has
tiny_shakespeare.txt.gz, war_and_peace.txt.gz, ptb.{train,valid,test}.txt.gz and tokenizers/. The
network is a DiT of 128x4 (condition 16 wide, no dropout); the autoregressive control is its causal
twin, a transformer of the same width and depth. All are trained on the same number of tokens. Every
objective tries the same learning rates with a fifth of the steps; the rate and the checkpoint
(early stopping) are chosen on the validation part by the objective's own bound. The test part is
evaluated once for each model: count form in continuous time with SUBS (AR: exact), for every
training objective. `ablation-*`: the properties of SUBS, T and time conditioning on Shakespeare
with half of the steps, at the learning rate of mdlm.
"""

import math
from pathlib import Path

import study

from dnadiff.bootstrap import ConfidenceInterval
from dnadiff.likelihood.held_out import Scores

DIT = ["backbone=dit", "backbone.cond_dim=16", "backbone.dropout=0.0"]
# Masks, times and weighting are the published ones; `mdlm_ce` has this package's default weighting.
# No network is conditioned on time.
MODELS = {
    "ar": ["objective=ar", "backbone=transformer", "backbone.dropout=0.0"],
    "mdlm": ["objective=mdlm", "objective.weighting=nelbo", *DIT],
    "mdlm_ce": ["objective=mdlm", *DIT],
    **{
        f"b{size}": ["objective=block_mdlm", f"objective.block_size={size}", *DIT]
        for size in (4, 16)
    },
    "sedd": ["objective=sedd", "time_conditioning=false", *DIT],
    "d3pm": ["objective=d3pm", "objective.masking.num_steps=1000", *DIT],
}
TITLES = {
    "ar": "AR, transformer",
    "b4": "block_mdlm, blocks of 4",
    "b16": "block_mdlm, blocks of 16",
    "mdlm_ce": "mdlm, weighting=cross_entropy",
    "d3pm": "d3pm, T = 1000",
}
BLOCKS = ("ar", "b4", "b16", "mdlm_ce")
SUBS = {
    (True, True): "both",
    (True, False): "zero masking",
    (False, True): "carry-over",
    (False, False): "neither",
}
# Arguments by name, in the paper's order; the paper's rows are cumulative, these are separate.
ABLATIONS = {
    "continuous": MODELS["mdlm"],
    **{
        f"T{T}": [
            "objective=mdlm",
            "objective.weighting=nelbo",
            "objective/masking=discrete_time",
            f"objective.masking.num_steps={T}",
            *DIT,
        ]
        for T in (1000, 100, 10)
    },
    **{
        f"T1000-{title.replace(' ', '_')}": [
            *MODELS["d3pm"],
            f"objective.zero_masking={zero}",
            f"objective.carry_over={carry}".lower(),
        ]
        for (zero, carry), title in SUBS.items()
        if title != "both"
    },
    "time": [*MODELS["mdlm"], "time_conditioning=true"],
}
BLOCK = 16  # windows in a block of the bootstrap, as in configs/evaluate.yaml
BIT = math.log(2)


def corpora(data: Path) -> dict[str, dict]:
    """The settings of each text: its files, and the number of steps."""
    characters = ["data=text", "data.length=128", "data.batch_size=8"]
    # The Penn Treebank comes with its own split. Its large vocabulary makes the head expensive, so
    # a step has fewer tokens.
    parts = ",".join(f'{part}:"{data}/ptb.{part}.txt.gz"' for part in ("train", "valid", "test"))
    words = f"tokenizer.source='{data}/tokenizers/bert-base-uncased.vocab.txt.gz'"
    ptb = ["data=ptb", f"data.path={{{parts}}}", words, "data.length=128"]
    return {
        "shakespeare": {
            "data": [*characters, f"data.path={data / 'tiny_shakespeare.txt.gz'}"],
            "steps": 1600,
            "num_draws": 4,
        },
        "war_and_peace": {
            # 3 % of it are enough for a held-out part: 756 windows
            "data": [
                *characters,
                f"data.path={data / 'war_and_peace.txt.gz'}",
                "data.split.test=[0.8,0.83]",
                "data.split.valid=[0.9,0.93]",
            ],
            **{"steps": 1600, "num_draws": 4},
        },
        "ptb": {"data": [*ptb, "data.batch_size=4"], "steps": 480, "num_draws": 2},
    }


FULL = {
    "size": [
        "backbone.d_model=128",
        "backbone.n_layers=4",
        "backbone.n_heads=4",
        "data.max_valid_windows=64",
    ],
    "rates": ("1.5e-3", "4e-3"),
}
QUICK = {
    "size": [
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "backbone.n_heads=2",
        "data.max_valid_windows=4",
    ],
    "rates": ("4e-3",),
}


class Study:
    """The pieces and their tables: `CORPUS-tune-MODEL-RATE`, `CORPUS-final-MODEL`,
    `CORPUS-test-MODEL` and `ablation-NAME`."""

    def __init__(self, folder: Path, data: Path, size: dict, quick: bool) -> None:
        self.kept, self.size, self.quick, self.runs = (
            study.Kept(folder, size),
            size,
            quick,
            folder / "runs",
        )
        self.corpora, self.pieces = corpora(data), {}
        for c in self.corpora:
            self.pieces |= {
                f"{c}-tune-{m}-{r}": lambda c=c, m=m, r=r: self.tune(c, m, r)
                for m in MODELS
                for r in size["rates"]
            }
            self.pieces |= {f"{c}-final-{m}": lambda c=c, m=m: self.final(c, m) for m in MODELS}
            self.pieces |= {f"{c}-test-{m}": lambda c=c, m=m: self.test(c, m) for m in MODELS}
            if c == "shakespeare":
                self.pieces |= {
                    f"ablation-{name}": lambda name=name: self.ablation(name) for name in ABLATIONS
                }

    def train(self, name: str, corpus: str, arguments: list[str], steps: int, rate: str) -> dict:
        """Train in `runs/name` with five validations."""
        steps = max(2, steps // 100) if self.quick else steps
        often = [f"trainer.max_steps={steps}", f"trainer.val_check_interval={max(1, steps // 5)}"]
        common = [
            *self.corpora[corpus]["data"],
            f"optimizer.lr={rate}",
            "weight_decay=0.01",
            "matmul_precision=medium",
        ]
        small = ["data.length=32", "data.batch_size=4"] if self.quick else []
        return study.train(
            self.runs / name, [*arguments, *self.size["size"], *common, *small, *often]
        )

    def score(self, name: str, corpus: str) -> dict:
        """`python -m dnadiff.evaluate` on the test part."""
        run, draws = self.runs / name, 2 if self.quick else self.corpora[corpus]["num_draws"]
        result = study.evaluate(
            run,
            run / "test.json",
            "orders=[]",
            f"num_draws={draws}",
            f"block_size={BLOCK}",
            f"windows={run / 'test.npz'}",
        )
        return {key: result[key] for key in ("groups", "protocol")} | {
            "checkpoint_step": result["model"]["step"]
        }

    def tune(self, corpus: str, model: str, rate: str) -> dict:
        """A short run with one learning rate."""
        return self.train(
            f"{corpus}-tune-{model}-{rate}",
            corpus,
            MODELS[model],
            self.corpora[corpus]["steps"] // 5,
            rate,
        )

    def rate(self, corpus: str, model: str) -> str:
        """The learning rate with the best training objective on validation."""
        tried = {
            rate: self.kept[f"{corpus}-tune-{model}-{rate}"]["best_valid_nll"]
            for rate in self.size["rates"]
        }
        return min(tried, key=tried.get)

    def final(self, corpus: str, model: str) -> dict:
        """A run of full length with the best learning rate."""
        rate = self.rate(corpus, model)
        return {
            "rate": rate,
            **self.train(
                f"{corpus}-final-{model}",
                corpus,
                MODELS[model],
                self.corpora[corpus]["steps"],
                rate,
            ),
        }

    def test(self, corpus: str, model: str) -> dict:
        """Evaluate the test part; the scores of its windows are kept with the row, for paired
        differences."""
        run = f"{corpus}-final-{model}"
        row = self.score(run, corpus)
        self.kept.keep_scores(f"{corpus}-test-{model}", self.runs / run / "test.npz")
        return row

    def ablation(self, name: str) -> dict:
        """A run of half length on Shakespeare, and its test."""
        corpus, run = "shakespeare", f"ablation-{name}"
        training = self.train(
            run,
            corpus,
            ABLATIONS[name],
            self.corpora[corpus]["steps"] // 2,
            self.rate(corpus, "mdlm"),
        )
        row = {"training": training, "test": self.score(run, corpus)}
        self.kept.keep_scores(f"ablation-{name}", self.runs / run / "test.npz")
        return row

    def table(self) -> str:
        """The tables of finished pieces."""
        parts = [
            self.corpus_table(c)
            for c in self.corpora
            if any(self.kept.arrays_path(f"{c}-test-{m}").is_file() for m in MODELS)
        ]
        parts += [
            self.block_table(c)
            for c in self.corpora
            if all(self.kept.arrays_path(f"{c}-test-{m}").is_file() for m in BLOCKS)
        ]
        if any(self.kept.arrays_path(f"ablation-{name}").is_file() for name in ABLATIONS):
            parts.append(self.ablation_table())
        return "\n\n".join(parts)

    def corpus_table(self, corpus: str) -> str:
        """The models on one text, in the paper's order."""
        stored = {
            m: self.kept.arrays_path(f"{corpus}-test-{m}")
            for m in MODELS
            if f"{corpus}-test-{m}" in self.kept
        }
        found = [
            m for m in stored if stored[m].is_file()
        ]  # rows of an earlier version have no scores of windows
        scores = {m: Scores.load(stored[m]) for m in found}
        words, rows = corpus == "ptb", []
        for m in found:
            t, mean = self.kept[f"{corpus}-final-{m}"], scores[m].mean()
            value = (
                f"{math.exp(mean.value):.2f} ({math.exp(mean.low):.2f} to "
                f"{math.exp(mean.high):.2f})"
                if words
                else bits(mean)
            )
            minus = (
                interval(scores[m].minus(scores["mdlm"]))
                if "mdlm" in scores and m != "mdlm"
                else ""
            )
            own = math.exp(t["best_valid_nll"]) if words else t["best_valid_nll"] / BIT
            rows.append(
                [
                    TITLES.get(m, m),
                    value,
                    minus,
                    f"{own:.3f}",
                    f"{t['rate']}",
                    f"{t['parameters']:,}",
                    f"{t['tokens'] / 1e6:.2f} M",
                    f"{t['seconds'] / 60:.1f}",
                ]
            )
        unit = "perplexity" if words else "bits per character"
        header = [
            corpus,
            f"{unit}, test",
            "minus mdlm, bits",
            "own bound, validation",
            "lr",
            "parameters",
            "tokens",
            "minutes",
        ]
        protocol = self.kept[f"{corpus}-test-{found[-1]}"]["protocol"]
        return study.markdown(header, rows) + f"\n\n{corpus}: {protocol}"

    def block_table(self, corpus: str) -> str:
        """Block diffusion between `ar` and masked diffusion with the same weighting; differences
        paired by window."""
        scores, rows = (
            {m: Scores.load(self.kept.arrays_path(f"{corpus}-test-{m}")) for m in BLOCKS},
            [],
        )
        for m in BLOCKS:
            against = [
                interval(scores[m].minus(scores[other])) if m != other else ""
                for other in ("mdlm_ce", "ar")
            ]
            rows.append([TITLES.get(m, m), bits(scores[m].mean()), *against])
        return study.markdown(
            [corpus, "bits per character, test", "minus mdlm, same weighting", "minus ar"], rows
        )

    def ablation_table(self) -> str:
        """Shakespeare: the cost of each change."""
        found = [name for name in ABLATIONS if self.kept.arrays_path(f"ablation-{name}").is_file()]
        scores = {name: Scores.load(self.kept.arrays_path(f"ablation-{name}")) for name in found}
        rows = []
        for name in found:
            minus = (
                interval(scores[name].minus(scores["continuous"]))
                if "continuous" in scores and name != "continuous"
                else ""
            )
            own = self.kept[f"ablation-{name}"]["training"]["best_valid_nll"] / BIT
            rows.append([name.replace("_", " "), f"{own:.3f}", bits(scores[name].mean()), minus])
        return study.markdown(
            [
                "shakespeare, half of the steps",
                "own bound, validation",
                "continuous bound, test",
                "minus continuous",
            ],
            rows,
        )


def bits(mean: ConfidenceInterval) -> str:
    """Bits with their 95 % interval."""
    return f"{mean.value / BIT:.3f} ({mean.low / BIT:.3f} to {mean.high / BIT:.3f})"


def interval(difference: ConfidenceInterval) -> str:
    """A difference in bits with its 95 % interval."""
    return (
        f"{difference.value / BIT:+.3f} ({difference.low / BIT:+.3f} to "
        f"{difference.high / BIT:+.3f})"
    )


def main() -> None:
    parser = study.arguments(__doc__, "runs/text_objectives")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data/text"),
        help="folder with the texts (default: %(default)s)",
    )
    options = parser.parse_args()
    it = Study(
        options.output / "quick" if options.quick else options.output,
        options.data,
        QUICK if options.quick else FULL,
        options.quick,
    )
    study.work(it.pieces, it.kept, options)
    if not options.list:
        print("\n" + it.table())


if __name__ == "__main__":
    main()
