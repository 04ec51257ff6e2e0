"""The dependency matrix of a variant: how the predictions at the bases around it change."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnadiff.variant_effect.network import Floats, Network
from dnadiff.variant_effect.variant import TOKENIZER, Edit

HEADER = ("chrom", "pos", "base", "A", "C", "G", "T")


class Dependency(NamedTuple):
    """How the predictions around a variant change with it.

    Attributes:
        positions: (n,) 0-based.
        bases: (n,) letters of the genome.
        change: (n, 4) log p(base | ALT) - log p(base | REF) of A, C, G, T at each position, masked
            alone; nats, the mean of the strands read.
    """

    positions: list[int]
    bases: str
    change: Floats


def dependency(network: Network, edit: Edit, span: int) -> Dependency:
    """The dependency matrix of the `span` bases on each side of a variant, as far as they are in
    its windows; N is left out.

    After the nucleotide dependency maps of Tomaz da Silva et al. (2024), here for one variant with
    all four bases.
    """
    strands = [_of_strand(network, edit, span, reverse) for reverse in network.strands]
    positions = sorted(set.intersection(*(set(found) for found in strands)))
    change = np.array(
        [np.mean([found[position] for found in strands], 0) for position in positions]
    ).reshape(-1, 4)
    bases = "".join(
        TOKENIZER.decode(network.reference.window(edit.record, position, position + 1))
        for position in positions
    )
    return Dependency(positions, bases, change)


def _of_strand(network: Network, edit: Edit, span: int, reverse: bool) -> dict[int, Floats]:
    """The change at each position on one strand, of the bases on the given strand."""
    pair = network.pair(edit, reverse)
    both = [np.concatenate(sides) for sides in pair.flanks(span)]
    known = network.process.vocab.is_emitted().numpy()[pair.ref[both[0]]]
    both, found = [each[known] for each in both], []
    if not known.any():
        return {}
    for which in (0, 1):
        masked = np.zeros((int(known.sum()), len(pair.ref)), bool)
        masked[np.arange(len(masked)), both[which]] = True
        rows = network.at_places(
            (pair.ref, pair.alt), [which] * len(masked), masked, both[which].tolist()
        )
        found.append(rows[:, list(network.process.vocab.emitted)])
    change = found[1] - found[0]
    if not reverse:
        return dict(zip((edit.start + both[0] - pair.ref_start).tolist(), change))
    # Reading right to left, the last base of REF comes first; A, C, G, T in reverse order are their
    # complements.
    return dict(zip((edit.end - 1 - (both[0] - pair.ref_start)).tolist(), change[:, ::-1]))


def as_table(found: Dependency, chrom: str) -> bytes:
    """The matrix as a table with tabs; positions are counted from 1."""
    rows = [
        (chrom, position + 1, base, *(f"{value:.6f}" for value in change))
        for position, base, change in zip(found.positions, found.bases, found.change)
    ]
    return "".join("\t".join(map(str, row)) + "\n" for row in (HEADER, *rows)).encode()
