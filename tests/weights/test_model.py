import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser, Denoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.store.objects import build
from dnadiff.store.remote import is_hub_commit
from dnadiff.weights import published
from dnadiff.weights.loaded import filled_network
from dnadiff.weights.published import load_published
from dnadiff.weights.tensors import round_weights

DNA = DNATokenizer().vocab
FIRST = "caduceus.backbone.layers.0.mixer."
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def without(*names):
    return lambda weights: {key: value for key, value in weights.items() if key not in names}


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        (
            "caduceus_ph",
            [
                "lm_head.weight",
                FIRST + "mamba_rev.in_proj.weight",
                FIRST + "mamba_rev.out_proj.weight",
            ],
        ),
        (
            "caduceus_ph",
            [
                "caduceus.backbone.embeddings.word_embeddings.weight",
                FIRST + "mamba_fwd.in_proj.weight",
            ],
        ),
        (
            "caduceus_ps",
            [
                "lm_head.lm_head.weight",
                "lm_head.complement_map",
                FIRST + "submodule.mamba_rev.out_proj.weight",
            ],
        ),
        ("mdlm_dit", ["backbone.rotary_emb.inv_freq"]),
    ],
)
def test_one_copy_of_a_tied_tensor_is_enough(name, absent, tmp_path, folder_of):
    folder, arrays = folder_of(name, tmp_path, without(*absent))
    expected = arrays["logits_sigma0" if name == "mdlm_dit" else "logits"]
    torch.testing.assert_close(
        published.load_published(folder).backbone(arrays["input_ids"]),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


def swapped_names(weights):
    return {key.replace("norm_f", "norm_g"): value for key, value in weights.items()}


def changed(name, value):
    return lambda weights: weights | {name: value}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "caduceus_ph",
            swapped_names,
            r"missing caduceus\.backbone\.norm_f\.weight; surplus "
            r"caduceus\.backbone\.norm_g\.weight",
        ),
        (
            "caduceus_ps",
            without("caduceus.backbone.layers.2.norm.weight"),
            r"missing caduceus\.backbone\.layers\.2\.norm\.weight",
        ),
        (
            "mdlm_dit",
            changed("backbone.blocks.2.norm1.weight", torch.ones(64)),
            r"surplus backbone\.blocks\.2\.norm1\.weight",
        ),
        (
            "mdlm_dit",
            changed("backbone.blocks.0.norm1.weight", torch.ones(65)),
            r"norm1\.weight is \(65,\), expected \(64,\)",
        ),
        (
            "mdlm_dit",
            changed("backbone.rotary_emb.inv_freq", torch.ones(8)),
            "inv_freq differs from the value that follows from the configuration",
        ),
        (
            "caduceus_ph",
            changed("lm_head.weight", torch.ones(16, 32)),
            r"lm_head\.weight differs from .*to which it is tied",
        ),
        (
            "caduceus_ps",
            changed("lm_head.complement_map", torch.arange(16)),
            r"lm_head\.complement_map differs",
        ),
        (
            "caduceus_ps",
            changed("lm_head.complement_map", torch.arange(9)),
            r"lm_head\.complement_map is \(9,\), expected \(16,\)",
        ),
        (
            "mdlm_dit",
            changed("backbone.blocks.0.norm1.weight", torch.ones(64, dtype=torch.int64)),
            r"norm1\.weight holds torch\.int64",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_listed(name, change, message, tmp_path, folder_of):
    folder, _ = folder_of(name, tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        published.load_published(folder)
    assert "\n" not in str(caught.value) and "model.safetensors" in str(caught.value)


def test_all_missing_and_surplus_tensors_are_listed(tmp_path, folder_of):
    def renamed(weights):
        return {
            key.replace("layers.", "blocks.") if "layers." in key else key: value
            for key, value in weights.items()
        }

    folder, _ = folder_of("caduceus_ph", tmp_path, renamed)
    with pytest.raises(ValueError, match="do not fit") as caught:
        published.load_published(folder)
    count, _, faults = str(caught.value).partition(" faults: ")
    faults = faults.removesuffix(". Was it trained with another vocabulary or size?")
    names = [name for name in load_file(folder / "model.safetensors") if "blocks." in name]
    assert len(names) > 30 and {f"surplus {name}" for name in names} < set(faults.split("; "))
    assert count.endswith(f" {len(faults.split('; '))}")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("caduceus_ph", {"n_layer": "3"}, "n_layer '3' must be an integer from 1 to 4096"),
        ("caduceus_ph", {"n_layer": 10**7}, "n_layer 10000000 must be"),
        ("caduceus_ph", {"n_layer": True}, "n_layer True must be an integer"),
        ("caduceus_ph", {"d_model": -1}, "d_model -1 must be an integer from 1 to 65536"),
        ("caduceus_ph", {"d_model": 10**7}, "d_model 10000000 must be an integer"),
        ("caduceus_ph", {"d_model": 60000}, r"expected \(16, 60000\)"),
        ("caduceus_ph", {"d_model": None}, "d_model None must be an integer"),
        ("caduceus_ph", {"vocab_size": 12.5}, "vocab_size 12.5 must be an integer"),
        ("caduceus_ph", {"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple 0 must"),
        ("caduceus_ph", {"ssm_cfg": [1]}, r"ssm_cfg \[1\] must be a mapping"),
        ("caduceus_ph", {"ssm_cfg": {"d_state": "16"}}, "d_state '16' must be an integer"),
        ("caduceus_ph", {"ssm_cfg": {"dt_rank": "full"}}, "dt_rank 'full' must be"),
        (
            "caduceus_ph",
            {"ssm_cfg": {"layer": "Mamba2"}},
            "layer is Mamba2, but these networks support only layer Mamba1",
        ),
        (
            "caduceus_ph",
            {"bidirectional_strategy": ["add"]},
            "bidirectional_strategy .* must be a string",
        ),
        ("caduceus_ph", {"complement_map": [1]}, r"complement_map \[1\] must be a mapping"),
        ("caduceus_ps", {"complement_map": {"0": "x"}}, "does not describe the 12 ids of DNA"),
        (
            "caduceus_ph",
            {"norm_epsilon": "x"},
            "norm_epsilon 'x' must be a number from 0 to 1",
        ),
        ("caduceus_ph", {"norm_epsilon": None}, "norm_epsilon None must"),
        ("caduceus_ph", {"norm_epsilon": float("nan")}, "norm_epsilon nan must"),
        ("caduceus_ph", {"rms_norm": "yes"}, "rms_norm=yes is neither true nor false"),
        (
            "caduceus_ph",
            {"tie_word_embeddings": False},
            "these networks support only tie_word_embeddings True",
        ),
        ("caduceus_ph", {"model_type": ["caduceus"]}, "expected caduceus, mdlm"),
        ("caduceus_ph", {"dnadiff_vocab": [1]}, "dnadiff_vocab .* must be a mapping"),
        (
            "caduceus_ph",
            {"dnadiff_vocab": {"size": 12, "mask_id": "3", "pad_id": 4, "never_emitted": [3]}},
            "mask_id '3' must",
        ),
        (
            "caduceus_ph",
            {"dnadiff_vocab": {"size": 12, "mask_id": 3, "pad_id": 4, "never_emitted": [3, 0.5]}},
            "never_emitted.* must be",
        ),
        ("mdlm_dit", {"n_heads": 0}, "n_heads 0 must"),
        ("mdlm_dit", {"vocab_size": 0}, "vocab_size 0 must"),
        ("mdlm_dit", {"dropout": "0.1"}, "dropout '0.1' must"),
        ("mdlm_dit", {"model_length": "long"}, "model_length 'long' must"),
        (
            "mdlm_dit",
            {"time_conditioning": "false"},
            "time_conditioning=false is neither true nor false",
        ),
    ],
)
def test_keys_with_a_wrong_type_or_size_are_named(name, settings, message, tmp_path, folder_of):
    with pytest.raises(ValueError, match=message) as caught:
        published.load_published(folder_of(name, tmp_path, settings=settings)[0])
    assert "json" in str(caught.value) or "safetensors" in str(caught.value)


def test_no_memory_is_allocated_for_a_network_that_does_not_match_the_file(tmp_path, folder_of):
    folder, _ = folder_of("caduceus_ph", tmp_path)
    devices = []

    def make():
        network = Caduceus(DNA, 60000, 1)
        devices.append({p.device.type for p in network.parameters()})
        return Denoiser(network), None

    with pytest.raises(ValueError, match="60000"):
        filled_network(folder, "config.json", make)
    assert devices == [{"meta"}]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("caduceus_ph", {"model_type": "bert"}, "type 'bert'; expected caduceus, mdlm"),
        ("caduceus_ph", {"ssm_cfg": {"bias": True}}, "bias is True"),
        ("caduceus_ph", {"bidirectional": False}, "bidirectional is False"),
        ("caduceus_ph", {"vocab_size": 8}, "does not describe the 12 ids of DNA"),
        (
            "caduceus_ps",
            {"complement_map": {str(i): i for i in range(16)}},
            "does not describe the 12 ids of DNA",
        ),
        ("caduceus_ps", {"fused_add_norm": False}, r"missing .*norm\.submodule\.weight"),
        (
            "caduceus_ph",
            {"bidirectional_strategy": "concat"},
            "bidirectional_strategy 'concat' is not known",
        ),
        ("caduceus_ph", {"d_model": 64}, r"is \(16, 32\), expected \(16, 64\)"),
        ("mdlm_dit", {"n_heads": 5}, "d_model 64 must be n_heads 5 times"),
    ],
)
def test_keys_that_describe_another_network_are_refused(
    name, settings, message, tmp_path, folder_of
):
    with pytest.raises(ValueError, match=message):
        published.load_published(folder_of(name, tmp_path, settings=settings)[0])


def test_damaged_and_missing_files_are_named(tmp_path, folder_of):
    folder, _ = folder_of("mdlm_dit", tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        published.load_published(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"holds neither model\.safetensors nor pytorch_model\.bin"
    ):
        published.load_published(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mdlm", "vocab_size": 33}))
    with pytest.raises(ValueError, match=r"config\.json .*'hidden_dim' is missing"):
        published.load_published(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        published.load_published(folder)
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        published.load_published(tmp_path / "nowhere")


def test_pickled_code_is_not_executed(tmp_path, monkeypatch, folder_of):
    class Hostile:
        def __reduce__(self):
            import os

            return os.system, ("touch pwned",)

    monkeypatch.chdir(tmp_path)
    folder, _ = folder_of("mdlm_dit", tmp_path / "a", binary=True)
    torch.save({"a": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="could run code"):
        published.load_published(folder)
    torch.save([1], folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a file of named tensors"):
        published.load_published(folder)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["caduceus_ph", "caduceus_ps", "caduceus_ps_unfused", "mdlm_dit"])
def test_exporting_a_loaded_model_writes_the_published_files(name, tmp_path, folder_of):
    folder, _ = folder_of(name, tmp_path / "in")
    published.export_published(published.load_published(folder), tmp_path / "out")
    before, after = (
        load_file(folder / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key].float(), after[key].float(), rtol=1e-6) for key in before)
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = json.loads((folder / "config.json").read_text())
    for settings in (
        ours,
        theirs,
    ):  # an automatic rank is written as a number, and keys of the initialization are not kept
        settings["ssm_cfg"] = {
            key: settings.get("ssm_cfg", {}).get(key)
            for key in ("d_state", "d_conv", "expand", "conv_bias", "bias")
        }
    theirs.pop("fused_add_norm" if name == "caduceus_ph" else "", None)
    assert {key: ours[key] for key in theirs} == theirs and "dnadiff_vocab" not in ours


@pytest.mark.parametrize(
    "make",
    [
        lambda: Caduceus(
            DNA,
            16,
            2,
            d_state=5,
            expand=1,
            rms_norm=False,
            bidirectional_weight_tie=False,
            bidirectional_strategy="ew_multiply",
        ),
        lambda: CaduceusPS(
            DNA, 16, 2, swap_strands=True, residual_in_fp32=True, pad_vocab_to=1, norm_eps=1e-4
        ),
        lambda: CaduceusPS(DNA, 16, 2, rms_norm=False, dt_rank=3, d_conv=2),
        lambda: DiT(DNA, 16, 2, 2, 8, dropout=0.0),
        lambda: DiT(CharTokenizer("abc").vocab, 16, 2, 2, 8, max_length=7),
    ],
)
def test_exported_networks_load_unchanged(make, tmp_path):
    torch.manual_seed(0)
    network = make().eval()
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.3)
    published.export_published(Denoiser(network), tmp_path / "out")
    read = published.read(tmp_path / "out")
    again, ids = read.denoiser.backbone, torch.randint(0, network.vocab.size, (2, 7))
    assert (
        type(again) is type(network)
        and again.vocab == network.vocab
        and again.max_length == network.max_length
    )
    assert all(
        torch.equal(p, q)
        for p, q in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert torch.equal(network(ids), again(ids))
    rebuilt = build(
        read.config["backbone"], vocab=again.vocab
    )  # the network that init_from= trains
    assert (
        rebuilt.state_dict().keys() == again.state_dict().keys()
        and not read.config["time_conditioning"]
    )


def test_exports_are_replaced_only_with_overwrite_and_leave_no_other_files(tmp_path):
    denoiser = Denoiser(Caduceus(DNA, 16, 1))
    published.export_published(denoiser, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"config\.json exists"):
        published.export_published(denoiser, tmp_path / "out")
    published.export_published(denoiser, tmp_path / "out", overwrite=True)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(ValueError, match="Mamba has no published format"):
        published.export_published(CausalDenoiser(Mamba(DNA, 16, 1)), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("num_labels", [0, 3])
@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS])
def test_a_network_with_a_time_input_is_read_with_it(kind, num_labels, tmp_path):
    network = kind(DNA, 16, 2, num_labels=num_labels, time_conditioning=True, cond_dim=5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    denoiser = Denoiser(network, noise=LogLinear(), time_conditioning=True).eval()
    published.export_published(denoiser, tmp_path / "timed")
    again = published.load_published(tmp_path / "timed")
    ids, cond = torch.randint(7, 11, (2, 9)), torch.eye(3)[:2] if num_labels else None
    ids[:, ::2] = DNA.mask_id
    early, late = (again.log_probs(ids, torch.full((2,), t), cond) for t in (0.1, 0.9))
    assert torch.equal(early, denoiser.log_probs(ids, torch.full((2,), 0.1), cond))
    assert torch.equal(late, denoiser.log_probs(ids, torch.full((2,), 0.9), cond))
    assert not torch.equal(early, late)


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS])
def test_a_network_with_labels_is_read_with_them_and_is_the_published_network_without_a_label(
    kind, tmp_path
):
    network = kind(DNA, 16, 2, num_labels=3, cond_dim=5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    network.eval()
    published.export_published(Denoiser(network), tmp_path / "labels")
    ids, cond = torch.randint(7, 11, (2, 9)), torch.eye(3)[:2]
    again = published.load_published(tmp_path / "labels").backbone
    assert torch.equal(again(ids, cond=cond), network(ids, cond=cond)) and not torch.equal(
        again(ids), again(ids, cond=cond)
    )

    config = json.loads((tmp_path / "labels" / "config.json").read_text())
    content = load_file(tmp_path / "labels" / "model.safetensors")
    plain = {
        name: tensor
        for name, tensor in content.items()
        if "condition" not in name and "adaLN" not in name
    }
    assert (
        config.pop("dnadiff_labels") == {"num_labels": 3, "cond_dim": 5}
        and len(content) - len(plain) == 3
    )
    (tmp_path / "plain").mkdir()
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    assert torch.equal(published.load_published(tmp_path / "plain").backbone(ids), network(ids))


def test_half_precision_files_hold_the_rounded_weights(tmp_path):
    denoiser = Denoiser(Caduceus(DNA, 16, 1)).eval()
    ids, before = torch.randint(7, 11, (2, 9)), [p.clone() for p in denoiser.parameters()]
    round_weights(denoiser, torch.float16)
    assert all(
        torch.equal(p, old.half().float()) and p.dtype == torch.float32
        for p, old in zip(denoiser.parameters(), before, strict=True)
    )
    published.export_published(denoiser, tmp_path / "half", dtype=torch.float16)
    assert {
        tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()
    } == {torch.float16}
    again = published.load_published(tmp_path / "half")
    assert torch.equal(again.log_probs(ids), denoiser.log_probs(ids)) and {
        p.dtype for p in again.parameters()
    } == {torch.float32}


def test_weights_outside_the_range_of_a_type_are_refused():
    network = torch.nn.Linear(2, 2)
    with torch.no_grad():
        network.weight[0, 0] = 1e6
    before = [p.clone() for p in network.parameters()]
    with pytest.raises(
        ValueError,
        match=r"weight has the value 1e\+06, and float16 holds at most 65504; use another dtype",
    ):
        round_weights(network, torch.float16)
    assert all(map(torch.equal, network.parameters(), before))
    round_weights(network, torch.bfloat16)


def test_loading_does_not_change_the_random_state(tmp_path, folder_of):
    folder, _ = folder_of("caduceus_ph", tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    published.load_published(folder)
    assert torch.equal(torch.rand(2), expected)


def test_hub_ids_need_a_commit():
    for revision in (None, "main"):
        with pytest.raises(ValueError, match="name a commit: add revision="):
            load_published("kuleshov-group/mdlm-owt", revision=revision)


def test_published_models_are_recognized(tmp_path, folder_of):
    assert is_hub_commit(f"a/b@{COMMIT}")
    assert not any(map(is_hub_commit, ("a/b", "latest", str(tmp_path))))
    folder, _ = folder_of("caduceus_ph", tmp_path / "dna")
    assert published.read(folder).known_tokenizer == DNATokenizer()
    assert published.read(folder_of("mdlm_dit", tmp_path / "text")[0]).known_tokenizer is None
