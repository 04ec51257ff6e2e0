import itertools
import math

import numpy as np
import pytest
import torch

from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import CharTokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.genomics.metrics.text_quality import (
    JudgeModel,
    at_positions,
    by_position,
    content_span,
    describe,
    entropy,
    repeated,
)
from dnadiff.networks.backbone.transformer import Transformer
from dnadiff.weights import published

VOCAB = Vocab(8, 7, 6, (6, 7))


@pytest.fixture
def judge():
    torch.manual_seed(0)
    network = Transformer(VOCAB, 16, 1, 2, max_length=8)
    torch.nn.init.normal_(network.linear.weight)
    return CausalDenoiser(network).eval()


def test_a_judge_may_be_in_the_home_folder(judge, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / published.CONFIG).write_text("{}")
    monkeypatch.setattr(Pretrained, "load", lambda self: CharTokenizer("abc"))
    monkeypatch.setattr(published, "load_gpt2", lambda folder, vocab: judge)
    found = JudgeModel.load("~/gpt2", [], "cpu")
    assert found.denoiser is judge and found.path == tmp_path / "gpt2" and found.length == 8


def test_entropy_of_literal_texts():
    assert entropy(np.array([3, 3, 3])) == 0 and entropy(np.arange(5)) == pytest.approx(math.log(5))


def test_an_ngram_is_repeated_from_its_second_occurrence_on():
    assert repeated(np.array([1, 2, 1, 2, 1, 2]), 2).tolist() == [False, False, True, True, True]
    assert repeated(np.array([1, 2]), 3).tolist() == []


def test_token_nats_equal_the_model_on_pieces_of_its_length(judge, tmp_path):
    texts = [torch.randint(0, 6, (n,)) for n in (3, 8, 20)]
    reader = JudgeModel(judge, CharTokenizer("abcdef"), 8, tmp_path)
    found = reader.nats([text.numpy() for text in texts], batch_size=2)
    for text, nats in zip(texts, found):
        ends = [0, len(text)] if len(text) <= 8 else [0, 6, 13, 20]
        expected = [
            judge.next_log_probs(text[None, a:b])[0].gather(-1, text[a:b, None])[:, 0]
            for a, b in itertools.pairwise(ends)
        ]
        np.testing.assert_allclose(
            nats, -torch.cat(expected).detach().numpy(), rtol=1e-4, atol=1e-5
        )


def test_perplexity_averages_over_tokens_and_entropy_over_texts():
    texts = [np.array([1, 2, 3, 4]), np.array([1, 1])]
    found = describe(texts, 2, [np.full(4, 1.0), np.full(2, 4.0)])
    assert found["perplexity"] == pytest.approx(math.exp((4 + 8) / 6)) and found["tokens"] == 6
    assert found["entropy"] == pytest.approx(math.log(4) / 2) and found["repetition"] == 0


def test_tokens_that_do_not_count_have_no_perplexity():
    texts = np.array([[7, 2, 3, 7], [7, 7, 7, 7], [1, 2, 3, 4]])
    tokenizer = CharTokenizer("abc")
    tokenizer.special_ids = (7,)
    assert [content_span(ids, tokenizer) for ids in texts] == [(1, 3), (0, 0), (0, 4)]
    nats = at_positions([np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0, 6.0])], texts, tokenizer)
    first, second = by_position(texts, [0, 3], 2, nats)
    assert first["nll"] == pytest.approx((1 + 2 + 3 + 4 + 5) / 5) and first["tokens"] == 5
    assert second["nll"] == 6 and second["tokens"] == 1
    assert "nll" not in by_position(texts[:2], [0, 3], 2, nats[:2])[1]


def test_segments_count_ngrams_repeated_from_anywhere_before():
    texts = np.array([[1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 5, 1, 5, 3]])
    first, second = by_position(texts, [0, 4], 2, np.arange(16.0).reshape(2, 8))
    assert (first["start"], first["end"], second["start"], second["end"]) == (0, 4, 4, 8)
    assert first["repetition"] == 0 and second["repetition"] == pytest.approx((3 / 4 + 0) / 2)
    assert second["entropy"] == pytest.approx((math.log(4) + (math.log(4) - math.log(2) / 2)) / 2)
    assert second["nll"] == pytest.approx((4 + 5 + 6 + 7 + 12 + 13 + 14 + 15) / 8)
    last = by_position(texts, [0, 7], 2)[1]
    assert (
        last["repetition"] == 0.5 and "perplexity" not in last
    )  # the 2-gram (3, 4) ends at the last token
