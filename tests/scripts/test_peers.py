"""The estimator of the benchmark of peers is the NELBO in count form, whatever a token is."""

import importlib.util
import math
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[2] / "scripts" / "bench" / "peer_bound.py"
spec = importlib.util.spec_from_file_location("peer_bound", PATH)
peer_bound = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer_bound)


def test_uniform_guessing_costs_log_4_per_base_for_bases_and_for_6_mers():
    for size, bases in ((1, 12), (6, 72)):
        found = peer_bound.nats_per_base(
            lambda tokens, masked, k=size: np.full(tokens.shape, -k * math.log(4)),
            np.zeros((3, 12), int),
            bases,
            4,
            0,
        )
        np.testing.assert_allclose(found, math.log(4))


def test_the_bound_of_copies_of_one_bit_is_its_entropy():
    def exact(tokens, masked):  # known if another copy is visible
        return np.where(masked.all(1, keepdims=True), -math.log(2), 0.0) * np.ones(tokens.shape)

    found = peer_bound.nats_per_base(exact, np.zeros((400, 5), int), 5, 10, 1)
    np.testing.assert_allclose(
        found, math.log(2) / 5
    )  # ten draws in five strata: two of them mask all


def test_every_count_of_masks_is_equally_frequent():
    count = peer_bound.masks(2, 8, 16, 0).sum(-1)
    assert (np.sort(count) == np.repeat(np.arange(1, 9), 2)).all()


def test_windows_are_from_either_strand():
    found = peer_bound.random_windows(np.zeros(1000, int), 10, 400, np.random.default_rng(0))
    assert (
        set(map(tuple, found.tolist())) == {(0,) * 10, (3,) * 10}
        and 120 < (found[:, 0] == 0).sum() < 280
    )
