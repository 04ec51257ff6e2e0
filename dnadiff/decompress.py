"""`python -m dnadiff.decompress`: restore the FASTA file that `dnadiff.compress` compressed, byte
for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dnadiff import checks, commands
from dnadiff.config import SHARED, Config, Keys
from dnadiff.progress import Progress

KEYS: Keys = {**SHARED, "input": str, "max_bytes": checks.PositiveInt | None}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Decompress, and return the path of the output file."""
    import numpy as np
    import torch

    from dnadiff.compression import coding, container
    from dnadiff.data.genome import pieces
    from dnadiff.store.address import file_name
    from dnadiff.store.disk import atomic_write, check_output
    from dnadiff.store.files import resolve
    from dnadiff.weights import checkpoint

    output = check_output(
        config["output"]
        or run_dir / file_name(config["input"]).removeprefix("bundled:").removesuffix(".dnd"),
        config["overwrite"],
    )
    max_bytes = checks.optional_integer("max_bytes", config["max_bytes"])
    path, (header, about, words) = config["input"], container.unpack(config["input"], max_bytes)
    coding.library()
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    denoiser = coding.diffusion_denoiser(loaded).to(commands.pick_device(config["accelerator"]))
    coding.check_model(path, header.model, coding.fingerprint(denoiser, loaded.config))
    coding.check_match(path, header.machine, coding.describe(denoiser))

    tokenizer, vocab = loaded.tokenizer, loaded.tokenizer.vocab
    known = container.skeletons(about)
    cuts = pieces.cut([len(x) for x in known], header.window)
    padded = coding.padded_size([p.end - p.start for p in cuts], header.batch_size)
    container.check_size(
        path, "a batch", padded, container.size_limit(resolve(path).stat().st_size, max_bytes)
    )
    letters = [np.where(row == 0, ord("A"), row).astype(np.uint8).tobytes() for row in known]
    ids = [torch.from_numpy(tokenizer.encode(x)) for x in letters]
    masked = [torch.from_numpy(known[p.record][p.start : p.end] == 0) for p in cuts]
    parts = [
        torch.where(m, vocab.mask_id, ids[p.record][p.start : p.end]) for m, p in zip(masked, cuts)
    ]
    bar = Progress(len(parts), "decompress")
    with coding.threads(int(header.machine["threads"])):
        coding.check_match(path, header.machine, coding.measure(denoiser, loaded.process))
        settings = (
            coding.Decoder(words, str(path)),
            header.num_groups,
            header.seed,
            header.batch_size,
        )
        found = coding.code(
            denoiser,
            loaded.process,
            parts,
            masked,
            *settings,
            progress=lambda n: bar.update(n, n * header.window),
        )
    bar.close()
    for piece, tokens in zip(cuts, found):
        ids[piece.record][piece.start : piece.end] = tokens
    text = container.restore(
        about, [np.frombuffer(tokenizer.decode(x.numpy()).encode(), np.uint8) for x in ids]
    )
    if hashlib.blake2b(text, digest_size=16).hexdigest() != header.text:
        raise ValueError(
            f"{path}: the decoded text is not the compressed one: {coding.OTHER_PROBABILITIES}"
        )
    with atomic_write(output, config["overwrite"]) as file:
        file.write(text)
    print(f"files are in {output}")
    return output


def main() -> None:
    """The command line."""
    commands.run("decompress", run, KEYS)


if __name__ == "__main__":
    main()
