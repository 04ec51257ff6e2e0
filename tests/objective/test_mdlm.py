import itertools
import math

import pytest
import torch

from dnadiff.backbone.dit import DiT
from dnadiff.denoiser import SUBS, Denoiser
from dnadiff.draws import Draws
from dnadiff.noise import LogLinear
from dnadiff.objective.base import check_fit
from dnadiff.objective.masking import Coins, ExactCount, Masked, Masking
from dnadiff.objective.mdlm import MDLM
from dnadiff.process import AbsorbingProcess
from dnadiff.vocab import Vocab

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))


class Uniform(torch.nn.Module):
    """Predicts every emitted token alike."""

    def __init__(self, vocab):
        super().__init__()
        self.subs = SUBS(vocab)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        at = xt[positions]
        return self.subs.log_probs(torch.zeros(*at.shape, self.subs.vocab.size, dtype=torch.float64), at)


class Given(Masking):
    """A corruption decided beforehand."""

    def __init__(self, xt, t):
        self.xt, self.t = xt, t

    def __call__(self, process, x0, maskable, draws):
        return Masked(self.xt, self.t, process.noise.weight(self.t))


class Fixed(torch.nn.Module):
    """Raw logits from a file."""

    def __init__(self, logits, vocab):
        super().__init__()
        self.raw, self.subs = logits, SUBS(vocab)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        return self.subs.log_probs(self.raw[positions], xt[positions])


@pytest.mark.parametrize(("name", "vocab"), [("dna", Vocab(16, 3, 4, (3,))), ("text", Vocab(33, 32, 32, (32,)))])
def test_loss_equals_the_published_nelbo(parity, name, vocab):
    file = parity(f"mdlm_losses_{name}")
    process = AbsorbingProcess(vocab, LogLinear(1e-3))
    result = MDLM(process, Given(file["xt"], file["t"]))(
        Fixed(file["raw_logits"], vocab), file["x0"], torch.ones_like(file["x0"]), Draws.for_batch(0, 4)
    )
    assert result.loss.item() == pytest.approx(file["subs_nelbo_per_token"].mean().item(), rel=1e-5)
    assert result.num_tokens == 160


def test_uniform_predictor_costs_log_v_with_coins():
    # facts 2: in MDLM's convention, eps 1e-3 and t in [1e-3, 1], the expectation is 0.999 log 4
    process = AbsorbingProcess(DNA, LogLinear(1e-3))
    x0 = torch.full((4000, 64), 7)
    objective = MDLM(process, Coins())
    values = torch.stack([objective(Uniform(DNA), x0, torch.ones_like(x0), Draws.for_batch(0, 4000, s)).nll for s in range(4)])
    assert values.mean().item() == pytest.approx(0.999 * math.log(4), abs=0.02)


def test_uniform_predictor_costs_log_v_exactly_with_counts():
    # facts 5: the count form has no variance for a uniform predictor
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.randint(7, 11, (5, 33))
    for step in range(3):
        result = MDLM(process, ExactCount())(Uniform(DNA), x0, torch.ones_like(x0), Draws.for_batch(0, 5, step))
        assert result.loss.item() == pytest.approx(math.log(4), rel=1e-12)


@pytest.mark.parametrize("noise", [LogLinear(0.0), LogLinear(0.3)], ids=["eps0", "eps0.3"])
def test_nelbo_of_the_oracle_is_the_entropy_whatever_the_schedule(toy, oracle, noise):
    # facts 12, by quadrature over the mask probability and enumeration of all sequences and masks
    process = AbsorbingProcess(toy.vocab, noise)
    total = 0.0
    nodes, weights = gauss_legendre(6)
    low, high = 1 - float(noise.alpha(torch.zeros(1))), 1 - float(noise.alpha(torch.ones(1)))
    for p, w in zip(low + (high - low) * nodes, (high - low) * weights):
        t = noise.inverse(1 - p.reshape(1))
        # dt = dp / -alpha'(t): the objective's weight(t) dt is dp / p
        dt_dp = 1 / -float(noise.dalpha(t))
        for mask in itertools.product([False, True], repeat=3):
            mask = torch.tensor(mask)
            if not mask.any():
                continue
            xt = torch.where(mask, 3, toy.sequences)
            draws = Draws.for_batch(0, 27)
            for i in range(27):
                row = toy.sequences[i : i + 1]
                result = MDLM(process, Given(xt[i : i + 1], t))(oracle, row, torch.ones_like(row), draws.select(torch.tensor([i])))
                chance = float(p ** mask.sum() * (1 - p) ** (~mask).sum())
                total += float(w) * dt_dp * chance * float(toy.joint[i]) * 3 * result.loss.item()
    expected = toy.entropy if high == 1 else truncated(toy, high)
    assert total == pytest.approx(expected, abs=1e-6)


def gauss_legendre(n):
    import numpy

    x, w = numpy.polynomial.legendre.leggauss(n)
    return torch.tensor((x + 1) / 2), torch.tensor(w / 2)


def truncated(toy, high):
    """The integral over mask probabilities up to `high` alone: sum over orders of conditional entropies, term by term."""

    def conditional(l, visible):
        keys = {}
        for s, p in zip(toy.sequences.tolist(), toy.joint.tolist()):
            row = keys.setdefault(tuple(s[v] for v in visible), [0.0, 0.0, 0.0])
            row[s[l]] += p
        return -sum(p * math.log(p / sum(row)) for row in keys.values() for p in row)

    total, (x, w) = 0.0, gauss_legendre(8)
    for l in range(3):
        others = [j for j in range(3) if j != l]
        for k in range(3):
            for visible in itertools.combinations(others, k):
                chance = sum(float(b) * high * (high * float(a)) ** (2 - k) * (1 - high * float(a)) ** k for a, b in zip(x, w))
                total += chance * conditional(l, visible)
    return total


def test_copies_of_one_bit_cost_one_bit(make_oracle):
    # facts 3: L copies of a fair bit; continuous time gives log 2 for the sequence
    vocab = Vocab(3, 2, 2, (2,))
    oracle = make_oracle(torch.tensor([[0] * 8, [1] * 8]), torch.tensor([0.5, 0.5]), vocab)
    process = AbsorbingProcess(vocab, LogLinear(0.0))
    x0 = torch.zeros(8, 8, dtype=torch.int64)
    # Stratified counts over 8 rows of length 8 are the counts 1..8, each once: only the full mask costs anything.
    result = MDLM(process, ExactCount())(oracle, x0, torch.ones_like(x0), Draws.for_batch(0, 8))
    assert 8 * result.loss.item() == pytest.approx(math.log(2))


def test_coins_and_counts_agree(toy, oracle):
    process = AbsorbingProcess(toy.vocab, LogLinear(0.0))
    index = torch.multinomial(toy.joint, 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    x0 = toy.sequences[index]
    draws = Draws.for_batch(0, 20_000)
    by_count = MDLM(process, ExactCount())(oracle, x0, torch.ones_like(x0), draws).nll.item()
    by_coins = MDLM(process, Coins(t_min=0.0))(oracle, x0, torch.ones_like(x0), draws).nll.item()
    assert 3 * by_count == pytest.approx(toy.entropy, abs=0.04)
    assert 3 * by_coins == pytest.approx(toy.entropy, abs=0.08)


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


@pytest.mark.parametrize("masking", [Coins(), ExactCount()], ids=["coins", "count"])
@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
def test_a_batch_of_unknown_bases_costs_nothing(masking, weighting):
    # facts 11
    torch.manual_seed(0)
    denoiser = Denoiser(DiT(DNA, 16, 1, 2, 8))
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.full((2, 8), 11)
    result = MDLM(process, masking, weighting)(denoiser, x0, torch.zeros(2, 8), Draws.for_batch(0, 2))
    result.loss.backward()
    assert result.loss.item() == 0 and result.nll.item() == 0 and result.num_tokens == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())


@pytest.mark.parametrize("masking", [Coins(), ExactCount()], ids=["coins", "count"])
def test_positions_of_weight_zero_stay_visible_and_uncounted(masking):
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.tensor([[7, 11, 8, 11, 9, 10]]).expand(64, -1)
    weight = (x0 != 11).float()
    xt = masking(process, x0, weight > 0, Draws.for_batch(0, 64)).xt
    assert (xt[:, [1, 3]] == 11).all() and (xt == 3).any()
    assert MDLM(process, masking)(Uniform(DNA), x0, weight, Draws.for_batch(0, 64)).num_tokens == 64 * 4


def test_fractional_weights_weigh_the_loss():
    process = AbsorbingProcess(DNA, LogLinear())
    x0 = torch.full((4, 8), 7)
    result = MDLM(process, ExactCount())(Uniform(DNA), x0, torch.full((4, 8), 0.25), Draws.for_batch(0, 4))
    assert result.loss.item() == pytest.approx(math.log(4)) and result.num_tokens == 8


def test_a_counted_token_that_is_never_emitted_is_refused():
    process = AbsorbingProcess(DNA, LogLinear())
    with pytest.raises(ValueError, match="token id 11 has weight > 0 but is never emitted"):
        MDLM(process)(Uniform(DNA), torch.tensor([[11]]), torch.ones(1, 1), Draws.for_batch(0, 1))


def test_misfits_are_refused():
    backbone = DiT(DNA, 16, 1, 2, 8)
    backbone.causal = True
    with pytest.raises(ValueError, match="objective MDLM does not fit backbone DiT"):
        check_fit(MDLM, backbone)
    with pytest.raises(ValueError, match="choose one of nelbo, cross_entropy"):
        MDLM(AbsorbingProcess(DNA, LogLinear()), weighting="elbo")
