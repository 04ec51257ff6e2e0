"""What a study saves of its networks: see `dnadiff.supervised.saved` for the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.config import PACKAGE, Config, Json
from dnadiff.store.address import shown_addresses
from dnadiff.supervised import saved
from dnadiff.supervised.head_inputs import HeadInputs
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.model import EVALUATION
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.results import weights_digest
from dnadiff.supervised.weights import WeightsFile
from dnadiff.weights.loaded import resolved

if TYPE_CHECKING:
    from dnadiff.weights.loaded import Loaded

SUBFOLDERS = {"fine-tuned": "", "scratch": "scratch"}  # by the name of the model in the study


def save_networks(
    folder: Path,
    config: Config,
    data: TaskData,
    protocol: FixedSplit,
    loaded: Loaded,
    settings: Mapping[str, Json],
    study: Mapping[str, Json],
    networks: Mapping[tuple[str, int], WeightsFile],
) -> None:
    """Save the network of every seed with its description.

    Args:
        folder: `models` in the run folder, or a folder of the task in it.
        config: of the command, with the task.
        protocol: which items each seed was trained on: the target and the counts that are saved are
            of these.
        loaded: the pretrained model.
        settings: by the name of the model, what `describe` returns.
        study: what `dnadiff.supervised.study.run_study` returns, with its `seeds`.
        networks: the weights by the name of the model and the seed.
    """
    shared = {
        "classes": list(data.target.names),
        "stranded": data.stranded,
        "layer": config["layer"],
        "network": resolved(loaded.config, (PACKAGE, *config["trust"]))["backbone"],
        "tokenizer": loaded.tokenizer.config(),
        "pretrained": {
            "checkpoint": str(loaded.path),
            "step": loaded.step,
            "weights": weights_digest(loaded.denoiser.backbone),
        },
    }
    inputs = asdict(HeadInputs.of(**config["inputs"]))
    for name, subfolder in SUBFOLDERS.items():
        seeds = {seed: weights for (model, seed), weights in networks.items() if model == name}
        for seed, weights in seeds.items():
            number, report = study["seeds"].index(seed), study["models"][name]
            trained = protocol.rounds(data, seed)[
                -1
            ].data  # as in `results.Computed`, the network is that of the last round
            found = report["found"][number][0]
            own = {
                "name": name,
                "target": trained.target.fit(trained.train.labels).settings(),
                "task": {
                    "name": data.name,
                    "longest": data.max_length,
                    "items": trained.counts(),
                    "settings": shown_addresses(config["task"]),
                },
                "seeds": sorted(seeds),
                "settings": settings[name],
                "found": found,
                "head": found["head"],
                "inputs": inputs,
                "batch_size": EVALUATION
                * found.get("chosen", settings[name])[
                    "batch_size"
                ],  # that predicted the test items
                "metrics": {
                    metric: each["per_seed"][number] for metric, each in report["metrics"].items()
                },
            }
            saved.save(folder / subfolder, seed, weights, {**shared, **own})
