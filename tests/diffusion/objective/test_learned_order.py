"""The bound over orders in worlds where every order and every string can be enumerated."""

import itertools
import math

import numpy
import pytest
import torch

from dnadiff.diffusion.denoiser import Denoiser, DenoiserWrapper, Query
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimates import OWN
from dnadiff.diffusion.likelihood.estimators import estimate, exact_nelbo
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.learned_order import LearnedOrder, OrderPrefix
from dnadiff.diffusion.objective.masking import ExactCount
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.order import Order, columns_of, masked_log_softmax
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.learned_order import LearnedOrderSampler
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import BidirectionalBackbone
from dnadiff.networks.backbone.dit import DiT

BIT = Vocab(3, 2, 2, (2,))
PROCESS = AbsorbingProcess(BIT, LogLinear())
L = 3
ORDERS = torch.tensor(list(itertools.permutations(range(L))))
STRINGS = torch.tensor(list(itertools.product(range(2), repeat=L)))


class Lookup(BidirectionalBackbone):
    """A network with any features for any input, (27, 3, 4), and logits of them."""

    def __init__(self):
        super().__init__(BIT, 4)
        self.table, self.logits = torch.nn.Parameter(torch.zeros(27, 3, 4)), torch.nn.Linear(4, 3)

    def embed(self, ids):
        return self.table[(ids * torch.tensor([9, 3, 1])).sum(-1)]

    def mix(self, h, sigma, cond, valid):
        return h

    def head(self, features):
        return self.logits(features)


def made(objective):
    """The objective's denoiser around an arbitrary network, in float64."""
    torch.manual_seed(1)
    denoiser = objective.denoiser(Lookup())
    for weight in denoiser.parameters():
        torch.nn.init.normal_(weight)
    return denoiser.double().eval()


def every_order(objective, denoiser, x0, weight=None):
    """For each order of one string: its probability under q, its costs with all gradients, the
    costs expected at its places, and the surrogate of the order's gradient."""
    batch = batch_of(x0.expand(len(ORDERS), L), weight)
    scores = denoiser.proposal_scores(batch.query(batch.x0, torch.zeros(len(ORDERS)), None))
    rank, log_q, costs, expected, surrogate = ORDERS.argsort(-1), 0.0, 0.0, 0.0, 0.0
    for k in range(L):
        num_visible = torch.full((len(ORDERS), 1), k)
        everywhere = torch.ones_like(rank, dtype=torch.bool)
        prefix = OrderPrefix(scores, rank, num_visible, everywhere)
        step = objective.next_costs(denoiser, batch, prefix)
        now = ORDERS[:, k, None]
        log_next = masked_log_softmax(scores, prefix.masked()).gather(-1, now)[:, 0]
        # `costs` has log q without its gradient
        costs = costs + (log_next - log_next.detach() + step.cost.gather(-1, now)[:, 0])
        log_q, expected = log_q + log_next, expected + step.expected.sum(-1)
        if scores.requires_grad:
            surrogate = surrogate + objective.order_surrogate(denoiser, batch, prefix, step) / L
    return log_q.exp(), costs, expected, surrogate


def batch_of(x0, weight=None):
    weight = torch.ones(x0.shape) if weight is None else weight
    return TrainingBatch(x0, weight, Draws.for_batch(3, len(x0)))


@torch.no_grad()
def exact_log_p(denoiser):
    """log p of every string: the sum over orders of what the sampler draws."""
    total = []
    for order in ORDERS:
        xt, log_p = torch.full_like(STRINGS, 2), 0.0
        for position in order:
            masked = xt == 2
            nll, scores = denoiser.nll_and_scores(STRINGS, Query(xt, None, None, masked))
            log_next = masked_log_softmax(columns_of(scores, masked), masked)
            log_p = log_p + (log_next - columns_of(nll, masked))[:, position]
            xt[:, position] = STRINGS[:, position]
        total.append(log_p)
    return torch.stack(total).logsumexp(0)


def bounds(objective, denoiser):
    """The bound of every string."""
    found = []
    with torch.no_grad():
        for x0 in STRINGS:
            chance, costs, expected, _ = every_order(objective, denoiser, x0)
            torch.testing.assert_close((chance * costs).sum(), (chance * expected).sum())
            found.append((chance * expected).sum())
    return torch.stack(found)


def test_the_bound_is_above_the_exact_likelihood_of_every_string():
    objective = LearnedOrder(PROCESS, Order(0.5))
    denoiser = made(objective)
    log_p, found = exact_log_p(denoiser), bounds(objective, denoiser)
    torch.testing.assert_close(log_p.exp().sum(), torch.tensor(1.0).double())
    assert (found > -log_p + 1e-3).all() and (found < -log_p + 6).all()


def test_with_equal_scores_it_is_the_bound_of_mdlm():
    objective = LearnedOrder(PROCESS)
    denoiser = made(objective)
    for head in (denoiser.proposal, denoiser.model):
        torch.nn.init.zeros_(head.output.weight)
        torch.nn.init.zeros_(head.steepness)
    with torch.no_grad():
        found, whole = bounds(objective, denoiser), exact_nelbo(denoiser, PROCESS, STRINGS)
    torch.testing.assert_close(found, whole, atol=1e-6, rtol=0)


def test_it_is_never_above_the_bound_in_continuous_time():
    # LoMDM's equation 3 with rates c/t: sum over masked positions of c log c/c^ - c log mu - c + c^
    objective = LearnedOrder(PROCESS, Order(0.4))
    denoiser = made(objective)
    nodes, weights = numpy.polynomial.legendre.leggauss(200)
    times, found = (nodes - 1) * 30, bounds(objective, denoiser)  # log t from -60 to 0
    masks = torch.tensor(list(itertools.product([False, True], repeat=L)))
    with torch.no_grad():
        for x0, bound in zip(STRINGS, found):
            x = x0.expand(len(masks), L)
            c = denoiser.proposal_scores(Query(x)).exp()
            xt = torch.where(masks, 2, x)
            nll, scores = denoiser.nll_and_scores(x, Query(xt, None, None, masks))
            model = columns_of(scores, masks)
            cost = c * (c.log() - model + columns_of(nll, masks)) - c + model.exp()
            cost = torch.where(masks, cost, 0.0).sum(-1)
            total = 0.0
            for log_t, weight in zip(times, 30 * weights):
                hidden = (c * log_t).exp()
                total += weight * (torch.where(masks, hidden, 1 - hidden).prod(-1) * cost).sum()
            assert total > bound - 1e-6


def test_the_gradient_of_the_order_is_that_of_the_enumerated_bound():
    objective = LearnedOrder(PROCESS, Order(0.3))
    denoiser = made(objective)
    for x0, weight in ((STRINGS[3], None), (STRINGS[6], torch.tensor([[0.5, 1.0, 0.25]]))):
        weight = None if weight is None else weight.expand(len(ORDERS), L)
        parameters = list(denoiser.proposal.parameters())
        chance, costs, _, surrogate = every_order(objective, denoiser, x0, weight)
        true = torch.autograd.grad((chance * costs).sum(), parameters, retain_graph=True)
        found = torch.autograd.grad((chance.detach() * surrogate).sum(), parameters)
        assert max(float(each.abs().max()) for each in true) > 1e-3
        torch.testing.assert_close(found, true, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
def test_the_order_of_a_batch_is_learned_from_the_mean_over_its_tokens(weighting):
    objective = LearnedOrder(PROCESS, Order(0.3), weighting=weighting)
    denoiser = made(objective)
    parameters = list(denoiser.proposal.parameters())

    def gradients(*weight):
        # that of the loss, times the number of tokens of which it is a mean
        batch = batch_of(STRINGS[[3, 6]], torch.tensor(weight))
        loss = objective.compute(denoiser, batch)
        averaged = loss.num_tokens if loss.num_averaged is None else loss.num_averaged
        return torch.autograd.grad(loss.loss * averaged, parameters)

    none, short, whole = [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]
    both, first, second = gradients(short, whole), gradients(short, none), gradients(none, whole)
    assert all(float(each.abs().max()) > 1e-3 for each in (first[0], second[0]))
    torch.testing.assert_close(both, tuple(a + b for a, b in zip(first, second)))


def test_the_gradient_of_the_model_is_that_of_the_enumerated_bound():
    objective = LearnedOrder(PROCESS, Order(0.3))
    denoiser = made(objective)
    parameters = [*denoiser.model.parameters(), *denoiser.backbone.parameters()]
    chance, costs, expected, _ = every_order(objective, denoiser, STRINGS[5])
    true, found = (
        torch.autograd.grad(
            (chance.detach() * each).sum(), parameters, retain_graph=True, allow_unused=True
        )
        for each in (costs, expected)
    )
    torch.testing.assert_close(found, true, atol=1e-9, rtol=1e-6)


def test_a_draw_of_the_bound_has_it_as_mean_and_counts_tokens_of_weight_alone():
    objective = LearnedOrder(PROCESS, Order(0.5))
    denoiser = made(objective)
    rows = STRINGS.repeat_interleave(2000, 0)
    u = (torch.arange(2000).repeat(8).double() + 0.5) / 2000
    with torch.no_grad():
        shares = objective.token_bound(denoiser, batch_of(rows), u).sum(-1).view(8, 2000)
    error = (shares.mean(-1) - bounds(objective, denoiser)).abs()
    assert (error < 5 * shares.std(-1) / 2000**0.5).all() and (error < 0.2).all()
    denoiser.bound = objective.token_bound
    counted = torch.ones(STRINGS.shape, dtype=torch.bool)
    counted[:, 1] = False
    found = estimate(denoiser, PROCESS, [(STRINGS, {"all": counted})], num_draws=2)
    assert found.protocol == OWN and (found.tokens["all"] == 2).all()
    batch = batch_of(STRINGS, counted.float())
    shares = objective.token_bound(denoiser, batch, torch.linspace(0.1, 0.9, 8).double())
    assert shares.shape == (8, 3) and (shares[:, 1] == 0).all() and shares.isfinite().all()


def test_the_sampler_draws_from_the_distribution_that_is_bounded():
    denoiser = made(LearnedOrder(PROCESS, Order(0.5)))
    x = PROCESS.prior(60_000, L)
    found = LearnedOrderSampler().sample(denoiser, PROCESS, x, Draws.for_batch(0, len(x)))
    assert (found.nfe, found.rows) == (L, L * len(x))
    counts = torch.bincount(found.tokens @ torch.tensor([4, 2, 1]), minlength=8) / len(x)
    p = exact_log_p(denoiser).exp()
    assert float((counts - p).abs().sum() / 2) < 0.01 and float((p - 1 / 8).abs().sum()) > 0.1


def test_a_wrapped_model_is_called_for_the_order_and_for_the_token():
    denoiser = made(LearnedOrder(PROCESS, Order(0.5)))
    sampler, x, draws = LearnedOrderSampler(), PROCESS.prior(50, L), Draws.for_batch(0, 50)
    plain = sampler.sample(denoiser, PROCESS, x, draws)
    wrapped = sampler.sample(DenoiserWrapper(denoiser), PROCESS, x, draws)
    assert torch.equal(plain.tokens, wrapped.tokens)
    assert wrapped.nfe == 2 * plain.nfe == 2 * L


def test_fixed_orders_are_exact_in_one_pass():
    assert Order(1.0).ranks(4).tolist() == [0, 1, 2, 3] and Order(1.0).ranks(0).shape == (0,)
    assert Order(10.0, stride=3).ranks(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    objective = LearnedOrder(PROCESS, Order(60.0), learned=False)
    denoiser = made(objective)
    assert not any("proposal" in name or "model" in name for name in denoiser.state_dict())
    found = bounds(objective, denoiser)  # the chain rule from left to right
    torch.testing.assert_close((-found).exp().sum(), torch.tensor(1.0).double())
    x = PROCESS.prior(5, L)
    tokens = LearnedOrderSampler().sample(denoiser, PROCESS, x, Draws.for_batch(0, 5)).tokens
    assert (tokens < 2).all()


def test_training_starts_as_mdlm_with_exact_counts():
    torch.manual_seed(0)
    x0 = torch.randint(0, 2, (16, 9))
    weight = torch.ones(16, 9)
    weight[0], weight[3, 4] = 0.0, 0.5  # a row in which nothing is counted
    draws = Draws.for_batch(1, 16)
    for weighting in ("nelbo", "cross_entropy"):
        objective = LearnedOrder(PROCESS, weighting=weighting)
        denoiser = objective.denoiser(DiT(BIT, 16, 1, 2, dropout=0.0))
        mdlm = MDLM(PROCESS, ExactCount(), weighting)
        for each in denoiser.backbone.parameters():
            each.data += 0.3 * torch.randn_like(each)
        found, before = objective(denoiser, x0, weight, draws), mdlm(denoiser, x0, weight, draws)
        assert float(found.num_tokens) == float(before.num_tokens) == 134.5
        # other masks of the same counts
        assert abs(float(found.nll) / float(before.nll) - 1) < 0.2
        assert abs(float(found.loss.detach()) / float(before.loss.detach()) - 1) < 0.2
        found.loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())
        # p starts as q, so it has nothing to learn yet
        assert denoiser.proposal.output.weight.grad.abs().sum() > 1e-4
        assert denoiser.model.output.weight.grad.abs().sum() < 1e-5
        with torch.no_grad():
            same = objective.evaluation()(denoiser, x0, weight, draws)
        torch.testing.assert_close(same.nll, found.nll)


def test_an_order_is_learned_that_lowers_the_bound():
    # The network knows the second letter if the first is visible, and the first never: only an
    # order in which the first comes before the second pays.
    objective = LearnedOrder(PROCESS, weighting="nelbo")
    denoiser = objective.denoiser(DiT(BIT, 16, 1, 2))

    def nll_and_scores(x0, query):
        masked = query.positions
        first = (query.xt[:, :1] != 2).expand(masked.shape)
        column = torch.arange(2).expand(masked.shape)
        nll = torch.where(first & (column == 1), 0.05, math.log(2))[masked]
        return nll, -denoiser.model.steepness * column[masked]

    denoiser.nll_and_scores = nll_and_scores
    heads = [denoiser.proposal.steepness, denoiser.model.steepness]
    optimizer = torch.optim.Adam(heads, 0.05)
    x0 = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat(16, 1)
    losses = []
    for step in range(150):
        loss = objective(denoiser, x0, torch.ones(x0.shape), Draws.for_batch(0, 64, step))
        optimizer.zero_grad()
        loss.loss.backward()
        optimizer.step()
        losses.append(float(loss.nll))
    assert min(each.item() for each in heads) > 2  # from left to right
    start, end = (math.log(2) + math.log(2) / 2 + 0.025) / 2, (math.log(2) + 0.05) / 2
    assert abs(sum(losses[:5]) / 5 - start) < 0.05 and sum(losses[-10:]) / 10 < end + 0.05


def test_what_does_not_fit_is_refused():
    denoiser = made(LearnedOrder(PROCESS))
    with pytest.raises(ValueError, match=r"context_parallel 2 .*learned_order"):
        denoiser.check_pieces(2, 16)
    x = PROCESS.prior(1, L)
    plain = Denoiser(DiT(BIT, 16, 1, 2))
    with pytest.raises(ValueError, match=r"objective=learned_order.*set sampler="):
        LearnedOrderSampler().sample(plain, PROCESS, x, Draws.for_batch(0, 1))
    with pytest.raises(ValueError, match="steepness"):
        Order(-1.0)
