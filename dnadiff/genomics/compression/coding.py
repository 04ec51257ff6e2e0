"""Lossless compression with the model: arithmetic coding of sequences in the order in which a
sampler unmasks them.

The order of the positions comes from a seed. Each of K network calls gives the probabilities with
which a group of positions is coded. Encoder and decoder make the same calls on the same tensors and
get identical probabilities if the model, the libraries, the kernels and the processor are the same
(`describe`, `measure`). The coder is the range coder of `constriction` (arXiv 2201.01741), an
optional dependency."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dnadiff.data.records import padded_batches, pieces
from dnadiff.data.tokenizer import Tokenizer
from dnadiff.diffusion.denoiser import BlockDenoiser, InBlock, MaskedDenoiser, Query
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.fields import Config, Natural, PositiveInt, checked
from dnadiff.genomics.compression import container
from dnadiff.networks.backbone.mamba import MambaBackbone
from dnadiff.networks.kernels.facade import AUTO, SCANS, choose
from dnadiff.progress import Progress
from dnadiff.store.disk import write_bytes
from dnadiff.store.files import resolve
from dnadiff.store.objects import optional_package
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded

OTHER_PROBABILITIES = (
    "the probabilities computed here differ from those of the machine that "
    "compressed; decompress there"
)
PRECISION = 22  # bits of a probability; the coder works with 24


class Encoder:
    """Encodes symbols. `bits` is their code length, -sum log2 of their probabilities."""

    def __init__(self) -> None:
        stream = library().stream
        self._family = stream.model.Categorical(perfect=False)
        self._encoder = stream.queue.RangeEncoder()
        self.bits = 0.0

    def code(self, frequencies: ndarray, symbols: ndarray) -> ndarray:
        """Encode M symbols, each in 0..n-1, and return them.

        Args:
            frequencies: (M, n) integer probabilities that add up to 2^22.
        """
        self._encoder.encode(symbols.astype(np.int32), self._family, frequencies / 2.0**PRECISION)
        chosen = frequencies[np.arange(len(symbols)), symbols]
        self.bits += PRECISION * len(symbols) - float(np.log2(chosen).sum())
        return symbols

    def words(self) -> ndarray:
        """The code of everything encoded so far, uint32."""
        return self._encoder.get_compressed()


class Decoder:
    """Recovers symbols from the words of an `Encoder`, in the same order; `source` names the file
    in errors."""

    def __init__(self, words: ndarray, source: str = "the code") -> None:
        stream = library().stream
        self._source = source
        self._family = stream.model.Categorical(perfect=False)
        self._decoder = stream.queue.RangeDecoder(words)

    def code(self, frequencies: ndarray, symbols: ndarray) -> ndarray:
        """Decode M symbols, as in `Encoder.code`; the given ones are ignored."""
        try:
            return self._decoder.decode(self._family, frequencies / 2.0**PRECISION).astype(np.int64)
        except AssertionError as error:  # raised by the library for words that no encoder wrote
            raise ValueError(
                f"{self._source}: the decoded text is not the compressed one: {OTHER_PROBABILITIES}"
            ) from error


def library() -> ModuleType:
    """The package `constriction`; raises ValueError if it is not installed."""
    return optional_package("constriction", "arithmetic coding", "compress")


def frequencies(log_probs: Tensor) -> ndarray:
    """Probabilities as positive integers that add up to 2^22: `log_probs (M, n)` -> (M, n) int64.

    Rounded down in float64, with the remainder added to the most probable symbol: identical input
    bits give identical integers.
    """
    probs = log_probs.double().cpu().exp().numpy()
    share = probs / probs.sum(1, keepdims=True) * (2**PRECISION - probs.shape[1])
    rounded = np.floor(share).astype(np.int64) + 1
    rounded[np.arange(len(rounded)), rounded.argmax(1)] += 2**PRECISION - rounded.sum(1)
    return rounded


@torch.no_grad()
def code(
    denoiser: MaskedDenoiser,
    process: AbsorbingProcess,
    sequences: Sequence[Tensor],
    maskable: Sequence[Tensor],
    coder: Encoder | Decoder,
    num_groups: int,
    seed: int,
    batch_size: int,
    progress: Callable[[int, int], None] = lambda sequences, tokens: None,
) -> list[Tensor]:
    """Encode or decode the maskable tokens of all sequences, and return the complete sequences.

    Args:
        denoiser: a diffusion model, not conditioned on labels; of a block diffusion model, each
            block is coded after those before.
        sequences: (L_i,) token ids of an integer type, which the result has too; a decoder ignores
            the maskable ones.
        maskable: (L_i,) bool; the other tokens are known to both sides and visible to the network.
        num_groups: K, network calls per batch (for each block, if it is a block diffusion model);
            sequences with fewer maskable tokens take one call per token.
        seed: of the order.
        batch_size: sequences per batch; the code depends on it.
        progress: called with the numbers of sequences and tokens that are finished.
    """
    vocab = process.vocab
    device = denoiser.device
    emitted = torch.tensor(vocab.emitted, device=device)
    symbol_of = torch.full((vocab.size,), -1, dtype=torch.int64, device=device)
    symbol_of[emitted] = torch.arange(len(emitted), device=device)
    # No other limit: files of earlier versions have these batches.
    masks = padded_batches(maskable, batch_size, 0, sys.maxsize)
    # Small tensors made between large ones would fragment the heap.
    result = [sequence.clone() for sequence in sequences]
    for (number, ids, valid), (_, mask, _) in zip(
        padded_batches(sequences, batch_size, vocab.pad_id, sys.maxsize), masks, strict=True
    ):
        x0 = ids.to(device)
        masked = mask.to(device) > 0
        padded = valid is not None
        valid = torch.ones_like(masked) if valid is None else valid.to(device)
        x = torch.where(masked, vocab.mask_id, x0)
        rows = torch.tensor(number, device=device)
        length = x.shape[1]
        size = denoiser.block_size or length
        state = None
        for block, start in enumerate(range(0, length, size)):
            part = slice(start, min(start + size, length))
            key = hash64(seed, "code", block) if block else hash64(seed, "code")
            draws = Draws(key, rows, len(sequences))
            read = denoiser if denoiser.block_size is None else InBlock(denoiser, state)
            known = valid[:, part]
            here = x[:, part]
            hidden = masked[:, part]
            step = Grouped(num_groups).plan(hidden, process, draws).step
            for i in step[hidden].unique().tolist():
                unmask = hidden & (step == i)
                active = unmask.any(-1).nonzero()[:, 0]
                # The time counts every N too; existing files depend on it.
                t = process.time_at((here == vocab.mask_id).sum(-1), known.sum(-1)).float()
                log_probs = (
                    read.for_rows(active)
                    .require_any_order("compress")
                    .log_probs(
                        here[active],
                        t[active],
                        None,
                        unmask[active],
                        known[active] if padded else None,
                    )
                )
                symbols = symbol_of[x0[:, part][unmask]].cpu().numpy()
                symbols = coder.code(frequencies(log_probs[:, emitted]), symbols)
                here[unmask] = emitted[torch.from_numpy(symbols).to(device)]
            if part.stop < length:
                assert isinstance(denoiser, BlockDenoiser)
                given = Query(here, valid=known if padded else None)
                state = denoiser.advance(given, state)
        for row, i in enumerate(number):
            result[i].copy_(x[row, : len(sequences[i])])
        progress(len(number), ids.numel())
    return result


class Windows(NamedTuple):
    """Records and the windows in which they are coded.

    Attributes:
        ids: of each record, a byte a base.
        parts: their ids, views of `ids`.
        masked: which of them are coded: A, C, G and T.
    """

    ids: list[Tensor]
    parts: list[Tensor]
    masked: list[Tensor]

    @classmethod
    def of(cls, letters: Iterable[bytes], tokenizer: Tokenizer, length: int) -> Windows:
        """The windows of at most `length` bases of the letters of each record."""
        ids = [torch.from_numpy(tokenizer.encode(x)) for x in letters]
        parts = [ids[p.record][p.start : p.end] for p in pieces(map(len, ids), length)]
        emitted = tokenizer.vocab.is_emitted()
        return cls(ids, parts, [emitted[x.long()] for x in parts])

    def padded(self, batch_size: int) -> int:
        """The most tokens in a batch, padding included."""
        return max(map(len, self.parts), default=0) * min(batch_size, len(self.parts))


@contextmanager
def num_threads(number: int | None) -> Iterator[None]:
    """Use this number of threads inside the block; None keeps the current number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def diffusion_denoiser(loaded: Loaded) -> MaskedDenoiser:
    """The denoiser of a diffusion model; raises ValueError for an autoregressive model, whose order
    of positions is fixed."""
    require("compress", loaded.denoiser, AbsorbingProcess)
    if not isinstance(loaded.denoiser, MaskedDenoiser):
        raise ValueError(
            f"{loaded.path} is autoregressive; compress needs a diffusion model, such as one of "
            "objective=mdlm"
        )
    return loaded.denoiser


REMEDY = {
    "device": "decompress on the kind of device that compressed: set accelerator=cpu or gpu",
    "instructions": (
        "decompress on a machine with the same kind of processor, or set "
        "ATEN_CPU_CAPABILITY to the value in the file"
    ),
    "torch": "install that version of torch",
    "dtype": "load the model in that precision",
    "scan": "set DNADIFF_SCAN to the value in the file",
    "products": "call torch.set_float32_matmul_precision with the value in the file",
    "threads": "leave OMP_NUM_THREADS unset, or set it to the value in the file",
    "constriction": "install that version of constriction",
    "math": (
        "decompress with the same libraries, on a processor of that vendor, with the variables "
        "that the value names"
    ),
    "kernels": "set CXX to that compiler",
    "results": "its processor computes other bits though all else is equal; decompress there",
}
_VARIABLES = (
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)  # restrict the libraries' instructions
_LIBRARIES = {
    "MKL": r"Math Kernel Library Version ([\w.\-]+)",
    "oneDNN": r"MKL-DNN v([\w.]+)",
    "BLAS": r"BLAS_INFO=(\w+)",
}
# of the input of `results`
_ROWS = 2
_LENGTH = 256


def describe(denoiser: MaskedDenoiser) -> dict[str, str | int]:
    """What floating-point results depend on besides the model and what `measure` returns. It must
    be the same for decompression."""
    weights = next(denoiser.parameters())
    backbone = denoiser.backbone
    device = weights.device
    is_cuda = weights.device.type.startswith("cuda")
    reads_scan = isinstance(backbone, MambaBackbone)
    asked = backbone.scan if isinstance(backbone, MambaBackbone) else AUTO
    name = choose(asked, device.type, weights.dtype)
    # The libraries of matrix products with their versions, and what their choice of instructions
    # depends on besides `instructions`.
    if is_cuda:
        libraries = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    else:
        built = torch.__config__.show()
        vendor = None
        found = ((lib, re.search(pattern, built)) for lib, pattern in _LIBRARIES.items())
        named = [f"{lib} {match[1]}" for lib, match in found if match]
        with suppress(OSError):
            about = Path("/proc/cpuinfo").read_text()[:4096]
            vendor = re.search(r"vendor_id\s*:\s*(\S+)", about)
        set_here = [f"{key}={os.environ[key]}" for key in _VARIABLES if key in os.environ]
        libraries = ", ".join([*named, vendor[1] if vendor else platform.machine(), *set_here])
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": str(weights.dtype).removeprefix("torch."),
        "scan": f"{name} ({SCANS[name].description()})" if reads_scan else "none",
        "products": torch.get_float32_matmul_precision(),
        "constriction": version(library().__name__),
        "math": libraries,
        "kernels": SCANS[name].compiler(),
    }


@torch.no_grad()
def measure(denoiser: MaskedDenoiser, process: AbsorbingProcess) -> dict[str, str | int]:
    """The number of threads, inside `num_threads`, and with it a hash of probabilities that the
    model computes for a fixed input: two sequences of 256 tokens, every other one masked.

    A difference shows before any work what would otherwise be found at its end. Equality is no
    proof: other shapes may be computed by other code.
    """
    vocab = process.vocab
    device = denoiser.device
    length = min(_LENGTH, denoiser.max_length or _LENGTH)
    emitted = torch.tensor(vocab.emitted, device=device)
    x = emitted[torch.arange(_ROWS * length, device=device).view(_ROWS, length) % 7 % len(emitted)]
    x[:, ::2] = vocab.mask_id
    log_probs = denoiser.log_probs(x, process.time_of(x), None, x == vocab.mask_id)
    results = container.blake2b(log_probs.float().cpu().numpy().tobytes()).hexdigest()
    return {"threads": torch.get_num_threads(), "results": results}


def check_match(
    path: str, recorded: Mapping[str, str | int], here: Mapping[str, str | int]
) -> None:
    """Raise ValueError, with the remedy, for the first entry that differs among those that are in
    both."""
    for key, remedy in REMEDY.items():
        if key in recorded and key in here and recorded[key] != here[key]:
            raise ValueError(
                f"{path} was compressed with {key} {recorded[key]}, here it is {here[key]}: "
                f"{remedy}"
            )


def fingerprint(denoiser: MaskedDenoiser, config: Config) -> str:
    """A hash of the weights and of the architecture: the same for copies of a checkpoint under any
    name."""
    digest = container.blake2b()
    # The process is absorbing (`diffusion_denoiser`).
    keys = ("backbone", "objective", "noise", "time_conditioning")
    parts = {key: config.get(key) for key in keys}
    same_weights = ("scan", "activation_checkpointing")
    backbone = dict(parts["backbone"] or {})
    parts["backbone"] = {key: x for key, x in backbone.items() if key not in same_weights}
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(denoiser.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@checked
def compress(
    path: str,
    output: Path,
    model: str,
    *,
    num_groups: PositiveInt,
    window: PositiveInt | None,
    batch_size: PositiveInt,
    seed: Natural,
    threads: PositiveInt | None,
    device: str,
    trust: Sequence[str],
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
    if output.suffix.lower() == ".gz":
        raise ValueError(
            f"output {output} ends in .gz, but a .dnd file is compressed already; give it a name "
            "without .gz"
        )
    library()
    loaded = checkpoint.load(model, trust)
    window = loaded.window(window)
    denoiser = diffusion_denoiser(loaded).to(device)
    text = container.read_text(path)
    about, letters = container.parse(text, path)
    if container.restore(about, [np.frombuffer(x.upper(), np.uint8) for x in letters]) != text:
        raise ValueError(
            f"{path} cannot be restored byte for byte; rewrite it with one kind of line breaks"
        )
    windows = Windows.of(letters, loaded.tokenizer, window)
    encoder = Encoder()
    bar = Progress(len(windows.parts), "compress")
    options = {"num_groups": num_groups, "seed": seed, "batch_size": batch_size}
    with num_threads(threads):
        header = container.ContainerHeader(
            container.FORMAT,
            fingerprint(denoiser, loaded.config),
            describe(denoiser) | measure(denoiser, loaded.process),
            window,
            text=container.blake2b(text).hexdigest(),
            **options,
        )
        code(
            denoiser,
            loaded.process,
            windows.parts,
            windows.masked,
            encoder,
            **options,
            progress=bar.update,
        )
    bar.close()
    content = container.pack(header, about, encoder.words())
    write_bytes(output, content)
    return {
        "bases": sum(int(m.sum()) for m in windows.masked),
        "code_length": encoder.bits,
        "code": 32 * len(encoder.words()),
        "file": 8 * len(content),
        "text": 8 * len(text),
        # What `container.unpack` and `decompress` compare with `container.size_limit`.
        "needed": max(about.num_bytes(), len(about.json()), windows.padded(batch_size)),
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
) -> None:
    """Restore a FASTA file, byte for byte.

    Args:
        max_bytes: what the text, its layout or a batch may take; None is 1 MiB or 100 times the
            size of the file, whichever is more.
    """
    header, about, words = container.unpack(path, max_bytes)
    library()
    loaded = checkpoint.load(model, trust)
    denoiser = diffusion_denoiser(loaded).to(device)
    if (here := fingerprint(denoiser, loaded.config)) != header.model:
        raise ValueError(
            f"{path} was compressed with another model ({header.model[:12]}, this is {here[:12]}); "
            "give its checkpoint"
        )
    check_match(path, header.machine, describe(denoiser))

    known = container.skeletons(about)
    letters = [np.where(row == 0, ord("A"), row).astype(np.uint8).tobytes() for row in known]
    windows = Windows.of(letters, loaded.tokenizer, header.window)
    limit = container.size_limit(resolve(path).stat().st_size, max_bytes)
    container.check_size(path, "a batch", windows.padded(header.batch_size), limit)
    bar = Progress(len(windows.parts), "decompress")
    with num_threads(int(header.machine["threads"])):
        check_match(path, header.machine, measure(denoiser, loaded.process))
        found = code(
            denoiser,
            loaded.process,
            windows.parts,
            windows.masked,
            Decoder(words, path),
            header.num_groups,
            header.seed,
            header.batch_size,
            progress=bar.update,
        )
    bar.close()
    for part, tokens in zip(windows.parts, found):
        part.copy_(tokens)
    decode = loaded.tokenizer.decode
    sequences = [np.frombuffer(decode(x.numpy()).encode(), np.uint8) for x in windows.ids]
    text = container.restore(about, sequences)
    if container.blake2b(text).hexdigest() != header.text:
        raise ValueError(
            f"{path}: the decoded text is not the compressed one: {OTHER_PROBABILITIES}"
        )
    write_bytes(output, text)
