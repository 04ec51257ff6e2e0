"""A share of the wrong uses of every command; that the harness finds faults; that every command has
a case."""

import fnmatch
import importlib.util
import inspect
import random
import re
import time
from typing import Any

import cases
import pytest
import wrong_use
from omegaconf import OmegaConf

from dnadiff.options.base import Options
from dnadiff.options.command import Command, command, command_names

REFUSED_EARLY = (
    "list",
    "mapping",
    "nan",
)  # refused by the type of the key, before any file is read


def make_world(folder):
    """Folders with the names of files and models on command lines: one that is not there is named
    before the keys of a group."""
    sources = inspect.getsource(cases) + inspect.getsource(wrong_use)
    for name in re.findall(r"\{world\}/([\w.]+)", sources):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("command", command_names())
def test_a_share_of_the_wrong_uses_of_each_command_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(command)
    harness = wrong_use.Harness(make_world(tmp_path / "world"), tmp_path)
    never = [
        pattern for pattern in wrong_use.REFUSED if pattern.startswith(f"{command} ")
    ]  # whatever the values of their keys
    allowed = [
        c
        for c in wrong_use.all_choices(command)
        if not any(fnmatch.fnmatchcase(f"{command} {c}", pattern) for pattern in never)
    ]
    absent = [] if importlib.util.find_spec("ray") else ["launcher=ray"]  # refused for itself
    known = [c for c in allowed if not c.startswith("experiment=") and c not in absent]
    cells = [c for c in harness.cells(command, [draw.choice(known)]) if c.valid is None]
    chosen = draw.sample([c for c in cells if c.kind == wrong_use.MISSPELLED], 2)
    chosen += draw.sample(
        [c for c in cells if c.kind in REFUSED_EARLY and not c.key.endswith(("path", "_target_"))],
        8,
    )
    wrong = [o for o in map(harness.run, chosen) if o.is_wrong]
    assert not wrong, wrong


class ToyOptions(Options):
    """A toy."""

    size: Any = 4


def stop(options):
    """Refuses a value in the right way."""
    if options.size != 4:
        raise ValueError(f"size {options.size!r} must be 4")


def write_first(options):
    with open("half.txt", "w") as file:
        file.write("half")
    stop(options)


def say(*lines):
    def refuse(options):
        raise ValueError("\n".join(lines))

    return refuse


TOYS = {
    "refused": stop,
    "accepted, but not listed as valid": lambda options: None,
    "an error of Python reaches the user": lambda options: options.size + 1,
    "the key is not named": say("a value is wrong"),
    "refused after half.txt was written": write_first,
    "not refused in 0.1 s": lambda options: time.sleep(5),
}


@pytest.mark.parametrize("verdict", TOYS)
def test_the_harness_finds_each_kind_of_fault(verdict, tmp_path, monkeypatch):
    monkeypatch.setattr(Command, "known", {})
    command(ToyOptions)(TOYS[verdict])
    harness = wrong_use.Harness(tmp_path, tmp_path, 0.1 if "0.1 s" in verdict else 60)
    case = cases.Case("toy", ())
    harness.bases["toy", ""] = wrong_use.Base(case, "", OmegaConf.create({"size": 4}), [])
    outcome = harness.run(wrong_use.Cell("toy", "size", "word"))
    assert outcome.verdict == verdict and outcome.is_wrong == (verdict != "refused")
    rows = wrong_use.table([outcome])
    assert (
        rows[0]["wrong"] == outcome.is_wrong
        and wrong_use.report([outcome], 1.0, None) == outcome.is_wrong
    )


def test_a_command_without_a_case_fails(monkeypatch, capsys):
    monkeypatch.setattr(cases, "missing", lambda: ["toy"])
    assert wrong_use.main([]) == 1 and "toy" in capsys.readouterr().out


def test_a_failing_base_stands_for_its_cells(tmp_path):
    harness = wrong_use.Harness(tmp_path / "absent", tmp_path)
    cells = [c for c in harness.cells("score", [""]) if c.kind in (wrong_use.CONTROL, "word")]
    (only,) = harness.run_all(cells)
    assert only.is_wrong and only.cell.kind == wrong_use.CONTROL


def test_a_key_is_tested_once_for_each_class():
    content = {
        "seed": 1,
        "data": {"_target_": "a.B", "length": 3, "hub": {"x": 1}},
        "hydra": {"run": 1},
    }
    assert dict(wrong_use.leaves(content)) == {
        "seed": ("", "seed"),
        "data._target_": ("a.B", "_target_"),
        "data.length": ("a.B", "length"),
        "data.hub.x": ("a.B", "hub.x"),
        "hydra.run": ("", "hydra.run"),
    }
