"""Every bound against exact enumeration on the toy world (facts 2, 3, 8, 9, 12)."""

import itertools
import math
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from dnadiff.diffusion.denoiser import CausalDenoiser, Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import DiscreteTime, MaskedBatch
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import SUBS, AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import CausalBackbone
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
plug_in_posterior, posterior = TABLES["plug_in_posterior"], TABLES["posterior"]

NOISES = sorted(p.stem for p in (config_dir() / "noise").glob("*.yaml"))


@pytest.fixture
def process(toy):
    return AbsorbingProcess(toy.vocab, LogLinear(0.0))


def noise_named(name):
    return build(compose("train", [f"noise={name}"])["noise"])


def wrapped(objective, backbone):
    return objective.denoiser(backbone, False)


@pytest.mark.parametrize("objective", [MDLM, SEDD])
@pytest.mark.parametrize("name", NOISES)
def test_continuous_bound_is_the_entropy_for_the_oracle_whatever_the_schedule(
    name, objective, toy, oracle, exact
):
    noise = noise_named(name)
    oracle.log_score = lambda xt, t, cond, positions, valid: SUBS(toy.vocab).log_score(
        oracle.log_probs(xt, positions=positions).clamp(min=-1e3),
        xt[positions],
        noise.sigma(t.double())[:, None].expand(xt.shape)[positions],
    )
    ends = [1 - float(noise.alpha(torch.tensor(end, dtype=torch.float64))) for end in (0.0, 1.0)]
    # A schedule cut at its ends integrates over less; the rest of the integral is that of one
    # without ends.
    whole = partial(
        exact.continuous,
        lambda m: MDLM(AbsorbingProcess(toy.vocab, LogLinear(0.0)), m),
        oracle,
        LogLinear(0.0),
    )
    inside = exact.continuous(
        lambda m: objective(AbsorbingProcess(toy.vocab, noise), m), oracle, noise, ends
    )
    assert inside + whole(p=(0.0, ends[0])) + whole(p=(ends[1], 1.0)) == pytest.approx(
        toy.entropy, abs=1e-6
    )


@pytest.mark.parametrize("name", NOISES)
def test_continuous_bound_of_any_predictor_is_the_mean_over_all_orders(
    name, toy, exact, table, chain_rule
):
    denoiser, noise = Denoiser(table()), noise_named(name)
    ends = [1 - float(noise.alpha(torch.tensor(end, dtype=torch.float64))) for end in (0.0, 1.0)]
    whole = partial(
        exact.continuous,
        lambda m: MDLM(AbsorbingProcess(toy.vocab, LogLinear(0.0)), m),
        denoiser,
        LogLinear(0.0),
    )
    inside = exact.continuous(
        lambda m: MDLM(AbsorbingProcess(toy.vocab, noise), m), denoiser, noise, ends
    )
    assert inside + whole(p=(0.0, ends[0])) + whole(p=(ends[1], 1.0)) == pytest.approx(
        chain_rule(denoiser), abs=1e-6
    )


def chain_bound(toy, process, posterior, truth, num_steps):
    """The evidence lower bound of a Markov chain over all states: sum over steps and positions of
    KL(q(xs | xt, x0) || posterior)."""
    total = 0.0
    for i in range(1, num_steps + 1):
        t, s = (torch.full((27,), j / num_steps, dtype=torch.float64) for j in (i, i - 1))
        for mask in itertools.product([False, True], repeat=3):
            mask = torch.tensor(mask)
            xt = torch.where(mask, 3, toy.sequences)
            chance = (
                toy.joint
                * torch.where(
                    mask, 1 - process.noise.alpha(t[:1]), process.noise.alpha(t[:1])
                ).prod()
            )
            q, p = truth(xt, t, s), posterior(xt, t, s).detach()
            kl = torch.where(q > 0, q * (q.log() - p.log()), 0.0).sum((1, 2))
            total += float((chance * kl).sum())
    return total


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_discrete_mdlm_is_the_bound_of_its_chain(num_steps, toy, process, exact, table):
    denoiser = Denoiser(table())
    onehot = torch.nn.functional.one_hot(toy.sequences, 4).double().log()
    bound = chain_bound(
        toy,
        process,
        lambda xt, t, s: posterior(process, denoiser.log_probs(xt), xt, t, s),
        lambda xt, t, s: posterior(process, onehot, xt, t, s),
        num_steps,
    )
    assert exact.steps(partial(MDLM, process), denoiser, process.noise, num_steps) == pytest.approx(
        bound, abs=1e-6
    )


@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("carry_over", [False, True])
def test_d3pm_is_the_bound_of_its_chain_with_one_reconstruction(
    num_steps, carry_over, toy, process, exact, table
):
    objective = partial(D3PM, process, carry_over=carry_over)
    denoiser = objective().denoiser(table(to_mask=1.0))
    onehot = torch.nn.functional.one_hot(toy.sequences, 4).double().log()
    bound = chain_bound(
        toy,
        process,
        lambda xt, t, s: plug_in_posterior(process, denoiser.x0_log_probs(xt), xt, t, s),
        lambda xt, t, s: plug_in_posterior(process, onehot, xt, t, s),
        num_steps,
    )
    diffusion = exact.steps(
        lambda m: D3PM(process, m, carry_over=True), denoiser, process.noise, num_steps
    )
    assert diffusion == pytest.approx(bound, abs=1e-6)
    clean = (
        torch.log_softmax(denoiser.backbone(toy.sequences).detach(), -1)
        .gather(-1, toy.sequences[..., None])[..., 0]
        .mean()
    )
    one = objective()(
        denoiser, toy.sequences, torch.ones_like(toy.sequences), Draws.for_batch(0, 27)
    )
    without = D3PM(process, carry_over=True)(
        denoiser, toy.sequences, torch.ones_like(toy.sequences), Draws.for_batch(0, 27)
    )
    assert float(one.nll - without.nll) == pytest.approx(
        0 if carry_over else -float(clean), abs=1e-6
    )


def test_d3pm_with_both_switches_is_discrete_mdlm(toy, process, exact, table, oracle):
    make = partial(D3PM, process, zero_masking=True, carry_over=True)
    backbone = table(to_mask=2.0)
    ours, theirs = wrapped(make(), backbone), Denoiser(backbone)
    for num_steps in (1, 3):
        expected = exact.steps(partial(MDLM, process), theirs, process.noise, num_steps)
        assert exact.steps(make, ours, process.noise, num_steps) == pytest.approx(
            expected, abs=1e-9
        )
    # The oracle gives nothing to the mask and copies what it sees: no switch matters.
    expected = exact.steps(partial(MDLM, process), oracle, process.noise, 4)
    assert exact.steps(partial(D3PM, process), oracle, process.noise, 4) == pytest.approx(
        expected, abs=1e-6
    )


def test_more_steps_tighten_the_bound_down_to_the_entropy(toy, process, exact, oracle):
    values = [
        exact.steps(partial(MDLM, process), oracle, process.noise, n) for n in (1, 2, 4, 8, 64)
    ]
    marginals = [
        torch.zeros(3, dtype=torch.float64).index_add(0, toy.sequences[:, l], toy.joint)
        for l in range(3)
    ]
    assert values[0] == pytest.approx(
        sum(float(-(p * p.log()).sum()) for p in marginals), abs=1e-6
    )  # one step: independent tokens
    assert values == sorted(values, reverse=True) and toy.entropy < values[-1] < toy.entropy + 0.01


@pytest.mark.parametrize(
    ("num_steps", "expected"), [(1, 1.386294), (2, 1.039721), (4, 0.866434), (10, 0.762462)]
)
def test_two_copies_of_a_bit_in_discrete_time(num_steps, expected, make_oracle):
    # facts 3: L log 2 (1/T) sum (i/T)^(L-1), L = 2. Masks are independent, so four states per step
    # make up the sum.
    class Four(DiscreteTime):
        def __init__(self, t, factor):
            self.num_steps, self.t, self.factor = num_steps, t, factor

        def __call__(self, process, x0, maskable, draws):
            masks = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]) > 0
            chance = torch.where(masks, self.t, 1 - self.t).prod(-1)
            return MaskedBatch(
                torch.where(masks, 2, x0), self.t.expand(4), chance * self.factor * 8
            )

    vocab = Vocab(3, 2, 2, (2,))
    oracle = make_oracle(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0.5, 0.5]), vocab)
    process, x0 = AbsorbingProcess(vocab, LogLinear(0.0)), torch.zeros(4, 2, dtype=torch.int64)
    total = 0.0
    for i in range(1, num_steps + 1):
        t = torch.tensor([i / num_steps], dtype=torch.float64)
        total += MDLM(process, Four(t, 1 / i))(
            oracle, x0, torch.ones_like(x0), Draws.for_batch(0, 4)
        ).nll.item()
    assert total == pytest.approx(expected, abs=1e-6)


def test_score_entropy_of_normalized_ratios_is_mdlm_and_of_others_more(
    toy, process, exact, table, chain_rule
):
    backbone = table()
    denoiser = SEDD(process).denoiser(backbone, False)
    subs = Denoiser(backbone)
    with torch.no_grad():  # letters sum to 1 once the parameterization has divided by 3
        backbone.logits[..., :3] = torch.log_softmax(backbone.logits[..., :3], -1) + math.log(3)
    expected = chain_rule(subs)
    assert exact.continuous(partial(SEDD, process), denoiser, process.noise) == pytest.approx(
        expected, abs=1e-6
    )
    # Ratios too large by a factor c cost c - 1 - log c more at each of the three positions; the
    # likelihood normalizes them away.
    with torch.no_grad():
        backbone.logits += math.log(1.3)
    time = torch.tensor([0.4], dtype=torch.float64)
    more = exact.at(partial(SEDD, process), denoiser, time, 1.0) - exact.at(
        partial(MDLM, process), subs, time, 1.0
    )
    assert more == pytest.approx(3 * 0.4 * (0.3 - math.log(1.3)), abs=1e-6)
    assert exact.continuous(partial(MDLM, process), denoiser, process.noise) == pytest.approx(
        expected, abs=1e-6
    )


def test_autoregression_is_the_chain_rule_from_left_to_right(toy, process, table):
    backbone = table(causal=True)
    denoiser, objective = wrapped(AR(process), backbone), AR(process)
    nll = torch.stack(
        [
            objective(denoiser, x0[None], torch.ones(1, 3), Draws.for_batch(0, 1)).nll
            for x0 in toy.sequences
        ]
    )
    total = 3 * float((toy.joint * nll).sum())
    expected = 0.0
    for x0, p in zip(toy.sequences, toy.joint):
        for position in range(3):
            seen = torch.cat([torch.tensor([3]), x0[:2]])[None]  # the start token is the mask
            logits = backbone(seen)[0, position, :3].detach()
            expected -= float(p * torch.log_softmax(logits, -1)[x0[position]])
    assert total == pytest.approx(expected, abs=1e-6) and total > toy.entropy


def test_autoregression_reaches_the_entropy(toy, process, oracle):
    class Exact(CausalBackbone):
        def features(self, ids, sigma=None, cond=None, valid=None):
            rows = []
            for position in range(3):
                seen = torch.full_like(ids, 3)
                seen[:, :position] = ids[:, 1 : position + 1]
                rows.append(oracle.log_probs(seen)[:, position])
            return torch.stack(rows, 1)

        def head(self, features):
            return features

    objective, denoiser = AR(process), CausalDenoiser(Exact(toy.vocab, 4))
    nll = torch.stack(
        [
            objective(denoiser, x0[None], torch.ones(1, 3), Draws.for_batch(0, 1)).nll
            for x0 in toy.sequences
        ]
    )
    assert 3 * float((toy.joint * nll).sum()) == pytest.approx(toy.entropy, abs=1e-6)
