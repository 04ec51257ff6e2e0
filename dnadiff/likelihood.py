"""The NELBO of given sequences with error bars, and the curve h(n) behind it.

Count form: with k uniform on 1..L and k positions masked at random, (L/k) times their summed cross-entropy has the
NELBO as its mean (arXiv 2310.01334, section 2; the equal of MDLM's integral over t for every schedule). The counts are
stratified, two draws a stratum, so that the Monte-Carlo error is estimated without bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dnadiff.bootstrap import Interval, blocks, ratio
from dnadiff.draws import Draws, hash64
from dnadiff.process import AbsorbingProcess


@dataclass(frozen=True)
class Curve:
    """h(n): mean cross-entropy (nats) of a masked token when n random others of its sequence are visible.

    Attributes:
        visible: (bins,) mean n of each bin.
        nats: (bins,) h.
        se: (bins,) standard error over draws.
    """

    visible: np.ndarray
    nats: np.ndarray
    se: np.ndarray


@dataclass(frozen=True)
class Likelihood:
    """NELBO estimates of S sequences.

    Attributes:
        nats: for each group of tokens, (S, draws): estimates of the group's share of the sequence's NELBO.
        tokens: for each group, (S,) tokens counted.
        counts: (S, draws) masked tokens k.
        available: (S,) tokens that could be masked.
        block_size: windows per block of the bootstrap.
    """

    nats: Mapping[str, np.ndarray]
    tokens: Mapping[str, np.ndarray]
    counts: np.ndarray
    available: np.ndarray
    block_size: int

    def per_sequence(self, group: str = "all") -> np.ndarray:
        """(S,) nats of each sequence: the mean over draws."""
        return self.nats[group].mean(1)

    def interval(self, group: str = "all") -> Interval:
        """Nats per token with `se_total`: which stretch of sequence was tested, and the Monte-Carlo noise."""
        return ratio(self.per_sequence(group), self.tokens[group], blocks(len(self.available), self.block_size))

    def se_mc(self, group: str = "all") -> float:
        """Standard error in nats per token for these very sequences: Monte-Carlo noise alone.

        Each stratum of counts holds two draws, so a quarter of their squared difference estimates the variance of
        the stratum's mean without bias.
        """
        pairs = self.nats[group].reshape(len(self.available), -1, 2)
        variance = ((pairs[..., 0] - pairs[..., 1]) ** 2 / 4).sum(1) / pairs.shape[1] ** 2
        return float(np.sqrt(variance.sum()) / self.tokens[group].sum())

    def difference(self, other: np.ndarray, group: str = "all") -> Interval:
        """This model minus another, nats per token, paired by sequence: `other (S,)` nats of the same tokens."""
        return ratio(self.per_sequence(group) - other, self.tokens[group], blocks(len(self.available), self.block_size))

    def curve(self, bins: int = 16) -> Curve:
        """h(n) in `bins` equal ranges of n, with all groups together."""
        share = self.nats["all"] / np.maximum(self.available[:, None], 1)  # (L/k) sum / L = mean cross-entropy of the k masked
        visible = self.available[:, None] - self.counts
        longest = max(int(self.available.max()), 1)
        index = np.minimum(visible * bins // longest, bins - 1)
        used = [b for b in range(bins) if ((index == b) & (self.counts > 0)).sum() > 1]
        chosen = [(index == b) & (self.counts > 0) for b in used]
        weighted = [_weighted(share[c], self.counts[c]) for c in chosen]
        return Curve(np.array([visible[c].mean() for c in chosen]), np.array([w[0] for w in weighted]), np.array([w[1] for w in weighted]))

    def summary(self, group: str = "all") -> dict[str, float]:
        """`nll` (nats per token), `bits`, `perplexity`, `se_mc`, `se_total`, the 95 % interval of the bits, `tokens`."""
        total = self.interval(group)
        bit = math.log(2)
        return {
            "nll": total.value,
            "bits": total.value / bit,
            "perplexity": math.exp(total.value),
            "se_mc": self.se_mc(group),
            "se_total": total.se,
            "bits_low": total.low / bit,
            "bits_high": total.high / bit,
            "tokens": int(self.tokens[group].sum()),
        }


def _weighted(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Mean of `values` and its standard error under `weights`."""
    mean = float(np.average(values, weights=weights))
    share = weights / weights.sum()
    return mean, float(np.sqrt((share**2 * (values - mean) ** 2).sum()))


def stratified_counts(available: Tensor, draw: int, num_draws: int, draws: Draws) -> Tensor:
    """Masked tokens of draw number `draw`: `(B,)`, uniform on stratum draw // 2 of num_draws // 2 over 1..L_i."""
    strata = num_draws // 2
    u = (draws.at(draw).uniform("count") + draw // 2) / strata
    count = (u.to(available.device) * available).floor().long() + 1
    return torch.minimum(count, available)


@torch.no_grad()
def estimate(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    batches: Iterable[tuple[Tensor, Mapping[str, Tensor]]],
    num_draws: int = 8,
    seed: int = 0,
    block_size: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Likelihood:
    """Monte-Carlo NELBO of each sequence by the count form.

    Args:
        denoiser: in evaluation mode; not conditioned on labels.
        process: the absorbing process.
        batches: pairs of `ids (B, L)` and the groups of tokens to count, `{name: (B, L) bool}`; `all` must be there and hold
            the others: positions outside it are never masked nor counted.
        num_draws: network calls per sequence, even and at least 2.
        seed: the noise of sequence number i depends on (seed, i) alone.
        block_size: windows per bootstrap block.
        progress: called with the number of sequences done.

    Raises:
        ValueError: if `num_draws` is odd or below 2.
    """
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"num_draws {num_draws} must be even and at least 2: two draws a stratum give the Monte-Carlo error")
    device = next(denoiser.parameters()).device
    nats: dict[str, list[Tensor]] = {}
    tokens: dict[str, list[Tensor]] = {}
    counts, available, done = [], [], 0
    for ids, groups in batches:
        ids = ids.to(device).long()
        groups = {name: mask.to(device) for name, mask in groups.items()}
        draws = Draws(hash64(seed, "likelihood"), torch.arange(done, done + len(ids), device=device))
        rows = groups["all"].sum(-1)
        results = [_one_draw(denoiser, process, ids, groups, rows, j, num_draws, draws) for j in range(num_draws)]
        counts.append(torch.stack([c for c, _ in results], 1).cpu())
        available.append(rows.cpu())
        for name, mask in groups.items():
            nats.setdefault(name, []).append(torch.stack([n[name] for _, n in results], 1).cpu())
            tokens.setdefault(name, []).append(mask.sum(-1).cpu())
        done += len(ids)
        if progress is not None:
            progress(len(ids))
    if not counts:
        raise ValueError("there is no sequence to evaluate")
    return Likelihood(
        {name: torch.cat(parts).numpy() for name, parts in nats.items()},
        {name: torch.cat(parts).numpy() for name, parts in tokens.items()},
        torch.cat(counts).numpy(),
        torch.cat(available).numpy(),
        block_size,
    )


def _one_draw(
    denoiser: nn.Module,
    process: AbsorbingProcess,
    ids: Tensor,
    groups: Mapping[str, Tensor],
    available: Tensor,
    draw: int,
    num_draws: int,
    draws: Draws,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One mask per sequence: its counts `(B,)` and each group's estimate `(B,)` float64."""
    count = stratified_counts(available, draw, num_draws, draws)
    xt = process.corrupt_count(ids, count, groups["all"], draws.at(draw))
    positions = (xt == process.vocab.mask_id) & groups["all"]
    t = process.noise.inverse(1 - count / available.clamp(min=1)).clamp(max=1.0)
    log_probs = denoiser.log_probs(xt, t.float(), positions=positions)
    nll = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device if ids.device.type != "mps" else "cpu")
    nll[positions.to(nll.device)] = -log_probs.gather(-1, ids[positions][:, None])[:, 0].to(nll)
    factor = (available / count.clamp(min=1)).to(nll)
    return count, {name: factor * (nll * mask.to(nll)).sum(-1) for name, mask in groups.items()}
