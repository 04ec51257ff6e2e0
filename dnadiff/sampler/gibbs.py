"""Gibbs sampling with a masked language model (arXiv 1902.04094): mask some tokens of a sequence, draw them again, and go on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import CountedDenoiser, Sampler, Samples, time_of, to_fill, whole
from dnadiff.sampler.grouped import Grouped


class Gibbs(Sampler):
    """Refine sequences in sweeps; in a sweep every position is masked and drawn again once, in `num_groups` random groups.

    What is refined: the masked positions of a template, after `Grouped` has filled them; of a sequence given without masks, every
    token that is not frozen and that a sample may contain. One position at a time each draw leaves the model's law as it is, and
    sweeps take any sequence towards it. Deviation from the paper: it picks a position at random each time, which
    visits some twice and some not at all.

    Args:
        num_sweeps: over all positions.
        num_groups: K network calls a sweep; None is 64, or the length if that is less.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(
        self,
        num_sweeps: int = 1,
        num_groups: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
    ) -> None:
        super().__init__(temperature, top_k, nucleus)
        self.num_sweeps, self.groups = whole("num_sweeps", num_sweeps), Grouped(num_groups, temperature, top_k, nucleus)

    def check_length(self, length: int) -> None:
        """See `Grouped.check_length`."""
        self.groups.check_length(length)

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return (1 + self.num_sweeps) * self.groups.num_steps_for(length)

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
        """See `Sampler.sample`."""
        self.check_model(denoiser)
        refined, length = self._refined(x_init, process, frozen, valid), x_init.shape[1]
        first = self.groups.sample(denoiser, process, x_init, draws, frozen, cond, valid)
        # A sweep leaves the constrained law as it is, so a sample goes on with the weight of its first filling.
        law = denoiser.unnoted() if hasattr(denoiser, "unnoted") else denoiser
        x, calls = first.tokens, CountedDenoiser(law, cond, valid)
        for sweep in range(1, self.num_sweeps + 1):
            noise = draws.at(sweep)
            step, uniform = self.groups.plan(refined, process, noise).step, noise.uniform("token", length)
            for i in step[refined].unique().tolist():
                opens = refined & (step == i)
                xt = x.masked_fill(opens, process.vocab.mask_id)
                log_probs = calls.log_probs(xt, time_of(xt, process, valid), opens)
                x[opens] = self.reveal(i, log_probs, uniform[opens.to(uniform.device)]).to(x)
        return Samples(x, first.nfe + calls.nfe, first.rows + calls.rows)

    @staticmethod
    def _refined(x: Tensor, process: AbsorbingProcess, frozen: Tensor | None, valid: Tensor | None) -> Tensor:
        masked = to_fill(x, process, frozen)
        tokens = process.vocab.is_emitted(x.device)[x]
        for allowed in (valid, None if frozen is None else ~frozen):
            tokens = tokens if allowed is None else tokens & allowed
        return torch.where(masked.any(-1, keepdim=True), masked, tokens)
