"""The interface of a process, which adds noise to tokens independently of each other.

Nothing here depends on a network: `log_probs` are its predictions of x0, given as an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.parameterization import Parameterization
from dnadiff.diffusion.vocab import Vocab


class Process(ABC):
    """Adds noise to each token, from none at t = 0 to the prior at t = 1.

    Args:
        vocab: the vocabulary.
        noise: alpha(t), how much of a token is left at time t.

    Attributes:
        described: what it does, for messages.
        state: what a network reads: token ids (B, L), or vectors (B, L, D).
    """

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    )
    described: ClassVar[str] = "a process"
    state: ClassVar[Literal["ids", "vectors"]] = "ids"

    def __init__(self, vocab: Vocab, noise: NoiseSchedule) -> None:
        self.vocab, self.noise = vocab, noise

    def maskable(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The positions of `x (B, L)` that the process can change: masks and tokens that a sample
        may contain, (B, L) bool.

        An N of a genome, the special tokens of DNA and positions outside `valid` stay visible at
        all times.
        """
        found = self.vocab.is_emitted(x.device)[x] | (x == self.vocab.mask_id)
        return found if valid is None else found & valid

    @abstractmethod
    def parameterization(self) -> Parameterization:
        """What the logits of a network mean, unless the objective says otherwise."""

    @abstractmethod
    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        """x at t = 1, without any x0: `(batch_size, length)`; None are the draws of seed 0."""

    @abstractmethod
    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt given x0: `x0 (B, L)`, `t (B,)`, `maskable (B, L)` bool (others stay visible) ->
        `(B, L)`."""

    def changes(self, xt: Tensor) -> Tensor:
        """Where a reverse step may change xt: bool, of its shape."""
        return torch.ones_like(xt, dtype=torch.bool)

    @abstractmethod
    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """What each position adds to the bound on -log p(x0), nats per unit of time: (M,).

        Its integral over t from 0 to 1, with xt drawn by `corrupt`, and `ends` are the bound. It is
        0 where xt cannot change (`changes`).

        Args:
            log_probs: (M, V) predictions of x0 from xt at time t.
            x0, xt, t: (M,) each.
        """

    @abstractmethod
    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Log-probabilities of the tokens at time s < t, given xt: (M, V); arguments as in
        `integrand`."""

    def ends(self, x0: Tensor) -> Tensor:
        """KL(q_1(. | x0) || prior) of each position, nats: 0 if nothing of x0 is left at t = 1."""
        return torch.zeros(x0.shape, device=x0.device)

    def reconstruction(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """-log p(x0 | xt) of each position where nothing is left to revert, at t = 0: nats, (M,);
        arguments as in `integrand`."""
        return -log_probs.gather(-1, x0[:, None])[:, 0]


class Noised(Protocol):
    """A model that was trained to revert a process, such as a denoiser."""

    process_type: type[Process]


def require(user: str, given: Process | Noised, needed: type[Process]) -> None:
    """Raise a ValueError for a process, or a model of a process, whose formulas `user` does not
    have: its results would be numbers of another model."""
    kind = type(given) if isinstance(given, Process) else given.process_type
    if not issubclass(kind, needed):
        raise ValueError(
            f"{user} needs {needed.described}, and this model has {kind.described} "
            f"({kind.__name__}), for which its formulas do not hold; use a model of "
            "process=absorbing"
        )
