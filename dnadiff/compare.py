"""`python -m dnadiff.compare`: the paired difference of the likelihoods of two models on the same
held-out windows."""

import math
from typing import Literal

from dnadiff.fields import Natural, PositiveInt
from dnadiff.options.base import Accelerator, Draws, Group, Options, Protocol, Result, group
from dnadiff.options.command import command
from dnadiff.progress import table


class CompareOptions(Options):
    """The paired difference of the likelihoods of two models on the same held-out windows, with its
    interval.

        python -m dnadiff.compare a=RUN b=OTHER_RUN            on the held-out data of a
        python -m dnadiff.compare a=RUN b=OTHER_RUN data=fasta data.path=other.fa
        python -m dnadiff.compare a=RUN b=RUN conjoin=[b]      what averaging both strands gains

    Negative: a is better. "better" means that the 95 % interval excludes 0. The likelihood of an
    autoregressive model is exact (as in blocks of one token); that of the others is an upper bound
    on -log p. novel: bases in no 24-mer of the training part of either model. The table has se_mc
    in bits, compare.json in nats.
    """

    tokenizer: Group | None = group()
    """of text; data= chooses its own"""
    data: Group | None = group()
    """other data than those of the run of a"""
    a: str
    """the first model: any name that checkpoint= of other commands takes"""
    b: str
    """the second one, with the same tokenizer"""
    part: Literal["test", "valid", "train"] = "test"
    """of the data"""
    length: PositiveInt | None = None
    """tokens in a window; null: as in the training of a"""
    num_draws: Draws = 8
    protocol: Protocol = "count"
    conjoin: bool | list[Literal["a", "b"]] = False
    """DNA: average the probabilities of both strands at every call: true, or [a] or [b] for one of
    the models"""
    batch_size: PositiveInt = 32
    """windows in a batch"""
    block_size: PositiveInt = 16
    """windows in a bootstrap block"""
    accelerator: Accelerator = "auto"
    """where the networks compute"""
    seed: Natural = 1
    """of the masks, which are the same for both models"""
    output: str | None = None
    """JSON file; null: compare.json in the run folder"""


@command(CompareOptions)
def compare(options: CompareOptions) -> Result:
    """Compare, print the table, and write the JSON file."""
    from dnadiff.genomics import evaluation

    output = options.new_output("compare.json")
    chosen = options.conjoin
    conjoined = ["a", "b"] if chosen is True else [] if chosen is False else chosen
    settings = options.into(
        evaluation.Evaluation, max_draws=max(2, options.num_draws), conjoin=False
    )
    models = {name: options.loaded(name) for name in ("a", "b")}
    content = evaluation.compare(models, settings, output, conjoined)
    bit = math.log(2)
    unit = "bits per base" if content["is_dna"] else "bits per token"
    rows: list[tuple[str, ...]] = []
    for name, found in content["groups"].items():
        d = found["difference"]
        bits = [f"{found[model]['bits']:.4f}" for model in models]
        se_mc = "n/a" if d["se_mc"] is None else f"{d['se_mc'] / bit:.4f}"
        interval = f"[{d['bits_low']:+.4f}, {d['bits_high']:+.4f}]"
        difference = (f"{d['bits']:+.4f}", interval, f"{d['nll']:+.4f}", se_mc)
        rows.append((name, *bits, *difference, f"{found['a']['tokens']:,}", d["verdict"]))
    head = (unit, *models, "a minus b", "95 % interval", "nats", "se_mc (bits)", "tokens", "a is")
    print(table(rows, head))
    for model in models:
        about = f"{content[model]['checkpoint']}, step {content[model]['step']:,}"
        print(f"{model}: {about}; {content['protocol'][model]}")
    if content["se_total_note"]:
        print(content["se_total_note"])
    print(f"files are in {output}")
    return Result(content, (output,))


main = compare.main

if __name__ == "__main__":
    main()
