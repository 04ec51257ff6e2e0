"""The contract between a network and everything that trains or samples it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from dnadiff.vocab import Vocab


class Backbone(nn.Module, ABC):
    """Token ids in, one feature vector and one row of raw logits per position out.

    Attributes:
        vocab: the alphabet it was built for.
        d_model: width D of `features`.
        causal: True if position l sees only 0..l; masked diffusion needs False.
        max_length: longest sequence it accepts, None for any.
    """

    causal: bool = False
    max_length: int | None = None

    def __init__(self, vocab: Vocab, d_model: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.d_model = d_model

    @abstractmethod
    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """What the network knows at each position, normalised and ready for `head`.

        Args:
            ids: (B, L) token ids.
            sigma: (B,) noise level; None is the network's value for "no time".
            cond: (B, C) labels; refused by a network built without them.
            valid: (B, L) bool, False on padding that must not be read; None reads everything, as published.

        Returns:
            (B, L, D).

        Raises:
            ValueError: if L exceeds `max_length`.
        """

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Raw logits of any selection of positions: (..., D) -> (..., rows), rows >= vocab.size."""

    def forward(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """`head(features(...))`: (B, L, rows)."""
        return self.head(self.features(ids, sigma, cond, valid))

    def check(self, ids: Tensor, sigma: Tensor | None, cond: Tensor | None, *, takes_sigma: bool, takes_cond: bool = False) -> None:
        """Refuse inputs that this network cannot use, rather than ignore them."""
        if self.max_length is not None and ids.shape[1] > self.max_length:
            raise ValueError(
                f"length {ids.shape[1]} exceeds what this {type(self).__name__} was built for; "
                f"use a length of at most {self.max_length}, or train with a larger data.length"
            )
        if sigma is not None and not takes_sigma:
            raise ValueError(f"this {type(self).__name__} has no time input; build the denoiser with time_conditioning=false")
        if cond is not None and not takes_cond:
            raise ValueError(f"this {type(self).__name__} was built without labels; leave cond out")
