"""A model with the genome that it reads: what every method of scoring variants asks. Single sites
are predicted alone or, with an error that is measured, several in a window."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate
from dnadiff.diffusion.likelihood.strands import site_log_probs
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.fields import boolean, integer
from dnadiff.genomics.variants.variant import Edit, Pair, Reference, pair

Floats = NDArray[np.float64]
Site: TypeAlias = tuple[str, int]  # record and 0-based position


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
        by_length = sorted(windows, key=lambda each: each.end - each.start)
        parts = [
            list(same)
            for _, same in itertools.groupby(by_length, key=lambda each: each.end - each.start)
        ]
        self.batches = [
            part[first : first + batch_size]
            for part in parts
            for first in range(0, len(part), batch_size)
        ]
        self.predict, self.read = predict, np.zeros(len(self.batches), bool)
        sizes = [sum(len(window.sites) for window in batch) for batch in self.batches]
        self.first, self.batch_of = np.cumsum([0, *sizes]), np.repeat(np.arange(len(sizes)), sizes)
        every = [
            (window.record, site)
            for batch in self.batches
            for window in batch
            for site in window.sites
        ]
        self.row = {site: row for row, site in enumerate(every)}
        self.values = np.full((num_strands, len(every), 4), np.nan)
        self.shared = [
            (window.record, site)
            for window in windows
            if len(window.sites) > 1
            for site in window.sites
        ]

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites of the windows: (K, S, 4); NaN where the
        genome has N."""
        rows = np.array([self.row[site] for site in sites], np.int64)
        for batch in np.unique(self.batch_of[rows]):
            if not self.read[batch]:
                self.values[:, self.first[batch] : self.first[batch + 1]] = self.predict(
                    self.batches[batch]
                )
                self.read[batch] = True
        return self.values[:, rows]


Bools = NDArray[np.bool_]
NUM_BASES = 4
_SMALLEST_SPACING = 8  # bases between sites that share a window


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
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    reference: Reference
    window: int
    batch_size: int = 32
    stranded: bool = False
    sites_per_window: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        require("the effect of a variant", self.denoiser, AbsorbingProcess)

    @classmethod
    def checked(
        cls,
        denoiser: BaseDenoiser,
        process: AbsorbingProcess,
        reference: Reference,
        *,
        window: int,
        batch_size: int,
        stranded: bool,
        sites_per_window: int,
        seed: int,
    ) -> Network:
        """A network with settings from users; raises ValueError naming the one that is not
        valid."""
        window, sites_per_window = (
            integer("window", window),
            integer("sites_per_window", sites_per_window),
        )
        if denoiser.max_length is not None and window > denoiser.max_length:
            raise ValueError(
                f"window {window} is more than the {denoiser.max_length} tokens that this network "
                "takes; set window to that or less"
            )
        if sites_per_window > max(window // _SMALLEST_SPACING, 1):
            raise ValueError(
                f"sites_per_window {sites_per_window} leaves fewer than {_SMALLEST_SPACING} bases "
                f"between the sites of a window of {window}; "
                "set less"
            )
        batch_size, stranded = integer("batch_size", batch_size), boolean("stranded", stranded)
        return cls(
            denoiser,
            process,
            reference,
            window,
            batch_size,
            stranded,
            sites_per_window,
            integer("seed", seed, 0),
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
        key = hash64(
            self.seed,
            "variants",
            edit.record,
            edit.start,
            edit.ref,
            edit.alt,
            "-" if reverse else "+",
        )
        return Draws(key, torch.arange(count))

    def site_predictions(
        self, sites: Iterable[Site], sites_per_window: int | None = None
    ) -> SitePredictions:
        """Predictions at single sites given the bases around them, of the base on the given strand,
        computed when they are asked for.

        Args:
            sites: record and 0-based position of each, possibly repeated.
            sites_per_window: instead of that of the network.
        """
        windows = site_windows(
            sites, self.reference.lengths, self.window, sites_per_window or self.sites_per_window
        )
        return SitePredictions(windows, self.batch_size, len(self.strands), self._predict)

    def at_sites(self, sites: Sequence[Site], sites_per_window: int | None = None) -> Floats:
        """Log-probabilities of A, C, G and T at single sites, (K, S, 4) for the K strands that are
        read; arguments as in `site_predictions`."""
        return self.site_predictions(sites, sites_per_window).at(sites)

    @torch.no_grad()
    def _predict(self, windows: Sequence[MaskedWindow]) -> Floats:
        ids = np.stack([self.reference.window(w.record, w.start, w.end) for w in windows]).astype(
            np.int64
        )
        row = np.repeat(np.arange(len(windows)), [len(w.sites) for w in windows])
        place = np.array([site - w.start for w in windows for site in w.sites])
        known = self.process.vocab.is_emitted().numpy()[ids[row, place]]  # N stays as it is
        result = np.full((len(self.strands), len(row), NUM_BASES), np.nan)
        if known.any():
            masked = np.zeros(ids.shape, bool)
            masked[row[known], place[known]] = True
            where = torch.from_numpy(ids).to(self.device), torch.from_numpy(masked).to(self.device)
            found = site_log_probs(self.denoiser, self.process, *where, stranded=self.stranded)
            result[:, known] = found[..., list(self.process.vocab.emitted)].double().cpu().numpy()
        return result

    @torch.no_grad()
    def at_places(
        self,
        ids: Sequence[NDArray[np.uint8]],
        allele: Sequence[int],
        masked: Iterable[Bools],
        place: Sequence[int],
    ) -> Floats:
        """Log-probabilities of every token id at one masked place of each row: (Q, V).

        Args:
            ids: windows, (L,) each.
            allele: (Q,) index of the window that each row is about.
            masked: Q masks (L,), including `place (Q,)`; they are read batch by batch.
        """
        asked = (np.arange(len(ids[0])) == each for each in place)
        return np.concatenate(
            [found.numpy() for _, _, found in self._calls(ids, allele, zip(masked, asked))]
        )

    @torch.no_grad()
    def log_probs(
        self, ids: Sequence[NDArray[np.uint8]], allele: Sequence[int], masked: Iterable[Bools]
    ) -> Floats:
        """Sum of the log-probabilities of the true bases at all masked places of each row: (Q,);
        arguments as in `at_places`."""
        sums = []
        for x, asked, found in self._calls(ids, allele, ((each, each) for each in masked)):
            values = found.gather(-1, x[asked][:, None])[:, 0]
            sums.append(
                torch.zeros(len(x), dtype=torch.float64)
                .index_add_(0, asked.nonzero()[:, 0], values)
                .numpy()
            )
        return np.concatenate(sums)

    def _calls(
        self,
        ids: Sequence[NDArray[np.uint8]],
        allele: Sequence[int],
        masks: Iterable[tuple[Bools, Bools]],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens (B, L), where predictions were asked (B, L), and the predictions (M, V) float64 of
        each network call, on the CPU.

        Args:
            masks: of each row, what is masked and where predictions are asked: (L,) both.
        """
        x0 = torch.from_numpy(np.stack(ids).astype(np.int64))
        mask_id, rows = self.process.vocab.mask_id, iter(masks)
        model = self.denoiser.require_any_order("the distribution at masked sites")
        for first in range(0, len(allele), self.batch_size):
            x = x0[list(allele[first : first + self.batch_size])]
            hidden, where = (
                torch.from_numpy(np.stack(each)) for each in zip(*itertools.islice(rows, len(x)))
            )
            t = self.process.time_at(hidden.sum(-1), self.process.maskable(x).sum(-1)).float()
            xt = torch.where(hidden, mask_id, x).to(self.device)
            yield (
                x,
                where,
                model.log_probs(xt, t.to(self.device), positions=where.to(self.device))
                .double()
                .cpu(),
            )

    def window_log_probs(
        self, windows: Sequence[NDArray[np.uint8]], keys: Sequence[int], num_draws: int
    ) -> Floats:
        """log p of each window under a model from left to right, (S, draws): exact in one draw, or
        bounds in count form.

        Windows with one of the `keys (S,)` get the same random numbers.
        """

        def log_probs(ids: Tensor, chosen: Sequence[int]) -> Tensor:
            counted = self.denoiser.vocab.is_emitted(ids.device)[ids]
            batch = WindowBatch(ids, {"all": counted}, rows=torch.tensor([keys[i] for i in chosen]))
            return -torch.from_numpy(
                estimate(self.denoiser, self.process, [batch], num_draws, self.seed, 1).nats["all"]
            )

        return self._each(windows, log_probs)

    @torch.no_grad()
    def mean_features(self, windows: Sequence[NDArray[np.uint8]]) -> Floats:
        """Mean of the network's features over each window: (S, D)."""

        def mean(ids: Tensor, chosen: Sequence[int]) -> Tensor:
            return self.denoiser.features(ids).float().mean(1).double().cpu()

        return self._each(windows, mean)

    def _each(
        self,
        windows: Sequence[NDArray[np.uint8]],
        function: Callable[[Tensor, Sequence[int]], Tensor],
    ) -> Floats:
        """A function of batches of windows of equal length and their numbers, in the order of the
        windows."""
        order = sorted(range(len(windows)), key=lambda i: len(windows[i]))
        parts = []
        for _, same in itertools.groupby(order, key=lambda i: len(windows[i])):
            while chosen := list(itertools.islice(same, self.batch_size)):
                ids = torch.from_numpy(np.stack([windows[i] for i in chosen]).astype(np.int64))
                parts.append(function(ids.to(self.device), chosen).numpy())
        return np.concatenate(parts)[np.argsort(order)]


AUDITED = (
    64  # sites that share a window and are also predicted alone: until this many have been compared
)


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

    @property
    def values(self) -> list[float]:
        """What the constructor takes."""
        return [self.squared, self.count, self.shared]

    def include(self, other: Audit) -> None:
        """Add what another part of the rows found: all sites that share a window, and comparisons
        until there are `AUDITED`."""
        self.shared += other.shared
        if self.sites < AUDITED:
            self.squared, self.count = self.squared + other.squared, self.count + other.count

    def add(self, several: Floats, single: Floats) -> Self:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())
        return self
