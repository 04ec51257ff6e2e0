"""Exact models small enough to enumerate, behind the contracts that samplers call."""

import itertools
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from dnadiff.diffusion.denoiser import BaseDenoiser, MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.draws import draw as draw_ids
from dnadiff.diffusion.gaussian import GaussianProcess, VectorDenoiser
from dnadiff.diffusion.noise import CosineSquared, LogLinear
from dnadiff.diffusion.objective.analog_bits import bits
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess, UniformProcess
from dnadiff.diffusion.sampler.learned_order import LearnedOrderSampler
from dnadiff.diffusion.sampler.sundae import UnrolledDenoising
from dnadiff.networks.backbone.base import (
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    State,
)
from dnadiff.options.command import compose
from dnadiff.store.objects import build


class Table(MaskedDenoiser):
    """The exact posteriors of a joint distribution over all (V - 1)^L sequences, as a table over
    all V^L states; the mask is the last id.

    It counts what it is requested, and refuses to be requested for nothing or at positions that are
    not masked.
    """

    def __init__(self, joint, vocab):
        super().__init__(vocab)
        letters = vocab.size - 1
        self.process = AbsorbingProcess(vocab, LogLinear(1e-3))
        self.length = round(
            torch.tensor(len(joint)).log().item() / torch.tensor(letters).log().item()
        )
        self.calls = self.rows = 0
        self.powers = vocab.size ** torch.arange(self.length - 1, -1, -1)
        sequences = torch.tensor(list(itertools.product(range(letters), repeat=self.length)))
        states = torch.tensor(list(itertools.product(range(vocab.size), repeat=self.length)))
        weight = ((states[:, None] == sequences) | (states[:, None] == vocab.mask_id)).all(
            -1
        ) * joint.double()  # (states, sequences)
        onehot = torch.nn.functional.one_hot(sequences, vocab.size).double()
        self.table = (
            torch.einsum("bs,slv->blv", weight, onehot) / weight.sum(-1)[:, None, None]
        ).log()

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        assert positions.any(-1).all(), "a sequence was evaluated of which nothing is asked"
        assert (xt[positions] == self.vocab.mask_id).all()
        assert t.shape == (len(xt),) and t.dtype == torch.float32 and ((t >= 0) & (t <= 1)).all()
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        return self.table[xt @ self.powers][positions]

    def around(self, query, columns):
        xt = query.xt
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        return State([xt.clone()], columns.start)

    def step_block(self, query, state=None):
        xt, positions = query.xt, query.positions
        assert positions.any(-1).all() and (xt[positions] == self.vocab.mask_id).all()
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        seen, part = (
            (xt, slice(None))
            if state is None
            else (state.tensors[0].clone(), slice(state.length, state.length + xt.shape[1]))
        )
        seen[:, part] = xt
        return self.table[seen @ self.powers][:, part][positions]


class CausalTable(Table):
    """The same distribution from left to right."""

    reads = CausalBackbone

    def step(self, token, state=None, cond=None):
        self.calls, self.rows = self.calls + 1, self.rows + len(token)
        before = (
            State([token.new_zeros(len(token), 0)])
            if state is None
            else State([torch.cat([state.tensors[0], token[:, None]], 1)])
        )
        prefix = before.tensors[0]
        seen = torch.full((len(token), self.length), self.vocab.mask_id)
        seen[:, : prefix.shape[1]] = prefix
        return self.table[seen @ self.powers][:, prefix.shape[1]], before


class BlockTable(Table):
    """The same distribution in blocks of two tokens."""

    reads, block_size = BlockBackbone, 2

    def step_block(self, query, state=None):
        xt, positions = query.xt, query.positions
        assert positions.any(-1).all() and (xt[positions] == self.vocab.mask_id).all()
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        before = xt[:, :0] if state is None else state.tensors[0]
        seen = torch.full((len(xt), self.length), self.vocab.mask_id)
        part = slice(before.shape[1], before.shape[1] + xt.shape[1])
        seen[:, : part.start], seen[:, part] = before, xt
        return self.table[seen @ self.powers][:, part][positions]

    def advance(self, query, state=None):
        x0 = query.xt
        self.calls, self.rows = self.calls + 1, self.rows + len(x0)
        return State([x0 if state is None else torch.cat([state.tensors[0], x0], 1)])


class NoisyTable(Table):
    """The distribution of each token of the same joint distribution given the noisy tokens at the
    other positions."""

    def __init__(self, joint, vocab, process=None):
        super().__init__(joint, vocab)
        self.process = process or UniformProcess(vocab, LogLinear(0.0))
        self.process_type, self.time_conditioning = type(self.process), True
        self.joint, self.at = joint.double(), cache(self.at)
        letters = range(vocab.size - 1)
        self.sequences = torch.tensor(list(itertools.product(letters, repeat=self.length)))
        self.states = torch.tensor(list(itertools.product(range(vocab.size), repeat=self.length)))

    def marginal(self, t):
        """q_t(z | x) of each letter x: (V - 1, V)."""
        t = torch.tensor([t], dtype=torch.float64)
        alpha = float(self.process.noise.alpha(t))
        clean = torch.eye(self.vocab.size, dtype=torch.float64)[:-1]
        return alpha * clean + (1 - alpha) * self.process.pi(t)

    def at(self, t):
        """Log-probabilities at time t of all states, (V^L, L, V)."""
        q, found = self.marginal(t), []
        q[:, self.vocab.mask_id] = 1  # as probable for every letter, also where it is frozen
        like = [q[self.sequences[:, m]][:, self.states[:, m]].T for m in range(self.length)]
        for position in range(self.length):
            others = [each for m, each in enumerate(like) if m != position]
            weight = self.joint * torch.stack(others).prod(0)  # (states, sequences)
            onehot = torch.nn.functional.one_hot(self.sequences[:, position], self.vocab.size)
            found.append(weight @ onehot.double() / weight.sum(-1, keepdim=True))
        return torch.stack(found, 1).log()

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        assert positions.any(-1).all(), "a sequence was evaluated of which nothing is asked"
        assert t.shape == (len(xt),) and t.dtype == torch.float32 and ((t >= 0) & (t <= 1)).all()
        self.calls, self.rows = self.calls + 1, self.rows + len(xt)
        found = torch.zeros(*xt.shape, self.vocab.size, dtype=torch.float64)
        for time in t.unique().tolist():
            found[t == time] = self.at(time)[xt[t == time] @ self.powers]
        return found[positions]


class OrderedTable(Table):
    """The same distribution with an order: the last position is half as probable as the others."""

    def draw_next(self, query, uniform):
        chance = query.positions * torch.tensor([1.0, 1.0, 0.5])[: self.length]
        column = draw_ids(chance.log(), uniform)
        now = torch.nn.functional.one_hot(column, self.length).bool()
        return column, self.log_probs(*query._replace(positions=now))


class VectorTable(VectorDenoiser):
    """The mean of the bits of each token of the same joint distribution given noisy bits of all."""

    def __init__(self, joint, vocab):
        BaseDenoiser.__init__(self, vocab)
        self.process = GaussianProcess(vocab, CosineSquared(1e-4))
        self.process_type, self.time_conditioning = GaussianProcess, True
        self.codes, self.bias, self.sharpness, self.clamps = bits(vocab), None, 1e6, False
        exact = Table(joint, vocab)
        self.length, self.calls, self.rows = exact.length, 0, 0
        self.log_joint = joint.double().log()
        letters = range(vocab.size - 1)
        sequences = torch.tensor(list(itertools.product(letters, repeat=self.length)))
        self.clean = self.codes[sequences].double()

    def denoise(self, z, t, cond=None, valid=None, estimate=None):
        assert t.shape == (len(z),) and ((t > 0) & (t <= 1)).all()
        self.calls, self.rows = self.calls + 1, self.rows + len(z)
        alpha = self.process.noise.alpha(t)[:, None, None, None]
        square = (z[:, None] - alpha.sqrt() * self.clean).square() / (1 - alpha)
        log_probs = self.log_joint - square.sum((2, 3)) / 2
        return torch.einsum("bs,sld->bld", log_probs.softmax(-1), self.clean).to(z)


TABLES = {BidirectionalBackbone: Table, CausalBackbone: CausalTable, BlockBackbone: BlockTable}


def make(name, **settings):
    """The sampler of a yaml with some settings changed; those that it has not are of the sampler
    inside."""
    known = settings_of(name)
    if "sampler" in known:
        inner = {
            key: settings.pop(key)
            for key in settings.keys() & known["sampler"].keys() - known.keys()
        }
        known = known | {"sampler": known["sampler"] | inner}
    return build(known | settings)


@cache
def settings_of(name):
    return compose("sample", ["checkpoint=x", *f"sampler={name}".split()])["sampler"]


def draw(sampler, model, batch, seed=0, rows=None, x_init=None, **kwargs):
    """`batch` samples from all masks, or what becomes of a template."""
    process = getattr(model, "process", None) or AbsorbingProcess(model.vocab, LogLinear(1e-3))
    x_init = torch.full((batch, model.length), model.vocab.mask_id) if x_init is None else x_init
    draws = Draws.for_batch(seed, len(x_init)) if rows is None else Draws(seed, rows)
    return sampler.sample(model, process, x_init, draws, **kwargs)


def frequencies(tokens, letters):
    """Share of each sequence, (letters^L,)."""
    powers = letters ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return torch.bincount(tokens @ powers, minlength=letters ** tokens.shape[1]).double() / len(
        tokens
    )


@pytest.fixture
def world(toy):
    """Exact models and how to sample them; `table(sampler)` is the toy distribution for samplers of
    its kind."""

    def table(sampler=None, joint=toy.joint, vocab=toy.vocab):
        if sampler is not None and sampler.process_type is GaussianProcess:
            return VectorTable(joint, vocab)
        if sampler is not None and issubclass(sampler.process_type, MixtureProcess):
            made = NoisyTable(joint, vocab)
            made.time_conditioning = not isinstance(sampler, UnrolledDenoising)  # has no times
            return made
        if isinstance(sampler, LearnedOrderSampler):
            return OrderedTable(joint, vocab)
        return TABLES[BidirectionalBackbone if sampler is None else sampler.reads](joint, vocab)

    return SimpleNamespace(
        table=table,
        noisy=NoisyTable,
        make=make,
        draw=draw,
        frequencies=frequencies,
        joint=toy.joint,
        sequences=toy.sequences,
    )
