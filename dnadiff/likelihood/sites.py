"""The distribution of the base at a site given the rest of its window, as the network predicts it
where the site is masked."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser
from dnadiff.likelihood.strand import OtherStrand
from dnadiff.process import AbsorbingProcess, require


@torch.no_grad()
def site_log_probs(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    ids: Tensor,
    sites: Tensor,
    stranded: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """Log-probabilities of the token at each site, with all sites of a window masked in the same
    network call.

    With a single site per window this is the conditional distribution given everything else; with
    several, each is conditioned on the tokens outside all of them. The time of a network that is
    conditioned on time is that of the masked share of the window.

    Args:
        denoiser: a model that unmasks in any order.
        ids: (B, L) tokens.
        sites: (B, L) bool, where predictions are requested; what `ids` has there is not read.
        stranded: read the given strand alone. Otherwise the reverse complement is read too, in a
            second call. A network that is equivariant under the reverse complement (Caduceus-PS)
            predicts the same for both, so the second call can be saved.
        valid: (B, L) bool, False on padding that must not be read.

    Returns:
        (K, M, V): for each of the K strands read, the given one first, the M sites in row-major
        order. Both are distributions of the token on the given strand.

    Raises:
        ValueError: for a model that goes from left to right, and for a vocabulary without
            complement unless `stranded`.
    """
    denoiser.require_any_order("the distribution at a site given both sides")
    require("the distribution at a masked site", denoiser, AbsorbingProcess)
    xt = torch.where(sites, process.vocab.mask_id, ids)
    t = process.time_at((xt == process.vocab.mask_id).sum(-1), process.maskable(xt).sum(-1)).float()
    forward = denoiser.log_probs(xt, t, positions=sites, valid=valid)
    if stranded:
        return forward[None]
    return torch.stack(
        [
            forward,
            OtherStrand(denoiser, process.vocab).log_probs(xt, t, positions=sites, valid=valid),
        ]
    )
