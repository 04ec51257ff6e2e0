"""The effects of variants: log-likelihood ratio with its error, entropy at the site, distance of
embeddings, or the difference of predictions; a first pass over the variants that refuses what is
wrong; and both together as a data frame, without any configuration."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pyfaidx import Fasta

from dnadiff.data.alignment import Alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import Columns
from dnadiff.data.records import Interval
from dnadiff.diffusion.vocab import DEPTH, RATE
from dnadiff.fields import checked
from dnadiff.formats.regions import Row, Rows, VariantSource, listing, open_source, record_of
from dnadiff.genomics.variants.methods import (
    AUDITED,
    NUM_BASES,
    Audit,
    Block,
    ByKind,
    Floats,
    LogProb,
    Masked,
    Network,
    Site,
    SitePredictions,
    VariantMethod,
    check_method,
)
from dnadiff.genomics.variants.neutral import Neutral, kind_of
from dnadiff.genomics.variants.phased import HaplotypeBlock, Phased, column_of
from dnadiff.genomics.variants.variant import (
    Alleles,
    Edit,
    Ids,
    Reference,
    Sequences,
    Skipped,
    pair,
    sides,
)
from dnadiff.progress import Progress, advance, log

if TYPE_CHECKING:
    import pandas

LARGEST_TEXT = 1 << 26  # characters of rows that are in memory at once
NAN = math.nan
_SHOWN = 3  # rows in a message
OnMismatch = Literal["error", "skip", "flag"]


class Effect(NamedTuple):
    """The effect of an allele; NaN for what does not exist.

    Attributes:
        LLR: log p(alt) - log p(ref) in nats, the mean of both strands unless `stranded`.
        SE: Monte Carlo standard error of LLR in nats; NaN for a method without one.
        LLR_forward, LLR_reverse: of each strand.
        entropy: of the base at the site given the rest, in nats; the distribution is the mean of
            both strands'.
        information: 2 minus the entropy in bits.
        L2: Euclidean distance of the mean embeddings of both windows, averaged over the strands.
        depth, conservation: see `conservation_of`.
        percentile, percentile_SE, LLR_calibrated: see `Neutral.values`.
        haplotype, ..., LLR_sum_2: see `Phased.added`.
        differs: REF is not what the genome has.
    """

    LLR: float
    SE: float
    LLR_forward: float
    LLR_reverse: float
    entropy: float
    information: float
    L2: float = NAN
    depth: float = NAN
    conservation: float = NAN
    percentile: float = NAN
    percentile_SE: float = NAN
    LLR_calibrated: float = NAN
    haplotype: str = ""
    LLR_haplotype_1: float = NAN
    LLR_haplotype_2: float = NAN
    LLR_sum_1: float = NAN
    LLR_sum_2: float = NAN
    differs: bool = False


class PredictedEffect(NamedTuple):
    """The effect of an allele on the predictions of a fine-tuned network.

    Attributes:
        predicted_REF, predicted_ALT: predictions of both windows, averaged over the seeds.
        difference: ALT minus REF.
        SE_seeds: standard error of the difference over the seeds; NaN for a single one.
        differs: REF is not what the genome has.
    """

    predicted_REF: float
    predicted_ALT: float
    difference: float
    SE_seeds: float
    differs: bool = False


COLUMNS = Effect._fields[:6]  # of every output; others on request
PREDICTED_COLUMNS = PredictedEffect._fields[:-1]
Effects = Callable[[Sequence[Edit]], Sequence[Effect | PredictedEffect]]
# A row with the effect of each alternative allele, or why it has none.
Scored = tuple[Row, Sequence[Effect | PredictedEffect | Skipped]]


@dataclass(eq=False)
class RowScorer:
    """Scores rows of variants in chunks.

    Args:
        alleles: turns rows into edits.
        effects: of the edits, at least one, of the block that was begun last.
        method: how they are computed; None of a fine-tuned run.

    Attributes:
        chunk: alleles that are scored together; results may depend on it in the last bits, never on
            batch_size alone.
        sites_per_window: that may be masked together.
        audit: of `sites_per_window`, since it was taken.
        num_scored: alleles scored.
        audited: sites that were compared before.
        neutral: random variants with which scores are compared.
        phased: joins variants of a sample.
        network: the `Network` of a language model.
    """

    chunk = 1024
    sites_per_window = 1

    alleles: Alleles
    effects: Effects
    method: Any = None  # VariantMethod
    audit: Audit = field(default_factory=Audit)
    num_scored: int = 0
    audited: int = 0
    neutral: Neutral | None = None
    phased: Phased | None = None
    network: Any = None

    @property
    def columns(self) -> Sequence[str]:
        """Of the effects that are computed."""
        return PREDICTED_COLUMNS

    @property
    def alleles_together(self) -> int:
        """Alleles of a block: rows that are scored without reading others."""
        return self.chunk

    def calls(self, kinds: Mapping[str, int]) -> float:
        """About how many network calls alleles of these kinds need: of each, for both windows."""
        return 2.0 * sum(kinds.values())

    def take_audit(self) -> Audit:
        """The audit since the last call; it begins again."""
        taken = self.audit
        self.audit = Audit()
        self.audited += taken.sites
        return taken

    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """The rows with their effects, in their order, about `chunk` alleles at a time.

        With several sites per window, sites of many chunks share windows. Which ones depends on all
        rows from the first on, so that a resumed run makes the network calls of one that was not
        stopped.

        Args:
            done: rows at the beginning that have been scored.
        """
        for block in divided(rows, self.alleles_together, phased=self.phased):
            if done >= len(block):
                done -= len(block)
                continue
            edits = [self.alleles.edits(row)[0] for row in block]
            self.begin_block(_scored_edits(edits), is_new=not done)
            for chunk in divided(block, self.chunk, phased=self.phased):
                here = edits[: len(chunk)]
                edits = edits[len(chunk) :]
                if done < len(chunk):
                    scored = _scored_edits(here[done:])
                    self.num_scored += len(scored)
                    # As the deletions of each base of a repeat, which are one edit.
                    different = list(dict.fromkeys(scored))
                    effects = dict(zip(different, self.effects(different) if scored else ()))
                    values = (getattr(effects[each], "LLR", 0.0) for each in scored)
                    self.audit.missing += sum(map(math.isnan, values))
                    depths = [getattr(effects[each], "depth", NAN) for each in scored]
                    self.audit.empty += depths.count(0)
                    results = [
                        [each if isinstance(each, Skipped) else effects[each] for each in found]
                        for found in here[done:]
                    ]
                    if self.phased is not None:
                        results, ratios = self.phased.added(chunk[done:], results)
                        self.audit.joined += len(ratios)
                        self.audit.haplotypes += sum(map(math.isnan, ratios))
                    yield list(zip(chunk[done:], results))
                done = max(done - len(chunk), 0)

    def frame(self, source: VariantSource, mismatch_is_error: bool = True) -> pandas.DataFrame:
        """The effects of all alleles in their order, one row each; `reason` is why an allele has no
        value, and empty for others."""
        import pandas

        self.summarize(source, TrainingPart({}, ""), mismatch_is_error)
        rows: list[list[object]] = []
        for chunk in self.chunks(source):
            advance(len(chunk))
            for row, results in chunk:
                for alt, result in zip(row.alts, results):
                    values = [getattr(result, name, NAN) for name in self.columns]
                    why = self.method.no_value if self.method and math.isnan(values[0]) else ""
                    place = row.chrom, row.pos, row.id, row.ref, alt
                    rows.append([*place, *values, result.differs, getattr(result, "reason", why)])
        names = ("chrom", "pos", "id", "ref", "alt", *self.columns, "REF_mismatch", "reason")
        return pandas.DataFrame(rows, columns=names)

    def summarize(
        self,
        source: VariantSource,
        training: TrainingPart,
        mismatch_is_error: bool,
        first: int = 0,
        last: int | None = None,
    ) -> InputSummary:
        """Read all variants once, in constant memory, and check each of them.

        Args:
            mismatch_is_error: raise an error if REF differs from the genome in any row.
            first, last: read these rows alone.

        Raises:
            ValueError: naming the file and line of the first row that is not valid or on a contig
                of another length, or the first rows whose REF differs.
        """
        summary = InputSummary()
        chrom = ""
        pos = 0
        messages = list[str]()
        lengths = self.alleles.reference.lengths
        others = {}  # the contigs whose length differs from that in the genome: both lengths
        for contig, length in source.contigs.items():
            here = record_of(contig, lengths)
            if length and here is not None and lengths[here] != length:
                others[contig] = length, lengths[here]
        for row in source.between(first, last):
            is_next = row.pos >= pos if row.chrom == chrom else row.chrom not in summary.records
            summary.is_sorted &= is_next
            chrom = row.chrom
            pos = row.pos
            if chrom not in summary.records:
                if chrom in others:
                    length, known = others[chrom]
                    raise ValueError(
                        f"{row.where}: the header says that {chrom} has {length:,} bases, and the "
                        f"genome has {known:,}: a different assembly; "
                        "give the genome that the variants were called with"
                    )
                summary.records[chrom] = self.alleles.record(chrom, row.where)
            found, mismatch = self.alleles.edits(row)
            edits = _scored_edits([found])
            summary.rows += 1
            summary.kinds.update(edit.kind for edit in edits)
            summary.indels = {
                kind_of(edit): edit for edit in edits if edit.surplus
            } | summary.indels
            summary.skipped.update(each.reason for each in found if isinstance(each, Skipped))
            summary.in_training += sum(map(training.contains, edits))
            summary.first = summary.first or next(iter(edits), None)
            if mismatch:
                summary.mismatches += 1
                messages += [mismatch] if len(messages) < _SHOWN else []
            for edit in edits if self.method is not None else ():
                self.method.check(edit)
        if mismatch_is_error and messages:
            raise ValueError(
                f"REF differs from the genome in {summary.mismatches:,} of {summary.rows:,} rows: "
                f"{'; '.join(messages)}; is the genome the assembly of the variants? "
                "on_mismatch=skip leaves such rows out, on_mismatch=flag marks them"
            )
        if not summary.rows:
            raise ValueError(f"{source.name} contains no variant; give at least one")
        if others:  # chrM of hg19 and of b37, for example
            shown = [
                f"{contig} ({length:,} bases, in the genome {known:,})"
                for contig, (length, known) in others.items()
            ]
            log.warning(
                f"{source.name} has contigs whose length differs from the genome, on which no "
                f"variant was read: {listing(shown)}"
            )
        return summary

    def begin_block(self, edits: Sequence[Edit], is_new: bool) -> None:
        """Prepare the effects of the edits of a block; `is_new` unless a part has been scored."""


def _scored_edits(edits: Sequence[Sequence[Edit | Skipped]]) -> list[Edit]:
    return [each for found in edits for each in found if isinstance(each, Edit)]


def divided(
    rows: Iterable[Row],
    alleles: int,
    largest_text: int = LARGEST_TEXT,
    phased: Phased | None = None,
) -> Iterator[list[Row]]:
    """The rows in parts of about `alleles` alleles, or fewer if their text is long; those of a
    haplotype are in one part."""
    part: list[Row] = []
    number = size = 0
    for group in ([row] for row in rows) if phased is None else phased.groups(rows):
        part += group
        number += sum(len(row.alts) for row in group)
        size += sum(len(row.text) for row in group)
        if number >= alleles or size >= largest_text:
            yield part
            part = []
            number = 0
            size = 0
    if part:
        yield part


class Scorer(RowScorer):
    """Log-likelihood ratios under a language model.

    Args:
        network: the model and its genome.
        method: how log-likelihood ratios are computed.
        embeddings: also compute L2.
        phased: also score the haplotypes of a sample.

    Attributes:
        look_ahead: alleles among which sites that share a window are searched, per base of a
            window.
    """

    look_ahead = 16

    def __init__(
        self,
        network: Network,
        method: VariantMethod,
        alleles: Alleles,
        embeddings: bool = False,
        phased: Phased | None = None,
    ) -> None:
        checked_rows = alleles if phased is None else replace(alleles, check=phased.call)
        super().__init__(checked_rows, self._effects, method, phased=phased)
        self.network = network
        self.embeddings = embeddings
        self.sites_per_window = network.sites_per_window
        self.predictions: SitePredictions | None = None

    @property
    def columns(self) -> Sequence[str]:
        aligned = self.network.alignment is not None
        neutral = self.neutral
        ranks = neutral is not None and neutral.percentile
        calibrated = neutral is not None and neutral.calibrate_indels
        asked = [self.embeddings, aligned, aligned, ranks, ranks, calibrated]
        asked += [self.phased is not None] * 5
        return [*COLUMNS, *itertools.compress(Effect._fields[len(COLUMNS) :], asked)]

    @property
    def alleles_together(self) -> int:
        if self.sites_per_window == 1 or self.method.for_left_to_right:
            return self.chunk
        return max(self.chunk, min(self.look_ahead * self.network.window, 1 << 18))

    def calls(self, kinds: Mapping[str, int]) -> float:
        denoiser = self.network.denoiser
        of_kinds = (number * self.method.reads(kind, denoiser) for kind, number in kinds.items())
        found = sum(of_kinds) + super().calls(kinds) * self.embeddings
        return len(self.network.strands) * found

    def begin_block(self, edits: Sequence[Edit], is_new: bool) -> None:
        if self.method.for_left_to_right:
            return
        self.predictions = self.network.site_predictions(map(site_of, edits))
        shared = self.predictions.shared
        if not is_new:
            return
        self.audit.shared += len(shared)
        if shared and self.audited + self.audit.sites < AUDITED:  # predict some of them alone
            places = np.linspace(0, len(shared) - 1, AUDITED).round().astype(int)
            sites = [shared[i] for i in np.unique(places)]
            self.audit.add(
                self.predictions.at(sites), self.network.site_predictions(sites, 1).at(sites)
            )

    def compare(self, model: Path, percentile: bool, calibrate_indels: bool) -> None:
        """Also compare scores with those of random variants, which are kept next to the file of the
        model."""
        scorer = Scorer(self.network, self.method, self.alleles)
        self.neutral = Neutral(scorer, model, percentile, calibrate_indels)

    def ratios(self, edits: Sequence[Edit]) -> list[float]:
        """The LLR of any number of edits."""
        found: list[float] = []
        progress = Progress(len(edits), "random variants")
        for first in range(0, len(edits), self.chunk):
            part = edits[first : first + self.chunk]
            self.begin_block(part, False)
            found += [each.LLR for each in self._effects(part)]
            progress.update(len(part))
        progress.close()
        return found

    def _effects(self, edits: Sequence[Edit]) -> list[Effect]:
        strands = len(self.network.strands)
        alignment = self.network.alignment
        at_sites = (
            np.full((strands, len(edits), NUM_BASES), NAN)
            if self.predictions is None
            else self.predictions.at(list(map(site_of, edits)))
        )
        llr, variance = self.method.llr(self.network, edits, at_sites)
        # Of the mean of the strands' distributions; NaN where there is none.
        probs = np.exp(at_sites).mean(0)
        entropy = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
        found = {
            "LLR": llr.mean(0),
            "SE": np.sqrt(variance.sum(0)) / strands,
            "LLR_forward": llr[0],
            "LLR_reverse": llr[1] if strands > 1 else np.full(len(edits), NAN),
            "entropy": entropy,
            "information": 2 - entropy / math.log(2),
        }
        if self.embeddings:
            distances = []
            for reverse in self.network.strands:
                pairs = [self.network.pair(edit, reverse) for edit in edits]
                ref, alt = (self.network.mean_features(*side) for side in sides(pairs))
                distances.append(np.sqrt(((alt - ref) ** 2).sum(-1)))
            found["L2"] = np.mean(distances, 0)
        results = []
        for edit, *values in zip(edits, *found.values()):
            row: dict[str, Any] = dict(zip(found, map(float, values)))
            if alignment is not None:
                row["depth"], row["conservation"] = conservation_of(alignment, edit)
            if self.neutral is not None:
                row |= self.neutral.values(edit, row["LLR"])
            results.append(Effect(**row, differs=edit.differs))
        return results


def conservation_of(alignment: Alignment, edit: Edit) -> tuple[float, float]:
    """The smallest depth of the columns of REF, or of the base before an insertion, and minus the
    mean log rate of those that are not empty; NaN if all are."""
    first = max(edit.start - (not edit.ref), 0)
    columns = alignment.columns(edit.record, first, max(edit.end, first + 1))
    known = columns[columns[:, DEPTH] > 0, RATE]
    depth = np.expm1(columns[:, DEPTH].min()).round()
    return float(depth), -float(known.mean()) if len(known) else NAN


def site_of(edit: Edit) -> Site:
    """The record and position whose entropy is reported: the first base of the variant, or the base
    before an insertion; in a repeat those of its leftmost place."""
    return edit.record, max(edit.start - edit.shifts // 2 - (not edit.ref), 0)


def predicted_effects(
    predict: Callable[[Sequence[Ids], Columns], Floats],
    alleles: Alleles,
    alignment: Alignment | None,
    edits: Sequence[Edit],
) -> list[PredictedEffect]:
    """Compares the predictions of both alleles, in windows that are centered on the variants and
    shorter where a record ends.

    Args:
        predict: windows with their columns to predictions (R, n) of R seeds, on the scale on which
            differences are taken.
    """
    pairs = [
        pair(alleles.reference, edit, alleles.window, edit.reverse, alignment) for edit in edits
    ]
    (ref, of_ref), (alt, of_alt) = sides(pairs)
    found = predict([*ref, *alt], None if of_ref is None else [*of_ref, *(of_alt or ())])
    found = found.reshape(-1, 2, len(edits))
    difference = found[:, 1] - found[:, 0]
    seeds = len(found)
    error = np.full(len(edits), NAN)
    if seeds > 1:
        error = difference.std(0, ddof=1) / math.sqrt(seeds)
    columns = (*found.mean(0), difference.mean(0), error)
    return [
        PredictedEffect._make([*map(float, values), edit.differs])
        for edit, *values in zip(edits, *columns)
    ]


class TrainingPart(NamedTuple):
    """The training intervals on the records of a genome.

    Attributes:
        records: the number of each record that is the model's own.
        note: what is known of the genome, for reports.
        intervals: those of all numbers, sorted.
    """

    records: Mapping[str, int]
    note: str
    intervals: Sequence[Interval] = ()

    def contains(self, edit: Edit) -> bool:
        """Whether a variant touches a training interval."""
        last = self.records.get(edit.record, -1), max(edit.end - 1, edit.start), math.inf
        place = bisect_right(self.intervals, last) - 1
        return place >= 0 and (last[0], edit.start) < self.intervals[place][::2]

    @property
    def known(self) -> bool:
        """Whether any record is the model's own."""
        return bool(self.records)


@dataclass
class InputSummary:
    """Counts of the rows and alleles of a source.

    Attributes:
        kinds: of the alleles that are scored.
        skipped: reason to number of alleles.
        mismatches: rows whose REF differs from the genome.
        in_training: alleles in the training part of the model.
        is_sorted: whether the rows of each contig are together and ascending.
        first: the first edit.
        indels: the first one of each kind.
        records: the record of the genome of each contig, by the name that the rows use.
    """

    rows: int = 0
    kinds: Counter[str] = field(default_factory=lambda: Counter(SNVs=0, MNVs=0, indels=0))
    skipped: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    in_training: int = 0
    is_sorted: bool = True
    first: Edit | None = None
    indels: dict[str, Edit] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)

    def contigs(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """The `lengths` of the records of the genome, under the names that the rows use where they
        use another."""
        names = defaultdict[str, list[str]](list)
        for name, record in self.records.items():
            names[record].append(name)
        return {
            name: length for record, length in lengths.items() for name in names[record] or [record]
        }


AnyVariants: TypeAlias = (
    "str | Path | VariantSource | Iterable[Sequence[object] | Mapping[str, object]] | "
    "pandas.DataFrame"
)
AnyGenome: TypeAlias = "str | Path | Mapping[str, str] | Fasta | Reference"


def default_method() -> ByKind:
    """The methods that the command line uses by default."""
    return ByKind(Masked(), Block(), Block(), LogProb())


def reference_of(genome: AnyGenome) -> Reference:
    """A genome from a file, from letters in memory, or open already; raises ValueError for anything
    else."""
    if isinstance(genome, Mapping):
        return Sequences(genome)
    if isinstance(genome, (Genome, Sequences)):
        return genome
    if not isinstance(genome, (str, Path, Fasta)):
        raise ValueError(
            f"genome is of type {type(genome).__name__}; give a sequence file, {{name: letters}}, "
            "or an open Genome"
        )
    return Genome(genome)


@checked
def effects_frame(
    network: Any,
    variant_method: object,
    variants: object,
    on_mismatch: OnMismatch,
    L2: bool,
    percentile: bool,
    calibrate_indels: bool,
    model: Path,
    phased: bool,
    sample_name: str | None,
) -> pandas.DataFrame:
    """`RowScorer.frame` of a language model. Arguments as of `dnadiff.model.Model.variants`;
    `model` is its file."""
    import pandas

    if isinstance(variants, (str, Path)):
        source = open_source(variants)
    elif isinstance(variants, VariantSource):
        source = variants
    elif isinstance(variants, pandas.DataFrame):
        source = Rows(variants.to_dict("records"))
    elif isinstance(variants, Iterable):
        source = Rows(variants)
    else:
        raise ValueError(
            f"variants is of type {type(variants).__name__}; give a file, a data frame, or rows "
            "(chrom, pos, ref, alt)"
        )
    given = default_method() if variant_method is None else variant_method
    method = check_method(given, network.denoiser)
    alleles = Alleles(network.reference, network.window, on_mismatch == "skip")
    joined = None
    if phased or sample_name is not None:
        of_haplotypes = method if method.for_left_to_right else HaplotypeBlock()
        joined = Phased(*column_of(source, sample_name), alleles, network, of_haplotypes)
    scorer = Scorer(network, method, alleles, L2, joined)
    if percentile or calibrate_indels:
        scorer.compare(model, percentile, calibrate_indels)
    return scorer.frame(source, on_mismatch == "error")
