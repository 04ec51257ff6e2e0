"""Every command on tiny input: what the reliability harnesses run.

`World` holds the input files and trained runs; `CASES` holds at least one complete command line for
each command of the package. A command without a case fails the test suite.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SMALL_NETWORK = ("backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2")
SMALL_AR = ("backbone=transformer", "objective=ar", *SMALL_NETWORK[1:])
SMALL_RUN = (
    *(
        "data.length=32",
        "data.batch_size=4",
        "data.max_valid_windows=4",
        "data.epoch_size=40",
        "data.num_workers=0",
    ),
    *(
        "trainer.max_steps=4",
        "trainer.val_check_interval=2",
        "trainer.accelerator=cpu",
        "trainer.log_every_n_steps=1",
    ),
    *("callbacks.checkpoints.every_n_steps=2", "callbacks.progress=null"),
)


@dataclass(frozen=True)
class Case:
    """One complete command line.

    Args:
        command: name of the command.
        arguments: overrides. `{world}` is the folder of input files, which the command only reads;
            `{out}` is an empty folder for everything that it writes (also the run folder).
        resume: further arguments of a second start after the first was interrupted.
        inputs: files in the world that the command reads and a user may have damaged.
        compared: files in `out` (glob patterns) that an interrupted and restarted command must
            reproduce byte for byte.
        ignored: keys of files and columns of tables that measure time or memory, or say how a run
            was started; they are not compared.
    """

    command: str
    arguments: tuple[str, ...]
    resume: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    compared: tuple[str, ...] = ("**/*",)
    ignored: tuple[str, ...] = ()
    label: str = field(default="", kw_only=True)

    @property
    def name(self) -> str:
        """The command, with what distinguishes this case from others of it."""
        return f"{self.command} {self.label}".strip()

    @property
    def reads_runs(self) -> bool:
        """Whether it needs the trained runs of the world."""
        return any(
            f"{{world}}/{name}" in argument
            for name in ("dna", "text", "ar", "samples.dnd", "classifier", "shards")
            for argument in self.arguments
        )

    def command_line(self, world: Path, out: Path, resumed: bool = False) -> list[str]:
        """The arguments of the command, with the folders filled in."""
        arguments = (*self.arguments, "hydra.run.dir={out}/run", *(self.resume if resumed else ()))
        return [a.replace("{world}", str(world)).replace("{out}", str(out)) for a in arguments]


DNA, TEXT, AR = "checkpoint={world}/dna", "checkpoint={world}/text", "judge={world}/ar"
RECIPE = (
    "epochs=1",
    "lr=5e-4",
    "lr_scratch=2e-3",
    "layer_decay=1",
)  # of fine-tuning: the default takes longer
STACKED = ("scratch=false", "lr=auto", "adapter=lora", "adapter.rank=2", "combine=true")
CLASSIFIER = ("checkpoint={world}/classifier", "accelerator=cpu", "output={out}/p.tsv")
FASTA = ("data=fasta", "data.path={world}/genome.fa.gz")
GENOME = "genome={world}/genome.fa.gz"
TIMES = ("seconds", "tokens_per_second", "peak_memory_mb")
TRAINING = (
    *TIMES,
    "resume",
    "sha256",
)  # config.yaml and checkpoints record how the run was started last, and hashes depend on that
SESSIONS = ("seconds", "sessions")
SHARDED = ("num_samples=6", "batch_size=2", "length=16", "sampler.num_groups=4", "accelerator=cpu")
CASES = (
    Case(
        "train",
        (*FASTA, *SMALL_RUN, *SMALL_NETWORK),
        ("resume=true",),
        ("genome.fa.gz",),
        ignored=TRAINING,
    ),
    Case(
        "train",
        ("data=text", "data.path={world}/book.txt", *SMALL_RUN, *SMALL_NETWORK),
        ("resume=true",),
        ("book.txt",),
        ignored=TRAINING,
        label="text",
    ),
    Case(
        "distill",
        (DNA, *FASTA, *SMALL_RUN, "objective.num_rounds=2", "objective.steps_per_round=2"),
        ("resume=true",),
        ("genome.fa.gz", "dna"),
        ignored=TRAINING,
    ),
    Case(
        "align",
        (GENOME, "related={world}/related.afa", "output={out}/a.aln"),
        ("resume=true",),
        ("genome.fa.gz", "related.afa"),
    ),
    Case(
        "evaluate",
        (DNA, "num_draws=2", "orders=[0,2]", "accelerator=cpu"),
        inputs=("genome.fa.gz", "dna"),
    ),
    Case(
        "zero_shot",
        (TEXT, "sets=[ptb]", "paths={ptb: {world}/book.txt}", "num_draws=2", "accelerator=cpu"),
        inputs=("book.txt", "text"),
    ),
    Case(
        "score",
        (
            DNA,
            "input={world}/samples.fa",
            "num_draws=2",
            "output={out}/scores.tsv",
            "accelerator=cpu",
        ),
        ("resume=true",),
        ("samples.fa", "dna"),
    ),
    Case(
        "score",
        (
            *(
                DNA,
                GENOME,
                "regions={world}/regions.bed",
                "num_draws=2",
                "spacing=4",
                "accelerator=cpu",
            ),
            *("output={out}/scores.tsv.gz", "per_base={out}/x.bedgraph"),
        ),
        ("resume=true",),
        ("regions.bed", "genome.fa.gz", "dna"),
        label="per_base",
    ),
    Case(
        "embed",
        (DNA, "input={world}/samples.fa", "output={out}/e.npz", "accelerator=cpu"),
        inputs=("samples.fa", "dna"),
    ),
    Case(
        "embed",
        (
            DNA,
            GENOME,
            "input={world}/regions.bed",
            "output={out}/e.parquet",
            "accelerator=cpu",
        ),
        inputs=("regions.bed", "genome.fa.gz", "dna"),
        label="regions",
    ),
    Case(
        "variants",
        (
            DNA,
            "vcf={world}/variants.vcf",
            GENOME,
            "output={out}/effects.tsv",
            "num_orders=2",
            "block=4",
            "accelerator=cpu",
        ),
        ("resume=true",),
        inputs=("variants.vcf", "genome.fa.gz", "dna"),
    ),
    Case(
        "variants",
        (
            DNA,
            "saturate={world}/regions.bed",
            GENOME,
            "output={out}/all.vcf.gz",
            "accelerator=cpu",
        ),
        ("resume=true",),
        inputs=("regions.bed", "genome.fa.gz", "dna"),
        label="saturate",
    ),
    Case(
        "sample",
        (
            DNA,
            "num_samples=6",
            "batch_size=2",
            "output={out}/samples.fa",
            "sampler.num_groups=4",
            "accelerator=cpu",
        ),
        ("resume=true",),
        ("dna",),
        ignored=SESSIONS,
    ),
    Case(
        "sample",
        (
            *(
                DNA,
                "infill={world}/regions.bed",
                GENOME,
                "num_samples=2",
                "batch_size=2",
            ),
            *("output={out}/infilled.fa.gz", "sampler.num_groups=4", "accelerator=cpu"),
        ),
        ("resume=true",),
        inputs=("regions.bed", "genome.fa.gz", "dna"),
        ignored=SESSIONS,
        label="infill",
    ),
    Case(
        "sample",
        (
            *(
                DNA,
                "reward=gc",
                "method=svdd",
                "length=24",
                "num_samples=6",
                "batch_size=2",
                "num_draws=2",
            ),
            *("output={out}/designs.fa", "report={out}/designs.html", "real={world}/samples.fa"),
            *("sampler.num_groups=4", "accelerator=cpu"),
        ),
        ("resume=true",),
        ("samples.fa", "dna"),
        ignored=SESSIONS,
        label="design",
    ),
    Case(
        "sample",
        (TEXT, "num_samples=4", "batch_size=2", "sampler.num_groups=4", "accelerator=cpu"),
        ("overwrite=true",),
        ("text",),
        ignored=SESSIONS,
        label="text",
    ),
    Case(
        "sample",
        (DNA, *SHARDED, "output={out}/samples.fa", "shard=1/2"),
        inputs=("dna",),
        label="shard",
    ),
    Case(
        "merge",
        ("output={out}/samples.fa", "shards={world}/shards", "keep=true"),
        inputs=("shards",),
    ),
    Case(
        "judge",
        ("samples={world}/samples.fa", DNA, "num_splits=20", "order=2"),
        inputs=("samples.fa", "dna"),
    ),
    Case(
        "judge_text",
        ("samples={world}/samples.jsonl", AR, "accelerator=cpu"),
        inputs=("samples.jsonl", "ar"),
    ),
    Case("copies", ("input={world}/samples.fa", DNA), inputs=("samples.fa", "dna")),
    Case("export", (DNA, "output={out}/model"), ("overwrite=true",), ("dna",)),
    Case("info", (DNA, "output={out}/info.json"), inputs=("dna",)),
    Case(
        "finetune",
        (
            DNA,
            "task=csv",
            "task.path={world}/labels.csv",
            "seeds=1",
            *RECIPE,
            "batch_size=8",
            "kmer=3",
            "accelerator=cpu",
        ),
        inputs=("labels.csv", "dna"),
        ignored=(*TIMES, "finished", "sequences_per_second", "waiting_share"),
    ),
    Case(
        "finetune",
        (
            DNA,
            "task=csv",
            "task.path={world}/labels.csv",
            "seeds=2",
            *RECIPE[:1],
            "batch_size=8",
            "kmer=2",
            "accelerator=cpu",
            *STACKED,
        ),
        inputs=("labels.csv", "dna"),
        ignored=(*TIMES, "finished", "sequences_per_second", "waiting_share"),
        label="stack",
    ),
    Case(
        "predict",
        (
            *CLASSIFIER,
            "input={world}/samples.fa",
            "window=20",
            "stride=8",
            "track={out}/p.bedgraph",
            "track_class=b",
        ),
        ("resume=true",),
        ("samples.fa", "classifier"),
    ),
    Case(
        "predict",
        (
            *CLASSIFIER[:-1],
            "input={world}/labels.csv",
            "label_column=label",
            "output={out}/p.parquet",
        ),
        ("resume=true",),
        ("labels.csv", "classifier"),
        label="table",
    ),
    Case(
        "explain",
        (*CLASSIFIER[:-1], "input={world}/samples.fa", "output={out}/y.npz"),
        ("resume=true",),
        ("samples.fa", "classifier"),
    ),
    Case(
        "compare",
        ("a={world}/dna", "b={world}/dna", "conjoin=[b]", "num_draws=2", "accelerator=cpu"),
        inputs=("genome.fa.gz", "dna"),
    ),
    Case(
        "genome",
        ("action=describe", *FASTA, "data.length=32", "output={out}/genome.json"),
        inputs=("genome.fa.gz",),
    ),
    Case(
        "genome", ("action=pack", *FASTA, "data.length=32"), inputs=("genome.fa.gz",), label="pack"
    ),
    Case(
        "genome",
        ("action=extract", *FASTA, "regions={world}/regions.bed", "output={out}/regions.fa"),
        inputs=("genome.fa.gz", "regions.bed"),
        label="extract",
    ),
    Case(
        "compress",
        (DNA, "input={world}/samples.fa", "num_groups=4", "threads=1"),
        inputs=("samples.fa", "dna"),
    ),
    Case("decompress", (DNA, "input={world}/samples.dnd"), inputs=("samples.dnd", "dna")),
)


def case(name: str) -> Case:
    """The case of that name, as in `train` or `train text`."""
    return next(c for c in CASES if c.name == name)


def missing() -> list[str]:
    """Commands of the package that have no case."""
    from dnadiff.options.command import command_names

    return sorted(set(command_names()) - {c.command for c in CASES})


def build_world(folder: Path, runs: bool = True) -> None:
    """Write the input files and, unless `runs` is false, train the runs that most cases read. Takes
    some seconds.

    The content depends on no clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    _write_genome(folder, draw)
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "one",
        "small",
        "red",
        "bird",
        "in",
        "that",
        "old",
        "tree",
    ]
    sentences = [" ".join(draw.choices(words, k=12)) + "." for _ in range(200)]
    (folder / "book.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    (folder / "samples.jsonl").write_text(
        "".join(f'{{"text": "{s}"}}\n' for s in sentences[:8]), encoding="utf-8"
    )
    rows = [
        f"{''.join(draw.choices('ACGT' if n % 2 else 'AAACGT', k=32))},{'ab'[n % 2]}"
        for n in range(48)
    ]
    (folder / "labels.csv").write_text(
        "sequence,label\n" + "\n".join(rows) + "\n", encoding="utf-8"
    )
    if runs:
        _train(folder)


def _train(folder: Path) -> None:
    run = ("trainer.max_steps=2", "data.max_valid_windows=2")
    text = ("data=text", f"data.path={folder}/book.txt")
    start(
        "train",
        [
            "data=fasta",
            f"data.path={folder}/genome.fa.gz",
            *SMALL_RUN,
            *SMALL_NETWORK,
            *run,
            f"hydra.run.dir={folder}/dna",
        ],
    )
    start("train", [*text, *SMALL_RUN, *SMALL_NETWORK, *run, f"hydra.run.dir={folder}/text"])
    start("train", [*text, *SMALL_RUN, *SMALL_AR, *run, f"hydra.run.dir={folder}/ar"])
    for number in (1, 2):
        sample = (
            f"checkpoint={folder}/dna",
            *SHARDED,
            f"output={folder}/sharded.fa",
            f"shard={number}/2",
        )
        start("sample", [*sample, f"hydra.run.dir={folder}/sample"])
    (folder / "sharded.fa.shards").rename(folder / "shards")
    compress = (
        f"checkpoint={folder}/dna",
        f"input={folder}/samples.fa",
        "num_groups=4",
        "threads=1",
        f"output={folder}/samples.dnd",
    )
    start("compress", [*compress, f"hydra.run.dir={folder}/compress"])
    task = (
        "task=csv",
        f"task.path={folder}/labels.csv",
        "seeds=2",
        *RECIPE,
        "batch_size=8",
        "kmer=2",
        "scratch=false",
        "accelerator=cpu",
    )
    start("finetune", [f"checkpoint={folder}/dna", *task, f"hydra.run.dir={folder}/classifier"])


def _write_genome(folder: Path, draw: random.Random) -> None:
    import gzip

    records = {name: "".join(draw.choices("AAACCGGTTT", k=6000)) for name in ("one", "two")}
    records["two"] = records["two"][:200] + "N" * 40 + records["two"][240:]
    lines = [
        f">{name}\n" + "\n".join(body[i : i + 60] for i in range(0, len(body), 60)) + "\n"
        for name, body in records.items()
    ]
    (folder / "genome.fa.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    related = records["one"].replace("AA", "AC")
    (folder / "related.afa").write_text(f">one\n{records['one']}\n>related\n{related}\n")
    samples = [f">s{n}\n{''.join(draw.choices('ACGT', k=32))}\n" for n in range(40)]
    (folder / "samples.fa").write_text("".join(samples), encoding="utf-8")
    _write_variants(folder / "variants.vcf", records)
    (folder / "regions.bed").write_text(
        "one\t100\t108\tfirst\t0\t+\ntwo\t300\t308\tsecond\t0\t-\n", encoding="utf-8"
    )


def _write_variants(path: Path, records: dict[str, str]) -> None:
    """SNVs, a replacement of two bases, an insertion and a deletion in each record."""
    lines = [
        "##fileformat=VCFv4.2",
        *(f"##contig=<ID={name},length={len(body)}>" for name, body in records.items()),
    ]
    lines.append("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO")
    for name, body in records.items():
        for pos, size in ((40, 1), (900, 1), (1500, 2), (2000, 1), (3000, 4)):
            ref = body[pos - 1 : pos - 1 + size]
            alt = {
                1: "A" if ref != "A" else "C",
                2: "".join("GT"[base == "G"] for base in ref),
                4: ref[0],
            }[size]
            lines.append(f"{name}\t{pos}\t.\t{ref}\t{ref + 'AC' if pos == 2000 else alt}\t.\t.\t.")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def start(command: str, arguments: list[str]) -> int:
    """Run a command in this process; returns its exit status."""
    try:
        sys.argv = [f"dnadiff.{command}", *arguments]
        importlib.import_module(f"dnadiff.{command}").main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Packed genomes and tokenized texts go into this folder meanwhile."""
    before = os.environ.get("DNADIFF_CACHE")
    os.environ["DNADIFF_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["DNADIFF_CACHE"]
        else:
            os.environ["DNADIFF_CACHE"] = before
