"""Sequential Monte Carlo over the unmasking steps."""

from typing import Any

from dnadiff.design.generate import effective_size
from dnadiff.design.method.base import Particles, Step, Stepwise
from dnadiff.fields import Fraction, checked_dataclass
from dnadiff.progress import log

_FEW = 8  # particles


@checked_dataclass
class SMC(Stepwise):
    """Sequential Monte Carlo (Feynman-Kac steering, arXiv 2501.06848; twisted diffusion, arXiv
    2306.17775).

    The designs of a batch are one population of particles. Each step draws tokens from the model
    and weights the particles by the change of the reward of their predicted x0
    (`dnadiff.design.method.base`). If the effective sample size falls below `threshold` times
    the size of the batch, the particles are drawn again in proportion to their weights, by
    systematic resampling: particles with a large weight are copied, others dropped. Their weights
    are then equal, and keep the estimate of the normalizing constant, so that populations of
    several batches can be combined. With a sampler that supports no weights they are drawn again
    after the last step too. A population of one has nothing to be drawn from, and is not
    steered. Reward calls per design: steps / `every`.

    Args:
        threshold: 0 never resamples (importance sampling), 1 resamples whenever the weights differ.

    Examples:
        >>> SMC(threshold=0.5, every=4).threshold
        0.5
    """

    threshold: Fraction = 0.5

    def check_population(self, smallest: int, largest: int) -> None:
        if self.threshold > 0 and largest == 1:
            raise ValueError(
                "method SMC steers a population, and a batch has one design here, which is an "
                "ordinary sample of the model; set more designs for each template and a larger "
                f"batch_size, at least {_FEW}, or use svdd or resample_move"
            )
        if self.threshold > 0 and smallest < _FEW:
            log.warning(
                "method SMC steers the designs of a batch together, and the smallest batch of a "
                f"template has {smallest}: they differ little from samples of the model; make "
                f"{_FEW} or more designs of each template, with a batch_size of {_FEW} or more"
            )

    def advance(self, step: Step) -> Particles:
        run = step.run
        particles = step.moved(step.drawn(step.log_probs_now, "token", run.generation))
        log_weight = particles.log_weight
        if not bool(step.evaluated.any()) or log_weight.isneginf().all():
            return particles
        if bool(step.done.all()):  # records have the weights, or nothing has
            kept = run.generator.sampler.supports_weights(step.now.shape[1]) or not self.threshold
        else:
            effective = effective_size(log_weight.cpu().numpy())
            kept = effective >= self.threshold * len(log_weight)
        if kept:
            return particles
        ancestors, log_weight = run.resampled(log_weight, step.index)
        if (constrained := run.prepared.constrained) is not None:
            constrained.log_mass = constrained.log_mass[ancestors]
        run.generation += 1
        copied: dict[str, Any] = {
            name: None if each is None else each[ancestors]
            for name, each in vars(particles).items()
        }
        return Particles(**copied | {"log_weight": log_weight})
