"""What every sampler shares: the contract, the count of network calls, and the loop of those that plan ahead.

Positions are chosen before tokens. For samplers whose order of revealing does not look at tokens the whole
order can be drawn beforehand: a `PlannedSampler` says at which step each position opens, and a sequence that
opens nothing at a step costs nothing there, whatever the rest of the batch does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dnadiff import categorical
from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess

# Probabilities that meet the draw at once: its steps then find them in the processor's cache. 50,257 symbols at 516 positions took
# 2.2 s in one piece and 0.2 s so (one core), and four arrays in float64 of that size less memory. Rows are drawn apart: tokens do not change.
_AT_ONCE = 1 << 22
NOISE_REMOVAL = ("sample", "argmax", "none")


class Samples(NamedTuple):
    """What a sampler returns.

    Attributes:
        tokens: (B, L) ids, without masks but for frozen ones (and those that `noise_removal=none` leaves).
        nfe: network calls made for the batch.
        rows: sequences evaluated, summed over the calls; equal ones in a call count once, and with guidance each counts twice.
    """

    tokens: Tensor
    nfe: int
    rows: int


class Plan(NamedTuple):
    """When each position opens.

    Attributes:
        step: (B, L) int64, the step at which a masked position is revealed; -1 is never.
        left: (B, num_steps) share of a row's masked positions that the network is told to be masked still before each step; None is
            the share that is.
    """

    step: Tensor
    left: Tensor | None = None


def part_of(denoiser: nn.Module, rows: Tensor | None = None, columns: slice | None = None) -> nn.Module:
    """The denoiser for some rows or columns of the batch, where it holds something for each (`Constrained.part`); else itself."""
    return denoiser.part(rows, columns) if hasattr(denoiser, "part") else denoiser


class CountedDenoiser:
    """A denoiser that is asked about some sequences of a batch only, and the count of what that took.

    Where all of them are one sequence, as at the beginning, when everything is masked, it is asked about one, and each gets its
    positions of the answer.

    Args:
        denoiser: the network behind its contract.
        cond: (B, C) labels of the whole batch.
        valid: (B, L) bool of the whole batch.

    Attributes:
        nfe: calls so far.
        rows: sequences evaluated in them.
    """

    def __init__(self, denoiser: nn.Module, cond: Tensor | None = None, valid: Tensor | None = None) -> None:
        self.denoiser, self.cond, self.valid = denoiser, cond, valid
        self.reads_time = getattr(denoiser, "time_conditioning", True)
        self.nfe = self.rows = 0

    def log_probs(self, x: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities (M, V) at `positions (B, L)` bool, row-major, of `x (B, L)` at times `t (B,)`.

        A sequence without a position to ask about is not evaluated.
        """
        return self._ask("log_probs", x, t, positions)

    def log_score(self, x: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Log-ratios (M, V), asked for as in `log_probs`."""
        return self._ask("log_score", x, t, positions)

    def _ask(self, question: str, x: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        active = positions.any(-1).nonzero()[:, 0]
        x, t, cond, valid, asked = (None if whole is None else whole[active] for whole in (x, t, self.cond, self.valid, positions))
        ask = getattr(part_of(self.denoiser, active), question)
        read = (x, cond, valid, t if self.reads_time else None)
        one_law = not hasattr(self.denoiser, "part")  # one that holds something for each row answers differently for equal ones
        alike = one_law and len(active) > 1 and all(part is None or bool((part == part[:1]).all()) for part in read)
        self.nfe += 1
        self.rows += (1 if alike else len(active)) * getattr(self.denoiser, "rows_per_sequence", 1)
        if not alike:
            return ask(x, t, cond, asked, valid)
        some = asked.any(0, keepdim=True)  # (1, L)
        found = ask(x[:1], t[:1], None if cond is None else cond[:1], some, None if valid is None else valid[:1])
        return found[(some.cumsum(-1) - 1).expand(asked.shape)[asked]]


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether it is a whole number of at least `least`, in whatever notation: 1e1 is one."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and math.isfinite(value) and value == int(value) and value >= least


def whole(name: str, value: Any, least: int = 1) -> int:
    """A setting that is a whole number.

    Raises:
        ValueError: naming the setting.
    """
    if not is_whole(value, least):
        raise ValueError(f"{name} {value!r} must be at least {least}, and a whole number; set sampler.{name}")
    return int(value)


def finite(name: str, value: Any) -> float:
    """A setting that is a number.

    Raises:
        ValueError: naming the setting.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} {value!r} must be a finite number; set sampler.{name}")
    return value


class Sampler(ABC):
    """Fills the masks of a template.

    Args:
        temperature: divides the log-probabilities; 1 is the model's law.
        top_k: keep this many symbols; None keeps all.
        nucleus: keep the fewest symbols reaching this probability; 1 keeps all.

    Attributes:
        exact: whether the law of the samples tends to the model's as steps grow (at temperature 1, nothing cut, no guidance).
        causal: which models fit: True for autoregressive ones, False for those that unmask.
        has_weights: whether the tokens of a sample are draws of the chain rule, each from the law that the network gave: what a constraint
            left out of these laws is then the sample's importance weight.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    exact: bool = True
    causal: bool = False
    has_weights: bool = True

    def __init__(self, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        self.temperature, self.nucleus = finite("temperature", temperature), finite("nucleus", nucleus)
        self.top_k = None if top_k is None else whole("top_k", top_k)
        self.shape(torch.zeros(1, 2))  # refuse impossible values now, not at the first draw

    def shape(self, log_probs: Tensor) -> Tensor:
        """Temperature and truncation, `(M, V)` -> `(M, V)`."""
        log_probs = categorical.temper(log_probs, self.temperature)
        return categorical.nucleus(categorical.top_k(log_probs, self.top_k), self.nucleus)

    def reveal(self, step: int, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """Tokens (M,) of positions that open at a step, from `log_probs (M, V)` and `uniform (M,)`."""
        # Apple GPUs have no float64: what shapes and draws then runs on the CPU.
        wide = log_probs.cpu() if log_probs.device.type == "mps" else log_probs
        size = len(wide) if wide.device.type == "cuda" else max(1, _AT_ONCE // wide.shape[-1])
        parts = zip(wide.split(max(1, size)), uniform.split(max(1, size)))
        return torch.cat([categorical.draw(self.shape(part), u) for part, u in parts]).to(log_probs.device)

    @property
    def supports_weights(self) -> bool:
        """Whether samples have importance weights: `has_weights`, at temperature 1 and with nothing cut."""
        return self.has_weights and self.temperature == 1 and self.top_k is None and self.nucleus == 1

    def check_length(self, length: int) -> None:
        """Refuse a length that this sampler cannot serve, before a network is called; raises ValueError."""

    def check_model(self, denoiser: nn.Module) -> None:
        """Refuse a model of the other kind.

        Raises:
            ValueError: naming the samplers that fit.
        """
        causal, name = getattr(denoiser, "causal", False), type(self).__name__
        if causal and not self.causal:
            raise ValueError(f"{name} unmasks in any order, and an autoregressive model goes from left to right; set sampler=ar")
        if self.causal and not causal:
            raise ValueError(
                f"{name} goes from left to right with an autoregressive model, and this one was trained to unmask; "
                "set sampler=grouped or another sampler"
            )

    def fitted(self, max_length: int | None) -> Sampler:
        """The sampler for a network that takes `max_length` tokens (None: any number); raises ValueError if there is none."""
        return self

    def window_for(self, length: int) -> int:
        """The longest stretch of a sequence of `length` tokens that the network reads at once."""
        return length

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


def to_fill(x: Tensor, process: AbsorbingProcess, frozen: Tensor | None) -> Tensor:
    """The masked positions (B, L) bool that a sampler may touch."""
    masked = x == process.vocab.mask_id
    return masked if frozen is None else masked & ~frozen


def time_at(share: Tensor, process: AbsorbingProcess) -> Tensor:
    """The time at which so large a share of the positions is masked, counted from what is masked at t = 1; float32."""
    wide = (share.cpu() if share.device.type == "mps" else share).double()
    one = torch.ones(1, dtype=wide.dtype, device=wide.device)
    return process.noise.inverse(1 - wide * (1 - process.noise.alpha(one))).float().to(share.device)


def time_with(count: Tensor, x: Tensor, process: AbsorbingProcess, valid: Tensor | None = None) -> Tensor:
    """The time (B,) at which `count (B,)` positions of `x (B, L)` are masked; padding outside `valid` is not counted as a position."""
    length = torch.full_like(count, x.shape[1]) if valid is None else valid.sum(-1).clamp(min=1)
    return time_at((count / length).clamp(max=1), process)


def time_of(x: Tensor, process: AbsorbingProcess, valid: Tensor | None = None) -> Tensor:
    """The time (B,) at which so large a share of a sequence is masked as of `x (B, L)`."""
    return time_with((x == process.vocab.mask_id).sum(-1), x, process, valid)


def time_left(left: Tensor | float, x: Tensor, masked: Tensor, process: AbsorbingProcess, valid: Tensor | None = None) -> Tensor:
    """The time (B,) when of a template `x` the share `left`, a number or (B,), of `masked (B, L)` is masked still, and what is frozen."""
    ours = masked.sum(-1)
    return time_with((x == process.vocab.mask_id).sum(-1) - ours + left * ours, x, process, valid)


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
        self.check_model(denoiser)
        self.check_length(x_init.shape[1])
        masked = to_fill(x_init, process, frozen)
        step, left = self.plan(masked, process, draws)
        uniform = draws.uniform("token", x_init.shape[1])  # each position is drawn once, so one number each
        x, calls = x_init.clone(), CountedDenoiser(denoiser, cond, valid)
        for i in step[masked & (step >= 0)].unique().tolist():
            opens = masked & (step == i)
            t = time_of(x, process, valid) if left is None else time_left(left[:, i], x_init, masked, process, valid)
            log_probs = calls.log_probs(x, t, opens)
            # Row-major over the batch, as positions of the active rows are.
            x[opens] = self.reveal(i, log_probs, uniform[opens.to(uniform.device)]).to(x)
        return Samples(x, calls.nfe, calls.rows)


class GridSampler(Sampler):
    """A sampler on a grid of times from 1 to 0, whose last step reveals whatever is left.

    Of a template whose share m is masked, the network is told the times at which the shares m (1 - alpha(t))/(1 - alpha(1)) are.

    Args:
        num_steps: T.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
        noise_removal: what the last step does: `sample` draws, `argmax` takes the most probable token (as MDLM's code does after
            its grid), `none` leaves the masks.
    """

    def __init__(
        self,
        num_steps: int = 128,
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
        noise_removal: str = "sample",
    ) -> None:
        if noise_removal not in NOISE_REMOVAL:
            raise ValueError(f"noise_removal {noise_removal!r} is not known; choose {', '.join(NOISE_REMOVAL)}")
        super().__init__(temperature, top_k, nucleus)
        self.num_steps, self.noise_removal = whole("num_steps", num_steps), noise_removal

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return self.num_steps

    @property
    def supports_weights(self) -> bool:
        """See `Sampler.supports_weights`; the likeliest token is no draw."""
        return super().supports_weights and self.noise_removal != "argmax"

    def times(self, device: torch.device | str = "cpu") -> Tensor:
        """The grid, (T + 1,) float64 from 1 to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=device)

    def leaves(self, step: int) -> bool:
        """Whether masks are left alone at this step."""
        return step == self.num_steps - 1 and self.noise_removal == "none"

    def reveal(self, step: int, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """See `Sampler.reveal`."""
        if step == self.num_steps - 1 and self.noise_removal == "argmax":
            return log_probs.argmax(-1)
        return super().reveal(step, log_probs, uniform)
