"""Models to share: what is known about one, from its source, from the `evaluate.json` next to it
and from the data that it was trained on; and a folder in the published layout with its model card,
`README.md` in the format of the Hugging Face Hub, which the template `card.md.j2` makes of it."""

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dnadiff.data.splits import MAX_HELD_OUT, Split
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.diffusion.objective.base import Objective
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess
from dnadiff.fields import Config, Json
from dnadiff.networks.backbone.base import BlockBackbone
from dnadiff.progress import log
from dnadiff.store.disk import atomic_write, check_folder, new_folder, read_json, write_json
from dnadiff.store.files import LICENSES
from dnadiff.store.objects import PACKAGE, build, config_dir
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import (
    DESCRIPTION,
    ChangedDataError,
    Loaded,
    Origin,
    data_name,
    description,
    held_out_likelihood,
    portable,
)
from dnadiff.weights.published import export_published
from dnadiff.weights.tensors import fingerprint, round_weights

FILES = ("config.json", "model.safetensors", "dnadiff.json", "evaluate.json", "README.md")
_SHOWN = 8  # held-out records named in the table
_GUIDE = "RESPONSIBLE_USE.md"
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
        "tokenizer": f"{loaded.tokenizer.name}, {loaded.tokenizer.vocab.size:,} ids",
        "alphabet": "DNA" if loaded.is_dna else "text",
        "labels": list(loaded.conditions.choices),
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
    embeddings = "embeddings" + (", fine-tuning as a classifier" if loaded.is_dna else "")
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


def export_model(
    source: str,
    output: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    data_license: str | None = None,
    note: str | None = None,
    duplicate_tied: bool = True,
    dtype: str | None = None,
    trust: Sequence[str] = (),
    overwrite: bool = False,
) -> tuple[Path, Config]:
    """Write a model as a folder to share; returns the folder and what its card says.

    Args:
        name: title of the card; None is the name of the folder.
        license, data_license, note: None is what the source records.
        duplicate_tied: write tied projections under both of their published names.
        dtype: that the weights are rounded to: float32, float16 or bfloat16.
    """
    target = check_folder(output, overwrite, FILES)
    loaded = checkpoint.load(source, trust)
    loaded.denoiser.backbone.published_layout()  # refuses networks without one
    before = fingerprint(loaded.denoiser)
    kind = None if dtype is None else getattr(torch, dtype)
    if kind is not None:  # before the hash of the weights is compared with that of the evaluation
        round_weights(loaded.denoiser, kind)
    evaluation = stored_evaluation(loaded)
    if evaluation is None and fingerprint(loaded.denoiser) != before:
        # What the source records is of other weights.
        loaded = replace(loaded, origin=replace(loaded.origin, likelihood=None, curve=None))
    origin = origin_of(loaded, evaluation, trust, reads_data=True)
    origin = replace(
        origin,
        data=without_paths(origin.data),
        license=license or origin.license,
        data_license=data_license or origin.data_license,
        note=note or origin.note,
    )
    about = summary(loaded, origin) | {"duplicate_tied": duplicate_tied, "dtype": dtype}
    title = name or target.name
    with new_folder(target) as folder:
        export_published(
            loaded.denoiser,
            folder,
            needs_description=True,
            duplicate_tied=duplicate_tied,
            dtype=kind,
        )
        write_json(folder / DESCRIPTION, description(loaded, origin))
        if evaluation is not None:  # sampling chooses its groups from it
            data = without_paths(evaluation["data"])
            model = evaluation["model"] | {"checkpoint": title}  # no path of this machine
            content = portable(evaluation | {"data": data, "model": model})
            write_json(folder / "evaluate.json", content)
        with atomic_write(folder / "README.md") as file:
            file.write(model_card(title, about).encode())
    return target, about


def model_card(name: str, about: Config) -> str:
    """The card of a model.

    Args:
        name: of the model, its title.
        about: as `dnadiff.sharing.summary` returns it; optionally with `duplicate_tied` and
            `dtype` of the weights in the file.
    """
    is_dna = about["alphabet"] == "DNA"
    kind = ["dna", "genomics"] if is_dna else ["text"]
    metadata = {
        "library_name": "dnadiff",
        "license": about["license"] or "unknown",  # what the Hub calls one that is not stated
        "tags": [*kind, "masked-diffusion", "language-model", about["network"].lower()],
        "pipeline_tag": "fill-mask",
    }
    # The guide of the package for models of DNA, its headings one level deeper.
    lines = (config_dir().parent / _GUIDE).read_text(encoding="utf-8").splitlines()[1:]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(cell=_cell, bits=bits_text, named=named)
    return environment.get_template("card.md.j2").render(
        name=name,
        about=about,
        is_dna=is_dna,
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        guide="\n".join("#" * line.startswith("#") + line for line in lines).strip(),
        round=round,
    )


def _cell(value: Json) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def named(records: Sequence[str]) -> str:
    """The first records, and how many more there are; a run stores at most `MAX_HELD_OUT` names."""
    least = "at least " if len(records) == MAX_HELD_OUT else ""
    more = f" and {least}{len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return ", ".join(records[:_SHOWN]) + more
