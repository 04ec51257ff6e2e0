"""Orders in which tokens are unmasked one by one, fixed or learned, and the denoiser that has one.

Every position has a score, and the next one is drawn among those that are still masked with
probability in proportion to exp(score) (a Plackett-Luce distribution over orders). Equal scores are
random order, and so masked diffusion.
"""

import torch
from torch import Tensor, nn

from dnadiff.diffusion.denoiser import Backbone, Denoiser, Query, without_gradients
from dnadiff.diffusion.draws import draw
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.process import Parameterization
from dnadiff.fields import NonNegative, PositiveInt, checked_dataclass
from dnadiff.networks.backbone.layers import at_least_float32

_SCALE = 0.25  # of learned scores


@checked_dataclass
class Order:
    """Scores that depend on the position alone: they fall by `steepness` per rank.

    Args:
        steepness: nats per rank. 0 is random order; from about 10 on, ranks are never swapped. With
            a small one many positions compete, about 1/steepness of them from left to right.
        stride: None is from left to right. Otherwise every `stride`-th position comes first, then
            the positions to the right of these, and so on; each such class in random order.
    """

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True

    steepness: NonNegative = 0.0
    stride: PositiveInt | None = None

    def ranks(self, length: int, device: torch.device | str = "cpu") -> Tensor:
        """The rank (L,) of each position, float32; low ranks come first, equal ones in random
        order."""
        return torch.arange(length, device=device).remainder(self.stride or length).float()


class OrderHead(nn.Module):
    """Scores from features: a quarter of a network of two layers, which starts at 0, and the scores
    of an order with a steepness that is learned.

    Adam moves parameters by the same amount whether gradients are clear or noise. Random scores
    cost KL(q || p), in proportion to their variance: a quarter keeps that small while there is
    nothing to learn.
    """

    def __init__(self, width: int, steepness: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, 1)
        self.steepness = nn.Parameter(torch.tensor([float(steepness)]))
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor, ranks: Tensor) -> Tensor:
        """Features (..., D) and ranks (...) -> (...) in float32."""
        found = at_least_float32(self.output(nn.functional.gelu(self.hidden(features)))[..., 0])
        return _SCALE * found - self.steepness * ranks


class OrderDenoiser(Denoiser):
    """A masked diffusion model with an order of its own (`LearnedOrder`).

    Args:
        backbone, parameterization, noise, time_conditioning: as in `Denoiser`.
        order: the order that is fixed, or from which a learned one starts.
        learned: whether there are heads: `proposal` reads the features of the clean sequence (q, in
            training and for the bound), `model` those of the masked one (p). Otherwise both have
            the scores of `order`.
    """

    def __init__(
        self,
        backbone: Backbone,
        parameterization: Parameterization | None,
        noise: NoiseSchedule,
        time_conditioning: bool,
        order: Order,
        learned: bool,
    ) -> None:
        super().__init__(backbone, parameterization, noise, time_conditioning)
        self.order = order
        self.learned = learned
        if learned:
            width = backbone.d_model
            steepness = order.steepness
            self.proposal = OrderHead(width, steepness)
            self.model = OrderHead(width, steepness)

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        raise ValueError(
            f"context_parallel {num_pieces} does not fit objective learned_order, expected 1: an "
            "order is of a whole sequence; set context_parallel=1"
        )

    def proposal_scores(self, query: Query) -> Tensor:
        """The scores of q for the clean sequences `xt`: (B, L). No gradient reaches the network."""
        ranks = self._ranks(query.xt)
        if not self.learned:
            return -self.order.steepness * ranks
        with without_gradients():
            features = self.read_features(query)
        return self.proposal(features, ranks)

    def nll_and_scores(self, x0: Tensor, query: Query) -> tuple[Tensor, Tensor]:
        """`nll` and the scores of p at the M requested positions, from one pass: (M,) each."""
        index = query.places()
        features = self.read_features(query)[index]
        nll = self._nll_of(features, x0[index], query.columns(index))
        return nll, self._scores(features, self._ranks(query.xt)[index])

    def draw_next(self, query: Query, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one of the requested positions of each sequence: its column (B,), and the
        log-probabilities (B, V) of its token.

        Args:
            query: at least one position of each sequence is requested.
            uniform: (B,) float64 in (0, 1).
        """
        features = self.read_features(query)
        xt = query.xt
        scores = self._scores(features, self._ranks(xt))
        column = draw(scores.masked_fill(~query.requested, -torch.inf), uniform)
        at = torch.arange(len(xt), device=xt.device), column
        logits = self._head(features[at], query.columns(at))
        return column, self.parameterization.log_probs(logits, xt[at])

    def _ranks(self, x: Tensor) -> Tensor:
        return self.order.ranks(x.shape[1], x.device).expand(x.shape)

    def _scores(self, features: Tensor, ranks: Tensor) -> Tensor:
        """The scores of p from features (..., D) at positions with these ranks (...)."""
        return self.model(features, ranks) if self.learned else -self.order.steepness * ranks


def masked_log_softmax(scores: Tensor, masked: Tensor) -> Tensor:
    """Log-probabilities (B, L) of the next position among the masked ones, in float32; -inf at
    others, and anything in rows without a masked one."""
    excluded = ~masked & masked.any(-1, keepdim=True)
    return torch.log_softmax(at_least_float32(scores).masked_fill(excluded, -torch.inf), -1)


def columns_of(values: Tensor, masked: Tensor) -> Tensor:
    """Values (M,) at the M masked positions, row-major, as (B, L) with 0 elsewhere."""
    return values.new_zeros(masked.shape).masked_scatter(masked, values)
