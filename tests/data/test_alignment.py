"""The store of alignments of related genomes."""

import gzip
import pickle
import struct
import time
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

from dnadiff.data.alignment import (
    ABSENT,
    GAP,
    Alignment,
    RelatedGenome,
    unpacked,
    write_alignment,
)
from dnadiff.data.genome.genome import Genome
from dnadiff.diffusion.vocab import CHANNELS, COMPLEMENT, FREQUENCY
from dnadiff.store.disk import cache_dir

RECORDS = {"chr1": 7, "chr2": 4}
TARGET = [0, 1, 2, 3, 0, 1, 5, 3, 3, 2, 1]  # ACGTACN TTGC
CODES = [[0, 1, 2, 3, 4, 4, 5, 3, 3, 2, 0], [5] * 11, [3, 2, 1, 0, 0, 0, 0, 1, 1, 1, 1]]


def columns() -> np.ndarray:
    return np.arange(11 * CHANNELS, dtype=np.float32).reshape(11, CHANNELS) / 8


@pytest.fixture
def stored(tmp_path) -> Alignment:
    return write_alignment(tmp_path / "x.aln", RECORDS, TARGET, CODES, columns(), {"tree": "(a);"})


def genome(tmp_path, text: str, name: str = "g.fa") -> Genome:
    (tmp_path / name).write_text(text)
    return Genome(tmp_path / name)


def test_what_is_written_is_read_back(stored):
    assert stored.records == RECORDS
    assert [each.name for each in stored.genomes] == ["genome1", "genome2", "genome3"]
    assert stored.tree == "(a);"
    np.testing.assert_array_equal(stored.columns("chr2", 1, 4), columns()[8:11])
    np.testing.assert_array_equal(stored.codes("chr1", 1, 6), np.array(CODES)[:, 1:6])
    np.testing.assert_array_equal(stored.codes("chr2", 0, 4), np.array(CODES)[:, 7:])
    np.testing.assert_array_equal(stored.target("chr1", 0, 7), TARGET[:7])
    assert stored.columns("chr1", 3, 3).shape == (0, CHANNELS)


def test_the_reverse_complement_flips_positions_and_swaps_bases(stored):
    found = stored.columns("chr1", 2, 5, reverse=True)
    np.testing.assert_array_equal(found, columns()[4:1:-1][:, list(COMPLEMENT)])
    assert list(COMPLEMENT) == [3, 2, 1, 0, 7, 6, 5, 4, 8, 9]


def test_the_file_is_a_safetensors_file(stored):
    arrays = load_file(stored.path)
    np.testing.assert_array_equal(arrays["columns"], columns().astype(np.float16))
    np.testing.assert_array_equal(unpacked(arrays["codes"], 0, 11), [TARGET, *CODES])


def test_a_record_that_is_not_in_the_alignment_has_no_columns(stored):
    assert not stored.columns("chr3", 5, 9).any()
    assert (stored.codes("chr3", 5, 9) == ABSENT).all()
    np.testing.assert_array_equal(stored.columns("2", 0, 4), columns()[7:])
    with pytest.raises(ValueError, match=r"window chr2:0-5 is not inside the record, 0-4"):
        stored.columns("chr2", 0, 5)


def test_codes_are_read_from_any_position_on(tmp_path):
    codes = np.random.default_rng(0).integers(0, 6, (3, 21), np.uint8)
    found = write_alignment(tmp_path / "x.aln", {"x": 21}, codes[0], codes, np.zeros((21, 10)))
    for start in range(21):
        for end in range(start, 22):
            np.testing.assert_array_equal(found.codes("x", start, end), codes[:, start:end])


def test_a_row_has_all_records(stored):
    for number, codes in enumerate(CODES):
        np.testing.assert_array_equal(stored.row(number), codes)


def test_a_file_is_written_in_pieces(tmp_path, stored):
    pieces = (columns()[start : start + 3] for start in range(0, 11, 3))
    rows = (np.array(row, np.uint8) for row in CODES)
    write_alignment(tmp_path / "y.aln", RECORDS, TARGET, rows, pieces, {"tree": "(a);"})
    assert (tmp_path / "y.aln").read_bytes() == (tmp_path / "x.aln").read_bytes()


def test_the_identity_follows_the_content(tmp_path, stored):
    arguments = RECORDS, TARGET, CODES
    same = write_alignment(tmp_path / "y.aln", *arguments, columns(), {"tree": "(a);"})
    other = write_alignment(tmp_path / "z.aln", *arguments, columns() + 1, {"tree": "(a);"})
    renamed = write_alignment(tmp_path / "r.aln", *arguments, columns(), {"tree": "(b);"})
    assert stored.identity == same.identity
    assert len({stored.identity, other.identity, renamed.identity}) == 3


@pytest.fixture
def compact(tmp_path) -> Alignment:
    values = np.random.default_rng(0).uniform(-8, 5, (11, CHANNELS))
    values[6] = 0
    about = {"genomes": [vars(RelatedGenome(x, f"/home/me/{x}.fa")) for x in "abc"]}
    found = write_alignment(tmp_path / "c.aln.xz", RECORDS, TARGET, CODES, values, about)
    expected = values.copy()
    expected[:, FREQUENCY] = 0
    parts = [found.columns("chr1", 0, 7), found.columns("chr2", 0, 4)]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=0.05001)
    return found


def test_a_compact_file_has_columns_in_steps(tmp_path, compact):
    assert not compact.columns("chr1", 6, 7).any()
    np.testing.assert_array_equal(compact.target("chr2", 0, 4), TARGET[7:])
    compact.check(genome(tmp_path, ">chr1\nACGTACN\n>chr2\nTTGC\n"))
    assert [(each.name, each.file) for each in compact.genomes][:1] == [("a", "a.fa")]
    for read in (lambda: compact.codes("chr1", 0, 7), lambda: compact.row(0)):
        with pytest.raises(
            ValueError, match=r"c\.aln\.xz is compact: it has columns, and no bases"
        ):
            read()
    found = compact.columns("chr1", 2, 5, reverse=True)
    forward = compact.columns("chr1", 2, 5)
    np.testing.assert_array_equal(found, forward[::-1, list(COMPLEMENT)])
    assert pickle.loads(pickle.dumps(compact)).identity == compact.identity


def test_a_compressed_file_is_unpacked_once(tmp_path, compact, stored):
    folder = cache_dir("alignments") / compact.identity[:32]
    before = (folder / "unpacked.aln").stat()
    Alignment(compact.path)
    after = (folder / "unpacked.aln").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    whole = tmp_path / "x.aln.gz"
    whole.write_bytes(gzip.compress((tmp_path / "x.aln").read_bytes()))
    np.testing.assert_array_equal(Alignment(whole).codes("chr1", 0, 7), stored.codes("chr1", 0, 7))


@pytest.mark.parametrize("damage", [lambda x: x[:-9], lambda x: x[:200] + b"!!!" + x[203:]])
def test_a_damaged_compact_file_is_refused(tmp_path, compact, damage):
    (tmp_path / "d.aln.xz").write_bytes(damage((tmp_path / "c.aln.xz").read_bytes()))
    with pytest.raises(ValueError, match=r"d\.aln\.xz is damaged or cut short") as caught:
        Alignment(tmp_path / "d.aln.xz")
    assert "\n" not in str(caught.value)


def test_genomes_that_were_left_out_keep_their_reason(tmp_path):
    rows = [RelatedGenome("a", "a.fa", 0.8, 0.5, 0.01, 0.0), RelatedGenome("b", reason="a copy")]
    about = {"genomes": [vars(each) for each in rows]}
    found = write_alignment(
        tmp_path / "x.aln", {"x": 2}, [0, 1], [[GAP, 1]], np.zeros((2, 10)), about
    )
    assert found.genomes == rows[:1]
    assert [each.reason for each in found.left_out] == ["a copy"]


@pytest.mark.parametrize("keep", [0, 4, 100, -11, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path, stored, keep):
    content = (tmp_path / "x.aln").read_bytes()
    cut = tmp_path / "cut.aln"
    cut.write_bytes(content[:keep])
    with pytest.raises(ValueError, match=r"cut\.aln is not an alignment .* or was cut off"):
        Alignment(cut)


def test_other_files_and_other_versions_are_refused(tmp_path, stored):
    (tmp_path / "other.aln").write_bytes(b">chr1\nACGT\n")
    with pytest.raises(ValueError, match=r"other\.aln is not an alignment of related genomes"):
        Alignment(tmp_path / "other.aln")
    header = b'{"__metadata__": {"format": "pt"}}'
    (tmp_path / "pt.aln").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match=r"pt\.aln has the format 'pt', and this version"):
        Alignment(tmp_path / "pt.aln")
    content = (tmp_path / "x.aln").read_bytes()
    (tmp_path / "new.aln").write_bytes(content.replace(b"alignment 1", b"alignment 9"))
    with pytest.raises(ValueError, match=r"'dnadiff alignment 9', .* reads 'dnadiff alignment 1'"):
        Alignment(tmp_path / "new.aln")
    with pytest.raises(FileNotFoundError):
        Alignment(tmp_path / "none.aln")


def test_another_assembly_is_refused(tmp_path, stored):
    stored.check(genome(tmp_path, ">chr1\nACGTACN\n>chr2\nTTGC\n>plasmid\nACGT\n"))
    stored.check(genome(tmp_path, ">1\nacgtacn\n", "names.fa"))
    with pytest.raises(ValueError, match="its record chr2 has 4 bases, that of the genome 5"):
        stored.check(genome(tmp_path, ">chr1\nACGTACN\n>chr2\nTTGCA\n", "longer.fa"))
    with pytest.raises(ValueError, match="another assembly: its record chr1 has"):
        stored.check(genome(tmp_path, ">chr1\nACGTTCN\n>chr2\nTTGC\n", "other.fa"))
    with pytest.raises(ValueError, match=r"has the records chr1, chr2, and the genome scaffold"):
        stored.check(genome(tmp_path, ">scaffold\nACGTTCN\n", "none.fa"))


def test_an_unfinished_file_leaves_nothing(tmp_path):
    def pieces():
        yield np.zeros((2, CHANNELS))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_alignment(tmp_path / "x.aln", {"x": 4}, [0] * 4, [], pieces())
    assert not list(tmp_path.iterdir())


def test_a_pickled_alignment_is_a_path(stored):
    assert len(pickle.dumps(stored)) < 500
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(stored)).codes("chr1", 0, 7)[0], CODES[0][:7]
    )


def test_opening_hundreds_of_genomes_takes_milliseconds_and_reads_no_array(tmp_path):
    size, count = 20_000, 400
    about = {"genomes": [vars(RelatedGenome(f"genome {i}", "x.fa.gz")) for i in range(count)]}
    rows = [np.full(size, 3, np.uint8)] * count
    columns = [np.zeros((size, CHANNELS))]
    write_alignment(tmp_path / "x.aln", {"x": size}, rows[0], rows, columns, about)
    Alignment(tmp_path / "x.aln")
    tracemalloc.start()
    begin = time.perf_counter()
    found = Alignment(tmp_path / "x.aln")
    seconds = time.perf_counter() - begin
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 0.25 and memory < 3_000_000 < count * size // 2
    assert found.codes("x", size - 3, size)[-1].tolist() == [3, 3, 3]
