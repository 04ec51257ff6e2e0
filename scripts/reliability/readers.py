"""Every reader of a file that a user gives, and of every file that the package loads back, on tiny
files.

A `Reader` writes undamaged files, reads them through the function that the commands call, and
states what a damaged file may be read as (`formats`).
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import formats
import mutations as m
from formats import Anything, InvalidError

RUNS, CACHE = Path("runs"), "cache"
ALL = ("", "", *m.PACKS)
GZIP = ("", "", ".gz", ".bgz")
Read = Callable[[Path, Path], object]  # of a folder, and of the damaged file in it


def nothing(folder: Path, path: Path) -> object:
    """The rule of a format with checksums: no damaged file may be read, unless as what it was."""
    raise InvalidError("the checksum differs")


def anything(folder: Path, path: Path) -> object:
    """The rule of a format in which nothing can be detected."""
    return Anything()


class Reader(NamedTuple):
    """One way to read files.

    Args:
        name: of the reader.
        make: writes undamaged files into a folder.
        files: the files that are damaged (patterns), each with its kinds of damage.
        read: the content of the folder, comparable by `==`.
        expected: what a damaged file may be read as; raises `InvalidError` if it is not a complete
            file of its format.
        packs: how the files may be compressed.
        names: words that an error may have instead of the name of the file.
    """

    name: str
    make: Callable[[Path], object]
    files: Mapping[str, Sequence[m.Mutation]]
    read: Read
    expected: Read = nothing
    packs: Sequence[str] = ("",)
    names: tuple[str, ...] = ()


def reader(
    name: str,
    file: str,
    content: bytes | Callable[[], bytes],
    kind: Sequence[m.Mutation],
    read: Callable[[Path], object],
    expected: Callable[[Path], object] | Read = nothing,
    packs: Sequence[str] = ("",),
) -> Reader:
    """A reader of one file."""

    def make(folder: Path) -> None:
        write(folder / file, content if isinstance(content, bytes) else content())

    rule = expected if expected in (nothing, anything) else lambda _, path: expected(path)
    return Reader(name, make, {file: kind}, lambda _, path: read(path), rule, packs)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# Genomes, regions and variants

CHANCE = random.Random(1)
ONE, TWO, THREE = ("".join(CHANCE.choices("AAACCGGTTT", k=size)) for size in (900, 420, 61))
RECORDS = {"one": ONE, "two": TWO[:90] + TWO[90:150].lower() + "N" * 40 + TWO[190:], "3": THREE}
LENGTHS = {name: len(letters) for name, letters in RECORDS.items()}


def fasta(records: Mapping[str, str]) -> bytes:
    lines = (f">{n} some words\n" + re.sub("(.{60})(?=.)", r"\1\n", s) for n, s in records.items())
    return ("\n".join(lines) + "\n").encode()


FASTA = fasta(RECORDS | {"codes": "ACGURYKMSWBDHVNacgtn"})
PLACES = [(chrom, start) for chrom in ("one", "two") for start in range(0, 300, 37)]
BED = "".join(f"{c}\t{s}\t{s + 20}\tname{s}\t0\t{'+-.'[s % 3]}\n" for c, s in PLACES)
GTF = "".join(
    f'{c}\tmade\tCDS\t{s + 1}\t{s + 20}\t.\t{"+-"[s % 2]}\t0\tgene_id "g{s}";\n' for c, s in PLACES
)
GFF = f"##gff-version 3\n{GTF}##FASTA\n".encode() + FASTA
VCF = "##fileformat=VCFv4.2\n" + "".join(
    f"##contig=<ID={n},length={k}>\n" for n, k in LENGTHS.items()
)
VCF += "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
VCF += "".join(f"{c}\t{s + 1}\tv{s}\tA\tC,<DEL>\t.\tPASS\t.\n" for c, s in PLACES)
VARIANTS = "chrom\tpos\tref\talt\n" + "".join(f"{c}\t{s + 1}\tA\tC\n" for c, s in PLACES)
JASPAR = b">MA1.1 one\nA [ 3 0 1 ]\nC [ 1 2.5 0 ]\nG [ 0 1 9 ]\nT [ 0 0 1e1 ]\n"


def twobit() -> bytes:
    def block(pairs: Sequence[tuple[int, int]]) -> bytes:
        return struct.pack(f"<{1 + 2 * len(pairs)}I", len(pairs), *sum(zip(*pairs), ()))

    index, body, size = b"", b"", 16 + sum(5 + len(name) for name in RECORDS)
    for name, letters in RECORDS.items():
        index += bytes([len(name)]) + name.encode() + struct.pack("<I", size + len(body))
        codes = ["TCAGN".index(letter) % 4 for letter in letters.upper() + "T" * 3]
        quads = zip(*(codes[k::4] for k in range(4)))
        packed = bytes(a << 6 | b << 4 | c << 2 | d for a, b, c, d in quads)[
            : -(-len(letters) // 4)
        ]
        is_two = name == "two"
        body += struct.pack("<I", len(letters)) + block([(150, 40)] * is_two)
        body += block([(90, 60)] * is_two) + bytes(4) + packed
    return struct.pack("<4I", 0x1A412743, 0, len(RECORDS), 0) + index + body


def genbank() -> bytes:
    text = ""
    for name, letters in RECORDS.items():
        text += (
            f"LOCUS       {name} {len(letters)} bp DNA linear UNK 01-JAN-2020\nDEFINITION  made.\n"
        )
        text += (
            f"ACCESSION   acc{name}\nVERSION     acc{name}.1\nFEATURES\n     gene   4..30\nORIGIN\n"
        )
        for start in range(0, len(letters), 60):
            groups = re.findall(".{1,10}", letters[start : start + 60])
            text += f"{start + 1:9} {' '.join(groups)}\n"
        text += "//\n"
    return text.encode()


def bcf() -> bytes:
    from pysam import bcftools

    Path("v.vcf").write_text(VCF)
    bcftools.view("-Ob", "-o", "v.bcf", "v.vcf", catch_stdout=False)
    return Path("v.bcf").read_bytes()


def genome(path: Path) -> object:
    from dnadiff.data.genome.genome import Genome

    found = Genome(path)
    letters = bytes.maketrans(bytes(range(7, 12)), b"ACGTN")
    codes = [(found.records.packed(i) & 127).tobytes() for i in range(len(found.names))]
    return tuple((n, c.translate(letters).decode("latin-1")) for n, c in zip(found.names, codes))


def sequences(path: Path) -> object:
    from dnadiff.formats.sequences import read_sequences

    return tuple((r.name, r.sequence.decode().upper()) for r in read_sequences(path)), genome(path)


def regions(path: Path) -> object:
    from dnadiff.formats.regions import read_regions

    return tuple((r.chrom, r.start, r.end, r.strand) for r in read_regions(path, LENGTHS))


def variants(path: Path) -> object:
    from dnadiff.formats.regions import open_source

    return tuple((r.chrom, str(r.pos), r.id, r.ref, ",".join(r.alts)) for r in open_source(path))


def matrix(path: Path) -> object:
    from dnadiff.design.reward import read_jaspar

    return read_jaspar(path).tolist()


def manifest(folder: Path) -> None:
    for name in "ab":
        write(folder / f"{name}.fa", FASTA)
    write(folder / "m.tsv", b"path\tlabel\tweight\na.fa\tx\t1\nb.fa\ty\t2.5\n")


def read_manifest(folder: Path, path: Path) -> object:
    from dnadiff.data.genome.genome import read_manifest

    rows = read_manifest(str(path))
    return tuple((Path(row.path).name, row.label, row.weight) for row in rows)


GENOMES = (
    reader(
        "FASTA",
        "s.fa",
        FASTA,
        m.TEXT,
        sequences,
        lambda path: (formats.fasta(path), formats.as_genome(formats.fasta(path))),
        ALL,
    ),
    reader("2bit", "g.2bit", twobit, m.BYTES, genome, formats.twobit, ("", "", "", ".gz", ".xz")),
    reader(
        "GenBank",
        "g.gb",
        genbank,
        m.TEXT,
        lambda path: tuple(s for _, s in genome(path)),
        formats.genbank,
        GZIP,
    ),
    reader(
        "BED",
        "r.bed",
        BED.encode(),
        m.TABLE,
        regions,
        lambda path: formats.regions(path, LENGTHS),
        GZIP,
    ),
    reader(
        "GTF",
        "r.gtf",
        GTF.encode(),
        m.TABLE,
        regions,
        lambda path: formats.regions(path, LENGTHS, gff=True),
        GZIP,
    ),
    reader(
        "GFF3",
        "r.gff3",
        GFF,
        m.TABLE,
        regions,
        lambda path: formats.regions(path, LENGTHS, gff=True),
        GZIP,
    ),
    reader("VCF", "v.vcf", VCF.encode(), m.TABLE, variants, formats.vcf, GZIP),
    reader("BCF", "v.bcf", bcf, m.BCF, variants),
    reader("variants table", "v.tsv", VARIANTS.encode(), m.TABLE, variants, formats.variants, GZIP),
    reader("JASPAR", "m.jaspar", JASPAR, m.TABLE, matrix, formats.jaspar, GZIP),
    Reader("manifest", manifest, {"m.tsv": m.TABLE}, read_manifest, anything),
)

# Labeled sequences

ROWS = [("".join(CHANCE.choices("ACGT", k=20)), "say " + "ab"[n % 2]) for n in range(30)]
LABELS = '"number",sequence,label\n' + "".join(f'{n},{s},"{b}"\n' for n, (s, b) in enumerate(ROWS))
METADATA = b"version: 0\nclasses:\n  a: {type: fa.gz, url: x}\n  b: {type: fa.gz, url: y}\n"


def parquet(columns: Mapping[str, Sequence[str]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink, table = pyarrow.BufferOutputStream(), pyarrow.table(columns)
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True, row_group_size=16)
    return sink.getvalue().to_pybytes()


def labeled(name: str, *arguments: str) -> object:
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.supervised import tasks

    tokenizer = DNATokenizer()
    found = vars(tasks)[name](*arguments).read(tokenizer)
    rows = zip(found.sequences, found.labels, found.parts)
    return sorted((tokenizer.decode(ids), label, part) for ids, label, part in rows)


def labels(path: Path) -> object:
    return labeled("CsvTask", str(path))


def of_table(delimiter: str) -> Callable[[Path], object]:
    def expected(path: Path) -> object:
        found = formats.cells(path, ("sequence", "label"), delimiter)
        return sorted((as_genome(letters), label.strip(), "train") for letters, label in found)

    return expected


def as_genome(text: str) -> str:
    letters = text.strip().upper()
    formats.check(letters and formats.LETTERS.fullmatch(letters), "no nucleotide")
    return formats.as_genome((("", letters),))[0][1]


def class_folders(folder: Path) -> None:
    for part, label, n in ((p, b, n) for p in ("train", "test") for b in "ab" for n in range(3)):
        text = "".join(CHANCE.choices("ACGT", k=40)) + "\n"
        write(folder / "t" / part / label / f"{n}.txt", text.encode())


def of_folders(folder: Path, path: Path) -> object:
    files = sorted((folder / "t").rglob("*.txt"))
    texts = ("".join(formats.text_of(file.read_bytes()).split()) for file in files)
    return sorted(
        (as_genome(text), file.parent.name, file.parents[1].name)
        for file, text in zip(files, texts)
    )


def intervals(folder: Path) -> None:
    write(folder / "g.fa", FASTA)
    write(folder / "t" / "metadata.yaml", METADATA)
    for part, label, first, step in zip(
        ("train", "train", "test"), "aba", (0, 3, 200), (31, 43, 31)
    ):
        places = (first + i * step for i in range(8))
        rows = (f"{i},one,{start},{start + 25},{'+-'[i % 2]}\n" for i, start in enumerate(places))
        text = "id,region,start,end,strand\n" + "".join(rows)
        write(folder / "t" / part / f"{label}.csv.gz", m.PACKS[".gz"](text.encode()))
    shutil.copy(folder / "t/test/a.csv.gz", folder / "t/test/b.csv.gz")


def of_intervals(folder: Path, path: Path) -> object:
    if path.suffix == ".yaml":
        return Anything()
    records, found = dict(formats.as_genome(formats.fasta(folder / "g.fa"))), []
    for file in sorted((folder / "t").rglob("*.csv.gz")):
        for chrom, *ends, strand in formats.cells(file, ("region", "start", "end", "strand")):
            (start, end), strand, chrom = map(formats.integer, ends), strand.strip(), chrom.strip()
            letters = records.get(chrom, records.get(chrom.removeprefix("chr"), ""))
            formats.check(0 <= start < end <= len(letters) and strand in [*"+-."], "interval")
            letters = letters[start:end]
            if strand == "-":
                letters = letters.translate(str.maketrans("ACGTN", "TGCAN"))[::-1]
            found.append((letters, file.name.removesuffix(".csv.gz"), file.parent.name))
    return sorted(found)


TASKS = (
    reader("labels CSV", "l.csv", LABELS.encode(), m.TABLE, labels, of_table(","), ALL),
    reader(
        "labels TSV",
        "l.tsv",
        LABELS.replace(",", "\t").encode(),
        m.TABLE,
        labels,
        of_table("\t"),
        GZIP,
    ),
    reader(
        "labels Parquet",
        "l.parquet",
        lambda: parquet(dict(zip(("sequence", "label"), zip(*ROWS)))),
        m.BYTES,
        labels,
    ),
    Reader(
        "class folders",
        class_folders,
        {"t/*/*/*.txt": m.TEXT},
        lambda folder, _: labeled("GenomicBenchmark", str(folder / "t")),
        of_folders,
    ),
    Reader(
        "intervals",
        intervals,
        {
            "t/*/*.csv.gz": [*m.BYTES, m.members, m.bomb, *map(m.inside, m.TABLE)],
            "t/metadata.yaml": m.YAML,
        },
        lambda folder, _: labeled("GenomicBenchmark", str(folder / "t"), "t", str(folder / "g.fa")),
        of_intervals,
        names=("metadata.yaml", "/damaged/t "),
    ),
)

# Texts and tokenizers

WORDS = [
    f"{w}{n}" for n in range(12) for w in ("the cat", "a dog", "one \u00fc bird", "that, tree")
]
BOOK = ("\n\n".join(WORDS) + "\n").encode()
JSONL = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(WORDS)).encode()
TEXT_ROWS = "id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(WORDS))
VOCAB = {t: n for n, t in enumerate([*map(chr, range(33, 127)), "\u0120", "\u010a", "th", "the"])}
VOCAB["<|endoftext|>"] = len(VOCAB)
MERGES = b"#version: 0.2\nt h\nth e\n"
PIECES = [
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


def documents(path: Path, **settings: str) -> object:
    from dnadiff.data.text.corpus import Files

    return tuple(Files(str(path), **settings))


def arrow() -> bytes:
    import pyarrow

    table, sink = pyarrow.table({"text": WORDS}), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, 16)
    return sink.getvalue().to_pybytes()


def read_arrow(path: Path) -> object:
    from dnadiff.data.text.corpus import Hub, HubPart

    hub = Hub("arrow", {"train": "train"}, data_files={"train": str(path.resolve())})
    return tuple(HubPart(hub, "train", path.name, streaming=True))


def judged(path: Path) -> object:
    from dnadiff.genomics.metrics.text_quality import read_texts

    return tuple(read_texts(path))


def filled(found: Sequence[str]) -> object:
    formats.check(any(map(str.strip, found)), "empty")
    return tuple(text for text in found if text.strip())


def tokenizer_folder(folder: Path) -> None:
    from dnadiff.data.text.pretrained import byte_pairs

    roles = {"bos_token": "<|endoftext|>", "unk_token": "the"}
    about = {"eos_token": {"content": "<|endoftext|>"}, "model_max_length": 1024}
    write(folder / "k/tokenizer.json", byte_pairs(VOCAB, MERGES.decode().splitlines()).encode())
    write(folder / "k/tokenizer_config.json", json.dumps(about).encode())
    write(folder / "k/special_tokens_map.json", json.dumps(roles).encode())


def bpe_files(folder: Path) -> None:
    write(folder / "vocab.json", json.dumps(VOCAB).encode())
    write(folder / "merges.txt", MERGES)


def tokenizer(*paths: Path) -> object:
    from dnadiff.data.text.pretrained import Pretrained

    found = Pretrained([*map(str, paths)] if len(paths) > 1 else str(paths[0])).load()
    found.encode("the cat sat")
    found.decode(range(min(found.vocab.size, 4000)))
    model = json.loads(found.config()["json"])["model"]
    return tokens(model["vocab"]), len(model.get("merges", ()))


def tokens(vocab: Mapping[str, int]) -> object:
    return sorted((t, n) for t, n in vocab.items() if not t.startswith("[no token"))


def of_tokenizer(folder: Path, path: Path) -> object:
    found = formats.parsed(path.read_bytes())
    if path.name != "tokenizer.json":
        return Anything()
    try:
        model = found["model"]
        return tokens(model["vocab"]), len(model.get("merges", ()))
    except (TypeError, KeyError, AttributeError):
        raise InvalidError("no vocabulary") from None


def of_bpe(folder: Path, path: Path) -> object:
    vocab = formats.parsed((folder / "vocab.json").read_bytes())
    lines = formats.text_of((folder / "merges.txt").read_bytes()).split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    formats.check(all(line.count(" ") == 1 for line in merges), "merges")
    formats.check(all(type(number) is int for number in vocab.values()), "ids")
    return tokens(vocab), len(merges)


def of_vocab(path: Path) -> object:
    words = formats.text_of(path.read_bytes()).removesuffix("\n").split("\n")
    vocab = {word: number for number, word in enumerate(words)}
    formats.check("[UNK]" in vocab, "no [UNK]")
    return tokens(vocab), 0


def template(path: Path) -> object:
    from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
    from dnadiff.design.request import read_patterns

    is_dna = path.suffix == ".fa"
    rules = DNATokenizer() if is_dna else CharTokenizer("".join(WORDS) + "\n")
    found = read_patterns(str(path), rules, [])
    if not is_dna:  # lists of a long line would take more memory than the reader
        return tuple((name, each.ids.tobytes()) for name, each in found)
    return tuple((name, each.ids.tolist(), each.codes.tolist()) for name, each in found)


def of_template(path: Path) -> object:
    code = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
    ids = {1: 7, 2: 8, 4: 9, 8: 10}
    codes = [(name, [code[letter] for letter in letters]) for name, letters in formats.fasta(path)]
    return tuple((name, [ids.get(c, 3) for c in each], each) for name, each in codes)


TEXTS = (
    reader(
        "text",
        "d.txt",
        BOOK,
        m.TEXT,
        documents,
        lambda path: (formats.text_of(formats.content_of(path)),),
        ALL,
    ),
    reader(
        "lines",
        "d.txt",
        BOOK,
        m.TEXT,
        lambda path: documents(path, documents="line"),
        lambda path: tuple(
            line.strip()
            for line in formats.text_of(formats.content_of(path)).removesuffix("\n").split("\n")
        ),
        GZIP,
    ),
    reader("text JSONL", "d.jsonl", JSONL, m.JSON_LINES, documents, formats.texts, GZIP),
    reader(
        "text CSV",
        "d.csv",
        TEXT_ROWS.encode(),
        m.TABLE,
        documents,
        lambda path: tuple(t for (t,) in formats.cells(path, ("text",), may_be_empty=True)),
        GZIP,
    ),
    reader("text Parquet", "d.parquet", lambda: parquet({"text": WORDS}), m.BYTES, documents),
    reader("text Arrow", "d.arrow", arrow, m.BYTES, read_arrow, anything),
    reader(
        "samples JSONL",
        "d.jsonl",
        JSONL,
        m.JSON_LINES,
        judged,
        lambda path: filled(formats.texts(path)),
        GZIP[:3],
    ),
    reader(
        "samples text",
        "d.txt",
        BOOK,
        m.TEXT,
        judged,
        lambda path: filled(
            formats.text_of(formats.content_of(path)).removesuffix("\n\n").split("\n\n")
        ),
        GZIP[:3],
    ),
    Reader(
        "tokenizer.json",
        tokenizer_folder,
        {"k/*.json": m.JSON},
        lambda folder, _: tokenizer(folder / "k"),
        of_tokenizer,
        names=("/damaged/k",),
    ),
    Reader(
        "vocab.json, merges.txt",
        bpe_files,
        {"vocab.json": m.JSON, "merges.txt": m.TEXT},
        lambda folder, _: tokenizer(folder / "vocab.json", folder / "merges.txt"),
        of_bpe,
        names=("vocab.json", "merges.txt"),
    ),
    reader(
        "vocab.txt", "vocab.txt", "\n".join([*PIECES, ""]).encode(), m.TEXT, tokenizer, of_vocab
    ),
    reader("template FASTA", "t.fa", FASTA[:400], m.TEXT, template, of_template),
    reader(
        "template text", "t.txt", b"the cat[MASK*3]\na dog[MASK]1\n", m.TEXT, template, anything
    ),
)

# Models and runs

SMALL = ("data.max_valid_windows=2", "callbacks.checkpoints.every_n_steps=1", "trainer.max_steps=2")


def train_runs() -> None:
    """A short run on DNA and one on text in the folder `RUNS`, with an evaluation, a compressed
    file and an exported folder."""
    import cases

    write(RUNS / "g.fa", fasta({"one": "ACGTTGCA" * 200, "two": "AACCTGG" * 120}))
    write(RUNS / "d.txt", b"the cat sat on a mat and saw one small red bird\n" * 40)
    write(RUNS / "s.fa", fasta({f"s{n}": "ACGTTGCAAC" * 3 for n in range(4)}))
    small = (*cases.SMALL_RUN, *cases.SMALL_NETWORK, *SMALL)
    model = (f"checkpoint={RUNS}/dna", "accelerator=cpu")
    lines = {
        "dna": ("train", "data=fasta", f"data.path={RUNS}/g.fa", *small),
        "text": ("train", "data=text", f"data.path={RUNS}/d.txt", *small),
        "eval": (
            "evaluate",
            *model,
            f"output={RUNS}/dna/evaluate.json",
            "num_draws=2",
            "orders=[0]",
        ),
        "dnd": (
            "compress",
            *model[:1],
            f"input={RUNS}/s.fa",
            f"output={RUNS}/s.dnd",
            "num_groups=2",
            "threads=1",
        ),
        "card": ("export", model[0], f"output={RUNS}/exported"),
    }
    for name, (command, *arguments) in lines.items():
        if cases.start(command, [*arguments, f"hydra.run.dir={RUNS}/{name}"]):
            raise RuntimeError(f"{command} failed")


def copied(source: str, target: str, *more: str) -> Callable[[Path], None]:
    """Copies a folder of `RUNS`, and files."""

    def make(folder: Path) -> None:
        shutil.copytree(RUNS / source, folder / target)
        for name in more:
            shutil.copy(RUNS / name, folder / name)

    return make


def small_network(backbone: str, vocab: object) -> object:
    import torch

    from dnadiff.diffusion.denoiser import Denoiser
    from dnadiff.options.command import compose
    from dnadiff.store.objects import build

    torch.manual_seed(0)
    sizes = ["backbone.d_model=16", "backbone.n_layers=1"] + ["backbone.n_heads=2"] * (
        backbone == "dit"
    )
    config = compose("train", ["data=ecoli", f"backbone={backbone}", *sizes], resolve=True)[
        "backbone"
    ]
    extra = {"time_conditioning": False} if "time_conditioning" in config else {}
    return Denoiser(build(config | extra, vocab=vocab))


def published(backbone: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from dnadiff.data.tokenizer import DNATokenizer
        from dnadiff.diffusion.vocab import Vocab
        from dnadiff.weights.published import export_published

        text = Vocab(size=14, mask_id=13, pad_id=13, never_emitted=(13,))
        vocab = text if backbone == "dit" else DNATokenizer().vocab
        export_published(small_network(backbone, vocab), folder / "p")

    return make


def gpt2(folder: Path) -> None:
    import torch
    from safetensors.torch import save

    from dnadiff.store.objects import build
    from dnadiff.weights.published import gpt2_backbone

    torch.manual_seed(0)
    config = {"vocab_size": 20, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config |= {"bos_token_id": 19, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    config |= {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    layout = build(gpt2_backbone(config), vocab=gpt2_vocab()).published_layout()
    tensors = {names[0]: tensor.contiguous().clone() for tensor, names in layout.weights}
    write(folder / "p/config.json", json.dumps(config).encode())
    write(folder / "p/model.safetensors", save(tensors, metadata={"format": "pt"}))


def gpt2_vocab() -> object:
    from dnadiff.diffusion.vocab import Vocab

    return Vocab(size=22, mask_id=20, pad_id=21, never_emitted=(20, 21))


def torch_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    published("caduceus")(folder)
    torch.save(load_file(folder / "p/model.safetensors"), folder / "p/pytorch_model.bin")
    (folder / "p/model.safetensors").unlink()


def weights(network: object) -> str:
    from dnadiff.weights.tensors import fingerprint

    return fingerprint(network)


def read_published(folder: Path, path: Path) -> object:
    from dnadiff.weights import published

    return weights(published.read(folder / "p").denoiser.backbone)


def read_gpt2(folder: Path, path: Path) -> object:
    from dnadiff.weights import published

    return weights(published.load_gpt2(folder / "p", gpt2_vocab()).backbone)


def of_published(folder: Path, path: Path) -> object:
    formats.safetensors((folder / "p/model.safetensors").read_bytes())
    formats.parsed((folder / "p/config.json").read_bytes())
    return Anything()  # values of weights and of most keys are not protected by the format


def model(folder: Path, path: Path) -> object:
    from dnadiff.weights import checkpoint

    found = checkpoint.load(next(p for p in (folder / "p", folder / "run") if p.is_dir()))
    about = [found.config, found.origin.likelihood, found.origin.data, found.tokenizer.config()]
    about += [found.step, found.conditions.choices]
    return weights(found.denoiser.backbone), json.dumps(about, sort_keys=True, default=str)


def card(path: Path) -> object:
    from dnadiff.weights.published import license_in

    return license_in(path)


@functools.lru_cache
def data() -> object:
    import yaml

    from dnadiff.store.objects import build

    config = yaml.safe_load((RUNS / "dna/config.yaml").read_text())
    return config, build(config["data"], trust=None)


def unfinished(folder: Path) -> None:
    copied("dna", "run")(folder)
    (folder / "run/metrics.json").unlink()


def resume(folder: Path, path: Path) -> object:
    """What `train resume=true` reads before it starts."""
    from dnadiff.training import run

    config, made = data()
    config = {**config, "trainer": {**config["trainer"], "max_steps": 2}}
    found, trainer = (
        run.resumable(config, folder / "new"),
        SimpleNamespace(max_steps=4, max_epochs=-1),
    )
    return None if found is None else (found.name, run.resume_step(found, config, made, trainer, 1))


def of_resume(folder: Path, path: Path) -> object:
    formats.check(path.suffix == ".yaml", "the checksum differs")
    return None  # a run of another, or of no known, configuration: not one to resume


def metrics(path: Path) -> object:
    """What a resumed run reads of the log."""
    from dnadiff.training.loggers import MetricsFile

    log = MetricsFile(path.parent)
    log.begin(None, 2)
    return [[*row.items()] for row in log.rows()]


def of_metrics(path: Path) -> object:
    text = formats.text_of(path.read_bytes())
    ended = text[: text.rfind("\n") + 1]  # a killed process had not finished the last line
    try:
        rows = [row for row in csv.reader(io.StringIO(ended), strict=True) if row]
        numbers = [[float(cell) if cell.strip() else 0.0 for cell in row] for row in rows[1:]]
        step = rows[0].index("step")
    except (csv.Error, ValueError, IndexError) as error:
        raise InvalidError(str(error)) from None
    formats.check("seconds" in rows[0] and len({*map(len, rows)}) == 1, "columns")
    return [[*zip(rows[0], row)] for row, each in zip(rows[1:], numbers) if each[step] <= 2]


def curve(path: Path) -> object:
    from dnadiff.diffusion.likelihood.curve import StoredCurve

    stored = StoredCurve(path.parent / "checkpoints/best.ckpt", 2).groups(32)
    return sorted(stored.items(), key=str)


def of_json(folder: Path, path: Path) -> object:
    formats.parsed(path.read_bytes())
    return Anything()


def decompressed(folder: Path, path: Path) -> object:
    from dnadiff.genomics.compression.coding import decompress

    decompress(str(path), folder / "out.fa", f"{folder}/run")
    return (folder / "out.fa").read_bytes()


def user_yaml(folder: Path) -> None:
    write(
        folder / "y/experiment/mine.yaml",
        b"# @package _global_\ntrainer: {max_steps: 7}\nseed: 3\n",
    )
    write(
        folder / "y/backbone/mine.yaml",
        b"_target_: dnadiff.networks.backbone.dit.DiT\nd_model: 16\nn_layers: 1\nlist: [1, 2]\n",
    )


def composed(folder: Path, path: Path) -> object:
    from dnadiff.train import train

    group = path.parent.name
    return str(train.compose([f"{group}=mine", "data=ecoli"], folder, folder / "y"))


CARD = b"---\nlibrary_name: dnadiff\nlicense: apache-2.0\n---\n\n# Model\n\nlicense: mit\n"
FOLDER = {"p/config.json": m.JSON, "p/model.safetensors": m.SAFETENSORS}
NAMES = ("config.json", "model.safetensors", "pytorch_model.bin", "dnadiff.json", "/damaged/p")
MODELS = (
    Reader(
        "published Caduceus",
        published("caduceus"),
        FOLDER,
        read_published,
        of_published,
        names=NAMES,
    ),
    Reader("published MDLM", published("dit"), FOLDER, read_published, of_published, names=NAMES),
    Reader("GPT-2", gpt2, FOLDER, read_gpt2, of_published, names=NAMES),
    Reader(
        "pytorch_model.bin",
        torch_weights,
        {"p/*.bin": [*m.BYTES, m.forged_entry]},
        read_published,
        names=NAMES,
    ),
    Reader(
        "exported folder",
        copied("exported", "p"),
        {"p/dnadiff.json": m.JSON, **FOLDER},
        model,
        names=NAMES,
    ),
    reader("model card", "README.md", CARD, m.TEXT, card, anything),
    Reader("checkpoint", copied("dna", "run"), {"run/checkpoints/best.ckpt": m.CHECKPOINT}, model),
    Reader(
        "checkpoint of text",
        copied("text", "run"),
        {"run/checkpoints/best.ckpt": m.CHECKPOINT},
        model,
    ),
    Reader(
        "resume",
        unfinished,
        {"run/config.yaml": m.YAML, "run/checkpoints/last.ckpt": m.CHECKPOINT},
        resume,
        of_resume,
    ),
    Reader(
        "metrics.csv",
        copied("dna", "run"),
        {"run/metrics.csv": m.TABLE},
        lambda _, path: metrics(path),
        lambda _, path: of_metrics(path),
    ),
    Reader(
        "evaluate.json",
        copied("dna", "run"),
        {"run/evaluate.json": m.JSON},
        lambda _, path: curve(path),
        of_json,
    ),
    Reader("dnd", copied("dna", "run", "s.dnd"), {"s.dnd": m.DND}, decompressed),
    Reader(
        "user's YAML",
        user_yaml,
        {"y/*/mine.yaml": m.YAML},
        composed,
        anything,
        names=("mine", "backbone", "trainer", "seed", "experiment", "key"),
    ),
)

# Files that the package loads back

SETTINGS = {
    "num_samples": 6,
    "seed": 1,
    "sampler": {"_target_": "dnadiff.diffusion.sampler.grouped.Grouped", "num_groups": 4},
}


def in_cache(make: Callable[[Path], object], name: str, content: bytes) -> Callable[[Path], None]:
    def cached(folder: Path) -> None:
        write(folder / name, content)
        before = os.environ["DNADIFF_CACHE"]
        os.environ["DNADIFF_CACHE"] = str(folder / CACHE)
        make(folder)
        os.environ["DNADIFF_CACHE"] = before

    return cached


def packed(folder: Path, path: Path | None = None) -> object:
    return genome(folder / "g.fa")


def tokenized(folder: Path, path: Path | None = None) -> object:
    from dnadiff.data.text.corpus import Encoder, Files, tokenize
    from dnadiff.data.tokenizer import CharTokenizer

    encoder = Encoder(CharTokenizer(BOOK.decode()), None, None)
    found = tokenize(Files(str(folder / "d.txt"), "line"), encoder, "d.txt", 1)
    return found.tokens.tolist(), found.ends.tolist()


def samples(folder: Path) -> None:
    from dnadiff.jobs.journal import head_of, json_path
    from dnadiff.store.disk import write_json

    write(folder / "s.fa", FASTA)
    about = {"records": 4, "settings": SETTINGS, "seed": 1}
    write_json(json_path(folder / "s.fa"), head_of(folder / "s.fa") | about)


def complete(folder: Path, path: Path) -> object:
    from dnadiff.jobs.journal import is_complete

    return is_complete(folder / "s.fa", SETTINGS)


def unfinished_samples(folder: Path) -> None:
    from dnadiff.jobs.journal import ResumableOutput

    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("", ".gz"):
        output = ResumableOutput(folder / f"s.fa{suffix}", SETTINGS)
        for n in range(3):
            output.append(f">s{n}\nACGTTGCA\n".encode() * 9, 2, nfe=n, gc=[1, 2])
        output.close()


def resumed_samples(folder: Path, path: Path) -> object:
    from dnadiff.jobs.journal import ResumableOutput

    found = []
    for suffix in ("", ".gz"):
        output = ResumableOutput(folder / f"s.fa{suffix}", SETTINGS, resume=True)
        output.append(b">new\nACGT\n", 1, nfe=9)
        output.finish()
        found.append((output.done, formats.content_of(folder / f"s.fa{suffix}")))
    return found


def of_journal(folder: Path, path: Path) -> object:
    """Bytes after the last journaled batch are of a batch that was not finished: they go."""
    raise InvalidError("the journal or the batches were changed")


def letters_job(folder: Path) -> object:
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


def shards(folder: Path) -> None:
    """Two shards of a job that computes nothing."""
    from dnadiff.jobs.runner import RunOptions, run_jobs
    from dnadiff.jobs.shards import Shard

    for number in (1, 2):
        options = RunOptions("sample", ["seed=1"], shard=Shard(number, 2))
        run_jobs([letters_job(folder)], options)


def merged(folder: Path, path: Path) -> object:
    from dnadiff.jobs.shards import ShardFolder

    found = ShardFolder.of(folder / "s.fa")
    about = found.check_complete()
    found.environments()
    results = [(r.items, r.content, dict(r.about)) for r in found.results("samples")]
    return results, about.streams["samples"].settings, about.overrides


def results(folder: Path) -> None:
    import torch

    from dnadiff.supervised.items import Prediction
    from dnadiff.supervised.saved import FIRST, LAST, add_row, save_prediction

    folder.mkdir(parents=True, exist_ok=True)
    for n in range(3):
        values = torch.log_softmax(torch.arange(12.0).reshape(6, 2) * n, -1)
        prediction, about = Prediction(values, 1.5, [{"epochs": n}]), {"model": "m", "seed": n}
        save_prediction(
            folder / f"m-s{n}-0123456789a{n}.npz", prediction, torch.arange(6) % 2, about
        )
        row = {"task": "t", "model": 'm, "x"', "seed": n, "digest": f"0123456789a{n}"}
        add_row(folder / "results.csv", dict.fromkeys(LAST, "0.5") | row, (*FIRST, *LAST))


def prediction(path: Path) -> object:
    from dnadiff.supervised.saved import load_prediction

    found, labels = load_prediction(path)
    return found.predictions.tolist(), found.seconds, found.fit_info, labels.tolist()


def result_rows(path: Path) -> object:
    from dnadiff.supervised.saved import LAST, add_row

    add_row(path, dict.fromkeys(LAST, "0.7") | {"digest": "new"}, (*LAST, "more"))
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, strict=True) if any(row)]
    return {row[rows[0].index("digest")] for row in rows[1:-1]}, rows


def of_result_rows(path: Path) -> object:
    from dnadiff.supervised.saved import LAST

    columns, new = [*LAST, "more"], dict.fromkeys(LAST, "0.7") | {"digest": "new"}
    data = path.read_bytes()
    try:
        text = io.StringIO(data.decode("utf-8-sig"), newline=None)
        rows = [row for row in csv.reader(text, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidError(str(error)) from None
    if len(rows) > 1 and len(rows[-1]) < len(rows[0]) and not data.endswith((b"\n", b"\r")):
        rows.pop()
    formats.check(len({*map(len, rows)}) <= 1 and (not rows or "digest" in rows[0]), "fields")
    header = [*rows[0], *(c for c in columns if c not in rows[0])] if rows else columns
    wider = [[*row, *[""] * (len(header) - len(row))] for row in rows[1:]]
    last = [new.get(name, "") for name in header]
    return {row[rows[0].index("digest")] for row in rows[1:]}, [header, *wider, last]


def classifier(folder: Path) -> None:
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.networks.backbone.dit import DiT
    from dnadiff.supervised import saved
    from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, build_classifier

    rules, folder = DNATokenizer(), folder.absolute()
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "cond_dim": 8, "max_length": 40}
    about = {"name": "fine-tuned", "classes": ["a", "b"], "stranded": True, "layer": None}
    about |= {"network": {"_target_": "dnadiff.networks.backbone.dit.DiT", **sizes}}
    about |= {"tokenizer": rules.config(), "task": {"name": "t", "longest": 40}, "batch_size": 4}
    about |= {"pretrained": {"checkpoint": "x", "step": 1}, "metrics": {"accuracy": 0.5}}
    about |= {"settings": {"head": "mean"}, "seeds": [1, 2]}
    for seed in (1, 2):
        network = build_classifier(
            DiT(rules.vocab, **sizes), MEAN_HEAD, HeadInputs(), 2, 40, stranded=True
        )
        folder.mkdir(parents=True, exist_ok=True)
        made = saved.write_weights(folder / f"{seed}.safetensors", network)
        saved.save(folder / "models", seed, made, about)
        made.path.unlink()


def read_classifier(folder: Path, path: Path) -> object:
    from dnadiff.supervised import ensemble

    found = ensemble.load(folder)
    members = [weights(member.classifier) for member in found.members]
    return found.classes, found.seeds, members, found.batch_size


def scores(folder: Path) -> None:
    import numpy as np

    from dnadiff.genomics.held_out import Scores

    values = {"all": np.arange(6.0), "novel": np.arange(6.0)[::-1]}
    counts = {name: np.full(6, 9) for name in values}
    folder.mkdir(parents=True, exist_ok=True)
    Scores(np.arange(18).reshape(6, 3), values, counts, 2, "abc").save(folder / "w.npz")


def read_scores(path: Path) -> object:
    from dnadiff.genomics.held_out import Scores

    found = Scores.load(path)
    found.minus(found)
    pairs = [(k, v.tolist()) for each in (found.nats, found.tokens) for k, v in each.items()]
    return found.windows.tolist(), pairs, found.data


PARTS = {".s.fa*.journal": m.JSON, ".s.fa*.part": m.BYTES}
SHARDS = {"s.fa.shards/*.json": m.JSON, "s.fa.shards/*.part": m.BYTES}
STORED = (
    Reader(
        "genome cache",
        in_cache(packed, "g.fa", FASTA),
        {"cache/genomes/*/*": [*m.BYTES, m.number]},
        packed,
    ),
    Reader(
        "token cache",
        in_cache(tokenized, "d.txt", BOOK),
        {"cache/texts/*/*": [*m.BYTES, m.number]},
        tokenized,
    ),
    Reader(
        "sample sidecar", samples, {"s.fa.json": m.JSON, "s.fa": m.TEXT}, complete, lambda *_: False
    ),
    Reader(
        "sample journal",
        unfinished_samples,
        PARTS,
        resumed_samples,
        of_journal,
        names=(".s.fa.part", ".s.fa.gz.part", ".s.fa.journal", ".s.fa.gz.journal"),
    ),
    Reader("shards", shards, SHARDS, merged),
    Reader(
        "predictions",
        results,
        {"m-s1-0123456789a1.npz": m.ARRAYS},
        lambda _, path: prediction(path),
    ),
    Reader(
        "results.csv",
        results,
        {"results.csv": m.TABLE},
        lambda _, path: result_rows(path),
        lambda _, path: of_result_rows(path),
    ),
    Reader(
        "saved classifier",
        classifier,
        {"models/*/model.json": m.JSON, "models/*/model.safetensors": m.SAFETENSORS},
        read_classifier,
        names=("model.json", "model.safetensors"),
    ),
    Reader("windows npz", scores, {"w.npz": m.ARRAYS}, lambda _, path: read_scores(path)),
)
READERS = {each.name: each for each in (*GENOMES, *TASKS, *TEXTS, *MODELS, *STORED)}
