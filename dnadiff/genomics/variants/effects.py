"""The effects of variants: log-likelihood ratio with its error, entropy at the site, distance of
embeddings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import NamedTuple, Protocol

import numpy as np
from typing_extensions import override

from dnadiff.genomics.variants.base import VariantMethod
from dnadiff.genomics.variants.network import (
    AUDITED,
    NUM_BASES,
    Audit,
    Floats,
    Network,
    Site,
    SitePredictions,
)
from dnadiff.genomics.variants.variant import Alleles, Edit, Ids, Reference, Row, Skipped, pair

# Alleles that are scored together; results may depend on it in the last bits, never on batch_size
# alone.
CHUNK = 1024
# Alleles among which sites that share a window are searched: this many per base of a window, with a
# maximum.
LOOK_AHEAD, LARGEST_LOOK_AHEAD = 16, 1 << 18
LARGEST_TEXT = 1 << 26  # characters of rows that are in memory at once
# of a scored allele without a log-likelihood ratio, see `Pair.aligned`
NO_VALUE = "N at the end of a window"
NAN = math.nan


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
        differs: REF is not what the genome has.
    """

    LLR: float
    SE: float
    LLR_forward: float
    LLR_reverse: float
    entropy: float
    information: float
    L2: float = NAN
    differs: bool = False


COLUMNS = tuple(Effect._fields[:-2])  # of every output; L2 on request


class AlleleEffect(Protocol):
    """Numbers under the names of columns; `differs`: REF is not what the genome has."""

    @property
    def differs(self) -> bool:
        """Whether REF is not what the genome has."""


class Scored(NamedTuple):
    """A row with the effect of each alternative allele, or why it has none."""

    row: Row
    results: tuple[AlleleEffect | Skipped, ...]

    @property
    def effects(self) -> list[AlleleEffect | None]:
        """The effects, None for an allele that is skipped."""
        return [None if isinstance(each, Skipped) else each for each in self.results]


class GenomeWindows(NamedTuple):
    """The genome, and the bases that a network reads."""

    window: int
    reference: Reference
    sites_per_window: int = 1


class RowScorer(ABC):
    """Scores rows of variants in chunks.

    Args:
        alleles: turns rows into edits.

    Attributes:
        network: what is read around a variant.
        method_name: how effects are computed.
        audit: of `sites_per_window`, since the counts were taken.
        num_scored: alleles scored.
        num_missing: alleles without a log-likelihood ratio, by `NO_VALUE`, since the counts were
            taken.
        audited: sites that were compared before.
    """

    network: Network | GenomeWindows
    method_name: str

    def __init__(self, alleles: Alleles) -> None:
        self.alleles = alleles
        self.audit, self.num_scored, self.num_missing, self.audited = Audit(), 0, 0, 0

    def take_counts(self) -> tuple[Audit, int]:
        """The audit and the alleles without a ratio since the last call; both begin again."""
        taken, self.audited = (self.audit, self.num_missing), self.audited + self.audit.sites
        self.audit, self.num_missing = Audit(), 0
        return taken

    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """The rows with their effects, in their order, about `CHUNK` alleles at a time.

        With several sites per window, sites of many chunks share windows. Which ones depends on all
        rows from the first on, so that a resumed run makes the network calls of one that was not
        stopped.

        Args:
            done: rows at the beginning that have been scored.
        """
        for block in divided(rows, self.alleles_together):
            if done >= len(block):
                done -= len(block)
                continue
            edits = [self.alleles.edits(row)[0] for row in block]
            self.begin_block(_scored_edits(edits), is_new=not done)
            for chunk in divided(block, CHUNK):
                here, edits = edits[: len(chunk)], edits[len(chunk) :]
                if done < len(chunk):
                    yield self._score(chunk[done:], here[done:])
                done = max(done - len(chunk), 0)

    def begin_block(self, edits: Sequence[Edit], is_new: bool) -> None:
        """Prepare the effects of the edits of a block; `is_new` unless a part has been scored."""
        return None

    @abstractmethod
    def effects(self, edits: Sequence[Edit]) -> Iterable[AlleleEffect]:
        """The effect of each edit, at least one, of the block that was begun."""

    def _score(
        self, rows: Sequence[Row], edits: Sequence[Sequence[Edit | Skipped]]
    ) -> list[Scored]:
        """The effects of some rows."""
        scored = _scored_edits(edits)
        self.num_scored += len(scored)
        effects = iter(self.effects(scored) if scored else ())
        return [
            Scored(
                row, tuple(each if isinstance(each, Skipped) else next(effects) for each in found)
            )
            for row, found in zip(rows, edits)
        ]

    @property
    def alleles_together(self) -> int:
        """Alleles of a block: rows that are scored without reading others."""
        return CHUNK


def _scored_edits(edits: Sequence[Sequence[Edit | Skipped]]) -> list[Edit]:
    return [each for found in edits for each in found if isinstance(each, Edit)]


class Scorer(RowScorer):
    """Log-likelihood ratios under a language model.

    Args:
        network: the model and its genome.
        method: how log-likelihood ratios are computed.
        embeddings: also compute L2.
    """

    network: Network

    def __init__(
        self, network: Network, method: VariantMethod, alleles: Alleles, embeddings: bool = False
    ) -> None:
        super().__init__(alleles)
        self.network, self.method, self.embeddings = network, method, embeddings
        self.method_name = method.name
        self.predictions: SitePredictions | None = None

    @property
    @override
    def alleles_together(self) -> int:
        several = self.network.sites_per_window > 1 and not self.network.denoiser.left_to_right
        return (
            max(CHUNK, min(LOOK_AHEAD * self.network.window, LARGEST_LOOK_AHEAD))
            if several
            else CHUNK
        )

    @override
    def begin_block(self, edits: Sequence[Edit], is_new: bool) -> None:
        if not self.network.denoiser.left_to_right:
            self.predictions = self.network.site_predictions(map(site_of, edits))
            if is_new:
                self._compare(self.predictions)

    def _compare(self, predictions: SitePredictions) -> None:
        """Predict some of the sites that share a window alone."""
        self.audit.shared += len(predictions.shared)
        if predictions.shared and self.audited + self.audit.sites < AUDITED:
            places = np.unique(
                np.linspace(0, len(predictions.shared) - 1, AUDITED).round().astype(int)
            )
            sites = [predictions.shared[i] for i in places]
            self.audit.add(predictions.at(sites), self.network.at_sites(sites, 1))

    @override
    def effects(self, edits: Sequence[Edit]) -> list[Effect]:
        strands = len(self.network.strands)
        nothing = np.full((strands, len(edits), NUM_BASES), NAN)
        sites = list(map(site_of, edits))
        at_sites = nothing if self.predictions is None else self.predictions.at(sites)
        llr, variance = self.method.llr(self.network, edits, at_sites)
        se = np.sqrt(variance.sum(0)) / strands
        entropy = entropies(at_sites)
        distance = self._distances(edits) if self.embeddings else np.full(len(edits), NAN)
        reverse = llr[1] if strands > 1 else np.full(len(edits), NAN)
        columns = (llr.mean(0), se, llr[0], reverse, entropy, 2 - entropy / math.log(2), distance)
        self.num_missing += int(np.isnan(columns[0]).sum())
        return [
            Effect._make([*map(float, values), edit.differs])
            for edit, *values in zip(edits, *columns)
        ]

    def _distances(self, edits: Sequence[Edit]) -> Floats:
        found = []
        for reverse in self.network.strands:
            pairs = [self.network.pair(edit, reverse) for edit in edits]
            ref, alt = (
                self.network.mean_features([p.ref for p in pairs]),
                self.network.mean_features([p.alt for p in pairs]),
            )
            found.append(np.sqrt(((alt - ref) ** 2).sum(-1)))
        return np.mean(found, 0)


def site_of(edit: Edit) -> Site:
    """The record and position whose entropy is reported: the first base of the variant, or the base
    before an insertion."""
    return edit.record, edit.start if edit.ref else max(edit.start - 1, 0)


def divided(rows: Iterable[Row], alleles: int) -> Iterator[list[Row]]:
    """The rows in parts of about `alleles` alleles, or fewer if their text is long."""
    part: list[Row] = []
    counted, rows = tee(rows)
    for row, is_last in zip(
        rows, _ends(((len(row.alts), len(row.text)) for row in counted), alleles)
    ):
        part.append(row)
        if is_last:
            yield part
            part = []
    if part:
        yield part


def first_rows(sizes: Iterable[tuple[int, int]], alleles: int) -> Iterator[int]:
    """The number of the first row of each part of `divided`, and the number of all rows; `sizes`
    are alleles and characters of each row."""
    start = number = 0
    for number, is_last in enumerate(_ends(sizes, alleles), 1):
        if is_last:
            yield start
            start = number
    if start < number:
        yield start
    yield number


def _ends(sizes: Iterable[tuple[int, int]], alleles: int) -> Iterator[bool]:
    """Whether a part ends with each row."""
    number = size = 0
    for of_row, characters in sizes:
        number, size = number + of_row, size + characters
        is_last = number >= alleles or size >= LARGEST_TEXT
        yield is_last
        if is_last:
            number = size = 0


def entropies(at_sites: Floats) -> Floats:
    """Entropy in nats of the mean of the strands' distributions (K, n, 4): (n,); NaN where there is
    none."""
    probs = np.exp(at_sites).mean(0)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    return -(probs * logs).sum(-1)


Predict = Callable[[Sequence[Ids]], Floats]  # windows -> predictions (R, n) of R seeds


class PredictedEffect(NamedTuple):
    """The effect of an allele.

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


PREDICTED_COLUMNS = PredictedEffect._fields[:-1]


class PredictedScorer(RowScorer):
    """Compares the predictions of both alleles.

    Args:
        predict: the predictions of windows, on the scale on which differences are taken.
        windows: centered on the variants, shorter where a record ends.
    """

    method_name = "predicted"

    def __init__(self, predict: Predict, windows: GenomeWindows, alleles: Alleles) -> None:
        super().__init__(alleles)
        self.predict, self.network = predict, windows

    @override
    def effects(self, edits: Sequence[Edit]) -> list[PredictedEffect]:
        pairs = [pair(self.network.reference, edit, self.network.window) for edit in edits]
        found = self.predict([each.ref for each in pairs] + [each.alt for each in pairs]).reshape(
            -1, 2, len(edits)
        )
        difference = found[:, 1] - found[:, 0]
        seeds = len(found)
        error = (
            difference.std(0, ddof=1) / math.sqrt(seeds)
            if seeds > 1
            else np.full(len(edits), math.nan)
        )
        columns = (found[:, 0].mean(0), found[:, 1].mean(0), difference.mean(0), error)
        return [
            PredictedEffect._make([*map(float, values), edit.differs])
            for edit, *values in zip(edits, *columns)
        ]
