"""The command line for genomes: pack, describe, extract."""

import json
import random

import pytest
from Bio import SeqIO

FASTA = ">chr1 first\nACGTacgtNN\nGGGG\n>chr2\n" + "ACGTTGCA" * 300 + "\n"


@pytest.fixture
def fasta(tmp_path):
    (tmp_path / "g.fa").write_text(FASTA)
    return "data.path=g.fa"


def test_it_describes_lengths_composition_and_windows(cli, fasta, tmp_path):
    status, out, err = cli(
        "genome", fasta, "data.length=16", "data/split=fraction", "output=d.json"
    )
    assert status == 0, err
    content = json.loads((tmp_path / "d.json").read_text())
    one = {
        "name": "chr1",
        "length": 14,
        "gc": round(8 / 12, 6),
        "n": round(2 / 14, 6),
        "soft_masked": round(4 / 14, 6),
    }
    assert content["records"][0] == one and content["all"]["length"] == 2414
    assert content["parts"]["test"] == {
        "bases": 242,
        "intervals": 2,
        "too_short_bases": 2,
        "windows": 15,
        "left_out": 0,
    }
    assert "chr1" in out and "66.67" in out and content["split_hash"] in out
    assert {p.name for p in tmp_path.iterdir()} == {"g.fa", "d.json"}  # no run folder


def test_a_genome_without_room_for_windows_is_described_all_the_same(cli, fasta):
    status, out, _ = cli("genome", fasta, "data.length=4096")
    assert status == 0 and "chr2" in out and "no windows: " in out and "set data.length=" in out


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("chr1\t9\t3\ttrain", "end is not after its start"),
        ("9\t0\t9\ttrain", "no record is called 9"),
    ],
)
@pytest.mark.parametrize(
    "keys", [("data/split=regions", "data.split.bed=x.bed"), ("data.blacklist=x.bed",)]
)
def test_a_faulty_bed_is_an_error(cli, fasta, tmp_path, row, says, keys):
    (tmp_path / "x.bed").write_text(row + "\n")
    status, _, err = cli("genome", fasta, *keys)
    assert status == 1 and "x.bed: line 1" in err and says in err


def test_packing_says_where(cli, fasta, cache_folder):
    for _ in range(2):
        status, out, _ = cli("genome", fasta, "action=pack")
        assert status == 0 and "2,414" in out and f"packed in {cache_folder}" in out


def test_verify_reads_everything_and_names_damage(cli, fasta, cache_folder):
    status, out, err = cli("genome", fasta, "action=verify")
    assert status == 0 and "as it was written: " in out and "2,8" in out, err


def extracted(folder):
    return [
        (r.id, r.description.partition(" ")[2], str(r.seq))
        for r in SeqIO.parse(folder / "o.fa", "fasta")
    ]


def test_regions_of_every_kind_give_their_sequences(cli, fasta, tmp_path):
    (tmp_path / "r.bed").write_text("chr1\t0\t4\tone\nchr1\t2\t6\ttwo\t0\t-\nchr1\t0\t4\tagain\n")
    (tmp_path / "r.gtf").write_text(
        'chr1\tx\tCDS\t5\t8\t.\t-\t0\tgene_id "g1"\nchr1\tx\texon\t1\t2\t.\t+\t.\tgene_id "g2"\n'
    )
    (tmp_path / "t.gtf").write_text(
        "".join(
            f'chr1\tx\texon\t{first}\t{last}\t.\t-\t.\ttranscript_id "t1"\n'
            for first, last in ((11, 12), (4, 6))
        )
    )
    expected = [
        ("chr1:1-4", "one", "ACGT"),
        ("chr1:3-6(-)", "two", "gtAC"),
        ("chr1:1-4_2", "again", "ACGT"),
    ]
    for regions, records in {
        "regions=r.bed": expected,
        "regions=r.gtf feature=CDS": [("chr1:5-8(-)", "g1", "acgt")],
        "regions=t.gtf spliced=true": [("chr1:4-12(-)", "t1", "CCgtA")],
        "regions='chr1:5-8'": [("chr1:5-8", "", "acgt")],
        "regions=['chr1:9-12:-',r.bed]": [("chr1:9-12(-)", "", "CCNN"), *expected],
        "regions=chr1": [("chr1:1-14", "", "ACGTacgtNNGGGG")],
    }.items():
        status, out, err = cli(
            "genome", "action=extract", fasta, *regions.split(), "output=o.fa", "overwrite=true"
        )
        assert status == 0, err
        assert extracted(tmp_path) == records and f"{len(records)} sequences are in o.fa" in out


def test_a_long_region_is_wrapped_in_pieces(cli, tmp_path, monkeypatch):
    letters = "".join(random.Random(0).choices("ACGTacgtN", k=500))
    (tmp_path / "g.fa").write_text(f">chr1\n{letters}\n")
    files = []
    for number, lines in enumerate((1, 3, 1 << 16)):
        monkeypatch.setattr("dnadiff.formats.sequences.LINES_PER_PIECE", lines)
        assert (
            cli(
                "genome",
                "action=extract",
                "data=fasta",
                "data.path=g.fa",
                "regions='chr1:1-432'",
                f"output={number}.fa",
            )[0]
            == 0
        )
        files.append((tmp_path / f"{number}.fa").read_text())
    assert (
        files[0]
        == files[1]
        == files[2]
        == ">chr1:1-432\n"
        + "".join(letters[i : min(i + 60, 432)] + "\n" for i in range(0, 432, 60))
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "action=pakc",
            "action 'pakc' is not known; choose one of describe, pack, verify, extract",
        ),
        ("action=extract output=o.fa", "regions is missing: give regions=my.bed"),
        ("action=extract regions=chr1", "output is missing: give output="),
        ("action=extract regions=chr1 output=g.fa", "g.fa exists; set overwrite=true"),
        ("action=extract regions=chr9 output=o.fa", "is not a file, a region chrom:first-last"),
        (
            "action=extract regions='9:1-4' output=o.fa",
            "no record is called 9; the records are chr1",
        ),
        (
            "action=extract regions=bad.bed output=o.fa",
            "bad.bed: line 2 has the region chr1:5-5, whose end is not after its start",
        ),
        ("spliced=true", "spliced belongs to action=extract"),
        ("regions=chr1", "regions belongs to action=extract"),
        ("action=verify output=v.json", "action=verify writes no file; leave output out"),
        ("data.iupac=no", "iupac 'no' is not known; choose one of unknown, refuse"),
        ("data/split=regions", "data.split.bed is missing"),
        ("data/split=chromosome", "did you mean chromosomes?"),
        ("data=text", "is not DNA; choose data=fasta"),
    ],
)
def test_wrong_use_gets_one_line(cli, fasta, tmp_path, args, message):
    (tmp_path / "bad.bed").write_text("chr1\t1\t5\nchr1\t5\t5\n")
    status, _, err = cli("genome", fasta, *args.split())
    line = err.strip().splitlines()[-1]
    assert status == 1 and line.startswith("error: ") and message in line and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == {"g.fa", "bad.bed"}


def test_help_is_for_newcomers(cli):
    status, out, _ = cli("genome", "--help")
    assert status == 0 and "python -m dnadiff.genome" in out and "_target_" not in out


def test_short_sequences_are_described_too(cli, fasta):
    status, out, err = cli("genome", "data=sequences", fasta)
    assert status == 0 and "chr2" in out, err


def test_names_from_a_file_neither_fill_nor_control_the_terminal(cli, tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\x1b[2Jb" + b"x" * 1_000_000 + b"\nAC-T\n")
    status, _, err = cli("genome", "data.path=g.fa")
    assert status == 1 and "\x1b" not in err and r"the name a\x1b[2Jbxxx" in err and len(err) < 1100
    assert "contains a control character" in err


def test_complete_sequences_take_a_split_of_records(cli, tmp_path):
    (tmp_path / "x.fa").write_text("".join(f">s{i}\n{'ACGT' * (i + 2)}\n" for i in range(9)))
    parts = ["test", "valid", *["train"] * 7]
    (tmp_path / "r.bed").write_text(
        "".join(f"s{i}\t0\t{4 * (i + 2)}\t{part}\n" for i, part in enumerate(parts))
    )
    arguments = [
        "data=sequences",
        "data.path=x.fa",
        "data.length=64",
        "data/split=regions",
        "data.split.bed=r.bed",
    ]
    status, out, err = cli("genome", *arguments)
    assert status == 0 and "regions (r.bed)" in out, err
    assert [
        line.split()[:3]
        for line in out.splitlines()
        if line.startswith(("test", "valid", "train "))
    ] == [
        ["train", "196", "7"],
        ["valid", "12", "1"],
        ["test", "8", "1"],
    ]
