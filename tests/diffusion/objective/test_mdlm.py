import math
from functools import partial

import numpy
import pytest
import torch

from dnadiff.diffusion.denoiser import Denoiser, MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective import masking as masking_module
from dnadiff.diffusion.objective.base import check_fit
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import (
    Bernoulli,
    DiscreteTime,
    ExactCount,
    Importance,
    Positions,
)
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import SUBS, AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


class Uniform(MaskedDenoiser):
    """Predicts every emitted token alike."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.subs = SUBS(vocab)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        at = xt[positions]
        return self.subs.log_probs(
            torch.zeros(*at.shape, self.subs.vocab.size, dtype=torch.float64), at
        )


def test_uniform_predictor_costs_log_v_with_independent_masks():
    # facts 2: in MDLM's convention, eps 1e-3 and t in [1e-3, 1], the expectation is 0.999 log 4
    process = AbsorbingProcess(DNA, LogLinear(1e-3))
    x0 = torch.full((4000, 64), 7)
    objective = MDLM(process, Bernoulli())
    values = torch.stack(
        [
            objective(Uniform(DNA), x0, torch.ones_like(x0), Draws.for_batch(0, 4000, s)).nll
            for s in range(4)
        ]
    )
    assert values.mean().item() == pytest.approx(0.999 * math.log(4), abs=0.02)
    # The independent masks of a row cover 1 - alpha of its tokens: the rest is an integral over its
    # times, which a quadrature distinguishes from log 4.
    nodes, fractions = numpy.polynomial.legendre.leggauss(20)
    spread = torch.from_numpy((nodes + 1) / 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_module, "strata", lambda *_: spread)
        _, t, weight = objective.masking(process, x0[:20], x0[:20] > 0, Draws.for_batch(0, 20))
    mean = float((torch.from_numpy(fractions / 2) * weight * (1 - process.noise.alpha(t))).sum())
    assert mean * math.log(4) == pytest.approx(0.999 * math.log(4), rel=1e-9)


def test_uniform_predictor_costs_log_v_exactly_with_counts():
    # facts 5: the count form has no variance for a uniform predictor
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.randint(7, 11, (5, 33))
    for step in range(3):
        result = MDLM(process, ExactCount())(
            Uniform(DNA), x0, torch.ones_like(x0), Draws.for_batch(0, 5, step)
        )
        assert result.loss.item() == pytest.approx(math.log(4), rel=1e-12)


def test_copies_of_one_bit_cost_one_bit(make_oracle):
    # facts 3: L copies of a fair bit; continuous time gives log 2 for the sequence
    vocab = Vocab(3, 2, 2, (2,))
    oracle = make_oracle(torch.tensor([[0] * 8, [1] * 8]), torch.tensor([0.5, 0.5]), vocab)
    process = AbsorbingProcess(vocab, LogLinear(0.0))
    x0 = torch.zeros(8, 8, dtype=torch.int64)
    # Stratified counts over 8 rows of length 8 are the counts 1..8, each once: only the full mask
    # costs anything.
    result = MDLM(process, ExactCount())(oracle, x0, torch.ones_like(x0), Draws.for_batch(0, 8))
    assert 8 * result.loss.item() == pytest.approx(math.log(2))


def test_coins_and_counts_agree(toy, oracle):
    process = AbsorbingProcess(toy.vocab, LogLinear(0.0))
    index = torch.multinomial(
        toy.joint, 20_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    x0 = toy.sequences[index]
    draws = Draws.for_batch(0, 20_000)
    by_count = MDLM(process, ExactCount())(oracle, x0, torch.ones_like(x0), draws).nll.item()
    by_independent_masks = MDLM(process, Bernoulli(t_min=0.0))(
        oracle, x0, torch.ones_like(x0), draws
    ).nll.item()
    assert 3 * by_count == pytest.approx(toy.entropy, abs=0.04)
    assert 3 * by_independent_masks == pytest.approx(toy.entropy, abs=0.08)


@pytest.mark.parametrize(
    "masking",
    [Bernoulli(), ExactCount(), Importance(), DiscreteTime(4)],
    ids=["bernoulli", "count", "importance", "steps"],
)
@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
def test_a_batch_of_unknown_bases_costs_nothing(masking, weighting):
    # facts 11
    torch.manual_seed(0)
    denoiser = Denoiser(DiT(DNA, 16, 1, 2, 8))
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.full((2, 8), 11)
    result = MDLM(process, masking, weighting)(
        denoiser, x0, torch.zeros(2, 8), Draws.for_batch(0, 2)
    )
    result.loss.backward()
    assert result.loss.item() == 0 and result.nll.item() == 0 and result.num_tokens == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())


@pytest.mark.parametrize(
    "masking",
    [Bernoulli(), ExactCount(), Importance(), DiscreteTime(4)],
    ids=["bernoulli", "count", "importance", "steps"],
)
def test_positions_of_weight_zero_stay_visible_and_uncounted(masking):
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.tensor([[7, 11, 8, 11, 9, 10]]).expand(64, -1)
    weight = (x0 != 11).float()
    xt = masking(process, x0, weight > 0, Draws.for_batch(0, 64)).xt
    assert (xt[:, [1, 3]] == 11).all() and (xt == 3).any()
    assert (
        MDLM(process, masking)(Uniform(DNA), x0, weight, Draws.for_batch(0, 64)).num_tokens
        == 64 * 4
    )


def test_fractional_weights_weigh_the_loss():
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.full((4, 8), 7)
    result = MDLM(process, ExactCount())(
        Uniform(DNA), x0, torch.full((4, 8), 0.25), Draws.for_batch(0, 4)
    )
    assert result.loss.item() == pytest.approx(math.log(4)) and result.num_tokens == 8


def test_a_counted_token_that_is_never_emitted_is_refused():
    process = AbsorbingProcess(DNA, LogLinear())
    with pytest.raises(ValueError, match="token id 11 has weight > 0 but is never emitted"):
        MDLM(process)(Uniform(DNA), torch.tensor([[11]]), torch.ones(1, 1), Draws.for_batch(0, 1))


def test_misfits_are_refused():
    message = (
        "objective MDLM does not fit backbone Transformer: it needs a bidirectional "
        "network, "
        "such as caduceus or dit"
    )
    with pytest.raises(ValueError, match=message):
        check_fit(MDLM, Transformer(DNA, 16, 1, 2))
    with pytest.raises(
        ValueError,
        match="derive Own from BidirectionalBackbone if it reads sequences in that way",
    ):
        check_fit(MDLM, type("Own", (Backbone,), {"head": None})(DNA, 4))
    with pytest.raises(ValueError, match="choose one of nelbo, cross_entropy"):
        MDLM(AbsorbingProcess(DNA, LogLinear()), weighting="elbo")


def test_validation_uses_the_bound_with_the_least_noise():
    process = AbsorbingProcess(DNA, LogLinear())
    trained_on = MDLM(process, Bernoulli(stratified=False), "cross_entropy").evaluation()
    assert isinstance(trained_on.masking, ExactCount) and trained_on.bound
    # Another bound stays another bound: T steps are validated in T steps.
    steps = MDLM(process, DiscreteTime(7, stratified=False)).evaluation().masking
    assert steps.num_steps == 7 and steps.stratified


def test_the_first_step_of_discrete_time_costs_minus_log_p():
    # facts 10: 0/0 in the published code
    process = AbsorbingProcess(DNA, LogLinear(1e-3))
    draws = Draws.for_batch(0, 4000)  # stratified over 4 steps: 1,000 rows are at t = 1/4
    xt, t, weight = DiscreteTime(4)(
        process, torch.full((4000, 3), 7), torch.ones(4000, 3, dtype=torch.bool), draws
    )
    order = t.argsort(stable=True)
    xt, t, weight = xt[order], t[order], weight[order]
    assert (t.view(4, 1000) == torch.tensor([0.25, 0.5, 0.75, 1.0])[:, None]).all()
    assert (weight[:1000] == 4).all() and weight.isfinite().all()  # the factor T, and nothing else
    torch.testing.assert_close(
        weight[1000:2000], torch.full((1000,), 4 * 0.25 / 0.5, dtype=torch.float64)
    )
    assert (xt[:1000] == 3).double().mean().item() == pytest.approx(0.25 * 0.999, abs=0.03)


@pytest.mark.parametrize(
    "make",
    [MDLM, SEDD, lambda p, m: D3PM(p, DiscreteTime(4), carry_over=True)],
    ids=["mdlm", "sedd", "d3pm"],
)
def test_logits_exist_at_masked_positions_only(make):
    torch.manual_seed(0)
    process = AbsorbingProcess(DNA, LogLinear())
    objective = make(process, DiscreteTime(4))
    backbone = DiT(DNA, 16, 1, 2, 8)
    rows, head = [], backbone.head
    backbone.head = lambda features: rows.append(len(features)) or head(features)
    x0, draws = torch.randint(7, 11, (4, 32)), Draws.for_batch(0, 4)
    objective(objective.denoiser(backbone), x0, torch.ones(4, 32), draws)
    assert rows == [int((objective.masking(process, x0, x0 > 0, draws).xt == 3).sum())]


@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
@pytest.mark.parametrize(
    "masking", [Bernoulli(), ExactCount(), DiscreteTime(4)], ids=["bernoulli", "count", "steps"]
)
@pytest.mark.parametrize("blocks", [False, True], ids=["sequence", "blocks"])
def test_logits_at_every_position_as_on_a_gpu_give_the_same_loss_and_gradient(
    blocks, masking, weighting
):
    process = AbsorbingProcess(DNA, LogLinear())
    objective = (
        BlockMDLM(process, 4, masking, weighting) if blocks else MDLM(process, masking, weighting)
    )
    torch.manual_seed(0)
    denoiser = objective.denoiser(DiT(DNA, 16, 1, 2, 8, max_length=20))
    x0, weight, valid = (
        torch.randint(7, 11, (3, 18)),
        torch.rand(3, 18),
        torch.ones(3, 18, dtype=torch.bool),
    )
    x0[:, 5], weight[:, 5] = 11, 0  # unknown
    x0[1, 12:], weight[1, 12:], valid[1, 12:] = 4, 0, False  # padding
    found = []
    for everywhere in (False, True):
        objective.where = partial(Positions, everywhere=everywhere)
        result = objective(denoiser, x0, weight, Draws.for_batch(0, 3), valid=valid)
        found.append(
            [
                *result[:3],
                *torch.autograd.grad(result.loss, list(denoiser.parameters()), allow_unused=True),
            ]
        )
    for sparse, dense in zip(*found, strict=True):
        assert (sparse is None) == (dense is None)
        if sparse is not None:
            torch.testing.assert_close(dense, sparse, rtol=1e-4, atol=1e-6)
    assert float(found[0][0].detach()) > 0


@pytest.mark.parametrize("make", [MDLM, SEDD], ids=["mdlm", "sedd"])
def test_the_bound_is_in_float32_under_autocast(make):
    torch.manual_seed(0)
    process = AbsorbingProcess(DNA, LogLinear())
    objective, backbone = make(process, Bernoulli()), DiT(DNA, 16, 1, 2, 8)
    x0 = torch.randint(7, 11, (4, 32))
    with torch.autocast("cpu", torch.bfloat16):
        result = objective(
            objective.denoiser(backbone), x0, torch.ones(4, 32), Draws.for_batch(0, 4)
        )
    assert all(value.dtype == torch.float32 for value in result if value is not None)
