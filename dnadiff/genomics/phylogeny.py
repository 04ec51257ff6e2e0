"""A phylogenetic model of aligned genomes: the distribution of the target's base in each column,
given the bases of the other genomes only.

Columns are arrays of codes (G, n): A 0, C 1, G 2, T 3, gap 4, absent 5. Trees have no root: they
are made by neighbor joining, or read in Newick notation. `dnadiff.data.alignment` stores the
channels of each column.

A component c of the mixture is a profile pi of base frequencies and a rate r. Its rate matrix
Q_ij = pi_j, kappa pi_j for transitions (Hasegawa, Kishino and Yano 1985, doi:10.1007/BF02101694),
has a mean rate of 1, so that a branch of length t has P = exp(Q r t). Profiles of two frequent
bases stand for sites where not every base is allowed, such as many third positions of codons.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from typing import Any

import numpy as np
from Bio import Phylo
from Bio.Phylo.NewickIO import NewickError
from numpy.typing import NDArray
from scipy.linalg import expm

from dnadiff.data.alignment import GAP
from dnadiff.diffusion.vocab import CHANNELS, DEPTH, FREQUENCY, POSTERIOR, RATE
from dnadiff.formats.regions import listing

Array = NDArray[Any]
Codes = NDArray[np.uint8]

PROFILES = ((0.03, 0.47, 0.03, 0.47), (0.47, 0.03, 0.47, 0.03))  # besides the genome's
RATES = tuple(np.geomspace(0.05, 8, 6).tolist())
KAPPAS = (1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0)
PSEUDOCOUNT = 0.1  # of each base, in the frequencies of a column
MAX_FITTED = 40_000  # columns that weights are fitted to
EM_STEPS = 300
_MIN_LENGTH = 1e-5  # of a branch: no difference between two genomes is impossible
_MIN_WEIGHT = 1e-9  # of a component
_MIN_GAPS = 1e-3  # frequency, if gaps are a state
_BLOCK = 1 << 13  # columns at once: what is computed of them fits into a cache
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


@dataclass(frozen=True)
class Phylogeny:
    """A fitted model. `dataclasses.asdict` makes JSON of it, and `Phylogeny(**json)` restores it.

    Attributes:
        names: the genomes in the order of the codes.
        target: the name of the target in the tree.
        edges: of the tree.
        kappa: rate of transitions over rate of transversions.
        profiles: (C, 4) frequencies of A, C, G, T of each component; (C, 5) if gaps are a fifth
            state, and not missing data.
        rates: (C,) relative to the lengths of the branches.
        weights: (C,) of the mixture.
    """

    names: Sequence[str]
    target: str
    edges: Edges
    kappa: float
    profiles: Sequence[Sequence[float]]
    rates: Sequence[float]
    weights: Sequence[float]

    @property
    def tree(self) -> str:
        """The tree in Newick notation, with the target."""
        return newick(self.edges)

    @cached_property
    def _transitions(self) -> dict[float, Array]:
        """P = exp(Q r t) of each component, (C, S, S), for each length t of a branch."""
        pi = np.array(self.profiles)
        states = pi.shape[1]
        q = np.repeat(pi[:, None], states, 1)
        q[:, [0, 2, 1, 3], [2, 0, 3, 1]] *= self.kappa
        q -= np.eye(states) * q.sum(2, keepdims=True)
        q *= (self.rates / -np.einsum("ci,cii->c", pi, q))[:, None, None]
        return {
            length: expm(q * max(length, _MIN_LENGTH)).astype(np.float32)
            for *_, length in self.edges
        }

    def joint(self, codes: Codes) -> tuple[Array, Array]:
        """Of each distinct column, the probability of the codes (G, n) and of each state of the
        target under each component, pi_c(b) L_c(b), up to a factor for each column.

        Felsenstein 1981 (doi:10.1007/BF01734359): from the leaves towards the target, likelihoods
        are averaged along each branch and multiplied at each node. A node is computed once for each
        distinct pattern of the leaves behind it, and rescaled.

        Returns:
            joint (U, C, S) of the U distinct columns; the number of each column among them, (n,).
        """
        states = len(self.profiles[0])
        codes = np.minimum(codes, states)  # `states` stands for missing data: any state
        # Of a leaf: likelihood (patterns, 1, S), logarithm of its scale (patterns, 1).
        leaf = np.vstack([np.eye(states), np.ones(states)]).astype(np.float32)[:, None]
        unscaled = np.zeros((states + 1, 1))
        ones = np.ones(states, np.float32)
        done: dict[Node, tuple[Array, Array, Array]] = {
            name: (leaf, unscaled, row) for name, row in zip(self.names, codes)
        }
        for node, below in children(self.edges, self.target).items():
            for number, (child, length) in enumerate(below):
                passed, scale, pattern = done.pop(child)
                across = self._transitions[length].swapaxes(1, 2)
                passed = (passed.swapaxes(0, 1) @ across).swapaxes(0, 1)
                if number:
                    other, other_scale, other_pattern = done[node]
                    pairs, pattern = np.unique(
                        other_pattern * np.int64(len(scale)) + pattern, return_inverse=True
                    )
                    i, j = np.divmod(pairs, len(scale))
                    passed = other[i] * passed[j]
                    total = passed @ ones
                    passed /= total[..., None]
                    scale = other_scale[i] + scale[j] + np.log(total, dtype=np.float64)
                done[node] = passed, scale, pattern
        likelihood, scale, pattern = done[self.target]
        scaled = self.profiles * np.exp(scale - scale.max(1, keepdims=True))[..., None]
        return likelihood * scaled.astype(np.float32), pattern

    def columns(self, codes: Codes) -> NDArray[np.float32]:
        """The channels of `dnadiff.data.alignment` of the codes (G, n): (n, CHANNELS) float32.

        P(b) is proportional to sum_c w_c pi_c(b) L_c(b). The base of the target never enters.
        Columns without a base are 0. The time grows with the number of genomes, of components and
        of distinct columns: 4.64 million columns of 45 genomes and 18 components take 18 s on one
        core.
        """
        result = np.zeros((codes.shape[1], CHANNELS), np.float32)
        # Of a column that only a component of no weight explains, the others may underflow.
        weights = np.maximum(self.weights, _MIN_WEIGHT).astype(np.float32)
        log_rates = np.log(self.rates)
        for start in range(0, len(result), _BLOCK):
            block = codes[:, start : start + _BLOCK]
            joint, pattern = self.joint(block)
            joint = joint[..., :4] * weights[:, None]
            of_base = joint.sum(1)
            of_component = joint.sum(2)
            total = of_base.sum(1, keepdims=True)
            counts = np.stack([(block == base).sum(0) for base in range(4)], 1)
            depth = counts.sum(1, keepdims=True)
            found = result[start : start + _BLOCK]
            found[:, POSTERIOR] = np.log(of_base / total)[pattern]
            found[:, FREQUENCY] = np.log((counts + PSEUDOCOUNT) / (depth + 4 * PSEUDOCOUNT))
            found[:, [RATE]] = (of_component @ log_rates[:, None] / total)[pattern]
            found[:, [DEPTH]] = np.log1p(depth)
            found *= depth > 0
        return result


def fit(
    codes: Codes,
    target: Codes,
    names: Sequence[str],
    target_name: str,
    tree: str | None = None,
    gap_state: bool = False,
    profiles: Sequence[Sequence[float]] = PROFILES,
    rates: Sequence[float] = RATES,
    kappas: Sequence[float] = KAPPAS,
) -> Phylogeny:
    """Fit a tree, kappa and the weights of the mixture to columns of an alignment.

    The tree joins the target and its relatives by their distances, and profits from many columns.
    For each kappa, the weights of the rates maximize the likelihood of 40,000 evenly spaced
    columns, the target's bases included. The kappa with the likeliest bases of the target given the
    others is taken. Every profile has the same weight: fitted ones are no more likely on held-out
    columns of *E. coli*, and separate variants of third positions worse. Take columns of the
    training part only, as `sample_positions` does.

    Args:
        codes: (G, n) of the relatives.
        target: (n,) codes of the target.
        names: of the relatives.
        tree: in Newick notation, with these names; None for neighbor joining.
        gap_state: gaps are a fifth state instead of missing data.
        profiles: base frequencies besides the genome's, for which C = G and A = T. With the
            complement of each profile, the posterior of the other strand is the complement.
        kappas: to choose from.

    Raises:
        ValueError: if the tree cannot be read, or no column has a base of the target and of
            another genome.
    """
    (kept,) = np.nonzero((target < GAP) & (codes < GAP).any(0))
    if not len(kept):
        raise ValueError("no column has a base of the target and of another genome")
    leaves = [*names, target_name]
    if tree is None:
        edges = neighbor_joining(distances(np.vstack([codes, target])[:, kept]), leaves)
    else:
        edges = read_newick(tree, leaves)
    kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), MAX_FITTED), dtype=int)]
    codes = codes[:, kept]
    target = target[kept]
    strong = float(np.clip(np.isin(target, (1, 2)).mean() / 2, 0.03, 0.47))
    gaps = gap_state * max(float((codes[codes <= GAP] == GAP).mean()), _MIN_GAPS)
    every = [
        (*(p * (1 - gaps) for p in profile), gaps)[: GAP + gap_state]
        for profile in ((0.5 - strong, strong, strong, 0.5 - strong), *profiles)
        for _ in rates
    ]
    copies = len(profiles) + 1
    model = Phylogeny(names, target_name, edges, 1.0, every, [*rates] * copies, [])
    fitted = []
    for kappa in kappas:
        model = replace(model, kappa=kappa)
        joint, pattern = model.joint(codes)
        likelihood = joint[pattern, :, target].reshape(len(kept), copies, -1)
        weights = mixture_weights(likelihood.mean(1, dtype=np.float64)) / copies
        fitted.append(replace(model, weights=weights.tolist() * copies))
    row = np.arange(len(kept))
    return max(fitted, key=lambda each: each.columns(codes)[row, target].sum())


def mixture_weights(likelihood: Array, num_steps: int = EM_STEPS) -> NDArray[np.float64]:
    """The weights (C,) of components that maximize the likelihood of columns, by expectation
    maximization.

    Args:
        likelihood: (n, C) of each column under each component, up to a factor for each column.
    """
    n, components = likelihood.shape
    weights = np.full(components, 1 / components)
    for _ in range(num_steps):
        weights *= (1 / (likelihood @ weights)) @ likelihood / n
    return weights


def sample_positions(lengths: Sequence[int], number: int = 400_000) -> NDArray[np.int64]:
    """Evenly spaced positions in the first 80 % of each record, which are training data by default.

    Args:
        lengths: of the records, which are one after the other.

    Returns:
        At most `number` positions in all records together, sorted.
    """
    length: Array = np.array(lengths)
    end = np.cumsum(length)
    chosen = np.linspace(0, end[-1] - 1, min(end[-1], number), dtype=int)
    record = np.searchsorted(end, chosen, "right")
    return chosen[end[record] - chosen > 0.2 * length[record]]


def phase_contrast(rate: Array, known: NDArray[np.bool_], reach: int = 30) -> Array:
    """Mean rate of the positions at multiples of 3 from each position, minus the mean of the
    others, both within `reach`: it is high at third positions of codons, and a track of coding
    phase, not an effect of a variant.

    Args:
        rate: (n,) log rates of consecutive positions.
        known: (n,) whether a position has one.

    Returns:
        (n,), where unknown positions have counted as average ones.
    """
    distance = np.arange(-reach, reach + 1)
    third = reach // 3
    weight = np.where(distance % 3, 0.5 / (third - reach), 0.5 / third)
    weight[reach] = 0
    mean = rate[known].sum() / max(known.sum(), 1)
    return np.convolve(np.where(known, rate - mean, 0), weight)[reach:-reach]
