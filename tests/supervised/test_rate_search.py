import copy
import math

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.networks import FineTunedModel
from dnadiff.supervised.targets import RegressionTarget
from dnadiff.supervised.training import (
    Budget,
    ShortRun,
    Speed,
    TrainingPlan,
    affordable,
    find_rate_and_plan,
    search_steps,
    successive_halving,
)

RATES = (1e-4, 3e-4, 8e-4, 2e-3)
DNA = DNATokenizer()


class FakeTrials:
    """Losses of learning rates, on a clock that moves with every step."""

    def __init__(self, losses, step: float = 0.1) -> None:
        self.losses, self.now, self.calls = losses, 0.0, []
        self.speed = Speed(step, 1.0)

    def __call__(self, lr: float, steps: int) -> float:
        self.calls.append((lr, steps))
        self.now += steps * self.speed.step + self.speed.validation
        return self.losses[lr]


def test_the_better_half_is_tried_again_with_twice_the_steps():
    trials = FakeTrials(dict(zip(RATES, (0.6, 0.5, 0.4, math.inf))))
    lr, tried = successive_halving(trials, RATES, 20)
    assert lr == 8e-4
    assert trials.calls == [*((rate, 20) for rate in RATES), (3e-4, 40), (8e-4, 40)]
    assert [(one.lr, one.steps, one.valid_loss) for one in tried[-2:]] == [
        (3e-4, 40, 0.5),
        (8e-4, 40, 0.4),
    ]
    assert search_steps(4, 20) == [steps for _, steps in trials.calls]


def test_a_later_trial_decides_and_a_tie_takes_the_lower_rate():
    losses = iter([0.5, 0.4, 0.3, 0.6, 0.2, 0.25])
    assert successive_halving(lambda lr, steps: next(losses), RATES, 20)[0] == 3e-4
    assert successive_halving(lambda lr, steps: 1.0, RATES, 20)[0] == 1e-4
    assert successive_halving(lambda lr, steps: math.inf, RATES, 20)[0] == 1e-4
    assert successive_halving(FakeTrials({}), [2e-3], 20) == (2e-3, [])


def test_without_a_budget_trials_take_a_part_of_the_steps_but_at_least_20():
    trials = FakeTrials(dict.fromkeys(RATES, 1.0))
    found = find_rate_and_plan(trials, RATES, None, 500, Budget(None))
    assert (
        found.plan == TrainingPlan(4, 500) and trials.calls[0] == (1e-4, 80) and found.speed is None
    )
    trials.calls.clear()
    # A search takes no more steps than the training: of all rates 160, of two 40.
    for epochs, tried in ((16, RATES), (15, RATES[1:3]), (4, RATES[1:3]), (3, ())):
        found = find_rate_and_plan(trials, RATES, epochs, 10, Budget(None))
        assert found.plan == TrainingPlan(epochs, 10) and found.lr in RATES[:2]
        assert trials.calls[: len(tried)] == [(rate, 20) for rate in tried]
        trials.calls.clear()
    assert find_rate_and_plan(trials, (1e-3,), 3, 10, Budget(None)).describe() == {
        "lr": 1e-3,
        "planned_epochs": 3,
        "batches_per_epoch": 10,
    }
    assert trials.calls == []


def test_the_search_is_inside_the_budget():
    trials = FakeTrials(dict(zip(RATES, (0.6, 0.5, 0.4, 0.7))))
    found = find_rate_and_plan(trials, RATES, None, 100, Budget(10, lambda: trials.now))
    assert trials.calls[0] == (1e-4, 8)  # measures the speed: an epoch takes 11 s
    assert trials.calls[1] == (1e-4, 80) and found.lr == 8e-4 and found.speed == (0.1, 1.0)
    assert found.plan == TrainingPlan(20, 100)
    assert found.plan.epochs * 11 + trials.now <= 600
    trials = FakeTrials(dict(zip(RATES, (0.6, 0.5, 0.4, 0.7))))
    found = find_rate_and_plan(trials, RATES, None, 100, Budget(2, lambda: trials.now))
    assert (
        found.plan.epochs * 11 + trials.now <= 120 < (found.plan.epochs + 1) * 11 + trials.now + 6
    )  # 5 % are kept back


def test_a_small_budget_tries_fewer_rates_and_still_trains(caplog):
    speed = Speed(
        0.1, 1.0
    )  # four rates of 20 steps: 160 steps and 6 validations, two rates: 40 steps and 2 validations
    assert affordable(RATES, 20, 22.0, speed) == RATES
    assert affordable(RATES, 20, 21.9, speed) == (3e-4, 8e-4)
    assert affordable(RATES, 20, 5.9, speed) == (3e-4,)
    assert affordable((1e-3,), 20, 0.0, speed) == (1e-3,)
    trials = FakeTrials(dict.fromkeys(RATES, 1.0))
    found = find_rate_and_plan(trials, RATES, None, 100, Budget(0.1, lambda: trials.now))
    assert (
        trials.calls == [(1e-4, 8)]
        and found.lr == 3e-4
        and found.searched
        and found.plan == TrainingPlan(1, 29)
    )
    assert "minutes is too short" not in caplog.text
    found = find_rate_and_plan(trials, RATES, None, 100, Budget(0.01, lambda: trials.now))
    assert (
        found.plan == TrainingPlan(1, 20)
        and "minutes is too short for this task: 20 steps are trained" in caplog.text
    )


def task() -> TaskData:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 2
    ids = torch.where(torch.rand(48, 12, generator=generator) < 0.8, 7 + labels[:, None], 9).to(
        torch.uint8
    )
    items = Items(ids, torch.full((48,), 12), labels)
    return TaskData("toy", ["a", "b"], items, items, items)


@pytest.fixture(scope="module")
def network() -> Caduceus:
    torch.manual_seed(0)
    return Caduceus(DNA.vocab, d_model=8, n_layers=1, d_state=4)


def model(network: Caduceus, lr, **settings) -> FineTunedModel:
    several = isinstance(lr, tuple)  # of which a search takes 40 steps, and an epoch has 3
    settings = {"epochs": 14 if several else 2, "batch_size": 16, **settings}
    return FineTunedModel(lambda seed: copy.deepcopy(network), lr, **settings)


def test_trials_leave_no_trace_in_the_training(network):
    steps: list[int] = []
    searched = model(network, (1e-9, 2e-2))
    predicted = searched.fit_predict(task(), 1, lambda n, tokens, **_: steps.append(n))
    assert searched.fit_info["lr"] == 2e-2 and searched.fit_info["chosen"] == {
        "lr": 2e-2,
        "batch_size": 16,
    }
    assert [one["steps"] for one in searched.fit_info["trials"]] == [20, 20]
    assert sum(steps) == searched.num_steps(task()) == 42 + 40
    assert torch.equal(predicted, model(network, 2e-2, epochs=14).fit_predict(task(), 1))


def test_trials_are_validated_on_the_device_that_trains(network, monkeypatch):
    end, status = ShortRun.on_train_end, []

    def recorded(run):
        status.append(run.trainer.state.status)
        end(run)

    monkeypatch.setattr(ShortRun, "on_train_end", recorded)
    model(network, (1e-9, 2e-2)).fit(task(), 0)
    assert status == ["running"] * 2  # when it has finished, the network is on the CPU


def test_trials_on_values_are_ranked_by_the_loss_of_their_target(network):
    items = task().train
    labels = 1000 + 300 * (items.ids == 9).float().mean(1, keepdim=True)
    items = Items(items.ids, items.lengths, labels)
    data = TaskData("toy", ["y"], items, items, items, target=RegressionTarget(["y"], "huber"))
    searched = model(network, (1e-9, 2e-2))
    untrained = searched.build_classifier(data, 0)
    untrained.target = data.target.fit(labels)
    expected = untrained.target.valid_loss(untrained.predict(items, 64, both_strands=True), labels)
    searched.fit(data, 0)
    assert (
        searched.fit_info["trials"][0]["valid_loss"] == pytest.approx(expected, rel=1e-3)
        and searched.fit_info["lr"] == 2e-2
    )
    assert "valid_accuracy" not in searched.fit_info and searched.fit_info["valid_loss"] < expected


def test_class_weights_of_values_are_refused_before_training(network):
    items = Items(task().train.ids, task().train.lengths, torch.arange(48.0)[:, None])
    data = TaskData("toy", ["y"], items, items, items, target=RegressionTarget(["y"]))
    with pytest.raises(
        ValueError,
        match="expects a task of classes, got regression of y, loss mse; set class_weights=none",
    ):
        model(network, 1e-3, balanced=True).check(data)


def test_a_rate_that_diverges_is_not_chosen(network):
    searched = model(network, (1e-3, 1e30))
    searched.fit(task(), 0)
    assert (
        searched.fit_info["lr"] == 1e-3 and searched.fit_info["trials"][1]["valid_loss"] == math.inf
    )


def test_a_budget_is_kept_and_recorded(network, caplog):
    caplog.set_level("INFO", "dnadiff")
    limited = model(network, (1e-3, 2e-2), epochs=None, minutes=0.02)
    limited.fit(task(), 0)
    found = limited.fit_info
    assert (
        1 <= found["planned_epochs"] <= 20
        and found["step_seconds"] > 0
        and found["epochs"] <= found["planned_epochs"]
    )
    assert (
        f"{found['planned_epochs']} epochs of {found['batches_per_epoch']} batches" in caplog.text
    )
    with pytest.raises(ValueError, match="minutes 1 sets the epochs, and epochs is 3"):
        model(network, 1e-3, epochs=3, minutes=1)


def test_automatic_epochs_stop_early_and_the_schedule_has_their_length(network):
    steps: list[int] = []
    automatic = model(network, 0.0, epochs=None, patience=5)
    automatic.fit(task(), 0, lambda n, tokens, **_: steps.append(n))
    assert (
        automatic.fit_info["planned_epochs"] == 20
        and automatic.fit_info["epochs"] == 6
        and len(steps) == 18
    )
    assert automatic.fit_info["best_epoch"] == 1 and automatic.num_steps(task()) == 60


def test_a_budget_that_is_over_trains_at_least_20_steps(network):
    limited = model(network, 1e-3, epochs=None, minutes=1e-9)
    limited.fit(task(), 0)
    assert (
        limited.fit_info["planned_epochs"],
        limited.fit_info["batches_per_epoch"],
        limited.fit_info["epochs"],
    ) == (7, 3, 7)
