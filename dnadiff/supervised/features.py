"""How the features of the positions of a sequence become its embedding."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.data.genome import pieces
from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone import caduceus_ps as rc
from dnadiff.networks.backbone.base import Backbone
from dnadiff.supervised.classifier import is_strand_invariant, keep_first_layers, pooled_width
from dnadiff.supervised.items import reverse_complement_rows

if TYPE_CHECKING:
    import anndata
    import pandas


class Pool(NamedTuple):
    """Maps the features (L, D) of one sequence to its embedding (D,); `per_position` if that has a
    row for each position, (L, D)."""

    reduce: Callable[[Tensor], Tensor]
    per_position: bool = False


POOLS = {
    "mean": Pool(lambda features: features.mean(0)),
    "max": Pool(lambda features: features.amax(0)),
    "none": Pool(lambda features: features, per_position=True),
}


def pool_of(name: str) -> Pool:
    """The pool of that name; a ValueError if there is none."""
    if name not in POOLS:
        raise ValueError(f"pool {name!r} is not known; choose {', '.join(POOLS)}")
    return POOLS[name]


class Embeddings(np.ndarray):
    """Vectors of S sequences (S, D). An array in every other respect; what is computed from it has
    no names.

    Attributes:
        names: of the sequences; None for an array made from another one.
    """

    names: list[str] | None = None

    @classmethod
    def of(cls, vectors: np.ndarray, names: Sequence[str]) -> Embeddings:
        """The vectors with the names of their sequences; those that occur twice get numbers, so
        that all names differ."""
        found = np.asarray(vectors).view(cls)
        found.names = _different(names)
        return found

    def to_frame(self) -> pandas.DataFrame:
        """A row for each sequence, a column for each feature."""
        import pandas

        return pandas.DataFrame(
            np.asarray(self),
            index=self.names,
            columns=[f"feature_{i}" for i in range(self.shape[1])],
        )

    def to_anndata(self) -> anndata.AnnData:
        """`X` (S, D), with the names in `obs_names`: what `embed output=e.h5ad` writes, without
        coordinates.

        Raises:
            ValueError: without the package anndata.
        """
        try:
            package = importlib.import_module("anndata")
        except ImportError as error:
            raise ValueError(
                "to_anndata needs the package anndata: pip install -e '.[anndata]' in the checkout"
            ) from error
        table = self.to_frame()
        return package.AnnData(np.asarray(self), obs=table[[]].rename(str), var=table.T[[]])


def _different(names: Sequence[str]) -> list[str]:
    """The names; to one that occurs twice its position in the list is appended, or the next number
    that gives an unused name."""
    number, used, found = Counter(names), set(names), []
    for i, name in enumerate(names):
        if number[name] > 1:
            name = next(
                new for new in (f"{name}_{j}" for j in itertools.count(i)) if new not in used
            )
        used.add(name)
        found.append(name)
    return found


_BATCHES, _BASES = 16, 1 << 22  # sequences in memory together: so many batches, and so many bases
DTYPES: dict[str, type[np.floating]] = {"float32": np.float32, "float16": np.float16}


class Embedder:
    """Computes embeddings: features of each position after `layer` layers, averaged over the
    strands, then pooled.

    The features of the reverse complement are put back to the positions of the sequence before they
    are averaged. A network that reads both strands (Caduceus-PS) has them in one call, and half as
    many features (`dnadiff.networks.backbone.caduceus_ps.invariant`); if `stranded`, all its
    features are kept. Text has one strand.

    Args:
        denoiser: in evaluation mode (see `BaseDenoiser.features`).
        pool: None is the mean over positions.
        layer: number of layers from the first one, followed by the final norm; None is all.
        stranded: read the given strand alone.

    Attributes:
        width: D, the length of a vector.

    Raises:
        ValueError: if the network has fewer layers, no list of layers, or the type is not known.
    """

    def __init__(
        self,
        denoiser: BaseDenoiser,
        pool: Pool | None = None,
        layer: int | None = None,
        stranded: bool = False,
        dtype: str = "float32",
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not known; choose {', '.join(DTYPES)}")
        self.denoiser, self.backbone, self.layer = denoiser, denoiser.backbone, layer
        self.pool, self.dtype = pool or POOLS["mean"], np.dtype(DTYPES[dtype])
        self.stranded = stranded or denoiser.vocab.complement is None
        self.width = pooled_width(self.backbone, self.stranded)
        with first_layers(self.backbone, layer):
            pass  # refuses a layer that the network does not have

    @torch.no_grad()
    def __call__(
        self, sequences: Sequence[NDArray[np.integer]], batch_size: int = 32
    ) -> list[NDArray[np.floating]]:
        """The embedding of each sequence of token ids (L_i,): (D,), or (L_i, D) of a pool for each
        position."""
        device, vocab = next(self.backbone.parameters()).device, self.backbone.vocab
        tensors = [torch.from_numpy(np.asarray(ids, np.int64)) for ids in sequences]
        found: list[NDArray[np.floating]] = [np.empty(0)] * len(tensors)
        with first_layers(self.backbone, self.layer):
            for number, ids, valid in pieces.batches(tensors, batch_size, vocab.pad_id):
                lengths = [len(tensors[i]) for i in number]
                for i, features in zip(
                    number,
                    self._features(
                        ids.to(device), None if valid is None else valid.to(device), lengths, vocab
                    ),
                ):
                    found[i] = self.pool.reduce(features).cpu().numpy().astype(self.dtype)
        return found

    def _features(
        self, ids: Tensor, valid: Tensor | None, lengths: Sequence[int], vocab: Vocab
    ) -> Iterator[Tensor]:
        """Float32 features (L_i, D) of each row of `ids (B, L)`."""
        features = self.denoiser.features(ids, valid).float()
        if is_strand_invariant(self.backbone, self.stranded):
            features = rc.invariant(features)
        elif not self.stranded:
            reverse = reverse_complement_rows(ids, torch.tensor(lengths, device=ids.device), vocab)
            other = self.denoiser.features(reverse, valid).float()
            for row, length in enumerate(lengths):
                yield (features[row, :length] + other[row, :length].flip(0)) / 2
            return
        for row, length in enumerate(lengths):
            yield features[row, :length]

    def check_lengths(self, source: SequenceInput) -> None:
        """Raise ValueError, naming the sequence, if one is longer than the network accepts."""
        longest = self.backbone.max_length
        for name, length in zip(source.names, source.lengths):
            if longest is not None and length > longest:
                raise ValueError(
                    f"input: {name} has {length:,} bases and this network takes at most "
                    f"{longest:,}; cut it, or leave it out"
                )

    def groups(
        self, source: SequenceInput, batch_size: int, first: int = 0
    ) -> Iterator[list[pieces.Piece]]:
        """The sequences from number `first` on, in lists that are computed together, of a size that
        bounds the memory."""
        whole = (pieces.Piece(number, 0, length) for number, length in enumerate(source.lengths))
        return pieces.grouped(
            islice(whole, first, None),
            batch_size * (1 if self.pool.per_position else _BATCHES),
            _BASES,
        )

    def stream(
        self, source: SequenceInput, batch_size: int, first: int = 0
    ) -> Iterator[list[NDArray[np.floating]]]:
        """The embeddings of the sequences of an input from number `first` on, in order, in the
        lists of `groups`."""
        windows = source.windows(
            piece for group in self.groups(source, batch_size, first) for piece in group
        )
        for group in self.groups(source, batch_size, first):
            yield self(list(islice(windows, len(group))), batch_size)


@contextmanager
def first_layers(backbone: Backbone, num_layers: int | None) -> Iterator[None]:
    """The network without the layers after the first `num_layers`, in the block; None keeps all.
    Errors as `keep_first_layers`."""
    layers = [] if backbone.trunk is None else list(backbone.trunk)
    keep_first_layers(backbone, num_layers)
    try:
        yield
    finally:
        if backbone.trunk is not None:
            backbone.trunk.extend(layers[len(backbone.trunk) :])
