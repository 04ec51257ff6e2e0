import copy
import time

import numpy as np
import pytest
import torch

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.backbone.caduceus_ps import CaduceusPS
from dnadiff.backbone.dit import DiT
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.downstream.classifier import Classifier, first_layers
from dnadiff.downstream.cnn import PublishedCNN
from dnadiff.downstream.finetuning import FineTunedModel, FineTuningModule
from dnadiff.downstream.items import Items, TaskData, batch, other_strand

DNA = DNATokenizer()


def network(kind: str, **settings):
    torch.manual_seed(0)
    if kind == "caduceus":
        return Caduceus(DNA.vocab, d_model=16, n_layers=2, d_state=4)
    if kind == "caduceus_ps":
        return CaduceusPS(DNA.vocab, d_model=16, n_layers=2, d_state=4)
    dit = DiT(DNA.vocab, d_model=16, n_layers=2, n_heads=2, cond_dim=8, dropout=0.0, **settings)
    for block in dit.blocks:  # adaLN starts as the identity: attention would have no influence at all
        torch.nn.init.normal_(block.adaLN_modulation.weight, std=0.5)
    return dit


def rich_or_poor(number: int, seed: int, low: int = 20, high: int = 30) -> Items:
    """Sequences of mostly A and T (class 0) or mostly C and G (class 1)."""
    random = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    sequences = [
        random.choice([7, 8, 9, 10], random.integers(low, high + 1), p=([0.1, 0.4, 0.4, 0.1] if y else [0.4, 0.1, 0.1, 0.4])).astype(
            np.uint8
        )
        for y in labels
    ]
    return Items.from_sequences(sequences, labels, DNA.vocab.pad_id)


def task(stranded: bool = False) -> TaskData:
    return TaskData("gc", ["poor", "rich"], rich_or_poor(160, 0), rich_or_poor(40, 1), rich_or_poor(60, 2), stranded)


@pytest.mark.parametrize("kind, stranded", [("dit", True), ("caduceus", True), ("caduceus_ps", True), ("caduceus_ps", False)])
def test_padding_on_the_right_changes_no_prediction(kind, stranded):
    classifier = Classifier(network(kind), 3, stranded).eval()
    items = rich_or_poor(6, 3)
    with torch.no_grad():
        together = batch(items, torch.arange(6), DNA.vocab)
        padded = classifier(together.ids, together.valid)
        alone = torch.cat([classifier(items.ids[i : i + 1, : items.lengths[i]].long()) for i in range(6)])
    assert torch.allclose(padded, alone, atol=1e-5, rtol=0)


def test_log_probs_of_both_strands_do_not_depend_on_which_one_is_given():
    classifier = Classifier(network("caduceus"), 2)
    items = rich_or_poor(7, 4)
    other = Items(other_strand(items.ids, items.lengths, DNA.vocab).to(torch.uint8), items.lengths, items.labels)
    both = classifier.log_probs(items, 3, both_strands=True)
    assert torch.allclose(both, classifier.log_probs(other, 3, both_strands=True), atol=1e-6)
    assert not torch.allclose(classifier.log_probs(items, 3, False), classifier.log_probs(other, 3, False), atol=1e-6)
    assert torch.allclose(both.exp().sum(1), torch.ones(7))


def test_scores_are_in_the_order_of_the_items_whatever_the_batch_size():
    classifier = Classifier(network("dit"), 2)
    items = rich_or_poor(9, 5)
    one = torch.cat([classifier.log_probs(items.select(torch.tensor([i])), 1, False) for i in range(9)])
    assert torch.allclose(classifier.log_probs(items, 4, False), one, atol=1e-5)


@pytest.fixture(scope="module")
def learner() -> FineTunedModel:
    start = network("caduceus")
    return FineTunedModel(lambda seed: copy.deepcopy(start), lr=2e-2, epochs=3, batch_size=16, trainer={"accelerator": "cpu"})


def test_a_network_learns_composition_and_the_same_seed_gives_the_same_numbers(learner):
    data, steps = task(), []
    first = learner(data, 1, lambda n, tokens, **_: steps.append(n))
    assert (first.argmax(-1) == data.test.labels).float().mean() > 0.9
    assert sum(steps) == learner.num_steps(data) == 30
    torch.manual_seed(99)
    assert torch.equal(first, learner(data, 1))
    assert not torch.equal(first, learner(data, 2))


def test_fine_tuning_leaves_the_loaded_network_as_it_was():
    start = network("caduceus").eval()
    before = copy.deepcopy(start.state_dict())
    FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-2, batch_size=40, trainer={"accelerator": "cpu"})(task(), 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in start.state_dict().items())


def test_the_weights_of_the_epoch_with_the_best_validation_accuracy_are_kept():
    data = task()
    classifier = Classifier(network("caduceus"), 2)
    training = FineTuningModule(classifier, data, lr=0.0, weight_decay=0.0, warmup=0.0, batch_size=20, seed=0, report=lambda *_, **__: None)
    right = data.valid.labels.float()[:, None] * torch.tensor([-2.0, 2.0]) + torch.tensor([1.0, -1.0])
    for epoch, log_probs in enumerate([right * 0, right, right * 2, -right]):
        classifier.head.bias.data.fill_(epoch)
        classifier.log_probs = lambda *_, fixed=log_probs: fixed.log_softmax(-1)
        training.on_train_epoch_end()
    assert training.best_weights["head.bias"].tolist() == [2, 2]  # as accurate as epoch 1, and surer
    assert training.best[0] == 1.0


def test_a_sequence_longer_than_the_network_takes_is_refused():
    short = FineTunedModel(lambda seed: network("dit", max_length=25), lr=1e-3)
    with pytest.raises(ValueError, match="holds a sequence of 30 bases and this DiT takes at most 25"):
        short(task(), 0)


def test_training_stops_when_validation_no_longer_improves():
    start, steps = network("caduceus"), []
    patient = FineTunedModel(lambda seed: copy.deepcopy(start), lr=0.0, epochs=9, batch_size=40, patience=2, trainer={"accelerator": "cpu"})
    patient(task(), 0, lambda n, tokens, **_: steps.append(n))
    assert len(steps) == 3 * 4  # the first epoch is the best, two more are waited for


@pytest.mark.parametrize("swap_strands", [False, True])
@pytest.mark.parametrize("layer", [None, 1])
def test_a_parameter_shared_network_gives_both_strands_one_prediction(swap_strands, layer):
    def both(seed: int) -> CaduceusPS:
        torch.manual_seed(0)
        return first_layers(CaduceusPS(DNA.vocab, d_model=16, n_layers=3, d_state=4, swap_strands=swap_strands), layer)

    classifier = FineTunedModel(both, 1e-3).untrained(task(), 0)
    items = rich_or_poor(7, 4)
    other = Items(other_strand(items.ids, items.lengths, DNA.vocab).to(torch.uint8), items.lengths, items.labels)
    assert torch.allclose(classifier.log_probs(items, 3, False), classifier.log_probs(other, 3, False), atol=1e-6)
    assert torch.equal(classifier.log_probs(items, 3, True), classifier.log_probs(items, 3, False))  # read once
    plain = FineTunedModel(lambda seed: network("caduceus"), 1e-3).untrained(task(), 0)
    assert not torch.allclose(plain.log_probs(items, 3, False), plain.log_probs(other, 3, False), atol=1e-4)


def test_a_stranded_task_leaves_a_parameter_shared_network_both_strands_channels():
    classifier = FineTunedModel(lambda seed: network("caduceus_ps"), 1e-3).untrained(task(stranded=True), 0)
    items = rich_or_poor(7, 4)
    other = Items(other_strand(items.ids, items.lengths, DNA.vocab).to(torch.uint8), items.lengths, items.labels)
    assert classifier.head.in_features == classifier.backbone.d_model
    assert not torch.allclose(classifier.log_probs(items, 3, False), classifier.log_probs(other, 3, False), atol=1e-4)


def test_training_says_what_it_found_and_how_fast_it_was(learner):
    learner(task(), 1)
    found = learner.found
    assert found["epochs"] == 3 and 1 <= found["best_epoch"] <= 3
    assert found["valid_accuracy"] == learner.score[0] > 0.8
    assert found["sequences_per_second"] > 0 and 0 < found["waiting_share"] < 0.5


def test_the_wait_for_data_is_what_cutting_batches_takes(monkeypatch):
    from dnadiff.downstream import items as module

    start, cut = network("caduceus"), module.batch
    model = FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-3, batch_size=40, trainer={"accelerator": "cpu"})
    model(task(), 0)
    quick = model.found["waiting_share"]
    monkeypatch.setattr(module, "batch", lambda *args: time.sleep(0.2) or cut(*args))
    model(task(), 0)
    assert model.found["waiting_share"] > max(0.3, quick)


def test_only_the_first_layers_of_a_network_are_used_if_asked():
    whole = network("caduceus")
    ids = rich_or_poor(3, 5).ids.long()
    cut = first_layers(copy.deepcopy(whole), 1)
    assert len(cut.layers) == 1 and not torch.allclose(cut.features(ids), whole.features(ids), atol=1e-3)
    twice = copy.deepcopy(whole)
    twice.layers = whole.layers[:1]
    assert torch.equal(cut.features(ids), twice.features(ids))
    assert first_layers(whole, None) is whole and first_layers(network("dit"), 1).features(ids).shape[:2] == ids.shape
    with pytest.raises(ValueError, match="layer 3 is not one of this network's 2"):
        first_layers(whole, 3)


def test_training_that_diverges_is_said_and_an_epoch_before_it_is_kept():
    start = network("caduceus")
    wild = FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e30, batch_size=40, trainer={"accelerator": "cpu"})
    with pytest.raises(ValueError, match=r"gc: training at rate 1e\+30 diverged"):
        wild(task(), 0)
    training = FineTuningModule(Classifier(start, 2), task(), 0.0, 0.0, 0.0, 20, seed=0, report=lambda *_, **__: None)
    right = torch.nn.functional.one_hot(training.data.valid.labels, 2).float()
    for epoch, log_probs in enumerate([1 - right, right * float("nan")]):
        training.classifier.head.bias.data.fill_(epoch)
        training.classifier.log_probs = lambda *_, fixed=log_probs: fixed.log_softmax(-1)
        training.on_train_epoch_end()
    assert training.best_weights["head.bias"].tolist() == [0, 0]


def test_one_device_trains_unless_told_otherwise():
    assert PublishedCNN(DNA).trainer == {"devices": 1}
    assert FineTunedModel(lambda seed: None, 1e-3, trainer={"devices": 2}).trainer["devices"] == 2


@pytest.mark.gpu
def test_the_test_items_are_scored_where_the_network_was_trained():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    start = network("caduceus")
    model = FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-3, batch_size=40, trainer={"accelerator": "gpu"})
    assert next(model.fit(task(), 0).parameters()).is_cuda


def test_the_classifier_goes_back_to_where_its_best_weights_are(monkeypatch):
    moved = []
    monkeypatch.setattr(Classifier, "to", lambda self, device: moved.append(device) or self)
    start = network("caduceus")
    FineTunedModel(lambda seed: copy.deepcopy(start), lr=1e-3, batch_size=80, trainer={"accelerator": "cpu"}).fit(task(), 0)
    assert moved[-1] == torch.device("cpu")
