"""A training run: what is built from its configuration, checks before anything is written, the
files of its folder, and the earlier runs that it resumes, starts from, or would overwrite."""

import glob
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import yaml
from lightning import Trainer

from dnadiff.data.base import SequenceDataModule, run_config
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.data.windows import Conditions
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.fields import Config, JsonDict, Natural, check_value
from dnadiff.networks.adapter import build_adapter
from dnadiff.progress import Interrupted, duration, log, table
from dnadiff.renamed import with_current_names
from dnadiff.store.address import expand_user, is_remote, shown_addresses, with_texts
from dnadiff.store.disk import hash_file, locked, read_json, read_yaml, write_bytes, write_json
from dnadiff.store.objects import PACKAGE, build, check, leaves, locate
from dnadiff.training.callbacks import SAMPLES, Checkpoints, SampleLog, Settings, fit
from dnadiff.training.clip_search import check_search
from dnadiff.training.loggers import MetricsFile, build_loggers
from dnadiff.training.module import DiffusionModule, TrainingData, saved_position
from dnadiff.training.optim import frozen_objects, peak_memory
from dnadiff.training.trainer import (
    INSTEAD,
    allow_unused,
    build_trainer,
    check_processes,
    check_sharded,
    trainer_settings,
)
from dnadiff.weights.checkpoint import load_silently, read
from dnadiff.weights.loaded import (
    ABSORBING,
    MODEL,
    Loaded,
    build_denoiser,
    build_objective,
    names_file,
    resolved,
)
from dnadiff.weights.tensors import on_meta_device, shards_of

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
    "data.lengths",  # of the same data
    *("callbacks.checkpoints", "callbacks.progress"),
    *("init_from", "matmul_precision", *(f"backbone.{key}" for key in COMPUTED)),
)
# Keys that had no effect in older versions, and are refused today.
WITHOUT_EFFECT = (*(f"trainer.{key}" for key in INSTEAD), "optimizer.weight_decay")
# The layer that reads columns of an alignment, unless another one is chosen.
POSTERIOR = {"_target_": "dnadiff.networks.columns.PosteriorColumns"}
REMOVED = ("evaluate.json", "metrics.csv", "metrics.json", SAMPLES)  # by `clear`
REPLACED = (*REMOVED, "config.yaml", "tokenizer.json", "tensorboard")  # by a new run
LOCK = ".lock"  # in a run folder while a process trains there


def run(
    config: Config, run_dir: Path, arguments: Sequence[str], sampler: Settings | None = None
) -> tuple[JsonDict, Path]:
    """Train and return the contents of `metrics.json` and the run folder.

    Everything that can be refused is refused before the run folder is created or cleared.

    Args:
        config: the keys of the command, which the run folder and checkpoints record.
        run_dir: the run folder.
        arguments: of the command line.
        sampler: see `SampleLog`; None: without samples.
    """
    data_config = config["data"]
    init_from = config["init_from"]
    if "weight_decay" in config["optimizer"]:
        raise ValueError(
            "optimizer.weight_decay would have no effect, because only matrices are decayed; "
            "set weight_decay"
        )
    # Absolute paths, so that a run can be evaluated from any folder.
    places = {
        key: with_texts(data_config[key], absolute_path)
        for key in ("path", "blacklist", "alignment")
        if key in data_config
    }
    if isinstance(split := data_config.get("split"), dict) and "bed" in split:
        places["split"] = {**split, "bed": with_texts(split["bed"], absolute_path)}
    config = config | {
        "trainer": trainer_settings(config["trainer"]),
        "data": data_config | places,
    }
    initial = None
    if config.get("adapter") and not init_from:
        raise ValueError(
            "adapter trains updates of a trained network, and there is none; set init_from=MODEL, "
            "or adapter=none"
        )
    if init_from:
        initial = load_silently(init_from, config["trust"])
        config = use_initial_network(config, initial.config, arguments)
    known = None if initial is None else initial.config.get("columns")
    if data_config.get("alignment"):
        config["columns"] = config.get("columns") or known or POSTERIOR
    elif config.get("columns"):
        raise ValueError(
            "columns= is for data with an alignment; set data.alignment, or leave it out"
        )
    elif known:
        log.info(f"without data.alignment the layer of {init_from} for columns is left out")
    config = resolved(config, trust=None)
    start_from = None
    if config["resume"]:
        start_from = resumable(config, run_dir, search=not names_run_dir(arguments))
    if start_from is not None:
        run_dir = start_from.parent.parent
    elif not config["overwrite"]:
        check_new(run_dir)
    before = saved_files(run_dir)
    if config.get("tokenizer") and "tokenizer" not in data_config:
        raise ValueError(
            "tokenizer= is for text; these data are DNA, which has one alphabet: leave it out, "
            "or choose data=text"
        )
    check_compatible(config)
    data: SequenceDataModule = build(config["data"], trust=None)
    if initial is not None and initial.known_tokenizer is not None:
        data.expect(initial.known_tokenizer)
    data.prepare()
    if initial is not None:
        initial = initial.with_tokenizer(data.tokenizer)
    data.check_training()
    config["backbone"] = with_conditions(config["backbone"], data.conditions, initial)
    trainer, module = assemble(config, run_dir, data, sampler)
    if initial is not None:
        start_as(module.denoiser, initial, init_from, config.get("adapter"))
    # after weights with the counts of other data are loaded
    module.objective.process.observe(lambda: torch.from_numpy(data.token_counts()))
    groups = trainer.world_size // module.context_parallel
    writes = trainer.is_global_zero
    data.check_step(groups, trainer.accumulate_grad_batches)
    step = 0 if start_from is None else resume_step(start_from, config, data, trainer, groups)
    if step is None:
        print(f"{run_dir} is complete already; to continue it, set trainer.max_steps higher")
        return read_json(run_dir / "metrics.json"), run_dir
    check_sharded(trainer, module.denoiser)
    allow_unused(trainer, module.denoiser)
    sanity_check(module, data, trainer.strategy.root_device)
    chosen = config.get("logger") or {}
    trainer.loggers = build_loggers(chosen, run_dir, start_from is not None, writes)
    # Of several processes one writes the folder and prints.
    with locked_run(run_dir, before) if writes else nullcontext():
        if writes:
            if start_from is None:
                clear(run_dir)
            else:
                (run_dir / "metrics.json").unlink(missing_ok=True)  # of a shorter run
            text = yaml.safe_dump(config, sort_keys=False, width=120)
            write_bytes(run_dir / "config.yaml", text.encode())
            write_json(run_dir / "tokenizer.json", data.tokenizer.config())
            about = data.describe()
            log.info(f"data: {about['name']}, {about['tokens']:,} tokens, split {about['split']}")
            log.info(
                f"network: {type(module.denoiser.backbone).__name__}, "
                f"{num_parameters(module):,} parameters; run folder {run_dir}"
            )
            for note in module.objective.notes():
                log.info(note)
            if start_from is not None:
                log.info(f"resuming {start_from}")
            metrics_file(trainer).begin(module, step)
            # MLflow refuses to change a parameter, such as trainer.max_steps.
            for logger in trainer.loggers[1:] if not step else ():
                logger.log_hyperparams(config)
        with frozen_objects():
            status = fit(trainer, module, TrainingData(data, module.context_parallel), start_from)
        result = finish(trainer, module, run_dir, status == 0) if writes else {}
    if status:  # what follows with && must not run on half a training
        raise Interrupted(status, run_dir) if writes else SystemExit(status)
    return result, run_dir


def check_compatible(config: Config) -> None:
    """Refuse an incompatible objective, backbone, schedule, window and search of mask rates
    before any data is read."""
    stand_in = CharTokenizer("ab") if "tokenizer" in config["data"] else DNATokenizer()
    with on_meta_device():  # no memory for weights; its tokens are not those of the stand-in
        denoiser, process = build_denoiser({**config, "data": None}, stand_in, trust=None)
    length = config["data"].get("length")
    denoiser.check_window(length)
    if config["context_parallel"] > 1:
        denoiser.check_pieces(config["context_parallel"], length)
    objective = build_objective(config, process, trust=None)
    if objective.distills and not config["init_from"]:
        raise ValueError(
            "this objective distills a trained model, and there is none: use python -m "
            "dnadiff.distill checkpoint=RUN"
        )
    check_search(config["callbacks"], objective)


def assemble(
    config: Config, run_dir: Path, data: SequenceDataModule, sampler: Settings | None
) -> tuple[Trainer, DiffusionModule]:
    """The Trainer, without loggers, and the LightningModule of a run."""
    torch.set_float32_matmul_precision(config["matmul_precision"])
    torch.manual_seed(config["seed"])
    about = data.describe()
    config = {**config, "data": {**config["data"], **data.measured()}}
    # an adapter is attached to trained weights
    denoiser, process = build_denoiser({**config, "adapter": None}, data.tokenizer, trust=None)
    module = DiffusionModule(
        denoiser,
        build_objective(config, process, trust=None),
        build(config["optimizer"], trust=None),
        build(config["lr_scheduler"], trust=None),
        config["weight_decay"],
        config["seed"],
        {
            "config": config,
            "tokenizer": data.tokenizer.config(),
            "split_hash": about["split_hash"],
            "digest": data.digest,
            **data.conditions.describe(),
            **({"alignment": about["alignment"]} if "alignment" in about else {}),
        },
        config["context_parallel"],
    )
    chosen = [*config["callbacks"].values(), *(config["trainer"].get("callbacks") or ())]
    data.check_corruption(getattr(module.objective, "protocol", "count"))
    callbacks = [build(each, trust=None) for each in chosen if each]
    callbacks[:0] = [SampleLog(sampler)] if sampler else []
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.folder = run_dir / "checkpoints"
    trainer = build_trainer(config["trainer"], callbacks, run_dir)
    check_processes(trainer, config["context_parallel"])
    return trainer, module


def of_teacher(config: Config, trust: Sequence[str] = ()) -> Config:
    """The configuration of a training run that distills the model `checkpoint` of a configuration:
    its network, noise and objective, and its data unless others are given.

    Raises:
        ValueError: if the model has another process than masks, or does not record its data, or
            they are to be downloaded.
    """
    name = config["checkpoint"]
    loaded = load_silently(name, trust)
    remedy = "name a model of objective=mdlm, d3pm, sedd or mlm"
    require("distillation", loaded.denoiser, AbsorbingProcess, remedy)
    teacher = with_current_names(loaded.config)
    if "data" in config:
        data = config["data"]
    else:
        own = teacher.get("data")
        data = run_config(own) | {key: own[key] for key in ("tokenizer",) if key in own}
        check(data, (PACKAGE, *trust))
    objective = config["objective"] | {"objective": teacher["objective"] | {"_partial_": True}}
    of_model = {key: teacher[key] for key in MODEL} | {"process": teacher.get("process", ABSORBING)}
    started = {"data": data, "objective": objective, "init_from": name, "context_parallel": 1}
    return {key: value for key, value in config.items() if key != "checkpoint"} | of_model | started


def absolute_path(path: str) -> str:
    """An absolute file name; anything that is not an existing file or a pattern is left as it
    is."""
    if not path.strip() or is_remote(path):  # '' would be the current folder
        return path
    existing = expand_user(path).exists() or glob.has_magic(path)
    return str(expand_user(path).absolute()) if existing else path


def sanity_check(module: DiffusionModule, data: SequenceDataModule, device: torch.device) -> None:
    """Compute the loss of one short sequence and build the optimizer, so that errors appear
    before anything is written.

    The network computes on the device of the training, because a scan that was chosen by name may
    run only there, and returns to the CPU.
    """
    longest = module.denoiser.backbone.max_length
    if longest is not None and data.length > longest:
        raise ValueError(
            f"data.length {data.length} is more than the network takes; set data.length to at most "
            f"{longest}"
        )
    module.configure_optimizers(num_steps=1)
    with torch.no_grad():
        ids = data.test_windows("valid")[0]["ids"][None, :64].long()
        vocab = module.denoiser.vocab
        x0 = ids.to(device)
        weight = vocab.is_emitted()[ids].float().to(device)
        denoiser = module.denoiser.to(device).eval()
        module.objective(denoiser, x0, weight, Draws.for_batch(0, 1, device=device))
    module.denoiser.to("cpu").train()


def metrics_file(trainer: Trainer) -> MetricsFile:
    """The logger that every training run has."""
    first = trainer.loggers[0]
    assert isinstance(first, MetricsFile)
    return first


def finish(trainer: Trainer, module: DiffusionModule, run_dir: Path, done: bool) -> JsonDict:
    """Write metrics.json, with the hashes of the checkpoints, if the run is complete, and print the
    final table."""
    rows = metrics_file(trainer).rows()
    seconds = metrics_file(trainer).seconds
    measured = {
        key: [float(row[key]) for row in rows if row[key]]
        for key in ("train_nll", "valid_nll", "valid_nll_live")
    }
    valid = measured["valid_nll"]
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set by the callback connector
    # Of the current number of validation windows.
    best = next((c.best for c in callbacks if isinstance(c, Checkpoints)), math.inf)
    metrics: JsonDict = {
        "finished": done,
        "step": trainer.global_step,
        "tokens": module.tokens_seen,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(module.tokens_seen / max(seconds, 1e-9)),
        "parameters": num_parameters(module),
        **{key: values[-1] if values else None for key, values in measured.items()},
        "best_valid_nll": float(f"{best:.6g}") if math.isfinite(best) else min(valid, default=None),
        "peak_memory_mb": peak_memory() >> 20,
    }
    shown = [
        ("steps", f"{metrics['step']:,}"),
        ("tokens", f"{metrics['tokens']:,}"),
        ("time", duration(seconds)),
        ("tokens/s", f"{metrics['tokens_per_second']:,}"),
        ("parameters", f"{metrics['parameters']:,}"),
    ]
    if valid:
        shown += [
            ("validation, nats per token", f"{valid[-1]:.4f}"),
            ("best validation", f"{metrics['best_valid_nll']:.4f}"),
        ]
    if done:
        folder = run_dir / "checkpoints"
        metrics["sha256"] = {
            str(path.relative_to(folder)): hash_file(path)
            for path in sorted(folder.rglob("*.ckpt"))
        }
        write_json(run_dir / "metrics.json", metrics)
    print(table(shown))
    if not done:
        print(f"stopped at step {trainer.global_step} of {trainer.max_steps}")
    print(f"files are in {run_dir}")
    return metrics


def num_parameters(module: DiffusionModule) -> int:
    """The number of parameters of the denoiser."""
    return sum(p.numel() for p in module.denoiser.parameters())


def check_new(run_dir: Path) -> None:
    """Refuse a folder with files that a new run would remove or replace.

    A run that was killed before it saved a checkpoint can be started again. Its `config.yaml` is
    that of a training run.

    Raises:
        FileExistsError: naming the files.
    """
    if saved_files(run_dir):
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
            "run replaces; set another hydra.run.dir, or overwrite=true to replace them"
        ) from None


@contextmanager
def locked_run(
    run_dir: Path, before: Sequence[tuple[str, int]], wait: float = 8.0
) -> Iterator[None]:
    """Lock the run folder, which is created, for one training process, until the block ends or the
    process does.

    Args:
        before: `saved_files` at the time when this process decided what to do with the folder.
        wait: seconds for a folder that another process has locked. The workers of a data loader
            inherit the lock, and outlive a killed process by some seconds.

    Raises:
        ValueError: if another process trains in this folder, or has done so since.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir / LOCK, wait=wait) as held:
        if held is False:
            raise ValueError(
                f"another process is training in {run_dir}; wait until it ends, or set another "
                "hydra.run.dir"
            )
        if held is None:
            log.warning(
                f"{run_dir} is on a file system without locks; do not start two processes that "
                "train there"
            )
        try:
            if saved_files(run_dir) != before:
                raise ValueError(
                    f"another process has trained in {run_dir} since this command started; "
                    "start it again"
                )
            yield
        finally:
            (run_dir / LOCK).unlink(missing_ok=True)  # while it is locked


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
            (*START, *PROCESSES, "backbone.num_labels"),
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


def resume_step(
    start_from: Path, config: Config, data: SequenceDataModule, trainer: Trainer, groups: int
) -> int | None:
    """The step of the checkpoint to resume in processes of which `groups` have different windows;
    None if the run is complete.

    Raises:
        ValueError: if it has another network, data, number of windows in a batch or training
            configuration, or is beyond a limit that was lowered.
    """
    content = read(start_from)
    run_dir = start_from.parent.parent
    with names_file(start_from):  # of values that no training writes
        saved = with_current_names(content["hyper_parameters"])
        changed = differences(config, saved["config"], (*START, *MAY_CHANGE))
        devices = saved["config"]["trainer"].get("devices", 1)
        # An older version did not write the groups.
        before = content.get("groups", devices if isinstance(devices, int) else groups)
        theirs = int(saved["config"]["data"]["batch_size"]) * int(before)
        step = check_value("global_step", content["global_step"], Natural)
        position = saved_position(content)
        epoch, batch = (int(position[k]) for k in ("epoch", "batch")) if position else (0, 0)
    if changed:
        raise ValueError(
            f"{start_from} belongs to a run with other values of {', '.join(changed[:6])}; a "
            "resumed run keeps them: leave them out, or start a new run with init_from="
        )
    ours = data.batch_size * groups
    if ours != theirs:
        remedy = (
            f"set data.batch_size={theirs // groups}"
            if theirs % groups == 0
            else "start another number of processes"
        )
        raise ValueError(
            f"data.batch_size {data.batch_size} in {groups} processes with different "
            f"windows makes batches of {ours} windows, and "
            f"{start_from} was trained with {theirs}; {remedy}, so that the data keep their order"
        )
    if saved["tokenizer"] != data.tokenizer.config():
        raise ValueError(
            f"{start_from} was trained with a different alphabet from that of {data.name} now; "
            "restore its file, or start a new run"
        )
    about = data.describe()
    if any(saved.get(key) != about.get(key) for key in ("split_hash", "alignment")):
        raise ValueError(
            f"{start_from} was trained on different records, a different split or another "
            f"alignment from those of {data.name} now; restore its files, or start a new run"
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
    steps = trainer.max_steps
    limit = trainer.max_epochs
    try:  # a run that was killed at its last step lacks its last validation or `metrics.json`
        is_complete = read_json(run_dir / "metrics.json")["step"] == step
    except (OSError, ValueError, LookupError):
        is_complete = False
    if is_complete and step == steps:
        return None
    if step > steps:
        raise ValueError(
            f"{start_from} is at step {step} already; set trainer.max_steps above that to continue"
        )
    if position is None or limit is None or limit < 0:
        return step
    if is_complete and (epoch, batch) == (limit, 0):
        return None
    if (epoch, batch) > (limit, 0):
        more = f" and {batch} batches of the next one" if batch else ""
        raise ValueError(
            f"{start_from} has {epoch} complete epochs{more} already; set trainer.max_epochs above "
            f"{epoch} to continue"
        )
    return step


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


def with_conditions(backbone: Config, given: Conditions, initial: Loaded | None) -> Config:
    """The configuration of a network that takes the conditions of the data.

    Raises:
        ValueError: if the initial model, or the network that was asked for, takes others.
    """
    columns = given.num_columns
    own = backbone.get("num_labels")
    if not columns:
        return backbone
    if initial is not None and own and initial.conditions.choices != given.choices:
        raise ValueError(
            f"init_from={initial.path} takes the labels {', '.join(initial.conditions.choices)}, "
            f"and the data have {', '.join(given.choices)}; give data with the same ones, or start "
            "from a model without labels"
        )
    network = locate(backbone["_target_"], None)
    if own is None and not network.takes_labels:
        raise ValueError(
            f"{network.__name__} takes no labels and values, and the data have "
            f"{', '.join(given.choices)}; set backbone=caduceus, caduceus_ps or mamba"
        )
    if own not in (None, 0, columns):
        raise ValueError(
            f"backbone.num_labels {own} does not fit the data, expected {columns} (one column for "
            "each label, two for each value); leave it out"
        )
    return backbone | {"num_labels": columns}


def start_as(denoiser: BaseDenoiser, initial: Loaded, name: str, adapter: Config | None) -> None:
    """Give a network the weights of `initial`, called `name`, and attach an adapter.

    What only one of both has beside the network stays. Parameters that `initial` lacks are trained
    with the adapter.

    Raises:
        ValueError: if trained tensors do not fit: layers of vectors depend on the objective.
    """
    own = denoiser.state_dict()
    trained = initial.denoiser.state_dict()
    for key, value in trained.items():
        if key in own and value.shape != own[key].shape:
            raise ValueError(
                f"init_from={name} has {key} of shape {tuple(value.shape)}, and this objective "
                f"needs {tuple(own[key].shape)}; set objective= and its options, such as "
                "objective.width, as in that run, or leave out init_from"
            )
    missing = denoiser.load_state_dict(trained, strict=False).missing_keys
    if adapter:
        build_adapter(adapter, None).attach(denoiser.backbone)
    for key, parameter in denoiser.named_parameters():
        if key in missing:
            parameter.requires_grad_(True)
            if key.endswith("label_map.weight") and initial.denoiser.backbone.takes_sigma:
                torch.nn.init.zeros_(parameter)  # else it would change what the time does


def use_initial_network(config: Config, initial: Config, overrides: Sequence[str]) -> Config:
    """The configuration with the network of `init_from`, computed as the command line says (scan,
    activation checkpointing).

    Raises:
        ValueError: if the command line asks for another network, or its objective cannot train a
            time-conditioned network.
    """
    named = {each.lstrip("+").partition("=")[0]: each for each in overrides}
    asked = {
        key.removeprefix("backbone.")
        for key in named
        if key in ("backbone", "time_conditioning") or key.startswith(("backbone.", "backbone/"))
    }.difference(COMPUTED)
    ours, theirs = (
        with_current_names({**each["backbone"], "time_conditioning": each["time_conditioning"]})
        for each in (config, initial)
    )
    if ours["time_conditioning"] is None:  # the objective's default: any value will do
        del ours["time_conditioning"]
    compared = ours.keys() & (theirs.keys() | asked) - set(COMPUTED)
    different = [
        f"{key} {theirs.get(key)}, but {ours[key]} was requested"
        for key in sorted(compared)
        if ours[key] != theirs.get(key)
    ]
    if asked and different:
        asking = (each for key, each in named.items() if key.removeprefix("backbone.") in asked)
        raise ValueError(
            f"init_from uses the network of the checkpoint ({'; '.join(different[:4])}); leave out "
            f"{' '.join(asking)}"
        )
    objective = locate(config["objective"]["_target_"], None)
    conditioned = {
        "time_conditioning": initial["time_conditioning"],
        "backbone.time_conditioning": initial["backbone"].get("time_conditioning"),
    }
    keys = ", ".join(f"{key}=true" for key, on in conditioned.items() if on)
    if keys and not getattr(objective, "takes_time", True):
        raise ValueError(
            f"init_from={config['init_from']} has a network that is conditioned on time ({keys}), "
            f"and objective {objective.__name__} does not use one time per sequence; name a run "
            "that was trained with false, or leave out init_from"
        )
    own = config["backbone"]
    given = initial["backbone"]
    backbone = {key: value for key, value in given.items() if key not in COMPUTED} | {
        key: own[key]
        for key in COMPUTED
        if key in own and (f"backbone.{key}" in named or key in given)
    }
    return config | {"backbone": backbone, "time_conditioning": initial["time_conditioning"]}
