"""Mask rates on an interval: their distribution, and the mean and variance of the loss by
enumeration of all masks."""

import itertools
from dataclasses import dataclass

import numpy
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import Geometric, LogLinear, ShiftedLogOdds
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.masking import Clipped, ExactCount
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus

DNA = DNATokenizer().vocab
B = 3  # tokens of a block


@dataclass(frozen=True)
class Chosen(Draws):
    """Draws whose uniforms are given: one for the rate of each row, and 0 where a position is
    masked, else 1."""

    time: torch.Tensor | None = None
    mask: torch.Tensor | None = None

    def for_blocks(self, blocks):
        return self

    def uniform(self, purpose, *shape):
        return {"time": self.time, "mask": self.mask}[purpose]


@pytest.fixture
def x0():
    return torch.tensor([[7, 10, 8]])


@pytest.fixture
def net():
    torch.manual_seed(2)
    return Caduceus(DNA, d_model=8, n_layers=1, d_state=4).double()


def expected(objective, denoiser, x0, power, nodes):
    """The mean of a power of the loss of one block: all masks at the nodes of a quadrature over the
    rates."""
    points, weights = numpy.polynomial.legendre.leggauss(nodes)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=B)), dtype=torch.float64)
    total = 0.0
    for u, w in zip((points + 1) / 2, weights / 2):
        for mask in masks:
            draws = Chosen(
                0, torch.zeros(1, dtype=torch.int64), 1, time=torch.tensor([u]), mask=1 - mask[None]
            )
            rate = 1 / float(objective.corrupt(x0, x0 > 0, draws).weight[0, 0])
            with torch.no_grad():
                nll = float(objective(denoiser, x0, torch.ones_like(x0), draws).nll)
            k = int(mask.sum())
            total += w * rate**k * (1 - rate) ** (B - k) * nll**power
    return total


def by_count(denoiser, x0, power):
    """E[S^power | k masks] of a block, k = 1..B, S the summed cross-entropy of the masks."""
    found = torch.zeros(B, dtype=torch.float64)
    for k in range(1, B + 1):
        for chosen in (choices := list(itertools.combinations(range(B), k))):
            positions = torch.zeros(x0.shape, dtype=torch.bool)
            positions[:, list(chosen)] = True
            nll = denoiser.nll(x0, torch.where(positions, 3, x0), positions=positions).detach()
            found[k - 1] += nll.sum() ** power / len(choices)
    return found


def test_the_mean_over_all_rates_is_the_bound(net, x0):
    masking = Clipped()
    objective = BlockMDLM(AbsorbingProcess(DNA, LogLinear()), B, masking, "nelbo")
    denoiser = objective.denoiser(net)
    bound = float(
        (by_count(denoiser, x0, 1) / torch.arange(1, B + 1)).mean()
    )  # k uniform, weight B/k
    assert expected(objective, denoiser, x0, 1, nodes=3) == pytest.approx(bound, rel=1e-9)
    assert float(masking.moments(B)[0] @ by_count(denoiser, x0, 1)) == pytest.approx(
        bound, rel=1e-12
    )
    assert masking.moments(B)[1, 0] == torch.inf


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.8), (0.5, 1.0)])
def test_moments_equal_enumeration(low, high, net, x0):
    masking = Clipped(low, high)
    objective = BlockMDLM(AbsorbingProcess(DNA, LogLinear()), B, masking, "nelbo")
    denoiser = objective.denoiser(net)
    for power in (1, 2):
        found = float(masking.moments(B)[power - 1] @ by_count(denoiser, x0, power))
        assert found == pytest.approx(expected(objective, denoiser, x0, power, nodes=8), rel=1e-6)


@pytest.mark.parametrize("length", [1, 2, 16, 1024])
def test_the_loss_of_a_uniform_predictor_has_a_known_mean_and_variance(length):
    # Binomial masks cost log V each: mean log V, and variance (log V)^2 E[(1 - p)/(p length)], with
    # E[1/p] = log(high/low)/(high - low).
    for low, high in ((0.001, 1.0), (0.3, 0.8), (0.45, 0.95)):
        first, second = Clipped(low, high).moments(length)
        k = torch.arange(1, length + 1, dtype=torch.float64)
        assert float(first @ k) == pytest.approx(1, rel=1e-9)
        inverse = float(numpy.log(high / low)) / (high - low)
        assert float(second @ k**2) - 1 == pytest.approx((inverse - 1) / length, rel=1e-6)


@pytest.mark.parametrize(
    "noise", [LogLinear(), Geometric(0.1, 1.0), ShiftedLogOdds()], ids=lambda n: type(n).__name__
)
def test_rates_are_stratified_over_the_interval_under_every_schedule(noise):
    process, rows = AbsorbingProcess(DNA, noise), 64
    x0, draws = torch.full((rows, 500), 7), Draws.for_batch(3, rows)
    masking = Clipped(0.3, 0.8)
    masked = masking(process, x0, x0 > 0, draws)
    rate = 1 / masked.weight
    assert ((rate - 0.3) / 0.5 * rows).floor().sort().values.tolist() == list(range(rows))
    assert torch.equal(masked.xt == 3, draws.uniform("mask", 500) < rate[:, None])
    assert 0 <= masked.t.min() <= masked.t.max() <= 1 and masked.t[rate.argsort()].diff().min() >= 0
    again = Clipped(0.3, 0.8, stratified=False)(process, x0, x0 > 0, draws)
    assert torch.equal(again.weight, 1 / (0.3 + 0.5 * draws.uniform("time")))


def test_rows_without_a_mask_cost_nothing():
    objective = BlockMDLM(AbsorbingProcess(DNA, LogLinear()), 2, Clipped(0.01, 0.1), "nelbo")
    x0 = torch.full((8, 6), 7)
    torch.manual_seed(0)
    loss = objective(
        objective.denoiser(Caduceus(DNA, 8, 1)), x0, torch.ones_like(x0), Draws.for_batch(0, 8)
    )
    empty = ~(objective.corrupt(x0, x0 > 0, Draws.for_batch(0, 8)).xt == 3).view(-1, 2).any(1)
    assert 15 < int(empty.sum()) < 24 and loss.loss.isfinite() and loss.num_tokens == 48


@pytest.mark.parametrize(
    "objective", [MDLM, lambda process, masking: BlockMDLM(process, 4, masking)]
)
def test_a_cut_is_accepted_and_evaluation_has_none(objective):
    made = objective(AbsorbingProcess(DNA, Geometric(0.1, 1.0)), Clipped(0.5, 0.7))
    assert type(made.evaluation().masking) is ExactCount


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1), (0.5, 0.5), (0.6, 0.4), (0, 1.1)])
def test_impossible_intervals_are_refused(low, high):
    with pytest.raises(
        ValueError,
        match=rf"low {low} must be|high {high} must be",
    ):
        Clipped(low, high)
    with pytest.raises(ValueError, match="high 'x' must be a number from 0 to 1"):
        Clipped(0.0, "x")
