"""SUNDAE and its sampler in a world of two letters and two tokens, in which every corruption, every
sample of the network and every chain can be summed."""

import itertools

import numpy
import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.sundae import SUNDAE
from dnadiff.diffusion.process import AbsorbingProcess, UniformProcess
from dnadiff.diffusion.sampler.sundae import UnrolledDenoising
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

BIT = Vocab(3, 2, 2, (2,))
STATES = torch.tensor(list(itertools.product(range(2), repeat=2)))
PROCESS = UniformProcess(BIT, LogLinear(0.0))


class Anything(MaskedDenoiser):
    """A network with any prediction for any of the four sequences: probs (4, 2, 2)."""

    process_type = UniformProcess

    def __init__(self, seed=0):
        super().__init__(BIT)
        made = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(seed)).double()
        self.probs, self.calls = made.mul(2).softmax(-1), 0

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.calls += 1
        found = self.probs.new_zeros(*xt.shape, 3)
        found[..., :2] = self.probs[xt[:, 0] * 2 + xt[:, 1]]
        return found.log()[positions]

    def chances(self, temperature=1.0):
        """p(proposal | sequence): (4, 4)."""
        probs = self.probs ** (1 / temperature)
        return independent(probs / probs.sum(-1, keepdim=True))


def independent(probs):
    """The probabilities of all sequences from those of their letters (..., 2, 2): (..., 4)."""
    return probs[..., 0, STATES[:, 0]] * probs[..., 1, STATES[:, 1]]


def corrupted():
    """q(xt | x0) with a uniform probability of noise: (4, 4), exact by quadrature."""
    x, w = numpy.polynomial.legendre.leggauss(4)
    found = torch.zeros(4, 4, dtype=torch.float64)
    for rate, weight in zip((x + 1) / 2, w / 2):
        letters = torch.nn.functional.one_hot(STATES, 2).double() * (1 - rate) + rate / 2
        found += weight * independent(letters)
    return found


@pytest.mark.parametrize("num_unrolled", [1, 2, 3])
def test_the_loss_is_the_mean_cross_entropy_of_the_steps(num_unrolled):
    network, read, expected = Anything(), corrupted(), torch.zeros(4, dtype=torch.float64)
    for _ in range(num_unrolled):
        costs = -network.probs.log()  # (state, place, letter)
        of_target = sum(costs[:, place, STATES[:, place]] for place in (0, 1)).T  # (x0, state)
        expected += (read * of_target).sum(-1) / num_unrolled / 2
        read = read @ network.chances()
    rows = 40_000
    for number, x0 in enumerate(STATES):
        objective, draws = SUNDAE(PROCESS, num_unrolled), Draws.for_batch(number, rows)
        loss = objective(network, x0.expand(rows, 2), torch.ones(rows, 2), draws)
        assert float(loss.loss) == pytest.approx(float(expected[number]), abs=0.015)
        assert float(loss.num_tokens) == 2 * rows


def test_tokens_that_are_not_counted_are_neither_changed_nor_predicted():
    seen = []

    class Watched(Anything):
        def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
            seen.append((xt.clone(), positions))
            return super().log_probs(xt, t, cond, positions, valid)

    x0, weight = torch.zeros(50, 2, dtype=torch.long), torch.tensor([[1.0, 0.0]]).expand(50, 2)
    loss = SUNDAE(PROCESS)(Watched(), x0, weight, Draws.for_batch(0, 50))
    assert len(seen) == 2 and float(loss.num_tokens) == 50
    for xt, positions in seen:
        assert (xt[:, 1] == 0).all() and xt[:, 0].any() and torch.equal(positions, weight > 0)
    nothing = SUNDAE(PROCESS)(Watched(), x0, torch.zeros(50, 2), Draws.for_batch(0, 50))
    assert float(nothing.loss) == 0


def test_it_has_no_time_no_masks_and_no_likelihood():
    with pytest.raises(ValueError, match="objective SUNDAE needs noise that replaces tokens"):
        SUNDAE(AbsorbingProcess(BIT, LogLinear()))
    objective = SUNDAE(PROCESS)
    with pytest.raises(ValueError, match="objective SUNDAE has no time"):
        objective.denoiser(DiT(BIT, 8, 1, 2), time_conditioning=True)
    with pytest.raises(ValueError, match=r"SUNDAE has no likelihood: .* judge its samples"):
        objective.token_bound(None, None, None)


def drawn(sampler, network, rows, template=None):
    x = torch.full((rows, 2), BIT.mask_id) if template is None else template
    return sampler.sample(network, PROCESS, x, Draws.for_batch(3, rows))


@pytest.mark.parametrize(("steps", "share", "temperature"), [(1, 0.5, 1.0), (6, 0.3, 0.5)])
def test_samples_have_the_distribution_of_the_chain(steps, share, temperature):
    network, rows = Anything(1), 60_000
    proposals = network.chances(temperature)
    running, finished = torch.full((4,), 0.25, dtype=torch.float64), torch.zeros(4).double()
    for _ in range(steps):
        after = torch.zeros(4, dtype=torch.float64)
        for now, proposed in itertools.product(range(4), repeat=2):
            chance = running[now] * proposals[now, proposed]
            if now == proposed:  # no change is proposed: the sequence is finished
                finished[now] += chance
                continue
            for taken in itertools.product([False, True], repeat=2):
                x = torch.where(torch.tensor(taken), STATES[proposed], STATES[now])
                weight = share ** sum(taken) * (1 - share) ** (2 - sum(taken))
                after[x[0] * 2 + x[1]] += chance * weight
        running = after
    sampler = UnrolledDenoising(num_steps=steps, share=share, temperature=temperature)
    result = drawn(sampler, network, rows)
    found = torch.bincount(result.tokens @ torch.tensor([2, 1]), minlength=4).double() / rows
    assert float((found - running - finished).abs().sum()) / 2 < 0.01
    assert result.nfe == network.calls <= steps


def test_it_stops_at_a_sequence_that_the_network_confirms_and_keeps_given_tokens():
    network = Anything()
    network.probs = torch.tensor([0.0, 1.0]).double().expand(4, 2, 2)  # always the second letter
    result = drawn(UnrolledDenoising(num_steps=100, share=0.5), network, 200)
    assert (result.tokens == 1).all() and 3 < result.nfe < 30 and result.rows < 200 * result.nfe
    template = torch.tensor([[0, 2], [0, 0]])
    kept = drawn(UnrolledDenoising(), network, 2, template)
    assert kept.tokens.tolist() == [[0, 1], [1, 1]]  # a sequence without masks is corrected


def test_a_model_with_times_is_refused():
    network = Anything()
    network.time_conditioning = True
    with pytest.raises(ValueError, match="UnrolledDenoising has no times"):
        drawn(UnrolledDenoising(), network, 2)
