"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file, as a table."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dnadiff import commands
from dnadiff.checks import Range, integer
from dnadiff.config import SHARED, Config, Keys
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from dnadiff.checkpoint import Loaded

COLUMNS = ("name", "length", "counted", "nats_per_base", "bits_per_base", "se_mc", "total_bits")
log = logging.getLogger("dnadiff")
KEYS: Keys = {**SHARED, "input": str, "num_draws": Annotated[int, Range(2)]}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score and return the file written."""
    import numpy as np
    import torch

    from dnadiff import checkpoint, likelihood
    from dnadiff.data.files import atomic_write, check_output
    from dnadiff.data.genome.fasta import read_fasta
    from dnadiff.design.template import dna_tokenizer

    output = check_output(config["output"] or run_dir / "scores.tsv", config["overwrite"])
    batch_size, seed = integer("batch_size", config["batch_size"]), integer("seed", config["seed"], 0)
    num_draws = likelihood.check_num_draws(integer("num_draws", config["num_draws"], 2))
    model = checkpoint.load(config["checkpoint"], config["trust"])
    model.denoiser.to(commands.pick_device(config["accelerator"]))
    window = commands.check_window(config["window"], model)
    records = read_fasta(config["input"])
    encode = dna_tokenizer(model.tokenizer).encode
    ids = [torch.from_numpy(encode(r.sequence)) for r in records]
    nats, variance, counted = score(model, ids, window, batch_size, num_draws, seed)
    with np.errstate(invalid="ignore"):  # nan for a record without a countable base
        per_base, se = nats / counted, np.sqrt(variance) / counted
    with atomic_write(output, config["overwrite"]) as file:
        file.write(("\t".join(COLUMNS) + "\n").encode())
        for i, r in enumerate(records):
            numbers = (per_base[i], per_base[i] / math.log(2), se[i], nats[i] / math.log(2))
            file.write("\t".join([r.name, str(len(r.sequence)), f"{counted[i]:.0f}", *(f"{x:.6f}" for x in numbers)]).encode() + b"\n")
    bases = max(counted.sum(), 1)
    rows: list[tuple[str, ...]] = [
        ("records", f"{len(records):,}"),
        ("bases counted", f"{counted.sum():,.0f} of {sum(map(len, ids)):,}"),
        ("bits per base", f"{nats.sum() / bases / math.log(2):.4f}"),
        ("se_mc (bits)", f"{math.sqrt(variance.sum()) / bases / math.log(2):.4f}"),
    ]
    print(table(rows))
    print(f"files are in {output}")
    return output


def score(
    model: Loaded, ids: Sequence[Tensor], window: int, batch_size: int, num_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nats, their Monte Carlo variance and the counted bases of each record, three arrays (R,).

    Records are cut into windows of at most `window` bases, and there are `num_draws` network calls per window; an autoregressive model
    needs one.
    """
    import numpy as np
    import torch

    from dnadiff import likelihood
    from dnadiff.data.genome import pieces

    emitted, causal = model.tokenizer.vocab.is_emitted(), model.denoiser.causal
    cuts = pieces.cut([len(x) for x in ids], window)
    cuts = [p for p in cuts if emitted[ids[p.record][p.start : p.end].long()].any()]  # windows without a countable base need no call
    parts = [ids[p.record][p.start : p.end] for p in cuts]
    log.info(f"model: {model.path}; {len(ids):,} records in {len(parts):,} windows of at most {window} bases")

    order: list[int] = []

    def batches() -> Iterator[likelihood.WindowBatch]:
        for number, tokens, valid in pieces.batches(parts, batch_size, model.tokenizer.vocab.pad_id):
            order.extend(number)
            yield likelihood.WindowBatch(tokens, {"all": emitted[tokens]}, valid, rows=torch.tensor(number))

    bar = Progress(len(parts), "score")

    def progress(n: int) -> None:
        bar.update(n, n * window * (1 if causal else num_draws))

    nats, variance, counted = np.zeros((3, len(ids)))
    if parts:
        if causal:
            result = likelihood.chain_rule(model.denoiser, batches(), 1, progress)
        else:
            result = likelihood.estimate(model.denoiser, model.process, batches(), num_draws, seed, 1, progress)
        record = [cuts[i].record for i in order]
        for total, values in ((nats, result.per_sequence()), (variance, result.variance_mc()), (counted, result.tokens["all"])):
            np.add.at(total, record, values)
    bar.close()
    return nats, variance, counted


def main() -> None:
    """The command line."""
    commands.run("score", run, KEYS)


if __name__ == "__main__":
    main()
