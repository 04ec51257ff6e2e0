"""The NELBO without Monte Carlo, for sequences short enough to enumerate all masks."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser
from dnadiff.draws import float64_device
from dnadiff.process import AbsorbingProcess, require

MAX_MASKS = 1 << 14


@torch.no_grad()
def exact_curve(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    x0: Tensor,
    maskable: Tensor | None = None,
    batch_size: int = 1024,
) -> Tensor:
    """h(n) of each sequence: the cross-entropy of a masked token, averaged over all masks that
    leave n tokens visible.

    Evaluates the network on each of the 2^L - 1 masks of each sequence.

    Args:
        denoiser: not conditioned on labels.
        x0: (B, L) tokens, L at most 14.
        maskable: (L,) bool; other tokens stay visible and count neither in the loss nor in n, but
            in the time that a network is conditioned on, as in sampling
            (`AbsorbingProcess.time_at`). None is all.
        batch_size: masked sequences per network call.

    Returns:
        (B, L) float64, nats, with L the number of maskable tokens; its sum over n is the NELBO.

    Raises:
        ValueError: if there are too many masks, or nothing to mask, or for a model that goes from
            left to right.
    """
    denoiser.require_any_order("enumeration of all masks")
    require("enumeration of all masks", denoiser, AbsorbingProcess)
    maskable_at = torch.arange(x0.shape[1]) if maskable is None else maskable.nonzero()[:, 0].cpu()
    if not len(maskable_at):
        raise ValueError("there is no token to mask; exact enumeration needs at least one")
    if 2 ** len(maskable_at) > MAX_MASKS:
        raise ValueError(
            f"{len(maskable_at)} tokens have 2^{len(maskable_at)} masks; enumerate at most "
            f"{MAX_MASKS.bit_length() - 1}, or use likelihood.estimate"
        )
    chosen = torch.tensor(
        list(itertools.product([False, True], repeat=len(maskable_at)))[1:]
    )  # (M, tokens), all but the empty mask
    masks = torch.zeros(len(chosen), x0.shape[1], dtype=torch.bool)
    masks[:, maskable_at] = chosen
    masks = masks.to(x0.device)
    count = masks.sum(-1)
    h = torch.zeros(
        len(x0), len(maskable_at), dtype=torch.float64, device=float64_device(x0.device)
    )
    for row, x in enumerate(x0.long()):
        t = process.time_at(count, process.maskable(x[None]).sum(-1)).float()
        per_mask = torch.cat(
            [
                _mean_cross_entropy(denoiser, process.vocab.mask_id, x, m, s)
                for m, s in zip(masks.split(batch_size), t.split(batch_size))
            ]
        )
        for n in range(len(maskable_at)):
            h[row, n] = per_mask[count.to(per_mask.device) == len(maskable_at) - n].mean()
    return h


def exact_nelbo(
    denoiser: BaseDenoiser, process: AbsorbingProcess, x0: Tensor, maskable: Tensor | None = None
) -> Tensor:
    """The NELBO of each sequence in nats, `(B,)` float64, by enumeration of all masks; see
    `exact_curve`.

    For a denoiser without time conditioning this is the mean over all orders of -log p by the chain
    rule.
    """
    return exact_curve(denoiser, process, x0, maskable).sum(-1)


def _mean_cross_entropy(
    denoiser: BaseDenoiser, mask_id: int, x: Tensor, masks: Tensor, t: Tensor
) -> Tensor:
    """(M,) cross-entropy per masked token of one sequence `x (L,)` under each of `masks (M, L)`."""
    log_probs = denoiser.log_probs(torch.where(masks, mask_id, x), t, positions=masks)
    found = -log_probs.gather(-1, x.expand_as(masks)[masks][:, None])[:, 0]
    masks = masks.to(float64_device(masks.device))
    nll = torch.zeros(masks.shape, dtype=torch.float64, device=masks.device)
    nll[masks] = found.to(nll)
    return nll.sum(-1) / masks.sum(-1)
