"""`python -m dnadiff.train`: compose, build, fit."""

from __future__ import annotations

import glob
import logging
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import duration, table
from dnadiff.training.resume import adopt, clear, holds_run, reached, resumable, start_weights

PRECISIONS = ("highest", "high", "medium")
NARROW = ("bf16-true", "16-true", "transformer-engine", "transformer-engine-float16")
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train and return the contents of `metrics.json`.

    Whatever can be refused is refused before the run folder is made or cleared.
    """
    from dnadiff import checkpoint
    from dnadiff.data.files import write_json

    config["seed"] = commands.whole("seed", config["seed"], 0)
    config["data"] = {key: anchored(value) if key in ("path", "blacklist") else value for key, value in config["data"].items()}
    if isinstance(split := config["data"].get("split"), dict) and "bed" in split:
        config["data"]["split"] = {**split, "bed": anchored(split["bed"])}
    initial = start_weights(config["init_from"], config["trust"]) if config["init_from"] else None
    if initial is not None:
        config = adopt(config, initial.config, overrides)
    config = checkpoint.settled(config, trust=None)
    start_from = resumable(config, run_dir) if config["resume"] else None
    if start_from is not None:
        run_dir = start_from.parent.parent
    elif holds_run(run_dir) and not config["overwrite"]:
        raise FileExistsError(
            f"{run_dir} already holds a run: go on with it by resume=true, replace it by overwrite=true, or set another hydra.run.dir"
        )
    if config.get("tokenizer") and "tokenizer" not in config["data"]:
        raise ValueError("tokenizer= is for text; these data are DNA, which has one alphabet: leave it out, or choose data=text")
    fits(config)
    data = build(config["data"], trust=None)
    if initial is not None and initial.tokenizer is not None:
        data.expect(initial.tokenizer)
    data.prepare()
    if initial is not None and initial.tokenizer is None:  # published weights of a model of text: the tokenizer is the data's
        initial = initial.with_vocab(data.tokenizer.vocab)
    data.check_training()
    trainer, module = assemble(config, run_dir, data)
    if initial is not None:
        module.denoiser.load_state_dict(initial.denoiser.state_dict())
    step = reached(start_from, config, data) if start_from is not None else 0
    rehearse(module, data)

    parameters = sum(p.numel() for p in module.denoiser.parameters())
    if trainer.is_global_zero:  # of several processes one writes the run folder and speaks
        run_dir.mkdir(parents=True, exist_ok=True)
        if start_from is None:
            clear(run_dir)
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, width=120), encoding="utf-8")
        write_json(run_dir / "tokenizer.json", data.tokenizer.config())
        about = data.describe()
        log.info(f"data: {about['name']}, {about['tokens']:,} tokens, split {about['split']}")
        log.info(f"network: {type(module.denoiser.backbone).__name__}, {parameters:,} parameters; run folder {run_dir}")
        if start_from is not None:
            log.info(f"resuming {start_from}")
    fit(trainer, module, data, start_from, step)
    return finish(trainer, module, config, run_dir, parameters) if trainer.is_global_zero else {}


def anchored(path: Any) -> Any:
    """Absolute file names, so that a run can be evaluated from any folder; what is no existing file is left as it is."""
    if isinstance(path, Mapping):
        return {key: anchored(value) for key, value in path.items()}
    if isinstance(path, list):
        return [anchored(value) for value in path]
    known = (
        isinstance(path, str) and path.strip() and (Path(path).expanduser().exists() or glob.has_magic(path))
    )  # '' would be the folder one is in
    return str(Path(path).expanduser().absolute()) if known else path


def fits(config: Mapping[str, Any]) -> None:
    """Refuse an objective, a backbone and a schedule that exclude each other, before any data is read.

    All are built once with a stand-in alphabet and without memory for weights, so that what their constructors refuse is refused here.
    """
    import torch

    from dnadiff.checkpoint import build_denoiser
    from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer

    with torch.device("meta"):
        build_denoiser(config, CharTokenizer("ab") if "tokenizer" in config["data"] else DNATokenizer(), trust=None)


def assemble(config: Mapping[str, Any], run_dir: Path, data: Any) -> tuple[Any, Any]:
    """The Trainer and the LightningModule of a configuration."""
    import torch

    from dnadiff.checkpoint import build_denoiser, build_objective
    from dnadiff.training.callbacks import AtomicCheckpoints
    from dnadiff.training.module import DiffusionModule

    if config["matmul_precision"] not in PRECISIONS:
        raise ValueError(f"matmul_precision {config['matmul_precision']!r} is not known; choose one of {', '.join(PRECISIONS)}")
    torch.set_float32_matmul_precision(config["matmul_precision"])
    if str(config["trainer"].get("precision")) in NARROW:
        raise ValueError(
            f"trainer.precision {config['trainer']['precision']} has weights in half precision, which lose small steps; set bf16-mixed"
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
    )
    callbacks = [build(c, trust=None) for c in config["callbacks"].values() if c]
    for callback in callbacks:
        if hasattr(callback, "folder"):
            callback.folder = run_dir / "checkpoints"
    logger = build(config["logger"], folder=run_dir, trust=None)
    trainer = build(
        {**config["trainer"], "val_check_interval": validation_interval(config["trainer"])},
        callbacks=callbacks,
        logger=logger,
        plugins=[AtomicCheckpoints()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        default_root_dir=str(run_dir),
        trust=None,
    )
    return trainer, module


def rehearse(module: Any, data: Any) -> None:
    """One short forward pass and one optimizer, so that what cannot work fails before anything is written.

    Raises:
        ValueError: naming what does not fit.
    """
    import torch

    longest = module.denoiser.backbone.max_length
    if longest is not None and data.length > longest:
        raise ValueError(f"data.length {data.length} is more than the network takes; set data.length to at most {longest}")
    labels, known = len(getattr(data, "labels", ())), module.denoiser.backbone.num_labels
    if labels and labels != known:
        raise ValueError(f"the data carry {labels} labels, the network takes {known}; set backbone.num_labels={labels}")
    module.configure_optimizers(num_steps=1)
    with torch.no_grad():
        ids = data.test_windows("valid")[0]["ids"][None, :64].long()
        module.denoiser.eval().backbone(ids)
    module.denoiser.train()


def validation_interval(trainer: Mapping[str, Any]) -> int:
    """Batches between validations: near `val_check_interval` steps, and such that the last one falls within one interval's rounding
    of the end of the run: 7 steps with 2 validations have them after 3 and 6."""
    for key in ("max_steps", "val_check_interval", "accumulate_grad_batches"):
        commands.whole(f"trainer.{key}", trainer[key], 1)
    steps = trainer["max_steps"]
    times = max(1, round(steps / trainer["val_check_interval"]))
    return max(1, steps // times) * trainer["accumulate_grad_batches"]


def fit(trainer: Any, module: Any, data: Any, start_from: Path | None, step: int) -> None:
    """Run the Trainer, resuming at `step` where a checkpoint is given."""
    if trainer.is_global_zero and hasattr(trainer.logger, "begin"):
        trainer.logger.begin(module, step)
    trainer.fit(module, data, ckpt_path=start_from, weights_only=True if start_from else None)


def finish(trainer: Any, module: Any, config: Mapping[str, Any], run_dir: Path, parameters: int) -> dict[str, Any]:
    """Write metrics.json if the run is complete, and print the closing table."""
    from dnadiff.data.files import write_json

    rows = trainer.logger.rows()
    seconds = trainer.logger.seconds
    last = {key: next((float(r[key]) for r in reversed(rows) if r[key]), None) for key in ("train_nll", "valid_nll", "valid_nll_live")}
    valid = [float(r["valid_nll"]) for r in rows if r["valid_nll"]]
    done = trainer.global_step >= trainer.max_steps
    metrics = {
        "finished": done,
        "step": trainer.global_step,
        "tokens": module.tokens_seen,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(module.tokens_seen / max(seconds, 1e-9)),
        "parameters": parameters,
        **last,
        "best_valid_nll": min(valid, default=None),
        "peak_memory_mb": peak_memory_mb(),
    }
    if done:
        write_json(run_dir / "metrics.json", metrics)
    shown = [("steps", f"{metrics['step']:,}"), ("tokens", f"{metrics['tokens']:,}"), ("time", duration(seconds))]
    shown += [("tokens/s", f"{metrics['tokens_per_second']:,}"), ("parameters", f"{parameters:,}")]
    if valid:
        shown += [("validation, nats per token", f"{metrics['valid_nll']:.4f}"), ("best of them", f"{min(valid):.4f}")]
    print(table(shown))
    if not done:
        print(
            f"stopped at step {trainer.global_step} of {trainer.max_steps}; go on with the same command and resume=true hydra.run.dir={run_dir}"
        )
    print(f"files are in {run_dir}")
    if not done:
        raise SystemExit(130)  # as for any interrupted command: what follows with && must not run on half a training
    return metrics


def peak_memory_mb() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    """The command line."""
    commands.run("train", run)


if __name__ == "__main__":
    main()
