import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.adapter import LoRA
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT

VOCAB = DNATokenizer().vocab


def network(kind=Caduceus, **settings):
    torch.manual_seed(0)
    more = {"n_heads": 2, "cond_dim": 8} if kind is DiT else {"d_state": 4}
    return kind(VOCAB, d_model=16, n_layers=2, **more, **settings)


IDS = torch.randint(7, 11, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [Caduceus, DiT])
def test_an_adapted_network_starts_as_it_was_and_trains_few_parameters(kind):
    backbone = network(kind)
    before, names = backbone.features(IDS), [name for name, _ in backbone.named_parameters()]
    LoRA(rank=2).attach(backbone)
    assert torch.equal(backbone.features(IDS), before)
    trained = [name for name, p in backbone.named_parameters() if p.requires_grad]
    assert trained and all(name.rpartition(".")[2] in ("up", "down") for name in trained)
    LoRA(rank=2).merge(backbone)
    assert sorted(name for name, _ in backbone.named_parameters()) == sorted(names)
    assert torch.equal(backbone.features(IDS), before)


def test_merged_weights_are_the_pretrained_ones_plus_the_scaled_product():
    backbone = network()
    weight, adapter = (
        backbone.layers[1].mixer.in_proj.weight.detach().clone(),
        LoRA(rank=2, alpha=6.0),
    )
    adapter.attach(backbone)
    update = backbone.layers[1].mixer.in_proj.parametrizations.weight[0]
    torch.nn.init.normal_(update.up)
    expected, adapted = weight + 3.0 * (update.up @ update.down).detach(), backbone.features(IDS)
    adapter.merge(backbone)
    assert torch.allclose(backbone.layers[1].mixer.in_proj.weight, expected)
    assert torch.allclose(backbone.features(IDS), adapted, atol=1e-6)
    assert type(backbone.layers[1].mixer.in_proj).__name__ == "Linear"


def test_maps_that_share_a_weight_share_their_update():
    backbone = network()
    first, second = backbone.layers[0].mixer, backbone.layers[1].mixer
    second.in_proj.weight = first.in_proj.weight
    LoRA(rank=2).attach(backbone)
    update = first.in_proj.parametrizations.weight[0]
    assert second.in_proj.parametrizations.weight[0] is update
    torch.nn.init.normal_(update.up)
    expected = first.in_proj.weight.detach().clone()
    LoRA(rank=2).merge(backbone)
    assert first.in_proj.weight is second.in_proj.weight and torch.equal(
        first.in_proj.weight, expected
    )


def test_a_rank_that_no_map_exceeds_is_refused():
    with pytest.raises(
        ValueError,
        match=r"adapter.rank 99: this Caduceus has no linear map in its layers that is larger",
    ):
        LoRA(rank=99).attach(network())


def test_freezing_every_layer_leaves_nothing_to_adapt():
    backbone = network()
    with pytest.raises(
        ValueError,
        match="freeze 2 leaves none of the 2 layers of this Caduceus to the adapter; set it lower",
    ):
        LoRA(rank=2).attach(backbone, 2)
