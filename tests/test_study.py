import json

import pytest

from dnadiff import study


@pytest.fixture
def options():
    return lambda *args: study.arguments("what", "unused").parse_args(args)


def test_finished_pieces_are_skipped_and_may_be_chosen(tmp_path, options, capsys):
    calls, kept = [], study.Kept(tmp_path / "kept")
    pieces = {name: lambda name=name: calls.append(name) or {"value": len(calls)} for name in ("a-1", "a-2", "b")}
    study.work(pieces, kept, options("--only", "b", "--only", "a-2"))
    study.work(pieces, kept, options())
    assert calls == ["b", "a-2", "a-1"] and kept["a-1"]["value"] == 3  # as they were named, then the rest
    assert sorted(p.name for p in kept.folder.iterdir()) == ["a-1.json", "a-2.json", "b.json"]
    capsys.readouterr()
    study.work(pieces | {"c": None}, kept, options("--list"))
    assert capsys.readouterr().out.split() == ["finished", "a-1", "finished", "a-2", "finished", "b", "-", "c"]
    with pytest.raises(ValueError, match="names no piece; there are a-1, a-2, b"):
        study.work(pieces, kept, options("--only", "d"))
    with pytest.raises(ValueError, match="--only c"):
        kept["c"]


def test_a_piece_that_fails_leaves_nothing(tmp_path, options):
    def fail():
        raise OSError

    kept = study.Kept(tmp_path)
    with pytest.raises(OSError):
        study.work({"a": fail}, kept, options())
    assert "a" not in kept and not list(tmp_path.iterdir())


def test_training_goes_on_where_it_stopped(tmp_path, monkeypatch):
    lines = []

    def run(name, *arguments):
        lines.append((name, *arguments))
        (tmp_path / "metrics.json").write_text(json.dumps({"tokens": 1}))

    monkeypatch.setattr(study, "command", run)
    folder = f"hydra.run.dir={tmp_path}"
    assert study.train(tmp_path, ["seed=2"]) == {"tokens": 1, "arguments": ["seed=2"]}
    study.train(tmp_path, ["seed=2"])
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    study.train(tmp_path, ["seed=2"])
    assert lines == [("train", "seed=2", "overwrite=true", folder), ("train", "seed=2", "resume=true", folder)]


def test_a_run_of_other_arguments_is_not_taken_for_this_one(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(study, "command", lambda *_: (folder / "metrics.json").write_text('{"tokens": 1}'))
    study.train(folder, ["seed=2", "trainer.max_steps=10"])
    with pytest.raises(ValueError, match=r"other arguments \(trainer.max_steps=10 trainer.max_steps=20\); set another --output"):
        study.train(folder, ["seed=2", "trainer.max_steps=20"])
    (folder / "arguments.json").unlink()  # a run that an earlier version made says nothing
    assert study.train(folder, ["seed=3"])["tokens"] == 1


def test_markdown():
    assert study.markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
