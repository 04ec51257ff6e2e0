"""`python -m dnadiff.finetune`: a trained network as a classifier, beside the same network from scratch and word counts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import Progress, duration, table

log = logging.getLogger("dnadiff")

FINE_TUNED, SCRATCH = "fine-tuned", "scratch"


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Run the study and return the contents of `finetune.json`."""
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output
    from dnadiff.downstream.run import study

    output = Path(config["output"]) if config["output"] else run_dir / "finetune.json"
    check_output(output, config["overwrite"])
    for key, least in (("seed", 0), ("seeds", 1), ("epochs", 1), ("batch_size", 1), ("kmer", 1)):
        config[key] = commands.whole(key, config[key], least)
    if config["kmer"] > 8:
        raise ValueError(f"kmer {config['kmer']} is too long for a table of counts; set kmer to 8 or less")
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is None:
        raise ValueError(
            f"{loaded.path} was trained on text, and the task {config['task'].get('name') or 'csv'} is DNA; name a run trained on DNA"
        )
    data = build(config["task"], trust=None).load(loaded.tokenizer)
    models = contenders(config, loaded)
    baseline = f"{config['kmer']}-mer logistic regression"
    counts = {part: sum(of_class.values()) for part, of_class in data.counts().items()}
    log.info(f"task: {data.name}, {' against '.join(data.classes)}; {', '.join(f'{part} {n:,}' for part, n in counts.items())} sequences")
    if left_out := data.notes.get("left_out_for_a_shared_word"):
        words = ", ".join(f"{n} {name}" for name, n in left_out["test"].items())
        log.info(f"left out of test for a {data.notes['shared_word']}-mer that the training part holds on either strand: {words}")
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")

    seeds = [config["seed"] + i for i in range(config["seeds"])]
    steps = sum(m.num_steps(data) * (len(seeds) if m.random else 1) for m in models.values())
    progress = Progress(steps, "finetune")
    result = study(data, models, seeds, [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline)], progress.update)
    progress.close()

    result = {"checkpoint": str(loaded.path), "step": loaded.step, "seeds": seeds, **result}
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "finetune.yaml").write_text(yaml.safe_dump(config, sort_keys=False, width=120), encoding="utf-8")
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(output, result)
    show(result)
    print(f"files are in {run_dir}" if output.parent == run_dir else f"result in {output}")
    return result


def contenders(config: dict[str, Any], loaded: Any) -> dict[str, Any]:
    """The models of the study under their names: word counts, the network as trained, and the same network untrained."""
    import torch

    from dnadiff.checkpoint import build_denoiser
    from dnadiff.downstream.baselines import KmerLogistic
    from dnadiff.downstream.classifier import Network
    from dnadiff.draws import hash64

    def untrained(seed: int) -> Any:
        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        return build_denoiser(loaded.config, loaded.tokenizer, ("dnadiff", *config["trust"]))[0].backbone

    alike = {
        "epochs": config["epochs"],
        "batch_size": config["batch_size"],
        "weight_decay": config["weight_decay"],
        "warmup": config["warmup"],
        "trainer": {"accelerator": config["accelerator"], "devices": 1},
    }
    return {
        f"{config['kmer']}-mer logistic regression": KmerLogistic(loaded.tokenizer.bases, config["kmer"]),
        FINE_TUNED: Network(lambda seed: copy.deepcopy(loaded.denoiser.backbone), config["lr"], **alike),
        SCRATCH: Network(untrained, config["lr_scratch"], **alike),
    }


def show(result: dict[str, Any]) -> None:
    """Print the closing tables."""
    from dnadiff.downstream.run import rows_for_table

    models, differences = rows_for_table(result)
    test = sum(result["task"]["items"]["test"].values())
    print(
        f"accuracy on {test:,} test sequences of {result['task']['name']}, chance {result['task']['chance']:.3f}; {duration(result['seconds'])} in all"
    )
    print(table(models, ("model", "accuracy", "95 % interval", "over seeds")))
    print()
    print(table(differences, ("difference", "accuracy", "95 % interval", "first is")))


def main() -> None:
    """Entry point of `python -m dnadiff.finetune` and `dnadiff-finetune`."""
    commands.run("finetune", run)


if __name__ == "__main__":
    main()
