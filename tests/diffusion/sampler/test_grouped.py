"""Random groups and their code length."""

import itertools

import numpy as np
import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood import curve
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.vocab import Vocab

BIT = Vocab(3, 2, 2, (2,))
PROCESS = AbsorbingProcess(BIT, LogLinear())


def sizes_of(sampler, masked, seed=0):
    step = sampler.plan(masked, PROCESS, Draws.for_batch(seed, len(masked))).step
    return [[int(n) for n in torch.bincount(row[hidden]) if n] for row, hidden in zip(step, masked)]


def test_sizes_are_those_given():
    whole = torch.ones(50, 10, dtype=torch.bool)
    assert sizes_of(Grouped(sizes=[1, 2, 7]), whole) == [[1, 2, 7]] * 50
    assert (
        sizes_of(Grouped(3), whole)
        == [[4, 3, 3]] * 50
        == [curve.uniform_sizes(10, 3).tolist()] * 50
    )


def test_a_template_enters_where_as_many_tokens_are_visible():
    masked = (
        torch.arange(10)[None] >= 2
    )  # 2 of 10 are given: what is left of sizes 1, 2, 7 is 1 and 7
    assert sizes_of(Grouped(sizes=[1, 2, 7]), masked) == [[1, 7]]
    assert sizes_of(Grouped(2), masked) == [[4, 4]]


@pytest.mark.parametrize(
    "sampler",
    [Grouped(1), Grouped(2), Grouped(sizes=[1, 2]), FirstHitting()],
    ids=["1", "2", "1+2", "first_hitting"],
)
def test_the_code_length_is_the_sum_over_the_curve(sampler, toy, oracle):
    # facts 18, over every plan that the sampler can draw: -log p of the tokens given the plan,
    # averaged, is sum_k s_k h(n_k)
    process = AbsorbingProcess(toy.vocab, LogLinear(0.0))
    with torch.no_grad():
        h = (toy.joint @ likelihood.exact_curve(oracle, process, toy.sequences)).numpy()
    plans = sampler.plan(
        torch.ones(400, 3, dtype=torch.bool), process, Draws.for_batch(0, 400)
    ).step
    sizes = torch.bincount(plans[0], minlength=int(plans[0].max()) + 1).tolist()
    kinds = {tuple(plan) for plan in plans.tolist()}
    assert len(kinds) == {1: 1, 2: 3, 3: 6}[len(sizes)]  # all orders of the groups are drawn
    total = 0.0
    for plan in kinds:
        seen = torch.full((27, 3), 3)
        for k in range(len(sizes)):
            unmasks = torch.tensor(plan) == k
            rows = oracle.log_probs(seen).gather(-1, toy.sequences[..., None])[..., 0]
            total -= float(toy.joint @ rows[:, unmasks].sum(-1))
            seen = torch.where(unmasks, toy.sequences, seen)
    assert total / len(kinds) == pytest.approx(curve.code_length(h, sizes), rel=1e-9)
    fraction = torch.tensor(
        [(plans == torch.tensor(kind)).all(-1).double().mean() for kind in kinds]
    )
    assert ((fraction - 1 / len(kinds)).abs() < 5 * (1 / len(kinds) / 400) ** 0.5).all()


def test_the_fewest_groups_within_a_loss():
    h = 1 + np.exp(-np.arange(60) / 10)
    for optimal in (False, True):
        sizes = curve.fewest_groups(h, 0.02, optimal)
        assert sizes.sum() == 60 and curve.lost_structure(h, curve.code_length(h, sizes)) <= 0.02
        fewer = (
            curve.optimal_sizes(h, len(sizes) - 1)
            if optimal
            else curve.uniform_sizes(60, len(sizes) - 1)
        )
        assert curve.lost_structure(h, curve.code_length(h, fewer)) > 0.02
    assert len(curve.fewest_groups(h, 0.02, True)) < len(curve.fewest_groups(h, 0.02))
    assert curve.fewest_groups(np.ones(20)) is None  # nothing to lose
    assert len(curve.fewest_groups(h, 0.0)) == 60


def test_a_stored_curve_is_read_at_fractions():
    stored = {"length": 8, "h": {"visible": [0, 4, 7], "bits": [2.0, 1.0, 0.25]}}
    assert (curve.curve_from(stored, 4) / np.log(2)).tolist() == pytest.approx([2.0, 1.5, 1.0, 0.5])


def test_a_stored_curve_promises_no_more_than_the_measured_one():
    # With 33 even points 29 groups seemed enough here, and lost 2.2 %.
    h = 1.2 + 0.17 * np.exp(-np.arange(512) / 10)
    at = curve.stored_points(512)
    stored = {"length": 512, "h": {"visible": at.tolist(), "bits": (h[at] / np.log(2)).tolist()}}
    sizes = curve.fewest_groups(curve.curve_from(stored, 512))
    assert len(sizes) == len(curve.fewest_groups(h)) == 32
    assert curve.lost_structure(h, curve.code_length(h, sizes)) <= 0.02


@pytest.mark.parametrize("length", [1, 2, 3, 64, 512, 131_072])
def test_stored_points_are_dense_at_both_ends(length):
    at = curve.stored_points(length)
    gaps, distance = np.diff(at), np.minimum(at[:-1], length - 1 - at[1:]) + 1
    assert at[0] == 0 and at[-1] == length - 1 and len(at) <= 128 and (gaps >= 1).all()
    assert (gaps <= np.maximum(1, 0.3 * distance + 1)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grouped(sizes=[]), "sizes"),
        (lambda: Grouped(sizes="optimal"), "sizes 'optimal' must be integers"),
        (lambda: Grouped(sizes=[3, 0]), "must be an integer of at least 1"),
        (lambda: Grouped(sizes=24), "sizes 24 must be a list"),
        (lambda: Grouped(sizes=[4.5, 20.5]), r"sizes\[0\] 4.5 must be an integer"),
        (lambda: Grouped(sizes=["a", "b"]), "must be an integer"),
        (lambda: Grouped(3, sizes=[3, 4]), "num_groups 3 is not the number of sizes, 2"),
        (lambda: Grouped(sizes=[3, 4]).check_length(8), "sizes add up to 7, not to the length 8"),
    ],
)
def test_impossible_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_orders_are_uniform():
    plans = (
        FirstHitting()
        .plan(torch.ones(3000, 3, dtype=torch.bool), PROCESS, Draws.for_batch(4, 3000))
        .step
    )
    counts = [
        int((plans == torch.tensor(order)).all(-1).sum())
        for order in itertools.permutations(range(3))
    ]
    assert max(abs(n - 500) for n in counts) < 5 * (3000 * 5 / 36) ** 0.5
