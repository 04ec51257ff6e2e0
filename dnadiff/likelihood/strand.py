"""The other strand: the NELBO of RC x beside that of x, their mean and their gap.

Both bound -log p of the same molecule. Their mean is a bound and its estimate is unbiased. The mixture of both strands has
-log p = -log mean(exp(-NELBO)), which is lower still, but concave in the two numbers: of estimates with noise it comes out too low on
average (Jensen), so that it bounds nothing. It is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dnadiff.bootstrap import blocks, ratio
from dnadiff.likelihood.monte_carlo import Batches, WindowBatch
from dnadiff.likelihood.record import Likelihood
from dnadiff.vocab import Vocab


class OtherStrand(nn.Module):
    """What a denoiser says of x when it reads RC x: the NELBO of x under it is the NELBO of RC x, with mirrored masks.

    The same noise for both strands makes their difference precise, and exactly 0 for an equivariant network.

    Raises:
        ValueError: if the vocabulary has no complement.
    """

    def __init__(self, denoiser: nn.Module, vocab: Vocab) -> None:
        super().__init__()
        if vocab.complement is None:
            raise ValueError("this vocabulary has no complement: only alphabets with two strands, such as DNA, have another strand")
        self.denoiser, self.vocab = denoiser, vocab

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """As `Denoiser.log_probs`, of the tokens of `xt`."""
        complement = torch.tensor(self.vocab.complement, device=xt.device)
        mirrored = self.vocab.reverse_complement(xt)
        valid = None if valid is None else valid.flip(-1)
        if positions is None:
            return self.denoiser.log_probs(mirrored, t, cond, None, valid).flip(1)[..., complement]
        there = positions.flip(-1)
        place = torch.zeros(positions.shape, dtype=torch.int64, device=xt.device)
        place[there] = torch.arange(int(there.sum()), device=xt.device)
        return self.denoiser.log_probs(mirrored, t, cond, there, valid)[place.flip(-1)[positions]][..., complement]


class Conjoined(nn.Module):
    """The mean of what a denoiser says of x and of RC x at every call: a denoiser of its own, for which p(x) = p(RC x), at twice the calls.

    Its NELBO is a bound like any other's, and never above the mean of both strands' NELBOs, for log is concave. The published Caduceus-Ph is
    conjoined so (post hoc) for classification (arXiv 2403.03234, section 4.2).

    Raises:
        ValueError: if the vocabulary has no complement.
    """

    def __init__(self, denoiser: nn.Module, vocab: Vocab) -> None:
        super().__init__()
        self.denoiser, self.other = denoiser, OtherStrand(denoiser, vocab)

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """As `Denoiser.log_probs`."""
        both = (network.log_probs(xt, t, cond, positions, valid) for network in (self.denoiser, self.other))
        return torch.logaddexp(*both) - math.log(2)


class ReverseComplemented:
    """The batches with every sequence reverse-complemented and its groups mirrored; can be gone through as often as `batches`."""

    def __init__(self, batches: Batches, vocab: Vocab) -> None:
        self.batches, self.vocab = batches, vocab

    def __iter__(self) -> Iterator[WindowBatch]:
        for each in self.batches:
            batch = WindowBatch(*each)
            groups = {name: mask.flip(-1) for name, mask in batch.groups.items()}
            valid = None if batch.valid is None else batch.valid.flip(-1)
            yield batch._replace(ids=self.vocab.reverse_complement(batch.ids), groups=groups, valid=valid)


def both_strands(forward: Likelihood, reverse: Likelihood, group: str = "all") -> dict[str, Any]:
    """NELBO of x, of RC x, their mean and the gap (x minus RC x) with its 95 % interval, in nats per token."""
    gap = forward.difference(reverse.per_sequence(group), group)
    mean = ratio(
        (forward.per_sequence(group) + reverse.per_sequence(group)) / 2,
        forward.tokens[group],
        blocks(len(forward.available), forward.block_size),
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
