"""Rows of variants with their effects as an output that can be resumed, and what is written next
to it: the dependency matrix of a single variant, and the page with heat maps of saturated regions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from dnadiff.fields import Json
from dnadiff.genomics.variants.effects import NO_VALUE, RowScorer, first_rows
from dnadiff.genomics.variants.network import Audit, Floats, Network
from dnadiff.genomics.variants.sources import SomeRows, VariantSource
from dnadiff.genomics.variants.summary import InputSummary, TrainingPart
from dnadiff.genomics.variants.variant import TOKENIZER, Edit
from dnadiff.genomics.variants.writers import Writer
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import Earlier
from dnadiff.progress import table
from dnadiff.store.disk import atomic_write

HEADER = ("chrom", "pos", "base", "A", "C", "G", "T")


class Dependency(NamedTuple):
    """How the predictions around a variant change with it.

    Attributes:
        positions: (n,) 0-based.
        bases: (n,) letters of the genome.
        change: (n, 4) log p(base | ALT) - log p(base | REF) of A, C, G, T at each position, masked
            alone; nats, the mean of the strands read.
    """

    positions: list[int]
    bases: str
    change: Floats


def dependency(network: Network, edit: Edit, span: int) -> Dependency:
    """The dependency matrix of the `span` bases on each side of a variant, as far as they are in
    its windows; N is left out.

    After the nucleotide dependency maps of Tomaz da Silva et al. (2024), here for one variant with
    all four bases.
    """
    strands = [_of_strand(network, edit, span, reverse) for reverse in network.strands]
    positions = sorted(set.intersection(*(set(found) for found in strands)))
    change = np.array(
        [np.mean([found[position] for found in strands], 0) for position in positions]
    ).reshape(-1, 4)
    bases = "".join(
        TOKENIZER.decode(network.reference.window(edit.record, position, position + 1))
        for position in positions
    )
    return Dependency(positions, bases, change)


def _of_strand(network: Network, edit: Edit, span: int, reverse: bool) -> dict[int, Floats]:
    """The change at each position on one strand, of the bases on the given strand."""
    pair = network.pair(edit, reverse)
    both = [np.concatenate(sides) for sides in pair.flanks(span)]
    known = network.process.vocab.is_emitted().numpy()[pair.ref[both[0]]]
    both, found = [each[known] for each in both], []
    if not known.any():
        return {}
    for which in (0, 1):
        masked = np.zeros((int(known.sum()), len(pair.ref)), bool)
        masked[np.arange(len(masked)), both[which]] = True
        rows = network.at_places(
            (pair.ref, pair.alt), [which] * len(masked), masked, both[which].tolist()
        )
        found.append(rows[:, list(network.process.vocab.emitted)])
    change = found[1] - found[0]
    if not reverse:
        return dict(zip((edit.start + both[0] - pair.ref_start).tolist(), change))
    # Reading right to left, the last base of REF comes first; A, C, G, T in reverse order are their
    # complements.
    return dict(zip((edit.end - 1 - (both[0] - pair.ref_start)).tolist(), change[:, ::-1]))


def as_table(found: Dependency, chrom: str) -> bytes:
    """The matrix as a table with tabs; positions are counted from 1."""
    rows = [
        (chrom, position + 1, base, *(f"{value:.6f}" for value in change))
        for position, base, change in zip(found.positions, found.bases, found.change)
    ]
    return "".join("\t".join(map(str, row)) + "\n" for row in (HEADER, *rows)).encode()


log = logging.getLogger("dnadiff")


def picture_of(page: Path, number: int) -> Path:
    """The picture of a region, counted from 1, next to a page."""
    return page.with_name(f"{page.stem}_heat_map_{number}.png")


def pictures_of(page: Path) -> list[Path]:
    """The existing files that are named as pictures of a page. How many it will have is known when
    the scores are."""
    name = re.compile(rf"{re.escape(page.stem)}_heat_map_\d+\.png")
    return sorted(path for path in page.parent.glob("*.png") if name.fullmatch(path.name))


@dataclass(frozen=True)
class ExtraOutputs:
    """The files that are written when all variants have been scored.

    Attributes:
        matrix: the dependency matrix, a .tsv file; None for none.
        span: bases on each side of the variant in it.
        page: an .html file with heat maps, and pictures next to it; None for none.
        page_is_named: whether it was asked for under this name; one in a run folder is not drawn
            again when the scores are complete.
        draw: writes the page with its pictures.
    """

    network: Network
    matrix: Path | None
    span: int
    page: Path | None
    page_is_named: bool
    draw: Callable[[Path], object]

    @property
    def files(self) -> list[Path]:
        """The files that there must not be before."""
        pages = [] if self.page is None else [self.page, *pictures_of(self.page)]
        return [*pages, *([] if self.matrix is None else [self.matrix])]

    def check(self, output: Path, alleles: int) -> None:
        """Refuse a matrix that cannot be written; ValueError naming the key."""
        if self.matrix is None:
            return
        if alleles != 1:
            raise ValueError(
                f"dependency writes the matrix of a single variant, and there are {alleles:,} "
                "alleles; give one variant"
            )
        if self.network.denoiser.left_to_right:
            raise ValueError(
                "dependency masks bases around the variant, which a model from left to right "
                "cannot do; leave dependency out"
            )
        if self.matrix.resolve() == output.resolve():
            raise ValueError(f"dependency {self.matrix} is the output as well; choose another name")

    def missing(self) -> ExtraOutputs:
        """The outputs that were asked for by name and have not been written yet."""
        matrix, page = (
            None if path is not None and path.exists() else path
            for path in (self.matrix, self.page if self.page_is_named else None)
        )
        return replace(self, matrix=matrix, page=page)

    def write(self, summary: InputSummary) -> None:
        """Write them."""
        if self.page is not None:
            self.draw(self.page)
        if self.matrix is not None and (edit := summary.first) is not None:
            with atomic_write(self.matrix, overwrite=True) as file:
                file.write(as_table(dependency(self.network, edit, self.span), edit.record))
            print(f"the dependency matrix is in {self.matrix}")


class VariantJob(ResumableJob):
    """The effects of all rows of a source. Items are rows.

    Args:
        summarized: checks the rows of a source (`dnadiff.genomics.variants.summary.summarize`).
        extras: written next to the output; None for none.
    """

    stream, label, items = "rows", "variants", "rows"

    def __init__(
        self,
        scorer: RowScorer,
        source: VariantSource,
        writer: Writer,
        output: Path,
        *,
        training: TrainingPart,
        summarized: Callable[[VariantSource], InputSummary],
        settings: Mapping[str, Json],
        earlier: Earlier,
        extras: ExtraOutputs | None = None,
    ) -> None:
        super().__init__()
        self.scorer, self.source, self.writer, self.output = scorer, source, writer, output
        self.training, self.summarized, self.extras = training, summarized, extras
        self.settings, self.earlier = settings, earlier
        self.side_files = () if extras is None else extras.files
        self.bgzip, self.converts = writer.bgzip, writer.converts
        self.audit, self.missing = Audit(), 0
        self.summary = InputSummary()

    @property
    @override
    def total(self) -> int:
        return self.summary.rows

    @override
    def starts(self) -> list[int]:
        return list(first_rows(self.source.num_alleles(), self.scorer.alleles_together))

    @override
    def check(self, first: int = 0, last: int | None = None) -> None:
        if last is not None:
            self.summarized(SomeRows(self.source, first, last))
            return
        self.summary = self.summarized(self.source)
        self.writer.check_order(self.source, self.summary.is_sorted, self.output)
        if self.extras is not None:
            self.extras.check(self.output, self.summary.alleles)

    @override
    def begin(self) -> None:
        log.info(
            f"{self.summary.alleles:,} alleles in {self.summary.rows:,} rows, windows of "
            f"{self.scorer.network.window} bases, method {self.scorer.method_name}"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in self.scorer.chunks(self.source.between(start), skip):
            content, (audit, missing) = self.writer.rows(chunk), self.scorer.take_counts()
            self.report(len(chunk), 0)
            yield Result(len(chunk), content, {"audit": audit.values, "missing": missing})

    @override
    def resume(self, done: int, notes: Mapping[str, Json]) -> None:
        super().resume(done, notes)
        self.audit, self.missing = Audit(*notes.get("audit", ())), notes.get("missing", 0)
        self.scorer.audited = self.audit.sites

    @override
    def header(self) -> bytes:
        contigs = self.summary.contigs(self.scorer.network.reference.lengths)
        return self.writer.header(self.source, contigs)

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        self.audit.include(Audit(*result.about["audit"]))
        self.missing += result.about["missing"]
        self.totals = {"audit": self.audit.values, "missing": self.missing}
        return super().fold(result)

    @override
    def convert(self, collected: Path) -> None:
        self.writer.convert(collected, self.output)

    @override
    def finish(self, collected: Path) -> dict[str, Json]:
        if self.extras is not None:
            self.extras.write(self.summary)
        audit, known = self.audit, self.training.known
        error = {"rms": audit.rms, "sites": audit.sites, "shared_sites": audit.shared}
        return {
            **self.summary.counts(),
            "without_value": self.missing,
            "in_training_part": self.summary.in_training if known else None,
            "training_part": self.training.note,
            "sites_per_window_error": error if audit.shared else None,
        }

    @override
    def found_complete(self) -> None:
        if self.extras is not None and (missing := self.extras.missing()).files:
            missing.write(self.summarized(self.source))

    @override
    def closing(self, seconds: float) -> str:
        """The counts of alleles, the error of several sites per window, and the speed."""
        summary, training, audit = self.summary, self.training, self.audit
        rows: list[tuple[str, ...]] = [
            (kind, f"{count:,}") for kind, count in summary.kinds.items() if count
        ]
        rows += [
            (f"skipped: {reason}", f"{count:,}")
            for reason, count in sorted(summary.skipped.items())
        ]
        if self.missing:
            rows.append((f"no value: {NO_VALUE}", f"{self.missing:,}"))
        if summary.mismatches:
            rows.append(("rows whose REF differs from the genome", f"{summary.mismatches:,}"))
        counted = f"{summary.in_training:,} ({training.note})" if training.known else training.note
        rows.append(("in the training part of the model", counted))
        if audit.shared or self.scorer.network.sites_per_window > 1:
            error = (
                f"{audit.rms:.4f} nats (RMS, {audit.sites} of {audit.shared:,} sites that share "
                "one)"
                if audit.shared
                else "none: no sites share a window"
            )
            rows.append(("error of several sites per window", error))
        if self.scorer.num_scored:
            speed = self.scorer.num_scored / max(seconds, 1e-9)
            rows.append(("variants/s", f"{speed:,.1f}"))
        return f"{table(rows)}\n{super().closing(seconds)}"
