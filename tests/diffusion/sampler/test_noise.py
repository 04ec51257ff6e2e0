"""Samplers of noise that replaces tokens: their exact distributions, by enumeration of all states
of a process, and compared with what they draw."""

import itertools
import math

import pytest
import torch

from dnadiff.diffusion.hybrid import HybridProcess
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import MixtureProcess, UniformProcess
from dnadiff.diffusion.sampler.gibbs import Gibbs
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.predictor_corrector import PredictorCorrector
from dnadiff.diffusion.sampler.renoising import Renoising
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.diffusion.sampler.self_correction import SelfCorrection


class Hybrid(MixtureProcess):
    """Noise that is uniform at t = 0 and all masks at t = 1."""

    def pi(self, t):
        letters = ((1 - t) / 3)[..., None].expand(*t.shape, 3)
        return torch.cat([letters, t[..., None]], -1)


KINDS = {"uniform": UniformProcess, "hybrid": Hybrid, "gidd": HybridProcess}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def table(world, toy):
    """The exact model of a kind of process."""
    return lambda kind: world.noisy(toy.joint, toy.vocab, KINDS[kind](toy.vocab, LogLinear(0.0)))


def product(rows, states):
    """The probability of each state if tokens are independent: (S, L, V) -> (S, S)."""
    tokens = torch.arange(states.shape[1])
    return rows[:, tokens, states].prod(-1)


def prior(table):
    """The probability of each state at t = 1."""
    at_one = table.process.pi(torch.ones(1, dtype=torch.float64))
    return product(at_one.expand(1, table.length, -1), table.states)[0]


def letters(table, probability):
    """The part of sequences without masks, (27,)."""
    return probability[(table.states < table.vocab.mask_id).all(-1)]


def reverse_step(table, t, s):
    """The probability of each state at time s given each state at time t, (S, S)."""
    size, shape = len(table.states), table.states.shape
    log_probs = table.at(t).nan_to_num(nan=-torch.inf).view(-1, table.vocab.size)
    t, s = (torch.tensor(x, dtype=torch.float64).expand(shape).flatten() for x in (t, s))
    rows = table.process.reverse(log_probs, table.states.flatten(), t, s).exp()
    return product(rows.view(size, shape[1], -1).nan_to_num(), table.states)


def correction(table, s, rate):
    """The probability of each state after a correction at time s given each state, (S, S)."""
    q = table.marginal(s)
    noisy = table.at(s).exp().nan_to_num()[..., :-1] @ q
    kept = (table.states[:, None] == table.states).double()  # (S, S, L)
    tokens = torch.arange(table.length)
    return ((1 - rate) * kept + rate * noisy[:, tokens, table.states]).prod(-1)


def reversed_law(table, num_steps, start_t=1.0, begin=None, sweeps=0.0):
    """The exact distribution of the sequences after `num_steps` reverse steps, (27,)."""
    probability = prior(table) if begin is None else begin
    grid = torch.linspace(start_t, 0, num_steps + 1, dtype=torch.float64).float().double()
    for t, s in itertools.pairwise(grid.tolist()):
        probability = probability @ reverse_step(table, t, s)
        if sweeps:
            rate = 1 - math.exp(-sweeps / num_steps)
            probability = probability @ correction(table, s, rate)
    return letters(table, probability)


def distance(first, second):
    """Total variation."""
    return 0.5 * float((first - second).abs().sum())


def agrees(found, law, batch):
    """Whether frequencies of `batch` draws are those of a law, cell by cell."""
    return ((found - law).abs() < 4.5 * (law * (1 - law) / batch).sqrt() + 1e-9).all()


@each_kind
def test_reverse_steps_approach_the_distribution_of_the_model(kind, table, world):
    laws = {num_steps: reversed_law(table(kind), num_steps) for num_steps in (4, 16, 64, 256)}
    assert all(float(law.sum()) == pytest.approx(1) for law in laws.values())
    distances = [distance(law, world.joint) for law in laws.values()]
    assert distances[-1] < 0.01 and all(
        late < early / 2 for early, late in itertools.pairwise(distances)
    )
    drawn = world.draw(Reverse(4), table(kind), 40_000).tokens
    assert agrees(world.frequencies(drawn, 3), laws[4], 40_000)


def noised(table, t):
    """The distribution of states at time t if sequences have that of the model, (64,)."""
    q = table.marginal(t)
    like = torch.stack(
        [q[table.sequences[:, m]][:, table.states[:, m]] for m in range(table.length)]
    ).prod(0)
    return table.joint @ like


@each_kind
@pytest.mark.parametrize("start_t", [0.3, 1.0])
def test_editing_keeps_the_distribution_of_the_model(kind, start_t, table, world):
    model = table(kind)
    begin = noised(model, start_t)
    far, near = (
        distance(reversed_law(model, n, start_t, begin), world.joint)
        for n in (4, round(256 * start_t))
    )
    assert near < 0.01 and near < far / 4
    batch = 40_000
    start = model.sequences[torch.multinomial(world.joint, batch, True)]
    drawn = world.draw(Reverse(4), model, batch, start=start, start_t=start_t).tokens
    assert agrees(world.frequencies(drawn, 3), reversed_law(model, 4, start_t, begin), batch)


def test_masks_refill_what_the_noise_hides_and_keep_the_rest(world):
    # first_hitting is exact: a sample of the model stays one, whatever was hidden
    batch, sampler = 40_000, world.make("first_hitting")
    model = world.table(sampler)
    start = world.sequences[torch.multinomial(world.joint, batch, True)]
    drawn = world.draw(sampler, model, batch, start=start, start_t=0.5).tokens
    assert agrees(world.frequencies(drawn, 3), world.joint, batch)
    kept = float((drawn == start).double().mean())
    assert 0.6 < kept < 0.95
    frozen = torch.zeros_like(start, dtype=torch.bool)
    frozen[:, 1] = True
    template = torch.where(frozen, start, model.vocab.mask_id)
    found = world.draw(sampler, model, 1, x_init=template, start=start, start_t=1.0, frozen=frozen)
    assert torch.equal(found.tokens[:, 1], start[:, 1])


@each_kind
def test_one_redrawn_token_keeps_the_noisy_distribution(kind, table):
    model, rate = table(kind), 1e-7
    for t in (0.0, 0.3, 0.8):
        before = noised(model, t)
        change = (before @ correction(model, t, rate) - before).abs().max() / rate
        assert float(change) < 1e-6  # of first order in the rate; two at once are of second order


@each_kind
def test_corrections_approach_the_distribution_of_the_model(kind, table, world):
    model = table(kind)
    plain, once, often = (
        distance(reversed_law(model, 16, sweeps=sweeps), world.joint) for sweeps in (0, 1, 16)
    )
    assert once < plain < often  # all tokens at once are no correction
    assert distance(reversed_law(model, 256, sweeps=1.0), world.joint) < 0.01
    law = reversed_law(model, 4, sweeps=2.0)
    drawn = world.draw(PredictorCorrector(4, sweeps=2.0), model, 40_000)
    assert agrees(world.frequencies(drawn.tokens, 3), law, 40_000) and drawn.nfe == 8
    none = world.draw(PredictorCorrector(4, sweeps=0), model, 50)
    plainly = world.draw(Reverse(4), model, 50)
    assert torch.equal(none.tokens, plainly.tokens) and none.nfe == plainly.nfe == 4


@each_kind
def test_each_correction_raises_the_probability_by_the_ratio_of_the_token(kind, table, world):
    model = table(kind)
    start, log_p = model.sequences, world.joint.log()
    index, steps = torch.tensor([9, 3, 1]), []
    for number in range(1, 9):
        sampler = SelfCorrection(Reverse(4), number, temperature=1.0)
        steps.append(world.draw(sampler, model, 27, x_init=start).tokens)
    gained = torch.stack([log_p[x @ index] for x in (start, *steps)]).diff(dim=0)
    changed = torch.stack([start, *steps]).diff(dim=0).ne(0).sum(-1)
    assert (changed <= 1).all() and torch.equal(changed > 0, gained > 1e-12)
    assert (gained >= -1e-12).all() and int(changed.sum()) > 20
    assert len(steps[-1].unique(dim=0)) < 12  # it ends in few probable sequences


@each_kind
def test_self_correction_leaves_frozen_tokens_and_finished_sequences(kind, table, world):
    model = table(kind)
    frozen = torch.zeros(27, 3, dtype=torch.bool)
    frozen[:, 1] = True
    sampler = SelfCorrection(Reverse(4), 50)
    found = world.draw(sampler, model, 27, x_init=model.sequences, frozen=frozen)
    assert torch.equal(found.tokens[:, 1], model.sequences[:, 1])
    assert not torch.equal(found.tokens, model.sequences) and found.nfe < 20
    again = world.draw(sampler, model, 27, x_init=found.tokens, frozen=frozen)
    assert torch.equal(again.tokens, found.tokens) and again.nfe == 1
    drawn = world.draw(sampler, model, 300).tokens  # after samples of Reverse
    plain = world.draw(Reverse(4), model, 300).tokens
    assert world.joint.log()[drawn @ torch.tensor([9, 3, 1])].mean() > (
        world.joint.log()[plain @ torch.tensor([9, 3, 1])].mean() + 0.3
    )


@each_kind
def test_renoising_keeps_more_with_a_larger_bound_and_is_not_exact(kind, table, world):
    calls, distances = [], []
    for bound in (0.0, 1.0, 10.0):
        found = world.draw(Renoising(bound, 32), table(kind), 20_000)
        assert (found.tokens < 3).all()
        calls.append(found.rows)
        distances.append(distance(world.frequencies(found.tokens, 3), world.joint))
    assert calls[0] > calls[1] > calls[2] and found.nfe == 1
    # one call draws all tokens independently
    joint = world.joint.view(3, 3, 3)
    alone = [joint.sum(axes) for axes in ((1, 2), (0, 2), (0, 1))]
    independent = torch.einsum("a,b,c->abc", *alone).flatten()
    assert distances[2] == pytest.approx(distance(independent, world.joint), abs=0.02)
    assert 0.1 < distances[0] < 0.65 * distances[2] and not Renoising.exact


@each_kind
def test_masked_samplers_refuse_noise_and_the_reverse(kind, table, world):
    noisy, masked = table(kind), world.table()
    for sampler in (Grouped(2), Gibbs()):
        with pytest.raises(ValueError, match=r"sampler .* needs an absorbing process.* sampler="):
            world.draw(sampler, noisy, 2)
    for sampler in (PredictorCorrector(2), Renoising(), SelfCorrection(Reverse(2))):
        with pytest.raises(ValueError, match=r"needs noise that replaces tokens.* sampler=grouped"):
            world.draw(sampler, masked, 2)
    with pytest.raises(ValueError, match="sampler Grouped needs an absorbing process"):
        world.draw(SelfCorrection(Grouped(2)), noisy, 2)


def test_corrections_bring_templates_closer_to_the_conditional_distribution(table, world):
    model, letter = table("uniform"), 1
    given = torch.eye(4, dtype=torch.float64)[letter]

    def fixed(probability):
        """The same with the given letter in the middle."""
        rest = probability.view(4, 4, 4).sum(1)
        return (rest[:, None] * given[:, None]).flatten()

    def law(num_steps, sweeps):
        probability = fixed(prior(model))
        grid = torch.linspace(1, 0, num_steps + 1, dtype=torch.float64).float().double()
        for t, s in itertools.pairwise(grid.tolist()):
            probability = fixed(probability @ reverse_step(model, t, s))
            rate = 1 - math.exp(-sweeps / num_steps)
            probability = fixed(probability @ correction(model, s, rate))
        return letters(model, probability)

    inside = world.sequences[:, 1] == letter
    exact = torch.where(inside, world.joint, 0) / world.joint[inside].sum()
    none, few, many = (distance(law(128, sweeps), exact) for sweeps in (0, 2, 8))
    assert many < few < none and many < none / 2 < 0.05
    template = torch.tensor([[3, letter, 3]]).expand(40_000, 3)
    drawn = world.draw(PredictorCorrector(4, sweeps=2.0), model, 1, x_init=template).tokens
    assert agrees(world.frequencies(drawn, 3), law(4, 2.0), 40_000)
