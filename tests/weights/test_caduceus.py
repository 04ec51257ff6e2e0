"""The layout of Caduceus: tensor names and keys."""

import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.mamba import published_names
from dnadiff.weights.published import FAMILIES, load_published

DNA = DNATokenizer().vocab


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["caduceus_ph", "caduceus_ps", "caduceus_ps_unfused"])
def test_caduceus_folders_load(name, binary, tmp_path, folder_of):
    folder, arrays = folder_of(name, tmp_path, binary=binary)
    denoiser = load_published(folder)
    assert denoiser.vocab == DNA and not denoiser.training and not denoiser.time_conditioning
    assert type(denoiser.backbone) is (Caduceus if name == "caduceus_ph" else CaduceusPS)
    logits = denoiser.backbone(arrays["input_ids"])
    assert (logits - arrays["logits"]).abs().max() < 1e-4 * arrays["logits"].abs().max()
    assert denoiser.log_probs(arrays["input_ids"]).shape == (2, 50, 12)


def test_published_names_of_tied_and_untied_projections():
    where = "caduceus.backbone.layers.3.mixer"
    both = (f"{where}.mamba_fwd.in_proj.weight", f"{where}.mamba_rev.in_proj.weight")
    assert published_names("layers.3.mixer.in_proj.weight", tied=True) == both
    assert published_names("layers.3.mixer.in_proj.weight", tied=False) == both[:1]
    assert published_names("layers.3.mixer.in_proj_rev.weight", tied=False) == both[1:]
    assert published_names("layers.3.mixer.rev.conv_bias", tied=True) == (
        f"{where}.mamba_rev.conv1d.bias",
    )
    assert published_names("embedding.weight", tied=True) == (
        "caduceus.backbone.embeddings.word_embeddings.weight",
        "lm_head.weight",
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional_weight_tie": False},
        {"rms_norm": False, "d_state": 5, "dt_rank": 3},
        {"num_labels": 3, "cond_dim": 7},
        {"time_conditioning": True, "cond_dim": 7},
        {"num_labels": 3, "time_conditioning": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS])
def test_the_config_of_a_layout_describes_the_network(kind, options):
    network = kind(DNA, 16, 2, **options)
    described = FAMILIES["caduceus"].backbone(network.published_layout().config, DNA)
    target = described.pop("_target_")
    described.pop("swap_strands", None)
    again = kind(DNA, **described)
    assert target == f"{kind.__module__}.{kind.__name__}"
    assert {name: p.shape for name, p in again.named_parameters()} == {
        name: p.shape for name, p in network.named_parameters()
    }


def test_names_of_a_layout_are_unique():
    for network in (Caduceus(DNA, 16, 2), CaduceusPS(DNA, 16, 2, swap_strands=True)):
        layout = network.published_layout()
        names = [name for _, names in layout.weights for name in names] + list(layout.constants)
        assert len(names) == len(set(names))


def test_published_code_refuses_a_network_that_needs_the_time():
    # It hands everything in ssm_cfg to its mixer, which has these arguments only.
    accepted = {"d_state", "d_conv", "expand", "dt_rank", "conv_bias", "bias"}
    for timed in (False, True):
        for kind in (Caduceus, CaduceusPS):
            config = kind(DNA, 16, 1, time_conditioning=timed).published_layout().config
            assert config["ssm_cfg"].keys() - accepted == (
                {"time_conditioning"} if timed else set()
            )


def test_a_network_without_layers_is_refused():
    with pytest.raises(ValueError, match="n_layers 0 must be an integer of at least 1"):
        Caduceus(DNA, 16, 0).published_layout()
