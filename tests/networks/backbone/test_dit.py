import copy

import pytest
import torch

from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.options.command import compose
from dnadiff.store.objects import build

TEXT = Vocab(33, 32, 32, (32,))


@pytest.fixture
def published(parity):
    file = parity("mdlm_dit")
    network = DiT(TEXT, 64, 2, 4, 16).eval()
    network.load_state_dict(
        {
            k.removeprefix("weights."): v
            for k, v in file.items()
            if k.startswith("weights.") and "inv_freq" not in k
        }
    )
    return network, file


def test_logits_match_the_published_network(published):
    network, file = published
    torch.testing.assert_close(
        network(file["input_ids"], file["sigma"]), file["logits"], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        network(file["input_ids"]), file["logits_sigma0"], rtol=1e-5, atol=1e-5
    )


def test_padding_marked_invalid_does_not_change_the_output(published):
    network, file = published
    ids = file["input_ids"]
    padded = torch.cat([ids, torch.full((2, 5), 32)], 1)
    valid = (torch.arange(29) < 24).expand(2, -1)
    torch.testing.assert_close(
        network(padded, valid=valid)[:, :24], network(ids), rtol=1e-4, atol=1e-5
    )


def test_a_new_network_starts_at_zero_logits():
    torch.manual_seed(0)
    assert DiT(TEXT, 16, 2, 2, 8)(torch.tensor([[1, 2]])).abs().sum() == 0


def test_lengths_beyond_max_length_are_refused():
    with pytest.raises(ValueError, match="length 9 exceeds what this DiT was built for"):
        DiT(TEXT, 16, 1, 2, 8, max_length=8)(torch.zeros(1, 9, dtype=torch.int64))


def test_widths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="d_model 15"):
        DiT(TEXT, 15, 1, 2, 8)


# Parameters with vocab.size 50,258: GPT-2's 50,257 tokens and a mask.
SIZES = {
    "tiny": (512, 8, 8, 80_061_266),
    "small": (768, 12, 12, 169_627_218),
    "medium": (1024, 24, 16, 424_477_010),
}


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes_by_name(name):
    width, layers, heads, parameters = SIZES[name]
    vocab = Vocab(50_258, 50_257, 50_257, (50_257,))
    settings = compose("train", ["backbone=dit", f"backbone/size={name}"])["backbone"]
    assert (
        settings["d_model"],
        settings["n_layers"],
        settings["n_heads"],
        settings["cond_dim"],
    ) == (width, layers, heads, 128)
    assert (
        compose("train", ["backbone=transformer", f"backbone/size={name}"])["backbone"]["n_heads"]
        == heads
    )
    with torch.device("meta"):
        network = build(settings, vocab=vocab)
    assert sum(p.numel() for p in network.parameters()) == parameters
    block = 12 * width**2 + 5 * width + 2 * width + (128 + 1) * 6 * width
    ends = (
        2 * 50_258 * width
        + 50_258
        + width
        + (128 + 1) * 2 * width
        + (256 + 1) * 128
        + (128 + 1) * 128
    )
    assert parameters == layers * block + ends


def outcome(network, ids, sigma=None, **how):
    """Loss and gradients of all parameters."""
    network.zero_grad()
    loss = (network(ids, sigma, **how).log_softmax(-1) * torch.linspace(-1, 1, 33)).sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in network.parameters())]


def test_a_shared_condition_folded_into_parameters_gives_the_same_gradients(published):
    network, file = published
    not_folded = outcome(network, file["input_ids"], torch.zeros(2))
    for ours, theirs in zip(outcome(network, file["input_ids"]), not_folded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_noise_level_changes_the_output(published):
    network, file = published
    logits = network(file["input_ids"], file["sigma"])
    assert (logits - network(file["input_ids"])).abs().max() > 1e-2
    for row in range(2):  # a single sequence is also folded
        one = network(file["input_ids"][row : row + 1], file["sigma"][row : row + 1])
        torch.testing.assert_close(one[0], logits[row], rtol=1e-5, atol=1e-5)


def test_checkpointed_blocks_have_the_same_gradients_and_the_same_dropout(published):
    network, file = published
    network.train()
    for block in network.blocks:
        block.dropout.p = 0.5
    kept, results = [0], []

    def keep(x):
        kept[-1] += x.numel()
        return x

    for again in (False, True):
        network.activation_checkpointing = again
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            results.append(outcome(network, file["input_ids"], file["sigma"]))
        kept.append(0)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert kept[1] < kept[0] / 2
    network.eval()
    assert torch.equal(network(file["input_ids"]), network(file["input_ids"]))


@pytest.mark.parametrize("timed", [False, True])
def test_bfloat16_stays_close_and_ends_in_float32(published, timed):
    network, file = published
    sigma = file["sigma"] if timed else None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(file["input_ids"], sigma)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(
        logits, file["logits" if timed else "logits_sigma0"], rtol=0.05, atol=0.05
    )


@pytest.mark.parametrize("timed", [False, True])
def test_weights_in_bfloat16_compute_without_autocast(published, timed):
    network, file = published
    logits = network.bfloat16()(file["input_ids"], file["sigma"] if timed else None)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(
        logits, file["logits" if timed else "logits_sigma0"], rtol=0.1, atol=0.1
    )


@pytest.mark.slow
def test_compiling_the_blocks_does_not_change_names_or_copies():
    network = DiT(TEXT, 16, 2, 2, 8, compile=True)
    assert network.state_dict().keys() == DiT(TEXT, 16, 2, 2, 8).state_dict().keys()
    assert (
        copy.deepcopy(network).blocks[0]._compiled_call_impl is None
        and network.blocks[0]._compiled_call_impl is not None
    )


@pytest.mark.slow
def test_compiled_blocks_compute_the_same(published):
    network, file = published
    compiled = copy.deepcopy(network)
    for block in compiled.blocks:
        block.compile()
    for sigma in (None, file["sigma"]):
        for ours, theirs in zip(
            outcome(compiled, file["input_ids"], sigma),
            outcome(network, file["input_ids"], sigma),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
