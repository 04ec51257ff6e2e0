"""Which sequences must stay together when a set is divided: copies of one sequence, or all that share a long word.

Both strands count as one. Overlapping windows of a genome, such as the promoters of neighbouring transcripts, are no independent
items; divided at random they would be in training and test at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnadiff.kmers import canonical, reverse_complement


def strandless(bases: np.ndarray) -> bytes:
    """A key that a sequence `(L,)` of bases shares with its reverse complement and, but for unknown bases, with nothing else."""
    return min(bases.tobytes(), reverse_complement(bases).tobytes())


def of_copies(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The group of each sequence, (S,) int64: equal sequences, read from either strand, share one; numbered as they appear."""
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(strandless(bases), len(number)) for bases in sequences], dtype=np.int64)


def of_shared_words(sequences: Sequence[np.ndarray], k: int) -> np.ndarray:
    """The group of each sequence, (S,) int64: those joined by a chain of common words of `k` bases, on either strand.

    Copies share a group whatever their length. Memory: about 32 bytes a base.

    Raises:
        ValueError: if k is outside 1..31.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    copies = of_copies(sequences)
    _, first = np.unique(copies, return_index=True)
    found = [(words[known], np.full(int(known.sum()), copies[i])) for i in first for words, known in [canonical(sequences[i], k)]]
    words = np.concatenate([w for w, _ in found] or [np.empty(0, np.uint64)])
    owners = np.concatenate([o for _, o in found] or [np.empty(0, np.int64)])
    order = np.argsort(words, kind="stable")
    words, owners = words[order], owners[order]
    same = np.flatnonzero(words[1:] == words[:-1])
    size = len(first)
    links = coo_matrix((np.ones(len(same), bool), (owners[same], owners[same + 1])), shape=(size, size))
    return connected_components(links, directed=False)[1].astype(np.int64)[copies]


def some(groups: np.ndarray, fraction: float, random: np.random.Generator) -> np.ndarray:
    """Whole groups at random that hold `fraction` of the items together, or a little less; never none and never all.

    Args:
        groups: (S,) group of each item.
        fraction: of the items, in (0, 1).
        random: where the order comes from.

    Returns:
        (S,) bool. A group that would exceed the fraction is passed over; if every one would, the smallest is taken.

    Raises:
        ValueError: if there are fewer than two groups.
    """
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"{len(names)} group of items cannot be divided; two or more are needed")
    target, held, chosen = max(1, round(fraction * len(groups))), 0, []
    for number in random.permutation(len(names)):
        if held + sizes[number] <= target and len(chosen) < len(names) - 1:
            chosen.append(number)
            held += sizes[number]
    return np.isin(groups, names[chosen or [int(np.argmin(sizes))]])


def folds(groups: np.ndarray, labels: np.ndarray, num_folds: int, random: np.random.Generator) -> np.ndarray:
    """The fold of each item, (S,) int64: groups stay whole, folds are of about equal size and composition.

    The larger groups are placed first, each into the fold that holds least of the group's most frequent class.

    Raises:
        ValueError: if there are fewer groups than folds.
    """
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < num_folds:
        raise ValueError(f"{len(names)} groups of items cannot fill {num_folds} folds; set fewer folds or give more sequences")
    composition = np.zeros((len(names), int(labels.max()) + 1), np.int64)
    np.add.at(composition, (place, labels), 1)
    order = random.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    held = np.zeros((num_folds, composition.shape[1]), np.int64)
    fold = np.empty(len(names), np.int64)
    for number in order:
        kind = int(composition[number].argmax())
        fold[number] = min(range(num_folds), key=lambda f: (held[f, kind], held[f].sum()))
        held[fold[number]] += composition[number]
    return fold[place]
