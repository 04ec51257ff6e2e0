"""What an objective returns, and the check that tokens can be emitted at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.vocab import Vocab


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
    """A training loss that never sees a network's inside: only `denoiser.log_probs`.

    Attributes:
        causal: which backbones fit; `Objective.causal == backbone.causal` is checked before data is loaded.
    """

    causal: bool = False

    @abstractmethod
    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """The loss of `x0 (B, L)` under `weight (B, L)` in [0, 1] (0: padding or unknown), with the noise of `draws`."""

    def evaluation(self) -> Objective:
        """The form of this objective with the least noise, for validation; itself unless there is a better one."""
        return self


def check_fit(objective: type[Objective], backbone: nn.Module) -> None:
    """Refuse an objective that the backbone cannot serve.

    Raises:
        ValueError: naming both and what would fit.
    """
    if objective.causal != backbone.causal:
        wanted = "a causal backbone" if objective.causal else "a bidirectional backbone, such as caduceus or dit"
        raise ValueError(f"objective {objective.__name__} does not fit backbone {type(backbone).__name__}: it needs {wanted}")


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
