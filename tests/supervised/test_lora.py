import copy

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.adapter import LoRA
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.networks import FineTunedModel, Frozen

VOCAB = DNATokenizer().vocab


def network():
    torch.manual_seed(0)
    return Caduceus(VOCAB, d_model=16, n_layers=2, d_state=4)


def task() -> TaskData:
    labels = torch.arange(32) % 2
    items = Items(
        (7 + labels[:, None]).expand(32, 12).to(torch.uint8), torch.full((32,), 12), labels
    )
    return TaskData("toy", ["a", "b"], items, items, items)


def fitted(start, **settings):
    model = FineTunedModel(
        lambda seed: copy.deepcopy(start),
        1e-2,
        epochs=2,
        batch_size=8,
        weight_decay=0.1,
        **settings,
    )
    return model, model.fit(task(), 0)


def changed(start, classifier) -> set[str]:
    after = dict(classifier.backbone.named_parameters())
    return {
        name for name, before in start.named_parameters() if not torch.equal(before, after[name])
    }


def test_fine_tuning_with_lora_returns_plain_weights_of_which_only_the_maps_changed():
    start = network()
    model, classifier = fitted(start, adapter=LoRA(rank=2))
    assert list(start.state_dict().keys()) == sorted(
        classifier.backbone.state_dict(), key=list(start.state_dict()).index
    )
    maps = {
        f"layers.{n}.mixer.{name}.weight"
        for n in (0, 1)
        for name in ("in_proj", "out_proj", "fwd.x_proj", "rev.x_proj")
    }
    found = changed(start, classifier)
    assert found and all(name.rpartition(".")[0].endswith("proj") for name in found), found - maps
    assert model.describe()["adapter"] == {"LoRA": {"rank": 2, "alpha": 16.0}}
    log_probs = model.predict(classifier, task())
    assert torch.equal(log_probs, model.fit_predict(task(), 0))


def test_frozen_parts_keep_their_weights_and_have_no_dropout():
    start = network()
    assert changed(start, fitted(start, frozen=Frozen(backbone=True))[1]) == set()
    found = changed(start, fitted(start, frozen=Frozen(layers=1))[1])
    assert "layers.1.mixer.in_proj.weight" in found and not any(
        name.startswith(("embedding", "layers.0")) for name in found
    )
    found = changed(start, fitted(start, frozen=Frozen(layers=1), adapter=LoRA(2))[1])
    assert found and all(name.startswith("layers.1") for name in found)
    with pytest.raises(
        ValueError, match="freeze 3 is more than the 2 layers of this Caduceus; set freeze=backbone"
    ):
        fitted(start, frozen=Frozen(layers=3))
