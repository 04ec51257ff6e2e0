"""Fine-tuning speed: sequences per second, and the fraction of the time spent waiting for batches.

    python scripts/bench/finetune.py [--length 251] [--sequences 512] [--batch-size 32] [--size
    64x4] [--quick]

Random sequences of one length, and as many of lengths between a fifth of it and all of it, through
the training of `python -m dnadiff.finetune`: Caduceus under a linear layer, both strands. One epoch
warms up, the second is measured.
"""

import argparse

import numpy as np
import torch

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.commands import configure_logging
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.progress import table
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.networks import FineTunedModel

MAX_WAITING = 0.01  # fraction of the training time above which fine-tuning waits for data


def task(length: int, number: int, mixed: bool) -> TaskData:
    """Random sequences with random classes."""
    draws, vocab = np.random.default_rng(1), DNATokenizer().vocab

    def items(size: int) -> Items:
        lengths = draws.integers(length // 5, length + 1, size) if mixed else np.full(size, length)
        sequences = [draws.integers(7, 11, n).astype(np.uint8) for n in lengths]
        return Items.from_sequences(sequences, np.arange(size) % 2, vocab.pad_id)

    return TaskData("random", ["a", "b"], items(number), items(16), items(16))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=251)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", default="64x4", help="width x layers")
    parser.add_argument(
        "--quick", action="store_true", help="a few small batches: only tests that it runs"
    )
    options = parser.parse_args()
    if options.quick:
        options.length, options.sequences, options.size = 50, 64, "16x1"
    configure_logging()
    width, layers = map(int, options.size.split("x"))
    rows, waits, vocab = [], [], DNATokenizer().vocab
    for name, mixed in (
        (f"all of {options.length}", False),
        (f"{options.length // 5} to {options.length}", True),
    ):
        data = task(options.length, options.sequences, mixed)
        torch.manual_seed(0)
        settings = {
            "batch_size": options.batch_size,
            "trainer": {"accelerator": "auto", "devices": 1},
        }
        for _ in range(2):
            model = FineTunedModel(
                lambda seed: Caduceus(vocab, width, layers), lr=1e-3, epochs=1, **settings
            )
            model.fit(data, 0)
        bases = int(data.train.lengths.sum()) / len(data.train)
        speed, wait = model.fit_info["sequences_per_second"], model.fit_info["waiting_share"]
        rows.append((name, f"{speed:,.1f}", f"{speed * bases:,.0f}", f"{100 * wait:.3f} %"))
        waits.append(wait)
    print(table(rows, ("bases", "sequences/s", "tokens/s", "waiting for data")))
    print(
        f"fine-tuning {'waits for data' if max(waits) > MAX_WAITING else 'does not wait for data'} "
        f"({options.size}, {torch.get_num_threads()} threads)"
    )


if __name__ == "__main__":
    main()
