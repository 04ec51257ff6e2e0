"""The settings of the Trainer: what has no effect is refused, and integers are integers."""

import pytest

from dnadiff.training.trainer import FIXED, INSTEAD, trainer_settings, validation_interval


def checked(**settings):
    steps = {"max_steps": 10, "val_check_interval": 5, "accumulate_grad_batches": 1}
    return trainer_settings(steps | settings)


def test_integers_may_be_written_as_1e4():
    trainer = checked(max_steps=1e4, val_check_interval=1e3, accumulate_grad_batches=2.0)
    assert [(value, type(value)) for value in trainer.values()] == [
        (10_000, int),
        (1000, int),
        (2, int),
    ]
    assert (interval := validation_interval(trainer)) == 2000 and type(interval) is int


@pytest.mark.parametrize("key", INSTEAD)
def test_a_key_that_training_sets_itself_is_refused(key):
    with pytest.raises(
        ValueError, match=rf"trainer\.{key} would have no effect, because training sets it itself; "
    ):
        checked(**{key: None})
    assert FIXED.keys() | {"plugins", "default_root_dir"} == INSTEAD.keys()


@pytest.mark.parametrize("key", ["limit_train_batches", "overfit_batches"])
def test_a_limit_does_not_end_an_epoch_in_the_middle_of_a_step(key):
    for limit in (9, 0.5):
        with pytest.raises(
            ValueError,
            match=(
                rf"trainer\.{key} {limit} would end an epoch in the middle of an optimizer step "
                rf"of 8 batches"
            ),
        ):
            checked(accumulate_grad_batches=8, **{key: limit})
    for accumulated, limit in ((8, 16), (8, 0), (8, 1.0), (8, None), (1, 9), (1, 0.5)):
        assert checked(accumulate_grad_batches=accumulated, **{key: limit})[key] == limit


@pytest.mark.parametrize(
    "setting", ["+trainer.enable_progress_bar=false", "+optimizer.weight_decay=0.5"]
)
def test_such_a_key_is_refused_on_the_command_line(setting, cli, train_args, tmp_path):
    status, _, err = cli("train", *train_args("dit", 2, setting))
    assert (
        status == 1
        and f"{setting[1:].partition('=')[0]} would have no effect" in err
        and not (tmp_path / "run").exists()
    )
