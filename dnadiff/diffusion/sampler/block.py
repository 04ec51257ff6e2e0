"""Block sampling (BD3-LM, arXiv 2503.09573): blocks from left to right, each filled by another
sampler; any length in constant memory."""

from __future__ import annotations

from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, BlockBackbone
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, OuterSampler, Sampler, draws_of_part
from dnadiff.fields import PositiveInt, checked


@checked
class Blockwise(OuterSampler):
    """Another sampler in the blocks that the model was trained with, each given the finished blocks
    to its left.

    The network reads a finished block once and keeps its state (`BlockDenoiser.advance`), so that
    time is linear in the length and memory does not depend on it. K calls of the other sampler per
    block, and one that reads the finished block. Given tokens are kept; those in later blocks do
    not influence a mask, because the model does not see them. For importance weights they are
    scored before the masks of their block are filled (`BaseDenoiser.score_given`), which takes
    further calls.

    Args:
        sampler: fills the masks of a block. Its settings, such as a number of groups, are those of
            a block.
        block_size: that of the model, which is also the default; another one is a ValueError.

    Examples:
        >>> from dnadiff.diffusion.sampler.grouped import Grouped
        >>> Blockwise(Grouped(num_groups=4), block_size=16).num_steps_for(length=512)
        160
    """

    reads = BlockBackbone
    has_weights = True  # those of the other sampler

    def __init__(self, sampler: Sampler, block_size: PositiveInt | None = None) -> None:
        super().__init__(sampler, "grouped")
        self.block_size = block_size
        self.exact = sampler.exact

    def fitted(self, denoiser: BaseDenoiser) -> Blockwise:
        if self.block_size not in (None, denoiser.block_size):
            raise ValueError(
                f"sampler.block_size {self.block_size} is not that of the model, which was trained "
                f"in blocks of {denoiser.block_size}; leave it out"
            )
        return Blockwise(self.sampler, denoiser.block_size)

    def size_for(self, length: int) -> int:
        return length if self.block_size is None else min(self.block_size, length)

    window_for = size_for

    def num_steps_for(self, length: int) -> int:
        sizes = (part.stop - part.start for part in self.parts(length))
        return sum(1 + self.sampler.num_steps_for(size) for size in sizes)

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        state = None
        ends = calls.ends(masked)
        # sequences with a mask, or a token to score, in this block or a later one
        active = ends.nonzero()[:, 0]
        for number, part in enumerate(self.parts(x.shape[1])):
            if not len(active):
                break
            calls.score_given(x, state, active, part)
            if masked[active, part].any():
                noise = draws_of_part(draws, "block", number, active)
                inner = calls.part(x, active, part, state)
                x[active, part] = self.sampler.fill(
                    x[active, part], masked[active, part], inner, process, noise
                )
                calls.add(inner)
            unfinished = ends[active] > part.stop
            active = active[unfinished]
            state = None if state is None else state.select(unfinished)
            if len(active):
                state = calls.advance(x[active, part], state, active, part)
        return x
