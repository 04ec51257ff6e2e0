"""What is known about a model: from its source, from the `evaluate.json` next to it, and from the
data that it was trained on."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dnadiff.data.splits import Split
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.fields import Config
from dnadiff.networks.backbone.base import BlockBackbone
from dnadiff.store.disk import read_json
from dnadiff.store.files import LICENSES
from dnadiff.store.objects import PACKAGE, build
from dnadiff.weights.loaded import (
    ChangedDataError,
    Loaded,
    Origin,
    data_name,
    held_out_likelihood,
    portable,
)
from dnadiff.weights.tensors import fingerprint

# What reading a file that something else wrote or damaged can raise.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError)
log = logging.getLogger("dnadiff")


def stored_evaluation(loaded: Loaded) -> Config | None:
    """The `evaluate.json` next to a model; None, with a log message, if it is damaged, of other
    weights, of other data or of the training part."""
    path = StoredCurve(loaded.path, loaded.denoiser).file
    if not path.is_file():
        return None
    try:
        content = read_json(path, ("model", "data", "part", "protocol", "groups", "markov"))
        if content["model"].get("fingerprint") != fingerprint(loaded.denoiser):
            raise ValueError("it was measured with other weights")
        if content["part"] == "train":
            raise ValueError("it was measured on the training part")
        if not content["own_data"] and loaded.config.get("data"):
            raise ValueError("it was measured on different data from those of the training")
        if content["own_data"] and loaded.origin.split_hash not in (
            None,
            content["data"]["split_hash"],
        ):
            raise ValueError("the data changed between the training and the evaluation")
        likelihood_of(content)
    except _DAMAGED as error:
        log.info(f"{path} is ignored: {' '.join(str(error).split())}")
        return None
    return content


def likelihood_of(evaluation: Config) -> Config:
    """The held-out likelihood and its Markov baselines in an `evaluate.json`, as a
    `HeldOutLikelihood`."""
    data = evaluation["data"]
    of_data = {
        "data": data["name"],
        **{key: data[key] for key in ("window", "split", "split_hash")},
    }
    return held_out_likelihood(evaluation | of_data)


def curve_of(evaluation: Config) -> Config | None:
    """h(n) in an `evaluate.json`; None if it has none."""
    curve = evaluation.get("curve")
    return None if curve is None else {"visible": curve["visible"], "bits": curve["bits"]}


def training_seconds(loaded: Loaded) -> float | None:
    """The duration of the training, from the `metrics.json` of the run; None if the run is not
    finished or has none."""
    path = loaded.path.parent.parent / "metrics.json"
    if not path.is_file():
        return None
    try:
        content = read_json(path, ("step", "seconds"))
        return float(content["seconds"]) if content["step"] == loaded.step else None
    except _DAMAGED:
        return None


def origin_of(
    loaded: Loaded, evaluation: Config | None, trust: Sequence[str] = (), reads_data: bool = False
) -> Origin:
    """What the source records, completed by an evaluation next to the model and, with `reads_data`,
    by the training data themselves."""
    origin = loaded.origin
    if evaluation is not None:
        origin = replace(origin, likelihood=likelihood_of(evaluation), curve=curve_of(evaluation))
        if origin.data is None and evaluation["own_data"]:
            origin = replace(origin, data=dict(evaluation["data"]))
    if origin.data is None and reads_data:
        origin = described(loaded, origin, trust)
    if origin.seconds is None:
        origin = replace(origin, seconds=training_seconds(loaded))
    if origin.data_license is None:
        origin = replace(origin, data_license=data_license(loaded.config.get("data")))
    return origin


_DISK = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EFBIG}


def described(loaded: Loaded, origin: Origin, trust: Sequence[str]) -> Origin:
    """The origin with a description of the training data, read again; a log message if they are not
    here, or changed.

    An error of the disk is raised: the same model would get another card the next time.
    """
    try:
        return replace(origin, data=loaded.training_data(trust).describe())
    except ChangedDataError as error:
        log.warning(f"{error}; split and records that the files have now are left out")
        return replace(origin, data_changed=True)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        log.info(
            "the training data are described by their configuration alone, because they cannot be "
            f"read here: {error}"
        )
        return origin


def configured_split(data: Config) -> str | None:
    """How a configuration of data splits them, in words; None if it names no split that can be
    built."""
    try:
        split = build(data["split"], trust=(PACKAGE,))
    except _DAMAGED:
        return None
    return split.describe() if isinstance(split, Split) else None


def without_paths(description: Config | None) -> Config | None:
    """A description of data for other machines."""
    return (
        None
        if description is None
        else portable({key: value for key, value in description.items() if key != "path"})
    )


def data_license(data: Config | None) -> str | None:
    """The license of data that ship with the package; None for others."""
    path = data.get("path") if isinstance(data, Mapping) else None
    return LICENSES.get(path.removeprefix("bundled:")) if isinstance(path, str) else None


def summary(loaded: Loaded, origin: Origin) -> Config:
    """Everything that `python -m dnadiff.info` prints, as plain values."""
    denoiser, vocab, data = loaded.denoiser, loaded.tokenizer.vocab, loaded.config.get("data") or {}
    known = origin.data or {}
    return {
        "checkpoint": str(loaded.path),
        "source": origin.kind,
        "network": type(denoiser.backbone).__name__,
        "parameters": sum(p.numel() for p in denoiser.parameters()),
        "max_length": denoiser.max_length,
        "time_conditioning": denoiser.time_conditioning,
        "objective": type(loaded.objective).__name__,
        "noise": type(loaded.process.noise).__name__,
        "tokenizer": f"{loaded.tokenizer.name}, {vocab.size:,} ids",
        "alphabet": "text" if vocab.complement is None else "DNA",
        "labels": list(loaded.labels),
        "data": known.get("name") or data_name(data),
        "data_changed": origin.data_changed,
        "training_window": data.get("length"),
        "split": known.get("split") or configured_split(data),
        "split_hash": known.get("split_hash") or origin.split_hash,
        "held_out_records": known.get("held_out_records"),
        "split_tokens": known.get("split_tokens"),
        "step": loaded.step or None,
        **{
            key: vars(origin)[key]
            for key in (
                "tokens",
                "seconds",
                "likelihood",
                "curve",
                "license",
                "data_license",
                "note",
            )
        },
        "purpose": purpose(loaded),
        "remark": remark(loaded),
        "fingerprint": fingerprint(denoiser),
    }


def purpose(loaded: Loaded) -> str:
    """What the model can be used for, in words."""
    if loaded.denoiser.autoregressive:
        return "exact likelihoods, sampling from left to right, embeddings"
    if loaded.denoiser.reads is BlockBackbone:
        return "likelihood bounds, sampling of any length in blocks from left to right, embeddings"
    classify = (
        "embeddings"
        if loaded.tokenizer.vocab.complement is None
        else "embeddings, fine-tuning as a classifier"
    )
    if loaded.objective.trains_bound:
        return f"likelihood bounds, sampling in any order, infilling, {classify}"
    return f"{classify}; likelihood bounds and samples only for comparison"


def remark(loaded: Loaded) -> str | None:
    """What training by masked language modeling means for likelihoods and samples; None for other
    objectives."""
    if loaded.objective.trains_bound:
        return None
    return (
        "Trained by masked language modeling, which masks a fixed small part of each window. "
        "Likelihoods are valid upper bounds, but of a "
        "network that never saw most noise levels: they are loose, and worse than those of the "
        "same network trained by diffusion. Samples "
        "start from windows that are almost completely masked, which training never showed: expect "
        "unrealistic composition."
    )


def bits_text(value: float | None, form: str = ".4f") -> str:
    """A number of bits in a table; a dash if it is not known, as the interval of few windows."""
    return "-" if value is None else format(value, form)


def shared_evaluation(evaluation: Config, name: str) -> Config:
    """An `evaluate.json` without paths of this machine; the checkpoint gets the name of the
    model."""
    data, model = without_paths(evaluation["data"]), evaluation["model"] | {"checkpoint": name}
    return portable(evaluation | {"data": data, "model": model})
