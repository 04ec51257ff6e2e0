"""Several columns of different kinds: each has the numbers that it would have alone; and ordered
levels."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, spearmanr

from dnadiff.store.objects import build
from dnadiff.supervised.classes import ClassTarget, MultiLabelTarget, OrdinalTarget, SeveralTargets
from dnadiff.supervised.labeled import build_target
from dnadiff.supervised.metrics import estimate, metric_values
from dnadiff.supervised.targets import SEPARATOR, RegressionTarget, TaskTarget

NAN = math.nan
KINDS = ["classification", "regression", "multilabel", "ordinal"]
COLUMNS = ["kind", "activity", "bound", "bin"]
SIZE = 400


def cells() -> list[list[str]]:
    """Rows of four columns, a fifth of the cells empty."""
    random = np.random.default_rng(0)
    rows = zip(
        random.choice(["x", "y", "z"], SIZE),
        random.normal(3, 2, SIZE).round(3),
        random.integers(0, 2, SIZE),
        random.choice([1, 2, 3, 10], SIZE),
    )
    empty = random.random((SIZE, 4)) < 0.2
    return [["" if e else str(c) for c, e in zip(row, of)] for row, of in zip(rows, empty)]


def read(kind: str | list[str], columns: list[str], rows: list[list[str]]):
    """The fitted target of some columns, and the labels."""
    target, labels = build_target(kind, columns).read(
        [SEPARATOR.join(row) for row in rows], "t", "label"
    )
    labels = torch.from_numpy(labels)
    return target.fit(labels), labels


def alone(number: int) -> tuple[TaskTarget, torch.Tensor, np.ndarray]:
    """The target of one column, with the labels and the rows that have one."""
    known = np.array([row[number] != "" for row in cells()])
    rows = [[row[number]] for row in cells() if row[number]]
    return *read(KINDS[number], [COLUMNS[number]], rows), known


@pytest.fixture(scope="module")
def several() -> tuple[SeveralTargets, torch.Tensor]:
    return read(KINDS, COLUMNS, cells())


def test_the_outputs_are_those_of_each_column(several):
    target, labels = several
    assert target.names == (
        *("kind_x", "kind_y", "kind_z", "activity", "bound"),
        *("bin_1", "bin_2", "bin_3", "bin_10"),
    )
    assert labels.shape == (SIZE, 4) and labels.dtype == torch.float32
    assert target.columns[:3] == ["predicted_kind_x", "spread_kind_x", "predicted_kind_y"]
    assert target.label_columns == [f"label_{column}" for column in COLUMNS]
    assert target.label_cells((1.0, 2.5, NAN, 3.0)) == ["y", "2.5", "nan", "10"]
    assert target.parse(["y", "2.5", "", "10"], "t", COLUMNS) == pytest.approx(
        (1.0, 2.5, NAN, 3.0), nan_ok=True
    )


@pytest.mark.parametrize("number", range(4))
def test_each_column_has_the_numbers_of_its_target_alone(several, number):
    target, labels = several
    own, own_labels, known = alone(number)
    place = target.pairs[number][1]
    random = torch.Generator().manual_seed(number)
    both = torch.randn(2, SIZE, target.num_outputs, generator=random)
    rows = torch.from_numpy(known)
    weights = [float(n == number) for n in range(4)]
    only = SeveralTargets(target.label_names, target.targets, weights)
    assert torch.equal(only.loss(both[0], labels), own.loss(both[0][rows][:, place], own_labels))
    every = target.predictions([both[0], both[1]])
    mine = own.predictions([one[:, place] for one in both])
    assert torch.equal(every[:, place], mine)
    assert only.valid_loss(every, labels) == own.valid_loss(mine[rows], own_labels)
    mixed = [target.predictions([one]) for one in both]
    averaged = target.averaged(mixed, [0.3, 0.7])
    of_own = own.averaged([one[:, place] for one in mixed], [0.3, 0.7])
    assert torch.equal(averaged[:, place], of_own)
    assert torch.equal(target.contrast(every)[:, place], own.contrast(mine))
    assert np.array_equal(target.reported(every.numpy())[:, place], own.reported(mine.numpy()))
    scored, of_rows = (
        of.scored(found.numpy(), true.numpy())
        for of, found, true in ((target, every, labels), (own, mine[rows], own_labels))
    )
    values = metric_values(scored, target.metrics)
    for name, value in metric_values(of_rows, own.metrics).items():
        named = f"{name} of {COLUMNS[number]}"
        assert values[named] == value
        first, second = (
            estimate(metrics[key], [of]).interval()
            for metrics, key, of in ((target.metrics, named, scored), (own.metrics, name, of_rows))
        )
        assert first == second
    assert target.chance(labels.numpy()) == pytest.approx(
        np.mean([one.chance(of.numpy()) for one, of, _ in map(alone, range(4))])
    )


def test_losses_are_averaged_with_their_weights_over_known_labels(several):
    target, labels = several
    outputs = torch.randn(SIZE, target.num_outputs)
    each = [
        float(SeveralTargets(COLUMNS, target.targets, list(row)).loss(outputs, labels))
        for row in np.eye(4)
    ]
    assert float(target.loss(outputs, labels)) == pytest.approx(np.mean(each))
    weighted = SeveralTargets(COLUMNS, target.targets, [1, 2, 3, 4])
    assert float(weighted.loss(outputs, labels)) == pytest.approx(
        np.average(each, None, range(1, 5))
    )
    unknown = torch.full((3, 4), NAN)
    leaf = torch.ones(3, target.num_outputs, requires_grad=True)
    target.loss(leaf, unknown).backward()
    assert not leaf.grad.any()


def test_the_mean_of_the_columns_is_compared(several):
    target, labels = several
    assert target.shown == (
        *("accuracy of kind", "spearman of activity", "auroc of bound", "spearman of bin"),
    )
    outputs = target.predictions([torch.randn(SIZE, target.num_outputs)])
    values = metric_values(target.scored(outputs.numpy(), labels.numpy()), target.metrics)
    assert values[target.primary] == np.mean([values[name] for name in target.shown])


def test_several_targets_are_the_same_after_storing_them(several):
    target, _ = several
    again = build(target.settings())
    assert again.settings() == target.settings() and again.names == target.names
    outputs = torch.randn(SIZE, target.num_outputs)
    assert torch.equal(again.predictions([outputs]), target.predictions([outputs]))


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        (KINDS[:2], COLUMNS, "names 4 columns, task.kind 2 kinds and task.loss_weights 4 weights"),
        (["regression", "x"], COLUMNS[:2], "task.kind 'x' is not known; set it to class"),
        ("classification", COLUMNS, "set task.kind to a list of kinds, one for each column$"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(kind, columns, message):
    with pytest.raises(ValueError, match=message):
        build_target(kind, columns)


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("classification", ["high", "0.25", "0.5"], r"^t mixes names such as 'high' and numbers su"
         r"ch as 0.25 in label, and one kind is expected; correct the column, or leave cells"),
        ("regression", ["high", "0.25"], "'high' in column 'c', and a regression expects a number"),
        ("multilabel", ["1", "0.25"], "'0.25' in column 'c', and a label is 0 or 1"),
        ("ordinal", ["1", "2", "high"], r"levels that are numbers, such as 1, 2 and 3, got 'high'"),
    ],
)  # fmt: skip
def test_kinds_that_are_mixed_in_one_column_are_refused(kind, column, message):
    with pytest.raises(ValueError, match=message):
        read(kind, ["c"], [[cell] for cell in column])


def test_a_column_without_labels_is_refused():
    rows = [["1", ""], ["2", "NA"]]
    with pytest.raises(ValueError, match=r"^t has no label in column 'b'; leave it out of task\."):
        read(["regression", "classification"], ["a", "b"], rows)


def levels(thresholds=None) -> OrdinalTarget:
    target = OrdinalTarget(["0", "1", "2", "5"])
    return target.fit(torch.tensor([0, 0, 0, 1, 2, 2, 3, 3]))


def test_the_likelihood_of_levels_is_the_probability_between_thresholds():
    """Against the latent variable: a logistic one at the location, with the scale exp(-s)."""
    target, outputs = levels(), torch.randn(6, 4, dtype=torch.float64)
    probs = target.log_probs(outputs).exp()
    assert torch.allclose(probs.sum(-1), torch.ones(6, dtype=torch.float64))
    frequencies = (np.array([3, 1, 2, 2]) + 0.5) / 10
    assert target.log_probs(torch.zeros(1, 4)).exp()[0].tolist() == pytest.approx(frequencies)
    edges = [-math.inf, *target.thresholds, math.inf]
    assert edges == sorted(edges)
    for (location, scale, *_), row in zip(outputs.tolist(), probs.tolist()):
        at = [1 / (1 + math.exp(-(x - location) * math.exp(scale))) for x in edges[1:-1]]
        assert row == pytest.approx(np.diff([0, *at, 1]), abs=1e-12)
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    enumerated = -np.mean([math.log(row[k]) for row, k in zip(probs.tolist(), labels.tolist())])
    assert float(target.loss(outputs, labels)) == pytest.approx(enumerated)


def test_odds_are_proportional_where_the_scale_is_the_same():
    target = levels()
    low, high = (target.log_probs(torch.tensor([[x, 0.0, 0.0, 0.0]])).exp()[0] for x in (0.0, 0.7))
    odds = [[float(p[:k].sum() / p[k:].sum()) for k in (1, 2, 3)] for p in (low, high)]
    assert [a / b for a, b in zip(*odds)] == pytest.approx([math.exp(0.7)] * 3, rel=1e-4)


def test_extreme_outputs_have_finite_losses_and_gradients():
    target = levels()
    outputs = torch.tensor([[300.0, 40.0, 0, 0], [-300.0, -40.0, 0, 0]], requires_grad=True)
    loss = target.loss(outputs, torch.tensor([0, 3]))
    loss.backward()
    assert bool(loss.isfinite()) and bool(outputs.grad.isfinite().all())


def test_levels_are_ranked_by_the_expected_one():
    target, random = levels(), np.random.default_rng(0)
    outputs = torch.from_numpy(random.standard_normal((300, 4)))
    log_probs = target.predictions([outputs])
    labels = random.integers(0, 4, 300)
    values = metric_values(target.scored(log_probs.numpy(), labels), target.metrics)
    number = np.array([0, 1, 2, 5])
    expected = log_probs.exp().numpy() @ number
    assert values["spearman"] == pytest.approx(spearmanr(expected, number[labels]).statistic)
    assert values["mse"] == pytest.approx(((expected - number[labels]) ** 2).mean())
    assert values["accuracy"] == (log_probs.argmax(-1).numpy() == labels).mean()
    found = target.predicted(log_probs.numpy()[None])
    assert list(found.cells()) == target.columns
    assert found.cells()["expected"] == pytest.approx(expected)
    assert (
        target.valid_score(log_probs, torch.from_numpy(labels)).accuracy == 0
    )  # by the loss alone
    assert build(target.settings()).settings() == target.settings()
    balanced = target.balanced(torch.from_numpy(labels))
    assert isinstance(balanced, OrdinalTarget) and balanced.thresholds == target.thresholds


def test_levels_are_learned():
    """A latent value with known noise: the location follows it."""
    torch.manual_seed(0)
    x = torch.randn(2000)
    edges = torch.tensor([-1.0, 0.5, 2.0])
    labels = torch.bucketize(2 * x + torch.randn(2000), edges)
    target = OrdinalTarget(["0", "1", "2", "3"]).fit(labels)
    weight = torch.zeros(4, requires_grad=True)
    bias = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100)

    def closure():
        optimizer.zero_grad()
        loss = target.loss(x[:, None] * weight + bias, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    probs = target.log_probs(x[:, None] * weight + bias).exp().detach()
    true = torch.diff(
        torch.from_numpy(norm.cdf((edges - 2 * x[:, None]).numpy())),
        prepend=torch.zeros(2000, 1),
        append=torch.ones(2000, 1),
    )
    assert float((probs - true).abs().mean()) < 0.05


def test_the_base_classes_are_those_of_the_kinds():
    several = build_target(KINDS, COLUMNS)
    kinds = (ClassTarget, RegressionTarget, MultiLabelTarget, OrdinalTarget)
    assert tuple(map(type, several.targets)) == kinds
