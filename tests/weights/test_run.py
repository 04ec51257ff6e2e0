import json
import pickle
import shutil
import zipfile

import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.store.disk import write_json
from dnadiff.store.objects import build
from dnadiff.weights import checkpoint, tensors
from dnadiff.weights.loaded import build_denoiser


class Hostile:
    def __reduce__(self):
        import os

        return os.system, ("touch pwned",)


@pytest.fixture
def content(trained):
    return torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)


def saved(content, tmp_path):
    path = tmp_path / "changed.ckpt"
    torch.save(content, path)
    return path


def test_a_run_folder_a_file_and_latest_all_load(trained, tmp_path):
    loaded = checkpoint.load(trained)
    assert loaded.path == trained / "checkpoints" / "best.ckpt" and not loaded.denoiser.training
    assert checkpoint.load(trained / "checkpoints" / "last.ckpt").step == 30
    runs = tmp_path / "runs"
    shutil.copytree(trained, runs / "a")
    assert checkpoint.find("latest", runs) == runs / "a" / "checkpoints" / "best.ckpt"


def test_averaged_weights_are_loaded(content, trained):
    loaded = checkpoint.load(trained / "checkpoints" / "last.ckpt")
    name, ours = next(iter(loaded.denoiser.state_dict().items()))
    assert torch.equal(ours, content["state_dict"][f"denoiser.{name}"])
    assert not torch.equal(ours, content["current_model_state"][f"denoiser.{name}"])


def test_pickled_code_is_not_executed(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="could run code"):
        checkpoint.load(saved(content | {"extra": Hostile()}, tmp_path))
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match=r"not loaded|damaged"):
        checkpoint.load(tmp_path / "raw.ckpt")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("where", ["backbone", "noise", "objective", "tokenizer"])
def test_a_target_from_outside_is_not_called(where, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    hyper = content["hyper_parameters"]
    hostile = {"_target_": "os.system", "command": "touch pwned"}
    if where == "tokenizer":
        hyper["tokenizer"] = hostile
    else:
        hyper["config"][where] = hostile
    with pytest.raises(ValueError, match=r"refused to build 'os\.system'"):
        dnadiff.load(saved(content, tmp_path))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "hostile",
    [
        {"_target_": "dnadiff.networks.kernels.native._run", "command": ["touch", "pwned"]},
        {
            "_target_": "dnadiff.weights.checkpoint.load",
            "checkpoint": "other.ckpt",
            "trust": ["subprocess"],
        },
        {
            "_target_": "dnadiff.formats.sequences.write_fasta",
            "path": "pwned",
            "records": [["a", "b", b"ACGT"]],
            "overwrite": True,
        },
        {
            "_target_": "dnadiff.store.objects.build",
            "config": {"_target_": "os.system", "command": "touch pwned"},
            "trust": None,
        },
        {"_target_": "dnadiff.options.command.compose", "name": "train"},
    ],
    ids=lambda h: h["_target_"],
)
@pytest.mark.parametrize("where", ["noise", "backbone", "objective", "split"])
def test_functions_of_the_package_are_not_called_either(
    hostile, where, tmp_path, monkeypatch, content
):
    monkeypatch.chdir(tmp_path)
    config = content["hyper_parameters"]["config"]
    if where == "split":
        config["data"]["split"] = hostile
        with pytest.raises(ValueError, match="refused to build"):
            build(checkpoint.load(saved(content, tmp_path)).config["data"])
    else:
        config[where] = hostile
        with pytest.raises(ValueError, match="refused to build"):
            checkpoint.load(saved(content, tmp_path))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "text",
        {"config": None},
        {"config": {}, "tokenizer": {}},
        {"config": {"noise": 3}, "tokenizer": 5},
    ],
)
def test_malformed_descriptions_are_one_line(broken, tmp_path, content):
    content["hyper_parameters"] = broken
    with pytest.raises(ValueError, match="is not a dnadiff checkpoint"):
        checkpoint.load(saved(content, tmp_path))


def test_a_target_that_is_not_a_string_is_refused(tmp_path, content):
    content["hyper_parameters"]["config"]["noise"] = {"_target_": 5}
    with pytest.raises(ValueError, match="is not a dotted path"):
        checkpoint.load(saved(content, tmp_path))


def test_text_files_are_distinguished_from_damaged_ones(trained, tmp_path):
    with pytest.raises(ValueError, match="is not a file of tensors"):
        checkpoint.load(trained / "config.yaml")
    assert checkpoint.find(trained / "checkpoints") == trained / "checkpoints" / "best.ckpt"


def test_json_never_holds_nan(tmp_path):
    write_json(tmp_path / "x.json", {"a": [float("nan"), 1.0], "b": float("inf")})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, 1.0], "b": None}


def test_truncated_files_are_named(trained, tmp_path):
    content = (trained / "checkpoints" / "last.ckpt").read_bytes()
    for fraction in (0, 0.3, 0.9):
        path = tmp_path / "cut.ckpt"
        path.write_bytes(content[: int(fraction * len(content))])
        with pytest.raises(ValueError, match=r"cut\.ckpt is damaged or cut short"):
            checkpoint.load(path)


def test_a_description_of_tensors_that_is_cut_is_named(trained, tmp_path):
    path = tmp_path / "cut.ckpt"
    for cut in (40, 1, 400):
        with (
            zipfile.ZipFile(trained / "checkpoints" / "last.ckpt") as whole,
            zipfile.ZipFile(path, "w") as archive,
        ):
            for member in whole.infolist():
                end = -cut if member.filename.endswith("data.pkl") else None
                archive.writestr(member.filename, whole.read(member)[:end])
        with pytest.raises(ValueError, match=r"cut\.ckpt (is|holds) .*damaged") as caught:
            checkpoint.load(path)
        assert str(caught.value).endswith("; use another copy of it")


def test_weights_of_another_vocabulary_are_listed(content, tmp_path):
    content["hyper_parameters"]["tokenizer"] = {
        "_target_": "dnadiff.data.tokenizer.CharTokenizer",
        "characters": "abcdefghijklmnopqrstuvwxyz",
    }
    with pytest.raises(
        ValueError,
        match=r"backbone\.embedding\.weight is \(16, 16\), expected \(32, 16\).*another vocabulary",
    ):
        checkpoint.load(saved(content, tmp_path))


def test_missing_and_unexpected_tensors_are_listed(content, tmp_path):
    state = content["state_dict"]
    state["denoiser.backbone.extra"] = state.pop("denoiser.backbone.norm_f.weight")
    with pytest.raises(
        ValueError, match=r"missing backbone\.norm_f\.weight; surplus backbone\.extra"
    ):
        checkpoint.load(saved(content, tmp_path))


def test_other_and_missing_files_are_named(tmp_path):
    torch.save({"a": 1}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="is not a dnadiff checkpoint"):
        checkpoint.load(tmp_path / "other.ckpt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        checkpoint.load(tmp_path / "none.ckpt")
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoints/best\.ckpt"):
        checkpoint.load(tmp_path)


def flipped(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def test_a_flipped_bit_in_the_weights_is_found_by_its_checksum(content, tmp_path):
    path = saved(content, tmp_path)
    weight = max(content["state_dict"].values(), key=lambda t: t.numel() * t.element_size())
    flipped(path, path.read_bytes().index(weight.numpy().tobytes()) + 5)
    with pytest.raises(
        ValueError,
        match=(
            r"changed\.ckpt is damaged or cut short \(the checksum of .* differs\); use another "
            r"copy"
        ),
    ):
        checkpoint.load(path)


def test_any_flipped_bit_is_refused_or_changes_nothing(content, tmp_path):
    path = saved({"config": "text", "weights": torch.arange(50.0)}, tmp_path)
    original, step = path.read_bytes(), 17
    for position in range(0, len(original), step):
        path.write_bytes(original)
        flipped(path, position)
        try:
            read = tensors.read(path)
        except ValueError as error:
            assert "changed.ckpt" in str(error) and "\n" not in str(error)
        else:
            assert read["config"] == "text" and torch.equal(read["weights"], torch.arange(50.0)), (
                position
            )


def test_a_compressed_archive_is_refused(content, tmp_path):
    path, packed = saved(content, tmp_path), tmp_path / "packed.ckpt"
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(ValueError, match=r"is compressed, which torch\.save does not do"):
        checkpoint.load(packed)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_layers", 10**7, "more parameters than the 19 tensors in"),
        ("d_model", 10**6, r"is \(16, 16\), expected \(16, 1000000\)"),
        ("pad_vocab_to", 10**9, r"is \(16, 16\), expected \(1000000000, 16\)"),
    ],
)
def test_a_network_that_the_file_cannot_fill_is_refused_without_memory(
    key, value, message, content, tmp_path, monkeypatch
):
    content["hyper_parameters"]["config"]["backbone"][key] = value
    path = saved(content, tmp_path)
    built = []
    monkeypatch.setattr(torch.nn.Parameter, "__new__", staticmethod(counted(built)))
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path)
    assert built and all(device == "meta" for device in built) and len(built) < 1000


def counted(built, make=torch.nn.Parameter.__new__):
    def new(cls, data=None, requires_grad=True):
        built.append("none" if data is None else data.device.type)
        return make(cls, data, requires_grad)

    return new


def test_weights_that_repeat_a_few_numbers_are_refused_before_they_are_copied(content, tmp_path):
    content["hyper_parameters"]["config"]["backbone"]["d_model"] = 4096
    with torch.device("meta"):
        network = build_denoiser(content["hyper_parameters"]["config"], DNATokenizer())[0]
    content["state_dict"] = {
        f"denoiser.{name}": torch.zeros(1).expand(t.shape)
        for name, t in network.state_dict().items()
    }
    with pytest.raises(ValueError, match=r"changed\.ckpt has .* bytes, and its tensors would need"):
        checkpoint.load(saved(content, tmp_path))


def test_an_object_that_is_not_a_tokenizer_is_refused(content, tmp_path):
    content["hyper_parameters"]["tokenizer"] = {
        "_target_": "dnadiff.data.text.pretrained.Pretrained",
        "source": "org/name",
    }
    with pytest.raises(ValueError, match=r"Pretrained' as its tokenizer, which is not one"):
        checkpoint.load(saved(content, tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["hyper_parameters"]["config"]["backbone"].update(d_model="x"),
        lambda content: content["hyper_parameters"]["config"]["noise"].update(_target_=None),
        lambda content: content["hyper_parameters"]["config"]["objective"].update(x=1),
        lambda content: content["hyper_parameters"]["tokenizer"].update(
            _target_="dnadiff.data.tokenizer.CharTokenizer", characters=5
        ),
        lambda content: content["state_dict"].update(dict.fromkeys(content["state_dict"], "x")),
        lambda content: content.update(global_step=[1]),
    ],
)
def test_values_that_no_command_writes_are_refused_with_the_name_of_the_file(
    change, trained, tmp_path
):
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    change(content)
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"x\.ckpt") as caught:
        checkpoint.load(tmp_path / "x.ckpt")
    assert "\n" not in str(caught.value)


def test_an_index_of_a_checkpoint_with_impossible_numbers_is_refused(trained, tmp_path):
    content = (trained / "checkpoints" / "last.ckpt").read_bytes()
    end, paths = content.rindex(b"PK\x05\x06"), 0
    for place in range(end - 120, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x80
        (tmp_path / "x.ckpt").write_bytes(damaged)
        try:
            checkpoint.read(tmp_path / "x.ckpt")
        except ValueError as error:
            assert "x.ckpt" in str(error) and not isinstance(error, UnicodeError)
            paths += 1
    assert paths > 20


def test_a_step_that_is_no_integer_is_refused_on_reading(trained, tmp_path):
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    torch.save(content | {"global_step": [1]}, tmp_path / "x.ckpt")
    with pytest.raises(
        ValueError,
        match=r"x\.ckpt is not a dnadiff checkpoint: its step is '\[1\]', not an integer",
    ):
        checkpoint.read(tmp_path / "x.ckpt")


def test_a_checkpoint_without_a_number_is_named_without_the_text_of_python(content, tmp_path):
    path = saved(content, tmp_path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, b"" if name.endswith(".storage_alignment") else data)
    with pytest.raises(ValueError, match=r"ckpt is damaged or cut short; use another copy of it$"):
        tensors.read(path)
