"""Motifs in attributions: found by TF-MoDISco (Shrikumar et al., arXiv 1811.00416), as modisco-lite
has it (extra `explain`), and compared with known ones by memelite's TOMTOM."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from dnadiff.fields import JsonDict
from dnadiff.formats.regions import Region
from dnadiff.progress import log, phase
from dnadiff.store.disk import write_bytes
from dnadiff.store.objects import optional_package

# Bases of the windows in which contributions are summed, and of their flanks. Motifs of promoters
# are short: with the default settings a planted one of 8 bases is not found among 300 sequences.
WINDOW, FLANK = 15, 5
MIN_SITES = 100  # of all motifs with one sign; TF-MoDISco gives up below
_TRIM = 0.3  # of the largest contribution: positions at the ends with less are cut off
_RUNS = 16  # of the clustering, with seeds of their own


def library(module: str = "modiscolite.tfmodisco") -> ModuleType:
    """A module of the extra; raises ValueError if it is not installed."""
    return optional_package(module, "discover: TF-MoDISco", "explain")


def discover(
    one_hot: ndarray, hypothetical: ndarray, known: Mapping[str, ndarray]
) -> list[JsonDict]:
    """The motifs of sequences (N, L, 4), with what each base would contribute at each position.

    A site has a window of 15 bases with large contributions (false discovery rate .2), and motifs
    are cut to the positions with .3 of the largest contribution. The same input gives the same
    motifs.

    Returns:
        For each motif `name` (positive_1 and so on: its sites raise the prediction), `consensus`
        (lower case below one half), `matrix` (W, 4) of frequencies, `contribution` (W, 4), their
        mean, and `sites`, each the number of the sequence, start and end in it, and its strand; on
        strand - it has the reverse complement of the motif. With `known` motifs (W, 4) also the
        most similar one, `match`, with `match_strand` and `E`, the p-value of the similarity times
        the number of known motifs.
    """
    patterns: dict[str, Any] = {}
    modisco = library()
    # It raises these for too few bases, or where no contribution has one of the signs.
    with suppress(ValueError, IndexError), phase("finding motifs"):
        both = modisco.TFMoDISco(
            one_hot.astype(np.float32),
            hypothetical.astype(np.float32),
            sliding_window_size=WINDOW,
            flank_size=FLANK,
            n_leiden_runs=_RUNS,
            trim_to_window_size=20,
            min_num_to_trim_to=20,
            initial_flank_to_add=5,
        )
        for sign, found in zip(("positive", "negative"), both):
            patterns |= {f"{sign}_{number}": each for number, each in enumerate(found or (), 1)}
    motifs = list[JsonDict]()
    for name, pattern in patterns.items():
        weight = np.abs(pattern.contrib_scores).sum(1)
        kept = np.flatnonzero(weight >= _TRIM * weight.max())
        low, high = int(kept[0]), int(kept[-1]) + 1
        matrix, contribution = (x[low:high] for x in (pattern.sequence, pattern.contrib_scores))
        sites = []
        for each in pattern.seqlets:
            start = int(each.end - high if each.is_revcomp else each.start + low)
            strand = "-" if each.is_revcomp else "+"
            sites.append([int(each.example_idx), start, start + high - low, strand])
        letters = zip(matrix.argmax(1), matrix.max(1))
        motifs.append(
            {
                "name": name,
                "consensus": "".join(("ACGT" if p >= 0.5 else "acgt")[i] for i, p in letters),
                "sites": sorted(sites),
                "matrix": matrix.round(4).tolist(),
                "contribution": contribution.round(6).tolist(),
            }
        )
    if not motifs:
        log.warning(
            f"no motif found in {len(one_hot):,} sequences; TF-MoDISco needs {WINDOW + 2 * FLANK} "
            f"bases or more, and at least {MIN_SITES} sites with large contributions"
        )
    elif known:
        _match(motifs, known)
    return motifs


def _match(motifs: Sequence[JsonDict], known: Mapping[str, ndarray]) -> None:
    """Add the most similar known motif to each."""
    given = [np.array(each["matrix"]).T for each in motifs]
    with warnings.catch_warnings():  # p-values of few known motifs: docs/explaining.md
        warnings.simplefilter("ignore")
        p, _, _, _, strand = library("memelite").tomtom(given, [x.T for x in known.values()])
    for each, i, of_known, strands in zip(motifs, p.argmin(1), p, strand):
        each |= {
            "match": list(known)[i],
            "match_strand": "-" if strands[i] else "+",
            "E": float(of_known[i] * len(known)),
        }


def write_sites(path: Path, motifs: Sequence[JsonDict], regions: Sequence[Region]) -> None:
    """Write the sites of motifs in sequences at these places of a genome as BED: chrom, start, end,
    name of the motif, 0 and strand, in the order of the motifs."""
    lines = []
    for motif in motifs:
        for sequence, start, end, strand in motif["sites"]:
            part = regions[sequence].part(start, end)
            turned = "+-"[(strand == "-") ^ (part.strand == "-")]
            lines.append(f"{part.chrom}\t{part.start}\t{part.end}\t{motif['name']}\t0\t{turned}\n")
    write_bytes(path, "".join(lines).encode())
