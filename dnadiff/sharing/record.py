"""What is known about a model: from its source, from the `evaluate.json` next to it, and from the
data that it was trained on."""

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from dnadiff.data.splits import Split
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.diffusion.objective.base import Objective
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess
from dnadiff.fields import Config
from dnadiff.networks.backbone.base import BlockBackbone
from dnadiff.progress import log
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
_DISK = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EFBIG}
_OF_MASKED_LM = (
    "Trained by masked language modeling, which masks a fixed small part of each window. "
    "Likelihoods are valid upper bounds, but of a network that never saw most noise levels: they "
    "are loose, and worse than those of the same network trained by diffusion. Samples start from "
    "windows that are almost completely masked, which training never showed: expect unrealistic "
    "composition."
)


def stored_evaluation(loaded: Loaded) -> Config | None:
    """The `evaluate.json` next to a model; None, with a log message, if it is damaged, of other
    weights, of other data or of the training part."""
    path = StoredCurve(loaded.path, loaded.denoiser).file
    if not path.is_file():
        return None
    try:
        content = read_json(path, ("model", "data", "part", "protocol", "groups", "markov"))
        is_own, trained_on = content["own_data"], loaded.origin.split_hash
        faults = {
            "it was measured with other weights": content["model"].get("fingerprint")
            != fingerprint(loaded.denoiser),
            "it was measured on the training part": content["part"] == "train",
            "it was measured on different data from those of the training": not is_own
            and loaded.config.get("data"),
            "the data changed between the training and the evaluation": is_own
            and trained_on not in (None, content["data"]["split_hash"]),
        }
        likelihood_of(content)
        why = next((fault for fault, found in faults.items() if found), None)
    except _DAMAGED as error:
        why = " ".join(str(error).split())
    if why is not None:
        log.info(f"{path} is ignored: {why}")
    return content if why is None else None


def likelihood_of(evaluation: Config) -> Config:
    """The held-out likelihood and its Markov baselines in an `evaluate.json`, as a
    `HeldOutLikelihood`."""
    data = evaluation["data"]
    of_data = {key: data[key] for key in ("window", "split", "split_hash")}
    return held_out_likelihood(evaluation | {"data": data["name"], **of_data})


def origin_of(
    loaded: Loaded, evaluation: Config | None, trust: Sequence[str] = (), reads_data: bool = False
) -> Origin:
    """What the source records, completed by an evaluation next to the model and, with `reads_data`,
    by the training data themselves, if they are here and unchanged.

    An error of the disk is raised: the same model would get another card the next time.
    """
    origin = loaded.origin
    data = loaded.config.get("data")
    if evaluation is not None:
        curve = evaluation.get("curve")
        curve = curve and {"visible": curve["visible"], "bits": curve["bits"]}
        origin = replace(origin, likelihood=likelihood_of(evaluation), curve=curve)
        if origin.data is None and evaluation["own_data"]:
            origin = replace(origin, data=dict(evaluation["data"]))
    if origin.data is None and reads_data:
        try:
            origin = replace(origin, data=loaded.training_data(trust).describe())
        except ChangedDataError as error:
            log.warning(f"{error}; split and records that the files have now are left out")
            origin = replace(origin, data_changed=True)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            log.info(
                "the training data are described by their configuration alone, because they cannot "
                f"be read here: {error}"
            )
    if origin.seconds is None:
        with suppress(*_DAMAGED):  # also where the run is not finished
            content = read_json(loaded.path.parent.parent / "metrics.json", ("step", "seconds"))
            seconds = float(content["seconds"]) if content["step"] == loaded.step else None
            origin = replace(origin, seconds=seconds)
    path = data.get("path") if isinstance(data, Mapping) else None
    if origin.data_license is None and isinstance(path, str):  # of data that ship with the package
        origin = replace(origin, data_license=LICENSES.get(path.removeprefix("bundled:")))
    return origin


def configured_split(data: Config) -> str | None:
    """How a configuration of data splits them, in words; None if it names no split that can be
    built."""
    with suppress(*_DAMAGED):
        split = build(data["split"], trust=(PACKAGE,))
        return split.describe() if isinstance(split, Split) else None
    return None


def without_paths(description: Config | None) -> Config | None:
    """A description of data for other machines."""
    if description is None:
        return None
    return portable({key: value for key, value in description.items() if key != "path"})


def summary(loaded: Loaded, origin: Origin) -> Config:
    """Everything that `python -m dnadiff.info` prints, as plain values."""
    denoiser = loaded.denoiser
    vocab = loaded.tokenizer.vocab
    data = loaded.config.get("data") or {}
    known = origin.data or {}
    schedule = type(loaded.process.noise).__name__
    process = denoiser.process_type
    recorded = ("tokens", "seconds", "likelihood", "curve", "license", "data_license", "note")
    return {
        "checkpoint": str(loaded.path),
        "source": origin.kind,
        "network": type(denoiser.backbone).__name__,
        "parameters": sum(p.numel() for p in denoiser.parameters()),
        "max_length": denoiser.max_length,
        "time_conditioning": denoiser.time_conditioning,
        "objective": type(loaded.objective).__name__,
        "noise": schedule if process is AbsorbingProcess else f"{schedule}, {process.described}",
        "tokenizer": f"{loaded.tokenizer.name}, {vocab.size:,} ids",
        "alphabet": "text" if vocab.complement is None else "DNA",
        "labels": list(loaded.labels),
        **({} if (layer := denoiser.backbone.columns) is None else {"columns": layer.described}),
        "data": known.get("name") or data_name(data),
        "data_changed": origin.data_changed,
        "training_window": data.get("length"),
        "split": known.get("split") or configured_split(data),
        "split_hash": known.get("split_hash") or origin.split_hash,
        "held_out_records": known.get("held_out_records"),
        "split_tokens": known.get("split_tokens"),
        "step": loaded.step or None,
        **{key: vars(origin)[key] for key in recorded},
        "purpose": purpose(loaded),
        "remark": remark(loaded.objective),
        "fingerprint": fingerprint(denoiser),
    }


def remark(objective: Objective) -> str | None:
    """What the objective means for likelihoods and samples, if it trains no bound."""
    if objective.trains_bound:
        return None
    return f"No likelihood: {objective.no_likelihood}." if objective.own_bound else _OF_MASKED_LM


def purpose(loaded: Loaded) -> str:
    """What the model can be used for, in words."""
    if loaded.denoiser.autoregressive:
        return "exact likelihoods, sampling from left to right, embeddings"
    if loaded.denoiser.reads is BlockBackbone:
        return "likelihood bounds, sampling of any length in blocks from left to right, embeddings"
    is_dna = loaded.tokenizer.vocab.complement is not None
    embeddings = "embeddings" + (", fine-tuning as a classifier" if is_dna else "")
    if loaded.objective.trains_bound and issubclass(loaded.denoiser.process_type, MixtureProcess):
        return f"likelihood bounds, sampling that revises tokens, infilling, editing, {embeddings}"
    if loaded.objective.trains_bound:
        return f"likelihood bounds, sampling in any order, infilling, {embeddings}"
    if loaded.objective.own_bound:
        return f"sampling, {embeddings}; no likelihood"
    return f"{embeddings}; likelihood bounds and samples only for comparison"


def bits_text(value: float | None, form: str = ".4f") -> str:
    """A number of bits in a table; a dash if it is not known, as the interval of few windows."""
    return "-" if value is None else format(value, form)
