"""Methods that compute the log-likelihood ratio of a variant, and what they ask: a model with the
genome that it reads.

`by_kind`, the default, chooses another one for each kind of variant: `masked` (one network call for
all alternatives of a site, without a Monte Carlo error), `block` (a block of bases around the
variant), `window` (the NELBO of both windows, the check of the other methods, with a large error),
and `log_prob` for models that go from left to right. Single sites are predicted alone or, with an
error that is measured, several in a window."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Interval
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.data.alignment import Alignment
from dnadiff.data.genome.inputs import Columns
from dnadiff.diffusion.denoiser import BaseDenoiser, site_log_probs
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.likelihood.estimates import variance_of_mean
from dnadiff.diffusion.likelihood.estimators import check_num_draws, is_exact
from dnadiff.diffusion.process import AbsorbingProcess, Process, require
from dnadiff.diffusion.vocab import DEPTH, POSTERIOR
from dnadiff.fields import JsonDict, Natural, PositiveInt, checked, checked_dataclass
from dnadiff.genomics.information import by_length, window_nats
from dnadiff.genomics.variants.variant import (
    TOKENIZER,
    Edit,
    Ids,
    Pair,
    Places,
    Reference,
    WindowColumns,
    pair,
    sides,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Site = tuple[str, int]  # record and 0-based position
NUM_BASES = 4
_SMALLEST_SPACING = 8  # bases between sites that share a window


# of a scored allele without a log-likelihood ratio, see `Pair.aligned`
NO_VALUE = "N at the end of a window"


class MaskedWindow(NamedTuple):
    """The window `[start, end)` of a record, and the sites in it that are masked together, in
    ascending order."""

    record: str
    start: int
    end: int
    sites: tuple[int, ...]


def site_windows(
    sites: Iterable[Site], lengths: Mapping[str, int], window: int, sites_per_window: int
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
    margin = (spacing - 1) // 2
    count = len(positions)
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

    Attributes:
        shared: the sites that share their window with another.
    """

    def __init__(self, network: Network, windows: Sequence[MaskedWindow]) -> None:
        self.network = network
        self.batches = list[list[MaskedWindow]]()
        ordered = sorted(windows, key=lambda each: each.end - each.start)
        for _, same in itertools.groupby(ordered, key=lambda each: each.end - each.start):
            while batch := list(itertools.islice(same, network.batch_size)):
                self.batches.append(batch)
        self.place = {  # of each site: the number of its batch, and the row there
            site: (number, row)
            for number, batch in enumerate(self.batches)
            for row, site in enumerate((w.record, site) for w in batch for site in w.sites)
        }
        self.read: dict[int, Floats] = {}
        self.shared = [
            (window.record, site)
            for window in windows
            for site in window.sites
            if len(window.sites) > 1
        ]

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites of the windows: (K, S, 4); NaN where the
        genome has N."""
        places = [self.place[site] for site in sites]
        for number in sorted({number for number, _ in places} - self.read.keys()):
            self.read[number] = self.network.predicted(self.batches[number])
        return np.stack([self.read[number][:, row] for number, row in places], 1)


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
        alignment: of the genome, for a network that reads its columns; None is without.

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
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        require("the effect of a variant", self.denoiser, AbsorbingProcess)
        if self.sites_per_window > max(self.window // _SMALLEST_SPACING, 1):
            raise ValueError(
                f"sites_per_window {self.sites_per_window} leaves fewer than {_SMALLEST_SPACING} "
                f"bases between the sites of a window of {self.window}; set less"
            )

    @property
    def device(self) -> torch.device:
        """Of the network."""
        return self.denoiser.device

    @property
    def strands(self) -> tuple[bool, ...]:
        """Whether each strand to read is the reverse complement."""
        return (False,) if self.stranded else (False, True)

    def pair(self, edit: Edit, reverse: bool) -> Pair:
        """Both alleles of a variant in their windows."""
        return pair(self.reference, edit, self.window, reverse, self.alignment)

    def _cond(self, columns: Sequence[WindowColumns]) -> Tensor:
        """What the network reads besides tokens, (B, L, CHANNELS)."""
        return torch.from_numpy(np.stack(columns)).to(self.device)

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
        return SitePredictions(self, windows)

    @torch.no_grad()
    def predicted(self, windows: Sequence[MaskedWindow]) -> Floats:
        """Log-probabilities (K, S, 4) at the S sites of some windows of equal length, on K
        strands."""
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
            cond = None
            if self.alignment is not None:
                cond = self._cond([self.alignment.columns(*w[:3]) for w in windows])
            found = site_log_probs(self.denoiser, self.process, x, sites, self.stranded, cond=cond)
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
            chosen = list(allele[first : first + self.batch_size])
            x = x0[chosen]
            of_batch = zip(*itertools.islice(rows, len(x)))
            hidden, asked = (torch.from_numpy(np.stack(each)) for each in of_batch)
            xt = torch.where(hidden, self.process.vocab.mask_id, x).to(self.device)
            cond = pair.columns and self._cond([pair.columns[each] for each in chosen])
            found = model.log_probs(xt, self.process.time_of(xt), cond, asked.to(self.device))
            yield x, asked, found.double().cpu()

    @torch.no_grad()
    def mean_features(self, windows: Sequence[Ids], columns: Columns = None) -> Floats:
        """Mean of the network's features over each window: (S, D)."""
        found: dict[int, Floats] = {}
        batches = by_length(tensors_of(windows), self.batch_size, self.device, columns)
        for chosen, ids, cond in batches:
            mean = self.denoiser.features(ids, cond=cond).float().mean(1).double().cpu().numpy()
            found |= dict(zip(chosen, mean))
        return np.stack([found[number] for number in range(len(windows))])


@dataclass(frozen=True)
class AlignedGenome:
    """An alignment behind the interface of `Network`, for a method that needs no model.

    Attributes:
        stranded: give the values of one strand alone; those of both are the same.
    """

    denoiser = None
    window = 0
    sites_per_window = 1
    seed = 0
    shared: ClassVar[Sequence[Site]] = ()

    reference: Any
    alignment: Alignment
    stranded: bool = False

    @classmethod
    def open(cls, reference: Any, path: str | None, stranded: bool) -> AlignedGenome:
        """A genome with the alignment in a file.

        Raises:
            ValueError: if there is none, or it is of another genome.
        """
        if path is None:
            raise ValueError(
                "variant_method phylogeny reads an alignment of the genome with its relatives, and "
                "none is given; set alignment= to a file of dnadiff.align"
            )
        (alignment := Alignment(path)).check(reference)
        return cls(reference, alignment, stranded)

    @property
    def strands(self) -> tuple[bool, ...]:
        """As of a `Network`."""
        return (False,) * (2 - self.stranded)

    def site_predictions(self, sites: object) -> AlignedGenome:
        """Nothing is computed beforehand."""
        return self

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites: (K, S, 4); NaN where nothing is aligned."""
        found = [self.alignment.columns(record, place, place + 1)[0] for record, place in sites]
        columns = np.array(found, np.float64)
        known = np.where(columns[:, DEPTH:] > 0, columns[:, POSTERIOR], np.nan)
        return np.stack([known] * len(self.strands))


def tensors_of(windows: Sequence[Ids]) -> list[Tensor]:
    """Token ids that a network reads."""
    return [torch.from_numpy(ids.astype(np.int64)) for ids in windows]


AUDITED = 64  # sites that share a window and are also predicted alone, at most


@dataclass
class Audit:
    """The error of several sites per window against one: the root of the mean squared difference of
    log-probability ratios, in nats.

    Attributes:
        squared, count: sum of the squared differences, and their number.
        shared: sites that were predicted in a window with others.
        missing: alleles without a log-likelihood ratio.
        empty: alleles for which an alignment has no base of another genome.
        haplotypes: those without a log-likelihood ratio.
        joined: haplotypes of several alleles.
    """

    squared: float = 0.0
    count: int = 0
    shared: int = 0
    missing: int = 0
    empty: int = 0
    haplotypes: int = 0
    joined: int = 0

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
        self.shared, self.missing = self.shared + other.shared, self.missing + other.missing
        self.empty += other.empty
        self.haplotypes += other.haplotypes
        self.joined += other.joined
        if self.sites < AUDITED:
            self.squared, self.count = self.squared + other.squared, self.count + other.count

    def add(self, several: Floats, single: Floats) -> None:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())


class Reading(NamedTuple):
    """A variant on one strand.

    Attributes:
        at_site: (4,) log-probabilities at its first base, masked alone.
        reverse: whether the strand is the reverse complement.
    """

    network: Network
    edit: Edit
    at_site: Floats
    reverse: bool

    @property
    def pair(self) -> Pair:
        """Both alleles in their windows."""
        return self.network.pair(self.edit, self.reverse)

    def draws(self, count: int) -> Draws:
        """Random numbers for `count` draws, keyed by the variant and the strand."""
        strand = "-" if self.reverse else "+"
        return Draws(
            hash64(self.network.seed, "variants", *self.edit[:4], strand), torch.arange(count)
        )


Estimate = tuple[float, float]  # a log-likelihood ratio and its variance
# bases of a block
_AROUND_SUBSTITUTIONS = 4
_AROUND_INDELS = 16


class VariantMethod:
    """Base class of all methods.

    Attributes:
        name: on the command line.
        for_left_to_right: whether it is for models that go from left to right (autoregressive or
            block diffusion) or for all others.
        process_type: of which process these models are.
        needs_model: whether it reads a model, with windows, on a device.
        no_value: why an allele that it scores has no value.
        without_columns: what an empty column of the alignment means for the score.
    """

    buildable = True  # a configuration may name it (`dnadiff.store.objects.locate`)
    name: ClassVar[str]
    for_left_to_right = False
    process_type: ClassVar[type[Process]] = AbsorbingProcess
    needs_model = True
    no_value = NO_VALUE
    without_columns = "the score rests on the sequence alone"

    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        """log p(alt) - log p(ref) in nats of n variants on each of the K strands, and the variance
        of these estimates: (K, n) both.

        The variance is NaN for a method without a Monte Carlo error, and 0 for an exact result.

        Args:
            at_sites: (K, n, 4) log-probabilities at the first base of each variant, masked alone.
        """
        found = [
            [self.difference(Reading(network, *each, reverse)) for each in zip(edits, of_strand)]
            for reverse, of_strand in zip(network.strands, at_sites)
        ]
        values = np.array(found, dtype=np.float64).reshape(len(network.strands), len(edits), 2)
        return values[..., 0], values[..., 1]

    def difference(self, read: Reading) -> Estimate:
        """log p(alt) - log p(ref) of one variant on one strand, and its variance."""
        raise NotImplementedError

    def reads(self, kind: str, denoiser: BaseDenoiser) -> int:
        """About how many network calls a variant of a kind needs on each strand, for the progress
        bar."""
        return 1

    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        """The method for a model; raises ValueError if there is none, or a setting that the model
        needs is not valid."""
        if self.for_left_to_right != denoiser.left_to_right:
            model, other = (
                ("a left-to-right", "log_prob")
                if denoiser.left_to_right
                else ("a masked diffusion", "masked, block or window")
            )
            raise ValueError(
                f"variant_method {self.name} cannot use {model} model; set variant_method to "
                f"{other}, or leave it out"
            )
        require(f"variant_method {self.name}", denoiser, self.process_type)
        return self

    def check(self, edit: Edit) -> None:
        """Raise ValueError for a variant that this method has no answer for."""

    def settings(self) -> JsonDict:
        """Its name and arguments."""
        return {"method": self.name, **vars(self)}


def check_method(method: object, denoiser: BaseDenoiser | None) -> VariantMethod:
    """`for_model` of a method; itself without a model. ValueError if it is not a method."""
    if not isinstance(method, VariantMethod):
        raise ValueError(
            f"variant_method is a {type(method).__name__}, not a method; choose by_kind, masked, "
            "block, window, log_prob or phylogeny"
        )
    return method if denoiser is None else method.for_model(denoiser)


def log_ratio(
    network: Network, pair: Pair, places: tuple[Places, Places], orders: Places
) -> Floats:
    """Sum over the steps of log p(alt base | visible) - log p(ref base | visible), for each order:
    (R,).

    At step s of an order the places order[0..s-1] are visible and order[s] is predicted. All other
    bases of the window are visible. For alleles of equal length the steps before the first place at
    which they differ cost the same and are left out, and there one network call serves both.

    Args:
        places: n places of each window that belong together, `Pair.aligned`.
        orders: (R, n) permutations of 0..n-1.
    """
    tokens = [ids[where].astype(np.int64) for ids, where in zip((pair.ref, pair.alt), places)]
    runs: list[tuple[int, int, Places]] = []  # number of the order, allele, predicted pairs
    for number, order in enumerate(orders):
        first = int(np.argmax((tokens[0] != tokens[1])[order])) if pair.equal else 0
        runs += [(number, 0, order[first:]), (number, 1, order[first + pair.equal :])]

    def masks() -> Iterator[tuple[Bools, Bools]]:
        for _, allele, chosen in runs:
            for step in range(len(chosen)):
                hidden, asked = np.zeros((2, len(pair.ref)), bool)
                hidden[places[allele][chosen[step:]]] = True
                asked[places[allele][chosen[step]]] = True
                yield hidden, asked

    alleles = [allele for _, allele, chosen in runs for _ in chosen]
    calls = network.predictions(pair, alleles, masks())
    found = np.concatenate([values.numpy() for *_, values in calls])
    ratios = np.zeros(len(orders))
    row = 0
    for number, allele, chosen in runs:
        here = found[row : row + len(chosen)]
        total = here[np.arange(len(here)), tokens[allele][chosen]].sum()
        ratios[number] += total if allele else -total
        if pair.equal and not allele:  # the shared first step
            ratios[number] += here[0, tokens[1][chosen[0]]]
        row += len(here)
    return ratios


class Masked(VariantMethod):
    """log p(alt base | rest) - log p(ref base | rest), the network's prediction at the masked site.

    For several bases (MNV) the chain rule over the bases that differ, from left to right on the
    strand that is read; bases between them stay visible. It has no random numbers, so no error; how
    consistent the network's conditionals are is not visible in it.
    """

    name = "masked"

    def difference(self, read: Reading) -> Estimate:
        edit = read.edit
        if edit.kind == "SNVs":
            ref, alt = TOKENIZER.bases(TOKENIZER.encode(edit.ref + edit.alt))
            return read.at_site[alt] - read.at_site[ref], np.nan
        pair = read.pair
        here = np.flatnonzero(pair.ref != pair.alt)
        order = np.arange(len(here))[None]
        return float(log_ratio(read.network, pair, (here, here), order)[0]), np.nan

    def check(self, edit: Edit) -> None:
        if edit.surplus:
            raise ValueError(
                f"variant_method masked compares alleles of equal length, and those of {edit.name} "
                "differ in length; "
                "set variant_method to by_kind, block or window, or remove insertions and deletions"
            )


@checked_dataclass
class Block(VariantMethod):
    """Mean over random orders of log p(alt block | rest) - log p(ref block | rest) by the chain
    rule.

    The bases of the block are in the context of the variant, or the variant in theirs, depending on
    the order. For alleles of equal length the estimate differs from that of `window` only in that
    bases outside the block are always visible. For others both blocks hold equally many bases
    (`Pair.aligned`); what remains is the assumption that the rest of both windows is equally
    likely. In a repeat the estimate is the mean over the places at which an insertion or deletion
    has the same result (`Pair.placements`). The error is that of the mean over the orders.

    Args:
        block: bases around the alleles, half on each side. None is 4 around alleles of equal
            length, because more of them only add variance, and 16 around others.
        num_orders: orders per variant and strand, divided among its places with at least two for
            each; about `block` network calls each for a single
            base, twice as many for an indel.
    """

    name = "block"

    block: PositiveInt | None = None
    num_orders: Annotated[int, Interval(ge=2)] = 4

    def reads(self, kind: str, denoiser: BaseDenoiser) -> int:
        around = _AROUND_INDELS if kind == "indels" else _AROUND_SUBSTITUTIONS
        return 1 + self.num_orders * (self.block or around) * (1 + (kind == "indels"))

    def difference(self, read: Reading) -> Estimate:
        pair = read.pair
        blocks = self.blocks(pair)
        draws = read.draws(max(2, -(-self.num_orders // len(blocks))))
        means = []
        variances = []
        for number, places in enumerate(blocks):
            if places is None:
                return np.nan, np.nan
            orders = self.orders(len(places[0]), draws.at(number))
            ratios = log_ratio(read.network, pair, places, orders)
            means.append(ratios.mean())
            variances.append(ratios.var(ddof=1) / len(ratios))
        return float(np.mean(means)), float(np.mean(variances) / len(blocks))

    def blocks(self, pair: Pair) -> list[tuple[Places, Places] | None]:
        """The places of a block that belong together in both windows, at each equivalent place of
        the alleles; None for no value."""
        size = self.block or (_AROUND_SUBSTITUTIONS if pair.equal else _AROUND_INDELS)
        return [placed.aligned(-(-size // 2)) for placed in pair.placements()]

    def orders(self, count: int, draws: Draws) -> Places:
        """Random orders of the places of a block: (R, count)."""
        return draws.uniform("order", count).argsort(-1).numpy()


@checked_dataclass
class PairedWindow(VariantMethod):
    """NELBO of the window with REF minus that of the window with ALT, in count form with common
    masks.

    Each draw masks k of the n bases of both windows, the same ones (those that belong together,
    `Pair.aligned`), and costs two network calls; n / k times the difference of the masked bases'
    log-probabilities has the difference of the NELBOs as its mean. Counts are stratified, two draws
    per stratum, so that the estimate of the error is unbiased
    (`dnadiff.diffusion.likelihood.estimators`).

    Args:
        num_draws: per variant and strand, even.
    """

    name = "window"

    num_draws: PositiveInt = 64

    def __post_init__(self) -> None:
        check_num_draws(self.num_draws)

    def reads(self, kind: str, denoiser: BaseDenoiser) -> int:
        return 1 + 2 * self.num_draws

    def difference(self, read: Reading) -> Estimate:
        pair = read.pair
        if (places := pair.aligned(None)) is None:
            return np.nan, np.nan
        chosen, weight = self.masks(len(places[0]), read.draws(self.num_draws))
        masked = np.zeros((2, len(chosen), len(pair.ref)), bool)
        for hidden, where in zip(masked, places):
            hidden[:, where] = chosen
        rows = masked.reshape(-1, len(pair.ref))
        sums = []
        alleles = np.repeat((0, 1), len(chosen)).tolist()
        for x, asked, found in read.network.predictions(pair, alleles, zip(rows, rows)):
            values = found.gather(-1, x[asked][:, None])[:, 0]
            empty = torch.zeros(len(x), dtype=torch.float64)
            sums.append(empty.index_add_(0, asked.nonzero()[:, 0], values).numpy())
        ref, alt = np.concatenate(sums).reshape(2, -1)
        return self.mean(weight * (alt - ref))

    def masks(self, count: int, draws: Draws) -> tuple[Bools, Floats]:
        """Which of `count` places each draw masks, (D, count), and the weights of the draws,
        (D,)."""
        strata = self.num_draws // 2
        u = (draws.uniform("count").numpy() + np.arange(self.num_draws) // 2) / strata
        number = np.minimum((u * count).astype(np.int64) + 1, count)
        rank = draws.uniform("mask", count).argsort(-1).argsort(-1).numpy()
        return rank < number[:, None], count / number

    def mean(self, values: Floats) -> Estimate:
        """The mean of the draws and its variance."""
        return float(values.mean()), float(variance_of_mean(values[None])[0])


@checked_dataclass
class LogProb(VariantMethod):
    """log p(window with ALT) - log p(window with REF).

    Exact, by the chain rule, for an autoregressive model and for block diffusion in blocks of one
    token: the error is 0. For other block diffusion models it is the difference of the NELBOs, with
        the same masks for both alleles. For an indel the windows have equal length. There is no
        value if one of them has more N, because its sum would have fewer terms.

    Args:
        num_draws: masks per window under a block diffusion model, even; an exact result needs none.
    """

    name = "log_prob"
    for_left_to_right = True

    num_draws: PositiveInt = 64

    def reads(self, kind: str, denoiser: BaseDenoiser) -> int:
        return 2 * (1 if is_exact(denoiser) else self.num_draws)

    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        method = super().for_model(denoiser)
        if not is_exact(denoiser):
            check_num_draws(self.num_draws)
        return method

    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        llr, variance = np.zeros((2, len(network.strands), len(edits)))
        for strand, reverse in enumerate(network.strands):
            pairs = [network.pair(edit, reverse) for edit in edits]
            keys = [hash64("log_prob", *e[:4], "-" if reverse else "+") >> 1 for e in edits]
            ref, alt = (
                window_nats(
                    network.denoiser,
                    network.process,
                    tensors_of(windows),
                    keys,
                    self.num_draws,
                    network.seed,
                    network.batch_size,
                    columns,
                )
                for windows, columns in sides(pairs)
            )
            difference = ref - alt  # (n, draws)
            difference[[p.aligned(0) is None for p in pairs]] = np.nan
            llr[strand] = difference.mean(1)
            if difference.shape[1] > 1:
                variance[strand] = variance_of_mean(difference)
        return llr, variance


@dataclass(eq=False)
class ByKind(VariantMethod):
    """Another method for each kind of variant.

    Args:
        snv: for single bases.
        mnv: for other replacements of equal length.
        indel: for insertions, deletions and replacements of another length.
        left_to_right: for all variants under a model that goes from left to right: autoregressive
            or block diffusion.
    """

    name = "by_kind"

    snv: VariantMethod
    mnv: VariantMethod
    indel: VariantMethod
    left_to_right: VariantMethod

    def __post_init__(self) -> None:
        for key, method in vars(self).items():
            if not isinstance(method, VariantMethod) or not method.needs_model:
                raise ValueError(
                    f"variant_method.{key} is {method!r}, no method of models; choose masked, "
                    "block, window or log_prob"
                )

    @property
    def _of(self) -> dict[str, VariantMethod]:
        return {"SNVs": self.snv, "MNVs": self.mnv, "indels": self.indel}

    def reads(self, kind: str, denoiser: BaseDenoiser) -> int:
        return self._of[kind].reads(kind, denoiser)

    def difference(self, read: Reading) -> Estimate:
        return self._of[read.edit.kind].difference(read)

    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        if denoiser.left_to_right:
            return self.left_to_right.for_model(denoiser)
        for method in self._of.values():
            method.for_model(denoiser)
        return self

    def check(self, edit: Edit) -> None:
        self._of[edit.kind].check(edit)

    def settings(self) -> JsonDict:
        return {"method": self.name, **{kind: x.settings() for kind, x in vars(self).items()}}
