"""Block diffusion on E. coli: blocks of 1 to 64 bases between an autoregressive model and `mdlm`,
with equal tokens and equal tuning.

    python scripts/experiments/ecoli_blocks.py [--output DIR] [--only NAME] [--list] [--table]
    [--collect FILE] [--quick]

The setting of ecoli_objectives.py: a 64x4 Caduceus (164,160 parameters; for `ar` a Mamba with one
layer more), 12 M tokens, windows of 512. Each model tries the same learning rates with a quarter of
the tokens and seed 1. The rate with the best bound on the validation part is used at full length,
with three seeds for the models in SEEDS. The checkpoint is the best of six validations. The test
part (80-90 % of the chromosome) is read once for each run, in `test-`. `ar` is exact, the others
are bounds in count form with 8 draws.

Pieces: `tune-MODEL-RATE`, `final-MODEL-SEED`, `test-MODEL-SEED`; `speed-MODEL`, for an idle
    machine: training tokens per second compared with `mdlm`, and seconds to sample 1 and 64
        sequences of 1,024 bases that lose 2 % of the structure, compared with `ar`; `minutes-MODEL`
        and
`testminutes-MODEL`: trained as long as `mdlm` takes for 12 M tokens, by the speeds of
`speed-MODEL`; `hour-MODEL` and `testhour-MODEL`: trained for one hour of one core by these speeds;
`chr20-MODEL` and `testchr20-MODEL`: the same training on human chr20 (GRCh37, 1-Mb blocks, every
tenth is test), one seed, with the learning rates of E. coli, 2 draws for each of its 9,750 test
windows; `long-BLOCKS`: 1,000,000 bases sampled in 4 calls for each block, with the time and memory
of a tenth of it and of all, judged in windows of 512. Scores of each test window are collected with
the pieces, so that `--restore docs/tables/ecoli_blocks.json` continues on another machine.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import ecoli_objectives
import numpy as np
import study
import torch
from torch.optim import AdamW

from dnadiff.draws import Draws
from dnadiff.likelihood.held_out import Scores
from dnadiff.model import Model
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded

BLOCKS = (1, 2, 4, 8, 16, 32, 64)
CADUCEUS = ["backbone=caduceus"]
MODELS = {
    "ar": ["objective=ar", "backbone=mamba"],
    **{
        f"b{size}": ["objective=block_mdlm", f"objective.block_size={size}", *CADUCEUS]
        for size in BLOCKS
    },
    "mdlm": ["objective=mdlm", *CADUCEUS],
}
SEEDS = {"ar": (1, 2, 3), "b4": (1, 2, 3), "b16": (1, 2, 3), "mdlm": (1, 2, 3)}
CHR20 = [
    "data=fasta",
    "data/split=blocks",
    "data.name=human chr20",
    "data.split.test=9",
    "data.split.valid=8",
]
ELSEWHERE = ("ar", "b4", "b16", "mdlm")
TIMED = ("ar", "b4", "b16", "mdlm")
HOUR = ("ar", "b4", "mdlm")
SAME = (
    "sizes",
    "data",
    "steps",
    "tune_steps",
    "num_draws",
    "rates",
)  # as in the comparison of objectives
FULL = {key: ecoli_objectives.FULL[key] for key in SAME} | {
    "sampled": 1024,
    "batches": (1, 64),
    "rounds": 5,
    "long": 1_000_000,
    "hour": 3600.0,
}
QUICK = {key: ecoli_objectives.QUICK[key] for key in SAME} | {
    "sampled": 64,
    "batches": (1, 2),
    "rounds": 1,
    "long": 2_000,
    "hour": 0.1,
}


class Study:
    """The pieces and their tables."""

    data = Path("../shared/data")  # real genomes, not part of the project

    def __init__(self, folder: Path, size: dict) -> None:
        settings = {
            key: value for key, value in size.items() if key != "hour"
        }  # which changes none of the other pieces
        self.kept, self.size, self.runs = study.Kept(folder, settings), size, folder / "runs"
        runs = [(model, seed) for model in MODELS for seed in SEEDS.get(model, (1,))]
        runs.sort(key=lambda run: run[1])  # one seed of every model first
        self.pieces = {
            f"tune-{m}-{rate}": lambda m=m, r=rate: self.tune(m, r)
            for m in MODELS
            for rate in size["rates"]
        }
        self.pieces |= {
            f"final-{m}-{seed}": lambda m=m, s=seed: self.final(m, s) for m, seed in runs
        }
        self.pieces |= {
            f"test-{m}-{seed}": lambda m=m, s=seed: self.test(f"test-{m}-{s}", f"final-{m}-{s}")
            for m, seed in runs
        }
        self.pieces |= {f"speed-{m}": lambda m=m: self.speed(m) for m in MODELS}
        self.pieces |= {f"minutes-{m}": lambda m=m: self.minutes(m) for m in TIMED if m != "mdlm"}
        self.pieces |= {
            f"testminutes-{m}": lambda m=m: self.test(f"testminutes-{m}", f"minutes-{m}")
            for m in TIMED
            if m != "mdlm"
        }
        self.pieces |= {f"hour-{m}": lambda m=m: self.hour(m) for m in HOUR}
        self.pieces |= {
            f"testhour-{m}": lambda m=m: self.test(f"testhour-{m}", f"hour-{m}") for m in HOUR
        }
        self.pieces |= {f"chr20-{m}": lambda m=m: self.chr20(m) for m in ELSEWHERE}
        self.pieces |= {
            f"testchr20-{m}": lambda m=m: self.test(f"testchr20-{m}", f"chr20-{m}", 2)
            for m in ELSEWHERE
        }
        self.pieces |= {f"long-{m}": lambda m=m: self.long(m) for m in ("b4", "b16")}

    def train(
        self, name: str, model: str, steps: int, rate: str, seed: int, data: Sequence[str] = ()
    ) -> dict:
        backbone = next(a.partition("=")[2] for a in MODELS[model] if a.startswith("backbone="))
        often = f"trainer.val_check_interval={max(1, steps // 6)}"
        common = [
            f"optimizer.lr={rate}",
            "weight_decay=0.01",
            f"seed={seed}",
            "matmul_precision=medium",
            f"trainer.max_steps={steps}",
            often,
        ]
        return study.train(
            self.runs / name,
            [*MODELS[model], *self.size["sizes"][backbone], *(data or self.size["data"]), *common],
        )

    def score(self, name: str, part: str, num_draws: int | None = None) -> dict:
        """`python -m dnadiff.evaluate` on one part; on validation its h(n) stays in the run, for
        the samplers."""
        run = self.runs / name
        output = run / ("evaluate.json" if part == "valid" else f"{part}.json")
        options = [
            f"part={part}",
            "orders=[]",
            f"num_draws={num_draws or self.size['num_draws']}",
            f"windows={run / f'{part}.npz'}",
        ]
        result = study.evaluate(run, output, *options)
        return {
            "groups": result["groups"],
            "protocol": result["protocol"],
            "checkpoint_step": result["model"]["step"],
        }

    def tune(self, model: str, rate: str) -> dict:
        name = f"tune-{model}-{rate}"
        return {
            "training": self.train(name, model, self.size["tune_steps"], rate, 1),
            "valid": self.score(name, "valid"),
        }

    def rate(self, model: str) -> tuple[str, dict[str, float]]:
        """The learning rate with the best bound on validation, and all of them."""
        bits = {
            rate: self.kept[f"tune-{model}-{rate}"]["valid"]["groups"]["all"]["bits"]
            for rate in self.size["rates"]
        }
        return min(bits, key=bits.get), bits

    def final(self, model: str, seed: int) -> dict:
        rate, bits = self.rate(model)
        name = f"final-{model}-{seed}"
        training = self.train(name, model, self.size["steps"], rate, seed)
        return {
            "rate": rate,
            "rates_tried": bits,
            "run": name,
            "training": training,
            "valid": self.score(name, "valid"),
        }

    def test(self, piece: str, name: str, num_draws: int | None = None) -> dict:
        row = {
            "run": name,
            "training": self.kept[name]["training"],
            "test": self.score(name, "test", num_draws),
        }
        self.kept.keep_scores(
            piece, self.runs / name / "test.npz"
        )  # go with the row, for paired differences
        return row

    def minutes(self, model: str) -> dict:
        """Trained as long as `mdlm` takes for its tokens."""
        speeds = self.kept[f"speed-{model}"]["training"]
        return self.timed(
            f"minutes-{model}", model, round(self.size["steps"] * speeds["own"] / speeds["mdlm"])
        )

    def hour(self, model: str) -> dict:
        """Trained for one hour of one core, counted in steps at the speed of `speed-MODEL`, so that
        other work on the machine does not matter."""
        tokens = math.prod(shape(self.size["data"]))
        return self.timed(
            f"hour-{model}",
            model,
            round(self.size["hour"] * self.kept[f"speed-{model}"]["training"]["own"] / tokens),
        )

    def timed(self, name: str, model: str, steps: int) -> dict:
        rate, _ = self.rate(model)
        return {
            "training": self.train(name, model, steps, rate, 1),
            "valid": self.score(name, "valid"),
            "steps": steps,
            "rate": rate,
        }

    def chr20(self, model: str) -> dict:
        path = self.data / "genomes" / "GRCh37_chr20.fa.gz"
        shape = [
            a
            for a in self.size["data"]
            if a.startswith(("data.length", "data.batch_size", "data.max_valid"))
        ]
        rate, _ = self.rate(model)
        name = f"chr20-{model}"
        training = self.train(
            name, model, self.size["steps"], rate, 1, [*CHR20, f"data.path={path}", *shape]
        )
        return {"training": training, "rate": rate}

    def speed(self, model: str) -> dict:
        """Training steps compared with `mdlm`, and sampling compared with `ar`, in turns; the
        fastest of several rounds counts."""
        own = checkpoint.load(self.weights(model))
        # One step of training is enough for the comparisons: the time of a step, and of sampling
        # token by token, does not depend on weights.
        mdlm, ar = (checkpoint.load(self.untrained(name)) for name in ("mdlm", "ar"))
        steps = [training_step(each, self.size["data"]) for each in (own, mdlm)]
        seconds = [math.inf] * 2
        for _ in range(1 + self.size["rounds"]):
            seconds = [min(best, elapsed(step)) for best, (step, _) in zip(seconds, steps)]
        training = {
            name: tokens / best for name, (_, tokens), best in zip(("own", "mdlm"), steps, seconds)
        }
        sampler = Model(own).default_sampler(self.size["sampled"])
        sampling = {
            "sampler": {key: value for key, value in sampler.settings().items() if key != "top_k"}
        }
        for batch in self.size["batches"]:
            times: dict[str, list[float]] = {"own": [], "ar": []}
            for seed in range(2):
                for name, each, how in (
                    ("own", own, sampler),
                    ("ar", ar, Model(ar).default_sampler(self.size["sampled"])),
                ):
                    x, draws = (
                        each.process.prior(batch, self.size["sampled"]),
                        Draws.for_batch(seed, batch),
                    )
                    start = time.perf_counter()
                    found = how.sample(each.denoiser.eval(), each.process, x, draws)
                    times[name].append(time.perf_counter() - start)
                    if name == "own":
                        nfe = found.nfe
            sampling[str(batch)] = {
                "seconds": min(times["own"]),
                "ar_seconds": min(times["ar"]),
                "nfe": nfe,
            }
        return {
            "threads": torch.get_num_threads(),
            "weights": self.weights(model).name,
            "training": training,
            "sampling": sampling,
        }

    def weights(self, model: str) -> Path:
        """A trained run with an h(n): the longest there is, because the runs of restored pieces are
        not there."""
        tuned = self.rate(model)[0]
        names = [
            *(f"final-{model}-{seed}" for seed in SEEDS.get(model, (1,))),
            f"minutes-{model}",
            f"tune-{model}-{tuned}",
        ]
        found = [
            self.runs / name
            for name in names
            if name in self.kept and (self.runs / name / "metrics.json").is_file()
        ]
        if not found:
            raise study.NotYet(
                f"no run of {' or '.join(names)} in {self.runs}; train one: remove its piece and "
                f"run --only {names[-1]}"
            )
        return found[0]

    def untrained(self, model: str) -> Path:
        """A run of one training step."""
        self.train(f"untrained-{model}", model, 1, self.size["rates"][0], 1)
        return self.runs / f"untrained-{model}"

    def long(self, model: str) -> dict:
        """One long sequence: time and peak memory of a tenth of it and of all, judged in
        windows."""
        run = self.weights(model)
        rows, records = [], run / "long-windows.fa"
        for length in (self.size["long"] // 10, self.size["long"]):
            output = run / f"long-{length}.fa"
            code = [
                sys.executable,
                "-c",
                _MEASURED,
                "dnadiff.sample",
                f"checkpoint={run}",
                *_FEW_CALLS,
                f"length={length}",
            ]
            start = time.monotonic()
            subprocess.run(
                [
                    *code,
                    "num_samples=1",
                    f"output={output}",
                    "overwrite=true",
                    f"hydra.run.dir={run / 'long'}",
                ],
                check=True,
            )
            rows.append(
                {
                    "length": length,
                    "seconds": time.monotonic() - start,
                    "peak_mb": json.loads((run / "long.json").read_text()),
                }
            )
            text = "".join(
                line for line in output.read_text(encoding="ascii").splitlines() if line[0] != ">"
            )
        window = min(512, len(text) // 20)
        cut = (text[at : at + window] for at in range(0, len(text) - window + 1, window))
        records.write_text(
            "".join(f">window_{number}\n{piece}\n" for number, piece in enumerate(cut)),
            encoding="ascii",
        )
        judged = run / "long-judge.json"
        study.command(
            "judge", f"checkpoint={run}", f"samples={records}", f"output={judged}", "overwrite=true"
        )
        return {
            "rows": rows,
            "window": window,
            "judge": json.loads(judged.read_text(encoding="utf-8")),
        }

    def table(self) -> str:
        """Bits on the test part, and differences from `mdlm` and `ar` paired by window; then the
        other comparisons, as far as they are run."""
        tokens = {model: self.tests(model) for model in MODELS}
        minutes = {m: [f"testminutes-{m}" if m != "mdlm" else "test-mdlm-1"] for m in TIMED}
        hour = {m: [f"testhour-{m}"] for m in HOUR}
        chr20 = {m: [f"testchr20-{m}"] for m in ELSEWHERE}
        compared = {
            "equal tokens": tokens,
            "equal minutes": minutes,
            "one hour": hour,
            "human chr20": chr20,
        }
        parts = [self.comparison(title, pieces) for title, pieces in compared.items()]
        return "\n\n".join(
            filter(None, [*parts[:1], self.speed_table(), *parts[1:], self.long_table()])
        )

    def comparison(self, title: str, pieces: dict[str, list[str]]) -> str:
        """One row for each model, averaged over its finished test pieces; empty unless two models
        are finished."""
        finished = {
            model: [n for n in names if n in self.kept and self.kept.arrays_path(n).is_file()]
            for model, names in pieces.items()
        }
        means = {model: self.mean(names) for model, names in finished.items() if names}
        if len(means) < 2:
            return ""
        rows = []
        for model, own in means.items():
            runs = [self.kept[name] for name in finished[model]]
            seeds = ", ".join(f"{run['test']['groups']['all']['bits']:.4f}" for run in runs)
            against = [
                ecoli_objectives.interval(own.minus(means[name]))
                if name in means and name != model
                else ""
                for name in ("mdlm", "ar")
            ]
            bits = own.mean()
            shown = (
                f"{bits.value / math.log(2):.4f} ({bits.low / math.log(2):.4f} to "
                f"{bits.high / math.log(2):.4f})"
            )
            novel = (
                f"{own.mean('novel').value / math.log(2):.4f}"
                if own.tokens.get("novel", np.zeros(1)).any()
                else ""
            )
            rows.append(
                [
                    model,
                    shown,
                    novel,
                    seeds,
                    *against,
                    f"{runs[0]['training']['tokens'] / 1e6:.1f} M",
                ]
            )
        return study.markdown(
            [title, "bits per base", "novel", "by seed", "minus mdlm", "minus ar", "tokens"], rows
        )

    def speed_table(self) -> str:
        """Training and sampling times; empty without a `speed` piece."""
        rows = []
        for model in (m for m in MODELS if f"speed-{m}" in self.kept):
            speed = self.kept[f"speed-{model}"]
            fast = [f"{speed['training']['own'] / speed['training']['mdlm']:.2f}"]
            for batch in self.size["batches"]:
                sampled = speed["sampling"][str(batch)]
                fast.append(
                    f"{sampled['seconds']:.1f} ({sampled['ar_seconds'] / sampled['seconds']:.2f})"
                )
            rows.append(
                [
                    model,
                    *fast,
                    str(speed["sampling"][str(self.size["batches"][0])]["nfe"]),
                    speed.get("weights", ""),
                ]
            )
        header = [
            "model",
            "training tokens/s, mdlm = 1",
            *(f"seconds for {b} (times as fast as ar)" for b in self.size["batches"]),
        ]
        return study.markdown([*header, "calls", "weights"], rows) if rows else ""

    def long_table(self) -> str:
        """Long sequences: time and memory; empty without a `long` piece."""
        found = {
            name: self.kept[name]
            for name in self.pieces
            if name.startswith("long-") and name in self.kept
        }
        rows = [
            [name, f"{r['length']:,}", f"{r['seconds']:.0f}", f"{r['peak_mb']:.0f}"]
            for name, piece in found.items()
            for r in piece["rows"]
        ]
        return study.markdown(["blocks", "bases", "seconds", "peak MB"], rows) if rows else ""

    def tests(self, model: str) -> list[str]:
        return [n for seed in SEEDS.get(model, (1,)) if (n := f"test-{model}-{seed}") in self.kept]

    def mean(self, pieces: Sequence[str]) -> Scores:
        """The scores of each window, averaged over pieces."""
        found = [Scores.load(self.kept.arrays_path(name)) for name in pieces]
        nats = {group: np.mean([each.nats[group] for each in found], 0) for group in found[0].nats}
        return replace(found[0], nats=nats)


_FEW_CALLS = (
    "sampler=block",
    "sampler.sampler.num_groups=4",
)  # of each block: a million bases at 2 % lost structure would take an hour
_MEASURED = """
import importlib, json, sys
from pathlib import Path
from dnadiff.training.memory import peak_memory
importlib.import_module(sys.argv.pop(1)).main()
run = next(a.partition("=")[2] for a in sys.argv if a.startswith("checkpoint="))
(Path(run) / "long.json").write_text(json.dumps(peak_memory() / 2**20))
"""


def shape(data: Sequence[str]) -> tuple[int, int]:
    """Sequences of a batch, and their length."""
    batch, length = (
        int(next(a.partition("=")[2] for a in data if a.startswith(f"data.{key}=")))
        for key in ("batch_size", "length")
    )
    return batch, length


def training_step(loaded: Loaded, data: list[str]) -> tuple[Callable[[], None], int]:
    """One step of AdamW on random tokens, and the tokens of it."""
    batch, length = shape(data)
    emitted = torch.tensor(loaded.process.vocab.emitted)
    x0 = emitted[
        torch.randint(len(emitted), (batch, length), generator=torch.Generator().manual_seed(0))
    ]
    denoiser, objective = loaded.denoiser.train(), loaded.objective
    optimizer, weight = AdamW(denoiser.parameters(), lr=0.0), torch.ones(batch, length)

    def step() -> None:
        optimizer.zero_grad()
        objective(denoiser, x0, weight, Draws.for_batch(0, batch)).loss.backward()
        optimizer.step()

    return step, batch * length


def elapsed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    study.run_study(Study, __doc__, "runs/ecoli_blocks", FULL, QUICK)
