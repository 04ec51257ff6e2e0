"""A learned order of unmasking: the evidence lower bound over orders."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone
from dnadiff.diffusion.draws import float64_device
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, check_fit, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.objective.mdlm import Weighting
from dnadiff.diffusion.order import (
    LeftToRight,
    Order,
    OrderDenoiser,
    columns_of,
    masked_log_softmax,
)
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.fields import checked


class Place(NamedTuple):
    """One place of an order that was drawn from q for each sequence.

    Attributes:
        scores: (B, L) of q.
        rank: (B, L) the place of each counted position in the order.
        number: (B, 1) k, positions that are visible.
        counted: (B, L) bool, positions that have a place.
    """

    scores: Tensor
    rank: Tensor
    number: Tensor
    counted: Tensor

    @property
    def num_counted(self) -> Tensor:
        """L, (B, 1)."""
        return self.counted.sum(-1, keepdim=True)

    def masked(self, later: int = 0) -> Tensor:
        """The positions (B, L) bool that are masked `later` places after this one."""
        return self.counted & (self.rank >= self.number + later)


class Step(NamedTuple):
    """What the masked positions of one place cost, (B, L) each, 0 where nothing is masked.

    Attributes:
        masked: bool.
        q: the probability of each to come next.
        order: log q - log p of that; only p has gradients.
        nll: -log p of its token, times its weight.
    """

    masked: Tensor
    q: Tensor
    order: Tensor
    nll: Tensor

    @property
    def cost(self) -> Tensor:
        """What each position costs if it comes next."""
        return self.order + self.nll

    @property
    def expected(self) -> Tensor:
        """The share of each position in the expected cost of the next one."""
        return self.q * self.cost


@checked
class LearnedOrder(Objective):
    """E_{order ~ q} sum_i log q_i - log p_i - log mu_i, a bound on -log p(x0): i goes through the
    places of the order, and q_i and p_i are the probabilities of its position among those that are
    still masked.

    Both are in proportion to exp(score). The scores of q come from the clean sequence, those of p
    from what is visible. It is the evidence lower bound of autoregression in any order with the
    order as a latent variable. In LoMDM (arXiv 2602.02112) position i is visible with probability
    1 - t^c_i at time t, which gives the same orders for c = exp(score). Its bound (eq. 3) is that
    of the continuous-time process, which also tells the times: this one is never above it. With
    equal scores it is the bound of `MDLM`.

    One place k of the order is drawn for each sequence, and its term is summed over the next
    position: L sum_j q_j (log q_j - log p_j - log mu_j). This term is differentiated with respect
    to p and mu.

    The derivative with respect to the scores s of q has no need of a score function. Let c(j | S)
    be log q_j - log p_j - log mu_j if S is visible. Exchanging two neighbors i, j of an order
    changes what these two cost, and nothing later, because the same positions are then visible. So
    the derivative is a sum over such pairs: E sum_k A_k C_k sum_{i, j} q_i q_j [c(j | S_k + i) -
    c(j | S_k)] (ds_i - ds_j), where C_k is the sum of exp(score) over the masked positions and A_k
    that of 1/C over the places up to k. A second pass, with one more position visible, estimates
    it. Deviation: LoMDM has REINFORCE with a leave-one-out baseline (eq. 8), whose mean is the
    same and which also has the noise of all other places.

    A step has three passes: the clean sequence and the second pass without gradients, and the
    masked sequence. A fixed order has one.

    Args:
        process: the absorbing process.
        order: where scores start, and what they stay with `learned=False`.
        learned: whether scores are learned.
        weighting: `nelbo` differentiates the bound. `cross_entropy` trains the tokens on the plain
            mean over all masked ones, as in `MDLM`, whatever their probability to come next: an
            order with few candidates has few tokens in its bound. The order is learned from the
            bound either way.
        stratified: spread the places over the global batch.
    """

    own_bound = True
    sampler = "learned_order"
    everywhere = False

    def __init__(
        self,
        process: AbsorbingProcess,
        order: Order | None = None,
        learned: bool = True,
        weighting: Weighting = "nelbo",
        stratified: bool = True,
    ) -> None:
        super().__init__(process)
        self.order, self.learned = order or LeftToRight(), learned
        self.bound, self.stratified = weighting == "nelbo", stratified

    def denoiser(self, backbone: Backbone, time_conditioning: bool | None = None) -> OrderDenoiser:
        check_fit(type(self), backbone)
        return OrderDenoiser(
            backbone,
            self.parameterization(),
            self.process.noise,
            bool(time_conditioning),
            self.order,
            self.learned,
        )

    def compute(self, denoiser: OrderDenoiser, batch: TrainingBatch) -> Loss:
        weight, num_tokens = batch.weight, batch.weight.sum()
        u = strata(batch.draws, self.stratified, batch.x0.device)
        place = self.place(denoiser, batch, u)
        step, num_counted = self.step(denoiser, batch, place), place.num_counted
        loss = Loss.mean(step.expected * num_counted, num_tokens)
        if not self.bound:
            num_masked = torch.where(step.masked, weight, 0.0).sum()
            of_order = (step.q * step.order).sum(-1, keepdim=True)
            total = (step.nll + torch.where(step.masked, of_order, 0.0)).sum()
            loss = Loss(mean_over(total, num_masked), loss.nll, num_tokens, num_masked)
        if not place.scores.requires_grad:
            return loss
        # Optimizers like Adam ignore the scale of what reaches the scores alone; gradient clipping
        # does not.
        scale = num_counted.clamp(min=1).square()[:, 0]
        surrogate = (self.order_surrogate(denoiser, batch, place, step) / scale).mean()
        return loss._replace(loss=loss.loss + surrogate - surrogate.detach())

    def token_bound(self, denoiser: OrderDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        place = self.place(denoiser, batch, u)
        return self.step(denoiser, batch, place).expected * place.num_counted

    def place(self, denoiser: OrderDenoiser, batch: TrainingBatch, u: Tensor) -> Place:
        """An order from q and one of its places for each sequence: floor(u L) of 0..L - 1."""
        x0, counted = batch.x0, batch.weight > 0
        clean = torch.zeros(len(x0), device=x0.device)
        scores = denoiser.proposal_scores(batch.query(x0, clean, None))
        local = float64_device(x0.device)
        # Positions in the order of scores with Gumbel noise are in a Plackett-Luce order.
        uniform = batch.draws.uniform("order", x0.shape[1]).to(local)
        noisy = scores.detach().to(local).double() - (-uniform.log()).log()
        noisy = noisy.masked_fill(~counted.to(local), -torch.inf)
        rank = noisy.argsort(-1, descending=True).argsort(-1).to(x0.device)
        total = counted.sum(-1)
        number = torch.minimum((u * total).floor().long(), (total - 1).clamp(min=0))
        return Place(scores, rank, number[:, None], counted)

    def step(
        self, denoiser: OrderDenoiser, batch: TrainingBatch, place: Place, later: int = 0
    ) -> Step:
        """The costs of the masked positions, `later` places after `place`."""
        x0, masked = batch.x0, place.masked(later)
        xt = torch.where(masked, self.process.vocab.mask_id, x0)
        total = self.process.maskable(x0, batch.valid).sum(-1)
        t = self.process.time_at(masked.sum(-1), total).float()
        nll, scores = denoiser.nll_and_scores(x0, batch.query(xt, t, masked))
        log_q = masked_log_softmax(place.scores.detach(), masked)
        log_p = masked_log_softmax(columns_of(scores, masked), masked)
        return Step(
            masked,
            torch.where(masked, log_q.exp(), 0.0),
            torch.where(masked, log_q - log_p, 0.0),
            columns_of(nll, masked) * batch.weight,
        )

    def order_surrogate(
        self, denoiser: OrderDenoiser, batch: TrainingBatch, place: Place, now: Step
    ) -> Tensor:
        """What has the derivative of each sequence's bound, in nats, with respect to the scores of
        q: (B,), from a second pass in which the next position is visible."""
        scores, counted = place.scores, place.counted
        with torch.no_grad():
            after = self.step(denoiser, batch, place, later=1)
            change = torch.where(after.masked, after.cost - now.cost, 0.0)
            ordered = scores.masked_fill(~counted, -torch.inf)
            ordered = ordered.gather(-1, place.rank.argsort(-1))
            log_c = ordered.flip(-1).logcumsumexp(-1).flip(-1)  # at each place
            before = torch.arange(log_c.shape[1], device=log_c.device) <= place.number
            before &= counted.any(-1, keepdim=True)
            ratio = (log_c.gather(-1, place.number) - log_c).exp()
            waited = torch.where(before, ratio, 0.0).sum(-1, keepdim=True)  # A_k C_k
            weight = waited.to(change) * place.num_counted * now.q * change
        chosen = counted & (place.rank == place.number)
        of_chosen = torch.where(chosen, scores, 0.0).sum(-1, keepdim=True)
        return (weight * (of_chosen - scores)).sum(-1)
