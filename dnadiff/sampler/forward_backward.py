"""The forward-backward corrector for masked diffusion (arXiv 2205.14987; as a member of ReMDM in arXiv 2503.00307)."""

from __future__ import annotations

from dnadiff.sampler.remasking import Forward, RemaskingSampler


class ForwardBackward(RemaskingSampler):
    """Reverse steps at twice the rate, corrected by forward steps at the rate of the process: remasking shrinks with the step size.

    As steps grow, the distribution converges to the model's. Every token is drawn again many times, mostly early.

    Args:
        num_steps, noise_removal: see `GridSampler`.
        temperature, top_k, nucleus: see `Sampler`.

    Example:
        >>> import dnadiff
        >>> model = dnadiff.load("bundled:ecoli")
        >>> sequences = model.sample(2, length=32, sampler=ForwardBackward(num_steps=8), seed=1)
        >>> [len(sequence) for sequence in sequences]
        [32, 32]
    """

    exact = True
    remasking = Forward()
