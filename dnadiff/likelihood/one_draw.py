"""The NELBO by the protocol of MDLM's tables, for comparisons with published numbers."""

from __future__ import annotations

import torch

from dnadiff.denoiser import BaseDenoiser
from dnadiff.draws import Draws, float64_device, hash64
from dnadiff.likelihood.monte_carlo import (
    Batches,
    Draw,
    ProgressCallback,
    WindowBatch,
    collect,
    cross_entropy,
    per_group,
)
from dnadiff.likelihood.record import MDLM, Likelihood
from dnadiff.noise import NoiseSchedule, refuse_cut
from dnadiff.process import AbsorbingProcess

T_MIN = 1e-3  # the smallest time that MDLM's protocol draws, as in its code


def one_draw(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    seed: int = 0,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
    mask_everything: bool = False,
) -> Likelihood:
    """The protocol of MDLM's tables (arXiv 2406.07524v2, and its code): one draw of Bernoulli masks
    for each sequence.

    Times are stratified over the batch on [1e-3, 1] and the weight is -alpha'/(1 - alpha): under
    the log-linear schedule a uniform predictor gets 0.999 log V. The assignment of strata to
    sequences depends on the seed and the batch, so that the mean over seeds is unbiased for each
    sequence. A single draw has no estimate of its Monte Carlo error.

    Args:
        mask_everything: also corrupt positions that are not counted (padding), as MDLM does for
            text.

    Raises:
        ValueError: as `check_one_draw`.
    """
    check_one_draw(denoiser, process.noise)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        ids, counted = batch.ids, batch.groups["all"]
        first = hash64(draws.seed, "stratum", int(draws.rows[0])) % len(ids)
        exact = float64_device(ids.device)
        stratum = (torch.arange(len(ids), device=exact) + first) % len(ids)
        u = (draws.uniform("time").to(exact) + stratum) / len(ids)
        t = T_MIN + (1 - T_MIN) * u
        batch = (
            batch._replace(valid=None) if mask_everything else batch
        )  # MDLM's network reads padding too
        xt = process.corrupt(
            ids, t, torch.ones_like(counted) if mask_everything else counted, draws
        )
        positions = (xt == process.vocab.mask_id) & counted
        nll = process.noise.weight(t).to(torch.float64)[:, None] * cross_entropy(
            denoiser, batch, xt, t, positions
        )
        return [Draw(positions.sum(-1), per_group(nll, batch.groups))]

    return collect(denoiser, batches, one_batch, seed, block_size, MDLM, progress)


def check_one_draw(denoiser: BaseDenoiser, noise: NoiseSchedule) -> None:
    """Raise ValueError unless MDLM's protocol gives a bound.

    It does for models that unmask in any order, with a schedule that masks little before t = 1e-3
    and everything at t = 1.
    """
    if denoiser.left_to_right:
        raise ValueError(
            "protocol=mdlm is for models that unmask in any order, and this one goes from left to "
            "right; set protocol=count"
        )
    refuse_cut(
        noise,
        noise.mask_probability(T_MIN),
        noise.mask_probability(1.0),
        f"t_min {T_MIN} of protocol=mdlm",
        "set protocol=count",
    )
