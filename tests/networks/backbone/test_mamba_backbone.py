"""What Caduceus-Ph, Caduceus-PS and Mamba share."""

import pytest
import torch

from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.kernels import facade

NETWORKS = [Caduceus, CaduceusPS, Mamba]


def build(kind, dna, **options):
    torch.manual_seed(0)
    return kind(dna, 16, 2, **options)


@pytest.fixture
def ids():
    return torch.randint(0, 12, (3, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", NETWORKS)
def test_padding_marked_invalid_does_not_change_the_output(kind, dna):
    network = build(kind, dna)
    ids = torch.randint(7, 11, (1, 20))
    padded = torch.cat([ids, torch.full((1, 7), 4)], 1)
    valid = torch.arange(27)[None] < 20
    torch.testing.assert_close(
        network.features(padded, valid=valid)[:, :20], network.features(ids), rtol=1e-4, atol=1e-5
    )
    if kind is not Mamba:
        assert (network.features(padded)[:, :20] - network.features(ids)).abs().max() > 1e-3


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("kind", NETWORKS)
def test_any_length_is_accepted(kind, length, dna):
    assert build(kind, dna)(torch.full((1, length), 7)).shape == (1, length, 16)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    "options",
    [
        {"d_state": 5},
        {"rms_norm": False},
        {"residual_in_fp32": True},
        {"dt_rank": 3, "d_conv": 3, "expand": 1},
    ],
    ids=str,
)
def test_options_change_the_parameters_as_expected(kind, options, dna, ids):
    plain, network = build(kind, dna), build(kind, dna, **options)
    assert network(ids).shape == (3, 20, 16) and network(ids).isfinite().all()
    same = list(plain.state_dict()) == list(network.state_dict()) and all(
        p.shape == q.shape for p, q in zip(plain.parameters(), network.parameters())
    )
    assert same == ("residual_in_fp32" in options)


@pytest.mark.parametrize(("wide", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_residual_in_fp32_keeps_the_stream_in_float32(dna, ids, wide, dtype):
    network = build(Caduceus, dna, residual_in_fp32=wide).bfloat16()
    seen = []
    network.layers[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    assert (
        network.features(ids).dtype == torch.bfloat16
        and network(ids).dtype == torch.float32
        and seen[0] == dtype
    )


@pytest.mark.parametrize("rms_norm", [True, False])
def test_norms_match_their_definition(dna, rms_norm):
    norm = build(Caduceus, dna, rms_norm=rms_norm).norm_f
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 16)
    if rms_norm:
        expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    else:
        torch.nn.init.normal_(norm.bias)
        expected = (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, keepdim=True, correction=0) + 1e-5
        ).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("kind", NETWORKS)
def test_initial_weights_have_the_published_distribution(kind, dna):
    torch.manual_seed(0)
    network = kind(dna, 64, 4)
    bound = 1 / (128**0.5 * 4**0.5)  # Kaiming-uniform with a = sqrt 5, over sqrt(n_layers)
    weight = network.layers[3].mixer.out_proj.weight.detach()
    assert 0.97 * bound < weight.abs().max() <= bound and weight.std() == pytest.approx(
        bound / 3**0.5, rel=0.03
    )
    assert network.embedding.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    step = torch.nn.functional.softplus(network.layers[0].mixer.fwd.dt_bias)
    assert step.min() >= 1e-3 and step.max() <= 0.1 * 1.001
    assert torch.equal(network.layers[0].mixer.fwd.A_log[5].exp().round(), torch.arange(1.0, 17))


@pytest.mark.parametrize("kind", NETWORKS)
def test_without_labels_the_output_is_bit_identical_to_a_network_built_without_them(kind, dna, ids):
    plain = build(kind, dna)
    after = torch.rand(1)
    conditioned = build(kind, dna, num_labels=3, time_conditioning=True)
    assert torch.equal(torch.rand(1), after)  # the same number of random numbers was drawn
    assert all(
        torch.equal(tensor, conditioned.state_dict()[name])
        for name, tensor in plain.state_dict().items()
    )
    for given in (
        {},
        {"cond": torch.eye(3)},
        {"sigma": torch.ones(3)},
        {"cond": torch.eye(3), "sigma": torch.ones(3)},
    ):
        assert torch.equal(conditioned(ids, **given), plain(ids))


@pytest.mark.parametrize("kind", NETWORKS)
def test_labels_and_noise_level_change_the_output_after_training(kind, dna, ids):
    network = build(kind, dna, num_labels=3, time_conditioning=True, cond_dim=8)
    network(ids, torch.ones(3), torch.eye(3)).logsumexp(-1).sum().backward()
    assert all(layer.adaLN_modulation.weight.grad.abs().sum() > 0 for layer in network.layers)
    for layer in network.layers:
        torch.nn.init.normal_(layer.adaLN_modulation.weight)
    without = network(ids)
    assert (network(ids, cond=torch.eye(3)) - without).abs().amax((1, 2)).min() > 1e-2
    assert (network(ids, sigma=torch.ones(3)) - without).abs().amax((1, 2)).min() > 1e-2
    assert torch.equal(network(ids, cond=torch.zeros(3, 3)), without)  # a row of zeros is no label
    one = torch.zeros(3, 3).index_fill_(0, torch.tensor([1]), 1.0)
    torch.testing.assert_close(
        network(ids, cond=one)[[0, 2]], without[[0, 2]]
    )  # a label affects its own sequence only


def test_labels_keep_the_residual_stream(dna, ids):
    # With any condition, mixers without output leave final norm(embedding).
    network = build(Caduceus, dna, num_labels=3)
    for layer in network.layers:
        torch.nn.init.normal_(layer.adaLN_modulation.weight)
        torch.nn.init.zeros_(layer.mixer.out_proj.weight)
    torch.testing.assert_close(
        network.features(ids, cond=torch.eye(3)), network.norm_f(network.embedding(ids))
    )


@pytest.mark.parametrize("kind", NETWORKS)
def test_inputs_that_a_network_cannot_use_are_refused(kind, dna, ids):
    with pytest.raises(ValueError, match="no time input"):
        build(kind, dna)(ids, sigma=torch.ones(3))
    with pytest.raises(ValueError, match="without labels"):
        build(kind, dna)(ids, cond=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"cond has shape \(3,\), expected \(3, 2\)"):
        build(kind, dna, num_labels=2)(ids, cond=torch.tensor([0, 1, 1]))


@pytest.mark.parametrize("kind", NETWORKS)
def test_activation_checkpointing_does_not_change_gradients(kind, dna, ids):
    gradients = []
    for activation_checkpointing in (False, True):
        network = build(kind, dna, num_labels=3, activation_checkpointing=activation_checkpointing)
        calls = []
        network.layers[1].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        network(ids, cond=torch.eye(3)).square().sum().backward()
        assert len(calls) == 1 + activation_checkpointing
        gradients.append([p.grad for p in network.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) and all(map(torch.equal, *gradients))


def test_a_scan_may_be_chosen_inside_a_checkpointed_layer(dna, ids):
    # The choice runs and differentiates scans, which must not count as part of the layer when it is
    # recomputed.
    facade._fastest.cache_clear()
    facade._failure.cache_clear()
    build(Caduceus, dna, activation_checkpointing=True)(ids).sum().backward()


@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_finite_and_close_in_bf16(kind, dna, ids, activation_checkpointing):
    network = build(kind, dna, activation_checkpointing=activation_checkpointing)
    torch.nn.init.normal_(network.embedding.weight)
    exact = torch.autograd.grad(network(ids).logsumexp(-1).mean(), list(network.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(ids)
        loss = logits.logsumexp(-1).mean()
    rounded = torch.autograd.grad(loss, list(network.parameters()))
    assert logits.dtype == torch.float32
    for a, b in zip(rounded, exact):
        assert a.isfinite().all() and (a - b).norm() < 0.1 * b.norm() + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"activation_checkpointing": True, "num_labels": 3}], ids=str
)
@pytest.mark.parametrize("kind", NETWORKS)
def test_compiled_blocks_compute_the_same_under_the_same_names(kind, dna, ids, options):
    torch._dynamo.reset()  # it stops compiling a function that other tests compiled often
    found = []
    for compile in (False, True):
        network = build(kind, dna, compile=compile, **options)
        assert (network.layers[0]._compiled_call_impl is not None) == compile
        logits = network(ids, cond=torch.eye(3) if options else None)
        gradients = torch.autograd.grad(
            logits.square().sum(), list(network.parameters()), allow_unused=True
        )
        found.append(
            {"": logits.detach()}
            | dict(zip((name for name, _ in network.named_parameters()), gradients))
        )
    assert found[0].keys() == found[1].keys()
    for ours, theirs in zip(*(x.values() for x in found)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_any_number_of_compiled_blocks_are_two_graphs(dna, ids):
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, graphs = Caduceus(dna, 16, 4), []
    expected = network(ids)

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    for layer in network.layers:
        layer.compile(
            backend=backend, fullgraph=True
        )  # a graph break in the facade or in an operator would raise
    torch.testing.assert_close(network(ids), expected)
    assert len(graphs) == 2  # the first block has no branch to add
