"""Fast-dLLM (arXiv 2505.22618): block after block in a bidirectional transformer, with approximate
key-value caches."""

from abc import ABC, abstractmethod

from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, Denoiser
from dnadiff.diffusion.sampler.base import Configurable, CountedDenoiser, OuterSampler, Sampler
from dnadiff.fields import PositiveInt, checked


class Cache(Configurable, ABC):
    """Which tokens the network reads again in each call inside a block; the others are read once
    per block."""

    @abstractmethod
    def read(self, block: slice, length: int) -> slice:
        """The positions that are read in each call, for a block of a sequence of `length` tokens;
        they include the block."""


class NoCache(Cache):
    """All tokens are read in each call: exact predictions."""

    def read(self, block: slice, length: int) -> slice:
        return slice(0, length)


class PrefixCache(Cache):
    """Keys and values of the tokens before the block are those at the beginning of the block."""

    def read(self, block: slice, length: int) -> slice:
        return slice(block.start, length)


class DualCache(Cache):
    """Keys and values of the tokens before and after the block are those at the beginning of the
    block: only the block is read again."""

    def read(self, block: slice, length: int) -> slice:
        return block


@checked
class FastDLLM(OuterSampler):
    """Another sampler in blocks from left to right, for a bidirectional transformer that was
    trained without blocks.

    Every call sees the whole sequence, with masks after the block. At the beginning of a block the
    network reads the sequence, and keeps the keys and values of the tokens that `cache` does not
    read again. They are approximate, because in the first layer alone they do not depend on the
    tokens of the block. For models of `objective=block_mdlm`, whose cache is exact, use
    `sampler=block`.

    Args:
        sampler: fills the masks of a block; Fast-dLLM draws with `threshold`. Its settings are
            those of a block.
        block_size: tokens of a block; Fast-dLLM has 32.
        cache: `PrefixCache`, `DualCache` or `NoCache`.

    Examples:
        >>> from dnadiff.diffusion.sampler.grouped import Grouped
        >>> sampler = FastDLLM(Grouped(num_groups=4), block_size=32, cache=DualCache())
        >>> sampler.num_steps_for(length=512)  # one call more in each block
        80
    """

    def __init__(
        self, sampler: Sampler, block_size: PositiveInt = 32, cache: Cache | None = None
    ) -> None:
        super().__init__(sampler, "threshold")
        self.block_size = block_size
        self.cache = DualCache() if cache is None else cache

    def size_for(self, length: int) -> int:
        return min(self.block_size, length)

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        unwrapped = denoiser.unwrapped
        if not hasattr(unwrapped, "around"):
            raise ValueError(f"{type(unwrapped).__name__} has no key-value cache")
        if isinstance(unwrapped, Denoiser):
            _ = unwrapped.cached_backbone  # raises if the network has none

    def num_steps_for(self, length: int) -> int:
        steps = 0
        for block in self.parts(length):
            read = self.cache.read(block, length)
            inner = self.sampler.num_steps_for(block.stop - block.start)
            steps += inner + (read != slice(0, length))
        return steps

    def inside(
        self, calls: CountedDenoiser, x: Tensor, rows: Tensor, part: slice
    ) -> CountedDenoiser:
        return calls.in_context(x, rows, self.cache.read(part, x.shape[1]), part)
