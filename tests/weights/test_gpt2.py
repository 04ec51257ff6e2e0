import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dnadiff.diffusion.vocab import Vocab
from dnadiff.weights import published

VOCAB = Vocab(62, 60, 61, (60, 61))  # the 60 tokens of the parity file, a mask and padding


@pytest.fixture
def folder(parity, tmp_path):
    """folder(changed keys, further tensors): a folder in the format of the Hub, and the arrays of
    the file."""

    def make(changes=None, more=None):
        arrays, source = parity("gpt2"), Path(__file__).parents[1] / "parity" / "gpt2.safetensors"
        with safe_open(source, "pt") as file:
            config = json.loads(file.metadata()["config"]) | (changes or {})
        (tmp_path / "config.json").write_text(json.dumps(config))
        weights = {
            k.removeprefix("weights."): v for k, v in arrays.items() if k.startswith("weights.")
        }
        save_file(weights | (more or {}), tmp_path / "model.safetensors")
        return tmp_path, arrays

    return make


def test_logits_match_the_published_network(folder):
    path, arrays = folder()
    judge = published.load_gpt2(path, VOCAB)
    logits = judge.backbone(arrays["input_ids"])
    assert logits.shape == (2, 24, 62) and (logits[..., 60:] == 0).all()
    torch.testing.assert_close(logits[..., :60], arrays["logits"], rtol=1e-5, atol=1e-5)


def test_texts_start_with_the_published_token_and_mask_and_padding_are_never_emitted(folder):
    path, arrays = folder()
    judge, ids = published.load_gpt2(path, VOCAB), arrays["input_ids"]
    log_probs = judge.next_log_probs(ids)
    assert log_probs[..., 60:].isneginf().all()
    shifted = torch.cat([torch.full((2, 1), 59), ids[:, :-1]], 1)
    expected = judge.backbone(shifted)[..., :60].log_softmax(-1)
    torch.testing.assert_close(log_probs[..., :60], expected)
    judge.fused_from = 1  # as for its 50,257 tokens
    torch.testing.assert_close(
        judge.nll(ids, ids), -expected.gather(-1, ids[..., None]).flatten(), rtol=1e-5, atol=1e-5
    )


def test_constants_in_old_files_are_checked(folder):
    seen = {
        f"h.{n}.attn.bias": torch.ones(24, 24).tril()[None, None].contiguous() for n in range(2)
    }
    published.load_gpt2(folder(more=seen)[0], VOCAB)
    with pytest.raises(
        ValueError,
        match=r"h\.0\.attn\.bias differs from the value that follows from the configuration",
    ):
        published.load_gpt2(folder(more={"h.0.attn.bias": torch.ones(1, 1, 24, 24)})[0], VOCAB)


@pytest.mark.parametrize(
    ("changes", "vocab", "message"),
    [
        (
            {"activation_function": "relu"},
            VOCAB,
            "activation_function is relu, but these networks support only activation_function "
            "gelu_new",
        ),
        ({"model_type": "llama"}, VOCAB, "describes a model of type 'llama'; expected gpt2"),
        ({}, Vocab(62, 60, 61, (60,)), "this GPT-2 has 60 tokens; the tokenizer has 62"),
        ({}, Vocab(40, 39, 39, (39,)), "this GPT-2 has 60 tokens; the tokenizer has 40"),
        ({"n_layer": 3}, VOCAB, r"missing h\.2\."),
    ],
)
def test_other_networks_and_vocabularies_are_refused(folder, changes, vocab, message):
    with pytest.raises(ValueError, match=message):
        published.load_gpt2(folder(changes)[0], vocab)
