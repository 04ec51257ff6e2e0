"""Tokens are drawn in pieces of rows, which changes nothing."""

import pytest
import torch

from dnadiff.diffusion import draws
from dnadiff.diffusion.sampler import base
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.entropy_bounded import EntropyBounded
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.low_confidence import LowConfidence
from dnadiff.diffusion.sampler.threshold import Threshold


def test_draws_do_not_depend_on_chunks():
    torch.manual_seed(0)
    log_probs, uniform = torch.randn(50, 30).log_softmax(-1), torch.rand(50, dtype=torch.float64)
    whole = draws.draw(log_probs, uniform)
    assert torch.equal(Grouped().unmask(0, log_probs, uniform), whole)
    for rows in (1, 3, 1 << 22):
        assert torch.equal(base.draw_in_chunks(log_probs, uniform, rows=rows), whole)
    assert Grouped().unmask(0, log_probs[:0], uniform[:0]).shape == (0,)


def test_gpus_draw_in_chunks_of_bounded_memory():
    # 8 x 1024 masked positions of GPT-2's vocabulary took 3.3 GB for each of several arrays in
    # float64.
    assert base.rows_at_once(torch.device("cuda"), 50_257) == (1 << 26) // 50_257
    assert base.rows_at_once(torch.device("cuda"), 1 << 30) == 1


@pytest.mark.parametrize(
    "sampler",
    [EntropyBounded(0.5), Confidence(2), Confidence(2, "margin"), Threshold(0.5), LowConfidence(2)],
)
def test_scores_do_not_depend_on_chunks(sampler):
    torch.manual_seed(0)
    log_probs, tokens = torch.randn(50, 30).log_softmax(-1), torch.randint(30, (50,))
    whole = base.in_chunks(sampler.score, log_probs, tokens)
    for rows in (1, 3):
        assert torch.equal(base.in_chunks(sampler.score, log_probs, tokens, rows), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", [Grouped(3, temperature=0.8, nucleus=0.9), EntropyBounded(0.5)])
def test_draws_on_a_gpu_do_not_depend_on_chunks(sampler):
    log_probs = torch.randn(50, 1000, device="cuda").log_softmax(-1)
    uniform = torch.rand(50, dtype=torch.float64, device="cuda")
    whole = sampler.unmask(0, log_probs, uniform)
    chunked = base.draw_in_chunks(log_probs, uniform, sampler.adjust, rows=3)
    assert torch.equal(chunked, whole)
