"""`python -m dnadiff.finetune`: fine-tune a trained network on a task, and compare it with the same
network from scratch and with baselines."""

from __future__ import annotations

import copy
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import yaml

from dnadiff import checks, commands
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.progress import Progress, duration, table

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.kmers import KmerSet
    from dnadiff.supervised.items import TaskData
    from dnadiff.supervised.models import TaskModel
    from dnadiff.supervised.protocol import FixedSplit
    from dnadiff.weights.loaded import Loaded

log = logging.getLogger("dnadiff")

AUTO = "auto"  # of a setting that suits the task: see `dnadiff.supervised.study_models`
MAX_KMER = 8  # a table of counts has 4^k columns
Rate = Annotated[float, checks.Range(maximum=1, above=0)]
KEYS: Keys = {
    **SHARED,
    "seeds": checks.PositiveInt,
    "epochs": checks.PositiveInt | Literal["auto"],
    "minutes": checks.Positive | None,
    "patience": checks.PositiveInt | Literal["auto"] | None,
    "batch_size": checks.PositiveInt | list[checks.PositiveInt],
    "lr": Rate | Literal["auto"] | list[Rate],
    "lr_scratch": Rate | Literal["auto"] | list[Rate],
    "layer_decay": Rate | Literal["auto"],
    "freeze": Literal["none", "backbone"] | checks.PositiveInt,
    "head_epochs": checks.Natural | Literal["auto"],
    "class_weights": Literal["none", "balanced"],
    "mixup": checks.NonNegative,
    "average": bool,
    "stack": bool,
    "weight_decay": checks.NonNegative,
    "warmup": checks.Fraction | None,
    "kmer": Annotated[int, checks.Range(1, MAX_KMER)],
    "fine_tune": bool,
    "scratch": bool,
    "probe": bool,
    "neighbors": bool,
    "layer": checks.PositiveInt | None,
    "train_items": checks.PositiveInt | None,
    "inputs.layers": list[checks.PositiveInt],
    "inputs.one_hot": bool | Literal["auto"],
    "inputs.length": bool,
    "pretraining_overlap": bool | str,
    "results": str | None,
    "save_models": list[Literal["fine-tuned", "scratch"]],
    **dict.fromkeys(
        ("task.name", "task.genome", "task.fly_genome", "task.mouse_genome"), str | None
    ),
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> dict[str, Json]:
    """Run the study and return the contents of `finetune.json`: one study, or `tasks` with one for
    each of several tasks."""
    from dnadiff.report.suite import write_suite
    from dnadiff.store import disk
    from dnadiff.store.address import shown_addresses
    from dnadiff.store.disk import atomic_write, check_output, write_json
    from dnadiff.supervised import overlap, runs
    from dnadiff.supervised.regions import find_tasks
    from dnadiff.supervised.results import check_results, slug
    from dnadiff.weights import checkpoint

    check_settings(config)
    output = checks.expand_user(config["output"]) if config["output"] else run_dir / "finetune.json"
    check_output(output, config["overwrite"])
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    tokenizer = dna_tokenizer(loaded)
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")
    several, results = config["task"].get("tasks"), Path(config["results"] or run_dir / "results")
    tasks = {"": config["task"]} if several is None else find_tasks(several)
    file = config["pretraining_overlap"]  # or whether to read that of the configuration
    kmers = (
        overlap.pretraining_kmers(loaded.config, tokenizer, config["trust"], file) if file else None
    )
    found: dict[str, dict[str, Json]] = {}
    check_results(results)  # damage would end every task after its training
    is_training, left_out = False, {name: "no data" for name in several or () if name not in tasks}
    for name, task in tasks.items():
        try:
            data, protocol = read_task(task, loaded, config)
            settings = config | {"task": task} | head_settings(config, protocol, overrides)
            models = checked_models(settings, loaded, data, protocol)
            if (
                not is_training
            ):  # only now: a command that trains nothing keeps the classifiers of an earlier run
                runs.remove_all(run_dir / runs.FOLDER)
                is_training = True
            networks = (
                run_dir / runs.FOLDER / slug(name)
            )  # of a single task, whose name is empty here: the folder itself
            found[name] = run_task(
                settings, data, protocol, models, loaded, overrides, results, networks, kmers
            )
        except (
            ValueError,
            OSError,
            RuntimeError,
            MemoryError,
        ) as error:  # before or during the training of this task
            log.debug(f"{name} failed", exc_info=True)
            if (
                several is None
                or (not found and name == list(tasks)[-1])
                or (isinstance(error, OSError) and error.errno in disk.FULL)
            ):
                raise
            left_out[name] = " ".join(str(error).split()) or type(error).__name__
            log.warning(f"{name} is left out: {left_out[name]}")
    result = found[""] if several is None else {"tasks": found, "left_out": left_out}
    studies = list(found.values())
    run_dir.mkdir(parents=True, exist_ok=True)
    with atomic_write(run_dir / "finetune.yaml", overwrite=True) as file:
        file.write(
            yaml.safe_dump(
                shown_addresses(settings if several is None else config), sort_keys=False, width=120
            ).encode()
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_suite(
        run_dir / "report.html",
        studies,
        [f"python -m dnadiff.finetune {shlex.join(shown_addresses(overrides))}"],
    )
    write_json(output, result)  # last: while it does not exist, the command can be started again
    print_tables(studies, is_suite=several is not None)
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    print(
        f"files are in {run_dir}"
        if output.parent == run_dir
        else f"result in {output}, report in {run_dir}"
    )
    return result


def dna_tokenizer(loaded: Loaded) -> DNATokenizer:
    """The tokenizer of a model of DNA; ValueError if it was trained on text."""
    from dnadiff.data.tokenizer import DNATokenizer

    if not isinstance(loaded.tokenizer, DNATokenizer):
        raise ValueError(
            f"{loaded.path} was trained on text, and the tasks are DNA; name a run trained on DNA"
        )
    return loaded.tokenizer


def check_settings(config: Config) -> None:
    """ValueError for values that cannot be used, before anything is read. Others are converted in
    place: 1e1 to 10, one value to a list."""
    from dnadiff.supervised.study_models import SCRATCH

    if config["results"] and checks.expand_user(config["results"]).is_file():
        raise ValueError(f"results {config['results']} is a file; name a folder")
    if config["stack"] and not config["fine_tune"]:
        raise ValueError(
            "stack=true combines the fine-tuned network with k-mers, and fine_tune is false; set "
            "stack=false"
        )
    if SCRATCH in config["save_models"] and not config["scratch"]:
        raise ValueError(
            "save_models [scratch] saves the network from scratch, and scratch is false; set "
            "scratch=true, or leave scratch out of save_models"
        )
    commands.pick_device(config["accelerator"])
    for key, minimum, maximum in (("seed", 0, None), ("seeds", 1, None), ("kmer", 1, MAX_KMER)):
        config[key] = checks.integer(key, config[key], minimum, maximum)
    for key in ("epochs", "patience", "layer", "train_items"):
        config[key] = (
            config[key] if config[key] == AUTO else checks.optional_integer(key, config[key])
        )
    config["head_epochs"] = (
        config["head_epochs"]
        if config["head_epochs"] == AUTO
        else checks.integer("head_epochs", config["head_epochs"], 0)
    )
    config["batch_size"] = [
        checks.integer("batch_size", size) for size in as_list("batch_size", config["batch_size"])
    ]
    for key in ("lr", "lr_scratch"):
        config[key] = as_list(key, config[key])


def as_list(key: str, value: Json) -> list[Json]:
    """One value, or several to choose from, as a list; ValueError if there is none."""
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    if not several:
        raise ValueError(f"{key} is an empty list; give at least one value")
    return several


def seeds_of(config: Config) -> list[int]:
    """The seeds of the study."""
    return [config["seed"] + i for i in range(config["seeds"])]


def read_task(task: Config, loaded: Loaded, config: Config) -> tuple[TaskData, FixedSplit]:
    """Read a task and its protocol; a one-line ValueError or OSError if it cannot be used."""
    from dnadiff.supervised.classifier import check_length, keep_first_layers
    from dnadiff.supervised.protocol import build_protocol

    reader = build(task, trust=None)
    protocol = build_protocol(reader.protocol, loaded.tokenizer.vocab.pad_id, config["train_items"])
    data = reader.load(loaded.tokenizer)
    check_length(
        keep_first_layers(copy.deepcopy(loaded.denoiser.backbone), config["layer"]), data
    )  # now, not after the baselines
    for seed in seeds_of(config) if protocol.varies else [config["seed"]]:
        protocol.rounds(data, seed)  # refuse a task that cannot be divided
    return data, protocol


def head_settings(config: Config, protocol: FixedSplit, overrides: Sequence[str]) -> Config:
    """`head` and `inputs` of the configuration; with the published protocol the published ones,
    unless an override names others."""
    from dnadiff.supervised.classifier import MEAN_HEAD
    from dnadiff.supervised.study_models import resolve

    published = protocol.epochs is not None
    named = any(
        override.lstrip("+").partition("=")[0].partition(".")[0] == "head" for override in overrides
    )
    trains = config["fine_tune"] or config["scratch"]
    inputs = config["inputs"] | {
        "one_hot": resolve(config["inputs"]["one_hot"], trains and not published)
    }
    return {"head": MEAN_HEAD if published and not named else config["head"], "inputs": inputs}


def checked_models(
    config: Config, loaded: Loaded, data: TaskData, protocol: FixedSplit
) -> dict[str, TaskModel]:
    """The models that are compared on a task; ValueError if one of them does not fit it."""
    from dnadiff.supervised.study_models import build_models

    models = build_models(
        config, loaded, data, protocol, commands.pick_device(config["accelerator"])
    )
    first = protocol.rounds(data, config["seed"])[0].data
    for model in models.values():
        model.check(first)
    return models


def run_task(
    config: Config,
    data: TaskData,
    protocol: FixedSplit,
    models: Mapping[str, TaskModel],
    loaded: Loaded,
    overrides: Sequence[str],
    folder: Path,
    networks: Path,
    kmers: KmerSet | None,
) -> dict[str, Json]:
    """Compare the models on one task, with the `kmers` of the pretraining data also on the items
    inside and outside it; save networks in `networks`."""
    from dnadiff.store.address import shown_addresses
    from dnadiff.supervised.items import log_task
    from dnadiff.supervised.overlap import tested_subsets
    from dnadiff.supervised.results import ResultsFolder, code_version
    from dnadiff.supervised.study import distinct_seeds, run_study
    from dnadiff.supervised.study_models import (
        FINE_TUNED,
        SCRATCH,
        combinations,
        compared_pairs,
        save_networks,
    )
    from dnadiff.supervised.tables import pretraining_warning

    rounds = protocol.rounds(data, config["seed"])
    log_task(protocol.example(data, config["seed"]))
    subsets = tested_subsets(data, protocol, dna_tokenizer(loaded), kmers)
    seeds, rows = seeds_of(config), combinations(config, models, data, protocol)
    provenance = {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "command": " ".join(shown_addresses(overrides)),
    }
    kept = [
        name for name in config["save_models"] if name in models and not protocol.tests_all_items
    ]
    if config["save_models"] and protocol.tests_all_items:
        log.info(
            f"no network is saved with task.protocol={protocol.name}, which trains one for each "
            "fold; fixed and paper save one for each seed"
        )
    results = ResultsFolder(
        folder, provenance, code_version(type(loaded.denoiser.backbone), config), kept
    )
    steps = sum(
        sum(m.num_steps(r.data) for r in rounds) * len(distinct_seeds(m, seeds, protocol))
        for m in models.values()
    )
    progress = Progress(
        None if config["minutes"] else steps, "finetune"
    )  # a budget ends most networks before the last of their steps
    pairs = compared_pairs(config, models, data, rows)
    try:
        result = run_study(
            data, models, seeds, pairs, progress.update, protocol, results, subsets, rows
        )
    finally:
        progress.close()
    counterpart = published_counterpart(loaded, config["layer"])
    warning = pretraining_warning(result["models"], FINE_TUNED, SCRATCH)
    about = {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "seeds": seeds,
        "inputs": config["inputs"],
        "counterpart": counterpart,
    }
    result = {"warning": warning, **about, "class_weights": config["class_weights"], **result}
    results.write_summary(data.name, result)
    described = {name: model.describe() for name, model in models.items()}
    save_networks(networks, config, data, protocol, loaded, described, result, results.networks)
    return result


def published_counterpart(loaded: Loaded, layer: int | None) -> str | None:
    """The published model with the network and objective of the checkpoint; None if there is none,
    or if only some layers are used."""
    from dnadiff.supervised.tables import published_model_of

    objective = loaded.config["objective"]["_target_"].rpartition(".")[2]
    return (
        published_model_of(type(loaded.denoiser.backbone).__name__, objective)
        if layer is None
        else None
    )


def print_tables(studies: Sequence[Mapping[str, Json]], is_suite: bool) -> None:
    """Print the tables of each task, and for a suite one of all tasks, with published numbers and
    their training sizes."""
    from dnadiff.supervised.metrics import title
    from dnadiff.supervised.study import header, primary_metric, remarks, subset_rows, table_rows
    from dnadiff.supervised.tables import suite_header, suite_rows

    for number, result in enumerate(studies):
        models, differences = table_rows(result)
        task, metric = result["task"], title(primary_metric(result))
        if result["warning"]:
            print(f"{chr(10) * bool(number)}warning: {task['name']}: {result['warning']}")
        print(
            f"{chr(10) * bool(number and not result['warning'])}{metric} on {task['tested']:,} "
            f"test sequences of {task['name']}, "
            f"chance {task['chance']:.3f}; {duration(result['seconds'])} in total"
        )
        print(table(models, header(result)))
        for line in remarks(result):
            print(line)
        if differences:
            print()
            print(table(differences, ("difference", metric, "95 % interval", "first is")))
        if subsets := list(next(iter(result["models"].values()))["subsets"]):
            print()
            print(table(subset_rows(result), (f"{metric} (items)", *subsets)))
    if is_suite:
        print(
            "\nall tasks; a published number used the training sequences in parentheses, and is "
            "not comparable with one that used fewer; "
            "chance: always the larger class"
        )
        print(table(suite_rows(studies), suite_header(studies)))


def main() -> None:
    """Entry point of `python -m dnadiff.finetune` and `dnadiff-finetune`."""
    commands.run("finetune", run, KEYS)


if __name__ == "__main__":
    main()
