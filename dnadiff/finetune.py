"""`python -m dnadiff.finetune`: a trained network as a classifier, beside the same network from scratch and word counts."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dnadiff import checks, commands
from dnadiff.config import build
from dnadiff.progress import Progress, duration, table

log = logging.getLogger("dnadiff")

FINE_TUNED, SCRATCH = "fine-tuned", "scratch"
PROBE, RANDOM_PROBE, NEIGHBOURS = "frozen + logistic regression", "untrained, frozen + logistic regression", "frozen, nearest neighbours"


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Run the study and return the contents of `finetune.json`: one study, or `tasks` with one for each of several tasks."""
    from dnadiff import checkpoint
    from dnadiff.data.files import atomic_write, check_output, write_json
    from dnadiff.downstream import pretraining_overlap, suite
    from dnadiff.report.suite import write_suite

    check_settings(config)
    output = Path(config["output"]).expanduser() if config["output"] else run_dir / "finetune.json"
    check_output(output, config["overwrite"])
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is None:
        raise ValueError(
            f"{loaded.path} was trained on text, and the task {config['task'].get('name') or 'csv'} is DNA; name a run trained on DNA"
        )
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")
    several, kept = config["task"].get("tasks"), Path(config["results"] or run_dir / "results")
    tasks = {"": config["task"]} if several is None else suite.present(several)
    words = (
        pretraining_overlap.pretraining_words(loaded.config, loaded.tokenizer, config["trust"]) if config["pretraining_overlap"] else None
    )
    found, left_out = {}, {name: "no data" for name in several or () if name not in tasks}
    for name, task in tasks.items():
        try:
            read = readable(task, loaded, config["layer"])
        except (ValueError, OSError) as error:
            if several is None or (not found and name == list(tasks)[-1]):
                raise
            left_out[name] = " ".join(str(error).split())
            log.warning(f"{name} is left out: {left_out[name]}")
            continue
        found[name] = study_of(config, *read, loaded, overrides, kept, words)
    result = found[""] if several is None else {"tasks": found, "left_out": left_out}
    studies = list(found.values())
    run_dir.mkdir(parents=True, exist_ok=True)
    with atomic_write(run_dir / "finetune.yaml", overwrite=True) as file:
        file.write(yaml.safe_dump(config, sort_keys=False, width=120).encode())
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, result)
    write_suite(run_dir / "report.html", studies, [f"python -m dnadiff.finetune {' '.join(overrides)}"])
    show(studies, several is not None)
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    print(f"files are in {run_dir}" if output.parent == run_dir else f"result in {output}, report in {run_dir}")
    return result


def check_settings(config: dict[str, Any]) -> None:
    """Refuse values of the wrong kind before anything is read, and put whole numbers where they must be, in place.

    Raises:
        ValueError: naming the key.
    """
    for key in ("fine_tune", "scratch", "probe", "neighbours", "pretraining_overlap", "overwrite"):
        if not isinstance(config[key], bool):
            raise ValueError(f"{key} {config[key]!r} must be true or false")
    for key in ("output", "results"):
        if config[key] is not None and (isinstance(config[key], bool) or not isinstance(config[key], (str, int, float))):
            raise ValueError(f"{key} {config[key]!r} must be a path, or null")
        config[key] = None if config[key] is None else str(config[key])
    if config["results"] and Path(config["results"]).expanduser().is_file():
        raise ValueError(f"results {config['results']} is a file; name a folder")
    config["trust"] = [config["trust"]] if isinstance(config["trust"], str) else config["trust"]
    if not isinstance(config["trust"], list) or not all(isinstance(name, str) for name in config["trust"]):
        raise ValueError(f"trust {config['trust']!r} must be a list of packages")
    commands.pick_device(config["accelerator"])
    if not is_between(config["weight_decay"], 0, math.inf):
        raise ValueError(f"weight_decay {config['weight_decay']!r} must be a number, 0 or more")
    if config["warmup"] is not None and not is_between(config["warmup"], 0, 1):
        raise ValueError(f"warmup {config['warmup']!r} must be a share of the steps from 0 to 1, or null")
    for key, least in (("seed", 0), ("seeds", 1), ("kmer", 1)):
        config[key] = checks.integer(key, config[key], least)
    for key in ("epochs", "patience", "layer"):
        config[key] = None if config[key] is None else checks.integer(key, config[key], 1)
    config["batch_size"] = [checks.integer("batch_size", size, 1) for size in listed(config["batch_size"])]
    for key in ("lr", "lr_scratch"):
        config[key] = listed(config[key])
        for rate in config[key]:
            if not is_between(rate, 0, math.inf) or rate == 0:
                raise ValueError(f"{key} {rate!r} must be a number above 0, or a list of such to choose from on validation")
    if config["kmer"] > 8:
        raise ValueError(f"kmer {config['kmer']} is too long for a table of counts; set kmer to 8 or less")


def is_between(value: Any, low: float, high: float) -> bool:
    """Whether it is a finite number within these bounds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high


def listed(value: Any) -> list[Any]:
    """A value, or several to choose from, as a list.

    Raises:
        ValueError: if there is none.
    """
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    if not several:
        raise ValueError("lr, lr_scratch and batch_size need at least one value each")
    return several


def readable(task: Mapping[str, Any], loaded: Any, layer: int | None) -> tuple[Any, Any]:
    """The task, read, and its protocol; ValueError or OSError in one line for what cannot be used."""
    from dnadiff.downstream import protocol
    from dnadiff.downstream.classifier import check_length, first_layers

    reader = build(task, trust=None)
    how = protocol.named(reader.protocol, loaded.tokenizer.vocab.pad_id)
    data = reader.load(loaded.tokenizer)
    check_length(first_layers(copy.deepcopy(loaded.denoiser.backbone), layer), data)  # now, not after the baselines
    how.rounds(data, 1)  # a task that cannot be divided is refused here
    return data, how


def study_of(
    config: Mapping[str, Any], data: Any, how: Any, loaded: Any, overrides: Sequence[str], folder: Path, words: Any | None
) -> dict[str, Any]:
    """Every model on one task; what is finished is kept in `folder`. With the `words` of the pretraining also what holds them apart."""
    from dnadiff import __version__
    from dnadiff.downstream import pretraining_overlap
    from dnadiff.downstream.results import ResultsFolder
    from dnadiff.downstream.study import runs_of, study

    models = contenders(config, loaded, how)
    announce(data)
    subsets = None if words is None else pretraining_overlap.subsets(how.tested(data), words, loaded.tokenizer)
    seeds = [config["seed"] + i for i in range(config["seeds"])]
    provenance = {"checkpoint": str(loaded.path), "step": loaded.step, "command": " ".join(overrides)}
    kept = ResultsFolder(folder, provenance, __version__)
    rounds = how.rounds(data, seeds[0])
    steps = sum(sum(m.num_steps(r.data) for r in rounds) * len(runs_of(m, seeds, how)) for m in models.values())
    baseline = f"{config['kmer']}-mer logistic regression"
    pairs = [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline), (PROBE, RANDOM_PROBE), (PROBE, baseline), (FINE_TUNED, "CNN")]
    pairs = [pair for pair in pairs if pair[0] in models and pair[1] in models]
    progress = Progress(steps, "finetune")
    result = study(data, models, seeds, pairs, progress.update, how, kept, subsets)
    progress.close()
    result = {"checkpoint": str(loaded.path), "step": loaded.step, "seeds": seeds, "counterpart": held_against(config, loaded), **result}
    kept.summarise(data.name, result)
    return result


def held_against(config: Mapping[str, Any], loaded: Any) -> str | None:
    """The published model of the same kind as the checkpoint's; None for a network cut to its first layers, which nobody published."""
    from dnadiff.downstream.published_results import published_model_of

    objective = loaded.config["objective"]["_target_"].rpartition(".")[2]
    return published_model_of(type(loaded.denoiser.backbone).__name__, objective) if config["layer"] is None else None


def announce(data: Any) -> None:
    """Say what the task holds, and what of its test part is in training too."""
    counts = {part: sum(of_class.values()) for part, of_class in data.counts().items()}
    log.info(f"task: {data.name}, {' against '.join(data.classes)}; {', '.join(f'{part} {n:,}' for part, n in counts.items())} sequences")
    if left_out := data.notes.get("left_out_for_a_shared_word"):
        words = ", ".join(f"{n} {name}" for name, n in left_out["test"].items())
        log.info(f"left out of test for a {data.notes['shared_word']}-mer that the training part holds on either strand: {words}")
    if copies := data.notes.get("test_sequences_also_in_training"):
        log.info(f"{copies:,} of {counts['test']:,} test sequences are also in the training or validation part, on either strand")


def contenders(config: Mapping[str, Any], loaded: Any, how: Any) -> dict[str, Any]:
    """The models of the study under their names: baselines, the network as trained, and the same network untrained."""
    import torch

    from dnadiff.checkpoint import build_denoiser
    from dnadiff.downstream.baselines import KmerLogistic
    from dnadiff.downstream.classifier import first_layers
    from dnadiff.downstream.finetuning import Trained
    from dnadiff.downstream.probe import LinearProbe, NearestNeighbours
    from dnadiff.draws import hash64

    def trained(seed: int) -> Any:
        return first_layers(copy.deepcopy(loaded.denoiser.backbone), config["layer"])

    def untrained(seed: int) -> Any:
        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        return first_layers(build_denoiser(loaded.config, loaded.tokenizer, ("dnadiff", *config["trust"]))[0].backbone, config["layer"])

    cut = {} if config["layer"] is None else {"layer": config["layer"]}
    if loaded.denoiser.backbone.reads_both_strands:  # predictions kept before its head was made so are not used again
        cut["strands"] = "merged unless stranded"
    known, unknown = {"weights": weights_digest(loaded), "step": loaded.step, **cut}, {"untrained": loaded.config["backbone"], **cut}
    on_gpu = config["accelerator"] in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    models: dict[str, Any] = {f"{config['kmer']}-mer logistic regression": KmerLogistic(loaded.tokenizer, config["kmer"])}
    for name, baseline in (config.get("baselines") or {}).items():
        if not isinstance(baseline, Mapping) or "_target_" not in baseline:
            raise ValueError(f"baselines.{name} is {baseline!r}; give it a _target_, as those of baselines=all have")
        built = build(baseline, loaded.tokenizer, trust=None)
        if isinstance(built, Trained):
            built.trainer.setdefault("accelerator", config["accelerator"])
        models.setdefault(name, built)
    if config["neighbours"]:
        models[NEIGHBOURS] = NearestNeighbours(trained, about=known, device=device)
    if config["probe"]:
        models[PROBE] = LinearProbe(trained, about=known, device=device)
        models[RANDOM_PROBE] = LinearProbe(untrained, random=True, about=unknown, device=device)
    if config["fine_tune"]:
        models[FINE_TUNED] = networks(config, how, trained, config["lr"], known)
    if config["scratch"]:
        models[SCRATCH] = networks(config, how, untrained, config["lr_scratch"], unknown)
    return models


def networks(config: Mapping[str, Any], how: Any, backbone: Any, rates: Sequence[float], about: Mapping[str, Any]) -> Any:
    """A network trained as a whole; with several rates or batch sizes, those that validation chooses."""
    from dnadiff.downstream.finetuning import FineTunedModel
    from dnadiff.downstream.grid import Grid

    alike = {
        "epochs": config["epochs"] or how.epochs,
        "weight_decay": config["weight_decay"],
        "warmup": how.warmup if config["warmup"] is None else config["warmup"],
        "trainer": {"accelerator": config["accelerator"], "devices": 1},
        "patience": config["patience"],
    }
    grid = [
        ({"lr": rate, "batch_size": size}, FineTunedModel(backbone, rate, about=about, batch_size=size, **alike))
        for rate, size in itertools.product(rates, config["batch_size"])
    ]
    return Grid(grid) if len(grid) > 1 else grid[0][1]


def weights_digest(loaded: Any) -> str:
    """12 hexadecimal digits that change with any weight of the network."""
    import torch

    whole = hashlib.sha256()
    for name, tensor in sorted(loaded.denoiser.backbone.state_dict().items()):
        whole.update(name.encode() + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:12]


def show(studies: Sequence[Mapping[str, Any]], together: bool) -> None:
    """Print the closing tables: of each task, and for a suite one of all tasks, with published numbers and their training sizes."""
    from dnadiff.downstream.published_results import SUITE_HEADER, suite_rows
    from dnadiff.downstream.study import rows_for_table, rows_of_subsets

    for number, result in enumerate(studies):
        models, differences = rows_for_table(result)
        task = result["task"]
        print(
            f"{chr(10) * bool(number)}accuracy on {task['tested']:,} test sequences of {task['name']}, chance {task['chance']:.3f}; "
            f"{duration(result['seconds'])} in all"
        )
        print(table(models, ("model", "accuracy", "95 % interval", "over seeds", "MCC", "AUROC", "sequences/s")))
        if differences:
            print()
            print(table(differences, ("difference", "accuracy", "95 % interval", "first is")))
        if parts := list(next(iter(result["models"].values()))["subsets"]):
            print()
            print(table(rows_of_subsets(result), ("accuracy (items)", *parts)))
    if together:
        print(
            "\nall tasks; a published number rests on the training sequences in brackets, and is no rival of one with fewer; chance: always the larger class"
        )
        print(table(suite_rows(studies), SUITE_HEADER))


def main() -> None:
    """Entry point of `python -m dnadiff.finetune` and `dnadiff-finetune`."""
    commands.run("finetune", run)


if __name__ == "__main__":
    main()
