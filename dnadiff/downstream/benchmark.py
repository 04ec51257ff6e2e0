"""A task of Genomic Benchmarks, whichever of its published forms lies at the path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dnadiff.downstream.folders import FolderTask
from dnadiff.downstream.intervals import METADATA, IntervalTask
from dnadiff.downstream.labeled import LabeledSequences, LabeledTask
from dnadiff.downstream.settings import flag
from dnadiff.downstream.table import CsvTask, header_of, tables_in

SEQUENCE, LABEL, SPLIT = ("sequence", "seq"), ("class", "label"), ("split",)


class GenomicBenchmark(LabeledTask):
    """Reads the download (`PART/CLASS/*.txt`), the package's intervals with a genome, or tables (also the Hub's parquet files).

    Args:
        path: folder or table.
        genome: FASTA file of the assembly; needed for intervals alone.
        skip_missing: see `IntervalTask`.
        name: of the task.
        **settings: see `LabeledTask`.
    """

    def __init__(self, path: str, name: str, genome: str | None = None, skip_missing: bool = False, **settings: Any) -> None:
        self.path, self.genome, self.skip_missing = str(path), genome, flag("skip_missing", skip_missing)
        super().__init__(name, **settings)

    def read(self, tokenizer: Any) -> LabeledSequences:
        """See `LabeledTask`."""
        return self.reader().read(tokenizer)

    def sources(self) -> list[Path]:
        """See `LabeledTask`."""
        return self.reader().sources()

    def reader(self) -> LabeledTask:
        """The reader of what lies at `path`.

        Raises:
            FileNotFoundError: if nothing does.
            ValueError: if intervals came without a genome, or a table has no fitting column.
        """
        there = Path(self.path).expanduser()
        if (there / METADATA).is_file():
            if self.genome is None:
                raise ValueError(f"{self.path} holds intervals; set task.genome to the FASTA file of their assembly")
            return IntervalTask(self.path, self.genome, skip_missing=self.skip_missing)
        if any((there / part).is_dir() for part in ("train", "test")):
            return FolderTask(self.path)
        if not there.exists():
            raise FileNotFoundError(f"{self.path} does not exist; set task.path to the downloaded folder of {self.name}, or to a table")
        header = header_of(tables_in(self.path)[0][0] if there.is_dir() else self.path)
        sequence, label, split = (next((name for name in names if name in header), None) for names in (SEQUENCE, LABEL, SPLIT))
        return CsvTask(self.path, sequence or SEQUENCE[0], label or LABEL[1], None if there.is_dir() else split)
