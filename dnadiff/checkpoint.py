"""Saving and loading (denoiser, tokenizer, configuration) without a Trainer.

A checkpoint is a Lightning file read as a plain dict: weights (averaged, if training averaged them), and under `hyper_parameters` the
resolved configuration and the tokenizer. Nothing in it is executed: only classes of this package are built (`dnadiff.config.build`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from dnadiff.backbone.base import Backbone
from dnadiff.config import PACKAGE, Config, Json, Trust, build, locate
from dnadiff.data.tokenizer import Tokenizer
from dnadiff.noise import NoiseSchedule
from dnadiff.objective.base import Objective
from dnadiff.process import AbsorbingProcess
from dnadiff.published import tensors
from dnadiff.published.layout import listing
from dnadiff.published.model import export_published, load_published  # noqa: F401

if TYPE_CHECKING:
    from dnadiff.denoiser import BaseDenoiser

PREFIX = "denoiser."


@dataclass(frozen=True)
class Loaded:
    """A model ready to use.

    Attributes:
        denoiser: in evaluation mode.
        tokenizer: converts between letters and ids; `tokenizer.vocab` is the denoiser's.
        labels: names of the labels that the network takes, in the order of the columns of `cond`.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    tokenizer: Tokenizer
    config: Config
    path: Path
    step: int
    labels: tuple[str, ...] = ()


def build_objective(config: Config, process: AbsorbingProcess, trust: Trust = (PACKAGE,)) -> Objective:
    """The objective of a training configuration."""
    return build({**config["objective"], "_partial_": False}, process=process, trust=trust)


def resolved(config: Config, trust: Trust = (PACKAGE,)) -> Config:
    """The configuration with `time_conditioning: null` replaced by the objective's default, in the backbone too."""
    conditioned = config.get("time_conditioning")
    if conditioned is None:
        objective = locate(config["objective"]["_target_"], trust)
        conditioned = isinstance(objective, type) and issubclass(objective, Objective) and objective.time_conditioning
    backbone = dict(config["backbone"])
    if "time_conditioning" in backbone and backbone["time_conditioning"] is None:
        backbone["time_conditioning"] = conditioned
    return {**config, "time_conditioning": conditioned, "backbone": backbone}


def build_denoiser(config: Config, tokenizer: Tokenizer, trust: Trust = (PACKAGE,)) -> tuple[BaseDenoiser, AbsorbingProcess]:
    """The untrained network and process of a training configuration; the objective chooses the denoiser class around the network.

    Raises:
        ValueError: if objective, backbone and time conditioning are incompatible.
    """
    config = resolved(config, trust)
    noise = build(config["noise"], trust=trust)
    backbone = build(config["backbone"], vocab=tokenizer.vocab, trust=trust)
    if not isinstance(noise, NoiseSchedule) or not isinstance(backbone, Backbone):
        raise ValueError("noise and backbone of the configuration must build a NoiseSchedule and a Backbone; check their _target_")
    process = AbsorbingProcess(tokenizer.vocab, noise)
    return build_objective(config, process, trust).denoiser(backbone, bool(config["time_conditioning"])), process


def find(checkpoint: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs/train") -> Path:
    """The checkpoint file of a run folder, of a file name, or of `latest`, the newest run; FileNotFoundError if there is none.

    For a run folder that is `checkpoints/best.ckpt`, or `last.ckpt` if no validation has run.
    """
    path = Path(checkpoint)
    if str(checkpoint) == "latest":
        found = sorted(Path(runs).glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise FileNotFoundError(f"checkpoint=latest found no run under {runs}; train one, or name a run folder")
        path = found[-1].parent.parent
    if path.is_dir():
        candidates = [folder / name for folder in (path / "checkpoints", path) for name in ("best.ckpt", "last.ckpt")]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
        raise FileNotFoundError(
            f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; name a run folder that python -m dnadiff.train made"
        )
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path} does not exist; give a run folder, a .ckpt file, or latest")
    return path


def read(path: Path) -> dict[str, Json]:
    """The contents of a checkpoint file; no code in it runs.

    Raises:
        ValueError: if the file is truncated, holds pickled code, or is not a checkpoint of this package.
    """
    content = tensors.read(path)
    described = content.get("hyper_parameters") if isinstance(content, dict) else None
    described = described if isinstance(described, dict) else {}
    if not described or not all(
        isinstance(part, dict) for part in (content.get("state_dict"), *map(described.get, ("config", "tokenizer")))
    ):
        raise ValueError(f"{path} is not a dnadiff checkpoint: it lacks weights, configuration or tokenizer")
    if missing := [key for key in ("noise", "backbone", "objective", "data") if not isinstance(described["config"].get(key), dict)]:
        raise ValueError(f"{path} is not a dnadiff checkpoint: its configuration lacks {', '.join(missing)}")
    if type(content.get("global_step", 0)) is not int:
        raise ValueError(f"{path} is not a dnadiff checkpoint: its step is {str(content['global_step'])[:40]!r}, not an integer")
    return content


def load(checkpoint: str | os.PathLike[str], trust: Sequence[str] = ()) -> Loaded:
    """The model of a run folder or checkpoint file.

    Args:
        checkpoint: see `find`.
        trust: additional packages whose classes its configuration may name.

    Raises:
        ValueError: if it is damaged, names classes that are not trusted, or its weights do not match its configuration.
        FileNotFoundError: if it does not exist.
    """
    path = find(checkpoint)
    content = read(path)
    try:
        return _assemble(path, content, (PACKAGE, *trust))
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = " ".join(str(error).split())[:300]  # values that no command writes: constructors and torch raise errors of many kinds
        raise ValueError(f"{path} does not describe a model that can be built ({reason}); use another copy of it") from error


def _assemble(path: Path, content: dict[str, Json], allowed: Sequence[str]) -> Loaded:
    described = content["hyper_parameters"]
    tokenizer = build(described["tokenizer"], trust=allowed)
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"{path} names {described['tokenizer'].get('_target_')!r} as its tokenizer, which is not one; use another copy of it"
        )
    state = {name.removeprefix(PREFIX): t for name, t in content["state_dict"].items() if name.startswith(PREFIX)}
    with tensors.without_memory(len(state), path):  # a network that the file cannot fill is refused before memory is allocated
        check_weights(build_denoiser(described["config"], tokenizer, allowed)[0], state, path)
    tensors.check_memory(state.values(), path)
    denoiser, process = build_denoiser(described["config"], tokenizer, allowed)
    denoiser.load_state_dict(state)
    labels = label_names(described, denoiser.backbone.num_labels)
    return Loaded(denoiser.eval(), process, tokenizer, described["config"], path, int(content.get("global_step", 0)), labels)


def label_names(described: Mapping[str, Json], number: int) -> tuple[str, ...]:
    """The names of a network's labels: those that the run saved, or numbers if it saved none."""
    names = described.get("labels")
    if not isinstance(names, (list, tuple)) or len(names) != number:
        names = range(number)
    return tuple(map(str, names))


def check_weights(denoiser: BaseDenoiser, state: Mapping[str, Tensor], source: Path) -> None:
    """Raise ValueError, listing missing, surplus and misshapen tensors, if a file's tensors do not fit; the denoiser may be without memory."""
    own = denoiser.state_dict()
    faults = [f"missing {name}" for name in own if name not in state]
    faults += [f"surplus {name}" for name in state if name not in own]
    faults += [
        f"{name} is {tuple(state[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own
        if name in state and own[name].shape != state[name].shape
    ]
    if faults:
        raise ValueError(
            f"the weights in {source} do not fit the network of the configuration: {listing(faults)}. "
            "Was it trained with another vocabulary or size?"
        )
