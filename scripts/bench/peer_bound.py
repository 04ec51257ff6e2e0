"""One estimator of the likelihood bound for all networks of peers.py. NumPy alone: it runs in the
environments of the peers too.

The NELBO in count form: a draw masks k of the T tokens of a window, with k stratified over 1..T,
and costs (T / k) times the sum of -log p of the masked tokens given the others. The mean over draws
is an upper bound on -log p of the window.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BATCH = 32


def masks(num_windows: int, num_tokens: int, num_draws: int, seed: int) -> np.ndarray:
    """(W, D, T) bool: k tokens of each, k from the d-th of D strata of 1..T."""
    rng = np.random.default_rng(seed)
    fraction = (np.arange(num_draws) + rng.random((num_windows, num_draws))) / num_draws
    count = 1 + np.minimum((fraction * num_tokens).astype(int), num_tokens - 1)
    ranks = rng.random((num_windows, num_draws, num_tokens)).argsort(-1).argsort(-1)
    return ranks < count[..., None]


def nats_per_base(
    log_probs: Callable[[np.ndarray, np.ndarray], np.ndarray],
    tokens: np.ndarray,
    bases: int,
    num_draws: int,
    seed: int,
) -> np.ndarray:
    """The bound of each window in nats per base, (W,).

    Args:
        log_probs: of tokens (B, T) with a mask (B, T): log p (B, T) of the true tokens at masked
            positions.
        tokens: (W, T) of each window of `bases` bases.
    """
    masked = masks(*tokens.shape, num_draws, seed)
    windows = np.repeat(np.arange(len(tokens)), num_draws)
    flat, nats = masked.reshape(len(windows), -1), []
    for first in range(0, len(windows), BATCH):
        part = slice(first, first + BATCH)
        found = np.where(flat[part], -log_probs(tokens[windows[part]], flat[part]), 0.0)
        nats.append(found.sum(1) * tokens.shape[1] / flat[part].sum(1))
    return np.concatenate(nats).reshape(len(tokens), num_draws).mean(1) / bases


def random_windows(
    codes: np.ndarray, length: int, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Windows (count, length) of a sequence of bases 0..3 at random places, half of them as their
    reverse complement."""
    first = rng.integers(0, len(codes) - length, count)
    found = codes[first[:, None] + np.arange(length)]
    return np.where(rng.random((count, 1)) < 0.5, found, 3 - found[:, ::-1])
