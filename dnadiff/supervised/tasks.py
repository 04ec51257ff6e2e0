"""Tasks: labeled sequences in tables, FASTA files, folders or intervals of a genome, and windows of
a genome inside regions against windows outside.

`task=NAME` on the command line builds a `LabeledTask` or `RegionWindows` from
configs/task/NAME.yaml. A task reads, divides and encodes sequences; models see only the resulting
`TaskData`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy import ndarray

from dnadiff.data.alignment import Alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import UNKNOWN, KmerSet
from dnadiff.data.splits import FractionSplit, Split, split_hash
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Config, Name, Natural, PositiveInt, as_list, checked, checked_dataclass
from dnadiff.formats.regions import Region, check_region, integers, listing, read_bed, record_of
from dnadiff.formats.sequences import read_sequences
from dnadiff.formats.table import ending_of, endings, is_table, read_header, read_rows
from dnadiff.progress import log
from dnadiff.store.address import expand_user
from dnadiff.store.disk import read_small, read_yaml
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.labeled import (
    PART_NAMES,
    KmerLength,
    LabeledSequences,
    LabeledTask,
    PathName,
    aligned_input,
    filled_rows,
)

if TYPE_CHECKING:
    from dnadiff.data.genome.inputs import SequenceInput

Starts = list[tuple[int, int]]  # (record, start) of windows
METADATA = "metadata.yaml"
COLUMNS = {name: name for name in ("region", "start", "end", "strand")}
SEQUENCE = ("sequence", "seq")
LABEL = ("class", "label")
SPLIT = "split"
SPLITS = (SPLIT, "fold", "set", "subset", "part", "partition", "dataset")  # usual names


@checked
class CsvTask(LabeledTask):
    """A table, or a folder with a table for each part: `train.csv`, `dev.csv` (or `valid.csv`),
    `test.csv`, as GUE publishes.

    Without a split column, the rows of each class are divided at random. With one, its values are
    train, valid (also dev, val, validation) and test; if there are no validation rows, some
    training rows are used.

    Args:
        split_column: None: the column `split`, if it has such values (`splits`).
        delimiter: None: a tab if the name ends in .tsv or .tab (before any .gz), else a comma.
        group_column: rows of one group stay in one part; None: no groups.
        group_pattern: the regular expression whose match in that column is the group. Rows without
            a match, such as controls, are left out.
        start, end: the bases of each sequence that are read, 0-based and half-open, such as those
            between adapters; None: to its end.
    """

    def __init__(
        self,
        path: PathName,
        sequence_column: Name = "sequence",
        label_column: Name | list[Name] = "label",
        split_column: Name | None = None,
        delimiter: Any = None,  # which may be white space
        name: Name | None = None,
        group_column: Name | None = None,
        group_pattern: str = ".+",
        start: Natural = 0,
        end: PositiveInt | None = None,
        **settings: Annotated[Any, LabeledTask],
    ) -> None:
        if delimiter == r"\t":
            delimiter = "\t"
        if delimiter is not None and not (
            isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'
        ):
            raise ValueError(f"task.delimiter {delimiter!r} must be one character, or null")
        self.path = str(path)
        self.delimiter = delimiter
        self.sequence_column = sequence_column
        self.split_column = split_column
        self.group_column = group_column
        try:
            self.group_pattern = re.compile(group_pattern)
        except re.error as error:
            message = f"task.group_pattern {group_pattern!r} is no regular expression: {error}"
            raise ValueError(message) from None
        self.start = start
        self.end = end
        self.label_columns = as_list(label_column)
        bare = Path(self.path).name.removesuffix(".gz")
        super().__init__(name or bare.rpartition(".")[0] or bare, **settings)

    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        names = self.label_columns
        split = self.split_column
        found = LabeledSequences(
            self.path, label_source=f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
        )
        if expand_user(self.path).is_dir():
            found.divided = True
            found.split_source = "its file names"
            for table, part in find_tables(self.path):
                self._add_rows(table, part, None, found, tokenizer)
            return found
        if split is None and not self.redivide:
            split = self._given_split()
        if split is not None:
            found.divided = True
            found.split_source = f"column {split!r}"
        self._add_rows(self.path, "train", split, found, tokenizer)
        if not found.labels:
            raise ValueError(
                f"{self.path} has no row with {self.group_pattern.pattern!r} in column "
                f"{self.group_column!r}; set another task.group_pattern"
            )
        return found

    def _given_split(self) -> str | None:
        """The column `split`, if it divides the rows; others that may do are logged."""
        used = None
        for name, problem in splits(self.path, self.delimiter).items():
            if name in (self.sequence_column, *self.label_columns):
                continue
            if name.lower() == SPLIT and problem is None:
                used = name
                log.info(
                    f"{self.path}: column {name!r} divides the rows; task.redivide=true divides "
                    "them at random"
                )
                continue
            problem = problem or f"set task.split_column={name} to divide the rows by it"
            log.warning(f"{self.path}: column {name!r} is not used: {problem}")
        return used

    def _add_rows(
        self,
        path: str,
        part: str,
        split_column: str | None,
        found: LabeledSequences,
        tokenizer: DNATokenizer,
    ) -> None:
        columns = {"task.sequence_column": self.sequence_column}
        if split_column is not None:
            columns["task.split_column"] = split_column
        labels = label_keys("task.label_column", self.label_columns)
        groups = {} if self.group_column is None else {"task.group_column": self.group_column}
        optional = labels if self.target.can_be_missing else ()
        rows = filled_rows(path, columns | labels | groups, optional, self.delimiter)
        left_out = 0
        for _, where, (sequence, *cells) in rows:
            if split_column is not None:
                word = cells.pop(0)
                if word.lower() not in PART_NAMES:
                    raise ValueError(
                        f"{where} has {word!r} in column {split_column!r}; expected train, valid "
                        "or test"
                    )
                part = PART_NAMES[word.lower()]
            if groups:
                if (group := self.group_pattern.search(cells.pop())) is None:
                    left_out += 1
                    continue
                found.groups.append(group[0])
            if len(sequence) < (self.end or 0):
                raise ValueError(
                    f"{where} has {len(sequence)} bases, and task.end is {self.end}; set it to less"
                )
            self.target.check(cells, where)
            found.add(tokenizer, sequence[self.start : self.end], part, where, *cells)
        if groups:
            found.notes = {"rows_left_out": left_out, "groups": len(set(found.groups))}


def label_keys(key: str, columns: Sequence[str]) -> dict[str, str]:
    """The label columns by their keys in the configuration, for messages."""
    if len(columns) == 1:
        return {key: columns[0]}
    return {f"{key}[{number}]": name for number, name in enumerate(columns)}


def find_tables(folder: str) -> list[tuple[str, str]]:
    """(path, part) of the tables in a folder that are named after a part, such as `train.csv` or
    `test-00000-of-00001.parquet`.

    Raises:
        ValueError: if there is none, a part has tables in several folders, or one name has several
            endings: one could be a copy of another.
    """
    files = sorted(p for p in expand_user(folder).rglob("*") if p.is_file() and is_table(p.name))
    named = list[tuple[str, str]]()
    first = dict[str, Path]()
    for file in files:
        if (word := file.name.split(".")[0].split("-")[0]) not in PART_NAMES:
            continue
        named.append((str(file), part := PART_NAMES[word]))
        other = first.setdefault(part, file)
        if other.parent != file.parent:
            raise ValueError(
                f"{folder} has {part} tables in two folders, {other} and {file}, and one is "
                f"expected; set task.path={other.parent} or the other"
            )
        other = first.setdefault(f"{part} {word}", file)
        if ending_of(other.name) != ending_of(file.name):
            raise ValueError(
                f"{folder} has two tables of one name, {other} and {file}, and one is expected; "
                "remove one, or set task.path=FOLDER with one of them"
            )
    if not named:
        raise ValueError(
            f"{folder} holds no table called train, valid, dev or test ({', '.join(endings())}); "
            "set task.path to one table"
        )
    return named


class FastaTask(LabeledTask):
    """Each record is a sequence of its file's class.

    Args:
        path: class name -> FASTA file, or part -> (class name -> FASTA file):
            `'task.path={promoter: p.fa, other: o.fa}'`.
    """

    def __init__(
        self,
        path: Mapping[str, str] | Mapping[str, Mapping[str, str]],
        name: str = "fasta",
        **settings: Annotated[Any, LabeledTask],
    ) -> None:
        if not isinstance(path, Mapping):
            raise ValueError(
                f"path {path!r} is not a file for each class; write 'task.path={{promoter: p.fa, "
                f"other: o.fa}}'"
            )
        parts = {
            str(part): dict(files) for part, files in path.items() if isinstance(files, Mapping)
        }
        if parts and len(parts) < len(path):
            raise ValueError(
                "path mixes parts and files; write 'task.path={train: {promoter: p.fa, ...}, test: "
                "{promoter: q.fa, ...}}'"
            )
        self.divided = bool(parts)
        if unknown := set(parts) - set(PART_NAMES):
            raise ValueError(
                f"path has a part {min(unknown)!r}; the parts are train, valid and test"
            )
        every: Mapping[str, Any] = parts or {"train": path}
        self.files = [
            (PART_NAMES[part], str(name), str(file))
            for part, files in every.items()
            for name, file in files.items()
        ]
        if not self.files:
            raise ValueError("path names no file; write 'task.path={promoter: p.fa, other: o.fa}'")
        super().__init__(name, **settings)

    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        every = ", ".join(file for _, _, file in self.files)
        found = LabeledSequences(
            every, divided=self.divided, label_source="task.path", split_source="task.path"
        )
        for part, name, file in self.files:
            for record in read_sequences(file):
                where = f"{file}: record {record.name}"
                letters = record.sequence.decode("latin-1")
                found.add(tokenizer, letters, part, where, name)
        return found


def class_paths(path: str, ending: str) -> list[tuple[str, str, Path]]:
    """(part, class, path) of every `path/PART/CLASS<ending>`: folders if `ending` is empty, else
    files.

    Raises:
        FileNotFoundError: if the folder has no `train` or `test`.
        ValueError: if a part lacks a class that another part has.
    """
    top = expand_user(path)
    parts = {
        p: PART_NAMES[p.name] for p in sorted(top.iterdir()) if p.is_dir() and p.name in PART_NAMES
    }
    for needed in ("train", "test"):
        if needed not in parts.values():
            raise FileNotFoundError(
                f"{path} has no folder {needed!r}; set task.path to the folder that holds train "
                "and test"
            )
    found = {
        part: {
            f.name.removesuffix(ending): f
            for f in sorted(part.iterdir())
            if (f.name.endswith(ending) if ending else f.is_dir())
        }
        for part in parts
    }
    classes: set[str] = set().union(*found.values())
    if not classes:
        raise ValueError(
            f"{path} has parts and no class in them; expected {top.name}/train/CLASS{ending}"
        )
    for part, present in found.items():
        if missing := classes - set(present):
            raise ValueError(
                f"{part} has no class {min(missing)!r}, which another part has; add "
                f"{part / (min(missing) + ending)}"
            )
    return [
        (parts[part], name, place)
        for part, present in found.items()
        for name, place in present.items()
    ]


@checked
class GenomicBenchmark(LabeledTask):
    """Reads the download (`PART/CLASS/*.txt`), the package's intervals with a genome, or tables
    (including the Hub's parquet files).

    Args:
        genome: FASTA file of the assembly of the intervals, needed for them alone; `chr20` and `20`
            are the same record.
        skip_missing: skip intervals on records that the genome lacks, and note their number;
            otherwise they are an error.

    Raises:
        FileNotFoundError: if there is nothing at `path`.
        ValueError: if there are intervals without a genome, or a table without a matching column.
    """

    def __init__(
        self,
        path: PathName,
        name: Name | None = None,
        genome: PathName | None = None,
        skip_missing: bool = False,
        **settings: Annotated[Any, LabeledTask],
    ) -> None:
        self.path = str(path)
        self.genome = "" if genome is None else str(genome)
        self.skip_missing = skip_missing
        super().__init__(name or Path(self.path).name, **settings)

    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        path = expand_user(self.path)
        if (path / METADATA).is_file():
            if not self.genome:
                raise ValueError(
                    f"{self.path} holds intervals; set task.genome to the FASTA file of their "
                    "assembly"
                )
            return self._intervals(path / METADATA)
        if any((path / part).is_dir() for part in ("train", "test")):
            return self._texts(tokenizer)
        if not path.exists():
            raise FileNotFoundError(
                f"{self.path} does not exist; set task.path to the downloaded folder of "
                f"{self.name}, or to a table"
            )
        header = read_header(find_tables(self.path)[0][0] if path.is_dir() else self.path)
        sequence, label = (
            next((name for name in names if name in header), None) for names in (SEQUENCE, LABEL)
        )
        return CsvTask(self.path, sequence or SEQUENCE[0], label or LABEL[1]).read(tokenizer)

    def _texts(self, tokenizer: DNATokenizer) -> LabeledSequences:
        """`path/train/CLASS/*.txt` and `path/test/CLASS/*.txt`, one sequence per file; `valid` (or
        `dev`) is optional."""
        found = LabeledSequences(
            self.path, divided=True, label_source="the class folders", split_source="its folders"
        )
        for part, name, folder in class_paths(self.path, ""):
            files = sorted(folder.glob("*.txt"))
            if not files:
                raise ValueError(
                    f"{folder} holds no .txt file; put one sequence into each, or remove the folder"
                )
            for file in files:
                letters = "".join(read_small(file).decode(errors="replace").split())
                found.add(tokenizer, letters, part, str(file), name)
        return found

    def _intervals(self, described: Path) -> LabeledSequences:
        """The sequences of intervals of the genome."""
        genome = Genome(self.genome)
        found = LabeledSequences(
            self.path, divided=True, label_source="metadata.yaml", split_source="its folders"
        )
        found.genome, places = genome, class_paths(self.path, ".csv.gz")
        classes = read_yaml(described, remedy="fetch it again").get("classes")
        if not isinstance(classes, (dict, list)):
            raise ValueError(
                f"{described} names no classes; expected a key 'classes' with a name for each file"
            )
        named = set(map(str, classes))
        if differing := named ^ {name for _, name, _ in places}:
            name = min(differing)
            raise ValueError(
                f"class {name!r} is in {'metadata.yaml' if name in named else 'a file'} only; "
                f"correct {described}"
            )
        skipped = 0
        for part, name, file in places:
            if missing := [column for column in COLUMNS if column not in read_header(str(file))]:
                raise ValueError(
                    f"{file} has no column {missing[0]!r}; intervals need id, {', '.join(COLUMNS)}"
                )
            before = len(found.sequences) + skipped
            for number, (region, start, end, strand) in read_rows(str(file), COLUMNS):
                where = f"{file}: line {number}"
                if (record := record_of(region, genome.lengths)) is None:
                    if self.skip_missing:
                        skipped += 1
                        continue
                    raise ValueError(
                        f"{where} is on {region}, which {self.genome} lacks; set "
                        "task.skip_missing=true to skip such intervals"
                    )
                try:
                    first, last = integers([start, end])
                    place = Region(record, first, last, strand=strand or ".")
                    check_region(place, genome.lengths)
                except ValueError as error:
                    raise ValueError(f"{where} {error}; correct it") from None
                ids = genome.window(record, place.start, place.end, "-" if strand == "-" else "+")
                found.sequences.append(ids)
                found.regions.append(place)
                found.labels.append(name)
                found.parts.append(part)
            if len(found.sequences) + skipped == before:
                raise ValueError(f"{file} has a header and no rows; add some")
        if not found.sequences:
            raise ValueError(
                f"{self.path} has no interval on a record of {self.genome}; check the assembly"
            )
        found.notes = {
            "genome": self.genome,
            "genome_digest": genome.digest,
            "intervals_on_missing_records": skipped,
        }
        return found


def find_tasks(tasks: Mapping[str, Config]) -> dict[str, Config]:
    """The tasks that have data, each with the path of its data; the other tasks are logged.

    If there is nothing at a task's own path, `find_sources` looks for its name in the same folder.

    Raises:
        FileNotFoundError: if no task has data.
    """
    found: dict[str, Config] = {}
    for name, task in tasks.items():
        path = expand_user(str(task["path"]))
        if sources := [path] if path.exists() else find_sources(path.parent, path.name):
            found[name] = {**task, "path": str(sources[0])}
            unused = ", ".join(source.name for source in sources[1:])
            others = f"; not used: {unused} (task.tasks.{name}.path=FILE selects another)"
            log.info(f"{name}: {sources[0]}{others if unused else ''}")
    if missing := [name for name in tasks if name not in found]:
        log.info(f"no data for {', '.join(missing)}")
    if not found:
        folder = Path(str(next(iter(tasks.values()))["path"])).parent
        raise FileNotFoundError(
            f"{folder} holds none of {', '.join(tasks)}; set task.path to the folder that holds a "
            "folder NAME or a table NAME.csv of each"
        )
    return found


def find_sources(folder: Path, name: str) -> list[Path]:
    """The data of a task in a folder, best match first; an empty list if there is none.

    A folder `NAME` (the download), `datasets/NAME` (intervals) or `Genomic_Benchmarks_NAME` (a copy
    from the Hub); else tables `NAME.csv` or `NAME.ANYTHING.csv`, with any supported ending: the
    exact name first, then tables with training and test rows, then larger ones.
    """
    places = (name, f"datasets/{name}", f"Genomic_Benchmarks_{name}")
    if folders := [folder / place for place in places if (folder / place).is_dir()]:
        return folders
    tables = [path for path in folder.glob(f"{name}.*") if path.is_file() and is_table(path.name)]

    def order(path: Path) -> tuple[bool, bool, int, str]:
        exact = path.name == name + ending_of(path)
        return not exact, not _is_divided(path), -path.stat().st_size, path.name

    return sorted(tables, key=order)


def _is_divided(path: Path) -> bool:
    try:
        return None in splits(str(path)).values()
    except (ValueError, OSError):
        return False


def splits(path: str, delimiter: str | None = None) -> dict[str, str | None]:
    """The columns of a table with a usual name of a split, each with the reason why it cannot be
    one; None if it can: it has rows for training and test, and no other values than parts."""
    found: dict[str, str | None] = {}
    for name in read_header(path, delimiter):
        if name.lower() in SPLITS:
            rows = read_rows(path, {"task.split_column": name}, delimiter)
            values = sorted({cells[0] for _, cells in rows})
            parts = {PART_NAMES.get(value.lower()) for value in values}
            is_split = None not in parts and {"train", "test"} <= parts
            shown = listing(list(map(repr, values)), 3)
            found[name] = None if is_split else f"it holds {shown}; a split holds train and test"
    return found


@checked_dataclass
class RegionWindows:
    """Windows completely inside regions against windows completely outside: all bases of a window
    are in some region, or none is.

    Whether a base is coding does not depend on the strand that is read, so the task is unstranded.
    Training windows are placed every `stride` bases. Validation and test windows do not overlap,
    and share no k-mer with the training part on either strand. The windows of a stretch are
    centered in it, so that their edges carry no information about where regions begin. Classes are
    balanced by leaving out random windows of the larger one.

    Args:
        stride: between the starts of training windows in one stretch.
        split: of the genome; by default 80-90 % test, 90-100 % validation.
        max_train: maximum number of training windows per class; None: no limit.
        k: length of the k-mers that held-out windows may not share with the training part.
    """

    genome: str
    regions: str
    length: PositiveInt = 200
    stride: PositiveInt = 50
    split: Split | None = None
    max_train: PositiveInt | None = None
    k: KmerLength = 24
    inside: Name = "inside"
    outside: Name = "outside"
    name: Name = "regions"
    protocol: str = "fixed"
    seed: Natural = 0
    folds: ClassVar[None] = None  # windows overlap, and have a division of their own

    def __post_init__(self) -> None:
        if self.inside == self.outside:
            raise ValueError(
                f"both classes are called {self.inside!r}; set task.inside or task.outside to "
                "another name"
            )

    def load(self, tokenizer: DNATokenizer, alignment: Alignment | None = None) -> TaskData:
        """Read, divide and encode the task, with the columns of an alignment if it is given;
        ValueError if a part has no window of a class, or for another assembly."""
        genome = Genome(self.genome)
        source = None
        lengths = genome.lengths
        if alignment is not None:
            whole = [Region(name, 0, length) for name, length in lengths.items()]
            source = aligned_input(genome, whole, alignment)
        covered = covered_bases(read_bed(self.regions, lengths), lengths)
        split = self.split or FractionSplit()
        intervals = split(genome.names, list(lengths.values()))
        bases = [tokenizer.bases(ids[:]) for ids in genome.records]
        train_kmers = KmerSet(
            [bases[i.record][i.start : i.end] for i in intervals["train"]], self.k
        )
        classes = sorted([self.inside, self.outside])
        strides = {"train": self.stride, "valid": self.length, "test": self.length}
        starts: dict[str, list[Starts]] = {part: [[] for _ in classes] for part in strides}
        left_out = {part: dict.fromkeys(classes, 0) for part in ("valid", "test")}
        for part, stride in strides.items():
            for interval in intervals[part]:
                where = slice(interval.start, interval.end)
                sequence = bases[interval.record][where]
                is_covered = covered[interval.record][where]
                seen = np.zeros(len(sequence), bool)
                if part in left_out:
                    seen = kmer_centers(train_kmers, sequence)
                for label, name in enumerate(classes):
                    usable = (is_covered == (name == self.inside)) & (sequence < UNKNOWN)
                    allowed = window_starts(usable & ~seen, self.length, stride).tolist()
                    first = interval.start
                    starts[part][label] += [(interval.record, first + start) for start in allowed]
                    if part in left_out:
                        every = window_starts(usable, self.length, stride)
                        left_out[part][name] += len(every) - len(allowed)
        train, valid, test = (
            self._items(part, starts[part], classes, genome, tokenizer, source) for part in strides
        )
        notes = {
            "window": self.length,
            "stride": self.stride,
            "split": split.describe(),
            "split_hash": split_hash(intervals, genome.names),
            "shared_kmer": self.k,
            "left_out_for_a_shared_kmer": left_out,
            "windows_before_balancing": {
                part: dict(zip(classes, map(len, starts[part]))) for part in strides
            },
        }
        return TaskData(self.name, classes, train, valid, test, stranded=False, notes=notes)

    def _items(
        self,
        part: str,
        starts: Sequence[Starts],
        classes: Sequence[str],
        genome: Genome,
        tokenizer: DNATokenizer,
        source: "SequenceInput | None",
    ) -> Items:
        size = min(map(len, starts))
        if size == 0:
            empty = classes[int(np.argmin([len(s) for s in starts]))]
            raise ValueError(
                f"{self.name}: no window of {self.length} bases of class {empty} in the {part} "
                "part; set task.length to less, or choose another task.split"
            )
        if part == "train" and self.max_train is not None:
            size = min(size, self.max_train)
        sequences = []
        labels = []
        pieces = []
        for label, (name, of_class) in enumerate(zip(classes, starts)):
            random = np.random.default_rng(hash64(self.seed, part, name))
            for number in np.sort(random.choice(len(of_class), size, replace=False)):
                record, start = of_class[number]
                pieces.append((record, start, start + self.length))
                sequences.append(genome.records[record][start : start + self.length])
                labels.append(label)
        pad_id = tokenizer.vocab.pad_id
        return Items.from_sequences(sequences, labels, pad_id, None, pieces, source)


def covered_bases(regions: Sequence[Region], lengths: Mapping[str, int]) -> list[ndarray]:
    """For each record, a mask (length,) bool of the bases in some region on either strand."""
    change = {name: np.zeros(length + 1, np.int32) for name, length in lengths.items()}
    for region in regions:
        change[region.chrom][region.start] += 1
        change[region.chrom][region.end] -= 1
    return [np.cumsum(c[:-1]) > 0 for c in change.values()]


def window_starts(mask: ndarray, length: int, stride: int) -> ndarray:
    """Starts (W,) int64, ascending, of windows in runs of True of `mask (L,)`: as many as fit into
    each run at `stride`, centered in it."""
    edges = np.flatnonzero(np.diff(np.pad(mask.astype(np.int8), 1)))
    begin = edges[::2]
    slack = edges[1::2] - edges[::2] - length
    begin = begin[slack >= 0]
    slack = slack[slack >= 0]
    counts = slack // stride + 1
    first = begin + (slack - (counts - 1) * stride) // 2
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + number * stride


def kmer_centers(kmers: KmerSet, bases: ndarray) -> ndarray:
    """The middle base of each k-mer of `bases (L,)` that is in the set: (L,) bool. A window without
    one contains no such k-mer."""
    hits = kmers.hits(bases)
    centers = np.zeros(len(bases), bool)
    centers[kmers.k // 2 : kmers.k // 2 + len(hits)] = hits
    return centers
