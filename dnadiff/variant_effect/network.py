"""A model with the genome that it reads: what every method of scoring variants asks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser, next_nll
from dnadiff.draws import Draws, hash64
from dnadiff.likelihood.sites import site_log_probs
from dnadiff.process import AbsorbingProcess
from dnadiff.variant_effect.pairs import Pair, VariantWindow, pair, site_window
from dnadiff.variant_effect.variant import Edit, Reference

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NUM_BASES = 4


@dataclass(frozen=True)
class Network:
    """A model of DNA and the genome around the variants.

    Attributes:
        window: bases that the network reads; at the ends of short records fewer.
        batch_size: windows in a network call.
        stranded: read the given strand alone.
        sites_per_window: sites that are masked together where single sites are predicted; 1 is exact.
        seed: of the random numbers, which depend on it and on each variant, not on the other variants.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    reference: Reference
    window: int
    batch_size: int = 32
    stranded: bool = False
    sites_per_window: int = 1
    seed: int = 1

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
        key = hash64(self.seed, "variants", edit.record, edit.start, edit.ref, edit.alt, "-" if reverse else "+")
        return Draws(key, torch.arange(count))

    @torch.no_grad()
    def at_sites(self, sites: Sequence[tuple[str, int]], sites_per_window: int | None = None) -> Floats:
        """Log-probabilities of A, C, G and T at single sites given the bases around them: (K, S, 4) for the K strands that are read.

        All are those of the base on the given strand. NaN where the genome has N.

        Args:
            sites: record and 0-based position of each.
            sites_per_window: instead of that of the network.
        """
        result = np.full((len(self.strands), len(sites), NUM_BASES), np.nan)
        groups: dict[VariantWindow, dict[int, list[int]]] = {}
        each = sites_per_window or self.sites_per_window
        for number, (record, site) in enumerate(sites):
            found = site_window(self.reference, record, site, self.window, each)
            groups.setdefault(found, {}).setdefault(site, []).append(number)
        for length in sorted({g.end - g.start for g in groups}):
            chosen = [g for g in groups if g.end - g.start == length]
            for first in range(0, len(chosen), self.batch_size):
                self._predict(chosen[first : first + self.batch_size], groups, result)
        return result

    def _predict(self, chosen: Sequence[VariantWindow], groups: dict[VariantWindow, dict[int, list[int]]], result: Floats) -> None:
        ids = np.stack([self.reference.window(g.record, g.start, g.end) for g in chosen]).astype(np.int64)
        masked = np.zeros(ids.shape, bool)
        for row, group in enumerate(chosen):
            masked[row, [site - group.start for site in groups[group]]] = True
        masked &= self.process.vocab.is_emitted().numpy()[ids]  # N stays as it is
        if not masked.any():
            return
        where = torch.from_numpy(ids).to(self.device), torch.from_numpy(masked).to(self.device)
        found = site_log_probs(self.denoiser, self.process, *where, stranded=self.stranded)
        found = found[..., list(self.process.vocab.emitted)].double().cpu().numpy()  # type: ignore[assignment]
        for number, (row, place) in enumerate(zip(*masked.nonzero())):
            group = chosen[row]
            result[:, groups[group][int(place) + group.start]] = found[:, [number]]  # type: ignore[index]

    @torch.no_grad()
    def at_places(self, ids: Sequence[NDArray[np.uint8]], allele: Sequence[int], masked: Bools, place: Sequence[int]) -> Floats:
        """Log-probabilities of every token id at one masked place of each row: (Q, V).

        Args:
            ids: windows, (L,) each.
            allele: (Q,) index of the window that each row is about.
            masked: (Q, L), including `place (Q,)`.
        """
        asked = np.zeros(masked.shape, bool)
        asked[np.arange(len(place)), place] = True
        return np.concatenate([found.numpy() for _, _, found in self._calls(ids, allele, masked, asked)])

    @torch.no_grad()
    def log_probs(self, ids: Sequence[NDArray[np.uint8]], allele: Sequence[int], masked: Bools) -> Floats:
        """Sum of the log-probabilities of the true bases at all masked places of each row: (Q,); arguments as in `at_places`."""
        sums = []
        for x, asked, found in self._calls(ids, allele, masked, masked):
            values = found.gather(-1, x[asked][:, None])[:, 0]
            sums.append(torch.zeros(len(x), dtype=torch.float64).index_add_(0, asked.nonzero()[:, 0], values).numpy())
        return np.concatenate(sums)

    def _calls(
        self, ids: Sequence[NDArray[np.uint8]], allele: Sequence[int], masked: Bools, asked: Bools
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens (B, L), where predictions were asked (B, L), and the predictions (M, V) float64 of each network call, on the CPU."""
        x0 = torch.from_numpy(np.stack(ids).astype(np.int64))
        mask_id = self.process.vocab.mask_id
        for first in range(0, len(allele), self.batch_size):
            part = slice(first, first + self.batch_size)
            x, hidden, where = x0[list(allele[part])], torch.from_numpy(masked[part]), torch.from_numpy(asked[part])
            t = self.process.time_at(hidden.sum(-1), self.process.maskable(x).sum(-1)).float()
            xt = torch.where(hidden, mask_id, x).to(self.device)
            yield x, where, self.denoiser.log_probs(xt, t.to(self.device), positions=where.to(self.device)).double().cpu()

    @torch.no_grad()
    def window_log_probs(self, windows: Sequence[NDArray[np.uint8]]) -> Floats:
        """log p of each window under an autoregressive model: (S,)."""
        return self._each(windows, self._chain_rule)

    @torch.no_grad()
    def mean_features(self, windows: Sequence[NDArray[np.uint8]]) -> Floats:
        """Mean of the network's features over each window: (S, D)."""
        return self._each(windows, lambda ids: self.denoiser.backbone.features(ids).float().mean(1).double().cpu())

    def _each(self, windows: Sequence[NDArray[np.uint8]], function: Callable[[Tensor], Tensor]) -> Floats:
        """A function of batches of windows of equal length, in the order of the windows."""
        order = sorted(range(len(windows)), key=lambda i: len(windows[i]))
        parts = []
        for _, same in itertools.groupby(order, key=lambda i: len(windows[i])):
            while chosen := list(itertools.islice(same, self.batch_size)):
                ids = torch.from_numpy(np.stack([windows[i] for i in chosen]).astype(np.int64))
                parts.append(function(ids.to(self.device)).numpy())
        return np.concatenate(parts)[np.argsort(order)]

    def _chain_rule(self, ids: Tensor) -> Tensor:
        counted = self.denoiser.vocab.is_emitted(ids.device)[ids]
        nll = torch.zeros(ids.shape, dtype=torch.float64)
        nll[counted.cpu()] = next_nll(self.denoiser, ids, positions=counted).double().cpu()
        return -nll.sum(-1)
