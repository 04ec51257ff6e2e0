import math

import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import (
    Cosine,
    Geometric,
    Linear,
    LogLinear,
    LogMask,
    Polynomial,
    ShiftedLogOdds,
)
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import Bernoulli, DiscreteTime, ExactCount, Importance
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


def test_stratified_times_fall_one_into_each_stratum():
    # facts 6: Var(mean t) is 1/(12 N^3), against 1/(12 N)
    process = AbsorbingProcess(DNA, LogLinear())
    x0, maskable = torch.full((16, 2), 7), torch.ones(16, 2, dtype=torch.bool)

    def times(stratified, step):
        return Bernoulli(t_min=0.0, stratified=stratified)(
            process, x0, maskable, Draws.for_batch(0, 16, step)
        ).t

    means = {
        s: torch.stack([times(s, step).mean() for step in range(400)]).var().item()
        for s in (True, False)
    }
    assert all(
        ((times(True, step) * 16).floor().sort().values == torch.arange(16)).all()
        for step in range(20)
    )
    assert means[True] == pytest.approx(1 / (12 * 16**3), rel=0.35)
    assert means[False] == pytest.approx(1 / (12 * 16), rel=0.35)


def test_importance_sampling_has_one_weight_for_all_times():
    # facts 7: MDLM's constant is 6.90826, the exact one 6.90726; it cuts log-linear at sigma = 1e-3
    process = AbsorbingProcess(DNA, LogLinear(1e-3))
    masked = Importance(p_min=-math.expm1(-1e-3))(
        process, torch.full((8, 2), 7), torch.ones(8, 2, dtype=torch.bool), Draws.for_batch(0, 8)
    )
    assert masked.weight.tolist() == pytest.approx([6.90726] * 8, abs=1e-5)
    assert -math.log1p(-math.exp(-1e-3)) == pytest.approx(6.90826, abs=1e-5)
    # Stratified: one log mask probability in each eighth of the range.
    fraction = torch.log(1 - process.noise.alpha(masked.t)) - math.log(-math.expm1(-1e-3))
    assert ((fraction / 6.90726 * 8).floor().sort().values == torch.arange(8)).all()


def test_change_of_variables_is_a_schedule():
    # Uniform times under LogMask are the times that importance sampling draws under log-linear.
    x0, maskable, draws = (
        torch.full((16, 50), 7),
        torch.ones(16, 50, dtype=torch.bool),
        Draws.for_batch(3, 16),
    )
    by_distribution = Importance(p_min=1e-3)(
        AbsorbingProcess(DNA, LogLinear(1e-3)), x0, maskable, draws
    )
    by_schedule = Bernoulli(t_min=0.0)(
        AbsorbingProcess(DNA, LogMask(1e-3, 0.999)), x0, maskable, draws
    )
    assert torch.equal(by_distribution.xt, by_schedule.xt)
    torch.testing.assert_close(by_distribution.weight, by_schedule.weight)
    torch.testing.assert_close(
        LogLinear(1e-3).alpha(by_distribution.t), LogMask(1e-3, 0.999).alpha(by_schedule.t)
    )


@pytest.mark.parametrize(
    "noise",
    [LogLinear(1e-3), LogMask(), Geometric(), Linear(), ShiftedLogOdds()],
    ids=lambda n: type(n).__name__,
)
def test_importance_sampling_leaves_the_mean_unchanged(noise, toy, oracle):
    # facts 7, whatever the schedule: the entropy within five standard errors and the 1e-3 that all
    # schedules leave out
    process, size = AbsorbingProcess(toy.vocab, noise), 20_000
    x0 = toy.sequences[
        torch.multinomial(
            toy.joint, size, replacement=True, generator=torch.Generator().manual_seed(1)
        )
    ]
    nll = (
        3
        * MDLM(process, Importance())(
            oracle, x0, torch.ones_like(x0), Draws.for_batch(0, size)
        ).nll.item()
    )
    assert nll == pytest.approx(toy.entropy, abs=0.12)


def test_times_that_leave_out_part_of_the_bound_are_refused():
    # Uniform times above 1e-3 miss the mask probabilities below 0.957 of this schedule.
    process = AbsorbingProcess(DNA, ShiftedLogOdds(10.0))
    with pytest.raises(
        ValueError,
        match=r"t_min 0.001 leaves the mask probabilities below 0.957 of ShiftedLogOdds out of "
        r"the bound",
    ):
        MDLM(process, Bernoulli())
    with pytest.raises(ValueError, match=r"t_min 0.03 must be a number from 0 to 0.002"):
        Bernoulli(
            t_min=0.03
        )  # the mean over [0.03, 1] is 3 % too large for Cosine, which masks almost nothing before
    for masking in (Importance(), ExactCount(), DiscreteTime(8), Bernoulli(t_min=1e-8)):
        MDLM(process, masking)
    for noise in (LogLinear(), Geometric(), LogMask()):
        MDLM(AbsorbingProcess(DNA, noise), Bernoulli())


@pytest.mark.parametrize(
    ("noise", "masking", "message"),
    [
        (
            Linear(0, 1),
            Bernoulli(t_min=1e-4),
            r"Linear ends with a mask probability of 0.632, and the bound leaves out all above; "
            r".*masking=count",
        ),
        (
            Linear(0, 1),
            DiscreteTime(50),
            "mask probability of 0.632, and the bound leaves out all above; set another noise$",
        ),  # d3pm takes no other masking
        (LogLinear(0.5), Bernoulli(), "mask probability of 0.5"),
        (LogLinear(0.5), Importance(), "mask probability of 0.5"),
        (
            LogLinear(),
            Importance(p_min=0.5),
            "p_min 0.5 leaves the mask probabilities below 0.5 of LogLinear out of the bound",
        ),
        (Linear(0, 1), Importance(p_min=0.9), "p_min 0.9 leaves the mask probabilities below 0.9"),
        (Geometric(0.1, 20), Importance(), "leaves the mask probabilities below 0.0952"),
    ],
)
def test_bounds_that_miss_an_end_are_refused_in_training_and_validation(noise, masking, message):
    # Left to run, a uniform predictor of four letters comes to 1.25, 1.26, 0.99, ... and even -0.45
    # bits instead of 2.
    process = AbsorbingProcess(DNA, noise)
    for objective in (MDLM, SEDD, D3PM) if isinstance(masking, DiscreteTime) else (MDLM, SEDD):
        with pytest.raises(ValueError, match=message):
            objective(process, masking)
    MDLM(process, ExactCount())


def uniform_bits(process, masking, rows=256, seed=0):
    """What a uniform predictor of four letters comes to, bits per token."""
    x0 = torch.full((rows, 64), 7)
    xt, _, weight = masking(
        process, x0, torch.ones_like(x0, dtype=torch.bool), Draws.for_batch(seed, rows)
    )
    return float(((xt == 3).sum(-1) * weight).sum() * 2 / x0.numel())


@pytest.mark.parametrize(
    "noise", [ShiftedLogOdds(), LogLinear(), Cosine()], ids=lambda n: type(n).__name__
)
def test_validation_in_discrete_time_meets_the_steps_that_do_the_work(noise):
    # Even draws met the first of 1,000 steps, which unmasks 96 % of the tokens of ShiftedLogOdds,
    # in one row of 1,000: 0.2 bits.
    process = AbsorbingProcess(DNA, noise)
    end = 2 * noise.mask_probability(1.0)
    found = [uniform_bits(process, DiscreteTime(1000).evaluation(), seed=s) for s in range(8)]
    assert found == pytest.approx([end] * 8, abs=0.3) and sum(found) / 8 == pytest.approx(
        end, abs=0.05
    )


def test_importance_drawn_steps_have_the_mean_of_uniform_ones():
    # Over all strata the draws are the distribution itself: t = i/T as often as alpha_s - alpha_t,
    # weighing (1 - alpha(1))/(1 - alpha_t).
    noise, rows = Cosine(), 4000
    process, x0 = AbsorbingProcess(DNA, noise), torch.full((rows, 1), 7)
    _, t, weight = DiscreteTime(5).evaluation()(process, x0, x0 > 0, Draws.for_batch(0, rows))
    alpha_t, alpha_s = DiscreteTime(5).alphas(noise, torch.arange(1, 6, dtype=torch.float64) / 5)
    often = torch.bincount((t * 5).round().long() - 1, minlength=5) / rows
    torch.testing.assert_close(
        often.double(), (alpha_s - alpha_t) / (1 - alpha_t[-1]), atol=1 / rows, rtol=0
    )
    for i in range(5):
        even = 5 * (alpha_s[i] - alpha_t[i]) / (1 - alpha_t[i]) / 5
        assert float(often[i] * weight[(t * 5).round() == i + 1][0]) == pytest.approx(
            float(even), abs=2e-3
        )


@pytest.mark.parametrize(
    "masking",
    [Bernoulli(), Importance(), DiscreteTime(8), ExactCount()],
    ids=lambda m: type(m).__name__,
)
def test_every_row_sees_all_strata_over_the_seeds(masking):
    # Rows in a fixed order, as in validation: a stratum tied to the row number would always give a
    # row the same times.
    process, x0 = AbsorbingProcess(DNA, LogLinear()), torch.full((8, 16), 7)
    times = torch.stack(
        [masking(process, x0, x0 > 0, Draws.for_batch(seed, 8)).t for seed in range(400)]
    )
    again = masking(process, x0, x0 > 0, Draws.for_batch(3, 8)).t
    assert torch.equal(times[3], again)
    assert times.mean(0).numpy() == pytest.approx(
        float(times.mean()), abs=5 * float(times.std()) / 20
    )


def test_counts_serve_schedules_that_are_cut_at_their_ends():
    masked = ExactCount()(
        AbsorbingProcess(DNA, Geometric(0.1, 1.0)),
        torch.full((64, 40), 7),
        torch.ones(64, 40, dtype=torch.bool),
        Draws.for_batch(0, 64),
    )
    assert (
        0 <= masked.t.min() < 1e-9 and 1 - 1e-9 < masked.t.max() <= 1
    )  # counts without a matching time get the nearest


def test_discrete_time_needs_steps():
    with pytest.raises(
        ValueError,
        match="num_steps 0 must be an integer of at least 1",
    ):
        DiscreteTime(0)
    with pytest.raises(ValueError, match="p_min 0 must be a number above 0 and below 1"):
        Importance(p_min=0)


def test_a_discrete_step_at_which_alpha_rounds_to_one_has_no_weight():
    process, steps = AbsorbingProcess(DNA, Polynomial(6)), 1000
    assert process.noise.alpha(torch.tensor([1 / steps], dtype=torch.float64)) == 1
    x0 = torch.full((4 * steps, 1), 7)
    masked = DiscreteTime(steps)(process, x0, x0 > 0, Draws.for_batch(0, len(x0)))
    first = masked.t == 1 / steps
    assert first.any() and (masked.weight[first] == 0).all() and masked.weight.isfinite().all()
