"""Trees of genomes: distances between aligned genomes, neighbor joining, and Newick notation.

Trees have no root. `dnadiff.genomics.phylogeny` computes with them."""

from collections import defaultdict
from collections.abc import Sequence
from io import StringIO

import numpy as np
from Bio import Phylo
from Bio.Phylo.NewickIO import NewickError
from numpy.typing import NDArray

from dnadiff.formats.regions import listing

_OCCUPANCY = 0.9  # share of the genomes with a base in a column that is compared
_COLUMNS = 1000  # that are compared at least, whatever their occupancy
_MAX_DIFFERENT = 0.65  # share of different bases; distances of more are saturated


def distances(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Expected substitutions for each base between genomes, (G, G).

    d = 3/8 ((1 - 4p/3)^-2 - 1), where p is the share of different bases: Jukes and Cantor's model
    with gamma-distributed rates of shape 1/2
    (Jin and Nei 1990, doi:10.1093/oxfordjournals.molbev.a040588). Compared are the columns with a
    base in at least 90 % of the genomes, or the 1,000 fullest columns if there are fewer. Distances
    above that of p = .65 become that one, as do those of pairs without a common column.

    Args:
        codes: (G, n) with A 0, C 1, G 2, T 3; anything else is no base.
    """
    depth = (codes < 4).sum(0)
    least = min(_OCCUPANCY * len(codes), np.sort(depth)[-_COLUMNS:][0])
    codes = codes[:, depth >= least]
    known = (codes < 4).astype(np.float32)
    each = ((codes == base).astype(np.float32) for base in range(4))
    compared = known @ known.T
    same = sum(base @ base.T for base in each)
    p = 1 - same / np.maximum(compared, 1)
    np.fill_diagonal(p, 0)
    return 0.375 * ((1 - 4 / 3 * np.minimum(p, _MAX_DIFFERENT)) ** -2 - 1)


Node = str | int  # the name of a leaf, or the number of another node
Edges = Sequence[tuple[Node, Node, float]]  # of a tree: two nodes and the length between them
Children = dict[Node, list[tuple[Node, float]]]


def children(edges: Edges, root: Node) -> Children:
    """The nodes next to each node on the side away from `root`, and their distances; a node comes
    after all of its children."""
    near = defaultdict[Node, list[tuple[Node, float]]](list)
    for a, b, length in edges:
        near[a].append((b, length))
        near[b].append((a, length))
    found = Children()
    stack = [root]
    while stack:
        node = stack.pop()
        found[node] = [each for each in near[node] if each[0] not in found]
        stack += [child for child, _ in found[node]]
    return dict(reversed(found.items()))


def newick(edges: Edges) -> str:
    """A tree in Newick notation."""
    text = dict[Node, str]()
    root = edges[-1][1]
    for node, below in children(edges, root).items():
        inner = ",".join(f"{text[child]}:{length!r}" for child, length in below)
        text[node] = f"({inner})" if below else "'" + str(node).replace("'", "''") + "'"
    return text[root] + ";"


def neighbor_joining(distance: NDArray[np.float64], names: Sequence[str]) -> Edges:
    """The tree of Saitou and Nei 1987 (doi:10.1093/oxfordjournals.molbev.a040454), with the
    criterion of Studier and Keppler 1988; exact if the distances (G, G) are those of a tree.

    Lengths below 0 become 0.
    """
    d = np.array(distance, float)
    nodes = list[Node](names)
    edges = list[tuple[Node, Node, float]]()
    while len(nodes) > 1:
        total = d.sum(0)
        new = len(edges)
        q = (len(nodes) - 2) * d - total - total[:, None]
        np.fill_diagonal(q, np.inf)
        i, j = map(int, np.unravel_index(q.argmin(), q.shape))
        lean = (total[i] - total[j]) / max(len(nodes) - 2, 1)  # 0 for the last two
        edges.append((nodes[i], new, max(float(d[i, j] + lean) / 2, 0.0)))
        edges.append((nodes[j], new, max(float(d[i, j] - lean) / 2, 0.0)))
        d[i] = d[:, i] = (d[i] + d[j] - d[i, j]) / 2
        d[i, i], nodes[i] = 0, new
        d = np.delete(np.delete(d, j, 0), j, 1)
        del nodes[j]
    return edges


def read_newick(text: str, names: Sequence[str]) -> Edges:
    """The tree of some leaves of a tree in Newick notation.

    Where its root is makes no difference, and names of inner nodes are not read.

    Args:
        names: of the leaves; the others are left out.

    Raises:
        ValueError: if it is not one tree, a branch has no length, or a name is not one leaf's.
    """
    try:
        (tree,) = Phylo.parse(StringIO(text), "newick")
    except (NewickError, ValueError) as error:  # ValueError: a number, or not one tree
        raise ValueError(f"not a tree in Newick notation: {error}") from None
    leaves = [str(leaf.name) for leaf in tree.get_terminals()]
    if wrong := [name for name in names if leaves.count(name) != 1]:
        raise ValueError(
            f"the tree must have one leaf for each genome, and has none or several for "
            f"{listing(wrong)}; its leaves are {listing(leaves)}"
        )
    for leaf in tree.get_terminals():
        if leaf.name not in names:
            tree.prune(leaf)
    edges = list[tuple[Node, Node, float]]()
    for number, clade in enumerate(inner := tree.get_nonterminals()):
        for child in clade.clades:
            node = child.name if child.is_terminal() else inner.index(child)
            edges.append((node, number, child.branch_length))
    if not all(length is not None and 0 <= length < np.inf for *_, length in edges):
        raise ValueError("every branch of the tree needs a length of 0 or more after a colon")
    return edges
