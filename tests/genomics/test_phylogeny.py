"""The phylogenetic model against enumeration of every ancestor on small trees."""

import itertools
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import logsumexp

from dnadiff.data.alignment import ABSENT, COMPLEMENT, GAP
from dnadiff.genomics.phylogeny import (
    PROFILES,
    RATES,
    Phylogeny,
    children,
    fit,
    mixture_weights,
    phase_contrast,
    read_newick,
    sample_positions,
)

TREES = (
    "(a:.3,target:.2);",
    "(a:.3,b:1.4,target:.2);",
    "((a:.3,b:.01):.2,c:.7,target:.05);",
    "((a:.3,(target:.1,d:0):.02):.4,(b:.5,c:2):.1);",
    "(a:.1,b:.2,c:.3,d:.4,target:.5);",
)
SKEWED = ((0.4, 0.1, 0.2, 0.3), *PROFILES)


def make_model(newick, gap_state=False, profiles=SKEWED, kappa=2.5):
    names = sorted(set("abcde") & set(newick.replace("target", "")))
    if gap_state:
        profiles = [[0.9 * p for p in profile] + [0.1] for profile in profiles]
    edges = read_newick(newick, [*names, "target"])
    weights = np.random.default_rng(0).dirichlet(np.ones(9)).tolist()
    every, rates = zip(*itertools.product(profiles, (0.05, 1.0, 8.0)))
    return Phylogeny(names, "target", edges, kappa, every, rates, weights)


def random_codes(model, n, seed=0):
    return np.random.default_rng(seed).integers(0, 6, (len(model.names), n)).astype(np.uint8)


def rate_matrix(profile, kappa):
    states = len(profile)
    q = np.array([list(profile)] * states)
    for i, j in ((0, 2), (2, 0), (1, 3), (3, 1)):
        q[i, j] *= kappa
    np.fill_diagonal(q, 0)
    np.fill_diagonal(q, -q.sum(1))
    return q / -(np.array(profile) @ np.diag(q))


def transitions(model, profile, rate):
    """exp(Q r t) for each edge, in both directions."""
    q = rate_matrix(profile, model.kappa) * rate
    moves = {(a, b): expm(q * max(length, 1e-5)) for a, b, length in model.edges}
    return moves | {(b, a): move for (a, b), move in moves.items()}


def enumerated(model, column):
    """P(component, target's state, leaves) of one column, (C, S): the sum over the states of every
    inner node, with the target as the root."""
    states, tree = len(model.profiles[0]), children(model.edges, "target")
    known = dict(zip(model.names, column))
    nodes = list(tree)
    choices = [range(states) if known.get(x, states) >= states else [known[x]] for x in nodes]
    joint = np.zeros((len(model.weights), states))
    for c, (profile, rate) in enumerate(zip(model.profiles, model.rates)):
        moves = transitions(model, profile, rate)
        for chosen in itertools.product(*choices):
            state = dict(zip(nodes, chosen))
            p = model.weights[c] * profile[state["target"]]
            for node, below in tree.items():
                for child, _ in below:
                    p *= moves[node, child][state[node], state[child]]
            joint[c, state["target"]] += p
    return joint


def pruned(model, codes):
    """The same for many columns, (C, n, 4), by Felsenstein's recursion in float64, with logarithms
    and without blocks."""
    tree, rows = children(model.edges, "target"), dict(zip(model.names, codes))

    def below(node, moves):
        found = np.zeros((codes.shape[1], 4))
        if node in rows:
            found = np.log(np.vstack([np.eye(4), np.ones(4), np.ones(4)])[rows[node]] + 1e-300)
        for child, _ in tree[node]:
            inner = below(child, moves)
            found = found + logsumexp(inner[:, None] + np.log(moves[node, child])[None], axis=2)
        return found

    return np.array(
        [
            np.log(weight) + np.log(profile) + below("target", transitions(model, profile, rate))
            for profile, rate, weight in zip(model.profiles, model.rates, model.weights)
        ]
    )


@pytest.mark.parametrize("gap_state", [False, True])
@pytest.mark.parametrize("newick", TREES)
def test_columns_equal_the_sum_over_every_ancestor(newick, gap_state):
    model = make_model(newick, gap_state)
    codes = random_codes(model, 3)
    columns = model.columns(codes)
    for column, found in zip(codes.T, columns):
        joint = enumerated(model, column)[:, :4]
        p = joint.sum(0) / joint.sum()
        rate = joint.sum(1) @ np.log(model.rates) / joint.sum()
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


def wide_model(genomes=60, seed=3):
    rng, names = np.random.default_rng(seed), [f"g{i}" for i in range(genomes)]
    edges = [("target", "g0", 0.1)]
    for number, name in enumerate(names[1:]):
        a, b, _ = edges.pop(rng.integers(len(edges)))
        edges += [(each, number, float(rng.exponential(0.3))) for each in (a, b, name)]
    every, rates = zip(*itertools.product(((0.3, 0.2, 0.2, 0.3), *PROFILES), RATES))
    return Phylogeny(names, "target", edges, 3.0, every, rates, rng.dirichlet(np.ones(18)).tolist())


def test_float32_is_as_good_as_float64_with_many_genomes():
    model = wide_model()
    codes = random_codes(model, 400)
    codes[:30, 200:] = codes[0, 200:]  # conserved in a part of the tree
    joint, columns = pruned(model, codes), model.columns(codes)
    log_probs = logsumexp(joint, axis=0) - logsumexp(joint, axis=(0, 2))[:, None]
    of_component = np.exp(logsumexp(joint, axis=2) - logsumexp(joint, axis=(0, 2)))
    np.testing.assert_allclose(columns[:, :4], log_probs, atol=2e-5)
    np.testing.assert_allclose(columns[:, 8], np.log(model.rates) @ of_component, atol=2e-5)


def test_a_column_does_not_depend_on_the_others():
    model, codes = wide_model(12), random_codes(wide_model(12), 20_000)
    together = model.columns(codes)
    assert together.dtype == np.float32 and together.shape == (20_000, 10)
    np.testing.assert_allclose(together[8190:8200], model.columns(codes[:, 8190:8200]), atol=1e-5)
    np.testing.assert_allclose(np.exp(together[:, :4]).sum(1)[together[:, 9] > 0], 1, rtol=1e-5)
    assert model.columns(codes[:, :0]).shape == (0, 10)


def simulated(model, n, seed=0):
    """Codes (G + 1, n) drawn from the model, the target last."""
    rng = np.random.default_rng(seed)
    component = rng.choice(len(model.weights), n, p=model.weights)
    moves = [transitions(model, *each) for each in zip(model.profiles, model.rates)]
    state = {"target": np.array([rng.choice(4, p=model.profiles[c]) for c in component])}
    for node, below in reversed(children(model.edges, "target").items()):
        for child, _ in below:
            p = [moves[c][node, child][s] for c, s in zip(component, state[node])]
            state[child] = np.array([rng.choice(4, p=row) for row in p])
    return np.array([state[leaf] for leaf in [*model.names, "target"]]).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted():
    """A known model, one that is fitted to columns of it, and the columns."""
    truth = make_model(TREES[3], profiles=((0.3, 0.2, 0.2, 0.3), *PROFILES), kappa=7.0)
    truth = replace(truth, weights=[0.3 / 3, 0.5 / 3, 0.2 / 3] * 3)
    codes = simulated(truth, 1500)
    model = fit(codes[:-1], codes[-1], truth.names, "target", tree=TREES[3], rates=truth.rates[:3])
    return truth, model, codes


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
    likelihood = np.random.default_rng(0).gamma(0.3, size=(200, 12)) + 1e-9
    steps = [mixture_weights(likelihood, steps) for steps in range(30)]
    assert (np.diff([np.log(likelihood @ weights).sum() for weights in steps]) > 0).all()
    weights = mixture_weights(likelihood)
    gradient = (likelihood / (likelihood @ weights)[:, None]).mean(0)
    assert gradient.max() < 1.01  # Kuhn and Tucker: 1 where a weight is positive, else below
    assert weights.sum() == pytest.approx(1)


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
    assert contrast[1] > 0.5 > 0 > contrast[0]
    np.testing.assert_allclose(phase_contrast(rate + 5, known)[60:63], expected)
    known[100:] = False
    np.testing.assert_allclose(phase_contrast(rate, known)[60:63], expected)
    assert phase_contrast(rate, known)[150] == 0
    assert len(phase_contrast(rate[:7], known[:7])) == 7
    assert (phase_contrast(rate, np.zeros(200, bool)) == 0).all()


def test_a_column_that_only_a_component_without_weight_explains_has_a_posterior():
    model = wide_model(200)
    weights = np.zeros(18)
    weights[0] = 1  # the slowest rate
    codes = random_codes(model, 20) % 4
    assert np.isfinite(replace(model, weights=weights.tolist()).columns(codes)).all()
