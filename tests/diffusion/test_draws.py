import numpy as np
import pytest
import torch

from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.objective.masking import strata


def test_numbers_are_pinned_for_ever():
    # Saved samples are reproducible only if these never change.
    assert (
        hash64(1, "mask", 0)
        == hash64(1, "mask", 0)
        != hash64(1, "mask", 1)
        != hash64("1", "mask", 1)
    )
    u = Draws.for_batch(7, 2).uniform("mask", 2)
    torch.testing.assert_close(
        u,
        torch.tensor(
            [[0.3492838122685481, 0.42425295287502884], [0.6466876632668251, 0.25094901280465176]],
            dtype=torch.float64,
        ),
        rtol=0,
        atol=0,
    )


def test_a_row_keeps_its_noise_in_any_batch():
    everything = Draws.for_batch(3, 10).uniform("token", 4)
    some = Draws(3, torch.tensor([7, 2])).uniform("token", 4)
    assert torch.equal(some, everything[[7, 2]])


def test_a_longer_row_begins_with_the_shorter():
    assert torch.equal(
        Draws.for_batch(3, 2).uniform("x", 9)[:, :5], Draws.for_batch(3, 2).uniform("x", 5)
    )


def test_seed_step_and_purpose_all_matter():
    draws = Draws.for_batch(0, 1)
    others = [Draws.for_batch(1, 1), draws.at(1)]
    assert all(float(o.uniform("x")) != float(draws.uniform("x")) for o in others)
    assert float(draws.uniform("x")) != float(draws.uniform("y"))


def test_numbers_are_uniform_and_uncorrelated():
    u = Draws.for_batch(5, 400).uniform("x", 500)
    assert u.min() > 0 and u.max() < 1
    counts = torch.histc(u.float(), 100, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 5 * (
        2 * 99
    ) ** 0.5  # chi-square, five standard deviations
    for other in (u.roll(1, 0), u.roll(1, 1)):
        assert abs(float(((u - 0.5) * (other - 0.5)).mean() * 12)) < 5 / 200_000**0.5


@pytest.mark.parametrize("num_rows", [None, 4])
@pytest.mark.parametrize("blocks", [1, 3, 4])
def test_blocks_of_a_batch_have_one_stratum_each(num_rows, blocks):
    # Without num_rows all blocks of a sequence were in one stratum, where B * blocks is a power of
    # two.
    draws = Draws(3, torch.arange(4), num_rows)
    u = strata(draws.for_blocks(blocks), True, torch.device("cpu"))
    assert sorted((u * 4 * blocks).long().tolist()) == list(range(4 * blocks))
    assert torch.equal(draws.for_blocks(1).uniform("x"), draws.uniform("x"))


def test_a_block_keeps_its_noise_in_any_batch():
    everything = Draws(3, torch.arange(4)).for_blocks(3).uniform("mask", 5).view(4, 3, 5)
    assert torch.equal(
        Draws(3, torch.tensor([2])).for_blocks(2).uniform("mask", 5), everything[2, :2]
    )


def test_a_key_does_not_depend_on_what_was_hashed_before():
    hash64.cache_clear()
    alone = hash64(np.int64(1), "sample"), hash64(1, "sample")
    hash64.cache_clear()
    assert (hash64(1, "sample"), hash64(np.int64(1), "sample")) == alone[::-1]
