"""`python -m dnadiff.evaluate`: held-out likelihood with error bars, compared with Markov models of
the training part of the same data."""

import math
from typing import Annotated, Literal

from annotated_types import Interval
from pydantic import Field

from dnadiff.fields import Positive, PositiveInt
from dnadiff.options.base import Draws, Group, ModelOptions, Protocol, Reported, Result, group
from dnadiff.options.command import command
from dnadiff.progress import table


class EvaluateOptions(ModelOptions, Reported):
    """Likelihood of held-out sequences with error bars, compared with Markov models fitted on the
    same training part.

        python -m dnadiff.evaluate checkpoint=RUN
        python -m dnadiff.evaluate checkpoint=RUN data=fasta data.path=other.fa

    bits: bits per base, an upper bound on -log2 p. se_mc: Monte Carlo error for these sequences;
    se_total: error for new sequences of this kind. novel: bases in no 24-mer of the training part.
    lost structure: the extra cost of K network calls (sampler=grouped) over one token per call, as
    a fraction of its maximum. The table has errors in bits, evaluate.json and target_se in nats.
    """

    tokenizer: Group | None = group()
    """of text; data= chooses its own"""
    data: Group | None = group()
    """other data than those of the checkpoint's run"""
    alignment: str | None = None
    """of related genomes, in place of that of the data; none: the sequence alone"""
    annotation: str | None = None
    """GTF, GFF or BED file: also bits by type of region, of a base in several the one with the
    fewest bases"""
    part: Literal["test", "valid", "train"] = "test"
    """of the data"""
    length: PositiveInt | None = None
    """tokens in a window; null: as in training. Longer windows give a network without max_length
    more context"""
    num_draws: Draws = 8
    target_se: Positive | None = None
    """nats per token; draws are doubled until se_mc is at most this"""
    max_draws: Annotated[int, Field(ge=2)] = 1024
    """maximum number of draws"""
    protocol: Protocol = "count"
    order: Literal["left_to_right", "strided", "confidence"] | None = None
    """left_to_right, strided or confidence: the exact -log p of unmasking in this order, with a
    network call per token; null: the bound"""
    both_strands: bool = False
    """DNA: also the other strand, with their mean and difference"""
    conjoin: bool = False
    """DNA: average the probabilities of both strands at every call; twice the work"""
    orders: list[Annotated[int, Interval(ge=0, le=26)]] = [0, 3, 6, 12]
    """of the Markov models to compare with (DNA)"""
    block_size: PositiveInt = 16
    """windows in a bootstrap block"""
    output: str | None = None
    """JSON file; null: evaluate.json in the folder of this command. sample reads RUN/evaluate.json
    of the training run"""
    windows: str | None = None
    """.npz file: nats of each window, for paired differences between models
    (dnadiff.genomics.held_out.Scores)"""


@command(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Result:
    """Evaluate, print the tables, and write the JSON file."""
    from dnadiff.diffusion.bootstrap import verdict
    from dnadiff.genomics import evaluation
    from dnadiff.store.disk import check_output
    from dnadiff.weights import checkpoint

    output = options.new_output("evaluate.json")
    windows = check_output(options.windows, options.overwrite) if options.windows else None
    settings = options.into(evaluation.Evaluation)
    # The tokenizer of data= is used if the model has none.
    model = checkpoint.load(options.checkpoint, options.trust, needs_tokenizer=False)
    content = evaluation.evaluate(model, settings, output, windows)
    unit = "bits per base" if content["is_dna"] else "bits per token"
    bit = math.log(2)
    rows: list[tuple[str, ...]] = []
    for name, g in content["groups"].items():
        values = [f"{g[key]:.4f}" for key in ("bits", "nll", "perplexity")]
        se_mc = "n/a" if g["se_mc"] is None else f"{g['se_mc'] / bit:.4f}"
        rows.append((name, *values, se_mc, f"{g['se_total'] / bit:.4f}", f"{g['tokens']:,}"))
    errors = ("se_mc (bits)", "se_total (bits)", "number")
    print(table(rows, ("tokens counted", unit, "nats", "perplexity", *errors)))
    print(content["protocol"])
    if content["se_total_note"]:
        print(content["se_total_note"])
    if content["both_strands"]:
        rows = []
        for name, g in content["both_strands"].items():
            strands = [f"{g[key] / bit:.4f}" for key in ("forward", "reverse", "mean")]
            interval = f"[{g['gap_low'] / bit:+.4f}, {g['gap_high'] / bit:+.4f}]"
            rows.append((name, *strands, f"{g['gap'] / bit:+.4f}", interval))
        print("\n" + table(rows, ("bits", "forward", "reverse", "mean", "gap", "95 % interval")))
    if content["markov"]:
        rows = [
            (
                f"Markov order {m['order']}, {name}",
                f"{g['bits']:.4f}",
                f"{g['difference_bits']:+.4f}",
                f"[{g['low']:+.4f}, {g['high']:+.4f}]",
                verdict(g["low"], g["high"], above="worse", below="better"),
            )
            for m in content["markov"]
            for name, g in m["groups"].items()
        ]
        fitted = f"fitted on {content['markov'][0]['trained_on']} (train)"
        print("\n" + table(rows, (fitted, unit, "model minus it", "95 % interval", "the model is")))
    if content["code_length"]:
        rows = []
        for row in content["code_length"]["rows"]:
            costs: list[str] = []
            for cost in (row["uniform"], row["optimal"]):
                lost = cost["lost_structure"]
                costs += (f"{cost['bits']:.4f}", "n/a" if lost is None else f"{100 * lost:.1f} %")
            se = row["uniform"]["se"]
            rows.append((f"{row['groups']}", *costs, "n/a" if se is None else f"{se:.4f}"))
        is_whole = content["code_length"]["alone_bits"] is None
        calls = "network calls" if is_whole else "calls per block"
        head = (calls, unit, "lost structure", "best sizes", "lost structure", "se (bits)")
        print("\n" + table(rows, head))
    print(f"files are in {output}")
    return Result(content, tuple(filter(None, (output, windows))))


main = evaluate.main

if __name__ == "__main__":
    main()
