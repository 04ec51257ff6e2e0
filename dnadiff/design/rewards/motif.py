"""Rewards for motifs: matrices in JASPAR format or IUPAC letters, and restriction sites, on both
strands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.design.request import FREE, codes_of
from dnadiff.design.reward import Reward, Values
from dnadiff.fields import Fraction, checked
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.jobs.journal import sha256
from dnadiff.store.address import shown
from dnadiff.store.files import open_text, resolve

_BASES = "ACGT"
_PSEUDOCOUNT = 0.8  # in total for each position, as JASPAR's tools have it


@checked
class MotifMatch(Reward):
    """The best match of a motif in a sequence, at any position.

    For IUPAC letters it is the fraction of the letters that match, N not counted. For a matrix it
    is the log-odds score against equal base frequencies, relative to the highest possible one: 1 is
    the consensus, 0 a site that is as probable under the motif as under equal base frequencies. A
    sequence shorter than the motif has the lowest possible score.

    Args:
        motif: IUPAC letters, such as TATAAT or RCGTG.
        matrix: a file of position frequency matrices in JASPAR format, instead of `motif`; may be
            gzip-compressed.
        name: the identifier or the name of the matrix; None takes the only one of the file.
        both_strands: also search the reverse complement.
        absent: reward the absence: minus the excess of the best match above `threshold`.
        threshold: with `absent`, relative scores up to it cost nothing.

    Raises:
        ValueError: if the motif or the file cannot be read, or the file has no such matrix.
    """

    def __init__(
        self,
        motif: str | None = None,
        matrix: str | None = None,
        name: str | None = None,
        both_strands: bool = True,
        absent: bool = False,
        threshold: Fraction = 0.8,
    ) -> None:
        if (motif is None) == (matrix is None):
            raise ValueError(
                "reward.motif is for IUPAC letters and reward.matrix for a file in JASPAR format; "
                "set one of them"
            )
        self.motif, self.matrix, self.name = motif, matrix, name
        self.both_strands, self.absent, self.threshold = both_strands, absent, threshold
        self._scores = (
            log_odds(read_jaspar(str(matrix), name)) if motif is None else letter_matches(motif)
        )  # (W, 4)
        if self._scores.max(-1).sum() <= 0:
            raise ValueError(
                f"reward.matrix {matrix}: no position of the matrix prefers a base; choose "
                "another one"
            )

    @override
    def inputs(self) -> dict[str, str]:
        return {} if self.matrix is None else {shown(self.matrix): sha256(resolve(self.matrix))}

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        best = np.array([self._best(sequence) for sequence in sequences])
        return -np.maximum(best - self.threshold, 0.0) if self.absent else best

    def _best(self, sequence: str) -> float:
        highest = self._scores.max(-1).sum()
        strands = (
            (sequence, str(reverse_complement(sequence))) if self.both_strands else (sequence,)
        )
        found = [scores.max() for strand in strands if len(scores := matches(strand, self._scores))]
        return float(max(found, default=self._scores.min(-1).sum()) / highest)


def matches(sequence: str, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score of a matrix `(W, 4)` at each position of a sequence, (L - W + 1,); other letters
    than A, C, G, T have the lowest score."""
    index = _INDEX[np.frombuffer(sequence.encode("ascii", "replace"), np.uint8)]
    table = np.concatenate([scores, scores.min(-1, keepdims=True)], axis=1)  # (W, 5)
    width = len(scores)
    count = len(index) - width + 1
    return (
        np.sum([table[at, index[at : at + count]] for at in range(width)], axis=0)
        if count > 0
        else np.zeros(0)
    )


_INDEX = np.full(256, 4)
_INDEX[list(b"ACGTacgt")] = [0, 1, 2, 3] * 2


def letter_matches(motif: str) -> NDArray[np.float64]:
    """Scores (W, 4) of IUPAC letters: 1 for a base that a letter allows, 0 for others and for every
    base at N."""
    codes = codes_of(motif, f"reward.motif {motif!r}")
    if (codes == FREE).all():
        raise ValueError(
            f"reward.motif {motif!r} allows every sequence; give at least one letter other than N"
        )
    return np.where(codes[:, None] == FREE, 0.0, (codes[:, None] >> np.arange(4)) & 1)


def log_odds(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds in bits (W, 4) of counts against equal base frequencies."""
    share = (counts + _PSEUDOCOUNT / 4) / (counts.sum(-1, keepdims=True) + _PSEUDOCOUNT)
    return np.log2(share * 4)


def read_jaspar(path: str | Path, name: str | None = None) -> NDArray[np.float64]:
    """The counts (W, 4) of one matrix of a file in JASPAR format; raises ValueError naming the file
    if there is none, or if it is damaged."""
    from Bio import motifs

    with open_text(path) as file:
        try:
            found = list(motifs.parse(file, "jaspar"))
        except (ValueError, IndexError, AttributeError, KeyError) as error:
            raise ValueError(
                f"reward.matrix {shown(path)} cannot be read as JASPAR matrices ({error})"
            ) from None
    names = [f"{each.matrix_id} {each.name}" for each in found]
    chosen = [each for each in found if name is None or name in (each.matrix_id, each.name)]
    if len(chosen) != 1:
        problem = (
            "has no matrix"
            if not found
            else f"has {len(chosen)} matrices" + ("" if name is None else f" called {name}")
        )
        raise ValueError(
            f"reward.matrix {shown(path)} {problem}; set reward.name to one of "
            f"{', '.join(names[:8]) or 'those of another file'}"
        )
    counts = np.array([chosen[0].counts[base] for base in _BASES], dtype=np.float64).T
    if (
        not len(counts)
        or not np.isfinite(counts).all()
        or (counts < 0).any()
        or (counts.sum(-1) <= 0).any()
    ):
        raise ValueError(
            f"reward.matrix {shown(path)}: the matrix {names[found.index(chosen[0])]} has counts "
            "that are not positive numbers"
        )
    return counts


class RestrictionSites(Reward):
    """Minus the number of recognition sites of restriction enzymes in a sequence, counted at each
    position on either strand.

    Args:
        enzymes: names known to Biopython, such as EcoRI, or recognition sites in IUPAC letters.

    Raises:
        ValueError: for a name that is neither.
    """

    def __init__(self, enzymes: str | Sequence[str]) -> None:
        self.enzymes = [enzymes] if isinstance(enzymes, str) else list(enzymes)
        if not self.enzymes:
            raise ValueError("reward.enzymes is empty; give names such as [EcoRI,BsaI]")
        self._sites = [site_of(enzyme) for enzyme in self.enzymes]

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        both = [{site, str(reverse_complement(site))} for site in self._sites]
        return [
            re.compile("(?=(?:" + "|".join(sorted(_regex(site) for site in sites)) + "))")
            for sites in both
        ]

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        return -np.array(
            [sum(len(pattern.findall(text)) for pattern in self._patterns) for text in sequences],
            dtype=np.float64,
        )


def site_of(enzyme: str) -> str:
    """The recognition site of an enzyme in IUPAC letters; ValueError if neither its name nor its
    site is known."""
    from Bio import Restriction

    every = Restriction.AllEnzymes  # type: ignore[attr-defined]
    known = {each.__name__: each for each in every}.get(enzyme)
    site = enzyme.upper() if known is None else known.site
    if known is None and (len(site) < 4 or set(site) - set("ACGTRYSWKMBDHVN")):
        raise ValueError(
            f"reward.enzymes {enzyme!r} is no enzyme that Biopython knows and no site of at least "
            "4 IUPAC letters, such as GAATTC"
        )
    return site


def _regex(site: str) -> str:
    allowed = codes_of(site, f"site {site}")
    return "".join(
        "[" + "".join(base for bit, base in enumerate(_BASES) if code >> bit & 1) + "]"
        for code in allowed.tolist()
    )
