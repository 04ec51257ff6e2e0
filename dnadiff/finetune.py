"""`python -m dnadiff.finetune`: fine-tune a trained network on a task, and compare it with the same
network from scratch and with baselines."""

from __future__ import annotations

import copy
import itertools
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from annotated_types import Interval
from pydantic import model_validator
from typing_extensions import TypedDict

from dnadiff.fields import Fraction, Json, Natural, NonNegative, Positive, PositiveInt
from dnadiff.options.base import Accelerator, Checkpoint, Config, Group, Options, Result, group
from dnadiff.options.command import command
from dnadiff.progress import Progress, duration, table
from dnadiff.store.address import expand_user
from dnadiff.store.objects import PACKAGE, build

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.genomics.kmers import KmerSet
    from dnadiff.supervised.classifier import HeadInputs
    from dnadiff.supervised.items import TaskData, TaskModel
    from dnadiff.supervised.networks import NetworkModel
    from dnadiff.supervised.protocol import FixedSplit
    from dnadiff.supervised.study import Combination
    from dnadiff.weights.loaded import Loaded

log = logging.getLogger("dnadiff")
AUTO: Literal["auto"] = "auto"  # a value that suits the task
PATIENCE, LAYER_DECAY = 5, 0.8
FINE_TUNED, SCRATCH, SAME_HEAD = "fine-tuned", "scratch", "same head on one-hot"
PROBE, RANDOM_PROBE, NEIGHBORS = (
    "frozen + logistic regression",
    "untrained, frozen + logistic regression",
    "frozen, nearest neighbors",
)
SAVED = {FINE_TUNED: "", SCRATCH: "scratch"}  # subfolders of saved networks
Rate = Annotated[float, Interval(gt=0, le=1)]
Rates = float | tuple[float, ...]  # of a candidate: one, or several that trials choose from


class Inputs(TypedDict):
    """What the heads read besides the features of the network."""

    layers: list[PositiveInt]
    one_hot: bool | Literal["auto"]
    length: bool


class FinetuneOptions(Options):
    """Fine-tune a trained model on classes or values, and compare it with the same network from
    scratch, a head on the bases alone, and k-mers.

        python -m dnadiff.finetune checkpoint=RUN task=ecoli_coding
        python -m dnadiff.finetune checkpoint=RUN task=csv task.path=table.csv
        python -m dnadiff.finetune checkpoint=RUN task=tf_0 task.path=FOLDER task.protocol=paper
        python -m dnadiff.finetune checkpoint=RUN task=genomic_benchmarks task.path=FOLDER
        baselines=all python -m dnadiff.finetune checkpoint=RUN task=csv task.path=t.csv
        task.kind=regression python -m dnadiff.finetune checkpoint=RUN task=ecoli_tss task.path=FILE
        baselines=ecoli_promoter

    Of a task, task.sequence_column, task.label_column and task.split_column name columns of your
    table (label_column=[a,b] several), task.kind is classification, regression or multilabel, and
    task.stranded says whether the label depends on the strand. A regression has task.loss=mse,
    huber or poisson and task.transform=none, log1p or log2. With task.cluster_kmer=24, sequences
    that share a 24-mer stay in one part of a random split. task.protocol is fixed, paper (each seed
    draws its validation part) or kfold. "better" means that the 95 % interval of the difference
    excludes 0.
    """

    inner = dict.fromkeys(
        ("task.name", "task.genome", "task.fly_genome", "task.mouse_genome"), str | None
    )

    checkpoint: Checkpoint
    task: Group = group("ecoli_coding")
    """what is predicted"""
    baselines: Group | None = group("none")
    """none, all (length, GC, k-mers, boosting, the published CNN, convolutions on the bases),
    ecoli_promoter (with the -10/-35 weight matrix)"""
    head: Group = group("conv")
    """conv, mean (as published, and the default with task.protocol=paper), attention, flatten (one
    length), auto (chosen on validation)"""
    adapter: Group = group("none")
    """none, lora: train updates of low rank instead of the weights"""
    seed: Natural = 1
    """the first of consecutive seeds"""
    seeds: PositiveInt = 5
    """number of times each network is trained"""
    epochs: PositiveInt | Literal["auto"] = AUTO
    """passes over the training items; auto: about 2,000 steps in 2 to 20 epochs, 10 with
    task.protocol=paper"""
    minutes: Positive | None = None
    """wall-clock budget of each trained network with its search, which sets the epochs; null: none
    """
    patience: PositiveInt | Literal["auto"] | None = AUTO
    """stop after N epochs without a better validation score (accuracy, weighted with
    class_weights=balanced; loss for values and labels); auto: 5 with epochs=auto; null: never"""
    batch_size: PositiveInt | list[PositiveInt] = 16
    """or a list, of which validation chooses"""
    lr: Rate | Literal["auto"] | list[Rate] = AUTO
    """peak learning rate of the fine-tuned network and of the same head on one-hot; auto: short
    trials of four rates; from a list, complete training of each"""
    lr_scratch: Rate | Literal["auto"] | list[Rate] = AUTO
    """of the same network from scratch"""
    layer_decay: Rate | Literal["auto"] = AUTO
    """factor of the rate from layer to layer towards the input of the fine-tuned network; auto:
    0.8, 1 with task.protocol=paper, adapter=lora or freeze=backbone"""
    freeze: Literal["none", "backbone"] | PositiveInt = "none"
    """of the fine-tuned network: none, backbone (only the head is trained), or the number of first
    layers"""
    head_epochs: Natural | Literal["auto"] = AUTO
    """of the head alone, on features of the pretrained network, before the whole network is
    trained; auto: about 1,000 steps, but at least 4 and at most 30 epochs, 0 with
    task.protocol=paper; 0: none"""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced, for classes: weight the loss of each class, and the accuracy that chooses the
    epoch, by the inverse of its frequency"""
    mixup: NonNegative = 0.0
    """a of Beta(a, a), from which shares of mixed features are drawn; 0: none"""
    average: bool = True
    """without train_items and task.protocol=kfold, also report the mean of the predictions (of
    classes and labels, the probabilities) over the seeds"""
    stack: bool = False
    """also report the fine-tuned network stacked with the k-mers, with a weight fitted on
    validation"""
    weight_decay: NonNegative = 0.1
    warmup: Fraction | None = None
    """fraction of all steps; null: 0.1, or 0.01 with task.protocol=paper"""
    kmer: Annotated[int, Interval(ge=1, le=8)] = 6
    """k of the logistic (for values, ridge) regression on k-mers"""
    fine_tune: bool = True
    """train the whole network"""
    scratch: bool = True
    """the same network from random weights"""
    probe: bool = False
    """logistic regression on frozen features of the trained and of an untrained network"""
    neighbors: bool = False
    """nearest neighbors on frozen features"""
    layer: PositiveInt | None = None
    """use only the first N layers of the network; null: all"""
    train_items: PositiveInt | None = None
    """use only N training items, drawn for each seed, and a validation part reduced in the same
    proportion; null: all"""
    inputs: Inputs = Inputs(layers=[], one_hot=AUTO, length=False)
    """what the heads read besides the features of the network: outputs of layers, such as [1, 2];
    the bases, by a second head whose outputs are added (auto: true, false with
    task.protocol=paper); the number of bases"""
    pretraining_overlap: bool | str = False
    """true: also report the accuracy inside and outside the pretraining data (reads that genome
    again); a FASTA file: those data, for a model that is exported without their path"""
    save_models: list[Literal["fine-tuned", "scratch"]] = ["fine-tuned"]
    """networks of which every seed is saved in models/ of the run folder, for python -m
    dnadiff.predict"""
    results: str | None = None
    """folder of finished predictions, which several processes can share, and from which an
    interrupted study resumes; null: results in the run folder"""
    accelerator: Accelerator = "auto"
    output: str | None = None
    """JSON file; null: finetune.json in the run folder"""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.results and expand_user(self.results).is_file():
            raise ValueError(f"results {self.results} is a file; name a folder")
        if self.stack and not self.fine_tune:
            raise ValueError(
                "stack=true combines the fine-tuned network with k-mers, and fine_tune is false; "
                "set stack=false"
            )
        if SCRATCH in self.save_models and not self.scratch:
            raise ValueError(
                "save_models [scratch] saves the network from scratch, and scratch is false; set "
                "scratch=true, or leave scratch out of save_models"
            )
        for key in ("batch_size", "lr", "lr_scratch"):
            if getattr(self, key) == []:
                raise ValueError(f"{key} is an empty list; give at least one value")
        return self

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of the study."""
        return [self.seed + number for number in range(self.seeds)]


@command(FinetuneOptions)
def finetune(options: FinetuneOptions) -> Result:
    """Run the study; the content is that of `finetune.json`: one study, or `tasks` with one for
    each of several tasks."""
    from dnadiff.report.suite import write_suite
    from dnadiff.store import disk
    from dnadiff.store.address import shown_addresses
    from dnadiff.supervised import overlap, regions, results, runs
    from dnadiff.supervised.protocol import build_protocol
    from dnadiff.weights import checkpoint

    run_dir = options.run_dir
    device = options.device
    output = expand_user(options.output) if options.output else run_dir / "finetune.json"
    disk.check_output(output, options.overwrite)
    loaded = checkpoint.load(options.checkpoint, options.trust)
    tokenizer = dna_tokenizer(loaded)
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")
    several = options.task.get("tasks")
    tasks = {"": options.task} if several is None else regions.find_tasks(several)
    data = options.pretraining_overlap
    kmers = (
        overlap.pretraining_kmers(loaded.config, tokenizer, options.trust, data) if data else None
    )
    found: dict[str, dict[str, Json]] = {}
    folder = Path(options.results or run_dir / "results")
    results.check_results(folder)  # damage would end every task after its training
    is_training, left_out = False, {name: "no data" for name in several or () if name not in tasks}
    for name, task in tasks.items():
        try:
            reader = build(task, trust=None)
            protocol = build_protocol(reader.protocol, tokenizer.vocab.pad_id, options.train_items)
            study = TaskStudy(options, loaded, task, reader.load(tokenizer), protocol, device)
            study.check()
            if not is_training:
                # Only now: a command that trains nothing keeps the classifiers of an earlier run.
                runs.remove_all(run_dir / runs.FOLDER)
                is_training = True
            # Of a single task, whose name is empty here: the folder itself.
            networks = run_dir / runs.FOLDER / results.slug(name)
            found[name] = study.run(folder, networks, kmers)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            log.debug(f"{name} failed", exc_info=True)  # before or during its training
            is_last = not found and name == list(tasks)[-1]
            is_full = isinstance(error, OSError) and error.errno in disk.FULL
            if several is None or is_last or is_full:
                raise
            left_out[name] = " ".join(str(error).split()) or type(error).__name__
            log.warning(f"{name} is left out: {left_out[name]}")
    result = found[""] if several is None else {"tasks": found, "left_out": left_out}
    studies = list(found.values())
    settings = dict(options) | (study.settings if several is None else {})
    with disk.atomic_write(run_dir / "finetune.yaml", overwrite=True) as file:
        text = yaml.safe_dump(shown_addresses(settings), sort_keys=False, width=120)
        file.write(text.encode())
    output.parent.mkdir(parents=True, exist_ok=True)
    shown = f"python -m dnadiff.finetune {shlex.join(shown_addresses(options.overrides))}"
    write_suite(run_dir / "report.html", studies, [shown])
    # Last: while it does not exist, the command can be started again.
    disk.write_json(output, result)
    print_tables(studies, is_suite=several is not None)
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    print(
        f"files are in {run_dir}"
        if output.parent == run_dir
        else f"result in {output}, report in {run_dir}"
    )
    return Result(result, (output, run_dir / "report.html"))


def dna_tokenizer(loaded: Loaded) -> DNATokenizer:
    """The tokenizer of a model of DNA; ValueError if it was trained on text."""
    from dnadiff.data.tokenizer import DNATokenizer

    if not isinstance(loaded.tokenizer, DNATokenizer):
        raise ValueError(
            f"{loaded.path} was trained on text, and the tasks are DNA; name a run trained on DNA"
        )
    return loaded.tokenizer


def resolve(value: Json, automatic: Json) -> Json:
    """The value, or what `auto` stands for."""
    return automatic if value == AUTO else value


def as_list(value: Json) -> list[Json]:
    """One value, or several to choose from, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


class TaskStudy:
    """One task of the command: its data, and the models that are compared on it.

    Attributes:
        head, inputs: of the options; with the published protocol the published ones, unless an
            override names others.

    Raises:
        ValueError: in one line, if the task cannot be divided, or does not fit the network.
    """

    def __init__(
        self,
        options: FinetuneOptions,
        loaded: Loaded,
        task: Config,
        data: TaskData,
        protocol: FixedSplit,
        device: str = "cpu",
    ) -> None:
        from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, check_length

        self.options, self.loaded, self.task, self.device = options, loaded, task, device
        self.data, self.protocol, self.tokenizer = data, protocol, dna_tokenizer(loaded)
        check_length(self.trained(0), data)  # now, not after the baselines
        for seed in options.all_seeds if protocol.varies else [options.seed]:
            protocol.rounds(data, seed)  # refuse a task that cannot be divided
        is_published = protocol.epochs is not None
        trains = options.fine_tune or options.scratch
        one_hot = resolve(options.inputs["one_hot"], trains and not is_published)
        is_named = any(options.given("head"))
        self.head = MEAN_HEAD if is_published and not is_named else options.head
        self.inputs: HeadInputs = HeadInputs(**{**options.inputs, "one_hot": one_hot})

    @property
    def settings(self) -> Config:
        """The options that depend on the task, as they are recorded."""
        listed = {
            key: as_list(getattr(self.options, key)) for key in ("batch_size", "lr", "lr_scratch")
        }
        inputs = {"layers": list(self.inputs.layers), "one_hot": self.inputs.one_hot}
        inputs["length"] = self.inputs.length
        return {"task": self.task, "head": self.head, "inputs": inputs, **listed}

    def trained(self, seed: int) -> Any:
        """A copy of the pretrained network."""
        from dnadiff.supervised.classifier import keep_first_layers

        backbone = copy.deepcopy(self.loaded.denoiser.backbone)
        return keep_first_layers(backbone, self.options.layer)

    def untrained(self, seed: int) -> Any:
        """The same network with random weights."""
        import torch

        from dnadiff.diffusion.draws import hash64
        from dnadiff.supervised.classifier import keep_first_layers
        from dnadiff.weights.loaded import build_denoiser

        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        trust = (PACKAGE, *self.options.trust)
        denoiser = build_denoiser(self.loaded.config, self.loaded.tokenizer, trust)[0]
        return keep_first_layers(denoiser.backbone, self.options.layer)

    def row(self, name: str) -> str:
        """The name of a model in the study: of logistic regressions, the estimator that the target
        of the task uses."""
        from dnadiff.supervised.targets.estimators import LOGISTIC

        return name.replace(LOGISTIC, self.data.target.estimators.linear_name)

    @property
    def kmer_row(self) -> str:
        """The name of the linear model on k-mers."""
        return self.row(f"{self.options.kmer}-mer logistic regression")

    def build_models(self) -> dict[str, TaskModel]:
        """The models of the study by name: baselines, the trained network, and the same network
        untrained."""
        from dnadiff.supervised import baselines as b
        from dnadiff.supervised.classifier import is_strand_invariant
        from dnadiff.supervised.networks import FineTunedModel, Frozen, NetworkModel, OneHotModel
        from dnadiff.supervised.results import weights_digest
        from dnadiff.supervised.training import NEW_RATES, PRETRAINED_RATES

        options, backbone = self.options, self.loaded.denoiser.backbone
        is_published = self.protocol.epochs is not None
        about: dict[str, Json] = {} if options.layer is None else {"layer": options.layer}
        # Predictions stored before these networks became strand-invariant are not reused.
        if backbone.reads_both_strands:
            about["strands"] = "merged unless stranded"
        about_untrained = {"untrained": self.loaded.config["backbone"], **about}
        about_trained = {"weights": weights_digest(backbone), "step": self.loaded.step, **about}
        models: dict[str, TaskModel] = {self.kmer_row: b.KmerLogistic(self.tokenizer, options.kmer)}
        for name, baseline in (options.baselines or {}).items():
            if not isinstance(baseline, Mapping) or "_target_" not in baseline:
                raise ValueError(
                    f"baselines.{name} is {baseline!r}; give it a _target_, as those of "
                    "baselines=all have"
                )
            built = build(dict(baseline), self.tokenizer, trust=None)
            if isinstance(built, NetworkModel):
                built.trainer.setdefault("accelerator", options.accelerator)
                built.device = self.device
            models.setdefault(self.row(name), built)
        frozen: dict[str, Any] = {"about": about_trained, "device": self.device}
        if options.neighbors:
            models[NEIGHBORS] = b.NearestNeighbors(self.trained, **frozen)
        if options.probe:
            models[self.row(PROBE)] = b.LinearProbe(self.trained, **frozen)
            frozen |= {"about": about_untrained, "random": True}
            models[self.row(RANDOM_PROBE)] = b.LinearProbe(self.untrained, **frozen)

        def network(source: Callable[[int], Any], about: Config, **more: Any) -> Any:
            return lambda lr, head, **recipe: FineTunedModel(
                source, lr, about, head, self.inputs, device=self.device, **more, **recipe
            )

        def one_hot(lr: Rates, head: Config, **recipe: Any) -> NetworkModel:
            partial_head = build({**head, "_partial_": True}, trust=None)
            length = self.inputs.length
            return OneHotModel(
                self.tokenizer, partial_head, lr, length, device=self.device, **recipe
            )

        from_scratch = rates = self._rates(options.lr_scratch, NEW_RATES)
        first_stage: dict[str, Any] = {}
        if options.fine_tune:
            part, adapter = Frozen.of(options.freeze), self._adapter()
            only_new = part.backbone or adapter is not None
            decay = 1.0 if only_new or is_published else LAYER_DECAY
            rates = self._rates(options.lr, NEW_RATES if only_new else PRETRAINED_RATES)
            epochs = resolve(options.head_epochs, 0 if is_published else None)
            models[FINE_TUNED] = self._search(
                rates,
                network(self.trained, about_trained, frozen=part, adapter=adapter),
                layer_decay=resolve(options.layer_decay, decay),
                head_epochs=epochs,
            )
            strands = 2 if is_strand_invariant(backbone, self.data.stranded) else 1
            width = self.inputs.width(backbone, self.tokenizer.vocab, self.data.stranded)
            first_stage = {"head_epochs": epochs, "stored_width": strands * width}
        if options.scratch:
            make = network(self.untrained, about_untrained)
            models[SCRATCH] = self._search(from_scratch, make)
        if self.inputs.one_hot and (options.fine_tune or options.scratch):
            models[SAME_HEAD] = self._search(rates, one_hot, **first_stage)
        return models

    def _rates(self, rates: Json, automatic: tuple[float, ...]) -> list[Rates]:
        """The learning rates of the candidates of a grid; `auto` is the published grid, or one
        candidate that chooses from `automatic`."""
        given = as_list(rates)
        return given if AUTO not in given else [*self.protocol.rates] or [automatic]

    def _adapter(self) -> Any:
        """The adapter; ValueError for one that could not change anything."""
        from dnadiff.supervised.networks import LoRA

        adapter = self.options.adapter
        if "_target_" not in adapter:
            return None
        if self.options.freeze == "backbone":
            raise ValueError(
                "freeze=backbone trains no layer, and adapter trains updates of them; set "
                "freeze=none, or adapter=none"
            )
        made = build(adapter, trust=None)
        if not isinstance(made, LoRA):
            raise ValueError(
                f"adapter {adapter['_target_']} is not an adapter (dnadiff.supervised.networks.LoRA)"
            )
        return made

    def _heads(self) -> dict[str, Config]:
        """The head, or with `head=auto` those that take the lengths of the task, by name."""
        from dnadiff.supervised.classifier import check_head

        if "candidates" not in self.head:
            check_head(self.head, self.data)
            return {"": self.head}
        heads = {}
        for name, head in self.head["candidates"].items():
            try:
                check_head(head, self.data)
            except ValueError as error:
                log.info(f"not tried: {error}")
            else:
                heads[name] = head
        return heads

    def _search(
        self, rates: Sequence[Rates], make: Callable[..., NetworkModel], **special: Any
    ) -> TaskModel:
        """A network that is trained on the task; several learning rates, batch sizes or heads make
        a grid search, which shares the `minutes`.

        `make` builds a candidate from learning rate, head and recipe, of which `special` are its
        own.
        """
        from dnadiff.supervised.networks import GridSearch

        options, heads = self.options, self._heads()
        epochs, minutes = resolve(options.epochs, self.protocol.epochs), options.minutes
        if minutes is not None and epochs is not None:
            reason = (
                f"task.protocol={self.protocol.name} has {epochs} epochs"
                if options.epochs == AUTO
                else f"epochs is {epochs}"
            )
            raise ValueError(
                f"minutes {minutes:g} sets the number of epochs, and {reason}; set minutes=null, "
                "or epochs=auto"
            )
        candidates = list(itertools.product(rates, as_list(options.batch_size), heads.items()))
        recipe = {
            "epochs": epochs,
            "minutes": None if minutes is None else minutes / len(candidates),
            "weight_decay": options.weight_decay,
            "warmup": self.protocol.warmup if options.warmup is None else options.warmup,
            "trainer": {"accelerator": options.accelerator, "devices": 1},
            "patience": resolve(options.patience, PATIENCE if epochs is None else None),
            "mixup": options.mixup,
            "balanced": options.class_weights == "balanced",
            **special,
        }
        grid = [
            (
                {"lr": lr, "batch_size": size, **({"head": name} if len(heads) > 1 else {})},
                make(lr, head, batch_size=size, **recipe),
            )
            for lr, size, (name, head) in candidates
        ]
        return GridSearch(grid) if len(grid) > 1 else grid[0][1]

    def check(self) -> None:
        """Build the models that are compared; ValueError if one of them does not fit the task."""
        self.models = self.build_models()
        first = self.protocol.rounds(self.data, self.options.seed)[0].data
        for model in self.models.values():
            model.check(first)

    def combinations(self) -> list[Combination]:
        """The rows that combine others: averaged seeds of the fine-tuned network, and its stack
        with the k-mers."""
        from dnadiff.supervised.study import SeedAverage, Stack

        options = self.options
        found: list[Combination] = []
        if FINE_TUNED not in self.models:
            return found
        # Seeds with other items would add up to more, and a mean over seeds with other folds cannot
        # be ranked within folds.
        varies = options.train_items is not None or self.protocol.tests_all_items
        if options.average and options.seeds > 1 and not varies:
            found.append(SeedAverage(FINE_TUNED, options.seeds))
        if options.stack:
            name = f"{FINE_TUNED} + {options.kmer}-mers, stacked"
            found.append(Stack(FINE_TUNED, self.kmer_row, name))
        return found

    def pairs(self, combined: Sequence[Combination]) -> list[tuple[str, str]]:
        """The pairs of rows whose difference is reported."""
        baseline, probe, random = self.kmer_row, self.row(PROBE), self.row(RANDOM_PROBE)
        pairs = [(FINE_TUNED, SCRATCH), (FINE_TUNED, baseline), (probe, random), (probe, baseline)]
        others = [SAME_HEAD, *map(self.row, self.options.baselines or {})]
        pairs += [(FINE_TUNED, other) for other in others]
        pairs += [(one.name, other) for one in combined for other in (FINE_TUNED, baseline)]
        known = {*self.models, *(one.name for one in combined)}
        return [pair for pair in dict.fromkeys(pairs) if known.issuperset(pair)]

    def run(self, folder: Path, networks: Path, kmers: KmerSet | None) -> dict[str, Json]:
        """Compare the models, with the `kmers` of the pretraining data also on the items inside and
        outside it; save networks in `networks`."""
        from dnadiff.store.address import shown_addresses
        from dnadiff.supervised import overlap, results, saved, study, tables
        from dnadiff.supervised.items import log_task
        from dnadiff.weights.loaded import resolved

        options, loaded, data, protocol = self.options, self.loaded, self.data, self.protocol
        seeds, rounds = options.all_seeds, protocol.rounds(data, options.seed)
        log_task(protocol.example(data, options.seed))
        subsets = overlap.tested_subsets(data, protocol, self.tokenizer, kmers)
        origin = {"checkpoint": str(loaded.path), "step": loaded.step}
        kept = (
            [] if protocol.tests_all_items else [n for n in options.save_models if n in self.models]
        )
        if options.save_models and protocol.tests_all_items:
            log.info(
                f"no network is saved with task.protocol={protocol.name}, which trains one for "
                "each fold; fixed and paper save one for each seed"
            )
        network = loaded.denoiser.backbone
        version = results.code_version(type(network), dict(options) | self.settings)
        provenance = {**origin, "command": " ".join(shown_addresses(options.overrides))}
        stored = results.ResultsFolder(folder, provenance, version, kept)
        steps = sum(
            sum(m.num_steps(r.data) for r in rounds) * len(study.distinct_seeds(m, seeds, protocol))
            for m in self.models.values()
        )
        # A budget ends most networks before the last of their steps.
        progress = Progress(None if options.minutes else steps, "finetune")
        rows = self.combinations()
        try:
            compared = study.run_study(
                data,
                self.models,
                seeds,
                self.pairs(rows),
                progress.update,
                protocol,
                stored,
                subsets,
                rows,
            )
        finally:
            progress.close()
        result = {
            "warning": tables.pretraining_warning(compared["models"], FINE_TUNED, SCRATCH),
            **origin,
            "seeds": seeds,
            "inputs": self.settings["inputs"],
            "counterpart": published_counterpart(loaded, options.layer),
            "class_weights": options.class_weights,
            **compared,
        }
        stored.write_summary(data.name, result)
        about = {
            "layer": options.layer,
            "network": resolved(loaded.config, (PACKAGE, *options.trust))["backbone"],
            "tokenizer": self.tokenizer.config(),
            "pretrained": {**origin, "weights": results.weights_digest(network)},
        }
        settings = {name: model.describe() for name, model in self.models.items()}
        for name, subfolder in SAVED.items():
            weights = {seed: file for (of, seed), file in stored.networks.items() if of == name}
            if weights:
                saved.save_networks(
                    networks / subfolder,
                    {"name": name, "inputs": self.settings["inputs"]},
                    shown_addresses(self.task),
                    about,
                    data,
                    protocol,
                    seeds,
                    result["models"][name],
                    settings[name],
                    weights,
                )
        return result


def published_counterpart(loaded: Loaded, layer: int | None) -> str | None:
    """The published model with the network and objective of the checkpoint; None if there is none,
    or if only some layers are used."""
    from dnadiff.supervised.tables import published_model_of

    objective = loaded.config["objective"]["_target_"].rpartition(".")[2]
    network = type(loaded.denoiser.backbone).__name__
    return published_model_of(network, objective) if layer is None else None


def print_tables(studies: Sequence[Mapping[str, Json]], is_suite: bool) -> None:
    """Print the tables of each task, and for a suite one of all tasks, with published numbers and
    their training sizes."""
    from dnadiff.supervised import study, tables
    from dnadiff.supervised.metrics import title

    for number, result in enumerate(studies):
        models, differences = study.table_rows(result)
        task, metric = result["task"], title(study.primary_metric(result))
        if number:
            print()
        if result["warning"]:
            print(f"warning: {task['name']}: {result['warning']}")
        print(
            f"{metric} on {task['tested']:,} test sequences of {task['name']}, "
            f"chance {task['chance']:.3f}; {duration(result['seconds'])} in total"
        )
        print(table(models, study.header(result)))
        for line in study.remarks(result):
            print(line)
        if differences:
            print()
            print(table(differences, ("difference", metric, "95 % interval", "first is")))
        if subsets := list(next(iter(result["models"].values()))["subsets"]):
            print()
            print(table(study.subset_rows(result), (f"{metric} (items)", *subsets)))
    if is_suite:
        print(
            "\nall tasks; a published number used the training sequences in parentheses, and is "
            "not comparable with one that used fewer; "
            "chance: always the larger class"
        )
        print(table(tables.suite_rows(studies), tables.suite_header(studies)))


main = finetune.main

if __name__ == "__main__":
    main()
