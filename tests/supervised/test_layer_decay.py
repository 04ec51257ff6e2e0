import copy
from types import SimpleNamespace

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT
from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, build_classifier
from dnadiff.supervised.items import Items, TaskData, no_report
from dnadiff.supervised.networks import CNN
from dnadiff.supervised.training import FineTuningModule, Recipe, decayed_groups

VOCAB = DNATokenizer().vocab


def classifier(kind=Caduceus, **settings):
    settings = {"d_model": 8, "n_layers": 3, **settings}
    return build_classifier(kind(VOCAB, **settings), MEAN_HEAD, HeadInputs(), 2, 20, True)


def rates(module, decay: float) -> dict[str, float]:
    names = {id(p): name for name, p in module.named_parameters()}
    groups = decayed_groups(module, 1.0, 0.1, decay)
    assert sorted(names[id(p)] for group in groups for p in group["params"]) == sorted(
        names.values()
    )
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


@pytest.mark.parametrize("kind, layers, embedding, last", [
    (Caduceus, "layers", "embedding.weight", "norm_f.weight"),
    (DiT, "blocks", "vocab_embed.embedding", "output_layer.linear.weight"),
])  # fmt: skip
def test_the_head_has_the_full_rate_and_the_embedding_the_lowest(kind, layers, embedding, last):
    more = {} if kind is Caduceus else {"n_heads": 2, "cond_dim": 8}
    found = rates(classifier(kind, **more), 0.5)
    assert found["head.weight"] == found["head.bias"] == found[f"backbone.{last}"] == 1.0
    for number, factor in enumerate((1 / 8, 1 / 4, 1 / 2)):
        own = {
            rate for name, rate in found.items() if name.startswith(f"backbone.{layers}.{number}.")
        }
        assert own == {factor}
    assert found[f"backbone.{embedding}"] == 1 / 16 == min(found.values())


def test_without_decay_there_are_two_groups_of_one_rate():
    groups = decayed_groups(classifier(), 2e-3, 0.1, 1.0)
    assert [(group["weight_decay"], group["lr"]) for group in groups] == [(0.1, 2e-3), (0.0, 2e-3)]
    assert set(rates(CNN(VOCAB, 2, 100), 0.5).values()) == {1.0}


def test_parameters_that_are_not_trained_are_in_no_group():
    module = classifier()
    module.backbone.requires_grad_(False)
    assert [id(p) for group in decayed_groups(module, 1.0, 0.1, 0.5) for p in group["params"]] == [
        id(module.head.weight),
        id(module.head.bias),
    ]


def test_a_copied_network_is_fine_tuned_without_decay_of_its_state_space():
    module = build_classifier(
        copy.deepcopy(Caduceus(VOCAB, d_model=8, n_layers=1)), MEAN_HEAD, HeadInputs(), 2, 20, True
    )
    free = {
        id(p)
        for group in decayed_groups(module, 1.0, 0.1, 1.0)
        if not group["weight_decay"]
        for p in group["params"]
    }
    parameters = dict(module.named_parameters())
    marked = [
        p
        for name, p in parameters.items()
        if name.rpartition(".")[2] in ("A_log", "D", "dt_bias", "bias")
    ]
    assert len(marked) > 4 and all(id(p) in free for p in marked)
    assert id(parameters["backbone.layers.0.mixer.in_proj.weight"]) not in free


def test_the_schedule_multiplies_the_rate_of_each_layer():
    items = Items(
        torch.full((8, 6), 7, dtype=torch.uint8), torch.full((8,), 6), torch.arange(8) % 2
    )
    data = TaskData("toy", ["a", "b"], items, items, items)
    recipe = Recipe(weight_decay=0.1, warmup=0.5, batch_size=4, layer_decay=0.5)
    module = FineTuningModule(classifier(), data, 1e-2, recipe, seed=0, report=no_report)
    module._trainer = SimpleNamespace(estimated_stepping_batches=4)  # two steps of warmup
    found = module.configure_optimizers()
    first = {group["lr"] for group in found["optimizer"].param_groups}
    assert sorted(first) == pytest.approx([5e-3 * 0.5**n for n in (4, 3, 2, 1, 0)])
