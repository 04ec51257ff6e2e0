import json
import multiprocessing
import time

import pytest
import study


@pytest.fixture
def options():
    return lambda *args: study.arguments("what", "unused").parse_args(args)


def test_finished_pieces_are_skipped_and_pieces_can_be_chosen(tmp_path, options, capsys):
    calls, kept = [], study.Kept(tmp_path / "kept")
    pieces = {
        name: lambda name=name: calls.append(name) or {"value": len(calls)}
        for name in ("a-1", "a-2", "b")
    }
    study.work(pieces, kept, options("--only", "b", "--only", "a-2"))
    study.work(pieces, kept, options())
    assert (
        calls == ["b", "a-2", "a-1"] and kept["a-1"]["value"] == 3
    )  # in the given order, then the rest
    assert sorted(p.name for p in kept.folder.iterdir()) == ["a-1.json", "a-2.json", "b.json"]
    capsys.readouterr()
    study.work(pieces | {"c": None}, kept, options("--list"))
    assert capsys.readouterr().out.split() == [
        "finished",
        "a-1",
        "finished",
        "a-2",
        "finished",
        "b",
        "-",
        "c",
    ]
    with pytest.raises(ValueError, match="matches no piece; there are a-1, a-2, b"):
        study.work(pieces, kept, options("--only", "d"))
    with pytest.raises(ValueError, match="--only c"):
        kept["c"]


def test_finished_pieces_are_collected_in_one_file(tmp_path, options):
    kept, file = study.Kept(tmp_path / "kept", {"epochs": 10}), tmp_path / "table.json"
    pieces = {
        "b": lambda: {"value": 1.5},
        "a": lambda: {"value": float("nan")},
        "c": lambda: {"value": 3},
    }
    study.work(pieces, kept, options("--only", "a", "--only", "b", "--collect", str(file)))
    rows = json.loads(file.read_text())
    assert list(rows) == ["b", "a"] and rows["a"] == kept["a"] and rows["b"] == kept["b"]
    assert (
        rows["b"].keys() == {"value", "piece_seconds"}
        and rows["b"]["value"] == 1.5
        and rows["a"]["value"] is None
    )
    study.work(
        pieces | {"c": None}, kept, options("--table", "--collect", str(file))
    )  # runs nothing
    assert json.loads(file.read_text()) == rows


def test_collected_pieces_are_restored_elsewhere(tmp_path, options, capsys):
    kept, file = study.Kept(tmp_path / "kept", {"epochs": 10}), tmp_path / "table.json"
    finished = {"a": lambda: {"value": 1}, "b": lambda: {"value": 2}}
    study.work(finished, kept, options("--collect", str(file)))
    other, calls = study.Kept(tmp_path / "other", {"epochs": 10}, strict=True), []
    other.keep("b", {"value": 5})  # its own result, which stays
    pieces = {name: lambda name=name: calls.append(name) or {} for name in ("a", "b", "c")}
    capsys.readouterr()
    study.work(pieces, other, options("--restore", str(file)))
    assert (
        calls == ["c"]
        and other["a"] == kept["a"]
        and other["b"] == {"value": 5}
        and "other settings" not in capsys.readouterr().out
    )


def test_pieces_with_other_settings_are_listed(tmp_path, options, capsys):
    pieces = {name: lambda: {"value": 1} for name in ("a", "b", "c")}
    study.work(
        pieces,
        study.Kept(tmp_path, {"epochs": 10, "rates": (1, 2)}),
        options("--only", "a", "--only", "b"),
    )
    kept = study.Kept(tmp_path, {"epochs": 8, "rates": (1, 2), "batch": 4})
    capsys.readouterr()
    study.work(pieces, kept, options())
    assert (
        capsys.readouterr().out.splitlines()[0]
        == "made with other settings (epochs 10, now 8; batch null, now 4): a, b"
    )
    study.work(pieces, study.Kept(tmp_path, kept.settings), options("--table"))
    assert "made with other settings" in capsys.readouterr().out
    (tmp_path / "a.json").write_text('{"value": 1}')  # without settings
    assert (
        kept["b"].keys() == {"value", "piece_seconds"}
        and not kept.changed("a")
        and not kept.changed("c")
    )


def test_a_piece_that_fails_leaves_nothing(tmp_path, options):
    def fail():
        raise OSError

    kept = study.Kept(tmp_path)
    with pytest.raises(OSError):
        study.work({"a": fail}, kept, options())
    assert "a" not in kept and not list(tmp_path.iterdir())


def test_training_resumes_where_it_stopped(tmp_path):
    lines = []

    def run(name, *arguments):
        lines.append((name, *arguments))
        (tmp_path / "metrics.json").write_text(json.dumps({"tokens": 1}))

    folder = f"hydra.run.dir={tmp_path}"
    assert study.train(tmp_path, ["seed=2"], run) == {"tokens": 1, "arguments": ["seed=2"]}
    study.train(tmp_path, ["seed=2"], run)
    (tmp_path / "metrics.json").unlink()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    study.train(tmp_path, ["seed=2"], run)
    assert lines == [
        ("train", "seed=2", "overwrite=true", folder),
        ("train", "seed=2", "resume=true", folder),
    ]


def test_a_run_with_other_arguments_is_refused(tmp_path):
    folder = tmp_path / "run"
    study.train(
        folder,
        ["seed=2", "trainer.max_steps=10"],
        lambda *_: (folder / "metrics.json").write_text('{"tokens": 1}'),
    )
    with pytest.raises(
        ValueError,
        match=r"other arguments \(trainer.max_steps=10 trainer.max_steps=20\); set another "
        r"--output",
    ):
        study.train(folder, ["seed=2", "trainer.max_steps=20"])
    (folder / "arguments.json").unlink()  # a run of an earlier version has no arguments
    assert study.train(folder, ["seed=3"])["tokens"] == 1


def test_markdown():
    assert study.markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_a_piece_waits_for_its_dependency_and_a_missing_dependency_is_an_error(tmp_path, options):
    kept = study.Kept(tmp_path)
    pieces = {"late": lambda: {"twice": 2 * kept["early"]["value"]}, "early": lambda: {"value": 4}}
    study.work(pieces, kept, options())
    assert kept["late"]["twice"] == 8
    with pytest.raises(study.NotYet, match="piece x is not finished"):
        study.work({"y": lambda: kept["x"]}, kept, options())


def work(folder):
    kept = study.Kept(folder)

    def piece(name):
        with (folder / "calls.txt").open("a") as file:
            file.write(f"{name}\n")
        time.sleep(0.1)
        return {}

    pieces = {name: lambda name=name: piece(name) for name in "abcdef"}
    study._WAIT, no_options = 0.05, study.arguments("what", "unused").parse_args([])
    study.work(
        {
            **pieces,
            "sum": lambda: (
                {"needed": [kept[name]["piece_seconds"] for name in "abcdef"]} | piece("sum")
            ),
        },
        kept,
        no_options,
    )


def test_two_processes_share_the_pieces_and_wait_for_dependencies(tmp_path):
    processes = [
        multiprocessing.get_context("fork").Process(target=work, args=(tmp_path,)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted((tmp_path / "calls.txt").read_text().split()) == [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "sum",
    ]
    assert not list(tmp_path.glob(".*.lock"))
