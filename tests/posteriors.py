"""The distributions that samplers draw from and that D3PM trains, as tables: references for
tests."""

import torch

from dnadiff.diffusion.process import log_expm1, unmask_probability


def posterior(process, log_probs, xt, t, s, remask=0.0):
    """q(xs | xt, x0 ~ log_probs) for s < t: (B, L, V) probabilities.

    A masked token is unmasked with probability (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), a visible
    one is remasked with probability r; r = 0 is MDLM's ancestral step (arXiv 2406.07524v2, eq. 7)
    and r > 0 ReMDM's family (arXiv 2503.00307, eq. 5), clamped to min(1, (1 - alpha_s)/alpha_t) so
    that no probability is negative.
    """
    alpha_t, alpha_s = process.noise.alpha(t), process.noise.alpha(s)
    largest = ((1 - alpha_s) / alpha_t.clamp(min=torch.finfo(alpha_t.dtype).tiny)).clamp(max=1.0)
    r = torch.minimum(
        torch.as_tensor(remask, dtype=alpha_t.dtype, device=alpha_t.device).clamp(min=0.0), largest
    )
    unmask = unmask_probability(alpha_t, alpha_s, r)[:, None, None]
    is_mask = torch.zeros(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
    is_mask[process.vocab.mask_id] = 1.0
    from_mask = unmask * log_probs.exp() + (1 - unmask) * is_mask
    visible = torch.nn.functional.one_hot(xt, log_probs.shape[-1]).to(log_probs.dtype)
    r = r.expand_as(alpha_t)[:, None, None]
    from_token = (1 - r) * visible + r * is_mask
    return torch.where((xt == process.vocab.mask_id)[..., None], from_mask, from_token)


def plug_in_posterior(process, log_probs, xt, t, s):
    """D3PM's posterior with the predicted distribution substituted for x0: (B, L, V) probabilities,
    s < t.

    q(xs | xt, x0) with the vector of probabilities in place of the one-hot x0, as MDLM (arXiv
    2406.07524) states and computes D3PM. Without mass on the mask itself it is `posterior` at
    remask 0. With such mass it differs from that, and from the mixture of q(xs | xt, x0) over x0
    (arXiv 2107.03006, section 3.3).
    """
    alpha_t, alpha_s = (process.noise.alpha(time)[:, None, None] for time in (t, s))
    is_mask = torch.zeros(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
    is_mask[process.vocab.mask_id] = 1.0
    probs = log_probs.exp()
    on_mask = probs[..., process.vocab.mask_id, None]
    from_mask = torch.where(
        is_mask > 0, 1 - alpha_s + alpha_s * on_mask, (alpha_s - alpha_t) * probs
    ) / (1 - alpha_t + alpha_t * on_mask)
    visible = torch.nn.functional.one_hot(xt, log_probs.shape[-1]).to(log_probs.dtype)
    return torch.where((xt == process.vocab.mask_id)[..., None], from_mask, visible)


def analytic_posterior(log_score, xt, sigma_t, sigma_s, vocab):
    """The distribution of xs at sigma_s < sigma_t given log-ratios (..., V) at xt (...), which the
    steps of `Analytic` draw from.

    A masked token turns into y with (e^(sigma_t - sigma_s) - 1) s_y; visible tokens stay.
    Unnormalized ratios can add up to more than 1; they are then scaled to 1.
    """
    letters = log_score.masked_fill(~vocab.is_emitted(log_score.device), -torch.inf)
    probability = (
        (log_expm1(sigma_t - sigma_s) + letters.logsumexp(-1)).exp().clamp(max=1.0)[..., None]
    )
    is_mask = torch.nn.functional.one_hot(
        torch.tensor(vocab.mask_id, device=xt.device), log_score.shape[-1]
    )
    from_mask = probability * torch.softmax(letters, -1) + (1 - probability) * is_mask
    visible = torch.nn.functional.one_hot(xt, log_score.shape[-1])
    return torch.where((xt == vocab.mask_id)[..., None], from_mask, visible.to(from_mask))
