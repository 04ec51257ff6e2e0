"""Numbers about designs, against small sets whose values are known."""

import itertools

import numpy as np
import pytest

from dnadiff.formats.sequences import Record, write_fasta
from dnadiff.genomics.metrics.composition import (
    MAX_SEQUENCES,
    DesignTable,
    as_bases,
    compare_designs,
)
from dnadiff.plot import information


def test_the_mean_hamming_distance_is_that_of_all_pairs():
    texts = ["ACGTA", "ACGTT", "CCGTA", "ACGTA"]
    counts = np.zeros((5, 5), int)
    for text in texts:
        counts[np.arange(5), as_bases(text)] += 1
    pairs = [sum(a != b for a, b in zip(*pair)) for pair in itertools.combinations(texts, 2)]
    table = DesignTable(texts, {}, np.full(4, 5), 3, counts, [])
    assert table.hamming == pytest.approx(np.mean(pairs))


def test_letters_of_a_logo_are_as_high_as_their_information():
    counts = np.array(
        [[1000, 0, 0, 0, 0], [500, 500, 0, 0, 0], [250, 250, 250, 250, 0], [0, 0, 0, 0, 1000]]
    )
    heights, correction = information(counts), 3 / (2 * np.log(2) * 1000)
    assert heights[0] == pytest.approx([2 - correction, 0, 0, 0]) and heights[1] == pytest.approx(
        [0.5 - correction / 2] * 2 + [0, 0]
    )
    assert heights[2:].sum() == 0


def test_a_table_reads_the_designed_part_and_the_last_value_of_a_header(tmp_path):
    records = [
        Record(
            "a",
            'synthetic label="x reward=9 y" designed=3-6 reward=0.5 log_prob=-4.000 '
            "longest_match=3",
            b"AAGTGCAA",
        ),
        Record("b", "synthetic designed=1-4 reward=-1e-3", b"gtgcAAAA"),
    ]
    write_fasta(tmp_path / "a.fa", records)
    table = DesignTable.read(tmp_path / "a.fa", 2)
    assert (
        table.columns["reward"].tolist() == [0.5, -0.001]
        and table.names == ["a", "b"]
        and table.num_distinct == 1
    )
    assert (
        table.columns["log_prob"][0] == -4
        and np.isnan(table.columns["log_prob"][1])
        and table.columns["longest_match"][0] == 3
    )
    assert (
        table.lengths.tolist() == [4, 4]
        and table.hamming == 0
        and table.counts[0].tolist() == [0, 0, 2, 0, 0]
    )


def test_designs_of_different_lengths_have_no_positions(tmp_path):
    write_fasta(
        tmp_path / "a.fa",
        [
            Record("a", "reward=1", b"ACG"),
            Record("b", "reward=1", b"ACGT"),
            Record("c", "reward=1", b"ACG"),
        ],
    )
    table = DesignTable.read(tmp_path / "a.fa", 3)
    assert table.counts is None and table.hamming is None and len(table) == 3


def test_ten_thousand_designs_are_counted_and_two_thousand_are_kept(tmp_path):
    letters = np.frombuffer(b"ACGT", np.uint8)[
        np.random.default_rng(1).integers(0, 4, (10_000, 30))
    ]
    write_fasta(
        tmp_path / "a.fa",
        (Record(f"s{i}", f"reward={i}", row.tobytes()) for i, row in enumerate(letters)),
    )
    table = DesignTable.read(tmp_path / "a.fa", 10_000)
    assert (
        len(table) == 10_000
        and len(table.sequences) == MAX_SEQUENCES == 2000
        and table.columns["reward"].sum() == 49_995_000
    )
    assert table.counts.sum(1).tolist() == [10_000] * 30 and table.hamming == pytest.approx(
        22.5, abs=0.1
    )
    assert (
        table.sequences[-1] == as_bases(letters[-1].tobytes())
    ).all()  # evenly spaced: also the last


def test_designs_of_other_k_mers_are_far_from_real_sequences():
    rng = np.random.default_rng(2)
    real = list(rng.integers(0, 4, (40, 30)).astype(np.uint8))
    same, other = list(rng.integers(0, 4, (12, 30)).astype(np.uint8)), [np.zeros(30, np.uint8)] * 12
    close, far = compare_designs(same, real, False), compare_designs(other, real, False)
    assert list(far) == [*(f"{k}-mers, bits" for k in range(1, 7)), "GC content, points"]
    assert (
        all(one.above_baseline for one in far.values()) and not close["2-mers, bits"].above_baseline
    )
    assert far["GC content, points"].samples > 40
    assert len(compare_designs([as_bases("ACG")], real, True)) == 3 + 1
