"""The models that `python -m dnadiff.finetune` compares, from its configuration."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from dnadiff.backbone.base import Backbone
from dnadiff.checkpoint import Loaded, build_denoiser
from dnadiff.config import Config, Json, build
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.downstream.baselines import KmerLogistic
from dnadiff.downstream.classifier import check_head, keep_first_layers
from dnadiff.downstream.finetuning import FineTunedModel, NetworkModel, TrainingSettings
from dnadiff.downstream.grid import GridSearch
from dnadiff.downstream.head_inputs import HeadInputs
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.model import TaskModel
from dnadiff.downstream.probe import LinearProbe, NearestNeighbors
from dnadiff.downstream.protocol import FixedSplit
from dnadiff.downstream.results import weights_digest
from dnadiff.downstream.target.estimators import ClassEstimators
from dnadiff.draws import hash64

FINE_TUNED, SCRATCH = "fine-tuned", "scratch"
PROBE, RANDOM_PROBE, NEIGHBORS = "frozen + logistic regression", "untrained, frozen + logistic regression", "frozen, nearest neighbours"
log = logging.getLogger("dnadiff")


def row_name(name: str, data: TaskData) -> str:
    """The name of a model in the study of a task: of logistic regressions, the estimator that the target of the task uses."""
    return name.replace(ClassEstimators.linear_name, data.target.estimators.linear_name)


def kmer_row(k: int, data: TaskData) -> str:
    """The name of the linear model on k-mers."""
    return row_name(f"{k}-mer {ClassEstimators.linear_name}", data)


def compared_pairs(models: Collection[str], kmer: int, data: TaskData) -> list[tuple[str, str]]:
    """The pairs of models whose difference is reported."""
    baseline, probe, random = kmer_row(kmer, data), row_name(PROBE, data), row_name(RANDOM_PROBE, data)
    pairs = [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline), (probe, random), (probe, baseline), (FINE_TUNED, "CNN")]
    return [pair for pair in pairs if pair[0] in models and pair[1] in models]


def build_models(config: Config, loaded: Loaded, data: TaskData, protocol: FixedSplit, device: str) -> dict[str, TaskModel]:
    """The models of the study by name: baselines, the trained network, and the same network untrained.

    Args:
        config: of the command `finetune`, with one task.
        loaded: the pretrained model of DNA.
        device: where frozen networks run.
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
    if loaded.denoiser.backbone.reads_both_strands:  # predictions stored before these networks became strand-invariant are not reused
        about["strands"] = "merged unless stranded"
    about_untrained = {"untrained": loaded.config["backbone"], **about}
    about_trained = {"weights": weights_digest(loaded.denoiser.backbone), "step": loaded.step, **about}
    models: dict[str, TaskModel] = {kmer_row(config["kmer"], data): KmerLogistic(tokenizer, config["kmer"])}
    for name, baseline in (config.get("baselines") or {}).items():
        if not isinstance(baseline, Mapping) or "_target_" not in baseline:
            raise ValueError(f"baselines.{name} is {baseline!r}; give it a _target_, as those of baselines=all have")
        built = build(dict(baseline), loaded.tokenizer, trust=None)
        if isinstance(built, NetworkModel):
            built.trainer.setdefault("accelerator", config["accelerator"])
        models.setdefault(row_name(name, data), built)
    if config["neighbours"]:
        models[NEIGHBORS] = NearestNeighbors(trained, about=about_trained, device=device)
    if config["probe"]:
        models[row_name(PROBE, data)] = LinearProbe(trained, about=about_trained, device=device)
        models[row_name(RANDOM_PROBE, data)] = LinearProbe(untrained, random=True, about=about_untrained, device=device)
    if config["fine_tune"]:
        models[FINE_TUNED] = fine_tuned_model(config, data, protocol, trained, config["lr"], about_trained)
    if config["scratch"]:
        models[SCRATCH] = fine_tuned_model(config, data, protocol, untrained, config["lr_scratch"], about_untrained)
    return models


def fine_tuned_model(
    config: Config,
    data: TaskData,
    protocol: FixedSplit,
    backbone: Callable[[int], Backbone],
    rates: Sequence[float],
    about: Mapping[str, object],
) -> TaskModel:
    """A network that is trained on the task; several learning rates, batch sizes or heads make a grid search."""
    shared: TrainingSettings = {
        "epochs": config["epochs"] or protocol.epochs,
        "weight_decay": config["weight_decay"],
        "warmup": protocol.warmup if config["warmup"] is None else config["warmup"],
        "trainer": {"accelerator": config["accelerator"], "devices": 1},
        "patience": config["patience"],
    }
    inputs, grid = HeadInputs.of(**config["inputs"]), []
    heads = heads_of(config, data)
    for rate, size, (name, head) in itertools.product(rates, config["batch_size"], heads.items()):
        settings: TrainingSettings = {**shared, "batch_size": size}
        tried = {"lr": rate, "batch_size": size} | ({"head": name} if len(heads) > 1 else {})
        grid.append((tried, FineTunedModel(backbone, rate, about, head, inputs, **settings)))
    return GridSearch(grid) if len(grid) > 1 else grid[0][1]


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
