"""`python -m dnadiff.compress`: a FASTA file as the code that a trained model gives it. `dnadiff.decompress` reads it back."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.progress import Progress, table

log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Compress, and return the sizes in bits."""
    import numpy as np
    import torch

    from dnadiff import checkpoint
    from dnadiff.compression import coding, container
    from dnadiff.data.files import atomic_write, check_output
    from dnadiff.data.genome import pieces

    output = check_output(config["output"] or run_dir / f"{Path(config['input']).name}.dnd", config["overwrite"])
    if output.suffix == ".gz":
        raise ValueError(
            f"output {output} ends in .gz, but a .dnd file is a code already and is not packed again; leave .gz out of its name"
        )
    options = {key: checks.integer(key, config[key], least) for key, least in (("num_groups", 1), ("seed", 0), ("batch_size", 1))}
    threads = None if config["threads"] is None else checks.integer("threads", config["threads"], 1)
    coding.library()
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    window = commands.check_window(config["window"], loaded)
    coding.refuse_causal(loaded)
    text = container.read_text(config["input"])
    layout, letters = container.parse(text, config["input"])
    if container.restore(layout, [np.frombuffer(x.upper(), np.uint8) for x in letters]) != text:
        raise ValueError(f"{config['input']} cannot be written back byte for byte; rewrap it, with one kind of line ends")

    denoiser = loaded.denoiser.to(commands.pick_device(config["accelerator"]))
    ids = [torch.from_numpy(loaded.tokenizer.encode(x).astype(np.int64)) for x in letters]
    parts = [ids[p.record][p.start : p.end] for p in pieces.cut([len(x) for x in ids], window)]
    emitted = loaded.tokenizer.vocab.is_emitted()
    encoder = coding.Encoder()
    bar = Progress(len(parts), "compress")
    with coding.threads(threads):
        header = {
            "format": container.FORMAT,
            "model": coding.fingerprint(denoiser, loaded.config),
            "machine": coding.machine(denoiser),
            "window": window,
            **options,
            "text": hashlib.blake2b(text, digest_size=16).hexdigest(),
        }
        masked = [emitted[x] for x in parts]
        coding.code(denoiser, loaded.process, parts, masked, encoder, True, **options, progress=lambda n: bar.update(n, n * window))
    bar.close()
    content = container.pack(header, layout, encoder.words())
    with atomic_write(output, config["overwrite"]) as file:
        file.write(content)
    bases = sum(int(emitted[x].sum()) for x in ids)
    sizes = {
        "bases": bases,
        "code_length": encoder.bits,
        "code": 32 * len(encoder.words()),
        "file": 8 * len(content),
        "text": 8 * len(text),
    }
    show(sizes)
    print(f"files are in {output}")
    return sizes


def show(sizes: dict[str, Any]) -> None:
    """The closing table."""
    per_base = max(sizes["bases"], 1)
    rows = [
        (name, f"{sizes[key] / 8:,.0f}", f"{sizes[key] / per_base:.4f}")
        for name, key in (("code length of the model", "code_length"), ("code", "code"), ("file, all included", "file"), ("text", "text"))
    ]
    print(table([*rows, ("2 bits a base", f"{sizes['bases'] / 4:,.0f}", "2.0000")], ("", "bytes", "bits per base coded")))


def main() -> None:
    """The command line."""
    commands.run("compress", run)


if __name__ == "__main__":
    main()
