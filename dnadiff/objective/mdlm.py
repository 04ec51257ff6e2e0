"""The masked-diffusion objective of MDLM (arXiv 2406.07524): a weighted average of masked-language-model losses."""

from __future__ import annotations

from torch import Tensor, nn

from dnadiff.denoiser import nll
from dnadiff.objective.base import Loss, MaskedObjective
from dnadiff.objective.masking import Masked, Masking
from dnadiff.process import AbsorbingProcess

WEIGHTINGS = ("nelbo", "cross_entropy")


class MDLM(MaskedObjective):
    """The negative evidence lower bound under SUBS: in continuous time (arXiv 2406.07524v2, eq. 10), or in T steps (masking `Steps`).

    Args:
        process: the absorbing process.
        masking: how xt is drawn; coins with stratified times by default, as published.
        weighting: `nelbo` differentiates the bound itself; `cross_entropy` the plain mean over masked tokens,
            which gives rows with many masks more say. `nll` reports the bound either way.
        protocol: see `MaskedObjective`.
    """

    def __init__(
        self, process: AbsorbingProcess, masking: Masking | None = None, weighting: str = "nelbo", protocol: str = "count"
    ) -> None:
        super().__init__(process, masking, protocol)
        if weighting not in WEIGHTINGS:
            raise ValueError(f"objective.weighting {weighting!r} is not known; choose one of {', '.join(WEIGHTINGS)}")
        self.bound = weighting == WEIGHTINGS[0]

    def token_nll(
        self, denoiser: nn.Module, x0: Tensor, masked: Masked, positions: Tensor, cond: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        """-log p(x0): see `MaskedObjective.token_nll`."""
        return nll(denoiser, x0, masked.xt, masked.t.float(), cond, positions, valid)

    def reduce(self, bound: Tensor, mean: Tensor, num_tokens: Tensor) -> Loss:
        """See `MaskedObjective.reduce`."""
        return Loss(bound if self.bound else mean, bound.detach(), num_tokens)

    def evaluation(self) -> MDLM:
        """The bound itself, whatever is trained on: by exact counts in continuous time, by the same steps in discrete time."""
        return MDLM(self.process, self.masking.evaluation(), protocol=self.protocol)
