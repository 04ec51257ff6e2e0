import math
import runpy
from pathlib import Path

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser, Query
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import Bernoulli, DiscreteTime, MaskedBatch, Positions
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
plug_in_posterior = TABLES["plug_in_posterior"]

VOCAB = Vocab(5, 4, 4, (4,))
PROCESS = AbsorbingProcess(VOCAB, LogLinear(0.0))


class Fixed(MaskedDenoiser):
    """The same distribution of x0 everywhere."""

    def __init__(self, probs):
        super().__init__(VOCAB)
        self.row = torch.tensor(probs, dtype=torch.float64).log()

    def x0_log_probs(self, xt, t, cond, positions, valid):
        return self.row.expand(int(positions.sum()), -1)


def term(objective, probs, t):
    """Cost of one masked token, x0 = 0, before the factor T: the KL itself."""
    t = torch.tensor([t], dtype=torch.float64)
    alpha_t, alpha_s = objective.masking.alphas(PROCESS.noise, t)
    reveal = (alpha_s - alpha_t) / (1 - alpha_t)
    xt, x0 = torch.tensor([[4]]), torch.tensor([[0]])
    nll = objective.token_nll(
        Fixed(probs),
        TrainingBatch(x0, None, None),
        MaskedBatch(xt, t, reveal),
        Positions(xt == 4),
    )
    return float(reveal * nll)


def test_the_divergence_with_mass_on_the_mask():
    # facts 8: t = 0.5, T = 4, 0.3 to the truth and 0.1 to the mask
    distribution = [0.3, 0.2, 0.2, 0.2, 0.1]
    assert term(D3PM(PROCESS, DiscreteTime(4)), distribution, 0.5) == pytest.approx(
        0.566114, abs=1e-6
    )
    assert 4 * term(D3PM(PROCESS, DiscreteTime(4)), distribution, 0.5) == pytest.approx(
        2.264458, abs=1e-5
    )
    posterior = plug_in_posterior(
        PROCESS,
        torch.tensor([[distribution]], dtype=torch.float64).log(),
        torch.tensor([[4]]),
        torch.tensor([0.5]),
        torch.tensor([0.25]),
    )
    assert posterior[0, 0, [0, 4]].tolist() == pytest.approx([0.136364, 0.590909], abs=1e-6)
    # The mixture over x0 is another posterior.
    mixture = [0.5 * 0.3, 0.5 * 0.9 + 0.1]
    assert sum(0.5 * math.log(0.5 / p) for p in mixture) == pytest.approx(0.554331, abs=1e-6)


def test_without_mass_on_the_mask_it_is_the_subs_term():
    # facts 8: (1/t)(-log 0.3) = 2.407946
    distribution = [0.3, 0.3, 0.2, 0.2, 0.0]
    for zero_masking in (False, True):
        assert 4 * term(
            D3PM(PROCESS, DiscreteTime(4), zero_masking), distribution, 0.5
        ) == pytest.approx(2.407946, abs=1e-6)


def test_the_first_step_is_finite():
    # facts 10: -log p(x0) with nothing on the mask; with 0.1 there, log(1 + 0.1 alpha/(1 - alpha))
    # more
    assert term(D3PM(PROCESS, DiscreteTime(4)), [0.3, 0.3, 0.2, 0.2, 0.0], 0.25) == pytest.approx(
        -math.log(0.3)
    )
    assert term(D3PM(PROCESS, DiscreteTime(4)), [0.3, 0.2, 0.2, 0.2, 0.1], 0.25) == pytest.approx(
        -math.log(0.3) + math.log(1 + 0.1 * 3)
    )


def network():
    torch.manual_seed(0)
    backbone = DiT(Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), 16, 1, 2, 8).eval()
    for p in backbone.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return backbone


def test_the_reconstruction_term_is_counted_once_whatever_the_number_of_steps():
    backbone = network()
    process = AbsorbingProcess(backbone.vocab, LogLinear())
    x0 = torch.randint(7, 11, (4, 20))
    x0[:, 3] = 11
    weight = (x0 != 11).float()
    parts = []
    for num_steps in (2, 50):
        both = [D3PM(process, DiscreteTime(num_steps), carry_over=c) for c in (False, True)]
        without, with_carry_over = (
            o(o.denoiser(backbone), x0, weight, Draws.for_batch(0, 4)).nll for o in both
        )
        parts.append(float(without - with_carry_over))
    logits = torch.log_softmax(both[0].denoiser(backbone).logits(Query(x0)), -1).gather(
        -1, x0[..., None]
    )[..., 0]
    assert parts == pytest.approx([-float(logits[weight > 0].detach().mean())] * 2, rel=1e-4)


def test_samplers_never_see_mass_on_the_mask():
    backbone = network()
    objective = D3PM(AbsorbingProcess(backbone.vocab, LogLinear()))
    denoiser, xt = objective.denoiser(backbone), torch.tensor([[7, 3, 8, 3]])
    trained, sampled = denoiser.x0_log_probs(xt).exp(), denoiser.log_probs(xt).exp()
    torch.testing.assert_close(trained.sum(-1), torch.ones(1, 4))
    assert trained[0, 1, 3] > 0 and trained[0, 0, 7] < 1
    assert sampled[0, 1, 3] == 0 and sampled[0, 0, 7] == 1
    ratio = trained[0, 1, 7:11] / sampled[0, 1, 7:11]
    torch.testing.assert_close(
        ratio, ratio[:1].expand(4)
    )  # the same distribution, renormalized over the letters


def test_an_empty_batch_costs_nothing():
    backbone = network()
    objective = D3PM(AbsorbingProcess(backbone.vocab, LogLinear()))
    denoiser = objective.denoiser(backbone)
    result = objective(denoiser, torch.full((2, 8), 11), torch.zeros(2, 8), Draws.for_batch(0, 2))
    result.loss.backward()
    assert result.loss == 0 and result.num_tokens == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in denoiser.parameters())


def test_continuous_time_is_refused():
    with pytest.raises(
        ValueError, match="cannot use masking Bernoulli; set objective/masking=discrete_time"
    ):
        D3PM(PROCESS, Bernoulli())
