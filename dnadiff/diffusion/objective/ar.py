"""Next-token prediction: the autoregressive control to compare diffusion with."""

from dnadiff.diffusion.denoiser import Backbone, BaseDenoiser, CausalBackbone, CausalDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch


class AR(Objective):
    """-log p of each token given those before it, including the first. It is exact, so loss and
    `nll` are equal.

    Tokens of weight 0 are read and not counted. There is no noise: only the vocabulary of the
    process is used.
    """

    reads = CausalBackbone
    takes_time = False

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BaseDenoiser:
        return CausalDenoiser(backbone)

    def compute(self, denoiser: BaseDenoiser, batch: TrainingBatch) -> Loss:
        weight = batch.weight
        counted = self.where(weight > 0)
        query = batch.query(batch.x0, None, counted.requested)
        nll = counted.only(denoiser.nll(batch.x0, *query))
        return Loss.mean(nll * counted.at(weight), weight.sum())
