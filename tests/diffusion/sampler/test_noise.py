"""Samplers of noise that replaces tokens: their exact distributions, by enumeration of all states of
a process and compared with what they draw."""

import itertools

import pytest
import torch

from dnadiff.diffusion.hybrid import HybridProcess
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import MixtureProcess, UniformProcess
from dnadiff.diffusion.sampler.reverse import Reverse


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


def reversed_law(table, num_steps, start_t=1.0, begin=None):
    """The exact distribution of the sequences after `num_steps` reverse steps, (27,)."""
    probability = prior(table) if begin is None else begin
    grid = torch.linspace(start_t, 0, num_steps + 1, dtype=torch.float64).float().double()
    for t, s in itertools.pairwise(grid.tolist()):
        probability = probability @ reverse_step(table, t, s)
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
