import pytest
import torch

from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.gibbs import Gibbs


def test_sweeps_bring_a_given_sequence_to_the_distribution(world):
    # From any sequence, here 000: single-position sweeps have the model's distribution as their only stationary one.
    batch = 20_000
    floor = 0.5 * (2 / torch.pi * world.joint * (1 - world.joint) / batch).sqrt().sum().item()
    start = torch.zeros(batch, 3, dtype=torch.int64)
    far, near = (
        0.5 * (world.frequencies(world.draw(Gibbs(n, 3), world.table(), batch, x_init=start).tokens, 3) - world.joint).abs().sum().item()
        for n in (1, 12)
    )
    assert far > 4 * floor and near < 2 * floor


def test_which_positions_are_refined(world):
    x_init = torch.tensor([[0, 1, 2], [3, 1, 2]])
    frozen = torch.tensor([[True, False, False], [False, False, False]])
    model = world.table()
    tokens = torch.stack([world.draw(Gibbs(2), model, 2, seed, x_init=x_init, frozen=frozen).tokens for seed in range(30)])
    assert (tokens[:, 0, 0] == 0).all() and len(tokens[:, 0, 1].unique()) > 1  # without masks: all but the frozen position
    assert (tokens[:, 1, 1:] == torch.tensor([1, 2])).all() and len(tokens[:, 1, 0].unique()) > 1  # a template: its masks


def test_tokens_that_no_sample_contains_stay(toy, make_oracle):
    # Id 2 is never emitted here: like an N in a genome it is seen and left alone.
    from dnadiff.vocab import Vocab

    vocab = Vocab(4, 3, 2, (2, 3))
    oracle = make_oracle(toy.sequences, toy.joint, vocab)
    x = torch.tensor([[2, 0, 1]]).expand(50, -1).clone()
    tokens = Gibbs(2).sample(oracle, AbsorbingProcess(vocab, LogLinear()), x, Draws.for_batch(0, 50)).tokens
    assert (tokens[:, 0] == 2).all() and (tokens != x).any()


def test_calls_are_counted(world):
    model = world.table()
    result = world.draw(Gibbs(4, 2), model, 10)
    assert result.nfe == model.calls == (1 + 4) * 2 and 80 < result.rows == model.rows <= 91  # ten sequences are one at first
    with pytest.raises(ValueError, match=r"sampler.num_sweeps 0 must be an integer of at least 1"):
        Gibbs(0)
    with pytest.raises(ValueError, match="num_groups 4 is larger than the length 3"):
        world.draw(Gibbs(1, 4), model, 1)
