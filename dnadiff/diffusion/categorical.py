"""Draw from categorical distributions given as log-probabilities, with exact tails.

Each row takes one uniform number and inverts the cumulative distribution in float64. Gumbel noise
in float32 cannot exceed 16.64 and draws a symbol of probability 1e-8 tens of times too rarely
(arXiv 2409.02908).
"""

from __future__ import annotations

import torch
from torch import Tensor


class NoMassError(ValueError):
    """Every symbol has probability 0."""


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """One id for each row: `log_probs (M, V)` (need not be normalized), `uniform (M,)` float64 in
    (0, 1) -> `(M,)` int64.

    A symbol of probability 0 is never drawn. On a device without float64 the draw happens on the
    CPU.

    Raises:
        NoMassError: if every symbol of a row has probability 0.
        ValueError: if `log_probs` contains NaN or infinity.
    """
    device = log_probs.device
    if device.type == "mps":
        log_probs = log_probs.cpu()
    log_probs = log_probs.double()
    cdf = (log_probs - log_probs.amax(-1, keepdim=True)).exp().cumsum(-1)  # (M, V)
    impossible = ~(cdf[:, -1] >= 1)  # the most probable symbol alone counts 1
    if impossible.any():
        if (log_probs[impossible] == -torch.inf).all():
            raise NoMassError(
                "log_probs has a row in which every symbol has probability 0: nothing can be drawn"
            )
        raise ValueError("log_probs contains NaN or infinity: nothing can be drawn")
    target = uniform.to(cdf)[:, None] * cdf[:, -1:]
    ids = torch.searchsorted(cdf, target, right=True)[:, 0]
    # Rounding can lift the target to the total; the last symbol with mass is then the answer.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous())[:, 0]
    return torch.minimum(ids, last).to(device)


def adjust(log_probs: Tensor, temperature: float, k: int | None, mass: float) -> Tensor:
    """Apply `temper`, then `top_k`, then `nucleus`. `Sampler` checks the values."""
    return nucleus(top_k(temper(log_probs, temperature), k), mass)


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of p^(1/temperature), normalized; 1 returns them unchanged."""
    if temperature == 1:
        return log_probs
    log_probs = log_probs.double()
    # otherwise even the most probable symbol would overflow at a tiny temperature
    log_probs = log_probs - log_probs.amax(-1, keepdim=True)
    return torch.log_softmax(log_probs / temperature, dim=-1)


def top_k(log_probs: Tensor, k: int | None) -> Tensor:
    """The k most probable symbols of each row, the rest at -inf; None keeps all."""
    if k is None or k >= log_probs.shape[-1]:
        return log_probs
    kept = log_probs.topk(k, dim=-1).indices
    return torch.full_like(log_probs, -torch.inf).scatter(-1, kept, log_probs.gather(-1, kept))


def nucleus(log_probs: Tensor, mass: float) -> Tensor:
    """The smallest set of symbols whose probability reaches `mass`, the rest at -inf; 1 keeps all
    (arXiv 1904.09751)."""
    if mass == 1:
        return log_probs
    ordered, order = log_probs.double().sort(dim=-1, descending=True)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(-1) - probs  # mass of the symbols ranked above: the first is always kept
    return log_probs.masked_fill((before >= mass).scatter(-1, order, before >= mass), -torch.inf)
