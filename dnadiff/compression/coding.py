"""Arithmetic coding of sequences in the order in which a sampler reveals them: the code length made real.

The order of the positions comes from a seed; in each of K network calls a group of them is coded with the probabilities of the
model. Encoder and decoder make the same calls on the same tensors and so see the same bits, on the same machine and versions
(`machine` says which). The coder itself is the range coder of `constriction` (arXiv 2201.01741), an optional dependency.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.data.genome import pieces
from dnadiff.draws import Draws, hash64
from dnadiff.kernels import SCANS, chosen_scan
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import time_of
from dnadiff.sampler.grouped import Grouped

OTHER_PROBABILITIES = "this machine computes other probabilities than the one that compressed; decompress there"
PRECISION = 22  # bits of a probability; the coder works with 24


class Coder(Protocol):
    """Both halves of a coder: `frequencies (M, n)` and either the symbols (M,) to encode, or None to decode them."""

    def code(self, frequencies: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """The symbols, encoded or decoded."""


class Encoder:
    """Appends symbols to a string of 32-bit words.

    Attributes:
        bits: the code length of what was encoded, -sum log2 of its probabilities.
    """

    def __init__(self) -> None:
        self._stream = library().stream
        self._family = self._stream.model.Categorical(perfect=False)
        self._encoder = self._stream.queue.RangeEncoder()
        self.bits = 0.0

    def code(self, frequencies: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """See `Coder`."""
        self._encoder.encode(symbols.astype(np.int32), self._family, frequencies / 2.0**PRECISION)
        self.bits += PRECISION * len(symbols) - float(np.log2(frequencies[np.arange(len(symbols)), symbols]).sum())
        return symbols

    def words(self) -> np.ndarray:
        """All that was encoded, uint32."""
        return self._encoder.get_compressed()


class Decoder:
    """Takes symbols from the words that an `Encoder` made, in the same order."""

    def __init__(self, words: np.ndarray) -> None:
        stream = library().stream
        self._family = stream.model.Categorical(perfect=False)
        self._decoder = stream.queue.RangeDecoder(words)

    def code(self, frequencies: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """See `Coder`."""
        try:
            return self._decoder.decode(self._family, frequencies / 2.0**PRECISION).astype(np.int64)
        except AssertionError as error:  # how the library says that no encoder wrote this
            raise ValueError(f"what was decoded is not what was compressed: {OTHER_PROBABILITIES}") from error


def library() -> Any:
    """The package `constriction`.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module("constriction")
    except ImportError as error:
        raise ValueError("arithmetic coding needs the package constriction: pip install 'dnadiff[compress]'") from error


def frequencies(log_probs: Tensor) -> np.ndarray:
    """Probabilities as integers that add up to 2^22, none of them 0: `log_probs (M, n)` -> (M, n) int64.

    Rounded down in float64, the rest given to the most probable symbol: the same bits in give the same integers out.
    """
    probs = log_probs.double().cpu().exp().numpy()
    n = probs.shape[1]
    whole = np.floor(probs / probs.sum(1, keepdims=True) * (2**PRECISION - n)).astype(np.int64) + 1
    whole[np.arange(len(whole)), whole.argmax(1)] += 2**PRECISION - whole.sum(1)
    return whole


@torch.no_grad()
def code(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    sequences: Sequence[Tensor],
    maskable: Sequence[Tensor],
    coder: Coder,
    known: bool,
    num_groups: int,
    seed: int,
    batch_size: int,
    progress: Any = None,
) -> list[Tensor]:
    """Encode or decode the maskable tokens of all sequences.

    Args:
        denoiser: not conditioned on labels.
        process: the absorbing process.
        sequences: (L_i,) int64 token ids; where they are maskable, a decoder's are not looked at.
        maskable: (L_i,) bool; the other tokens are known to both sides and seen by the network.
        coder: an `Encoder` or a `Decoder`.
        known: whether the maskable tokens are known, that is whether this encodes.
        num_groups: K, network calls for each batch; sequences with fewer maskable tokens take one call a token.
        seed: of the order.
        batch_size: sequences at a time; part of the code, like the seed.
        progress: called with the number of sequences done.

    Returns:
        The sequences, complete.
    """
    vocab, device = process.vocab, next(denoiser.parameters()).device
    emitted = torch.tensor(vocab.emitted, device=device)
    symbol_of = torch.full((vocab.size,), -1, dtype=torch.int64, device=device)
    symbol_of[emitted] = torch.arange(len(emitted), device=device)
    hidden = pieces.batches([m.long() for m in maskable], batch_size, 0)
    result: list[Tensor] = [torch.empty(0)] * len(sequences)
    for (number, ids, valid), (_, mask, _) in zip(pieces.batches(sequences, batch_size, vocab.pad_id), hidden, strict=True):
        truth, masked, valid = ids.to(device), mask.to(device) > 0, None if valid is None else valid.to(device)
        x = torch.where(masked, vocab.mask_id, truth)
        draws = Draws(hash64(seed, "code"), torch.tensor(number, device=device), len(sequences))
        step = Grouped(num_groups).plan(masked, process, draws).step
        for i in step[masked].unique().tolist():
            opens = masked & (step == i)
            active = opens.any(-1).nonzero()[:, 0]
            t = time_of(x, process, valid)[active]
            log_probs = denoiser.log_probs(x[active], t, None, opens[active], None if valid is None else valid[active])
            symbols = symbol_of[truth[opens]].cpu().numpy() if known else None
            symbols = coder.code(frequencies(log_probs[:, emitted]), symbols)
            x[opens] = emitted[torch.from_numpy(symbols).to(device)]
        for row, i in enumerate(number):
            result[i] = x[row, : len(sequences[i])].cpu()
        if progress is not None:
            progress(len(number))
    return result


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Compute with so many threads meanwhile; None leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def refuse_causal(loaded: Any) -> None:
    """Only masked diffusion has an order to draw.

    Raises:
        ValueError: for an autoregressive model.
    """
    if hasattr(loaded.denoiser, "next_log_probs"):
        raise ValueError(f"{loaded.path} is autoregressive; compress needs a diffusion model, such as one of objective=mdlm")


def machine(denoiser: nn.Module) -> dict[str, Any]:
    """What floating-point results depend on besides the model: all of it must be the same where a code is read."""
    device, dtype = next(denoiser.parameters()).device, next(denoiser.parameters()).dtype
    scan = getattr(denoiser.backbone, "scan", None)
    name = "none" if scan is None else chosen_scan(scan, device.type, dtype)
    return {
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "scan": name if scan is None else f"{name} ({SCANS[name].description()})",
        "products": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "constriction": version(library().__name__),
    }


def fingerprint(denoiser: nn.Module, config: Mapping[str, Any]) -> str:
    """A hash of the weights and of what they are weights of: the same for copies of a checkpoint under any name."""
    digest = hashlib.blake2b(digest_size=16)
    parts = {key: config.get(key) for key in ("backbone", "objective", "noise", "time_conditioning")}
    parts["backbone"] = {
        key: value for key, value in dict(parts["backbone"] or {}).items() if key not in ("scan", "activation_checkpointing")
    }
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(denoiser.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
