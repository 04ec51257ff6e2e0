"""Caduceus in blocks: one pass over two streams equals every block on its own after its clean
prefix, and nothing leaks from the right."""

import pytest
import torch

from dnadiff.networks.backbone import caduceus
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.facade import SCANS

L = 11
NETWORKS = {
    "tied": {},
    "untied": {"bidirectional_weight_tie": False},
    "product": {"bidirectional_strategy": "ew_multiply"},
    "labels": {"num_labels": 2},
    "layer norm, two taps": {"rms_norm": False, "d_conv": 2},
    "one tap": {"d_conv": 1},
    "recomputed": {"activation_checkpointing": True},
}


def network(dna, **options):
    torch.manual_seed(1)
    made = Caduceus(dna, d_model=8, n_layers=3, **{"d_state": 4, **options}).double()
    for name, parameter in made.named_parameters():
        if "adaLN" in name:  # starts at zero
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def streams(length=L, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randint(7, 11, (2, length), generator=generator)
    return x0, torch.where(torch.rand(2, length, generator=generator) < 0.6, 3, x0)


def block_by_block(net, xt, x0, size, cond=None, valid=None):
    state, parts = None, []
    for start in range(0, xt.shape[1], size):
        part = slice(start, start + size)
        known = None if valid is None else valid[:, part]
        parts.append(net.step_block(xt[:, part], state, cond, known))
        state = net.advance(x0[:, part], state, cond, known)
    return torch.cat(parts, 1)


@pytest.mark.parametrize(
    "size", [1, 3, L, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))]
)
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_two_streams_equal_every_block_after_its_prefix(dna, options, size):
    net, (x0, xt) = network(dna, **options), streams()
    cond = torch.eye(2, dtype=torch.float64) if "num_labels" in options else None
    weight = torch.randn(2, L, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    together, separate = (
        net.block_features(xt, x0, size, cond)[0],
        block_by_block(net, xt, x0, size, cond),
    )
    torch.testing.assert_close(together, separate, rtol=0, atol=1e-12)
    for got, expected in zip(
        *(
            torch.autograd.grad((f * weight).sum(), list(net.parameters()), allow_unused=True)
            for f in (together, separate)
        )
    ):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_padding_changes_nothing_before_it(dna):
    net, (x0, xt) = network(dna), streams()
    valid = torch.arange(L) < torch.tensor([[8], [L]])
    x0, xt = (torch.where(valid, x, 4) for x in (x0, xt))
    together = net.block_features(xt, x0, 3, None, valid)[0]
    torch.testing.assert_close(
        together, block_by_block(net, xt, x0, 3, None, valid), rtol=0, atol=1e-12
    )
    shorter = net.block_features(xt[:1, :8], x0[:1, :8], 3)[0]
    torch.testing.assert_close(together[:1, :8], shorter, rtol=0, atol=1e-12)


def test_one_block_is_the_bidirectional_network(dna):
    net, (x0, xt) = network(dna), streams()
    torch.testing.assert_close(
        net.block_features(xt, x0, L)[0], net.features(xt), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_nothing_leaks_from_the_right(dna, size):
    net, (x0, xt), (other, other_xt) = network(dna), streams(), streams(seed=9)
    before, clean = net.block_features(xt, x0, size, clean=True)
    for start in range(0, L, size):
        end = min(start + size, L)
        # Other tokens: in x0 from the block on, in xt everywhere but in the block.
        changed = torch.cat([x0[:, :start], other[:, start:]], 1)
        noised = other_xt.clone()
        noised[:, start:end] = xt[:, start:end]
        again, clean_again = net.block_features(noised, changed, size, clean=True)
        torch.testing.assert_close(again[:, start:end], before[:, start:end], rtol=0, atol=1e-12)
        torch.testing.assert_close(clean_again[:, :start], clean[:, :start], rtol=0, atol=1e-12)


def test_the_clean_stream_does_not_see_the_noised_one(dna):
    net, (x0, xt) = network(dna), streams()
    assert torch.equal(
        net.block_features(xt, x0, 4, clean=True)[1], net.block_features(x0, x0, 4, clean=True)[1]
    )


def test_the_state_is_not_modified_and_rows_can_be_selected(dna):
    net, (x0, xt) = network(dna), streams()
    state = net.advance(x0[:, :4])
    kept = [x.clone() for x in state.tensors]
    further = net.step_block(xt[:, 4:8], net.advance(x0[:, 4:6], state))
    assert (
        all(map(torch.equal, kept, state.tensors))
        and state.length == 4
        and further.shape == (2, 4, 8)
    )
    one = net.step_block(xt[1:, 4:8], state.select(torch.tensor([1])))
    torch.testing.assert_close(one, net.step_block(xt[:, 4:8], state)[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scan", sorted({"portable", "cpu"} & set(SCANS)))
def test_back_ends_in_float32_agree_with_float64(dna, scan):
    net, (x0, xt) = network(dna), streams(40)
    expected = net.block_features(xt, x0, 6)[0]
    narrow = network(dna, scan=scan).float()
    torch.testing.assert_close(
        narrow.block_features(xt, x0, 6)[0].double(), expected, rtol=1e-4, atol=1e-4
    )


def test_caduceus_ps_is_refused_with_the_reason(dna):
    from dnadiff.diffusion.noise import LogLinear
    from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
    from dnadiff.diffusion.process import AbsorbingProcess
    from dnadiff.networks.backbone.caduceus_ps import CaduceusPS

    with pytest.raises(
        ValueError,
        match=r"BlockMDLM does not fit backbone CaduceusPS: it needs a network that reads "
        r"blocks.*both strands",
    ):
        BlockMDLM(AbsorbingProcess(dna, LogLinear()), 4).denoiser(CaduceusPS(dna, 8, 1))


def loss_and_gradients(net, xt, x0, size, clean=True, **inputs):
    torch.manual_seed(5)
    outputs = net.block_features(xt, x0, size, clean=clean, **inputs)
    loss = sum(
        (x.square() * torch.linspace(0, 1, x.shape[-1])).sum() for x in outputs if x is not None
    )
    return [loss, *torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)]


def test_recomputed_layers_drop_the_same(dna):
    # Dropout was recomputed with other random numbers, so that gradients were of another loss.
    x0, xt = streams()
    nets = [
        network(dna, dropout=0.5, activation_checkpointing=recomputed).train()
        for recomputed in (False, True)
    ]
    for a, b in zip(*(loss_and_gradients(net.float(), xt, x0, 3) for net in nets)):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_any_number_of_compiled_layers_in_blocks_are_three_graphs(dna, monkeypatch):
    # backbone.compile=true compiled what reads whole sequences, and blocks ran uncompiled.
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(
        caduceus.two_streams, backend=backend, fullgraph=True
    )  # a graph break would raise
    monkeypatch.setattr(caduceus, "compiled_two_streams", lambda: run)
    torch.manual_seed(1)
    net, (x0, xt) = Caduceus(dna, d_model=8, n_layers=4, compile=True), streams()
    found = net.block_features(xt, x0, 4)[0]
    assert len(graphs) == 3  # the first layer has no branches to add, the last one no clean output
    net.compiled = False
    torch.testing.assert_close(found, net.block_features(xt, x0, 4)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"activation_checkpointing": True, "num_labels": 2}], ids=str
)
def test_compiled_layers_compute_the_same_in_blocks(dna, options):
    torch._dynamo.reset()
    x0, xt = streams()
    inputs = {"cond": torch.eye(2)} if "num_labels" in options else {}
    nets = [network(dna, compile=compiled, **options).float() for compiled in (False, True)]
    for a, b in zip(*(loss_and_gradients(net, xt, x0, 4, clean=False, **inputs) for net in nets)):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
