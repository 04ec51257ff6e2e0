"""The forward-backward corrector for masked diffusion (arXiv 2205.14987; as a member of ReMDM in
arXiv 2503.00307)."""

from dnadiff.diffusion.sampler.remasking import Forward, RemaskingSampler


class ForwardBackward(RemaskingSampler):
    """Reverse steps at twice the rate, corrected by forward steps at the rate of the process:
    remasking shrinks with the step size.

    As steps grow, the distribution converges to the model's. Every token is drawn again many times,
    mostly early.

    Examples:
        >>> ForwardBackward(num_steps=256).num_steps_for(length=512)
        256
    """

    exact = True
    remasking = Forward()
