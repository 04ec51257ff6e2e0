"""Constrained distributions on the enumerable toy: what is kept, how far the distribution is off,
and that weights put it right."""

import itertools

import pytest
import torch

from dnadiff.design.conditioning import Constrained
from dnadiff.design.generate import effective_size, systematic_resample
from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.base import BidirectionalBackbone, BlockBackbone, State
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir, locate


def masks(name):
    """Whether the sampler is for models of masks."""
    settings = compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]
    return issubclass(AbsorbingProcess, locate(settings["_target_"], None).process_type)


NAMES = sorted(filter(masks, (p.stem for p in (config_dir() / "sampler").glob("*.yaml"))))
ALLOWED = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
KIND = torch.tensor([0, 1, 2])
TILT = torch.tensor([0.0, 0.0, 1.0, 0.0])
STEPS = {
    "grouped": {"num_groups": 3},
    "confidence": {"num_steps": 3},
    "gibbs": {"num_groups": 3},
    "entropy_bounded": {"bound": 0.0},
}
STEPS |= {name: {"num_steps": 128} for name in ("ancestral", "analytic")}
POWERS = torch.tensor([9, 3, 1])


def make(name):
    return build(
        compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"] | STEPS.get(name, {})
    )


class Exact(MaskedDenoiser):
    """The toy's posteriors by enumeration, for all three kinds of samplers; blocks have two
    tokens."""

    def __init__(self, toy, reads=BidirectionalBackbone):
        super().__init__(toy.vocab)
        self.reads, self.block_size = reads, 2 if reads is BlockBackbone else None
        states = torch.tensor(list(itertools.product(range(4), repeat=3)))
        weight = ((states[:, None] == toy.sequences) | (states[:, None] == 3)).all(-1) * toy.joint
        onehot = torch.nn.functional.one_hot(toy.sequences, 4).double()
        self.table = (
            torch.einsum("bs,slv->blv", weight, onehot) / weight.sum(-1)[:, None, None]
        ).log()

    def at(self, xt):
        return self.table[xt @ torch.tensor([16, 4, 1])]

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        return self.at(xt)[positions]

    def step(self, token, state=None, cond=None):
        before = (
            State([token.new_zeros(len(token), 0)])
            if state is None
            else State([torch.cat([state.tensors[0], token[:, None]], 1)])
        )
        seen = torch.full((len(token), 3), 3)
        seen[:, : before.tensors[0].shape[1]] = before.tensors[0]
        return self.at(seen)[:, before.tensors[0].shape[1]], before

    def step_block(self, query, state=None):
        xt, positions = query.xt, query.positions
        before = xt[:, :0] if state is None else state.tensors[0]
        seen = torch.cat(
            [before, xt, torch.full((len(xt), 3 - before.shape[1] - xt.shape[1]), 3)], 1
        )
        return self.at(seen)[:, before.shape[1] : before.shape[1] + xt.shape[1]][positions]

    def advance(self, query, state=None):
        x0 = query.xt
        return State([x0 if state is None else torch.cat([state.tensors[0], x0], 1)])

    around = advance  # never called: a block is longer than the sequence


class OrderedExact(Exact):
    """With the order from right to left."""

    def draw_next(self, query, uniform):
        column = (query.positions * torch.arange(1, 4)).argmax(-1)
        return column, self.at(query.xt)[torch.arange(len(column)), column]


def draw(name, toy, batch, tilt=None, x_init=None, seed=0):
    """The sampler, its samples, and log weights."""
    sampler, process = make(name), AbsorbingProcess(toy.vocab, LogLinear(1e-3))
    x_init = process.prior(batch, 3) if x_init is None else x_init
    exact = (OrderedExact if name == "learned_order" else Exact)(toy, sampler.reads)
    distribution = Constrained(exact, KIND.expand(batch, 3), ALLOWED, tilt, x_init)
    frozen = x_init != 3
    tokens = sampler.sample(
        distribution,
        process,
        x_init,
        Draws.for_batch(seed, batch),
        frozen if frozen.any() else None,
    ).tokens
    return sampler, tokens, distribution.log_weight()


def total_variation(tokens, weight, target):
    distribution = torch.zeros(27, dtype=torch.float64).index_add(
        0, tokens @ POWERS, weight / weight.sum()
    )
    return float((distribution - target).abs().sum() / 2)


def kept(toy, tilt=None):
    """The toy's distribution times the tilt where the constraints hold, not normalized."""
    holds = ALLOWED[KIND.expand(27, 3), toy.sequences].all(-1)
    return toy.joint * holds * (1 if tilt is None else tilt[toy.sequences].sum(-1).double().exp())


@pytest.mark.parametrize("tilt", [None, TILT], ids=["letters", "letters and tilt"])
@pytest.mark.parametrize("name", NAMES)
def test_constraints_always_hold_and_weights_correct_the_distribution(name, tilt, toy):
    batch = 8000
    sampler, tokens, log_weight = draw(name, toy, batch, tilt)
    assert ALLOWED[KIND.expand(batch, 3), tokens].all()
    if not sampler.supports_weights(3):
        assert name in (
            *("low_confidence", "threshold", "fast_dllm", "remdm", "forward_backward", "reverse"),
        )
        return
    mass = kept(toy, tilt).sum()
    target, weight = kept(toy, tilt) / mass, log_weight.exp()
    plain, corrected = (
        total_variation(tokens, w, target) for w in (torch.ones(batch).double(), weight)
    )
    floor = (
        0.5
        * (2 / torch.pi * target * (1 - target) / effective_size(log_weight.numpy()))
        .sqrt()
        .sum()
        .item()
    )
    assert corrected < 2.2 * floor
    if name in ("grouped", "first_hitting", "ancestral", "ar"):
        assert (
            plain > 5 * corrected
        )  # the bias that the weights are there for: about 0.12, by `ar` 0.28
    # the mean weight is the mass that the constraints leave
    assert weight.mean() == pytest.approx(
        mass.item(), abs=4.5 * weight.std().item() / batch**0.5 + 0.004
    )


def test_resampling_has_the_distribution(toy):
    _, tokens, log_weight = draw("first_hitting", toy, 20_000)
    chosen = tokens[torch.from_numpy(systematic_resample(log_weight.numpy(), 5000, 0.3))]
    target = kept(toy) / kept(toy).sum()
    assert (
        total_variation(chosen, torch.ones(5000).double(), target)
        < 0.03
        < 0.1
        < total_variation(tokens, torch.ones(20_000).double(), target)
    )


def test_sweeps_of_gibbs_lead_to_the_distribution_without_weights(toy):
    target = kept(toy) / kept(toy).sum()
    STEPS["gibbs"] = {"num_groups": 3, "num_sweeps": 6}
    _, tokens, log_weight = draw("gibbs", toy, 8000)
    STEPS["gibbs"] = {"num_groups": 3}
    assert total_variation(tokens, torch.ones(8000).double(), target) < 0.02
    assert log_weight.std() > 0.1  # of the first filling: still there, and still right


def test_whole_bases_from_the_start_need_no_weight(toy):
    # conditional on the middle token alone: the oracle's distribution given it, exactly
    x_init = torch.tensor([[3, 1, 3]]).expand(8000, 3).clone()
    free = Constrained(Exact(toy), torch.zeros(8000, 3).long(), ALLOWED)
    process = AbsorbingProcess(toy.vocab, LogLinear(1e-3))
    tokens = (
        make("first_hitting")
        .sample(free, process, x_init, Draws.for_batch(0, 8000), x_init != 3)
        .tokens
    )
    target = toy.joint * (toy.sequences[:, 1] == 1)
    assert total_variation(tokens, torch.ones(8000).double(), target / target.sum()) < 0.03
    assert (free.log_weight() == 0).all()


def test_autoregressive_weights_include_tokens_given_to_the_right(toy):
    x_init = torch.tensor([[3, 1, 3], [3, 3, 2]]).repeat(6000, 1)
    _, tokens, log_weight = draw("ar", toy, 12_000, x_init=x_init)
    assert torch.equal(tokens[x_init != 3], x_init[x_init != 3])
    for first, (place, letter) in enumerate([(1, 1), (2, 2)]):
        target = kept(toy) * (toy.sequences[:, place] == letter)
        rows = slice(first, None, 2)
        plain = total_variation(tokens[rows], torch.ones(6000).double(), target / target.sum())
        assert (
            total_variation(tokens[rows], log_weight[rows].exp(), target / target.sum())
            < 0.03
            < plain
        )
        assert log_weight[rows].exp().mean() == pytest.approx(target.sum().item(), rel=0.05)


def test_unconstrained_positions_keep_the_predictions_unchanged(toy):
    xt, positions = (
        torch.tensor([[3, 3, 3], [3, 0, 3]]),
        torch.tensor([[True, True, True], [True, False, True]]),
    )
    plain = Exact(toy)
    distribution = Constrained(plain, KIND.expand(2, 3), ALLOWED)
    a, b = plain.log_probs(xt, positions=positions), distribution.log_probs(xt, positions=positions)
    assert torch.equal(a[[0, 3]], b[[0, 3]]) and not torch.equal(a, b)
    torch.testing.assert_close(b.exp().sum(-1), torch.ones(5).double())
    assert (
        (distribution.log_mass[0, 1:] < 0).all()
        and distribution.log_mass[0, 0] == 0
        and distribution.log_mass[1, 1] == 0
    )


def test_for_rows_selects_rows_and_columns(toy):
    distribution = Constrained(Exact(toy), KIND.expand(4, 3), ALLOWED)
    part = (
        distribution.for_rows(torch.tensor([3, 1]))
        .for_rows(columns=slice(1, 3))
        .for_rows(torch.tensor([1]))
    )
    assert part.kind.tolist() == [[1, 2]] and part.rows.tolist() == [1] and part.start == 1
    part.denoiser.at = lambda xt: distribution.denoiser.table[63][None, 1:]
    part.log_probs(torch.tensor([[3, 3]]), positions=torch.tensor([[True, False]]))
    assert (distribution.log_mass != 0).nonzero().tolist() == [[1, 1]]
    assert part.without_recording().recording is False and part.recording


def test_without_allowed_mass_the_constraint_alone_decides(toy):
    class Sure(Exact):
        def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
            return torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf]).expand(
                int(positions.sum()), 4
            )

    distribution = Constrained(Sure(toy), KIND.expand(1, 3), ALLOWED)
    log_probs = distribution.log_probs(
        torch.full((1, 3), 3), positions=torch.ones(1, 3, dtype=torch.bool)
    )
    assert (
        log_probs.exp().tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0.5, 0.5, 0]]
        and distribution.log_mass[0, 2] == -torch.inf
    )


def test_ratios_keep_their_sum(toy):
    # SEDD's sampler unmasks tokens at the rate that the sum of the ratios says; a constraint
    # changes which, not how many
    class Ratios(MaskedDenoiser):
        normalized = False

        def log_score(self, xt, t, cond=None, positions=None, valid=None):
            return torch.tensor([0.3, -1.0, 0.7, 0.0]).expand(int(positions.sum()), 4)

    plain, positions = Ratios(toy.vocab), torch.ones(1, 3, dtype=torch.bool)
    distribution = Constrained(plain, KIND[None], ALLOWED)
    assert distribution.normalized is False
    a, b = (
        d.log_score(torch.full((1, 3), 3), None, positions=positions) for d in (plain, distribution)
    )
    torch.testing.assert_close(b[:, :3].logsumexp(-1), a[:, :3].logsumexp(-1))
    assert b[1, 2] == -torch.inf and torch.equal(b[:, 3], a[:, 3]) and torch.equal(b[0], a[0])
    torch.testing.assert_close(
        distribution.log_mass[0, 1].exp().item(),
        (a[1, :2].logsumexp(-1) - a[1, :3].logsumexp(-1)).exp().item(),
    )


def test_properties_are_those_of_the_denoiser(toy):
    distribution = Constrained(Exact(toy), KIND[None], ALLOWED)
    assert distribution.reads is BidirectionalBackbone and not hasattr(distribution, "nothing")
