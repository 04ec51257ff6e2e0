"""From left to right with an autoregressive model: one token of each sequence a call, earlier tokens remembered by the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Sampler, Samples, part_of, to_fill


class Autoregressive(Sampler):
    """The chain rule through `CausalDenoiser.step`: a recurrent state for Mamba, keys and values for the transformer.

    Given tokens are read and kept; those to the right of a mask do not influence it, as an autoregressive model cannot see them. A
    sequence is read no further than its last mask. A frozen mask before it is read as what the mask is to these models, the start token,
    which they never saw in the middle of a sequence.
    """

    causal = True

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return length

    @torch.no_grad()
    def sample(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        x_init: Tensor,
        draws: Draws,
        frozen: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Samples:
        """See `Sampler.sample`; `valid` says nothing here, for what lies to the right is never read."""
        self.check_model(denoiser)
        masked, x, length = to_fill(x_init, process, frozen), x_init.clone(), x_init.shape[1]
        if not masked.any():
            return Samples(x, 0, 0)
        ends = (masked * torch.arange(1, length + 1, device=x.device)).amax(-1)  # one after the last mask, 0 without any
        uniform = draws.uniform("token", length)
        active = (ends > 0).nonzero()[:, 0]
        token, state, rows = torch.full_like(active, process.vocab.mask_id), None, 0  # the mask is the start token
        for at in range(int(ends.max())):
            if not (going := ends[active] > at).all():
                active, token, state = active[going], token[going], state.select(going)
            reader = part_of(denoiser, active, slice(at, at + 1))
            log_probs, state = reader.step(token, state, None if cond is None else cond[active])
            rows += len(active)
            drawn = self.reveal(at, log_probs, uniform[active.to(uniform.device), at])
            token = torch.where(masked[active, at], drawn, x[active, at])
            x[active, at] = token
        return Samples(x, int(ends.max()), rows)
