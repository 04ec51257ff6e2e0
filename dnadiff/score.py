"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file, to a table."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.progress import Progress, table

COLUMNS = ("name", "length", "counted", "nats_per_base", "bits_per_base", "se_mc", "total_bits")
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score and return the file written."""
    import numpy as np
    import torch

    from dnadiff import checkpoint
    from dnadiff.data.files import atomic_write, check_output
    from dnadiff.data.genome.fasta import read_fasta

    output = check_output(config["output"] or run_dir / "scores.tsv", config["overwrite"])
    batch_size, num_draws, seed = (
        checks.integer(key, config[key], least) for key, least in (("batch_size", 1), ("num_draws", 2), ("seed", 0))
    )
    if num_draws % 2:
        raise ValueError(f"num_draws {num_draws} must be even and at least 2: two draws a stratum give the Monte-Carlo error")
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    tokenizer, denoiser = loaded.tokenizer, loaded.denoiser.to(commands.pick_device(config["accelerator"]))
    window = commands.check_window(config["window"], loaded)
    records = read_fasta(config["input"])
    ids = [torch.from_numpy(tokenizer.encode(r.sequence)) for r in records]
    nats, variance, counted = measured(loaded, denoiser, ids, window, batch_size, num_draws, seed)
    with np.errstate(invalid="ignore"):  # a record without a countable base has no likelihood: nan
        per_base, se = nats / counted, np.sqrt(variance) / counted
    with atomic_write(output, config["overwrite"]) as file:
        file.write(("\t".join(COLUMNS) + "\n").encode())
        for i, r in enumerate(records):
            numbers = (per_base[i], per_base[i] / math.log(2), se[i], nats[i] / math.log(2))
            file.write("\t".join([r.name, str(len(r.sequence)), f"{counted[i]:.0f}", *(f"{x:.6f}" for x in numbers)]).encode() + b"\n")
    bases = max(counted.sum(), 1)
    rows = [
        ("records", f"{len(records):,}"),
        ("bases counted", f"{counted.sum():,.0f} of {sum(map(len, ids)):,}"),
        ("bits per base", f"{nats.sum() / bases / math.log(2):.4f}"),
        ("se_mc (bits)", f"{math.sqrt(variance.sum()) / bases / math.log(2):.4f}"),
    ]
    print(table(rows))
    print(f"files are in {output}")
    return output


def measured(
    loaded: Any, denoiser: Any, ids: Sequence[Any], window: int, batch_size: int, num_draws: int, seed: int
) -> tuple[Any, Any, Any]:
    """Nats, their Monte-Carlo variance and the counted bases of each record, three arrays (R,); records are read in windows."""
    import numpy as np
    import torch

    from dnadiff import likelihood
    from dnadiff.data.genome import pieces

    tokenizer, emitted = loaded.tokenizer, loaded.tokenizer.vocab.is_emitted()
    cuts = pieces.cut([len(x) for x in ids], window)
    cuts = [p for p in cuts if emitted[ids[p.record][p.start : p.end].long()].any()]  # nothing is asked where nothing counts
    parts = [ids[p.record][p.start : p.end] for p in cuts]
    causal = hasattr(denoiser, "next_log_probs")
    log.info(f"model: {loaded.path}; {len(ids):,} records in {len(parts):,} windows of at most {window} bases")

    order: list[int] = []

    def batches() -> Iterator[likelihood.WindowBatch]:
        for number, tokens, valid in pieces.batches(parts, batch_size, tokenizer.vocab.pad_id):
            order.extend(number)
            yield likelihood.WindowBatch(tokens, {"all": emitted[tokens]}, valid, rows=torch.tensor(number))

    bar = Progress(len(parts), "score")
    settings = {"block_size": 1, "progress": lambda n: bar.update(n, n * window * (1 if causal else num_draws))}
    nats, variance, counted = np.zeros((3, len(ids)))
    if parts:
        if causal:
            result = likelihood.chain_rule(denoiser, batches(), **settings)
        else:
            result = likelihood.estimate(denoiser, loaded.process, batches(), num_draws, seed, **settings)
        record = [cuts[i].record for i in order]
        for total, values in ((nats, result.per_sequence()), (variance, result.variance_mc()), (counted, result.tokens["all"])):
            np.add.at(total, record, values)
    bar.close()
    return nats, variance, counted


def main() -> None:
    """The command line."""
    commands.run("score", run)


if __name__ == "__main__":
    main()
