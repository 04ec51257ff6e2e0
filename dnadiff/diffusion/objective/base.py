"""What objectives share: the result, the denoiser that they train, and the loss over masked
positions of the diffusion bounds."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from torch import Tensor, ones_like

from dnadiff.diffusion.denoiser import (
    Backbone,
    BaseDenoiser,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    Denoiser,
    OptTensor,
    Query,
)
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.masking import Bernoulli, MaskedBatch, Masking, Positions
from dnadiff.diffusion.process import AbsorbingProcess, BaseProcess, Parameterization, require
from dnadiff.fields import Config, checked_dataclass

_CHECKED = 16  # calls on a GPU per check for whose result the process waits
# Up to this size of the vocabulary, computing more logits on a GPU costs less than waiting for it
# to say which are needed.
_FEW_TOKENS = 64
_MIN_TOKENS = 1e-12  # an empty batch is divided by this, not by 0
Protocol: TypeAlias = Literal["count", "mdlm"]  # see `MaskedObjective`


class Loss(NamedTuple):
    """The result for one batch.

    Attributes:
        loss: what is differentiated, nats per token.
        nll: the objective's estimate of the bound on -log p, nats per token, detached.
        num_tokens: total weight of the tokens behind both; averages over batches are weighted by
            it.
        num_averaged: total weight of the tokens that `loss` is a mean over, if that is another
            number.
    """

    loss: Tensor
    nll: Tensor
    num_tokens: Tensor
    num_averaged: Tensor | None = None

    @classmethod
    def mean(cls, nll: Tensor, num_tokens: Tensor) -> Loss:
        """The bound itself: the sum of `nll` over the total weight of the tokens."""
        loss = mean_over(nll, num_tokens)
        return cls(loss, loss.detach(), num_tokens)


class TrainingBatch(NamedTuple):
    """What an objective is computed from.

    Attributes:
        x0: (B, L) token ids.
        weight: (B, L) in [0, 1]; 0 is padding or unknown.
        draws: random numbers.
        cond: (B, C) labels.
        valid: (B, L) bool, False on padding.
    """

    x0: Tensor
    weight: Tensor
    draws: Draws
    cond: OptTensor = None
    valid: OptTensor = None

    def query(self, xt: Tensor, t: OptTensor, positions: OptTensor) -> Query:
        """What the denoiser is asked for, with the labels and the padding of the batch."""
        return Query(xt, t, self.cond, positions, self.valid)


@dataclass(eq=False)
class Objective(ABC):
    """A training loss. It sees the network only through the denoiser that it wraps around it.

    A subclass implements `compute`.

    Args:
        process: adds the noise; its vocabulary determines which tokens can be counted.

    Attributes:
        reads: how a network must read a sequence to fit, one of the subclasses of `Backbone`;
            checked before data is loaded.
        process_type: the process that its formulas are for.
        time_conditioning: whether the network is conditioned on the noise level if the
            configuration does not decide (null).
        takes_time: whether it trains networks that are conditioned on the noise level.
        trains_bound: whether all noise levels are trained, as likelihood bounds and samplers
            assume.
        sampler: the word of the sampler that its models are sampled with unless another one is
            chosen; None is that of the process.
        own_bound: whether likelihoods come from `token_bound`; otherwise from masks of exact
            counts.
        no_likelihood: why `token_bound` has none, for objectives without a likelihood.
        everywhere: whether the cost of every token can be computed, also of those not masked.
        masks_padding: whether padding is masked like any token, and the network does not know of
            it.
        bound: whether the bound, `nll`, is what is differentiated.
        distills: whether it trains a student of the model that the run starts from. Then the
            weights with the lowest validation loss are not the best ones.
    """

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True
    reads: ClassVar[type[Backbone]] = BidirectionalBackbone
    process_type: ClassVar[type[BaseProcess]] = AbsorbingProcess
    time_conditioning = False
    takes_time = True
    trains_bound = True
    sampler: ClassVar[str | None] = None
    own_bound = False
    no_likelihood = "its loss bounds no likelihood"
    everywhere = True
    distills = False
    masks_padding = False
    bound = True
    _calls = 0

    process: AbsorbingProcess  # or another one: see `process_type`

    def __post_init__(self) -> None:
        remedy = f"set process={self.process_type.example}"
        require(f"objective {type(self).__name__}", self.process, self.process_type, remedy)

    def __call__(
        self,
        denoiser: BaseDenoiser,
        x0: Tensor,
        weight: Tensor,
        draws: Draws,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> Loss:
        """The loss of one batch.

        Args:
            denoiser: the model.
            x0, weight, draws, cond, valid: as in `TrainingBatch`.

        Raises:
            ValueError: if a token of weight > 0 is never emitted by the vocabulary: its loss would
                be infinite. On a GPU, the first of every 16 calls checks this.
        """
        x0 = x0.long()
        weight = weight.float()
        self._calls += 1
        if not x0.is_cuda or self._calls % _CHECKED == 1:
            vocab = self.process.vocab
            bad = (weight > 0) & ~vocab.is_emitted(x0.device)[x0]
            if bad.any():
                raise ValueError(
                    f"token id {int(x0[bad][0])} has weight > 0 but is never emitted by this "
                    f"vocabulary (never_emitted {vocab.never_emitted}); "
                    "give such positions weight 0"
                )
        batch = TrainingBatch(x0, weight, draws, cond, None if self.masks_padding else valid)
        return self.compute(denoiser, batch)

    @abstractmethod
    def compute(self, denoiser: Any, batch: TrainingBatch) -> Loss:
        """`__call__` of a denoiser that `denoiser` made, with checked int64 `x0` and float32
        `weight`."""

    def token_bound(self, denoiser: Any, batch: TrainingBatch, u: Tensor) -> Tensor:
        """One draw of what each token adds to a bound on -log p(x0): (B, L) nats, 0 where the
        weight is 0.

        The bound is its mean over `u`, uniform in (0, 1), and over `batch.draws`.

        Args:
            denoiser: the model, or a wrapper of it.
            batch: what is scored.
            u: (B,) float64, which time, step or place in an order is drawn in each row.

        Raises:
            ValueError: if the objective has no likelihood.
        """
        raise self.without_likelihood()

    def without_likelihood(self) -> ValueError:
        """Why there is no likelihood, and what to do instead."""
        command = "judge_text" if self.process.vocab.complement is None else "judge"
        return ValueError(
            f"objective {type(self).__name__} has no likelihood: {self.no_likelihood}; judge its "
            f"samples instead (python -m dnadiff.{command})"
        )

    def where(self, chosen: Tensor) -> Positions:
        """The positions `chosen (B, L)` bool, or all of them if the cost of every token can be
        computed and that is faster."""
        few = chosen.is_cuda and self.process.vocab.size <= _FEW_TOKENS
        return Positions(chosen, few and self.everywhere)

    def evaluation(self) -> Objective:
        """The form of this objective with the lowest variance, for validation; by default the
        bound, whatever is trained on."""
        found = copy.copy(self)
        found.bound = True
        return found

    def notes(self) -> list[str]:
        """What the log of a training says about its settings."""
        return []

    def state_dict(self) -> Config:
        """What a checkpoint holds besides the denoiser, for a run that is resumed."""
        return {}

    def load_state_dict(self, state_dict: Config) -> None:
        """Continue with the `state_dict` of an interrupted run."""

    def parameterization(self) -> Parameterization:
        """What the network's logits mean under this objective."""
        return self.process.parameterization()

    def denoiser(self, backbone: Backbone, time_conditioning: bool | None = None) -> BaseDenoiser:
        """The denoiser that this objective trains and samplers call; the same after loading a
        checkpoint.

        With `time_conditioning` the network is conditioned on the noise level; None is the
        objective's default, if the network has a time input. A backbone that does not fit is a
        ValueError.
        """
        check_fit(type(self), backbone, time_conditioning)
        if time_conditioning is None:
            time_conditioning = self.time_conditioning and backbone.takes_sigma
        return self.make_denoiser(backbone, time_conditioning)

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BaseDenoiser:
        """`denoiser` for a backbone that fits."""
        return Denoiser(backbone, self.parameterization(), self.process.noise, time_conditioning)


@checked_dataclass
class MaskedObjective(Objective):
    """A bound on -log p from masked positions alone: mask, evaluate the denoiser there, weight each
    row.

    Logits exist at masked positions only, which saves most of the memory with a large vocabulary.
    Positions of weight 0 are never masked: an N in a genome stays visible as N. If all weights are
    0, the loss and its gradient are exactly 0.

    Args:
        process: the absorbing process.
        masking: how xt is drawn; it must fit the noise schedule.
        protocol: `count`: only counted tokens are masked, and the network knows which positions are
            padding. `mdlm`, for text: padding is masked like any token and the network does not
            know of it, as in MDLM's code. Padding is never counted.
    """

    masking: Masking = field(default_factory=Bernoulli)
    protocol: Protocol = field(default="count", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.masks_padding = self.protocol == "mdlm"
        if self.masks_padding and self.process.vocab.complement is not None:
            raise ValueError(
                "objective.protocol=mdlm corrupts padding, which is for text; DNA has "
                "protocol=count"
            )
        self.masking.check(self.process.noise)

    def notes(self) -> list[str]:
        return self.masking.notes(self.bound)

    @abstractmethod
    def token_nll(
        self, denoiser: Any, batch: TrainingBatch, masked: MaskedBatch, positions: Positions
    ) -> Tensor:
        """Cost of each masked token before its row's weight: `(M,)` in row-major order of the
        positions that `where` made."""

    def compute(self, denoiser: Any, batch: TrainingBatch) -> Loss:
        masked, chosen = self.masked_positions(batch)
        positions = self.where(chosen)
        nll = positions.only(self.token_nll(denoiser, batch, masked, positions))
        return self.reduced(nll, batch.weight, masked, positions)

    def masked_positions(self, batch: TrainingBatch) -> tuple[MaskedBatch, Tensor]:
        """The corrupted batch, and which positions (B, L) are masked and counted."""
        counted = batch.weight > 0
        maskable = ones_like(counted) if self.masks_padding else counted
        masked = self.corrupt(batch.x0, maskable, batch.draws)
        return masked, (masked.xt == self.process.vocab.mask_id) & counted

    def reduced(
        self, nll: Tensor, weight: Tensor, masked: MaskedBatch, positions: Positions
    ) -> Loss:
        """The loss from the cost of each token (M,): the bound, a mean over all tokens, or the
        plain mean over masked tokens."""
        counted = positions.at(weight)
        num_tokens = weight.sum()
        nll = nll * counted
        bound = mean_over(nll * positions.at(masked.weights()).to(nll), num_tokens)
        if self.bound:
            return Loss(bound, bound.detach(), num_tokens)
        num_masked = counted.sum()
        return Loss(mean_over(nll, num_masked), bound.detach(), num_tokens, num_masked)

    def rows(self, x: Tensor, fill: float = 0) -> Tensor:
        """`x (B, L)` with one row for each part that is masked on its own, a sequence by default;
        `fill` completes short rows."""
        return x

    def corrupt(self, x0: Tensor, maskable: Tensor, draws: Draws) -> MaskedBatch:
        """`x0 (B, L)` masked where `maskable (B, L)` bool."""
        return self.masking(self.process, x0, maskable, draws)

    def evaluation(self) -> Self:
        # with exact counts in continuous time, with the same steps in discrete time
        bound = copy.copy(self)
        bound.masking, bound.bound = self.masking.evaluation(), True
        return bound


def mean_over(nll: Tensor, num_tokens: Tensor) -> Tensor:
    """The sum of `nll (M,)` per token; 0 for an empty batch."""
    return nll.sum() / num_tokens.clamp(min=_MIN_TOKENS)


def check_fit(
    objective: type[Objective],
    backbone: Backbone,
    time_conditioning: bool | None = None,
) -> None:
    """Raise a ValueError if the objective does not fit the backbone, or takes no time."""
    kind = type(backbone)
    if issubclass(kind, objective.reads):
        if time_conditioning and not objective.takes_time:
            raise ValueError(
                f"time_conditioning=true, but objective {objective.__name__} has no time; leave it "
                "out"
            )
        return
    why = ""
    if issubclass(objective.reads, BlockBackbone) and kind.reads_both_strands:
        why = (
            ". This one reads both strands, and blocks on the second one run from right to left: "
            "a block would see those that follow it"
        )
    elif not issubclass(kind, (BidirectionalBackbone, CausalBackbone, BlockBackbone)):
        why = (
            f"; derive {kind.__name__} from {objective.reads.__name__} if it reads sequences in "
            "that way"
        )
    raise ValueError(
        f"objective {objective.__name__} does not fit backbone {kind.__name__}: it needs "
        f"{objective.reads.described}{why}"
    )
