"""The masked language model of BERT (arXiv 1810.04805, section 3.1), a pretraining from which diffusion can start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.objective.base import FEW, Loss, Objective, refuse_unemittable, x0_nll
from dnadiff.parameterization import Parameterization, Softmax
from dnadiff.process import AbsorbingProcess


class MLM(Objective):
    """Mean cross-entropy of a random 15 % of the tokens: 80 % of them hidden by the mask, 10 % replaced, 10 % left as they are.

    Replacements are uniform over the letters that the vocabulary emits, the right one among them. `nll` is this mean and
    no bound on -log p, in validation too; `python -m dnadiff.evaluate` gives the bound of the network used as a diffusion model.

    Args:
        process: the absorbing process; a network with a time input is told the time at which so many tokens are masked.
        selected: share of the tokens that are predicted.
        masked: share of these that the mask hides.
        replaced: share of these that turn into a random letter.
    """

    def __init__(self, process: AbsorbingProcess, selected: float = 0.15, masked: float = 0.8, replaced: float = 0.1) -> None:
        super().__init__(process)
        if not 0 < selected <= 1:
            raise ValueError(f"selected {selected} must lie in (0, 1]; BERT's value is 0.15 (objective.selected)")
        if not (masked >= 0 and replaced >= 0 and masked + replaced <= 1):
            raise ValueError(
                f"masked {masked} and replaced {replaced} must be shares with a sum of at most 1; BERT's values are 0.8 and 0.1"
            )
        self.selected, self.masked, self.replaced = selected, masked, replaced

    def parameterization(self) -> Parameterization:
        """A softmax over the letters at every position: a visible token may be a wrong one."""
        return Softmax(self.process.vocab, zero_masking=True, carry_over=False)

    def corrupt(self, x0: Tensor, counted: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """xt and which positions are predicted, `(B, L)` both; only positions in `counted (B, L)` bool are touched."""
        select, kind, letter = (draws.uniform(purpose, x0.shape[1]) for purpose in ("mask", "kind", "letter"))
        chosen = (select < self.selected).to(x0.device) & counted
        emitted = torch.tensor(self.process.vocab.emitted, device=letter.device)
        random = emitted[(letter * len(emitted)).long().clamp(max=len(emitted) - 1)].to(x0.device)
        hidden, changed = (kind < self.masked).to(x0.device), (kind < self.masked + self.replaced).to(x0.device)
        xt = torch.where(chosen & changed, random, x0)
        return torch.where(chosen & hidden, self.process.vocab.mask_id, xt), chosen

    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """See `Objective`; the count is that of the predicted tokens."""
        x0, weight = x0.long(), weight.float()
        refuse_unemittable(x0, weight, self.process.vocab)
        xt, chosen = self.corrupt(x0, weight > 0, draws)
        alpha = torch.full((len(x0),), 1 - self.selected * self.masked, device=x0.device)
        t, mask_id = self.process.noise.inverse(alpha), self.process.vocab.mask_id
        nll = x0_nll(denoiser, x0, xt, t, cond, chosen, valid, mask_id)[0] * weight[chosen]  # (M,)
        tokens = weight[chosen].sum()
        loss = nll.sum() / tokens.clamp(min=FEW)
        return Loss(loss, loss.detach(), tokens)
