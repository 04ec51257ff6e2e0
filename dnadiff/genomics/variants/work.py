"""Rows of variants with their effects as an output that can be resumed, and what is written next
to it: the dependency matrix of a single variant, and the page with heat maps of saturated regions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dnadiff.data.base import run_data
from dnadiff.fields import Json
from dnadiff.formats.variants import VariantSource
from dnadiff.genomics.variants.effects import (
    NO_VALUE,
    InputSummary,
    RowScorer,
    TrainingPart,
    divided,
    summarize,
)
from dnadiff.genomics.variants.methods import VariantMethod
from dnadiff.genomics.variants.network import Audit, Floats, Network
from dnadiff.genomics.variants.variant import TOKENIZER, Edit, Reference, record_of
from dnadiff.genomics.variants.writers import Writer
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import Earlier
from dnadiff.progress import table
from dnadiff.store.disk import atomic_write

if TYPE_CHECKING:
    from dnadiff.weights.loaded import Loaded

_COMPARED, _LENGTH = 64, 64  # stretches of a record that are compared, and their bases
log = logging.getLogger("dnadiff")


def training_part(loaded: Loaded, reference: Reference, trust: Sequence[str] = ()) -> TrainingPart:
    """The training part of a model on a genome, with a warning if both have records of equal names
    that are not the same.

    Nothing is downloaded. Without the data of the run, or with another genome, no interval is
    known.
    """
    try:
        data = run_data(loaded.config.get("data"), loaded.tokenizer, trust)
        if not data.opens_genome:
            raise ValueError("the model was not trained on a genome")
        data.prepare()
        own = data.open()
    except (ValueError, OSError) as error:
        return TrainingPart({}, f"not known ({' '.join(str(error).split())[:120]})")
    same: dict[str, str] = {}  # records of the training data, with their names in the genome
    other: set[str] = set()
    for name, length in own.lengths.items():
        here = record_of(name, reference.lengths)
        if here is None:
            continue
        size = min(_LENGTH, length)
        starts = np.unique(np.linspace(0, length - size, _COMPARED).astype(int)).tolist()
        if reference.lengths[here] == length and all(
            np.array_equal(own.window(name, s, s + size), reference.window(here, s, s + size))
            for s in starts
        ):
            same[name] = here
        else:
            other.add(here)
    if other:
        log.warning(
            f"{', '.join(sorted(other)[:4])}: the genome has different bases from the model's "
            f"training data ({data.name}): a different assembly? "
            "Variants in the training part cannot be counted there"
        )
    if not same:
        return TrainingPart({}, f"not known (the model was trained on {data.name})")
    intervals: dict[str, list[tuple[int, int]]] = {name: [] for name in same.values()}
    for interval in sorted(data.intervals["train"]):
        if (record := same.get(data.names[interval.record])) is not None:
            intervals[record].append((interval.start, interval.end))
    return TrainingPart(intervals, f"split {data.split.describe()}")


def dependency(network: Network, edit: Edit, span: int) -> bytes:
    """How the predictions around a variant change with it, as a table with tabs: for each of the
    `span` bases on each side of the variant, as far as they are in its windows, its position
    counted from 1, the base, and log p(base | ALT) - log p(base | REF) of A, C, G and T there,
    masked alone; nats, the mean of the strands read. N is left out.

    After the nucleotide dependency maps of Tomaz da Silva et al. (2024), here for one variant with
    all four bases.
    """
    strands = [_of_strand(network, edit, span, reverse) for reverse in network.strands]
    rows = ["chrom\tpos\tbase\tA\tC\tG\tT\n"]
    for position in sorted(set.intersection(*map(set, strands))):
        change = np.mean([found[position] for found in strands], 0)
        base = TOKENIZER.decode(network.reference.window(edit.record, position, position + 1))
        numbers = "\t".join(f"{value:.6f}" for value in change)
        rows.append(f"{edit.record}\t{position + 1}\t{base}\t{numbers}\n")
    return "".join(rows).encode()


def _of_strand(network: Network, edit: Edit, span: int, reverse: bool) -> dict[int, Floats]:
    """The change at each position on one strand, of the bases on the given strand."""
    pair, vocab = network.pair(edit, reverse), network.process.vocab
    both = [np.concatenate(sides) for sides in pair.flanks(span)]
    known = vocab.is_emitted().numpy()[pair.ref[both[0]]]
    if not known.any():
        return {}
    places = [each[known] for each in both]
    found = []
    for allele, where in enumerate(places):
        masked = np.eye(len(pair.ref), dtype=bool)[where]
        calls = network.predictions(pair, [allele] * len(masked), zip(masked, masked))
        found.append(np.concatenate([x.numpy() for *_, x in calls])[:, list(vocab.emitted)])
    change, distance = found[1] - found[0], places[0] - pair.starts[0]
    if not reverse:
        return dict(zip((edit.start + distance).tolist(), change))
    # Reading right to left, the last base of REF comes first; A, C, G, T in reverse order are their
    # complements.
    return dict(zip((edit.end - 1 - distance).tolist(), change[:, ::-1]))


def picture_of(page: Path, number: int) -> Path:
    """The picture of a region, counted from 1, next to a page."""
    return page.with_name(f"{page.stem}_heat_map_{number}.png")


@dataclass(frozen=True)
class ExtraOutputs:
    """The files that are written when all variants have been scored.

    Attributes:
        network: of the matrix.
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
        """The files that there must not be before. How many pictures a page will have is known when
        the scores are."""
        pages = []
        if self.page is not None:
            name = re.compile(rf"{re.escape(self.page.stem)}_heat_map_\d+\.png")
            pictures = filter(
                lambda path: name.fullmatch(path.name), self.page.parent.glob("*.png")
            )
            pages = [self.page, *sorted(pictures)]
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

    def write(self, first: Edit | None) -> None:
        """Write them; `first` is the variant of the matrix."""
        if self.page is not None:
            self.draw(self.page)
        if self.matrix is not None and first is not None:
            with atomic_write(self.matrix, overwrite=True) as file:
                file.write(dependency(self.network, first, self.span))
            print(f"the dependency matrix is in {self.matrix}")


class VariantJob(ResumableJob):
    """The effects of all rows of a source. Items are rows.

    Args:
        method: checks each variant; None if it has an answer for all of them.
        mismatch_is_error: refuse rows whose REF differs from the genome.
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
        method: VariantMethod | None,
        training: TrainingPart,
        mismatch_is_error: bool,
        settings: Mapping[str, Json],
        earlier: Earlier,
        extras: ExtraOutputs | None = None,
    ) -> None:
        super().__init__()
        self.scorer, self.source, self.writer, self.output = scorer, source, writer, output
        self.method, self.training, self.extras = method, training, extras
        self.mismatch_is_error, self.settings, self.earlier = mismatch_is_error, settings, earlier
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
        parts = divided(self.source, self.scorer.alleles_together)
        return list(accumulate(map(len, parts), initial=0))

    def _summarized(self, first: int = 0, last: int | None = None) -> InputSummary:
        rules = self.scorer.alleles, self.method, self.training, self.mismatch_is_error
        return summarize(self.source, *rules, first, last)

    @override
    def check(self, first: int = 0, last: int | None = None) -> None:
        found = self._summarized(first, last)
        if last is not None:
            return
        self.summary = found
        if self.writer.has_index and not found.is_sorted:
            log.warning(
                f"{self.source.name} is not sorted by position, so {self.output.name} is not "
                "either and cannot be indexed; bcftools sort sorts it"
            )
        if self.extras is not None:
            self.extras.check(self.output, found.kinds.total())

    @override
    def begin(self) -> None:
        log.info(
            f"{self.summary.kinds.total():,} alleles in {self.summary.rows:,} rows, windows of "
            f"{self.scorer.alleles.window} bases, method {self.scorer.method_name}"
        )

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for chunk in self.scorer.chunks(self.source.between(start), skip):
            content, (audit, missing) = self.writer.rows(chunk), self.scorer.take_counts()
            self.report(len(chunk), 0)
            yield Result(len(chunk), content, {"audit": list(astuple(audit)), "missing": missing})

    @override
    def resume(self, done: int, notes: Mapping[str, Json]) -> None:
        super().resume(done, notes)
        self.audit, self.missing = Audit(*notes.get("audit", ())), notes.get("missing", 0)
        self.scorer.audited = self.audit.sites

    @override
    def header(self) -> bytes:
        contigs = self.summary.contigs(self.scorer.alleles.reference.lengths)
        return self.writer.header(self.source, contigs)

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        self.audit.include(Audit(*result.about["audit"]))
        self.missing += result.about["missing"]
        self.totals = {"audit": list(astuple(self.audit)), "missing": self.missing}
        return super().fold(result)

    @override
    def convert(self, collected: Path) -> None:
        self.writer.convert(collected, self.output)

    @override
    def finish(self, collected: Path) -> dict[str, Json]:
        if self.extras is not None:
            self.extras.write(self.summary.first)
        audit, training, summary = self.audit, self.training, self.summary
        error = {"rms": audit.rms, "sites": audit.sites, "shared_sites": audit.shared}
        return {
            "rows": summary.rows,
            "alleles": dict(summary.kinds),
            "skipped": dict(sorted(summary.skipped.items())),
            "rows_with_another_ref": summary.mismatches,
            "without_value": self.missing,
            "in_training_part": summary.in_training if training.known else None,
            "training_part": training.note,
            "sites_per_window_error": error if audit.shared else None,
        }

    @override
    def found_complete(self) -> None:
        if self.extras is not None and (missing := self.extras.missing()).files:
            missing.write(self._summarized().first)

    @override
    def closing(self, seconds: float) -> str:
        """The counts of alleles, the error of several sites per window, and the speed."""
        summary, training, audit, scorer = self.summary, self.training, self.audit, self.scorer
        rows: list[tuple[str, ...]] = [
            *((kind, f"{count:,}") for kind, count in summary.kinds.items() if count),
            *((f"skipped: {why}", f"{n:,}") for why, n in sorted(summary.skipped.items())),
        ]
        if self.missing:
            rows.append((f"no value: {NO_VALUE}", f"{self.missing:,}"))
        if summary.mismatches:
            rows.append(("rows whose REF differs from the genome", f"{summary.mismatches:,}"))
        counted = f"{summary.in_training:,} ({training.note})" if training.known else training.note
        rows.append(("in the training part of the model", counted))
        if audit.shared or scorer.sites_per_window > 1:
            share = f"{audit.sites} of {audit.shared:,} sites that share one"
            error = f"{audit.rms:.4f} nats (RMS, {share})"
            error = error if audit.shared else "none: no sites share a window"
            rows.append(("error of several sites per window", error))
        if scorer.num_scored:
            rows.append(("variants/s", f"{scorer.num_scored / max(seconds, 1e-9):,.1f}"))
        return f"{table(rows)}\n{super().closing(seconds)}"
