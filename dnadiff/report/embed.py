"""The page of `embed`: the first two principal components of the sequences, by what the file says
about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnadiff.options.base import Result
from dnadiff.plot import principal_components
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Table
from dnadiff.store.disk import read_npz
from dnadiff.store.files import resolve

if TYPE_CHECKING:
    import pandas

_MOST_COLORS = 12
_SHOWN = ("region_name", "chrom", "strand")  # the first one with two or more values is the color


def page(result: Result, options: Any) -> Page:
    """The page of the file of embeddings."""
    import pandas

    vectors, columns = read(result.paths[0])
    known = np.isfinite(vectors).all(1)
    if known.sum() < 3:
        return Page("Embeddings", f"{known.sum()} sequences: too few for principal components.")
    points, shares = principal_components(vectors[known])
    about = pandas.DataFrame(columns)[known].reset_index(drop=True)
    names = [f"PC{i} ({100 * share:.0f} %)" for i, share in enumerate(shares, 1)]
    groups = [k for k in _SHOWN if k in about and 1 < about[k].nunique() <= _MOST_COLORS]
    if options.metadata is not None:
        table = read_metadata(options.metadata)
        groups = list(table.columns.drop("name"))
        if not about["name"].isin(table["name"]).any():
            raise ValueError(
                f"metadata {options.metadata} has none of the sequences in its column name, such "
                f"as {about['name'][0]}; give their names"
            )
        about = about.drop(columns=groups, errors="ignore").merge(table, "left", "name")
    frame = about.assign(**dict(zip(names, points.T)))
    color = groups[0] if groups else None
    drawn = charts.scatter(frame, names[0], names[1], color, list(about))
    text = "Each point is a sequence; % of the variance on the axes. Hover for its name."
    label = "first two principal components of the sequences"
    sentence = (
        f"{len(vectors):,} sequences, {vectors.shape[1]:,} numbers each: two principal components "
        f"hold {100 * sum(shares):.0f} % of the variance."
    )
    return Page(
        "Embeddings",
        sentence,
        [Picture("components", label, text, drawn, wide=True)],
        Table.of(frame),
        made={"checkpoint": options.checkpoint, **options.only("pool", "layer", "stranded")},
    )


def read_metadata(path: str) -> pandas.DataFrame:
    """A table of CSV or TSV with a row for each name; ValueError if it has no column `name`, or no
    other one."""
    import pandas

    table = pandas.read_csv(resolve(path), sep=None, engine="python", dtype={"name": str})
    if "name" not in table or len(table.columns) < 2:
        raise ValueError(
            f"metadata {path} has the columns {', '.join(table)}; give name, as in input=, and one "
            "to color by"
        )
    return table.drop_duplicates("name")


def read(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The vectors (S, D) of a file, and the other columns (S,)."""
    import pandas

    if path.suffix == ".npz":
        arrays = read_npz(path, {"embeddings": "f2", "name": "U1"})
        vectors = arrays.pop("embeddings")
        return vectors, {k: x for k, x in arrays.items() if x.shape == arrays["name"].shape}
    if path.suffix == ".parquet":
        frame = pandas.read_parquet(path)
        return np.stack(frame.pop("embedding")), {k: frame[k].to_numpy() for k in frame}
    import anndata

    found = anndata.read_h5ad(path)
    return np.asarray(found.X), {"name": found.obs_names.to_numpy(), **found.obs}
