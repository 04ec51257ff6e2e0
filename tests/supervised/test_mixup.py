import pytest
import torch
from torch.nn.functional import cross_entropy

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.classifier import (
    Classifier,
    HeadInputs,
    draw_mixture,
    mixed_logits,
)
from dnadiff.supervised.heads import MeanHead
from dnadiff.supervised.items import Items, TaskData, make_batch, no_report
from dnadiff.supervised.networks import PublishedCNN
from dnadiff.supervised.targets import RegressionTarget
from dnadiff.supervised.training import FineTuningModule, Recipe, validate

DNA = DNATokenizer()
IDS = torch.tensor([[7, 7, 8, 9], [10, 9, 4, 4], [8, 8, 8, 8]])
ITEMS = Items(IDS.to(torch.uint8), torch.tensor([4, 2, 4]), torch.tensor([0, 1, 1]))
RECIPE = Recipe(weight_decay=0.0, warmup=0.0, batch_size=3, mixup=0.4)
DATA = TaskData("toy", ["a", "b"], ITEMS, ITEMS, ITEMS, stranded=True)


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(
        None,
        MeanHead(width=len(DNA.vocab.emitted), num_outputs=2, max_length=4),
        True,
        HeadInputs(one_hot=True),
        DNA.vocab,
    )


def test_mixed_features_are_weighted_means_over_the_longer_sequence():
    model, batch = classifier(), make_batch(ITEMS, torch.arange(3), DNA.vocab)
    order = torch.tensor([1, 0, 2])
    logits = mixed_logits(model, batch.ids, batch.valid, 0.25, order)
    one_hot = torch.where(batch.valid[..., None], model.read(batch.ids, batch.valid)[0], 0.0)
    pooled = (0.25 * one_hot + 0.75 * one_hot[order]).sum(1) / 4  # all pairs have a sequence of 4
    assert torch.allclose(logits, pooled @ model.head.weight.T + model.head.bias)
    alone = mixed_logits(model, batch.ids[:1], None, 1.0, torch.tensor([0]))
    assert torch.allclose(alone, model(batch.ids[:1]))


def test_the_loss_has_both_labels_in_the_same_shares():
    model, batch = classifier(), make_batch(ITEMS, torch.arange(3), DNA.vocab)
    module = FineTuningModule(model, DATA, 1e-3, RECIPE, seed=5, report=no_report)
    module._trainer = None
    share, order = draw_mixture(0.4, 3, 5, 0)
    logits = mixed_logits(model, batch.ids, batch.valid, share, order)
    expected = share * cross_entropy(logits, batch.labels) + (1 - share) * cross_entropy(
        logits, batch.labels[order]
    )
    assert torch.equal(module.training_step(batch, 0), expected)


def test_values_are_mixed_by_the_loss_of_their_target():
    model, labels = classifier(), torch.tensor([[1.0, 2.0], [0.0, float("nan")], [3.0, 1.0]])
    items = Items(IDS.to(torch.uint8), torch.tensor([4, 2, 4]), labels)
    data = TaskData(
        "toy", ["u", "v"], items, items, items, stranded=True, target=RegressionTarget(["u", "v"])
    )
    model.target = data.target.fit(labels)
    module = FineTuningModule(model, data, 1e-3, RECIPE, seed=5, report=no_report)
    module._trainer = None
    share, order = draw_mixture(0.4, 3, 5, 0)
    batch = make_batch(items, torch.arange(3), DNA.vocab)
    outputs = mixed_logits(model, batch.ids, batch.valid, share, order)
    losses = [model.target.loss(outputs, each) for each in (labels, labels[order])]
    assert torch.equal(module.training_step(batch, 0), share * losses[0] + (1 - share) * losses[1])
    found = validate(model, items, 3, stranded=True)
    assert -found.score.negative_loss == model.target.valid_loss(found.predictions, labels)


def test_the_same_seed_and_step_mix_the_same_pairs():
    first, again, other = (draw_mixture(0.4, 8, seed, 3) for seed in (1, 1, 2))
    assert first[0] == again[0] != other[0] and torch.equal(first[1], again[1])
    assert sorted(first[1].tolist()) == list(range(8)) and 0 <= first[0] <= 1


def test_a_network_without_a_head_on_features_is_refused():
    module = FineTuningModule(
        PublishedCNN(DNA).build_classifier(DATA, 0),
        DATA,
        1e-3,
        RECIPE,
        seed=5,
        report=no_report,
    )
    module._trainer = None
    with pytest.raises(
        ValueError, match=r"mixup 0\.4 needs a head on features, which a CNN has not; set mixup=0"
    ):
        module.training_step(make_batch(ITEMS, torch.arange(3), DNA.vocab), 0)


def test_balanced_classes_have_the_same_total_weight():
    target = DATA.target.balanced(ITEMS.labels)
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    each = cross_entropy(logits, ITEMS.labels, reduction="none")
    expected = pytest.approx(float(each[0] / 2 + each[1:].mean() / 2))
    assert target.valid_loss(logits.log_softmax(-1), ITEMS.labels) == expected
    assert float(target.loss(logits, ITEMS.labels)) == expected
    batches = [target.loss(logits[row : row + 1], ITEMS.labels[row : row + 1]) for row in range(3)]
    assert float(sum(batches) / 3) == expected  # also where a batch lacks a class
