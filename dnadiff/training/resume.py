"""Previous runs: those that a new run resumes, starts from, or would overwrite."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dnadiff.data.base import LoaderState, SequenceDataModule
from dnadiff.diffusion.objective.base import Objective
from dnadiff.fields import Config
from dnadiff.renamed import with_current_names
from dnadiff.store.address import shown_addresses
from dnadiff.store.cache import locked
from dnadiff.store.disk import read_yaml
from dnadiff.store.objects import leaves, locate
from dnadiff.training.trainer import INSTEAD
from dnadiff.weights.checkpoint import read
from dnadiff.weights.tensors import shards_of

# Keys about how a command is started and where it reports; they may differ between a run and its
# resumption.
START = ("resume", "overwrite", "trust", "logger")
# Keys of a backbone about how it is computed, not which network it is.
COMPUTED = ("scan", "activation_checkpointing", "compile")
# Keys about the processes of a run, which together have the same windows in a batch.
PROCESSES = (
    "context_parallel",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
)
# Keys that a resumed run may change: its length, how often it reports, and the hardware it uses.
MAY_CHANGE = (
    *(*PROCESSES, "data.batch_size", "trainer.max_steps", "trainer.max_epochs", "trainer.max_time"),
    *("trainer.val_check_interval", "trainer.log_every_n_steps"),
    *("data.num_workers", "data.start_method", "data.num_proc", "data.max_valid_windows"),
    *("callbacks.checkpoints", "callbacks.progress"),
    *("init_from", "matmul_precision", *(f"backbone.{key}" for key in COMPUTED)),
)
# Keys that had no effect in older versions, and are refused today.
WITHOUT_EFFECT = (*(f"trainer.{key}" for key in INSTEAD), "optimizer.weight_decay")
REMOVED = ("evaluate.json", "metrics.csv", "metrics.json")  # by `clear`
REPLACED = (*REMOVED, "config.yaml", "tokenizer.json", "tensorboard")  # by a new run
# The process of versions that had no other one.
ABSORBING = {"_target_": "dnadiff.diffusion.process.AbsorbingProcess", "_partial_": True}
DATA_STATE = "TrainingData"  # key of the state of that class in a checkpoint
LOCK = ".lock"  # in a run folder while a process trains there
WAIT = 8.0  # seconds for a run folder that another process has locked
log = logging.getLogger("dnadiff")


def holds_run(run_dir: Path) -> bool:
    """Whether the folder holds a finished run, or one that has saved a checkpoint."""
    return (run_dir / "metrics.json").is_file() or any((run_dir / "checkpoints").glob("*.ckpt"))


def check_new(run_dir: Path) -> None:
    """Refuse a folder with files that a new run would remove or replace.

    A run that was killed before it saved a checkpoint can be started again. Its `config.yaml` is
    that of a training run.

    Raises:
        FileExistsError: naming the files.
    """
    if holds_run(run_dir):
        raise FileExistsError(
            f"{run_dir} already holds a run: resume it with resume=true, replace it with "
            "overwrite=true, or set another hydra.run.dir"
        )
    found = [name for name in REPLACED if (run_dir / name).exists()]
    if not found:
        return
    try:
        read_yaml(run_dir / "config.yaml", ("backbone", "objective", "trainer"))
    except (OSError, ValueError):
        raise FileExistsError(
            f"{run_dir} is not the folder of a training run, and has {', '.join(found)}, which a "
            "run replaces; set another hydra.run.dir, or "
            "overwrite=true to replace them"
        ) from None


@contextmanager
def locked_run(run_dir: Path, before: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Lock the run folder, which is created, for one training process, until the block ends or the
    process does.

    The workers of a data loader inherit the lock, and outlive a killed process by some seconds, for
    which this waits.

    Args:
        before: `saved_files` at the time when this process decided what to do with the folder.

    Raises:
        ValueError: if another process trains in this folder, or has done so since.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path, end = run_dir / LOCK, time.monotonic() + WAIT
    while True:
        with locked(path, wait=False) as held:
            if held is None:
                log.warning(
                    f"{run_dir} is on a file system without locks; do not start two processes that "
                    "train there"
                )
            if held is not False:
                try:
                    if saved_files(run_dir) != before:
                        raise ValueError(
                            f"another process has trained in {run_dir} since this command started; "
                            "start it again"
                        )
                    yield
                finally:
                    path.unlink(missing_ok=True)  # while it is locked
                return
        if time.monotonic() > end:
            raise ValueError(
                f"another process is training in {run_dir}; wait until it ends, or set another "
                "hydra.run.dir"
            )
        time.sleep(0.2)


def saved_files(run_dir: Path) -> list[tuple[str, int]]:
    """Names and times of change of the checkpoints and the summary of a run."""
    files = [run_dir / "metrics.json", *sorted((run_dir / "checkpoints").glob("*.ckpt"))]
    return [(path.name, path.stat().st_mtime_ns) for path in files if path.exists()]


def names_run_dir(arguments: Sequence[str]) -> bool:
    """Whether the user named a run folder. Lightning names that of the first process to those that
    it starts, with a name of the job."""
    pairs = zip(arguments, [*arguments[1:], ""])
    return any(
        a.startswith("hydra.run.dir=") and not after.startswith("hydra.job.name=train_ddp_process_")
        for a, after in pairs
    )


def resumable(config: Config, run_dir: Path, search: bool = True) -> Path | None:
    """The checkpoint for `resume=true`: that of the run folder, or else of the newest unfinished
    run of the same configuration next to it.

    Args:
        search: False for a folder that the user named: other runs are not considered.

    Raises:
        ValueError: if the `config.yaml` of an unfinished run is damaged: whether to resume that run
            cannot be known.
    """
    own = run_dir / "checkpoints" / "last.ckpt"
    if own.is_file():
        return own
    if not search:
        log.info(f"resume=true: {run_dir} has no checkpoint; starting a new run there")
        return None
    candidates = sorted(
        run_dir.parent.glob("*/checkpoints/last.ckpt"),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )
    for path in candidates:
        folder = path.parent.parent
        if (folder / "metrics.json").is_file() or not (folder / "config.yaml").is_file():
            continue
        if not differences(
            config,
            read_yaml(folder / "config.yaml", remedy=f"restore it, or move {folder} elsewhere"),
            (*START, *PROCESSES),
        ):
            return path
    log.info("resume=true: found no unfinished run of the same configuration; starting a new one")
    return None


def differences(config: Config, other: Config, ignored: Sequence[str]) -> list[str]:
    """Dotted keys whose values differ, except those in `ignored` and below them, and those without
    effect. Renamed classes count as equal.

    So do addresses with another query: a signature expires, and the digest of the data shows
    whether the file is the same.
    """
    ours, theirs = (
        dict(leaves(shown_addresses(with_current_names({"process": ABSORBING, **c}))))
        for c in (config, other)
    )
    keys = [k for k in sorted(ours.keys() | theirs.keys()) if ours.get(k) != theirs.get(k)]
    return [
        k
        for k in keys
        if not any(k == i or k.startswith(i + ".") for i in (*ignored, *WITHOUT_EFFECT))
    ]


def resume_step(start_from: Path, config: Config, data: SequenceDataModule, groups: int = 1) -> int:
    """The step of the checkpoint to resume in processes of which `groups` have different windows.

    Raises:
        ValueError: if it has another network, data, number of windows in a batch or training
            configuration, or the run is complete.
    """
    content = read(start_from)
    saved = with_current_names(content["hyper_parameters"])
    if changed := differences(config, saved["config"], (*START, *MAY_CHANGE)):
        raise ValueError(
            f"{start_from} belongs to a run with other values of {', '.join(changed[:6])}; a "
            "resumed run keeps them: leave them out, "
            "or start a new run with init_from="
        )
    check_batch(start_from, content, config, groups)
    if saved["tokenizer"] != data.tokenizer.config():
        raise ValueError(
            f"{start_from} was trained with a different alphabet from that of {data.name} now; has "
            "the file changed?"
        )
    if saved.get("split_hash") != data.describe()["split_hash"]:
        raise ValueError(
            f"{start_from} was trained on different records or a different split from those of "
            f"{data.name} now; has a file changed?"
        )
    if "digest" not in saved:
        log.warning(
            f"{start_from} does not record which sequence it was trained on (an older version "
            f"wrote it); assumed to be that of {data.name}"
        )
    elif saved["digest"] != data.digest:
        raise ValueError(
            f"{start_from} was trained on different sequences from those of {data.name} now; "
            "restore the file, or start a new run"
        )
    step, steps = int(content["global_step"]), config["trainer"]["max_steps"]
    if step > steps or (step == steps and is_complete(start_from.parent.parent, step)):
        raise ValueError(
            f"{start_from} is at step {step} already; set trainer.max_steps above that to continue"
        )
    check_epochs(start_from, content, config["trainer"].get("max_epochs"))
    return step


def check_epochs(start_from: Path, content: Config, limit: int | None) -> None:
    """Raise ValueError if a run has more epochs than `trainer.max_epochs`, or is complete with as
    many."""
    position = saved_position(content)
    if position is None or limit is None or limit < 0:
        return
    epoch, batch = position["epoch"], position["batch"]
    is_last = epoch == limit and (
        batch > 0 or is_complete(start_from.parent.parent, int(content["global_step"]))
    )
    if epoch > limit or is_last:
        more = f" and {batch} batches of the next one" if batch else ""
        raise ValueError(
            f"{start_from} has {epoch} complete epochs{more} already; set trainer.max_epochs above "
            f"{epoch} to continue"
        )


def check_batch(start_from: Path, content: Config, config: Config, groups: int) -> None:
    """Raise ValueError if a batch of all processes has another number of windows than in the run
    that is resumed."""
    saved = content["hyper_parameters"]["config"]
    devices = saved["trainer"].get("devices", 1)
    before = content.get(
        "groups", devices if isinstance(devices, int) else groups
    )  # an older version did not write it
    ours, theirs = config["data"]["batch_size"] * groups, saved["data"]["batch_size"] * before
    if ours != theirs:
        remedy = (
            f"set data.batch_size={theirs // groups}"
            if theirs % groups == 0
            else "start another number of processes"
        )
        raise ValueError(
            f"data.batch_size {config['data']['batch_size']} in {groups} processes with different "
            f"windows makes batches of {ours} windows, and "
            f"{start_from} was trained with {theirs}; {remedy}, so that the data keep their order"
        )


def is_complete(run_dir: Path, step: int) -> bool:
    """Whether a run ended at this step; one that was killed at its last step lacks its last
    validation or `metrics.json`."""
    try:
        return bool(
            json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))["step"] == step
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def clear(run_dir: Path) -> None:
    """Remove what a previous run, and evaluations of it, left in this folder and later commands
    would read as the new run's.

    Checkpoints go first: what is left by a kill in between is not a run that can be resumed.
    """
    for path in sorted((run_dir / "checkpoints").glob("*.ckpt"), reverse=True):
        path.unlink(missing_ok=True)
        shutil.rmtree(shards_of(path), ignore_errors=True)
    for name in REMOVED:
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)


def use_initial_network(config: Config, initial: Config, overrides: Sequence[str]) -> Config:
    """The configuration with the network of `init_from`, computed as the command line says (scan,
    activation checkpointing).

    Raises:
        ValueError: if the command line asks for another network, or its objective cannot train a
            time-conditioned network.
    """
    named = [(o, o.lstrip("+").partition("=")[0]) for o in overrides]
    computed = {f"backbone.{key}": key for key in COMPUTED}
    network = ("backbone", "time_conditioning")
    asked = {
        o: key
        for o, key in named
        if key not in computed and (key in network or key.startswith(("backbone.", "backbone/")))
    }
    if asked and (
        different := describe_difference(
            config, initial, [key.removeprefix("backbone.") for key in asked.values()]
        )
    ):
        raise ValueError(
            f"init_from uses the network of the checkpoint ({different}); leave out "
            f"{' '.join(asked)}"
        )
    check_time(config, initial)
    backbone = {key: value for key, value in initial["backbone"].items() if key not in COMPUTED}
    wanted = {computed[key] for _, key in named if key in computed} | (
        initial["backbone"].keys() & set(COMPUTED)
    )
    backbone |= {
        key: config["backbone"][key]
        for key in COMPUTED
        if key in wanted and key in config["backbone"]
    }
    return config | {"backbone": backbone, "time_conditioning": initial["time_conditioning"]}


def check_time(config: Config, initial: Config) -> None:
    """Raise ValueError if the network of `init_from` is conditioned on time and the objective
    cannot train such a network."""
    objective = locate(config["objective"]["_target_"], None)
    own = {
        "time_conditioning": initial["time_conditioning"],
        "backbone.time_conditioning": initial["backbone"].get("time_conditioning"),
    }
    keys = ", ".join(f"{key}=true" for key, on in own.items() if on)
    if (
        keys
        and isinstance(objective, type)
        and issubclass(objective, Objective)
        and not objective.takes_time
    ):
        raise ValueError(
            f"init_from={config['init_from']} has a network that is conditioned on time ({keys}), "
            f"and objective {objective.__name__} does not use one time per sequence; name a run "
            "that was trained with false, "
            "or leave out init_from"
        )


def describe_difference(config: Config, other: Config, asked: Sequence[str]) -> str:
    """How two networks differ, in words, among the keys that both have or that were asked for;
    empty if they do not."""
    ours, theirs = (
        with_current_names({**c["backbone"], "time_conditioning": c["time_conditioning"]})
        for c in (config, other)
    )
    if ours["time_conditioning"] is None:  # the objective's default: any value will do
        del ours["time_conditioning"]
    compared = ours.keys() & (theirs.keys() | set(asked)) - set(COMPUTED)
    keys = sorted(key for key in compared if ours[key] != theirs.get(key))
    return "; ".join(f"{key} {theirs.get(key)}, but {ours[key]} was requested" for key in keys[:4])


def with_current_state(checkpoint: Config) -> Config:
    """The contents of a checkpoint with the state of `TrainingData`, which older versions saved
    under the name of the data's class."""
    found = next(
        (
            value
            for value in checkpoint.values()
            if isinstance(value, dict) and "train_loader" in value
        ),
        None,
    )
    return checkpoint if found is None else {DATA_STATE: found, **checkpoint}


def saved_position(checkpoint: Config) -> LoaderState | None:
    """The `epoch` and the `batch` in it with which a resumed run begins; None if the checkpoint has
    no state of `TrainingData`."""
    state: dict[str, LoaderState] = with_current_state(checkpoint).get(DATA_STATE, {})
    return state.get("train_loader")
