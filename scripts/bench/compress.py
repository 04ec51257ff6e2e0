"""Compressed size of a held-out piece of a model's own genome: the model in K calls, Markov models,
2 bits per base and xz.

    python scripts/bench/compress.py RUN [--bases 50000] [--groups 8 32 128] [--threads 1] [--quick]
    [--json FILE] [--markdown FILE]

Every file is decompressed again and compared. "predicted" is sum s_k h(n_k) from a separate
estimate on the same windows, with its standard error (over windows). Markov models are ideal code
lengths: order 12 with adaptive counts, starting without counts or from those of the training part
    (strengths from the validation part), because encoder and decoder of the network's code know the
    training part too.
"""

import argparse
import contextlib
import io
import json
import lzma
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from adaptive_markov import adaptive_log_probs, untrained

from dnadiff import likelihood
from dnadiff.compression.files import compress, decompress
from dnadiff.config import build
from dnadiff.data.genome import pieces
from dnadiff.formats.fasta import Record, write_fasta
from dnadiff.likelihood import curve
from dnadiff.markov.model import BackoffMarkov
from dnadiff.progress import table
from dnadiff.weights import checkpoint


def predicted(loaded, ids, batch_size: int, groups: list[int]) -> dict[int, tuple[float, float]]:
    """Bits per base of K calls and their standard errors, estimated from the likelihood."""
    window = loaded.config["data"]["length"]
    parts = [ids[p.start : p.end] for p in pieces.cut([len(ids)], window)]
    emitted = loaded.tokenizer.vocab.is_emitted()
    windows = [
        likelihood.WindowBatch(x, {"all": emitted[x]}, valid)
        for _, x, valid in pieces.batches(parts, batch_size, loaded.tokenizer.vocab.pad_id)
    ]
    result = likelihood.estimate(
        loaded.denoiser, loaded.process, windows, 8, seed=7, block_size=4, curve=True
    )
    start = likelihood.all_masked(loaded.denoiser, loaded.process, windows)
    sums = curve.CurveSums.from_estimates(result, start, max(map(len, parts)))
    rows = curve.code_length_table(sums, groups)["rows"]
    return {row["groups"]: (row["uniform"]["bits"], row["uniform"]["se"]) for row in rows}


def xz(content: bytes) -> int:
    """Bytes after xz with its strongest settings."""
    return len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--bases", type=int, default=50_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--order", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="8,192 bases")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = checkpoint.load(args.checkpoint)
    data = build(loaded.config["data"])
    data.prepare()
    bases = 8192 if args.quick else args.bases
    ids = torch.from_numpy(np.array(data.sequences("test")[0][:bases])).long()
    letters = loaded.tokenizer.decode(ids)
    content = {
        "checkpoint": str(loaded.path),
        "data": data.describe(),
        "bases": len(ids),
        "rows": [],
    }
    expected = predicted(loaded, ids, args.batch_size, args.groups)
    rows = []

    def add(name: str, bits: float, predicted: str = "", seconds: str = "") -> None:
        rows.append((name, f"{bits / len(ids):.4f}", f"{bits / 8:,.0f}", predicted, seconds))
        content["rows"].append({"name": name, "bits_per_base": bits / len(ids), "bytes": bits / 8})

    with tempfile.TemporaryDirectory() as folder:
        fasta = Path(folder) / "x.fa"
        write_fasta(fasta, [Record("held_out", "", letters.encode())])
        for k in args.groups:
            packed, back = Path(folder) / "x.dnd", Path(folder) / "y.fa"
            start = time.monotonic()
            with contextlib.redirect_stdout(io.StringIO()):
                options = {"num_groups": k, "batch_size": args.batch_size}
                sizes = compress(str(fasta), packed, str(loaded.path), overwrite=True, **options)
                decompress(str(packed), back, str(loaded.path), overwrite=True)
            assert back.read_bytes() == fasta.read_bytes()
            value, se = expected[k]
            add(
                f"model, {k} calls: code",
                sizes["code"],
                f"{value:.4f} +- {se:.4f}",
                f"{time.monotonic() - start:.0f}",
            )
            content["rows"][-1] |= {"predicted": value, "se": se, "calls": k}
            add(f"model, {k} calls: file", sizes["file"])
        add("FASTA text, xz -9e", 8 * xz(fasta.read_bytes()))
    x = loaded.tokenizer.bases(ids.numpy())
    fours = np.pad(x & 3, (0, -len(x) % 4)).reshape(-1, 4)
    add("sequence only, xz -9e", 8 * xz(letters.encode()))
    add(
        "2 bits per base, then xz -9e",
        8 * xz((fours << np.array([6, 4, 2, 0], np.uint8)).sum(1, dtype=np.uint8).tobytes()),
    )
    to_bases = loaded.tokenizer.bases
    add(
        f"Markov order {args.order}, adaptive, untrained",
        -np.nansum(adaptive_log_probs(untrained(args.order, 16), x)) / math.log(2),
    )
    fitted = BackoffMarkov.fit([to_bases(np.array(s)) for s in data.sequences("train")], args.order)
    tuned = fitted.tuned([to_bases(np.array(s)) for s in data.sequences("valid")], sweeps=4)
    add(
        f"Markov order {args.order}, trained and adaptive",
        -np.nansum(adaptive_log_probs(tuned, x)) / math.log(2),
    )
    add("2 bits per base", 2.0 * len(ids))
    head = (
        f"{len(ids):,} held-out bases",
        "bits per base",
        "bytes",
        "predicted",
        "s, both directions",
    )
    print(table(rows, head))
    if args.markdown:
        lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
        args.markdown.write_text("\n".join(lines) + "\n")
    if args.json:
        args.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
