"""Reading of GenBank files with Biopython, with checks that the file is complete."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from dnadiff.formats.fasta import BLANK, wrong_letter
from dnadiff.formats.nucleotides import NUCLEOTIDES
from dnadiff.formats.sequences import Header, SequenceFormat
from dnadiff.store.files import ByteReader

if TYPE_CHECKING:
    from Bio.SeqRecord import SeqRecord

_NO_ID = (
    "",
    ".",
    "<unknown id>",
)  # in ACCESSION and VERSION of files that programs such as SnapGene and Benchling write
_LOCUS = re.compile(r"LOCUS\s+\S.*?\s(\d+)\s+(?:bp|aa|rc)\b")


class _CutShortError(ValueError):
    pass


class _CheckedLines(io.TextIOWrapper):
    """The lines of a GenBank file; Biopython skips what it does not recognize between records, such
    as a LOCUS line that was cut.

    `lengths` are the lengths that the LOCUS lines name.
    """

    def __init__(self, handle: ByteReader) -> None:
        super().__init__(handle, encoding="utf-8")
        self.lengths: list[int] = []
        self._inside = False
        self._num_bases: int | None = None  # of the record so far; None before its ORIGIN

    # As typeshed has it for IO[str].
    @override
    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(size)
        if "\0" in line:
            raise _CutShortError("it contains NUL bytes")
        if self._inside:
            self._inside = line.rstrip() != "//"
            if self._inside and line.strip():
                self._count(line)
        elif line.strip() and line.strip() != "//":
            locus = _LOCUS.match(line)
            if locus is None:
                raise _CutShortError(
                    f"a record begins with {line.rstrip()[:60]!r}, expected LOCUS, a name and a "
                    "length in bp"
                )
            self.lengths.append(int(locus[1]))
            self._inside, self._num_bases = True, None
        return line

    def _count(self, line: str) -> None:
        """Compare the number at the beginning of a line of sequence with the bases before it."""
        if self._num_bases is None:
            self._num_bases = 0 if line.startswith("ORIGIN") else None
            return
        number, *letters = line.split()
        if number != str(self._num_bases + 1):
            raise _CutShortError(
                f"a line of sequence begins with {number[:20]!r}, expected the position "
                f"{self._num_bases + 1}"
            )
        self._num_bases += sum(map(len, letters))

    def check_end(self) -> None:
        """Refuse a file that ends inside a record."""
        if self._inside:
            raise _CutShortError("the last record does not end with //")


class GenBank(SequenceFormat):
    """GenBank; errors if a record is malformed or has a different length from its LOCUS line."""

    endings = (".gb", ".gbk", ".gbff", ".genbank")
    starts = (b"LOCUS ", b"LOCUS\t")

    @classmethod
    @override
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        from Bio import BiopythonParserWarning

        try:
            for record in _records(content):
                yield Header(_name_of(record), record.description)
                yield _letters(record)
        except (ValueError, BiopythonParserWarning) as error:
            cut_short = isinstance(error, (BiopythonParserWarning, _CutShortError)) or str(
                error
            ).startswith("Premature end")
            problem = (
                f" is damaged or cut short ({str(error).rstrip('.')}): fetch it again"
                if cut_short
                else f": {error}"
            )
            raise ValueError(f"{path}{problem}; this is read as GenBank") from None


def _letters(record: SeqRecord) -> bytes:
    sequence, name = record.seq, _name_of(record)
    if sequence is None or (len(sequence) and not sequence.defined):
        raise ValueError(
            f"record {name} has no sequence (only its length is given); fetch the full "
            "GenBank record"
        )
    letters = bytes(sequence).translate(None, BLANK)
    if letters.translate(None, NUCLEOTIDES):
        raise ValueError(wrong_letter("", letters, 1, name).partition(": record ")[2])
    return letters


def _name_of(record: SeqRecord) -> str:
    """The accession with its version, or the name in LOCUS where there is none."""
    return str(record.name if record.id is None or record.id.strip() in _NO_ID else record.id)


def _records(handle: ByteReader) -> Iterator[SeqRecord]:
    """Biopython's records; its warnings of a wrong length in LOCUS and of a missing `//` at the end
    become errors."""
    from Bio import BiopythonParserWarning, SeqIO

    lines = _CheckedLines(handle)
    try:
        records = iter(SeqIO.parse(lines, "genbank"))
        while True:
            with warnings.catch_warnings():
                for message in ("Expected sequence length", "Premature end of file"):
                    warnings.filterwarnings("error", message, BiopythonParserWarning)
                try:
                    record = next(records, None)
                except (AssertionError, AttributeError, IndexError, KeyError, TypeError) as error:
                    raise _CutShortError(
                        f"Biopython cannot read it: {type(error).__name__} {error}".rstrip()
                    ) from error
            if record is None:
                lines.check_end()
                return
            length = lines.lengths[-1]
            if record.seq is not None and len(record.seq) != length:
                raise _CutShortError(
                    f"record {_name_of(record)} has {len(record.seq)} bases, LOCUS says {length}"
                )
            yield record
    finally:
        lines.detach()
