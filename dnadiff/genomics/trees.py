"""Trees of genomes: distances between aligned genomes, neighbor joining, and Newick notation.

Trees have no root. `dnadiff.genomics.phylogeny` computes with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np
from Bio import Phylo
from Bio.Phylo.NewickIO import NewickError
from numpy.typing import NDArray

from dnadiff.formats.regions import listing

_OCCUPANCY = 0.9  # share of the genomes with a base in a column that is compared
_COLUMNS = 1000  # that are compared at least, whatever their occupancy
_MAX_DIFFERENT = 0.65  # share of different bases; distances of more are saturated
_SHOWN = 5  # names in a message


def distances(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Expected substitutions for each base between genomes, (G, G).

    d = 3/8 ((1 - 4p/3)^-2 - 1), where p is the share of different bases: Jukes and Cantor's model
    with gamma-distributed rates of shape 1/2 (Jin and Nei 1990, doi:10.1093/oxfordjournals.molbev
    .a040588, equation 9). Compared are the columns with a base in at least 90 % of the genomes, or
    the 1,000 fullest columns if there are fewer. A pair without a common column is as far apart as
    one can be.

    Args:
        codes: (G, n) with A 0, C 1, G 2, T 3; anything else is no base.
    """
    depth = (codes < 4).sum(0)
    least = min(_OCCUPANCY * len(codes), np.sort(depth)[-_COLUMNS:][0])
    codes = codes[:, depth >= least]
    known = (codes < 4).astype(np.float32)
    each = ((codes == base).astype(np.float32) for base in range(4))
    compared, same = known @ known.T, sum(base @ base.T for base in each)
    p = np.where(compared > 0, 1 - same / np.maximum(compared, 1), 1).astype(np.float64)
    np.fill_diagonal(p, 0)
    return 0.375 * ((1 - 4 / 3 * np.minimum(p, _MAX_DIFFERENT)) ** -2 - 1)


@dataclass(frozen=True)
class Tree:
    """A tree without a root.

    Attributes:
        names: of the leaves, which are the nodes 0, 1, ...; other nodes have higher numbers.
        edges: two nodes and the length between them, which is not negative.
    """

    names: Sequence[str]
    edges: Sequence[tuple[int, int, float]]

    def children(self, root: int) -> dict[int, list[tuple[int, float]]]:
        """The nodes next to each node on the side away from `root`, and their distances; a node
        comes after all of its children."""
        near: dict[int, list[tuple[int, float]]] = {}
        for a, b, length in self.edges:
            near.setdefault(a, []).append((b, length))
            near.setdefault(b, []).append((a, length))
        found, stack = dict[int, list[tuple[int, float]]](), [root]
        while stack:
            node = stack.pop()
            found[node] = [each for each in near.get(node, ()) if each[0] not in found]
            stack += [child for child, _ in found[node]]
        return dict(reversed(found.items()))

    def newick(self) -> str:
        """The tree in Newick notation."""
        root = len(self.names)  # any inner node
        text = dict(enumerate(map(_quoted, self.names)))
        for node, children in self.children(root).items():
            if children:
                inner = ",".join(f"{text.pop(child)}:{length!r}" for child, length in children)
                text[node] = f"({inner})"
        return text[root] + ";"


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'" if set(name) & set(" \t(),:;[]'") else name


def neighbor_joining(distance: NDArray[np.float64], names: Sequence[str]) -> Tree:
    """The tree of Saitou and Nei 1987 (doi:10.1093/oxfordjournals.molbev.a040454), with the
    criterion of Studier and Keppler 1988; exact if the distances (G, G) are those of a tree.

    Lengths below 0 become 0.
    """
    d, nodes = np.array(distance, np.float64), list(range(len(names)))
    edges = list[tuple[int, int, float]]()
    while len(nodes) > 1:
        total, new = d.sum(0), len(names) + len(edges) // 2
        q = (len(nodes) - 2) * d - total - total[:, None]
        np.fill_diagonal(q, np.inf)
        i, j = map(int, np.unravel_index(q.argmin(), q.shape))
        lean = (total[i] - total[j]) / max(len(nodes) - 2, 1)  # 0 for the last two
        for node, sign in ((i, 1), (j, -1)):
            edges.append((nodes[node], new, max(float(d[i, j] + sign * lean) / 2, 0.0)))
        d[i] = d[:, i] = (d[i] + d[j] - d[i, j]) / 2
        d[i, i], nodes[i] = 0, new
        d = np.delete(np.delete(d, j, 0), j, 1)
        del nodes[j]
    return Tree(names, edges)


def read_newick(text: str, names: Sequence[str]) -> Tree:
    """The tree of some leaves of a tree in Newick notation.

    Where its root is makes no difference, and names of inner nodes are not read.

    Args:
        names: of the leaves, in this order; the others are left out.

    Raises:
        ValueError: if it is not one tree, a branch has no length, or a name is not one leaf's.
    """
    try:
        (tree,) = Phylo.parse(StringIO(text), "newick")
    except (NewickError, ValueError) as error:  # ValueError: a number, or not one tree
        raise ValueError(f"not a tree in Newick notation: {error}") from None
    leaves = tree.get_terminals()
    of_name = Counter(leaf.name for leaf in leaves)
    if wrong := [name for name in names if of_name[name] != 1]:
        shown = listing([str(name) for name in of_name], _SHOWN)
        raise ValueError(
            f"the tree must have one leaf for each genome, and has none or several for "
            f"{listing(wrong, _SHOWN)}; its leaves are {shown}"
        )
    for leaf in leaves:
        if leaf.name not in names:
            tree.prune(leaf)
    number = {id(leaf): names.index(leaf.name) for leaf in tree.get_terminals()}
    for clade in tree.get_nonterminals():
        number[id(clade)] = len(number)
    edges = [
        (number[id(clade)], number[id(child)], child.branch_length)
        for clade in tree.get_nonterminals()
        for child in clade.clades
    ]
    if not all(length is not None and 0 <= length < np.inf for *_, length in edges):
        raise ValueError("every branch of the tree needs a length of 0 or more after a colon")
    return Tree(names, edges)
