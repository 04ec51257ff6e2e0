"""Matrices of motifs: files in JASPAR format, and IUPAC letters."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from Bio.Data.IUPACData import ambiguous_dna_values
from numpy import ndarray

from dnadiff.fields import as_list
from dnadiff.formats.regions import filled_lines, listing
from dnadiff.store.address import shown
from dnadiff.store.files import read_text

BASES = "ACGT"
_ROWS = ("row 1", "row 2", "row 3", "row 4")  # of a matrix without letters, in the same order
_COUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PSEUDOCOUNT = 0.8  # in total for each position, as JASPAR's tools have it


def log_odds(counts: ndarray) -> ndarray:
    """Log-odds in bits (W, 4) of counts against equal base frequencies."""
    share = (counts + _PSEUDOCOUNT / 4) / (counts.sum(-1, keepdims=True) + _PSEUDOCOUNT)
    return np.log2(share * 4)


def read_jaspar(path: str | Path, name: str | None = None) -> ndarray:
    """The counts (W, 4) of one matrix of a file in JASPAR format, or in its raw format, whose rows
    have no letters; raises ValueError naming the file and the line or the matrix if there is none,
    or if one is damaged."""
    source = f"reward.matrix {shown(path)}"
    found = read_matrices(path, source)
    chosen = [one for one in found if name is None or name in (one[0], *one[0].split(" ", 1))]
    if len(chosen) != 1:
        called = "" if name is None else f" called {name}"
        raise ValueError(
            f"{source} has {len(chosen)} matrices{called}; set reward.name to one of "
            f"{listing([title for title, _ in found]) or 'those of another file'}"
        )
    title, counts = chosen[0]
    if not counts.size or not np.isfinite(counts).all() or not counts.any(-1).all():
        raise ValueError(
            f"{source}: the matrix {title} has a position without counts, or a count that is no "
            "number; correct it"
        )
    return counts


def read_matrices(path: str | Path, source: str) -> list[tuple[str, ndarray]]:
    """All matrices of such a file: their titles and counts (W, 4); errors as `read_jaspar`, after
    the name of their `source`."""
    found = list[tuple[str, dict[str, list[float]]]]()
    for number, line in filled_lines(io.StringIO(read_text(path, 1 << 24))):
        base, *cells = re.findall(r"[^\s\[\]]+", line) or [""]
        rows = found[-1][1] if found else {}
        if _COUNT.fullmatch(base):
            base, cells = f"row {len(rows) + 1}", [base, *cells]
        if line.startswith(">"):
            found.append((" ".join(line[1:].split()), {}))
        elif found and base in {*BASES, *_ROWS} - {*rows} and all(map(_COUNT.fullmatch, cells)):
            rows[base] = [*map(float, cells)]
        else:
            raise ValueError(
                f"{source}: line {number} is {line[:40]!r}, expected >ID NAME or a row of "
                "counts of A, C, G or T, such as 'A [ 3 0 1 ]'; correct the line"
            )
    for title, rows in found:
        if {*rows} not in ({*BASES}, {*_ROWS}) or len({*map(len, rows.values())}) != 1:
            sizes = ", ".join(f"{len(row)} of {base}" for base, row in rows.items()) or "none"
            raise ValueError(
                f"{source}: the matrix {title} has rows with different numbers of counts "
                f"({sizes}), expected as many for each of A, C, G and T; complete it"
            )
    return [(title, np.array([row for _, row in sorted(rows.items())]).T) for title, rows in found]


def known_motifs(given: str | Sequence[str] | None) -> dict[str, ndarray]:
    """Frequencies (W, 4) of motifs by name: of IUPAC letters, and of all matrices of files in
    JASPAR format."""
    found: dict[str, ndarray] = {}
    for each in as_list(given) if given else ():
        if set(each.upper()) <= ambiguous_dna_values.keys():
            allowed = [[base in ambiguous_dna_values[x] for base in BASES] for x in each.upper()]
            matrices = [(each, np.array(allowed, float))]
        else:
            matrices = read_matrices(each, f"motifs {shown(each)}")
        found |= {title: np.exp2(log_odds(counts)) / 4 for title, counts in matrices}
    return found
