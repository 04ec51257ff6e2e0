"""The training settings of `python -m dnadiff.finetune` from its configuration, where `auto` stands
for a value that suits the task."""

from __future__ import annotations

from collections.abc import Sequence

from dnadiff.config import Config, Json
from dnadiff.supervised.finetuning import TrainingSettings
from dnadiff.supervised.protocol import FixedSplit

AUTO = "auto"
PATIENCE, LAYER_DECAY = 5, 0.8


def resolve(value: Json, automatic: Json) -> Json:
    """The value, or what `auto` stands for."""
    return automatic if value == AUTO else value


def training_settings(config: Config, protocol: FixedSplit) -> TrainingSettings:
    """The settings that the fine-tuned network and its controls share.

    Raises:
        ValueError: if `minutes` and a number of epochs are both set.
    """
    epochs = resolve(config["epochs"], protocol.epochs)
    if config["minutes"] is not None and epochs is not None:
        reason = (
            f"task.protocol={protocol.name} has {epochs} epochs"
            if config["epochs"] == AUTO
            else f"epochs is {epochs}"
        )
        raise ValueError(
            f"minutes {config['minutes']:g} sets the number of epochs, and {reason}; set "
            "minutes=null, or epochs=auto"
        )
    return {
        "epochs": epochs,
        "minutes": config["minutes"],
        "weight_decay": config["weight_decay"],
        "warmup": protocol.warmup if config["warmup"] is None else config["warmup"],
        "trainer": {"accelerator": config["accelerator"], "devices": 1},
        "patience": resolve(config["patience"], PATIENCE if epochs is None else None),
    }


def candidate_rates(
    rates: Sequence[Json], protocol: FixedSplit, automatic: tuple[float, ...]
) -> list[float | tuple[float, ...]]:
    """The learning rates of the candidates of a grid; `auto` is the published grid, or one
    candidate that chooses from `automatic`."""
    if AUTO not in rates:
        return list(rates)
    return list(protocol.rates) or [automatic]
