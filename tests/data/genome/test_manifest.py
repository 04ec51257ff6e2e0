"""Many genomes: patterns and manifests, the names of their records, labels and weights, and one
line for every mistake."""

import os
import re

import numpy as np
import pytest

from dnadiff.data.genome.datamodule import GenomeDataModule, ShortSequenceDataModule
from dnadiff.data.genome.genome import Genome, read_manifest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three genomes of which two have a record of the same name."""
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    (tmp_path / "genomes").mkdir()
    for name, records in (("a", ("chr1",)), ("b", ("chr1", "p")), ("c", ("x",))):
        letters = ["".join("ACGT"[base] for base in draw.integers(0, 4, 400)) for _ in records]
        (tmp_path / "genomes" / f"{name}.fa").write_text(
            "".join(f">{r}\n{text}\n" for r, text in zip(records, letters))
        )
    return tmp_path


def manifest(folder, text, name="m.tsv"):
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_pattern_is_its_files_and_equal_names_are_told_apart(folder):
    genome = Genome(f"{folder}/genomes/*.fa")
    assert genome.names == ["a:chr1", "b:chr1", "p", "x"] and genome.records.lengths == [400] * 4
    assert genome.rows[1]["file"] == f"{folder}/genomes/b.fa" and genome.rows[1]["name"] == "b:chr1"
    assert (
        genome.window("p", 0, 9).tolist()
        == Genome(folder / "genomes" / "b.fa").window("p", 0, 9).tolist()
    )
    assert Genome([f"{folder}/genomes/[a]*"]).names == ["chr1"]  # nothing to tell apart
    assert Genome(f"{folder}/genomes/*.fa", keep="b:.*").names == ["b:chr1"]


def test_a_manifest_has_labels_and_weights(folder):
    path = manifest(
        folder,
        "path\tlabel\tweight\ngenomes/a.fa\thuman\t2\ngenomes/c.fa\tyeast\t0.5\n\n"
        "genomes/b.fa\t\t0\n",
    )
    assert [(row.label, row.weight) for row in read_manifest(path)] == [
        ("human", 2.0),
        ("yeast", 0.5),
        (None, 0.0),
    ]
    genome = Genome(path)
    assert genome.names == ["human:chr1", "yeast:x", "chr1", "p"] and genome.labels == [
        "human",
        "yeast",
        None,
        None,
    ]
    assert genome.weights.tolist() == [2, 0.5, 0, 0]
    plain = Genome(
        manifest(
            folder, "#path\n" + "".join(f"{folder}/genomes/{name}.fa\n" for name in "acb"), "n.tsv"
        )
    )
    assert plain.weights is None and plain.digest != genome.digest  # windows depend on weights
    os.chdir(folder)  # paths are those of the folder of the manifest
    assert Genome("m.tsv").names == genome.names


def test_windows_are_drawn_by_weight_and_size(folder):
    # a and b have one and two records of 400, of which 320 are for training: 289 starts each;
    # weights 2 and 0.5.
    path = manifest(folder, "path\tweight\ngenomes/a.fa\t2\ngenomes/b.fa\t0.5\ngenomes/c.fa\t0\n")
    data = GenomeDataModule(path, length=32, batch_size=4, epoch_size=4000, augment_rc=False)
    windows = data.train_windows()
    record, start, _ = windows.places(0, np.arange(4000))
    share = np.bincount(record, minlength=4) / 4000
    assert (
        np.abs(share - [2 / 3, 1 / 6, 1 / 6, 0]).max() < 4 * np.sqrt(2 / 9 / 4000) and share[3] == 0
    )
    assert (start.min(), start.max()) == (0, 288) and np.abs(start[record == 0].mean() - 144) < 7
    again = data.train_windows().places(0, np.arange(100, 200))
    assert (
        again[0].tolist() == record[100:200].tolist()
        and again[1].tolist() == start[100:200].tolist()
    )
    assert data.describe()["weights"] == "of the manifest"
    equal = GenomeDataModule(
        manifest(folder, "path\tweight\ngenomes/a.fa\t3\n", "e.tsv"), length=32, batch_size=4
    )
    alone = GenomeDataModule(f"{folder}/genomes/a.fa", length=32, batch_size=4)
    assert (
        equal.digest == alone.digest
        and equal.train_windows().places(0, np.arange(9))[1].tolist()
        == alone.train_windows().places(0, np.arange(9))[1].tolist()
    )


def test_weights_do_not_go_with_windows_that_occur_once(folder):
    path = manifest(folder, "path\tweight\ngenomes/a.fa\t2\ngenomes/b.fa\t1\n")
    with pytest.raises(
        ValueError,
        match=r"the manifest has weights, and data\.windows=intervals uses each window once; set "
        r"data\.windows=uniform",
    ):
        GenomeDataModule(path, length=32, batch_size=4, windows="intervals").prepare()
    short = manifest(folder, "path\tweight\ngenomes/a.fa\t0\nshort.fa\t1\n", "s.tsv")
    (folder / "short.fa").write_text(">s\nACGT\n")
    with pytest.raises(ValueError, match="every window for training is of a file with weight 0"):
        GenomeDataModule(short, length=32, batch_size=4).prepare()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "label\tweight\nhuman\t1\n",
            r"m\.tsv: line 1: the column path is missing; the header has label, weight",
        ),
        (
            "genomes/a.fa\t1\n",
            r"m\.tsv: line 1: column 'genomes/a\.fa' is not known; known: path, label, weight, "
            r"separated by tabs",
        ),
        (
            "path\twieght\ngenomes/a.fa\t1\n",
            r"line 1: column 'wieght' is not known; did you mean weight\?",
        ),
        ("path\tpath\na\tb\n", r"line 1: column path occurs twice"),
        ("#path,label\nx,y\n", r"m\.tsv is separated by commas, not by '\\t'; write it with tabs"),
        ("label;path\nx;y\n", r"m\.tsv is separated by semicolons, .*; write it with tabs"),
        (
            "path\tweight\ngenomes/a.fa\t-1\n",
            r"line 2: weight is '-1'; expected a number of at least 0",
        ),
        ("path\tweight\ngenomes/a.fa\tmuch\n", r"line 2: weight is 'much'; expected a number"),
        ("path\tweight\ngenomes/a.fa\tnan\n", r"line 2: weight is 'nan'"),
        ("path\tweight\ngenomes/a.fa\t\n", r"line 2: weight is ''"),
        ("path\tweight\ngenomes/a.fa\t0\n", r"every weight is 0"),
        ("path\tweight\ngenomes/a.fa\n", r"line 2 has 1 fields, the header has 2"),
        (
            "path\ngenomes/a.fa\n\n./genomes/a.fa\n",
            r"line 4: .*a\.fa is also in line 2; name each file once",
        ),
        ("path\ngenomes/z.fa\n", r"m\.tsv: line 2: .*genomes/z\.fa does not exist"),
        ("path\ngenomes\n", r"m\.tsv: line 2: .*genomes is a folder"),
        ("path\tlabel\n\tx\n", r"line 2: path is empty"),
        ("path\n", r"m\.tsv has no rows"),
        ("", r"m\.tsv is empty"),
    ],
)
def test_a_malformed_manifest_is_one_line(folder, text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        Genome(manifest(folder, text))
    assert "\n" not in str(error.value)


def test_a_pattern_without_a_match_and_a_name_twice_are_named(folder):
    with pytest.raises(
        FileNotFoundError, match=r"genomes/\*\.fna matches no file; check the pattern"
    ):
        Genome(f"{folder}/genomes/*.fna")
    (folder / "other").mkdir()
    (folder / "other" / "a.fa").write_text(">chr1\nACGT\n")
    with pytest.raises(ValueError, match=r"other/a\.fa: record a:chr1 is also in .*genomes/a\.fa"):
        Genome(manifest(folder, "path\ngenomes/a.fa\nother/a.fa\n"))
    with pytest.raises(ValueError, match=r"b\.fa: record chr1 is also in .*a\.fa; rename one"):
        Genome([f"{folder}/genomes/a.fa", f"{folder}/genomes/b.fa"])


def test_weights_do_not_go_with_sequences_that_occur_once(folder):
    path = manifest(folder, "path\tweight\ngenomes/a.fa\t2\ngenomes/b.fa\t1\n")
    with pytest.raises(
        ValueError, match="data=sequences uses each sequence once per epoch; leave the weights out"
    ):
        ShortSequenceDataModule(path, length=500, batch_size=4).prepare()


def test_the_shipped_manifest_names_one_address_for_each_related_genome():
    sources = read_manifest("bundled:enterobacteria.tsv")
    labels = [source.label for source in sources]
    assert len(sources) == len(set(labels)) == 45
    for source in sources:
        assert re.fullmatch(r"https://raw\.githubusercontent\.com/.+\.gz", source.path)
        assert re.search(r"GC[AF]_\d{9}\.\d$", source.label)[0] in source.path  # its accession
