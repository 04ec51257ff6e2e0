"""The masked-diffusion objective of MDLM (arXiv 2406.07524): a weighted average of
masked-language-model losses."""

from typing import Literal, TypeAlias

from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone, BaseDenoiser
from dnadiff.diffusion.objective.base import MaskedObjective, TrainingBatch
from dnadiff.diffusion.objective.masking import MaskedBatch, Positions
from dnadiff.fields import PositiveFraction, checked_dataclass

Weighting: TypeAlias = Literal["nelbo", "cross_entropy"]  # whether the bound is differentiated


@checked_dataclass
class MDLM(MaskedObjective):
    """The negative evidence lower bound under SUBS, in continuous time (arXiv 2406.07524v2, eq. 10)
    or in T steps (`DiscreteTime`).

    Args:
        masking: how xt is drawn; independent masks at stratified times by default, as published.
        weighting: `nelbo` differentiates the bound itself; `cross_entropy` the plain mean over
            masked tokens, which gives rows with many masks more weight. `nll` is the bound either
            way.
        protocol: see `MaskedObjective`.
        self_conditioning: None is one pass of the network. Otherwise a second pass reads what the
            first one predicts (`SoftMasked`), in training for a sequence with this probability. The
            bound holds for both passes together.

    Examples:
        >>> import torch
        >>> from dnadiff.networks.backbone.caduceus import Caduceus
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> from dnadiff.diffusion.draws import Draws
        >>> from dnadiff.diffusion.noise import LogLinear
        >>> from dnadiff.diffusion.process import AbsorbingProcess
        >>> vocab = DNATokenizer().vocab
        >>> objective = MDLM(AbsorbingProcess(vocab, LogLinear()), weighting="nelbo")
        >>> denoiser = objective.denoiser(Caduceus(vocab, d_model=16, n_layers=1))
        >>> x0 = torch.randint(7, 11, (8, 32))  # A, C, G, T
        >>> draws = Draws.for_batch(seed=0, batch_size=8)
        >>> loss = objective(denoiser, x0, weight=torch.ones(8, 32), draws=draws)
        >>> loss.loss.backward()
        >>> float(loss.num_tokens)
        256.0
    """

    weighting: Weighting = "nelbo"
    self_conditioning: PositiveFraction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bound = self.weighting == "nelbo"

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BaseDenoiser:
        if self.self_conditioning is None:
            return super().make_denoiser(backbone, time_conditioning)
        from dnadiff.diffusion.soft_masks import SoftMasked  # with the samplers; few models need it

        how = self.parameterization(), self.process.noise, time_conditioning
        return SoftMasked(backbone, *how, self.self_conditioning)

    def token_nll(
        self,
        denoiser: BaseDenoiser,
        batch: TrainingBatch,
        masked: MaskedBatch,
        positions: Positions,
    ) -> Tensor:
        query = batch.query(masked.xt, masked.t.float(), positions.requested)
        return denoiser.nll(batch.x0, *query)
