"""Merged shards of every command are the bytes of a run without shards."""

import gzip

import numpy as np
import pytest

from dnadiff.genomics import information, scores
from dnadiff.genomics.variants.effects import RowScorer, Scorer

CPU = "accelerator=cpu"


@pytest.fixture
def inputs(tmp_path):
    draw = np.random.default_rng(0)
    letters = {
        name: "".join(draw.choice(list("ACGT"), size=size))
        for name, size in (("long", 150), ("short", 20), ("n", 40), ("last", 33))
    }
    letters["n"] = "N" * 20 + letters["n"][20:]
    (tmp_path / "x.fa").write_text("".join(f">{name}\n{text}\n" for name, text in letters.items()))
    lines = [
        "##fileformat=VCFv4.2",
        *(f"##contig=<ID={name},length={len(text)}>" for name, text in letters.items()),
    ]
    lines.append("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO")
    for pos in (5, 30, 31, 60, 90, 91, 120):
        ref = letters["long"][pos - 1]
        lines.append(f"long\t{pos}\t.\t{ref}\t{','.join(b for b in 'ACGT' if b != ref)}\t.\t.\t.")
    lines.append(f"last\t9\t.\t{letters['last'][8:10]}\t{letters['last'][8]}\t.\t.\t.")
    (tmp_path / "x.vcf").write_text("\n".join(lines) + "\n")
    (tmp_path / "r.bed").write_text("long\t10\t24\tone\t0\t+\nn\t18\t24\ttwo\t0\t-\n")
    return letters


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "args",
    [
        ["input=x.fa", "output=OUT/s.tsv.gz", "per_base=OUT/x.bedgraph.gz"],
        pytest.param(
            ["genome=x.fa", "regions=r.bed", "output=OUT/s.tsv", "per_base=OUT/x.bw"], marks=SLOW
        ),
    ],
)
def test_scores_and_tracks(merged, trained, inputs, monkeypatch, args):
    monkeypatch.setattr(scores, "_WINDOWS", 2)
    monkeypatch.setattr(scores, "_BASES", 12)  # of a group of windows
    monkeypatch.setattr(information, "_TILES", 2)
    assert (
        len(
            merged(
                "score",
                2,
                f"checkpoint={trained}",
                CPU,
                "window=12",
                "num_draws=2",
                "spacing=3",
                *args,
            )
        )
        == 4
    )


@pytest.mark.parametrize(
    "name", ["v.vcf.gz", *(pytest.param(name, marks=SLOW) for name in ("v.tsv", "v.parquet"))]
)
def test_variants(merged, trained, inputs, monkeypatch, name):
    monkeypatch.setattr(RowScorer, "chunk", 6)
    args = ("vcf=x.vcf", "genome=x.fa", "window=16", "num_orders=2", "block=4")
    assert list(
        merged("variants", 3, f"checkpoint={trained}", CPU, *args, f"output=OUT/{name}")
    ) == [name, f"{name}.json"]


@pytest.mark.slow
def test_all_variants_of_regions_with_several_sites_per_window(
    merged, trained, inputs, monkeypatch
):
    monkeypatch.setattr(RowScorer, "chunk", 4)
    monkeypatch.setattr(Scorer, "look_ahead", 1)
    args = (
        "saturate=r.bed",
        "deletions=true",
        "genome=x.fa",
        "window=64",
        "sites_per_window=8",
        "num_orders=2",
        "report=OUT/r.html",
    )
    found = merged("variants", 2, f"checkpoint={trained}", CPU, *args, "output=OUT/v.vcf.gz")
    assert found["v.vcf.gz.json"]["sites_per_window_error"]["shared_sites"] > 4
    assert gzip.decompress(found["v.vcf.gz"]).count(b"\n") > 30 and "r.html" in found


@pytest.mark.parametrize(
    "name", ["e.npz", *(pytest.param(name, marks=SLOW) for name in ("e.parquet", "e.h5ad"))]
)
def test_embeddings(merged, trained, tmp_path, name):
    records = (f">s{i}\nACGTTG{'AC' * i}\n" for i in range(40))  # 32 and 8 are computed together
    (tmp_path / "y.fa").write_text("".join(records))
    merged(
        "embed", 2, f"checkpoint={trained}", CPU, "input=y.fa", "batch_size=2", f"output=OUT/{name}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e.npz", "e.parquet"])
def test_embeddings_of_each_position(merged, trained, inputs, name):
    merged(
        "embed",
        3,
        f"checkpoint={trained}",
        CPU,
        "input=x.fa",
        "pool=none",
        "batch_size=1",
        f"output=OUT/{name}",
    )


DESIGN = ("reward=gc", "method=smc", "report=OUT/d.html", "real=x.fa")


@pytest.mark.parametrize(
    "args",
    [
        ["num_samples=7", "length=20:30", "output=OUT/s.fa.gz", "copies=true"],
        pytest.param(
            [
                "num_samples=4",
                "length=20",
                "output=OUT/s.fa",
                "gc=0.45",
                "proposals=8",
                "resample=true",
            ],
            marks=SLOW,
        ),
        pytest.param(
            ["num_samples=2", "infill=r.bed", "genome=x.fa", "length=24", "output=OUT/s.fa"],
            marks=SLOW,
        ),
        pytest.param(["num_samples=8", "length=20", "output=OUT/s.fa", *DESIGN], marks=SLOW),
    ],
)
def test_samples(merged, trained, inputs, args):
    found = merged(
        "sample", 2, f"checkpoint={trained}", CPU, "batch_size=2", "sampler.num_groups=4", *args
    )
    assert len(found) == 2 + any("report" in a for a in args)


@pytest.mark.slow
def test_metrics_of_samples(merged, inputs, tmp_path):
    draw = np.random.default_rng(1)
    for name, number, size in (("y.fa", 12, 30), ("z.fa", 3, 305)):
        (tmp_path / name).write_text(
            "".join(
                f">s{i}\n{''.join(draw.choice(list('ACGT'), size=size))}\n" for i in range(number)
            )
        )
    found = merged(
        "judge", 4, "samples=y.fa", "real=z.fa", "num_splits=20", "order=2", "output=OUT/j.json"
    )
    assert list(found) == ["j.json", "j.png"]


def test_packed_genomes(merged, tmp_path, inputs):
    for number in range(3):
        (tmp_path / f"{number}.fa").write_text(f">r{number}\n{'ACGT' * (number + 1)}\n")
    found = merged(
        "genome", 3, "action=pack", "data.path=[0.fa,1.fa,2.fa]", "output=OUT/packed.json"
    )
    assert [each["bases"] for each in found["packed.json"]["files"]] == [4, 8, 12]


@pytest.mark.slow
def test_text(merged, train_args, cli, tmp_path):
    (tmp_path / "book.txt").write_text("to be or not to be that is the question " * 60)
    data = ("data=text", f"data.path={tmp_path / 'book.txt'}")
    assert cli("train", *train_args("dit", 1, data=data))[0] == 0
    merged(
        "sample",
        2,
        "checkpoint=run",
        CPU,
        "num_samples=4",
        "batch_size=2",
        "sampler.num_groups=4",
        "output=OUT/t.jsonl.gz",
    )
