"""Sequences that are read in order, in bounded memory."""

import random
import tracemalloc

import numpy as np
import pytest

from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import ArrayInput, FileInput, GenomeInput, open_input
from dnadiff.data.records import Interval, grouped, pieces
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.regions import Region
from dnadiff.formats.sequences import Header, SequenceFormat, parse

encode = DNATokenizer().encode


class Pieces(SequenceFormat):
    """FASTA whose letters come in small pieces, of the size that the first line names."""

    starts = (b";",)

    @classmethod
    def records(cls, path, content):
        size = int(content.readline()[1:])
        for event in parse(path, [content.read()]):
            if isinstance(event, Header):
                yield event
            else:
                yield from (event[i : i + size] for i in range(0, len(event), size))


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_windows_of_a_fasta_file_are_those_of_its_records(tmp_path, size):
    draw = random.Random(size)
    texts = {
        f"r{i}": "".join(draw.choices("ACGTNacgtuR", k=draw.randint(1, 90))) for i in range(12)
    }
    (tmp_path / "x.fa").write_text(
        f";{size}\n"
        + "".join(f">{name} a b\n{text[:31]}\n\n{text[31:]}\n" for name, text in texts.items())
    )
    found = FileInput(tmp_path / "x.fa")
    assert found.names == list(texts) and found.lengths == [len(text) for text in texts.values()]
    wanted = []
    for record, text in enumerate(texts.values()):
        starts = sorted(draw.randrange(len(text)) for _ in range(draw.randint(0, 4)))
        wanted += [Interval(record, start, draw.randint(start + 1, len(text))) for start in starts]
    windows = list(found.windows(wanted))
    arrays = [encode(text) for text in texts.values()]
    assert len(windows) == len(wanted)
    for piece, ids, same in zip(wanted, windows, ArrayInput(arrays).windows(wanted)):
        np.testing.assert_array_equal(ids, arrays[piece.record][piece.start : piece.end])
        np.testing.assert_array_equal(ids, same)


def test_a_long_record_is_never_in_memory(tmp_path):
    (tmp_path / "x.fa").write_bytes(b">long\n" + b"ACGTTGACGT" * 6_000_000 + b"\n")
    tracemalloc.start()
    try:
        found = FileInput(tmp_path / "x.fa")
        total = sum(len(ids) for ids in found.windows(pieces(found.lengths, 100_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 60_000_000 and peak < 30_000_000


def test_the_digest_changes_with_names_and_bases(tmp_path):
    digests = set()
    for text in (
        ">a\nACGT\n>b\nA\n",
        ">a\nACG\n>b\nTA\n",
        ">a\nACGA\n>b\nA\n",
        ">a\nACGT\n>c\nA\n",
    ):
        (tmp_path / "x.fa").write_text(text)
        digests.add(FileInput(tmp_path / "x.fa").digest)
    (tmp_path / "x.fa").write_text(">a\nAC\nGT\n>b\nA\n")
    assert len(digests) == 4 and FileInput(tmp_path / "x.fa").digest in digests


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    (tmp_path / "x.fa").write_text(">a\nACGTACGT\n>b\nACGT\n")
    found = FileInput(tmp_path / "x.fa")
    for text in (">a\nACGT\n>b\nACGTACGT\n", ">a\nACGTACGT\n"):
        (tmp_path / "x.fa").write_text(text)
        with pytest.raises(ValueError, match="changed while it was read"):
            list(found.windows([Interval(0, 0, 8), Interval(1, 0, 4)]))


def test_windows_of_regions_are_on_their_strand(tmp_path):
    (tmp_path / "g.fa").write_text(">a\nAACCCGTTTT\n")
    found = GenomeInput(
        Genome(tmp_path / "g.fa"),
        [Region("a", 1, 7, strand="-"), Region("a", 1, 7), Region("a", 1, 7)],
    )
    assert found.names == ["a:2-7(-)", "a:2-7", "a:2-7_2"] and found.lengths == [6, 6, 6]
    decode = DNATokenizer().decode
    windows = [
        decode(ids)
        for ids in found.windows([Interval(0, 0, 6), Interval(0, 1, 4), Interval(1, 1, 4)])
    ]
    assert windows == ["ACGGGT", "CGG", "CCC"]  # [1, 7) is ACCCGT


def test_spliced_regions_are_read_without_introns_on_both_strands(tmp_path):
    #                                      0         10
    (tmp_path / "g.fa").write_text(">a\nAACCCGTTTTGACA\n")
    blocks = ((1, 3), (5, 7), (11, 14))  # AC, GT, ACA
    found = GenomeInput(Genome(tmp_path / "g.fa"), [Region("a", 1, 14, s, s, blocks) for s in "+-"])
    assert found.names == ["a:2-14(+)", "a:2-14(-)"] and found.lengths == [7, 7]
    assert found.region_names == ["+", "-"]
    cuts = [Interval(0, 0, 7), Interval(0, 1, 5), Interval(1, 0, 7), Interval(1, 2, 4)]
    assert [DNATokenizer().decode(ids) for ids in found.windows(cuts)] == [
        *("ACGTACA", "CGTA"),
        *("TGTACGT", "TA"),
    ]
    plain = GenomeInput(found.genome, [Region("a", 1, 14, s, s) for s in "+-"])
    assert found.digest != plain.digest
    with pytest.raises(ValueError, match="a track has values of a genome, not of spliced=true"):
        found.sites()


def test_groups_hold_consecutive_pieces_within_the_limits():
    cuts = [
        Interval(0, 0, 5),
        Interval(0, 5, 9),
        Interval(1, 0, 30),
        Interval(2, 0, 1),
        Interval(2, 1, 2),
        Interval(2, 2, 3),
    ]
    groups = list(grouped(cuts, 2, 10))
    assert groups == [cuts[:2], [cuts[2]], cuts[3:5], [cuts[5]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (None, None, None, None),
            r"input is missing: give input=... \(FASTA\), or regions= with genome=g.fa",
        ),
        (("x.fa", None, "a", None), "regions 'a' needs genome=g.fa"),
        (("x.fa", None, None, "CDS"), "feature 'CDS' chooses rows"),
        (("x.fa", None, None, None, "regions", True), "spliced=true joins rows"),
        (("x.bed", None, None, None), "input x.bed is a file of regions, not FASTA"),
        ((None, "x.fa", None, None), "genome x.fa needs regions="),
        (("x.fa", "x.fa", "a", None), "exclude each other"),
        ((None, "x.fa", "b:1-3", None), "no record is called b"),
        ((None, "x.fa", "a:1-30", None), "ends beyond a"),
    ],
)
def test_contradicting_keys_are_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    with pytest.raises(ValueError, match=message):
        open_input(*arguments)
