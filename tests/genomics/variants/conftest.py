import itertools

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import ABSENT, write_alignment
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.genomics.variants.methods import Block, Masked, Network, PairedWindow
from dnadiff.genomics.variants.variant import Sequences

VOCAB = DNATokenizer().vocab
LENGTH = 5
CODES = {"A": 0, "C": 1, "G": 2, "T": 3}


class Inconsistent(MaskedDenoiser):
    """A random function of what is visible: its conditionals belong to no joint distribution."""

    def __init__(self, length=LENGTH, seed=0, local=False):
        super().__init__(VOCAB)
        self.anchor, self.local, self.calls = torch.nn.Parameter(torch.zeros(1)), local, 0
        draw = torch.Generator().manual_seed(seed)
        self.first = torch.randn(length * VOCAB.size, 24, generator=draw, dtype=torch.float64)
        self.second = torch.randn(24, length * 4, generator=draw, dtype=torch.float64) / 3
        self.near = torch.randn(VOCAB.size, VOCAB.size, 4, generator=draw, dtype=torch.float64)

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        self.calls += 1
        if self.local:  # the neighbors alone
            padded = torch.nn.functional.pad(xt, (1, 1), value=VOCAB.pad_id)
            logits = self.near[padded[:, :-2], padded[:, 2:]]
        else:
            onehot = torch.nn.functional.one_hot(xt, VOCAB.size).double().flatten(1)
            logits = (torch.tanh(onehot @ self.first) @ self.second).view(*xt.shape, 4)
        full = torch.full((*xt.shape, VOCAB.size), -torch.inf, dtype=torch.float64)
        full[..., 7:11] = logits.log_softmax(-1)
        return full if positions is None else full[positions]


class AllOrders(Block):
    """Every order instead of random ones."""

    def orders(self, count, draws):
        return np.array(list(itertools.permutations(range(count))))


class AllMasks(PairedWindow):
    """Every mask, weighted by its probability."""

    def masks(self, count, draws):
        chosen = np.array(list(itertools.product([False, True], repeat=count)))[1:]
        size = chosen.sum(1)
        ways = np.array([len(list(itertools.combinations(range(count), k))) for k in size])
        return chosen, count / size / (count * ways) * len(chosen)

    def mean(self, values):
        return float(values.mean()), 0.0


@pytest.fixture
def methods():
    """The methods without random numbers."""
    return {
        "masked": Masked(),
        "block": AllOrders(block=2 * LENGTH),
        "small block": AllOrders(block=2),
        "window": AllMasks(),
    }


@pytest.fixture
def oracle(make_oracle):
    """The exact conditionals of a random joint distribution of windows of five bases."""
    sequences = torch.tensor(list(itertools.product(range(7, 11), repeat=LENGTH)))
    weights = (
        torch.rand(len(sequences), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        ** 3
        + 1e-3
    )
    return make_oracle(sequences, weights / weights.sum(), VOCAB)


@pytest.fixture
def make_network():
    """make_network(denoiser, letters or {name: letters}, **settings)."""

    def make(denoiser, letters, **settings):
        records = {"one": letters} if isinstance(letters, str) else letters
        return Network(
            denoiser,
            AbsorbingProcess(VOCAB, LogLinear()),
            Sequences(records),
            **{"window": LENGTH, **settings},
        )

    return make


@pytest.fixture
def inconsistent():
    return Inconsistent


@pytest.fixture
def log_p():
    """log p of a window of five letters under the oracle."""

    def look_up(oracle, letters):
        ids = torch.from_numpy(DNATokenizer().encode(letters).astype(np.int64))
        return float(oracle.joint[(oracle.sequences == ids).all(-1)].log())

    return look_up


def columns_of(letters, seed=5):
    """Random columns of an alignment, of which every fifth is empty."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(2, len(letters), 4)) * 2
    parts = [
        *(logits - np.logaddexp.reduce(logits, -1, keepdims=True)),
        draw.normal(size=(len(letters), 1)),
        np.log1p(draw.integers(1, 40, len(letters)))[:, None],
    ]
    columns = np.concatenate(parts, 1).astype(np.float16)
    columns[::5] = 0
    return columns.astype(np.float32)


@pytest.fixture(scope="session")
def make_alignment():
    """make_alignment(path, {name: letters}): writes an alignment, and returns its columns."""

    def make(path, records, seed=5):
        letters = "".join(records.values()).upper()
        lengths = {key: len(value) for key, value in records.items()}
        target = [CODES.get(each, ABSENT) for each in letters]
        columns, codes = columns_of(letters, seed), np.zeros((2, len(letters)))
        write_alignment(path, lengths, target, codes, columns, overwrite=True)
        return columns

    return make
