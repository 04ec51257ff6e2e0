"""Blocks with guards, the canonical chr20 split, the published split and its leak; no base of one
part is seen by another."""

import bisect
import hashlib
import itertools
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.splits import (
    BlockSplit,
    CaduceusSplit,
    ChromosomeSplit,
    DefaultSplit,
    FractionSplit,
    Interval,
    RegionSplit,
    first_overlap,
    overlapping,
    split_hash,
)
from dnadiff.store.files import BUNDLED, bundled

CHR20 = {
    "GRCh37": (
        "20",
        63_025_520,
        "c08cd1590ff5",
        "eb0a352e5e47e4941086ae86391c3ef11a5959d9bdb6559826cc576273f7decb",
    ),
    "GRCh38": (
        "chr20",
        64_444_167,
        "591e6835f776",
        "c382b2f859e36579ac2fcdf4c3e4bdc1e8695809311dca2b6169bc3f8172175b",
    ),
}


def test_blocks_of_ten_with_guards_of_two():
    parts = BlockSplit(block=10, period=4, test=3, valid=1, guard=2)(["a"], [65])
    assert parts["train"] == [
        Interval(0, 0, 8),
        Interval(0, 22, 28),
        Interval(0, 42, 48),
        Interval(0, 62, 65),
    ]
    assert parts["valid"] == [Interval(0, 10, 20), Interval(0, 50, 60)] and parts["test"] == [
        Interval(0, 30, 40)
    ]
    neighbors = BlockSplit(block=10, period=4, test=3, valid=2, guard=2)(["a"], [50])
    assert neighbors["valid"] == [Interval(0, 20, 28)] and neighbors["test"] == [
        Interval(0, 30, 40)
    ]
    assert neighbors["train"] == [Interval(0, 0, 18), Interval(0, 42, 50)]


@given(
    st.integers(1, 200),
    st.integers(3, 12),
    st.integers(0, 1),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_parts_of_any_pattern_are_a_guard_apart(length, block, guard, kinds):
    if kinds[0] == kinds[1]:
        return
    parts = BlockSplit(block, 4, kinds[0], kinds[1], guard)(["a"], [length])
    rows = sorted((i.start, i.end, part) for part, many in parts.items() for i in many)
    assert (
        all(b[0] - a[1] == (guard if a[2] != b[2] else 0) for a, b in itertools.pairwise(rows))
        and first_overlap(parts) is None
    )


@pytest.mark.parametrize("options", [{"guard": 600_000}, {"test": 8}, {"test": 10}, {"block": 0}])
def test_impossible_blocks_are_refused(options):
    with pytest.raises(
        ValueError, match=r"split\.(block|test) is|^block 0 must be an integer of at least 1"
    ):
        BlockSplit(**options)


@pytest.mark.parametrize("assembly", CHR20)
def test_the_canonical_chr20_split_is_the_one_shipped(assembly):
    name, length, digest, sha256 = CHR20[assembly]
    file = f"human_chr20_{assembly}.split.bed"
    assert hashlib.sha256(bundled(file).read_bytes()).hexdigest() == sha256
    parts = RegionSplit(f"bundled:{file}")([name], [length])
    assert parts == BlockSplit()([name], [length]) and split_hash(parts, [name]) == digest
    assert {p: [i.start // 1_000_000 % 10 for i in parts[p]] for p in ("valid", "test")} == {
        "valid": [8] * 6,
        "test": [9] * 6,
    }
    readme = (BUNDLED / "README.md").read_text()
    assert sha256 in readme and digest in readme


def union(spans):
    """The same bases as those of `(record, start, end)`, in disjoint sorted intervals."""
    found = []
    for record, start, end in sorted(spans):
        if found and found[-1][0] == record and start <= found[-1][2]:
            found[-1] = (record, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((record, start, end))
    return found


POLICIES = {
    "fraction": ("yeast", FractionSplit()),
    "default": ("yeast", DefaultSplit()),
    "chromosomes": ("yeast", ChromosomeSplit(valid=["chrI"], test=["chrII", "chrM"])),
    "blocks": ("yeast", BlockSplit(block=100_000, guard=1024)),
    "chr20": ("chr20", RegionSplit("bundled:human_chr20_GRCh37.split.bed")),
    "chr20 fraction": ("chr20", FractionSplit()),
}
FILES = {"yeast": "scerevisiae_R64-1-1.fa.gz", "chr20": "GRCh37_chr20.fa.gz"}


@pytest.mark.parametrize("length", [1024, 131072])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_window_of_one_split_touches_a_base_of_another(shared_data, policy, length):
    # Exhaustive: every allowed start of training, every tile of validation and test.
    organism, split = POLICIES[policy]
    data = GenomeDataModule(shared_data / "genomes" / FILES[organism], length, 4, split)
    try:
        data.prepare()
    except ValueError as error:
        assert "shorter than the window" in str(error) and policy in (
            "fraction",
            "blocks",
        )  # of 131,072
        return
    train, seen = data.train_windows(), {}
    first = train._last - np.diff(train._last, prepend=0) + train._shift
    starts = zip(train._record.tolist(), first.tolist(), (train._last + train._shift).tolist())
    seen["train"] = union((record, low, high - 1 + length) for record, low, high in starts)
    record_of, start_of, _ = train.places(0, np.arange(3000))
    for record, start in set(zip(record_of.tolist(), start_of.tolist())):
        nearest = seen["train"][bisect.bisect(seen["train"], (record, start, np.inf)) - 1]
        assert nearest[0] == record and nearest[1] <= start and start + length <= nearest[2]
    for part in ("valid", "test"):
        if any(i.end - i.start >= length for i in data.intervals[part]):
            seen[part] = union(
                (int(t[0]), int(t[1]), int(t[1]) + length) for t in data.test_windows(part).tiles
            )
    parts = list(seen)
    assert len(parts) == 3 or length == 131072
    for number, part in enumerate(parts):
        for other in parts[number + 1 :]:
            together = sorted(seen[part] + seen[other])
            assert not any(b[0] == a[0] and b[1] < a[2] for a, b in itertools.pairwise(together)), (
                f"{part} and {other}"
            )


def test_intervals_are_united_as_base_by_base():
    draw = np.random.default_rng(0)
    spans = [
        (int(r), int(s), int(s + n))
        for r, s, n in zip(
            draw.integers(0, 2, 60), draw.integers(0, 400, 60), draw.integers(1, 9, 60)
        )
    ]
    together = union(spans)
    assert {(r, i) for r, a, b in spans for i in range(a, b)} == {
        (r, i) for r, a, b in together for i in range(a, b)
    }
    assert 20 < len(together) == len(set(together)) < 60
    assert all(b[0] > a[0] or b[1] > a[2] for a, b in itertools.pairwise(together))


def test_overlaps_are_found_as_base_by_base():
    draw = np.random.default_rng(0)
    intervals = [
        Interval(int(r), int(s), int(s + n))
        for r, s, n in zip(
            draw.integers(0, 2, 12), draw.integers(0, 300, 12), draw.integers(1, 30, 12)
        )
    ]
    record, start = draw.integers(0, 3, 500), draw.integers(0, 330, 500)
    end = start + draw.integers(1, 20, 500)
    expected = [
        any(i.record == r and i.start < e and s < i.end for i in intervals)
        for r, s, e in zip(record, start, end)
    ]
    assert overlapping(record, start, end, intervals).tolist() == expected


def test_the_published_split_stretches_its_intervals_and_counts_its_leak(tmp_path):
    bed = tmp_path / "human-sequences.bed"
    bed.write_text(
        "a\t0\t10\ttrain\na\t40\t50\ttest\na\t100\t110\ttrain\nb\t5\t15\ttrain\n"
        "a\t125\t130\tvalid\n"
    )
    split = CaduceusSplit(bed, stretch=60)
    parts = split(["a", "b"], [150, 40])
    assert parts["train"] == [Interval(0, 0, 60), Interval(0, 100, 150), Interval(1, 5, 40)]
    assert parts["test"] == [Interval(0, 40, 100)] and parts["valid"] == [Interval(0, 125, 150)]
    leak = split.leak(["a", "b"], [150, 40], length=10)
    # Training tiles of a: 0 10 20 30 40 50 and 100 .. 140, of b: 5 15 25 30; those from 40, 50 and
    # from 120 on are evaluated too.
    assert (leak["windows"], leak["as_evaluated"], leak["as_written"]) == (6 + 5 + 4, 2 + 3, 1 + 1)
    assert leak["share_as_evaluated"] == round(5 / 15, 4) and "leaks" in split.describe()


def test_the_leak_of_the_published_protocol_on_chr20_is_measured_and_said(
    shared_data, tmp_path, caplog, monkeypatch
):
    bed = shared_data / "annotations" / "hg38.chr20.windows131072.split.bed.gz"
    leak = CaduceusSplit(bed).leak(["chr20"], [64_444_167], 1024)
    # 371 training intervals, stretched; those before 44 Mb reach into test, and the stretched ends
    # of validation beyond 54 Mb into them.
    assert (leak["windows"], leak["as_evaluated"], leak["as_written"]) == (377_732, 7_168, 3_584)
    assert (leak["share_as_evaluated"], leak["share_as_written"]) == (0.019, 0.0095)
    letters = (
        np.random.default_rng(0)
        .choice(np.frombuffer(b"ACGT", np.uint8), 3_000_000)
        .tobytes()
        .decode()
    )
    (tmp_path / "g.fa").write_text(f">chr20\n{letters}\n")
    (tmp_path / "s.bed").write_text(
        "chr20\t0\t131072\ttrain\nchr20\t1000000\t1131072\ttest\nchr20\t2500000\t2631072\tvalid\n"
    )
    data = GenomeDataModule(
        tmp_path / "g.fa",
        1024,
        4,
        CaduceusSplit(tmp_path / "s.bed"),
        windows="intervals",
        max_n=1.0,
    )
    with caplog.at_level(logging.INFO, logger="dnadiff"):
        data.prepare()
    assert (
        "48 of 1,024 training windows (4.7 %) overlap held-out intervals as they are evaluated, 48 "
        "(4.7 %) as the file has them" in caplog.text
    )
    assert data.describe()["leak"]["as_evaluated"] == 48 and data.train_windows().size == 1024
