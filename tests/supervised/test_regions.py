import gzip
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.kmers import KmerSet
from dnadiff.data.splits import RegionSplit
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.regions import Region
from dnadiff.store.objects import check
from dnadiff.supervised.protocol import build_protocol
from dnadiff.supervised.tasks import (
    CsvTask,
    RegionWindows,
    covered_bases,
    kmer_centers,
    window_starts,
)

DNA = DNATokenizer()


def letters(random: np.random.Generator, length: int) -> str:
    return "".join(random.choice(list("ACGT"), length))


def sequences(items) -> list[str]:
    return [
        DNA.decode(ids[:length]) for ids, length in zip(items.ids.numpy(), items.lengths.tolist())
    ]


def marked(text: str) -> np.ndarray:
    return np.array([c == "#" for c in text])


def test_covered_bases_are_those_in_any_region_of_their_record():
    regions = [Region("a", 1, 3), Region("b", 0, 2), Region("a", 2, 5)]
    a, b = covered_bases(regions, {"a": 6, "b": 4})
    assert a.tolist() == [False, True, True, True, True, False]
    assert b.tolist() == [True, True, False, False]


def test_windows_are_centered_in_each_run():
    assert window_starts(marked("..####.#####.."), 4, 4).tolist() == [2, 7]
    assert window_starts(marked("##########"), 4, 4).tolist() == [1, 5]
    assert window_starts(marked("##########"), 4, 3).tolist() == [0, 3, 6]
    assert window_starts(marked("###..###"), 4, 1).tolist() == []


def test_a_stretch_without_a_kmer_center_contains_no_kmer_of_the_set():
    random = np.random.default_rng(0)
    known, other = (
        random.integers(0, 4, 60).astype(np.uint8),
        random.integers(0, 4, 300).astype(np.uint8),
    )
    other[100:130] = known[10:40]
    centres = kmer_centers(KmerSet([known], 24), other)
    assert np.flatnonzero(centres).tolist() == list(range(112, 119))


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    """300 bases: training 0-180, test 180-240, validation 240-300; the second half of each part is
    a region."""
    sequence = letters(np.random.default_rng(1), 300)
    (tmp_path / "toy.fa").write_text(f">c\n{sequence}\n")
    (tmp_path / "regions.bed").write_text(
        "c\t90\t180\tg1\t0\t+\nc\t210\t240\tg2\t0\t-\nc\t270\t300\tg3\t0\t+\n"
    )
    (tmp_path / "split.bed").write_text("c\t0\t180\ttrain\nc\t180\t240\ttest\nc\t240\t300\tvalid\n")
    return {
        "sequence": sequence,
        "genome": str(tmp_path / "toy.fa"),
        "regions": str(tmp_path / "regions.bed"),
        "split": str(tmp_path / "split.bed"),
    }


def load(toy: dict[str, str], **settings):
    settings = {"length": 10, "stride": 5, "k": 8, "name": "toy", **settings}
    return RegionWindows(
        toy["genome"], toy["regions"], split=RegionSplit(toy["split"]), **settings
    ).load(DNA)


def test_windows_are_completely_inside_or_outside_regions_of_their_part(toy):
    data = load(toy)
    assert data.classes == ["inside", "outside"]
    assert data.counts() == {
        part: {"inside": n, "outside": n} for part, n in (("train", 17), ("valid", 3), ("test", 3))
    }
    text = toy["sequence"]
    assert sequences(data.test) == [text[s : s + 10] for s in (210, 220, 230, 180, 190, 200)]
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert sequences(data.train)[:2] == [text[90:100], text[95:105]]
    assert not data.stranded


@pytest.mark.parametrize("strand", ["+", "-"])
def test_test_windows_that_share_a_kmer_with_training_are_excluded_and_counted(toy, strand):
    text = toy["sequence"]
    word = text[31:39] if strand == "+" else reverse_complement(text[31:39])
    text = text[:191] + word + text[199:]
    Path(toy["genome"]).write_text(f">c\n{text}\n")
    data = load(toy)
    assert data.notes["left_out_for_a_shared_kmer"]["test"] == {"inside": 0, "outside": 1}
    assert not any(word in s for s in sequences(data.test))
    assert data.counts()["test"] == {"inside": 2, "outside": 2}


def test_an_unknown_base_is_in_no_window(toy):
    text = toy["sequence"]
    Path(toy["genome"]).write_text(f">c\n{text[:5]}N{text[6:]}\n")
    assert all("N" not in s for s in sequences(load(toy).train))


def test_max_train_limits_training_windows_reproducibly(toy):
    first, second = load(toy, max_train=4), load(toy, max_train=4)
    assert first.counts()["train"] == {"inside": 4, "outside": 4}
    assert sequences(first.train) == sequences(second.train)


def test_a_part_without_windows_of_a_class_is_refused(toy):
    with pytest.raises(ValueError, match="no window of 40 bases of class inside in the valid part"):
        load(toy, length=40)


def test_the_bundled_task_is_balanced_and_shares_no_24_mer_with_training():
    data = RegionWindows(
        "bundled:ecoli_K12_MG1655.fa.gz",
        "bundled:ecoli_K12_MG1655.CDS.bed.gz",
        max_train=300,
        inside="coding",
        outside="noncoding",
    ).load(DNA)
    counts = data.counts()
    assert counts["train"] == {"coding": 300, "noncoding": 300}
    assert counts["test"] == {"coding": 98, "noncoding": 98}
    assert data.notes["left_out_for_a_shared_kmer"]["test"] == {"coding": 34, "noncoding": 100}
    training = KmerSet([DNA.bases(ids) for ids in data.train.ids.numpy()], 24)
    assert not any(training.hits(DNA.bases(ids)).any() for ids in data.test.ids.numpy())


def table(path: Path, rows: list[list[str]], header: str = "sequence,label") -> str:
    text = "\n".join([header, *(",".join(row) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def some_rows(number: int = 40, seed: int = 0) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [[letters(random, 5 + i % 3), "ba"[i % 2]] for i in range(number)]


def test_a_table_is_divided_in_each_class(tmp_path):
    data = CsvTask(table(tmp_path / "t.csv", some_rows())).load(DNA)
    assert (data.name, data.classes) == ("t", ["a", "b"])
    assert data.counts() == {
        "train": {"a": 14, "b": 14},
        "valid": {"a": 2, "b": 2},
        "test": {"a": 4, "b": 4},
    }
    assert sorted(sequences(data.train) + sequences(data.valid) + sequences(data.test)) == sorted(
        s for s, _ in some_rows()
    )


def test_tab_separated_compressed_tables_with_other_columns_and_a_byte_order_mark_are_read(
    tmp_path,
):
    rows = [
        ["x", s.lower(), c, "train" if i < 30 else "test"] for i, (s, c) in enumerate(some_rows())
    ]
    path = tmp_path / "t.tsv.gz"
    path.write_bytes(
        gzip.compress(
            (
                "\ufeffid\tseq\tkind\tpart\r\n" + "".join("\t".join(r) + "\r\n" for r in rows)
            ).encode()
        )
    )
    data = CsvTask(path, "seq", "kind", "part", name="mine").load(DNA)
    assert data.name == "mine"
    assert sequences(data.test) == [s for s, _ in some_rows()[30:]]
    assert len(data.train) + len(data.valid) == 30


def test_copies_of_a_sequence_on_either_strand_stay_in_one_part(tmp_path):
    rows = some_rows()
    data = CsvTask(
        table(tmp_path / "t.csv", rows + rows + [[reverse_complement(s), c] for s, c in rows])
    ).load(DNA)
    parts = [
        {min(s, reverse_complement(s)) for s in sequences(items)}
        for items in (data.train, data.valid, data.test)
    ]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    assert data.notes["test_sequences_also_in_training"] == 0


def test_copies_across_a_given_split_are_counted(tmp_path):
    rows = [[s, c, "train"] for s, c in some_rows()]
    rows += [
        [reverse_complement(rows[0][0]), "b", "test"],
        ["AAAAAAAAAA", "a", "test"],
        *([r[0], r[1], "valid"] for r in rows[2:4]),
    ]
    rows += [["ACCCTTTTTT", "a", "valid"], ["ACCCTTTTTT", "a", "test"]]
    data = CsvTask(
        table(tmp_path / "t.csv", rows, "sequence,label,split"), split_column="split"
    ).load(DNA)
    assert data.notes["test_sequences_also_in_training"] == 2
    folds = CsvTask(
        table(tmp_path / "t.csv", rows, "sequence,label,split"),
        split_column="split",
        folds=5,
    ).load(DNA)
    assert folds.notes["test_sequences_also_in_training"] == 0
    for one in build_protocol("fixed", DNA.vocab.pad_id, None, 5).rounds(folds, 1):
        learnt, tested = (
            {min(s, reverse_complement(s)) for s in sequences(i)}
            for i in (one.data.train, one.data.test)
        )
        assert tested and not learnt & tested


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            some_rows(),
            {"label_column": "y"},
            r"no column 'y'; its columns are sequence, label: set task.label_column",
        ),
        (some_rows(), {"split_column": "part"}, r"no column 'part'.*task.split_column"),
        ([[s, "a"] for s, _ in some_rows()], {}, r"one class, 'a', in column 'label'"),
        ([*some_rows(3), ["", "a"]], {}, r"line 5 has nothing in column 'sequence'"),
        ([*some_rows(3), ["ACGT"]], {}, r"line 5 has 1 fields, the header has 2"),
        (
            [*some_rows(3), ["ACXT", "a"]],
            {},
            r"line 5: letter 'X' at position 3 is not a nucleotide",
        ),
        ([], {}, r"a header and no rows"),
        ([["ACGT", "a"], ["ACGG", "b"]], {}, r"class 'a' has too few different sequences"),
        (
            [[s, c] for s, c in some_rows()],
            {"split_column": "label"},
            r"line 2 has 'b' in column 'label'; expected train, valid or test",
        ),
    ],
)
def test_a_bad_table_gets_a_one_line_error_with_the_fix(tmp_path, rows, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        CsvTask(table(tmp_path / "t.csv", rows), **settings).load(DNA)
    assert "\n" not in str(error.value)


def test_a_split_column_needs_test_rows_of_training_classes(tmp_path):
    rows = [[s, c, "train"] for s, c in some_rows()]
    with pytest.raises(ValueError, match="no test rows in column 'split'"):
        CsvTask(table(tmp_path / "t.csv", rows, "sequence,label,split"), split_column="split").load(
            DNA
        )
    with pytest.raises(ValueError, match="class 'z' has test rows and no train rows"):
        CsvTask(
            table(tmp_path / "t.csv", [*rows, ["ACGT", "z", "test"]], "sequence,label,split"),
            split_column="split",
        ).load(DNA)


def test_a_missing_table_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        CsvTask(tmp_path / "none.csv").load(DNA)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": "abc"}, "max_length 'abc' must be an integer of at least 1"),
        ({"max_length": 2.5}, "max_length 2.5 must be"),
        ({"test_fraction": "foo"}, "test_fraction 'foo' must be a number above 0 and below 1"),
        ({"test_fraction": 1}, "test_fraction 1 must be a number above 0 and below 1"),
        ({"valid_fraction": None}, "valid_fraction None must be"),
        ({"cluster_kmer": 40}, "cluster_kmer 40 must be an integer from 1 to 31"),
        ({"cluster_kmer": "abc"}, "cluster_kmer 'abc' must be"),
        ({"seed": "abc"}, "seed 'abc' must be an integer of at least 0"),
        ({"seed": -1}, "seed -1 must be"),
        ({"stranded": "maybe"}, "stranded=maybe is neither true nor false"),
        ({"redivide": 1}, "redivide 1 must be"),
        ({"name": ["a"]}, r"name \['a'\] must be a string"),
        ({"sequence_column": None}, "sequence_column None must be"),
    ],
)
def test_a_setting_of_the_wrong_type_gets_a_one_line_error(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        CsvTask(table(tmp_path / "t.csv", some_rows()), **settings)
    config = {"_target_": "dnadiff.supervised.tasks.CsvTask", "path": "t.csv", **settings}
    with pytest.raises(ValueError, match=f"^task.{message}"):
        check({"task": config}, trust=None)


def test_a_delimiter_of_two_characters_gets_a_one_line_error(tmp_path):
    with pytest.raises(ValueError, match=r"task\.delimiter ';;' must be one character"):
        CsvTask(table(tmp_path / "t.csv", some_rows()), delimiter=";;")


@pytest.mark.parametrize(
    "settings", [{"length": "abc"}, {"k": 40}, {"max_train": 1.5}, {"seed": None}]
)
def test_a_window_setting_of_the_wrong_type_gets_a_one_line_error(toy, settings):
    with pytest.raises(ValueError, match=rf"^{next(iter(settings))} .* must be an integer"):
        load(toy, **settings)


def test_a_number_can_name_a_column_and_a_task(tmp_path):
    data = CsvTask(
        table(tmp_path / "t.csv", some_rows(), "sequence,5"), label_column=5, name=7
    ).load(DNA)
    assert (data.name, data.classes) == ("7", ["a", "b"])


def test_a_bad_pattern_of_groups_names_its_key():
    with pytest.raises(
        ValueError, match=r"task\.group_pattern '\(' is no regular expression: missing \)"
    ):
        CsvTask("x.csv", group_column="gene", group_pattern="(")
