"""The masked language model of BERT (arXiv 1810.04805, section 3.1), a pretraining from which
diffusion can start."""

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch
from dnadiff.diffusion.process import Parameterization, Softmax
from dnadiff.fields import Fraction, PositiveFraction, checked_dataclass


@checked_dataclass
class MLM(Objective):
    """Mean cross-entropy of a random 15 % of the tokens: 80 % of them masked, 10 % replaced, 10 %
    unchanged.

    Replacements are uniform over the ids that the vocabulary emits, including the correct one.
    `nll` is this mean, also in validation, and no bound on -log p; `python -m dnadiff.evaluate`
    computes the bound of the network used as a diffusion model.

    Args:
        process: the absorbing process; a network with a time input is conditioned on the time at
            which as many tokens are masked.
        selected: fraction of the tokens that are predicted.
        masked: fraction of these that are masked.
        replaced: fraction of these that are replaced by a random token.
    """

    trains_bound = False

    selected: PositiveFraction = 0.15
    masked: Fraction = 0.8
    replaced: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked + self.replaced > 1:
            raise ValueError(
                f"masked {self.masked} and replaced {self.replaced} must sum to at most 1; BERT's "
                "values are 0.8 and 0.1"
            )

    def parameterization(self) -> Parameterization:
        return Softmax(
            self.process.vocab, zero_masking=True, carry_over=False
        )  # a visible token may be a wrong one

    def corrupt(self, x0: Tensor, counted: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """xt and which positions are predicted, `(B, L)` both; only positions in `counted (B, L)`
        bool change."""
        select, kind, letter = (
            draws.uniform(purpose, x0.shape[1]) for purpose in ("mask", "kind", "letter")
        )
        chosen = (select < self.selected).to(x0.device) & counted
        random = self.process.vocab.uniform_token(letter).to(x0.device)
        hidden = (kind < self.masked).to(x0.device)
        changed = (kind < self.masked + self.replaced).to(x0.device)
        xt = torch.where(chosen & changed, random, x0)
        return torch.where(chosen & hidden, self.process.vocab.mask_id, xt), chosen

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        x0 = batch.x0
        weight = batch.weight
        xt, chosen = self.corrupt(x0, weight > 0, batch.draws)
        alpha = torch.full((len(x0),), 1 - self.selected * self.masked, device=x0.device)
        t, weight = self.process.noise.inverse(alpha), weight[chosen]  # (M,)
        nll = -denoiser.x0_log_probs_of(x0, batch.query(xt, t, chosen))[:, 0]
        return Loss.mean(nll * weight, weight.sum())
