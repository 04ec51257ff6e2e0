"""The forward-backward corrector for masked diffusion (arXiv 2205.14987; as a member of ReMDM in arXiv 2503.00307)."""

from __future__ import annotations

from dnadiff.sampler.remasking import Forward, RemaskingSampler


class ForwardBackward(RemaskingSampler):
    """Reverse steps at twice the rate against forward ones at the process's own: what is remasked shrinks with the length of a step.

    As steps grow the law tends to the model's; on the way every token is drawn again and again, mostly early.

    Args:
        num_steps, temperature, top_k, nucleus, noise_removal: see `GridSampler`.
    """

    def __init__(
        self,
        num_steps: int = 128,
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
        noise_removal: str = "sample",
    ) -> None:
        super().__init__(Forward(), num_steps, temperature, top_k, nucleus, noise_removal)
