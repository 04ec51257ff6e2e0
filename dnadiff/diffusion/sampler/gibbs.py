"""Gibbs sampling with a masked language model (arXiv 1902.04094): mask some tokens of a sequence,
draw them again, and repeat."""

from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, RefiningSampler
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class Gibbs(RefiningSampler):
    """Refine sequences in sweeps; each sweep masks every position and draws it again once, in
    `num_groups` random groups.

    In a template with masks, `Grouped` fills the masked positions, and these are refined. In a
    sequence without masks, every token is refined that is not frozen and that a sample may contain.
    Deviation from the paper: it picks a random position each time, which visits some positions
    twice and others never.

    Only one position at a time is exact: then each draw leaves the model's distribution unchanged,
    and sweeps bring any sequence closer to it. Positions of one group are drawn independently of
    each other. Such a sweep changes the distribution, also that of sequences that had it before,
    and more sweeps do not repair this. Samples therefore have importance weights only if
    `num_groups` is the length.

    Args:
        num_sweeps: sweeps over all positions.
        num_groups: K network calls per sweep; the length for one position at a time. None is 64, or
            the length if that is less.

    Examples:
        >>> Gibbs(num_sweeps=2, num_groups=32).num_steps_for(length=512)
        96
    """

    num_sweeps: PositiveInt = 1
    num_groups: PositiveInt | None = None

    exact = True
    has_weights = True

    def __post_init__(self) -> None:
        self._grouped = Grouped(
            self.num_groups, temperature=self.temperature, top_k=self.top_k, nucleus=self.nucleus
        )

    def supports_weights(self, length: int) -> bool:
        return super().supports_weights(length) and self._grouped.draws_one_by_one(length)

    def check_length(self, length: int) -> None:
        self._grouped.check_length(length)

    def num_steps_for(self, length: int) -> int:
        return (1 + self.num_sweeps) * self._grouped.num_steps_for(length)

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        hidden = masked & (x == process.vocab.mask_id)
        x = self._grouped.fill(x, hidden, calls, process, draws)
        # One position at a time, a sweep leaves the constrained distribution unchanged, and a
        # sample keeps the weight of its first filling. Otherwise there are no weights
        # (`supports_weights`).
        calls.denoiser = calls.denoiser.without_recording()
        for sweep in range(1, self.num_sweeps + 1):
            noise = draws.at(sweep)
            plan = self._grouped.plan(masked, process, noise)
            x = self._grouped.follow(plan, x, masked, calls, process, noise)
        return x
