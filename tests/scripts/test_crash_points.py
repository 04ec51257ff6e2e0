"""A few kills of the harness in scripts/reliability, and a proof that it notices what it looks
for."""

import sys
import uuid
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "reliability"


@pytest.fixture(autouse=True, scope="module")
def importable():
    sys.path.append(str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture
def intercepted():
    import supervisor

    if reason := supervisor.unavailable():
        pytest.skip(reason)


def test_every_command_has_a_case():
    import cases

    assert not cases.missing()


def write_in_place(out):
    with (out / "result.txt").open("w") as file:
        file.write("one\n")
        file.flush()
        file.write("two\n")


def write_atomically(out):
    from dnadiff.store.disk import atomic_write

    with atomic_write(out / "result.txt", overwrite=True) as file:
        file.write(b"one\ntwo\n")


def forget(out):
    write_atomically(out)
    if not (out / "started").exists():  # the second start does less than the first
        (out / "started").write_text("")
        (out / "more").write_text("")


def leave(out):
    part = out / f".result.txt.{uuid.uuid4().hex}"
    part.write_text("one\ntwo\n")
    part.rename(out / "result.txt")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (write_atomically, []),
        (
            write_in_place,
            [f"result.txt is half-written or has other contents ({size} bytes)" for size in (0, 4)],
        ),
        pytest.param(leave, ["after the next start out/.result.txt."], marks=pytest.mark.slow),
        pytest.param(forget, ["after the next start out/more is missing"], marks=pytest.mark.slow),
    ],
)
def test_kills_show_what_a_command_does_wrong(command, expected, tmp_path, intercepted):
    import crash_points
    from bench import Bench
    from cases import Case

    class Toy(Bench):
        def call(self, case, out, resumed=False):
            command(out)
            return 0

    toy = Toy(tmp_path)
    (tmp_path / "kernels").mkdir()
    row = crash_points.kill_case(toy, Case("toy", ()), crash_points.Choice(twice=1))
    assert row.kills >= 3
    assert all(any(one in problem for problem in row.failures) for one in expected) and bool(
        row.failures
    ) == bool(expected)


def test_commands_survive_kills(python):
    process = python(FOLDER / "crash_points.py", "--case=genome", "--points=8:3")
    assert process.wait() == 0, process.output + process.errors
    assert "| all |" in process.output or "skipped" in process.output
