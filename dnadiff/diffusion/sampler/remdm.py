"""ReMDM (arXiv 2503.00307): visible tokens may be masked again, so that early mistakes can be
corrected."""

from dataclasses import field

from dnadiff.diffusion.sampler.remasking import Remasking, RemaskingSampler
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class ReMDM(RemaskingSampler):
    """The remasking sampler with a fixed strength per step: `sampler/remasking=cap`, `rescale`,
    `conf` or `loop`.

    The strength does not decrease with the step size, so tokens unmasked together keep an error of
    its order however many steps there are: not exact. The published settings use nucleus 0.9.

    Args:
        remasking: how much is remasked.

    Examples:
        >>> from dnadiff.diffusion.sampler.remasking import Cap
        >>> ReMDM(Cap(eta=0.02), num_steps=256, nucleus=0.9).num_steps_for(length=512)
        256
    """

    remasking: Remasking
    num_steps: PositiveInt = field(default=128, kw_only=True)
