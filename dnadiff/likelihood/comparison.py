"""The paired difference of two models on the same held-out windows: what
`python -m dnadiff.compare` computes and writes."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dnadiff import likelihood
from dnadiff.bootstrap import effective_block_size, verdict
from dnadiff.config import Config, Json
from dnadiff.likelihood import evaluation
from dnadiff.likelihood.estimates import Likelihood
from dnadiff.likelihood.evaluation import Estimator, estimator_for
from dnadiff.likelihood.held_out import Windows, token_groups
from dnadiff.store.disk import write_json

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.data.windows import TiledWindows
    from dnadiff.weights.loaded import Loaded

NAMES = ("a", "b")
log = logging.getLogger("dnadiff")


def check_options(config: Config) -> Config:
    """The options of `dnadiff.compare`, checked before anything is read, with those of an
    evaluation that it does not have.

    Raises:
        FileExistsError: if the output file exists and `overwrite` is false.
        ValueError: for an impossible value, naming the key, the value and the choices.
    """
    conjoin = config["conjoin"]
    conjoined = list(NAMES) if conjoin is True else [] if conjoin is False else list(conjoin)
    config = config | {
        "orders": [],
        "windows": None,
        "target_se": None,
        "max_draws": max(2, int(config["num_draws"])),
    }
    return evaluation.check_options(config) | {"both_strands": False, "conjoin": conjoined}


def compare(models: Mapping[str, Loaded], config: Config, device: str) -> Json:
    """Evaluate two models on the same windows with the same masks, and write the JSON file.

    Args:
        models: `a` and `b`.
        config: as `check_options` returns it; `data` replaces the data of the training run of `a`.

    Returns:
        The contents of the JSON file, and `is_dna`.

    Raises:
        ValueError: if models, data and options do not fit, before a network runs.
    """
    a, b = (models[name] for name in NAMES)
    check_vocabularies(a, b)
    is_dna = a.tokenizer.vocab.complement is not None
    options = {name: config | {"conjoin": name in config["conjoin"]} for name in NAMES}
    protocols = {name: protocol_of(name, model, options[name]) for name, model in models.items()}
    data, own = evaluation.data_of(a, config)
    length, longest = config["length"] or data.length, b.denoiser.max_length
    if longest is not None and length > longest:
        raise ValueError(
            f"windows of {length} tokens are longer than the {longest} that b accepts; set "
            f"length={longest} or less"
        )
    tiles = data.test_windows(config["part"], config["length"])
    log.info(f"{len(tiles):,} windows of {tiles.length} tokens of {data.name} ({config['part']})")
    groups, novelty = (
        groups_of(models, data, own, tiles, config)
        if is_dna
        else (token_groups(data, tiles, None, config["part"]), None)
    )
    results, described = {}, {}
    layout = data.layout(tiles.length)
    about = {
        **data.describe(),
        "window": tiles.length,
        **({} if layout is None else {"layout": layout}),
    }
    for name, model in models.items():
        log.info(f"{name}: {model.path}, step {model.step:,}")
        denoiser = model.denoiser.to(device)
        estimator = protocols[name](
            options[name],
            model.process,
            Windows(tiles, groups, config["batch_size"], denoiser.num_labels > 0),
        )
        conjoined = options[name]["conjoin"]
        results[name] = estimator.run(
            likelihood.Conjoined(denoiser, model.tokenizer.vocab) if conjoined else denoiser
        )
        described[name] = evaluation.describe_protocol(
            options[name], estimator, results[name], denoiser.block_size, about
        )
    difference = results["a"].minus(results["b"])
    content = {
        **{
            name: evaluation.describe_model(models[name], options[name]["conjoin"])
            for name in NAMES
        },
        "data": about,
        "own_data": own,
        "part": config["part"],
        "num_draws": config["num_draws"],
        "seed": config["seed"],
        "protocol": described,
        "block_size": effective_block_size(len(tiles), config["block_size"]),
        "se_total_note": evaluation.dependence_note(tiles, config["block_size"]),
        "novelty": novelty,
        "groups": {
            name: {
                **{model: results[model].summary(name) for model in NAMES},
                "difference": describe_difference(difference, name),
            }
            for name, tokens in difference.tokens.items()
            if tokens.sum()
        },
    }
    write_json(config["output"], content)
    return content | {"is_dna": is_dna}


def protocol_of(name: str, model: Loaded, options: Config) -> type[Estimator]:
    """How the likelihood of a model is estimated; a ValueError that begins with its name if the
    options do not fit it."""
    protocol = estimator_for(model.denoiser, options["protocol"])
    try:
        protocol.check_model(model.denoiser, model.process.noise)
        protocol.check_draws(options["num_draws"])
        evaluation.check_strands(
            options, model.denoiser.left_to_right, model.tokenizer.vocab.complement is not None
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return protocol


def check_vocabularies(a: Loaded, b: Loaded) -> None:
    """ValueError unless the tokens of both models are the same, and their labels if both have
    some."""
    if a.tokenizer.config() != b.tokenizer.config():
        kinds = [
            f"{name} reads {m.tokenizer.name} ({m.tokenizer.vocab.size} tokens)"
            for name, m in zip(NAMES, (a, b))
        ]
        raise ValueError(
            f"{', and '.join(kinds)}: likelihoods per token of different vocabularies cannot be "
            "compared; name two models with one tokenizer"
        )
    if a.labels and b.labels and a.labels != b.labels:
        labels = [f"{name} has the labels {', '.join(m.labels)}" for name, m in zip(NAMES, (a, b))]
        raise ValueError(
            f"{', and '.join(labels)}: windows cannot have the labels of both; name two models "
            "with the same labels"
        )


def groups_of(
    models: Mapping[str, Loaded],
    data: SequenceDataModule,
    own: bool,
    tiles: TiledWindows,
    config: Config,
) -> tuple[dict[str, np.ndarray], str | None]:
    """`token_groups` of DNA and what novelty refers to: a base is novel if it is so for both
    models, and repeated otherwise."""
    a, b = (models[name] for name in NAMES)
    trained_on = [evaluation.training_data(a, data if own else None, config["trust"])]
    if a.config.get("data") != b.config.get("data"):
        trained_on.append(evaluation.training_data(b, None, config["trust"]))
        if own:
            log.warning(
                "b was trained with other settings of the data: windows held out for a may be in "
                "its training part (group repeated)"
            )
    if None in trained_on:
        return token_groups(data, tiles, None, config["part"]), None
    groups, *others = [token_groups(data, tiles, one, config["part"]) for one in trained_on]
    for other in others:
        groups |= {
            "novel": groups["novel"] & other["novel"],
            "repeated": groups["repeated"] | other["repeated"],
        }
    return (
        groups,
        "against the training part of "
        f"{' and of '.join(dict.fromkeys(one.name for one in trained_on if one is not None))}",
    )


def describe_difference(difference: Likelihood, group: str) -> Json:
    """a minus b in nats and bits per token, with its errors, the 95 % interval, and what it says
    about a (lower is better)."""
    found, bit, se_mc = difference.interval(group), math.log(2), difference.se_mc(group)
    return {
        "nll": found.value,
        "low": found.low,
        "high": found.high,
        "se_mc": None if math.isnan(se_mc) else se_mc,
        "se_total": found.se,
        "bits": found.value / bit,
        "bits_low": found.low / bit,
        "bits_high": found.high / bit,
        "verdict": verdict(found.low, found.high, above="worse", below="better"),
    }
