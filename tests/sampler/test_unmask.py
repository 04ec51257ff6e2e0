"""Tokens are drawn in pieces of rows, which changes nothing."""

import torch

from dnadiff import categorical
from dnadiff.sampler import base
from dnadiff.sampler.grouped import Grouped


def test_draws_do_not_depend_on_chunks(monkeypatch):
    torch.manual_seed(0)
    log_probs, uniform = torch.randn(50, 30).log_softmax(-1), torch.rand(50, dtype=torch.float64)
    whole = categorical.draw(log_probs, uniform)
    for at_once in (1, 100, 1 << 22):
        monkeypatch.setattr(base, "_CHUNK", at_once)
        assert torch.equal(Grouped().unmask(0, 1, log_probs, uniform), whole)
    assert Grouped().unmask(0, 1, log_probs[:0], uniform[:0]).shape == (0,)
