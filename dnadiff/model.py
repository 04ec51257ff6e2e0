"""What `dnadiff.load` returns: a trained model for notebooks, with sampling, likelihood and embeddings and no configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnadiff import checkpoint, likelihood
from dnadiff.draws import Draws, hash64
from dnadiff.sampler.base import Sampler, Samples
from dnadiff.sampler.grouped import Grouped


class Model:
    """A trained model.

    Args:
        loaded: from `dnadiff.checkpoint.load`.
        device: where to compute.
    """

    def __init__(self, loaded: checkpoint.Loaded, device: torch.device | str = "cpu") -> None:
        self.denoiser = loaded.denoiser.to(device)
        self.process, self.tokenizer, self.config, self.path = loaded.process, loaded.tokenizer, loaded.config, loaded.path
        self.device = torch.device(device)

    @property
    def length(self) -> int:
        """Tokens in a training window."""
        return int(self.config["data"]["length"])

    def sample(
        self, num_samples: int = 1, length: int | None = None, sampler: Sampler | None = None, seed: int = 1, batch_size: int = 32
    ) -> list[str]:
        """New sequences as strings.

        Args:
            num_samples: how many.
            length: tokens in each; None is the training window.
            sampler: how; None reveals random groups in 64 network calls.
            seed: sample i depends on (seed, i) and, to the last bit, on the shape of its batch.
            batch_size: sequences at a time.

        Raises:
            ValueError: for a length that the network cannot take.
        """
        length = self.length if length is None else length
        sampler = sampler or Grouped()
        return [
            self.tokenizer.decode(row)
            for batch in self.batches(sampler, num_samples, length, seed, batch_size)
            for row in batch.tokens.cpu().numpy()
        ]

    def batches(self, sampler: Sampler, num_samples: int, length: int, seed: int = 1, batch_size: int = 32) -> Iterator[Samples]:
        """Samples batch by batch, never more than one in memory."""
        check_request(self.denoiser.backbone.max_length, num_samples, length)
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be at least 1")
        for first in range(0, num_samples, batch_size):
            rows = torch.arange(first, min(first + batch_size, num_samples), device=self.device)
            x_init = self.process.prior(len(rows), length, self.device)
            yield sampler.sample(self.denoiser, self.process, x_init, Draws(hash64(seed, "sample"), rows))

    def nll(self, sequences: Sequence[Any], num_draws: int = 8, seed: int = 1, batch_size: int = 32) -> np.ndarray:
        """Upper bound on -log p of each sequence, in nats per token: `(S,)`.

        The NELBO in count form, averaged over `num_draws` stratified masks; N and other letters that the model never
        emits are seen but not counted. A sequence without any countable letter gives NaN.

        Args:
            sequences: strings or Biopython SeqRecords.
            num_draws: network calls for each sequence, even.
            seed: of the masks.
            batch_size: sequences of equal length at a time.
        """
        encoded = self._encoded(sequences)
        result = np.full(len(encoded), np.nan)
        for chosen in self._by_length(encoded, batch_size):
            ids = torch.stack([encoded[i] for i in chosen]).to(self.device)
            counted = self.tokenizer.vocab.is_emitted(ids.device)[ids]
            if not counted.any():
                continue
            # Noise belongs to the sequence itself, so that its number does not depend on what else is asked in the same call.
            rows = torch.tensor([hash64(encoded[i].numpy().tobytes().hex()) >> 1 for i in chosen])
            batch = likelihood.Batch(ids, {"all": counted}, rows=rows)
            estimate = likelihood.estimate(self.denoiser, self.process, [batch], num_draws, seed, 1)
            tokens = estimate.tokens["all"]
            result[chosen] = np.where(tokens > 0, estimate.per_sequence() / np.maximum(tokens, 1), np.nan)
        return result

    @torch.no_grad()
    def embed(self, sequences: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """Mean of the network's features over each clean sequence: `(S, D)` float32.

        Args:
            sequences: strings or Biopython SeqRecords.
            batch_size: sequences of equal length at a time.
        """
        encoded = self._encoded(sequences)
        result = np.zeros((len(encoded), 0), dtype=np.float32)
        for chosen in self._by_length(encoded, batch_size):
            ids = torch.stack([encoded[i] for i in chosen]).to(self.device)
            pooled = self.denoiser.backbone.features(ids).float().mean(1).cpu().numpy()
            if result.shape[1] == 0:
                result = np.zeros((len(encoded), pooled.shape[1]), dtype=np.float32)
            result[chosen] = pooled
        return result

    def _encoded(self, sequences: Sequence[Any]) -> list[Tensor]:
        if isinstance(sequences, (str, bytes)) or hasattr(sequences, "seq"):
            raise ValueError("sequences is a single sequence; put it into a list: [sequence]")
        return [self._ids(s) for s in sequences]

    def _ids(self, sequence: Any) -> Tensor:
        ids = torch.from_numpy(self.tokenizer.encode(sequence).astype(np.int64))
        check_request(self.denoiser.backbone.max_length, 1, len(ids))
        return ids

    @staticmethod
    def _by_length(encoded: Sequence[Tensor], batch_size: int) -> Iterator[list[int]]:
        """Indices of sequences of one length, in batches: no padding, so no network needs to know of any."""
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) == batch_size or len(encoded[i]) != len(encoded[batch[0]])):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def __repr__(self) -> str:
        return f"Model({type(self.denoiser.backbone).__name__}, {self.tokenizer.name}, {self.path})"


def check_request(max_length: int | None, num_samples: int, length: int) -> None:
    """Refuse numbers and lengths that cannot be served, before anything is computed.

    Raises:
        ValueError: naming the value and the limit.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples {num_samples} must be at least 1")
    if length < 1:
        raise ValueError(f"length {length} must be at least 1 token")
    if max_length is not None and length > max_length:
        raise ValueError(f"length {length} is more than this network takes; use at most {max_length}, or train with a larger data.length")


def load(run: str | os.PathLike[str], device: torch.device | str | None = None, trust: Sequence[str] = ()) -> Model:
    """The model of a run folder or checkpoint file, ready to use.

    Args:
        run: a run folder, a .ckpt file, or `latest`.
        device: None takes a CUDA device where there is one, else the CPU.
        trust: packages besides dnadiff whose classes its configuration may name.

    Raises:
        FileNotFoundError, ValueError: if it does not exist, is damaged, or asks for code that is not trusted.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Model(checkpoint.load(run, trust), device)
