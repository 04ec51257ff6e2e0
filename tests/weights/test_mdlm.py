"""The layout of MDLM's DiT, and vocabularies of text models."""

import json

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.weights import checkpoint, published
from dnadiff.weights.published import FAMILIES, load_published

DNA = DNATokenizer().vocab
PADDED = Vocab(34, 32, 33, (32, 33))  # of a tokenizer: padding has its own id


def half(weights):
    return {
        key: value if key.endswith("inv_freq") else value.bfloat16()
        for key, value in weights.items()
    }


def test_mdlm_folders_load(tmp_path, folder_of):
    folder, arrays = folder_of("mdlm_dit", tmp_path)
    denoiser = load_published(folder)
    torch.testing.assert_close(
        denoiser.backbone(arrays["input_ids"], arrays["sigma"]),
        arrays["logits"],
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(
        denoiser.backbone(arrays["input_ids"]), arrays["logits_sigma0"], rtol=1e-5, atol=1e-5
    )
    assert (
        denoiser.vocab.mask_id == 32
        and denoiser.vocab.never_emitted == (32,)
        and denoiser.backbone.max_length == 24
    )
    timed = published.load_published(
        folder_of("mdlm_dit", tmp_path / "timed", settings={"time_conditioning": True})[0]
    )
    assert timed.time_conditioning and float(
        timed.noise.sigma(torch.tensor([0.5]))
    ) == pytest.approx(0.692148, abs=1e-6)


@pytest.mark.parametrize("timed", [False, True])
def test_mdlm_in_bfloat16_and_with_time_conditioning_survives_export_and_load(
    timed, tmp_path, folder_of
):
    folder, arrays = folder_of("mdlm_dit", tmp_path / "in", half, {"time_conditioning": timed})
    first = published.load_published(folder)
    assert (
        all(p.dtype == torch.float32 for p in first.parameters())
        and first.time_conditioning == timed
    )
    published.export_published(first, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["time_conditioning"] == timed
    again = published.load_published(tmp_path / "out")
    t = torch.tensor([0.2, 0.7])
    ids = torch.where(torch.arange(24) % 3 == 0, 32, arrays["input_ids"])
    assert (
        torch.equal(again.log_probs(ids, t), first.log_probs(ids, t))
        and again.time_conditioning == timed
    )
    changed = (first.log_probs(ids, t) - first.log_probs(ids, t + 0.1)).abs().nan_to_num(
        0
    ).max() > 1e-3  # -inf - -inf where nothing is emitted
    assert changed == timed
    exact = arrays["logits"] if timed else arrays["logits_sigma0"]
    torch.testing.assert_close(
        again.backbone(arrays["input_ids"], arrays["sigma"] if timed else None),
        exact,
        rtol=0.05,
        atol=0.05,
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert again.log_probs(ids, t).dtype == torch.float32


@pytest.mark.parametrize("timed", [False, True])
def test_padding_gets_its_own_row_and_is_read_as_in_the_published_code(timed, tmp_path, folder_of):
    folder, arrays = folder_of("mdlm_dit", tmp_path / "in", settings={"time_conditioning": timed})
    ours, theirs = published.load_published(folder, vocab=PADDED), published.load_published(folder)
    assert ours.vocab == PADDED and ours.time_conditioning == timed and not ours.training
    ids, t = (
        torch.where(torch.arange(24) % 3 == 0, 32, arrays["input_ids"]),
        torch.tensor([0.2, 0.7]),
    )
    log_probs = ours.log_probs(ids, t)
    torch.testing.assert_close(log_probs[..., :33], theirs.log_probs(ids, t))
    assert log_probs[..., 33].isneginf().all()
    padded = torch.where(torch.arange(24) < 20, ids, 33)
    published_code = theirs.log_probs(
        torch.where(padded == 33, 32, padded), t
    )  # there padding is the mask
    torch.testing.assert_close(ours.log_probs(padded, t)[:, :20, :33], published_code[:, :20])
    published.export_published(ours, tmp_path / "out")
    again = published.load_published(tmp_path / "out")
    assert again.vocab == PADDED and torch.equal(
        again.log_probs(padded, t), ours.log_probs(padded, t)
    )


@pytest.mark.parametrize(
    "vocab",
    [
        Vocab(32, 31, 30, (30, 31)),  # fewer ids
        Vocab(34, 33, 32, (32, 33)),  # the mask has no row
        Vocab(35, 32, 33, (32, 33)),  # the last id would be emitted
        DNA,
    ],
)
def test_vocabularies_that_cannot_be_the_published_one_are_refused(vocab, tmp_path, folder_of):
    with pytest.raises(ValueError, match="has 33 ids with the mask 32, and this vocabulary"):
        published.load_published(folder_of("mdlm_dit", tmp_path)[0], vocab=vocab)


def test_the_tokenizer_may_use_a_published_id_as_the_mask(tmp_path, folder_of):
    bert = Vocab(33, 4, 0, (0, 4))
    folder, arrays = folder_of("mdlm_dit", tmp_path)
    denoiser = published.load_published(folder, vocab=bert)
    assert denoiser.vocab == bert and torch.equal(
        denoiser.backbone(arrays["input_ids"]),
        published.load_published(folder).backbone(arrays["input_ids"]),
    )


def test_training_starts_from_published_weights_of_a_text_model(cli, tmp_path, folder_of):
    pytest.importorskip("tokenizers")
    words = [*"abcdefghijklmnopqrstuvwxyz", "[UNK]", ",", ".", "[SEP]", "[CLS]", "!"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "book.txt").write_text("a b , c d e . f g h ! i j k . " * 90)
    folder, _ = folder_of("mdlm_dit", tmp_path / "in")
    assert len(words) == 32  # without mask and padding, which the tokenizer lacks
    args = [
        "data=text",
        "data.path=book.txt",
        "tokenizer=pretrained",
        "tokenizer.source=vocab.txt",
        "data.length=16",
        "data.batch_size=2",
    ]
    args += [
        "trainer.max_steps=1",
        "trainer.val_check_interval=1",
        "data.max_valid_windows=2",
        "trainer.accelerator=cpu",
        "optimizer.lr=0",
    ]
    status, _, err = cli("train", *args, "init_from=in", "weight_decay=0", "hydra.run.dir=run")
    assert status == 0, err
    trained, start = (
        checkpoint.load(tmp_path / "run").denoiser,
        published.load_published(folder, vocab=PADDED),
    )
    assert trained.vocab == PADDED and all(
        torch.equal(p, q) for p, q in zip(trained.parameters(), start.parameters(), strict=True)
    )
    status, _, err = cli("train", *args[:2], *args[4:], "init_from=in", "hydra.run.dir=other")
    assert status == 1 and "choose its tokenizer" in err and "Traceback" not in err


def test_the_config_of_a_layout_describes_the_network():
    network = DiT(PADDED, 16, 2, 2, 8, dropout=0.3, max_length=7)
    described = FAMILIES["mdlm"].backbone(network.published_layout().config, PADDED)
    assert described == {
        "_target_": "dnadiff.networks.backbone.dit.DiT", "d_model": 16, "n_layers": 2, "n_heads": 2,
        "cond_dim": 8, "dropout": 0.3, "max_length": 7,
    }  # fmt: skip
    assert FAMILIES["mdlm"].implied_vocab({"vocab_size": 33}) == Vocab(33, 32, 32, (32,))


def test_networks_without_a_published_form_are_refused():
    with pytest.raises(ValueError, match="mlp_ratio 4"):
        DiT(PADDED, 16, 2, 2, 8, mlp_ratio=2).published_layout()
