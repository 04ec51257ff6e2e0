"""Lossless compression with the model: arithmetic coding of sequences in the order in which a
sampler unmasks them.

The order of the positions comes from a seed. Each of K network calls gives the probabilities with
which a group of positions is coded. Encoder and decoder make the same calls on the same tensors and
get identical probabilities if the model, the libraries, the kernels and the processor are the same
(`describe`, `measure`). The coder is the range coder of `constriction` (arXiv 2201.01741), an
optional dependency."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.data.genome import pieces
from dnadiff.diffusion.denoiser import BlockDenoiser, InBlock, MaskedDenoiser
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.sampler.base import time_of
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.fields import Config
from dnadiff.networks.backbone.mamba_backbone import MambaBackbone
from dnadiff.networks.kernels.select import AUTO, SCANS, chosen_scan

if TYPE_CHECKING:
    from dnadiff.weights.loaded import Loaded


OTHER_PROBABILITIES = (
    "the probabilities computed here differ from those of the machine that "
    "compressed; decompress there"
)
PRECISION = 22  # bits of a probability; the coder works with 24


class Coder(ABC):
    """Base class of encoder and decoder, which `code` uses in the same way."""

    @abstractmethod
    def code(self, frequencies: np.ndarray, symbols: np.ndarray) -> np.ndarray:
        """Encode or decode M symbols, each in 0..n-1, and return them.

        Args:
            frequencies: (M, n) integer probabilities that add up to 2^22.
            symbols: (M,) what to encode; ignored by a decoder.
        """


class Encoder(Coder):
    """Encodes symbols. `bits` is their code length, -sum log2 of their probabilities."""

    def __init__(self) -> None:
        self._stream = library().stream
        self._family = self._stream.model.Categorical(perfect=False)
        self._encoder = self._stream.queue.RangeEncoder()
        self.bits = 0.0

    @override
    def code(self, frequencies: np.ndarray, symbols: np.ndarray) -> np.ndarray:
        self._encoder.encode(symbols.astype(np.int32), self._family, frequencies / 2.0**PRECISION)
        self.bits += PRECISION * len(symbols) - float(
            np.log2(frequencies[np.arange(len(symbols)), symbols]).sum()
        )
        return symbols

    def words(self) -> np.ndarray:
        """The code of everything encoded so far, uint32."""
        return self._encoder.get_compressed()


class Decoder(Coder):
    """Recovers symbols from the words of an `Encoder`, in the same order; `source` names the file
    in errors."""

    def __init__(self, words: np.ndarray, source: str = "the code") -> None:
        self._source = source
        stream = library().stream
        self._family = stream.model.Categorical(perfect=False)
        self._decoder = stream.queue.RangeDecoder(words)

    @override
    def code(self, frequencies: np.ndarray, symbols: np.ndarray) -> np.ndarray:
        try:
            return self._decoder.decode(self._family, frequencies / 2.0**PRECISION).astype(np.int64)
        except AssertionError as error:  # raised by the library for words that no encoder wrote
            raise ValueError(
                f"{self._source}: the decoded text is not the compressed one: {OTHER_PROBABILITIES}"
            ) from error


def library() -> ModuleType:
    """The package `constriction`; raises ValueError if it is not installed."""
    try:
        return importlib.import_module("constriction")
    except ImportError as error:
        raise ValueError(
            "arithmetic coding needs the package constriction: pip install -e '.[compress]' in the "
            "checkout"
        ) from error


def frequencies(log_probs: Tensor) -> np.ndarray:
    """Probabilities as positive integers that add up to 2^22: `log_probs (M, n)` -> (M, n) int64.

    Rounded down in float64, with the remainder added to the most probable symbol: identical input
    bits give identical integers.
    """
    probs = log_probs.double().cpu().exp().numpy()
    n = probs.shape[1]
    rounded = (
        np.floor(probs / probs.sum(1, keepdims=True) * (2**PRECISION - n)).astype(np.int64) + 1
    )
    rounded[np.arange(len(rounded)), rounded.argmax(1)] += 2**PRECISION - rounded.sum(1)
    return rounded


@torch.no_grad()
def code(
    denoiser: MaskedDenoiser,
    process: AbsorbingProcess,
    sequences: Sequence[Tensor],
    maskable: Sequence[Tensor],
    coder: Coder,
    num_groups: int,
    seed: int,
    batch_size: int,
    progress: Callable[[int], None] | None = None,
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
        progress: called with the number of sequences that are finished.
    """
    vocab, device = process.vocab, next(denoiser.parameters()).device
    emitted = torch.tensor(vocab.emitted, device=device)
    symbol_of = torch.full((vocab.size,), -1, dtype=torch.int64, device=device)
    symbol_of[emitted] = torch.arange(len(emitted), device=device)
    masks = pieces.batches(maskable, batch_size, 0)
    result = [
        sequence.clone() for sequence in sequences
    ]  # small tensors made between large ones would fragment the heap
    for (number, ids, valid), (_, mask, _) in zip(
        pieces.batches(sequences, batch_size, vocab.pad_id), masks, strict=True
    ):
        x0, masked, valid = (
            ids.to(device),
            mask.to(device) > 0,
            None if valid is None else valid.to(device),
        )
        x = torch.where(masked, vocab.mask_id, x0)
        rows, length = torch.tensor(number, device=device), x.shape[1]
        size, state = denoiser.block_size or length, None
        for block, start in enumerate(range(0, length, size)):
            part = slice(start, min(start + size, length))
            draws = Draws(
                hash64(seed, "code", block) if block else hash64(seed, "code"), rows, len(sequences)
            )
            read = denoiser if denoiser.block_size is None else InBlock(denoiser, state)
            known = None if valid is None else valid[:, part]
            for unmask, log_probs in _groups(
                read, process, x[:, part], masked[:, part], known, num_groups, draws
            ):
                symbols = coder.code(
                    frequencies(log_probs[:, emitted]), symbol_of[x0[:, part][unmask]].cpu().numpy()
                )
                x[:, part][unmask] = emitted[torch.from_numpy(symbols).to(device)]
            if part.stop < length:
                assert isinstance(denoiser, BlockDenoiser)
                state = denoiser.advance(x[:, part], state, None, known)
        for row, i in enumerate(number):
            result[i].copy_(x[row, : len(sequences[i])])
        if progress is not None:
            progress(len(number))
    return result


def _groups(
    denoiser: MaskedDenoiser,
    process: AbsorbingProcess,
    x: Tensor,
    masked: Tensor,
    valid: Tensor | None,
    num_groups: int,
    draws: Draws,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions (B, n) of each group and their log-probabilities, computed after x (B, n) was
    filled in at those of the groups before."""
    step = Grouped(num_groups).plan(masked, process, draws).step
    for i in step[masked].unique().tolist():
        unmask = masked & (step == i)
        active = unmask.any(-1).nonzero()[:, 0]
        total = (
            torch.full_like(masked[:, 0], x.shape[1], dtype=torch.int64)
            if valid is None
            else valid.sum(-1)
        )  # every N too
        t = process.time_at((x == process.vocab.mask_id).sum(-1), total).float()[
            active
        ]  # must not change: existing files depend on it
        read = denoiser.for_rows(active).require_any_order("compress")
        yield (
            unmask,
            read.log_probs(
                x[active], t, None, unmask[active], None if valid is None else valid[active]
            ),
        )


def padded_size(lengths: Sequence[int], batch_size: int) -> int:
    """The most tokens in a batch of sequences of these lengths, padding included."""
    return max(lengths, default=0) * min(batch_size, len(lengths))


@contextmanager
def threads(number: int | None) -> Iterator[None]:
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
    if not isinstance(loaded.denoiser, MaskedDenoiser):
        raise ValueError(
            f"{loaded.path} is autoregressive; compress needs a diffusion model, such as one of "
            "objective=mdlm"
        )
    require("compress", loaded.denoiser, AbsorbingProcess)
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
        "decompress with the same libraries, on a processor of that vendor, with the "
        "variables "
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
_ROWS, _LENGTH = 2, 256  # of the input of `results`


def describe(denoiser: MaskedDenoiser) -> dict[str, str | int]:
    """What floating-point results depend on besides the model and what `measure` returns. It must
    be the same for decompression."""
    device, dtype = next(denoiser.parameters()).device, next(denoiser.parameters()).dtype
    reads_scan = isinstance(denoiser.backbone, MambaBackbone)
    name = chosen_scan(
        denoiser.backbone.scan if isinstance(denoiser.backbone, MambaBackbone) else AUTO,
        device.type,
        dtype,
    )
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type.startswith("cuda")
        else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "scan": f"{name} ({SCANS[name].description()})" if reads_scan else "none",
        "products": torch.get_float32_matmul_precision(),
        "constriction": version(library().__name__),
        "math": math_libraries(device),
        "kernels": SCANS[name].compiler(),
    }


def measure(denoiser: MaskedDenoiser, process: AbsorbingProcess) -> dict[str, str | int]:
    """The number of threads, and results with it, inside `coding.threads`."""
    return {"threads": torch.get_num_threads(), "results": results(denoiser, process)}


def math_libraries(device: torch.device) -> str:
    """The libraries of matrix products with their versions, and what their choice of instructions
    depends on besides `instructions`."""
    if device.type.startswith("cuda"):
        return f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    built = torch.__config__.show()
    found = [
        f"{name} {match[1]}"
        for name, pattern in _LIBRARIES.items()
        if (match := re.search(pattern, built))
    ]
    vendor = None
    with suppress(OSError):
        vendor = re.search(r"vendor_id\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text()[:4096])
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return ", ".join([*found, vendor[1] if vendor else platform.machine(), *settings])


@torch.no_grad()
def results(denoiser: MaskedDenoiser, process: AbsorbingProcess) -> str:
    """A hash of probabilities that the model computes for a fixed input: two sequences of 256
    tokens, every other one masked.

    A difference shows before any work what would otherwise be found at its end. Equality is no
    proof: other shapes may be computed by other code.
    """
    vocab, device = process.vocab, next(denoiser.parameters()).device
    length = min(_LENGTH, denoiser.max_length or _LENGTH)
    emitted = torch.tensor(vocab.emitted, device=device)
    x = emitted[torch.arange(_ROWS * length, device=device).view(_ROWS, length) % 7 % len(emitted)]
    x[:, ::2] = vocab.mask_id
    log_probs = denoiser.log_probs(x, time_of(x, process), None, x == vocab.mask_id)
    return hashlib.blake2b(log_probs.float().cpu().numpy().tobytes(), digest_size=16).hexdigest()


def check_model(path: str, recorded: str, here: str) -> None:
    """Raise ValueError if the fingerprints of two models differ."""
    if recorded != here:
        raise ValueError(
            f"{path} was compressed with another model ({recorded[:12]}, this is {here[:12]}); "
            "give its checkpoint"
        )


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
    digest = hashlib.blake2b(digest_size=16)
    parts = {
        key: config.get(key) for key in ("backbone", "objective", "noise", "time_conditioning")
    }  # the process is absorbing (`diffusion_denoiser`)
    same_weights = ("scan", "activation_checkpointing")
    parts["backbone"] = {
        key: value
        for key, value in dict(parts["backbone"] or {}).items()
        if key not in same_weights
    }
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(denoiser.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
