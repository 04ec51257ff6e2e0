"""Effects of variants in Python: a data frame, without any configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dnadiff.data.genome.genome import Genome
from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.block import Block
from dnadiff.variant_effect.by_kind import ByKind
from dnadiff.variant_effect.census import ON_MISMATCH, SKIP, take_census
from dnadiff.variant_effect.effects import COLUMNS, Scorer
from dnadiff.variant_effect.log_prob import LogProb
from dnadiff.variant_effect.masked import Masked
from dnadiff.variant_effect.network import Network
from dnadiff.variant_effect.sources import Rows, VariantSource, open_source
from dnadiff.variant_effect.training_part import TrainingPart
from dnadiff.variant_effect.variant import Alleles, Reference, Sequences

if TYPE_CHECKING:
    import pandas

AnyVariants: TypeAlias = "str | Path | Iterable[Sequence[object] | Mapping[str, object]] | pandas.DataFrame"


def default_method() -> ByKind:
    """The methods that the command line uses by default."""
    return ByKind(Masked(), Block(), Block(), LogProb())


def source_of(variants: AnyVariants) -> VariantSource:
    """A file, or rows in memory."""
    import pandas

    if isinstance(variants, (str, Path)):
        return open_source(variants)
    return Rows(variants.to_dict("records") if isinstance(variants, pandas.DataFrame) else variants)


def reference_of(genome: str | Path | Mapping[str, str] | Reference) -> Reference:
    """A genome from a file, from letters in memory, or open already."""
    if isinstance(genome, Mapping):
        return Sequences(dict(genome))
    return Genome.open(genome) if isinstance(genome, (str, Path)) else genome


def frame(network: Network, method: VariantMethod, source: VariantSource, on_mismatch: str, embeddings: bool) -> pandas.DataFrame:
    """The effects of all alleles that are not skipped, one row each."""
    import pandas  # comes with the package datasets

    if on_mismatch not in ON_MISMATCH:
        raise ValueError(f"on_mismatch {on_mismatch!r} is not known; choose {', '.join(ON_MISMATCH)}")
    method = method.fitting(network.denoiser.causal)
    source.check(network.reference)
    alleles = Alleles(network.reference, network.window, on_mismatch == SKIP)
    take_census(source, alleles, method, TrainingPart({}, {}, ""), on_mismatch == ON_MISMATCH[0])
    columns = (*COLUMNS, *(["L2"] if embeddings else []))
    rows = [
        (row.chrom, row.pos, row.id, row.ref, alt, *(getattr(effect, name) for name in columns), effect.differs)
        for chunk in Scorer(network, method, alleles, embeddings).chunks(source)
        for row, effects in chunk
        for alt, effect in zip(row.alts, effects)
        if effect is not None
    ]
    return pandas.DataFrame(rows, columns=["chrom", "pos", "id", "ref", "alt", *columns, "REF_mismatch"])
