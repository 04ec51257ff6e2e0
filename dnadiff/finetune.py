"""`python -m dnadiff.finetune`: a trained network as a classifier, beside the same network from scratch and word counts."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import Progress, duration, table

log = logging.getLogger("dnadiff")

FINE_TUNED, SCRATCH = "fine-tuned", "scratch"
PROBE, RANDOM_PROBE, NEIGHBOURS = "frozen + logistic regression", "untrained, frozen + logistic regression", "frozen, nearest neighbours"


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Run the study and return the contents of `finetune.json`: one study, or `tasks` with one for each of several tasks."""
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output

    output = Path(config["output"]) if config["output"] else run_dir / "finetune.json"
    check_output(output, config["overwrite"])
    for key, least in (("seed", 0), ("seeds", 1), ("batch_size", 1), ("kmer", 1)):
        config[key] = commands.whole(key, config[key], least)
    for key in ("epochs", "patience"):
        config[key] = None if config[key] is None else commands.whole(key, config[key], 1)
    if config["kmer"] > 8:
        raise ValueError(f"kmer {config['kmer']} is too long for a table of counts; set kmer to 8 or less")
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is None:
        raise ValueError(
            f"{loaded.path} was trained on text, and the task {config['task'].get('name') or 'csv'} is DNA; name a run trained on DNA"
        )
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")
    several = config["task"].get("tasks")
    if several is None:
        result = study_of(config, config["task"], loaded, overrides)
    else:
        result = {"tasks": {name: study_of(config, task, loaded, overrides) for name, task in present(several).items()}}
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "finetune.yaml").write_text(yaml.safe_dump(config, sort_keys=False, width=120), encoding="utf-8")
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(output, result)
    for number, one in enumerate([result] if several is None else result["tasks"].values()):
        print("\n" * bool(number), end="")
        show(one)
    print(f"files are in {run_dir}" if output.parent == run_dir else f"result in {output}")
    return result


def present(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The tasks of a suite whose data are there; the others are named.

    Raises:
        FileNotFoundError: if none is.
    """
    there = {name: task for name, task in tasks.items() if Path(task["path"]).expanduser().exists()}
    if missing := [name for name in tasks if name not in there]:
        log.info(f"no data for {', '.join(missing)}")
    if not there:
        raise FileNotFoundError(f"{Path(next(iter(tasks.values()))['path']).parent} holds none of {', '.join(tasks)}; set task.path")
    return there


def study_of(config: Mapping[str, Any], task: Mapping[str, Any], loaded: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Every model on one task."""
    from dnadiff import __version__
    from dnadiff.downstream import protocol
    from dnadiff.downstream.results import ResultsFolder, Unkept
    from dnadiff.downstream.run import runs_of, study

    reader = build(task, trust=None)
    how = protocol.named(reader.protocol, loaded.tokenizer.vocab.pad_id)
    data = reader.load(loaded.tokenizer)
    models = contenders(config, loaded, how)
    counts = {part: sum(of_class.values()) for part, of_class in data.counts().items()}
    log.info(f"task: {data.name}, {' against '.join(data.classes)}; {', '.join(f'{part} {n:,}' for part, n in counts.items())} sequences")
    if left_out := data.notes.get("left_out_for_a_shared_word"):
        words = ", ".join(f"{n} {name}" for name, n in left_out["test"].items())
        log.info(f"left out of test for a {data.notes['shared_word']}-mer that the training part holds on either strand: {words}")
    if copies := data.notes.get("test_sequences_also_in_training"):
        log.info(f"{copies:,} of {counts['test']:,} test sequences are also in the training part, on either strand")
    seeds = [config["seed"] + i for i in range(config["seeds"])]
    provenance = {"checkpoint": str(loaded.path), "step": loaded.step, "command": " ".join(overrides)}
    kept = ResultsFolder(config["results"], provenance, __version__) if config["results"] else Unkept()
    rounds = how.rounds(data, seeds[0])
    steps = sum(sum(m.num_steps(r.data) for r in rounds) * len(runs_of(m, seeds, how)) for m in models.values())
    baseline = f"{config['kmer']}-mer logistic regression"
    pairs = [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline), (PROBE, baseline), (FINE_TUNED, "CNN")]
    pairs = [pair for pair in pairs if pair[0] in models and pair[1] in models]
    progress = Progress(steps, "finetune")
    result = study(data, models, seeds, pairs, progress.update, how, kept)
    progress.close()
    result = {"checkpoint": str(loaded.path), "step": loaded.step, "seeds": seeds, **result}
    kept.summarise(data.name, result)
    return result


def contenders(config: Mapping[str, Any], loaded: Any, how: Any) -> dict[str, Any]:
    """The models of the study under their names: baselines, the network as trained, and the same network untrained."""
    import torch

    from dnadiff.checkpoint import build_denoiser
    from dnadiff.downstream.baselines import KmerLogistic
    from dnadiff.downstream.classifier import Network
    from dnadiff.downstream.probe import LinearProbe, NearestNeighbours
    from dnadiff.draws import hash64

    def trained(seed: int) -> Any:
        return copy.deepcopy(loaded.denoiser.backbone)

    def untrained(seed: int) -> Any:
        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        return build_denoiser(loaded.config, loaded.tokenizer, ("dnadiff", *config["trust"]))[0].backbone

    alike = {
        "epochs": config["epochs"] or how.epochs,
        "batch_size": config["batch_size"],
        "weight_decay": config["weight_decay"],
        "warmup": how.warmup if config["warmup"] is None else config["warmup"],
        "trainer": {"accelerator": config["accelerator"], "devices": 1},
        "patience": config["patience"],
    }
    on_gpu = config["accelerator"] in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    frozen = {"about": {"weights": weights_digest(loaded), "step": loaded.step}, "device": "cuda" if on_gpu else "cpu"}
    models: dict[str, Any] = {f"{config['kmer']}-mer logistic regression": KmerLogistic(loaded.tokenizer, config["kmer"])}
    for name, baseline in (config.get("baselines") or {}).items():
        models.setdefault(name, build(baseline, loaded.tokenizer, trust=None))
    if config["neighbours"]:
        models[NEIGHBOURS] = NearestNeighbours(trained, **frozen)
    if config["probe"]:
        models[PROBE] = LinearProbe(trained, **frozen)
        models[RANDOM_PROBE] = LinearProbe(untrained, random=True, about={"untrained": loaded.config["backbone"]}, device=frozen["device"])
    if config["fine_tune"]:
        models[FINE_TUNED] = Network(trained, config["lr"], about=frozen["about"], **alike)
    if config["scratch"]:
        models[SCRATCH] = Network(untrained, config["lr_scratch"], about={"untrained": loaded.config["backbone"]}, **alike)
    return models


def weights_digest(loaded: Any) -> str:
    """12 hexadecimal digits that change with any weight of the network."""
    import torch

    whole = hashlib.sha256()
    for name, tensor in sorted(loaded.denoiser.backbone.state_dict().items()):
        whole.update(name.encode() + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:12]


def show(result: dict[str, Any]) -> None:
    """Print the closing tables."""
    from dnadiff.downstream.run import rows_for_table

    models, differences = rows_for_table(result)
    print(
        f"accuracy on {result['task']['tested']:,} test sequences of {result['task']['name']}, chance {result['task']['chance']:.3f}; "
        f"{duration(result['seconds'])} in all"
    )
    print(table(models, ("model", "accuracy", "95 % interval", "over seeds", "MCC", "AUROC")))
    if differences:
        print()
        print(table(differences, ("difference", "accuracy", "95 % interval", "first is")))


def main() -> None:
    """Entry point of `python -m dnadiff.finetune` and `dnadiff-finetune`."""
    commands.run("finetune", run)


if __name__ == "__main__":
    main()
