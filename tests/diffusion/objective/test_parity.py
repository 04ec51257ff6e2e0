"""Losses against the published implementations, token by token."""

import pytest
import torch

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import DiscreteTime, MaskedBatch, Positions
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab

FILES = pytest.mark.parametrize(
    ("name", "vocab", "num_steps"),
    [("dna", Vocab(16, 3, 4, (3,)), 10), ("text", Vocab(33, 32, 32, (32,)), 1000)],
)
NOISE = LogLinear(1e-3)


class Fixed(MaskedDenoiser):
    """Raw logits from a file behind a parameterization."""

    def __init__(self, logits, parameterization):
        super().__init__(parameterization.vocab)
        self.logits, self.distribution = logits, parameterization

    def log_probs(self, xt, t, cond, positions, valid):
        return self.distribution.log_probs(self.logits[positions], xt[positions])

    def x0_log_probs(self, xt, t, cond, positions, valid):
        return self.distribution.x0_log_probs(self.logits[positions], xt[positions])

    def log_score(self, xt, t, cond, positions, valid):
        return self.distribution.log_score(
            self.logits[positions],
            xt[positions],
            NOISE.sigma(t)[:, None].expand(xt.shape)[positions],
        )


class Published(DiscreteTime):
    """The published alphas of discrete time: 1 - t whatever the schedule, with t cut at 0.9999."""

    def alphas(self, noise, t):
        t = t.clamp(max=0.9999)
        return 1 - t, 1 - (t - 1 / self.num_steps)


def per_token(objective, file, xt, t, weight):
    """The cost of each token with its row's weight: (B, L), 0 where nothing is masked."""
    positions = xt == objective.process.vocab.mask_id
    denoiser = Fixed(file["raw_logits"], objective.parameterization())
    result = torch.zeros(xt.shape)
    result[positions] = objective.token_nll(
        denoiser,
        TrainingBatch(file["x0"], None, None),
        MaskedBatch(xt, t, weight),
        Positions(positions),
    )
    return result * weight[:, None]


@FILES
def test_continuous_mdlm(parity, name, vocab, num_steps):
    file = parity(f"mdlm_losses_{name}")
    ours = per_token(
        MDLM(AbsorbingProcess(vocab, NOISE)), file, file["xt"], file["t"], NOISE.weight(file["t"])
    )
    torch.testing.assert_close(ours, file["subs_nelbo_per_token"], rtol=1e-5, atol=1e-6)


@FILES
@pytest.mark.parametrize("objective", [MDLM, D3PM])
def test_discrete_time(parity, objective, name, vocab, num_steps):
    file = parity(f"mdlm_losses_{name}")
    loss = objective(AbsorbingProcess(vocab, NOISE), Published(num_steps))
    alpha_t, alpha_s = loss.masking.alphas(NOISE, file["t_discrete"])
    ours = per_token(
        loss,
        file,
        file["xt_discrete"],
        file["t_discrete"],
        num_steps * (alpha_s - alpha_t) / (1 - alpha_t),
    )
    key = {MDLM: "subs_discrete_per_token", D3PM: "d3pm_discrete_per_token"}[objective]
    torch.testing.assert_close(ours, file[key], rtol=1e-4, atol=1e-5)


@FILES
def test_score_entropy(parity, name, vocab, num_steps):
    file = parity(f"mdlm_losses_{name}")
    objective = SEDD(AbsorbingProcess(vocab, NOISE))
    ours = per_token(objective, file, file["xt"], file["t"], NOISE.weight(file["t"]))
    torch.testing.assert_close(ours, file["sedd_per_token"], rtol=1e-5, atol=1e-6)


@FILES
def test_log_scores(parity, name, vocab, num_steps):
    file = parity(f"mdlm_losses_{name}")
    everywhere, masked = torch.ones_like(file["xt"], dtype=torch.bool), file["xt"] == vocab.mask_id
    sedd = Fixed(file["raw_logits"], SEDD(AbsorbingProcess(vocab, NOISE)).parameterization())
    ours = sedd.log_score(file["xt"], file["t"], None, everywhere, None).view(
        file["raw_logits"].shape
    )
    # The mask's own column is left out at visible tokens, where the published network says anything
    # and nobody reads it.
    assert ours[masked].isfinite().all() and (~ours[~masked].isfinite()).sum(-1).eq(1).all()
    torch.testing.assert_close(
        ours[ours.isfinite()], file["sedd_log_score"][ours.isfinite()], rtol=1e-5, atol=1e-5
    )
    subs = Fixed(file["raw_logits"], MDLM(AbsorbingProcess(vocab, NOISE)).parameterization())
    ours = subs.log_score(file["xt"], file["t_sampler"], None, everywhere, None).view(
        file["raw_logits"].shape
    )
    torch.testing.assert_close(ours.exp(), file["subs_score"], rtol=1e-5, atol=1e-6)
