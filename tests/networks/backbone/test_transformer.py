import pytest
import torch

from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.transformer import Transformer

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Transformer(DNA, 16, 2, 2, max_length=64).eval()


def test_a_position_depends_on_itself_and_earlier_ones(network):
    ids = torch.randint(7, 11, (2, 12))
    features = network.features(ids)
    changed = ids.clone()
    changed[:, 7] = 17 - changed[:, 7]
    after = network.features(changed)
    assert torch.equal(after[:, :7], features[:, :7])
    assert ((after[:, 7:] - features[:, 7:]).abs().amax(-1) > 0).all()


def test_a_mask_of_ones_does_not_change_the_output(network):
    ids = torch.randint(7, 11, (2, 12))
    torch.testing.assert_close(
        network.features(ids, valid=torch.ones_like(ids, dtype=torch.bool)), network.features(ids)
    )


def test_invalid_positions_are_ignored(network):
    ids = torch.randint(7, 11, (1, 8))
    valid = torch.arange(8)[None] != 2
    changed = torch.where(valid, ids, 4)
    assert torch.equal(
        network.features(ids, valid=valid)[:, 3:], network.features(changed, valid=valid)[:, 3:]
    )


def test_bad_sizes_and_inputs_are_refused(network):
    with pytest.raises(ValueError, match="d_model 18 must be n_heads 4 times an even head width"):
        Transformer(DNA, 18, 1, 4)
    with pytest.raises(ValueError, match="has no time input"):
        network.features(torch.tensor([[7]]), sigma=torch.ones(1))
    with pytest.raises(ValueError, match="length 65 exceeds"):
        network.features(torch.full((1, 65), 7))


def test_the_embedding_reaches_the_final_norm_through_the_residual_stream(network):
    # Without the output of the branches the features are the normalized embedding.
    with torch.no_grad():
        for block in network.blocks:
            for layer in (block.attn_out, block.mlp[2]):
                for p in layer.parameters():
                    p.zero_()
    ids = torch.randint(7, 11, (2, 9))
    torch.testing.assert_close(network.features(ids), network.norm_f(network.embedding(ids)))


@torch.no_grad()
def test_cached_keys_and_values_give_the_features_of_the_full_pass():
    torch.manual_seed(0)
    network = Transformer(DNA, 16, 2, 2).eval()
    ids = torch.randint(7, 11, (2, 50))
    full, state = network.features(ids), None
    for at in range(20):
        step, state = network.step(ids[:, at], state)
        torch.testing.assert_close(step, full[:, at], rtol=1e-4, atol=1e-4)
    for piece in ids[:, 20:].split([1, 13, 16], 1):
        found, state = network.read(piece, state)
        end = state.length
        torch.testing.assert_close(found, full[:, end - piece.shape[1] : end], rtol=1e-4, atol=1e-4)
    assert end == 50 and state.tensors[0].shape[2] == 50
    network.max_length = 52
    with pytest.raises(ValueError, match="length 53 exceeds what this Transformer was built for"):
        network.read(ids[:, :3], state)


def test_checkpointed_blocks_have_the_same_gradients(network):
    ids, found = torch.randint(7, 11, (2, 12)), []
    torch.nn.init.normal_(network.linear.weight)
    for again in (False, True):
        network.activation_checkpointing = again
        network.zero_grad()
        network(ids).logsumexp(-1).sum().backward()
        found.append([p.grad for p in network.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_weights_in_bfloat16_compute_without_autocast(network):
    torch.nn.init.normal_(network.linear.weight)
    ids = torch.randint(7, 11, (2, 12))
    exact, narrow = network(ids), network.bfloat16()
    torch.testing.assert_close(narrow(ids), exact, rtol=0.1, atol=0.1)
    step, _ = narrow.step(ids[:, 0])
    torch.testing.assert_close(narrow.head(step), exact[:, 0], rtol=0.1, atol=0.1)
