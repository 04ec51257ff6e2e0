"""Autoregressive sampling from left to right: one token of each sequence per call, with a cache for
earlier tokens."""

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import CausalBackbone, State
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, Sampler

_PIECE = 64  # given tokens that are read in one call,
_NUMBERS = 1 << 22  # fewer if their distributions have more numbers than this


class Autoregressive(Sampler):
    """The chain rule through `CausalDenoiser.step`: a recurrent state for Mamba, keys and values
    for the transformer.

    Given tokens are read and kept. Those to the right of a mask do not influence it, because an
    autoregressive model cannot see them. A sequence is read up to its last mask, or, for importance
    weights, up to the last token that counts in them. A frozen mask before that is read as the
    start token, which these models never saw in the middle of a sequence.

    Examples:
        >>> Autoregressive(temperature=0.9).num_steps_for(length=512)
        512
    """

    exact = True
    reads = CausalBackbone
    has_weights = True

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        if not masked.any():
            return x
        length = x.shape[1]
        ends = calls.ends(masked)
        last = int(masked.any(0).nonzero().max()) + 1  # from here on tokens are only scored
        uniform = draws.uniform("token", length)
        active = (ends > 0).nonzero()[:, 0]
        token = torch.full_like(active, process.vocab.mask_id)  # the mask is the start token
        state: State | None = None
        finish = set(ends.tolist())  # read once: reading it at every step would wait for the GPU
        for at in range(last):
            if state is not None and at in finish:
                unfinished = ends[active] > at
                active = active[unfinished]
                token = token[unfinished]
                state = state.select(unfinished)
            log_probs, state = calls.step(token, state, active, at)
            drawn = self.unmask(at, log_probs, uniform[active.to(uniform.device), at])
            token = torch.where(masked[active, at], drawn, x[active, at])
            x[active, at] = token
        size = max(1, min(_PIECE, _NUMBERS // (len(x) * process.vocab.size)))
        for at in range(last, int(ends.max()), size):
            unfinished = ends[active] > at
            part = slice(at, min(at + size, length))
            assert state is not None
            active = active[unfinished]
            state = state.select(unfinished)
            state = calls.read(x[active, part.start - 1 : part.stop - 1], state, active, part)
        return x
