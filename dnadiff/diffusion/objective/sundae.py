"""The step-unrolled denoising autoencoder (SUNDAE, arXiv 2112.06749): a network that corrects its
own samples."""

from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.process import MixtureProcess
from dnadiff.diffusion.sampler.base import redrawn
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class SUNDAE(Objective):
    """Mean cross-entropy of x0 in `num_unrolled` steps: the first one reads noise, every other one
    a sample of the predictions of the step before (arXiv 2112.06749, section 2).

    Each token of a row is noise with a probability that is uniform in (0, 1). With
    `process=uniform` the noise is uniform over the tokens that a sample may contain, as published;
    other processes replace tokens by their own noise. Samples are drawn at temperature 1, and no
    gradient passes through them. The network predicts every counted token, also those that did not
    change, and is not conditioned on time. With one step it is a denoising autoencoder.

    The loss bounds the likelihood of no model: the network says nothing about how probable a
    sequence is in the chain of its samples. `nll` is this loss, also in validation.

    Args:
        process: replaces tokens.
        num_unrolled: steps of each training example; each is a pass through the network. Published:
            2.
    """

    process_type = MixtureProcess
    takes_time = False
    trains_bound = False
    own_bound = True
    sampler = "sundae"
    no_likelihood = "it trains the correction of samples, not a distribution"

    process: MixtureProcess  # type: ignore[assignment]
    num_unrolled: PositiveInt = 2

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        x0 = batch.x0
        counted = batch.weight > 0
        draws = batch.draws
        keep = 1 - strata(draws, True, x0.device)
        xt = self.process.corrupt(x0, self.process.noise.inverse(keep), counted, draws)
        weight = batch.weight[counted]
        steps = list[Tensor]()
        for step in range(self.num_unrolled):
            log_probs = denoiser.log_probs(*batch.query(xt, None, counted))
            steps.append(-(log_probs.gather(-1, x0[counted][:, None])[:, 0] * weight).sum())
            if step + 1 < self.num_unrolled:
                uniform = draws.uniform(f"unrolled {step}", x0.shape[1])
                xt = redrawn(xt, counted, log_probs.detach(), uniform)
        return Loss.mean(sum(steps[1:], steps[0]) / self.num_unrolled, weight.sum())
