"""Wrong use: every key of every command gets values that it cannot take, and is misspelled.

    python scripts/reliability/wrong_use.py [--command NAME] [--key KEY] [--value VALUE] [--json
    FILE]

The keys come from the YAML files: all leaves of the composed configuration of a command, with every
choice of every config group that it reads. A key of a class (`_target_`) is tested once for each
command and class. A wrong value must end in one line on standard error, `error: ...`, that names
the key, with nothing written; a value that is accepted must be listed in `VALID`. Keys of Hydra
itself are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import itertools
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases

SECONDS, WARM_UP = (
    60.0,
    120.0,
)  # a refusal or a tiny run takes less; the first of a command imports its libraries
# Type errors, and values out of range. Each is what follows `KEY=` on the command line.
VALUES = {
    "word": "banana",
    "missing file": "absent/banana.x",
    "empty": "''",
    "list": "[banana,1.5]",
    "mapping": "{banana: 1}",
    "boolean": "true",
    "fraction": "1.5",
    "zero": "0",
    "negative": "-1",
    "huge": str(10**30),
    "nan": "nan",
    "infinite": "inf",
}
CONTROL, MISSPELLED = "unchanged", "misspelled"
COUNTS = {"tried": 0, "refused": 0, "accepted": 0, "wrong": 0}
# Values that are valid: commands, keys, kinds of value and the reason.
VALID: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("*", "seed *.seed", ("zero",), "any integer from 0"),
    ("*", "*num_workers", ("zero",), "no process of its own"),
    ("*", "output windows results", ("word", "missing file"), "a file that does not exist yet"),
    ("*", "*.name", ("word", "missing file"), "any name"),
    ("*", "trust", ("word",), "a package"),
    (
        "*",
        "data.max_n data.soft_weight data.label_dropout *.dropout",
        ("zero",),
        "a fraction from 0 to 1",
    ),
    ("*", "data.augment_rc data.insert_*", ("boolean",), "true or false, for null"),
    (
        "*",
        "data.hub.* tokenizer.revision",
        ("word", "missing file"),
        "of the Hub, which the local file replaces",
    ),
    (
        "*",
        "data.download.sha256",
        ("word", "missing file"),
        "of a download, which the local file replaces",
    ),
    ("*", "data.column", ("word", "missing file"), "of tables; the file is not one"),
    (
        "*",
        "data.split.test data.split.valid data.split.guard",
        ("zero",),
        "number of a block, or no guard",
    ),
    (
        "train",
        "objective.masking.t_min noise.eps noise.sigma_min",
        ("zero",),
        "the limit without a cut",
    ),
    (
        "train",
        "noise.sigma_min noise.sigma_max noise.exponent noise.shift",
        ("fraction",),
        "any positive number",
    ),
    ("train", "noise.shift", ("zero", "negative"), "any shift"),
    (
        "train",
        "optimizer.lr optimizer.eps trainer.gradient_clip_val",
        ("zero", "fraction"),
        "any number from 0",
    ),
    ("*", "weight_decay", ("zero", "fraction"), "any number from 0"),
    ("finetune", "baselines.CNN.lr", ("fraction",), "any rate above 0"),
    ("finetune", "mixup", ("zero", "fraction"), "any number from 0"),
    ("finetune", "adapter.alpha", ("fraction",), "any number above 0"),
    ("finetune", "warmup task.expected.*", ("zero",), "none"),
    (
        "finetune",
        "task.genome task.fly_genome task.mouse_genome",
        ("word", "missing file"),
        "of intervals; the file is a table",
    ),
    ("finetune", "task.start", ("zero",), "the first base"),
    (
        "finetune",
        "baselines.-10/-35 weight matrix.spacer_penalty",
        ("zero", "fraction"),
        "any number from 0",
    ),
    ("finetune", "task.inside task.outside", ("word", "missing file"), "any name"),
    (
        "train",
        "optimizer.fused time_conditioning backbone.time_conditioning",
        ("boolean",),
        "true or false, for null",
    ),
    (
        "train",
        "lr_scheduler.warmup lr_scheduler.final lr_scheduler.warmup_steps callbacks.ema.decay",
        ("zero",),
        "none",
    ),
    ("*", "*.temperature sampler.bound", ("fraction",), "any number above 0"),
    ("*", "sampler.bound sampler.remasking.eta", ("zero",), "one token per call, or no remasking"),
    ("judge", "order", ("zero",), "letter frequencies"),
    ("judge", "stranded", ("boolean",), "true or false, for null"),
    (
        "judge_text",
        "sampler.sizes",
        ("word", "missing file"),
        "not used; the texts come from a file",
    ),
    (
        "judge_text",
        "sampler.temperature sampler.nucleus",
        ("zero", "negative", "fraction"),
        "not used; the texts come from a file",
    ),
    ("sample", "beta", ("zero", "fraction"), "any number from 0"),
    ("sample", "target", ("zero", "negative", "fraction"), "any number"),
    ("sample", "num_draws", ("zero",), "no bounds"),
    ("sample", "method.threshold reward.threshold", ("zero",), "a fraction from 0 to 1"),
    ("sample", "reward.motif reward.enzymes", ("word",), "IUPAC letters"),
    ("sample", "prompt", ("word",), "the tokens of the model's alphabet"),
    ("*", "tokenizer.characters", ("word", "missing file"), "an alphabet"),
    ("export", "name data_license", ("word", "missing file"), "any words"),
    ("export", "license", ("word",), "an identifier"),
    ("evaluate", "target_se", ("fraction",), "any number above 0"),
    ("compare", "conjoin", ("boolean",), "true or false, or a list of models"),
    ("*", "data.label", ("word", "missing file"), "a label that headers may have"),
    (
        "evaluate compare",
        "tokenizer.source tokenizer.mask tokenizer.pad tokenizer.bos tokenizer.eos tokenizer.unk",
        tuple(VALUES),
        "the model's own is used",
    ),
    ("train", "backbone.num_labels", ("zero",), "no labels"),
    ("*", "launcher.gpus", ("zero", "fraction"), "any number from 0"),
    ("*", "launcher.cpus", ("fraction",), "any number above 0"),
    ("*", "launcher.retries", ("zero",), "none"),
    (
        "train",
        "objective.masked objective.replaced objective.masking.low",
        ("zero",),
        "a fraction from 0 to 1",
    ),
    ("train", "objective.next_token_weight", ("zero", "fraction"), "any number from 0"),
    (
        "train",
        "objective.masking.alpha objective.masking.beta",
        ("fraction",),
        "any number above 0",
    ),
)
# Valid values that take minutes.
SLOW = (
    ("*", "*.compile", ("boolean",), "compiles the network"),
    ("*", "launcher.address", ("word", "missing file"), "looks for a cluster"),
)


@dataclass(frozen=True)
class Cell:
    """One wrong use.

    Args:
        command: name of the command.
        key: dotted key.
        kind: what is wrong, a key of `VALUES` or `misspelled`.
        choice: the choice of a group that the key needs, as in `backbone=dit`.
        valid: the reason why the value may be accepted; None if it must be refused.
    """

    command: str
    key: str
    kind: str
    choice: str = ""
    valid: str | None = None

    @property
    def override(self) -> str:
        """The wrong argument; empty for the command line without one."""
        if self.kind == CONTROL:
            return ""
        if self.kind == MISSPELLED:
            parent, _, last = self.key.rpartition(".")
            return f"{parent}{'.' * bool(parent)}{last}z=1"
        return f"{self.key}={VALUES[self.kind]}"


@dataclass(frozen=True)
class Outcome:
    """What came of it. `verdict` is `refused`, `accepted` or what is wrong."""

    cell: Cell
    verdict: str
    line: str
    seconds: float

    @property
    def is_wrong(self) -> bool:
        """Whether the command failed the test."""
        return self.verdict not in ("refused", "accepted")


# What the choice of a group needs to work on the tiny input, in place of the case's own arguments
# under that group.
NETWORK = ("backbone.d_model=16", "backbone.n_layers=1")
WINDOWS = ("data.length=32", "data.batch_size=4", "data.max_valid_windows=4")
EPOCH = "data.epoch_size=40"
GENOME, BOOK = "data.path={world}/genome.fa.gz", "data.path={world}/book.txt"
SAMPLED = ("~samples", "num_samples=2")  # by the sampler, not from a file
PARTS = "data.path={train: '{world}/book.txt', valid: '{world}/book.txt', test: '{world}/book.txt'}"
TABLE = "task.path={world}/labels.csv"
# By command and choice; the first that matches. A `~` leaves out an argument of the case.
NEEDS = {
    "* launcher=*": ("launcher.shards=1", "~resume"),
    "train backbone=dit": (*NETWORK, "backbone.n_heads=2"),
    "train backbone=transformer": (*NETWORK, "backbone.n_heads=2", "objective=ar"),
    "train backbone=mamba": (*NETWORK, "objective=ar"),
    "train backbone=caduceus*": NETWORK,
    "train backbone/size=*x*": ("~backbone.n_heads", "backbone=caduceus"),
    "train objective=ar": ("backbone=transformer",),
    "train objective/masking=discrete_time": ("objective=d3pm",),
    "train callbacks=clip_search": ("objective/masking=clipped",),
    "train noise=*": ("objective/masking=count",),
    "* data=ecoli": (GENOME, *WINDOWS, EPOCH),
    "* data=fasta": (GENOME, *WINDOWS, EPOCH),
    "* data=hg38": (
        GENOME,
        *WINDOWS,
        EPOCH,
        "data.keep=null",
        "data/split=fraction",
        "data.num_workers=0",
    ),
    "judge data=sequences": ("data.path={world}/many.fa", *WINDOWS),
    "* data=sequences": ("data.path={world}/samples.fa", *WINDOWS, "~data.epoch_size"),
    "train data=lm1b": (
        PARTS,
        *WINDOWS,
        "tokenizer=characters",
        "data.wrap=true",
        "data.valid_documents=null",
        "~data.epoch_size",
    ),
    "train data=ptb": (PARTS, *WINDOWS, EPOCH, "tokenizer=characters"),
    "evaluate data=lm1b": (
        PARTS,
        *WINDOWS,
        "checkpoint={world}/text",
        "tokenizer=characters",
        "data.wrap=true",
        "data.valid_documents=null",
        "~orders",
    ),
    "evaluate tokenizer=bert-base-uncased": (
        "data=text",
        BOOK,
        *WINDOWS,
        "tokenizer.source={world}/vocab.txt",
        "checkpoint={world}/text",
        "~orders",
    ),
    "evaluate data=*": (
        BOOK,
        *WINDOWS,
        "checkpoint={world}/text",
        "tokenizer=characters",
        "~orders",
    ),
    "* data=text": (BOOK, *WINDOWS, EPOCH),
    "* data=ag_news": (
        BOOK,
        *WINDOWS,
        EPOCH,
        "tokenizer=characters",
        "data.path_is=all",
        "data.wrap=true",
        "data.valid_documents=null",
    ),
    "* data=*": (
        BOOK,
        *WINDOWS,
        EPOCH,
        "tokenizer=characters",
        "data.path_is=test",
        "data.wrap=true",
    ),
    "* data/split=chromosomes": (
        "data=fasta",
        "data.path={world}/three.fa",
        *WINDOWS,
        "data.split.valid=[b]",
        "data.split.test=[c]",
    ),
    "* data/split=blocks": (
        "data=fasta",
        GENOME,
        *WINDOWS,
        "data.split.block=200",
        "data.split.guard=4",
    ),
    "* data/split=fraction": ("data=fasta", GENOME, *WINDOWS),
    "* data/split=default": ("data=fasta", GENOME, *WINDOWS),
    "* data/split=*": ("data=fasta", GENOME, *WINDOWS, "data.split.bed={world}/split.bed"),
    "variants variant_method=masked": ("~vcf", "saturate={world}/regions.bed"),
    "sample sampler=ar": ("checkpoint={world}/ar", "~sampler.num_groups", "~output"),
    "judge_text sampler=ar": ("checkpoint={world}/ar", *SAMPLED),
    "sample reward=motif": ("reward.motif=TATAAT", "~sampler.num_groups"),
    "sample reward=restriction_sites": ("reward.enzymes=EcoRI",),
    "sample reward=weighted": ("+reward@reward.terms.gc=gc",),
    "sample reward=predicted": ("reward.checkpoint={world}/classifier", "length=24"),
    "sample method=*": ("reward=gc",),
    "sample sampler=block": ("checkpoint={world}/blocks", "~sampler.num_groups", "length=32"),
    "sample sampler=*": ("~sampler.num_groups",),
    "sample sampler/remasking=*": ("sampler=remdm", "~sampler.num_groups"),
    "sample sampler/cache=*": ("sampler=fast_dllm", "~sampler.num_groups"),
    "judge_text sampler=block": ("checkpoint={world}/text_blocks", *SAMPLED),
    "judge_text sampler=*": ("checkpoint={world}/text", *SAMPLED),
    "judge_text sampler/remasking=*": ("checkpoint={world}/text", "sampler=remdm", *SAMPLED),
    "judge_text sampler/cache=*": ("checkpoint={world}/text", "sampler=fast_dllm", *SAMPLED),
    "* tokenizer=bert-base-uncased": (
        "data=text",
        BOOK,
        *WINDOWS,
        "tokenizer.source={world}/vocab.txt",
    ),
    "* tokenizer=*": ("data=text", BOOK, *WINDOWS),
    "finetune task=ecoli_coding": ("task.max_train=40", "task.length=32"),
    "finetune task=genomic_benchmarks": ("task.path={world}/tasks",),
    "finetune task=emp_*": ("task.path={world}/divided.csv",),
    "finetune task=mouse_*": ("task.path={world}/divided.csv",),
    "finetune task=fasta": ("task.path={a: '{world}/samples.fa', b: '{world}/others.fa'}",),
    "finetune task=ecoli_tss": ("task.path={world}/measured.csv", "task.cluster_kmer=null"),
    "finetune task=ecoli_sigma70": (
        "task.path={world}/measured.csv",
        "task.start=0",
        "task.end=20",
    ),
    "finetune task=*": (TABLE,),
}


def _also_for_compare(
    needs: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """`compare` reads data as `evaluate` does, for two models, and has no Markov models."""
    both = {
        "checkpoint={world}/text": ("a={world}/text", "b={world}/text", "~conjoin"),
        "~orders": (),
    }
    for key, needed in needs.items():
        yield key, needed
        if key.startswith("evaluate "):
            yield (
                key.replace("evaluate", "compare", 1),
                tuple(a for one in needed for a in both.get(one, (one,))),
            )


NEEDS = dict(_also_for_compare(NEEDS))
# Choices that a command must refuse, whatever the values of their keys.
REFUSED = {
    **{
        f"{command} {choice}": "not DNA"
        for command in ("genome",)
        for choice in ("data=[!efhs]*", "tokenizer=*")
    },
    **{
        f"{command} {choice}": "these data are text"
        for command in ("copies", "judge")
        for choice in ("data=[!efhs]*", "tokenizer=*")
    },
    "variants variant_method=log_prob": "a masked diffusion model",
}


def extend_world(world: Path) -> None:
    """More input files, for choices of groups that no case has."""
    letters = [*"abcdefghijklmnopqrstuvwxyz."]
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    (world / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (world / "split.bed").write_text(
        "one\t0\t6000\ttrain\ntwo\t0\t3000\tvalid\ntwo\t3000\t6000\ttest\n", encoding="utf-8"
    )
    draw = random.Random(1)
    (world / "tasks").mkdir(exist_ok=True)
    lines = (world / "labels.csv").read_text(encoding="utf-8").splitlines()
    (world / "tasks" / "demo_human_or_worm.csv").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )
    divided = [
        f"{line},{'split' if n == 0 else ('train', 'valid', 'test')[n % 3]}"
        for n, line in enumerate(lines)
    ]
    (world / "divided.csv").write_text("\n".join(divided) + "\n", encoding="utf-8")
    measured = [
        f"{''.join(draw.choices('ACGT', k=32))},{n % 9 + 0.5},"
        f"{('train', 'test')[n % 3 == 0]},x_bg{n % 8}:9"
        for n in range(80)
    ]
    (world / "measured.csv").write_text(
        "\n".join(["sequence,expression,split,name", *measured]) + "\n", encoding="utf-8"
    )
    records = [f">{name}\n{''.join(draw.choices('ACGT', k=1200))}\n" for name in "abc"]
    (world / "three.fa").write_text("".join(records), encoding="utf-8")
    (world / "many.fa").write_text(
        "".join(f">m{n}\n{''.join(draw.choices('ACGT', k=32))}\n" for n in range(400)),
        encoding="utf-8",
    )
    (world / "others.fa").write_text(
        "".join(f">o{n}\n{''.join(draw.choices('AACGT', k=32))}\n" for n in range(40)),
        encoding="utf-8",
    )


def train_in_blocks(world: Path) -> None:
    """Models for `sampler=block`."""
    settings = (
        *cases.SMALL_RUN,
        *cases.SMALL_NETWORK,
        "objective=block_mdlm",
        "objective.block_size=8",
        "trainer.max_steps=2",
    )
    for name, data in (
        ("blocks", ("data=fasta", f"data.path={world}/genome.fa.gz")),
        ("text_blocks", ("data=text", f"data.path={world}/book.txt")),
    ):
        if not (world / name).exists():
            cases.start("train", [*data, *settings, f"hydra.run.dir={world}/{name}"])


def arguments(case: cases.Case, choice: str) -> tuple[str, ...]:
    """The case's command line with another choice of a group."""
    if not choice or choice.startswith(
        "experiment="
    ):  # experiments set keys of other groups, and have none
        return (choice,) if choice else case.arguments
    group = choice.partition("=")[0]
    needed = next(
        (
            more
            for pattern, more in NEEDS.items()
            if fnmatch.fnmatchcase(f"{case.command} {choice}", pattern)
        ),
        (),
    )
    replaced = {a.lstrip("~").partition("=")[0] for a in (choice, *needed)}
    kept = (
        a
        for a in case.arguments
        if a.partition("=")[0] not in replaced and not a.startswith(f"{group}.")
    )
    return (*kept, choice, *(a for a in needed if not a.startswith("~")))


@dataclass
class Base:
    """A command line that works, and what it composes to."""

    case: cases.Case
    choice: str
    config: Any  # DictConfig
    overrides: list[str]


class Harness:
    """Runs cells in this process, in a folder of input files."""

    def __init__(self, world: Path, folder: Path, seconds: float = SECONDS) -> None:
        self.world, self.out, self.seconds = world, folder / "out", seconds
        self.bases: dict[tuple[str, str], Base] = {}

    def base(self, command: str, choice: str = "") -> Base:
        """The composed command line of a choice; a ValueError if it cannot be composed."""
        from omegaconf import OmegaConf

        from dnadiff.options.command import named
        from dnadiff.options.compose import Composition

        if (command, choice) not in self.bases:
            case = next(c for c in cases.CASES if c.command == command)
            raw = (
                a.replace("{world}", str(self.world)).replace("{out}", str(self.out))
                for a in arguments(case, choice)
            )
            overrides = list(raw)
            composed = Composition(command, named(command).options, overrides).config()
            config = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
            self.bases[command, choice] = Base(case, choice, config, overrides)
        return self.bases[command, choice]

    def keys(self, command: str, choices: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
        """Each key of a command with the first choice that has it, as in `backbone.d_model`,
        `backbone=dit`."""
        from omegaconf import OmegaConf

        seen = set()
        for choice in all_choices(command) if choices is None else choices:
            content = OmegaConf.to_container(self.base(command, choice).config, resolve=False)
            for key, owner in leaves(content):
                if owner not in seen and re.fullmatch(r"[\w.-]+", key):
                    seen.add(owner)
                    yield key, choice

    def cells(self, command: str, choices: Sequence[str] | None = None) -> Iterator[Cell]:
        """Every wrong use of a command, or of some choices of its groups."""
        from omegaconf import OmegaConf

        for choice, keys in itertools.groupby(
            self.keys(command, choices), key=lambda found: found[1]
        ):
            config = self.base(command, choice).config
            yield Cell(command, choice, CONTROL, choice, "a working command line")
            for key, _ in keys:
                for kind in (MISSPELLED, *VALUES):
                    if listed(SLOW, command, key, kind):
                        continue
                    yield Cell(
                        command,
                        key,
                        kind,
                        choice,
                        valid(
                            command,
                            key,
                            kind,
                            OmegaConf.select(config, key, throw_on_missing=False),
                        ),
                    )

    def run_all(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """The outcomes of cells. Where a command line fails without a wrong value, those with one
        show nothing and are left out."""
        failing: set[tuple[str, str]] = set()
        for cell in cells:
            if (cell.command, cell.choice) not in failing:
                outcome = self.run(cell)
                if cell.kind == CONTROL and outcome.verdict != "accepted":
                    failing.add((cell.command, cell.choice))
                yield outcome

    def run(self, cell: Cell) -> Outcome:
        """The outcome of a cell."""
        from dnadiff.options.command import named, report

        base = self.base(cell.command, cell.choice)
        overrides = [*base.overrides, *filter(None, [cell.override])]

        before, line, seconds = (
            time.monotonic(),
            "",
            WARM_UP if cell.kind == CONTROL else self.seconds,
        )
        self.out.mkdir(parents=True)
        printed = io.StringIO()
        try:
            with (
                contextlib.chdir(self.out),
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
                limit(seconds),
            ):
                try:
                    named(cell.command).start(overrides, self.out / "outputs/day/time")
                except TooSlow:
                    line = f"not refused in {seconds:g} s"
                except Exception as error:
                    line = report(error, overrides)
            written = sorted(
                p.relative_to(self.out).as_posix() for p in self.out.rglob("*") if p.is_file()
            )
        finally:
            shutil.rmtree(self.out, ignore_errors=True)
        return Outcome(cell, judge(cell, line, written), line, round(time.monotonic() - before, 3))


class TooSlow(BaseException):
    """Raised in a command that works instead of refusing."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after so many seconds."""

    def stop(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judge(cell: Cell, line: str, written: Sequence[str]) -> str:
    """`refused`, `accepted`, or what is wrong with the outcome."""
    if not line:
        return "accepted" if cell.valid is not None else "accepted, but not listed as valid"
    if not line.startswith("error: ") or "\n" in line:
        return "not one line of an error" if line.startswith("error: ") else line
    if "HYDRA_FULL_ERROR" in line or re.match(r"error: \w*(Error|Exception)(:|$)", line):
        return "an error of Python reaches the user"
    if cell.kind == CONTROL:
        if any(
            fnmatch.fnmatchcase(f"{cell.command} {cell.choice}", pattern) and reason in line
            for pattern, reason in REFUSED.items()
        ):
            return "refused"
        return "the command line without a wrong value fails"
    name = cell.override.partition("=")[0] if cell.kind == MISSPELLED else cell.key
    if not any(
        re.search(rf"(?<!\w){re.escape(n)}(?!\w)", line) for n in (name, name.rpartition(".")[2])
    ):
        return "the key is not named"
    return f"refused after {written[0]} was written" if written else "refused"


def all_choices(command: str) -> list[str]:
    """Every choice of every config group that a command reads; the empty one is the case's own
    command line."""
    from dnadiff.options.command import named
    from dnadiff.options.compose import Composition

    found = Composition(command, named(command).options).choices().items()
    listed = [f"{group}={name}" for group, names in found for name in names]
    return [
        "",
        *sorted(listed, key=lambda choice: choice.startswith("experiment=")),
    ]  # they only set keys of other groups


def leaves(
    content: Mapping[str, Any], prefix: str = "", owner: str = "", local: str = ""
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Dotted keys of everything that is not a mapping, each with the class that it belongs to and
    its name there."""
    if "_target_" in content:
        owner, local = str(content["_target_"]), ""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.", owner, f"{local}{key}.")
        elif prefix or key != "hydra":
            yield prefix + str(key), (owner, local + str(key))


def valid(command: str, key: str, kind: str, default: object) -> str | None:
    """The reason why a value is valid, from `VALID`; None if it must be refused."""
    if kind == "boolean" and isinstance(default, bool):
        return "true or false"
    return listed(VALID, command, key, kind)


def listed(
    rows: Sequence[tuple[str, str, tuple[str, ...], str]], command: str, key: str, kind: str
) -> str | None:
    """The reason in the first row that matches; None if there is none."""
    for commands, keys, kinds, reason in rows:
        of_command = commands == "*" or command in commands.split()
        if (
            of_command
            and kind in kinds
            and any(fnmatch.fnmatchcase(key, pattern) for pattern in keys.split())
        ):
            return reason
    return None


def table(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """One row for each command and key."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for o in outcomes:
        row = rows.setdefault(
            (o.cell.command, o.cell.key),
            {"command": o.cell.command, "key": o.cell.key, **COUNTS, "faults": []},
        )
        row["tried"] += 1
        row["wrong" if o.is_wrong else o.verdict] += 1
        if o.is_wrong:
            row["faults"].append(
                {
                    "argument": o.cell.override,
                    "choice": o.cell.choice,
                    "verdict": o.verdict,
                    "line": o.line,
                }
            )
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if a cell fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", help="only this command")
    parser.add_argument("--key", help="only keys that match, as in 'backbone.*'")
    parser.add_argument(
        "--kind", help=f"only one kind of value: {', '.join((CONTROL, MISSPELLED, *VALUES))}"
    )
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument(
        "--world", type=Path, help="folder of input files and of the cache, kept for the next run"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print every line that a command printed"
    )
    options = parser.parse_args(argv)
    if missing := cases.missing():
        print(f"commands without a case: {', '.join(missing)}")
        return 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wrong_use_")))
        world = (options.world or folder / "world").absolute()
        stack.enter_context(cases.cache_in(world / "cache"))
        if not (world / "samples.dnd").is_file():
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                cases.build_world(world)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            train_in_blocks(world)
        extend_world(world)
        harness, before = Harness(world, folder), time.monotonic()
        outcomes = []
        for command in [c for c in commands_of_the_package() if options.command in (None, c)]:
            cells = [
                c
                for c in harness.cells(command)
                if fnmatch.fnmatchcase(c.key, options.key or "*") and options.kind in (None, c.kind)
            ]
            for outcome in harness.run_all(cells):
                outcomes.append(outcome)
                if outcome.is_wrong or options.verbose:
                    print(
                        f"{command} {outcome.cell.choice} {outcome.cell.override}: "
                        f"{outcome.verdict}: {outcome.line}",
                        flush=True,
                    )
        return report(outcomes, time.monotonic() - before, options.json)


def commands_of_the_package() -> list[str]:
    """The names of all commands."""
    from dnadiff.options.command import command_names

    return list(command_names())


def report(outcomes: Sequence[Outcome], seconds: float, output: Path | None) -> int:
    """Print the summary and write the table; 1 if a cell failed."""
    rows = table(outcomes)
    print(
        f"{'command':12} {'keys':>5} {'tried':>6} {'refused':>8} {'valid':>6} {'wrong':>6} "
        f"{'slowest':>8}"
    )
    for command in [*dict.fromkeys(o.cell.command for o in outcomes), "all"]:
        part = [r for r in rows if command in (r["command"], "all")]
        slowest = max(
            (o.seconds for o in outcomes if command in (o.cell.command, "all")), default=0.0
        )
        numbers = [sum(r[key] for r in part) for key in COUNTS]
        print(
            f"{command:12} {len(part):5} {numbers[0]:6} {numbers[1]:8} {numbers[2]:6} "
            f"{numbers[3]:6} {slowest:7.1f}s"
        )
    print(f"{seconds:.0f} s")
    if output is not None:
        output.write_text(
            json.dumps({"rows": rows, "seconds": round(seconds, 1)}, indent=1) + "\n",
            encoding="utf-8",
        )
    return int(any(o.is_wrong for o in outcomes) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
