"""A training run: what is built from its configuration, checks before anything is written, the
files of its folder."""

from __future__ import annotations

import glob
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import yaml
from lightning import Trainer

from dnadiff.data.base import SequenceDataModule
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.fields import Config, Json
from dnadiff.progress import duration, table
from dnadiff.store.address import expand_user, is_remote
from dnadiff.store.cache import hash_file
from dnadiff.store.disk import atomic_write, write_json
from dnadiff.store.objects import build
from dnadiff.training.callbacks import AtomicCheckpoints, Checkpoints, fit
from dnadiff.training.clip_search import check_search
from dnadiff.training.loggers import begin, build_loggers, metrics_file
from dnadiff.training.memory import frozen_objects, peak_memory
from dnadiff.training.module import DiffusionModule, TrainingData
from dnadiff.training.resume import (
    check_new,
    clear,
    locked_run,
    names_run_dir,
    resumable,
    resume_step,
    saved_files,
    use_initial_network,
)
from dnadiff.training.trainer import (
    FIXED,
    check_processes,
    check_strategy,
    checked,
    cluster,
    strategies,
    validation_interval,
)
from dnadiff.weights.checkpoint import load_silently
from dnadiff.weights.loaded import build_denoiser, build_objective, resolved
from dnadiff.weights.tensors import on_meta_device

HALF_PRECISIONS = ("bf16-true", "16-true", "transformer-engine", "transformer-engine-float16")
log = logging.getLogger("dnadiff")


def run(
    config: Config, run_dir: Path, overrides: Sequence[str] = ()
) -> tuple[dict[str, Json], Path]:
    """Train and return the contents of `metrics.json` and the run folder.

    Everything that can be refused is refused before the run folder is created or cleared.

    Args:
        config: what the run records, as in its `config.yaml`.
        overrides: the arguments of its command line.
    """
    config = checked(config)
    config["data"] = data_with_absolute_paths(config["data"])
    initial = load_silently(config["init_from"], config["trust"]) if config["init_from"] else None
    if initial is not None:
        config = use_initial_network(config, initial.config, overrides)
    config = resolved(config, trust=None)
    start_from = (
        resumable(config, run_dir, search=not names_run_dir(overrides))
        if config["resume"]
        else None
    )
    if start_from is not None:
        run_dir = start_from.parent.parent
    elif not config["overwrite"]:
        check_new(run_dir)
    before = saved_files(run_dir)
    if config.get("tokenizer") and "tokenizer" not in config["data"]:
        raise ValueError(
            "tokenizer= is for text; these data are DNA, which has one alphabet: leave it out, or "
            "choose data=text"
        )
    check_strategy(config["trainer"].get("strategy", "auto"))
    check_compatible(config)
    data: SequenceDataModule = build(config["data"], trust=None)
    if initial is not None and initial.known_tokenizer is not None:
        data.expect(initial.known_tokenizer)
    data.prepare()
    if initial is not None:
        initial = initial.with_tokenizer(data.tokenizer)
    data.check_training()
    trainer, module = assemble(config, run_dir, data)
    if initial is not None:
        module.denoiser.load_state_dict(initial.denoiser.state_dict())
    groups = trainer.world_size // module.context_parallel
    data.check_step(groups, config["trainer"]["accumulate_grad_batches"])
    step = resume_step(start_from, config, data, groups) if start_from is not None else 0
    sanity_check(module, data, trainer.strategy.root_device)
    trainer.loggers = build_loggers(
        config.get("logger") or {}, run_dir, start_from is not None, trainer.is_global_zero
    )
    with (
        locked_run(run_dir, before) if trainer.is_global_zero else nullcontext()
    ):  # of several processes one writes the folder and prints
        if trainer.is_global_zero:
            if start_from is None:
                clear(run_dir)
            else:
                (run_dir / "metrics.json").unlink(
                    missing_ok=True
                )  # of a shorter run that is continued
            describe_run(config, run_dir, data, module)
            if start_from is not None:
                log.info(f"resuming {start_from}")
            begin(trainer, config, module, step)
        with frozen_objects():
            status = fit(trainer, module, TrainingData(data, module.context_parallel), start_from)
        result = finish(trainer, module, run_dir, status == 0) if trainer.is_global_zero else {}
    if status:  # what follows with && must not run on half a training
        raise SystemExit(status)
    return result, run_dir


def data_with_absolute_paths(data: Mapping[str, Json]) -> Config:
    """The data configuration with absolute paths, so that a run can be evaluated from any
    folder."""
    resolved = {
        key: absolute_paths(value) if key in ("path", "blacklist") else value
        for key, value in data.items()
    }
    if isinstance(split := data.get("split"), dict) and "bed" in split:
        resolved["split"] = {**split, "bed": absolute_paths(split["bed"])}
    return resolved


def absolute_paths(path: Json) -> Json:
    """Absolute file names; anything that is not an existing file or a pattern is left as it is."""
    if isinstance(path, Mapping):
        return {key: absolute_paths(value) for key, value in path.items()}
    if isinstance(path, list):
        return [absolute_paths(value) for value in path]
    if (
        not isinstance(path, str) or not path.strip() or is_remote(path)
    ):  # '' would be the current folder
        return path
    existing = expand_user(path).exists() or glob.has_magic(path)
    return str(expand_user(path).absolute()) if existing else path


def check_compatible(config: Config) -> None:
    """Refuse an incompatible objective, backbone, schedule, window and search of mask rates before
    any data is read."""
    with on_meta_device():  # a stand-in vocabulary, and no memory for weights
        denoiser, process = build_denoiser(
            config,
            CharTokenizer("ab") if "tokenizer" in config["data"] else DNATokenizer(),
            trust=None,
        )
    length, pieces = config["data"].get("length"), config.get("context_parallel", 1)
    denoiser.check_window(length)
    if pieces > 1:
        denoiser.check_pieces(pieces, length)
    check_search(config["callbacks"], build_objective(config, process, trust=None))


def assemble(
    config: Config, run_dir: Path, data: SequenceDataModule
) -> tuple[Trainer, DiffusionModule]:
    """The Trainer, without loggers, and the LightningModule of a configuration."""

    torch.set_float32_matmul_precision(config["matmul_precision"])
    if str(config["trainer"].get("precision")) in HALF_PRECISIONS:
        raise ValueError(
            f"trainer.precision {config['trainer']['precision']} has weights in half precision, "
            "which lose small steps; set bf16-mixed"
        )
    torch.manual_seed(config["seed"])
    denoiser, process = build_denoiser(config, data.tokenizer, trust=None)
    about = data.describe()
    module = DiffusionModule(
        denoiser,
        build_objective(config, process, trust=None),
        build(config["optimizer"], trust=None),
        build(config["lr_scheduler"], trust=None),
        config["weight_decay"],
        config["seed"],
        {
            "config": dict(config),
            "tokenizer": data.tokenizer.config(),
            "split_hash": about["split_hash"],
            "digest": data.digest,
            "labels": list(about.get("labels", ())),
        },
        config.get("context_parallel", 1),
    )
    options = dict(config["trainer"])
    callbacks = [
        build(c, trust=None)
        for c in (*config["callbacks"].values(), *(options.pop("callbacks", None) or ()))
        if c
    ]
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.folder = run_dir / "checkpoints"
    trainer = build(
        {**options, "val_check_interval": validation_interval(options)},
        **strategies(options.get("strategy", "auto")),
        callbacks=callbacks,
        plugins=[AtomicCheckpoints(), *cluster()],
        default_root_dir=str(run_dir),
        **FIXED,
        trust=None,
    )
    check_processes(trainer, module.context_parallel)
    return trainer, module


def sanity_check(module: DiffusionModule, data: SequenceDataModule, device: torch.device) -> None:
    """Compute the likelihood of one short sequence and build the optimizer, so that errors appear
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
    labels, known = len(data.labels), module.denoiser.backbone.num_labels
    if labels and labels != known:
        raise ValueError(
            f"the data have {labels} labels, the network takes {known}; set "
            f"backbone.num_labels={labels}"
        )
    module.configure_optimizers(num_steps=1)
    with torch.no_grad():
        ids, vocab = data.test_windows("valid")[0]["ids"][None, :64].long(), module.denoiser.vocab
        counted = vocab.is_emitted()[ids]
        x0, xt, t, counted = (
            one.to(device)
            for one in (ids, torch.where(counted, vocab.mask_id, ids), torch.ones(1), counted)
        )
        module.denoiser.to(device).eval().nll(x0, xt, t, None, counted)
    module.denoiser.to("cpu").train()


def describe_run(
    config: Config, run_dir: Path, data: SequenceDataModule, module: DiffusionModule
) -> None:
    """Write config.yaml and tokenizer.json into the run folder, and log what is trained on what."""

    with atomic_write(run_dir / "config.yaml", overwrite=True) as file:
        file.write(yaml.safe_dump(config, sort_keys=False, width=120).encode())
    write_json(run_dir / "tokenizer.json", data.tokenizer.config())
    about = data.describe()
    log.info(f"data: {about['name']}, {about['tokens']:,} tokens, split {about['split']}")
    log.info(
        f"network: {type(module.denoiser.backbone).__name__}, {num_parameters(module):,} "
        f"parameters; run folder {run_dir}"
    )
    for note in module.objective.notes():
        log.info(note)


def finish(trainer: Trainer, module: DiffusionModule, run_dir: Path, done: bool) -> dict[str, Json]:
    """Write metrics.json, with the hashes of the checkpoints, if the run is complete, and print the
    final table."""

    log_file = metrics_file(trainer)
    rows, seconds = log_file.rows(), log_file.seconds
    last = {
        key: next((float(r[key]) for r in reversed(rows) if r[key]), None)
        for key in ("train_nll", "valid_nll", "valid_nll_live")
    }
    valid = [float(r["valid_nll"]) for r in rows if r["valid_nll"]]
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set by the callback connector
    best = next(
        (c.best for c in callbacks if isinstance(c, Checkpoints)), math.inf
    )  # of the current number of validation windows
    metrics: dict[str, Json] = {
        "finished": done,
        "step": trainer.global_step,
        "tokens": module.tokens_seen,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(module.tokens_seen / max(seconds, 1e-9)),
        "parameters": num_parameters(module),
        **last,
        "best_valid_nll": float(f"{best:.6g}") if math.isfinite(best) else min(valid, default=None),
        "peak_memory_mb": peak_memory() >> 20,
    }
    shown = [
        ("steps", f"{metrics['step']:,}"),
        ("tokens", f"{metrics['tokens']:,}"),
        ("time", duration(seconds)),
    ]
    shown += [
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
        print(
            f"stopped at step {trainer.global_step} of {trainer.max_steps}; to continue, add "
            f"resume=true hydra.run.dir={run_dir}"
        )
    print(f"files are in {run_dir}")
    return metrics


def num_parameters(module: DiffusionModule) -> int:
    """The number of parameters of the denoiser."""
    return sum(p.numel() for p in module.denoiser.parameters())
