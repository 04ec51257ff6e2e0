"""Metropolis-Hastings: remask a part of a finished sequence, refill it with the model, and accept
by the reward."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from dnadiff.design.generate import SampleBatch
from dnadiff.design.method.base import DesignMethod, DesignRun
from dnadiff.diffusion.sampler.base import draw_in_chunks, redrawn
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class Metropolis(DesignMethod):
    """Markov chains of complete sequences, one for each design.

    A proposal masks up to `num_positions` random positions and draws them again from the model,
    given all others; it is accepted with the probability min(1, exp(beta (r(x') - r(x)))). If the
    model's conditional distributions are those of one joint distribution p(x), and one position is
    drawn per network call (`num_groups=null`), the chains leave p(x) exp(beta r(x)) unchanged, and
    reach it as steps grow. With a partial constraint (R, Y, ..., a GC target) every proposal has
    one position, which keeps this true. Chains start from a sample of the model or from given
    sequences. Reward calls per design: 1 + the proposals that change something.

    Args:
        num_steps: proposals.
        num_positions: at most this many positions are drawn again; the number is uniform from 1 on.
        num_groups: network calls for a proposal; None is one for each position.
        max_changes: a design differs from the sequence that it started from at this many positions
            at most; None is no limit.
        best: return the best sequence of the chain in place of the last one. This is optimization:
            the designs do not have the distribution above.

    Examples:
        >>> Metropolis(num_steps=100, max_changes=5).max_changes
        5
    """

    num_steps: PositiveInt = 100
    num_positions: PositiveInt = 8
    num_groups: PositiveInt | None = None
    max_changes: PositiveInt | None = None
    best: bool = False

    changes_given = reads_whole = True
    needs = "needs a model that reads both sides of a mask"

    def design(self, run: DesignRun) -> SampleBatch:
        x = run.generator.start_of(run.targets, run.template)
        if x is None:
            x, _ = run.sampled(weighted=False)
        move = Move(run, self)
        start = x
        value = run.rewards(x)
        best = x
        best_value = value
        for number in range(self.num_steps):
            x, value = move(x, value, run.goal.beta, number, start, self.max_changes)
            better = value > best_value
            best = torch.where(better.to(x.device)[:, None], x, best)
            best_value = torch.where(better, value, best_value)
        return run.batch(best, best_value) if self.best else run.batch(x, value)


class Move:
    """Metropolis-Hastings moves of a batch of complete sequences.

    Args:
        run: the batch.
        method: has `num_positions` and `num_groups`, as `Metropolis`.
    """

    def __init__(self, run: DesignRun, method: Any) -> None:
        self.run = run
        self.num_groups = method.num_groups
        self.designed = run.template == run.generator.process.vocab.mask_id
        self.most = min(method.num_positions, int(self.designed[0].sum()))
        if run.prepared.constrained is not None:
            self.most = 1

    def __call__(
        self,
        x: Tensor,
        value: Tensor,
        beta: float,
        number: int,
        start: Tensor | None = None,
        max_changes: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sequences (B, L) and their rewards (B,) after one proposal for each, with the noise
        of step `number`.

        At most `max_changes` positions differ from `start` afterwards. Rewards are computed for the
        proposals that change something.
        """
        proposal = self._redrawn(x, number)
        changed = (proposal != x).any(-1)
        if start is not None and max_changes is not None:
            changed &= (proposal != start).sum(-1) <= max_changes
        if not bool(changed.any()):
            return x, value
        proposed = value.clone()
        rows = changed.to(value.device)
        proposed[rows] = self.run.rewards(proposal[changed])
        gain = beta * (proposed - value)
        uniform = self.run.draws.at(number).uniform("accept", 1)[:, 0]
        accepted = rows & (uniform.to(gain.device).log() < gain)
        x = torch.where(accepted.to(x.device)[:, None], proposal, x)
        return x, torch.where(accepted, proposed, value)

    def _redrawn(self, x: Tensor, number: int) -> Tensor:
        """The sequences with some of the designed positions drawn again."""
        draws = self.run.draws.at(number)
        calls = self.run.calls
        generator = self.run.generator
        count = 1 + (draws.uniform("size", 1) * self.most).long().clamp(max=self.most - 1)  # (B, 1)
        keys = draws.uniform("place", x.shape[1]).masked_fill(~self.designed.to(count.device), 2.0)
        # Positions to draw again are those of rank below `count`, in this order.
        rank = keys.argsort(-1).argsort(-1)
        groups = count if self.num_groups is None else count.clamp(max=self.num_groups)
        group = torch.where(rank < count, rank * groups // count, -1).to(x.device)
        x = x.masked_fill(group >= 0, generator.process.vocab.mask_id)
        uniform = draws.uniform("again", x.shape[1])
        draw = partial(draw_in_chunks, adjust=generator.sampler.adjust)
        for index in range(int(groups.max())):
            now = group == index
            t = generator.process.time_of(x, calls.valid)
            x = redrawn(x, now, calls.log_probs(x, t, now), uniform, draw)
        return x
