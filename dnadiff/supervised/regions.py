"""A task made from a genome and its annotation: windows inside regions against windows outside.

`task=NAME` on the command line builds `RegionWindows` or a `LabeledTask` from
configs/task/NAME.yaml. A task reads, divides and encodes sequences; models see only the resulting
`TaskData`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from typing_extensions import Unpack, override

from dnadiff.data.genome.genome import Genome
from dnadiff.data.splits import FractionSplit, Split, split_hash
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Config, Name, Natural, PositiveInt, checked
from dnadiff.formats.regions import Region, read_bed
from dnadiff.formats.table import ending_of, is_table, read_header, read_rows
from dnadiff.genomics.kmers import UNKNOWN, KmerSet
from dnadiff.store.address import expand_user
from dnadiff.store.files import resolve
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.labeled import (
    PART_NAMES,
    KmerLength,
    LabeledSequences,
    LabeledTask,
    LabeledTaskSettings,
    PathName,
)
from dnadiff.supervised.tasks import CsvTask, find_tables

log = logging.getLogger("dnadiff")
Starts = list[tuple[int, int]]  # (record, start) of windows


@checked
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

    def __init__(
        self,
        genome: str,
        regions: str,
        length: PositiveInt = 200,
        stride: PositiveInt = 50,
        split: Split | None = None,
        max_train: PositiveInt | None = None,
        k: KmerLength = 24,
        inside: Name = "inside",
        outside: Name = "outside",
        name: Name = "regions",
        protocol: str = "fixed",
        seed: Natural = 0,
    ) -> None:
        self.genome, self.regions, self.split = genome, regions, split or FractionSplit()
        self.length, self.stride, self.max_train, self.k = length, stride, max_train, k
        self.inside, self.outside, self.name = inside, outside, name
        self.protocol, self.seed = protocol, seed
        if self.inside == self.outside:
            raise ValueError(
                f"both classes are called {inside!r}; set task.inside or task.outside to another "
                "name"
            )

    def load(self, tokenizer: DNATokenizer) -> TaskData:
        """Read, divide and encode the task; ValueError if a part has no window of a class."""
        genome = Genome.open(self.genome)
        lengths = genome.lengths
        covered = covered_bases(read_bed(self.regions, lengths), lengths)
        intervals = self.split(genome.names, list(lengths.values()))
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
                sequence = bases[interval.record][interval.start : interval.end]
                is_covered = covered[interval.record][interval.start : interval.end]
                novel = (
                    ~kmer_centers(train_kmers, sequence)
                    if part in left_out
                    else np.ones(len(sequence), bool)
                )
                for label, name in enumerate(classes):
                    usable = (is_covered == (name == self.inside)) & (sequence < UNKNOWN)
                    allowed = window_starts(usable & novel, self.length, stride)
                    starts[part][label] += [
                        (interval.record, interval.start + int(start)) for start in allowed
                    ]
                    if part in left_out:
                        left_out[part][name] += len(
                            window_starts(usable, self.length, stride)
                        ) - len(allowed)
        limits = {part: self.max_train if part not in left_out else None for part in strides}
        train, valid, test = (
            self._items(part, starts[part], limits[part], classes, genome, tokenizer)
            for part in strides
        )
        notes = {
            "window": self.length,
            "stride": self.stride,
            "split": self.split.describe(),
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
        limit: int | None,
        classes: Sequence[str],
        genome: Genome,
        tokenizer: DNATokenizer,
    ) -> Items:
        size = min(map(len, starts))
        if size == 0:
            empty = classes[int(np.argmin([len(s) for s in starts]))]
            raise ValueError(
                f"{self.name}: no window of {self.length} bases of class {empty} in the {part} "
                "part; set task.length to less, or choose another task.split"
            )
        size = size if limit is None else min(size, limit)
        sequences, labels = [], []
        for label, (name, of_class) in enumerate(zip(classes, starts)):
            random = np.random.default_rng(hash64(self.seed, part, name))
            for number in np.sort(random.choice(len(of_class), size, replace=False)):
                record, start = of_class[number]
                sequences.append(genome.records[record][start : start + self.length])
                labels.append(label)
        return Items.from_sequences(sequences, labels, tokenizer.vocab.pad_id)


def covered_bases(regions: Sequence[Region], lengths: Mapping[str, int]) -> list[np.ndarray]:
    """For each record, a mask (length,) bool of the bases in some region on either strand."""
    change = {name: np.zeros(length + 1, np.int32) for name, length in lengths.items()}
    for region in regions:
        change[region.chrom][region.start] += 1
        change[region.chrom][region.end] -= 1
    return [np.cumsum(c[:-1]) > 0 for c in change.values()]


def window_starts(mask: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Starts (W,) int64, ascending, of windows in runs of True of `mask (L,)`: as many as fit into
    each run at `stride`, centered in it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    runs = edges.reshape(-1, 2)
    runs = runs[runs[:, 1] - runs[:, 0] >= length]
    slack = runs[:, 1] - runs[:, 0] - length
    counts = slack // stride + 1
    first = runs[:, 0] + (slack - (counts - 1) * stride) // 2
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + number * stride


def kmer_centers(kmers: KmerSet, bases: np.ndarray) -> np.ndarray:
    """The middle base of each k-mer of `bases (L,)` that is in the set: (L,) bool. A window without
    one contains no such k-mer."""
    hits = kmers.hits(bases)
    centers = np.zeros(len(bases), bool)
    centers[kmers.k // 2 : kmers.k // 2 + len(hits)] = hits
    return centers


class FolderTask(LabeledTask):
    """Reads `path/train/CLASS/*.txt` and `path/test/CLASS/*.txt`, one sequence per file; `valid`
    (or `dev`) is optional."""

    def __init__(
        self, path: PathName, name: Name | None = None, **settings: Unpack[LabeledTaskSettings]
    ) -> None:
        self.path = str(path)
        super().__init__(name or Path(self.path).name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
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
                found.add(
                    tokenizer,
                    "".join(file.read_text(encoding="utf-8", errors="replace").split()),
                    name,
                    part,
                    str(file),
                )
        return found

    @override
    def sources(self) -> list[Path]:
        return [
            file
            for _, _, folder in class_paths(self.path, "")
            for file in sorted(folder.glob("*.txt"))
        ]


def class_paths(path: str, ending: str) -> list[tuple[str, str, Path]]:
    """(part, class, path) of every `path/PART/CLASS<ending>`: folders if `ending` is empty, else
    files.

    Raises:
        FileNotFoundError: if there is no such folder, or it has no `train` or `test`.
        ValueError: if a part lacks a class that another part has.
    """
    top = expand_user(path)
    if not top.is_dir():
        raise FileNotFoundError(
            f"{path} does not exist or is not a folder; set task.path to the folder that holds "
            "train and test"
        )
    parts = {
        p: PART_NAMES[p.name] for p in sorted(top.iterdir()) if p.is_dir() and p.name in PART_NAMES
    }
    for needed in ("train", "test"):
        if needed not in parts.values():
            raise FileNotFoundError(
                f"{path} has no folder {needed!r}; set task.path to the folder that holds train "
                "and test"
            )
    if ending:
        found = {
            part: {
                f.name.removesuffix(ending): f
                for f in sorted(part.iterdir())
                if f.name.endswith(ending)
            }
            for part in parts
        }
    else:
        found = {part: {f.name: f for f in sorted(part.iterdir()) if f.is_dir()} for part in parts}
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


METADATA = "metadata.yaml"


COLUMNS = {name: name for name in ("region", "start", "end", "strand")}


_STRANDS = {"+": "+", "-": "-", "": "+", ".": "+"}


@checked
class IntervalTask(LabeledTask):
    """Reads intervals and extracts their sequences from a genome.

    Args:
        genome: FASTA file of the assembly of the coordinates; `chr20` and `20` are the same record.
        skip_missing: skip intervals on records that the genome lacks, and note their number;
            otherwise they are an error.
    """

    def __init__(
        self,
        path: PathName,
        genome: PathName,
        name: Name | None = None,
        skip_missing: bool = False,
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path, self.genome, self.skip_missing = str(path), str(genome), skip_missing
        super().__init__(name or Path(self.path).name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        genome = Genome.open(self.genome)
        records, lengths = _record_names(genome), genome.lengths
        found = LabeledSequences(
            self.path, divided=True, label_source="metadata.yaml", split_source="its folders"
        )
        places = class_paths(self.path, ".csv.gz")
        self._check_classes({name for _, name, _ in places})
        skipped = 0
        for part, name, file in places:
            if missing := [column for column in COLUMNS if column not in read_header(str(file))]:
                raise ValueError(
                    f"{file} has no column {missing[0]!r}; intervals need id, {', '.join(COLUMNS)}"
                )
            before = len(found.sequences) + skipped
            for number, (region, start, end, strand) in read_rows(str(file), COLUMNS):
                where = f"{file}: line {number}"
                if region not in records:
                    if self.skip_missing:
                        skipped += 1
                        continue
                    raise ValueError(
                        f"{where} is on {region}, which {self.genome} lacks; set "
                        "task.skip_missing=true to skip such intervals"
                    )
                if not (
                    start.isdecimal()
                    and end.isdecimal()
                    and int(start) < int(end) <= lengths[records[region]]
                ):
                    raise ValueError(
                        f"{where}: {region} {start or '?'} {end or '?'} is not an interval within "
                        f"its {lengths[records[region]]:,} bases; correct it"
                    )
                if strand not in _STRANDS:
                    raise ValueError(
                        f"{where} has strand {strand!r}; expected +, - or an empty cell"
                    )
                found.sequences.append(
                    genome.window(records[region], int(start), int(end), _STRANDS[strand])
                )
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

    @override
    def sources(self) -> list[Path]:
        described = expand_user(self.path) / METADATA
        if not described.is_file():
            raise FileNotFoundError(
                f"{described} does not exist; set task.path to a folder of the benchmark's "
                "datasets/"
            )
        return [
            described,
            resolve(self.genome),
            *(file for _, _, file in class_paths(self.path, ".csv.gz")),
        ]

    def _check_classes(self, classes_of_files: set[str]) -> None:
        path = expand_user(self.path) / METADATA
        try:
            described = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not YAML ({' '.join(str(error).split())}); fetch it again"
            ) from None
        classes = described.get("classes") if isinstance(described, dict) else None
        if not isinstance(classes, (dict, list)):
            raise ValueError(
                f"{path} names no classes; expected a key 'classes' with a name for each file"
            )
        named = set(map(str, classes))
        if named != classes_of_files:
            differing = min(named ^ classes_of_files)
            raise ValueError(
                f"class {differing!r} is in {'metadata.yaml' if differing in named else 'a file'} "
                f"only; correct {path}"
            )


def _record_names(genome: Genome) -> dict[str, str]:
    """The record of each accepted name: its own, and that with or without a leading `chr`."""
    other = {
        (name.removeprefix("chr") if name.startswith("chr") else f"chr{name}"): name
        for name in genome.names
    }
    return other | {name: name for name in genome.names}


SEQUENCE, LABEL, SPLIT = ("sequence", "seq"), ("class", "label"), ("split",)


@checked
class GenomicBenchmark(LabeledTask):
    """Reads the download (`PART/CLASS/*.txt`), the package's intervals with a genome, or tables
    (including the Hub's parquet files).

    Args:
        genome: FASTA file of the assembly; needed for intervals alone.
    """

    def __init__(
        self,
        path: PathName,
        name: Name,
        genome: PathName | None = None,
        skip_missing: bool = False,
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path, self.genome, self.skip_missing = str(path), genome, skip_missing
        super().__init__(name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        return self.reader().read(tokenizer)

    @override
    def sources(self) -> list[Path]:
        return self.reader().sources()

    def reader(self) -> LabeledTask:
        """The reader for the format of `path`.

        Raises:
            FileNotFoundError: if there is nothing at `path`.
            ValueError: if there are intervals without a genome, or a table without a matching
                column.
        """
        path = expand_user(self.path)
        if (path / METADATA).is_file():
            if self.genome is None:
                raise ValueError(
                    f"{self.path} holds intervals; set task.genome to the FASTA file of their "
                    "assembly"
                )
            return IntervalTask(self.path, self.genome, skip_missing=self.skip_missing)
        if any((path / part).is_dir() for part in ("train", "test")):
            return FolderTask(self.path)
        if not path.exists():
            raise FileNotFoundError(
                f"{self.path} does not exist; set task.path to the downloaded folder of "
                f"{self.name}, or to a table"
            )
        header = read_header(find_tables(self.path)[0][0] if path.is_dir() else self.path)
        sequence, label, split = (
            next((name for name in names if name in header), None)
            for names in (SEQUENCE, LABEL, SPLIT)
        )
        return CsvTask(
            self.path, sequence or SEQUENCE[0], label or LABEL[1], None if path.is_dir() else split
        )


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
            log.info(
                f"{name}: {sources[0]}"
                + (
                    f"; not used: {unused} (task.tasks.{name}.path=FILE selects another)"
                    if unused
                    else ""
                )
            )
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
    if folders := [
        path
        for path in (
            folder / name,
            folder / "datasets" / name,
            folder / f"Genomic_Benchmarks_{name}",
        )
        if path.is_dir()
    ]:
        return folders
    tables = [path for path in folder.glob(f"{name}.*") if path.is_file() and is_table(path.name)]
    return sorted(
        tables,
        key=lambda path: (
            path.name != name + ending_of(path),
            not _is_divided(path),
            -path.stat().st_size,
            path.name,
        ),
    )


def _is_divided(path: Path) -> bool:
    try:
        column = next((name for name in SPLIT if name in read_header(str(path))), None)
        parts = (
            {
                PART_NAMES.get(cells[0].lower())
                for _, cells in read_rows(str(path), {"task.split_column": column})
            }
            if column
            else set()
        )
    except (ValueError, OSError):
        return False
    return {"train", "test"} <= parts
