"""The command with an alignment: by its columns alone, and with a model that reads them."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

import dnadiff
from dnadiff.genomics.variants.phylogeny import Phylogeny
from dnadiff.options.command import compose
from dnadiff.store.objects import build

GENOME = {"chr1": "".join(random.Random(4).choices("ACGT", k=3000)), "chr2": "ACGTTGCANNACGT"}


def other(bases):
    return bases.translate(str.maketrans("ACGT", "CATG"))


ROWS = [
    *(("chr1", pos, base := GENOME["chr1"][pos - 1], other(base)) for pos in (1, 2, 6, 60)),
    ("chr1", 12, GENOME["chr1"][11:14], other(GENOME["chr1"][11:14])),
    ("chr1", 15, GENOME["chr1"][14], GENOME["chr1"][14] + "AC"),
    ("chr2", 2, "CG", "C"),
    ("chr2", 13, "G", "A"),
    ("chr1", 25, GENOME["chr1"][24:27], other(GENOME["chr1"][24:27])),
]
BY_COLUMNS = ["variant_method=phylogeny", "alignment=g.aln", "genome=g.fa", "vcf=x.tsv"]
ALIGNED = ["accelerator=cpu", "block=4", "num_orders=2", *BY_COLUMNS[1:]]


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_alignment):
    """A folder with a genome, alignments of it and of another one, a run that reads the alignment,
    and a table of variants; and the columns."""
    from dnadiff.train import train

    folder = tmp_path_factory.mktemp("aligned")
    (folder / "g.fa").write_text("".join(f">{k}\n{v}\n" for k, v in GENOME.items()))
    lines = ["\t".join(map(str, row)) for row in ROWS]
    (folder / "x.tsv").write_text("chrom\tpos\tref\talt\n" + "\n".join(lines) + "\n")
    columns = make_alignment(folder / "g.aln", GENOME)
    make_alignment(folder / "new.aln", GENOME, seed=6)
    make_alignment(folder / "wrong.aln", {name: other(text) for name, text in GENOME.items()})
    arguments = [
        *("data=fasta", f"data.path={folder / 'g.fa'}", "data.length=32", "data.batch_size=4"),
        *("data.max_valid_windows=4", "trainer.val_check_interval=2", "trainer.accelerator=cpu"),
        *("backbone.d_model=16", "backbone.n_layers=1", "trainer.max_steps=2"),
    ]
    train.start(
        [*arguments, f"data.alignment={folder / 'g.aln'}", f"hydra.run.dir={folder / 'run'}"]
    )
    return folder, columns


@pytest.fixture
def world(made, tmp_path):
    """The files in the folder of the test, and the columns."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return made[1]


def read(path):
    return pandas.read_csv(path, sep="\t", na_values=".")


def refused(cli, *arguments):
    status, _, err = cli("variants", "output=z.tsv", *arguments)
    assert status == 1 and len(err.strip().splitlines()) == 1, err
    return err


def test_the_score_is_the_difference_in_the_column(world, cli):
    status, out, err = cli("variants", *BY_COLUMNS, "output=y.tsv")
    assert status == 0, err
    found = read("y.tsv")
    assert len(found) == len(ROWS) and list(found)[-2:] == ["depth", "conservation"]
    offset = {"chr1": 0, "chr2": len(GENOME["chr1"])}
    for row, (chrom, pos, ref, alt) in zip(found.to_dict("records"), ROWS):
        places = [offset[chrom] + pos - 1 + i for i in range(len(ref))]
        column, expected = world[places], np.nan
        if len(ref) != len(alt):
            column = column[:1] if len(alt) > len(ref) else column[1:]
        elif column[:, 9].all():
            pairs = zip(column, ref, alt)
            expected = sum(c["ACGT".index(b)] - c["ACGT".index(a)] for c, a, b in pairs)
        for name in ("LLR", "LLR_forward", "LLR_reverse"):
            assert row[name] == pytest.approx(expected, abs=2e-6, nan_ok=True)
        depth = np.expm1(column[:, 9])
        assert row["depth"] == round(depth.min())
        if depth.all():
            assert row["conservation"] == pytest.approx(-column[:, 8].mean(), abs=2e-6)
    first = np.exp(world[1, :4]).astype(np.float64)
    assert found["entropy"][1] == pytest.approx(-(first * np.log(first)).sum(), abs=2e-6)
    empty = [row["LLR"] != row["LLR"] for row in found.to_dict("records")]
    assert empty == [True, False, True, False, False, True, True, False, True]
    lines = dict(line.rsplit("  ", 1) for line in out.splitlines() if "  " in line)
    empty = str((found["depth"] == 0).sum())
    counts = {name.strip(): count.strip() for name, count in lines.items()}
    assert counts["no related genome is aligned: no data"] == empty
    assert counts["no value: an insertion or deletion, or no related genome is aligned"] == str(
        found["LLR"].isna().sum()
    )
    about = json.loads(Path("y.tsv.json").read_text())
    assert about["without_columns"] == int(empty) and "model" not in about["settings"]


def test_python_has_the_numbers_of_the_command(world, cli, tmp_path):
    from dnadiff.variants import variants

    keys = dict(each.split("=") for each in BY_COLUMNS)
    frame = variants(**keys, output=str(tmp_path / "y.tsv"), overwrite=True).frame
    model = dnadiff.load(tmp_path / "run", "cpu")
    found = model.variants("x.tsv", "g.fa", Phylogeny(), alignment="g.aln")
    np.testing.assert_allclose(
        found["LLR"], frame["LLR"].replace(".", "nan").astype(float), atol=1e-6
    )
    assert set(found["reason"][found["LLR"].isna()]) == {Phylogeny.no_value}
    alone = model.variants(ROWS, GENOME, Phylogeny(), alignment="g.aln")
    pandas.testing.assert_frame_equal(found.drop(columns="id"), alone.drop(columns="id"))


def test_a_model_reads_the_columns(world, cli, tmp_path):
    status, out, err = cli("variants", "checkpoint=run", *ALIGNED, "output=y.tsv", "L2=true")
    assert status == 0, err
    found = read("y.tsv")
    assert list(found)[-3:] == ["L2", "depth", "conservation"] and found["LLR"].notna().all()
    assert "no related genome is aligned: the score rests on the sequence alone" in out
    settings = {"block": 4, "num_orders": 2, "num_draws": 64}
    method = build(
        compose(
            "variants", [f"{k}={v}" for k, v in settings.items()] + ["genome=g.fa", "vcf=x.tsv"]
        )["variant_method"],
        trust=None,
    )
    model = dnadiff.load(tmp_path / "run", "cpu")
    same = model.variants(ROWS, GENOME, method, alignment=str(tmp_path / "g.aln"), L2=True)
    np.testing.assert_allclose(found["LLR"], same["LLR"], atol=1e-6)
    np.testing.assert_allclose(found["L2"], same["L2"], atol=1e-6)
    status, _, err = cli("variants", "checkpoint=run", *ALIGNED, "alignment=none", "output=n.tsv")
    assert status == 0 and list(read("n.tsv")) == list(found)[:-3], err
    assert (read("n.tsv")["LLR"] - found["LLR"]).abs().max() > 0.1
    # two steps of training: nearly what the columns say
    cli("variants", *BY_COLUMNS, "output=p.tsv")
    columns = read("p.tsv")["LLR"]
    snv = columns.notna()
    np.testing.assert_allclose(found["LLR"][snv], columns[snv], atol=0.5)


def test_shards_give_the_same_bytes(world, cli, tmp_path):
    arguments = ["checkpoint=run", *ALIGNED, "output=y.vcf.gz", "percentile=true"]
    assert cli("variants", *arguments)[0] == 0
    whole = (tmp_path / "y.vcf.gz").read_bytes()
    for number in (1, 2):
        status, _, err = cli(
            "variants", *arguments[:-2], "percentile=true", "output=s.vcf.gz", f"shard={number}/2"
        )
        assert status == 0, err
    assert cli("merge", "output=s.vcf.gz")[0] == 0
    assert (tmp_path / "s.vcf.gz").read_bytes() == whole
    status, _, err = cli("variants", *arguments, "resume=true", "alignment=new.aln")
    assert status == 1 and "names other settings" in err


def test_what_does_not_fit_is_refused_in_one_line(world, cli):
    aligned = ["alignment=g.aln", *ALIGNED[-2:]]
    for model in (["checkpoint=run", *ALIGNED], BY_COLUMNS):
        err = refused(cli, *model, "alignment=wrong.aln")
        assert "made for another assembly: its record chr1 has" in err
    assert "reads no alignment; leave it out" in refused(cli, "checkpoint=ecoli", *aligned)
    assert "reads an alignment of the genome" in refused(cli, *BY_COLUMNS, "alignment=null")
    assert "checkpoint is missing; give a model" in refused(cli, *aligned)
    for given in ("L2=true", "window=64", "calibrate_indels=true", "sites_per_window=4"):
        assert f"{given.partition('=')[0]} applies to a model" in refused(cli, *BY_COLUMNS, given)
    part = "variant_method.snv._target_=dnadiff.genomics.variants.phylogeny.Phylogeny"
    assert "no method of models; choose masked" in refused(cli, "checkpoint=run", *ALIGNED, part)


@pytest.mark.parametrize("arguments", [BY_COLUMNS[:3], ["checkpoint=run", *ALIGNED[:-1]]])
def test_regions_are_drawn(arguments, world, cli, tmp_path):
    status, _, err = cli(
        "variants",
        *arguments,
        "saturate=chr1:11-22",
        "deletions=true",
        "report=r.html",
        "output=y.tsv",
    )
    assert status == 0, err
    assert len(read("y.tsv")) == 48 and (tmp_path / "r_heat_map_1.png").is_file()
    assert "chr1:11-22" in (tmp_path / "r.html").read_text()
