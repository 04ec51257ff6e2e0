import math

import numpy as np
import pytest
import torch

from dnadiff import likelihood
from dnadiff.noise import LogLinear
from dnadiff.process import AbsorbingProcess


def estimate(toy, oracle, x0, **kwargs):
    process = AbsorbingProcess(toy.vocab, LogLinear())
    return likelihood.estimate(oracle, process, [(x0, {"all": torch.ones_like(x0, dtype=torch.bool)})], **kwargs)


@pytest.fixture
def many(toy):
    index = torch.multinomial(toy.joint, 6000, replacement=True, generator=torch.Generator().manual_seed(1))
    return toy.sequences[index]


def test_nelbo_of_the_oracle_is_the_entropy(toy, oracle, many):
    result = estimate(toy, oracle, many, num_draws=6)
    interval = result.interval()
    assert 3 * interval.value == pytest.approx(toy.entropy, abs=5 * 3 * interval.se)
    assert result.summary()["bits"] == pytest.approx(interval.value / math.log(2))


def test_se_mc_is_the_spread_of_repeated_evaluations(toy, oracle, many):
    results = [estimate(toy, oracle, many[:200], num_draws=4, seed=s) for s in range(60)]
    spread = np.std([r.interval().value for r in results], ddof=1)
    claimed = np.sqrt(np.mean([r.se_mc() ** 2 for r in results]))
    assert claimed == pytest.approx(spread, rel=0.3)  # 60 repetitions know a spread to 9 %


def test_se_total_is_the_spread_over_other_data(toy, oracle, many):
    results = [estimate(toy, oracle, part, num_draws=2, seed=s, block_size=1) for s, part in enumerate(many.split(100))]
    spread = np.std([r.interval().value for r in results], ddof=1)
    assert np.mean([r.interval().se for r in results]) == pytest.approx(spread, rel=0.3)


def test_the_mean_of_the_curve_is_the_nelbo(toy, oracle, many):
    # facts 5: NELBO = sum_n h(n)
    result = estimate(toy, oracle, many, num_draws=6)
    curve = result.curve(bins=3)
    assert curve.visible.tolist() == [0, 1, 2]
    assert curve.nats.sum() == pytest.approx(3 * result.interval().value, abs=0.02)
    assert curve.nats[0] > curve.nats[2]


def test_groups_add_up_and_positions_outside_are_neither_masked_nor_counted(toy, oracle, many):
    x0 = many[:50]
    counted = torch.ones_like(x0, dtype=torch.bool)
    counted[:, 0] = False
    first = torch.zeros_like(counted)
    first[:, 1] = True
    process = AbsorbingProcess(toy.vocab, LogLinear())
    result = likelihood.estimate(oracle, process, [(x0, {"all": counted, "a": first, "b": counted & ~first})], num_draws=2)
    np.testing.assert_allclose(result.nats["a"] + result.nats["b"], result.nats["all"])
    assert result.tokens["all"].sum() == 100 and result.counts.max() == 2


def test_noise_belongs_to_the_sequence_not_to_the_batch(toy, oracle, many):
    process = AbsorbingProcess(toy.vocab, LogLinear())
    whole = estimate(toy, oracle, many[:10], num_draws=2)
    pieces = [(p, {"all": torch.ones_like(p, dtype=torch.bool)}) for p in many[:10].split(3)]
    np.testing.assert_array_equal(likelihood.estimate(oracle, process, pieces, num_draws=2).nats["all"], whole.nats["all"])


def test_odd_numbers_of_draws_are_refused(toy, oracle, many):
    with pytest.raises(ValueError, match="num_draws 3 must be even"):
        estimate(toy, oracle, many[:2], num_draws=3)
