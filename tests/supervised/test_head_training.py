import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.supervised.classes import ClassTarget, MultiLabelTarget
from dnadiff.supervised.classifier import Classifier, HeadInputs, build_classifier
from dnadiff.supervised.heads import ConvHead
from dnadiff.supervised.items import (
    Items,
    ShuffledBatches,
    TaskData,
    make_batch,
    no_report,
    reverse_complement_rows,
)
from dnadiff.supervised.networks import FineTunedModel, OneHotModel
from dnadiff.supervised.targets import RegressionTarget, ValidScore
from dnadiff.supervised.training import BATCH_SIZE, Budget, Recipe, read_features, train_head

DNA = DNATokenizer()
CONV = {
    "_target_": "dnadiff.supervised.heads.ConvHead",
    "channels": 8,
    "hidden": 8,
    "num_bins": 4,
}


def items(number: int, seed: int, low: int = 20, high: int = 30) -> Items:
    """Sequences of mostly A and T (class 0) or mostly C and G (class 1)."""
    random, labels = np.random.default_rng(seed), np.arange(number) % 2
    shares = ([0.4, 0.1, 0.1, 0.4], [0.1, 0.4, 0.4, 0.1])
    sequences = [
        random.choice([7, 8, 9, 10], random.integers(low, high + 1), p=shares[y]).astype(np.uint8)
        for y in labels
    ]
    return Items.from_sequences(sequences, labels, DNA.vocab.pad_id)


def task(stranded: bool = False, low: int = 20) -> TaskData:
    return TaskData(
        "gc", ["poor", "rich"], items(160, 0, low), items(40, 1, low), items(60, 2, low), stranded
    )


def classifier_of(
    kind: type = Caduceus, stranded: bool = True, one_hot: bool = False
) -> Classifier:
    torch.manual_seed(0)
    return build_classifier(
        kind(DNA.vocab, d_model=16, n_layers=2, d_state=4),
        CONV,
        HeadInputs(one_hot=one_hot),
        2,
        30,
        stranded,
    )


def test_a_head_without_a_network_is_trained_in_the_same_two_stages():
    data, made = task(), {}
    for head_epochs in (0, 2):
        head = partial(ConvHead, channels=8, hidden=8, num_bins=4)
        model = OneHotModel(
            DNA,
            head,
            1e-3,
            head_epochs=head_epochs,
            epochs=1,
            batch_size=16,
        )
        made[head_epochs] = model.fit_predict(data, 1)
        found = {key: value for key, value in model.fit_info.items() if key.startswith("head_")}
        assert found.keys() == (
            {"head_sequences", "head_epochs", "head_best_epoch", "head_valid_loss"}
            if head_epochs
            else set()
        )
    assert (
        found["head_sequences"] == 2 * len(data.train) and found["head_epochs"] == 2
    )  # both strands
    assert not torch.equal(made[0], made[2])
    recipe = Recipe(head_epochs=2, batch_size=16)
    width = model.build_classifier(data, 1).head.width
    limits = {"max_bytes": 2 * width * data.max_length * 50}
    info = train_head(
        model.build_classifier(data, 1), data, recipe, 1, Budget(None), no_report, **limits
    )
    assert info["head_sequences"] == 50


def trained(
    classifier: Classifier,
    data: TaskData,
    epochs: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    **limits: float,
) -> dict:
    recipe = Recipe(epochs=None, head_epochs=epochs, batch_size=16)
    return train_head(classifier, data, recipe, seed, budget or Budget(None), no_report, **limits)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    "kind, stranded", [(Caduceus, True), (CaduceusPS, True), (CaduceusPS, False)]
)
def test_a_head_has_the_same_outputs_on_stored_features(kind, stranded, one_hot):
    classifier, data = classifier_of(kind, stranded, one_hot).eval(), task(stranded)
    batches = list(ShuffledBatches(data.train, 7, DNA.vocab, 0, 0, both_strands=False))
    stored = read_features(classifier, iter(batches), 33, data.max_length, math.inf, no_report)
    assert len(stored) == 33 and len(stored.strands) == (2 if classifier.invariant else 1)
    rows = torch.randperm(33)
    with torch.no_grad():
        direct = torch.cat([classifier(ids, valid) for ids, valid, *_ in batches])[rows]
        outputs, labels = stored.outputs(classifier, rows)
    assert torch.allclose(outputs, direct, atol=1e-3)
    assert torch.equal(labels, torch.cat([batch.labels for batch in batches])[rows])


def test_the_second_pass_reads_every_item_on_its_other_strand():
    data = items(50, 3)
    first, second = (
        list(ShuffledBatches(data, 8, DNA.vocab, 1, 0, True, other)) for other in (False, True)
    )
    for one, other in itertools.zip_longest(first, second):
        lengths = (
            torch.full((len(one.ids),), one.ids.shape[1]) if one.valid is None else one.valid.sum(1)
        )
        assert torch.equal(
            reverse_complement_rows(one.ids, lengths, DNA.vocab), other.ids
        ) and torch.equal(one.labels, other.labels)


def test_the_head_learns_and_the_network_keeps_its_weights():
    data, classifier = task(), classifier_of()
    before = copy.deepcopy(classifier.state_dict())
    info = trained(classifier, data)
    after = classifier.state_dict()
    assert all(
        torch.equal(before[name], after[name]) for name in before if name.startswith("backbone.")
    )
    assert not torch.equal(before["head.first.weight"], after["head.first.weight"])
    assert info["head_sequences"] == 320  # both strands of 160
    stored = read_features(
        classifier,
        ShuffledBatches(data.valid, 32, DNA.vocab, 0, 0, both_strands=True),
        40,
        data.max_length,
        math.inf,
        no_report,
    )
    assert (
        info["head_valid_loss"] == pytest.approx(stored.loss(classifier, 32))
        and info["head_valid_loss"] < 0.3
    )
    assert (
        classifier.predict(data.test, 16, True).argmax(1) == data.test.labels
    ).float().mean() > 0.85


def test_a_seed_gives_the_same_head():
    heads = []
    for seed in (1, 1, 2):
        classifier = classifier_of()
        torch.manual_seed(len(heads))  # the state of the global generator has no influence
        trained(classifier, task(), 2, seed)
        heads.append(classifier.head.state_dict())
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    assert not all(torch.equal(heads[0][name], heads[2][name]) for name in heads[0])


class Planned(ClassTarget):
    """Has given losses on the validation items."""

    losses = iter([0.1, 0.2, 0.3, 0.15, 0.05])

    def valid_score(self, predictions, labels):
        return ValidScore(0.0, -next(self.losses))


def test_the_first_weights_are_kept_if_no_epoch_is_better():
    classifier = classifier_of()
    classifier.target = Planned(["poor", "rich"])
    before = copy.deepcopy(classifier.state_dict())
    info = trained(classifier, task(), 20)
    assert info["head_best_epoch"] == 0 and info["head_epochs"] == 3  # patience
    assert all(
        torch.equal(before[name], tensor) for name, tensor in classifier.state_dict().items()
    )


def test_a_diverging_head_ends_where_it_began():
    classifier = classifier_of()
    before = copy.deepcopy(classifier.state_dict())
    assert trained(classifier, task(), lr=math.nan)["head_best_epoch"] == 0
    assert all(
        torch.equal(before[name], tensor) for name, tensor in classifier.state_dict().items()
    )


def test_memory_limits_what_is_stored():
    def stored(classifier, **limits):
        return trained(classifier, task(), 1, **limits).get("head_sequences")

    memory = 2 * 30 * 16 * 100  # 100 sequences of 30 positions and 16 features
    assert stored(classifier_of(), max_bytes=memory) == 100
    # 16 features of each strand
    assert stored(classifier_of(CaduceusPS, False), max_bytes=memory) == 50
    assert stored(classifier_of(), max_sequences=60) == 60
    assert stored(classifier_of(), max_sequences=31) is None  # less than a batch


@pytest.mark.parametrize("left", [-1.0, 0.0, 1e-9])
def test_a_spent_budget_leaves_one_batch_and_no_training(left):
    class Spent(Budget):
        pass

    Spent.left = left
    info = trained(classifier_of(), task(), 5, budget=Spent(1))
    assert info["head_sequences"] == BATCH_SIZE and info["head_epochs"] <= 1


def test_a_small_batch_size_limits_what_is_in_memory():
    tokens = []

    def report(steps, number=0):
        tokens.append(number)

    recipe, data = Recipe(head_epochs=1, batch_size=2), task(low=30)
    train_head(classifier_of(), data, recipe, 0, Budget(None), report)
    assert set(tokens) == {0, 8 * 30}  # an epoch, and batches that are read


def fine_tuned(**settings) -> FineTunedModel:
    start = classifier_of().backbone
    return FineTunedModel(
        lambda seed: copy.deepcopy(start),
        1e-3,
        head=CONV,
        batch_size=40,
        **settings,
    )


def test_fine_tuning_starts_from_the_trained_head_and_never_ends_below_it():
    data = task()
    wild = fine_tuned(head_epochs=4, epochs=1)
    wild.rates = (1.0,)  # the whole network diverges
    classifier = wild.fit(data, 1)
    head_alone = wild.build_classifier(data, 1)
    trained(head_alone, data, 4, 1)
    assert wild.fit_info["best_epoch"] == 0 and wild.fit_info["head_best_epoch"] > 0
    assert torch.equal(
        classifier.predict(data.test, 16, True), head_alone.predict(data.test, 16, True)
    )
    assert torch.equal(wild.valid_predictions, head_alone.predict(data.valid, 160, True))


def test_the_epochs_of_the_stage_are_described_and_checked():
    assert fine_tuned(head_epochs=None).describe()["head_epochs"] is None
    with pytest.raises(ValueError, match="head_epochs -1 must be an integer of at least 0"):
        fine_tuned(head_epochs=-1)


def with_labels(labels_of, target) -> TaskData:
    """The task with other labels, made from those of a part."""
    parts = [
        Items(p.ids, p.lengths, labels_of(p.labels.float()))
        for p in (task().train, task().valid, task().test)
    ]
    return TaskData("values", list(target.names), *parts, target=target)


def gaps(labels: torch.Tensor) -> torch.Tensor:
    """Two columns, the second with every third value missing."""
    second = torch.where(torch.arange(len(labels)) % 3 > 0, 1 - labels, torch.nan)
    return torch.stack([labels, second], 1)


@pytest.mark.parametrize(
    "target, labels_of, chance",
    [
        (
            RegressionTarget(["y"]),
            lambda y: 3 * y[:, None],
            1.0,
        ),  # the variance of standardized values
        (RegressionTarget(["y", "z"]), gaps, 1.0),
        (MultiLabelTarget(["y", "z"]), gaps, math.log(2)),
    ],
)
def test_a_head_for_values_or_labels_is_trained_too(target, labels_of, chance):
    model = fine_tuned(head_epochs=30, epochs=1)
    model.fit(with_labels(labels_of, target), 0)
    assert (
        model.fit_info["head_valid_loss"] < 0.7 * chance and model.fit_info["head_best_epoch"] > 0
    )


def test_few_epochs_have_a_short_stage_of_the_head():
    data = with_labels(lambda y: 3 * y[:, None], RegressionTarget(["y"]))
    model = fine_tuned(head_epochs=None, epochs=1)
    model.fit(data, 0)
    steps = model.recipe.batches(data.train)
    per_epoch = -(-model.fit_info["head_sequences"] // 32)
    assert model.fit_info["head_epochs"] <= max(4, 4 * steps / per_epoch)


def test_a_head_without_known_validation_labels_stays_as_it_is():
    data = with_labels(lambda y: 3 * y[:, None], RegressionTarget(["y"]))
    data.valid.labels.fill_(torch.nan)
    classifier = build_classifier(classifier_of().backbone, CONV, HeadInputs(), 1, 30, True)
    classifier.target = data.target.fit(data.train.labels)
    before = copy.deepcopy(classifier.state_dict())
    assert trained(classifier, data)["head_best_epoch"] == 0
    assert all(
        torch.equal(before[name], tensor) for name, tensor in classifier.state_dict().items()
    )


def test_a_batch_has_first_items():
    batch = make_batch(items(5, 0), torch.arange(5), DNA.vocab)
    first = batch.first(2)
    assert (
        torch.equal(first.ids, batch.ids[:2])
        and torch.equal(first.valid, batch.valid[:2])
        and len(first.labels) == 2
    )
    assert len(batch.first(9).ids) == 5
