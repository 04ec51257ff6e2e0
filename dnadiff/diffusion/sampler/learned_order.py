"""The order that the model draws itself, one token at a time (objective=learned_order)."""

from typing import cast

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, Query
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.order import OrderDenoiser
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, Sampler


class LearnedOrderSampler(Sampler):
    """One network call for each masked token: the next position is drawn from the model's
    probabilities p, then its token.

    It draws from the distribution whose likelihood `objective=learned_order` bounds, without step
    error. A denoiser that changes predictions (guidance, constraints) is called in addition, for
    the token alone: the order is that of the model itself.

    Examples:
        >>> LearnedOrderSampler(temperature=0.9).num_steps_for(length=512)
        512
    """

    exact = True
    has_weights = True

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        if not hasattr(denoiser.unwrapped, "draw_next"):
            raise ValueError(
                "LearnedOrderSampler samples from a model of objective=learned_order, and this one "
                "has no order of its own; set sampler=first_hitting, confidence or another sampler"
            )

    def draws_one_by_one(self, length: int) -> bool:
        return True

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        model = cast(OrderDenoiser, calls.denoiser.unwrapped)
        length = x.shape[1]
        order = draws.uniform("order", length)
        token = draws.uniform("token", length)
        while (active := masked.any(-1).nonzero()[:, 0]).numel():
            left = masked[active].sum(-1) - 1
            local = active.to(order.device)
            t = process.time_of(x, calls.valid)
            query = Query(x, t, calls.cond, masked, calls.valid).rows(active)
            column, log_probs = model.draw_next(query, order[local, left.to(order.device)])
            calls.nfe, calls.rows = calls.nfe + 1, calls.rows + len(active)
            now = torch.zeros_like(masked)
            now[active, column] = True
            if calls.denoiser is not model:
                log_probs = calls.log_probs(x, t, now)
            x = self.unmasked(x, now, 0, log_probs, token)
            masked = masked & ~now
        return x
