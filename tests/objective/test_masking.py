import math

import pytest
import torch

from dnadiff.draws import Draws
from dnadiff.noise import Geometric, Linear, LogLinear, LogMask, ShiftedLogOdds
from dnadiff.objective.masking import Coins, ExactCount, Importance, Steps
from dnadiff.objective.mdlm import MDLM
from dnadiff.process import AbsorbingProcess
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


def test_stratified_times_fall_one_into_each_stratum():
    # facts 6: Var(mean t) is 1/(12 N^3), against 1/(12 N)
    process = AbsorbingProcess(DNA, LogLinear())
    x0, maskable = torch.full((16, 2), 7), torch.ones(16, 2, dtype=torch.bool)

    def times(stratified, step):
        return Coins(stratified, t_min=0.0)(process, x0, maskable, Draws.for_batch(0, 16, step)).t

    means = {s: torch.stack([times(s, step).mean() for step in range(400)]).var().item() for s in (True, False)}
    assert ((times(True, 0) * 16).floor() == torch.arange(16)).all()
    assert means[True] == pytest.approx(1 / (12 * 16**3), rel=0.35)
    assert means[False] == pytest.approx(1 / (12 * 16), rel=0.35)


def test_importance_sampling_has_one_weight_for_all_times():
    # facts 7: MDLM's constant is 6.90826, the exact one 6.90726; it cuts log-linear at sigma = 1e-3
    process = AbsorbingProcess(DNA, LogLinear(1e-3))
    masked = Importance(p_min=-math.expm1(-1e-3))(process, torch.full((8, 2), 7), torch.ones(8, 2, dtype=torch.bool), Draws.for_batch(0, 8))
    assert masked.weight.tolist() == pytest.approx([6.90726] * 8, abs=1e-5)
    assert -math.log1p(-math.exp(-1e-3)) == pytest.approx(6.90826, abs=1e-5)
    # Stratified: one log mask probability in each eighth of the range.
    share = torch.log(1 - process.noise.alpha(masked.t)) - math.log(-math.expm1(-1e-3))
    assert ((share / 6.90726 * 8).floor() == torch.arange(8)).all()


def test_change_of_variables_is_a_schedule():
    # Uniform times under LogMask are the times that importance sampling draws under log-linear.
    x0, maskable, draws = torch.full((16, 50), 7), torch.ones(16, 50, dtype=torch.bool), Draws.for_batch(3, 16)
    by_law = Importance(p_min=1e-3)(AbsorbingProcess(DNA, LogLinear(1e-3)), x0, maskable, draws)
    by_schedule = Coins(t_min=0.0)(AbsorbingProcess(DNA, LogMask(1e-3, 0.999)), x0, maskable, draws)
    assert torch.equal(by_law.xt, by_schedule.xt)
    torch.testing.assert_close(by_law.weight, by_schedule.weight)
    torch.testing.assert_close(LogLinear(1e-3).alpha(by_law.t), LogMask(1e-3, 0.999).alpha(by_schedule.t))


@pytest.mark.parametrize("noise", [LogLinear(1e-3), LogMask(), Geometric(), Linear(), ShiftedLogOdds()], ids=lambda n: type(n).__name__)
def test_importance_sampling_leaves_the_mean_unchanged(noise, toy, oracle):
    # facts 7, whatever the schedule: the entropy within five standard errors and the 1e-3 that all schedules leave out
    process, size = AbsorbingProcess(toy.vocab, noise), 20_000
    x0 = toy.sequences[torch.multinomial(toy.joint, size, replacement=True, generator=torch.Generator().manual_seed(1))]
    nll = 3 * MDLM(process, Importance())(oracle, x0, torch.ones_like(x0), Draws.for_batch(0, size)).nll.item()
    assert nll == pytest.approx(toy.entropy, abs=0.12)


def test_times_that_leave_out_part_of_the_bound_are_refused():
    # Uniform times above 1e-3 miss the mask probabilities below 0.957 of this schedule.
    process = AbsorbingProcess(DNA, ShiftedLogOdds(10.0))
    with pytest.raises(ValueError, match=r"t_min 0.001 leaves the mask probabilities below 0.957 of ShiftedLogOdds out of the bound"):
        MDLM(process, Coins())
    for masking in (Importance(), ExactCount(), Steps(8), Coins(t_min=1e-8)):
        MDLM(process, masking)
    for noise in (LogLinear(), Geometric(), LogMask()):
        MDLM(AbsorbingProcess(DNA, noise), Coins())


def test_counts_serve_schedules_that_are_cut_at_their_ends():
    masked = ExactCount()(
        AbsorbingProcess(DNA, Geometric(0.1, 1.0)), torch.full((64, 40), 7), torch.ones(64, 40, dtype=torch.bool), Draws.for_batch(0, 64)
    )
    assert 0 <= masked.t.min() < 1e-9 and 1 - 1e-9 < masked.t.max() <= 1  # counts that no time expects are told the nearest


def test_discrete_time_needs_steps():
    with pytest.raises(ValueError, match=r"num_steps 0 must be at least 1.*continuous time: objective=mdlm"):
        Steps(0)
    with pytest.raises(ValueError, match=r"p_min 0 must lie in \(0, 1\)"):
        Importance(p_min=0)
