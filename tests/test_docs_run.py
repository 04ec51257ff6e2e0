"""Every command line of the documentation runs, on small files and networks of the names that the
pages use."""

import gzip
import importlib.util
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.alignment import write_alignment
from dnadiff.diffusion.vocab import CHANNELS

spec = importlib.util.spec_from_file_location(
    "documented", Path(__file__).with_name("test_docs.py")
)
documented = importlib.util.module_from_spec(spec)
spec.loader.exec_module(documented)

pytestmark = pytest.mark.slow
# Data that the commands would download; test_docs.py composes these lines.
DOWNLOADS = (
    "tokenizer=gpt2",
    "data=owt",
    "experiment=lm1b_mdlm",
    "data=hg38",
    "related=bundled:enterobacteria.tsv",
    "zero_shot checkpoint=RUN",
    "zero_shot checkpoint=RUN part=published",
)
# Other machines, which tests/data/remote and tests/shards have.
ELSEWHERE = ("s3://", "gs://", "https://", "launcher=ray")
NETWORK = ("backbone.d_model=16", "backbone.n_layers=1")
TRAINING = (
    *(
        "data.batch_size=4",
        "data.max_valid_windows=2",
        "trainer.max_steps=1",
        "trainer.val_check_interval=1",
    ),
    "trainer.accelerator=cpu",
)
TASK = ("task=csv", "task.path=table.csv", "scratch=false")
SMALLER = {
    "train": (*TRAINING, *NETWORK, "hydra.run.dir=out"),
    "evaluate": ("num_draws=2", "orders=[0]", "hydra.run.dir=out"),
    "compare": ("num_draws=2",),
    "zero_shot": ("num_draws=2",),
    "score": ("num_draws=2", "overwrite=true"),
    "embed": ("overwrite=true",),
    "variants": ("overwrite=true",),
    "sample": ("num_samples=2", "batch_size=2", "overwrite=true"),
    "judge": ("num_splits=20", "order=1"),
    "judge_text": ("num_samples=2", "length=32"),
    "copies": ("overwrite=true",),
    "finetune": ("epochs=1", "lr=1e-3", "lr_scratch=1e-3", "seeds=1", "batch_size=8", "kmer=2"),
    "predict": ("overwrite=true",),
    "explain": ("overwrite=true",),
    "compress": ("overwrite=true",),
    "decompress": ("overwrite=true",),
    "export": ("overwrite=true",),
    "genome": (),
    "align": ("overwrite=true",),
    "info": (),
    "merge": ("overwrite=true",),
}


@pytest.fixture(scope="module")
def start():
    """Runs a command in this process and in the current folder: start(name, overrides) -> exit
    status."""

    def run(name, overrides):
        try:
            importlib.import_module(f"dnadiff.{name}").main(overrides)
        except SystemExit as stop:
            return stop.code or 0
        return 0

    return run


def write_files(folder):
    draw = random.Random(0)
    bases = "".join(draw.choices("AACGT", k=15_000))
    for name in ("g.fa", "genome.fa", "other.fa", "my.fa", "target.fa"):
        (folder / name).write_text(f">chr1\n{bases}\n")
    target = np.array(["ACGT".index(base) for base in bases])
    columns = np.zeros((len(bases), CHANNELS), np.float32)
    for name in ("g.aln", "target.aln"):
        write_alignment(folder / name, {"chr1": len(bases)}, target, [target], columns)
    relatives = [
        "".join(draw.choice("ACGT") if draw.random() < 0.2 else base for base in bases)
        for _ in range(2)
    ]
    related = folder / "ncbi_dataset/data"
    (folder / "genomes").mkdir()
    for name, other in zip("ab", relatives):
        (related / name).mkdir(parents=True)
        (related / name / f"{name}.fna").write_text(f">{name}\n{other}\n")
        content = gzip.compress(f">{name}\n{other}\n".encode())
        (folder / "genomes" / f"{name}.fa.gz").write_bytes(content)
    size = len(bases)
    rows = zip(("target.chr1", "a.c", "b.c"), (bases, *relatives))
    block = "".join(f"s {name} 0 {size} + {size} {text}\n" for name, text in rows)
    (folder / "multiz.maf").write_text(f"##maf version=1\na score=1\n{block}\n")
    for name in ("my_genome.fa.gz", "my.fa.gz"):
        (folder / name).write_bytes(gzip.compress(f">chr1\n{bases}\n".encode()))
    records = "".join(f">s{i}\n{''.join(draw.choices('ACGT', k=64))}\n" for i in range(12))
    for name in ("x.fa", "samples.fa", "new.fa"):
        (folder / name).write_text(records)
    (folder / "x.fa.gz").write_bytes(gzip.compress(records.encode()))
    (folder / "promoters.fa").write_text(
        "".join(f">p{i}\n{bases[100 * i : 100 * i + 100]}\n" for i in range(8))
    )
    (folder / "promoter.fa").write_text(f">p\n{bases[:48]}\n")
    (folder / "t.fa").write_text(">t\n" + "N" * 40 + "ACGT" + "R" * 4 + "N" * 16 + "\n")
    for name in ("genes.bed", "gene.bed", "regions.bed", "promoter.bed"):
        (folder / name).write_text("chr1\t1000\t1010\ta\t0\t+\nchr1\t3000\t3008\tb\t0\t-\n")
    (folder / "region.bed").write_text("U00096.3\t4000000\t4000002\n")
    gtf = 'chr1\tx\tCDS\t1001\t1010\t.\t+\t0\tgene_id "a";\n'
    (folder / "genes.gtf").write_text(gtf)
    (folder / "genes.gtf.gz").write_bytes(gzip.compress(gtf.encode()))
    alt = "A" if bases[1999] != "A" else "C"
    vcf = (
        f"##fileformat=VCFv4.2\n##contig=<ID=chr1,length={len(bases)}>\n"
        "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        f"chr1\t2000\t.\t{bases[1999]}\t{alt}\t.\t.\t.\n"
    )
    (folder / "x.vcf.gz").write_bytes(gzip.compress(vcf.encode()))
    rows = [
        f"{''.join(draw.choices('ACGT', k=32))},{'ab'[i % 2]},{i % 7 + 0.5},"
        f"{i % 2},{i % 3 // 2},{(i + 1) % 2}"
        for i in range(60)
    ]
    (folder / "table.csv").write_text(
        "sequence,label,expression,liver,brain,heart\n" + "\n".join(rows) + "\n"
    )
    sentences = [
        " ".join(
            draw.choices(
                ["To", "be", "or", "not", "to", "be", "that", "is", "the", "question"], k=12
            )
        )
        for _ in range(120)
    ]
    for name in ("book.txt", "ptb.test.txt"):
        (folder / name).write_text("\n\n".join(sentences) + "\n")
    lines = "".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences)
    (folder / "notes").mkdir()
    for name in ("notes/a.jsonl", "lambada_test.jsonl"):
        (folder / name).write_text(lines)


@pytest.fixture(scope="module")
def files(tmp_path_factory, start):
    """A folder with every file and run that the pages name."""
    folder = tmp_path_factory.mktemp("documented")
    write_files(folder)
    text = (
        "data=text",
        "data.path=book.txt",
        "data.length=32",
        "backbone.n_heads=2",
        *TRAINING,
        *NETWORK,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert (
            start(
                "train",
                [
                    "data=fasta",
                    "data.path=g.fa",
                    "data.length=64",
                    *TRAINING,
                    *NETWORK,
                    "hydra.run.dir=RUN",
                ],
            )
            == 0
        )
        assert start("train", [*text, "backbone=dit", "hydra.run.dir=TEXT"]) == 0
        assert (
            start("train", [*text, "backbone=transformer", "objective=ar", "hydra.run.dir=AR_RUN"])
            == 0
        )
        aligned = ["data=fasta", "data.path=target.fa", "data.alignment=target.aln"]
        aligned += ["data.length=64", *TRAINING, *NETWORK, "hydra.run.dir=runs/train/aligned"]
        assert start("train", aligned) == 0
        assert start("evaluate", ["checkpoint=RUN", "num_draws=2", "orders=[0]"]) == 0
        assert start("export", ["checkpoint=RUN", "output=caduceus_folder"]) == 0
        assert start("compress", ["checkpoint=RUN", "input=x.fa", "output=x.dnd"]) == 0
        assert (
            start(
                "finetune",
                ["checkpoint=RUN", *TASK, *SMALLER["finetune"], "hydra.run.dir=my_classifier"],
            )
            == 0
        )
    for copy in ("OTHER_RUN", "MDLM_RUN", "runs/train/2026-01-01_00-00-00", "runs/train/my_run"):
        shutil.copytree(folder / "RUN", folder / copy)
    for copy in ("FINETUNE_RUN", "runs/coding"):
        shutil.copytree(folder / "my_classifier", folder / copy)
    return folder


def small(page, name, words):
    """The overrides of a documented command, with less work: the network, data and amounts are
    those of the small world."""
    given = {word.partition("=")[0] for word in words}
    words = [word.replace("checkpoint=ecoli", "checkpoint=RUN") for word in words]
    if page == "text" and name != "train":
        words = [word.replace("checkpoint=RUN", "checkpoint=TEXT") for word in words]
    more = [
        word
        for word in SMALLER[name]
        if word.partition("=")[0] != "hydra.run.dir" or "hydra.run.dir" not in given
    ]
    if name == "train":
        more += ["overwrite=true"] * ("resume" not in given)
        more += ["data.length=64"] + (["backbone.n_heads=2"] if "backbone=dit" in words else [])
    more += ["length=64"] * (name == "evaluate" and "length" in given) + ["launcher.shards=1"] * (
        "launcher" in given
    )
    if name == "sample":
        more += ["proposals=4"] * ("proposals" in given) + ["sampler.num_groups=2"]
        more += ["length=160"] * ("motif" in given)
        more += ["num_draws=2"] * ("reward" in given) + ["method.max_changes=2"] * (
            "method.max_changes" in given
        )
    if name == "finetune":
        more += ["minutes=null"] * (
            "minutes" in given
        )  # a budget and a number of epochs exclude each other
        more += (
            ["overwrite=true"]
            if "runs/coding" in " ".join(words) or "my_classifier" in " ".join(words)
            else ["hydra.run.dir=out"]
        )
    return [*words, *more]


def cases():
    for parameter in documented.commands():
        name, words = parameter.values
        line = " ".join([name, *words])
        if any(each in line for each in ELSEWHERE) or parameter.id.startswith("pictures-"):
            continue  # scripts/docs/examples.py runs the page of the pictures
        if (
            not any(line.endswith(each) or each in words for each in DOWNLOADS)
            and "trust=[my_models]" not in words
        ):
            yield pytest.param(parameter.id.split("-")[0], name, words, id=parameter.id)


@pytest.mark.parametrize(("page", "name", "words"), list(cases()))
def test_documented_command_lines_run(
    page, name, words, files, start, tmp_path, monkeypatch, capfd
):
    if any("wandb" in word for word in words):
        pytest.importorskip("wandb")
    folder = shutil.copytree(files, tmp_path / "world", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        "dnadiff.genomics.scores._BASES", 128
    )  # of a group of windows, which is not divided between shards
    if name == "merge":
        assert (
            start(
                "score",
                ["checkpoint=RUN", "input=x.fa", "output=scores.tsv", "num_draws=2", "shard=1/1"],
            )
            == 0
        )
    status = start(name, small(page, name, words))
    assert status == 0, capfd.readouterr().err
