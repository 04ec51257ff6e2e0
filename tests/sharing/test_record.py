"""What is known of a model: its data are described only if they are those of its training."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from dnadiff.export import export
from dnadiff.genomics import evaluation
from dnadiff.info import info
from dnadiff.options.command import compose
from dnadiff.sharing import record
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import ChangedDataError, held_out_likelihood

LIKELIHOOD = {
    "part": "test",
    "data": "tiny.fa",
    "own_data": True,
    "window": 64,
    "split": "fractions",
    "split_hash": "0123",
    "protocol": "count",
    "groups": {
        "all": dict(
            bits=1.5,
            bits_low=None,
            bits_high=None,
            nll=1.0,
            perplexity=2.8,
            se_total=None,
            tokens=640,
        )
    },
    "markov": [
        {
            "order": 2,
            "groups": {"all": {"bits": 1.75, "difference_bits": -0.25, "low": None, "high": None}},
        }
    ],
}


@pytest.fixture
def reads(trained, tmp_path):
    """The trained model as if it had been trained on a file that now holds these letters."""

    def with_letters(letters):
        path = tmp_path / "tiny.fa"
        path.write_text(f">one\n{letters}\n")
        loaded = checkpoint.load(trained)
        return replace(
            loaded, config={**loaded.config, "data": {**loaded.config["data"], "path": str(path)}}
        )

    return with_letters


TRAINED_ON = "ACGTTGA" * 860
CHANGED = {"other letters": "A" + TRAINED_ON[1:-1] + "C", "another length": TRAINED_ON + "ACGT"}


def test_data_with_the_sequence_and_the_split_of_the_training_are_described(reads):
    loaded = reads(TRAINED_ON)
    origin = record.origin_of(loaded, None, reads_data=True)
    assert loaded.training_data().name == "tiny.fa" and not origin.data_changed
    assert origin.data["split_hash"] == loaded.origin.split_hash and origin.data["tokens"] == len(
        TRAINED_ON
    )
    assert "| tokens, train |" in record.model_card("Tiny", record.summary(loaded, origin))


@pytest.mark.parametrize("letters", CHANGED.values(), ids=CHANGED)
def test_data_that_changed_since_training_are_left_out_of_the_card(letters, reads, caplog):
    loaded = reads(letters)
    with pytest.raises(ChangedDataError, match=r"tiny\.fa changed since .* was trained on it"):
        loaded.training_data()
    origin = record.origin_of(loaded, None, reads_data=True)
    about = record.summary(loaded, origin)
    assert origin.data is None and origin.data_changed and "tiny.fa changed since" in caplog.text
    assert about["split_hash"] == loaded.origin.split_hash and about["split_tokens"] is None
    text = record.model_card("Tiny", about)
    assert (
        "Its files changed since training" in text
        and "| tokens, train |" not in text
        and "held-out parts" not in text
    )


def test_changed_data_are_marked_in_the_exported_folder_too(reads, trained, tmp_path, capsys):
    reads(CHANGED["other letters"])
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"]["config"]["data"]["path"] = str(tmp_path / "tiny.fa")
    torch.save(content, tmp_path / "changed.ckpt")
    files = {"checkpoint": f"{tmp_path}/changed.ckpt", "output": f"{tmp_path}/model"}
    folder = export(**files).paths[0]
    assert (
        checkpoint.load(folder).origin.data_changed
        and "changed since training" in (folder / "README.md").read_text()
    )
    info(checkpoint=str(folder))
    assert "The files of the training data had changed" in capsys.readouterr().out


def test_an_evaluation_on_changed_data_is_not_one_on_the_data_of_the_training(reads, caplog):
    assert evaluation.data_of(reads(TRAINED_ON), None)[1] is True and not caplog.text
    loaded = reads(CHANGED["other letters"])
    assert evaluation.data_of(loaded, None)[1] is False
    assert "what is held out now may have been in its training part" in caplog.text
    assert evaluation.training_data(loaded, None, []) is None


def test_data_that_are_named_again_are_those_of_the_training_if_they_are_the_same(
    exported, reads, tmp_path
):
    again = ["checkpoint=x", "data=fasta", f"data.path={tmp_path}/tiny.fa", "data.length=64"]
    data = compose("evaluate", again)["data"]
    for letters, same in ((TRAINED_ON, True), *((letters, False) for letters in CHANGED.values())):
        reads(letters)
        assert evaluation.data_of(checkpoint.load(exported), data)[1] is same


@pytest.fixture
def evaluated(trained, tmp_path):
    """A copy of the run with an evaluation of its weights: (the model, its content)."""

    def with_evaluation(**changes):
        run = shutil.copytree(trained, tmp_path / "run", dirs_exist_ok=True)
        loaded = checkpoint.load(run)
        data = {"name": "tiny.fa", "window": 64, "split": "fractions", "split_hash": "0123"}
        model = {"fingerprint": record.fingerprint(loaded.denoiser)}
        content = {**LIKELIHOOD, "model": model, "data": data, **changes}
        (run / "evaluate.json").write_text(json.dumps(content))
        return loaded, content

    return with_evaluation


def test_an_evaluation_of_another_split_than_that_of_the_training_is_ignored(evaluated, caplog):
    loaded, content = evaluated()
    data = content["data"]
    own = {**data, "split_hash": loaded.origin.split_hash}
    assert record.stored_evaluation(*evaluated(data=own)[:1])["data"] == own
    with caplog.at_level("INFO", "dnadiff"):
        assert record.stored_evaluation(evaluated(data=data)[0]) is None
    assert "the data changed between the training and the evaluation" in caplog.text


def test_the_summary_of_a_run_names_its_data_and_its_split(trained):
    loaded = checkpoint.load(trained)
    about = record.summary(loaded, record.origin_of(loaded, None))
    assert (
        about["data"] == "tiny.fa"
        and about["split"].startswith("default (")
        and about["split_hash"] == loaded.origin.split_hash
    )


def test_intervals_that_too_few_windows_leave_unknown_are_shown_as_dashes(evaluated, capsys):
    loaded, content = evaluated(own_data=True)
    loaded = replace(
        loaded, origin=replace(loaded.origin, likelihood=held_out_likelihood(LIKELIHOOD))
    )
    text = record.model_card("Tiny", record.summary(loaded, loaded.origin))
    assert "| all | 1.5000 | - to - | 640 |" in text and "| 1.7500 | -0.2500 | - to - |" in text
    data = {**content["data"], "split_hash": loaded.origin.split_hash}
    loaded, _ = evaluated(data=data)
    capsys.readouterr()
    info(checkpoint=str(loaded.path.parent.parent))
    out = capsys.readouterr().out
    assert "1.5000" in out and "- to -" in out


def test_the_card_says_how_the_folder_is_loaded(exported, monkeypatch):
    code, *_ = (exported / "README.md").read_text().split("```python\n")[1].split("```")
    monkeypatch.chdir(exported)
    found = {}
    exec(code, found)
    assert (
        found["model"].path.name == "model.safetensors"
        and 'dnadiff.load("hf:ORG/NAME@COMMIT")' in (exported / "README.md").read_text()
    )


def test_an_evaluation_next_to_a_model_without_data_is_used(evaluated):
    loaded, content = evaluated(own_data=False)
    without = replace(loaded, config=loaded.config | {"data": None})
    assert record.stored_evaluation(without) == content
    assert record.stored_evaluation(loaded) is None


def test_control_characters_of_a_model_are_escaped(evaluated, trained, tmp_path, capsys):
    loaded, content = evaluated()
    data = {**content["data"], "name": "x\x1b[2J", "split_hash": loaded.origin.split_hash}
    evaluated(data=data, part="test\x1b[2J", protocol="count\x1b[2J")
    other = shutil.copytree(trained, tmp_path / "b\x1b[2J")
    for run, count in ((tmp_path / "run", 3), (other, 2)):
        capsys.readouterr()
        info(checkpoint=str(run))
        out = capsys.readouterr().out
        assert "\x1b" not in out and out.count("\\x1b[2J") >= count
