"""A model with the genome that it reads: what every method of scoring variants asks. Single sites
are predicted alone or, with an error that is measured, several in a window."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, site_log_probs
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.fields import Natural, PositiveInt, checked
from dnadiff.genomics.information import by_length
from dnadiff.genomics.variants.variant import Edit, Ids, Pair, Reference, pair

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Site: TypeAlias = tuple[str, int]  # record and 0-based position
NUM_BASES = 4
_SMALLEST_SPACING = 8  # bases between sites that share a window


class MaskedWindow(NamedTuple):
    """The window `[start, end)` of a record, and the sites in it that are masked together, in
    ascending order."""

    record: str
    start: int
    end: int
    sites: tuple[int, ...]


def site_windows(
    sites: Iterable[Site], lengths: Mapping[str, int], window: int, sites_per_window: int = 1
) -> list[MaskedWindow]:
    """Windows that have each site once.

    A site alone is in the middle of its window, except at the ends of a record. Sites that share a
    window are at least window // sites_per_window bases apart, also on records that are shorter
    than a window, and half of that from the ends of the window that are not ends of the record.

    Args:
        lengths: record name to length.
        window: bases that the network reads; a shorter record is read whole.
        sites_per_window: most sites in a window.
    """
    of_record: dict[str, set[int]] = {}
    for record, site in sites:
        of_record.setdefault(record, set()).add(site)
    found = []
    for record, positions in of_record.items():
        length = lengths[record]
        size = min(window, length)
        for group in _groups(sorted(positions), length, window, sites_per_window):
            start = group[0] - (size - 1 - (group[-1] - group[0])) // 2
            start = min(max(start, 0), length - size)
            found.append(MaskedWindow(record, start, start + size, tuple(group)))
    return found


def _groups(positions: Sequence[int], length: int, window: int, most: int) -> Iterator[list[int]]:
    """The positions (ascending, different) in groups that fit into a window, each with the first
    remaining position.

    In a run of consecutive positions every window is full but for those at the end of the run.
    """
    spacing = max(window // most, 1)
    margin, count = (spacing - 1) // 2, len(positions)
    following = list(range(count + 1))  # of each position: itself, or one after it that may be left

    def left(number: int) -> int:
        while following[number] != number:
            following[number] = following[following[number]]
            number = following[number]
        return number

    for number, first in enumerate(positions):
        if following[number] != number:
            continue
        following[number], group = number + 1, [first]
        low = max(first - margin, 0)
        while len(group) < most:
            other = left(bisect_left(positions, group[-1] + spacing))
            if other == count or min(positions[other] + margin + 1, length) - low > window:
                break
            following[other] = other + 1
            group.append(positions[other])
        yield group


class SitePredictions:
    """Predictions at many sites. A batch of windows is read when one of its sites is first asked
    for, and always as a whole.

    So the predictions do not depend on which of the sites are asked for, or in which order.

    Args:
        windows: of the sites.
        batch_size: windows in a network call.
        num_strands: K.
        predict: log-probabilities (K, S, 4) at the S sites of some windows of equal length.

    Attributes:
        shared: the sites that share their window with another.
    """

    def __init__(
        self,
        windows: Sequence[MaskedWindow],
        batch_size: int,
        num_strands: int,
        predict: Callable[[Sequence[MaskedWindow]], Floats],
    ) -> None:
        self.predict, self.batches = predict, list[list[MaskedWindow]]()
        ordered = sorted(windows, key=lambda each: each.end - each.start)
        for _, same in itertools.groupby(ordered, key=lambda each: each.end - each.start):
            while batch := list(itertools.islice(same, batch_size)):
                self.batches.append(batch)
        sizes = [sum(len(window.sites) for window in batch) for batch in self.batches]
        self.first, self.batch_of = np.cumsum([0, *sizes]), np.repeat(np.arange(len(sizes)), sizes)
        self.row = {
            (window.record, site): row
            for row, (window, site) in enumerate(
                (window, site)
                for batch in self.batches
                for window in batch
                for site in window.sites
            )
        }
        self.read = np.zeros(len(self.batches), bool)
        self.values = np.full((num_strands, len(self.row), NUM_BASES), np.nan)
        self.shared = [
            (window.record, site)
            for window in windows
            for site in window.sites
            if len(window.sites) > 1
        ]

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites of the windows: (K, S, 4); NaN where the
        genome has N."""
        rows = np.array([self.row[site] for site in sites], np.int64)
        for batch in np.unique(self.batch_of[rows]):
            if not self.read[batch]:
                place = slice(self.first[batch], self.first[batch + 1])
                self.values[:, place] = self.predict(self.batches[batch])
                self.read[batch] = True
        return self.values[:, rows]


@checked
@dataclass(frozen=True)
class Network:
    """A model of DNA and the genome around the variants.

    Attributes:
        window: bases that the network reads; at the ends of short records fewer.
        batch_size: windows in a network call.
        stranded: read the given strand alone.
        sites_per_window: most sites that are masked together where single sites are predicted; 1 is
            exact.
        seed: of the random numbers, which depend on it and on each variant, not on the other
            variants.

    Raises:
        ValueError: naming the setting that is not valid.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    reference: Reference
    window: PositiveInt
    batch_size: PositiveInt = 32
    stranded: bool = False
    sites_per_window: PositiveInt = 1
    seed: Natural = 1

    def __post_init__(self) -> None:
        require("the effect of a variant", self.denoiser, AbsorbingProcess)
        longest = self.denoiser.max_length
        if longest is not None and self.window > longest:
            raise ValueError(
                f"window {self.window} is more than the {longest} tokens that this network takes; "
                "set window to that or less"
            )
        if self.sites_per_window > max(self.window // _SMALLEST_SPACING, 1):
            raise ValueError(
                f"sites_per_window {self.sites_per_window} leaves fewer than {_SMALLEST_SPACING} "
                f"bases between the sites of a window of {self.window}; set less"
            )

    @property
    def device(self) -> torch.device:
        """Of the network."""
        return next(self.denoiser.parameters()).device

    @property
    def strands(self) -> tuple[bool, ...]:
        """Whether each strand to read is the reverse complement."""
        return (False,) if self.stranded else (False, True)

    def pair(self, edit: Edit, reverse: bool) -> Pair:
        """Both alleles of a variant in their windows."""
        return pair(self.reference, edit, self.window, reverse)

    def draws(self, edit: Edit, reverse: bool, count: int) -> Draws:
        """Random numbers for `count` draws, keyed by the variant and the strand."""
        key = hash64(self.seed, "variants", *edit[:4], "-" if reverse else "+")
        return Draws(key, torch.arange(count))

    def site_predictions(
        self, sites: Iterable[Site], sites_per_window: int | None = None
    ) -> SitePredictions:
        """Predictions at single sites, which are made when they are asked for.

        Args:
            sites: record and 0-based position of each, possibly repeated.
            sites_per_window: instead of that of the network.
        """
        most = sites_per_window or self.sites_per_window
        windows = site_windows(sites, self.reference.lengths, self.window, most)
        return SitePredictions(windows, self.batch_size, len(self.strands), self._predict)

    @torch.no_grad()
    def _predict(self, windows: Sequence[MaskedWindow]) -> Floats:
        ids = np.stack([self.reference.window(*w[:3]) for w in windows]).astype(np.int64)
        row = np.repeat(np.arange(len(windows)), [len(w.sites) for w in windows])
        place = np.array([site - w.start for w in windows for site in w.sites])
        vocab = self.process.vocab
        known = vocab.is_emitted().numpy()[ids[row, place]]  # N stays as it is
        result = np.full((len(self.strands), len(row), NUM_BASES), np.nan)
        if known.any():
            masked = np.zeros(ids.shape, bool)
            masked[row[known], place[known]] = True
            x, sites = (torch.from_numpy(each).to(self.device) for each in (ids, masked))
            found = site_log_probs(self.denoiser, self.process, x, sites, self.stranded)
            result[:, known] = found[..., list(vocab.emitted)].double().cpu().numpy()
        return result

    @torch.no_grad()
    def predictions(
        self, pair: Pair, allele: Sequence[int], masks: Iterable[tuple[Bools, Bools]]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens (B, L), where predictions are asked (B, L), and log-probabilities of every token
        there (M, V) float64, of each network call for Q rows, on the CPU.

        Args:
            allele: (Q,) what each row is about: 0 for REF, 1 for ALT.
            masks: of each row, what is masked and where predictions are asked, (L,) both; they are
                read batch by batch, because together they can be large.
        """
        x0 = torch.from_numpy(np.stack([pair.ref, pair.alt]).astype(np.int64))
        model = self.denoiser.require_any_order("the distribution at masked sites")
        rows = iter(masks)
        for first in range(0, len(allele), self.batch_size):
            x = x0[list(allele[first : first + self.batch_size])]
            of_batch = zip(*itertools.islice(rows, len(x)))
            hidden, asked = (torch.from_numpy(np.stack(each)) for each in of_batch)
            t = self.process.time_at(hidden.sum(-1), self.process.maskable(x).sum(-1)).float()
            xt = torch.where(hidden, self.process.vocab.mask_id, x).to(self.device)
            found = model.log_probs(xt, t.to(self.device), positions=asked.to(self.device))
            yield x, asked, found.double().cpu()

    @torch.no_grad()
    def mean_features(self, windows: Sequence[Ids]) -> Floats:
        """Mean of the network's features over each window: (S, D)."""
        found: dict[int, NDArray] = {}
        encoded = [torch.from_numpy(ids.astype(np.int64)) for ids in windows]
        for chosen, ids in by_length(encoded, self.batch_size, self.device):
            mean = self.denoiser.features(ids).float().mean(1).double().cpu().numpy()
            found |= dict(zip(chosen, mean))
        return np.stack([found[number] for number in range(len(windows))])


AUDITED = 64  # sites that share a window and are also predicted alone, at most


@dataclass
class Audit:
    """The error of several sites per window against one: the root of the mean squared difference of
    log-probability ratios, in nats.

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

    def include(self, other: Audit) -> None:
        """Add what another part of the rows found: all sites that share a window, and comparisons
        until there are `AUDITED`."""
        self.shared += other.shared
        if self.sites < AUDITED:
            self.squared, self.count = self.squared + other.squared, self.count + other.count

    def add(self, several: Floats, single: Floats) -> None:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())
