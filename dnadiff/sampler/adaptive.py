"""The loop of samplers whose order of revealing looks at what the network says: which positions is it sure about?

Each step asks at every masked position of the sequences that are not finished, opens some of them, and asks again. An order that
looks at distributions alone keeps the chain rule, and so the model's law, where it opens one position at a time; an order that
looks at tokens already drawn does not (`low_confidence`, `threshold`).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import CountedDenoiser, Sampler, Samples, time_of, to_fill, whole

_STEPS = 64
_EQUAL = 1e-4


def entropy(log_probs: Tensor) -> Tensor:
    """Nats of each row: (M, V) -> (M,)."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def margin(log_probs: Tensor) -> Tensor:
    """Probability of the likeliest token less that of the second (arXiv 2502.06768): (M, V) -> (M,)."""
    first, second = log_probs.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


# How sure a distribution is, higher is surer: (M, V) -> (M,).
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda log_probs: log_probs.amax(-1),
    "margin": margin,
    "entropy": lambda log_probs: -entropy(log_probs),
}


def check_order(order: str) -> str:
    """Give back the name of an order, or refuse it.

    Raises:
        ValueError: if it is unknown.
    """
    if not isinstance(order, str) or order not in ORDERS:
        raise ValueError(f"order {order!r} is not known; choose {', '.join(ORDERS)}")
    return order


class AdaptiveSampler(Sampler):
    """A sampler that chooses positions by scores, the highest first; equal scores in random order.

    Children say what is scored, how many open, and whether tokens are drawn before positions are chosen (`tokens_first`).
    """

    tokens_first: bool = False

    @abstractmethod
    def score(self, log_probs: Tensor, tokens: Tensor | None) -> Tensor:
        """Scores (M,) of positions with `log_probs (M, V)` and, with `tokens_first`, drawn `tokens (M,)`."""

    @abstractmethod
    def choose(self, rank: Tensor, values: Tensor, opened: Tensor, total: Tensor) -> Tensor:
        """Which positions open now: (B, L) bool; those of rank 0 must be among them, or the loop would not end.

        Args:
            rank: (B, L) place in the order of scores; masked positions hold 0, 1, ...
            values: (B, L) the scores; -inf where nothing is masked.
            opened: (B, 1) positions that this sampler has opened.
            total: (B, 1) positions that it has to open.
        """

    @torch.no_grad()
    def sample(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        x_init: Tensor,
        draws: Draws,
        frozen: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Samples:
        """See `Sampler.sample`."""
        self.check_model(denoiser)
        self.check_length(x_init.shape[1])
        masked, length = to_fill(x_init, process, frozen), x_init.shape[1]
        x, calls, total = x_init.clone(), CountedDenoiser(denoiser, cond, valid), masked.sum(-1, keepdim=True)
        tie = draws.uniform("tie", length).argsort(-1).to(x.device)
        for i in itertools.count():
            if not masked.any():
                return Samples(x, calls.nfe, calls.rows)
            left = masked.sum(-1, keepdim=True)
            log_probs = calls.log_probs(x, time_of(x, process, valid), masked)  # (M, V)
            uniform = draws.at(i).uniform("token", length)
            tokens = self.reveal(i, log_probs, uniform[masked.to(uniform.device)]) if self.tokens_first else None
            score = self.score(log_probs, tokens)
            values = torch.full(x.shape, -torch.inf, dtype=score.dtype, device=x.device).masked_scatter(masked, score)
            opens = self.choose(_ranks(values, tie), values, total - left, total) & masked
            if tokens is None:  # positions are chosen: only these meet the draw
                tokens = self.reveal(i, log_probs[opens[masked]], uniform[opens.to(uniform.device)])
            else:
                tokens = tokens[opens[masked]]
            x[opens] = tokens.to(x)
            masked = masked & ~opens


class StepsSampler(AdaptiveSampler):
    """An adaptive sampler that opens (almost) equally many positions in each of `num_steps` calls.

    Args:
        num_steps: K; a sequence with fewer masked positions is filled one by one. None is 64, or the length if that is less.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(self, num_steps: int | None = None, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        super().__init__(temperature, top_k, nucleus)
        self.num_steps = None if num_steps is None else whole("num_steps", num_steps)

    def check_length(self, length: int) -> None:
        """Each step opens something."""
        if self.num_steps is not None and self.num_steps > length:
            raise ValueError(f"num_steps {self.num_steps} is larger than the length {length}; set sampler.num_steps to at most {length}")

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return min(_STEPS, length) if self.num_steps is None else self.num_steps

    def choose(self, rank: Tensor, values: Tensor, opened: Tensor, total: Tensor) -> Tensor:
        """See `AdaptiveSampler.choose`: the same sizes as groups of `Grouped` have."""
        steps = total.clamp(min=1, max=self.num_steps_for(rank.shape[1]))
        total = total.clamp(min=1)
        step = opened * steps // total  # the group of the next position to open
        return rank < (-((-(step + 1) * total) // steps)) - opened


def _ranks(values: Tensor, tie: Tensor) -> Tensor:
    """Place of each position in descending order of `values (B, L)`, equal ones in the order of the permutations `tie (B, L)`.

    Equal up to `_EQUAL`: mirrored positions of a reverse-complement equivariant network differ by rounding, which must not decide.
    """
    values = (values / _EQUAL).round()
    order = tie.gather(-1, values.gather(-1, tie).argsort(dim=-1, descending=True, stable=True))
    return order.argsort(-1)
