"""Both strands: the NELBO of the reverse complement RC x compared with that of x, their mean and
their difference (gap), and the distribution of the base at a masked site as both strands predict
it.

Both NELBOs are upper bounds on -log p of the same molecule. Their mean is a bound too, with an
unbiased estimate. The mixture of both strands has -log p = -log mean(exp(-NELBO)), which is lower,
but concave in the two numbers: computed from noisy estimates it is biased downward (Jensen) and
therefore no bound. It is not reported."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser import BaseDenoiser, DenoiserWrapper
from dnadiff.diffusion.likelihood.estimates import Likelihood
from dnadiff.diffusion.likelihood.estimators import Batches, WindowBatch
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.vocab import Vocab


class OtherStrand(DenoiserWrapper):
    """A denoiser that reads RC x instead of x: the NELBO of x under it is the NELBO of RC x, with
    mirrored masks.

    Using the same noise for both strands makes their difference precise, and exactly 0 for an
    equivariant network. Raises ValueError if the vocabulary has no complement, or for a model that
    goes from left to right, whose other strand has other masks (see `ReverseComplemented`).
    """

    def __init__(self, denoiser: BaseDenoiser, vocab: Vocab) -> None:
        super().__init__(denoiser)
        denoiser.require_any_order("reading the other strand with the same masks")
        if vocab.complement is None:
            raise ValueError(
                "this vocabulary has no complement: only alphabets with two strands, such as DNA, "
                "have another strand"
            )
        self.complement = vocab.complement

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: Tensor | None = None,
        cond: Tensor | None = None,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        complement = torch.tensor(self.complement, device=xt.device)
        mirrored = self.vocab.reverse_complement(xt)
        valid = None if valid is None else valid.flip(-1)
        if positions is None:
            return self.denoiser.log_probs(mirrored, t, cond, None, valid).flip(1)[..., complement]
        flipped = positions.flip(-1)
        row = torch.zeros(positions.shape, dtype=torch.int64, device=xt.device)
        row[flipped] = torch.arange(int(flipped.sum()), device=xt.device)
        return self.denoiser.log_probs(mirrored, t, cond, flipped, valid)[row.flip(-1)[positions]][
            ..., complement
        ]


class Conjoined(DenoiserWrapper):
    """A denoiser that averages the probabilities of both strands at every call, so that p(x) = p(RC
    x), with twice the network calls.

    Its NELBO is a valid bound and at most the mean of both strands' NELBOs, because log is concave.
    The published Caduceus-Ph uses the same post-hoc conjoining for classification (arXiv
    2403.03234, section 4.2).
    """

    def __init__(self, denoiser: BaseDenoiser, vocab: Vocab) -> None:
        super().__init__(denoiser)
        self.other = OtherStrand(denoiser, vocab)
        self.rows_per_sequence = 2 * denoiser.rows_per_sequence

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: Tensor | None = None,
        cond: Tensor | None = None,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        forward, reverse = (
            network.log_probs(xt, t, cond, positions, valid)
            for network in (self.denoiser, self.other)
        )
        return torch.logaddexp(forward, reverse) - math.log(2)


class ReverseComplemented:
    """The batches with every sequence reverse-complemented and its groups mirrored; can be iterated
    as often as `batches`."""

    def __init__(self, batches: Batches, vocab: Vocab) -> None:
        self.batches, self.vocab = batches, vocab

    def __iter__(self) -> Iterator[WindowBatch]:
        for each in self.batches:
            batch = WindowBatch(*each)
            groups = {name: mask.flip(-1) for name, mask in batch.groups.items()}
            valid = None if batch.valid is None else batch.valid.flip(-1)
            yield batch._replace(
                ids=self.vocab.reverse_complement(batch.ids), groups=groups, valid=valid
            )


def both_strands(forward: Likelihood, reverse: Likelihood, group: str = "all") -> dict[str, float]:
    """NELBO of x (`forward`), of RC x (`reverse`), their mean, and the gap (x minus RC x) with its
    95 % interval: nats per token."""
    gap = forward.difference(reverse.per_sequence(group), group)
    mean = forward.interval_of(
        (forward.per_sequence(group) + reverse.per_sequence(group)) / 2, group
    )
    return {
        "forward": forward.interval(group).value,
        "reverse": reverse.interval(group).value,
        "mean": mean.value,
        "mean_se": mean.se,
        "gap": gap.value,
        "gap_se": gap.se,
        "gap_low": gap.low,
        "gap_high": gap.high,
    }


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
    denoiser = denoiser.require_any_order("the distribution at a site given both sides")
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
