import copy

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.supervised.classifier import (
    MEAN_HEAD,
    HeadInputs,
    build_classifier,
    keep_first_layers,
)
from dnadiff.supervised.items import (
    Items,
    TaskData,
    make_batch,
    no_report,
    reverse_complement_rows,
)
from dnadiff.supervised.networks import FineTunedModel
from dnadiff.supervised.training import FineTuningModule, Recipe

DNA = DNATokenizer()


def network(kind: str, **settings):
    torch.manual_seed(0)
    if kind == "caduceus":
        return Caduceus(DNA.vocab, d_model=16, n_layers=2, d_state=4)
    if kind == "caduceus_ps":
        return CaduceusPS(DNA.vocab, d_model=16, n_layers=2, d_state=4)
    dit = DiT(DNA.vocab, d_model=16, n_layers=2, n_heads=2, cond_dim=8, dropout=0.0, **settings)
    for (
        block
    ) in dit.blocks:  # adaLN starts as the identity: attention would have no influence at all
        torch.nn.init.normal_(block.adaLN_modulation.weight, std=0.5)
    return dit


def linear(backbone, num_classes: int, stranded: bool = True):
    """A classifier with the published head."""
    return build_classifier(backbone, MEAN_HEAD, HeadInputs(), num_classes, 100, stranded)


def rich_or_poor(number: int, seed: int, low: int = 20, high: int = 30) -> Items:
    """Sequences of mostly A and T (class 0) or mostly C and G (class 1)."""
    random = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    sequences = [
        random.choice(
            [7, 8, 9, 10],
            random.integers(low, high + 1),
            p=([0.1, 0.4, 0.4, 0.1] if y else [0.4, 0.1, 0.1, 0.4]),
        ).astype(np.uint8)
        for y in labels
    ]
    return Items.from_sequences(sequences, labels, DNA.vocab.pad_id)


def task(stranded: bool = False) -> TaskData:
    return TaskData(
        "gc",
        ["poor", "rich"],
        rich_or_poor(160, 0),
        rich_or_poor(40, 1),
        rich_or_poor(60, 2),
        stranded,
    )


@pytest.mark.parametrize(
    "kind, stranded",
    [("dit", True), ("caduceus", True), ("caduceus_ps", True), ("caduceus_ps", False)],
)
def test_right_padding_changes_no_prediction(kind, stranded):
    classifier = linear(network(kind), 3, stranded).eval()
    items = rich_or_poor(6, 3)
    with torch.no_grad():
        together = make_batch(items, torch.arange(6), DNA.vocab)
        padded = classifier(together.ids, together.valid)
        alone = torch.cat(
            [classifier(items.ids[i : i + 1, : items.lengths[i]].long()) for i in range(6)]
        )
    assert torch.allclose(padded, alone, atol=1e-5, rtol=0)


def test_log_probs_of_both_strands_do_not_depend_on_which_one_is_given():
    classifier = linear(network("caduceus"), 2)
    items = rich_or_poor(7, 4)
    other = Items(
        reverse_complement_rows(items.ids, items.lengths, DNA.vocab).to(torch.uint8),
        items.lengths,
        items.labels,
    )
    both = classifier.predict(items, 3, both_strands=True)
    assert torch.allclose(both, classifier.predict(other, 3, both_strands=True), atol=1e-6)
    assert not torch.allclose(
        classifier.predict(items, 3, False), classifier.predict(other, 3, False), atol=1e-6
    )
    assert torch.allclose(both.exp().sum(1), torch.ones(7))


def test_scores_keep_the_order_of_the_items_for_any_batch_size():
    classifier = linear(network("dit"), 2)
    items = rich_or_poor(9, 5)
    one = torch.cat(
        [classifier.predict(items.select(torch.tensor([i])), 1, False) for i in range(9)]
    )
    assert torch.allclose(classifier.predict(items, 4, False), one, atol=1e-5)


@pytest.fixture(scope="module")
def learner() -> FineTunedModel:
    start = network("caduceus")
    return FineTunedModel(
        lambda seed: copy.deepcopy(start),
        lr=2e-2,
        epochs=3,
        batch_size=16,
    )


@pytest.mark.slow
def test_a_network_learns_composition_and_the_same_seed_gives_the_same_numbers(learner):
    data, steps = task(), []
    first = learner.fit_predict(data, 1, lambda n, tokens, **_: steps.append(n))
    assert (first.argmax(-1) == data.test.labels).float().mean() > 0.9
    assert sum(steps) == learner.num_steps(data) == 30
    torch.manual_seed(99)
    assert torch.equal(first, learner.fit_predict(data, 1))
    assert not torch.equal(first, learner.fit_predict(data, 2))


def test_fine_tuning_does_not_change_the_loaded_network():
    start = network("caduceus").eval()
    before = copy.deepcopy(start.state_dict())
    FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-2, batch_size=40).fit_predict(task(), 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in start.state_dict().items())


def test_the_weights_of_the_epoch_with_the_best_validation_accuracy_are_kept():
    data = task()
    classifier = linear(network("caduceus"), 2)
    training = FineTuningModule(
        classifier,
        data,
        0.0,
        Recipe(weight_decay=0.0, warmup=0.0, batch_size=20),
        seed=0,
        report=no_report,
    )
    right = data.valid.labels.float()[:, None] * torch.tensor([-2.0, 2.0]) + torch.tensor(
        [1.0, -1.0]
    )
    for epoch, log_probs in enumerate([right * 0, right, right * 2, -right]):
        classifier.head.bias.data.fill_(epoch)
        classifier.predict = lambda *_, fixed=log_probs: fixed.log_softmax(-1)
        training.on_train_epoch_end()
    assert training.best_weights["head.bias"].tolist() == [
        2,
        2,
    ]  # as accurate as epoch 1, with a lower loss
    assert training.best_score.accuracy == 1.0


def test_a_sequence_longer_than_max_length_is_refused():
    short = FineTunedModel(lambda seed: network("dit", max_length=25), lr=1e-3)
    with pytest.raises(
        ValueError, match="holds a sequence of 30 bases and this DiT takes at most 25"
    ):
        short.fit_predict(task(), 0)


def test_training_stops_when_validation_no_longer_improves():
    start, steps = network("caduceus"), []
    patient = FineTunedModel(
        lambda seed: copy.deepcopy(start),
        lr=0.0,
        epochs=9,
        batch_size=40,
        patience=2,
    )
    patient.fit_predict(task(), 0, lambda n, tokens, **_: steps.append(n))
    assert len(steps) == 3 * 4  # the first epoch is the best, then patience is 2


@pytest.mark.parametrize("swap_strands", [False, True])
@pytest.mark.parametrize("layer", [None, 1])
def test_a_parameter_shared_network_gives_both_strands_one_prediction(swap_strands, layer):
    def both(seed: int) -> CaduceusPS:
        torch.manual_seed(0)
        return keep_first_layers(
            CaduceusPS(DNA.vocab, d_model=16, n_layers=3, d_state=4, swap_strands=swap_strands),
            layer,
        )

    classifier = FineTunedModel(both, 1e-3).build_classifier(task(), 0)
    items = rich_or_poor(7, 4)
    other = Items(
        reverse_complement_rows(items.ids, items.lengths, DNA.vocab).to(torch.uint8),
        items.lengths,
        items.labels,
    )
    assert torch.allclose(
        classifier.predict(items, 3, False), classifier.predict(other, 3, False), atol=1e-6
    )
    assert torch.equal(
        classifier.predict(items, 3, True), classifier.predict(items, 3, False)
    )  # one pass
    plain = FineTunedModel(lambda seed: network("caduceus"), 1e-3).build_classifier(task(), 0)
    assert not torch.allclose(
        plain.predict(items, 3, False), plain.predict(other, 3, False), atol=1e-4
    )


def test_a_stranded_task_leaves_a_parameter_shared_network_both_strands_channels():
    classifier = FineTunedModel(lambda seed: network("caduceus_ps"), 1e-3).build_classifier(
        task(stranded=True), 0
    )
    items = rich_or_poor(7, 4)
    other = Items(
        reverse_complement_rows(items.ids, items.lengths, DNA.vocab).to(torch.uint8),
        items.lengths,
        items.labels,
    )
    assert classifier.head.width == classifier.backbone.d_model
    assert not torch.allclose(
        classifier.predict(items, 3, False), classifier.predict(other, 3, False), atol=1e-4
    )


def test_fit_info_has_validation_accuracy_and_speed(learner):
    learner.fit_predict(task(), 1)
    found = learner.fit_info
    assert found["epochs"] == 3 and 1 <= found["best_epoch"] <= 3
    assert found["valid_accuracy"] == learner.valid_score.accuracy > 0.8
    assert found["sequences_per_second"] > 0


def test_keep_first_layers_removes_the_others():
    whole = network("caduceus")
    ids = rich_or_poor(3, 5).ids.long()
    cut = keep_first_layers(copy.deepcopy(whole), 1)
    assert len(cut.layers) == 1 and not torch.allclose(
        cut.features(ids), whole.features(ids), atol=1e-3
    )
    twice = copy.deepcopy(whole)
    twice.layers = whole.layers[:1]
    assert torch.equal(cut.features(ids), twice.features(ids))
    assert (
        keep_first_layers(whole, None) is whole
        and keep_first_layers(network("dit"), 1).features(ids).shape[:2] == ids.shape
    )
    with pytest.raises(ValueError, match="layer 3 is not one of this network's 2"):
        keep_first_layers(whole, 3)


def test_diverged_training_raises_and_an_earlier_epoch_is_kept():
    start = network("caduceus")
    wild = FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e30, batch_size=40)
    with pytest.raises(ValueError, match=r"gc: training at lr 1e\+30 diverged"):
        wild.fit_predict(task(), 0)
    training = FineTuningModule(
        linear(start, 2), task(), 0.0, Recipe(batch_size=20), seed=0, report=no_report
    )
    right = torch.nn.functional.one_hot(training.data.valid.labels, 2).float()
    for epoch, log_probs in enumerate([1 - right, right * float("nan")]):
        training.classifier.head.bias.data.fill_(epoch)
        training.classifier.predict = lambda *_, fixed=log_probs: fixed.log_softmax(-1)
        training.on_train_epoch_end()
    assert training.best_weights["head.bias"].tolist() == [0, 0]


@pytest.mark.gpu
def test_test_items_are_scored_on_the_training_device():
    start = network("caduceus")
    model = FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-3, batch_size=40, device="cuda")
    assert next(model.fit(task(), 0).parameters()).is_cuda
