"""A task of Genomic Benchmarks in any of its published formats."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Unpack, override

from dnadiff.checks import boolean, expand_user
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.folders import FolderTask
from dnadiff.supervised.intervals import METADATA, IntervalTask
from dnadiff.supervised.labeled import LabeledSequences, LabeledTask, LabeledTaskSettings
from dnadiff.supervised.table import CsvTask, find_tables, read_header

SEQUENCE, LABEL, SPLIT = ("sequence", "seq"), ("class", "label"), ("split",)


class GenomicBenchmark(LabeledTask):
    """Reads the download (`PART/CLASS/*.txt`), the package's intervals with a genome, or tables
    (including the Hub's parquet files).

    Args:
        genome: FASTA file of the assembly; needed for intervals alone.
    """

    def __init__(
        self,
        path: str,
        name: str,
        genome: str | None = None,
        skip_missing: bool = False,
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path, self.genome, self.skip_missing = (
            str(path),
            genome,
            boolean("task.skip_missing", skip_missing),
        )
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
