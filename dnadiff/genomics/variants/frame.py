"""Effects of variants in Python: a data frame, without any configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyfaidx import Fasta

from dnadiff.data.genome.genome import Genome
from dnadiff.fields import boolean
from dnadiff.genomics.variants.base import check_method
from dnadiff.genomics.variants.block import Block
from dnadiff.genomics.variants.by_kind import ByKind
from dnadiff.genomics.variants.effects import COLUMNS, NAN, NO_VALUE, AlleleEffect, Scorer
from dnadiff.genomics.variants.log_prob import LogProb
from dnadiff.genomics.variants.masked import Masked
from dnadiff.genomics.variants.network import Network
from dnadiff.genomics.variants.sources import Rows, VariantSource, open_source
from dnadiff.genomics.variants.summary import ON_MISMATCH, SKIP, TrainingPart, summarize
from dnadiff.genomics.variants.variant import Alleles, Reference, Sequences, Skipped

if TYPE_CHECKING:
    import pandas

AnyVariants: TypeAlias = (
    "str | Path | Iterable[Sequence[object] | Mapping[str, object]] | pandas.DataFrame"
)


def default_method() -> ByKind:
    """The methods that the command line uses by default."""
    return ByKind(Masked(), Block(), Block(), LogProb())


def source_of(variants: AnyVariants) -> VariantSource:
    """A file, or rows in memory; raises ValueError for anything else."""
    import pandas

    if isinstance(variants, (str, Path)):
        return open_source(variants)
    if not isinstance(variants, Iterable):
        raise ValueError(
            f"variants is of type {type(variants).__name__}; give a file, a data frame, or rows "
            "(chrom, pos, ref, alt)"
        )
    return Rows(variants.to_dict("records") if isinstance(variants, pandas.DataFrame) else variants)


def reference_of(genome: str | Path | Mapping[str, str] | Fasta | Reference) -> Reference:
    """A genome from a file, from letters in memory, or open already; raises ValueError for anything
    else."""
    if isinstance(genome, Mapping):
        return Sequences(dict(genome))
    if not isinstance(genome, (str, Path, Fasta, Genome, Sequences)):
        raise ValueError(
            f"genome is of type {type(genome).__name__}; give a sequence file, {{name: letters}}, "
            "or an open Genome"
        )
    return genome if isinstance(genome, (Genome, Sequences)) else Genome.open(genome)


def frame(
    network: Network, method: object, source: VariantSource, on_mismatch: str, embeddings: bool
) -> pandas.DataFrame:
    """The effects of all alleles in their order, one row each; `reason` is why an allele has no
    value, and empty for others."""
    import pandas

    if on_mismatch not in ON_MISMATCH:
        raise ValueError(
            f"on_mismatch {on_mismatch!r} is not known; choose {', '.join(ON_MISMATCH)}"
        )
    found = check_method(method, network.denoiser)
    alleles = Alleles(network.reference, network.window, on_mismatch == SKIP)
    summarize(source, alleles, found, TrainingPart({}, {}, ""), on_mismatch == ON_MISMATCH[0])
    columns = (*COLUMNS, *(["L2"] if boolean("L2", embeddings) else []))
    rows = [
        (row.chrom, row.pos, row.id, row.ref, alt, *_cells(result, columns))
        for chunk in Scorer(network, found, alleles, embeddings).chunks(source)
        for row, results in chunk
        for alt, result in zip(row.alts, results)
    ]
    return pandas.DataFrame(
        rows, columns=["chrom", "pos", "id", "ref", "alt", *columns, "REF_mismatch", "reason"]
    )


def _cells(result: AlleleEffect | Skipped, columns: Sequence[str]) -> list[object]:
    """The values of the columns, whether REF differs from the genome, and why there is no value."""
    if isinstance(result, Skipped):
        return [*(NAN for _ in columns), result.differs, result.reason]
    values = [getattr(result, name) for name in columns]
    return [*values, result.differs, NO_VALUE if math.isnan(values[columns.index("LLR")]) else ""]
