"""The phylogenetic model against enumeration of every ancestor on small trees."""

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.linalg import expm

from dnadiff.data.alignment import ABSENT, COMPLEMENT, GAP
from dnadiff.genomics.phylogeny import (
    PROFILES,
    RATES,
    Phylogeny,
    fit,
    mixture_weights,
    phase_contrast,
    sample_positions,
)
from dnadiff.genomics.trees import read_newick

TREES = (
    "(a:.3,target:.2);",
    "(a:.3,b:1.4,target:.2);",
    "((a:.3,b:.01):.2,c:.7,target:.05);",
    "((a:.3,(target:.1,d:0):.02):.4,(b:.5,c:2):.1);",
    "(a:.1,b:.2,c:.3,d:.4,target:.5);",
)
SKEWED = ((0.4, 0.1, 0.2, 0.3), *PROFILES)


def make_model(newick, gap_state=False, profiles=SKEWED, kappa=2.5):
    names = [*sorted(set("abcde") & set(newick.replace("target", ""))), "target"]
    tree, rng = read_newick(newick, names), np.random.default_rng(0)
    if gap_state:
        profiles = [[0.9 * p for p in profile] + [0.1] for profile in profiles]
    weights = rng.dirichlet(np.ones(len(profiles) * 3)).reshape(-1, 3).tolist()
    return Phylogeny(names, tree.edges, kappa, profiles, [0.05, 1.0, 8.0], weights)


def random_codes(model, n, seed=0):
    genomes = len(model.names) - 1
    return np.random.default_rng(seed).integers(0, 6, (genomes, n)).astype(np.uint8)


def rate_matrix(profile, kappa):
    states = len(profile)
    q = np.array([list(profile)] * states)
    for i, j in ((0, 2), (2, 0), (1, 3), (3, 1)):
        q[i, j] *= kappa
    np.fill_diagonal(q, 0)
    np.fill_diagonal(q, -q.sum(1))
    return q / -(np.array(profile) @ np.diag(q))


def enumerated(model, column):
    """P(component, target's state, leaves) of one column, (C, S): the sum over the states of every
    inner node, from the target as the root."""
    edges, target, states = model.edges, len(model.names) - 1, len(model.profiles[0])
    inner = sorted({node for a, b, _ in edges for node in (a, b)} - set(range(len(model.names))))
    joint = []
    for profile, weights in zip(model.profiles, model.weights):
        for rate, weight in zip(model.rates, weights):
            q = rate_matrix(profile, model.kappa) * rate
            moves = [expm(q * max(length, 1e-5)) for *_, length in edges]
            of_state = np.zeros(states)
            choices = [range(states) if code >= states else [code] for code in column]
            for ends in itertools.product(range(states), *choices, *[range(states)] * len(inner)):
                state = dict(zip([target, *range(target), *inner], ends))
                p = profile[state[edges[0][0]]]
                seen, moved = {edges[0][0]}, list(zip(edges, moves))
                while moved:  # outwards from any node: the model is reversible
                    (a, b, _), move = moved.pop(0)
                    if a not in seen and b not in seen:
                        moved.append(((a, b, _), move))
                        continue
                    a, b = (a, b) if a in seen else (b, a)
                    p *= move[state[a], state[b]]
                    seen |= {a, b}
                of_state[ends[0]] += p
            joint.append(weight * of_state)
    return np.array(joint)


@pytest.mark.parametrize("gap_state", [False, True])
@pytest.mark.parametrize("newick", TREES)
def test_columns_equal_the_sum_over_every_ancestor(newick, gap_state):
    model = make_model(newick, gap_state)
    codes = random_codes(model, 3)
    columns = model.columns(codes)
    for column, found in zip(codes.T, columns):
        joint = enumerated(model, column)[:, :4]
        p = joint.sum(0) / joint.sum()
        rate = joint.sum(1) @ np.log(np.tile(model.rates, 3)) / joint.sum()
        count = np.array([(column == base).sum() for base in range(4)])
        if not count.sum():
            assert (found == 0).all()
            continue
        np.testing.assert_allclose(found[:4], np.log(p), atol=3e-6)
        np.testing.assert_allclose(found[8], rate, atol=3e-6)
        np.testing.assert_allclose(found[4:8], np.log((count + 0.1) / (count.sum() + 0.4)), 1e-6)
        np.testing.assert_allclose(found[9], np.log1p(count.sum()), 1e-6)


def test_where_the_root_of_the_tree_is_makes_no_difference():
    codes = random_codes(make_model(TREES[3]), 50)
    moved = "(((target:.1,d:0):.02,a:.3):.25,(c:2,b:.5):.25);"
    np.testing.assert_allclose(
        make_model(moved).columns(codes), make_model(TREES[3]).columns(codes), atol=1e-5
    )


def test_missing_genomes_and_unknown_codes_change_nothing():
    whole, part = make_model(TREES[3]), make_model("((a:.3,target:.12):.4,c:2.1);")
    codes = np.full((4, 60), ABSENT, np.uint8)
    codes[::2] = random_codes(part, 60)
    codes[1::2, ::2] = GAP  # missing too, since gaps are no state here
    found, expected = whole.columns(codes), part.columns(codes[::2])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def random_tree(genomes, rng):
    edges, leaves = [(0, genomes, 0.1), (1, genomes, 0.2), (2, genomes, 0.3)], genomes
    for leaf in range(3, genomes):
        leaves += 1
        a, b, _ = edges.pop(rng.integers(len(edges)))
        edges += [(each, leaves, float(rng.exponential(0.3))) for each in (a, b, leaf)]
    return edges


def wide_model(genomes=60, seed=3):
    rng = np.random.default_rng(seed)
    edges = random_tree(genomes + 1, rng)
    names = [f"g{i}" for i in range(genomes)] + ["target"]
    profiles = ((0.3, 0.2, 0.2, 0.3), *PROFILES)
    weights = rng.dirichlet(np.ones(18)).reshape(3, 6).tolist()
    return Phylogeny(names, edges, 3.0, profiles, RATES, weights)


def test_float32_is_as_good_as_float64_for_many_genomes():
    model = wide_model()
    codes = np.random.default_rng(1).integers(0, 6, (60, 400)).astype(np.uint8)
    codes[:, 200:] = codes[0, 200:]  # conserved
    (single, pattern), (double, number) = (
        model.joint(codes, dtype) for dtype in (np.float32, np.float64)
    )
    single, double = single[pattern].sum(1), double[number].sum(1)
    np.testing.assert_allclose(
        np.log(single / single.sum(1, keepdims=True)),
        np.log(double / double.sum(1, keepdims=True)),
        atol=1e-4,
    )


def test_a_column_does_not_depend_on_the_others():
    model, codes = wide_model(12), random_codes(wide_model(12), 20_000)
    together = model.columns(codes)
    assert together.dtype == np.float32 and together.shape == (20_000, 10)
    np.testing.assert_allclose(together[8190:8200], model.columns(codes[:, 8190:8200]), atol=1e-5)
    np.testing.assert_allclose(np.exp(together[:, :4]).sum(1)[together[:, 9] > 0], 1, rtol=1e-5)
    assert model.columns(codes[:, :0]).shape == (0, 10)


def simulated(model, n, seed=0):
    """Codes (G + 1, n) drawn from the model, the target last."""
    rng, target = np.random.default_rng(seed), len(model.names) - 1
    weights = np.array(model.weights)
    component = rng.choice(weights.size, n, p=weights.ravel())
    profiles = np.array(model.profiles)[component // weights.shape[1]]
    rates = np.array(model.rates)[component % weights.shape[1]]
    state = {target: np.array([rng.choice(4, p=p) for p in profiles])}
    for node, children in reversed(model.tree.children(target).items()):
        for child, length in children:
            q = {tuple(p): rate_matrix(p, model.kappa) for p in model.profiles}
            rows = [expm(q[tuple(p)] * r * length) for p, r in zip(profiles, rates)]
            state[child] = np.array([rng.choice(4, p=row[s]) for row, s in zip(rows, state[node])])
    return np.array([state[leaf] for leaf in range(target + 1)]).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted():
    """A model fitted to columns of a known one: the two, and the columns."""
    truth = make_model(TREES[3], profiles=((0.3, 0.2, 0.2, 0.3), *PROFILES), kappa=7.0)
    weights = np.array(truth.weights)
    truth = replace(truth, weights=((weights + weights[[0, 2, 1]]) / 2).tolist())
    codes = simulated(truth, 1500)
    tree = truth.tree.newick()
    fitted = fit(codes[:-1], codes[-1], truth.names[:-1], "target", tree=tree, rates=truth.rates)
    return truth, fitted, codes


def test_fit_finds_kappa_and_is_likelier_than_the_truth(fitted):
    truth, model, codes = fitted
    nats = [m.columns(codes[:-1])[np.arange(1500), codes[-1]].sum() for m in (truth, model)]
    assert model.kappa in (4.5, 7.0, 10.0)
    assert np.isclose(np.sum(model.weights), 1)
    assert nats[1] > nats[0] - 3


def test_the_other_strand_has_the_complement(fitted):
    _, model, codes = fitted
    codes = np.random.default_rng(0).integers(0, 6, codes[:-1].shape).astype(np.uint8)
    other = np.where(codes < 4, 3 - codes, codes).astype(np.uint8)
    np.testing.assert_allclose(
        model.columns(other)[:, list(COMPLEMENT)], model.columns(codes), atol=1e-5
    )


def test_a_model_survives_json(fitted):
    _, model, codes = fitted
    again = Phylogeny(**json.loads(json.dumps(asdict(model))))
    assert (again.columns(codes[:-1]) == model.columns(codes[:-1])).all()


def test_every_step_of_em_increases_the_likelihood():
    likelihood = np.random.default_rng(0).gamma(0.3, size=(200, 3, 4)) + 1e-9
    both = np.concatenate([likelihood, likelihood[:, [0, 2, 1]]])  # the other strand as columns
    nats = [
        np.log((both * mixture_weights(likelihood, [0, 2, 1], steps)).sum((1, 2))).sum()
        for steps in range(30)
    ]
    assert (np.diff(nats) > 0).all()
    weights = mixture_weights(likelihood, [0, 2, 1])
    gradient = (both / (both * weights).sum((1, 2), keepdims=True)).mean(0)
    assert gradient.max() < 1.01  # Kuhn and Tucker: 1 where a weight is positive, else below
    assert (weights[1] == weights[2]).all()


@pytest.mark.parametrize("genomes", [1, 2, 3, 6])
def test_fit_of_few_genomes(genomes):
    codes = np.random.default_rng(0).integers(0, 6, (genomes, 300)).astype(np.uint8)
    target = np.full(300, 2, np.uint8)
    for gap_state in (False, True):
        model = fit(codes, target, list("abcdef"[:genomes]), "t", gap_state=gap_state)
        assert np.isfinite(model.columns(codes)).all()


def test_fit_refuses_columns_without_bases():
    codes = np.full((3, 50), ABSENT, np.uint8)
    with pytest.raises(ValueError, match="no column has a base"):
        fit(codes, codes[0], ["a", "b", "c"], "t")


def test_sampled_positions_leave_out_the_last_fifth_of_each_record():
    assert sample_positions([10, 5]).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]
    assert sample_positions([10, 5], 8).tolist() == [0, 2, 4, 6, 10, 12]


def test_phase_contrast_tells_the_third_position():
    rate = np.where(np.arange(200) % 3 == 1, 1.0, -1.0)
    known = np.ones(200, bool)
    contrast = phase_contrast(rate, known)
    expected = [-1.0, 2.0, -1.0]
    np.testing.assert_allclose(contrast[60:63], expected)
    np.testing.assert_allclose(contrast[[0, 1, 2]], expected)
    known[100:] = False
    np.testing.assert_allclose(phase_contrast(rate, known)[60:63], expected)
    assert np.isnan(phase_contrast(rate, known)[150])
    assert len(phase_contrast(rate[:7], known[:7])) == 7
