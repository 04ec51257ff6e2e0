"""`python -m dnadiff.train`: train a model on a genome or a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from dnadiff.fields import Built, Natural, NonNegative, PositiveInt
from dnadiff.options.base import Group, Options, Result, group
from dnadiff.options.command import command


class TrainOptions(Options):
    """Train a masked diffusion model on a genome or a text.

        python -m dnadiff.train                                      E. coli, a small Caduceus
        python -m dnadiff.train data=fasta data.path=my_genome.fa.gz your own genome
        python -m dnadiff.train data=ecoli backbone=dit              a transformer instead
        python -m dnadiff.train data=text data.path=book.txt backbone=dit
        python -m dnadiff.train resume=true                          continue after Ctrl-C: the same
                                                                     command with this added

    SIGTERM and SIGUSR1 save and stop too: exit status 143 and 138.

    What you may want to set in groups: trainer.max_steps (2000), data.length and data.batch_size
    (512 and 16; data=hg38 and text have others), backbone.d_model, backbone.n_layers,
    backbone/size (64x4, and the published 118x4, 256x4, 256x8, 256x16, of caduceus and mamba;
    mini, tiny, small, medium of dit and transformer), optimizer.lr (4e-3), objective/masking
    (bernoulli, as published; importance or count, with less variance; discrete_time, beta,
    clipped), trainer.precision (32-true or bf16-mixed), trainer.devices, trainer.num_nodes,
    trainer.strategy (ddp, fsdp2; docs/scaling.md), and hydra.run.dir, the run folder.

    The run folder holds config.yaml, tokenizer.json, metrics.csv, metrics.json and
    checkpoints/{last,best}.ckpt. All keys with their values: --cfg job
    """

    # Of classes of other packages, whose signatures give no limits.
    inner: ClassVar[Mapping[str, Any]] = {
        "callbacks.checkpoints.every_n_steps": PositiveInt,
        "trainer.callbacks": list[Built] | None,
        "optimizer.lr": NonNegative,
        "optimizer.eps": NonNegative,
        "trainer.max_steps": PositiveInt,
        "trainer.devices": PositiveInt | list[Natural] | str,
        "trainer.num_nodes": PositiveInt,
        "trainer.strategy": str | dict,
        "trainer.gradient_clip_val": NonNegative | None,
        "trainer.log_every_n_steps": PositiveInt,
    }
    tokenizer: Group | None = group()
    """of text; data= chooses its own"""
    data: Group = group("ecoli")
    """a genome (FASTA, 2bit or GenBank; plain or gzip) or a text"""
    backbone: Group = group("caduceus")
    """caduceus, caduceus_ps (reverse-complement equivariant), dit; with objective=ar: mamba,
    transformer"""
    objective: Group = group("mdlm")
    """mdlm, d3pm, sedd, mlm, block_mdlm (block diffusion), sundae with process=uniform, or ar with
    backbone=transformer or mamba"""
    noise: Group = group("loglinear")
    """noise schedule"""
    process: Group = group("absorbing")
    """what a noisy token becomes"""
    optimizer: Group = group("adamw")
    lr_scheduler: Group = group("cosine")
    trainer: Group = group("default")
    """Lightning's Trainer"""
    callbacks: dict[str, Built | None] = group("default")
    logger: Group | None = group("csv")
    """csv, tensorboard, wandb, mlflow, or several as '[tensorboard,wandb]'"""
    experiment: str | None = group(last=True)
    """a recipe that sets the keys above"""
    seed: Natural = 1
    """of weights, windows and masks"""
    init_from: str | None = None
    """initial weights: any name that checkpoint= of other commands takes; their network is used too
    """
    resume: bool = False
    """resume the run in hydra.run.dir; without that key, the newest unfinished run of the same
    configuration"""
    time_conditioning: bool | None = None
    """condition the network on the noise level; null: the default of the objective (true for sedd,
    else false)"""
    context_parallel: PositiveInt = 1
    """processes that hold a piece each of the same windows, for windows too long for one
    (docs/scaling.md)"""
    weight_decay: NonNegative = 0.1
    """of matrices"""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """of float32 matrix products; lower may be faster"""

    def recorded(self) -> dict[str, Any]:
        """What the run records of its configuration: all keys but groups that were not chosen."""
        values = dict(self)
        return {k: v for k, v in values.items() if v is not None or k not in self.groups()}


@command(TrainOptions)
def train(options: TrainOptions) -> Result:
    """Train; the content is that of `metrics.json`, the only path the run folder."""
    from dnadiff.training.run import TrainingRun

    started: dict[str, Any] = {"run_dir": options.run_dir, "arguments": options.arguments}
    metrics, folder = options.into(TrainingRun, recorded=options.recorded(), **started).run()
    return Result(metrics, (folder,))


main = train.main

if __name__ == "__main__":
    main()
