"""The likelihood of single sequences, and the information content of each base given both sides:
how strongly a model predicts what is at a position.

Windows overlap, so that each base is predicted where its window has context on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.data.genome.inputs import ArrayInput, SequenceInput
from dnadiff.data.genome.pieces import Piece
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate
from dnadiff.diffusion.likelihood.strands import site_log_probs
from dnadiff.diffusion.process import AbsorbingProcess, require


def by_length(
    encoded: Sequence[Tensor], batch_size: int, device: torch.device
) -> Iterator[tuple[list[int], Tensor]]:
    """Indices and ids (B, L) of sequences of equal length, in batches: without padding, which not
    every network supports."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    for _, same in itertools.groupby(order, key=lambda i: len(encoded[i])):
        while batch := list(itertools.islice(same, batch_size)):
            yield batch, torch.stack([encoded[i] for i in batch]).to(device)


def nll_per_token(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    encoded: Sequence[Tensor],
    num_draws: int,
    seed: int,
    batch_size: int,
) -> np.ndarray:
    """The NELBO of each sequence, or -log p where one network call is exact, in nats per emitted
    token: `(S,)`; NaN without such a token.

    The noise of a sequence is keyed by its tokens, so that its result does not depend on the other
    sequences. `encoded` holds the token ids (L_i,) of each sequence; see
    `dnadiff.diffusion.likelihood.estimate`.
    """
    result = np.full(len(encoded), np.nan)
    for chosen, ids in by_length(encoded, batch_size, next(denoiser.parameters()).device):
        counted = process.vocab.is_emitted(ids.device)[ids]
        if not counted.any():
            continue
        rows = torch.tensor([hash64(encoded[i].numpy().tobytes().hex()) >> 1 for i in chosen])
        batches = [WindowBatch(ids, {"all": counted}, rows=rows)]
        likelihood = estimate(denoiser, process, batches, num_draws, seed, 1)
        tokens = likelihood.tokens["all"]
        result[chosen] = np.where(
            tokens > 0, likelihood.per_sequence() / np.maximum(tokens, 1), np.nan
        )
    return result


class SiteWindow(NamedTuple):
    """A window, and the positions [low, high) of its record that are predicted in it."""

    window: Piece
    low: int
    high: int


def tiles(sites: Iterable[Piece], lengths: Sequence[int], window: int) -> Iterator[SiteWindow]:
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
            yield SiteWindow(Piece(record, 0, length), start, end)
            continue
        count = -(-(end - start) // core)
        for i in range(count):
            low, high = start + (end - start) * i // count, start + (end - start) * (i + 1) // count
            first = min(max((low + high - window) // 2, 0), length - window)
            yield SiteWindow(Piece(record, first, first + window), low, high)


_TILES, _TOKENS = 64, 1 << 16  # windows computed and written together


class _Row(NamedTuple):
    """One masked copy of a tile's window: `sites` are positions in the window."""

    tile: int
    sites: Tensor


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

    def __init__(
        self,
        denoiser: BaseDenoiser,
        process: AbsorbingProcess,
        window: int,
        spacing: int,
        stranded: bool = False,
        batch_size: int = 32,
    ) -> None:
        check_denoiser(denoiser)
        self.denoiser, self.process = denoiser, process
        self.window, self.spacing, self.stranded, self.batch_size = (
            window,
            spacing,
            stranded,
            batch_size,
        )

    def of_sequences(self, sequences: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.float32]]:
        """The values (L_i,) of each sequence of token ids (L_i,); NaN for N."""
        source = ArrayInput(sequences)
        found = [np.full(len(ids), np.nan, np.float32) for ids in sequences]
        for group in self.along(source, source.sites()[1]):
            for tile, values in group:
                found[tile.window.record][tile.low : tile.high] = values
        return found

    def along(
        self, source: SequenceInput, sites: Sequence[Piece], skip: int = 0
    ) -> Iterator[list[tuple[SiteWindow, NDArray[np.float32]]]]:
        """The tiles in order with their values (high - low,), NaN for N, in lists of tiles that are
        computed together.

        `skip` leaves out tiles at the beginning: those of earlier lists.
        """
        first, second = (
            islice(tiles(sites, source.lengths, self.window), skip, None) for _ in range(2)
        )
        windows = source.windows(tile.window for tile in second)
        while waiting := list(islice(first, self.together)):
            read = [torch.from_numpy(next(windows).astype(np.int64)) for _ in waiting]
            yield list(
                zip(
                    waiting,
                    self.values(
                        read, [(t.low - t.window.start, t.high - t.window.start) for t in waiting]
                    ),
                )
            )

    @property
    def together(self) -> int:
        """Tiles in a list of `along`."""
        return max(1, min(_TILES, _TOKENS // self.window))

    def num_tiles(self, source: SequenceInput, sites: Sequence[Piece]) -> int:
        """All tiles of `along`."""
        return sum(1 for _ in tiles(sites, source.lengths, self.window))

    @torch.no_grad()
    def values(
        self, windows: Sequence[Tensor], predicted: Sequence[tuple[int, int]]
    ) -> list[NDArray[np.float32]]:
        """The values of positions [low, high) of each window `(L_i,)` of token ids."""
        device = next(self.denoiser.parameters()).device
        found = [np.full(high - low, np.nan, np.float32) for low, high in predicted]
        rows = list(self._rows(windows, predicted))
        for chosen, ids in by_length([windows[row.tile] for row in rows], self.batch_size, device):
            masked = torch.zeros(ids.shape, dtype=torch.bool)
            for number, row in enumerate(chosen):
                masked[number, rows[row].sites] = True
            log_probs = site_log_probs(
                self.denoiser, self.process, ids, masked.to(device), self.stranded
            )  # (K, M, V)
            bits = (
                information_of(log_probs, len(self.process.vocab.emitted)).mean(0).cpu().numpy()
            )  # (M,)
            for row, part in zip(chosen, np.split(bits, np.cumsum(masked.sum(1).numpy())[:-1])):
                tile, sites = rows[row]
                found[tile][sites.numpy() - predicted[tile][0]] = part
        return found

    def _rows(
        self, windows: Sequence[Tensor], predicted: Sequence[tuple[int, int]]
    ) -> Iterator[_Row]:
        emitted = self.process.vocab.is_emitted()
        for tile, (ids, (low, high)) in enumerate(zip(windows, predicted)):
            for first in range(low, min(low + self.spacing, high)):
                sites = torch.arange(first, high, self.spacing)
                sites = sites[emitted[ids[sites]]]
                if len(sites):
                    yield _Row(tile, sites)


def check_denoiser(denoiser: BaseDenoiser) -> None:
    """Raise ValueError for a model that does not see both sides of a base."""
    if denoiser.left_to_right:
        raise ValueError(
            "the information of each base needs a model that sees both sides of it, and this one "
            "goes from left to right; use one of objective=mdlm"
        )
    require("the information of each base", denoiser, AbsorbingProcess)


def information_of(log_probs: Tensor, num_tokens: int) -> Tensor:
    """log2 of the number of possible tokens minus the entropy, in bits: (..., V) -> (...), float64
    where the device has it."""
    wide = log_probs if log_probs.device.type == "mps" else log_probs.double()
    return math.log2(num_tokens) - torch.special.entr(wide.exp()).sum(-1) / math.log(2)
