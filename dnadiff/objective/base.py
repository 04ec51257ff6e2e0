"""What an objective returns, the denoiser it trains, and the loop over masked positions that the diffusion bounds share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dnadiff.denoiser import Denoiser
from dnadiff.draws import Draws
from dnadiff.objective.masking import Bernoulli, Masked, Masking
from dnadiff.parameterization import SUBS, Parameterization
from dnadiff.process import AbsorbingProcess
from dnadiff.vocab import Vocab

FEW = 1e-12  # an empty batch divides 0 by this, not by 0
PROTOCOLS = ("count", "mdlm")


class Loss(NamedTuple):
    """One batch's result.

    Attributes:
        loss: what is differentiated, nats per token.
        nll: the objective's estimate of the bound on -log p, nats per token, detached.
        num_tokens: total weight of the tokens behind both; averages over batches weigh by it.
    """

    loss: Tensor
    nll: Tensor
    num_tokens: Tensor


class Objective(ABC):
    """A training loss that never sees a network's inside: only the denoiser it wraps it in.

    Args:
        process: the absorbing process; its vocabulary says which tokens can be counted.

    Attributes:
        causal: which backbones fit; `Objective.causal == backbone.causal` is checked before data is loaded.
        time_conditioning: whether the network is told the noise level when the configuration leaves that open (null).
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    causal: bool = False
    time_conditioning: bool = False

    def __init__(self, process: AbsorbingProcess) -> None:
        self.process = process

    @abstractmethod
    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """The loss of `x0 (B, L)` under `weight (B, L)` in [0, 1] (0: padding or unknown), with the noise of `draws`."""

    def evaluation(self) -> Objective:
        """The form of this objective with the least noise, for validation; itself unless there is a better one."""
        return self

    def parameterization(self) -> Parameterization:
        """What the network's logits mean under this objective."""
        return SUBS(self.process.vocab)

    def denoiser(self, backbone: nn.Module, time_conditioning: bool | None = None) -> nn.Module:
        """The backbone as this objective trains it and samplers call it; the same after loading a checkpoint.

        Args:
            backbone: the network.
            time_conditioning: tell it the noise level; None is the objective's own habit.

        Raises:
            ValueError: if they exclude each other.
        """
        check_fit(type(self), backbone)
        told = self.time_conditioning if time_conditioning is None else time_conditioning
        return Denoiser(backbone, self.parameterization(), self.process.noise, told)


class MaskedObjective(Objective):
    """A bound on -log p from masked positions alone: mask, ask the denoiser there, weigh each row.

    Logits exist at masked positions only: with a large vocabulary that is most of the memory. Positions of weight 0 are
    never masked: an N in a genome stays visible as N. With all weights 0 the loss is exactly 0 and its gradient too.

    Args:
        process: the absorbing process.
        masking: how xt is drawn.
        protocol: `count`: only what is counted is masked, and the network is told which positions are padding. `mdlm`, for text: padding
            is masked like any token and the network is not told, as in MDLM's code; it is counted in neither.
    """

    def __init__(self, process: AbsorbingProcess, masking: Masking | None = None, protocol: str = "count") -> None:
        super().__init__(process)
        if protocol not in PROTOCOLS:
            raise ValueError(f"objective.protocol {protocol!r} is not known; choose one of {', '.join(PROTOCOLS)}")
        if protocol == "mdlm" and process.vocab.complement is not None:
            raise ValueError("objective.protocol=mdlm corrupts padding, which is for text; DNA has protocol=count")
        self.protocol = protocol
        self.masking = masking or Bernoulli()
        self.masking.check(process.noise)

    @abstractmethod
    def token_nll(
        self, denoiser: nn.Module, x0: Tensor, masked: Masked, positions: Tensor, cond: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        """Cost of each masked token before its row's weight: `(M,)` in row-major order of `positions (B, L)` bool."""

    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """See `Objective`."""
        x0, weight = x0.long(), weight.float()
        refuse_unemittable(x0, weight, self.process.vocab)
        counted = weight > 0
        masked = self.masking(self.process, x0, torch.ones_like(counted) if self.protocol == "mdlm" else counted, draws)
        positions = (masked.xt == self.process.vocab.mask_id) & counted
        valid = self.told(valid)
        nll = self.token_nll(denoiser, x0, masked, positions, cond, valid) * weight[positions]  # (M,)
        row = positions.nonzero()[:, 0]
        bound = (nll * masked.weight.to(nll)[row]).sum() / weight.sum().clamp(min=FEW)
        return self.reduce(bound, nll.sum() / weight[positions].sum().clamp(min=FEW), weight.sum())

    def told(self, valid: Tensor | None) -> Tensor | None:
        """What the network is told of padding."""
        return None if self.protocol == "mdlm" else valid

    def reduce(self, bound: Tensor, mean: Tensor, num_tokens: Tensor) -> Loss:
        """What to differentiate: the bound, or the plain mean over masked tokens."""
        return Loss(bound, bound.detach(), num_tokens)


def x0_nll(
    denoiser: nn.Module,
    x0: Tensor,
    xt: Tensor,
    t: Tensor,
    cond: Tensor | None,
    positions: Tensor,
    valid: Tensor | None,
    mask_id: int,
) -> tuple[Tensor, Tensor]:
    """-log p(x0) and log p(mask) under the law that the objective trains (`Denoiser.x0_log_probs`), each `(M,)`.

    A visible position is asked about only where that law does not carry it over.
    """
    target = x0[positions][:, None]
    if not denoiser.fused_head:
        log_probs = denoiser.x0_log_probs(xt, t, cond, positions, valid)  # (M, V)
        return -log_probs.gather(-1, target)[:, 0], log_probs[:, mask_id]
    banned = denoiser.banned
    ids = target if mask_id in banned else torch.cat([target, torch.full_like(target, mask_id)], 1)
    log_sum, at = denoiser.log_sum_and_logits(ids, banned, xt, t, cond, positions, valid)
    on_mask = torch.full_like(log_sum, -torch.inf) if mask_id in banned else at[:, 1] - log_sum
    return log_sum - at[:, 0], on_mask


def check_fit(objective: type[Objective], backbone: nn.Module) -> None:
    """Refuse an objective that the backbone cannot serve.

    Raises:
        ValueError: naming both and what would fit.
    """
    if objective.causal != backbone.causal:
        wanted = "a causal backbone, transformer or mamba" if objective.causal else "a bidirectional backbone, such as caduceus or dit"
        name = backbone.__name__ if isinstance(backbone, type) else type(backbone).__name__
        raise ValueError(f"objective {objective.__name__} does not fit backbone {name}: it needs {wanted}")


def refuse_unemittable(x0: Tensor, weight: Tensor, vocab: Vocab) -> None:
    """Refuse tokens of weight > 0 that have probability 0 under the model: their loss would be infinite.

    Raises:
        ValueError: naming one such id.
    """
    bad = (weight > 0) & ~vocab.is_emitted(x0.device)[x0.long()]
    if bad.any():
        raise ValueError(
            f"token id {int(x0[bad][0])} has weight > 0 but is never emitted by this vocabulary (never_emitted {vocab.never_emitted}); "
            "give such positions weight 0"
        )
