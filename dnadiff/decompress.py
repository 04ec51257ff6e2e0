"""`python -m dnadiff.decompress`: restore the FASTA file that `dnadiff.compress` compressed, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dnadiff import commands
from dnadiff.config import Config, Json
from dnadiff.progress import Progress

REMEDY = {
    "device": "decompress on the kind of device that compressed: set accelerator=cpu or gpu",
    "instructions": "decompress on a machine with the same kind of processor, or set ATEN_CPU_CAPABILITY to the value in the file",
    "torch": "install that version of torch",
    "dtype": "load the model in that precision",
    "scan": "set DNADIFF_SCAN to the value in the file",
    "products": "call torch.set_float32_matmul_precision with the value in the file",
    "threads": "leave OMP_NUM_THREADS unset, or set it to the value in the file",
    "constriction": "install that version of constriction",
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Decompress, and return the path of the output file."""
    import numpy as np
    import torch

    from dnadiff import checkpoint
    from dnadiff.compression import coding, container
    from dnadiff.data.files import atomic_write, check_output
    from dnadiff.data.genome import pieces

    output = check_output(config["output"] or run_dir / Path(config["input"]).name.removesuffix(".dnd"), config["overwrite"])
    header, layout, words = container.unpack(config["input"])
    if header["format"] != container.FORMAT:
        raise ValueError(
            f"{config['input']} has format {header['format']}, this version reads {container.FORMAT}; use the dnadiff that wrote it"
        )
    coding.library()
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    denoiser = coding.diffusion_denoiser(loaded).to(commands.pick_device(config["accelerator"]))
    with coding.threads(header["machine"]["threads"]):
        check_match(config["input"], header, coding.fingerprint(denoiser, loaded.config), coding.machine(denoiser))

    tokenizer, vocab = loaded.tokenizer, loaded.tokenizer.vocab
    known = container.skeletons(layout)
    letters = [np.where(row == 0, ord("A"), row).astype(np.uint8).tobytes() for row in known]
    ids = [torch.from_numpy(tokenizer.encode(x).astype(np.int64)) for x in letters]
    cuts = pieces.cut([len(x) for x in ids], header["window"])
    masked = [torch.from_numpy(known[p.record][p.start : p.end] == 0) for p in cuts]
    parts = [torch.where(m, vocab.mask_id, ids[p.record][p.start : p.end]) for m, p in zip(masked, cuts)]
    bar = Progress(len(parts), "decompress")
    settings = {key: header[key] for key in ("num_groups", "seed", "batch_size")} | {
        "progress": lambda n: bar.update(n, n * header["window"])
    }
    with coding.threads(header["machine"]["threads"]):
        found = coding.code(denoiser, loaded.process, parts, masked, coding.Decoder(words), **settings)
    bar.close()
    for piece, tokens in zip(cuts, found):
        ids[piece.record][piece.start : piece.end] = tokens
    text = container.restore(layout, [np.frombuffer(tokenizer.decode(x.numpy()).encode(), np.uint8) for x in ids])
    if hashlib.blake2b(text, digest_size=16).hexdigest() != header["text"]:
        raise ValueError(f"{config['input']}: the decoded text is not the compressed one: {coding.OTHER_PROBABILITIES}")
    with atomic_write(output, config["overwrite"]) as file:
        file.write(text)
    print(f"files are in {output}")
    return output


def check_match(path: str, header: Mapping[str, Json], model: str, machine: Mapping[str, Json]) -> None:
    """Raise ValueError if this model or this machine cannot read a file, with the first difference and the remedy."""
    if header["model"] != model:
        raise ValueError(f"{path} was compressed with another model ({header['model'][:12]}, this is {model[:12]}); give its checkpoint")
    for key, remedy in REMEDY.items():
        if (then := header["machine"].get(key)) != machine[key]:
            raise ValueError(f"{path} was compressed with {key} {then}, here it is {machine[key]}: {remedy}")


def main() -> None:
    """The command line."""
    commands.run("decompress", run)


if __name__ == "__main__":
    main()
