"""Compressing a FASTA file with a model, and restoring it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dnadiff.data.genome import pieces
from dnadiff.fields import Natural, PositiveInt, checked
from dnadiff.genomics.compression import coding, container
from dnadiff.progress import Progress
from dnadiff.store.disk import atomic_write, check_output
from dnadiff.store.files import resolve
from dnadiff.weights import checkpoint


@checked
def compress(
    path: str,
    output: Path,
    model: str,
    *,
    num_groups: PositiveInt = 64,
    window: PositiveInt | None = None,
    batch_size: PositiveInt = 32,
    seed: Natural = 1,
    threads: PositiveInt | None = None,
    device: str = "cpu",
    trust: Sequence[str] = (),
    overwrite: bool = False,
) -> dict[str, float]:
    """Compress a FASTA file.

    Args:
        num_groups: network calls per batch of windows, or for each block.
        window: bases; longer records are cut. None is the training window.
        threads: None keeps PyTorch's number.

    Returns:
        The number of coded bases, sizes in bits of the ideal code, the code, the file and the text,
        and the bytes that decompressing needs.
    """
    check_output(output, overwrite)
    if output.suffix.lower() == ".gz":
        raise ValueError(
            f"output {output} ends in .gz, but a .dnd file is compressed already; give it a name "
            "without .gz"
        )
    coding.library()
    loaded = checkpoint.load(model, trust)
    window = loaded.window(window)
    denoiser = coding.diffusion_denoiser(loaded).to(device)
    text = container.read_text(path)
    about, letters = container.parse(text, path)
    if container.restore(about, [np.frombuffer(x.upper(), np.uint8) for x in letters]) != text:
        raise ValueError(
            f"{path} cannot be restored byte for byte; rewrite it with one kind of line breaks"
        )
    ids = [torch.from_numpy(loaded.tokenizer.encode(x)) for x in letters]  # a byte a base
    parts = [ids[p.record][p.start : p.end] for p in pieces.cut([len(x) for x in ids], window)]
    emitted = loaded.tokenizer.vocab.is_emitted()
    encoder, bar = coding.Encoder(), Progress(len(parts), "compress")
    options = {"num_groups": num_groups, "seed": seed, "batch_size": batch_size}
    with coding.threads(threads):
        header = container.ContainerHeader(
            container.FORMAT,
            coding.fingerprint(denoiser, loaded.config),
            coding.describe(denoiser) | coding.measure(denoiser, loaded.process),
            window,
            text=_digest(text),
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
    padded = coding.padded_size([len(x) for x in parts], batch_size)
    with atomic_write(output, overwrite) as file:
        file.write(content)
    return {
        "bases": sum(int(m.sum()) for m in masked),
        "code_length": encoder.bits,
        "code": 32 * len(encoder.words()),
        "file": 8 * len(content),
        "text": 8 * len(text),
        "needed": max(container.expanded_size(about), padded),
    }


@checked
def decompress(
    path: str,
    output: Path,
    model: str,
    *,
    max_bytes: PositiveInt | None = None,
    device: str = "cpu",
    trust: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Restore a FASTA file, byte for byte.

    Args:
        max_bytes: what the text, its layout or a batch may take; None is 1 MiB or 100 times the
            size of the file, whichever is more.
    """
    check_output(output, overwrite)
    header, about, words = container.unpack(path, max_bytes)
    coding.library()
    loaded = checkpoint.load(model, trust)
    denoiser = coding.diffusion_denoiser(loaded).to(device)
    coding.check_model(path, header.model, coding.fingerprint(denoiser, loaded.config))
    coding.check_match(path, header.machine, coding.describe(denoiser))

    tokenizer, vocab = loaded.tokenizer, loaded.tokenizer.vocab
    known = container.skeletons(about)
    cuts = pieces.cut([len(x) for x in known], header.window)
    padded = coding.padded_size([p.end - p.start for p in cuts], header.batch_size)
    limit = container.size_limit(resolve(path).stat().st_size, max_bytes)
    container.check_size(path, "a batch", padded, limit)
    letters = [np.where(row == 0, ord("A"), row).astype(np.uint8).tobytes() for row in known]
    ids = [torch.from_numpy(tokenizer.encode(x)) for x in letters]
    masked = [torch.from_numpy(known[p.record][p.start : p.end] == 0) for p in cuts]
    parts = [
        torch.where(m, vocab.mask_id, ids[p.record][p.start : p.end]) for m, p in zip(masked, cuts)
    ]
    bar = Progress(len(parts), "decompress")
    with coding.threads(int(header.machine["threads"])):
        coding.check_match(path, header.machine, coding.measure(denoiser, loaded.process))
        found = coding.code(
            denoiser,
            loaded.process,
            parts,
            masked,
            coding.Decoder(words, path),
            header.num_groups,
            header.seed,
            header.batch_size,
            progress=lambda n: bar.update(n, n * header.window),
        )
    bar.close()
    for piece, tokens in zip(cuts, found):
        ids[piece.record][piece.start : piece.end] = tokens
    sequences = [np.frombuffer(tokenizer.decode(x.numpy()).encode(), np.uint8) for x in ids]
    text = container.restore(about, sequences)
    if _digest(text) != header.text:
        raise ValueError(
            f"{path}: the decoded text is not the compressed one: {coding.OTHER_PROBABILITIES}"
        )
    with atomic_write(output, overwrite) as file:
        file.write(text)


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
