"""`python -m dnadiff.compress`: lossless compression of a FASTA file with a trained model.
`dnadiff.decompress` restores it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dnadiff import checks, commands
from dnadiff.config import SHARED, Config, Keys
from dnadiff.progress import Progress, table

KEYS: Keys = {
    **SHARED,
    "input": str,
    "num_groups": checks.PositiveInt,
    "threads": checks.PositiveInt | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> dict[str, float]:
    """Compress, and return the number of coded bases and sizes in bits: of the ideal code, the
    code, the .dnd file, and the text."""
    import numpy as np
    import torch

    from dnadiff.compression import coding, container
    from dnadiff.data.genome import pieces
    from dnadiff.store.address import file_name
    from dnadiff.store.disk import atomic_write, check_output
    from dnadiff.weights import checkpoint

    output = check_output(
        config["output"] or run_dir / f"{file_name(config['input']).removeprefix('bundled:')}.dnd",
        config["overwrite"],
    )
    if output.suffix.lower() == ".gz":
        raise ValueError(
            f"output {output} ends in .gz, but a .dnd file is compressed already; give it a name "
            "without .gz"
        )
    options = {
        key: checks.integer(key, config[key], low)
        for key, low in {"num_groups": 1, "seed": 0, "batch_size": 1}.items()
    }
    threads = checks.optional_integer("threads", config["threads"])
    coding.library()
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    window = commands.check_window(config["window"], loaded)
    denoiser = coding.diffusion_denoiser(loaded).to(commands.pick_device(config["accelerator"]))
    text = container.read_text(config["input"])
    about, letters = container.parse(text, config["input"])
    if container.restore(about, [np.frombuffer(x.upper(), np.uint8) for x in letters]) != text:
        raise ValueError(
            f"{config['input']} cannot be restored byte for byte; rewrite it with one kind of line "
            "breaks"
        )
    ids = [torch.from_numpy(loaded.tokenizer.encode(x)) for x in letters]  # a byte a base
    parts = [ids[p.record][p.start : p.end] for p in pieces.cut([len(x) for x in ids], window)]
    emitted = loaded.tokenizer.vocab.is_emitted()
    encoder = coding.Encoder()
    bar = Progress(len(parts), "compress")
    with coding.threads(threads):
        header = container.ContainerHeader(
            container.FORMAT,
            coding.fingerprint(denoiser, loaded.config),
            coding.describe(denoiser) | coding.measure(denoiser, loaded.process),
            window,
            text=hashlib.blake2b(text, digest_size=16).hexdigest(),
            **options,
        )
        masked = [emitted[x.long()] for x in parts]
        coding.code(
            denoiser,
            loaded.process,
            parts,
            masked,
            encoder,
            **options,
            progress=lambda n: bar.update(n, n * window),
        )
    bar.close()
    content = container.pack(header, about, encoder.words())
    needed = max(
        container.expanded_size(about),
        coding.padded_size([len(x) for x in parts], options["batch_size"]),
    )
    with atomic_write(output, config["overwrite"]) as file:
        file.write(content)
    bits = {
        "code_length": encoder.bits,
        "code": 32 * len(encoder.words()),
        "file": 8 * len(content),
        "text": 8 * len(text),
    }
    sizes = {"bases": sum(int(m.sum()) for m in masked), **bits}
    show(sizes)
    print(f"files are in {output}")
    if needed > container.size_limit(len(content)):
        print(f"the text is much longer than the file: to decompress it set max_bytes={needed}")
    return sizes


def show(sizes: Mapping[str, float]) -> None:
    """Print the sizes."""
    bits = {
        "code length of the model": sizes["code_length"],
        "code": sizes["code"],
        "file, with side information": sizes["file"],
        "text": sizes["text"],
        "2 bits per base": 2 * sizes["bases"],
    }
    rows = [
        (name, f"{size / 8:,.0f}", f"{size / max(sizes['bases'], 1):.4f}")
        for name, size in bits.items()
    ]
    print(table(rows, ("", "bytes", "bits per coded base")))


def main() -> None:
    """The command line."""
    commands.run("compress", run, KEYS)


if __name__ == "__main__":
    main()
