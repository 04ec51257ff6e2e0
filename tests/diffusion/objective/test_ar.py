import math
from functools import partial

import pytest
import torch

from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.base import check_fit
from dnadiff.diffusion.objective.masking import Positions
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
PROCESS = AbsorbingProcess(DNA, LogLinear())


@pytest.fixture
def denoiser():
    torch.manual_seed(0)
    backbone = Transformer(DNA, 16, 2, 2).eval()
    torch.nn.init.normal_(backbone.linear.weight)
    return AR(PROCESS).denoiser(backbone)


def test_each_token_is_predicted_from_those_before_it(denoiser):
    x = torch.randint(7, 11, (2, 9))
    log_probs = denoiser.next_log_probs(x)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 9))
    assert (log_probs.exp()[..., [0, 1, 2, 3, 4, 5, 6, 11]] == 0).all()
    changed = x.clone()
    changed[:, 5] = 17 - changed[:, 5]
    after = denoiser.next_log_probs(changed)
    assert torch.equal(after[:, :6], log_probs[:, :6]) and not torch.equal(
        after[:, 6:], log_probs[:, 6:]
    )
    torch.testing.assert_close(
        denoiser.next_log_probs(x[:, :1])[:, 0], log_probs[:, 0]
    )  # the first from the start token alone


def test_all_tokens_count_but_those_of_weight_zero(denoiser):
    x = torch.tensor([[7, 8, 11, 9, 10]])
    result = AR(PROCESS)(denoiser, x, (x != 11).float(), Draws.for_batch(0, 1))
    rows = denoiser.next_log_probs(x)[0].detach()
    expected = -sum(float(rows[l, x[0, l]]) for l in (0, 1, 3, 4)) / 4
    assert result.loss.item() == pytest.approx(expected, rel=1e-6) and result.num_tokens == 4
    assert result.nll == result.loss.detach()


def test_a_new_network_guesses():
    torch.manual_seed(0)
    objective = AR(PROCESS)
    result = objective(
        objective.denoiser(Transformer(DNA, 16, 1, 2)),
        torch.randint(7, 11, (2, 8)),
        torch.ones(2, 8),
        Draws.for_batch(0, 2),
    )
    assert result.loss.item() == pytest.approx(math.log(4))


def test_positions_give_the_same_rows_as_everything(denoiser):
    x = torch.randint(7, 11, (3, 6))
    chosen = torch.rand(3, 6) < 0.5
    torch.testing.assert_close(
        denoiser.next_log_probs(x, positions=chosen), denoiser.next_log_probs(x)[chosen]
    )


def test_padding_changes_nothing(denoiser):
    x = torch.randint(7, 11, (1, 6))
    padded = torch.cat([x, torch.full((1, 3), 4)], 1)
    valid = padded != 4
    torch.testing.assert_close(
        denoiser.next_log_probs(padded, valid=valid)[:, :6], denoiser.next_log_probs(x)
    )
    left = torch.cat([torch.full((1, 3), 4), x], 1)
    assert denoiser.next_log_probs(left, valid=left != 4).logsumexp(-1).isfinite().all()


def test_an_empty_batch_costs_nothing(denoiser):
    result = AR(PROCESS)(denoiser, torch.full((2, 8), 11), torch.zeros(2, 8), Draws.for_batch(0, 2))
    result.loss.backward()
    assert result.loss == 0 and all(
        p.grad is None or (p.grad == 0).all() for p in denoiser.parameters()
    )


def test_misfits_are_refused(denoiser):
    both_sides = DiT(DNA, 16, 1, 2, 8)
    with pytest.raises(
        ValueError,
        match=(
            "objective AR does not fit backbone DiT: it needs a causal network, transformer or "
            "mamba"
        ),
    ):
        check_fit(AR, both_sides)
    with pytest.raises(ValueError, match="objective MDLM does not fit backbone Transformer"):
        MDLM(PROCESS).denoiser(denoiser.backbone)
    with pytest.raises(
        ValueError, match="CausalDenoiser does not fit DiT: it needs a causal network"
    ):
        CausalDenoiser(both_sides)
    with pytest.raises(ValueError, match="AR has no time"):
        AR(PROCESS).denoiser(denoiser.backbone, True)
    assert not hasattr(denoiser, "log_probs")  # it predicts from left to right


def test_logits_at_every_position_as_on_a_gpu_give_the_same_loss_and_gradient(denoiser):
    objective = AR(PROCESS)
    x, weight, found = torch.randint(7, 11, (3, 12)), torch.rand(3, 12), []
    x[:, 4], weight[:, 4] = 11, 0
    for everywhere in (False, True):
        objective.where = partial(Positions, everywhere=everywhere)
        result = objective(denoiser, x, weight, Draws.for_batch(0, 3))
        found.append(
            [
                result.nll,
                result.num_tokens,
                *torch.autograd.grad(result.loss, list(denoiser.parameters())),
            ]
        )
    for sparse, dense in zip(*found, strict=True):
        torch.testing.assert_close(dense, sparse, rtol=1e-4, atol=1e-6)
