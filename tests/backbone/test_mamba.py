import pytest
import torch

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.backbone.mamba import Mamba
from dnadiff.denoiser import Denoiser
from dnadiff.kernels import SCANS


def test_published_parameter_count(dna):
    # facts 23
    assert sum(p.numel() for p in Mamba(dna, 128, 4).parameters()) == 468_608


@pytest.mark.parametrize("scan", SCANS)
def test_later_tokens_change_nothing_earlier(dna, scan):
    torch.manual_seed(0)
    network = Mamba(dna, 16, 3, scan=scan)
    ids = torch.randint(7, 11, (2, 40))
    changed = ids.clone()
    changed[:, 25:] = torch.randint(0, 12, (2, 15))
    before, after = network.features(ids), network.features(changed)
    assert torch.equal(before[:, :25], after[:, :25]) and (before[:, 25:] - after[:, 25:]).abs().max() > 1e-2


def test_it_is_the_forward_half_of_a_published_caduceus(published, dna):
    # No file holds a unidirectional network, but a bidirectional one whose reverse scan is silent is one.
    both = Caduceus(dna, 32, 3)
    ids = published(both, "caduceus_ph")["input_ids"]
    with torch.no_grad():
        for layer in both.layers:  # silu(0) = 0 is what the scan and its skip connection read
            layer.mixer.rev.conv_weight.zero_()
            layer.mixer.rev.conv_bias.zero_()
    one = Mamba(dna, 32, 3)
    one.load_state_dict({name: tensor for name, tensor in both.state_dict().items() if ".rev." not in name})
    torch.testing.assert_close(one(ids), both(ids))


def test_a_diffusion_denoiser_refuses_it(dna):
    assert Mamba.causal
    with pytest.raises(ValueError, match="Mamba is causal: masked diffusion needs a bidirectional backbone"):
        Denoiser(Mamba(dna, 16, 1))
