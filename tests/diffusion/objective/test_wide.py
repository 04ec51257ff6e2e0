"""Over large vocabularies the losses do without logits; what they compute is the same."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.mlm import MLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import BidirectionalBackbone
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer

VOCAB = Vocab(60, 59, 58, (58, 59))
OBJECTIVES = {
    "mdlm": MDLM,
    "sedd": SEDD,
    "mlm": MLM,
    "ar": AR,
    "d3pm": D3PM,
    "d3pm zero masking": lambda process: D3PM(process, zero_masking=True),
    "d3pm both": lambda process: D3PM(process, zero_masking=True, carry_over=True),
}


def network(reads=BidirectionalBackbone):
    torch.manual_seed(1)
    both_sides = issubclass(DiT, reads)
    net = (
        DiT(VOCAB, 16, 2, 2, 8, dropout=0.0)
        if both_sides
        else Transformer(VOCAB, 16, 2, 2, dropout=0.0)
    )
    for p in net.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.3)  # a head of zeros would show nothing
    return net


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_are_the_same_without_logits(name):
    results = {}
    for large in (1024, 1):
        objective = OBJECTIVES[name](AbsorbingProcess(VOCAB, LogLinear()))
        denoiser = objective.denoiser(network(objective.reads))
        denoiser.fused_from = large
        assert denoiser.fused_head == (large == 1)
        x0 = torch.randint(0, 58, (4, 12), generator=torch.Generator().manual_seed(0))
        weight = (torch.arange(12) < torch.tensor([[12], [9], [5], [12]])).float()
        loss = objective(denoiser, x0, weight, Draws.for_batch(3, 4))
        loss.loss.backward()
        results[large] = [
            loss.loss.detach(),
            loss.nll,
            *(p.grad for p in denoiser.parameters() if p.grad is not None),
        ]
    for ours, theirs in zip(results[1], results[1024], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


class Waits(TorchDispatchMode):
    """Lists the operators for whose result a process waits on a GPU, since `armed`."""

    def __init__(self):
        super().__init__()
        self.armed, self.found = False, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name, masks = (
            str(function),
            [] if len(args) < 2 or not isinstance(args[1], (list, tuple)) else args[1],
        )
        by_mask = "index" in name and any(
            isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in masks
        )
        if self.armed and (
            by_mask
            or any(
                word in name
                for word in ("nonzero", "local_scalar", "masked_select", "unique", "equal.default")
            )
        ):
            self.found.append(name)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize(
    "name", ["mdlm", "sedd", "mlm", "ar", "d3pm both", "block_mdlm", "block_mdlm with next tokens"]
)
def test_a_step_does_not_wait_for_a_gpu_after_the_network(name, monkeypatch):
    # By the operators of a step on the CPU. D3PM without carry-over has two network calls, and
    # waits before the second.
    process = AbsorbingProcess(VOCAB, LogLinear())
    if name.startswith("block"):
        objective, backbone = (
            BlockMDLM(process, 4, next_token_weight=0.1 if "next" in name else 0.0),
            network(),
        )
        monkeypatch.setattr(
            type(backbone), "clean_is_causal", True
        )  # as in a Caduceus, which has no fused head
    else:
        objective = OBJECTIVES[name](process)
        backbone = network(objective.reads)
    denoiser, waits = objective.denoiser(backbone), Waits()
    denoiser.fused_from = 1
    backbone.blocks[0].register_forward_hook(lambda *_: setattr(waits, "armed", True))
    x0 = torch.randint(0, 58, (4, 12), generator=torch.Generator().manual_seed(0))
    weight = (torch.arange(12) < torch.tensor([[12], [9], [5], [12]])).float()
    with waits:
        objective(denoiser, x0, weight, Draws.for_batch(3, 4), valid=weight > 0).loss.backward()
    assert waits.armed
    assert waits.found == []


@pytest.mark.parametrize("kind", [MDLM, AR])
def test_likelihoods_are_the_same_without_logits(kind):
    process = AbsorbingProcess(VOCAB, LogLinear())
    denoiser = kind(process).denoiser(network(kind.reads)).eval()
    ids = torch.randint(0, 58, (3, 10))
    batch, nats = WindowBatch(ids, {"all": torch.ones_like(ids, dtype=torch.bool)}), []
    for large in (1024, 1):
        denoiser.fused_from = large
        nats.append(torch.from_numpy(estimate(denoiser, process, [batch], 4).nats["all"]))
    torch.testing.assert_close(*nats, rtol=1e-5, atol=1e-5)


def test_the_loss_is_float32_under_autocast_and_zero_without_tokens():
    objective = MDLM(AbsorbingProcess(VOCAB, LogLinear()))
    denoiser = objective.denoiser(network())
    denoiser.fused_from = 1
    x0 = torch.full((2, 6), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (
            objective(denoiser, x0, torch.ones(2, 6), Draws.for_batch(0, 2)).loss.dtype
            == torch.float32
        )
    empty = objective(denoiser, x0, torch.zeros(2, 6), Draws.for_batch(0, 2)).loss
    empty.backward()
    assert empty == 0 and all(p.grad is None or (p.grad == 0).all() for p in denoiser.parameters())


def test_log_probs_of_the_network_add_up_to_the_same():
    objective = MDLM(AbsorbingProcess(VOCAB, LogLinear()))
    denoiser = objective.denoiser(network()).eval()
    xt = torch.tensor([[1, 59, 2, 59]])
    x0, positions = torch.tensor([[1, 5, 2, 7]]), torch.tensor([[False, True, False, True]])
    expected = -denoiser.log_probs(xt)[0, [1, 3], [5, 7]]
    denoiser.fused_from = 1
    torch.testing.assert_close(denoiser.nll(x0, xt, positions=positions), expected)
