"""The likelihood of single sequences of any lengths, independent of each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser
from dnadiff.draws import hash64
from dnadiff.likelihood.estimators import WindowBatch, estimate
from dnadiff.process import AbsorbingProcess


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
    `dnadiff.likelihood.estimate`.
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
