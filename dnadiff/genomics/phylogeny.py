"""A phylogenetic model of aligned genomes: the distribution of the target's base in each column,
given the bases of the other genomes only.

Columns are arrays of codes (G, n): A 0, C 1, G 2, T 3, gap 4, absent 5. Trees come from
`dnadiff.genomics.trees`, and `dnadiff.data.alignment` stores the channels of each column.

A component c of the mixture is a profile pi of base frequencies and a rate r. Its rate matrix
Q_ij = pi_j, kappa pi_j for transitions (Hasegawa, Kishino and Yano 1985, doi:10.1007/BF02101694),
has a mean rate of 1, so that a branch of length t has P = exp(Q r t). Profiles of two frequent
bases stand for sites where not every base is allowed, such as many third positions of codons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dnadiff.data.alignment import GAP
from dnadiff.genomics.trees import Tree, distances, neighbor_joining, read_newick

Array = NDArray[Any]
Codes = NDArray[np.uint8]

PROFILES = ((0.03, 0.47, 0.03, 0.47), (0.47, 0.03, 0.47, 0.03))  # besides the genome's
RATES = tuple(np.geomspace(0.05, 8, 6).tolist())
KAPPAS = (1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0)
PSEUDOCOUNT = 0.1  # of each base, in the frequencies of a column
MAX_FITTED = 40_000  # columns that weights are fitted to
EM_STEPS = 300
_MIN_LENGTH = 1e-5  # of a branch: no difference between two genomes is impossible
_MIN_GAPS = 1e-3  # frequency, if gaps are a state
_BLOCK = 1 << 13  # columns at once: what is computed of them fits into a cache


@dataclass(frozen=True)
class Phylogeny:
    """A fitted model. `dataclasses.asdict` makes JSON of it, and `Phylogeny(**json)` restores it.

    Attributes:
        names: the genomes in the order of the codes, then the target.
        edges: of the tree; see `dnadiff.genomics.trees.Tree`.
        kappa: rate of transitions over rate of transversions.
        profiles: (P, 4) frequencies of A, C, G, T; (P, 5) if gaps are a fifth state, and not
            missing data.
        rates: (R,) of the components, relative to the lengths of the branches.
        weights: (P, R) of the mixture.
    """

    names: Sequence[str]
    edges: Sequence[tuple[int, int, float]]
    kappa: float
    profiles: Sequence[Sequence[float]]
    rates: Sequence[float]
    weights: Sequence[Sequence[float]]

    @property
    def tree(self) -> Tree:
        """The tree, with the target as its last leaf."""
        return Tree(self.names, self.edges)

    @cached_property
    def _transitions(self) -> dict[float, Array]:
        """P = exp(Q r t) of each component for each length of a branch, (C, S, S).

        Q is reversible, so that diag(pi)^1/2 Q diag(pi)^-1/2 is symmetric.
        """
        pi = np.array(self.profiles)
        states = pi.shape[1]
        exchange = np.ones((states, states))
        exchange[[0, 2, 1, 3], [2, 0, 3, 1]] = self.kappa
        np.fill_diagonal(exchange, 0)
        leaving, root = pi @ exchange, np.sqrt(pi)
        symmetric = exchange * root[:, None] * root[:, :, None] - np.eye(states) * leaving[:, None]
        values, vectors = np.linalg.eigh(symmetric)
        values /= (pi * leaving).sum(1, keepdims=True)
        decay = values[:, None] * np.array(self.rates)[:, None]  # (P, R, S)
        left, right = vectors / root[:, :, None], vectors.swapaxes(1, 2) * root[:, None]
        return {
            length: (
                left[:, None]
                * np.exp(decay * max(length, _MIN_LENGTH))[..., None, :]
                @ right[:, None]
            ).reshape(-1, states, states)
            for *_, length in self.edges
        }

    def joint(self, codes: Codes, dtype: DTypeLike = np.float32) -> tuple[Array, Array, Array]:
        """Of each distinct column, the probability of the codes (G, n) and of each state of the
        target under each component, pi_c(b) L_c(b).

        Felsenstein 1981 (doi:10.1007/BF01734359): from the leaves towards the target, likelihoods
        are averaged along each branch and multiplied at each node. A node is computed once for each
        distinct pattern of the leaves behind it, and rescaled.

        Returns:
            joint (U, C, S) of the U distinct columns, scaled for each of them; logarithms of the
            scales (U,), to be added; the number of each column among the distinct ones, (n,).
        """
        states = len(self.profiles[0])
        codes = np.minimum(codes, states)  # `states` stands for missing data: any state
        # Of a leaf: likelihood (patterns, 1, S), logarithm of its scale (patterns, 1).
        leaf = np.vstack([np.eye(states), np.ones(states)]).astype(dtype)[:, None]
        unscaled, ones = np.zeros((states + 1, 1)), np.ones(states, dtype)
        done = dict[int, tuple[Array, Array, Array]]()
        for node, children in self.tree.children(len(codes)).items():
            if node < len(codes):
                done[node] = leaf, unscaled, codes[node]
            for number, (child, length) in enumerate(children):
                below, scale, pattern = done.pop(child)
                across = self._transitions[length].astype(dtype).swapaxes(1, 2)
                passed = (below.swapaxes(0, 1) @ across).swapaxes(0, 1)
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
        likelihood, scale, pattern = done[len(codes)]
        largest = scale.max(1, keepdims=True)
        prior = np.repeat(np.array(self.profiles), len(self.rates), 0)
        joint = likelihood * (prior * np.exp(scale - largest)[..., None]).astype(dtype)
        return joint, largest[:, 0], pattern

    def columns(self, codes: Codes) -> NDArray[np.float32]:
        """The channels of `dnadiff.data.alignment` of the codes (G, n): (n, 10) float32.

        P(b) is proportional to sum_c w_c pi_c(b) L_c(b). The base of the target never enters.
        Columns without a base are 0.
        """
        result = np.zeros((codes.shape[1], 10), np.float32)
        weights = np.ravel(self.weights).astype(np.float32)
        log_rates = np.tile(np.log(self.rates), len(self.profiles)).astype(np.float32)
        for start in range(0, len(result), _BLOCK):
            block = codes[:, start : start + _BLOCK]
            joint, _, pattern = self.joint(block)
            joint = joint[..., :4] * weights[:, None]
            of_base, of_component = joint.sum(1), joint.sum(2)
            total = of_base.sum(1, keepdims=True)
            counts = np.stack([(block == base).sum(0) for base in range(4)], 1)
            depth = counts.sum(1, keepdims=True)
            frequencies = (counts + PSEUDOCOUNT) / (depth + 4 * PSEUDOCOUNT)
            posterior = np.log(of_base / total)[pattern]
            rate = (of_component @ log_rates / total[:, 0])[pattern, None]
            known = np.hstack([posterior, np.log(frequencies), rate, np.log1p(depth)])
            result[start : start + _BLOCK] = np.where(depth > 0, known, 0)
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
) -> Phylogeny:
    """Fit a tree, kappa and the weights of the mixture to columns of an alignment.

    The tree joins the target and its relatives by their distances. The weights maximize the
    likelihood of at most 40,000 evenly spaced columns, the target's bases included, on both strands
    (for each kappa by expectation maximization), and kappa is the likeliest of a few. Take columns
    of the training part only; `sample_positions` chooses them.

    Args:
        codes: (G, n) of the relatives.
        target: (n,) codes of the target.
        names: of the relatives.
        tree: in Newick notation, with these names; None for neighbor joining.
        gap_state: gaps are a fifth state instead of missing data.
        profiles: base frequencies besides the genome's, for which C = G and A = T. The set is
            closed under complement, so that the posterior of the other strand is the complement.

    Raises:
        ValueError: if the tree cannot be read, or no column has a base of the target and of
            another genome.
    """
    kept = np.flatnonzero((target < GAP) & (codes < GAP).any(0))
    if not len(kept):
        raise ValueError("no column has a base of the target and of another genome")
    names, everything = [*names, target_name], np.vstack([codes, target])[:, kept]
    found = (
        read_newick(tree, names)
        if tree is not None
        else neighbor_joining(distances(everything), names)
    )
    some = _evenly(len(kept), MAX_FITTED)
    codes, target = everything[:-1, some], everything[-1, some]
    strong = float(np.clip(np.isin(everything[-1], (1, 2)).mean() / 2, 0.03, 0.47))
    gaps = max(float((codes == GAP).sum() / (codes <= GAP).sum()), _MIN_GAPS) if gap_state else 0
    every = [(0.5 - strong, strong, strong, 0.5 - strong), *map(tuple, profiles)]
    mirror = [every.index(profile[::-1]) for profile in every]
    fitted = []
    for kappa in KAPPAS:
        frequencies = [[(1 - gaps) * p for p in profile] + [gaps] * gap_state for profile in every]
        model = Phylogeny(names, found.edges, kappa, frequencies, list(rates), [])
        joint, scale, pattern = model.joint(codes, np.float64)
        likelihood = joint[pattern, :, target].reshape(len(some), len(every), -1)
        weights = mixture_weights(likelihood, mirror)
        nats = np.log((likelihood * weights).sum((1, 2))).sum() + scale[pattern].sum()
        fitted.append((nats, replace(model, weights=weights.tolist())))
    return max(fitted, key=lambda each: each[0])[1]


def mixture_weights(
    likelihood: Array, mirror: Sequence[int], num_steps: int = EM_STEPS
) -> NDArray[np.float64]:
    """Weights (P, R) of components that maximize the likelihood of columns on both strands, by
    expectation maximization.

    Args:
        likelihood: (n, P, R) of each column under each component, up to a factor for each column.
        mirror: (P,) the profile of the other strand, for each profile.
    """
    shape = likelihood.shape[1:]
    flat = likelihood.reshape(len(likelihood), -1)
    weights = np.full(shape, 1 / np.prod(shape))
    for _ in range(num_steps):
        weights = weights * ((1 / (flat @ weights.ravel())) @ flat).reshape(shape) / len(flat)
        weights = (weights + weights[mirror]) / 2
    return weights


def sample_positions(lengths: Sequence[int], number: int = 400_000) -> NDArray[np.int64]:
    """Evenly spaced positions in the first 80 % of each record, which are training data by default.

    Args:
        lengths: of the records, which are one after the other.

    Returns:
        At most `number` positions in all records together, sorted.
    """
    length: Array = np.array(lengths)
    kept = length * 4 // 5
    end = np.cumsum(kept)
    chosen = _evenly(int(end[-1]), number)
    left_out = np.cumsum(length - kept) - (length - kept)  # before each record
    return chosen + left_out[np.searchsorted(end, chosen, "right")]


def _evenly(total: int, number: int) -> NDArray[np.int64]:
    return np.arange(min(total, number)) * total // max(min(total, number), 1)


def phase_contrast(rate: Array, known: NDArray[np.bool_], reach: int = 30) -> Array:
    """Mean rate of the positions at multiples of 3 from each position, minus the mean of the
    others, both within `reach`: it is high at third positions of codons, and a track of coding
    phase, not an effect of a variant.

    Args:
        rate: (n,) log rates of consecutive positions.
        known: (n,) whether a position has one.

    Returns:
        (n,), NaN without a known position on one side of the difference.
    """
    distance = np.arange(-reach, reach + 1)
    means = []
    for near in ((distance % 3 == 0) & (distance != 0), distance % 3 != 0):
        total, count = (
            np.convolve(each, near.astype(float))[reach:-reach]
            for each in (np.where(known, rate, 0), known)
        )
        means.append(np.where(count > 0, total, np.nan) / np.maximum(count, 1))
    return means[0] - means[1]
