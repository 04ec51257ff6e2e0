from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dnadiff.data.kmers import KmerSet, reverse_complement
from dnadiff.genomics import markov
from dnadiff.genomics.markov import BackoffMarkov

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
            counts.update(
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


def prob_rows(model: BackoffMarkov, x: np.ndarray, order: int | None = None) -> np.ndarray:
    """q_order(. | context) of all four bases at each position, from the counts: (L, 4)."""
    rows = np.full((len(x), 4), 0.25)
    for here, segment in markov.segments(x, model.order):
        for k, a in enumerate(model.strengths[: None if order is None else order + 1]):
            n = model.counts.following(segment, k)
            rows[here] = (n + a * rows[here]) / (n.sum(1, keepdims=True) + a)
    return rows


@pytest.fixture(params=[0, 10], ids=["tables", "sorted windows"])
def extra(request):
    """Orders above those of a test: of 10 and more the counts are sorted windows."""
    return request.param


def test_probabilities_of_a_hand_computed_example(extra):
    # AAC and its reverse complement GTT: A 2, C 1, G 1, T 2; after A one A and one C; after G one
    # T; after T one T.
    model = BackoffMarkov.fit([bases("AAC")], 1 + extra, [4, 2, *[1] * extra])
    order0 = np.array([3, 2, 2, 3]) / 10
    assert prob_rows(model, bases("A"), order=0)[0] == pytest.approx(order0)
    rows = prob_rows(model, bases("AGC"), order=1)
    assert rows[1] == pytest.approx((np.array([1, 1, 0, 0]) + 2 * order0) / 4)  # after A
    assert rows[2] == pytest.approx((np.array([0, 0, 0, 1]) + 2 * order0) / 3)  # after G
    assert np.exp(model.log_probs(bases("AGC"), 1)) == pytest.approx([0.3, 0.4 / 4, 0.4 / 3])


def test_an_unseen_context_backs_off_to_the_shorter_one(extra):
    model = BackoffMarkov.fit([bases("AAAA")], 2 + extra)
    assert np.array_equal(prob_rows(model, bases("GCA")), prob_rows(model, bases("GCA"), order=0))


@settings(max_examples=60, deadline=None)
@given(st.lists(sequences, max_size=3), sequences, st.integers(0, 12), st.sampled_from([0.5, 3.0]))
def test_every_order_equals_the_formula(train, x, order, a):
    train = [*train, bases("ACGTT")]
    strengths = [a + k for k in range(order + 1)]
    model = BackoffMarkov.fit(train, order, strengths)
    slow = slow_counts([strand for s in train for strand in both_strands_of(s)], order)
    for k in range(order + 1):
        rows = prob_rows(model, x, k)
        expected = np.array(
            [slow_probs(slow, x[:i].tolist(), strengths[: k + 1]) for i in range(len(x))]
        ).reshape(-1, 4)
        assert rows == pytest.approx(expected, rel=1e-12)
        assert rows.sum(1) == pytest.approx(np.ones(len(x)))
        picked = [np.log(p[b]) if b < 4 else np.nan for p, b in zip(expected, x)]
        assert model.log_probs(x, k) == pytest.approx(np.array(picked), nan_ok=True)


def test_contexts_continue_from_segment_to_segment():
    x = np.random.default_rng(0).integers(0, 4, (1 << 19) + 20).astype(np.uint8)
    model = BackoffMarkov.fit([x[:100]], order=11)
    assert np.array_equal(model.log_probs(x)[-30:], model.log_probs(x[-60:])[-30:])


def test_both_strands_of_the_training_data_give_the_same_model(extra):
    x = np.random.default_rng(0).integers(0, 4, 400).astype(np.uint8)
    test = np.random.default_rng(1).integers(0, 4, 100).astype(np.uint8)
    forward, reverse = (
        BackoffMarkov.fit([s], 4 + extra, strength=3) for s in (x, reverse_complement(x))
    )
    assert np.array_equal(forward.log_probs(test), reverse.log_probs(test))


def test_contexts_do_not_cross_unknown_bases_or_sequences(extra):
    separate = BackoffMarkov.fit([bases("ACG"), bases("TTA")], 2 + extra)
    with_n = BackoffMarkov.fit([bases("ACGNTTA")], 2 + extra)
    x = bases("ACGTTNACGTA")
    assert np.array_equal(separate.log_probs(x), with_n.log_probs(x), equal_nan=True)
    assert np.isnan(separate.log_probs(x)).nonzero()[0].tolist() == [5]
    assert np.array_equal(separate.log_probs(x)[6:], separate.log_probs(bases("ACGTA")))


def test_lower_orders_of_a_model_equal_models_fitted_with_that_order():
    x, test = np.random.default_rng(0).integers(0, 4, (2, 3000)).astype(np.uint8)
    model = BackoffMarkov.fit([x], order=12, strength=range(1, 14))
    for order in (0, 3, 9, 11):
        assert np.array_equal(
            model.log_probs(test, order),
            BackoffMarkov.fit([x], order, range(1, order + 2)).log_probs(test),
        )


def test_order_26_uses_its_longest_context():
    x = np.random.default_rng(0).integers(0, 4, 60).astype(np.uint8)
    model = BackoffMarkov.fit([x], order=26, strength=1e-3)
    assert np.exp(model.log_probs(x)[26:]).min() > 0.999
    assert np.exp(model.log_probs(reverse_complement(x))[26:]).min() > 0.999


def test_strengths_maximize_the_likelihood_order_by_order():
    x, valid = np.random.default_rng(0).integers(0, 4, (2, 500)).astype(np.uint8) % 3
    grid, model = (1, 10, 100), BackoffMarkov.fit([x], order=3)
    chosen = model.tuned_each([valid], [3], grid, 0)[3].strengths
    for k in range(4):
        totals = [BackoffMarkov.fit([x], k, (*chosen[:k], a)).log_probs(valid).sum() for a in grid]
        assert chosen[k] == grid[int(np.argmax(totals))]


def test_sweeps_reach_a_coordinate_wise_maximum():
    x, valid = np.random.default_rng(0).integers(0, 4, (2, 600)).astype(np.uint8) % 3
    grid, model = (1, 10, 100), BackoffMarkov.fit([x], order=3)

    def total(strengths, order=3):
        return np.nansum(BackoffMarkov(model.counts, strengths).log_probs(valid, order))

    greedy, swept = (
        model.tuned_each([valid], [3], grid, 0)[3].strengths,
        model.tuned_each([valid], [3], grid, 9)[3].strengths,
    )
    assert total(swept) >= total(greedy)
    for k in range(4):  # no change of a single strength is better
        assert total(swept) == pytest.approx(
            max(total((*swept[:k], a, *swept[k + 1 :])) for a in grid), rel=1e-6
        )
    each = model.tuned_each([valid], [1, 3], grid, sweeps=9)
    assert each[3].strengths == swept and each[1].strengths[2:] == greedy[2:]
    assert total(each[1].strengths, 1) >= total(greedy, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: BackoffMarkov.fit([bases("ACGT")], 27),
            "order 27 must be an integer from 0 to 26",
        ),
        (lambda: BackoffMarkov.fit([bases("NN")], 3), "no known base"),
        (lambda: BackoffMarkov.fit([], 3), "no known base"),
        (
            lambda: BackoffMarkov.fit([bases("ACGT")], 3).log_probs(bases("A"), 4),
            "order 4 must be from 0 to 3",
        ),
        (
            lambda: BackoffMarkov.fit([bases("ACGT")], 3).tuned_each([bases("N")], [3]),
            "valid contains no known base",
        ),
    ],
)
def test_bad_input_is_rejected_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def bits(log_probs: np.ndarray) -> float:
    return -np.nanmean(log_probs) / np.log(2)


@pytest.fixture(scope="module")
def fitted(ecoli):
    """Fitted to the first nine tenths."""
    return BackoffMarkov.fit([ecoli[: len(ecoli) * 9 // 10]], 12, strength=256)


@pytest.mark.slow
def test_ecoli_bits_per_base_at_strength_256(ecoli, fitted):
    train, test = np.split(ecoli, [len(ecoli) * 9 // 10])
    model = fitted
    assert [round(bits(model.log_probs(test, k)), 3) for k in (3, 6, 9)] == [1.952, 1.933, 1.925]
    order12 = model.log_probs(test)
    assert round(bits(order12), 3) == 1.920
    assert bits(order12[~KmerSet([train]).covered(test)]) == pytest.approx(
        1.930, abs=0.0015
    )  # "about 1.930"
    assert round(bits(BackoffMarkov(model.counts, 4).log_probs(test, 9)), 3) == 1.968


@pytest.mark.slow
def test_ecoli_strengths_chosen_on_validation_data(ecoli, fitted):
    train, valid, test = np.split(ecoli, [len(ecoli) * 8 // 10, len(ecoli) * 9 // 10])
    model = BackoffMarkov.fit([train], 12).tuned_each([valid], [12], sweeps=0)[12]
    assert round(bits(BackoffMarkov(model.counts, 16).log_probs(test, 6)), 4) == 1.9331
    assert bits(model.log_probs(test, 6)) == pytest.approx(1.9331, abs=1e-4)
    refitted = BackoffMarkov(fitted.counts, model.strengths)
    assert [round(bits(refitted.log_probs(test, k)), 3) for k in (3, 6, 9)] == [1.952, 1.933, 1.925]
    assert bits(refitted.log_probs(test)) == pytest.approx(1.920, abs=0.002)


@pytest.mark.slow
def test_ecoli_strengths_swept_for_each_order(ecoli):
    train, valid, test = np.split(ecoli, [len(ecoli) * 8 // 10, len(ecoli) * 9 // 10])
    model = BackoffMarkov.fit([train], 12).tuned_each([valid], [12], sweeps=0)[12]
    swept = model.tuned_each([valid], [6, 12], sweeps=2)
    order12 = bits(swept[12].log_probs(test))
    assert (
        order12 == pytest.approx(1.9192, abs=2e-4) and order12 < bits(model.log_probs(test)) - 0.005
    )
    assert bits(swept[6].log_probs(test, 6)) == pytest.approx(1.9330, abs=1e-4)


def test_order_0_at_41_percent_gc():
    # 1.3700 nats, perplexity 3.935
    x = np.repeat(np.arange(4), [59_000, 41_000, 41_000, 59_000]).astype(np.uint8)
    nats = -BackoffMarkov.fit([x], 0).log_probs(x).mean()
    assert nats == pytest.approx(1.3700, abs=5e-5) and np.exp(nats) == pytest.approx(
        3.935, abs=5e-4
    )


@pytest.mark.slow
def test_chr20_bits_per_base(shared_data):
    # strengths were chosen on the blocks of index 8 by `tuned_each` on a fit to those of index 0 to
    # 7 (greedy, about four minutes)
    from dnadiff.data.tokenizer import DNATokenizer
    from dnadiff.formats.sequences import read_sequences

    tokenizer = DNATokenizer()
    x = tokenizer.bases(
        tokenizer.encode(read_sequences(shared_data / "genomes" / "GRCh37_chr20.fa.gz")[0].sequence)
    )
    blocks = [x[start : start + 10**6] for start in range(0, len(x), 10**6)]
    test = blocks[9::10]
    model = BackoffMarkov.fit(
        [b for i, b in enumerate(blocks) if i % 10 != 9], 12, [1, 1, *[1024] * 5, *[64] * 6]
    )
    found = [bits(np.concatenate([model.log_probs(b, k) for b in test])) for k in (3, 6, 12)]
    assert found == pytest.approx([1.923, 1.893, 1.789], abs=2e-3)
    assert 2 ** np.array(found) == pytest.approx(np.array([3.791, 3.713, 3.455]), abs=5e-3)


def test_strengths_are_chosen_on_evenly_spaced_blocks_of_a_large_part():
    valid = [
        np.arange(10, dtype=np.uint8) % 4,
        np.arange(7, dtype=np.uint8) % 3,
        np.empty(0, np.uint8),
        np.arange(13, dtype=np.uint8) % 2,
    ]
    assert markov._evenly_spaced(valid, 30, 4) == valid
    joined, kept = (
        np.concatenate(valid),
        markov._evenly_spaced(valid, 15, 4),
    )  # blocks 0, 2, 4, 6 of 4 bases
    assert np.array_equal(
        np.concatenate(kept), np.concatenate([joined[4 * block :][:4] for block in (0, 2, 4, 6)])
    )
