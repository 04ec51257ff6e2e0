"""The likelihood of single sequences, and the information content of each base given both sides:
how strongly a model predicts what is at a position.

Windows overlap, so that each base is predicted where its window has context on both sides."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, tee
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.data.genome.inputs import ArrayInput, Columns, SequenceInput
from dnadiff.data.records import Interval, padded_groups
from dnadiff.diffusion.denoiser import BaseDenoiser, OptTensor, site_log_probs
from dnadiff.diffusion.likelihood.estimators import WindowBatch, check_num_draws, estimate, is_exact
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.progress import advance


def by_length(
    encoded: Sequence[Tensor],
    batch_size: int,
    device: torch.device,
    columns: Columns | Sequence[Tensor] = None,
) -> Iterator[tuple[list[int], Tensor, OptTensor]]:
    """Indices and ids (B, L) of sequences of equal length, in batches, with the columns (B, L,
    CHANNELS) of an alignment if they are given: without padding, which not every network
    supports."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    for _, same in groupby(order, key=lambda i: len(encoded[i])):
        for batch in padded_groups(same, lambda i: len(encoded[i]), batch_size):
            cond = None
            if columns is not None:
                cond = torch.stack([torch.as_tensor(columns[i]) for i in batch]).to(device)
            yield batch, torch.stack([encoded[i] for i in batch]).to(device), cond


def window_nats(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    windows: Sequence[Tensor],
    keys: Sequence[int],
    num_draws: int,
    seed: int,
    batch_size: int,
    columns: Columns,
) -> NDArray[np.float64]:
    """The NELBO of each window of token ids (L_i,) in each draw, or -log p in one draw where a
    network call is exact, in nats: (S, draws); NaN for windows without an emitted token that are
    batched alone.

    Windows with one of the `keys (S,)` get the same noise, whatever the other windows are; see
    `dnadiff.diffusion.likelihood.estimators.estimate`. `columns` are those of an alignment, (L_i,
    CHANNELS) of each window.
    """
    draws = 1 if is_exact(denoiser) else check_num_draws(num_draws)
    result = np.full((len(windows), draws), np.nan)
    device = denoiser.device
    for chosen, ids, cond in by_length(windows, batch_size, device, columns):
        counted = process.vocab.is_emitted(ids.device)[ids]
        if counted.any():
            rows = torch.tensor([keys[i] for i in chosen])
            batch = WindowBatch(ids, {"all": counted}, cond=cond, rows=rows)
            likelihood = estimate(denoiser, process, [batch], num_draws, seed, 1)
            result[chosen] = likelihood.nats["all"]
    return result


class SiteWindow(NamedTuple):
    """A window, and the positions [low, high) of its record that are predicted in it."""

    window: Interval
    low: int
    high: int


def tiles(sites: Iterable[Interval], lengths: Sequence[int], window: int) -> Iterator[SiteWindow]:
    """Windows of `window` bases that predict every position of `sites` once, in order.

    At most half of a window is predicted, in its middle, so that each base has at least a quarter
    of the window, rounded down, as context on each side, or all that its record has. A record of at
    most `window` bases is one window.

    Args:
        sites: disjoint pieces of the records, in order.
        lengths: bases of each record.
    """
    core = max(window // 2, 1)
    for record, start, end in sites:
        length = lengths[record]
        if length <= window:
            yield SiteWindow(Interval(record, 0, length), start, end)
            continue
        count = -(-(end - start) // core)
        for i in range(count):
            low = start + (end - start) * i // count
            high = start + (end - start) * (i + 1) // count
            first = min(max((low + high - window) // 2, 0), length - window)
            yield SiteWindow(Interval(record, first, first + window), low, high)


# windows computed and written together
_TILES = 64
_TOKENS = 1 << 16
Values: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Information:
    """2 - H bits of each base (log2 n - H with n possible tokens), with H the entropy of its
    distribution given the rest of its window.

    The bases of a window are masked in groups: every `spacing`-th position of the predicted part at
    once. A base is therefore predicted without the bases of its own group, the nearest of which is
    `spacing` positions away. Unless `stranded`, the value is the mean of both strands' information,
    each from its own reading of the window.

    Args:
        denoiser: in evaluation mode.
        window: bases that the network reads at once; see `tiles`.
        spacing: distance of masked positions, and the number of network calls per window and
            strand.
        stranded: read the given strand alone.

    Raises:
        ValueError: for an autoregressive or block diffusion model, which does not see all of the
            right side.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    window: int
    spacing: int
    stranded: bool = False
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.denoiser.left_to_right:
            raise ValueError(
                "the information of each base needs a model that sees both sides of it, and this "
                "one goes from left to right; use one of objective=mdlm"
            )
        require("the information of each base", self.denoiser, AbsorbingProcess)

    def of_sequences(
        self,
        sequences: Sequence[NDArray[np.uint8]],
        columns: Columns = None,
    ) -> list[Values]:
        """The values (L_i,) of each sequence of token ids (L_i,), with the columns (L_i, CHANNELS)
        of an alignment if they are given; NaN for N."""
        source = ArrayInput(sequences, columns)
        found = [np.full(len(ids), np.nan, np.float32) for ids in sequences]
        for tile, values in chain.from_iterable(self.along(source, source.sites()[1])):
            found[tile.window.record][tile.low : tile.high] = values
            advance(len(values))
        return found

    def along(
        self, source: SequenceInput, sites: Sequence[Interval], skip: int = 0
    ) -> Iterator[list[tuple[SiteWindow, Values]]]:
        """The tiles in order with their values (high - low,), NaN for N, in lists of tiles that are
        computed together.

        `skip` leaves out tiles at the beginning: those of earlier lists.
        """
        first, second = tee(islice(tiles(sites, source.lengths, self.window), skip, None))
        windows = source.windows(tile.window for tile in second)
        while waiting := list(islice(first, self.together)):
            ids = [torch.from_numpy(next(windows).astype(np.int64)) for _ in waiting]
            columns = source.columns(tile.window for tile in waiting)
            yield list(zip(waiting, self._values(ids, waiting, columns)))

    @property
    def together(self) -> int:
        """Tiles in a list of `along`."""
        return max(1, min(_TILES, _TOKENS // self.window))

    @torch.no_grad()
    def _values(
        self, windows: Sequence[Tensor], places: Sequence[SiteWindow], columns: OptTensor
    ) -> list[Values]:
        """The values of the predicted positions of each window `(L_i,)` of token ids, with columns
        (S, L, CHANNELS)."""
        vocab = self.process.vocab
        device = self.denoiser.device
        found = [np.full(tile.high - tile.low, np.nan, np.float32) for tile in places]
        rows = []  # of each masked copy of a window: its number, and the masked positions in it
        for number, (ids, (piece, low, high)) in enumerate(zip(windows, places)):
            low = low - piece.start
            high = high - piece.start
            for first in range(low, min(low + self.spacing, high)):
                sites = torch.arange(first, high, self.spacing)
                sites = sites[vocab.is_emitted()[ids[sites]]]
                if len(sites):
                    rows.append((number, sites))
        copies = [windows[number] for number, _ in rows]
        of_copies = None
        if columns is not None:
            of_copies = [columns[number, : len(windows[number])] for number, _ in rows]
        for chosen, ids, cond in by_length(copies, self.batch_size, device, of_copies):
            masked = torch.zeros(ids.shape, dtype=torch.bool)
            for row, i in enumerate(chosen):
                masked[row, rows[i][1]] = True
            log_probs = site_log_probs(
                self.denoiser, self.process, ids, masked.to(device), self.stranded, cond=cond
            )  # (K, M, V)
            wide = log_probs if device.type == "mps" else log_probs.double()
            entropy = torch.special.entr(wide.exp()).sum(-1) / math.log(2)
            bits = (math.log2(len(vocab.emitted)) - entropy).mean(0).cpu().numpy()  # (M,)
            for i, part in zip(chosen, np.split(bits, np.cumsum(masked.sum(1).numpy())[:-1])):
                number, sites = rows[i]
                tile = places[number]
                found[number][sites.numpy() - (tile.low - tile.window.start)] = part
        return found
