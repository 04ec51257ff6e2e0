"""A world of 27 sequences in which every expectation can be summed: networks that are tables, and
masks that are all masks."""

import itertools
from types import SimpleNamespace

import numpy
import pytest
import torch

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.masking import DiscreteTime, MaskedBatch
from dnadiff.networks.backbone.base import BidirectionalBackbone, CausalBackbone

ORDERS = list(itertools.permutations(range(3)))


class Table(BidirectionalBackbone):
    """A network with any output for any input: logits (64, 3, 4), indexed by the three tokens (ids
    0..2, mask 3)."""

    def __init__(self, vocab, logits):
        super().__init__(vocab, 4, takes_sigma=True)
        self.logits = torch.nn.Parameter(logits)

    def features(self, ids, sigma=None, cond=None, valid=None):
        return self.logits[(ids * torch.tensor([16, 4, 1])).sum(-1)]

    def head(self, features):
        return features


class CausalTable(Table, CausalBackbone):
    """The same as a causal network."""


class Everything(DiscreteTime):
    """Every mask of every sequence at one time, each row weighing its probability times `factor`;
    `DiscreteTime` so that D3PM takes it."""

    def __init__(self, joint, t, factor, num_steps=1):
        self.num_steps, self.joint, self.t, self.factor = num_steps, joint, t, factor

    def check(self, noise):
        pass

    def __call__(self, process, x0, maskable, draws):
        masks = torch.tensor(list(itertools.product([False, True], repeat=3))).repeat(27, 1)
        alpha = process.noise.alpha(self.t)
        chance = torch.where(masks, 1 - alpha, alpha).prod(-1) * self.joint.repeat_interleave(8)
        return MaskedBatch(
            torch.where(masks, 3, x0), self.t.expand(len(x0)), chance * self.factor * x0.numel()
        )


@pytest.fixture
def exact(toy):
    """Sums over the toy world.

    `at(objective, denoiser, t, factor, num_steps)`: nats of a sequence at one time;
    `objective(masking)` makes the objective. `continuous(objective, denoiser, noise, p)`: its
    integral over mask probabilities `p` (exact: the integrand is a polynomial).
    `steps(objective, denoiser, noise, T)`: its sum over T steps.
    """
    x0 = toy.sequences.repeat_interleave(8, 0)

    def at(objective, denoiser, t, factor, num_steps=1):
        loss = objective(Everything(toy.joint, t, factor, num_steps))
        return float(loss(denoiser, x0, torch.ones_like(x0), Draws.for_batch(0, len(x0))).nll)

    def continuous(objective, denoiser, noise, p=(0.0, 1.0)):
        x, w = numpy.polynomial.legendre.leggauss(5)
        total = 0.0
        if p[0] == p[1]:
            return 0.0
        for node, weight in zip(p[0] + (p[1] - p[0]) * (x + 1) / 2, (p[1] - p[0]) * w / 2):
            t = noise.inverse(torch.tensor([1 - node], dtype=torch.float64))
            total += weight * at(objective, denoiser, t, noise.weight(t) / -noise.dalpha(t))
        return total

    def steps(objective, denoiser, noise, num_steps):
        total = 0.0
        for i in range(1, num_steps + 1):
            t = torch.tensor([i / num_steps], dtype=torch.float64)
            s = torch.tensor([(i - 1) / num_steps], dtype=torch.float64)
            alpha_t, alpha_s = noise.alpha(t), noise.alpha(s) if i > 1 else 1.0
            total += at(objective, denoiser, t, (alpha_s - alpha_t) / (1 - alpha_t), num_steps)
        return total

    return SimpleNamespace(at=at, continuous=continuous, steps=steps)


@pytest.fixture
def table(toy):
    """A network with random output, in float64; `table(causal=True)` for a causal one: position l
    depends on tokens before it alone."""

    def make(causal=False, seed=1, to_mask=0.0):
        logits = torch.randn(
            64, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        logits[..., 3] += to_mask
        if causal:
            states = torch.arange(64)
            for position, unseen in enumerate(
                (16, 4, 1)
            ):  # tokens to the right of `position` do not matter
                logits[:, position] = logits[states // unseen * unseen, position]
        return (CausalTable if causal else Table)(toy.vocab, logits)

    return make


@pytest.fixture
def chain_rule(toy):
    """Mean nats of a sequence when a denoiser unmasks one position after the other:
    `chain_rule(denoiser, orders)`."""

    def nll(denoiser, orders=ORDERS):
        total = 0.0
        for order in orders:
            xt = torch.full_like(toy.sequences, 3)
            for position in order:
                log_probs = denoiser.log_probs(xt, torch.full((27,), 0.5))[:, position].detach()
                total -= float(
                    (toy.joint * log_probs.gather(-1, toy.sequences[:, position, None])[:, 0]).sum()
                ) / len(orders)
                xt[:, position] = toy.sequences[:, position]
        return total

    return nll
