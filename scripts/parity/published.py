"""Fetches published weights, evaluates them here, and prints the results beside the published
numbers. Needs a network.

    pip install huggingface_hub datasets transformers
    python scripts/parity/published.py [--model NAME] [--revision NAME=COMMIT] [--sequences N]
    [--device cuda]

mdlm-owt      AG News, test part, zero-shot as published: GPT-2 tokens of a thousand texts at a time
with the end token after each,
              cut into blocks of 1,022 between a begin and an end token, the remainder dropped,
              every token counted.
caduceus-ph   hg38 chr20 (fetched from UCSC), windows of --length bases spread over the chromosome,
without N. These weights are caduceus-ps   masked language models; nothing has been published about
their likelihood, so the number is ours alone.

"As published" is the published estimate: one mask per sequence by coins at stratified times for
MDLM, the mean cross-entropy of 15 % of the tokens for Caduceus. "NELBO" is `dnadiff.likelihood`:
exact counts, several masks a sequence, with errors. Without --revision the newest commit is taken;
what was taken is printed.
"""

import argparse
import math
import urllib.request
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from dnadiff import likelihood
from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.objective.mdlm import MDLM
from dnadiff.objective.mlm import MLM
from dnadiff.process import AbsorbingProcess
from dnadiff.weights import published

HUB = {
    "mdlm-owt": "kuleshov-group/mdlm-owt",
    "caduceus-ph": "kuleshov-group/caduceus-ph_seqlen-131k_d_model-256_n_layer-16",
    "caduceus-ps": "kuleshov-group/caduceus-ps_seqlen-131k_d_model-256_n_layer-16",
}
PERPLEXITY = {"mdlm-owt": 61.15}  # arXiv 2406.07524, zero-shot table, AG News
CHR20 = "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/chromosomes/chr20.fa.gz"


def ag_news() -> torch.Tensor:
    """(S, 1024) token ids."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    texts, tokenizer = (
        load_dataset("ag_news", split="test")["text"],
        AutoTokenizer.from_pretrained("gpt2"),
    )
    begin, end, inside, rows = tokenizer.bos_token_id, tokenizer.eos_token_id, 1022, []
    for first in range(0, len(texts), 1000):
        ids = list(
            chain.from_iterable(
                [*tokenizer(text)["input_ids"], end] for text in texts[first : first + 1000]
            )
        )
        rows += [
            [begin, *ids[i : i + inside], end] for i in range(0, len(ids) - inside + 1, inside)
        ]
    return torch.tensor(rows)


def chr20(length: int, fasta: Path) -> torch.Tensor:
    """(S, length) token ids of the windows without N."""
    from dnadiff.data.genome.genome import Genome

    if not fasta.exists():
        print(f"fetching {CHR20}")
        urllib.request.urlretrieve(CHR20, fasta)
    ids = torch.from_numpy(np.asarray(Genome.open([fasta]).records[0]).astype(np.int64))
    windows = ids[: len(ids) // length * length].view(-1, length)
    return windows[((windows >= 7) & (windows <= 10)).all(1)]


def as_published(denoiser: Denoiser, ids: torch.Tensor, size: int) -> float:
    """Perplexity by the estimate that the weights were published with."""
    process, nats, tokens = AbsorbingProcess(denoiser.vocab, LogLinear()), 0.0, 0.0
    objective = (MLM if denoiser.vocab.complement else MDLM)(process)
    wrapped = objective.denoiser(denoiser.backbone, denoiser.time_conditioning)
    with torch.no_grad():
        for step, batch in enumerate(ids.split(size)):
            batch = batch.to(next(denoiser.parameters()).device)
            draws = Draws(0, torch.arange(len(batch), device=batch.device), step=step)
            result = objective(wrapped, batch, torch.ones_like(batch, dtype=torch.float32), draws)
            nats, tokens = (
                nats + float(result.nll * result.num_tokens),
                tokens + float(result.num_tokens),
            )
    return math.exp(nats / tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", action="append", choices=HUB, help="one of the above; may be repeated (all)"
    )
    parser.add_argument(
        "--revision",
        action="append",
        default=[],
        metavar="NAME=COMMIT",
        help="a model's commit, 40 hexadecimal digits",
    )
    parser.add_argument(
        "--sequences",
        type=int,
        default=512,
        help="evaluate this many, evenly spread (512); 0 is all",
    )
    parser.add_argument("--length", type=int, default=1024, help="window of DNA (1024)")
    parser.add_argument(
        "--num-draws", type=int, default=8, help="masks a sequence for the NELBO (8)"
    )
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--fasta",
        type=Path,
        default=Path("chr20.fa.gz"),
        help="hg38 chr20, fetched to here if absent (chr20.fa.gz)",
    )
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    revisions = dict(item.split("=", 1) for item in args.revision)

    rows = []
    for name in args.model or HUB:
        if name not in revisions:
            from huggingface_hub import HfApi

            revisions[name] = HfApi().model_info(HUB[name]).sha
        print(f"{name}: {HUB[name]} at {revisions[name]}")
        denoiser = published.load_published(HUB[name], revisions[name]).to(args.device)
        ids = ag_news() if name == "mdlm-owt" else chr20(args.length, args.fasta)
        if args.sequences:
            ids = ids[:: max(1, len(ids) // args.sequences)][: args.sequences]
        counted = (
            (batch, {"all": torch.ones_like(batch, dtype=torch.bool)})
            for batch in ids.split(args.batch_size)
        )
        nelbo = likelihood.estimate(
            denoiser, AbsorbingProcess(denoiser.vocab, LogLinear()), counted, args.num_draws
        ).summary()
        error = nelbo["perplexity"] * nelbo["se_total"]
        theirs = f"{PERPLEXITY[name]:.2f}" if name in PERPLEXITY else "none"
        rows.append(
            (
                name,
                len(ids),
                theirs,
                as_published(denoiser, ids, args.batch_size),
                f"{nelbo['perplexity']:.3f} +- {error:.3f}",
            )
        )

    print("\nPerplexity per token\n")
    print(
        "| weights | sequences | published | as published, here | NELBO, here "
        "|\n|---|---|---|---|---|"
    )
    for name, count, theirs, ours, bound in rows:
        print(f"| {name} | {count} | {theirs} | {ours:.3f} | {bound} |")


if __name__ == "__main__":
    main()
