"""`python -m dnadiff.train`: train a model on a genome or a text."""

from dnadiff.fields import Config, PositiveInt
from dnadiff.options.base import Group, Reported, Result, TrainingOptions, group
from dnadiff.options.command import command, compose


class TrainOptions(TrainingOptions, Reported):
    """Train a masked diffusion model on a genome or a text.

        python -m dnadiff.train                                      E. coli, a small Caduceus
        python -m dnadiff.train data=fasta data.path=my_genome.fa.gz your own genome
        python -m dnadiff.train data=ecoli backbone=dit              a transformer instead
        python -m dnadiff.train data=fasta data.path=x.fa data.alignment=x.aln
                                                                     with related genomes
        python -m dnadiff.train init_from=ecoli data=sequences data.path=promoters.csv
        'data.condition_columns=[activity]' adapter=lora     sequences of a given activity
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

    data: Group = group("ecoli")
    """a genome (FASTA, 2bit or GenBank; plain or gzip) or a text"""
    backbone: Group = group("caduceus")
    """caduceus, caduceus_ps (reverse-complement equivariant), dit; with objective=ar: mamba,
    transformer"""
    objective: Group = group("mdlm")
    """mdlm, learned_order, d3pm, sedd, mlm, block_mdlm (block diffusion), bound (of any process),
    genmd4 with process=token_rates, sundae with process=uniform, or ar with backbone=transformer
    or mamba"""
    noise: Group = group("loglinear")
    """noise schedule"""
    process: Group = group("absorbing")
    """what a noisy token becomes: absorbing (a mask); with objective=bound also uniform (a random
    token) or hybrid (a mask or a random token)"""
    columns: Group | None = group()
    """how the network reads data.alignment: posterior, frequencies or both; null: posterior"""
    init_from: str | None = None
    """initial weights: any name that checkpoint= of other commands takes; their network is used too
    """
    adapter: Group = group("none")
    """with init_from=: none, lora (train updates of low rank instead of the weights)"""
    time_conditioning: bool | None = None
    """condition the network on the noise level; null: the default of the objective (true for sedd
    and bound, else false)"""
    context_parallel: PositiveInt = 1
    """processes that hold a piece each of the same windows, for windows too long for one
    (docs/scaling.md)"""


@command(TrainOptions)
def train(options: TrainOptions) -> Result:
    """Train; the content is that of `metrics.json`, the only path the run folder."""
    from dnadiff.training.run import run

    def sampler(name: str) -> Config:
        return compose("sample", [f"sampler={name}"])["sampler"]

    given = options.recorded(), options.run_dir, options.arguments
    metrics, folder = run(*given, sampler if options.report else None)
    return Result(metrics, (folder,))


main = train.main

if __name__ == "__main__":
    main()
