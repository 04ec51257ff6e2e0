import itertools

import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.gibbs import Gibbs
from dnadiff.diffusion.sampler.semi_ar import SemiAR


def test_sweeps_bring_a_given_sequence_to_the_distribution(world):
    # From any sequence, here 000: single-position sweeps have the model's distribution as their
    # only stationary one.
    batch = 20_000
    floor = 0.5 * (2 / torch.pi * world.joint * (1 - world.joint) / batch).sqrt().sum().item()
    start = torch.zeros(batch, 3, dtype=torch.int64)
    far, near = (
        0.5
        * (
            world.frequencies(world.draw(Gibbs(n, 3), world.table(), batch, x_init=start).tokens, 3)
            - world.joint
        )
        .abs()
        .sum()
        .item()
        for n in (1, 12)
    )
    assert far > 4 * floor and near < 2 * floor


class Prescribed:
    """Draws that fix the order of the positions, and the token of each as `row * 4 + token`."""

    def __init__(self, order, outcomes):
        code = 4.0 * torch.arange(len(outcomes), dtype=torch.float64)[:, None] + outcomes
        self.drawn = {
            "reveal": torch.tensor(order).double().expand(len(outcomes), -1) / 4,
            "token": code,
        }

    def at(self, step):
        return self

    def uniform(self, purpose, *shape):
        return self.drawn[purpose]


class Enumerated(Gibbs):
    """One sweep that ends in prescribed sequences, and records the log-probability of each."""

    def __post_init__(self):
        super().__post_init__()
        self._grouped.unmask = self.unmask

    def unmask(self, step, log_probs, uniform):
        row, token = uniform.long() // 4, uniform.long() % 4
        self.log_prob.index_add_(0, row, log_probs.gather(-1, token[:, None])[:, 0])
        return token


def sweep(world, num_groups):
    """The probability (27, 27) that one sweep turns each sequence into each other, averaged over
    the orders of the positions."""
    starts, ends = (
        x.reshape(-1, 3)
        for x in (world.sequences[:, None].expand(-1, 27, -1), world.sequences.expand(27, -1, -1))
    )
    orders, kernel = (
        list(itertools.permutations(range(3))),
        torch.zeros(27, 27, dtype=torch.float64),
    )
    for order in orders:
        sampler = Enumerated(1, num_groups)
        sampler.log_prob = torch.zeros(27 * 27, dtype=torch.float64)
        model = world.table()
        process = AbsorbingProcess(model.vocab, LogLinear())
        sampler.sample(model, process, starts.clone(), Prescribed(order, ends))
        kernel += sampler.log_prob.exp().view(27, 27) / len(orders)
    return kernel


@pytest.mark.parametrize(
    ("num_groups", "once", "in_the_end"), [(3, 0.0, 0.0), (2, 0.113, 0.114), (1, 0.402, 0.402)]
)
def test_only_single_positions_leave_the_distribution_unchanged(
    world, num_groups, once, in_the_end
):
    kernel = sweep(world, num_groups)
    torch.testing.assert_close(kernel.sum(1), torch.ones(27, dtype=torch.float64))
    for sweeps, distance in ((1, once), (100, in_the_end)):
        after = world.joint @ torch.linalg.matrix_power(kernel, sweeps)
        assert 0.5 * (after - world.joint).abs().sum().item() == pytest.approx(
            distance, abs=1e-12 if num_groups == 3 else 1e-3
        )


def test_samples_have_weights_only_with_single_positions():
    assert Gibbs(1, 8).supports_weights(8) and Gibbs(2).supports_weights(64)
    assert not Gibbs(1, 7).supports_weights(8) and not Gibbs(1).supports_weights(65)
    assert not Gibbs(1, 8, temperature=0.9).supports_weights(8)
    assert SemiAR(Gibbs(1, 8), window=8, stride=4).supports_weights(100)
    assert not SemiAR(Gibbs(1, 7), window=8, stride=4).supports_weights(100)


def test_which_positions_are_refined(world):
    x_init = torch.tensor([[0, 1, 2], [3, 1, 2]])
    frozen = torch.tensor([[True, False, False], [False, False, False]])
    model = world.table()
    tokens = torch.stack(
        [
            world.draw(Gibbs(2), model, 2, seed, x_init=x_init, frozen=frozen).tokens
            for seed in range(30)
        ]
    )
    assert (tokens[:, 0, 0] == 0).all() and len(
        tokens[:, 0, 1].unique()
    ) > 1  # without masks: all but the frozen position
    assert (tokens[:, 1, 1:] == torch.tensor([1, 2])).all() and len(
        tokens[:, 1, 0].unique()
    ) > 1  # a template: its masks


def test_tokens_that_no_sample_contains_stay(toy, make_oracle):
    # Id 2 is never emitted here: like an N in a genome it is seen and left alone.
    from dnadiff.diffusion.vocab import Vocab

    vocab = Vocab(4, 3, 2, (2, 3))
    oracle = make_oracle(toy.sequences, toy.joint, vocab)
    x = torch.tensor([[2, 0, 1]]).expand(50, -1).clone()
    tokens = (
        Gibbs(2)
        .sample(oracle, AbsorbingProcess(vocab, LogLinear()), x, Draws.for_batch(0, 50))
        .tokens
    )
    assert (tokens[:, 0] == 2).all() and (tokens != x).any()


def test_calls_are_counted(world):
    model = world.table()
    result = world.draw(Gibbs(4, 2), model, 10)
    assert (
        result.nfe == model.calls == (1 + 4) * 2 and 80 < result.rows == model.rows <= 91
    )  # ten sequences are one at first
    with pytest.raises(ValueError, match=r"num_sweeps 0 must be an integer of at least 1"):
        Gibbs(0)
    with pytest.raises(ValueError, match="num_groups 4 is larger than the length 3"):
        world.draw(Gibbs(1, 4), model, 1)
