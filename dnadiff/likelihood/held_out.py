"""Held-out windows: which of their tokens are counted, what Markov models of a training part make of them, and paired scores."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dnadiff.bootstrap import ConfidenceInterval, blocks, ratio
from dnadiff.data.files import atomic_write
from dnadiff.kmers import KmerSet
from dnadiff.likelihood import Likelihood, WindowBatch
from dnadiff.markov.model import BackoffMarkov

NOVELTY = 24  # a base is repeated if it lies in a word of so many bases of the training part, on either strand
MAX_KMERS = 500_000_000  # bases of a training part whose 24-mers are kept: 8 GB while the set is built


def without_download(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a run without its leave to download: a checkpoint must not make this machine fetch anything.

    Raises:
        ValueError: if the run named no file of its own.
    """
    fetched = [key for key in ("download", "hub") if data.get(key)]
    if fetched and not data.get("path"):
        raise ValueError(
            f"the run was trained on downloaded data ({data.get('name')}); name them again, as in data=hg38, to allow the download"
        )
    return {key: value for key, value in data.items() if key not in fetched}


def token_groups(data: Any, tiles: Any, trained_on: Any | None, part: str) -> dict[str, np.ndarray]:
    """Which tokens of each window to count, `{name: (S, L) bool}`.

    All of weight above 0 (never N, never padding); for DNA the novel and the repeated ones; and, where the tokenizer has
    special tokens (begin, end, separator), all but those. Novelty is judged against the training part of `trained_on`, the
    data that the model has seen; None leaves these two groups out.
    """
    weight = np.stack([tiles[i]["weight"].numpy() for i in range(len(tiles))]) > 0
    groups = {"all": weight}
    if special := getattr(data.tokenizer, "special_ids", ()):
        ids = np.stack([tiles[i]["ids"].numpy() for i in range(len(tiles))])
        groups["without specials"] = weight & ~np.isin(ids, special)
    if trained_on is not None:
        seen = KmerSet([data.tokenizer.bases(s) for s in trained_on.sequences("train")], NOVELTY)
        covered = per_position(data, part, lambda bases: seen.covered(bases), fill=False)
        repeated = windows_of(covered, tiles)
        groups |= {"novel": weight & ~repeated, "repeated": weight & repeated}
    return groups


def per_position(data: Any, part: str, score: Any, fill: Any) -> dict[int, np.ndarray]:
    """`score(bases)` of every interval of a part, laid out along its record."""
    values: dict[int, np.ndarray] = {}
    for interval in data.intervals[part]:
        ids = data.records[interval.record]
        scored = score(data.tokenizer.bases(ids[interval.start : interval.end]))
        row = values.setdefault(interval.record, np.full(len(ids), fill, dtype=scored.dtype))
        row[interval.start : interval.end] = scored
    return values


def windows_of(values: Mapping[int, np.ndarray], tiles: Any) -> np.ndarray:
    """The stretch of each tile: `(S, L)`."""
    return np.stack([values[t.record][t.start : t.start + tiles.length] for t in tiles.tiles])


class Windows:
    """Windows and their groups of counted tokens as batches of tensors, as often as they are asked for."""

    def __init__(self, tiles: Any, groups: Mapping[str, np.ndarray], batch_size: int, takes_labels: bool = False) -> None:
        self.tiles, self.groups, self.batch_size, self.takes_labels = tiles, groups, batch_size, takes_labels

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.tiles)

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.tiles), self.batch_size):
            items = [self.tiles[i] for i in range(first, min(first + self.batch_size, len(self.tiles)))]
            stacked = {key: torch.stack([item[key] for item in items]) for key in ("ids", "valid", "cond") if key in items[0]}
            groups = {name: torch.from_numpy(mask[first : first + self.batch_size]) for name, mask in self.groups.items()}
            yield WindowBatch(stacked["ids"], groups, stacked.get("valid"), stacked.get("cond") if self.takes_labels else None)


@dataclass(frozen=True)
class Scores:
    """What one model makes of each window: all that a paired comparison with another model needs.

    Attributes:
        windows: (S, 3) record, start and length.
        nats: for each group of tokens, (S,).
        tokens: for each group, (S,) tokens counted.
        block_size: windows per block of the bootstrap.
        data: which records and split the windows are of, `split_hash` of the data.
    """

    windows: np.ndarray
    nats: Mapping[str, np.ndarray]
    tokens: Mapping[str, np.ndarray]
    block_size: int
    data: str

    @classmethod
    def from_result(cls, result: Likelihood, data: Any, tiles: Any) -> Scores:
        """Those of an evaluated network."""
        nats = {name: result.per_sequence(name) for name in result.tokens}
        return cls(window_positions(tiles), nats, result.tokens, result.block_size, data.describe()["split_hash"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an `.npz` file."""
        arrays = {f"{kind}/{name}": getattr(self, kind)[name] for kind in ("nats", "tokens") for name in self.nats}
        with atomic_write(path, overwrite=True) as file:
            np.savez_compressed(file, windows=self.windows, block_size=self.block_size, data=self.data, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scores:
        """Read what `save` wrote."""
        with np.load(path) as content:
            names = [key.partition("/")[2] for key in content if key.startswith("nats/")]
            nats, tokens = ({name: content[f"{kind}/{name}"] for name in names} for kind in ("nats", "tokens"))
            return cls(content["windows"], nats, tokens, int(content["block_size"]), str(content["data"]))

    def minus(self, other: Scores, group: str = "all") -> ConfidenceInterval:
        """This model minus the other, nats per token, windows paired.

        Raises:
            ValueError: if they are scores of other windows.
        """
        if self.data != other.data or not np.array_equal(self.windows, other.windows):
            raise ValueError("these are scores of different windows: evaluate both models on the same data, part and length")
        return ratio(self.nats[group] - other.nats[group], self.tokens[group], blocks(len(self.windows), self.block_size))

    def mean(self, group: str = "all") -> ConfidenceInterval:
        """Nats per token with the error over windows."""
        return ratio(self.nats[group], self.tokens[group], blocks(len(self.windows), self.block_size))


def window_positions(tiles: Any) -> np.ndarray:
    """Record, start and length of each window, `(S, 3)`."""
    return np.array([(t.record, t.start, tiles.length) for t in tiles.tiles])


def fit_markov(data: Any, orders: Sequence[int]) -> dict[int, BackoffMarkov]:
    """For each order a Markov model of the training part of `data`, strengths chosen on its validation part.

    Raises:
        ValueError: if these parts have nothing to count.
    """
    if not orders:
        return {}
    to_bases = data.tokenizer.bases
    fitted = BackoffMarkov.fit([to_bases(s) for s in data.sequences("train")], max(orders))
    return fitted.tuned_each([to_bases(s) for s in data.sequences("valid")], sorted(orders))


def markov_nats(data: Any, tiles: Any, tuned: Mapping[int, BackoffMarkov], part: str) -> Iterator[tuple[int, BackoffMarkov, np.ndarray]]:
    """The Markov models of `fit_markov` and -log p of each base of each window, (S, L); 0 where there is no known base."""
    for order, model in tuned.items():
        nats = per_position(data, part, lambda bases, m=model, k=order: -np.nan_to_num(m.log_probs(bases, k)), fill=0.0)
        yield order, model, windows_of(nats, tiles)


def markov_rows(
    data: Any, tiles: Any, groups: Mapping[str, np.ndarray], result: Any, tuned: Mapping[int, BackoffMarkov], part: str
) -> list[dict[str, Any]]:
    """`markov_nats` as rows for JSON, each with its paired difference to the model."""
    rows = []
    for order, model, nats in markov_nats(data, tiles, tuned, part):
        row: dict[str, Any] = {
            "order": order,
            "trained_on": data.name,
            "strength": model.strengths[order],
            "strengths": model.strengths[: order + 1],
            "groups": {},
        }
        for name, mask in groups.items():
            if not mask.any():
                continue
            theirs = (nats * mask).sum(1)
            total = ratio(theirs, mask.sum(1), blocks(len(mask), result.block_size))
            ours_minus_theirs = result.difference(theirs, name)
            bit = math.log(2)
            row["groups"][name] = {
                "bits": total.value / bit,
                "perplexity": math.exp(total.value),
                "difference_bits": ours_minus_theirs.value / bit,
                "low": ours_minus_theirs.low / bit,
                "high": ours_minus_theirs.high / bit,
            }
        rows.append(row)
    return rows
