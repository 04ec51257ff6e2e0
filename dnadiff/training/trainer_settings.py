"""The settings of a training run: which settings of Lightning's Trainer it may
choose, their integers, and when it validates."""

from __future__ import annotations

from collections.abc import Mapping

from dnadiff import checks
from dnadiff.config import Config, Json

# Arguments that are the same in every run.
FIXED: Config = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "check_val_every_n_epoch": None,
    "use_distributed_sampler": False,
}
# Arguments that training sets itself, and what to set instead.
INSTEAD = {
    "logger": "choose loggers by logger=, as in logger=[csv,tensorboard]",
    "plugins": "set trainer.precision or trainer.strategy",
    "default_root_dir": "set hydra.run.dir",
    "enable_checkpointing": (
        "set callbacks.checkpoints.every_n_steps, or callbacks.checkpoints=null"
    ),
    "enable_progress_bar": "set callbacks.progress=null for no progress bar",
    "enable_model_summary": "add lightning.pytorch.callbacks.ModelSummary to trainer.callbacks",
    "num_sanity_val_steps": (
        "leave it out, because the network is checked on one sequence before training"
    ),
    "check_val_every_n_epoch": "set trainer.val_check_interval, in optimizer steps",
    "use_distributed_sampler": (
        "leave it out, because the windows of each process are different already"
    ),
}
INTEGERS = ("max_steps", "val_check_interval", "accumulate_grad_batches")


def checked(config: Config) -> Config:
    """The configuration of a run with the integers of the Trainer as `int`: they may be written as
    1e4.

    Raises:
        ValueError: for a key that would have no effect, naming the one to set instead, or a number
            that cannot be used.
    """
    trainer = dict(config["trainer"])
    for key, remedy in INSTEAD.items():
        if key in trainer:
            raise ValueError(
                f"trainer.{key} would have no effect, because training sets it itself; {remedy}"
            )
    if "weight_decay" in config["optimizer"]:
        raise ValueError(
            "optimizer.weight_decay would have no effect, because only matrices are decayed; set "
            "weight_decay"
        )
    for key in INTEGERS:
        trainer[key] = checks.integer(f"trainer.{key}", trainer[key], 1)
    accumulated = trainer["accumulate_grad_batches"]
    for key in ("limit_train_batches", "overfit_batches"):
        limit = trainer.get(key)
        is_all = limit is None or (isinstance(limit, float) and limit in (0.0, 1.0))
        if (
            accumulated > 1
            and not is_all
            and not (checks.is_integer(limit, 0) and limit % accumulated == 0)
        ):
            raise ValueError(
                f"trainer.{key} {limit} would end an epoch in the middle of an optimizer step of "
                f"{accumulated} batches; set a multiple of "
                "trainer.accumulate_grad_batches"
            )
    return config | {"trainer": trainer}


def validation_interval(trainer: Mapping[str, Json]) -> int:
    """Batches between validations, such that they are evenly spaced about `val_check_interval`
    steps apart and the last is at the end.

    The interval is rounded down to integer steps: 7 steps with 2 validations have them after 3 and
    6.
    """
    steps = trainer["max_steps"]
    times = max(1, round(steps / trainer["val_check_interval"]))
    return max(1, steps // times) * trainer["accumulate_grad_batches"]
