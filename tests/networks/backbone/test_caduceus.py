import pytest
import torch
from torch.nn.functional import silu

from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.facade import kernels, selective_scan


@pytest.mark.parametrize("scan", ["cpu", "portable", "reference"])
def test_logits_and_features_match_the_published_network(published, dna, scan):
    network = Caduceus(dna, 32, 3, scan=scan)
    file = published(network, "caduceus_ph")
    torch.testing.assert_close(
        network.features(file["input_ids"]), file["last_hidden_state"], rtol=1e-4, atol=1e-5
    )
    assert (network(file["input_ids"]) - file["logits"]).abs().max() < 1e-4 * file[
        "logits"
    ].abs().max()


@pytest.mark.parametrize(
    ("d_model", "n_layers", "expected"),
    [(118, 4, 470_702), (256, 4, 1_934_592), (256, 16, 7_725_312)],
)
def test_published_parameter_counts(dna, d_model, n_layers, expected):
    assert sum(p.numel() for p in Caduceus(dna, d_model, n_layers).parameters()) == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("strategy", ["add", "ew_multiply"])
def test_every_variant_of_the_mixer_matches_the_published_wiring(dna, strategy, tied):
    # The published network runs two Mambas, one on the flipped sequence.
    torch.manual_seed(0)
    mixer = (
        Caduceus(dna, 16, 1, bidirectional_strategy=strategy, bidirectional_weight_tie=tied)
        .layers[0]
        .mixer.double()
    )
    hidden = torch.randn(2, 9, 16, dtype=torch.float64)

    def mamba(direction, in_proj, out_proj, x):
        inner, z = in_proj(x).chunk(2, dim=-1)
        way, portable = direction.weights(), kernels("portable", inner)
        inputs = portable._scan_inputs(portable.short_conv(inner, *way[:2]), way, None)
        return out_proj(selective_scan(*inputs, scan="portable") * silu(z))

    back = (mixer.in_proj, mixer.out_proj) if tied else (mixer.in_proj_rev, mixer.out_proj_rev)
    forward, reverse = (
        mamba(mixer.fwd, mixer.in_proj, mixer.out_proj, hidden),
        mamba(mixer.rev, *back, hidden.flip(1)).flip(1),
    )
    torch.testing.assert_close(
        mixer(hidden, scan="portable"),
        forward + reverse if strategy == "add" else forward * reverse,
    )


def test_the_embedding_reaches_the_final_norm_through_the_residual_stream(dna):
    # Without the output of the mixers, final norm(embedding) remains.
    network = Caduceus(dna, 16, 3)
    for layer in network.layers:
        torch.nn.init.zeros_(layer.mixer.out_proj.weight)
    ids = torch.tensor([[7, 8, 3, 11]])
    torch.testing.assert_close(network.features(ids), network.norm_f(network.embedding(ids)))


def test_ph_is_not_reverse_complement_equivariant(dna):
    torch.manual_seed(0)
    network = Caduceus(dna, 32, 2)
    torch.nn.init.normal_(network.embedding.weight)
    ids = torch.randint(7, 11, (1, 40))
    forward, back = (
        network(ids)[..., :12],
        network(dna.reverse_complement(ids))[..., :12].flip(1)[..., list(dna.complement)],
    )
    assert (forward - back).abs().max() > 0.1


def test_wrong_arguments_are_refused(dna):
    with pytest.raises(ValueError, match="unknown scan 'fastest'"):
        Caduceus(dna, 16, 1, scan="fastest")
    with pytest.raises(
        ValueError,
        match="bidirectional_strategy 'concat' is not known; choose one of add, ew_multiply",
    ):
        Caduceus(dna, 16, 1, bidirectional_strategy="concat")
