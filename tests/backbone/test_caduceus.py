import pytest
import torch
from torch.nn.functional import silu

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.published.caduceus import caduceus_layout, published_names


@pytest.mark.parametrize("scan", ["cpu", "portable", "reference"])
def test_logits_and_features_equal_the_published_network(published, dna, scan):
    network = Caduceus(dna, 32, 3, scan=scan)
    file = published(network, "caduceus_ph")
    torch.testing.assert_close(network.features(file["input_ids"]), file["last_hidden_state"], rtol=1e-4, atol=1e-5)
    assert (network(file["input_ids"]) - file["logits"]).abs().max() < 1e-4 * file["logits"].abs().max()


@pytest.mark.parametrize(("d_model", "n_layers", "expected"), [(118, 4, 470_702), (256, 4, 1_934_592), (256, 16, 7_725_312)])
def test_published_parameter_counts(dna, d_model, n_layers, expected):
    # facts 23
    assert sum(p.numel() for p in Caduceus(dna, d_model, n_layers).parameters()) == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("strategy", ["add", "ew_multiply"])
def test_every_mixer_is_the_published_wiring(dna, strategy, tied):
    # The published network runs two Mambas, one on the flipped sequence; facts 26 for tied projections and `add`.
    torch.manual_seed(0)
    mixer = Caduceus(dna, 16, 1, bidirectional_strategy=strategy, bidirectional_weight_tie=tied).layers[0].mixer.double()
    hidden = torch.randn(2, 9, 16, dtype=torch.float64)

    def mamba(direction, in_proj, out_proj, x):
        inner, z = in_proj(x).chunk(2, dim=-1)
        return out_proj(direction(inner, None, "portable") * silu(z))

    back = (mixer.in_proj, mixer.out_proj) if tied else (mixer.in_proj_rev, mixer.out_proj_rev)
    mixer.rev.reverse = False
    forward, reverse = mamba(mixer.fwd, mixer.in_proj, mixer.out_proj, hidden), mamba(mixer.rev, *back, hidden.flip(1)).flip(1)
    mixer.rev.reverse = True
    torch.testing.assert_close(mixer(hidden, scan="portable"), forward + reverse if strategy == "add" else forward * reverse)


def test_the_residual_stream_exists(dna):
    # facts 27: without the mixers' output, what is left is final norm(embedding)
    network = Caduceus(dna, 16, 3)
    for layer in network.layers:
        torch.nn.init.zeros_(layer.mixer.out_proj.weight)
    ids = torch.tensor([[7, 8, 3, 11]])
    torch.testing.assert_close(network.features(ids), network.norm_f(network.embedding(ids)))


def test_ph_is_not_reverse_complement_equivariant(dna):
    # facts 24: with random weights the violation is large
    torch.manual_seed(0)
    network = Caduceus(dna, 32, 2)
    torch.nn.init.normal_(network.embedding.weight)
    ids = torch.randint(7, 11, (1, 40))
    forward, back = network(ids)[..., :12], network(dna.reverse_complement(ids))[..., :12].flip(1)[..., list(dna.complement)]
    assert (forward - back).abs().max() > 0.1


def test_published_names_of_tied_and_untied_projections():
    where = "caduceus.backbone.layers.3.mixer"
    both = (f"{where}.mamba_fwd.in_proj.weight", f"{where}.mamba_rev.in_proj.weight")
    assert published_names("layers.3.mixer.in_proj.weight", tied=True) == both
    assert published_names("layers.3.mixer.in_proj.weight", tied=False) == both[:1]
    assert published_names("layers.3.mixer.in_proj_rev.weight", tied=False) == both[1:]
    assert published_names("layers.3.mixer.rev.conv_bias", tied=True) == (f"{where}.mamba_rev.conv1d.bias",)
    assert published_names("embedding.weight", tied=True) == ("caduceus.backbone.embeddings.word_embeddings.weight", "lm_head.weight")


def test_wrong_arguments_are_refused(dna):
    with pytest.raises(ValueError, match="unknown scan 'fastest'"):
        Caduceus(dna, 16, 1, scan="fastest")
    with pytest.raises(ValueError, match="bidirectional_strategy 'concat' is not known; choose add or ew_multiply"):
        Caduceus(dna, 16, 1, bidirectional_strategy="concat")
    with pytest.raises(ValueError, match="cannot be exported"):
        caduceus_layout(Caduceus(dna, 16, 1, num_labels=2))
