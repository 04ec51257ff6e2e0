import pytest

from dnadiff.supervised.training import Budget, Speed, TrainingPlan, automatic_plan, fitted_plan


@pytest.mark.parametrize(
    "batches, epochs", [(250, 8), (10, 20), (100, 20), (1000, 2), (5000, 2), (1, 20), (667, 3)]
)
def test_automatic_epochs_are_about_2000_steps_between_2_and_20_epochs(batches, epochs):
    assert automatic_plan(batches) == TrainingPlan(epochs, batches)


def test_epochs_fit_the_seconds_with_validation():
    speed = Speed(step=0.1, validation=2.0)  # an epoch of 100 batches takes 12 s
    assert fitted_plan(100, 60.0, speed) == TrainingPlan(5, 100)
    assert fitted_plan(100, 59.9, speed) == TrainingPlan(4, 100)
    assert fitted_plan(100, 1e6, speed) == TrainingPlan(20, 100)
    assert fitted_plan(100, 24.0, speed) == TrainingPlan(2, 100)
    assert fitted_plan(100, 14.0, speed) == TrainingPlan(
        2, 50
    )  # two validations, and two times 5 s for 50 batches
    assert fitted_plan(100, 8.0, speed) == TrainingPlan(2, 20)
    assert fitted_plan(100, 7.9, speed) == TrainingPlan(
        1, 59
    )  # one validation leaves more time for training
    assert fitted_plan(100, 1.0, speed) == fitted_plan(100, -5.0, speed) == TrainingPlan(1, 20)
    assert (
        fitted_plan(5, -5.0, speed) == fitted_plan(5, 6.0, speed) == TrainingPlan(4, 5)
    )  # 20 steps
    assert fitted_plan(3, 1.0, speed) == TrainingPlan(7, 3) and fitted_plan(
        5, 12.5, speed
    ) == TrainingPlan(5, 5)


def test_a_budget_counts_from_its_start():
    now = [100.0]
    budget = Budget(0.5, lambda: now[0])
    now[0] = 120.0
    assert budget.is_limited and budget.left == 10.0
    now[0] = 131.0
    assert budget.left == -1.0
    assert not Budget(None).is_limited and Budget(None).left == float("inf")
