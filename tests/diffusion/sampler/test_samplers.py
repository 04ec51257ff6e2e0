"""What all samplers fraction, and the exact distributions of each."""

import itertools
import runpy
from pathlib import Path

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler import base
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.spaced import Spaced
from dnadiff.diffusion.vocab import Vocab

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
posterior = TABLES["posterior"]

BIT = Vocab(3, 2, 2, (2,))
EVERY = {
    "ancestral": lambda: Ancestral(num_steps=6),
    "first_hitting": FirstHitting,
    "grouped": lambda: Grouped(num_groups=2),
    "spaced": lambda: Spaced(num_groups=2),
}


@pytest.fixture
def copies(make_oracle):
    """Two copies of a fair bit."""
    return make_oracle(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0.5, 0.5]), BIT)


def run(sampler, denoiser, vocab, batch, length, seed=0, eps=1e-3, **kwargs):
    process = AbsorbingProcess(vocab, LogLinear(eps))
    return sampler.sample(
        denoiser, process, process.prior(batch, length), Draws.for_batch(seed, batch), **kwargs
    )


@pytest.mark.parametrize("num_steps", [1, 2, 4, 16])
def test_ancestral_breaks_a_pair_with_one_over_two_t(copies, num_steps):
    # facts 14: two positions that open in one step do not see each other
    tokens = run(Ancestral(num_steps), copies, BIT, 20_000, 2).tokens
    fraction = (tokens[:, 0] != tokens[:, 1]).double().mean().item()
    expected = 1 / (2 * num_steps)
    assert fraction == pytest.approx(
        expected, abs=5 * (expected * (1 - expected) / 20_000) ** 0.5 + 1e-9
    )


def test_first_hitting_never_breaks_a_pair(copies):
    result = run(FirstHitting(), copies, BIT, 500, 2)
    assert (result.tokens[:, 0] == result.tokens[:, 1]).all()
    assert result.nfe == copies.calls == 2  # facts 15: exactly L calls


def test_first_hitting_times_are_order_statistics():
    # facts 15: the n-th smallest unmasking time is Beta(n, L + 1 - n)
    process = AbsorbingProcess(BIT, LogLinear(0.0))
    length, batch = 5, 20_000
    plan = FirstHitting().plan(
        torch.ones(batch, length, dtype=torch.bool), process, Draws.for_batch(0, batch)
    )
    assert torch.equal(plan.step.sort(-1).values, torch.arange(length).expand(batch, -1))
    for i in range(length):  # the first to open has the largest time
        n = length - i
        mean, var = n / (length + 1), n * (length + 1 - n) / ((length + 1) ** 2 * (length + 2))
        assert plan.left[:, i].mean().item() == pytest.approx(mean, abs=5 * (var / batch) ** 0.5)
        assert plan.left[:, i].var().item() == pytest.approx(var, rel=0.1)


def test_ancestral_unmasks_as_the_posterior_says():
    # The plan's step probabilities are the hazards of `AbsorbingProcess.posterior`.
    process, steps = AbsorbingProcess(BIT, LogLinear(1e-3)), 5
    batch = 40_000
    plan = Ancestral(steps).plan(
        torch.ones(batch, 1, dtype=torch.bool), process, Draws.for_batch(1, batch)
    )
    t = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    uniform = torch.tensor([[[0.5, 0.5, 0.0]]], dtype=torch.float64).log()
    still = 1.0
    for i in range(steps):
        stays = posterior(process, uniform, torch.tensor([[2]]), t[i : i + 1], t[i + 1 : i + 2])[
            0, 0, 2
        ].item()
        fraction = (plan.step == i).double().mean().item()
        assert fraction == pytest.approx(still * (1 - stays), abs=0.012)
        still *= stays
    assert still == pytest.approx(0, abs=1e-12)


class FairBits(MaskedDenoiser):
    """Fair bits that know nothing of each other."""

    calls = 0

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.calls += 1
        return torch.tensor([0.5, 0.5, 0.0]).log().expand(int(positions.sum()), -1)


def test_ancestral_calls_the_network_only_when_something_is_unmasked():
    # facts 16: caching for each sequence keeps 1 + (T - 1)(1 - (1 - 1/T)^L) rows on average where
    # the first step always asks, as the published one does; drawing the steps beforehand avoids
    # that call too: T (1 - (1 - 1/T)^L), at any batch size.
    steps, length, batch, uniform = 50, 20, 300, FairBits(BIT)
    result = run(Ancestral(steps), uniform, BIT, batch, length, eps=0.0)
    expected = steps * (1 - (1 - 1 / steps) ** length)
    first = batch * (1 - (1 - 1 / steps) ** length) - 1  # all masks: one answer for all
    assert (result.rows + first) / batch == pytest.approx(expected, rel=0.03)
    assert result.nfe == uniform.calls <= steps


@pytest.mark.parametrize("batch", [1, 16])
def test_a_sequence_costs_641_rows_of_1000_steps_at_any_batch_size(batch):
    # facts 16: 1000 (1 - (1 - 1/1000)^1024) = 641
    process, several = AbsorbingProcess(BIT, LogLinear()), range(32 // batch)
    plans = [
        Ancestral(1000)
        .plan(torch.ones(batch, 1024, dtype=torch.bool), process, Draws.for_batch(seed, batch))
        .step
        for seed in several
    ]
    rows = [len(row.unique()) for plan in plans for row in plan]
    assert sum(rows) / len(rows) == pytest.approx(641, abs=5 * 10.5 / 32**0.5)


def test_grouped_unmasks_equal_groups_in_random_order():
    process = AbsorbingProcess(BIT, LogLinear())
    plan = Grouped(3).plan(torch.ones(5000, 7, dtype=torch.bool), process, Draws.for_batch(0, 5000))
    counts = torch.nn.functional.one_hot(plan.step, 3).sum(1)
    assert counts.unique(dim=0).tolist() == [[3, 2, 2]]
    assert ((plan.step == 0).double().mean(0) - 3 / 7).abs().max() < 0.035


@pytest.mark.parametrize("name", EVERY)
def test_a_product_distribution_comes_out_exactly(name, make_oracle):
    # facts 19: exact marginals and any number of steps
    sequences = torch.tensor(list(itertools.product([0, 1], repeat=2)))
    joint = torch.tensor([0.7 * 0.2, 0.7 * 0.8, 0.3 * 0.2, 0.3 * 0.8])
    tokens = run(EVERY[name](), make_oracle(sequences, joint, BIT), BIT, 20_000, 2).tokens
    found = torch.bincount(tokens[:, 0] * 2 + tokens[:, 1], minlength=4) / 20_000
    assert ((found - joint).abs() < 5 * (joint * (1 - joint) / 20_000) ** 0.5).all()


def test_the_distribution_tends_to_the_model_as_steps_grow(toy, oracle):
    def distance(sampler):
        tokens = run(sampler, oracle, toy.vocab, 20_000, 3).tokens
        found = torch.bincount(tokens @ torch.tensor([9, 3, 1]), minlength=27) / 20_000
        return 0.5 * (found - toy.joint).abs().sum().item()

    floor = (
        0.5 * (2 / torch.pi * toy.joint * (1 - toy.joint) / 20_000).sqrt().sum().item()
    )  # expected distance of an exact sampler
    few, many, exact = distance(Ancestral(1)), distance(Ancestral(64)), distance(FirstHitting())
    assert few > 5 * floor and many < 2 * floor and exact < 2 * floor
    assert distance(Grouped(3)) < 2 * floor
    assert distance(Spaced(3)) < 2 * floor


@pytest.mark.parametrize("name", EVERY)
def test_frozen_positions_and_given_tokens_are_never_changed(name, toy, oracle):
    # facts 22
    process = AbsorbingProcess(toy.vocab, LogLinear())
    x_init = torch.tensor([[3, 1, 3], [2, 3, 3]])
    frozen = torch.tensor([[True, False, False], [False, False, False]])
    before = x_init.clone()
    tokens = (
        EVERY[name]().sample(oracle, process, x_init, Draws.for_batch(0, 2), frozen=frozen).tokens
    )
    assert torch.equal(x_init, before)
    assert tokens[0, 0] == 3 and tokens[0, 1] == 1 and tokens[1, 0] == 2
    assert (tokens[0, 2] != 3) and (tokens[1, 1:] != 3).all()


@pytest.mark.parametrize("name", EVERY)
def test_same_seed_same_tokens_and_correct_counts(name, toy, oracle):
    first = run(EVERY[name](), oracle, toy.vocab, 40, 3, seed=5)
    assert (
        first.nfe == oracle.calls
        and first.nfe <= EVERY[name]().num_steps_for(3)
        and first.rows <= first.nfe * 40
    )
    again, other = (
        run(EVERY[name](), oracle, toy.vocab, 40, 3, seed=5),
        run(EVERY[name](), oracle, toy.vocab, 40, 3, seed=6),
    )
    assert torch.equal(first.tokens, again.tokens) and not torch.equal(first.tokens, other.tokens)
    half = run(EVERY[name](), oracle, toy.vocab, 20, 3, seed=5).tokens
    assert torch.equal(half, first.tokens[:20])  # noise belongs to the sample, not to the batch


def test_rows_drawn_in_parts_are_the_rows_drawn_together():
    log_probs, uniform = torch.randn(50, 7).log_softmax(-1), torch.rand(50, dtype=torch.float64)
    sampler, seen = Grouped(temperature=0.8, nucleus=0.9), []

    def adjust(part):
        seen.append(len(part))
        return sampler.adjust(part)

    together = sampler.unmask(0, log_probs, uniform)
    assert torch.equal(base.draw_in_chunks(log_probs, uniform, adjust, rows=4), together)
    assert seen == [4] * 12 + [2]


def test_temperature_sharpens(toy, oracle):
    cold = run(Grouped(3, temperature=0.05), oracle, toy.vocab, 200, 3).tokens
    assert len(cold.unique(dim=0)) < len(
        run(Grouped(3), oracle, toy.vocab, 200, 3).tokens.unique(dim=0)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ancestral(0), "num_steps 0 must be an integer of at least 1"),
        (lambda: Grouped(0), "num_groups 0 must be an integer of at least 1"),
        (lambda: Grouped(temperature=-1.0), "temperature -1.0 must be a number above 0"),
        (lambda: Grouped(temperature=float("inf")), "temperature inf must be a number above 0"),
        (lambda: Grouped(temperature=float("nan")), "temperature nan must be a number above 0"),
        (lambda: Grouped(top_k=0), "top_k 0 must be an integer of at least 1"),
        (lambda: Grouped(nucleus=1.5), "nucleus 1.5 must be"),
        (lambda: Grouped(4).check_length(3), "num_groups 4 is larger than the length 3"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_spaced_groups_are_every_kth_masked_position(toy):
    masked = torch.ones(4000, 11, dtype=torch.bool)
    masked[:, 5], masked[0, 2:] = False, False
    process = AbsorbingProcess(toy.vocab, LogLinear())
    step = Spaced(4).plan(masked, process, Draws.for_batch(0, 4000)).step
    assert sorted(step[0, :2].tolist()) == [0, 1]  # of a sequence with two masks
    rows = step[1:][:, masked[1]]
    assert (rows[:, 4:8] == rows[:, :4]).all() and (rows[:, 8:] == rows[:, :2]).all()
    assert (rows[:, :4].sort().values == torch.arange(4)).all()
    orders, counts = rows[:, :4].unique(dim=0, return_counts=True)
    assert len(orders) == 24 and (counts / 3999 - 1 / 24).abs().max() < 0.02


def test_spaced_positions_lose_less_of_a_chain_than_random_groups(make_oracle):
    # Six bits, each of which is that before it with probability .9.
    bits = torch.tensor(list(itertools.product((0, 1), repeat=6)))
    joint = torch.where(bits[:, 1:] == bits[:, :-1], 0.9, 0.1).prod(-1) / 2
    chain = make_oracle(bits, joint, BIT)
    lost = {}
    for sampler in (Grouped(3), Spaced(3), Spaced(6)):
        tokens = run(sampler, chain, BIT, 20_000, 6).tokens
        found = torch.bincount(tokens @ (2 ** torch.arange(5, -1, -1)), minlength=64) / 20_000
        lost[type(sampler).__name__, sampler.num_groups] = float((found - joint).abs().sum() / 2)
    assert lost["Spaced", 6] < 0.03 < lost["Spaced", 3] < 0.9 * lost["Grouped", 3]
