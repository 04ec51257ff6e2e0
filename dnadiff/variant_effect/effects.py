"""The effects of variants: log-likelihood ratio with its error, entropy at the site, distance of embeddings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from typing_extensions import override

from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.network import NUM_BASES, Floats, Network
from dnadiff.variant_effect.site_windows import Site, SitePredictions
from dnadiff.variant_effect.variant import Alleles, Edit, Reference, Row, Skipped

CHUNK = 1024  # alleles that are scored together; results may depend on it in the last bits, never on batch_size alone
LOOK_AHEAD, LARGEST_LOOK_AHEAD = 16, 1 << 18  # alleles whose sites can share windows: per base of a window, and at most
LARGEST_TEXT = 1 << 26  # characters of rows that are in memory at once
AUDITED = 64  # sites that share a window and are also predicted alone
NO_VALUE = "N at the end of a window"  # of a scored allele without a log-likelihood ratio, see `Pair.aligned`
NAN = math.nan


class Effect(NamedTuple):
    """The effect of an allele; NaN for what does not exist.

    Attributes:
        LLR: log p(alt) - log p(ref) in nats, the mean of both strands unless `stranded`.
        SE: Monte Carlo standard error of LLR in nats; NaN for a method without one.
        LLR_forward, LLR_reverse: of each strand.
        entropy: of the base at the site given the rest, in nats; the distribution is the mean of both strands'.
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


@dataclass
class Audit:
    """The error of several sites per window against one: the root of the mean squared difference of log-probability ratios, in nats.

    Attributes:
        squared, count: sum of the squared differences, and their number.
        shared: sites that were predicted in a window with others.
    """

    squared: float = 0.0
    count: int = 0
    shared: int = 0

    @property
    def rms(self) -> float:
        """Root mean square."""
        return math.sqrt(self.squared / max(self.count, 1))

    @property
    def sites(self) -> int:
        """Sites that were compared."""
        return self.count // NUM_BASES

    def add(self, several: Floats, single: Floats) -> Self:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())
        return self


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
        audit: of `sites_per_window`.
        num_scored: alleles scored.
        num_missing: alleles without a log-likelihood ratio, by `NO_VALUE`.
    """

    network: GenomeReader
    method_name: str

    def __init__(self) -> None:
        self.audit, self.num_scored, self.num_missing = Audit(), 0, 0

    @abstractmethod
    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """The rows with their effects, in their order, about `CHUNK` alleles at a time.

        Args:
            done: rows at the beginning that have been scored.
        """


class Scorer(RowScorer):
    """Log-likelihood ratios under a language model.

    Args:
        network: the model and its genome.
        method: how log-likelihood ratios are computed.
        alleles: turns rows into edits.
        embeddings: also compute L2.
    """

    network: Network

    def __init__(self, network: Network, method: VariantMethod, alleles: Alleles, embeddings: bool = False) -> None:
        super().__init__()
        self.network, self.method, self.alleles, self.embeddings = network, method, alleles, embeddings
        self.method_name = method.name

    @override
    def chunks(self, rows: Iterable[Row], done: int = 0) -> Iterator[list[Scored]]:
        """See `RowScorer.chunks`.

        With several sites per window, sites of many chunks share windows. Which ones depends on all rows from the first on, so that a
        resumed run makes the network calls of one that was not stopped.
        """
        several = self.network.sites_per_window > 1 and not self.network.denoiser.left_to_right
        for block in divided(rows, max(CHUNK, min(LOOK_AHEAD * self.network.window, LARGEST_LOOK_AHEAD)) if several else CHUNK):
            if done < len(block):
                yield from self._chunks_of(block, done)
            done = max(done - len(block), 0)

    def _chunks_of(self, block: Sequence[Row], done: int) -> Iterator[list[Scored]]:
        edits = [self.alleles.edits(row)[0] for row in block]
        predictions = self._predictions([each for found in edits for each in found if isinstance(each, Edit)])
        if predictions is not None and not done:
            self._compare(predictions)
        for chunk in divided(block, CHUNK):
            here, edits = edits[: len(chunk)], edits[len(chunk) :]
            if done < len(chunk):
                yield self._score(chunk[done:], here[done:], predictions)
            done = max(done - len(chunk), 0)

    def _predictions(self, edits: Sequence[Edit]) -> SitePredictions | None:
        return None if self.network.denoiser.left_to_right else self.network.site_predictions(map(site_of, edits))

    def _compare(self, predictions: SitePredictions) -> None:
        """Predict some of the sites that share a window alone."""
        self.audit.shared += len(predictions.shared)
        if predictions.shared and (number := AUDITED - self.audit.sites) > 0:
            places = np.unique(np.linspace(0, len(predictions.shared) - 1, number).round().astype(int))
            sites = [predictions.shared[i] for i in places]
            self.audit.add(predictions.at(sites), self.network.at_sites(sites, 1))

    def _score(self, rows: Sequence[Row], edits: Sequence[Sequence[Edit | Skipped]], predictions: SitePredictions | None) -> list[Scored]:
        """The effects of some rows."""
        effects = iter(self._effects([each for found in edits for each in found if isinstance(each, Edit)], predictions))
        return [
            Scored(row, tuple(each if isinstance(each, Skipped) else next(effects) for each in found)) for row, found in zip(rows, edits)
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
        self.num_scored, self.num_missing = self.num_scored + len(edits), self.num_missing + int(np.isnan(columns[0]).sum())
        return [Effect._make([*map(float, values), edit.differs]) for edit, *values in zip(edits, *columns)]

    def _distances(self, edits: Sequence[Edit]) -> Floats:
        found = []
        for reverse in self.network.strands:
            pairs = [self.network.pair(edit, reverse) for edit in edits]
            ref, alt = self.network.mean_features([p.ref for p in pairs]), self.network.mean_features([p.alt for p in pairs])
            found.append(np.sqrt(((alt - ref) ** 2).sum(-1)))
        return np.mean(found, 0)


def site_of(edit: Edit) -> Site:
    """The record and position whose entropy is reported: the first base of the variant, or the base before an insertion."""
    return edit.record, edit.start if edit.ref else max(edit.start - 1, 0)


def divided(rows: Iterable[Row], alleles: int) -> Iterator[list[Row]]:
    """The rows in parts that end with the row that reaches a number of alleles, or of characters."""
    part: list[Row] = []
    number = size = 0
    for row in rows:
        part.append(row)
        number, size = number + len(row.alts), size + len(row.text)
        if number >= alleles or size >= LARGEST_TEXT:
            yield part
            part, number, size = [], 0, 0
    if part:
        yield part


def entropies(at_sites: Floats) -> Floats:
    """Entropy in nats of the mean of the strands' distributions (K, n, 4): (n,); NaN where there is none."""
    probs = np.exp(at_sites).mean(0)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    return -(probs * logs).sum(-1)
