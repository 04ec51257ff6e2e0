"""Earlier runs: those that a new one goes on with, starts from, or would overwrite."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dnadiff import commands
from dnadiff.config import with_current_names

# Keys that say how to run, not what: they may differ between a run and its resumption.
HOW = ("resume", "overwrite", "trust")
# Keys of a backbone that say how it is computed, not which network it is.
COMPUTED = ("scan", "activation_checkpointing", "compile")
# Keys that a resumed run may change: how long, how often it reports, and on what it runs.
MAY_CHANGE = (
    *("trainer.max_steps", "trainer.val_check_interval", "trainer.log_every_n_steps", "trainer.accelerator"),
    *("data.num_workers", "data.start_method", "data.num_proc", "data.max_valid_windows"),
    *("callbacks.checkpoints", "callbacks.progress", "logger"),
    *("init_from", "matmul_precision", *(f"backbone.{key}" for key in COMPUTED)),
)
log = logging.getLogger("dnadiff")


def start_weights(source: str, trust: Sequence[str]) -> Any:
    """What `init_from` names: a published folder or Hub id, or else a run or checkpoint of this package."""
    from dnadiff import checkpoint
    from dnadiff.published import model

    return model.read(source) if model.is_published(source) else checkpoint.load(source, trust)


def holds_run(run_dir: Path) -> bool:
    """Whether the folder has something to lose: a finished run, or one that has saved at least once."""
    return (run_dir / "metrics.json").is_file() or any((run_dir / "checkpoints").glob("*.ckpt"))


def resumable(config: Mapping[str, Any], run_dir: Path) -> Path | None:
    """The checkpoint that `resume=true` means: the run folder's own, else that of the newest unfinished run like this one."""
    own = run_dir / "checkpoints" / "last.ckpt"
    if own.is_file():
        return own
    candidates = sorted(run_dir.parent.glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in candidates:
        folder = path.parent.parent
        if (folder / "metrics.json").is_file() or not (folder / "config.yaml").is_file():
            continue
        if not differences(config, yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), HOW):
            return path
    log.info("resume=true: no unfinished run like this one; starting afresh")
    return None


def differences(config: Mapping[str, Any], other: Mapping[str, Any], free: Sequence[str]) -> list[str]:
    """Dotted keys whose values differ, but for those that begin with one of `free`."""
    ours, theirs = dict(commands.leaves(config)), dict(commands.leaves(with_current_names(other)))
    keys = [k for k in sorted(ours.keys() | theirs.keys()) if ours.get(k) != theirs.get(k)]
    return [k for k in keys if not any(k == f or k.startswith(f + ".") for f in free)]


def resume_step(start_from: Path, config: Mapping[str, Any], data: Any) -> int:
    """The step of the checkpoint to resume.

    Raises:
        ValueError: if it belongs to another network, other data or another way of training, or is at the end already.
    """
    from dnadiff.checkpoint import read

    content = read(start_from)
    if changed := differences(config, content["hyper_parameters"]["config"], (*HOW, *MAY_CHANGE)):
        raise ValueError(
            f"{start_from} belongs to a run with other values of {', '.join(changed[:6])}; a resumed run keeps them: leave them out, "
            "or start a new run with init_from="
        )
    if content["hyper_parameters"]["tokenizer"] != data.tokenizer.config():
        raise ValueError(f"{start_from} was trained on another alphabet than {data.name} has now; has the file changed?")
    if content["hyper_parameters"].get("split_hash") != data.describe()["split_hash"]:
        raise ValueError(f"{start_from} was trained on other records or another split than {data.name} has now; has a file changed?")
    if "digest" not in content["hyper_parameters"]:
        log.warning(
            f"{start_from} does not say which sequence it was trained on (an older version wrote it); taken to be that of {data.name}"
        )
    elif content["hyper_parameters"]["digest"] != data.digest:
        raise ValueError(f"{start_from} was trained on other sequence than {data.name} has now; bring the file back, or start a new run")
    step, steps = int(content["global_step"]), config["trainer"]["max_steps"]
    if step >= steps:
        raise ValueError(f"{start_from} is at step {step} already; set trainer.max_steps above that to go on")
    return step


def clear(run_dir: Path) -> None:
    """Remove what an earlier run in this folder wrote (only with overwrite=true does one get here)."""
    for name in ("metrics.json", "metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"):
        (run_dir / name).unlink(missing_ok=True)


def use_initial_network(config: dict[str, Any], initial: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration with the network found under `init_from`, computed as this command line says.

    Raises:
        ValueError: if the command line asks for another network.
    """
    named = [(o, o.lstrip("+").partition("=")[0]) for o in overrides]
    how = {f"backbone.{key}": key for key in COMPUTED}
    words = ("backbone", "time_conditioning")
    asked = {o: key for o, key in named if key not in how and (key in words or key.startswith(("backbone.", "backbone/")))}
    if asked and (different := describe_difference(config, initial, [key.removeprefix("backbone.") for key in asked.values()])):
        raise ValueError(f"init_from brings its own network, with {different}; leave out {' '.join(asked)}")
    backbone = {key: value for key, value in initial["backbone"].items() if key not in COMPUTED}
    wanted = {how[key] for _, key in named if key in how} | (initial["backbone"].keys() & set(COMPUTED))
    backbone |= {key: config["backbone"][key] for key in COMPUTED if key in wanted and key in config["backbone"]}
    return config | {"backbone": backbone, "time_conditioning": initial["time_conditioning"]}


def describe_difference(config: Mapping[str, Any], other: Mapping[str, Any], asked: Sequence[str]) -> str:
    """Where two networks differ in what both configurations say or was asked for by name, in words; nothing if nowhere."""
    ours, theirs = ({**c["backbone"], "time_conditioning": c["time_conditioning"]} for c in (config, other))
    if ours["time_conditioning"] is None:  # the objective's habit: no demand
        del ours["time_conditioning"]
    said = ours.keys() & (theirs.keys() | set(asked)) - set(COMPUTED)
    keys = sorted(key for key in said if ours[key] != theirs.get(key))
    return ", ".join(f"{key} {theirs.get(key)} where {ours[key]} was asked" for key in keys[:4])
