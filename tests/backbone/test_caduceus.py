import pytest
import torch

from dnadiff.backbone.caduceus import Caduceus, from_published
from dnadiff.kernels import SCANS
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11), complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11))


@pytest.mark.parametrize("scan", SCANS)
def test_logits_and_features_equal_the_published_network(parity, scan):
    file = parity("caduceus_ph")
    network = Caduceus(Vocab(16, 3, 4, (3,)), 32, 3, scan=scan).eval()
    network.load_state_dict(from_published({k.removeprefix("weights."): v for k, v in file.items() if k.startswith("weights.")}))
    torch.testing.assert_close(network.features(file["input_ids"]), file["last_hidden_state"], rtol=1e-4, atol=1e-5)
    assert (network(file["input_ids"]) - file["logits"]).abs().max() < 1e-4 * file["logits"].abs().max()


@pytest.mark.parametrize(("d_model", "n_layers", "expected"), [(118, 4, 470_702), (256, 4, 1_934_592), (256, 16, 7_725_312)])
def test_published_parameter_counts(d_model, n_layers, expected):
    # facts 23
    assert sum(p.numel() for p in Caduceus(DNA, d_model, n_layers).parameters()) == expected


def test_shared_projections_are_the_published_wiring():
    # facts 26: in_proj(flip x) = flip(in_proj x) and out_proj a + out_proj b = out_proj(a + b)
    torch.manual_seed(0)
    mixer = Caduceus(DNA, 16, 1, scan="portable").layers[0].mixer.double()
    hidden = torch.randn(2, 9, 16, dtype=torch.float64)

    def one_way(direction, x):
        inner, z = mixer.in_proj(x).chunk(2, dim=-1)
        return mixer.out_proj(direction(inner, None, "portable") * torch.nn.functional.silu(z))

    mixer.rev.reverse = False
    published = one_way(mixer.fwd, hidden) + one_way(mixer.rev, hidden.flip(1)).flip(1)
    mixer.rev.reverse = True
    torch.testing.assert_close(mixer(hidden, scan="portable"), published)


def test_the_residual_stream_exists():
    # facts 27: without the mixers' output, what is left is final norm(embedding)
    network = Caduceus(DNA, 16, 3)
    for layer in network.layers:
        torch.nn.init.zeros_(layer.mixer.out_proj.weight)
    ids = torch.tensor([[7, 8, 3, 11]])
    torch.testing.assert_close(network.features(ids), network.norm_f(network.embedding(ids)))


def test_ph_is_not_reverse_complement_equivariant():
    # facts 24: with random weights the violation is large
    torch.manual_seed(0)
    network = Caduceus(DNA, 32, 2)
    torch.nn.init.normal_(network.embedding.weight)
    ids = torch.randint(7, 11, (1, 40))
    forward, back = network(ids)[..., :12], network(DNA.reverse_complement(ids))[..., :12].flip(1)[..., list(DNA.complement)]
    assert (forward - back).abs().max() > 0.1


def test_padding_marked_invalid_changes_nothing():
    torch.manual_seed(0)
    network = Caduceus(DNA, 16, 2)
    ids = torch.randint(7, 11, (1, 20))
    padded = torch.cat([ids, torch.full((1, 7), 4)], 1)
    valid = torch.arange(27)[None] < 20
    torch.testing.assert_close(network.features(padded, valid=valid)[:, :20], network.features(ids), rtol=1e-4, atol=1e-5)
    assert (network.features(padded)[:, :20] - network.features(ids)).abs().max() > 1e-3


@pytest.mark.parametrize("length", [1, 2, 33])
def test_any_length(length):
    assert Caduceus(DNA, 16, 1)(torch.full((1, length), 7)).shape == (1, length, 16)


def test_inputs_it_cannot_use_are_refused():
    network, ids = Caduceus(DNA, 16, 1), torch.tensor([[7]])
    with pytest.raises(ValueError, match="no time input"):
        network(ids, sigma=torch.ones(1))
    with pytest.raises(ValueError, match="without labels"):
        network(ids, cond=torch.ones(1, 2))
    with pytest.raises(ValueError, match="unknown scan 'fastest'"):
        Caduceus(DNA, 16, 1, scan="fastest")
