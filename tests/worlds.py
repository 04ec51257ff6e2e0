"""A distribution that can be enumerated, and its exact posterior as a denoiser."""

import itertools
from dataclasses import dataclass

import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.vocab import Vocab


@dataclass(frozen=True)
class Toy:
    """A world small enough to enumerate: 3 letters (ids 0..2, mask 3), length 3, and any joint law
    over its 27 sequences."""

    joint: torch.Tensor  # (27,) probabilities
    vocab = Vocab(size=4, mask_id=3, pad_id=3, never_emitted=(3,))

    @property
    def sequences(self) -> torch.Tensor:
        """All 27, (27, 3)."""
        return torch.tensor(list(itertools.product(range(3), repeat=3)))

    @property
    def entropy(self) -> float:
        return float(-(self.joint * self.joint.log()).sum())


class Oracle(MaskedDenoiser):
    """The exact posterior p(x0_l | visible tokens) of a joint law over `sequences (S, L)`, behind
    the denoiser's contract."""

    def __init__(self, sequences: torch.Tensor, joint: torch.Tensor, vocab: Vocab) -> None:
        super().__init__(vocab)
        self.sequences, self.joint = sequences, joint.double()
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.calls = 0

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.calls += 1
        fits = ((xt[:, None] == self.sequences) | (xt[:, None] == self.vocab.mask_id)).all(
            -1
        )  # (B, S)
        weight = fits * self.joint
        onehot = torch.nn.functional.one_hot(self.sequences, self.vocab.size).double()  # (S, L, V)
        probs = torch.einsum("bs,slv->blv", weight, onehot) / weight.sum(-1)[:, None, None]
        log_probs = probs.log()
        return log_probs if positions is None else log_probs[positions]


def toy() -> Toy:
    """The same distribution every time."""
    weights = (
        torch.rand(27, generator=torch.Generator().manual_seed(3), dtype=torch.float64) ** 3 + 1e-3
    )
    return Toy(weights / weights.sum())
