"""Held-out windows: which of their tokens are counted, their likelihood under Markov models, and
scores for paired comparisons."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy import ndarray

from dnadiff.data.kmers import NOVELTY, KmerSet
from dnadiff.data.records import num_tokens
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.bootstrap import ConfidenceInterval, blocks, ratio
from dnadiff.diffusion.likelihood.estimators import WindowBatch
from dnadiff.fields import Json
from dnadiff.formats.regions import is_gff, read_bed, read_gtf
from dnadiff.genomics.markov import TABLE_ORDER, BackoffMarkov
from dnadiff.progress import log, phase
from dnadiff.store.disk import atomic_write, read_npz

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.data.windows import TiledWindows

# bases of the largest training part whose windows of Markov models are stored: 16 bytes for each
_MAX_WINDOWS = 500_000_000
MAX_TYPES = 50  # of regions


def token_groups(
    data: SequenceDataModule,
    tiles: TiledWindows,
    part: str,
    trained_on: Sequence[SequenceDataModule] = (),
    annotation: str | None = None,
) -> dict[str, ndarray]:
    """Which tokens of each window to count, `{name: (S, L) bool}`.

    `all` are the tokens of positive weight (never N, never padding). `without specials` leaves out
    the special tokens of the tokenizer (begin, end, separator), if it has any. `repeated` and
    `novel` split DNA by its overlap with the training parts of the data that models were
    `trained_on`; without any there are none of these two groups. Those of `region_types` of an
    `annotation` divide `all`, too.
    """
    # Before the long work, so that a wrong file is refused at once.
    names, found = region_types(data, tiles, annotation) if annotation else ([], np.zeros(0))
    weight = np.stack([tiles[i]["weight"].numpy() for i in range(len(tiles))]) > 0
    groups = {"all": weight}
    if special := data.tokenizer.special_ids:
        ids = np.stack([tiles[i]["ids"].numpy() for i in range(len(tiles))])
        groups["without specials"] = weight & ~np.isin(ids, special)
    if trained_on:
        repeated = np.zeros_like(weight)
        to_bases = bases_of(data)
        for other in trained_on:
            with phase(f"finding the {NOVELTY}-mers of the training part of {other.name}"):
                training = KmerSet([to_bases(s) for s in other.sequences("train")], NOVELTY)
                repeated |= per_window(data, tiles, part, training.covered)
        groups |= {"novel": weight & ~repeated, "repeated": weight & repeated}
    groups |= {name: weight & (found == number) for number, name in enumerate(names)}
    if annotation and not (weight & (found > 0)).any():
        log.warning(f"no region of annotation {annotation} is in the {part} part of {data.name}")
    return groups


def region_types(
    data: SequenceDataModule, tiles: TiledWindows, annotation: str
) -> tuple[list[str], ndarray]:
    """The type of region of each token, of a GTF, GFF or BED file: the names of all, and the number
    of that of each token `(S, L)`; 0 is outside.

    The type is the third column of GTF and GFF, the fourth of BED. A base in regions of several
    types is of the one with the fewest bases in the file: of a CDS, not of its gene.

    Raises:
        ValueError: if there are more than 50 types, or the file is malformed.
    """
    lengths = dict(zip(data.names, map(len, data.records)))
    regions = (
        read_gtf(annotation, lengths=lengths, types=True)
        if is_gff(annotation)
        else read_bed(annotation, lengths, skip_unknown=True)
    )
    bases = Counter[str]()
    for region in regions:
        bases[region.name] += region.size
    if len(bases) > MAX_TYPES:
        raise ValueError(
            f"annotation {annotation} has {len(bases):,} types of regions (third column of GTF and "
            f"GFF, fourth of BED), expected at most {MAX_TYPES}; give a file with fewer"
        )
    order = [name for name, _ in bases.most_common()]
    values = {
        tile.record: np.zeros(lengths[data.names[tile.record]], np.uint8) for tile in tiles.tiles
    }
    named = {data.names[number]: array for number, array in values.items()}
    for region in sorted(regions, key=lambda region: order.index(region.name)):
        if region.chrom in named:
            named[region.chrom][region.start : region.end] = order.index(region.name) + 1
    return ["outside", *(f"in {name}" for name in order)], in_windows(values, tiles)


def bases_of(data: SequenceDataModule) -> Callable[[ndarray], ndarray]:
    """The function that converts token ids of DNA to bases (0 to 3; 4 is unknown); raises
    ValueError for other data."""
    if not isinstance(data.tokenizer, DNATokenizer):
        raise ValueError(
            f"{data.name} is not DNA; Markov models and k-mers of bases are available for DNA only"
        )
    return data.tokenizer.bases


def per_window(
    data: SequenceDataModule, tiles: TiledWindows, part: str, score: Callable[[ndarray], ndarray]
) -> ndarray:
    """`score(bases)` of every interval of a part, `in_windows`."""
    values: dict[int, ndarray] = {}
    to_bases = bases_of(data)
    for record, start, end in data.intervals[part]:
        scored = score(to_bases(data.records[record][start:end]))
        if record not in values:
            values[record] = np.zeros(len(data.records[record]), scored.dtype)
        values[record][start:end] = scored
    return in_windows(values, tiles)


def in_windows(values: Mapping[int, ndarray], tiles: TiledWindows) -> ndarray:
    """The values of records in windows `(S, L)`; 0 on padding, which is not in the record."""
    found = np.zeros((len(tiles), tiles.length), next(iter(values.values())).dtype)
    for row, tile in zip(found, tiles.tiles):
        here = values[tile.record][tile.start : tile.start + tiles.length]
        row[: len(here)] = here
    return found


@dataclass(frozen=True)
class Windows:
    """Windows and their groups of counted tokens as batches of tensors; can be iterated
    repeatedly."""

    tiles: TiledWindows
    groups: Mapping[str, ndarray]
    batch_size: int
    cond_ndim: int = 0  # of what the model is conditioned on, `BaseDenoiser.cond_ndim`

    def __len__(self) -> int:
        return len(self.tiles)

    def __iter__(self) -> Iterator[WindowBatch]:
        for first in range(0, len(self.tiles), self.batch_size):
            part = slice(first, min(first + self.batch_size, len(self.tiles)))
            items = [self.tiles[i] for i in range(part.start, part.stop)]
            stacked = {
                key: torch.stack([item[key] for item in items])
                for key in ("ids", "valid", "cond")
                if key in items[0] and (key != "cond" or items[0][key].ndim + 1 == self.cond_ndim)
            }
            groups = {name: torch.from_numpy(mask[part]) for name, mask in self.groups.items()}
            yield WindowBatch(**stacked, groups=groups)


@dataclass(frozen=True)
class Scores:
    """The likelihood of each window under one model: what a paired comparison with another model
    needs.

    Attributes:
        windows: (S, 3) record, start and length.
        nats, tokens: nats and number of counted tokens of each window, (S,), for each group of
            tokens.
        block_size: windows per block of the bootstrap.
        data: `split_hash` of the data, which identifies records and split.
    """

    windows: ndarray
    nats: Mapping[str, ndarray]
    tokens: Mapping[str, ndarray]
    block_size: int
    data: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an `.npz` file."""
        arrays: Json = {"windows": self.windows, "block_size": self.block_size, "data": self.data}
        arrays |= {f"nats/{name}": values for name, values in self.nats.items()}
        arrays |= {f"tokens/{name}": self.tokens[name] for name in self.nats}
        with atomic_write(Path(path), overwrite=True) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scores:
        """Read a file written by `save`; ValueError if it is damaged."""
        content = read_npz(
            path, {"windows": "i2", "block_size": "i0", "data": "U0", "nats/all": "f1"}
        )
        windows = content["windows"]
        nats, tokens = (
            {key[len(kind) :]: each for key, each in content.items() if key.startswith(kind)}
            for kind in ("nats/", "tokens/")
        )
        shapes = {each.shape for each in (*nats.values(), *tokens.values())}
        if nats.keys() != tokens.keys() or shapes != {windows.shape[:1]}:
            raise ValueError(
                f"{path} is damaged: not the scores of windows; evaluate again with windows={path}"
            )
        return cls(windows, nats, tokens, int(content["block_size"]), str(content["data"]))

    def minus(self, other: Scores, group: str = "all") -> ConfidenceInterval:
        """This model minus the other, nats per token, windows paired; raises ValueError if the
        scores are of different windows."""
        if self.data != other.data or not np.array_equal(self.windows, other.windows):
            raise ValueError(
                "these are scores of different windows: evaluate both models on the same data, "
                "part and length"
            )
        nats = self.nats[group] - other.nats[group]
        return ratio(nats, self.tokens[group], blocks(len(self.windows), self.block_size))


def fit_markov(
    data: SequenceDataModule, orders: Sequence[int], max_bases: int = _MAX_WINDOWS
) -> dict[int, BackoffMarkov]:
    """A Markov model of each order, fitted on the training part of `data` with strengths chosen on
    its validation part.

    Orders whose counts do not fit into memory are left out with a message: tables always do, the
    windows of higher orders of up to `max_bases` bases.

    Raises:
        ValueError: if one of these parts has no known base.
    """
    if not orders:
        return {}
    to_bases = bases_of(data)
    num_bases = num_tokens(data.intervals["train"])
    kept = [k for k in sorted(orders) if k <= TABLE_ORDER or num_bases <= max_bases]
    if len(kept) < len(orders):
        left_out = ", ".join(str(order) for order in orders if order not in kept)
        log.info(
            f"Markov models of order {left_out} are left out because the counts of {num_bases:,} "
            f"training bases do not fit into memory; set orders={str(kept).replace(' ', '')}"
        )
    if not kept:
        return {}
    with phase(f"fitting Markov models up to order {max(kept)} on {num_bases:,} bases"):
        fitted = BackoffMarkov.fit([to_bases(s) for s in data.sequences("train")], max(kept))
        return fitted.tuned_each([to_bases(s) for s in data.sequences("valid")], kept)


def markov_nats(
    data: SequenceDataModule, tiles: TiledWindows, tuned: Mapping[int, BackoffMarkov], part: str
) -> Iterator[tuple[int, BackoffMarkov, ndarray]]:
    """Order and model of each entry of `fit_markov`, and -log p of each base of each window, (S,
    L); 0 for unknown bases."""
    for order, model in tuned.items():
        with phase(f"Markov model of order {order} on the held-out part"):
            log_probs = per_window(data, tiles, part, partial(model.log_probs, order=order))
        yield order, model, -np.nan_to_num(log_probs)
