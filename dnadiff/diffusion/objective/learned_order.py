"""A learned order of unmasking: the evidence lower bound over orders."""

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone
from dnadiff.diffusion.noise import float64_device
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.objective.mdlm import Weighting
from dnadiff.diffusion.order import (
    Order,
    OrderDenoiser,
    columns_of,
    masked_log_softmax,
)
from dnadiff.fields import checked_dataclass


class OrderPrefix(NamedTuple):
    """An order that was drawn from q for each sequence, of which the first positions are visible.

    Attributes:
        scores: (B, L) of q.
        rank: (B, L) the place of each counted position in the order.
        num_visible: (B, 1) k, in 0..L - 1.
        counted: (B, L) bool, positions that have a place.
    """

    scores: Tensor
    rank: Tensor
    num_visible: Tensor
    counted: Tensor

    @property
    def num_counted(self) -> Tensor:
        """L, (B, 1)."""
        return self.counted.sum(-1, keepdim=True)

    def masked(self, num_more: int = 0) -> Tensor:
        """The positions (B, L) bool that are masked when `num_more` more are visible."""
        return self.counted & (self.rank >= self.num_visible + num_more)


class NextCosts(NamedTuple):
    """What each masked position costs if it comes next, (B, L) each, 0 where nothing is masked.

    Attributes:
        masked: bool.
        q: the probability of each to come next.
        log_ratio: log q - log p of that; only p has gradients. The weight of the token does not
            matter: it would favor orders in which tokens of low weight come first.
        nll: -log p of its token, times its weight.
    """

    masked: Tensor
    q: Tensor
    log_ratio: Tensor
    nll: Tensor

    @property
    def cost(self) -> Tensor:
        """Nats of each position if it comes next: of its place in the order and of its token."""
        return self.log_ratio + self.nll

    @property
    def expected(self) -> Tensor:
        """The share of each position in the expected cost of the next one."""
        return self.q * self.cost


@checked_dataclass
class LearnedOrder(Objective):
    """The bound E_{order ~ q} sum_i log q_i - log p_i - log mu_i on -log p(x0), where i goes
    through the places of the order.

    q_i and p_i are the probabilities of the next position among those that are still masked, mu_i
    that of its token. The former are in proportion to exp(score). The scores of q come from the
    clean sequence, those of p from what is visible. It is the evidence lower bound of
    autoregression in any order with the order as a latent variable. With equal scores it is the
    bound of `MDLM`.

    In LoMDM (arXiv 2602.02112) position i is visible with probability 1 - t^c_i at time t, which
    gives the same orders for c = exp(score). Its bound (eq. 3) is that of the continuous-time
    process, which also tells the times: this one is never above it.

    One place k of the order is drawn for each sequence, and its term is summed over the next
    position: L sum_j q_j (log q_j - log p_j - log mu_j). This term is differentiated with respect
    to p and mu.

    The derivative with respect to the scores s of q has no need of a score function. Let c(j | S)
    be log q_j - log p_j - log mu_j if S is visible. Exchanging two neighbors i, j of an order
    changes what these two cost, and nothing later, because the same positions are then visible. So
    the derivative is a sum over such pairs: E sum_k A_k C_k sum_{i, j} q_i q_j [c(j | S_k + i) -
    c(j | S_k)] (ds_i - ds_j). Here C_k is the sum of exp(score) over the masked positions and A_k
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
    """

    own_bound = True
    sampler = "learned_order"
    everywhere = False

    order: Order = field(default_factory=Order)
    learned: bool = True
    weighting: Weighting = "nelbo"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bound = self.weighting == "nelbo"

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> OrderDenoiser:
        how = self.parameterization(), self.process.noise, time_conditioning
        return OrderDenoiser(backbone, *how, self.order, self.learned)

    def compute(self, denoiser: OrderDenoiser, batch: TrainingBatch) -> Loss:
        weight = batch.weight
        num_tokens = weight.sum()
        u = strata(batch.draws, True, batch.x0.device)
        prefix = self.draw_prefix(denoiser, batch, u)
        costs = self.next_costs(denoiser, batch, prefix)
        num_averaged = num_tokens
        loss = Loss.mean(costs.expected * prefix.num_counted, num_tokens)
        if not self.bound:
            num_averaged = torch.where(costs.masked, weight, 0.0).sum()
            of_order = (costs.q * costs.log_ratio).sum(-1, keepdim=True)
            total = (costs.nll + torch.where(costs.masked, of_order, 0.0)).sum()
            loss = Loss(mean_over(total, num_averaged), loss.nll, num_tokens, num_averaged)
        if not prefix.scores.requires_grad:
            return loss
        # Every sequence counts as in the bound. Optimizers like Adam ignore the scale of what
        # reaches the scores alone; gradient clipping does not, so it is divided by the window.
        surrogate = self.order_surrogate(denoiser, batch, prefix, costs)
        surrogate = mean_over(surrogate, num_averaged) / batch.x0.shape[1]
        return loss._replace(loss=loss.loss + surrogate - surrogate.detach())

    def token_bound(self, denoiser: OrderDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        prefix = self.draw_prefix(denoiser, batch, u)
        return self.next_costs(denoiser, batch, prefix).expected * prefix.num_counted

    def draw_prefix(self, denoiser: OrderDenoiser, batch: TrainingBatch, u: Tensor) -> OrderPrefix:
        """An order from q for each sequence, with floor(u L) of its L positions visible."""
        x0 = batch.x0
        counted = batch.weight > 0
        clean = torch.zeros(len(x0), device=x0.device)
        scores = denoiser.proposal_scores(batch.query(x0, clean, None))
        local = float64_device(x0.device)
        # Positions in the order of scores with Gumbel noise are in a Plackett-Luce order.
        uniform = batch.draws.uniform("order", x0.shape[1]).to(local)
        noisy = scores.detach().to(local).double() - (-uniform.log()).log()
        noisy = noisy.masked_fill(~counted.to(local), -torch.inf)
        rank = noisy.argsort(-1, descending=True).argsort(-1).to(x0.device)
        total = counted.sum(-1)
        num_visible = torch.minimum((u * total).floor().long(), (total - 1).clamp(min=0))
        return OrderPrefix(scores, rank, num_visible[:, None], counted)

    def next_costs(
        self, denoiser: OrderDenoiser, batch: TrainingBatch, prefix: OrderPrefix, num_more: int = 0
    ) -> NextCosts:
        """The costs of the masked positions when `num_more` positions more are visible."""
        x0 = batch.x0
        masked = prefix.masked(num_more)
        xt = torch.where(masked, self.process.vocab.mask_id, x0)
        t = self.process.time_of(xt, batch.valid)
        nll, scores = denoiser.nll_and_scores(x0, batch.query(xt, t, masked))
        log_q = masked_log_softmax(prefix.scores.detach(), masked)
        log_p = masked_log_softmax(columns_of(scores, masked), masked)
        return NextCosts(
            masked,
            torch.where(masked, log_q.exp(), 0.0),
            torch.where(masked, log_q - log_p, 0.0),
            columns_of(nll, masked) * batch.weight,
        )

    def order_surrogate(
        self,
        denoiser: OrderDenoiser,
        batch: TrainingBatch,
        prefix: OrderPrefix,
        now: NextCosts,
    ) -> Tensor:
        """What has the derivative of each sequence's bound, in nats, with respect to the scores of
        q: (B,), from a second pass in which the next position is visible."""
        scores = prefix.scores
        counted = prefix.counted
        with torch.no_grad():
            after = self.next_costs(denoiser, batch, prefix, num_more=1)
            change = torch.where(after.masked, after.cost - now.cost, 0.0)
            ordered = scores.masked_fill(~counted, -torch.inf)
            ordered = ordered.gather(-1, prefix.rank.argsort(-1))
            log_c = ordered.flip(-1).logcumsumexp(-1).flip(-1)  # at each place
            until_now = torch.arange(log_c.shape[1], device=log_c.device) <= prefix.num_visible
            until_now &= counted.any(-1, keepdim=True)
            ratio = (log_c.gather(-1, prefix.num_visible) - log_c).exp()
            a_c = torch.where(until_now, ratio, 0.0).sum(-1, keepdim=True)  # A_k C_k
            weight = a_c.to(change) * prefix.num_counted * now.q * change
        chosen = counted & (prefix.rank == prefix.num_visible)
        of_chosen = torch.where(chosen, scores, 0.0).sum(-1, keepdim=True)
        return (weight * (of_chosen - scores)).sum(-1)
