"""Pretrain, evaluate, sample and fine-tune on the bundled genome with the command lines that a user would type, and write report.html.

Every stage fits a total time: the speed of this machine is measured first, and again by every stage that ends. A slow machine gets fewer
draws, samples and seeds and a shorter training; what is shortened is printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dnadiff.checkpoint import load
from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.genome.fasta import read_fasta
from dnadiff.data.splits import FractionSplit
from dnadiff.likelihood.strand import Conjoined
from dnadiff.progress import duration, table
from dnadiff.report import RunResults, headlines, read_metrics, save_overview, sentences, write_report

TEST_TOKENS = 464_165
TASK_LENGTH = 200
FINETUNE_TOKENS = 2 * 4_000 * TASK_LENGTH  # a seed trains two networks (fine-tuned, from scratch) on 2,000 windows per class
SAMPLE_LENGTH, NUM_GROUPS = 512, 64
LONG = 4096
TRAINING_SHARE = 0.42  # of the total time: below that, the other stages are shortened first
RESERVE = 0.05  # of the remaining time, for what the predictions miss


@dataclass(frozen=True)
class Settings:
    """How much the stages after training do."""

    num_draws: int = 8
    conjoin: bool = True
    num_samples: int = 200
    seeds: int = 5

    def shortened(self, full: Settings) -> list[str]:
        """What is less than in the full demo, in words."""
        said = [
            (self.num_draws < full.num_draws, f"{self.num_draws} draws per window instead of {full.num_draws}"),
            (self.conjoin < full.conjoin, "one strand instead of both conjoined"),
            (self.num_samples < full.num_samples, f"{self.num_samples} samples instead of {full.num_samples}"),
            (self.seeds < full.seeds, f"{self.seeds} seed{'s' * (self.seeds > 1)} of fine-tuning instead of {full.seeds}"),
        ]
        return [words for less, words in said if less]


# From the full demo to the shortest: what costs time and adds least goes first.
RECIPE = ("epochs=1", "lr=5e-4", "lr_scratch=2e-3", "layer_decay=1")  # of fine-tuning: the default trains for longer
LADDER = (
    Settings(),
    Settings(seeds=3),
    Settings(seeds=3, num_samples=100),
    Settings(seeds=2, num_samples=100, num_draws=4),
    Settings(seeds=1, num_samples=100, num_draws=4),
    Settings(seeds=1, num_samples=50, num_draws=2),
    Settings(seeds=1, num_samples=50, num_draws=2, conjoin=False),
)


@dataclass(frozen=True)
class Speed:
    """What was measured on this machine.

    Args:
        start: seconds in which the trial started, read the genome and ended.
        training: tokens per second of training.
        forward: tokens per second through the network without gradients.
        short: tokens per second forward and backward in a batch of fine-tuning.
    """

    start: float
    training: float
    forward: float
    short: float

    def evaluation(self, settings: Settings) -> float:
        """Seconds of `evaluate`: besides the draws, Markov models, the 24-mers of the training part and the curve of code lengths."""
        passes = settings.num_draws * (2 if settings.conjoin else 1)
        return 2.5 * self.start + passes * TEST_TOKENS / self.forward

    def sampling(self, settings: Settings) -> float:
        """Seconds of `sample`."""
        return self.start + settings.num_samples * SAMPLE_LENGTH * NUM_GROUPS / self.forward

    def finetuning(self, settings: Settings) -> float:
        """Seconds of `finetune`: training, the predictions of validation and test windows, and the k-mer baseline."""
        return 2.0 * self.start + settings.seeds * 1.3 * FINETUNE_TOKENS / self.short

    @property
    def report(self) -> float:
        """Seconds of the report."""
        return self.start


def choose(available: float, stages: Sequence[Callable[[Settings], float]], ladder: Sequence[Settings] = LADDER) -> Settings:
    """The most complete settings whose remaining stages take at most `available` seconds, or else the shortest."""
    return next((s for s in ladder if sum(stage(s) for stage in stages) <= available), ladder[-1])


def at_most(settings: Settings) -> list[Settings]:
    """The settings of the ladder that are no more than `settings`."""
    return list(LADDER[LADDER.index(settings) :])


def command(name: str, *args: str) -> str:
    """Run one command and return its command line; exits if it fails."""
    line = f"python -m dnadiff.{name} {' '.join(args)}"
    print(f"\n$ {line}", flush=True)
    status = subprocess.run([sys.executable, "-m", f"dnadiff.{name}", *args], check=False).returncode
    if status:
        raise SystemExit(status)
    return line


def measure(folder: Path) -> Speed:
    """The speed of this machine, from a short training run in `folder` and from its network."""
    begin = time.monotonic()
    command("train", "experiment=ecoli_demo", "trainer.max_steps=80", "data.max_valid_windows=16", f"hydra.run.dir={folder}")
    took = time.monotonic() - begin
    rows = read_metrics(folder / "metrics.csv")
    done = rows["train_loss"] == rows["train_loss"]  # not NaN: rows of training
    tokens, seconds = rows["tokens"][done], rows["seconds"][done]
    half = len(tokens) // 2  # the first steps are slower: memory is allocated and caches are cold
    training = (tokens[-1] - tokens[half]) / (seconds[-1] - seconds[half])
    loaded = load(folder)
    mask_id, backbone = loaded.tokenizer.vocab.mask_id, loaded.denoiser.backbone
    windows, batch = torch.full((4, LONG), mask_id), torch.full((16, TASK_LENGTH), mask_id)
    conjoined = Conjoined(loaded.denoiser, loaded.tokenizer.vocab)
    with torch.no_grad():
        forward = 2 * windows.numel() / seconds_of(lambda: conjoined.log_probs(windows), 4)  # both strands are read
    short = batch.numel() / seconds_of(lambda: backbone(batch).logsumexp(-1).sum().backward(), 20)
    return Speed(took - seconds[-1], float(training), forward, short)


def seconds_of(call: Callable[[], object], times: int) -> float:
    """The median duration of a call, after a first one that is not counted."""
    taken = []
    for _ in range(times + 1):
        begin = time.monotonic()
        call()
        taken.append(time.monotonic() - begin)
    return statistics.median(taken[1:])


def real_windows(length: int) -> list[str]:
    """The windows of the held-out region as strings."""
    data = GenomeDataModule("bundled:ecoli_K12_MG1655.fa.gz", length, 16, FractionSplit(test=(0.8, 0.9), valid=(0.9, 1.0)))
    tiles = data.test_windows("test")
    return [data.tokenizer.decode(tiles[i]["ids"].numpy()) for i in range(len(tiles) - 1)]


def run_stages(folder: Path, budget: float, start: float) -> tuple[list[str], list[str], Speed]:
    """Run all commands within `budget` seconds of `start`; returns their command lines, what was shortened, and the measured speed."""

    def remaining() -> float:
        return (1 - RESERVE) * (budget - (time.monotonic() - start))

    print("Measuring the speed of this machine")
    speed = measure(folder / "speed")
    stages = [speed.evaluation, speed.sampling, speed.finetuning]
    settings = choose(remaining() - speed.report - TRAINING_SHARE * budget, stages)
    seconds = remaining() - speed.report - sum(stage(settings) for stage in stages) - speed.start
    steps = max(100, round(0.97 * seconds * speed.training / (16 * SAMPLE_LENGTH)))  # 3 % for validation
    print(f"\n{duration(seconds)} of training, {steps:,} steps")
    lines = [command("train", "experiment=ecoli_demo", f"trainer.max_steps={steps}", f"hydra.run.dir={folder / 'train'}")]
    run, where = f"checkpoint={folder / 'train'}", f"hydra.run.dir={folder}"
    settings = choose(remaining() - speed.report, stages, at_most(settings))
    # Longer windows give the network more context. On the validation part, with the run of an earlier demo: 1.9277 bits at 512, 1.9267 at
    # 1,024, 1.9258 at 2,048, 1.9252 at 4,096, 1.9246 at 8,192 (se_mc .001 to .002); 8,192 leaves so few windows that the interval widens.
    # Conjoining both strands improved another run from 1.9296 to 1.9280 at 4,096.
    conjoin = f"conjoin={str(settings.conjoin).lower()}"
    draws = f"num_draws={settings.num_draws}"
    lines.append(command("evaluate", run, "orders=[0,2,3,6,9,12]", draws, f"length={LONG}", conjoin, where))
    evaluated = settings
    settings = choose(remaining() - speed.report, stages[1:], at_most(settings))
    sampled = (f"num_samples={settings.num_samples}", f"length={SAMPLE_LENGTH}", f"sampler.num_groups={NUM_GROUPS}")
    lines.append(command("sample", run, *sampled, f"output={folder / 'samples.fa'}", where))
    num_samples = settings.num_samples
    settings = choose(remaining() - speed.report, stages[2:], at_most(settings))
    lines.append(command("finetune", run, "task=ecoli_coding", f"seeds={settings.seeds}", *RECIPE, f"hydra.run.dir={folder / 'finetune'}"))
    done = Settings(evaluated.num_draws, evaluated.conjoin, num_samples, settings.seeds)
    return lines, done.shortened(LADDER[0]), speed


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="total time, without installation (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the results (default: runs/demo/<date_time>)")
    options = parser.parse_args()
    start = time.monotonic()
    folder = options.folder or Path("runs/demo") / time.strftime("%Y-%m-%d_%H-%M-%S")
    if folder.exists():
        raise SystemExit(f"error: {folder} exists; choose another --folder")
    if not options.minutes > 0:
        raise SystemExit(f"error: --minutes {options.minutes} must be positive")
    lines, shortened, speed = run_stages(folder, 60 * options.minutes, start)

    results = RunResults(
        metrics=read_metrics(folder / "train" / "metrics.csv"),
        evaluation=json.loads((folder / "evaluate.json").read_text(encoding="utf-8")),
        samples=[r.sequence for r in read_fasta(folder / "samples.fa")],
        real=real_windows(SAMPLE_LENGTH),
        finetune=json.loads((folder / "finetune" / "finetune.json").read_text(encoding="utf-8")),
    )
    training = json.loads((folder / "train" / "metrics.json").read_text(encoding="utf-8"))
    details = {"tokens seen in training": training["tokens"], "tokens per second": training["tokens_per_second"]}
    write_report(folder / "report.html", results, details=details, commands=lines)
    save_overview(folder / "overview.png", results)

    rows = [(h.name, h.value, h.interval) for h in headlines(results)]
    print("\n" + table(rows, ("result", "value", "95 % interval")))
    print("\n" + "\n".join(sentences(results)))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)
    total, per_second = duration(time.monotonic() - start), training["tokens_per_second"]
    print(f"\n{total} in total; training {duration(training['seconds'])}, {per_second:,} tokens/s (predicted {speed.training:,.0f})")
    if shortened:
        print(f"shortened to fit {options.minutes:g} minutes on this machine: {'; '.join(shortened)}")
    print(f"peak memory of one command: {peak:,} MB")
    print(f"report: {folder / 'report.html'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
