"""Samplers whose order depends on the network's predictions: which positions is it most confident
about?

An order that depends on distributions alone keeps the chain rule, and so the model's distribution,
as long as it unmasks one position at a time. An order that depends on drawn tokens does not
(`low_confidence`, `threshold`).
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, Sampler, in_chunks
from dnadiff.fields import PositiveInt, checked_dataclass

_STEPS = 64
_EQUAL = 1e-4


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy of each row in nats: (M, V) -> (M,)."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def margin(log_probs: Tensor) -> Tensor:
    """Probability of the most probable token minus that of the second (arXiv 2502.06768): (M, V) ->
    (M,)."""
    first, second = log_probs.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


# Confidence of a distribution: (M, V) -> (M,).
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda log_probs: log_probs.amax(-1),
    "margin": margin,
    "entropy": lambda log_probs: -entropy(log_probs),
}


class AdaptiveSampler(Sampler):
    """A sampler that unmasks the positions with the highest scores; equal scores in random order.

    Subclasses implement the score and how many positions are unmasked.

    Attributes:
        tokens_first: whether tokens are drawn at every masked position before positions are chosen.
    """

    tokens_first = False

    @abstractmethod
    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """Scores (M,) of positions with `log_probs (M, V)`, and `tokens (M,)` if they were drawn
        before (see `tokens_first`)."""

    @abstractmethod
    def choose(self, rank: Tensor, values: Tensor, unmasked: Tensor, total: Tensor) -> Tensor:
        """Which positions to unmask now: (B, L) bool. Positions of rank 0 must be among them, or
        the loop would not end.

        Args:
            rank: (B, L) place in descending order of scores; masked positions hold 0, 1, ...
            values: (B, L) the scores; -inf where nothing is masked.
            unmasked: (B, 1) number of positions unmasked so far.
            total: (B, 1) number of positions to unmask.
        """

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        length = x.shape[1]
        total = masked.sum(-1, keepdim=True)
        tie = draws.uniform("tie", length).argsort(-1).to(x.device)
        for i in itertools.count():
            if not masked.any():
                break
            log_probs = calls.log_probs(x, process.time_of(x, calls.valid), masked)  # (M, V)
            uniform = draws.at(i).uniform("token", length)
            drawn = tokens = None
            if self.tokens_first:
                drawn = self.unmasked(x, masked, i, log_probs, uniform)
                tokens = drawn[masked]
            score = in_chunks(self.score, log_probs, tokens)
            values = score.new_full(x.shape, -torch.inf).masked_scatter(masked, score)
            unmasked = total - masked.sum(-1, keepdim=True)
            now = masked & self.choose(ranks(values, tie), values, unmasked, total)
            if drawn is None:  # only the chosen positions need a draw
                drawn = self.unmasked(x, now, i, log_probs[now[masked]], uniform)
            x = torch.where(now, drawn, x)
            masked = masked & ~now
        return x


class TokensFirstSampler(AdaptiveSampler):
    """An adaptive sampler that scores drawn tokens by the model's own probability of them, whatever
    temperature they were drawn at."""

    tokens_first = True

    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        assert tokens is not None
        return log_probs.gather(-1, tokens[:, None])[:, 0]


@checked_dataclass
class StepsSampler(AdaptiveSampler):
    """An adaptive sampler that unmasks (almost) equally many positions in each of `num_steps`
    calls.

    Args:
        num_steps: K; a sequence with fewer masked positions is filled one by one. None is 64, or
            the length if that is less.
    """

    num_steps: PositiveInt | None = None

    def check_length(self, length: int) -> None:
        if self.num_steps is not None and self.num_steps > length:  # each step unmasks something
            raise ValueError(
                f"num_steps {self.num_steps} is larger than the length {length}; set "
                f"sampler.num_steps to at most {length}"
            )

    def num_steps_for(self, length: int) -> int:
        return min(_STEPS, length) if self.num_steps is None else self.num_steps

    def choose(self, rank: Tensor, values: Tensor, unmasked: Tensor, total: Tensor) -> Tensor:
        # The same sizes as the groups of `Grouped`.
        steps = total.clamp(min=1, max=self.num_steps_for(rank.shape[1]))
        total = total.clamp(min=1)
        step = unmasked * steps // total  # the group of the next position
        return rank < (-((-(step + 1) * total) // steps)) - unmasked


def ranks(values: Tensor, tie: Tensor) -> Tensor:
    """Place of each position in descending order of `values (B, L)`, equal ones in the order of the
    permutations `tie (B, L)`.

    Equal up to `_EQUAL`: mirrored positions of a reverse-complement equivariant network differ by
    rounding, which must not decide.
    """
    values = (values / _EQUAL).round()
    order = tie.gather(-1, values.gather(-1, tie).argsort(dim=-1, descending=True, stable=True))
    return order.argsort(-1)
