"""The NELBO without Monte Carlo, for sequences so short that every mask can be tried."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from dnadiff.process import AbsorbingProcess

MOST_MASKS = 1 << 14


@torch.no_grad()
def exact_curve(
    denoiser: nn.Module, process: AbsorbingProcess, x0: Tensor, maskable: Tensor | None = None, batch_size: int = 1024
) -> Tensor:
    """h(n) of each sequence: the cross-entropy of a masked token, averaged over all masks that leave n tokens visible.

    One network row for each of the 2^L - 1 masks and each sequence.

    Args:
        denoiser: not conditioned on labels.
        process: the absorbing process.
        x0: (B, L) tokens, L at most 14.
        maskable: (L,) bool; the others stay visible, are not counted and do not belong to n. None is all.
        batch_size: network rows at a time.

    Returns:
        (B, L) float64, nats, with L the number of maskable tokens; its sum over n is the NELBO.

    Raises:
        ValueError: if there are too many masks to try, or nothing to mask.
    """
    where = torch.arange(x0.shape[1]) if maskable is None else maskable.nonzero()[:, 0].cpu()
    if not len(where):
        raise ValueError("there is no token to mask; exact enumeration needs at least one")
    if 2 ** len(where) > MOST_MASKS:
        raise ValueError(
            f"{len(where)} tokens have 2^{len(where)} masks; enumerate at most {MOST_MASKS.bit_length() - 1}, or use likelihood.estimate"
        )
    chosen = torch.tensor(list(itertools.product([False, True], repeat=len(where)))[1:])  # (M, tokens), without the empty mask
    masks = torch.zeros(len(chosen), x0.shape[1], dtype=torch.bool)
    masks[:, where] = chosen
    masks = masks.to(x0.device)
    count = masks.sum(-1)
    t = process.noise.inverse(1 - count.double() / len(where)).clamp(max=1.0).float()
    h = torch.zeros(len(x0), len(where), dtype=torch.float64, device=x0.device)
    for row, x in enumerate(x0.long()):
        per_mask = torch.cat(
            [_mean_cross_entropy(denoiser, process.vocab.mask_id, x, m, s) for m, s in zip(masks.split(batch_size), t.split(batch_size))]
        )
        for n in range(len(where)):
            h[row, n] = per_mask[count == len(where) - n].mean()
    return h


def exact_nelbo(denoiser: nn.Module, process: AbsorbingProcess, x0: Tensor, maskable: Tensor | None = None) -> Tensor:
    """The NELBO of each sequence in nats, `(B,)` float64, by enumeration of all masks; see `exact_curve`.

    For a predictor that does not know the time it is the mean over all orders of -log p by the chain rule.
    """
    return exact_curve(denoiser, process, x0, maskable).sum(-1)


def _mean_cross_entropy(denoiser: nn.Module, mask_id: int, x: Tensor, masks: Tensor, t: Tensor) -> Tensor:
    """(M,) cross-entropy per masked token of one sequence `x (L,)` under each of `masks (M, L)`."""
    log_probs = denoiser.log_probs(torch.where(masks, mask_id, x), t, positions=masks).double()
    nll = torch.zeros(masks.shape, dtype=torch.float64, device=x.device)
    nll[masks] = -log_probs.gather(-1, x.expand_as(masks)[masks][:, None])[:, 0]
    return nll.sum(-1) / masks.sum(-1)
