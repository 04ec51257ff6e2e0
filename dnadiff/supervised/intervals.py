"""Tasks of labeled intervals on a reference genome, in the layout of `datasets/` of Genomic
Benchmarks.

`metadata.yaml` names the classes. `PART/CLASS.csv.gz` has the columns id, region, start, end and
strand. Coordinates are 0-based and half-open; on the `-` strand the sequence is the reverse
complement (Gresova et al. 2023, doi 10.1186/s12863-023-01123-8).
"""

from __future__ import annotations

from pathlib import Path

import yaml
from typing_extensions import Unpack, override

from dnadiff.checks import boolean, expand_user
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.files import resolve
from dnadiff.supervised.folders import class_paths
from dnadiff.supervised.labeled import LabeledSequences, LabeledTask, LabeledTaskSettings
from dnadiff.supervised.table import read_header, read_rows

METADATA = "metadata.yaml"
COLUMNS = {name: name for name in ("region", "start", "end", "strand")}
_STRANDS = {"+": "+", "-": "-", "": "+", ".": "+"}


class IntervalTask(LabeledTask):
    """Reads intervals and extracts their sequences from a genome.

    Args:
        genome: FASTA file of the assembly of the coordinates; `chr20` and `20` are the same record.
        skip_missing: skip intervals on records that the genome lacks, and note their number;
            otherwise they are an error.
    """

    def __init__(
        self,
        path: str,
        genome: str,
        name: str | None = None,
        skip_missing: bool = False,
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path, self.genome, self.skip_missing = (
            str(path),
            str(genome),
            boolean("task.skip_missing", skip_missing),
        )
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
