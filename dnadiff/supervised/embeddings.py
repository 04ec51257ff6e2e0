"""Embeddings of sequences: how the features of the positions of a sequence become its vector, and
files of them: npz, Parquet and AnnData's h5ad (extra `anndata`)."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.records import Interval, grouped, padded_batches
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.fields import JsonDict
from dnadiff.formats.nucleotides import N_ID
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.networks.backbone.layers import invariant
from dnadiff.progress import log, table
from dnadiff.store.disk import add_arrays, atomic_write
from dnadiff.store.objects import optional_package
from dnadiff.supervised.classifier import is_strand_invariant, keep_first_layers, pooled_width
from dnadiff.supervised.items import reverse_complement_columns, reverse_complement_rows
from dnadiff.weights.loaded import Loaded
from dnadiff.weights.tensors import earlier_identities, identity

if TYPE_CHECKING:
    import anndata
    import pandas

Vectors: TypeAlias = list[ndarray]  # (D,) of each sequence, or (L_i, D)


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


class Embeddings(ndarray):
    """Vectors of S sequences (S, D). An array in every other respect; what is computed from it has
    no names.

    Attributes:
        names: of the sequences; None for an array made from another one.
    """

    names: list[str] | None = None

    @classmethod
    def of(cls, vectors: ndarray, names: Sequence[str]) -> Embeddings:
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
        package = optional_package("anndata", "to_anndata", "anndata")
        frame = self.to_frame()
        return package.AnnData(np.asarray(self), obs=frame[[]].rename(str), var=frame.T[[]])


def _different(names: Sequence[str]) -> list[str]:
    """The names; to one that occurs twice its position in the list is appended, or the next number
    that gives an unused name."""
    number = Counter(names)
    used = set(names)
    found = []
    for i, name in enumerate(names):
        if number[name] > 1:
            others = (f"{name}_{j}" for j in itertools.count(i))
            name = next(new for new in others if new not in used)
        used.add(name)
        found.append(name)
    return found


NO_VECTOR = "without a known base (all N), as nan"
# sequences in memory together: so many batches, and so many bases
_BATCHES = 16
_BASES = 1 << 22


class Embedder:
    """Computes embeddings: features of each position after `layer` layers, averaged over the
    strands, then pooled.

    The features of the reverse complement are put back to the positions of the sequence before they
    are averaged. A network that reads both strands (Caduceus-PS) has them in one call, and half as
    many features (`dnadiff.networks.backbone.layers.invariant`); if `stranded`, all its
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
        self.denoiser = denoiser if layer is None else copy.deepcopy(denoiser)
        self.backbone = keep_first_layers(self.denoiser.backbone, layer)
        self.pool = pool or POOLS["mean"]
        self.dtype = np.dtype(dtype)
        self.stranded = stranded or denoiser.vocab.complement is None
        self.width = pooled_width(self.backbone, self.stranded)

    @torch.no_grad()
    def __call__(
        self,
        sequences: Sequence[ndarray],
        batch_size: int = 32,
        source: SequenceInput | None = None,
        places: Sequence[Interval] = (),
    ) -> list[ndarray]:
        """The embedding of each sequence of token ids (L_i,): (D,), or (L_i, D) of a pool for each
        position; NaN for DNA without a known base. They are read with the columns that `source` has
        at their `places`, if it has any."""
        device = next(self.backbone.parameters()).device
        vocab = self.backbone.vocab
        tensors = [torch.from_numpy(np.asarray(ids, np.int64)) for ids in sequences]
        found = [np.empty(0)] * len(tensors)
        for number, ids, valid in padded_batches(tensors, batch_size, vocab.pad_id):
            cond = None if source is None else source.columns(places[i] for i in number)
            ids = ids.to(device)
            valid, cond = (None if x is None else x.to(device) for x in (valid, cond))
            lengths = torch.tensor([len(tensors[i]) for i in number], device=device)
            features = self.denoiser.features(ids, valid, cond).float()
            other = None
            if is_strand_invariant(self.backbone, self.stranded):
                features = invariant(features)
            elif not self.stranded:
                reverse = reverse_complement_rows(ids, lengths, vocab)
                if cond is not None:
                    cond = reverse_complement_columns(cond, lengths)
                other = self.denoiser.features(reverse, valid, cond).float()
            for row, i in enumerate(number):
                own = features[row, : len(tensors[i])]
                if other is not None:
                    own = (own + other[row, : len(tensors[i])].flip(0)) / 2
                found[i] = self.pool.reduce(own).cpu().numpy().astype(self.dtype)
                if vocab.complement is not None and bool((tensors[i] == N_ID).all()):
                    found[i][:] = np.nan
        return found

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
    ) -> Iterator[list[Interval]]:
        """The sequences from number `first` on, in lists that are computed together, of a size that
        bounds the memory."""
        number = batch_size * (1 if self.pool.per_position else _BATCHES)
        return grouped(iter(source.whole()[first:]), number, _BASES)

    def stream(self, source: SequenceInput, batch_size: int, first: int = 0) -> Iterator[Vectors]:
        """The embeddings of the sequences of an input from number `first` on, in order, in the
        lists of `groups`."""
        windows = source.windows(source.whole()[first:])
        for group in self.groups(source, batch_size, first):
            yield self(list(islice(windows, len(group))), batch_size, source, group)


class EmbedJob(ResumableJob):
    """The embeddings of all sequences of an input. Items are sequences. Until the file is complete,
    its vectors are in a file next to it.

    Raises:
        ValueError: if the format of the file does not fit, or a sequence is too long.
    """

    stream = "vectors"
    label = "embed"
    items = "sequences"
    converts = True

    def __init__(
        self,
        model: Loaded,
        source: SequenceInput,
        output: Path,
        *,
        batch_size: int,
        pool: str,
        layer: int | None,
        stranded: bool,
        dtype: str,
    ) -> None:
        super().__init__()
        self.path = model.path
        self.source = source
        self.output = output
        self.batch_size = batch_size
        self.embedder = Embedder(model.denoiser, pool_of(pool), layer, stranded, dtype)
        self.write_file = writer_of(output, pool)
        self.embedder.check_lengths(source)
        self.about = {"pool": pool, "layer": layer, "stranded": stranded, "dtype": dtype}
        self.about |= {"model": identity(model.denoiser)}
        self.earlier = earlier_identities(model.denoiser)
        device = model.denoiser.device.type
        inputs = source.identity | {"batch_size": batch_size, "device": device}
        self.settings = self.about | inputs
        self.unknown = 0

    @property
    def collected(self) -> Path:
        return self.output.with_name(f".{self.output.name}.values")

    @property
    def total(self) -> int:
        return len(self.source.names)

    def starts(self) -> list[int]:
        groups = self.embedder.groups(self.source, self.batch_size)
        return self.starts_of(groups)

    def begin(self) -> None:
        lengths = self.source.lengths
        log.info(
            f"model: {self.path}; {len(lengths):,} sequences of {min(lengths):,} to "
            f"{max(lengths):,} bases"
        )

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        lengths = self.source.lengths
        done = start + skip
        for group in self.embedder.stream(self.source, self.batch_size, done):
            self.report(len(group), sum(lengths[done : done + len(group)]))
            done += len(group)
            yield Result(len(group), b"".join(vectors.tobytes() for vectors in group))

    def convert(self, collected: Path) -> None:
        values = np.memmap(collected, self.embedder.dtype, "r").reshape(-1, self.embedder.width)
        with atomic_write(self.output, overwrite=True, size=values.nbytes) as file:
            self.write_file(file, self, values)

    def finish(self, collected: Path) -> JsonDict:
        values = np.memmap(collected, self.embedder.dtype, "r").reshape(-1, self.embedder.width)
        self.unknown = int(np.isnan(values[self.offsets[:-1], 0]).sum())
        lengths = self.source.lengths
        content = {
            "sequences": len(lengths),
            "bases": sum(lengths),
            "without_known_base": self.unknown,
        }
        return content | self.about

    @property
    def offsets(self) -> ndarray:
        """The first row of each sequence among the rows of all, and their number: (S + 1,)."""
        is_single = not self.embedder.pool.per_position
        rows = [1 if is_single else r.size for r in self.source.regions]
        return np.cumsum([0, *rows], dtype=np.int64)

    def columns(self) -> dict[str, list]:
        """Name and coordinates of each sequence, and `region_name` if the regions have names."""
        found = {"name": list(self.source.names)}
        for key in ("chrom", "start", "end", "strand"):
            found[key] = [getattr(region, key) for region in self.source.regions]
        names = self.source.region_names
        return found if names is None else found | {"region_name": list(names)}

    def closing(self, seconds: float) -> str:
        each = "base" if self.embedder.pool.per_position else "sequence"
        rows: list[tuple[str, ...]] = [
            ("sequences", f"{len(self.source.names):,}"),
            ("bases", f"{sum(self.source.lengths):,}"),
            ("numbers", f"{self.embedder.width} {self.embedder.dtype.name} per {each}"),
        ]
        if self.unknown:
            rows.append((NO_VECTOR, f"{self.unknown:,}"))
        return f"{table(rows)}\n{super().closing(seconds)}"


def num_unknown(vectors: Vectors) -> int:
    """The number of vectors of sequences without a known base."""
    return sum(bool(np.isnan(vector).all()) for vector in vectors)


def write_npz(file: BinaryIO, job: EmbedJob, values: ndarray) -> None:
    """Arrays `embeddings` (S, D), `name`, `chrom`, `start`, `end`, `strand` and, of named regions,
    `region_name` (S,), and `settings`, a JSON text.

    With a vector for each position `embeddings` has the rows of all sequences, and those of
    sequence i are `offsets[i]:offsets[i + 1]`.
    """
    about = {key: np.array(x) for key, x in job.columns().items()}
    about["settings"] = np.array(json.dumps(job.about))
    if job.embedder.pool.per_position:
        about["offsets"] = job.offsets
    with zipfile.ZipFile(file, "w") as archive:
        add_arrays(archive, {"embeddings": values, **about})


def write_parquet(file: BinaryIO, job: EmbedJob, values: ndarray) -> None:
    """A row for each sequence: name, coordinates and `embedding`, a list of D numbers, or of such
    lists with one for each position.

    Each group of sequences is a row group. The settings are in the metadata of the schema, under
    `dnadiff`.
    """
    import pyarrow as pa
    from pyarrow import parquet

    per_position = job.embedder.pool.per_position
    vector = pa.list_(pa.from_numpy_dtype(job.embedder.dtype), job.embedder.width)
    columns = job.columns()
    offsets = job.offsets
    kinds = {key: pa.int64() if key in ("start", "end") else pa.string() for key in columns}
    fields = [*kinds.items(), ("embedding", pa.list_(vector) if per_position else vector)]
    schema = pa.schema(fields, metadata={"dnadiff": json.dumps(job.about)})
    with parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
        for first, last in itertools.pairwise(job.starts()):
            part = pa.array(values[offsets[first] : offsets[last]].ravel())
            vectors = pa.FixedSizeListArray.from_arrays(part, type=vector)
            if per_position:
                ends = pa.array(offsets[first : last + 1] - offsets[first], pa.int32())
                vectors = pa.ListArray.from_arrays(ends, vectors)
            about = [pa.array(columns[key][first:last], kind) for key, kind in kinds.items()]
            writer.write_table(pa.Table.from_arrays([*about, vectors], schema=schema))


def write_h5ad(file: BinaryIO, job: EmbedJob, values: ndarray) -> None:
    """AnnData: `X` (S, D), names in `obs_names`, coordinates and `region_name` in `obs`, the
    settings in `uns["dnadiff"]`."""
    import h5py
    import pandas as pd

    package = optional_package("anndata", "output", "anndata")
    columns = {
        key: pd.Series(values, dtype=None if key in ("start", "end") else object)
        for key, values in job.columns().items()
    }
    names = pd.Index(columns.pop("name"), dtype=object)
    features = pd.Index([f"feature_{i}" for i in range(job.embedder.width)], dtype=object)
    about = package.AnnData(
        obs=pd.DataFrame(columns).set_index(names),
        var=pd.DataFrame(index=features),
        uns={"dnadiff": json.dumps(job.about)},
    )
    # HDF5 reads what it writes, and a file without a name does not outlive a killed process.
    with tempfile.TemporaryFile(dir=job.output.parent) as scratch:
        with h5py.File(scratch, "w") as h5:
            package.io.write_elem(h5, "/", about)
            package.io.write_elem(h5, "X", np.asarray(values))
        scratch.seek(0)
        shutil.copyfileobj(scratch, file, 1 << 22)


WriteFile: TypeAlias = Callable[[BinaryIO, EmbedJob, ndarray], None]
FORMATS: dict[str, WriteFile] = {".npz": write_npz, ".parquet": write_parquet, ".h5ad": write_h5ad}


def writer_of(path: Path, pool: str) -> WriteFile:
    """What writes a file of this name.

    Raises:
        ValueError: if no format has its extension, the format's package is not installed, or it has
            no place for a vector for each position.
    """
    found = FORMATS.get(path.suffix.lower())
    per_position = pool_of(pool).per_position
    if found is None:
        raise ValueError(f"output {path} has an unknown extension; known are {', '.join(FORMATS)}")
    if found is write_h5ad:
        if per_position:
            raise ValueError(
                f"output {path}: AnnData has one vector for each sequence; set pool=mean or "
                "pool=max, or write .npz or .parquet"
            )
        otherwise = "; or write .npz or .parquet"
        optional_package("anndata", f"output {path}", "anndata", otherwise)
    return found
