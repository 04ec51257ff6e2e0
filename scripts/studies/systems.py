"""Compare every system of the papers: one network, equal tokens, equal tuning, on E. coli and on
War and Peace by characters.

    python scripts/studies/systems.py [--output DIR] [--only NAME] [--list] [--table] [--quick]
    [--collect docs/tables/systems.json] [--restore docs/tables/systems.json]

E. coli: a 64x4 Caduceus (for `ar` its causal twin, a Mamba with one layer more), 12.0 M tokens,
windows of 512. War and Peace: a DiT of 128x4 (for `ar` the causal transformer), 1.6 M characters,
windows of 128. Every system tries the same two learning rates with a quarter of the tokens, and
chooses the better one by its own validation loss, which also chooses the checkpoint (the best of
six validations). `mdlm`, `ar` and `learned_order` have three seeds, the others one. The test part
is read once for each model, at the end: the bound that belongs to the system, with paired
differences from `mdlm`; systems without a likelihood have none.

Samples are drawn by the sampler of each system, timed on one thread, and judged: E. coli by the
divergence of 6-mers and by a discriminator (`dnadiff.judge`), characters by the perplexity and the
entropy under the `ar` run (`dnadiff.judge_text`).

A piece `TEXT-SYSTEM-SEED` trains and scores one model, `TEXT-SYSTEM-samples` samples from its first
seed, on an idle machine if the seconds are to mean something. The runs of restored pieces are not
there: samples need the run of their system here, and those of characters the run of `ar`.
"""

import math
from pathlib import Path

import numpy as np
import study

from dnadiff.diffusion.bootstrap import ConfidenceInterval, blocks, ratio
from dnadiff.genomics.held_out import Scores

BIT, BLOCK = math.log(2), 16  # windows in a block of the bootstrap
BOOK = Path(__file__).parents[2] / "../shared/data/text/war_and_peace.txt.gz"
FIXED = ("objective=learned_order", "objective.learned=false")
# What differs from the defaults of the package: training, and sampling.
SYSTEMS = {
    "ar": (["objective=ar"], []),
    "mdlm": (["objective=mdlm"], []),
    "mdlm_nelbo": (["objective=mdlm", "objective.weighting=nelbo"], []),
    "soft_masks": (["objective=mdlm", "objective.self_conditioning=0.5"], []),
    "learned_order": (["objective=learned_order"], []),
    "learned_strided": (["objective=learned_order", "objective/order=strided"], []),
    "left_to_right": ([*FIXED, "objective/order=left_to_right"], []),
    "strided": ([*FIXED, "objective/order=strided"], []),
    "sedd": (["objective=sedd", "time_conditioning=false"], []),
    "spindle": (["objective=bound", "process=spindle"], []),
    "genmd4": (["objective=genmd4", "process=token_rates"], []),
    "d3pm_uniform": (["objective=bound", "process=uniform", "objective.num_steps=1000"], []),
    "udlm": (["objective=bound", "process=uniform"], []),
    "gidd": (["objective=bound", "process=hybrid", "objective.weighting=dynamic"], []),
    "sundae": (["objective=sundae", "process=uniform"], []),
    "diffusion_lm": (["objective=diffusion_lm", "process=gaussian", "noise=sqrt"], []),
    "analog_bits": (["objective=analog_bits", "process=gaussian", "noise=cosine_squared"], []),
}
SEEDS = {"mdlm": 3, "ar": 3, "learned_order": 3}
TEXTS = {
    "ecoli": {
        "data": ["data=ecoli", "data.length=512", "data.batch_size=16"],
        "network": ["backbone=caduceus", "backbone.d_model=64", "backbone.n_layers=4"],
        "ar": ["backbone=mamba", "backbone.d_model=64", "backbone.n_layers=5"],
        **{"steps": 1464, "rates": ("3e-3", "6e-3"), "draws": 8, "samples": 256, "length": 512},
    },
    "book": {
        "data": [
            *("data=text", f"data.path={BOOK}", "data.length=128", "data.batch_size=8"),
            # 3 % of it are enough for a held-out part: 756 windows
            *("data.split.test=[0.8,0.83]", "data.split.valid=[0.9,0.93]"),
            "data.max_valid_windows=64",
        ],
        "network": [
            *("backbone=dit", "backbone.d_model=128", "backbone.n_layers=4"),
            *("backbone.n_heads=4", "backbone.cond_dim=16", "backbone.dropout=0.0"),
        ],
        "ar": [
            *("backbone=transformer", "backbone.d_model=128", "backbone.n_layers=4"),
            *("backbone.n_heads=4", "backbone.dropout=0.0"),
        ],
        **{"steps": 1600, "rates": ("1.5e-3", "4e-3"), "draws": 8, "samples": 64, "length": 128},
    },
}
SMALL = {
    "ecoli": [
        *("backbone.d_model=16", "backbone.n_layers=1", "data.length=128", "data.batch_size=4"),
        *("data.split.valid=[0.9,0.91]", "data.split.test=[0.8,0.81]", "data.max_valid_windows=8"),
    ],
    "book": [
        *("backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2", "data.length=32"),
        *("data.batch_size=4", "data.max_valid_windows=4", "data.split.valid=[0.9,0.901]"),
        "data.split.test=[0.8,0.802]",
    ],
}


class Study:
    """The pieces `TEXT-SYSTEM-SEED` and their tables."""

    def __init__(self, folder: Path, settings: dict) -> None:
        self.kept = study.Kept(folder)
        self.runs = folder / "runs"
        self.quick = settings["quick"]
        self.pieces = {
            f"{text}-{system}-{seed}": lambda t=text, m=system, s=seed: self.model(t, m, s)
            for text in TEXTS
            for system in SYSTEMS
            for seed in range(1, SEEDS.get(system, 1) + 1)
        } | {
            f"{text}-{system}-samples": lambda t=text, m=system: self.judged(t, m)
            for text in TEXTS
            for system in SYSTEMS
        }

    def train(self, name: str, text: str, system: str, rate: str, seed: int, part: int = 1) -> dict:
        """Train in `runs/name` for 1/`part` of the steps."""
        of = TEXTS[text]
        steps = (8 if self.quick else of["steps"]) // part
        return study.train(
            self.runs / name,
            [
                *SYSTEMS[system][0],
                *of["ar" if system == "ar" else "network"],
                *of["data"],
                *(SMALL[text] if self.quick else ()),
                *(f"optimizer.lr={rate}", "weight_decay=0.01", f"seed={seed}"),
                *("matmul_precision=medium", f"trainer.max_steps={steps}"),
                f"trainer.val_check_interval={max(1, steps // 6)}",
            ],
        )

    def rate(self, text: str, system: str) -> dict[str, float]:
        """The validation loss of each learning rate: of the first seed, for all seeds."""
        first = f"{text}-{system}-1"
        if first in self.kept:
            return self.kept[first]["tried"]
        found = {}
        for rate in TEXTS[text]["rates"]:
            name = f"{text}-{system}-tune-{rate}"
            found[rate] = self.train(name, text, system, rate, 1, part=4)["best_valid_nll"]
        return found

    def model(self, text: str, system: str, seed: int) -> dict:
        """Tune, train, and score the test part."""
        tried = self.rate(text, system)
        rate = min(tried, key=tried.get)
        name = f"{text}-{system}-{seed}"
        trained = self.train(name, text, system, rate, seed)
        run = self.runs / name
        del trained["arguments"]  # with paths of this machine
        about = {"rate": rate, "tried": tried, "training": trained}
        return about | self.score(text, system, run)

    def score(self, text: str, system: str, run: Path) -> dict:
        """The test part under the bound of the system; nothing without a likelihood."""
        if system in ("sundae", "analog_bits"):
            return {"nats": None}
        windows = run / "test.npz"
        draws = 2 if self.quick else TEXTS[text]["draws"]
        options = [f"num_draws={draws}", "orders=[]", f"windows={windows}"]
        result = study.evaluate(run, run / "test.json", *options)
        found = Scores.load(windows)
        return {
            "test": result["groups"],
            "protocol": result["protocol"],
            "nats": found.nats["all"].round(2).tolist(),
            "tokens": found.tokens["all"].tolist(),
        }

    def judged(self, text: str, system: str) -> dict:
        """Samples of the first seed, the seconds that they took, and what the judges say."""
        of = TEXTS[text]
        run = self.runs / f"{text}-{system}-1"
        if not (run / "metrics.json").is_file():
            raise study.NotYet(f"the run {run} is not here; train it first")
        file = run / ("samples.fa" if text == "ecoli" else "samples.jsonl")
        number, length = (16, 32) if self.quick else (of["samples"], of["length"])
        study.command(
            "sample",
            *(f"checkpoint={run}", f"output={file}", "overwrite=true", f"num_samples={number}"),
            *(f"length={length}", *SYSTEMS[system][1]),
        )
        about = study.read_json(Path(f"{file}.json"))
        found = {"seconds": about["seconds"], "sampled": number * length}
        output = f"output={run / 'judge.json'}"
        if text == "ecoli":
            study.command("judge", f"samples={file}", f"checkpoint={run}", output, "overwrite=true")
        else:
            judge = f"judge={self.runs / f'{text}-ar-1'}"
            study.command("judge_text", f"samples={file}", judge, output, "overwrite=true")
        judge = study.read_json(run / "judge.json")
        # the rest has paths of this machine
        return found | {"judge": {key: judge[key] for key in ("findings", "rows") if key in judge}}

    def rows(self, text: str) -> dict[str, list[dict]]:
        """The finished pieces of each system, a row for each seed."""
        names = {
            system: [f"{text}-{system}-{s}" for s in range(1, SEEDS.get(system, 1) + 1)]
            for system in SYSTEMS
        }
        found = {m: [self.kept[n] for n in each if n in self.kept] for m, each in names.items()}
        return {system: rows for system, rows in found.items() if rows}

    def table(self) -> str:
        """The tables of both texts."""
        found = []
        for text in TEXTS:
            names = {m: f"{text}-{m}-samples" for m in SYSTEMS}
            samples = {m: self.kept[n] for m, n in names.items() if n in self.kept}
            if rows := self.rows(text):
                found.append(markdown(text, rows, samples))
        return "\n\n".join(found)


def mean_of(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Nats and tokens of each test window, (S,), averaged over seeds."""
    return np.mean([row["nats"] for row in rows], 0), np.array(rows[0]["tokens"])


def bits(interval: ConfidenceInterval, sign: str = "") -> str:
    """A value in bits with its 95 % interval."""
    value, low, high = (x / BIT for x in (interval.value, interval.low, interval.high))
    return f"{value:{sign}.4f} ({low:{sign}.4f} to {high:{sign}.4f})"


def markdown(text: str, rows: dict[str, list[dict]], samples: dict[str, dict]) -> str:
    """The table of one text."""
    base = mean_of(rows["mdlm"])[0] if "mdlm" in rows else None
    lines = []
    for system, each in rows.items():
        cells = [f"`{system}`", "no likelihood", "", ""]
        if each[0]["nats"] is not None:
            nats, tokens = mean_of(each)
            units = blocks(len(nats), BLOCK)
            cells[1] = bits(ratio(nats, tokens, units))
            if base is not None and system != "mdlm":
                cells[2] = bits(ratio(nats - base, tokens, units), "+")
            one = (f"{row['test']['all']['bits']:.4f}" for row in each)
            cells[3] = ", ".join(one) if len(each) > 1 else ""
        first = each[0]
        made = samples.get(system)
        if made is None:
            cells += [""] * (1 + len(JUDGES[text]))
        else:
            cells.append(f"{1000 * made['seconds'] / made['sampled']:.2f}")
            cells += judgement(text, made["judge"])
        cells.append(f"{first['training']['seconds'] / 60:.1f}")
        cells.append(", ".join(f"{r} {x / BIT:.3f}" for r, x in first["tried"].items()))
        lines.append(cells)
    unit = "base" if text == "ecoli" else "character"
    header = [
        "system",
        f"bits per {unit}, test",
        "minus `mdlm`",
        "each seed",
        f"s per 1,000 {unit}s",
    ]
    judges = JUDGES[text]
    tuned = "learning rates: own loss on validation, bits"
    return f"### {text}\n\n" + study.markdown([*header, *judges, "minutes", tuned], lines)


JUDGES = {
    "ecoli": ["6-mer divergence (real)", "discriminator (real)", "trained on samples (real)"],
    "book": ["generative perplexity (real)", "entropy (real)"],
}


def judgement(text: str, judge: dict) -> list[str]:
    """The cells of `JUDGES`: of samples, and of real text in brackets."""
    if text == "ecoli":
        found = [
            judge["findings"][k] for k in ("js_6", "discriminator_auroc", "train_on_samples_bits")
        ]
        return [f"{one['samples']:.3f} ({one['baseline']:.3f})" for one in found]
    samples, real = (judge["rows"][name] for name in ("samples", "real text"))
    return [f"{samples[key]:.2f} ({real[key]:.2f})" for key in ("perplexity", "entropy")]


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/systems", {"quick": False}, {"quick": True})
