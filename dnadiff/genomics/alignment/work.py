"""The alignment of related genomes to a target as an output that can be resumed: a row of codes for
each genome, then the columns of a phylogeny.

A genome comes from a file of sequences, which an engine aligns, from a file of alignments, or from
a file that this module wrote.
"""

import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import monotonic
from typing import Any

import numpy as np

from dnadiff.data.alignment import (
    ABSENT,
    CODE_OF_ID,
    COMPACT,
    GAP,
    Alignment,
    Codes,
    RelatedGenome,
    offsets,
    write_alignment,
)
from dnadiff.data.genome.genome import Genome, SequencePath, expand, stem
from dnadiff.diffusion.vocab import DEPTH, RATE
from dnadiff.fields import JsonDict
from dnadiff.formats.alignments import Block, alignment_format
from dnadiff.formats.sequences import Record, iter_sequences, write_fasta
from dnadiff.formats.tracks import big_wig_runs, library, write_big_wig
from dnadiff.genomics.alignment.engines import Engine, installed
from dnadiff.genomics.phylogeny import (
    KAPPAS,
    fit,
    phase_contrast,
    read_newick,
    sample_positions,
)
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.plot import figure, legend_below, rendered
from dnadiff.progress import log, table
from dnadiff.store.address import expand_user
from dnadiff.store.disk import content_hash, write_bytes
from dnadiff.store.files import bare_name, read_text, resolve
from dnadiff.store.objects import build

_AS_IN_TARGET = 6  # code
_CODE_OF_LETTER = np.full(256, ABSENT, np.uint8)
_CODE_OF_LETTER[list(b"ACGTUacgtu-=")] = [0, 1, 2, 3, 3] * 2 + [GAP, _AS_IN_TARGET]
_BLOCK = 1 << 18  # positions whose columns are computed at once
# Of a genome, a part of at least so many bases, and of at least a twentieth, is aligned reversed.
NULL_BASES = 1_000_000
MAX_NULL_SPACING = 20
NULL_PIECE = 50_000  # bases; the pieces are evenly spaced
TARGET_IDENTITY = 0.9999  # of the target with itself
MIN_COVERAGE = 5e-4
TARGET = "target"  # in trees
TRACKS = ("rate", "depth", "log_posterior", "phase")
_HEADER = ("genome", "identity", "coverage", "by_chance", "paralogs", "left_out", "file")


@dataclass
class Target:
    """The genome that others are aligned to.

    Args:
        genome: its records.
        engine: aligns sequences.
    """

    genome: Genome
    engine: Engine

    @cached_property
    def codes(self) -> Codes:
        """The codes of all bases `(L,)`, one record after the other."""
        windows = (self.genome.window(name, 0, n) for name, n in self.genome.lengths.items())
        return CODE_OF_ID[np.concatenate(list(windows))]

    @cached_property
    def _folder(self) -> TemporaryDirectory:
        """Files of the engine, with the index of the target."""
        folder = TemporaryDirectory()
        lengths = self.genome.lengths
        path = Path(folder.name) / "target.fa"
        decode = self.genome.tokenizer.decode
        texts = (decode(self.genome.window(name, 0, n)).encode() for name, n in lengths.items())
        write_fasta(path, (Record(name, "", text) for name, text in zip(lengths, texts)))
        self.engine.prepare(path, lengths)
        return folder

    def align(self, records: Iterable[Record]) -> Iterator[Block]:
        """The alignments of some sequences."""
        query = Path(self._folder.name) / "query.fa"
        write_fasta(query, records, overwrite=True)
        return self.engine.blocks(query)

    def fill(self, name: str, file: str, blocks: Iterable[Block]) -> tuple[RelatedGenome, Codes]:
        """What is known of a genome, and its codes `(L,)`: the columns of the target are filled
        with its blocks in the order of their scores, and each of its bases is used once.

        Raises:
            ValueError: if a block does not fit the target.
        """
        records = self.genome.lengths
        starts = offsets(self.genome.lengths)
        row = np.full_like(self.codes, ABSENT)
        depth = np.zeros(len(self.codes), np.uint8)  # 2 is several
        used: dict[str, np.ndarray] = {}
        for block in sorted(blocks, key=lambda each: -each.score):
            own, other = (
                _CODE_OF_LETTER[np.frombuffer(text.encode(), np.uint8)]
                for text in (block.target, block.other)
            )
            kept = own != GAP
            last = block.start + int(kept.sum())
            try:
                # of each base in the other genome; of a gap, that of a base next to it
                place = block.other_start + np.maximum(np.cumsum(other != GAP) - 1, 0)[kept]
                place = block.other_size - 1 - place if block.reverse else place
                here = slice(*(starts[block.record] + x for x in (block.start, last)))
                found, given, bases = other[kept], own[kept], self.codes[here]
                outside = min(block.start, block.other_start, place.min(initial=0)) < 0
                outside |= last > records[block.record]
                if outside or ((given != bases) & (given < GAP) & (bases < GAP)).any():
                    raise ValueError
                found = np.where(found == _AS_IN_TARGET, bases, found)
                taken = used.setdefault(block.other_record, np.zeros(block.other_size, bool))
                free = (row[here] == ABSENT) & ~taken[place]
            except (ValueError, IndexError):
                raise ValueError(
                    f"{file}: {name} is aligned to {block.record}:{block.start + 1}-{last} with "
                    "other bases than the target's, or beyond an end: made for another assembly, "
                    "or damaged"
                ) from None
            row[here][free] = found[free]
            taken[place[free & (found < GAP)]] = True
            depth[here] = np.minimum(depth[here] + 1, 2)
        aligned = (row < GAP) & (self.codes < GAP)
        identity = float((row == self.codes)[aligned].mean()) if aligned.any() else 0.0
        coverage = float((row < GAP).mean())
        paralogs = float((depth > 1).mean())
        return RelatedGenome(name, file, identity, coverage, None, paralogs), row


@dataclass
class Relative:
    """A source of genomes.

    Args:
        name: of the genome, unless the file names it.
        path: of the file.
        part: the record or genome of it; None for all.
    """

    name: str
    path: str
    part: str | None = None

    @abstractmethod
    def rows(self, target: Target) -> Iterator[tuple[RelatedGenome, Codes]]:
        """Each genome with its codes `(L,)`."""


class Sequences(Relative):
    """A file of sequences."""

    def rows(self, target: Target) -> Iterator[tuple[RelatedGenome, Codes]]:
        records = [x for x in iter_sequences(self.path) if self.part in (None, x.name)]
        whole = b"".join(each.sequence for each in records)
        spacing = min(max(len(whole) // NULL_BASES, 1), MAX_NULL_SPACING)
        starts = range(0, len(whole), spacing * NULL_PIECE)
        sample = b"".join(whole[start : start + NULL_PIECE] for start in starts)
        reverse = Record("reverse", "", sample[::-1])
        null, _ = target.fill(self.name, self.path, target.align([reverse]))
        genome, row = target.fill(self.name, self.path, target.align(records))
        # of so many samples, each of which covers as much at places of its own
        chance = 1 - (1 - null.coverage) ** (len(whole) / len(sample))
        yield replace(genome, chance=chance), row


class Aligned(Relative):
    """A file of alignments of one or more genomes."""

    def rows(self, target: Target) -> Iterator[tuple[RelatedGenome, Codes]]:
        kind = alignment_format(self.path)
        genomes = dict[str, list[Block]]()
        for block in kind.blocks(self.path, target.genome.lengths) if kind else ():
            genomes.setdefault(block.genome or self.name, []).append(block)
        if not genomes:
            raise ValueError(
                f"{self.path} has no alignment to a record of the target (name and length); it was "
                "made for another assembly, or the target is not its reference"
            )
        for name, blocks in genomes.items():
            yield target.fill(name, self.path, blocks)


class Stored(Relative):
    """A genome of a file that this module wrote for the same target."""

    def rows(self, target: Target) -> Iterator[tuple[RelatedGenome, Codes]]:
        stored = Alignment(self.path)
        if stored.records != target.genome.lengths:
            raise ValueError(
                f"{self.path} has other records than the target; give the genome that it was made "
                "for, in the same order"
            )
        number = [each.name for each in stored.genomes].index(self.name)
        yield stored.genomes[number], stored.row(number)


def relatives(related: SequencePath, each_record: bool, genome: Genome) -> list[Relative]:
    """The sources that a command names.

    Args:
        related: files, folders, patterns, manifests (.tsv), whose labels are names of genomes.
        each_record: each record of a file of sequences is a genome.
        genome: the target.
    """
    found = list[Relative]()
    for source in expand(related):
        path = source.path
        name = source.label or stem(source.path)
        if bare_name(path).endswith(".aln"):
            stored = Alignment(path)
            stored.check_codes()
            stored.check(genome)
            found += [Stored(each.name, path) for each in stored.genomes]
        elif alignment_format(path) is not None:
            # without the ending of its format
            found.append(Aligned(source.label or name.rpartition(".")[0] or name, path))
        elif each_record:
            found += [Sequences(each.name, path, each.name) for each in iter_sequences(path)]
        else:
            found.append(Sequences(name, path))
    return found


@dataclass(eq=False)
class AlignJob(ResumableJob):
    """An alignment. Items are sources; until it is complete, the rows are in a file of one byte per
    base and genome next to it.

    Args:
        output: an .aln file; a table and a picture are written next to it.
        genome, related, each_record, engine, near_copies, tree, gaps, kappa, tracks: options of
            `dnadiff.align`.
    """

    stream = label = "align"
    items = "genomes"
    converts = True
    of_convert = "near_copies", "tree", "gaps", "kappa"

    output: Path
    genome: str
    related: SequencePath
    each_record: bool
    engine: dict[str, Any] | None
    near_copies: float | None
    tree: str | None
    gaps: str
    kappa: float | None
    tracks: str | None

    def __post_init__(self) -> None:
        super().__init__()
        if not self.output.name.endswith((".aln", f".aln{COMPACT}")):
            raise ValueError(
                f"output {self.output} has another format; its name must end in .aln or .aln.xz"
            )
        engine = build(self.engine, trust=None) if self.engine else installed()
        self.target = Target(Genome(self.genome), engine)
        self.sources = relatives(self.related, self.each_record, self.target.genome)
        self.newick = None if self.tree is None else read_text(self.tree)
        if self.newick is not None:
            read_newick(self.newick, [TARGET])
        self.settings = {
            "genome": self.target.genome.digest,
            "related": [[x.name, content_hash(resolve(x.path))] for x in self.sources],
            "engine": [engine.name, engine.version(), asdict(engine)],
            "near_copies": self.near_copies,
            "tree": self.newick,
            "gaps": self.gaps,
            "kappa": self.kappa,
        }
        self.totals = {"genomes": [], "seconds": 0.0}
        whole = Path(str(self.output).removesuffix(COMPACT))
        self.side_files = [whole.with_suffix(ending) for ending in (".tsv", ".png")]
        self.track_files = {}
        if self.tracks is not None:
            library()  # of bigWig files
            prefix = expand_user(self.tracks)
            self.track_files = {x: prefix.with_name(f"{prefix.name}.{x}.bw") for x in TRACKS}
        self.side_files += self.track_files.values()

    @property
    def collected(self) -> Path:
        return self.output.with_name(f".{self.output.name}.rows")

    def starts(self) -> range:
        return range(len(self.sources) + 1)

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for relative in self.sources[start + skip :]:
            begin = monotonic()
            genomes, rows = zip(*relative.rows(self.target))
            about = {"genomes": list(map(asdict, genomes)), "seconds": monotonic() - begin}
            self.report(1, 0)
            yield Result(1, b"".join(row.tobytes() for row in rows), about)

    def fold(self, result: Result) -> tuple[bytes, int]:
        self.totals = {key: value + result.about[key] for key, value in self.totals.items()}
        return super().fold(result)

    def judged(self, rows: Iterable[Codes]) -> list[RelatedGenome]:
        """All genomes, those that are left out with their reasons."""
        names = {TARGET}
        copies = dict[int, str]()
        found = list[RelatedGenome]()
        for each, row in zip(self.totals["genomes"], rows):
            genome = RelatedGenome(**each)
            first = copies.setdefault(zlib.crc32(row.tobytes()), genome.name)
            reasons = {
                "does not align": genome.coverage <= max(2 * (genome.chance or 0), MIN_COVERAGE),
                "the target itself": genome.identity >= TARGET_IDENTITY,
                f"a near copy of the target (near_copies={self.near_copies})": (
                    genome.identity >= (self.near_copies or 1)
                ),
                f"the same genome as {first}": first != genome.name,
                "its name is that of a genome before it": genome.name in names,
            }
            reason = next((reason for reason, holds in reasons.items() if holds), None)
            found.append(replace(genome, reason=reason))
            names.add(genome.name)
        return found

    def convert(self, collected: Path) -> None:
        codes = self.target.codes
        records = self.target.genome.lengths
        rows = np.memmap(collected, np.uint8, "r").reshape(-1, len(codes))
        genomes = self.judged(rows)
        chosen = [number for number, each in enumerate(genomes) if each.reason is None]
        places = sample_positions([*records.values()])
        names = [genomes[number].name for number in chosen]
        state = self.gaps == "state"
        kappas = (self.kappa,) if self.kappa else KAPPAS
        try:
            if not chosen:
                why = ", ".join(dict.fromkeys(str(each.reason) for each in genomes))
                raise ValueError(f"none of {len(genomes)} genomes can be used: {why}")
            sample = np.stack([rows[number][places] for number in chosen])
            model = fit(sample, codes[places], names, TARGET, self.newick, state, kappas=kappas)
        except ValueError as error:
            raise ValueError(
                f"related: {error}; change near_copies or tree with resume=true, which keeps the "
                "alignments, or give other genomes with overwrite=true"
            ) from error
        log.info(f"columns of {len(codes):,} bases; genomes in the tree: {len(chosen)}")
        starts = range(0, len(codes), _BLOCK)
        pieces = (model.columns(rows[chosen, start : start + _BLOCK]) for start in starts)
        stored = {each.path for each in self.sources if isinstance(each, Stored)}
        genomes += [each for path in sorted(stored) for each in Alignment(path).left_out]
        about = {
            "genomes": list(map(asdict, genomes)),
            "tree": model.tree,
            "model": asdict(model),
            "settings": self.settings,
        }
        kept = [rows[number] for number in chosen]
        write_alignment(self.output, records, codes, kept, pieces, about, overwrite=True)

    def finish(self, collected: Path) -> JsonDict:
        made = Alignment(self.output)
        lines = ("\t".join(cells) + "\n" for cells in [_HEADER, *_cells(made)])
        write_bytes(self.side_files[0], "".join(lines).encode())
        write_bytes(self.side_files[1], picture_of([*made.genomes, *made.left_out]))
        return {**self.totals, "genomes": made.about["genomes"], "tree": made.tree}

    def after(self) -> None:
        if self.track_files:
            write_tracks(Alignment(self.output), self.track_files)

    found_complete = after

    def closing(self, seconds: float) -> str:
        cells = _cells(Alignment(self.output))
        rows = [row[:-1] for row in cells]
        return f"{table(rows, _HEADER[:-1])}\n{super().closing(seconds)}"


def _cells(made: Alignment) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            f"{each.identity:.4f}",
            f"{each.coverage:.4f}",
            "" if each.chance is None else f"{each.chance:.4f}",
            f"{each.paralogs:.4f}",
            each.reason or "",
            each.file,
        )
        for each in [*made.genomes, *made.left_out]
    ]


def write_tracks(alignment: Alignment, paths: Mapping[str, Path]) -> None:
    """Write bigWig files of the mean log rate, the depth, the log posterior of the target's base,
    and `phase_contrast`, a track of coding phase and not of effects; no value where nothing is
    aligned.

    Args:
        paths: of `TRACKS`.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(TemporaryFile()) for name in TRACKS}
        for number, (name, size) in enumerate(alignment.records.items()):
            columns = alignment.columns(name, 0, size)
            target = alignment.target(name, 0, size)
            known = columns[:, DEPTH] > 0
            rate = columns[:, RATE]
            depth = columns[:, DEPTH]
            own = np.take_along_axis(columns, np.minimum(target, 3)[:, None], 1)[:, 0]
            own = np.where(target < GAP, own, np.nan)
            values = rate, np.expm1(depth), own, phase_contrast(rate, known)
            for file, each in zip(files.values(), values):
                file.write(big_wig_runs(number, 0, np.where(known, each, np.nan)))
        for name, file in files.items():
            file.seek(0)
            write_big_wig(list(alignment.records.items()), file, paths[name])


def picture_of(genomes: Sequence[RelatedGenome]) -> bytes:
    """A PNG file with identity, coverage, coverage by chance and paralogs of each genome, those
    with the highest coverage first; names of genomes that were left out are in parentheses."""
    rows = sorted(genomes, key=lambda each: -each.coverage)
    names = [f"({each.name})" if each.reason else each.name for each in rows]
    with figure(8, 1.2 + 0.3 * len(rows)) as (made, (axes,)):
        marks = {"identity": "s", "coverage": "o", "chance": "x", "paralogs": "+"}
        for name, mark in marks.items():
            values: Any = [getattr(each, name) for each in rows]  # None draws nothing
            axes.plot(values, range(len(rows)), mark, label=name)
        axes.set_yticks(range(len(rows)), names)
        axes.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.4, -0.6), xlabel="share of the target")
        legend_below(axes)
    return rendered(made, "png")
