import csv
import gzip
import itertools
import logging
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.finetune import FinetuneOptions, finetune
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.table import read_rows
from dnadiff.options.compose import Composition
from dnadiff.store.objects import build, config_dir
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.ensemble import LengthLimits
from dnadiff.supervised.predictions import Columns, SequenceFile
from dnadiff.supervised.tasks import (
    CsvTask,
    FastaTask,
    GenomicBenchmark,
    find_tables,
)

DNA = DNATokenizer()


def sequences(items) -> list[str]:
    return [
        DNA.decode(ids[:length]) for ids, length in zip(items.ids.numpy(), items.lengths.tolist())
    ]


def everything(data) -> Counter:
    parts = {"train": (data.train, data.valid), "test": (data.test,)}
    return Counter(
        (part, data.classes[label], text)
        for part, many in parts.items()
        for items in many
        for text, label in zip(sequences(items), items.labels.tolist())
    )


def random_letters(random: np.random.Generator, length: int) -> str:
    return "".join(random.choice(list("ACGT"), length))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 + 4 sequences of each of two classes, one file each."""
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 4)):
        for name in ("zebra", "ant"):
            (tmp_path / "toy" / part / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / "toy" / part / name / f"{number}.txt").write_text(
                    random_letters(random, 10 + number % 3) + "\n"
                )
    return tmp_path / "toy"


def queries(path: Path) -> SequenceFile:
    return SequenceFile(str(path), DNA, ClassTarget(), Columns(), None, None, LengthLimits())


def test_a_folder_of_classes_is_read_and_classes_are_numbered_by_name(folder):
    data = GenomicBenchmark(folder).load(DNA)
    assert (data.name, data.classes) == ("toy", ["ant", "zebra"])
    assert data.counts() == {
        "train": {"ant": 18, "zebra": 18},
        "valid": {"ant": 2, "zebra": 2},
        "test": {"ant": 4, "zebra": 4},
    }
    first = (folder / "test" / "zebra" / "0.txt").read_text().strip()
    assert ("test", "zebra", first) in everything(data)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("train/bee/0.txt", "ACGT", r"test has no class 'bee', which another part has"),
        ("test/ant/9.txt", "\n", r"9.txt has an empty sequence"),
        ("test/ant/9.txt", "ACXT", r"9.txt: letter 'X' at position 3 is not a nucleotide"),
    ],
)
def test_a_bad_folder_gets_a_one_line_error(folder, path, content, message):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        GenomicBenchmark(folder).load(DNA)
    assert "\n" not in str(error.value)


def test_a_folder_without_test_or_with_one_class_is_refused(folder, tmp_path):
    (tmp_path / "test").mkdir()
    with pytest.raises(FileNotFoundError, match="no folder 'train'"):
        GenomicBenchmark(tmp_path).load(DNA)
    (tmp_path / "test").rmdir()
    for part in ("train", "test"):
        (folder / part / "ant").rename(tmp_path / part)
    with pytest.raises(ValueError, match="one class, 'zebra', in the class folders"):
        GenomicBenchmark(folder).load(DNA)


def test_differences_from_known_counts_are_logged(folder, caplog):
    caplog.set_level(logging.WARNING, logger="dnadiff")
    logging.getLogger("dnadiff").propagate = True
    data = GenomicBenchmark(folder, expected={"train": 40, "test": 9}).load(DNA)
    assert data.notes["differs_from_the_known_counts"] == {"test": {"found": 8, "known": 9}}
    assert "8 test sequences, the complete task has 9" in caplog.text


def test_max_length_truncates_and_counts(folder):
    data = GenomicBenchmark(folder, max_length=11).load(DNA)
    assert data.max_length == 11
    assert data.notes["cut_to_max_length"] == sum(number % 3 == 2 for number in range(20)) * 2 + 2


def test_intervals_are_cut_from_the_genome_and_the_minus_strand_is_complemented(tmp_path):
    text = random_letters(np.random.default_rng(1), 400)
    (tmp_path / "g.fa").write_text(f">20\n{text}\n")
    top = tmp_path / "toy"
    top.mkdir()
    (top / "metadata.yaml").write_text("classes:\n  a: {}\n  b: {}\nversion: 0\n")
    for part, first in (("train", 0), ("test", 200)):
        (top / part).mkdir()
        for name, strand in (("a", "-"), ("b", "")):
            rows = "".join(
                f"{i},chr20,{first + 9 * i},{first + 9 * i + 12},{strand}\n" for i in range(10)
            )
            (top / part / f"{name}.csv.gz").write_bytes(
                gzip.compress(f"id,region,start,end,strand\n{rows}".encode())
            )
    data = GenomicBenchmark(top, genome=tmp_path / "g.fa").load(DNA)
    assert everything(data)["test", "a", reverse_complement(text[200:212])] == 1
    assert everything(data)["test", "b", text[209:221]] == 1
    with pytest.raises(ValueError, match=r"set task\.genome"):
        GenomicBenchmark(top, "toy").load(DNA)
    for line, message in (
        ("1,chr20,390,412,+", "line 2 has the region 20:390-412, which ends beyond 20"),
        ("1,chr9,3,5,+", "line 2 is on chr9.*task.skip_missing"),
        ("1,chr20,3,5,x", "strand 'x'"),
    ):
        (top / "test" / "a.csv.gz").write_bytes(
            gzip.compress(f"id,region,start,end,strand\n{line}\n".encode())
        )
        with pytest.raises(ValueError, match=message):
            GenomicBenchmark(top, genome=tmp_path / "g.fa").load(DNA)
    (top / "metadata.yaml").write_text("classes:\n  a: {}\n")
    with pytest.raises(ValueError, match="class 'b' is in a file only"):
        GenomicBenchmark(top, genome=tmp_path / "g.fa").load(DNA)


def test_a_fasta_file_for_each_class(tmp_path):
    random = np.random.default_rng(2)
    for name in "pq":
        (tmp_path / f"{name}.fa").write_text(
            "".join(f">{i}\n{random_letters(random, 12)}\n" for i in range(20))
        )
    files = {"yes": str(tmp_path / "p.fa"), "no": str(tmp_path / "q.fa")}
    data = FastaTask(files, name="mine").load(DNA)
    assert data.classes == ["no", "yes"]
    assert data.counts()["test"] == {"no": 4, "yes": 4}
    assert len(FastaTask({"train": files, "test": files}).load(DNA).test) == 40
    with pytest.raises(ValueError, match="not a file for each class"):
        FastaTask(tmp_path / "p.fa")
    with pytest.raises(ValueError, match=r"one class, 'a', in task\.path"):
        FastaTask({"a": files["yes"]}).load(DNA)


def test_a_folder_of_tables_as_gue_publishes_it(tmp_path):
    random = np.random.default_rng(3)
    for part, count in (("train", 12), ("dev", 4), ("test", 6)):
        rows = "".join(f"{random_letters(random, 9)},{i % 2}\n" for i in range(count))
        (tmp_path / f"{part}.csv").write_text(f"sequence,label\n{rows}")
    data = CsvTask(tmp_path).load(DNA)
    assert {part: sum(n.values()) for part, n in data.counts().items()} == {
        "train": 12,
        "valid": 4,
        "test": 6,
    }


def test_overlapping_items_stay_in_one_part_with_a_cluster_kmer(tmp_path):
    random = np.random.default_rng(4)
    genome = [random_letters(random, 60) for _ in range(40)]
    rows = [[text[s : s + 40], "ab"[i % 2]] for i, text in enumerate(genome) for s in (0, 10, 20)]
    (tmp_path / "t.csv").write_text("sequence,label\n" + "".join(f"{s},{c}\n" for s, c in rows))
    data = CsvTask(tmp_path / "t.csv", cluster_kmer=15).load(DNA)
    owner = {text[s : s + 40]: i for i, text in enumerate(genome) for s in (0, 10, 20)}
    parts = [{owner[s] for s in sequences(items)} for items in (data.train, data.valid, data.test)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    assert len(data.test) == 24


def test_a_parquet_column_can_have_two_roles(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"sequence": ["ACGT", "AC"], "label": ["a", "b"]}), tmp_path / "t.parquet"
    )
    rows = read_rows(
        str(tmp_path / "t.parquet"), {"sequence": "sequence", "name": "sequence", "label": "label"}
    )
    assert [cells for _, cells in rows] == [["ACGT", "ACGT", "a"], ["AC", "AC", "b"]]


def test_parquet_of_the_hub_is_read_like_a_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(5)
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    for part, size in (("train", 20), ("test", 6)):
        table = {
            "seq": [random_letters(random, 9 + i % 3) for i in range(size)],
            "label": [i % 2 for i in range(size)],
        }
        parquet.write_table(
            pyarrow.table(table), tmp_path / "hub" / "data" / f"{part}-00000-of-00001.parquet"
        )
        rows = "".join(f"{text},{label}\n" for text, label in zip(table["seq"], table["label"]))
        (tmp_path / "plain" / f"{part}.csv").write_text("seq,label\n" + rows)
    hub = GenomicBenchmark(tmp_path / "hub", "t").load(DNA)
    assert hub.counts()["test"] == {"0": 3, "1": 3}
    assert everything(hub) == everything(GenomicBenchmark(tmp_path / "plain", "t").load(DNA))
    with pytest.raises(ValueError, match=r"has no column 'sequence'; its columns are seq, label"):
        CsvTask(str(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")).load(DNA)
    parquet.write_table(
        pyarrow.table({"seq": ["ACGT", None], "label": [0, 1]}),
        tmp_path / "hub" / "data" / "test-00000-of-00001.parquet",
    )
    with pytest.raises(ValueError, match="line 2 has nothing in column 'seq'"):
        GenomicBenchmark(tmp_path / "hub", "t").load(DNA)


def load(name: str, path: Path, *overrides: str):
    more = [f"task.{override}" for override in overrides]
    settings = finetune.compose(["checkpoint=x", f"task={name}", f"task.path={path}", *more]).task
    return build(settings, trust=None).load(DNA)


def test_every_task_composes_and_has_its_required_keys():
    names = sorted(p.stem for p in (config_dir() / "task").glob("*.yaml"))
    assert {"human_nontata_promoters", "tf_0", "uci_splice", "csv", "fasta", "ecoli_coding"} <= set(
        names
    )
    for name in names:
        settings = (
            Composition("finetune", FinetuneOptions, ["checkpoint=x", f"task={name}"]).config().task
        )
        assert "protocol" in settings
        for one in settings.get("tasks", {"": settings}).values():
            assert {"_target_", "protocol", "name"} <= set(one)


@pytest.mark.parametrize("name", ["mouse_2", "prom_300_tata", "tf_2"])
def test_gue_tables_have_their_known_counts(shared_data, name):
    file = f"prom_{name}" if name.startswith("prom") else name
    data = load(name, shared_data / "benchmarks" / "gue" / f"{file}.csv.gz")
    assert "differs_from_the_known_counts" not in data.notes
    assert len(data.classes) == 2


def test_uci_splice_has_its_known_counts(shared_data):
    data = load("uci_splice", shared_data / "benchmarks" / "uci" / "splice_junctions.csv.gz")
    total = {
        name: sum(of_part[name] for of_part in data.counts().values()) for name in data.classes
    }
    assert total == {"EI": 767, "IE": 768, "N": 1655}
    assert "differs_from_the_known_counts" not in data.notes


def test_the_official_promoter_test_set_is_divided_by_clusters(shared_data):
    path = (
        shared_data
        / "benchmarks"
        / "genomic_benchmarks"
        / "human_nontata_promoters.official_test.csv.gz"
    )
    data = load("human_nontata_promoters", path, "redivide=true", "cluster_kmer=24")
    assert {part: sum(n.values()) for part, n in data.counts().items()}["test"] == pytest.approx(
        9034 / 5, abs=2
    )
    assert data.notes["test_sequences_also_in_training"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "human_nontata_promoters",
        "human_ocr_ensembl",
        "human_enhancers_ensembl",
        "human_ensembl_regulatory",
    ],
)
def test_intervals_on_grch38_are_the_sequences_of_the_tables(shared_data, tmp_path_factory, name):
    top = tmp_path_factory.getbasetemp() / "grch38"
    if not (top / "chr20.fa.gz").is_file():
        top.mkdir(exist_ok=True)
        subprocess.run(
            [sys.executable, shared_data / "make_grch38_chr20.py", top / "chr20.fa.gz"], check=True
        )
        with tarfile.open(
            shared_data / "benchmarks" / "genomic_benchmarks" / "coordinates_chr20.tar.gz"
        ) as packed:
            packed.extractall(top, filter="data")
    data = load(name, top / "datasets" / name, f"genome={top / 'chr20.fa.gz'}")
    with gzip.open(
        shared_data / "benchmarks" / "genomic_benchmarks" / f"{name}.chr20.csv.gz", "rt"
    ) as handle:
        table = Counter(
            (row["split"], row["class"], row["sequence"]) for row in csv.DictReader(handle)
        )
    cut = everything(data)
    whole = Counter({key: count for key, count in cut.items() if "N" not in key[2]})
    assert not table - cut  # each row of the table is the sequence of its interval
    assert (
        sum(table.values()) / sum(whole.values()) > 0.9
    )  # the table lacks intervals that are not in one aligned block


def test_a_quoted_header_does_not_hide_the_official_parts(tmp_path):
    rows = [
        (random_letters(np.random.default_rng(i), 12), "ab"[i % 2], "test" if i < 8 else "train")
        for i in range(40)
    ]
    text = '"seq","class","split"\n' + "".join(f'"{s}","{c}","{p}"\n' for s, c, p in rows)
    (tmp_path / "t.csv").write_text(text)
    data = GenomicBenchmark(tmp_path / "t.csv", "t").load(DNA)
    assert sequences(data.test) == [s for s, _, part in rows if part == "test"]


def test_a_damaged_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "t.parquet").write_text("not parquet")
    for task in (CsvTask(tmp_path / "t.parquet"), GenomicBenchmark(tmp_path / "t.parquet", "t")):
        with pytest.raises(ValueError, match=r"t\.parquet is not a parquet file, or is damaged"):
            task.load(DNA)


@pytest.mark.parametrize(
    ("metadata", "table", "message"),
    [
        ("classes: [\n", "", r"metadata\.yaml is not YAML"),
        ("classes: 5\n", "", r"metadata\.yaml names no classes"),
        ("classes:\n", "", r"metadata\.yaml names no classes"),
        (
            None,
            "id,chrom,start,end,strand\n1,chr20,0,9,+\n",
            r"a\.csv\.gz has no column 'region'; intervals need",
        ),
        (None, "id,region,start,end,strand\n", r"a\.csv\.gz has a header and no rows"),
    ],
)
def test_bad_intervals_get_a_one_line_error(tmp_path, metadata, table, message):
    (tmp_path / "g.fa").write_text(f">20\n{random_letters(np.random.default_rng(1), 400)}\n")
    (tmp_path / "metadata.yaml").write_text(metadata or "classes:\n  a: {}\n  b: {}\n")
    good = "id,region,start,end,strand\n" + "".join(
        f"{i},chr20,{9 * i},{9 * i + 12},+\n" for i in range(10)
    )
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for name in "ab":
            (tmp_path / part / f"{name}.csv.gz").write_bytes(
                gzip.compress((table if table and name == "a" else good).encode())
            )
    with pytest.raises(ValueError, match=message) as error:
        GenomicBenchmark(tmp_path, genome=tmp_path / "g.fa").load(DNA)
    assert "\n" not in str(error.value) and "task.region" not in str(error.value)


def test_a_path_without_files_or_with_parts_and_files_is_refused():
    for path in ({}, {"train": {}, "test": {}}):
        with pytest.raises(ValueError, match="path names no file"):
            FastaTask(path)
    with pytest.raises(ValueError, match="path mixes parts and files"):
        FastaTask({"train": {"a": "a.fa"}, "test": "b.fa"})


def test_classes_without_validation_rows_are_logged(tmp_path, caplog):
    random = np.random.default_rng(6)
    parts = [("train", "abc"), ("valid", "ab"), ("test", "abc")]
    rows = [
        f"{random_letters(random, 9)},{label},{part}\n"
        for part, labels in parts
        for label in labels * 4
    ]
    (tmp_path / "t.csv").write_text("sequence,label,split\n" + "".join(rows))
    CsvTask(tmp_path / "t.csv", split_column="split").load(DNA)
    assert (
        "t.csv: 'c' has no validation rows, which choose the epoch and the settings" in caplog.text
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ("a/train.csv", "b/train.csv"),
            r"has train tables in two folders, .*a/train\.csv and .*b/train\.csv.*; set "
            r"task\.path=.*a or",
        ),
        (
            ("a/dev.csv", "b/valid.csv"),
            r"has valid tables in two folders, .*a/dev\.csv and .*b/valid\.csv",
        ),
        (
            ("train.csv", "train.tsv"),
            r"has two tables of one name, .*train\.csv and .*train\.tsv.*task\.path=FOLDER",
        ),
        (
            ("test.csv", "test.csv.gz"),
            r"has two tables of one name, .*test\.csv and .*test\.csv\.gz",
        ),
    ],
)
def test_tables_that_could_be_copies_of_each_other_are_refused(tmp_path, files, message):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        find_tables(str(tmp_path))


def test_the_shards_of_a_part_are_read_together(tmp_path):
    names = [
        "test-00000-of-00001.parquet",
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert [Path(path).name for path, _ in find_tables(str(tmp_path))] == names


@pytest.mark.parametrize("word", ["NA", "nan", "Null", "none"])
def test_words_for_missing_values_are_neither_sequences_nor_classes(tmp_path, word):
    both = ((f"{word},a", "sequence"), (f"ACGT,{word}", "label"))
    for row, column in both[
        : 1 if word == "none" else 2
    ]:  # none is a usual name for the class without a feature
        (tmp_path / "t.csv").write_text(f"sequence,label\nACGT,b\n{row}\n")
        message = (
            rf"t\.csv: line 3 has '{word}' in column '{column}', which stands for a missing value"
        )
        with pytest.raises(ValueError, match=message):
            CsvTask(tmp_path / "t.csv").load(DNA)
    (tmp_path / "p.csv").write_text(f"sequence\n{word}\n")
    with pytest.raises(ValueError, match=rf"p\.csv: line 2 has '{word}' in column 'sequence'"):
        list(queries(tmp_path / "p.csv"))


def test_none_is_a_class(tmp_path):
    rows = "".join(
        f"{''.join(x)},{'none' if x[0] == 'A' else 'tata'}\n"
        for x in itertools.product("ACGT", repeat=4)
    )
    (tmp_path / "t.csv").write_text(f"sequence,label\n{rows}")
    assert sorted(CsvTask(tmp_path / "t.csv").load(DNA).classes) == ["none", "tata"]


def case_rows(count: int = 120) -> list[tuple[str, str]]:
    """Sequences of 60 bases with their classes, which have TATAAT or not."""
    random, rows = np.random.default_rng(11), []
    for number in range(count):
        letters = random_letters(random, 60)
        rows.append((f"{letters[:20]}TATAAT{letters[26:]}" if number % 2 else letters, number % 2))
    return [(letters, str(label)) for letters, label in rows]


def write_rows(path: Path, header: list[str], rows, delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def number_of(data) -> dict[str, int]:
    return {part: sum(each.values()) for part, each in data.counts().items()}


@pytest.mark.parametrize("name", ["split", "Split"])
def test_a_column_split_divides_the_rows_and_the_log_says_so(tmp_path, caplog, name):
    caplog.set_level(logging.INFO)
    rows = [(*row, "Test" if i >= 100 else "train") for i, row in enumerate(case_rows())]
    path = write_rows(tmp_path / "t.csv", ["sequence", "label", name], rows)
    data = CsvTask(path).load(DNA)
    assert number_of(data) == {"train": 90, "valid": 10, "test": 20}
    assert sequences(data.test) == [row[0] for row in rows[100:]]
    assert caplog.messages == [
        f"{path}: column {name!r} divides the rows; task.redivide=true divides them at random"
    ]
    assert data.notes["split"] == f"column {name!r}"
    assert everything(GenomicBenchmark(path, "toy").load(DNA)) == everything(data)
    caplog.clear()
    again = CsvTask(path, redivide=True).load(DNA)
    assert number_of(again)["test"] == 24 and not caplog.messages


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("split", ["train", ""], "it holds '', 'train'; a split holds train and test"),
        ("split", ["train", "valid"], "it holds 'train', 'valid'; a split holds train and test"),
        ("split", ["1", "2", "3", "4", "5"], "it holds '1', '2', '3' and 2 more; a split"),
        ("fold", ["0", "1"], "it holds '0', '1'; a split holds train and test"),
        ("set", ["train", "test"], "set task.split_column=set to divide the rows by it"),
    ],
)
def test_a_column_that_may_divide_the_rows_is_named(tmp_path, caplog, name, values, message):
    rows = [(*row, value) for row, value in zip(case_rows(), itertools.cycle(values))]
    path = write_rows(tmp_path / "t.csv", ["sequence", "label", name], rows)
    data = CsvTask(path).load(DNA)
    assert number_of(data) == {"train": 86, "valid": 10, "test": 24}
    (line,) = caplog.messages
    assert line.startswith(f"{path}: column {name!r} is not used: {message}")


def test_a_column_of_labels_is_no_split(tmp_path, caplog):
    rows = [(letters, "train" if label == "1" else "test") for letters, label in case_rows()]
    path = write_rows(tmp_path / "t.csv", ["sequence", "split"], rows)
    data = CsvTask(path, label_column="split").load(DNA)
    assert data.classes == ["test", "train"] and number_of(data)["test"] == 24
    assert not caplog.messages


def test_equal_sequences_with_different_labels_are_counted(tmp_path):
    rows = case_rows()
    others = [(letters, str(1 - int(label))) for letters, label in rows[:40]]
    complements = [(reverse_complement(letters), label) for letters, label in others]
    path, header = tmp_path / "t.csv", ["sequence", "label"]
    for copies, settings, expected in (
        (others, {}, (40, 80)),
        (others, {"stranded": True}, (40, 80)),
        (complements, {}, (40, 80)),
        (complements, {"stranded": True}, None),
        (others, {"kind": "regression"}, (40, 80)),
        (rows[:40], {}, None),
        ([(rows[0][0], ""), *others[1:]], {"kind": "multilabel"}, (39, 78)),
    ):
        write_rows(path, header, [*rows, *copies])
        notes = CsvTask(path, **settings).load(DNA).notes
        if expected is None:
            assert "sequences_with_different_labels" not in notes
            continue
        assert notes["sequences_with_different_labels"] == dict(
            zip(("sequences", "rows"), expected)
        )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("0", "1", "0.0"), "classes '0' and '0.0' in column 'label', which are one number"),
        (("01", "1"), "classes '01' and '1' in column 'label', which are one number"),
        (("Yes", "no", "yes"), "classes 'Yes' and 'yes' in column 'label', which differ in case"),
        (("a  b", "a b"), "classes 'a  b' and 'a b' in column 'label', which differ in case"),
    ],
)
def test_classes_that_mean_the_same_are_refused(tmp_path, names, message):
    rows = [(letters, name) for (letters, _), name in zip(case_rows(), itertools.cycle(names))]
    path = write_rows(tmp_path / "t.csv", ["sequence", "label"], rows)
    with pytest.raises(ValueError, match=message):
        CsvTask(path).load(DNA)


def test_names_that_python_reads_as_one_number_are_different_classes(tmp_path):
    rows = [(letters, "1_1" if label == "1" else "11") for letters, label in case_rows(40)]
    path = write_rows(tmp_path / "t.csv", ["sequence", "label"], rows)
    assert CsvTask(path).load(DNA).classes == ["11", "1_1"]


@pytest.mark.parametrize(
    ("name", "delimiter", "message"),
    [
        ("t.csv", "\t", r"""separated by tabs, not by ','; set 'task\.delimiter="\\t"', or name"""),
        ("t.txt", "\t", r"""set 'task\.delimiter="\\t"', or name it \.tsv"""),
        ("t.csv", ";", r"""separated by semicolons, not by ','; set 'task\.delimiter=";"'"""),
        ("t.csv", "|", r"""separated by bars, not by ','; set 'task\.delimiter="\|"'"""),
        ("t.csv", " ", r"""separated by spaces, not by ','; set 'task\.delimiter=" "'"""),
        (
            "t.tsv",
            ",",
            r"""separated by commas, not by '\\t'; set 'task\.delimiter=","', or name""",
        ),
    ],
)
def test_another_delimiter_is_named_with_the_key_that_sets_it(tmp_path, name, delimiter, message):
    path = write_rows(tmp_path / name, ["sequence", "label"], case_rows(40), delimiter)
    with pytest.raises(ValueError, match=message):
        CsvTask(path).load(DNA)
    shown = r"\t" if delimiter == "\t" else delimiter  # as the message writes it
    assert number_of(CsvTask(path, delimiter=shown).load(DNA))["test"] == 8


@pytest.mark.parametrize(
    ("name", "delimiter", "message"),
    [
        ("t.csv", "\t", r"separated by tabs, not by ','; name it \.tsv"),
        ("t.csv", ";", "separated by semicolons, not by ','; write it with commas"),
        ("t.tsv", ",", r"separated by commas, not by '\\t'; name it \.csv"),
    ],
)
def test_another_delimiter_of_a_table_of_predict_is_named(tmp_path, name, delimiter, message):
    path = write_rows(tmp_path / name, ["sequence", "label"], case_rows(4), delimiter)
    with pytest.raises(ValueError, match=message):
        list(queries(path))


@pytest.mark.parametrize(
    ("name", "header", "delimiter"),
    [
        ("t.csv", "seq;class", ";"),
        ("t.csv", "seq\tclass", "\\t"),
        ("t.csv", "seq|class", "|"),
        ("t.csv", "seq class", " "),
        ("t.csv", "my seq;value (a,b);my class", ";"),
        ("t.tsv", "seq,class", ","),
    ],
)
def test_another_delimiter_is_named_where_the_columns_have_other_names(
    tmp_path, name, header, delimiter
):
    (tmp_path / name).write_text(f"{header}\nACGT\n")
    with pytest.raises(ValueError, match="separated by") as error:
        list(read_rows(str(tmp_path / name), {"task.sequence_column": "sequence"}))
    assert f'task.delimiter="{delimiter}"\'' in str(error.value)
    with pytest.raises(ValueError, match=r"task\.delimiter"):
        CsvTask(tmp_path / name).load(DNA)


@pytest.mark.parametrize("header", ["my sequence,my class", "my sequence,class (1;2)"])
def test_a_delimiter_inside_the_name_of_a_column_is_none(tmp_path, header):
    (tmp_path / "t.csv").write_text(f"{header}\nACGT,1\n")
    with pytest.raises(ValueError, match=r"no column 'sequence'.*set task\.sequence_column"):
        CsvTask(tmp_path / "t.csv").load(DNA)


def test_a_quoted_header_with_another_delimiter_names_the_key(tmp_path):
    (tmp_path / "t.csv").write_text('"sequence";"label"\n"ACGT";"1"\n')
    with pytest.raises(
        ValueError, match=r"line 1 is not a row .*is ',', else set it \(task\.delim"
    ):
        CsvTask(tmp_path / "t.csv").load(DNA)
