import pytest
import torch

from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.mamba import Mamba


def test_published_parameter_count(dna):
    assert sum(p.numel() for p in Mamba(dna, 128, 4).parameters()) == 468_608


@pytest.mark.parametrize("scan", ["cpu", "portable", "reference"])
def test_features_do_not_depend_on_later_tokens(dna, scan):
    torch.manual_seed(0)
    network = Mamba(dna, 16, 3, scan=scan)
    ids = torch.randint(7, 11, (2, 40))
    changed = ids.clone()
    changed[:, 25:] = torch.randint(0, 12, (2, 15))
    before, after = network.features(ids), network.features(changed)
    assert (
        torch.equal(before[:, :25], after[:, :25])
        and (before[:, 25:] - after[:, 25:]).abs().max() > 1e-2
    )


def test_output_is_that_of_a_published_caduceus_without_its_reverse_direction(published, dna):
    # There is no file of a unidirectional network, but a bidirectional one whose reverse scan gives
    # zero is equivalent.
    both = Caduceus(dna, 32, 3)
    ids = published(both, "caduceus_ph")["input_ids"]
    with torch.no_grad():
        for (
            layer
        ) in both.layers:  # the input of the scan and of its skip connection becomes silu(0) = 0
            layer.mixer.rev.conv_weight.zero_()
            layer.mixer.rev.conv_bias.zero_()
    one = Mamba(dna, 32, 3)
    one.load_state_dict(
        {name: tensor for name, tensor in both.state_dict().items() if ".rev." not in name}
    )
    torch.testing.assert_close(one(ids), both(ids))


def test_a_diffusion_denoiser_refuses_a_causal_network(dna):
    with pytest.raises(
        ValueError,
        match=(
            "Denoiser does not fit Mamba: it needs a bidirectional network, such as caduceus or dit"
        ),
    ):
        Denoiser(Mamba(dna, 16, 1))


def test_dropout_acts_on_the_branches_and_is_off_by_default(dna):
    def features(dropout, *, train):
        torch.manual_seed(0)
        network = Mamba(dna, 16, 2, dropout=dropout).train(train)
        before = torch.get_rng_state()
        return (
            network.features(torch.arange(7, 11).repeat(1, 5)),
            torch.equal(before, torch.get_rng_state()),
            network.state_dict().keys(),
        )

    plain, untouched, names = features(0.0, train=True)
    evaluated, _, same_names = features(0.5, train=False)
    dropped, drew, _ = features(0.5, train=True)
    assert untouched and not drew and names == same_names
    assert torch.equal(plain, evaluated) and not torch.equal(plain, dropped)
    with pytest.raises(ValueError, match=r"dropout 1.0 must be a number of at least 0 and below 1"):
        Mamba(dna, 16, 1, dropout=1.0)


def test_activation_checkpointing_draws_the_same_dropout(dna):
    def gradient(checkpointing):
        torch.manual_seed(0)
        network = Mamba(dna, 16, 2, dropout=0.5, activation_checkpointing=checkpointing)
        network.features(torch.arange(7, 11).repeat(1, 5)).square().sum().backward()
        return network.embedding.weight.grad

    torch.testing.assert_close(gradient(True), gradient(False))
