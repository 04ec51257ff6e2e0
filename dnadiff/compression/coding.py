"""Lossless compression with the model: arithmetic coding of sequences in the order in which a
sampler unmasks them.

The order of the positions comes from a seed. Each of K network calls gives the probabilities with
which a group of positions is coded. Encoder and decoder make the same calls on the same tensors and
get identical probabilities if the machine and versions are the same (see
`dnadiff.compression.machine`). The coder is the range coder of `constriction` (arXiv 2201.01741),
an optional dependency.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.data.genome import pieces
from dnadiff.denoiser import BaseDenoiser, InBlock
from dnadiff.draws import Draws, hash64
from dnadiff.process import AbsorbingProcess, require
from dnadiff.sampler.grouped import Grouped

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
    denoiser: BaseDenoiser,
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
                state = denoiser.advance(x[:, part], state, None, known)
        for row, i in enumerate(number):
            result[i].copy_(x[row, : len(sequences[i])])
        if progress is not None:
            progress(len(number))
    return result


def _groups(
    denoiser: BaseDenoiser,
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
        read = denoiser.for_rows(active)
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


def diffusion_denoiser(loaded: Loaded) -> BaseDenoiser:
    """The denoiser of a diffusion model; raises ValueError for an autoregressive model, whose order
    of positions is fixed."""
    if loaded.denoiser.autoregressive:
        raise ValueError(
            f"{loaded.path} is autoregressive; compress needs a diffusion model, such as one of "
            "objective=mdlm"
        )
    require("compress", loaded.denoiser, AbsorbingProcess)
    return loaded.denoiser
