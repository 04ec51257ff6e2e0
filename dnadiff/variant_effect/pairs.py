"""The windows that a network reads: both alleles of a variant in windows of equal length, on either
strand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.variant_effect.variant import TOKENIZER, Edit, Reference, ids_of_allele

_COMPLEMENT = np.array(TOKENIZER.vocab.complement, np.uint8)
Ids = NDArray[np.uint8]
Places = NDArray[np.int64]


class Pair(NamedTuple):
    """Both alleles of a variant, each in its window of L bases, on the strand that is read.

    For alleles of equal length the windows differ at the variant alone. For an insertion or
    deletion the window of the shorter allele has further bases of the genome at one end, as many as
    the alleles differ in length.

    Attributes:
        ref, alt: (L,) token ids.
        ref_start, alt_start: place of the allele in its window.
        ref_len, alt_len: bases of the alleles.
        ends_right: whether these further bases are at the right end.
    """

    ref: Ids
    alt: Ids
    ref_start: int
    alt_start: int
    ref_len: int
    alt_len: int
    ends_right: bool

    @property
    def equal(self) -> bool:
        """Whether both alleles have the same length."""
        return self.ref_len == self.alt_len

    def reverse_complement(self) -> Pair:
        """The same pair, read on the other strand."""
        length = len(self.ref)
        return Pair(
            _COMPLEMENT[self.ref[::-1]],
            _COMPLEMENT[self.alt[::-1]],
            length - self.ref_start - self.ref_len,
            length - self.alt_start - self.alt_len,
            self.ref_len,
            self.alt_len,
            not self.ends_right,
        )

    def aligned(self, flank: int | None) -> tuple[Places, Places] | None:
        """Places in both windows that belong together, (n,) each: up to `flank` bases on each side
        of the alleles, and the alleles.

        The surplus bases of the longer allele are paired with the end bases that only the window of
        the shorter one has, so that both lists hold equally many bases. Bases that are not known
        (N) on both sides are left out. None if such an end base is not known: then there is nothing
        to compare the surplus bases with.

        Args:
            flank: None is as many as there are.
        """
        length, shared, surplus = (
            len(self.ref),
            min(self.ref_len, self.alt_len),
            abs(self.ref_len - self.alt_len),
        )
        ends = np.arange(length - surplus, length) if self.ends_right else np.arange(surplus)
        places = []
        for (left, right), start, size in zip(
            self.flanks(flank), (self.ref_start, self.alt_start), (self.ref_len, self.alt_len)
        ):
            rest = np.arange(start + shared, start + size) if size > shared else ends
            places.append(np.concatenate([left, np.arange(start, start + shared), rest, right]))
        known = [_known(ids[place]) for ids, place in zip((self.ref, self.alt), places)]
        if not (known[0] == known[1]).all():
            return None
        return places[0][known[0]], places[1][known[1]]

    def flanks(self, flank: int | None) -> list[tuple[Places, Places]]:
        """Places on the left and on the right of the allele in each window, at most `flank` of
        them, the same bases in both."""
        left = min(self.ref_start, self.alt_start)
        right = len(self.ref) - max(self.ref_start + self.ref_len, self.alt_start + self.alt_len)
        if flank is not None:
            left, right = min(left, flank), min(right, flank)
        ends = (
            (self.ref_start, self.ref_start + self.ref_len),
            (self.alt_start, self.alt_start + self.alt_len),
        )
        return [
            (np.arange(start - left, start), np.arange(end, end + right)) for start, end in ends
        ]


def _known(ids: Ids) -> NDArray[np.bool_]:
    return TOKENIZER.bases(ids) < 4


def pair(reference: Reference, edit: Edit, window: int, reverse: bool = False) -> Pair:
    """Both alleles of a variant with the context that fits into a window, shorter where the record
    is.

    Further bases of the shorter allele's window are at its end in the direction of reading, or at
    its beginning near the end of the record.

    Args:
        reverse: read the reverse complement.

    Raises:
        ValueError: if the record is too short for windows of equal length.
    """
    length = reference.lengths[edit.record]
    if not edit.has_windows(length):
        raise ValueError(
            f"{edit.name}: {edit.record} is too short for windows of equal length around this "
            "variant; remove it"
        )
    has_right, has_left = edit.surplus <= length - edit.end, edit.surplus <= edit.start
    ends_right = not has_left if reverse else has_right
    low, high = _interval(length, edit, window, ends_right)
    extra = (0, edit.surplus) if ends_right else (edit.surplus, 0)
    windows, starts = [], []
    for allele, other in ((edit.ref, edit.alt), (edit.alt, edit.ref)):
        before, after = extra if len(allele) < len(other) else (0, 0)
        left = _cut(reference, edit.record, low - before, edit.start)
        windows.append(
            np.concatenate(
                [left, ids_of_allele(allele), _cut(reference, edit.record, edit.end, high + after)]
            )
        )
        starts.append(len(left))
    forward = Pair(
        windows[0], windows[1], starts[0], starts[1], len(edit.ref), len(edit.alt), ends_right
    )
    return forward.reverse_complement() if reverse else forward


def _interval(length: int, edit: Edit, window: int, ends_right: bool) -> tuple[int, int]:
    """The interval of the genome in the window of the longer allele, with room for the further
    bases of the other on one side."""
    start, size = edit.start if ends_right else length - edit.end, len(edit.ref)
    bases = edit.window_length(length, window) + size - edit.longest  # of the genome
    # Alleles of equal length are read in the same window on both strands.
    low = start - (bases - size + (0 if ends_right or edit.surplus else 1)) // 2
    low = min(max(low, 0, start + size - bases), length - edit.surplus - bases, start)
    return (low, low + bases) if ends_right else (length - low - bases, length - low)


def _cut(reference: Reference, record: str, start: int, end: int) -> Ids:
    return reference.window(record, start, end) if end > start else np.zeros(0, np.uint8)
