"""Clusters of related sequences, which stay together when a set is divided: copies, or all
sequences that share a k-mer.

Both strands count as one sequence. Overlapping windows of a genome, such as the promoters of
neighboring transcripts, are not independent; a random division would put them into training and
test at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnadiff.kmers import canonical, reverse_complement


def canonical_key(bases: np.ndarray) -> bytes:
    """A key that is the same for a sequence `(L,)` of bases and its reverse complement."""
    return min(bases.tobytes(), reverse_complement(bases).tobytes())


def cluster_copies(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The cluster of each sequence, (S,) int64: sequences that are equal on either strand, numbered
    in order of appearance."""
    number: dict[bytes, int] = {}
    return np.array(
        [number.setdefault(canonical_key(bases), len(number)) for bases in sequences],
        dtype=np.int64,
    )


def cluster_by_shared_kmers(sequences: Sequence[np.ndarray], k: int) -> np.ndarray:
    """The cluster of each sequence, (S,) int64: connected components of the graph in which
    sequences share a k-mer on either strand.

    Copies share a cluster whatever their length. Memory: about 32 bytes per base. ValueError if k
    is outside 1..31.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    copies = cluster_copies(sequences)
    _, first = np.unique(copies, return_index=True)
    found = [
        (kmers[known], np.full(int(known.sum()), copies[i]))
        for i in first
        for kmers, known in [canonical(sequences[i], k)]
    ]
    kmers = np.concatenate([k for k, _ in found] or [np.empty(0, np.uint64)])
    owners = np.concatenate([o for _, o in found] or [np.empty(0, np.int64)])
    order = np.argsort(kmers, kind="stable")
    kmers, owners = kmers[order], owners[order]
    same = np.flatnonzero(kmers[1:] == kmers[:-1])
    size = len(first)
    edges = coo_matrix(
        (np.ones(len(same), bool), (owners[same], owners[same + 1])), shape=(size, size)
    )
    return connected_components(edges, directed=False)[1].astype(np.int64)[copies]


def connect(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cluster of each item, (S,) int64: items that share a cluster number in either `(S,)` are
    together, and so on."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = int(first.max()) + 1
    edges = coo_matrix(
        (np.ones(len(first), bool), (first, size + second)),
        shape=(size + int(second.max()) + 1,) * 2,
    )
    return np.unique(connected_components(edges, directed=False)[1][first], return_inverse=True)[
        1
    ].astype(np.int64)


def sample_clusters(
    clusters: np.ndarray, fraction: float, random: np.random.Generator
) -> np.ndarray:
    """A mask (S,) of random complete clusters with at most `fraction` in (0, 1) of the items
    together, but neither none nor all of them.

    A cluster that would exceed the fraction is skipped; if all would, the smallest is taken.

    Raises:
        ValueError: if there are fewer than two clusters.
    """
    names, sizes = np.unique(clusters, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"{len(names)} cluster of items cannot be divided; two or more are needed")
    target, count = max(1, round(fraction * len(clusters))), 0
    chosen: list[int] = []
    for number in random.permutation(len(names)):
        if count + sizes[number] <= target and len(chosen) < len(names) - 1:
            chosen.append(number)
            count += sizes[number]
    return np.isin(clusters, names[chosen or [int(np.argmin(sizes))]])


def assign_folds(
    clusters: np.ndarray, labels: np.ndarray, num_folds: int, random: np.random.Generator
) -> np.ndarray:
    """The fold of each item, (S,) int64: clusters stay together, and folds have about equal size
    and class frequencies.

    Larger clusters are placed first, each into the fold with the fewest items of the cluster's most
    frequent class.

    Raises:
        ValueError: if there are fewer clusters than folds.
    """
    names, index, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(names) < num_folds:
        raise ValueError(
            f"{len(names)} clusters of items cannot fill {num_folds} folds; give more sequences, "
            "or set task.protocol=fixed"
        )
    composition = np.zeros((len(names), int(labels.max()) + 1), np.int64)
    np.add.at(composition, (index, labels), 1)
    order = random.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    counts = np.zeros((num_folds, composition.shape[1]), np.int64)
    fold = np.empty(len(names), np.int64)
    for number in order:
        label = int(composition[number].argmax())
        fold[number] = min(range(num_folds), key=lambda f: (counts[f, label], counts[f].sum()))
        counts[fold[number]] += composition[number]
    return fold[index]
