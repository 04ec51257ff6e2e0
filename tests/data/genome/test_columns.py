"""Columns of an alignment next to the sequences of an input."""

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import write_alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import ArrayInput, FileInput, GenomeInput, open_input
from dnadiff.data.records import Interval, pieces
from dnadiff.diffusion.vocab import CHANNELS, complemented
from dnadiff.formats.regions import Region

CHROM, PLASMID = "ACGTTGACNNACGTRCATTG", "GATTACAGGA"


@pytest.fixture
def genome(tmp_path):
    (tmp_path / "g.fa").write_text(f">chr1\n{CHROM}\n>plasmid\n{PLASMID}\n")
    return Genome(tmp_path / "g.fa")


@pytest.fixture
def stored(tmp_path):
    """An alignment to chr1 alone, with columns that float16 holds exactly."""
    target = ["ACGT".index(base) if base in "ACGT" else 5 for base in CHROM]
    columns = np.arange(len(CHROM) * CHANNELS, dtype=np.float32).reshape(-1, CHANNELS) / 4
    return write_alignment(tmp_path / "x.aln", {"chr1": len(CHROM)}, target, [target], columns)


def test_a_region_on_the_other_strand_has_the_complemented_columns(genome, stored):
    source = GenomeInput(genome, [Region("chr1", 3, 11, strand=s) for s in "+-."])
    assert source.columns([Interval(0, 0, 8)]) is None and source.identity == {
        "input": source.digest
    }
    source.align(stored)
    forward, reverse, neither = source.columns([Interval(i, 0, 8) for i in range(3)])
    assert torch.equal(forward, torch.from_numpy(stored.columns("chr1", 3, 11)))
    assert torch.equal(reverse, complemented(forward.flip(0))) and torch.equal(neither, forward)
    assert source.identity["alignment"] == stored.identity


def test_spliced_regions_have_the_columns_of_their_blocks(genome, stored):
    blocks = ((3, 5), (8, 11))
    source = GenomeInput(genome, [Region("chr1", 3, 11, "t", s, blocks) for s in "+-"])
    source.align(stored)
    forward, reverse = source.columns(source.whole())
    parts = [stored.columns("chr1", *block) for block in blocks]
    assert torch.equal(forward, torch.from_numpy(np.concatenate(parts)))
    assert torch.equal(reverse, complemented(forward.flip(0)))
    assert torch.equal(source.columns([Interval(1, 1, 4)])[0], reverse[1:4])


def test_pieces_come_in_any_order_and_are_padded_with_zeros(genome, stored):
    source = GenomeInput(genome, [Region("chr1", 2, 12, strand="-"), Region("chr1", 0, 20)])
    source.align(stored)
    whole = source.columns([Interval(0, 0, 10), Interval(1, 0, 20)])
    found = source.columns(iter([Interval(1, 4, 9), Interval(0, 1, 4)]))
    assert found.shape == (2, 5, CHANNELS)
    assert torch.equal(found[0], whole[1, 4:9]) and torch.equal(found[1, :3], whole[0, 1:4])
    assert not found[1, 3:].any() and not whole[0, 10:].any()


def test_the_bases_and_the_columns_of_a_piece_belong_together(genome, stored):
    regions = [Region("chr1", 0, 20), Region("chr1", 5, 19, strand="-")]
    source = GenomeInput(genome, regions)
    source.align(stored)
    cut = list(pieces(source.lengths, 4))
    base_of = {tuple(stored.columns("chr1", i, i + 1)[0]): base for i, base in enumerate(CHROM)}
    base_of |= {
        tuple(stored.columns("chr1", i, i + 1, True)[0]): "TGCA"["ACGT".index(base)]
        for i, base in enumerate(CHROM)
        if base in "ACGT"
    }
    for ids, columns in zip(source.windows(cut), source.columns(cut).tolist()):
        for letter, column in zip(genome.tokenizer.decode(ids), columns):
            assert letter == "N" or base_of[tuple(column)] == letter


def test_records_that_the_alignment_does_not_have_get_zeros_and_one_line(genome, stored, caplog):
    source = GenomeInput(genome, [Region("plasmid", 1, 5), Region("chr1", 1, 5)])
    with caplog.at_level("INFO", logger="dnadiff"):
        source.align(stored)
    [line] = caplog.messages
    assert line.startswith("alignment: 1 of 2 sequences are of records that ")
    plasmid, chrom = source.columns([Interval(0, 0, 4), Interval(1, 0, 4)])
    assert not plasmid.any() and chrom.any()


def test_the_sequences_around_regions_keep_the_columns(genome, stored):
    source = GenomeInput(genome, [Region("chr1", 3, 11, strand="-")])
    source.align(stored)
    whole, [site] = source.sites()
    assert site == (0, 3, 11)
    expected = torch.from_numpy(stored.columns("chr1", 3, 11))
    assert torch.equal(whole.columns([site])[0], expected)  # strand + of the record


def test_records_of_a_file_that_are_those_of_the_target_have_its_columns(tmp_path, stored, caplog):
    (tmp_path / "x.fa").write_text(f">other\nACGT\n>chr1\n{CHROM[:9].lower()}\n{CHROM[9:]}\n")
    source = open_input(str(tmp_path / "x.fa"), None, None, None)
    with caplog.at_level("INFO", logger="dnadiff"):
        source.align(stored)
    assert "1 of 2 sequences" in caplog.messages[-1]
    other, chrom = source.columns([Interval(0, 0, 4), Interval(1, 8, 12)])
    assert not other.any() and torch.equal(chrom, torch.from_numpy(stored.columns("chr1", 8, 12)))


@pytest.mark.parametrize(
    "text, problem",
    [
        (f">chr1\n{CHROM[:-1]}A\n", "made for another assembly: its record chr1"),
        (f">chr1\n{CHROM}A\n", "made for another assembly: its record chr1"),
        (">gene\nACGT\n", "chr1.* the genome.* gene"),
    ],
)
def test_another_assembly_is_refused(tmp_path, stored, text, problem):
    (tmp_path / "x.fa").write_text(text)
    with pytest.raises(ValueError, match=problem):
        FileInput(tmp_path / "x.fa").align(stored)


def test_arrays_have_the_columns_that_are_given_with_them():
    sequences = [np.full(3, 7, np.uint8), np.full(2, 8, np.uint8)]
    given = [np.random.default_rng(0).random((len(ids), CHANNELS)) for ids in sequences]
    source = ArrayInput(sequences, given)
    found = source.columns([Interval(1, 0, 2), Interval(0, 2, 3)])
    assert found.dtype == torch.float32 and not found[1, 1:].any()
    np.testing.assert_array_equal(found[1, 0], given[0][2].astype(np.float32))
    with pytest.raises(ValueError, match="columns must be an array of each sequence"):
        ArrayInput(sequences, given[:1])
