"""Adaptive Markov code lengths of `scripts/bench/compress.py`."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dnadiff.kmers import reverse_complement
from dnadiff.markov import model as markov
from dnadiff.markov.model import BackoffMarkov

spec = importlib.util.spec_from_file_location(
    "adaptive_markov", Path(__file__).parents[2] / "scripts" / "bench" / "adaptive_markov.py"
)
adaptive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adaptive)

sequences = arrays(
    np.uint8, st.integers(0, 50), elements=st.sampled_from([0, 0, 1, 2, 3, 4])
)  # many A, so that contexts recur


def bases(letters: str) -> np.ndarray:
    return np.array(["ACGT".find(x) % 5 for x in letters], np.uint8)


def slow_counts(sequences: list[list[int]], order: int) -> Counter:
    """n(c, x) for every order, by the definition."""
    counts = Counter()
    for x in sequences:
        for k in range(order + 1):
            markov.update(
                tuple(x[i - k : i + 1]) for i in range(k, len(x)) if 4 not in x[i - k : i + 1]
            )
    return counts


def slow_probs(counts: Counter, before: list[int], strengths: list[float]) -> np.ndarray:
    """q_order(. | before), by the formula."""
    q = np.full(4, 0.25)
    for k, a in enumerate(strengths):
        context = before[len(before) - k :]
        if k > len(before) or 4 in context:
            break
        n = np.array([counts[(*context, x)] for x in range(4)])
        q = (n + a * q) / (n.sum() + a)
    return q


def both_strands_of(x: np.ndarray) -> list[list[int]]:
    return [x.tolist(), reverse_complement(x).tolist()]


@settings(max_examples=40, deadline=None)
@given(sequences, sequences, st.integers(0, 4), st.booleans())
def test_adaptive_counts_are_those_before_each_base(train, x, order, both_strands):
    train = np.concatenate([train, bases("ACGTT")])
    strengths = [2.0 + k for k in range(order + 1)]
    found = adaptive.adaptive_log_probs(
        BackoffMarkov.fit([train], order, strengths), x, both_strands
    )
    expected = np.full(len(x), np.nan)
    for i in np.flatnonzero(x < 4):
        seen = both_strands_of(x[:i]) if both_strands else [x[:i].tolist()]
        counted = slow_counts(both_strands_of(train) + seen, order)
        expected[i] = np.log(slow_probs(counted, x[:i].tolist(), strengths)[x[i]])
    assert found == pytest.approx(expected, nan_ok=True)


@settings(max_examples=30, deadline=None)
@given(sequences, st.booleans(), st.sampled_from([1, 3, 50]), st.sampled_from([-1, 2, 12]))
def test_adaptive_counts_do_not_depend_on_blocks_or_storage(x, both_strands, block, tables):
    model = BackoffMarkov.fit([bases("ACGTT")], 4, 3)
    expected = adaptive.adaptive_log_probs(model, x, both_strands)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markov, "_BLOCK", block)
        patch.setattr(adaptive, "_TABLE_ORDER", tables)
        assert adaptive.adaptive_log_probs(model, x, both_strands) == pytest.approx(
            expected, nan_ok=True, rel=1e-12
        )


def test_high_orders_whose_codes_do_not_fit_one_integer_with_their_index():
    x = np.random.default_rng(0).integers(0, 4, 300).astype(np.uint8)
    twice = np.concatenate([x, x])
    n_x, n = adaptive.counts_so_far(twice, 29, both_strands=False)
    assert not n[:329].any() and n_x[329:].tolist() == n[329:].tolist() == [1] * 271


def test_untrained_adaptive_model_starts_at_two_bits_and_learns():
    model = adaptive.untrained(order=3, strength=1)
    assert np.exp(model.log_probs(bases("GATTACA"))) == pytest.approx(np.full(7, 0.25))
    log_probs = adaptive.adaptive_log_probs(model, bases("GATTACA" * 50))
    assert log_probs[0] == np.log(0.25)
    assert log_probs[-7:].min() > np.log(0.9)
