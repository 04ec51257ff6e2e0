"""The effects of variants: log-likelihood ratio with its error, entropy at the site, distance of embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.network import NUM_BASES, Floats, Network
from dnadiff.variant_effect.variant import Alleles, Edit, Row, Skipped

CHUNK = 1024  # alleles that are scored together; results may depend on it in the last bits, never on batch_size alone
AUDITED = 64  # sites that are also predicted with one site per window
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


class Scored(NamedTuple):
    """A row with the effect of each alternative allele, None for one that is skipped."""

    row: Row
    effects: tuple[Effect | None, ...]


@dataclass
class Audit:
    """The error of several sites per window against one: the root of the mean squared difference of log-probability ratios, in nats."""

    squared: float = 0.0
    count: int = 0

    @property
    def rms(self) -> float:
        """Root mean square."""
        return math.sqrt(self.squared / max(self.count, 1))

    def add(self, several: Floats, single: Floats) -> Self:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())
        return self


class Scorer:
    """Scores rows of variants in chunks.

    Args:
        network: the model and its genome.
        method: how log-likelihood ratios are computed.
        alleles: turns rows into edits.
        embeddings: also compute L2.

    Attributes:
        audit: of `sites_per_window`, from the first chunk.
    """

    def __init__(self, network: Network, method: VariantMethod, alleles: Alleles, embeddings: bool = False) -> None:
        self.network, self.method, self.alleles, self.embeddings = network, method, alleles, embeddings
        self.audit = Audit()

    def chunks(self, rows: Iterable[Row]) -> Iterator[list[Scored]]:
        """The rows with their effects, in their order, about `CHUNK` alleles at a time."""
        chunk: list[Row] = []
        number = 0
        for row in rows:
            chunk.append(row)
            number += len(row.alts)
            if number >= CHUNK:
                yield self.score(chunk)
                chunk, number = [], 0
        if chunk:
            yield self.score(chunk)

    def score(self, rows: Sequence[Row]) -> list[Scored]:
        """The effects of some rows."""
        alleles = [self.alleles.edits(row)[0] for row in rows]
        edits = [each for found in alleles for each in found if isinstance(each, Edit)]
        effects = iter(self.effects(edits))
        return [
            Scored(row, tuple(None if isinstance(each, Skipped) else next(effects) for each in found)) for row, found in zip(rows, alleles)
        ]

    def effects(self, edits: Sequence[Edit]) -> list[Effect]:
        """The effect of each edit."""
        if not edits:
            return []
        network = self.network
        at_sites = self._at_sites([(edit.record, site_of(edit)) for edit in edits])
        llr, variance = self.method.llr(network, edits, at_sites)
        strands = len(network.strands)
        se = np.sqrt(variance.sum(0)) / strands
        entropy = entropies(at_sites)
        distance = self._distances(edits) if self.embeddings else np.full(len(edits), NAN)
        reverse = llr[1] if strands > 1 else np.full(len(edits), NAN)
        columns = (llr.mean(0), se, llr[0], reverse, entropy, 2 - entropy / math.log(2), distance)
        return [Effect._make([*map(float, values), edit.differs]) for edit, *values in zip(edits, *columns)]

    def _at_sites(self, sites: Sequence[tuple[str, int]]) -> Floats:
        network = self.network
        if network.denoiser.causal:
            return np.full((len(network.strands), len(sites), NUM_BASES), NAN)
        found = network.at_sites(sites)
        if network.sites_per_window > 1 and not self.audit.count:
            chosen = np.unique(np.linspace(0, len(sites) - 1, AUDITED).round().astype(int))
            self.audit.add(found[:, chosen], network.at_sites([sites[i] for i in chosen], 1))
        return found

    def _distances(self, edits: Sequence[Edit]) -> Floats:
        found = []
        for reverse in self.network.strands:
            pairs = [self.network.pair(edit, reverse) for edit in edits]
            ref, alt = self.network.mean_features([p.ref for p in pairs]), self.network.mean_features([p.alt for p in pairs])
            found.append(np.sqrt(((alt - ref) ** 2).sum(-1)))
        return np.mean(found, 0)


def site_of(edit: Edit) -> int:
    """The position whose entropy is reported: the first base of the variant, or the base before an insertion."""
    return edit.start if edit.ref else max(edit.start - 1, 0)


def entropies(at_sites: Floats) -> Floats:
    """Entropy in nats of the mean of the strands' distributions (K, n, 4): (n,); NaN where there is none."""
    probs = np.exp(at_sites).mean(0)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    return -(probs * logs).sum(-1)
