"""`python -m dnadiff.finetune`: fine-tune a trained network on a task, and compare it with the same
network from scratch and with baselines."""

import shlex
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from annotated_types import Interval
from pydantic import model_validator
from typing_extensions import TypedDict

from dnadiff.fields import (
    Fraction,
    Json,
    Natural,
    NonNegative,
    Positive,
    PositiveFraction,
    PositiveInt,
)
from dnadiff.options.base import Accelerator, Checkpoint, Config, Group, Options, Result, group
from dnadiff.options.command import command
from dnadiff.progress import log
from dnadiff.renamed import with_current_names
from dnadiff.store.address import expand_user, shown_addresses
from dnadiff.store.objects import build, leaves
from dnadiff.supervised import runs

# Keys on which neither the numbers nor the saved networks depend.
STARTING = {"overwrite", "trust", "results", "accelerator", "resume", "output"}
AUTO: Literal["auto"] = "auto"  # a value that suits the task


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
          baselines=all
        python -m dnadiff.finetune checkpoint=RUN task=csv task.path=t.csv task.kind=regression
        python -m dnadiff.finetune checkpoint=RUN task=ecoli_tss task.path=FILE
          baselines=ecoli_promoter

    Of a task, task.sequence_column, task.label_column and task.split_column name columns of your
    table (label_column=[a,b] several), task.kind is classification, regression, multilabel or
    ordinal (a list: one for each column), and task.stranded says whether the label depends on the
    strand. A regression has task.loss=mse, huber or poisson and task.transform=none, log1p or log2.
    With task.cluster_kmer=24, sequences that share a 24-mer stay in one part of a random split.
    task.protocol is fixed or paper (each seed draws its validation part), and task.folds=5 is
    cross-validation. "better" means that the 95 % interval of the difference excludes 0; one run of
    a network has no verdict.
    """

    inner = dict.fromkeys(
        ("task.name", "task.genome", "task.fly_genome", "task.mouse_genome"), str | None
    )

    checkpoint: Checkpoint
    task: Group = group("ecoli_coding")
    """what is predicted"""
    alignment: str | None = None
    """of related genomes, made for the genome of the task (docs/related_genomes.md); for networks
    that read one"""
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
    """wall-clock budget of the predictor of a seed, with all members and searches, which sets the
    epochs; with combine=false, of each trained network; null: none"""
    patience: PositiveInt | Literal["auto"] | None = AUTO
    """stop after N epochs without a better validation score (accuracy, weighted with
    class_weights=balanced; loss for values and labels); auto: 5 with epochs=auto; null: never"""
    batch_size: PositiveInt | list[PositiveInt] = 16
    """or a list, of which validation chooses"""
    lr: PositiveFraction | Literal["auto"] | list[PositiveFraction] = AUTO
    """peak learning rate of the fine-tuned network; auto: short trials of four rates; from a list,
    complete training of each"""
    lr_scratch: PositiveFraction | Literal["auto"] | list[PositiveFraction] = AUTO
    """of the same network from scratch, and of the small network on the bases"""
    layer_decay: PositiveFraction | Literal["auto"] = AUTO
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
    combine: bool | Literal["auto"] = AUTO
    """predict with a combination of the fine-tuned network, a small network on the bases and the
    k-mers, with weights fitted on validation; auto: true, false with task.protocol=paper or
    fine_tune=false; false: with the network alone"""
    average: bool = True
    """without train_items and task.folds, also report the mean of the predictions (of
    classes and labels, the probabilities) over the seeds"""
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
    """what is saved of every seed in models/ of the run folder, for python -m dnadiff.predict:
    fine-tuned (the combination, with combine=false the network alone), scratch"""
    results: str | None = None
    """folder of finished predictions, which several processes can share, and from which an
    interrupted study resumes; null: results in the run folder"""
    accelerator: Accelerator = "auto"
    resume: bool = False
    """continue the study in hydra.run.dir; one that is complete is left alone"""
    output: str | None = None
    """JSON file; null: finetune.json in the run folder"""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.results and expand_user(self.results).is_file():
            raise ValueError(f"results {self.results} is a file; name a folder")
        if self.combine is True and not self.fine_tune:
            raise ValueError(
                "combine=true combines the fine-tuned network with others, and fine_tune is false; "
                "set combine=auto"
            )
        if "scratch" in self.save_models and not self.scratch:
            raise ValueError(
                "save_models [scratch] saves the network from scratch, and scratch is false; set "
                "scratch=true, or leave scratch out of save_models"
            )
        for key in ("batch_size", "lr", "lr_scratch"):
            if getattr(self, key) == []:
                raise ValueError(f"{key} is an empty list; give at least one value")
        return self


def check_same(before: Config, now: Config, run_dir: Path) -> None:
    """Raise ValueError, naming the first key that differs, if a complete study was computed with
    other options than those `now`; where and how it was started may differ."""
    was, wanted = (
        {key: value for key, value in leaves(shown_addresses(each)) if key not in STARTING}
        for each in (with_current_names(before), now)
    )
    for key in was | wanted:
        if was.get(key) != wanted.get(key):
            raise ValueError(
                f"{run_dir} has a complete study with {key}={was.get(key)}, not {wanted.get(key)}; "
                "name another hydra.run.dir, or set overwrite=true without resume"
            )


@command(FinetuneOptions)
def finetune(options: FinetuneOptions) -> Result:
    """Run the study; the content is that of `finetune.json`: one study, or `tasks` with one for
    each of several tasks."""
    from dnadiff.report.suite import write_suite
    from dnadiff.store import disk
    from dnadiff.supervised import finetuning, labeled, protocol, saved, tasks
    from dnadiff.weights import checkpoint

    run_dir = options.run_dir
    output = expand_user(options.output) if options.output else run_dir / "finetune.json"
    if options.resume and not any(each.startswith("hydra.run.dir=") for each in options.arguments):
        raise ValueError("resume=true needs hydra.run.dir=, the folder of the study to resume")
    settings = dict(options)
    several = options.task.get("tasks")
    head_is_named = any(options.given("head"))
    if several is None:
        is_published = options.task.get("protocol") == protocol.PaperSplit.name
        settings = finetuning.recorded(settings, is_published, head_is_named)
    if options.resume and output.is_file():
        check_same(disk.read_yaml(run_dir / "finetune.yaml"), settings, run_dir)
        print(
            f"{output} is complete already; to compute it again, set overwrite=true without resume"
        )
        return Result(disk.read_json(output), (output, run_dir / "report.html"))
    disk.check_output(output, options.overwrite)
    loaded = checkpoint.load(options.checkpoint, options.trust)
    tokenizer = finetuning.dna_tokenizer(loaded)
    alignment = loaded.columns_for(options.alignment)
    log.info(f"network: {loaded.path}, step {loaded.step:,}; run folder {run_dir}")
    chosen = {"": options.task} if several is None else tasks.find_tasks(several)
    data = options.pretraining_overlap
    kmers = (
        labeled.pretraining_kmers(loaded.config, tokenizer, options.trust, data) if data else None
    )
    found: dict[str, dict[str, Json]] = {}
    folder = Path(options.results or run_dir / "results")
    saved.check_results(folder)  # damage would end every task after its training
    is_training = False
    left_out = {name: "no data" for name in several or () if name not in chosen}
    for name, task in chosen.items():
        try:
            reader = build(task, trust=None)
            study = finetuning.TaskStudy(
                loaded=loaded,
                task=task,
                data=reader.load(tokenizer, alignment),
                protocol=protocol.build_protocol(
                    reader.protocol, tokenizer.vocab.pad_id, options.train_items, reader.folds
                ),
                asked=options,
            )
            study.check()
            if not is_training:
                # Only now: a command that trains nothing keeps the classifiers of an earlier run.
                runs.remove_all(run_dir / runs.FOLDER)
                is_training = True
            # Of a single task, whose name is empty here: the folder itself.
            networks = run_dir / runs.FOLDER / saved.slug(name)
            found[name] = study.run(folder, networks, kmers)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            log.debug(f"{name} failed", exc_info=True)  # before or during its training
            is_last = not found and name == list(chosen)[-1]
            is_full = isinstance(error, OSError) and error.errno in disk.FULL
            if several is None or is_last or is_full:
                raise
            left_out[name] = " ".join(str(error).split()) or type(error).__name__
            log.warning(f"{name} is left out: {left_out[name]}")
    result = found[""] if several is None else {"tasks": found, "left_out": left_out}
    studies = list(found.values())
    settings = study.settings if several is None else settings
    text = yaml.safe_dump(settings, sort_keys=False, width=120)
    disk.write_bytes(run_dir / "finetune.yaml", text.encode())
    shown = f"python -m dnadiff.finetune {shlex.join(options.overrides)}"
    write_suite(run_dir / "report.html", studies, [shown])
    # Last: while it does not exist, the command can be started again.
    disk.write_json(output, result)
    finetuning.print_tables(studies, is_suite=several is not None)
    for name, why in left_out.items():
        print(f"left out: {name} ({why})")
    print(
        f"files are in {run_dir}"
        if output.parent == run_dir
        else f"result in {output}, report in {run_dir}"
    )
    return Result(result, (output, run_dir / "report.html"))


main = finetune.main

if __name__ == "__main__":
    main()
