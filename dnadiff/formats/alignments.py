"""Alignments of other genomes to a target: MAF, PAF with cs tags, SAM and BAM, aligned FASTA.

All of them are read as blocks, in which gaps are `-`. Formats are found by themselves: every
subclass of `AlignmentFormat` in an imported module is one. SAM and BAM are read by pysam.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from Bio.SeqIO.FastaIO import SimpleFastaParser

from dnadiff.formats.regions import listing, pysam_for, record_of
from dnadiff.progress import log
from dnadiff.store.files import bare_name, open_binary, open_text, resolve

_SNIFFED = 1 << 20  # bytes
_GAP_IN_FASTA = re.compile(rb"^[^>\n]*-", re.MULTILINE)
_SCORE = re.compile(r"\bscore=(?:([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)(?!\S))?")
_CS = re.compile(r"([:=*+~-])(\w+)")
_ROW = re.compile(
    r"s\s+(?P<name>\S+)\s+(?P<start>\d+)\s+(?P<size>\d+)\s+(?P<strand>[+-])\s+(?P<total>\d+)\s+"
    r"(?P<text>\S+)\s*"
)
_HARD_CLIP = 5  # of CIGAR


class Block(NamedTuple):
    """A stretch of the target and one of another genome, column by column.

    Attributes:
        record, start: of the target, whose + strand is aligned.
        target, other: letters and `-`; `=` in both is a base of the target that the other has too,
            and `=` in the target alone is any base.
        score: of the alignment; better ones are higher.
        other_record, other_size: its name and number of bases.
        other_start: first base, counted on the strand that is aligned.
        reverse: whether that is the - strand.
        genome: the other one; "" if the file has only one.
    """

    record: str
    start: int
    target: str
    other: str
    score: float
    other_record: str
    other_size: int
    other_start: int
    reverse: bool = False
    genome: str = ""


class AlignmentFormat(ABC):
    """A format of files of alignments.

    Attributes:
        endings: of the names of its files, in lower case, without that of a compression.
    """

    endings: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def blocks(cls, path: str, lengths: Mapping[str, int]) -> Iterator[Block]:
        """The blocks on records of the target; others are skipped.

        Args:
            lengths: of the target's records. A record of this name with another length is skipped.

        Raises:
            ValueError: naming file, line and remedy.
        """


def alignment_format(path: str) -> type[AlignmentFormat] | None:
    """The format of a file of alignments; None if it has sequences."""
    for kind in AlignmentFormat.__subclasses__():
        if bare_name(path).endswith(kind.endings):
            return kind
    with open_binary(path) as content:
        first = content.read(_SNIFFED)
    return AlignedFasta if first.startswith(b">") and _GAP_IN_FASTA.search(first) else None


def _known(name: str, length: int, lengths: Mapping[str, int]) -> str | None:
    """The record of the target that a name in a file means."""
    found = record_of(name, lengths)
    return found if found is not None and lengths[found] == length else None


class Maf(AlignmentFormat):
    """Multiple Alignment Format, as multiz, hal2maf and LAST write it. The target is the first row
    of each block. Names are `genome.record`, or `record` if there is only one other genome."""

    endings = (".maf",)

    @classmethod
    def blocks(cls, path: str, lengths: Mapping[str, int]) -> Iterator[Block]:
        score = 0.0
        rows = list[re.Match[str]]()
        with open_text(path) as file:
            for number, line in enumerate(chain(file, [""]), 1):
                where = f"{path}: line {number}"
                if line.startswith("s"):
                    row = _ROW.fullmatch(line)
                    if row is None or len(row["text"].replace("-", "")) != int(row["size"]):
                        raise ValueError(
                            f"{where} is not a row of MAF (s, name, start, size, strand, length, "
                            "text), or was cut off; write the file again"
                        )
                    rows.append(row)
                elif line.startswith("a") or not line.strip():
                    yield from cls._block(where, score, rows, lengths)
                    rows = []
                    found = _SCORE.search(line)
                    if found and not found[1]:
                        raise ValueError(f"{where}: the score is not a number; write it again")
                    score = float(found[1]) if found else 0.0

    @classmethod
    def _block(
        cls, where: str, score: float, rows: list[re.Match[str]], lengths: Mapping[str, int]
    ) -> Iterator[Block]:
        records = [cls._record(row["name"], int(row["total"]), lengths) for row in rows]
        if not any(records):
            return
        target = rows[0]
        record = records[0]
        if record is None or target["strand"] == "-":
            raise ValueError(
                f"{where}: the block before it does not begin with the + strand of the target, but "
                f"with {target['name']}; the target must be the first row, the reference of the "
                "alignment: make it again with this genome as the reference"
            )
        whole = _known(target["name"], int(target["total"]), lengths)
        own = "" if whole else target["name"].partition(".")[0]
        if whole and len(rows) > 2:
            raise ValueError(
                f"{where}: the block before it has {len(rows) - 1} other rows, and the name of the "
                f"target, {target['name']}, is that of a record alone; with several genomes all "
                "names must be genome.record"
            )
        for row in rows[1:]:
            genome = row["name"].partition(".")[0] if own else ""
            if not own or genome != own:  # a copy within the target
                yield Block(
                    record,
                    int(target["start"]),
                    target["text"],
                    row["text"],
                    score,
                    row["name"],
                    int(row["total"]),
                    int(row["start"]),
                    row["strand"] == "-",
                    genome,
                )

    @staticmethod
    def _record(name: str, total: int, lengths: Mapping[str, int]) -> str | None:
        """The record of the target that a name means; that of the genome, which may have dots, is
        before it."""
        parts = name.split(".")
        names = (".".join(parts[number:]) for number in range(len(parts)))
        return next((x for each in names if (x := _known(each, total, lengths))), None)


class Paf(AlignmentFormat):
    """PAF of minimap2 with cs tags, short or long; one genome in a file."""

    endings = (".paf",)

    @classmethod
    def blocks(cls, path: str, lengths: Mapping[str, int]) -> Iterator[Block]:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    cells = line.rstrip().split("\t")
                    name, target, reverse = cells[0], cells[5], cells[4] == "-"
                    size, start, end, total, first, last = (
                        int(cells[i]) for i in (1, 2, 3, 6, 7, 8)
                    )
                    tags = {each[:5]: each[5:] for each in cells[12:]}
                    texts = texts_of_cs(tags["cs:Z:"])
                    if len(texts[0]) - texts[0].count("-") != last - first:
                        raise ValueError
                    score = int(tags.get("AS:i:", 0))
                except (ValueError, LookupError):
                    raise ValueError(
                        f"{path}: line {number} is not a row of PAF with a cs tag for all of its "
                        "bases; write the file with minimap2 -c --cs"
                    ) from None
                if (record := _known(target, total, lengths)) is not None:
                    begin = size - end if reverse else start
                    yield Block(record, first, *texts, score, name, size, begin, reverse)


def texts_of_cs(cs: str) -> tuple[str, str]:
    """Target and other genome, with gaps, of a cs tag (manual of minimap2, "The cs optional
    tag")."""
    target = list[str]()
    other = list[str]()
    for operation, value in _CS.findall(cs):
        if operation == "~":  # an intron: two letters, its length, two letters
            operation = "-"
            value = "N" * int(value[2:-2])
        if operation == ":":
            value = "=" * int(value)
        gaps = "-" * len(value)
        named = operation == "*"
        target.append({"+": gaps, "-": value, "*": value[0]}.get(operation, "=" * len(value)))
        other.append(gaps if operation == "-" else value[named:])
    return "".join(target), "".join(other)


class Sam(AlignmentFormat):
    """SAM and BAM, read by pysam; one genome in a file. Secondary alignments without a sequence are
    skipped."""

    endings = (".sam", ".bam")

    @classmethod
    def blocks(cls, path: str, lengths: Mapping[str, int]) -> Iterator[Block]:
        read: Any
        with (
            pysam_for(path, "SAM or BAM", "PAF") as pysam,
            pysam.AlignmentFile(str(resolve(path)), check_sq=False) as file,
        ):
            sizes = dict(zip(file.references, file.lengths))
            for read in file:
                name, sequence = read.reference_name, read.query_sequence
                record = _known(name, sizes[name], lengths) if name and sequence else None
                if record is not None and read.cigartuples:
                    pairs = read.get_aligned_pairs()
                    other = "".join("-" if i is None else sequence[i] for i, _ in pairs)
                    target = "".join("-" if i is None else "=" for _, i in pairs)
                    # soft-clipped bases are in the pairs, hard-clipped ones are not
                    operation, clipped = read.cigartuples[0]
                    skipped = clipped if operation == _HARD_CLIP else 0
                    yield Block(
                        record,
                        read.reference_start,
                        target,
                        other,
                        float(dict(read.get_tags()).get("AS", 0)),
                        read.query_name,
                        read.infer_read_length(),
                        skipped,
                        read.is_reverse,
                    )


class AlignedFasta(AlignmentFormat):
    """FASTA with gaps: rows of the same width, each a genome, and the target first. Columns with a
    gap in the target are left out, which is logged."""

    endings = (".afa", ".mfa")

    @classmethod
    def blocks(cls, path: str, lengths: Mapping[str, int]) -> Iterator[Block]:
        with open_text(path) as file:
            found = [((title.split() or [""])[0], text) for title, text in SimpleFastaParser(file)]
        rows = dict(found)
        if len(rows) < len(found) or len(set(map(len, rows.values()))) != 1:
            raise ValueError(
                f"{path}: rows of different widths, or with the same name; align them first, and "
                "give each genome its own name, once"
            )
        name, text = found[0]
        size = len(text) - text.count("-")
        gaps = text.count("-")
        fitting = {each: length for each, length in lengths.items() if length == size}
        record = record_of(name, fitting) or next(iter(fitting), None)
        if record is None:
            raise ValueError(
                f"{path}: the first row, {name}, has {size:,} bases without gaps, as no record of "
                f"the target ({listing(lengths)}); the target must be the first row, and complete"
            )
        if gaps:
            log.info(f"{path}: {gaps:,} columns with a gap in the target are left out")
        for other, row in found[1:]:
            yield Block(record, 0, text, row, 0.0, other, len(row), 0, genome=other)
