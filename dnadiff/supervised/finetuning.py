"""A task of `python -m dnadiff.finetune`: the models that are compared on it, the comparison, the
networks that are saved, and the study."""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dnadiff.data.kmers import KmerSet
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.process import Process
from dnadiff.fields import Config, Json, JsonDict, JsonMap, as_list, is_built
from dnadiff.networks.adapter import LoRA, build_adapter
from dnadiff.networks.backbone.base import Backbone
from dnadiff.progress import Progress, duration, log, table
from dnadiff.store.objects import PACKAGE, build
from dnadiff.supervised import labeled, saved, study
from dnadiff.supervised.baselines import (
    LOGISTIC,
    Estimators,
    KmerLogistic,
    LinearProbe,
    NearestNeighbors,
)
from dnadiff.supervised.classifier import (
    MEAN_HEAD,
    HeadInputs,
    check_head,
    check_length,
    keep_first_layers,
)
from dnadiff.supervised.combined import BASES, KMERS, NETWORK, CombinedModel
from dnadiff.supervised.items import EVALUATION, TaskData, TaskModel, log_task
from dnadiff.supervised.metrics import title
from dnadiff.supervised.networks import (
    FineTunedModel,
    Frozen,
    GridSearch,
    NetworkModel,
    OneHotModel,
)
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.study import FINE_TUNED, PRETRAINING, SCRATCH
from dnadiff.supervised.training import NEW_RATES, PRETRAINED_RATES
from dnadiff.weights.loaded import Loaded, build_denoiser, resolved
from dnadiff.weights.tensors import fingerprint

AUTO = "auto"  # a value that suits the task
PATIENCE = 5
LAYER_DECAY = 0.8
COMBINATION = "combination"
ON_BASES = "small network on the bases"
PROBE = "frozen + logistic regression"
RANDOM_PROBE = "untrained, frozen + logistic regression"
NEIGHBORS = "frozen, nearest neighbors"
# Subfolders of saved networks, by their rows.
SAVED = {COMBINATION: "", FINE_TUNED: "", SCRATCH: "scratch"}


def dna_tokenizer(loaded: Loaded) -> DNATokenizer:
    """The tokenizer of a model of DNA; ValueError for one of text, or one that reads no tokens."""
    if not isinstance(loaded.tokenizer, DNATokenizer):
        raise ValueError(
            f"{loaded.path} was trained on text, and the tasks are DNA; name a run trained on DNA"
        )
    if not isinstance(loaded.process, Process):
        raise ValueError(
            f"{loaded.path} has a network that reads vectors, and a classifier reads tokens; name "
            "a run of another objective, such as mdlm"
        )
    return loaded.tokenizer


def resolve(value: Json, automatic: Json) -> Json:
    """The value, or what `auto` stands for."""
    return automatic if value == AUTO else value


def recorded(options: Config, is_published: bool, head_is_named: bool) -> Config:
    """The options of a study of one task as they are recorded, with what `auto` stands for.

    Args:
        is_published: the protocol of the task is the published one.
        head_is_named: on the command line.
    """
    inputs = options["inputs"]
    trains = options["fine_tune"] or options["scratch"]
    one_hot = resolve(inputs["one_hot"], trains and not is_published)
    combine = resolve(options["combine"], options["fine_tune"] and not is_published)
    head = MEAN_HEAD if is_published and not head_is_named else options["head"]
    listed = {key: as_list(options[key]) for key in ("batch_size", "lr", "lr_scratch")}
    own = {"head": head, "combine": combine, "inputs": {**inputs, "one_hot": one_hot}}
    return {**options, **own, **listed}


@dataclass(eq=False, kw_only=True)
class TaskStudy:
    """One task: its data, and the models that are compared on it.

    Args:
        task: the configuration of its reader.
        asked: the options of the command; its head is not used with the published protocol, unless
            it is named.

    Raises:
        ValueError: in one line, if the task cannot be divided, or does not fit the network.
    """

    loaded: Loaded
    task: Config
    data: TaskData
    protocol: FixedSplit
    asked: Any

    def __post_init__(self) -> None:
        asked = self.asked
        self.tokenizer = dna_tokenizer(self.loaded)
        self.all_seeds = list(range(asked.seed, asked.seed + asked.seeds))
        check_length(self.trained(0), self.data)  # now, not after the baselines
        for seed in self.all_seeds if self.protocol.varies else [asked.seed]:
            self.protocol.rounds(self.data, seed)  # refuse a task that cannot be divided
        self.is_published = self.protocol.epochs is not None
        config = {**dict(asked), "task": self.task}
        is_named = any(asked.given("head"))
        self.settings = recorded(config, self.is_published, is_named)
        self.head, self.head_inputs = self.settings["head"], HeadInputs(**self.settings["inputs"])

    def trained(self, seed: int) -> Backbone:
        """A copy of the pretrained network."""
        return keep_first_layers(copy.deepcopy(self.loaded.denoiser.backbone), self.asked.layer)

    def untrained(self, seed: int) -> Backbone:
        """The same network with random weights."""
        torch.manual_seed(hash64(seed, "scratch") % 2**63)
        trust = (PACKAGE, *self.asked.trust)
        denoiser = build_denoiser(self.loaded.config, self.loaded.tokenizer, trust)[0]
        return keep_first_layers(denoiser.backbone, self.asked.layer)

    def row(self, name: str) -> str:
        """The name of a model in the study: of logistic regressions, the estimator that the target
        of the task uses."""
        return name.replace(LOGISTIC, Estimators(self.data.target).linear_name)

    @property
    def kmer_row(self) -> str:
        """The name of the linear model on k-mers."""
        return self.row(f"{self.asked.kmer}-mer logistic regression")

    def build_models(self) -> dict[str, TaskModel]:
        """The models of the study by name: the trained network, alone or combined with others, the
        same network untrained, and baselines."""
        asked = self.asked
        backbone = self.loaded.denoiser.backbone
        device = asked.device
        about: JsonDict = {} if asked.layer is None else {"layer": asked.layer}
        about_untrained = {"untrained": self.loaded.config["backbone"], **about}
        weights = fingerprint(backbone)[:12]
        about_trained = {"weights": weights, "step": self.loaded.step, **about}
        models = self._networks(about_trained, about_untrained)
        for name, baseline in (asked.baselines or {}).items():
            if not is_built(baseline):
                raise ValueError(
                    f"baselines.{name} is {baseline!r}; give it a _target_, as those of "
                    "baselines=all have"
                )
            built = build(dict(baseline), self.tokenizer, trust=None)
            if isinstance(built, NetworkModel):
                built.device = device
            models.setdefault(self.row(name), built)
        trained: dict[str, Any] = {"about": about_trained, "device": device}
        if asked.neighbors:
            models[NEIGHBORS] = NearestNeighbors(self.trained, **trained)
        if asked.probe:
            models[self.row(PROBE)] = LinearProbe(self.trained, **trained)
            models[self.row(RANDOM_PROBE)] = LinearProbe(
                self.untrained, about=about_untrained, device=device, random=True
            )
        return models

    def _networks(self, about: JsonDict, about_untrained: JsonDict) -> dict[str, TaskModel]:
        """The networks that are trained, and with `combine` the k-mers, by name."""
        asked = self.asked
        from_scratch = self._rates(asked.lr_scratch, NEW_RATES)
        network = partial(FineTunedModel, inputs=self.head_inputs, device=asked.device)
        models: dict[str, TaskModel] = {}
        if asked.fine_tune:
            freeze = asked.freeze
            frozen = Frozen(freeze == "backbone", freeze if isinstance(freeze, int) else 0)
            adapter = self._adapter()
            only_new = frozen.backbone or adapter is not None
            decay = 1.0 if only_new or self.is_published else LAYER_DECAY
            rates = self._rates(asked.lr, NEW_RATES if only_new else PRETRAINED_RATES)
            models[FINE_TUNED] = self._search(
                rates,
                partial(network, self.trained, about=about, frozen=frozen, adapter=adapter),
                layer_decay=resolve(asked.layer_decay, decay),
                head_epochs=resolve(asked.head_epochs, 0 if self.is_published else None),
            )
        combines = self.settings["combine"]
        if combines or (self.head_inputs.one_hot and (asked.fine_tune or asked.scratch)):
            models[ON_BASES] = self._search(from_scratch, self._one_hot)
        if asked.scratch:
            make = partial(network, self.untrained, about=about_untrained)
            models[SCRATCH] = self._search(from_scratch, make)
        models[self.kmer_row] = KmerLogistic(self.tokenizer, asked.kmer)
        if not combines:
            return models
        rows = {NETWORK: FINE_TUNED, BASES: ON_BASES, KMERS: self.kmer_row}
        controls = {row: model for row, model in models.items() if row not in rows.values()}
        members = {name: models[row] for name, row in rows.items()}
        return {COMBINATION: CombinedModel(rows, members, asked.minutes, controls)}

    def _one_hot(self, *, head: Config, **recipe: Any) -> NetworkModel:
        made = build({**head, "_partial_": True}, trust=None)
        length = self.head_inputs.length
        device = self.asked.device
        return OneHotModel(self.tokenizer, made, length=length, device=device, **recipe)

    def _rates(self, rates: Json, automatic: tuple[float, ...]) -> list[Json]:
        """The learning rates of the candidates of a grid; `auto` is the published grid, or one
        candidate that chooses from `automatic`."""
        given = as_list(rates)
        return given if AUTO not in given else [*self.protocol.rates] or [automatic]

    def _adapter(self) -> LoRA | None:
        """The adapter; ValueError for one that could not change anything."""
        asked = self.asked
        if "_target_" not in asked.adapter:
            return None
        if asked.freeze == "backbone":
            raise ValueError(
                "freeze=backbone trains no layer, and adapter trains updates of them; set "
                "freeze=none, or adapter=none"
            )
        return build_adapter(asked.adapter, None)

    def _heads(self) -> dict[str, Config]:
        """The head, or with `head=auto` those that take the lengths of the task, by name."""
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
        self, rates: Sequence[Json], make: Callable[..., NetworkModel], **special: Json
    ) -> TaskModel:
        """A network that is trained on the task; several learning rates, batch sizes or heads make
        a grid search, which shares the `minutes`.

        `make` builds a candidate from learning rate, head and recipe, of which `special` are its
        own.
        """
        asked = self.asked
        heads = self._heads()
        minutes = asked.minutes
        epochs = resolve(asked.epochs, self.protocol.epochs)
        if minutes is not None and epochs is not None:
            reason = (
                f"task.protocol={self.protocol.name} has {epochs} epochs"
                if asked.epochs == AUTO
                else f"epochs is {epochs}"
            )
            raise ValueError(
                f"minutes {minutes:g} sets the number of epochs, and {reason}; set minutes=null, "
                "or epochs=auto"
            )
        candidates = list(itertools.product(rates, as_list(asked.batch_size), heads.items()))
        recipe = {
            "epochs": epochs,
            "minutes": None if minutes is None else minutes / len(candidates),
            "weight_decay": asked.weight_decay,
            "warmup": self.protocol.warmup if asked.warmup is None else asked.warmup,
            "patience": resolve(asked.patience, PATIENCE if epochs is None else None),
            "mixup": asked.mixup,
            "balanced": asked.class_weights == "balanced",
            **special,
        }
        grid = [
            (
                {"lr": lr, "batch_size": size, **({"head": name} if len(heads) > 1 else {})},
                make(lr=lr, head=head, batch_size=size, **recipe),
            )
            for lr, size, (name, head) in candidates
        ]
        return GridSearch(grid) if len(grid) > 1 else grid[0][1]

    def check(self) -> None:
        """Build the models that are compared; ValueError if one of them does not fit the task."""
        self.models = self.build_models()
        first = self.protocol.rounds(self.data, self.asked.seed)[0].data
        for model in self.models.values():
            model.check(first)

    @property
    def predictor(self) -> str:
        """The row of the predictor that is saved."""
        return COMBINATION if self.settings["combine"] else FINE_TUNED

    @property
    def combined(self) -> list[str]:
        """The rows of the members of the combination."""
        model = self.models.get(COMBINATION)
        return [*model.rows.values()] if isinstance(model, CombinedModel) else []

    def averaged(self) -> list[str]:
        """The models of which the seeds are averaged."""
        # Seeds with other items would add up to more, and a mean over seeds with other folds cannot
        # be ranked within folds.
        varies = self.asked.train_items is not None or self.protocol.tests_all_items
        applies = self.asked.average and self.asked.seeds > 1 and not varies
        return [self.predictor] if applies and self.predictor in self.models else []

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of rows whose difference is reported."""
        baseline, probe, random = self.kmer_row, self.row(PROBE), self.row(RANDOM_PROBE)
        predictor = self.predictor
        average = study.averaged_row(predictor, self.asked.seeds)
        pairs = [(COMBINATION, other) for other in self.combined]
        pairs += [PRETRAINING, (FINE_TUNED, baseline), (probe, random), (probe, baseline)]
        pairs += [(FINE_TUNED, ON_BASES)]
        pairs += [(predictor, other) for other in map(self.row, self.asked.baselines or {})]
        pairs += [(average, other) for other in (predictor, baseline)]
        known = {*self.models, *(average for _ in self.averaged())}
        known.update(*(model.members for model in self.models.values()))
        return [pair for pair in dict.fromkeys(pairs) if known.issuperset(pair)]

    def run(self, folder: Path, networks: Path, kmers: KmerSet | None) -> JsonDict:
        """Compare the models, with the `kmers` of the pretraining data also on the items inside and
        outside it; save networks in `networks`."""
        asked = self.asked
        loaded = self.loaded
        data = self.data
        protocol = self.protocol
        seeds = self.all_seeds
        rounds = protocol.rounds(data, asked.seed)
        subsets = labeled.tested_subsets(data, protocol, self.tokenizer, kmers)
        about = log_task(protocol.example(data, asked.seed), protocol.tested(data).labels, subsets)
        origin = {"checkpoint": str(loaded.path), "step": loaded.step}
        kept = [self.predictor if name == FINE_TUNED else name for name in asked.save_models]
        if asked.save_models and protocol.tests_all_items:
            kept = []
            log.info(
                "no network is saved with task.folds, which trains one for each fold; leave it out "
                "to save one for each seed"
            )
        network = loaded.denoiser.backbone
        version = saved.code_version(type(network), {**dict(asked), **self.settings})
        provenance = {**origin, "command": " ".join(asked.overrides)}
        stored = saved.ResultsFolder(folder, provenance, version, kept)
        steps = sum(
            sum(m.num_steps(r.data) for r in rounds) * len(study.distinct_seeds(m, seeds, protocol))
            for m in self.models.values()
        )
        # A budget ends most networks before the last of their steps.
        progress = Progress(None if asked.minutes else steps, "finetune")
        compare = (seeds, self.pairs(), progress.update, protocol, stored, subsets, self.averaged())
        try:
            compared = study.run_study(data, self.models, *compare)
        finally:
            progress.close()
        result = {
            "warning": study.pretraining_warning(compared["models"]),
            **origin,
            "data": about,
            "seeds": seeds,
            "inputs": self.settings["inputs"],
            "predictor": self.predictor,
            "members": self.combined,
            "counterpart": published_counterpart(loaded, asked.layer),
            "class_weights": asked.class_weights,
            **compared,
        }
        models = dict(self.models)
        for of in self.models.values():
            models |= of.members
        for (name, seed), weights in stored.networks.items():
            model = result["models"][name]
            number = seeds.index(seed)
            content = description(
                loaded,
                protocol.rounds(data, seed)[-1].data,  # the network is of the last round
                {"longest": data.max_length, "settings": self.task},
                sorted(other for of, other in stored.networks if of == name),
                models[name].describe(),
                model["found"][number][0],
                result["inputs"],
                asked.layer,
                asked.trust,
            )
            of_seed = {key: each["per_seed"][number] for key, each in model["metrics"].items()}
            content |= {"name": name, "metrics": of_seed}
            saved.save(networks / SAVED[name], seed, weights, content)
        return result


def description(
    loaded: Loaded,
    data: TaskData,
    task: JsonMap,
    seeds: Sequence[int],
    settings: JsonMap,
    found: JsonMap,
    inputs: JsonMap,
    layer: int | None = None,
    trust: Sequence[str] = (),
) -> JsonDict:
    """What the description of a saved network (`saved.save`) says: what is predicted, the first
    `layer` layers of the pretrained network and its configuration, and how it was trained.

    Args:
        data: that it was trained on.
        task: its `longest` sequence and its `settings`.
        seeds: of all networks of the run.
        settings, found: those of its model, and what its fit recorded.
    """
    columns = loaded.config.get("columns")  # how the network reads an alignment
    return {
        "classes": list(data.target.names),
        "stranded": data.stranded,
        "layer": layer,
        "network": resolved(loaded.config, (PACKAGE, *trust))["backbone"],
        "tokenizer": loaded.tokenizer.config(),
        "pretrained": {
            "checkpoint": str(loaded.path),
            "step": loaded.step,
            "weights": fingerprint(loaded.denoiser.backbone)[:12],
            **({"columns": columns} if columns else {}),
        },
        "target": data.target.fit(data.train.labels).settings(),
        "task": {"name": data.name, "items": data.counts(), **task},
        "seeds": list(seeds),
        "settings": settings,
        "found": found,
        "head": found["head"],
        "members": found.get("members"),
        "inputs": inputs,
        # That predicted the test items.
        "batch_size": EVALUATION * {**settings, **found.get("chosen", {})}["batch_size"],
    }


def published_counterpart(loaded: Loaded, layer: int | None) -> str | None:
    """The published model with the network and objective of the checkpoint; None if there is none,
    or if only some layers are used."""
    objective = loaded.config["objective"]["_target_"].rpartition(".")[2]
    network = type(loaded.denoiser.backbone).__name__
    return study.PUBLISHED_MODELS.get((network, objective)) if layer is None else None


def print_tables(studies: Sequence[JsonMap], is_suite: bool) -> None:
    """Print the tables of each task, and for a suite one of all tasks, with published numbers and
    their training sizes."""
    for number, result in enumerate(studies):
        models, differences = study.table_rows(result)
        task = result["task"]
        metric = title(study.primary_metric(result))
        if number:
            print()
        print(study.headline(result))
        if result["warning"]:
            print(f"warning: {task['name']}: {result['warning']}")
        print(
            f"{metric} on {task['tested']:,} test sequences of {task['name']}, "
            f"chance {task['chance']:.3f}; {duration(result['seconds'])} in total"
        )
        print(table(models[1:], models[0]))
        for line in study.remarks(result):
            print(line)
        if differences:
            print("\n" + table(differences, ("difference", metric, "95 % interval", "first is")))
        if subsets := list(next(iter(result["models"].values()))["subsets"]):
            rows = [(name, *study.on_subsets(result, name).values()) for name in result["models"]]
            print("\n" + table(rows, (f"{metric} (items)", *subsets)))
    if is_suite:
        print(
            "\nall tasks; a published number used the training sequences in parentheses, and is "
            "not comparable with one that used fewer; chance: always the larger class"
        )
        columns, *rows = study.suite_rows(studies)
        print(table(rows, columns))
