"""Orders that look at what the network says."""

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.sampler.adaptive import ORDERS
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.entropy_bounded import EntropyBounded
from dnadiff.diffusion.sampler.low_confidence import LowConfidence
from dnadiff.diffusion.sampler.threshold import Threshold
from dnadiff.diffusion.vocab import Vocab

BIT = Vocab(3, 2, 2, (2,))
ROWS = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.3, 0.2], [0.45, 0.05, 0.5]]).log()


def product(*distributions):
    joint = torch.ones(1, dtype=torch.float64)
    for distribution in distributions:
        joint = (joint[:, None] * torch.tensor(distribution, dtype=torch.float64)).flatten()
    return joint


class Recorder(MaskedDenoiser):
    """A model that remembers which positions it was requested about."""

    def __init__(self, model):
        super().__init__(model.vocab)
        self.model, self.length, self.requested = model, model.length, []

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.requested.append(positions.clone())
        return self.model.log_probs(xt, t, cond, positions, valid)


def test_confidence_of_a_distribution():
    assert ORDERS["max"](ROWS).exp().tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert ORDERS["margin"](ROWS).tolist() == pytest.approx([0.0, 0.2, 0.05])
    assert ORDERS["entropy"](ROWS).tolist() == pytest.approx([-0.6931, -1.0297, -0.8557], abs=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_the_most_confident_position_is_unmasked_first(order, world):
    model = Recorder(world.table(None, product([0.6, 0.4], [0.9, 0.1], [0.5, 0.5]), BIT))
    world.draw(Confidence(3, order), model, 50)
    assert [requested.sum(0).tolist() for requested in model.requested] == [
        [1, 1, 1],
        [50, 0, 50],
        [0, 0, 50],
    ]  # all masks: one answer for 50


def test_equal_scores_are_unmasked_in_random_order(world):
    model = Recorder(world.table(None, product([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]), BIT))
    world.draw(Confidence(3), model, 600)
    assert (model.requested[1].sum(0) - 400).abs().max() < 5 * (600 * 2 / 9) ** 0.5


def test_step_sizes_equal_those_of_groups(world):
    model = Recorder(world.table(None, product(*[[0.5, 0.5]] * 7), BIT))
    world.draw(Confidence(3), model, 2)
    assert [int(requested[0].sum()) for requested in model.requested] == [
        7,
        4,
        2,
    ]  # groups of 3, 2 and 2, as `Grouped` has


@pytest.mark.parametrize(("bound", "calls"), [(0.0, 3), (0.4, 2), (3.0, 1)])
def test_the_entropy_bound_is_a_budget_for_each_call(bound, calls, world):
    # Entropies .325, .611 and .693 nats: .325 + .611 - .611 = .325 is within .4, a third position
    # is not.
    model = world.table(None, product([0.9, 0.1], [0.3, 0.7], [0.5, 0.5]), BIT)
    assert world.draw(EntropyBounded(bound), model, 30).nfe == calls


def test_ranking_by_the_drawn_token_is_biased_and_not_marked_exact(world):
    # facts 19: .805 for .7 at two positions, two steps
    model, batch = world.table(None, product([0.7, 0.3], [0.7, 0.3]), BIT), 40_000
    fraction = (world.draw(LowConfidence(2), model, batch).tokens == 0).double().mean().item()
    assert fraction == pytest.approx(0.805, abs=4.5 * (0.805 * 0.195 / (2 * batch)) ** 0.5)
    assert not LowConfidence.exact and not Threshold.exact and Confidence.exact


def test_the_threshold_keeps_probable_tokens_and_at_least_one(world):
    model = world.table(None, product([1.0, 0.0], [0.95, 0.05], [0.5, 0.5]), BIT)
    result = world.draw(Threshold(0.9), model, 200)
    assert (result.tokens[:, 0] == 0).all() and 2 <= result.nfe <= 3
    assert (
        world.draw(Threshold(0.9), world.table(None, product([1.0, 0.0], [0.0, 1.0]), BIT), 200).nfe
        == 1
    )
    assert (
        world.draw(Threshold(0.9), world.table(None, product([0.6, 0.4], [0.6, 0.4]), BIT), 200).nfe
        == 2
    )
    # At 1 what is certain stays together, and nothing else does.
    assert (
        world.draw(
            Threshold(1.0), world.table(None, product([1.0, 0.0], [0.0, 1.0], [0.5, 0.5]), BIT), 200
        ).nfe
        == 2
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Confidence(order="random"),
            "order 'random' is not known; choose one of max, margin, entropy",
        ),
        (lambda: Confidence(0), "num_steps 0 must be an integer of at least 1"),
        (lambda: LowConfidence(5).check_length(4), "num_steps 5 is larger than the length 4"),
        (lambda: EntropyBounded(-1.0), "bound -1.0 must be a number of at least 0"),
        (lambda: Threshold(0.0), "threshold 0.0 must be a number above 0 and at most 1"),
    ],
)
def test_impossible_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
