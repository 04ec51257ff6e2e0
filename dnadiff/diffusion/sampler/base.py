"""What all samplers share: the interface, the settings, and the loop of samplers whose order does
not depend on tokens.

If the choice of positions does not depend on tokens, the whole order can be drawn before the first
network call: a `PlannedSampler` returns the step at which each position is unmasked, and a sequence
is evaluated only in steps that unmask something in it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import (
    Backbone,
    BaseDenoiser,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    InBlock,
    InContext,
    Kind,
    OptTensor,
    Query,
    State,
)
from dnadiff.diffusion.draws import (
    Draws,
    draw,
    float64_device,
    hash64,
    nucleus,
    temper,
    top_k,
    widest_dtype,
)
from dnadiff.diffusion.process import AbsorbingProcess, BaseProcess, Process, require
from dnadiff.diffusion.vocab import at_positions
from dnadiff.fields import (
    JsonDict,
    Positive,
    PositiveFraction,
    PositiveInt,
    checked,
    checked_dataclass,
)

# Probabilities are drawn from in chunks that fit the processor's cache: 50,257 tokens at 516
# positions take 0.2 s instead of 2.2 s on one core, and less memory in float64. Each row is drawn
# independently, so tokens do not depend on it.
_CHUNK = 1 << 22
_CUDA_CHUNK = 1 << 26  # larger, for few kernel launches: half a gigabyte for each array in float64

# What a model that reads in this way is called.
_MODELS: dict[type[Backbone], str] = {
    BidirectionalBackbone: "a model that unmasks in any order",
    CausalBackbone: "an autoregressive model",
    BlockBackbone: "a model that was trained in blocks",
}


class Samples(NamedTuple):
    """The result of a sampler.

    Attributes:
        tokens: (B, L) ids, without masks except frozen ones and those that `noise_removal=none`
            leaves.
        nfe: network calls made for the batch.
        rows: sequences evaluated, summed over the calls; equal ones in a call count once, and each
            counts twice with guidance.
    """

    tokens: Tensor
    nfe: int
    rows: int


@dataclass(eq=False)
class CountedDenoiser:
    """A denoiser for one batch, and how much it was used.

    Only sequences with a requested position are evaluated. If all of these are equal, as at the
    beginning, when everything is masked, one of them is evaluated and the others share its
    predictions.

    Attributes:
        start_t: the time of the noise in the sequences to begin from; None begins with the prior.
        nfe: network calls so far.
        rows: sequences evaluated in them.
    """

    denoiser: Any  # of the kind that the sampler is for
    cond: OptTensor = None
    valid: OptTensor = None
    start_t: float | None = None
    nfe = rows = 0

    def log_probs(
        self, x: Tensor, t: Tensor, positions: Tensor, kind: Kind = "log_probs"
    ) -> Tensor:
        """Log-probabilities (M, V) at `positions (B, L)` bool, row-major, of `x (B, L)` at times
        `t (B,)`; or the log-ratios, which depend on the time also if the network is not conditioned
        on it."""
        active = positions.any(-1).nonzero()[:, 0]
        query = Query(x, t, self.cond, positions, self.valid).rows(active)
        timed = kind == "log_score" or self.denoiser.time_conditioning
        call = getattr(self.denoiser.for_rows(active), kind)
        equal = self._equal(query._replace(t=query.t if timed else None, positions=None))
        self._count(1 if equal else len(active))
        if not equal:
            return call(*query)
        union = query.requested.any(0, keepdim=True)  # (1, L)
        found = call(*query.rows(slice(1))._replace(positions=union))
        return found[(union.cumsum(-1) - 1).expand(query.xt.shape)[query.requested]]

    def denoise(self, z: Tensor, t: Tensor, estimate: OptTensor) -> Tensor:
        """`VectorDenoiser.denoise` of the batch."""
        self._count(len(z))
        found: Tensor = self.denoiser.denoise(z, t, self.cond, self.valid, estimate)
        return found

    def _count(self, rows: int) -> None:
        self.nfe += 1
        self.rows += rows * self.denoiser.rows_per_sequence

    def _equal(self, query: Query) -> bool:
        """Whether several sequences have the same predictions."""
        return (
            self.denoiser.same_for_all_rows
            and len(query.xt) > 1
            and all(bool((x == x[:1]).all()) for x in query if x is not None)
        )

    def _cond(self, rows: Tensor) -> OptTensor:
        return None if self.cond is None else self.cond[rows]

    def _block(self, x: Tensor, rows: Tensor, columns: slice) -> Query:
        """Tokens of some `rows` and `columns` of the batch, with their labels, or columns of an
        alignment, and padding."""
        return Query(
            x,
            None,
            at_positions(self._cond(rows), columns),
            None,
            None if self.valid is None else self.valid[rows, columns],
        )

    def read(self, tokens: Tensor, state: State, rows: Tensor, columns: slice) -> State:
        """`CausalDenoiser.read` for some `rows` of the batch, predicting given tokens in `columns`:
        the state afterwards."""
        self._count(len(rows))
        return self.denoiser.for_rows(rows, columns).read(tokens, state, self._cond(rows))[1]

    def step(
        self, token: Tensor, state: State | None, rows: Tensor, column: int
    ) -> tuple[Tensor, State]:
        """`CausalDenoiser.step` for some `rows` of the batch, predicting the tokens in `column`."""
        self._count(len(rows))
        denoiser = self.denoiser.for_rows(rows, slice(column, column + 1))
        return denoiser.step(token, state, self._cond(rows))

    def part(
        self, x: Tensor, rows: Tensor, columns: slice, state: State | None = None
    ) -> CountedDenoiser:
        """A counter for some positions of some `rows` of the batch, of block diffusion after the
        blocks in `state`; add its counts with `add`."""
        block = self._block(x, rows, columns)
        inner = self.denoiser.for_rows(rows, columns)
        if self.denoiser.block_size is not None:
            inner = InBlock(inner, state)
        return CountedDenoiser(inner, block.cond, block.valid, self.start_t)

    def in_context(self, x: Tensor, rows: Tensor, read: slice, columns: slice) -> CountedDenoiser:
        """A counter for some `columns` of some `rows` of the batch, which reads the tokens in
        `read` again in each call; see `part`.

        The other tokens are read here, once, and their keys and values are used in each call
        (`Denoiser.around`).

        Args:
            x: (B, L) tokens of the batch.
            rows: index of sequences.
            read: includes `columns`.
            columns: positions to predict.
        """
        whole = self._block(x[rows], rows, slice(None))
        equal = self._equal(whole)
        state = None
        if read.stop - read.start < x.shape[1]:
            self._count(1 if equal else len(rows))
            state = self.denoiser.around(whole.rows(slice(1)) if equal else whole, read)
            state = state.select(x.new_zeros(len(rows))) if equal else state
        inside = slice(columns.start - read.start, columns.stop - read.start)
        context = self._block(whole.xt[:, read], rows, read)
        inner = InContext(self.denoiser.for_rows(rows, read), state, context, inside, equal)
        valid = None if whole.valid is None else whole.valid[:, columns]
        return CountedDenoiser(inner, at_positions(whole.cond, columns), valid)

    def advance(self, x0: Tensor, state: State | None, rows: Tensor, columns: slice) -> State:
        """`BlockDenoiser.advance` over a finished block x0 of some `rows` of the batch."""
        self._count(len(rows))
        return self.denoiser.advance(self._block(x0, rows, columns), state)

    def score_given(self, x: Tensor, state: State | None, rows: Tensor, columns: slice) -> None:
        """`Constrained.score_given` for a block of some `rows` of the batch that is not filled
        yet."""
        if self.denoiser.given is not None:
            part = self.denoiser.for_rows(rows, columns)
            for size in part.score_given(self._block(x, rows, columns), state):
                self._count(size)

    def ends(self, masked: Tensor) -> Tensor:
        """One after the last position of `masked (B, L)` and of those that the denoiser scores, 0
        if there are none: (B,)."""
        asked = masked if self.denoiser.given is None else masked | self.denoiser.given
        return (asked * torch.arange(1, masked.shape[1] + 1, device=masked.device)).amax(-1)

    def add(self, other: CountedDenoiser) -> None:
        """Add the counts of another one."""
        self.nfe, self.rows = self.nfe + other.nfe, self.rows + other.rows


class Configurable:
    """A class that a configuration can build, and that knows its settings."""

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True

    def settings(self) -> JsonDict:
        """Every constructor argument with its value; nested samplers and remasking strategies are
        dicts with their class name.

        Each argument must be stored in an attribute of its name.
        """
        found: JsonDict = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name not in vars(self):
                raise ValueError(
                    f"{type(self).__name__} does not store its argument {name}; set "
                    f"self.{name} in the constructor"
                )
            value = found[name] = vars(self)[name]
            if isinstance(value, Configurable):
                found[name] = {"class": type(value).__name__, **value.settings()}
        return found


@checked
@dataclass(eq=False, kw_only=True)
class Sampler(Configurable, ABC):
    """Fills the masked positions of a template.

    A subclass implements `fill`, and `num_steps_for` if it has a number of steps. Subclasses with
    settings of their own are dataclasses, or write a constructor that stores each argument in an
    attribute of its name and calls `super().__init__`.

    Args:
        temperature: divides the log-probabilities; 1 is the model's distribution.
        top_k: draw from the k most probable tokens; None is all.
        nucleus: draw from the smallest set of tokens with this total probability; 1 is all.

    Attributes:
        exact: whether the distribution of the samples converges to the model's as steps grow (at
            temperature 1, without truncation and guidance).
        reads: which models it samples from, by how their network reads a sequence: a subclass of
            `Backbone`.
        process_type: of which process these models are.
        refines: whether it changes the tokens of sequences that have no masks.
        has_weights: whether each token is drawn from the distribution that the network returned for
            it, in any order given by the chain rule. Then the probability that a constraint removed
            from these distributions is the sample's importance weight.
    """

    temperature: Positive = 1.0
    top_k: PositiveInt | None = None
    nucleus: PositiveFraction = 1.0

    exact = False  # without an annotation, which would make it an argument
    reads: ClassVar[type[Backbone]] = BidirectionalBackbone
    process_type: ClassVar[type[BaseProcess]] = AbsorbingProcess
    refines = False
    has_weights = False

    def adjust(self, log_probs: Tensor) -> Tensor:
        """Temperature, then `top_k`, then `nucleus`: (M, V) -> (M, V)."""
        return nucleus(top_k(temper(log_probs, self.temperature), self.top_k), self.nucleus)

    def unmask(self, step: int, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """Tokens (M,) of positions unmasked in step 0..num_steps-1, from `log_probs (M, V)` and
        `uniform (M,)`."""
        return draw_in_chunks(log_probs, uniform, self.adjust)

    def unmasked(
        self, x: Tensor, now: Tensor, step: int, log_probs: Tensor, uniform: Tensor
    ) -> Tensor:
        """`redrawn` by `unmask`."""
        return redrawn(x, now, log_probs, uniform, partial(self.unmask, step))

    def supports_weights(self, length: int) -> bool:
        """Whether samples of `length` tokens or fewer have importance weights: `has_weights`,
        temperature 1 and no truncation."""
        return (
            self.has_weights and self.temperature == 1 and self.top_k is None and self.nucleus == 1
        )

    def draws_one_by_one(self, length: int) -> bool:
        """Whether every network call draws at most one position of a sequence of `length`
        tokens."""
        return False

    def check_length(self, length: int) -> None:
        """Refuse a length that this sampler cannot serve, before a network is called; raises
        ValueError."""

    def check_model(self, denoiser: BaseDenoiser) -> None:
        """Raise a ValueError for a model of another kind; it names the samplers that fit."""
        name = type(self).__name__
        remedy = f"set sampler={denoiser.sampler}"
        if self.reads is not denoiser.reads:
            needed = _MODELS[self.reads]
            given = _MODELS[denoiser.reads]
            raise ValueError(f"{name} samples from {needed}, and this is {given}; {remedy}")
        require(f"sampler {name}", denoiser, self.process_type, remedy)

    def fitted(self, denoiser: BaseDenoiser) -> Sampler:
        """The sampler with what it takes from the model, such as its longest window; raises
        ValueError if its settings do not fit."""
        return self

    def window_for(self, length: int) -> int:
        """The longest part of a sequence of `length` tokens that the network reads in one call."""
        return length

    def num_steps_for(self, length: int) -> int:
        """Steps for a sequence of `length` masks: the upper limit of its network calls. By default
        one for each position."""
        return length

    def positions(self, x: Tensor, process: Process, frozen: Tensor, valid: OptTensor) -> Tensor:
        """The positions (B, L) bool to fill: the masked ones that are not `frozen (B, L)`."""
        return (x == process.vocab.mask_id) & ~frozen

    @torch.no_grad()
    def sample(
        self,
        denoiser: BaseDenoiser,
        process: Process,
        x_init: Tensor,
        draws: Draws,
        frozen: OptTensor = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
        start: OptTensor = None,
        start_t: float = 1.0,
    ) -> Samples:
        """Fill the masks of a batch.

        Args:
            denoiser: the model.
            process: of the model.
            x_init: (B, L) the template, masks where tokens are to be drawn.
            draws: random numbers; each row depends on the seed and its own index alone.
            frozen: (B, L) bool, positions that must not change.
            cond: (B, C) labels.
            valid: (B, L) bool, False on padding.
            start: (B, L) tokens to begin from: the masked positions get these tokens with the noise
                of time `start_t` (SDEdit, arXiv 2108.01073, in discrete form). None begins with
                noise alone. Masks refill the tokens that the noise hides; other noise can change
                every one.
            start_t: in (0, 1]; 1 leaves nothing of `start`.

        Raises:
            ValueError: if model or length do not fit this sampler.
        """
        self.check_model(denoiser)
        fitted = self.fitted(denoiser)
        fitted.check_length(x_init.shape[1])
        frozen = torch.zeros_like(x_init, dtype=torch.bool) if frozen is None else frozen
        masked = fitted.positions(x_init, process, frozen, valid)
        x = x_init.clone()
        if start is not None:
            t = torch.full((len(x),), start_t, device=x.device)
            if isinstance(process, Process):  # vectors get their noise in `fill`
                start = process.corrupt(start, t, masked, draws)
            x = torch.where(masked, start, x)
            masked = masked & process.changes(x)
        calls = CountedDenoiser(denoiser, cond, valid, None if start is None else start_t)
        tokens = fitted.fill(x, masked, calls, process, draws)
        return Samples(tokens, calls.nfe, calls.rows)

    @abstractmethod
    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: Any,
        draws: Draws,
    ) -> Tensor:
        """Draw tokens for the positions to fill.

        Args:
            x: (B, L) a copy of the template, which may be changed in place.
            masked: (B, L) bool, positions to fill (see `positions`).
            calls: the denoiser; its `valid` marks padding.
            process: of `process_type`; defines the noise, and the times that a network may be
                conditioned on.
            draws: random numbers.

        Returns:
            Tokens (B, L).
        """


class RefiningSampler(Sampler):
    """A sampler that also changes sequences without masks: every token of these that is not frozen
    and that a sample may contain."""

    refines = True

    def positions(self, x: Tensor, process: Process, frozen: Tensor, valid: OptTensor) -> Tensor:
        masked = super().positions(x, process, frozen, valid)
        tokens = process.vocab.is_emitted(x.device)[x] & ~frozen
        tokens = tokens if valid is None else tokens & valid
        return torch.where(masked.any(-1, keepdim=True), masked, tokens)


def rows_at_once(device: torch.device, num_tokens: int) -> int:
    """The number of distributions over `num_tokens` tokens that are processed at once in
    float64."""
    return max(1, (_CUDA_CHUNK if device.type == "cuda" else _CHUNK) // num_tokens)


def in_chunks(
    function: Callable[[Tensor, Any], Tensor],
    log_probs: Tensor,
    each: OptTensor,
    rows: int | None = None,
) -> Tensor:
    """The results (M,) of a `function` of `log_probs (M, V)` and `each (M,)` or None, computed in
    chunks of `rows`; None is `rows_at_once`."""
    parts = log_probs.split(rows or rows_at_once(log_probs.device, log_probs.shape[-1]))
    others = repeat(None) if each is None else each.split(len(parts[0]) or 1)
    return torch.cat([function(*pair) for pair in zip(parts, others)])


def draw_in_chunks(
    log_probs: Tensor,
    uniform: Tensor,
    adjust: Callable[[Tensor], Tensor] = lambda part: part,
    rows: int | None = None,
) -> Tensor:
    """Ids (M,) drawn from `log_probs (M, V)`, after `adjust` changed them, with `uniform (M,)`; see
    `dnadiff.diffusion.draws.draw`. `rows` is as in `in_chunks`."""
    local = log_probs.to(float64_device(log_probs.device))
    drawn = in_chunks(lambda part, u: draw(adjust(part), u), local, uniform, rows)
    return drawn.to(log_probs.device)


def redrawn(
    x: Tensor,
    now: Tensor,
    log_probs: Tensor,
    uniform: Tensor,
    unmask: Callable[[Tensor, Tensor], Tensor] = draw_in_chunks,
) -> Tensor:
    """x (B, L) with tokens that `unmask` draws from `log_probs (M, V)` at the positions
    `now (B, L)`, in row-major order, with `uniform (B, L)`."""
    return x.masked_scatter(now, unmask(log_probs, uniform[now.to(uniform.device)]).to(x))


class Plan(NamedTuple):
    """When each position is unmasked.

    Attributes:
        step: (B, L) int64, the step at which a masked position is unmasked; -1 is never.
        left: (B, num_steps) the fraction of a row's masked positions still masked before each step,
            for the time that the network is conditioned on; None is the actual fraction.
    """

    step: Tensor
    left: OptTensor = None


class PlannedSampler(Sampler):
    """A sampler whose order is drawn before the first network call."""

    @abstractmethod
    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """When each position of `masked (B, L)` bool is unmasked."""

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        return self.follow(self.plan(masked, process, draws), x, masked, calls, process, draws)

    def follow(
        self,
        plan: Plan,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        """Mask the positions of each step of a plan, and draw them."""
        step, left = plan
        # each position is drawn once, so it needs one number
        uniform = draws.uniform("token", x.shape[1])
        template = x
        for i in step[masked & (step >= 0)].unique().tolist():
            now = masked & (step == i)
            x = x.masked_fill(now, process.vocab.mask_id)
            if left is None:
                t = process.time_of(x, calls.valid)
            else:
                t = process.time_of(template, calls.valid, masked, left[:, i])
            log_probs = calls.log_probs(x, t, now)
            x = self.unmasked(x, now, i, log_probs, uniform)
        return x


@checked_dataclass
class GridSampler(Sampler):
    """A sampler on a uniform grid of times from 1 to 0. Its last step unmasks whatever is left.

    If the fraction m of a template is masked, the network is conditioned on the times at which the
    fractions m (1 - alpha(t))/(1 - alpha(1)) are.

    Args:
        num_steps: T.
        noise_removal: what the last step does: `sample` draws, `argmax` takes the most probable
            token (as MDLM's code does after its grid), `none` leaves the masks.
    """

    num_steps: PositiveInt = 128
    _: KW_ONLY
    noise_removal: Literal["sample", "argmax", "none"] = "sample"

    def num_steps_for(self, length: int) -> int:
        return self.num_steps

    def supports_weights(self, length: int) -> bool:
        draws = self.noise_removal != "argmax"  # the most probable token is not a draw
        return super().supports_weights(length) and draws

    def times(self, device: torch.device | str = "cpu") -> Tensor:
        """The grid, (T + 1,) float64 if the device has it, from 1 to 0."""
        return torch.linspace(1, 0, self.num_steps + 1, dtype=widest_dtype(device), device=device)

    def leaves_masks(self, step: int) -> bool:
        """Whether this step unmasks nothing: the last one with `noise_removal=none`."""
        return self.noise_removal == "none" and step == self.num_steps - 1

    def takes_argmax(self, step: int) -> bool:
        """Whether this step takes the most probable tokens: the last one with
        `noise_removal=argmax`."""
        return self.noise_removal == "argmax" and step == self.num_steps - 1

    def unmask(self, step: int, log_probs: Tensor, uniform: Tensor) -> Tensor:
        if self.takes_argmax(step):
            return log_probs.argmax(-1)
        return super().unmask(step, log_probs, uniform)


class OuterSampler(Sampler):
    """A sampler that fills the parts of a sequence one after another by another sampler.

    Args:
        sampler: unmasks in any order; its settings are those of a part.
        example: one that does, for the message.

    Attributes:
        part_name: what a part is called, in messages and for its random numbers.
    """

    part_name = "block"

    def __init__(self, sampler: Sampler, example: str) -> None:
        fits = isinstance(sampler, Sampler) and sampler.reads is BidirectionalBackbone
        if not fits or (self.part_name == "block" and isinstance(sampler, OuterSampler)):
            raise ValueError(
                f"sampler.sampler {type(sampler).__name__} does not fill the masks of a "
                f"{self.part_name} in any order; choose {example} or another one"
            )
        super().__init__(
            temperature=sampler.temperature, top_k=sampler.top_k, nucleus=sampler.nucleus
        )
        self.sampler = sampler

    @abstractmethod
    def size_for(self, length: int) -> int:
        """Tokens of the largest part of a sequence of `length` tokens."""

    def parts(self, length: int) -> list[slice]:
        """The parts of a sequence of `length` tokens; by default its blocks."""
        size = self.size_for(length)
        return [slice(at, min(at + size, length)) for at in range(0, length, size)]

    def inside(
        self, calls: CountedDenoiser, x: Tensor, rows: Tensor, part: slice
    ) -> CountedDenoiser:
        """The counter for a part of some rows of the batch."""
        return calls.part(x, rows, part)

    def check_length(self, length: int) -> None:
        self.sampler.check_length(self.size_for(length))

    def supports_weights(self, length: int) -> bool:
        return self.has_weights and self.sampler.supports_weights(self.size_for(length))

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: AbsorbingProcess,
        draws: Draws,
    ) -> Tensor:
        for number, part in enumerate(self.parts(x.shape[1])):
            hidden = masked[:, part] & (x[:, part] == process.vocab.mask_id)
            rows = hidden.any(-1).nonzero()[:, 0]
            if len(rows):
                inner = self.inside(calls, x, rows, part)
                noise = draws_of_part(draws, self.part_name, number, rows)
                filled = self.sampler.fill(x[rows, part], hidden[rows], inner, process, noise)
                x[rows, part] = filled
                calls.add(inner)
        return x


def draws_of_part(draws: Draws, what: str, number: int, rows: Tensor) -> Draws:
    """The random numbers of part `number` of a sequence, those of the sequence for the first part,
    for some `rows` of the batch."""
    seed = draws.seed if number == 0 else hash64(draws.seed, what, number)
    return replace(draws, seed=seed, rows=draws.rows[rows.to(draws.rows.device)])
