"""The training settings of `python -m dnadiff.finetune` from its configuration, where `auto` stands
for a value that suits the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.config import PACKAGE, Config, Json, build
from dnadiff.store.address import shown_addresses
from dnadiff.supervised.classifier import HeadInputs
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.models import EVALUATION
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.results import weights_digest
from dnadiff.supervised.saved import WeightsFile, save
from dnadiff.weights.loaded import resolved

if TYPE_CHECKING:
    import torch

    from dnadiff.supervised.saved import WeightsFile
    from dnadiff.weights.loaded import Loaded

import copy
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from dnadiff.backbone.base import Backbone
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.supervised.baselines import KmerLogistic, LinearProbe, NearestNeighbors
from dnadiff.supervised.classifier import (
    check_head,
    is_strand_invariant,
    keep_first_layers,
)
from dnadiff.supervised.layers import Frozen, LoRA
from dnadiff.supervised.models import TaskModel
from dnadiff.supervised.networks import (
    FineTunedModel,
    GridSearch,
    NetworkModel,
    OneHotModel,
    TrainingSettings,
)
from dnadiff.supervised.study import Combination, SeedAverage, Stack
from dnadiff.supervised.targets.estimators import LOGISTIC
from dnadiff.supervised.training import NEW_RATES, PRETRAINED_RATES
from dnadiff.weights.loaded import Loaded, build_denoiser

log = logging.getLogger("dnadiff")


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


Rates: TypeAlias = float | tuple[float, ...]
FINE_TUNED, SCRATCH, SAME_HEAD = "fine-tuned", "scratch", "same head on one-hot"
PROBE, RANDOM_PROBE, NEIGHBORS = (
    "frozen + logistic regression",
    "untrained, frozen + logistic regression",
    "frozen, nearest neighbors",
)


def row_name(name: str, data: TaskData) -> str:
    """The name of a model in the study of a task: of logistic regressions, the estimator that the
    target of the task uses."""
    return name.replace(LOGISTIC, data.target.estimators.linear_name)


def kmer_row(k: int, data: TaskData) -> str:
    """The name of the linear model on k-mers."""
    return row_name(f"{k}-mer {LOGISTIC}", data)


def build_models(
    config: Config, loaded: Loaded, data: TaskData, protocol: FixedSplit, device: str
) -> dict[str, TaskModel]:
    """The models of the study by name: baselines, the trained network, and the same network
    untrained.

    Args:
        config: of the command `finetune`, with one task.
        loaded: the pretrained model of DNA.
        device: where networks run that are not trained.
    """
    tokenizer = loaded.tokenizer
    assert isinstance(tokenizer, DNATokenizer)

    def trained(seed: int) -> Backbone:
        return keep_first_layers(copy.deepcopy(loaded.denoiser.backbone), config["layer"])

    def untrained(seed: int) -> Backbone:
        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        denoiser = build_denoiser(loaded.config, loaded.tokenizer, ("dnadiff", *config["trust"]))[0]
        return keep_first_layers(denoiser.backbone, config["layer"])

    about: dict[str, Json] = {} if config["layer"] is None else {"layer": config["layer"]}
    if (
        loaded.denoiser.backbone.reads_both_strands
    ):  # predictions stored before these networks became strand-invariant are not reused
        about["strands"] = "merged unless stranded"
    about_untrained = {"untrained": loaded.config["backbone"], **about}
    about_trained = {
        "weights": weights_digest(loaded.denoiser.backbone),
        "step": loaded.step,
        **about,
    }
    models: dict[str, TaskModel] = {
        kmer_row(config["kmer"], data): KmerLogistic(tokenizer, config["kmer"])
    }
    for name, baseline in (config.get("baselines") or {}).items():
        if not isinstance(baseline, Mapping) or "_target_" not in baseline:
            raise ValueError(
                f"baselines.{name} is {baseline!r}; give it a _target_, as those of baselines=all "
                "have"
            )
        built = build(dict(baseline), loaded.tokenizer, trust=None)
        if isinstance(built, NetworkModel):
            built.trainer.setdefault("accelerator", config["accelerator"])
            built.device = device
        models.setdefault(row_name(name, data), built)
    if config["neighbors"]:
        models[NEIGHBORS] = NearestNeighbors(trained, about=about_trained, device=device)
    if config["probe"]:
        models[row_name(PROBE, data)] = LinearProbe(trained, about=about_trained, device=device)
        models[row_name(RANDOM_PROBE, data)] = LinearProbe(
            untrained, random=True, about=about_untrained, device=device
        )
    inputs, from_scratch = (
        HeadInputs.of(**config["inputs"]),
        candidate_rates(config["lr_scratch"], protocol, NEW_RATES),
    )
    control = partial(_one_hot, tokenizer, 0, device, None, inputs.length), from_scratch
    if config["fine_tune"]:
        frozen, adapter = Frozen.of(config["freeze"]), build_adapter(config)
        only_new = frozen.backbone or adapter is not None
        automatic = 1.0 if only_new or protocol.epochs is not None else LAYER_DECAY
        special: TrainingSettings = {"layer_decay": resolve(config["layer_decay"], automatic)}
        head_epochs = resolve(config["head_epochs"], None if protocol.epochs is None else 0)
        make = partial(
            _fine_tuned, trained, about_trained, inputs, frozen, adapter, head_epochs, device
        )
        rates = candidate_rates(config["lr"], protocol, NEW_RATES if only_new else PRETRAINED_RATES)
        models[FINE_TUNED] = grid_search(config, data, protocol, rates, make, special)
        strands = 2 if is_strand_invariant(loaded.denoiser.backbone, data.stranded) else 1
        width = strands * inputs.width(loaded.denoiser.backbone, tokenizer.vocab, data.stranded)
        control = partial(_one_hot, tokenizer, head_epochs, device, width, inputs.length), rates
    if config["scratch"]:
        make = partial(_fine_tuned, untrained, about_untrained, inputs, None, None, 0, device)
        models[SCRATCH] = grid_search(config, data, protocol, from_scratch, make)
    if config["inputs"]["one_hot"] and (config["fine_tune"] or config["scratch"]):
        make_control, control_rates = control
        models[SAME_HEAD] = grid_search(config, data, protocol, control_rates, make_control)
    return models


def combinations(
    config: Config, models: Mapping[str, TaskModel], data: TaskData, protocol: FixedSplit
) -> list[Combination]:
    """The rows that combine others: averaged seeds of the fine-tuned network, and its stack with
    the k-mers."""
    if FINE_TUNED not in models:
        return []
    found: list[Combination] = []
    # Seeds with other items would add up to more, and a mean over seeds with other folds cannot be
    # ranked within folds (`within_folds`).
    if (
        config["average"]
        and config["seeds"] > 1
        and config["train_items"] is None
        and not protocol.tests_all_items
    ):
        found.append(SeedAverage(FINE_TUNED, config["seeds"]))
    if config["stack"]:
        found.append(
            Stack(
                FINE_TUNED,
                kmer_row(config["kmer"], data),
                f"{FINE_TUNED} + {config['kmer']}-mers, stacked",
            )
        )
    return found


def compared_pairs(
    config: Config, models: Mapping[str, TaskModel], data: TaskData, combined: Sequence[Combination]
) -> list[tuple[str, str]]:
    """The pairs of rows whose difference is reported; `combined` are the rows that combine
    others."""
    baseline, probe, random = (
        kmer_row(config["kmer"], data),
        row_name(PROBE, data),
        row_name(RANDOM_PROBE, data),
    )
    pairs = [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline), (probe, random), (probe, baseline)]
    pairs += [
        (FINE_TUNED, SAME_HEAD),
        *((FINE_TUNED, row_name(name, data)) for name in config.get("baselines") or {}),
    ]
    pairs += [(one.name, other) for one in combined for other in (FINE_TUNED, baseline)]
    known = {*models, *(one.name for one in combined)}
    return [pair for pair in dict.fromkeys(pairs) if known.issuperset(pair)]


def _fine_tuned(
    backbone: Callable[[int], Backbone],
    about: Mapping[str, object],
    inputs: HeadInputs,
    frozen: Frozen | None,
    adapter: LoRA | None,
    head_epochs: int | None,
    device: str,
    lr: Rates,
    head: Config,
    settings: TrainingSettings,
) -> NetworkModel:
    return FineTunedModel(
        backbone, lr, about, head, inputs, frozen, adapter, head_epochs, device, **settings
    )


def _one_hot(
    tokenizer: DNATokenizer,
    head_epochs: int | None,
    device: str,
    width: int | None,
    length: bool,
    lr: Rates,
    head: Config,
    settings: TrainingSettings,
) -> NetworkModel:
    return OneHotModel(
        tokenizer,
        build({**head, "_partial_": True}, trust=None),
        lr,
        head_epochs,
        device,
        width,
        length,
        **settings,
    )


def grid_search(
    config: Config,
    data: TaskData,
    protocol: FixedSplit,
    rates: Sequence[Rates],
    make: Callable[[Rates, Config, TrainingSettings], NetworkModel],
    special: TrainingSettings | None = None,
) -> TaskModel:
    """A network that is trained on the task; several learning rates, batch sizes or heads make a
    grid search, which shares the `minutes`.

    `make` builds a candidate from learning rate, head and settings, of which `special` are its own.
    """
    heads, shared = heads_of(config, data), training_settings(config, protocol)
    shared = {
        **shared,
        "mixup": config["mixup"],
        "balanced": config["class_weights"] == "balanced",
        **(special or {}),
    }
    grid = []
    combinations = list(itertools.product(rates, config["batch_size"], heads.items()))
    minutes = None if config["minutes"] is None else config["minutes"] / len(combinations)
    for rate, size, (name, head) in combinations:
        tried = {"lr": rate, "batch_size": size} | ({"head": name} if len(heads) > 1 else {})
        grid.append((tried, make(rate, head, {**shared, "batch_size": size, "minutes": minutes})))
    return GridSearch(grid) if len(grid) > 1 else grid[0][1]


def build_adapter(config: Config) -> LoRA | None:
    """The adapter of the command; ValueError for one that could not change anything."""
    if "_target_" not in config["adapter"]:
        return None
    if Frozen.of(config["freeze"]).backbone:
        raise ValueError(
            "freeze=backbone trains no layer, and adapter trains updates of them; set freeze=none, "
            "or adapter=none"
        )
    made = build(config["adapter"], trust=None)
    if not isinstance(made, LoRA):
        raise ValueError(
            f"adapter {config['adapter']['_target_']} is not an adapter "
            "(dnadiff.supervised.layers.LoRA)"
        )
    return made


def heads_of(config: Config, data: TaskData) -> dict[str, Config]:
    """The head, or with `head=auto` those that take the lengths of the task, by name."""
    if "candidates" not in config["head"]:
        check_head(config["head"], data)
        return {"": config["head"]}
    heads = {}
    for name, head in config["head"]["candidates"].items():
        try:
            check_head(head, data)
        except ValueError as error:
            log.info(f"not tried: {error}")
        else:
            heads[name] = head
    return heads


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
            save(folder / subfolder, seed, weights, {**shared, **own})
