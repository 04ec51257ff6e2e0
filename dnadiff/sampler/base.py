"""The loop that every sampler shares: which positions now, their log-probabilities, a draw.

Positions are chosen before tokens. For samplers whose order of revealing does not look at tokens the whole
order can be drawn beforehand: a `PlannedSampler` says at which step each position opens, and a sequence that
opens nothing at a step costs nothing there, whatever the rest of the batch does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dnadiff import categorical
from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess


class Samples(NamedTuple):
    """What a sampler returns.

    Attributes:
        tokens: (B, L) ids without masks.
        nfe: network calls made for the batch.
        rows: sequences evaluated, summed over the calls.
    """

    tokens: Tensor
    nfe: int
    rows: int


class Plan(NamedTuple):
    """When each position opens.

    Attributes:
        step: (B, L) int64, the step at which a masked position is revealed.
        time: (B, num_steps) the time t before each step.
    """

    step: Tensor
    time: Tensor


class Sampler(ABC):
    """Fills the masks of a template.

    Args:
        temperature: divides the log-probabilities; 1 is the model's law.
        top_k: keep this many symbols; None keeps all.
        nucleus: keep the fewest symbols reaching this probability; 1 keeps all.

    Attributes:
        exact: whether the law of the samples tends to the model's as steps grow (at temperature 1, nothing cut).
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    exact: bool = True

    def __init__(self, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        self.temperature, self.top_k, self.nucleus = temperature, top_k, nucleus
        self.shape(torch.zeros(1, 2))  # refuse impossible values now, not at the first draw

    def shape(self, log_probs: Tensor) -> Tensor:
        """Temperature and truncation, `(M, V)` -> `(M, V)`."""
        log_probs = categorical.temper(log_probs, self.temperature)
        return categorical.nucleus(categorical.top_k(log_probs, self.top_k), self.nucleus)

    def check_length(self, length: int) -> None:
        """Refuse a length that this sampler cannot serve, before a network is called; raises ValueError."""

    @abstractmethod
    def num_steps_for(self, length: int) -> int:
        """Steps taken for a sequence of `length` masks: the upper limit of its network calls."""

    @abstractmethod
    def sample(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        x_init: Tensor,
        draws: Draws,
        frozen: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Samples:
        """Fill the masks of `x_init (B, L)`; positions in `frozen (B, L)` bool are never touched."""


class PlannedSampler(Sampler):
    """A sampler whose order of revealing is drawn before the first network call."""

    @abstractmethod
    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """When each position of `masked (B, L)` bool opens."""

    @torch.no_grad()
    def sample(
        self,
        denoiser: nn.Module,
        process: AbsorbingProcess,
        x_init: Tensor,
        draws: Draws,
        frozen: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Samples:
        """See `Sampler.sample`."""
        self.check_length(x_init.shape[1])
        masked = x_init == process.vocab.mask_id
        if frozen is not None:
            masked = masked & ~frozen
        step, time = self.plan(masked, process, draws)
        uniform = draws.uniform("token", x_init.shape[1])  # each position is drawn once, so one number each
        x, nfe, rows = x_init.clone(), 0, 0
        for i in step[masked].unique().tolist():
            opens = masked & (step == i)
            active = opens.any(-1).nonzero()[:, 0]
            positions = opens[active]
            log_probs = denoiser.log_probs(
                x[active],
                time[active, i].float(),
                None if cond is None else cond[active],
                positions,
                None if valid is None else valid[active],
            )
            tokens = categorical.draw(self.shape(log_probs), uniform[opens.to(uniform.device)])
            x[opens] = tokens.to(x)  # row-major over the batch, as positions of the active rows are
            nfe, rows = nfe + 1, rows + len(active)
        return Samples(x, nfe, rows)
