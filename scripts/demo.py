"""What a user can do with dnadiff in ten minutes, with the command lines that one would type, and a
page, report.html.

In this order: designs in real flanks, variant effects of a held-out gene, the likelihood compared
with counting models, and fine-tuning, all with the bundled model; then the training of a model of
its own. Every stage fits a total time: the speed of this machine is measured first. A slow machine
gets fewer designs, draws and seeds and a shorter training; what is shortened is printed.
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
from types import SimpleNamespace

import pandas
import torch
from demo_report import Designs, write_demo_page

from dnadiff.data.genome.genome import Genome
from dnadiff.diffusion.denoiser import Conjoined
from dnadiff.formats.nucleotides import text_of
from dnadiff.formats.sequences import read_sequences
from dnadiff.options.base import Result
from dnadiff.progress import duration
from dnadiff.report import evaluate, suite, train
from dnadiff.weights.checkpoint import load

GENOME = "bundled:ecoli_K12_MG1655.fa.gz"
RECORD = "U00096.3"
UPSTREAM, GENE_START = (
    60,
    3_716_546,
)  # bases before the first one (0-based) of b3552, in the part that the bundled model has not seen
WINDOW, NUM_GROUPS = 512, 32  # of the designs
TEST_TOKENS = 464_165
TASK_LENGTH = 200
FINETUNE_TOKENS = 4_000 * TASK_LENGTH  # of a seed: 2,000 windows per class
LONG = 1024
TRAINING_SHARE = 0.3  # of the total time: below that, the other stages are shortened first
RESERVE = 0.05  # of the remaining time, for what the predictions miss
RECIPE = (
    "scratch=false",
    "head=mean",
    "inputs.one_hot=false",
    "epochs=1",
    "head_epochs=0",
    "lr=5e-4",
    "layer_decay=1",
)  # of fine-tuning: the default trains for longer


@dataclass(frozen=True)
class Settings:
    """How much the stages before training do."""

    num_designs: int = 32
    num_bases: int = 120
    num_draws: int = 4
    conjoin: bool = True
    seeds: int = 3

    def shortened(self, full: Settings) -> list[str]:
        """What is less than in the full demo, in words."""
        said = [
            (
                self.num_designs < full.num_designs,
                f"{self.num_designs} designs instead of {full.num_designs}",
            ),
            (
                self.num_bases < full.num_bases,
                f"{self.num_bases} bases of the gene instead of {full.num_bases}",
            ),
            (
                self.num_draws < full.num_draws,
                f"{self.num_draws} draws per window instead of {full.num_draws}",
            ),
            (self.conjoin < full.conjoin, "one strand instead of both conjoined"),
            (
                self.seeds < full.seeds,
                f"{self.seeds} seed{'s' * (self.seeds > 1)} of fine-tuning instead of {full.seeds}",
            ),
        ]
        return [words for less, words in said if less]


# From the full demo to the shortest: what costs time and adds least goes first.
LADDER = (
    Settings(),
    Settings(seeds=2),
    Settings(seeds=2, num_draws=2),
    Settings(seeds=1, num_draws=2, num_designs=16),
    Settings(seeds=1, num_draws=2, num_designs=16, conjoin=False),
    Settings(seeds=1, num_draws=2, num_designs=16, conjoin=False, num_bases=60),
    Settings(seeds=1, num_draws=2, num_designs=8, conjoin=False, num_bases=30),
)


@dataclass(frozen=True)
class Speed:
    """What was measured on this machine.

    Args:
        start: seconds in which the trial started, read the genome and ended.
        training: tokens per second of training.
        forward: tokens per second through the bundled network without gradients.
        short: tokens per second forward and backward in a batch of fine-tuning.
    """

    start: float
    training: float
    forward: float
    short: float

    def designing(self, settings: Settings) -> float:
        """Seconds of `sample`."""
        return self.start + settings.num_designs * WINDOW * NUM_GROUPS / self.forward

    def variants(self, settings: Settings) -> float:
        """Seconds of `variants`: each site is masked on both strands."""
        return self.start + 2 * settings.num_bases * LONG / self.forward

    def evaluation(self, settings: Settings) -> float:
        """Seconds of `evaluate`: besides the draws, Markov models, the 24-mers of the training part
        and the curve of code lengths."""
        passes = settings.num_draws * (2 if settings.conjoin else 1)
        return 2.5 * self.start + passes * TEST_TOKENS / self.forward

    def finetuning(self, settings: Settings) -> float:
        """Seconds of `finetune`: training, the predictions of validation and test windows, and the
        k-mer baseline."""
        return 2.0 * self.start + settings.seeds * 1.3 * FINETUNE_TOKENS / self.short

    @property
    def own_evaluation(self) -> float:
        """Seconds of `evaluate` with two draws for the small network, which is at least twice as
        fast without gradients."""
        return 2.5 * self.start + TEST_TOKENS / self.training

    @property
    def report(self) -> float:
        """Seconds of the report."""
        return self.start


def choose(
    available: float,
    stages: Sequence[Callable[[Settings], float]],
    ladder: Sequence[Settings] = LADDER,
) -> Settings:
    """The most complete settings whose remaining stages take at most `available` seconds, or else
    the shortest."""
    return next((s for s in ladder if sum(stage(s) for stage in stages) <= available), ladder[-1])


def at_most(settings: Settings) -> list[Settings]:
    """The settings of the ladder that are no more than `settings`."""
    return list(LADDER[LADDER.index(settings) :])


def command(name: str, *args: str) -> str:
    """Run one command and return its command line; exits if it fails."""
    line = f"python -m dnadiff.{name} {' '.join(args)}"
    print(f"\n$ {line}", flush=True)
    status = subprocess.run(
        [sys.executable, "-m", f"dnadiff.{name}", *args], check=False
    ).returncode
    if status:
        raise SystemExit(status)
    return line


def measure(folder: Path) -> Speed:
    """The speed of this machine, from a short training run in `folder` and from the bundled
    network."""
    begin = time.monotonic()
    command(
        "train",
        "experiment=ecoli_demo",
        "trainer.max_steps=80",
        "data.max_valid_windows=16",
        f"hydra.run.dir={folder}",
    )
    took = time.monotonic() - begin
    rows = pandas.read_csv(folder / "metrics.csv").dropna(subset=["train_loss"])
    tokens = rows["tokens"].to_numpy()
    seconds = rows["seconds"].to_numpy()
    half = len(tokens) // 2  # the first steps are slower: memory is allocated and caches are cold
    training = (tokens[-1] - tokens[half]) / (seconds[-1] - seconds[half])
    loaded = load("ecoli")
    mask_id = loaded.tokenizer.vocab.mask_id
    backbone = loaded.denoiser.backbone
    windows = torch.full((4, LONG), mask_id)
    batch = torch.full((16, TASK_LENGTH), mask_id)
    conjoined = Conjoined(loaded.denoiser, loaded.tokenizer.vocab)
    with torch.no_grad():
        forward = (
            2 * windows.numel() / seconds_of(lambda: conjoined.log_probs(windows), 4)
        )  # both strands are read
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


def run_stages(folder: Path, budget: float, start: float) -> tuple[list[str], list[str], Speed]:
    """Run all commands within `budget` seconds of `start`; returns their command lines, what was
    shortened, and the measured speed."""

    def remaining() -> float:
        return (1 - RESERVE) * (budget - (time.monotonic() - start))

    print("Measuring the speed of this machine")
    speed = measure(folder / "speed")
    model = "checkpoint=ecoli"
    where = f"hydra.run.dir={folder}"
    end = GENE_START
    stages = [speed.designing, speed.variants, speed.evaluation, speed.finetuning]
    done: list[Settings] = []

    def choice() -> Settings:
        """The settings of the next stage, for what is left of the time."""
        left = remaining() - speed.report - TRAINING_SHARE * budget
        done.append(choose(left, stages[len(done) :], at_most(done[-1]) if done else LADDER))
        return done[-1]

    folder.joinpath("upstream.bed").write_text(
        f"{RECORD}\t{end - UPSTREAM}\t{end}\n", encoding="utf-8"
    )
    designs = (
        f"infill={folder / 'upstream.bed'}",
        f"genome={GENOME}",
        f"length={WINDOW}",
        f"sampler.num_groups={NUM_GROUPS}",
    )
    lines = [
        command(
            "sample",
            model,
            f"num_samples={choice().num_designs}",
            *designs,
            f"output={folder / 'designs.fa'}",
            where,
        )
    ]
    region = f"saturate={RECORD}:{end + 1}-{end + choice().num_bases}"
    files = f"output={folder / 'variants.tsv'}", f"report={folder / 'variants.html'}"
    lines.append(command("variants", model, region, f"genome={GENOME}", *files, where))
    draws = (f"num_draws={choice().num_draws}", f"conjoin={str(done[-1].conjoin).lower()}")
    lines.append(
        command(
            "evaluate",
            model,
            "orders=[0,2,3,6,9,12]",
            *draws,
            f"output={folder / 'evaluate.json'}",
            where,
        )
    )
    seeds = f"seeds={choice().seeds}"
    lines.append(
        command(
            "finetune",
            model,
            "task=ecoli_coding",
            seeds,
            *RECIPE,
            f"hydra.run.dir={folder / 'finetune'}",
        )
    )
    seconds = remaining() - speed.report - speed.own_evaluation - speed.start
    steps = max(100, round(0.97 * seconds * speed.training / (16 * 512)))  # 3 % for validation
    print(f"\n{duration(max(seconds, 0))} of training, {steps:,} steps")
    lines.append(
        command(
            "train",
            "experiment=ecoli_demo",
            f"trainer.max_steps={steps}",
            f"hydra.run.dir={folder / 'train'}",
        )
    )
    draws = ("num_draws=2", "orders=[0,3,6]", f"output={folder / 'train' / 'evaluate.json'}")
    lines.append(
        command(
            "evaluate",
            f"checkpoint={folder / 'train'}",
            *draws,
            f"hydra.run.dir={folder / 'train'}",
        )
    )
    used = Settings(
        done[0].num_designs, done[1].num_bases, done[2].num_draws, done[2].conjoin, done[3].seeds
    )
    return lines, used.shortened(LADDER[0]), speed


def designs_in(folder: Path) -> Designs:
    """The designs that `sample` wrote, with the window of the genome around them."""
    center = GENE_START - UPSTREAM // 2
    low = center - WINDOW // 2
    genome = Genome(GENOME)
    real = load("ecoli").tokenizer.decode(genome.window(RECORD, low, low + WINDOW))
    sequences = [text_of(record.sequence) for record in read_sequences(folder / "designs.fa")]
    first = GENE_START - UPSTREAM - low
    return Designs(
        sequences,
        real,
        first,
        first + UPSTREAM,
        f"{RECORD}:{GENE_START - UPSTREAM + 1:,}-{GENE_START:,}",
    )


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="total time, without installation (default: %(default)s)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="folder for the results (default: runs/demo/<date_time>)",
    )
    options = parser.parse_args()
    start = time.monotonic()
    folder = options.folder or Path("runs/demo") / time.strftime("%Y-%m-%d_%H-%M-%S")
    if folder.exists():
        raise SystemExit(f"error: {folder} exists; choose another --folder")
    if not options.minutes > 0:
        raise SystemExit(f"error: --minutes {options.minutes} must be positive")
    lines, shortened, speed = run_stages(folder, 60 * options.minutes, start)

    def content(*parts: str) -> dict:
        return json.loads(folder.joinpath(*parts).read_text(encoding="utf-8"))

    made = Result(content("train", "metrics.json"), (folder / "train",))
    parts = [
        evaluate.page(Result(content("evaluate.json")), None),
        suite.page_of([content("finetune", "finetune.json")]),
        train.page(made, SimpleNamespace(seed=1)),
        evaluate.page(Result(content("train", "evaluate.json")), None),
    ]
    effects = pandas.read_csv(folder / "variants.tsv", sep="\t")
    write_demo_page(folder / "report.html", designs_in(folder), effects, parts, lines)
    print("\n" + "\n".join(f"{part.title}: {part.sentence}" for part in parts))
    training = made.content
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // (
        1 << 20 if sys.platform == "darwin" else 1 << 10
    )
    total = duration(time.monotonic() - start)
    per_second = training["tokens_per_second"]
    print(
        f"\n{total} in total; training {duration(training['seconds'])}, {per_second:,} tokens/s "
        f"(predicted {speed.training:,.0f})"
    )
    if shortened:
        print(
            f"shortened to fit {options.minutes:g} minutes on this machine: {'; '.join(shortened)}"
        )
    print(f"peak memory of one command: {peak:,} MB")
    print(f"report: {folder / 'report.html'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
