import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dnadiff import checkpoint
from dnadiff.backbone.caduceus import Caduceus
from dnadiff.backbone.caduceus_ps import CaduceusPS
from dnadiff.backbone.dit import DiT
from dnadiff.config import build
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.denoiser import Denoiser
from dnadiff.published import model
from dnadiff.vocab import Vocab

DNA = DNATokenizer().vocab
PARITY = Path(__file__).parents[1] / "parity"
FIRST = "caduceus.backbone.layers.0.mixer."
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def folder_of(name, tmp_path, change=lambda weights: weights, settings=None, binary=False):
    """A published folder made of a parity file, as the README there describes them; and the file's arrays."""
    with safe_open(PARITY / f"{name}.safetensors", "pt") as file:
        config, arrays = json.loads(file.metadata()["config"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    weights = {key.removeprefix("weights."): value for key, value in arrays.items() if key.startswith("weights.")}
    if name.startswith("mdlm"):
        weights = {f"backbone.{key}": value for key, value in weights.items()}
        config = {"vocab_size": 33, "model_length": 24, "hidden_dim": 64, "cond_dim": 16, "n_blocks": 2, "n_heads": 4, "dropout": 0.1}
        config["time_conditioning"] = False
    config |= {"model_type": name.split("_")[0]} | (settings or {})
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = change(weights)
    if binary:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        save_file(weights, tmp_path / "model.safetensors")
    return tmp_path, arrays


def without(*names):
    return lambda weights: {key: value for key, value in weights.items() if key not in names}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["caduceus_ph", "caduceus_ps", "caduceus_ps_unfused"])
def test_caduceus_folders_load(name, binary, tmp_path):
    folder, arrays = folder_of(name, tmp_path, binary=binary)
    denoiser = checkpoint.load_published(folder)
    assert denoiser.vocab == DNA and not denoiser.training and not denoiser.time_conditioning
    assert type(denoiser.backbone) is (Caduceus if name == "caduceus_ph" else CaduceusPS)
    logits = denoiser.backbone(arrays["input_ids"])
    assert (logits - arrays["logits"]).abs().max() < 1e-4 * arrays["logits"].abs().max()
    assert denoiser.log_probs(arrays["input_ids"]).shape == (2, 50, 12)


def test_mdlm_folders_load(tmp_path):
    folder, arrays = folder_of("mdlm_dit", tmp_path)
    denoiser = checkpoint.load_published(folder)
    torch.testing.assert_close(denoiser.backbone(arrays["input_ids"], arrays["sigma"]), arrays["logits"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(denoiser.backbone(arrays["input_ids"]), arrays["logits_sigma0"], rtol=1e-5, atol=1e-5)
    assert denoiser.vocab.mask_id == 32 and denoiser.vocab.never_emitted == (32,) and denoiser.backbone.max_length == 24
    told = model.load_published(folder_of("mdlm_dit", tmp_path / "told", settings={"time_conditioning": True})[0])
    assert told.time_conditioning and float(told.noise.sigma(torch.tensor([0.5]))) == pytest.approx(0.692148, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("caduceus_ph", ["lm_head.weight", FIRST + "mamba_rev.in_proj.weight", FIRST + "mamba_rev.out_proj.weight"]),
        ("caduceus_ph", ["caduceus.backbone.embeddings.word_embeddings.weight", FIRST + "mamba_fwd.in_proj.weight"]),
        ("caduceus_ps", ["lm_head.lm_head.weight", "lm_head.complement_map", FIRST + "submodule.mamba_rev.out_proj.weight"]),
        ("mdlm_dit", ["backbone.rotary_emb.inv_freq"]),
    ],
)
def test_one_copy_of_a_tied_tensor_is_enough(name, absent, tmp_path):
    folder, arrays = folder_of(name, tmp_path, without(*absent))
    expected = arrays["logits_sigma0" if name == "mdlm_dit" else "logits"]
    torch.testing.assert_close(model.load_published(folder).backbone(arrays["input_ids"]), expected, rtol=1e-4, atol=1e-4)


def swapped_names(weights):
    return {key.replace("norm_f", "norm_g"): value for key, value in weights.items()}


def changed(name, value):
    return lambda weights: weights | {name: value}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("caduceus_ph", swapped_names, r"missing caduceus\.backbone\.norm_f\.weight; surplus caduceus\.backbone\.norm_g\.weight"),
        ("caduceus_ps", without("caduceus.backbone.layers.2.norm.weight"), r"missing caduceus\.backbone\.layers\.2\.norm\.weight"),
        ("mdlm_dit", changed("backbone.blocks.2.norm1.weight", torch.ones(64)), r"surplus backbone\.blocks\.2\.norm1\.weight"),
        ("mdlm_dit", changed("backbone.blocks.0.norm1.weight", torch.ones(65)), r"norm1\.weight is \(65,\), expected \(64,\)"),
        ("mdlm_dit", changed("backbone.rotary_emb.inv_freq", torch.ones(8)), "inv_freq differs from what the configuration means"),
        ("caduceus_ph", changed("lm_head.weight", torch.ones(16, 32)), r"lm_head\.weight differs from .*to which it is tied"),
        ("caduceus_ps", changed("lm_head.complement_map", torch.arange(16)), r"lm_head\.complement_map differs"),
        ("caduceus_ps", changed("lm_head.complement_map", torch.arange(9)), r"lm_head\.complement_map is \(9,\), expected \(16,\)"),
        ("mdlm_dit", changed("backbone.blocks.0.norm1.weight", torch.ones(64, dtype=torch.int64)), r"norm1\.weight holds torch\.int64"),
    ],
)
def test_tensors_that_do_not_fit_are_listed(name, change, message, tmp_path):
    folder, _ = folder_of(name, tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        model.load_published(folder)
    assert "\n" not in str(caught.value) and "model.safetensors" in str(caught.value)


def test_all_that_is_missing_or_surplus_is_listed(tmp_path):
    def renamed(weights):
        return {key.replace("layers.", "blocks.") if "layers." in key else key: value for key, value in weights.items()}

    folder, _ = folder_of("caduceus_ph", tmp_path, renamed)
    with pytest.raises(ValueError, match="do not fit") as caught:
        model.load_published(folder)
    count, _, faults = str(caught.value).partition(" faults: ")
    names = [name for name in load_file(folder / "model.safetensors") if "blocks." in name]
    assert len(names) > 30 and {f"surplus {name}" for name in names} < set(faults.split("; "))
    assert count.endswith(f" {len(faults.split('; '))}")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("caduceus_ph", {"n_layer": "3"}, "n_layer is '3', expected a whole number from 1 to 4096"),
        ("caduceus_ph", {"n_layer": 10**7}, "n_layer is '10000000', expected"),
        ("caduceus_ph", {"n_layer": True}, "n_layer is 'True', expected a whole number"),
        ("caduceus_ph", {"d_model": -1}, "d_model is '-1', expected a whole number from 1 to 65536"),
        ("caduceus_ph", {"d_model": 10**7}, "d_model is '10000000', expected a whole number"),
        ("caduceus_ph", {"d_model": 60000}, r"expected \(16, 60000\)"),
        ("caduceus_ph", {"d_model": None}, "d_model is 'None', expected a whole number"),
        ("caduceus_ph", {"vocab_size": 12.5}, "vocab_size is '12.5', expected a whole number"),
        ("caduceus_ph", {"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple is '0'"),
        ("caduceus_ph", {"ssm_cfg": [1]}, r"ssm_cfg is '\[1\]', expected a table"),
        ("caduceus_ph", {"ssm_cfg": {"d_state": "16"}}, "d_state is '16', expected a whole number"),
        ("caduceus_ph", {"ssm_cfg": {"dt_rank": "full"}}, "dt_rank is 'full'"),
        ("caduceus_ph", {"ssm_cfg": {"layer": "Mamba2"}}, "layer is Mamba2, and these networks have layer Mamba1"),
        ("caduceus_ph", {"bidirectional_strategy": ["add"]}, "bidirectional_strategy is .* expected a word"),
        ("caduceus_ph", {"complement_map": [1]}, r"complement_map is '\[1\]', expected a table"),
        ("caduceus_ps", {"complement_map": {"0": "x"}}, "another alphabet"),
        ("caduceus_ph", {"norm_epsilon": "x"}, "norm_epsilon is 'x', expected a number from 0 to 1"),
        ("caduceus_ph", {"norm_epsilon": None}, "norm_epsilon is 'None'"),
        ("caduceus_ph", {"norm_epsilon": float("nan")}, "norm_epsilon is 'nan'"),
        ("caduceus_ph", {"rms_norm": "yes"}, "rms_norm is 'yes', expected true or false"),
        ("caduceus_ph", {"tie_word_embeddings": False}, "these networks have tie_word_embeddings True"),
        ("caduceus_ph", {"model_type": ["caduceus"]}, "known are caduceus, mdlm"),
        ("caduceus_ph", {"dnadiff_vocab": [1]}, "dnadiff_vocab is"),
        ("caduceus_ph", {"dnadiff_vocab": {"size": 12, "mask_id": "3", "pad_id": 4, "never_emitted": [3]}}, "mask_id is '3'"),
        ("caduceus_ph", {"dnadiff_vocab": {"size": 12, "mask_id": 3, "pad_id": 4, "never_emitted": [3, 0.5]}}, "never_emitted is"),
        ("mdlm_dit", {"n_heads": 0}, "n_heads is '0'"),
        ("mdlm_dit", {"vocab_size": 0}, "vocab_size is '0'"),
        ("mdlm_dit", {"dropout": "0.1"}, "dropout is '0.1'"),
        ("mdlm_dit", {"model_length": "long"}, "model_length is 'long'"),
        ("mdlm_dit", {"time_conditioning": "false"}, "time_conditioning is 'false', expected true or false"),
    ],
)
def test_settings_of_a_wrong_type_or_size_are_named(name, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        model.load_published(folder_of(name, tmp_path, settings=settings)[0])
    assert "json" in str(caught.value) or "safetensors" in str(caught.value)


def test_no_memory_is_taken_for_a_network_that_the_file_does_not_fill(tmp_path, monkeypatch):
    folder, _ = folder_of("caduceus_ph", tmp_path, settings={"d_model": 60000})
    devices, built = [], model.build

    def watched(*args, **options):
        network = built(*args, **options)
        devices.append({p.device.type for p in network.parameters()})
        return network

    monkeypatch.setattr(model, "build", watched)
    with pytest.raises(ValueError, match="60000"):
        model.load_published(folder)
    assert devices == [{"meta"}]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("caduceus_ph", {"model_type": "bert"}, "type 'bert'; known are caduceus, mdlm"),
        ("caduceus_ph", {"ssm_cfg": {"bias": True}}, "bias is True"),
        ("caduceus_ph", {"bidirectional": False}, "bidirectional is False"),
        ("caduceus_ph", {"vocab_size": 8}, "another alphabet than the 12 ids of DNA"),
        ("caduceus_ps", {"complement_map": {str(i): i for i in range(16)}}, "another alphabet"),
        ("caduceus_ps", {"fused_add_norm": False}, r"missing .*norm\.submodule\.weight"),
        ("caduceus_ph", {"bidirectional_strategy": "concat"}, "bidirectional_strategy 'concat' is not known"),
        ("caduceus_ph", {"d_model": 64}, r"is \(16, 32\), expected \(16, 64\)"),
        ("mdlm_dit", {"n_heads": 5}, "d_model 64 must be n_heads 5 times"),
    ],
)
def test_settings_that_mean_another_network_are_refused(name, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        model.load_published(folder_of(name, tmp_path, settings=settings)[0])


def test_damaged_and_absent_files_are_named(tmp_path):
    folder, _ = folder_of("mdlm_dit", tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        model.load_published(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds neither model\.safetensors nor pytorch_model\.bin"):
        model.load_published(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mdlm", "vocab_size": 33}))
    with pytest.raises(ValueError, match=r"config\.json lacks hidden_dim"):
        model.load_published(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        model.load_published(folder)
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        model.load_published(tmp_path / "nowhere")


def test_pickled_code_is_not_executed(tmp_path, monkeypatch):
    class Hostile:
        def __reduce__(self):
            import os

            return os.system, ("touch pwned",)

    monkeypatch.chdir(tmp_path)
    folder, _ = folder_of("mdlm_dit", tmp_path / "a", binary=True)
    torch.save({"a": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="could run code"):
        model.load_published(folder)
    torch.save([1], folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a file of named tensors"):
        model.load_published(folder)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["caduceus_ph", "caduceus_ps", "caduceus_ps_unfused", "mdlm_dit"])
def test_what_is_exported_is_what_was_published(name, tmp_path):
    folder, _ = folder_of(name, tmp_path / "in")
    model.export_published(model.load_published(folder), tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key].float(), after[key].float(), rtol=1e-6) for key in before)
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = json.loads((folder / "config.json").read_text())
    for settings in (ours, theirs):  # an automatic rank is written out, and what only initialises is not kept
        settings["ssm_cfg"] = {key: settings.get("ssm_cfg", {}).get(key) for key in ("d_state", "d_conv", "expand", "conv_bias", "bias")}
    theirs.pop("fused_add_norm" if name == "caduceus_ph" else "", None)
    assert {key: ours[key] for key in theirs} == theirs and "dnadiff_vocab" not in ours


@pytest.mark.parametrize(
    "make",
    [
        lambda: Caduceus(
            DNA, 16, 2, d_state=5, expand=1, rms_norm=False, bidirectional_weight_tie=False, bidirectional_strategy="ew_multiply"
        ),
        lambda: CaduceusPS(DNA, 16, 2, swap_strands=True, residual_in_fp32=True, pad_vocab_to=1, norm_eps=1e-4),
        lambda: CaduceusPS(DNA, 16, 2, rms_norm=False, dt_rank=3, d_conv=2),
        lambda: DiT(DNA, 16, 2, 2, 8, dropout=0.0),
        lambda: DiT(CharTokenizer("abc").vocab, 16, 2, 2, 8, max_length=7),
    ],
)
def test_networks_of_our_own_come_back_from_the_published_form(make, tmp_path):
    torch.manual_seed(0)
    network = make().eval()
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.3)
    model.export_published(Denoiser(network), tmp_path / "out")
    read = model.read(tmp_path / "out")
    again, ids = read.denoiser.backbone, torch.randint(0, network.vocab.size, (2, 7))
    assert type(again) is type(network) and again.vocab == network.vocab and again.max_length == network.max_length
    assert all(torch.equal(p, q) for p, q in zip(network.state_dict().values(), again.state_dict().values(), strict=True))
    assert torch.equal(network(ids), again(ids))
    rebuilt = build(read.config["backbone"], vocab=again.vocab)  # what init_from= trains further
    assert rebuilt.state_dict().keys() == again.state_dict().keys() and not read.config["time_conditioning"]


def test_exports_are_not_replaced_unasked_and_leave_nothing_behind(tmp_path):
    denoiser = Denoiser(Caduceus(DNA, 16, 1))
    model.export_published(denoiser, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"config\.json exists"):
        model.export_published(denoiser, tmp_path / "out")
    model.export_published(denoiser, tmp_path / "out", overwrite=True)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(ValueError, match="no labels and no time conditioning"):
        model.export_published(Denoiser(Caduceus(DNA, 16, 1, num_labels=2)), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_loading_leaves_the_random_state_alone(tmp_path):
    folder, _ = folder_of("caduceus_ph", tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model.load_published(folder)
    assert torch.equal(torch.rand(2), expected)


def test_hub_ids_need_a_commit_and_the_package(tmp_path, monkeypatch):
    name = "kuleshov-group/mdlm-owt"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for revision in (None, "main"):
        with pytest.raises(ValueError, match="fetched at a commit: add revision="):
            checkpoint.load_published(name, revision=revision)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        checkpoint.load_published(name, revision=COMMIT)
    asked = []

    def snapshot_download(repository, revision, allow_patterns):
        asked.append((repository, revision, *allow_patterns))
        return str(folder_of("mdlm_dit", tmp_path / "hub", binary=True)[0])

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert isinstance(checkpoint.load_published(f"{name}@{COMMIT}").backbone, DiT)
    assert asked == [(name, COMMIT, "config.json", "model.safetensors"), (name, COMMIT, "config.json", "pytorch_model.bin")]


def test_what_init_from_may_name(tmp_path, trained):
    folder, _ = folder_of("caduceus_ph", tmp_path / "dna")
    assert model.is_published(folder) and model.is_published(f"a/b@{COMMIT}")
    assert not model.is_published(trained) and not model.is_published("a/b") and not model.is_published("latest")
    assert model.read(folder).tokenizer == DNATokenizer()
    assert model.read(folder_of("mdlm_dit", tmp_path / "text")[0]).tokenizer is None


def half(weights):
    return {key: value if key.endswith("inv_freq") else value.bfloat16() for key, value in weights.items()}


@pytest.mark.parametrize("told", [False, True])
def test_mdlm_in_bfloat16_and_with_time_conditioning_goes_out_and_comes_back(told, tmp_path):
    folder, arrays = folder_of("mdlm_dit", tmp_path / "in", half, {"time_conditioning": told})
    first = model.load_published(folder)
    assert all(p.dtype == torch.float32 for p in first.parameters()) and first.time_conditioning == told
    model.export_published(first, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["time_conditioning"] == told
    again = model.load_published(tmp_path / "out")
    t = torch.tensor([0.2, 0.7])
    ids = torch.where(torch.arange(24) % 3 == 0, 32, arrays["input_ids"])
    assert torch.equal(again.log_probs(ids, t), first.log_probs(ids, t)) and again.time_conditioning == told
    changed = (first.log_probs(ids, t) - first.log_probs(ids, t + 0.1)).abs().nan_to_num(
        0
    ).max() > 1e-3  # -inf - -inf where nothing is emitted
    assert changed == told
    exact = arrays["logits"] if told else arrays["logits_sigma0"]
    torch.testing.assert_close(again.backbone(arrays["input_ids"], arrays["sigma"] if told else None), exact, rtol=0.05, atol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert again.log_probs(ids, t).dtype == torch.float32


PADDED = Vocab(34, 32, 33, (32, 33))  # a tokenizer's: padding has an id of its own


@pytest.mark.parametrize("told", [False, True])
def test_padding_gets_a_row_of_its_own_and_is_read_as_the_published_code_reads_it(told, tmp_path):
    folder, arrays = folder_of("mdlm_dit", tmp_path / "in", settings={"time_conditioning": told})
    ours, theirs = model.load_published(folder, vocab=PADDED), model.load_published(folder)
    assert ours.vocab == PADDED and ours.time_conditioning == told and not ours.training
    ids, t = torch.where(torch.arange(24) % 3 == 0, 32, arrays["input_ids"]), torch.tensor([0.2, 0.7])
    log_probs = ours.log_probs(ids, t)
    torch.testing.assert_close(log_probs[..., :33], theirs.log_probs(ids, t))
    assert log_probs[..., 33].isneginf().all()
    padded = torch.where(torch.arange(24) < 20, ids, 33)
    published_code = theirs.log_probs(torch.where(padded == 33, 32, padded), t)  # there padding is the mask
    torch.testing.assert_close(ours.log_probs(padded, t)[:, :20, :33], published_code[:, :20])
    model.export_published(ours, tmp_path / "out")
    again = model.load_published(tmp_path / "out")
    assert again.vocab == PADDED and torch.equal(again.log_probs(padded, t), ours.log_probs(padded, t))


@pytest.mark.parametrize(
    "vocab",
    [
        Vocab(32, 31, 30, (30, 31)),  # fewer ids
        Vocab(34, 33, 32, (32, 33)),  # the mask has no row
        Vocab(35, 32, 33, (32, 33)),  # the last id would be emitted
        DNA,
    ],
)
def test_alphabets_that_cannot_be_the_published_one_are_refused(vocab, tmp_path):
    with pytest.raises(ValueError, match="has 33 ids with the mask 32, and this alphabet"):
        model.load_published(folder_of("mdlm_dit", tmp_path)[0], vocab=vocab)


def test_a_mask_among_the_published_ids_is_the_tokenizers(tmp_path):
    bert = Vocab(33, 4, 0, (0, 4))
    folder, arrays = folder_of("mdlm_dit", tmp_path)
    denoiser = model.load_published(folder, vocab=bert)
    assert denoiser.vocab == bert and torch.equal(
        denoiser.backbone(arrays["input_ids"]), model.load_published(folder).backbone(arrays["input_ids"])
    )


def test_training_goes_on_from_published_weights_of_a_model_of_text(cli, tmp_path):
    pytest.importorskip("tokenizers")
    words = [*"abcdefghijklmnopqrstuvwxyz", "[UNK]", ",", ".", "[SEP]", "[CLS]", "!"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "book.txt").write_text("a b , c d e . f g h ! i j k . " * 90)
    folder, _ = folder_of("mdlm_dit", tmp_path / "in")
    assert len(words) == 32  # and a mask and padding that the tokenizer does not have
    args = ["data=text", "data.path=book.txt", "tokenizer=pretrained", "tokenizer.source=vocab.txt", "data.length=16", "data.batch_size=2"]
    args += ["trainer.max_steps=1", "trainer.val_check_interval=1", "data.max_valid_windows=2", "trainer.accelerator=cpu", "optimizer.lr=0"]
    status, _, err = cli("train", *args, "init_from=in", "weight_decay=0", "hydra.run.dir=run")
    assert status == 0, err
    trained, start = checkpoint.load(tmp_path / "run").denoiser, model.load_published(folder, vocab=PADDED)
    assert trained.vocab == PADDED and all(torch.equal(p, q) for p, q in zip(trained.parameters(), start.parameters(), strict=True))
    status, _, err = cli("train", *args[:2], *args[4:], "init_from=in", "hydra.run.dir=other")
    assert status == 1 and "choose its tokenizer" in err and "Traceback" not in err
