"""The effects of variants: log-likelihood ratio with its error, entropy at the site, distance of
embeddings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import NamedTuple, Protocol

import numpy as np
from typing_extensions import override

from dnadiff.variant_effect.audit import AUDITED, Audit
from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.network import NUM_BASES, Floats, Network
from dnadiff.variant_effect.site_windows import Site, SitePredictions
from dnadiff.variant_effect.variant import Alleles, Edit, Reference, Row, Skipped

# alleles that are scored together; results may depend on it in the last bits, never on batch_size
# alone
CHUNK = 1024
LOOK_AHEAD, LARGEST_LOOK_AHEAD = (
    16,
    1 << 18,
)  # alleles among which sites that share a window are searched: this many per base of a window, with a maximum
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


class GenomeReader(Protocol):
    """What is read around a variant."""

    @property
    def window(self) -> int:
        """Bases of a window."""

    @property
    def reference(self) -> Reference:
        """The genome."""

    @property
    def sites_per_window(self) -> int:
        """Most sites that are masked together."""


class RowScorer(ABC):
    """Scores rows of variants in chunks.

    Attributes:
        network: what is read around a variant.
        method_name: how effects are computed.
        audit: of `sites_per_window`, since the counts were taken.
        num_scored: alleles scored.
        num_missing: alleles without a log-likelihood ratio, by `NO_VALUE`, since the counts were
            taken.
        audited: sites that were compared before.
    """

    network: GenomeReader
    method_name: str

    def __init__(self) -> None:
        self.audit, self.num_scored, self.num_missing, self.audited = Audit(), 0, 0, 0

    def take_counts(self) -> tuple[Audit, int]:
        """The audit and the alleles without a ratio since the last call; both begin again."""
        taken, self.audited = (self.audit, self.num_missing), self.audited + self.audit.sites
        self.audit, self.num_missing = Audit(), 0
        return taken

    @abstractmethod
    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """The rows with their effects, in their order, about `CHUNK` alleles at a time.

        Args:
            done: rows at the beginning that have been scored.
        """

    @property
    def alleles_together(self) -> int:
        """Alleles of a block: rows that are scored without reading others."""
        return CHUNK


class Scorer(RowScorer):
    """Log-likelihood ratios under a language model.

    Args:
        network: the model and its genome.
        method: how log-likelihood ratios are computed.
        alleles: turns rows into edits.
        embeddings: also compute L2.
    """

    network: Network

    def __init__(
        self, network: Network, method: VariantMethod, alleles: Alleles, embeddings: bool = False
    ) -> None:
        super().__init__()
        self.network, self.method, self.alleles, self.embeddings = (
            network,
            method,
            alleles,
            embeddings,
        )
        self.method_name = method.name

    @override
    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """See `RowScorer.chunks`.

        With several sites per window, sites of many chunks share windows. Which ones depends on all
        rows from the first on, so that a resumed run makes the network calls of one that was not
        stopped.
        """
        for block in divided(rows, self.alleles_together):
            if done < len(block):
                yield from self._chunks_of(block, done)
            done = max(done - len(block), 0)

    @property
    @override
    def alleles_together(self) -> int:
        several = self.network.sites_per_window > 1 and not self.network.denoiser.left_to_right
        return (
            max(CHUNK, min(LOOK_AHEAD * self.network.window, LARGEST_LOOK_AHEAD))
            if several
            else CHUNK
        )

    def _chunks_of(self, block: Sequence[Row], done: int) -> Iterator[list[Scored]]:
        edits = [self.alleles.edits(row)[0] for row in block]
        predictions = self._predictions(
            [each for found in edits for each in found if isinstance(each, Edit)]
        )
        if predictions is not None and not done:
            self._compare(predictions)
        for chunk in divided(block, CHUNK):
            here, edits = edits[: len(chunk)], edits[len(chunk) :]
            if done < len(chunk):
                yield self._score(chunk[done:], here[done:], predictions)
            done = max(done - len(chunk), 0)

    def _predictions(self, edits: Sequence[Edit]) -> SitePredictions | None:
        return (
            None
            if self.network.denoiser.left_to_right
            else self.network.site_predictions(map(site_of, edits))
        )

    def _compare(self, predictions: SitePredictions) -> None:
        """Predict some of the sites that share a window alone."""
        self.audit.shared += len(predictions.shared)
        if predictions.shared and self.audited + self.audit.sites < AUDITED:
            places = np.unique(
                np.linspace(0, len(predictions.shared) - 1, AUDITED).round().astype(int)
            )
            sites = [predictions.shared[i] for i in places]
            self.audit.add(predictions.at(sites), self.network.at_sites(sites, 1))

    def _score(
        self,
        rows: Sequence[Row],
        edits: Sequence[Sequence[Edit | Skipped]],
        predictions: SitePredictions | None,
    ) -> list[Scored]:
        """The effects of some rows."""
        effects = iter(
            self._effects(
                [each for found in edits for each in found if isinstance(each, Edit)], predictions
            )
        )
        return [
            Scored(
                row, tuple(each if isinstance(each, Skipped) else next(effects) for each in found)
            )
            for row, found in zip(rows, edits)
        ]

    def _effects(self, edits: Sequence[Edit], predictions: SitePredictions | None) -> list[Effect]:
        """The effect of each edit."""
        if not edits:
            return []
        strands = len(self.network.strands)
        nothing = np.full((strands, len(edits), NUM_BASES), NAN)
        at_sites = nothing if predictions is None else predictions.at(list(map(site_of, edits)))
        llr, variance = self.method.llr(self.network, edits, at_sites)
        se = np.sqrt(variance.sum(0)) / strands
        entropy = entropies(at_sites)
        distance = self._distances(edits) if self.embeddings else np.full(len(edits), NAN)
        reverse = llr[1] if strands > 1 else np.full(len(edits), NAN)
        columns = (llr.mean(0), se, llr[0], reverse, entropy, 2 - entropy / math.log(2), distance)
        self.num_scored, self.num_missing = (
            self.num_scored + len(edits),
            self.num_missing + int(np.isnan(columns[0]).sum()),
        )
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
