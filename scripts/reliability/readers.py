"""Every reader of a file that a user gives, and of every file that the package loads back, on tiny
files.

A `Reader` writes undamaged files, reads them through the function that the commands call, and
states what a damaged file may be read as (`formats`). Paths are relative to the working folder, so
that the files have the same bytes in any folder.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import formats
import mutations as m
from formats import Anything, InvalidError

from dnadiff.weights import published
from dnadiff.weights.published import gpt2_backbone

if TYPE_CHECKING:
    from dnadiff.data.text.corpus import Hub
    from dnadiff.jobs.job import Job

RUNS, CACHE = Path("runs"), "cache"
Make = Callable[[Path], None]


def nothing(folder: Path, name: str) -> object:
    """The rule of a format with checksums: no damaged file may be read, unless as what it was."""
    raise InvalidError("the checksum differs")


def anything(folder: Path, name: str) -> object:
    """The rule of a format in which nothing can be detected."""
    return Anything()


@dataclass(frozen=True)
class Reader:
    """One way to read files.

    Args:
        name: of the reader.
        make: writes undamaged files into a folder.
        files: the files that are damaged (patterns), each with its kinds of damage.
        read: the content of the folder, comparable by `==`.
        expected: what a folder with a damaged file of this name contains by the definition of its
            format; raises `InvalidError` if it is not a complete file.
        share: relative number of inputs.
        command_files: what the commands call these files: endings of input files in `cases`, or
            names in a run folder.
        also_named: words that an error may name instead of the file.
    """

    name: str
    make: Make
    files: Mapping[str, Sequence[m.Mutation]]
    read: Callable[[Path], object]
    expected: Callable[[Path, str], object] = nothing
    share: int = 2
    command_files: tuple[str, ...] = ()
    also_named: tuple[str, ...] = ()


def _records() -> dict[str, str]:
    draw = random.Random(1)
    records = {
        name: "".join(draw.choices("AAACCGGTTT", k=size))
        for name, size in (("one", 900), ("two", 420), ("3", 61))
    }
    two = records["two"]
    return records | {"two": two[:90] + two[90:150].lower() + "N" * 40 + two[190:]}


def _fasta(records: Mapping[str, str], width: int = 60) -> bytes:
    lines = []
    for name, letters in records.items():
        lines += [
            f">{name} some words",
            *(letters[i : i + width] for i in range(0, len(letters), width)),
        ]
    return ("\n".join(lines) + "\n").encode()


FASTA = _fasta(_records() | {"codes": "ACGURYKMSWBDHVNacgtn"})
LENGTHS = {name: len(letters) for name, letters in _records().items()}
WORDS = [
    f"{word}{number}"
    for number in range(12)
    for word in ("the cat", "a dog", "one \u00fc bird", "that, tree")
]


def _twobit(records: Mapping[str, str]) -> bytes:
    def block(pairs: Sequence[tuple[int, int]]) -> bytes:
        return struct.pack(
            f"<{1 + 2 * len(pairs)}I", len(pairs), *(a for a, _ in pairs), *(n for _, n in pairs)
        )

    index, body, size = b"", b"", 16 + sum(5 + len(name) for name in records)
    for name, letters in records.items():
        index += bytes([len(name)]) + name.encode() + struct.pack("<I", size + len(body))
        padded = letters.upper() + "T" * (-len(letters) % 4)
        codes = ["TCAG".find(letter) % 5 % 4 for letter in padded]
        packed = bytes(
            sum(codes[i + k] << (6 - 2 * k) for k in range(4)) for i in range(0, len(padded), 4)
        )
        unknown = [(150, 40)] if "N" in letters else []
        body += (
            struct.pack("<I", len(letters))
            + block(unknown)
            + block([(90, 60)] if unknown else [])
            + struct.pack("<I", 0)
            + packed
        )
    return struct.pack("<4I", 0x1A412743, 0, len(records), 0) + index + body


def _genbank() -> bytes:
    import io

    from Bio import SeqIO
    from Bio.Seq import Seq
    from Bio.SeqFeature import SeqFeature, SimpleLocation
    from Bio.SeqRecord import SeqRecord

    text, records = io.StringIO(), []
    for name, letters in _records().items():
        about = {"molecule_type": "DNA", "date": "01-JAN-2020"}
        gene = SeqFeature(SimpleLocation(3, 30, 1), "gene", qualifiers={"gene": ["abc"]})
        records.append(
            SeqRecord(
                Seq(letters), f"acc{name}.1", name, "made", annotations=about, features=[gene]
            )
        )
    SeqIO.write(records, text, "genbank")
    return text.getvalue().encode()


def _writes(name: str, content: Callable[[], bytes]) -> Make:
    return lambda folder: _write(folder / name, content())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _zipped(content: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: gzip.compress(content(), mtime=0)


# Genomes and regions


def _read_fasta(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.formats.sequences import read_sequences

        return tuple((r.name, r.sequence.decode().upper()) for r in read_sequences(folder / name))

    return read


def _genome(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.data.genome.genome import Genome

        genome = Genome.open(folder / name)
        letters = bytes.maketrans(bytes(range(7, 12)), b"ACGTN")
        codes = [(genome.records.packed(i) & 127).tobytes() for i in range(len(genome.names))]
        return tuple(
            (record, each.translate(letters).decode("latin-1"))
            for record, each in zip(genome.names, codes)
        )

    return read


def _genome_letters(name: str) -> Callable[[Path], object]:
    """Without names: those of GenBank files are composed from several lines."""
    return lambda folder: tuple(letters for _, letters in _genome(name)(folder))


def _by_format(parse: Callable[..., object], *more: object) -> Callable[[Path, str], object]:
    return lambda folder, name: parse(formats.content_of(folder / name), *more)


def _as_genome(folder: Path, name: str) -> object:
    return formats.unknown_as_n(formats.fasta(formats.content_of(folder / name)))


BED = "".join(
    f"{chrom}\t{start}\t{start + 20}\tname{start}\t0\t{'+-.'[start % 3]}\n"
    for chrom in ("one", "two")
    for start in range(0, 300, 37)
)
GTF = "".join(
    f'{chrom}\tmade\tCDS\t{start + 1}\t{start + 20}\t.\t{"+-"[start % 2]}\t0\tgene_id "g{start}";\n'
    for chrom in ("one", "two")
    for start in range(0, 300, 37)
)
GFF = (
    "##gff-version 3\n"
    + GTF.replace('gene_id "', "ID=").replace('";', "")
    + "##FASTA\n"
    + FASTA.decode()
)


def _regions(name: str, read: str) -> Callable[[Path], object]:
    def regions(folder: Path) -> object:
        from dnadiff.formats import regions

        return tuple(
            (r.chrom, r.start, r.end, r.strand)
            for r in vars(regions)[read](folder / name, lengths=LENGTHS)
        )

    return regions


GENOMES = (
    Reader(
        "fasta",
        _writes("s.fa", lambda: FASTA),
        {"s.fa": m.TEXT},
        _read_fasta("s.fa"),
        _by_format(formats.fasta),
        6,
        ("samples.fa",),
    ),
    Reader(
        "fasta.gz",
        _writes("s.fa.gz", _zipped(lambda: FASTA)),
        {"s.fa.gz": m.compressed(m.TEXT)},
        _read_fasta("s.fa.gz"),
        _by_format(formats.fasta),
        3,
        ("samples.fa",),
    ),
    Reader(
        "genome fasta",
        _writes("g.fa", lambda: FASTA),
        {"g.fa": m.TEXT},
        _genome("g.fa"),
        _as_genome,
        6,
        ("genome.fa.gz",),
    ),
    Reader(
        "genome fasta.gz",
        _writes("g.fa.gz", _zipped(lambda: FASTA)),
        {"g.fa.gz": m.compressed(m.TEXT)},
        _genome("g.fa.gz"),
        _as_genome,
        4,
        ("genome.fa.gz",),
    ),
    Reader(
        "genome bgzip",
        _writes("g.fa.gz", lambda: m.bgzip(FASTA, 400)),
        {"g.fa.gz": m.compressed(m.TEXT, blocks=True)},
        _genome("g.fa.gz"),
        _as_genome,
        4,
        ("genome.fa.gz",),
    ),
    Reader(
        "genome 2bit",
        _writes("g.2bit", lambda: _twobit(_records())),
        {"g.2bit": [*m.BYTES, m.change_integer, m.change_integer, m.change_integer]},
        _genome("g.2bit"),
        _by_format(formats.twobit),
        6,
        ("genome.fa.gz",),
    ),
    Reader(
        "genome genbank",
        _writes("g.gb", _genbank),
        {"g.gb": m.TEXT},
        _genome_letters("g.gb"),
        _by_format(formats.genbank),
        6,
        ("genome.fa.gz",),
    ),
    Reader(
        "genome genbank.gz",
        _writes("g.gb.gz", _zipped(_genbank)),
        {"g.gb.gz": m.compressed(m.TEXT)},
        _genome_letters("g.gb.gz"),
        _by_format(formats.genbank),
        2,
        ("genome.fa.gz",),
    ),
    Reader(
        "bed",
        _writes("r.bed", BED.encode),
        {"r.bed": m.TABLE},
        _regions("r.bed", "read_bed"),
        _by_format(formats.bed, LENGTHS),
        4,
        ("regions.bed",),
    ),
    Reader(
        "bed.gz",
        _writes("r.bed.gz", _zipped(BED.encode)),
        {"r.bed.gz": m.compressed(m.TABLE)},
        _regions("r.bed.gz", "read_bed"),
        _by_format(formats.bed, LENGTHS),
        2,
        ("regions.bed",),
    ),
    Reader(
        "gtf",
        _writes("r.gtf", GTF.encode),
        {"r.gtf": m.TABLE},
        _regions("r.gtf", "read_gtf"),
        _by_format(formats.gff, LENGTHS),
        4,
        ("regions.bed",),
    ),
    Reader(
        "gff3",
        _writes("r.gff3", GFF.encode),
        {"r.gff3": m.TABLE},
        _regions("r.gff3", "read_gtf"),
        _by_format(formats.gff, LENGTHS),
        4,
        ("regions.bed",),
    ),
    Reader(
        "gff3.gz",
        _writes("r.gff3.gz", _zipped(GFF.encode)),
        {"r.gff3.gz": m.compressed(m.TABLE)},
        _regions("r.gff3.gz", "read_gtf"),
        _by_format(formats.gff, LENGTHS),
        4,
        ("regions.bed",),
    ),
)

# Variants


def _vcf() -> bytes:
    records = _records()
    lines = [
        "##fileformat=VCFv4.2",
        *(f"##contig=<ID={name},length={len(letters)}>" for name, letters in records.items()),
    ]
    lines.append("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO")
    lines += [
        f"{name}\t{pos}\tv{pos}\tA\tC,<DEL>\t.\tPASS\tDP=3"
        for name in ("one", "two")
        for pos in range(1, 200, 23)
    ]
    return ("\n".join(lines) + "\n").encode()


def _variant_rows() -> bytes:
    return (
        "chrom\tpos\tref\talt\n" + "".join(f"one\t{pos}\tA\tC\n" for pos in range(1, 200, 23))
    ).encode()


def _variants(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.formats.regions import open_source

        return tuple(
            (r.chrom, str(r.pos), r.id, r.ref, ",".join(r.alts)) for r in open_source(folder / name)
        )

    return read


def _same_position(
    expected: Callable[..., tuple[tuple[str, ...], ...]],
) -> Callable[[Path, str], object]:
    def found(folder: Path, name: str) -> object:  # 007 is 7
        return tuple(
            (r[0], str(int(r[1])), *r[2:]) for r in expected(formats.content_of(folder / name))
        )

    return found


VARIANTS = (
    Reader(
        "vcf",
        _writes("v.vcf", _vcf),
        {"v.vcf": m.TABLE},
        _variants("v.vcf"),
        _same_position(formats.vcf),
        4,
        ("variants.vcf",),
    ),
    Reader(
        "vcf bgzip",
        _writes("v.vcf.gz", lambda: m.bgzip(_vcf(), 400)),
        {"v.vcf.gz": m.compressed(m.TABLE, blocks=True)},
        _variants("v.vcf.gz"),
        _same_position(formats.vcf),
        3,
        ("variants.vcf",),
    ),
    Reader(
        "variants table",
        _writes("v.tsv", _variant_rows),
        {"v.tsv": m.TABLE},
        _variants("v.tsv"),
        _same_position(formats.variants),
        2,
        ("variants.vcf",),
    ),
)

# Labeled sequences


def _label_rows(separator: str) -> bytes:
    draw = random.Random(2)
    rows = [
        separator.join((str(n), "".join(draw.choices("ACGT", k=20)), f'"say ""{"ab"[n % 2]}"""'))
        for n in range(30)
    ]
    return (
        separator.join(("number", "sequence", "label")) + "\n" + "\n".join(rows) + "\n"
    ).encode()


def _parquet(columns: Mapping[str, list[str]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        pyarrow.table(columns), sink, write_page_checksum=True, row_group_size=16
    )
    return sink.getvalue().to_pybytes()


def _label_parquet() -> bytes:
    rows = [
        line.replace('""', "'").replace('"', "").split(",")
        for line in _label_rows(",").decode().splitlines()[1:]
    ]
    return _parquet(
        {name: [row[i] for row in rows] for i, name in enumerate(("number", "sequence", "label"))}
    )


def _labeled(task: Callable[[Path], object]) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.data.tokenizer import DNATokenizer

        tokenizer = DNATokenizer()
        found = task(folder).read(tokenizer)
        return tuple(
            sorted(
                (tokenizer.decode(ids), label, part)
                for ids, label, part in zip(found.sequences, found.labels, found.parts)
            )
        )

    return read


def _csv(name: str) -> Callable[[Path], object]:
    def task(folder: Path) -> object:
        from dnadiff.supervised.tasks import CsvTask

        return CsvTask(str(folder / name))

    return _labeled(task)


def _of_table(delimiter: str) -> Callable[[Path, str], object]:
    def expected(folder: Path, name: str) -> object:
        rows = formats.table(formats.content_of(folder / name), ("sequence", "label"), delimiter)
        if not all(formats.LETTERS.fullmatch(letters) for letters, _ in rows):
            raise InvalidError("no nucleotide")
        return tuple(
            sorted(
                (letters, label, "train")
                for (_, letters), (_, label) in zip(
                    formats.unknown_as_n([(b, a.upper()) for a, b in rows]), rows
                )
            )
        )

    return expected


def _class_folders(folder: Path) -> None:
    draw = random.Random(3)
    for part in ("train", "test"):
        for label in ("a", "b"):
            for n in range(3):
                _write(
                    folder / "t" / part / label / f"{n}.txt",
                    ("".join(draw.choices("ACGT", k=40)) + "\n").encode(),
                )


def _folder_task(folder: Path) -> object:
    from dnadiff.supervised.tasks import FolderTask

    return FolderTask(str(folder / "t"))


def _of_folders(folder: Path, name: str) -> object:
    found = []
    for file in sorted((folder / "t").rglob("*.txt")):
        letters = "".join(formats.text_of(file.read_bytes()).split()).upper()
        if not letters or not formats.LETTERS.fullmatch(letters):
            raise InvalidError("no nucleotide")
        found.append(
            (formats.unknown_as_n([("", letters)])[0][1], file.parent.name, file.parent.parent.name)
        )
    return tuple(sorted(found))


def _intervals(folder: Path) -> None:
    _write(folder / "g.fa", FASTA)
    _write(
        folder / "t" / "metadata.yaml",
        b"version: 0\nclasses:\n  a: {type: fa.gz, url: x}\n  b: {type: fa.gz, url: y}\n",
    )
    for part, first in (("train", 0), ("test", 200)):
        for label, step in (("a", 31), ("b", 43)):
            rows = [
                f"{i},one,{first + i * step % 400},{first + i * step % 400 + 25},{'+-'[i % 2]}"
                for i in range(8)
            ]
            _write(
                folder / "t" / part / f"{label}.csv.gz",
                gzip.compress(
                    ("id,region,start,end,strand\n" + "\n".join(rows) + "\n").encode(), mtime=0
                ),
            )


def _interval_task(folder: Path) -> object:
    from dnadiff.supervised.tasks import IntervalTask

    return IntervalTask(str(folder / "t"), str(folder / "g.fa"))


def _of_intervals(folder: Path, name: str) -> object:
    if name.endswith(".yaml"):
        # an independent check of YAML is not worth it: only the names of the classes are used, and
        # compared
        return Anything()
    records, found = dict(formats.unknown_as_n(formats.fasta((folder / "g.fa").read_bytes()))), []
    complement = str.maketrans("ACGTN", "TGCAN")
    for file in sorted((folder / "t").rglob("*.csv.gz")):
        for chrom, start, end, strand in formats.table(
            formats.content_of(file), ("region", "start", "end", "strand")
        ):
            low, high = formats._integer(start), formats._integer(end)
            chrom = chrom if chrom in records else chrom.removeprefix("chr")
            if (
                chrom not in records
                or not 0 <= low < high <= len(records[chrom])
                or strand not in ("+", "-", ".")
            ):
                raise InvalidError("interval")
            letters = records[chrom][low:high]
            letters = letters.translate(complement)[::-1] if strand == "-" else letters
            found.append((letters, file.name.removesuffix(".csv.gz"), file.parent.name))
    return tuple(sorted(found))


LABELED = (
    Reader(
        "labels csv",
        _writes("l.csv", lambda: _label_rows(",")),
        {"l.csv": m.TABLE},
        _csv("l.csv"),
        _of_table(","),
        5,
        ("labels.csv",),
    ),
    Reader(
        "labels tsv",
        _writes("l.tsv", lambda: _label_rows("\t")),
        {"l.tsv": m.TABLE},
        _csv("l.tsv"),
        _of_table("\t"),
        4,
        ("labels.csv",),
    ),
    Reader(
        "labels csv.gz",
        _writes("l.csv.gz", _zipped(lambda: _label_rows(","))),
        {"l.csv.gz": m.compressed(m.TABLE)},
        _csv("l.csv.gz"),
        _of_table(","),
        3,
        ("labels.csv",),
    ),
    Reader(
        "labels parquet",
        _writes("l.parquet", _label_parquet),
        {"l.parquet": m.BYTES},
        _csv("l.parquet"),
        nothing,
        3,
        ("labels.csv",),
    ),
    Reader(
        "class folders",
        _class_folders,
        {"t/*/*/*.txt": m.TEXT},
        _labeled(_folder_task),
        _of_folders,
        2,
        ("labels.csv",),
    ),
    Reader(
        "intervals",
        _intervals,
        {"t/*/*.csv.gz": m.compressed(m.TABLE), "t/metadata.yaml": m.YAML},
        _labeled(_interval_task),
        _of_intervals,
        3,
        ("labels.csv",),
        ("metadata.yaml", "work/t "),
    ),
)

# Texts and tokenizers


def _documents(name: str, **settings: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.data.text.corpus import Files

        return tuple(Files(str(folder / name), **settings))

    return read


def _arrow(folder: Path) -> None:
    import pyarrow

    schema = pyarrow.schema([("text", pyarrow.string())])
    with (
        pyarrow.OSFile(str(folder / "d.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, schema) as writer,
    ):
        writer.write_table(pyarrow.table({"text": WORDS}, schema=schema), 16)


def _read_arrow(folder: Path) -> object:
    from dnadiff.data.text.corpus import Hub, HubPart

    hub: Hub = Hub(
        "arrow", {"train": "train"}, data_files={"train": str((folder / "d.arrow").resolve())}
    )
    return tuple(HubPart(hub, "train", "d.arrow", streaming=True))


def _of_texts(folder: Path, name: str) -> object:
    return (formats.text_of(formats.content_of(folder / name)),)


def _of_lines(folder: Path, name: str) -> object:
    return tuple(line.strip() for line in formats.lines_of(formats.content_of(folder / name)))


def _of_rows(folder: Path, name: str) -> object:
    return tuple(cells[0] for cells in _unstripped(formats.content_of(folder / name)))


def _unstripped(data: bytes) -> list[tuple[str, ...]]:
    import csv
    import io

    formats.table(data, ("text",), empty_cells=True)  # a document may be empty
    rows = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=None), strict=True)
    where = next(rows).index("text")
    return [(row[where],) for row in rows if row]


def _judged(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.genomics.metrics.text_quality import read_texts

        return tuple(read_texts(folder / name))

    return read


def _paragraphs(folder: Path, name: str) -> object:
    found = tuple(
        part
        for part in formats.text_of(formats.content_of(folder / name)).split("\n\n")
        if part.strip()
    )
    if not found:
        raise InvalidError("empty")
    return found


def _spoken(folder: Path, name: str) -> object:
    found = tuple(
        text for text in formats.objects(formats.content_of(folder / name), "text") if text.strip()
    )
    if not found:
        raise InvalidError("empty")
    return found


def _jsonl() -> bytes:
    return "".join(
        json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(WORDS)
    ).encode()


def _vocab() -> dict[str, int]:
    letters = [*map(chr, range(33, 127)), "\u0120", "\u010a"]
    return {
        token: number
        for number, token in enumerate([*letters, "th", "the", "ca", "cat", "<|endoftext|>"])
    }


MERGES = "#version: 0.2\nt h\nth e\nc a\nca t\n"


def _tokenizer_json() -> bytes:
    from dnadiff.data.text.pretrained import byte_pairs

    return byte_pairs(_vocab(), MERGES.splitlines()).encode()


def _tokenizer_folder(folder: Path) -> None:
    _write(folder / "k" / "tokenizer.json", _tokenizer_json())
    _write(
        folder / "k" / "tokenizer_config.json",
        json.dumps({"eos_token": {"content": "<|endoftext|>"}, "model_max_length": 1024}).encode(),
    )
    _write(
        folder / "k" / "special_tokens_map.json",
        json.dumps({"bos_token": "<|endoftext|>", "unk_token": "the"}).encode(),
    )


def _pair(folder: Path) -> None:
    _write(folder / "vocab.json", json.dumps(_vocab()).encode())
    _write(folder / "merges.txt", MERGES.encode())


def _tokenizer(*names: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.data.text.pretrained import Pretrained

        paths = [str(folder / name) for name in names]
        tokenizer = Pretrained(paths if len(paths) > 1 else paths[0]).load()
        ids = tokenizer.encode("the cat sat").tolist()
        tokenizer.decode(range(min(tokenizer.vocab.size, 4000)))
        rules = json.loads(tokenizer.config()["json"])
        vocab = {
            token: number
            for token, number in rules["model"]["vocab"].items()
            if not token.startswith("[no token")
        }
        return tuple(sorted(vocab.items())), len(rules["model"].get("merges", ())), len(ids) > 0

    return read


def _of_tokenizer(folder: Path, name: str) -> object:
    if not name.endswith("tokenizer.json"):
        formats.parsed((folder / name).read_bytes())
        return Anything()
    model = formats.parsed((folder / name).read_bytes()).get("model")
    try:
        vocab = {t: n for t, n in model["vocab"].items() if not t.startswith("[no token")}
        return _WithIds(vocab, len(model.get("merges", ())))
    except (TypeError, KeyError, AttributeError):
        raise InvalidError("no vocabulary") from None


class _WithIds:
    """Equal to the content of a tokenizer that has these tokens; whether a text gets tokens is its
    own business."""

    def __init__(self, vocab: Mapping[str, int], merges: int) -> None:
        self.known = tuple(sorted(vocab.items())), merges

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and other[:2] == self.known

    __hash__ = None


def _of_pair(folder: Path, name: str) -> object:
    vocab = formats.parsed((folder / "vocab.json").read_bytes())
    lines = [
        line
        for line in formats.text_of((folder / "merges.txt").read_bytes()).split("\n")
        if line and not line.startswith("#version")
    ]
    if any(line.count(" ") != 1 for line in lines) or any(
        type(value) is not int for value in vocab.values()
    ):
        raise InvalidError("merges or ids")
    return _WithIds(vocab, len(lines))


WORD_PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "to",
    "be",
    "or",
    "not",
    "##s",
    ".",
    ",",
    "the",
    "cat",
    "sat",
]


def _of_vocab_txt(folder: Path, name: str) -> object:
    try:
        text = (folder / name).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidError("not text") from None
    words = re.split("\r\n|\r|\n", text)
    vocab = {word: number for number, word in enumerate(words if words[-1] else words[:-1])}
    if "[UNK]" not in vocab:
        raise InvalidError("no [UNK]")
    return _WithIds(vocab, 0)


def _characters(folder: Path) -> object:
    """The tokenizer that a run folder stores."""
    from dnadiff.store.objects import build

    return build(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))).config()


def _template(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
        from dnadiff.design.request import read_patterns

        tokenizer = DNATokenizer() if name.endswith(".fa") else CharTokenizer("".join(WORDS) + "\n")
        return tuple(
            (record, pattern.ids.tolist(), pattern.codes.tolist())
            for record, pattern in read_patterns(str(folder / name), tokenizer, [])
        )

    return read


def _of_template(folder: Path, name: str) -> object:
    code = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
    ids = {1: 7, 2: 8, 4: 9, 8: 10}
    codes = [
        (record, [code[letter] for letter in letters])
        for record, letters in formats.fasta((folder / name).read_bytes())
    ]
    return tuple((record, [ids.get(c, 3) for c in each], each) for record, each in codes)


BOOK = ("\n\n".join(WORDS) + "\n").encode()
TEXTS = (
    Reader(
        "text txt",
        _writes("d.txt", lambda: BOOK),
        {"d.txt": m.TEXT},
        _documents("d.txt"),
        _of_texts,
        3,
        ("book.txt",),
    ),
    Reader(
        "text lines.gz",
        _writes("d.txt.gz", _zipped(lambda: BOOK)),
        {"d.txt.gz": m.compressed(m.TEXT)},
        _documents("d.txt.gz", documents="line"),
        _of_lines,
        3,
        ("book.txt",),
    ),
    Reader(
        "text jsonl",
        _writes("d.jsonl", _jsonl),
        {"d.jsonl": m.JSON_LINES},
        _documents("d.jsonl"),
        lambda folder, name: formats.objects((folder / name).read_bytes(), "text"),
        4,
        ("book.txt",),
    ),
    Reader(
        "text csv",
        _writes(
            "d.csv",
            lambda: (
                "id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(WORDS))
            ).encode(),
        ),
        {"d.csv": m.TABLE},
        _documents("d.csv"),
        _of_rows,
        4,
        ("book.txt",),
    ),
    Reader(
        "text parquet",
        _writes("d.parquet", lambda: _parquet({"text": WORDS})),
        {"d.parquet": m.BYTES},
        _documents("d.parquet"),
        nothing,
        3,
        ("book.txt",),
    ),
    Reader("text arrow", _arrow, {"d.arrow": m.BYTES}, _read_arrow, anything, 1, ("book.txt",)),
    Reader(
        "samples jsonl",
        _writes("d.jsonl", _jsonl),
        {"d.jsonl": m.JSON_LINES},
        _judged("d.jsonl"),
        _spoken,
        2,
        ("samples.jsonl",),
    ),
    Reader(
        "samples txt.gz",
        _writes("d.txt.gz", _zipped(lambda: BOOK)),
        {"d.txt.gz": m.compressed(m.TEXT)},
        _judged("d.txt.gz"),
        _paragraphs,
        2,
        ("samples.jsonl",),
    ),
    Reader(
        "tokenizer.json",
        _tokenizer_folder,
        {
            "k/tokenizer.json": m.JSON,
            "k/tokenizer_config.json": m.JSON,
            "k/special_tokens_map.json": m.JSON,
        },
        _tokenizer("k"),
        _of_tokenizer,
        6,
        ("book.txt",),
        ("work/k",),
    ),
    Reader(
        "vocab.json, merges.txt",
        _pair,
        {"vocab.json": m.JSON, "merges.txt": m.TEXT},
        _tokenizer("vocab.json", "merges.txt"),
        _of_pair,
        4,
        ("book.txt",),
    ),
    Reader(
        "vocab.txt",
        _writes("vocab.txt", ("\n".join(WORD_PIECES) + "\n").encode),
        {"vocab.txt": m.TEXT},
        _tokenizer("vocab.txt"),
        _of_vocab_txt,
        2,
        ("book.txt",),
    ),
    Reader(
        "template fasta",
        _writes("t.fa", lambda: FASTA[:400]),
        {"t.fa": m.TEXT},
        _template("t.fa"),
        _of_template,
        2,
        ("template",),
    ),
    Reader(
        "template text",
        _writes("t.txt", lambda: b"the cat[MASK*3]\na dog[MASK]1\n"),
        {"t.txt": m.TEXT},
        _template("t.txt"),
        anything,
        1,
        ("template",),
    ),
)

# Published models


def _small(backbone: str, vocab: object) -> object:
    import torch

    from dnadiff.diffusion.denoiser import Denoiser
    from dnadiff.options.command import compose
    from dnadiff.store.objects import build

    torch.manual_seed(0)
    sizes = (
        "backbone.d_model=16",
        "backbone.n_layers=1",
        *(["backbone.n_heads=2"] if backbone == "dit" else []),
    )
    config = compose("train", ["data=ecoli", f"backbone={backbone}", *sizes], resolve=True)[
        "backbone"
    ]
    return Denoiser(
        build(
            {**config, "time_conditioning": False} if "time_conditioning" in config else config,
            vocab=vocab,
        )
    )


def _published(backbone: str) -> Make:
    def make(folder: Path) -> None:
        from dnadiff.data.tokenizer import DNATokenizer
        from dnadiff.diffusion.vocab import Vocab
        from dnadiff.weights.published import export_published

        vocab = (
            DNATokenizer().vocab
            if backbone != "dit"
            else Vocab(size=14, mask_id=13, pad_id=13, never_emitted=(13,))
        )
        export_published(_small(backbone, vocab), folder / "p")

    return make


def _gpt2(folder: Path) -> None:
    import torch
    from safetensors.torch import save

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 20,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 32,
        "bos_token_id": 19,
    }
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        **sizes,
    }
    from dnadiff.store.objects import build

    network = build(gpt2_backbone(config), vocab=_gpt2_vocab())
    tensors = {
        names[0]: tensor.contiguous().clone()
        for tensor, names in network.published_layout().weights
    }
    _write(folder / "p" / "config.json", json.dumps(config).encode())
    _write(folder / "p" / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def _gpt2_vocab() -> object:
    from dnadiff.diffusion.vocab import Vocab

    return Vocab(size=22, mask_id=20, pad_id=21, never_emitted=(20, 21))


def _digest(denoiser: object) -> str:
    from dnadiff.supervised.saved import weights_digest

    return weights_digest(denoiser.backbone)


def _read_published(folder: Path) -> object:

    return _digest(published.read(folder / "p").denoiser)


def _read_gpt2(folder: Path) -> object:

    return _digest(published.load_gpt2(folder / "p", _gpt2_vocab()))


def _of_published(folder: Path, name: str) -> object:
    formats.safetensors((folder / "p" / "model.safetensors").read_bytes())
    formats.parsed((folder / "p" / "config.json").read_bytes())
    return Anything()  # values of weights and of most keys are not protected by the format


def _bin(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    _published("caduceus")(folder)
    torch.save(load_file(folder / "p" / "model.safetensors"), folder / "p" / "pytorch_model.bin")
    (folder / "p" / "model.safetensors").unlink()


def _exported(folder: Path) -> None:
    from dnadiff.export import export

    if not (RUNS / "exported").is_dir():
        export(checkpoint=f"{RUNS}/dna", output=f"{RUNS}/exported")
    shutil.copytree(RUNS / "exported", folder / "p")


def _read_exported(folder: Path) -> object:
    from dnadiff.weights import checkpoint

    loaded = checkpoint.load(folder / "p")
    about = json.dumps(
        [loaded.config, loaded.origin.likelihood, loaded.origin.data], sort_keys=True, default=str
    )
    return _digest(loaded.denoiser), about, loaded.tokenizer.config(), loaded.step, loaded.labels


def _read_card(folder: Path) -> object:
    from dnadiff.weights.published import license_in

    return license_in(folder / "README.md")


CARD = (
    b"---\nlibrary_name: dnadiff\nlicense: apache-2.0\ntags: [dna]\n---\n\n# Model\n\nlicense: "
    b"mit\n"
)
_FOLDER = {"p/config.json": m.JSON, "p/model.safetensors": m.SAFETENSORS}
_NAMES = ("config.json", "model.safetensors", "pytorch_model.bin")
PUBLISHED = (
    Reader(
        "published Caduceus",
        _published("caduceus"),
        _FOLDER,
        _read_published,
        _of_published,
        3,
        ("dna",),
        _NAMES,
    ),
    Reader(
        "published MDLM",
        _published("dit"),
        _FOLDER,
        _read_published,
        _of_published,
        3,
        ("text",),
        _NAMES,
    ),
    Reader("GPT-2 folder", _gpt2, _FOLDER, _read_gpt2, _of_published, 3, ("ar",), _NAMES),
    Reader(
        "exported folder",
        _exported,
        {"p/dnadiff.json": m.JSON, **_FOLDER},
        _read_exported,
        nothing,
        4,
        ("dna", "text", "export", "info"),
        (*_NAMES, "dnadiff.json", "work/p"),
    ),
    Reader(
        "model card",
        _writes("README.md", lambda: CARD),
        {"README.md": m.TEXT},
        _read_card,
        anything,
        1,
        ("dna", "info"),
    ),
    Reader(
        "pytorch_model.bin",
        _bin,
        {"p/pytorch_model.bin": [*m.BYTES, m.forged_entry]},
        _read_published,
        nothing,
        2,
        ("dna",),
        _NAMES,
    ),
)

# Run folders


def train_runs() -> None:
    """A short run on DNA and one on text in the folder `RUNS`, with an evaluation."""
    import cases

    RUNS.mkdir()
    (RUNS / "g.fa").write_bytes(_fasta({"one": "ACGTTGCA" * 200, "two": "AACCTGG" * 120}))
    (RUNS / "d.txt").write_text("the cat sat on a mat and saw one small red bird\n" * 40)
    small = (
        *cases.SMALL_RUN,
        *cases.SMALL_NETWORK,
        "trainer.max_steps=2",
        "data.max_valid_windows=2",
        "callbacks.checkpoints.every_n_steps=1",
    )
    for kind, data in (
        ("dna", ("data=fasta", f"data.path={RUNS}/g.fa")),
        ("text", ("data=text", f"data.path={RUNS}/d.txt")),
    ):
        if cases.start("train", [*data, *small, f"hydra.run.dir={RUNS}/{kind}"]):
            raise RuntimeError(f"training of {kind} failed")
    run = RUNS / "dna"
    arguments = [
        f"checkpoint={run}",
        f"output={run}/evaluate.json",
        "num_draws=2",
        "orders=[0]",
        "accelerator=cpu",
        f"hydra.run.dir={RUNS}/eval",
    ]
    (RUNS / "s.fa").write_bytes(_fasta({f"s{n}": "ACGTTGCAAC" * 3 for n in range(4)}))
    compress = [
        f"checkpoint={run}",
        f"input={RUNS}/s.fa",
        f"output={RUNS}/s.dnd",
        "num_groups=2",
        "threads=1",
        f"hydra.run.dir={RUNS}/compress",
    ]
    if cases.start("evaluate", arguments) or cases.start("compress", compress):
        raise RuntimeError("evaluate or compress failed")


def _run(kind: str) -> Make:
    return lambda folder: shutil.copytree(RUNS / kind, folder / "run")


def _checkpoint(folder: Path) -> object:
    from dnadiff.weights import checkpoint

    loaded = checkpoint.load(folder / "run")
    return (
        _digest(loaded.denoiser),
        json.dumps(loaded.config, sort_keys=True, default=str),
        loaded.tokenizer.config(),
        loaded.step,
        loaded.labels,
    )


@lru_cache
def _data() -> object:
    import yaml

    from dnadiff.store.objects import build

    config = yaml.safe_load((RUNS / "dna" / "config.yaml").read_text())
    return config, build(config["data"], trust=None)


def _unfinished(folder: Path) -> None:
    _run("dna")(folder)
    (folder / "run" / "metrics.json").unlink()


def _resume(folder: Path) -> object:
    """What `train resume=true` reads before it starts."""
    from types import SimpleNamespace

    from dnadiff.training import run

    config, data = _data()
    config = {**config, "trainer": {**config["trainer"], "max_steps": 2}}
    found, trainer = (
        run.resumable(config, folder / "new"),
        SimpleNamespace(max_steps=4, max_epochs=-1),
    )
    return None if found is None else (found.name, run.resume_step(found, config, data, trainer, 1))


def _of_resume(folder: Path, name: str) -> object:
    if name.endswith(".yaml"):
        return None  # a run of another, or of no known, configuration: not one to resume
    raise InvalidError("the checksum differs")


def _metrics(folder: Path) -> object:
    """What a resumed run reads of the log, and a report."""
    from dnadiff.report.run import read_metrics
    from dnadiff.training.loggers import MetricsFile

    log = MetricsFile(folder / "run")
    log.begin(None, 2)
    read_metrics(folder / "run" / "metrics.csv")
    return tuple(tuple(row.items()) for row in log.rows())


def _of_metrics(folder: Path, name: str) -> object:
    import csv
    import io

    text = formats.ended_lines(formats.text_of((folder / name).read_bytes()))
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
        if any(len(row) != len(rows[0]) for row in rows):
            raise InvalidError("fields")
        numbers = [[float(cell) if cell.strip() else 0.0 for cell in row] for row in rows[1:]]
    except (csv.Error, ValueError, IndexError) as error:
        raise InvalidError(str(error)) from None
    if not rows or not {"step", "seconds"} <= {*rows[0]}:
        raise InvalidError("no steps")
    step = rows[0].index("step")
    return tuple(
        tuple(zip(rows[0], row)) for row, number in zip(rows[1:], numbers) if number[step] <= 2
    )


def _curve(folder: Path) -> object:
    from dnadiff.diffusion.likelihood.curve import StoredCurve

    return tuple(
        sorted(
            StoredCurve(folder / "run" / "checkpoints" / "best.ckpt", 2).groups(32).items(), key=str
        )
    )


def _of_curve(folder: Path, name: str) -> object:
    formats.parsed((folder / name).read_bytes())
    return Anything()


@lru_cache
def _command(name: str, *overrides: str) -> dict[str, object]:
    from dnadiff.options.command import compose

    return compose(name, overrides)


def _dnd(folder: Path) -> None:
    _run("dna")(folder)
    shutil.copy(RUNS / "s.dnd", folder / "s.dnd")


def _decompress(folder: Path) -> object:
    from dnadiff.genomics.compression.coding import decompress

    decompress(f"{folder}/s.dnd", folder / "s.fa", f"{folder}/run")
    return (folder / "s.fa").read_bytes()


# Files that the package loads back


def _packed(folder: Path) -> None:
    _write(folder / "g.fa", FASTA)
    with _cache_in(folder):
        _read_packed(folder)


def _read_packed(folder: Path) -> object:
    from dnadiff.data.genome.genome import Genome

    genome = Genome.open(folder / "g.fa")
    return _genome("g.fa")(folder), genome.n_runs.starts.tolist() if hasattr(
        genome.n_runs, "starts"
    ) else str(vars(genome.n_runs))


@contextlib.contextmanager
def _cache_in(folder: Path) -> object:
    before = os.environ.get("DNADIFF_CACHE")
    os.environ["DNADIFF_CACHE"] = str(folder / CACHE)
    yield
    if before is not None:
        os.environ["DNADIFF_CACHE"] = before


def _tokenized(folder: Path) -> None:
    _write(folder / "d.txt", BOOK)
    with _cache_in(folder):
        _read_tokenized(folder)


def _read_tokenized(folder: Path) -> object:
    from dnadiff.data.text.corpus import Encoder, Files, tokenize
    from dnadiff.data.tokenizer import CharTokenizer

    encoder = Encoder(CharTokenizer(BOOK.decode()), None, None)
    found = tokenize(Files(str(folder / "d.txt"), "line"), encoder, "d.txt", 1)
    return found.tokens.tolist(), found.ends.tolist()


SETTINGS = {
    "num_samples": 6,
    "seed": 1,
    "sampler": {"_target_": "dnadiff.diffusion.sampler.grouped.Grouped", "num_groups": 4},
}


def _sample_files(folder: Path) -> None:
    from dnadiff.jobs.journal import head_of, json_path
    from dnadiff.store.disk import write_json

    _write(folder / "s.fa", FASTA)
    head = head_of(folder / "s.fa")
    write_json(json_path(folder / "s.fa"), head | {"records": 4, "settings": SETTINGS, "seed": 1})


def _is_complete(folder: Path) -> object:
    from dnadiff.jobs.journal import is_complete

    return is_complete(folder / "s.fa", SETTINGS)


def _not_complete(folder: Path, name: str) -> object:
    return False


def _unfinished_samples(folder: Path) -> None:
    from dnadiff.jobs.journal import ResumableOutput

    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("", ".gz"):
        output = ResumableOutput(folder / f"s.fa{suffix}", SETTINGS)
        for n in range(3):
            output.append(f">s{n}\nACGTTGCA\n".encode() * 9, 2, nfe=n, gc=[1, 2])
        output.close()


def _shards(folder: Path) -> None:
    """Two shards of a job that computes nothing."""
    from dnadiff.jobs.runner import RunOptions, run_jobs
    from dnadiff.jobs.shards import Shard

    for number in (1, 2):
        run_jobs([_letters(folder)], RunOptions("sample", ["seed=1"], shard=Shard(number, 2)))


def _letters(folder: Path) -> Job:
    from dnadiff.jobs.job import Result, ResumableJob

    class Letters(ResumableJob):
        stream = label = "samples"
        output, settings = folder / "s.fa", SETTINGS

        def starts(self) -> list[int]:
            return list(range(9))

        def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
            for number in range(start + skip, 8):
                yield Result(1, b">s%d\nACGT\n" % number * 9, {"nfe": number})

    return Letters()


def _merge(folder: Path) -> object:
    from dnadiff.jobs.shards import ShardFolder

    shards = ShardFolder.of(folder / "s.fa")
    manifest = shards.check_complete()
    shards.environments(manifest)
    found = [
        (result.items, result.content, dict(result.about))
        for result in shards.results(manifest, "samples")
    ]
    return found, manifest.streams["samples"].settings, manifest.overrides


def _resume_samples(folder: Path) -> object:
    from dnadiff.jobs.journal import ResumableOutput

    found = []
    for suffix in ("", ".gz"):
        output = ResumableOutput(folder / f"s.fa{suffix}", SETTINGS, resume=True)
        output.append(b">new\nACGT\n", 1, nfe=9)
        output.finish()
        try:
            found.append((output.done, formats.content_of(folder / f"s.fa{suffix}")))
        except InvalidError as error:
            found.append((output.done, str(error).encode()))
    return found


def _of_journal(folder: Path, name: str) -> object:
    raise InvalidError("the journal or the batches were changed")


def _results(folder: Path) -> None:
    import torch

    from dnadiff.supervised.items import Prediction
    from dnadiff.supervised.saved import COLUMNS, append_row, save_prediction

    labels = torch.arange(6) % 2
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(3):
        prediction = Prediction(
            torch.log_softmax(torch.arange(12.0).reshape(6, 2) * n, -1), 1.5, [{"epochs": n}]
        )
        save_prediction(
            folder / f"m-s{n}-0123456789a{n}.npz", prediction, labels, {"model": "m", "seed": n}
        )
        row = dict.fromkeys(COLUMNS, "0.5") | {
            "task": "t",
            "model": 'm, "x"',
            "seed": n,
            "digest": f"0123456789a{n}",
        }
        append_row(folder / "results.csv", row, COLUMNS)
    _write(folder / "results.json", json.dumps({"other": {"seeds": [1], "models": {}}}).encode())


def _prediction(folder: Path) -> object:
    from dnadiff.supervised.saved import load_prediction

    prediction, labels = load_prediction(folder / "m-s1-0123456789a1.npz")
    return prediction.predictions.tolist(), prediction.seconds, prediction.fit_info, labels.tolist()


def _result_rows(folder: Path) -> object:
    import csv

    from dnadiff.supervised.saved import COLUMNS, append_row, listed_digests

    listed = listed_digests(folder / "results.csv")
    append_row(
        folder / "results.csv",
        dict.fromkeys(COLUMNS, "0.7") | {"digest": "new"},
        (*COLUMNS, "more"),
    )
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, strict=True))
    return listed, [row for row in rows if any(row)]


def _of_result_rows(folder: Path, name: str) -> object:
    import csv
    import io

    from dnadiff.supervised.saved import COLUMNS

    try:
        rows = [
            row
            for row in csv.reader(
                io.StringIO((folder / name).read_text(encoding="utf-8"), newline=None), strict=True
            )
            if row
        ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidError(str(error)) from None
    if (
        len(rows) > 1
        and len(rows[-1]) < len(rows[0])
        and not (folder / name).read_bytes().endswith((b"\n", b"\r"))
    ):
        rows.pop()
    if any(len(row) != len(rows[0]) for row in rows) or (rows and "digest" not in rows[0]):
        raise InvalidError("fields")
    if not rows:
        return set(), [
            [*COLUMNS, "more"],
            [*("new" if name == "digest" else "0.7" for name in COLUMNS), ""],
        ]
    header = [*rows[0], *(name for name in (*COLUMNS, "more") if name not in rows[0])]
    new = dict.fromkeys(COLUMNS, "0.7") | {"digest": "new"}
    wider = [[*row, *[""] * (len(header) - len(row))] for row in rows[1:]]
    return {row[rows[0].index("digest")] for row in rows[1:]}, [
        header,
        *wider,
        [new.get(name, "") for name in header],
    ]


def _summary(folder: Path) -> object:
    from dnadiff.supervised.saved import ResultsFolder

    ResultsFolder(folder, {"checkpoint": "x"}, {"dnadiff": "1"}).write_summary(
        "new", {"seeds": [1]}
    )
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def _of_summary(folder: Path, name: str) -> object:
    return formats.finite(
        formats.parsed((folder / name).read_bytes()) | {"new": {"checkpoint": "x", "seeds": [1]}}
    )


def _classifier(folder: Path) -> None:
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.networks.backbone.dit import DiT
    from dnadiff.supervised import saved
    from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, build_classifier
    from dnadiff.supervised.saved import write_weights

    tokenizer = DNATokenizer()
    network = {"d_model": 16, "n_layers": 1, "n_heads": 2, "cond_dim": 8, "max_length": 40}
    for seed in (1, 2):
        weights = write_weights(
            folder / f"{seed}.safetensors",
            build_classifier(
                DiT(tokenizer.vocab, **network), MEAN_HEAD, HeadInputs(), 2, 40, stranded=True
            ),
        )
        about = {
            "name": "fine-tuned",
            "classes": ["a", "b"],
            "stranded": True,
            "layer": None,
            "network": {"_target_": "dnadiff.networks.backbone.dit.DiT", **network},
            "tokenizer": tokenizer.config(),
            "task": {"name": "t", "longest": 40},
            "pretrained": {"checkpoint": "x", "step": 1},
            "batch_size": 4,
            "metrics": {"accuracy": 0.5},
            "settings": {"head": "mean"},
            "seeds": [1, 2],
        }
        saved.save(folder / "models", seed, weights, about)
        weights.path.unlink()


def _read_classifier(folder: Path) -> object:
    from dnadiff.supervised import ensemble

    model = ensemble.load(folder)
    return (
        model.classes,
        model.seeds,
        [_network_digest(member.classifier) for member in model.members],
        model.batch_size,
    )


def _network_digest(network: object) -> str:
    from dnadiff.supervised.saved import weights_digest

    return weights_digest(network)


def _scores(folder: Path) -> None:
    import numpy as np

    from dnadiff.genomics.held_out import Scores

    folder.mkdir(parents=True, exist_ok=True)
    values = {"all": np.arange(6.0), "novel": np.arange(6.0)[::-1]}
    Scores(
        np.arange(18).reshape(6, 3), values, {name: np.full(6, 9) for name in values}, 2, "abc"
    ).save(folder / "w.npz")


def _read_scores(folder: Path) -> object:
    from dnadiff.genomics.held_out import Scores

    found = Scores.load(folder / "w.npz")
    found.minus(found)
    return (
        found.windows.tolist(),
        {k: v.tolist() for k, v in found.nats.items()},
        {k: v.tolist() for k, v in found.tokens.items()},
        found.data,
    )


STORED = (
    Reader(
        "checkpoint",
        _run("dna"),
        {"run/checkpoints/best.ckpt": m.CHECKPOINT},
        _checkpoint,
        nothing,
        6,
        ("dna", "ar"),
    ),
    Reader(
        "checkpoint of text",
        _run("text"),
        {"run/checkpoints/best.ckpt": m.CHECKPOINT},
        _checkpoint,
        nothing,
        4,
        ("text", "ar"),
    ),
    Reader(
        "resume",
        _unfinished,
        {"run/config.yaml": m.YAML, "run/checkpoints/last.ckpt": m.CHECKPOINT},
        _resume,
        _of_resume,
        6,
        ("resume=true",),
    ),
    Reader(
        "metrics.csv",
        _run("dna"),
        {"run/metrics.csv": m.TABLE},
        _metrics,
        _of_metrics,
        4,
        ("resume=true",),
    ),
    Reader(
        "evaluate.json",
        _run("dna"),
        {"run/evaluate.json": m.JSON},
        _curve,
        _of_curve,
        4,
        ("sample",),
    ),
    Reader("dnd", _dnd, {"s.dnd": m.DND}, _decompress, nothing, 5, ("samples.dnd",)),
    Reader(
        "genome cache",
        _packed,
        {"cache/genomes/*/*": [*m.BYTES, m.number]},
        _read_packed,
        nothing,
        4,
        ("genome.fa.gz",),
    ),
    Reader(
        "token cache",
        _tokenized,
        {"cache/texts/*/*": [*m.BYTES, m.number]},
        _read_tokenized,
        nothing,
        4,
        ("book.txt",),
    ),
    Reader(
        "sample sidecar",
        _sample_files,
        {"s.fa.json": m.JSON, "s.fa": m.TEXT},
        _is_complete,
        _not_complete,
        3,
        ("sample",),
    ),
    Reader(
        "sample journal",
        _unfinished_samples,
        {
            ".s.fa.journal": m.JSON,
            ".s.fa.gz.journal": m.JSON,
            ".s.fa.part": m.BYTES,
            ".s.fa.gz.part": m.BYTES,
        },
        _resume_samples,
        _of_journal,
        4,
        ("sample", "predict", "score"),
        (".s.fa.part", ".s.fa.gz.part", ".s.fa.journal", ".s.fa.gz.journal"),
    ),
    Reader(
        "shards",
        _shards,
        {
            "s.fa.shards/manifest.json": m.JSON,
            "s.fa.shards/*.json": m.JSON,
            "s.fa.shards/*.part": m.BYTES,
        },
        _merge,
        nothing,
        4,
        ("shards",),
    ),
    Reader(
        "predictions",
        _results,
        {"m-s1-0123456789a1.npz": m.ARRAYS},
        _prediction,
        nothing,
        3,
        ("finetune",),
    ),
    Reader(
        "results.csv",
        _results,
        {"results.csv": m.TABLE},
        _result_rows,
        _of_result_rows,
        3,
        ("finetune",),
    ),
    Reader(
        "results.json", _results, {"results.json": m.JSON}, _summary, _of_summary, 3, ("finetune",)
    ),
    Reader(
        "saved classifier",
        _classifier,
        {"models/*/model.json": m.JSON, "models/*/model.safetensors": m.SAFETENSORS},
        _read_classifier,
        nothing,
        4,
        ("classifier",),
        ("model.json", "model.safetensors"),
    ),
    Reader("windows npz", _scores, {"w.npz": m.ARRAYS}, _read_scores, nothing, 2, ("evaluate",)),
)
READERS = {
    reader.name: reader for reader in (*GENOMES, *VARIANTS, *LABELED, *TEXTS, *PUBLISHED, *STORED)
}


def readers_of(command: str) -> list[str]:
    """The readers of the files that a command reads: those of its inputs in `cases`, and of its own
    results that it loads back."""
    import cases

    read = {command}
    for case in cases.CASES:
        if case.command == command:
            read |= {
                *case.inputs,
                *case.resume,
                *(key.partition("=")[0] for key in case.arguments if key.startswith("template=")),
            }
    return [name for name, reader in READERS.items() if read & {*reader.command_files}]


def unread_inputs() -> list[str]:
    """Inputs of cases that no reader stands for."""
    import cases

    known = {name for reader in READERS.values() for name in reader.command_files}
    return sorted({name for case in cases.CASES for name in case.inputs} - known)
