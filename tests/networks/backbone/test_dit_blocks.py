"""DiT in blocks: two streams at once equal one block after another, and no block sees what is after
it."""

import copy

import pytest
import torch

from dnadiff.networks.backbone.attention import DenseStreams
from dnadiff.networks.backbone.base import State
from dnadiff.networks.backbone.dit import DiT

LENGTH = 11
SIZES = [1, 2, 3, 5, LENGTH]


def build(dna, n_layers=3, **options):
    """A network in float64 with random parameters, because the head and the gates of a new one are
    zero."""
    torch.manual_seed(0)
    network = DiT(
        dna, 16, n_layers, 2, 8, **{"dropout": 0.0, "max_length": LENGTH} | options
    ).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


@pytest.fixture
def network(dna):
    return build(dna)


@pytest.fixture
def x0():
    return torch.randint(7, 11, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def xt(x0):
    return torch.where(
        torch.rand(x0.shape, generator=torch.Generator().manual_seed(2)) < 0.5, 3, x0
    )


# Padding at the end, at the beginning (all of the first blocks), and none.
PADDED = torch.stack(
    [torch.arange(LENGTH) < 7, torch.arange(LENGTH) >= 4, torch.arange(LENGTH) >= 0]
)


@pytest.fixture(params=[None, PADDED], ids=["whole", "padded"])
def valid(request):
    return request.param


def block_by_block(network, xt, x0, size, valid=None):
    """Features of the noised stream, from one block after another."""
    state, found = None, []
    for start in range(0, xt.shape[1], size):
        block = slice(start, start + size)
        mask = None if valid is None else valid[:, block]
        found.append(network.step_block(xt[:, block], state, valid=mask))
        state = network.advance(x0[:, block], state, valid=mask)
    assert state.length == xt.shape[1]
    return torch.cat(found, 1)


def gradients(network, features, valid):
    """Loss and gradients of all parameters."""
    kept = features if valid is None else features[valid]
    loss = (network.head(kept).log_softmax(-1) * torch.linspace(-1, 1, 12)).sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("size", SIZES)
def test_all_blocks_at_once_equal_one_after_another(network, xt, x0, size, valid):
    at_once, clean = network.block_features(xt, x0, size, valid=valid)
    assert clean is None and at_once.isfinite().all()
    one_by_one = block_by_block(network, xt, x0, size, valid)
    torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=1e-10)
    for ours, theirs in zip(
        gradients(network, at_once, valid), gradients(network, one_by_one, valid), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_the_clean_stream_reads_clean_tokens_as_the_noised_one_does(network, xt, x0, size, valid):
    noised, clean = network.block_features(xt, x0, size, valid=valid, clean=True)
    torch.testing.assert_close(
        noised, network.block_features(xt, x0, size, valid=valid)[0], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        clean, network.block_features(x0, x0, size, valid=valid)[0], rtol=0, atol=1e-12
    )


def test_one_block_is_the_bidirectional_network(network, xt, x0, valid):
    expected, found = (
        network.features(xt, valid=valid),
        network.block_features(xt, x0, LENGTH, valid=valid)[0],
    )
    kept = slice(None) if valid is None else valid
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_with_one_layer_a_block_reads_the_clean_tokens_before_it_and_itself(dna, xt, x0, size):
    network = build(dna, n_layers=1)
    found = network.block_features(xt, x0, size)[0]
    for start in range(0, LENGTH, size):
        block = slice(start, min(start + size, LENGTH))
        expected = network.features(torch.cat([x0[:, :start], xt[:, block]], 1))
        torch.testing.assert_close(found[:, block], expected[:, block], rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_later_tokens_and_other_noised_blocks_change_nothing(network, xt, x0, size):
    before = network.block_features(xt, x0, size, clean=True)
    for start in range(0, LENGTH, size):
        block = slice(start, start + size)
        other_xt, other_x0 = (x.clone() for x in (xt, x0))
        other_xt[:, :start], other_xt[:, start + size :], other_x0[:, start:] = 11, 11, 11
        noised, clean = network.block_features(other_xt, other_x0, size, clean=True)
        assert torch.equal(noised[:, block], before[0][:, block]) and torch.equal(
            clean[:, :start], before[1][:, :start]
        )
        if start:
            other_x0[:, start - 1] = 11
            assert (
                not torch.isclose(network.block_features(xt, other_x0, size)[0], before[0])[
                    :, block
                ]
                .all(-1)
                .any()
            )


def test_tokens_of_padding_change_nothing(network, xt, x0):
    before = network.block_features(xt, x0, 3, valid=PADDED)[0]
    other = network.block_features(*(torch.where(PADDED, x, 4) for x in (xt, x0)), 3, valid=PADDED)[
        0
    ]
    assert torch.equal(before[PADDED], other[PADDED]) and before.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize(
    "valid", [None, torch.tensor([[True], [False], [True]])], ids=["whole", "padded"]
)
def test_reading_a_block_leaves_the_state_as_it_was(network, x0, valid):
    valid = None if valid is None else valid.expand(-1, 4)
    state = network.advance(x0[:, :4], valid=valid)
    copies = [x.clone() for x in state.tensors]
    after, features = (
        network.advance(x0[:, 4:8], state, valid=valid),
        network.step_block(x0[:, 4:8], state, valid=valid),
    )
    assert state.length == 4 and after.length == 8 and all(map(torch.equal, state.tensors, copies))
    keep = torch.tensor([2, 1])
    some = network.step_block(
        x0[keep, 4:8], state.select(keep), valid=None if valid is None else valid[keep]
    )
    torch.testing.assert_close(some, features[keep], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_full_cache_is_a_sliding_window(dna, size):
    window, length = 8, 16
    ids = torch.randint(7, 11, (2, length), generator=torch.Generator().manual_seed(1))
    xt = torch.where(torch.arange(length) % 3 == 0, ids, 3)
    network = build(dna, max_length=window)
    key = torch.arange(length)
    query = key[:, None]
    own, end = key // size == query // size, (query // size + 1) * size
    before = (key < end - size) & (key >= end - window)
    streams = DenseStreams(torch.cat([own, before], 1)[None, None], (own | before)[None, None])
    condition = network._condition(None, xt.device)
    angles = tuple(x.repeat(2, 1) for x in network.rotary_emb.angles(length, xt.device))
    expected = network.through_blocks(
        network.embed(torch.cat([xt, ids], 1)), condition, angles, streams
    )
    expected = network.output_layer(expected, condition)[:, :length]
    torch.testing.assert_close(block_by_block(network, xt, ids, size), expected, rtol=0, atol=1e-10)


def test_the_window_slides_over_any_length_in_constant_memory(dna):
    network, window, size = build(dna, n_layers=1, max_length=8), 8, 2
    ids = torch.randint(7, 11, (2, 400), generator=torch.Generator().manual_seed(1))
    state = None
    with torch.no_grad():
        for start in range(0, ids.shape[1], size):
            block = ids[:, start : start + size]
            seen = ids[:, max(0, start + size - window) : start + size]
            if (
                start < 50 or start > 350
            ):  # with one layer, all that a block depends on is in the window
                torch.testing.assert_close(
                    network.step_block(block, state),
                    network.features(seen)[:, -size:],
                    rtol=0,
                    atol=1e-5,
                )
            state = network.advance(block, state)
            assert state.length == start + size and all(x.shape[2] <= window for x in state.tensors)


@torch.no_grad()
def test_a_window_is_the_same_at_any_distance_from_the_first_token(dna, x0):
    network = build(dna, max_length=4)
    state = None
    for start in range(0, 8, 2):
        state = network.advance(x0[:, start : start + 2], state)
    far = State(state.tensors, state.length + 4 * 10**9)
    assert torch.equal(network.step_block(x0[:, 8:10], far), network.step_block(x0[:, 8:10], state))
    near, far = (network.advance(x0[:, 8:10], each) for each in (state, far))
    assert far.length == 10 + 4 * 10**9 and all(map(torch.equal, near.tensors, far.tensors))


def test_without_a_longest_length_the_cache_grows(dna, x0):
    network = build(dna, max_length=None)
    state = network.advance(x0, network.advance(x0))
    assert state.length == 2 * LENGTH and all(x.shape[2] == 2 * LENGTH for x in state.tensors)


def test_lengths_beyond_max_length_and_labels_are_refused(network):
    long = torch.full((1, LENGTH + 1), 7)
    for call in (
        lambda: network.block_features(long, long, 2),
        lambda: network.step_block(long),
        lambda: network.advance(long),
    ):
        with pytest.raises(ValueError, match="length 12 exceeds what this DiT was built for"):
            call()
    with pytest.raises(ValueError, match="without labels"):
        network.advance(long[:, :2], cond=torch.ones(1, 1))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointed_blocks_have_the_same_gradients(dna, xt, x0, valid, dropout):
    kept, results = [], []

    def keep(x):
        kept[-1] += x.numel()
        return x

    for activation_checkpointing in (False, True):
        network = build(dna, dropout=dropout, activation_checkpointing=activation_checkpointing)
        torch.manual_seed(1)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            results.append(
                gradients(network, network.block_features(xt, x0, 3, valid=valid)[0], valid)
            )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert kept[1] < kept[0] / 2


def test_in_the_last_layer_the_clean_stream_gives_keys_and_values_only(network, xt, x0):
    rows = []
    for block in network.blocks:
        block.mlp.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
        block.mlp[0].register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    network.block_features(xt, x0, 3)
    assert rows == [2 * LENGTH, 2 * LENGTH, LENGTH]
    rows.clear()
    network.block_features(xt, x0, 3, clean=True)
    assert rows == [2 * LENGTH] * 3


def test_bfloat16_stays_close(dna, xt, x0):
    network = build(dna, n_layers=1).float()
    expected = network.block_features(xt, x0, 3)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found, steps = network.block_features(xt, x0, 3)[0], block_by_block(network, xt, x0, 3)
    assert (found - expected).norm() < 0.05 * expected.norm() and (
        steps - expected
    ).norm() < 0.05 * expected.norm()


@pytest.mark.slow
def test_compiled_blocks_compute_the_same_in_blocks(dna, xt, x0):
    torch._dynamo.reset()
    network = build(dna).float()
    compiled = copy.deepcopy(network)
    for block in compiled.blocks:
        block.compile()
    expected, found = (
        gradients(each, each.block_features(xt, x0, 3, valid=PADDED)[0], PADDED)
        for each in (network, compiled)
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_a_network_on_a_gpu_computes_what_it_does_on_the_cpu(dna, compile):
    torch._dynamo.reset()  # it stops compiling a function that other tests compiled often
    torch.manual_seed(0)
    network = DiT(dna, 64, 2, 2, 8, dropout=0.0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x0, valid = torch.randint(7, 11, (2, 150)), torch.arange(150) < torch.tensor([[150], [90]])
    xt = torch.where(torch.rand(2, 150) < 0.5, 3, x0)

    def outcome(on, clean):
        network.to(on)
        streams = network.block_features(xt.to(on), x0.to(on), 16, valid=valid.to(on), clean=clean)
        loss = sum(
            network.head(x[valid.to(on)]).logsumexp(-1).sum() for x in streams if x is not None
        )
        return [x.cpu() for x in (loss, *torch.autograd.grad(loss, list(network.parameters())))]

    expected = [outcome("cpu", clean) for clean in (False, True)]
    for block in network.blocks if compile else ():
        block.compile()
    for clean in (False, True):
        for ours, theirs in zip(outcome("cuda", clean), expected[clean], strict=True):
            assert (ours - theirs).norm() < 1e-2 * theirs.norm() + 1e-6
