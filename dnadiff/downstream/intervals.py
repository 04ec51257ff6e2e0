"""Places on a reference genome with classes: the layout in which Genomic Benchmarks keeps its own `datasets/`.

`metadata.yaml` names the classes, `PART/CLASS.csv.gz` holds id, region, start, end, strand: 0-based, half-open; on the `-` strand
the sequence is the reverse complement (Gresova et al. 2023, doi 10.1186/s12863-023-01123-8).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dnadiff.data.files import resolve
from dnadiff.data.genome.genome import Genome
from dnadiff.downstream.folders import class_places
from dnadiff.downstream.labeled import LabeledSequences, LabeledTask
from dnadiff.downstream.settings import flag
from dnadiff.downstream.table import header_of, rows_of

METADATA = "metadata.yaml"
COLUMNS = {name: name for name in ("region", "start", "end", "strand")}
_STRANDS = {"+": "+", "-": "-", "": "+", ".": "+"}


class IntervalTask(LabeledTask):
    """Sequences cut from a genome.

    Args:
        path: the folder with metadata.yaml.
        genome: FASTA file of the assembly the coordinates belong to; `chr20` and `20` are the same record.
        name: of the task; None: the folder's.
        skip_missing: leave out intervals on records that the genome has not, and say how many; otherwise they are an error.
        **settings: see `LabeledTask`.
    """

    def __init__(self, path: str, genome: str, name: str | None = None, skip_missing: bool = False, **settings: Any) -> None:
        self.path, self.genome, self.skip_missing = str(path), str(genome), flag("skip_missing", skip_missing)
        super().__init__(name or Path(self.path).name, **settings)

    def read(self, tokenizer: Any) -> LabeledSequences:
        """See `LabeledTask`.

        Raises:
            ValueError: also for a class that metadata.yaml does not name, a record that the genome has not, or an interval outside it.
        """
        genome = Genome.open(self.genome, tokenizer=tokenizer)
        known, lengths = _spellings(genome), genome.lengths
        found = LabeledSequences(self.path, divided=True, place="metadata.yaml", part_place="its folders")
        places = class_places(self.path, ".csv.gz")
        self._check_classes({name for _, name, _ in places})
        skipped = 0
        for part, name, file in places:
            if missing := [column for column in COLUMNS if column not in header_of(str(file))]:
                raise ValueError(f"{file} has no column {missing[0]!r}; intervals need id, {', '.join(COLUMNS)}")
            before = len(found.sequences) + skipped
            for number, (region, start, end, strand) in rows_of(str(file), COLUMNS):
                where = f"{file}: line {number}"
                if region not in known:
                    if self.skip_missing:
                        skipped += 1
                        continue
                    raise ValueError(f"{where} lies on {region}, which {self.genome} has not; set task.skip_missing=true to leave such out")
                if not (start.isdecimal() and end.isdecimal() and int(start) < int(end) <= lengths[known[region]]):
                    raise ValueError(
                        f"{where}: {region} {start or '?'} {end or '?'} is no interval of its {lengths[known[region]]:,} bases; correct it"
                    )
                if strand not in _STRANDS:
                    raise ValueError(f"{where} has strand {strand!r}; expected +, - or nothing")
                found.sequences.append(genome.window(known[region], int(start), int(end), _STRANDS[strand]))
                found.labels.append(name)
                found.parts.append(part)
            if len(found.sequences) + skipped == before:
                raise ValueError(f"{file} has a header and no rows; add some")
        if not found.sequences:
            raise ValueError(f"{self.path} has no interval on a record of {self.genome}; check the assembly")
        found.notes = {"genome": self.genome, "genome_digest": genome.digest, "intervals_on_missing_records": skipped}
        return found

    def sources(self) -> list[Path]:
        """See `LabeledTask`."""
        described = Path(self.path).expanduser() / METADATA
        if not described.is_file():
            raise FileNotFoundError(f"{described} does not exist; set task.path to a folder of the benchmark's datasets/")
        return [described, resolve(self.genome), *(file for _, _, file in class_places(self.path, ".csv.gz"))]

    def _check_classes(self, there: set[str]) -> None:
        path = Path(self.path).expanduser() / METADATA
        try:
            described = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not YAML ({' '.join(str(error).split())}); fetch it again") from None
        classes = described.get("classes") if isinstance(described, dict) else None
        if not isinstance(classes, (dict, list)):
            raise ValueError(f"{path} names no classes; expected a key 'classes' with a name for each file")
        named = set(map(str, classes))
        if named != there:
            differing = min(named ^ there)
            raise ValueError(f"class {differing!r} is in {'metadata.yaml' if differing in named else 'a file'} only; correct {path}")


def _spellings(genome: Genome) -> dict[str, str]:
    """Record names of the genome, also with and without a leading `chr`."""
    other = {(name.removeprefix("chr") if name.startswith("chr") else f"chr{name}"): name for name in genome.names}
    return other | {name: name for name in genome.names}
