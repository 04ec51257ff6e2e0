"""What holds for every yaml under configs/sampler: a new one is tested the moment it exists."""

import itertools

import pytest
import torch

from dnadiff.design.conditioning import Guided
from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import CausalBackbone
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir

BIT = Vocab(3, 2, 2, (2,))


def settings_of(name):
    return compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]


NAMES = sorted(p.stem for p in (config_dir() / "sampler").glob("*.yaml"))
EVERY = pytest.mark.parametrize("name", NAMES)
EXACT = [
    name
    for name in NAMES
    if build(compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]).exact
]
# What to set for few and for many steps; None: exact as it is.
STEPS = {
    "analytic": ("num_steps", 1, 64),
    "ancestral": ("num_steps", 1, 64),
    "ar": None,
    "block": ("num_groups", 1, 2),
    "confidence": ("num_steps", 1, 3),
    "ddim": ("num_steps", 1, 40),
    "entropy_bounded": ("bound", 10.0, 0.0),
    "first_hitting": None,
    "forward_backward": ("num_steps", 1, 96),
    "gibbs": ("num_groups", 1, 3),
    "grouped": ("num_groups", 1, 3),
    "learned_order": None,
    "predictor_corrector": ("num_steps", 1, 64),
    "reverse": ("num_steps", 1, 64),
    "spaced": ("num_groups", 1, 3),
}


@EVERY
def test_counts_are_correct(name, world):
    # facts 22 and the promise of `Samples`: calls and rows are those that the model saw (it also
    # refuses idle rows)
    sampler = world.make(name)
    model = world.table(sampler)
    result = world.draw(sampler, model, 40)
    assert (result.nfe, result.rows) == (model.calls, model.rows)
    assert 0 < result.nfe <= sampler.num_steps_for(3) and (result.tokens < 3).all()


@EVERY
def test_noise_depends_on_seed_and_sample_index_alone(name, world):
    sampler = world.make(name)
    whole = world.draw(sampler, world.table(sampler), 40, seed=5).tokens
    assert torch.equal(whole, world.draw(sampler, world.table(sampler), 40, seed=5).tokens)
    assert torch.equal(
        whole[13:20],
        world.draw(sampler, world.table(sampler), 7, seed=5, rows=torch.arange(13, 20)).tokens,
    )
    assert not torch.equal(whole, world.draw(sampler, world.table(sampler), 40, seed=6).tokens)


@EVERY
def test_frozen_positions_and_given_tokens_are_never_changed(name, world):
    # facts 22
    sampler, x_init = world.make(name), torch.tensor([[3, 1, 3], [2, 3, 3], [3, 3, 3]])
    frozen, before = (
        torch.tensor([[True, False, False], [False, False, False], [False, True, False]]),
        x_init.clone(),
    )
    for seed in range(8):
        tokens = world.draw(
            sampler, world.table(sampler), 3, seed, x_init=x_init, frozen=frozen
        ).tokens
        assert torch.equal(tokens[frozen], before[frozen]) and torch.equal(
            tokens[before != 3], before[before != 3]
        )
        assert (tokens[~frozen] < 3).all()
    assert torch.equal(x_init, before)


@EVERY
def test_a_finished_sequence_costs_nothing(name, world):
    if world.make(name).refines:
        pytest.skip("a sequence given without masks is what it refines")
    sampler, x_init = world.make(name), torch.tensor([[0, 1, 2], [3, 3, 3], [2, 2, 0]])
    model = world.table(sampler)
    result = world.draw(sampler, model, 3, x_init=x_init)
    alone = world.draw(sampler, world.table(sampler), 1, x_init=x_init[1:2], rows=torch.tensor([1]))
    assert result.rows == alone.rows == model.rows and torch.equal(
        result.tokens[1], alone.tokens[0]
    )
    nothing = world.draw(sampler, world.table(sampler), 2, x_init=x_init[[0, 2]])
    assert (nothing.nfe, nothing.rows) == (0, 0) and torch.equal(nothing.tokens, x_init[[0, 2]])


@EVERY
def test_an_empty_batch_stays_empty(name, world):
    result = world.draw(world.make(name), world.table(world.make(name)), 0)
    assert (result.nfe, result.rows) == (0, 0) and result.tokens.shape == (0, 3)


WHOLE = {
    "num_steps": 3,
    "num_groups": 3,
    "num_sweeps": 2,
    "top_k": 2,
    "window": 3,
    "stride": 2,
    "block_size": 2,
}
NUMBERS = {"temperature": 0.5, "nucleus": 0.5, "bound": 0.5, "threshold": 0.5}
MAY_BE_NULL = {"top_k", "num_groups", "window", "stride", "block_size"}


@EVERY
def test_every_number_is_checked_and_named(name, world):
    for key in settings_of(name).keys() & (WHOLE.keys() | NUMBERS.keys()):
        good = (WHOLE | NUMBERS)[key]
        assert getattr(world.make(name, **{key: float(good)}), key, good) == good  # 1e1 is 10
        bad = ["abc", [good], True, float("nan"), float("inf"), *([2.5] if key in WHOLE else [])]
        bad += (
            []
            if key in MAY_BE_NULL or (key == "num_steps" and settings_of(name)[key] is None)
            else [None]
        )
        for value in bad:
            with pytest.raises(ValueError, match=rf"^(sampler\.)?{key} .* must be "):
                world.make(name, **{key: value})


@EVERY
def test_temperature_top_k_and_nucleus_reach_the_draw(name, world):
    if "sampler" in settings_of(name):
        pytest.skip("the sampler inside has them")
    if name == "ddim":
        pytest.skip("they change its rounding alone, of vectors that are nearly those of a token")
    few = [
        world.draw(world.make(name, **cut), world.table(world.make(name)), 300).tokens
        for cut in ({"temperature": 0.02}, {"top_k": 1}, {"nucleus": 0.01})
    ]
    free = world.draw(world.make(name), world.table(world.make(name)), 300).tokens
    assert all(len(tokens.unique(dim=0)) < len(free.unique(dim=0)) for tokens in few)
    with pytest.raises(ValueError, match="temperature -1 must be a number above 0"):
        world.make(name, temperature=-1)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("few", [True, False])
def test_a_product_distribution_comes_out_exactly(name, few, world):
    # facts 19: exact marginals and any number of steps
    if name == "ddim" and few:
        pytest.skip("a Gaussian step is not exact for letters")
    p, q, batch = torch.tensor([0.7, 0.3]), torch.tensor([0.2, 0.8]), 20_000
    joint = (p[:, None] * q).flatten().double()
    settings = {STEPS[name][0]: min(STEPS[name][1], 2)} if few and STEPS[name] else {}
    sampler = world.make(name, **settings)
    found = world.frequencies(
        world.draw(sampler, world.table(sampler, joint, BIT), batch, seed=3).tokens, 2
    )
    assert ((found - joint).abs() < 4.5 * (joint * (1 - joint) / batch).sqrt()).all()


def test_every_exact_sampler_has_its_steps_here():
    assert set(EXACT) == set(STEPS)


@pytest.mark.parametrize("name", EXACT)
def test_total_variation_falls_as_steps_grow(name, world):
    # By 20,000 draws: an exact sampler's distance is `floor` on average, with a spread of less than
    # a fifth of it.
    batch = 20_000
    floor = 0.5 * (2 / torch.pi * world.joint * (1 - world.joint) / batch).sqrt().sum().item()

    def distance(**settings):
        sampler = world.make(name, **settings)
        return (
            0.5
            * (
                world.frequencies(world.draw(sampler, world.table(sampler), batch).tokens, 3)
                - world.joint
            )
            .abs()
            .sum()
            .item()
        )

    if STEPS[name] is None:
        assert distance() < 1.6 * floor
        return
    key, few, many = STEPS[name]
    # A step error is left where time is a grid: of the order of 1/T, a few percent of what one step
    # loses.
    assert distance(**{key: few}) > 8 * floor and distance(**{key: many}) < 2 * floor


def distribution_of(steps, table, world):
    """The exact distribution of the toy's sequences when position l unmasks at step `steps[l]`."""
    distribution, seen = torch.ones(27, dtype=torch.float64), torch.full((27, 3), 3)
    for i in sorted(set(steps)):
        unmasks = torch.tensor([s == i for s in steps])
        rows = table.table[seen @ table.powers]  # (27, 3, 4)
        distribution = (
            distribution
            * torch.where(unmasks, rows.gather(-1, world.sequences[..., None])[..., 0], 0.0)
            .sum(-1)
            .exp()
        )
        seen = torch.where(unmasks, world.sequences, seen)
    return distribution


def test_the_exact_distribution_of_ancestral_steps_approaches_the_model(world):
    # By enumeration: with alpha = 1 - t every position unmasks at each of T steps with 1/T.
    table, before = world.table(), 1.0
    for num_steps in (1, 2, 4, 8, 16):
        plans = list(itertools.product(range(num_steps), repeat=3))
        distribution = sum(distribution_of(steps, table, world) for steps in plans) / len(plans)
        distance = 0.5 * (distribution - world.joint).abs().sum().item()
        assert distribution.sum().item() == pytest.approx(1) and distance < 0.62 * before
        before = distance
        if num_steps == 2:
            drawn = world.frequencies(
                world.draw(world.make("ancestral", num_steps=2), table, 40_000).tokens, 3
            )
            # The schedule of `draw` ends at alpha(1) = 1e-3, which its plan divides out.
            assert (
                (drawn - distribution).abs()
                < 4.5 * (distribution * (1 - distribution) / 40_000).sqrt() + 1e-9
            ).all()


def test_the_exact_distribution_of_one_position_at_a_time_is_the_model(world):
    table = world.table()
    for order in itertools.permutations(range(3)):
        torch.testing.assert_close(distribution_of(order, table, world), world.joint)


class Twice(MaskedDenoiser):
    """Asks the table about both halves of a doubled batch; labels are not looked at."""

    def __init__(self, table, normalized):
        super().__init__(table.vocab)
        self.table, self.reads, self.block_size, self.normalized = (
            table,
            table.reads,
            table.block_size,
            normalized,
        )
        self.process_type, self.time_conditioning = table.process_type, table.time_conditioning

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        return self.table.log_probs(xt, t, None, positions, valid)

    def step_block(self, query, state=None):
        return self.table.step_block(query, state)

    def advance(self, query, state=None):
        return self.table.advance(query, state)


@EVERY
@pytest.mark.parametrize("normalized", [True, False])
def test_guidance_doubles_the_rows_and_leaves_the_steps(name, normalized, world):
    # facts 21: the unmasking rate does not change; here both distributions are one, so the tokens
    # do not change either
    sampler = world.make(name)
    if sampler.reads is CausalBackbone:
        pytest.skip("guidance is for models that unmask")
    if name == "fast_dllm":
        pytest.skip("guidance needs labels, which dit does not take")
    if name == "learned_order":
        pytest.skip("the model that has the order is called in addition: test_learned_order")
    if name == "ddim":
        with pytest.raises(ValueError, match="set guidance=1"):
            sampler.check_model(Guided(world.table(sampler), 2.0))
        return
    model, plain = world.table(sampler), world.draw(sampler, world.table(sampler), 20)
    guided = Guided(Twice(model, normalized), 2.0)
    guided.length, guided.process = 3, model.process
    result = world.draw(sampler, guided, 20, cond=torch.ones(20, 1))
    assert (result.nfe, result.rows) == (model.calls, model.rows) == (plain.nfe, 2 * plain.rows)
    assert torch.equal(result.tokens, plain.tokens)
