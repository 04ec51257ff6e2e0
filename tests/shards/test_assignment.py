"""Shards of a work that counts: resuming, other configurations, missing and damaged parts."""

import json
import os
import stat
from pathlib import Path

import pytest

from dnadiff.data.work import Result, Work
from dnadiff.shards.assignment import Merging, OneShard, assignment_of
from dnadiff.shards.folder import ShardFolder
from dnadiff.shards.manifest import Manifest, Task
from dnadiff.shards.shard import Shard


class Letters(Work):
    """Ten items in units of three; a result for each item."""

    unit = "triples"

    def __init__(self, stop_at=None, prepared="tilt"):
        self.stop_at, self.value, self.computed, self.checked = stop_at, prepared, [], []

    def starts(self):
        return [0, 3, 6, 9, 10]

    def prepare(self):
        return self.value

    def check(self, first, last):
        self.checked.append((first, last))

    def results(self, start=0, skip=0):
        for item in range(start + skip, 10):
            if item == self.stop_at:
                raise KeyboardInterrupt
            self.computed.append(item)
            yield Result(1, b"abcdefghij"[item : item + 1], {"prepared": self.prepared})


@pytest.fixture
def compute(tmp_path):
    """compute("2/4", settings={...}) computes a shard and returns its work."""

    def run(shard, work=None, command="toy", **settings):
        work = work or Letters()
        OneShard(command, Shard.parse(shard), ["x=1", f"shard={shard}"]).compute(
            tmp_path / "out", {"letters": Task(work, settings or {"seed": 1})}
        )
        return work

    return run


@pytest.fixture
def folder(tmp_path):
    return ShardFolder.of(tmp_path / "out")


def merged(folder, skip=0):
    assignment = Merging(folder)
    return b"".join(result.content for result in assignment.results("letters", Letters(), skip))


def test_shards_in_any_order_give_all_results(compute, folder):
    assert [compute(f"{number}/3").computed for number in (3, 1, 2)] == [
        [6, 7, 8, 9],
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert merged(folder) == b"abcdefghij" and merged(folder, 4) == b"efghij"
    assert {r.about["prepared"] for r in Merging(folder).results("letters", Letters())} == {"tilt"}
    assert folder.read().overrides == ["x=1"]


def test_the_first_manifest_stays(compute, folder, monkeypatch):
    compute("1/2")
    before = folder.manifest_path.read_text()
    exists, answers = Path.exists, iter([False])
    monkeypatch.setattr(
        Path,
        "exists",
        lambda self: next(answers, True) if self.name == "manifest.json" else exists(self),
    )
    assert (
        compute("2/2", Letters(prepared="other")).prepared == "tilt"
    )  # as if both had started at once
    assert folder.manifest_path.read_text() == before and len(list(folder.path.iterdir())) == 5


def test_only_the_rows_of_a_shard_are_checked(compute):
    assert compute("2/4").checked == [(3, 6)]


def test_a_complete_shard_is_not_computed_again(compute, folder):
    compute("1/2")
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    assert compute("1/2").computed == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_stopped_shard_is_resumed(compute, folder):
    with pytest.raises(KeyboardInterrupt):
        compute("2/2", Letters(stop_at=8))
    assert folder.missing(folder.read()) == [1, 2]
    assert compute("2/2").computed == [8, 9]
    compute("1/2")
    assert merged(folder) == b"abcdefghij" and not [
        path for path in folder.path.iterdir() if path.name.startswith(".")
    ]


@pytest.mark.parametrize("left", ["part", "entry"])
def test_a_shard_that_was_stopped_between_its_files_is_completed(
    compute, folder, monkeypatch, left
):
    with monkeypatch.context() as patch:
        if left == "part":  # without its entry
            patch.setattr(
                ShardFolder, "complete", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
            )
        else:  # without removing the journal
            patch.setattr(
                "dnadiff.shards.assignment.discard",
                lambda path: (_ for _ in ()).throw(KeyboardInterrupt),
            )
        with pytest.raises(KeyboardInterrupt):
            compute("1/1")
    assert compute("1/1").computed == [] and merged(folder) == b"abcdefghij"
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("shard", "more", "message"),
    [
        ("2/3", {}, "number of shards=2, not 3"),
        ("2/2", {"seed": 2}, "seed=1, not 2"),
        ("2/2", {"seed": 1, "window": 3}, "window=null, not 3"),
        ("2/2", {"command": "other"}, 'command="toy", not "other"'),
    ],
)
def test_a_shard_of_another_configuration_is_refused_by_name(compute, shard, more, message):
    compute("1/2")
    with pytest.raises(ValueError, match=f"^shard: .*out.shards holds shards with {message}"):
        compute(shard, **more)


def test_more_shards_than_units_are_refused(compute, folder):
    with pytest.raises(
        ValueError, match=r"shard 1/5: more shards than units of work, 4 \(triples\); use at most 4"
    ):
        compute("1/5")
    assert not folder.path.exists()


def test_missing_shards_are_listed(compute, folder):
    compute("2/4")
    with pytest.raises(ValueError, match=r"lacks 3 of 4 shards: 1, 3, 4; compute them"):
        Merging(folder)
    with pytest.raises(FileNotFoundError, match="does not exist or has no shards"):
        Merging(ShardFolder(folder.path / "other"))


@pytest.mark.parametrize("damage", ["remove", "cut", "change", "entry", "manifest"])
def test_damaged_shards_are_refused_by_name(compute, folder, damage):
    for number in (1, 2):
        compute(f"{number}/2")
    path = {"entry": folder.entry(Shard(2, 2)), "manifest": folder.manifest_path}.get(
        damage, folder.part(Shard(2, 2), "letters")
    )
    content = path.read_bytes()
    path.write_bytes(
        content[:-1] if damage == "cut" else content.replace(b"g", b"G").replace(b"1", b"7")
    )
    if damage == "remove":
        path.unlink()
    with pytest.raises(ValueError, match=path.name):
        merged(folder)


def test_a_shard_of_another_fingerprint_counts_as_missing(compute, folder):
    for number in (1, 2):
        compute(f"{number}/2")
    path = folder.entry(Shard(1, 2))
    assert folder.missing(folder.read()) == []
    folder.complete(Shard(1, 2), "other", {})
    assert json.loads(path.read_text())["fingerprint"] == "other" and folder.missing(
        folder.read()
    ) == [1]


def test_settings_of_the_shards_decide_and_only_the_device_may_differ(compute, folder):
    compute("1/1", device="cuda", model="a")
    assignment = Merging(folder)
    assert assignment.settings("letters", {"device": "cpu", "model": "a"}) == {
        "device": "cuda",
        "model": "a",
    }
    with pytest.raises(ValueError, match='shards with model="a", and it is "b" now'):
        assignment.settings("letters", {"device": "cpu", "model": "b"})


def test_the_device_of_a_reward_may_differ_too(compute, folder):
    compute("1/1", reward={"terms": {"a": {"device": "cuda", "output": "x"}}})
    assignment = Merging(folder)
    found = assignment.settings(
        "letters", {"reward": {"terms": {"a": {"device": "cpu", "output": "x"}}}}
    )
    assert found == {"reward": {"terms": {"a": {"device": "cuda", "output": "x"}}}}
    with pytest.raises(ValueError, match="holds shards with reward="):
        assignment.settings(
            "letters", {"reward": {"terms": {"a": {"device": "cpu", "output": "y"}}}}
        )


@pytest.mark.parametrize(
    ("address", "mode"), [("https://h/x.fa?sig=1", 0o600), ("https://h/x.fa", None)]
)
def test_a_signed_address_is_for_the_owner_of_the_shards(tmp_path, address, mode):
    umask = os.umask(0o022)
    try:
        Manifest("score", 1, [f"input={address}"], {}).write(tmp_path / "manifest.json")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "manifest.json").stat().st_mode) == (mode or 0o644)
    assert Manifest.read(tmp_path / "manifest.json").overrides == [f"input={address}"]


def test_an_output_is_needed_and_is_not_replaced(tmp_path):
    config = {"shard": "1/2", "output": None, "overwrite": False}
    with pytest.raises(ValueError, match="shard=1/2 needs output="):
        assignment_of(config, "toy", [])
    (tmp_path / "out").write_text("kept")
    config["output"] = str(tmp_path / "out")
    with pytest.raises(FileExistsError, match="exists; set overwrite=true"):
        assignment_of(config, "toy", [])
    assert isinstance(assignment_of(config | {"overwrite": True}, "toy", []), OneShard)
