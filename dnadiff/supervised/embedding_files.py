"""Files of embeddings: npz, Parquet and AnnData's h5ad (extra `anndata`). All are written group by
group, in the order of the input."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.fields import Json
from dnadiff.formats.regions import Region
from dnadiff.store.disk import atomic_write

Vectors: TypeAlias = "list[NDArray[np.floating]]"  # (D,) of each sequence, or (L_i, D)


@dataclass(frozen=True)
class EmbeddingTable:
    """What a file says of its sequences.

    Attributes:
        names: a different one for each sequence.
        regions: where each sequence is.
        width: D, the length of a vector.
        per_position: whether a sequence has a vector for each position.
        settings: how they were computed, ready for JSON.
        region_names: of each region in its BED, GTF or GFF file; None if there are none.
    """

    names: Sequence[str]
    regions: Sequence[Region]
    width: int
    dtype: np.dtype
    per_position: bool
    settings: Json
    region_names: Sequence[str] | None = None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The first row of each sequence among the rows of all, and their number: (S + 1,)."""
        rows = [r.end - r.start if self.per_position else 1 for r in self.regions]
        return np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])

    def columns(self) -> dict[str, list]:
        """Name and coordinates of each sequence, and `region_name` if the regions have names."""
        of_regions = {
            key: [getattr(r, key) for r in self.regions]
            for key in ("chrom", "start", "end", "strand")
        }
        named = {} if self.region_names is None else {"region_name": list(self.region_names)}
        return {"name": list(self.names), **of_regions, **named}


class EmbeddingFormat(ABC):
    """A format of files of embeddings."""

    @classmethod
    def check(cls, path: str | Path, per_position: bool) -> None:
        """Raise ValueError if the format cannot be written here."""

    @abstractmethod
    def write(
        self, file: BinaryIO, table: EmbeddingTable, groups: Iterable[Vectors], folder: Path
    ) -> None:
        """Write the vectors of all sequences to an open file; `folder` has space for a copy of
        it."""


class Npz(EmbeddingFormat):
    """Arrays `embeddings` (S, D), `name`, `chrom`, `start`, `end`, `strand` and, of named regions,
    `region_name` (S,), and `settings`, a JSON text.

    With a vector for each position `embeddings` has the rows of all sequences, and those of
    sequence i are `offsets[i]:offsets[i + 1]`.
    """

    @override
    def write(
        self, file: BinaryIO, table: EmbeddingTable, groups: Iterable[Vectors], folder: Path
    ) -> None:
        rows = table.offsets
        about: dict[str, NDArray] = {
            key: np.array(values) for key, values in table.columns().items()
        }
        about |= {"settings": np.array(json.dumps(table.settings))} | (
            {"offsets": rows} if table.per_position else {}
        )
        header = {
            "descr": table.dtype.newbyteorder("<").str,
            "fortran_order": False,
            "shape": (int(rows[-1]), table.width),
        }
        with zipfile.ZipFile(file, "w") as archive:
            # A name alone would get the current time, and the same input other bytes.
            with archive.open(zipfile.ZipInfo("embeddings.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for group in groups:
                    for vectors in group:
                        entry.write(
                            np.ascontiguousarray(vectors, table.dtype.newbyteorder("<")).tobytes()
                        )
            for name, array in about.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)


class Parquet(EmbeddingFormat):
    """A row for each sequence: name, coordinates and `embedding`, a list of D numbers, or of such
    lists with one for each position.

    Each group of sequences is a row group. The settings are in the metadata of the schema, under
    `dnadiff`.
    """

    @override
    def write(
        self, file: BinaryIO, table: EmbeddingTable, groups: Iterable[Vectors], folder: Path
    ) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        vector = pa.list_(pa.from_numpy_dtype(table.dtype), table.width)
        columns, done = table.columns(), 0
        kinds = {key: pa.int64() if key in ("start", "end") else pa.string() for key in columns}
        fields = [*kinds.items(), ("embedding", pa.list_(vector) if table.per_position else vector)]
        schema = pa.schema(fields, metadata={"dnadiff": json.dumps(table.settings)})
        with parquet.ParquetWriter(file, schema) as writer:
            for group in groups:
                stacked = np.concatenate(group) if table.per_position else np.stack(group)
                values = pa.FixedSizeListArray.from_arrays(pa.array(stacked.ravel()), type=vector)
                if table.per_position:
                    offsets = np.cumsum([0, *map(len, group)])
                    values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
                about = [
                    pa.array(columns[key][done : done + len(group)], kind)
                    for key, kind in kinds.items()
                ]
                writer.write_table(pa.Table.from_arrays([*about, values], schema=schema))
                done += len(group)


class H5ad(EmbeddingFormat):
    """AnnData: `X` (S, D), names in `obs_names`, coordinates and `region_name` in `obs`, the
    settings in `uns["dnadiff"]`."""

    @classmethod
    @override
    def check(cls, path: str | Path, per_position: bool) -> None:
        if per_position:
            raise ValueError(
                f"output {path}: AnnData has one vector for each sequence; set pool=mean or "
                "pool=max, or write .npz or .parquet"
            )
        library(path)

    @override
    def write(
        self, file: BinaryIO, table: EmbeddingTable, groups: Iterable[Vectors], folder: Path
    ) -> None:
        import h5py
        import pandas as pd

        anndata = library("embeddings.h5ad")
        columns = {
            key: pd.Series(values, dtype=None if key in ("start", "end") else object)
            for key, values in table.columns().items()
        }
        names = pd.Index(columns.pop("name"), dtype=object)
        obs = pd.DataFrame(columns).set_index(names)
        var = pd.DataFrame(
            index=pd.Index([f"feature_{i}" for i in range(table.width)], dtype=object)
        )
        # HDF5 reads what it writes, and a file without a name does not outlive a killed process.
        with tempfile.TemporaryFile(dir=folder) as scratch:
            with h5py.File(scratch, "w") as h5:
                h5.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
                values = h5.create_dataset("X", (len(names), table.width), table.dtype)
                values.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
                done = 0
                for group in groups:
                    values[done : done + len(group)] = np.stack(group)
                    done += len(group)
                parts: dict[str, object] = {
                    "obs": obs,
                    "var": var,
                    "uns": {"dnadiff": json.dumps(table.settings)},
                }
                for key, part in (
                    parts | {key: {} for key in ("layers", "obsm", "varm", "obsp", "varp")}
                ).items():
                    anndata.io.write_elem(h5, key, part)
            scratch.seek(0)
            shutil.copyfileobj(scratch, file, 1 << 22)


def library(path: str | Path) -> ModuleType:
    """The package `anndata`; raises ValueError if it is not installed."""
    try:
        return importlib.import_module("anndata")
    except ImportError as error:
        raise ValueError(
            f"output {path} needs the package anndata: pip install -e '.[anndata]' in the "
            "checkout; or write .npz or .parquet"
        ) from error


FORMATS: dict[str, type[EmbeddingFormat]] = {".npz": Npz, ".parquet": Parquet, ".h5ad": H5ad}


def format_of(path: str | Path, per_position: bool) -> EmbeddingFormat:
    """The format of a file of this name.

    Raises:
        ValueError: if no format has its extension, the format's package is not installed, or it has
            no place for a vector for each position.
    """
    found = FORMATS.get(Path(path).suffix.lower())
    if found is None:
        raise ValueError(f"output {path} has an unknown extension; known are {', '.join(FORMATS)}")
    found.check(path, per_position)
    return found()


def write(
    path: Path,
    kind: EmbeddingFormat,
    table: EmbeddingTable,
    groups: Iterable[Vectors],
    overwrite: bool = False,
) -> None:
    """Write a file atomically."""
    size = int(table.offsets[-1]) * table.width * table.dtype.itemsize
    with atomic_write(path, overwrite, size) as file:
        kind.write(file, table, groups, path.parent)
