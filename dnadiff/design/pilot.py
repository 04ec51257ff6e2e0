"""Unguided samples of a request, and what an automatic `beta` learns from them.

The tilted distribution p(x) exp(beta r(x)) has the mean reward m(beta), which grows with beta, and
the effective fraction of unguided samples (mean w)^2 / mean w^2, w = exp(beta r), falls. Both are
estimated from a pilot of unguided samples: beta is the largest one at which m(beta) is at most a
quantile of the unguided rewards, and the effective fraction at least 0.1. A pilot knows the
quantile better than the beta that reaches it, so `refined` corrects beta on the proposals that
designs are drawn from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy import ndarray

from dnadiff.design.generate import Design, Designs, effective_size
from dnadiff.design.request import Request, Target
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import LARGEST, JsonDict, is_number
from dnadiff.genomics.metrics.composition import evenly_spaced
from dnadiff.progress import advance

if TYPE_CHECKING:
    from dnadiff.design.method.base import Designer

_AUTO = "q0.9"
_LEAST_EFFECTIVE = 0.1
_MAX_SDS = 50.0  # the largest beta that is tried, in 1 / standard deviations
_STEPS = 60  # of a bisection: 2**-60 of its interval
_FEWEST = 16  # proposals that refine beta
_MAX_TEMPLATES = 32
_EACH = 8  # samples of a template
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.85, 0.9, 0.95)


class Beta(NamedTuple):
    """The option `beta`.

    Attributes:
        kind: `number`, an inverse temperature in 1 / reward; `quantile` of unguided rewards, which
            the tilted mean reaches; `sd`, in 1 / standard deviations of unguided rewards.
        number: its value.
    """

    kind: str
    number: float

    @classmethod
    def parse(cls, given: float | str) -> Self:
        """Beta from a number of at least 0, `auto` (= q0.9), `q0.95` or `2sd`; others are a
        ValueError."""
        if is_number(given) and 0 <= given <= LARGEST:
            return cls("number", given)
        form = r"(?:q(?P<quantile>0?\.\d+)|(?P<sd>\d+\.?\d*|\.\d+)sd)"
        found = re.fullmatch(form, _AUTO if given == "auto" else str(given))
        for kind, text in found.groupdict().items() if found else ():
            if text and float(text):
                return cls(kind, float(text))
        raise ValueError(
            f"beta {given!r} must be a number of at least 0, auto, a quantile of unguided rewards "
            "such as q0.95, or in units of their standard deviation, such as 2sd"
        )

    @property
    def is_automatic(self) -> bool:
        """Whether it needs a pilot."""
        return self.kind != "number"

    def pilot_size(self, given: int | None, has_weights: bool) -> int:
        """Samples of the pilot, `given` or the default; a ValueError if they are too few."""
        if given is not None and given < _FEWEST and self.is_automatic:
            raise ValueError(
                f"pilot {given} is too few samples to choose beta by; set at least {_FEWEST}, or "
                "beta to a number"
            )
        automatic = 256 if has_weights else 512  # nothing corrects beta later without weights
        return (automatic if self.is_automatic else 64) if given is None else given


class Choice(NamedTuple):
    """What a pilot chose.

    Attributes:
        beta: the inverse temperature, in 1 / reward.
        levels: the mean reward that designs reach, by the number of their template; empty if it is
            not chosen.
        effective: effective number of unguided samples at this beta; None if beta was given.
        sd: standard deviation of unguided rewards within a template; None if beta was given.
    """

    beta: float
    levels: Mapping[str, float] = {}  # keys as JSON has them
    effective: float | None = None
    sd: float | None = None


@dataclass
class Pilot:
    """Unguided samples of a request, evenly spaced over at most 32 of its templates.

    Attributes:
        groups: (N,) numbers of the templates.
        rewards, log_weight: (N,); the weights correct for constraints.
        designs: the samples (N), with their rewards.
        targets: their templates.
        nfe: network calls.
    """

    groups: ndarray
    rewards: ndarray
    log_weight: ndarray
    designs: Designs
    targets: Sequence[Target] = ()
    nfe: int = 0

    @classmethod
    def of(
        cls,
        generator: Designer,
        request: Request,
        size: int,
        seed: int,
        batch_size: int,
    ) -> Self:
        """Draw `size` samples; their noise depends on `seed` and their number in the pilot.

        Raises:
            ValueError: if the reward fails.
        """
        templates = evenly_spaced(request.num_groups, min(_MAX_TEMPLATES, max(size // _EACH, 1)))
        groups = templates[np.arange(size) * len(templates) // max(size, 1)]
        numbers = groups * request.each + np.arange(size) % request.each
        designs = Designs()
        every: list[Target] = []
        rewards: list[float] = []
        log_weight: list[float] = []
        nfe = 0
        key = hash64(seed, "unguided")
        is_dna = generator.tokenizer.vocab.complement is not None
        for start in range(0, size, batch_size):
            rows = range(size)[start : start + batch_size]
            targets = [request[int(numbers[i])]._replace(start=None) for i in rows]
            batch = generator.fill(list(zip(rows, targets)), key)
            texts = [generator.text(*each) for each in zip(targets, batch.tokens)]
            values = generator.goal.reward([text.upper() for text in texts] if is_dna else texts)
            weight = np.zeros(len(rows)) if batch.log_weight is None else batch.log_weight
            batch = batch._replace(rewards=values, reward_calls=len(rows), log_weight=None)
            facts = generator.facts(batch, rows, seed)
            whole = map(request.placed, targets, texts)
            designs += [Design(text, **each) for text, each in zip(whole, facts)]
            every += targets
            rewards += values.tolist()
            log_weight += weight.tolist()
            nfe += batch.nfe
            advance(len(rows))
        return cls(groups, np.array(rewards), np.array(log_weight), designs, every, nfe)

    def chosen(self, beta: Beta, name: str) -> Choice:
        """The inverse temperature that `beta` means for a reward of this name.

        Raises:
            ValueError: if it must be chosen, and the rewards are all equal.
        """
        if not beta.is_automatic:
            return Choice(beta.number)
        means = {group: float(self.rewards[self.groups == group].mean()) for group in self.groups}
        rewards = self.rewards - np.array([means[group] for group in self.groups])
        sd = float(rewards.std())
        if sd < 1e-9 * max(1.0, abs(float(self.rewards.mean()))):
            raise ValueError(
                f"reward {name} is {self.rewards[0] + 0.0:g} for all {len(rewards)} unguided "
                "samples, so there is nothing to choose beta by; choose another reward or length, "
                "or set beta to a number"
            )
        number = beta.number / sd
        levels: dict[str, float] = {}
        if beta.kind == "quantile":
            level = quantile(rewards, beta.number)
            levels = {str(group): mean + level for group, mean in means.items()}
            weight = self.log_weight if np.isfinite(self.log_weight).any() else 0.0 * rewards
            least = _LEAST_EFFECTIVE * len(rewards)
            number = min(
                _largest(lambda b: tilted_mean(rewards, weight, b) <= level, 0.0, _MAX_SDS / sd),
                _largest(lambda b: effective_size(b * rewards) >= least, 0.0, _MAX_SDS / sd),
            )
        return Choice(number, levels, effective_size(number * rewards), sd)

    def summary(self) -> JsonDict:
        """What the JSON file of a run says of them."""
        known = {
            key: [vars(each)[key] for each in self.designs]
            for key in ("log_prob", "longest_match", "judge")
            if self.designs and key in vars(self.designs[0])
        }
        quantiles = {f"{each:g}": quantile(self.rewards, each) for each in _QUANTILES}
        return {
            "number": len(self.designs),
            "reward": {
                "mean": float(self.rewards.mean()),
                "sd": float(self.rewards.std()),
                "quantiles": quantiles,
            },
            **{key: float(np.mean(values)) for key, values in known.items()},
            "calls": len(self.designs),
            "network_calls": self.nfe,
        }


def quantile(values: ndarray, level: float) -> float:
    """The quantile of the mid-distribution function, linear between the values: F(v) counts the
    values below v, and half of those equal to it (Parzen 2004, Statistical Science 19:652).

    Unlike other quantiles it moves smoothly for rewards on a grid, such as matches of a motif.
    """
    found, counts = np.unique(values, return_counts=True)
    return float(np.interp(level, (np.cumsum(counts) - counts / 2) / len(values), found))


def tilted_mean(rewards: ndarray, log_weight: ndarray, beta: float) -> float:
    """The mean of rewards (N,) weighted by exp(log_weight + beta reward)."""
    log_weight = log_weight + beta * rewards
    w = np.exp(log_weight - log_weight.max())
    return float(w @ rewards / w.sum())


def refined(rewards: ndarray, log_weight: ndarray, beta: float, level: float | None) -> float:
    """What is added to `beta` so that the mean of designs with these rewards and weights (N,) is
    `level`: between -beta and beta, and 0 without a level or for fewer than 16 designs."""
    if level is None or len(rewards) < _FEWEST or not np.isfinite(log_weight).any():
        return 0.0
    return _largest(lambda more: tilted_mean(rewards, log_weight, more) <= level, -beta, beta)


def _largest(fits: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number of an interval that fits, if all below it do; `low` if none does."""
    if fits(high):
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
