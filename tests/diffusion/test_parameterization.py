import pytest
import torch

from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import SUBS, Score, Softmax, log_expm1
from dnadiff.diffusion.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.mark.parametrize(
    ("name", "vocab"), [("dna", Vocab(16, 3, 4, (3,))), ("text", Vocab(33, 32, 32, (32,)))]
)
def test_subs_equals_the_published_parameterization(parity, name, vocab):
    file = parity(f"mdlm_losses_{name}")
    ours, theirs = SUBS(vocab).log_probs(file["raw_logits"], file["xt"]), file["subs_log_probs"]
    possible = theirs > -1e5  # the published code writes probability 0 as exp(-1e6)
    assert torch.equal(possible, ours.isfinite())
    torch.testing.assert_close(ours[possible], theirs[possible], rtol=1e-5, atol=1e-6)


def test_gradients_at_visible_positions_are_exactly_zero():
    # facts 11
    logits, xt = torch.randn(1, 3, 12, requires_grad=True), torch.tensor([[7, 3, 8]])
    log_probs = SUBS(DNA).log_probs(logits, xt)
    log_probs[0, torch.arange(3), torch.tensor([7, 9, 8])].sum().backward()
    assert logits.grad[0, 0].abs().sum() == 0 and logits.grad[0, 2].abs().sum() == 0
    assert logits.grad.isfinite().all() and logits.grad[0, 1].abs().sum() > 0


def test_switches_of_the_softmax():
    torch.manual_seed(0)
    logits, xt = torch.randn(1, 3, 12), torch.tensor([[7, 3, 8]])
    for zero_masking in (False, True):
        for carry_over in (False, True):
            distribution = Softmax(DNA, zero_masking, carry_over)
            probs = distribution.x0_log_probs(logits, xt).exp()
            torch.testing.assert_close(probs.sum(-1), torch.ones(1, 3))
            assert (probs[0, 1, 3] == 0) == zero_masking and (probs[0, 0, 7] == 1) == carry_over
            assert torch.equal(distribution.log_probs(logits, xt), SUBS(DNA).log_probs(logits, xt))
    assert torch.equal(
        Softmax(DNA, True, True).x0_log_probs(logits, xt), SUBS(DNA).x0_log_probs(logits, xt)
    )


def test_ratios_at_a_masked_position_are_probabilities_times_their_factor():
    logits, xt = torch.zeros(1, 2, 12), torch.tensor([[7, 3]])
    sigma = LogLinear(0.0).sigma(torch.tensor([0.75])).expand(1, 2)
    for distribution in (SUBS(DNA), Score(DNA)):
        ratios = distribution.log_score(logits, xt, sigma).exp()[0]
        assert (
            ratios[1, [7, 8, 9, 10]].tolist() == pytest.approx([0.25 / 3] * 4) and ratios[1, 3] == 1
        )  # alpha/(1 - alpha) = 1/3
        assert ratios[0, 7] == 1
    assert SUBS(DNA).log_score(logits, xt, sigma).exp()[0, 0, [3, 8]].tolist() == pytest.approx(
        [3, 0]
    )


def test_log_expm1_from_small_to_large():
    sigma = torch.tensor([1e-8, 1e-3, 1.0, 80.0])
    torch.testing.assert_close(
        log_expm1(sigma).double(), torch.expm1(sigma.double()).log(), rtol=1e-6, atol=1e-6
    )
