import pytest
import torch

from dnadiff.backbone.dit import DiT
from dnadiff.denoiser import SUBS, Denoiser
from dnadiff.noise import LogLinear
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.fixture
def denoiser():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8, max_length=32).eval()
    torch.nn.init.normal_(backbone.output_layer.linear.weight)
    return Denoiser(backbone)


@pytest.mark.parametrize(("name", "vocab"), [("dna", Vocab(16, 3, 4, (3,))), ("text", Vocab(33, 32, 32, (32,)))])
def test_subs_equals_the_published_parameterization(parity, name, vocab):
    file = parity(f"mdlm_losses_{name}")
    ours, theirs = SUBS(vocab).log_probs(file["raw_logits"], file["xt"]), file["subs_log_probs"]
    possible = theirs > -1e5  # the published code writes probability 0 as exp(-1e6)
    assert torch.equal(possible, ours.isfinite())
    torch.testing.assert_close(ours[possible], theirs[possible], rtol=1e-5, atol=1e-6)


def test_only_emitted_ids_have_probability(denoiser):
    xt = torch.tensor([[7, 3, 11, 3]])
    probs = denoiser.log_probs(xt).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(1, 4))
    assert probs[0, 1, [0, 1, 2, 3, 4, 5, 6, 11]].sum() == 0
    assert probs[0, 0, 7] == 1 and probs[0, 2, 11] == 1


def test_positions_give_the_same_rows_as_everything(denoiser):
    xt = torch.tensor([[7, 3, 8, 3], [3, 3, 9, 10]])
    torch.testing.assert_close(denoiser.log_probs(xt, positions=xt == 3), denoiser.log_probs(xt)[xt == 3])


def test_gradients_at_visible_positions_are_exactly_zero():
    # facts 11
    logits, xt = torch.randn(1, 3, 12, requires_grad=True), torch.tensor([[7, 3, 8]])
    log_probs = SUBS(DNA).log_probs(logits, xt)
    log_probs[0, torch.arange(3), torch.tensor([7, 9, 8])].sum().backward()
    assert logits.grad[0, 0].abs().sum() == 0 and logits.grad[0, 2].abs().sum() == 0
    assert logits.grad.isfinite().all() and logits.grad[0, 1].abs().sum() > 0


def test_time_reaches_the_network_only_when_asked():
    torch.manual_seed(0)
    backbone = DiT(DNA, 16, 1, 2, 8).eval()
    for p in backbone.parameters():
        torch.nn.init.normal_(p, std=0.3)
    xt, early, late = torch.tensor([[3, 7]]), torch.tensor([0.1]), torch.tensor([0.9])
    without, told = Denoiser(backbone), Denoiser(backbone, noise=LogLinear(), time_conditioning=True)
    assert torch.equal(without.log_probs(xt, early), without.log_probs(xt, late))
    assert not torch.equal(told.log_probs(xt, early), told.log_probs(xt, late))
    with pytest.raises(ValueError, match="pass t"):
        told.log_probs(xt)


def test_a_causal_backbone_is_refused():
    backbone = DiT(DNA, 16, 1, 2, 8)
    backbone.causal = True
    with pytest.raises(ValueError, match="bidirectional"):
        Denoiser(backbone)
