"""A job that counts: resuming, shards, other configurations, missing and damaged parts."""

import json

import pytest

from dnadiff.jobs.job import Job, Result, ResumableJob
from dnadiff.jobs.journal import ResumableOutput, json_path
from dnadiff.jobs.runner import RunOptions, run_jobs
from dnadiff.jobs.shards import Manifest, Shard, ShardFolder


class Letters(ResumableJob):
    """Ten items in units of three; a result for each item."""

    stream = label = "letters"

    def __init__(self, output, settings=None, stop_at=None, prepared="tilt", earlier=None):
        super().__init__()
        self.output, self.settings, self.earlier = output, settings or {"seed": 1}, earlier or {}
        self.stop_at, self.value, self.computed, self.checked = stop_at, prepared, [], []
        self.seen, self.stop_finish = set(), False

    def starts(self):
        return [0, 3, 6, 9, 10]

    def prepare(self):
        return self.value

    def check(self, first=0, last=None):
        self.checked.append((first, last))

    def results(self, start=0, skip=0):
        for item in range(start + skip, 10):
            if item == self.stop_at:
                raise KeyboardInterrupt
            self.computed.append(item)
            yield Result(1, b"abcdefghij"[item : item + 1], {"prepared": self.prepared})

    def header(self):
        return b">"

    def fold(self, result):
        self.seen.add(result.about["prepared"])
        self.totals["count"] = self.totals.get("count", 0) + 1
        return super().fold(result)

    def finish(self, collected):
        if self.stop_finish:
            raise KeyboardInterrupt
        return {"letters": collected.read_bytes().decode(), **self.totals}


class Sum(Job):
    """A file that is written at once."""

    stream = label = "sum"

    def __init__(self, output):
        self.output, self.settings = output, {}

    def starts(self):
        return [0, 1, 2]

    def results(self, start=0, skip=0):
        yield from [Result(1, b"1"), Result(1, b"2")][start + skip :]

    def write(self, results):
        self.output.write_text(str(sum(int(result.content) for result in results)))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run(output):
    """run(resume=True, stop_at=3) runs the job without shards, and returns it."""

    def run(*, resume=False, overwrite=False, **more):
        job = Letters(output, **more)
        run_jobs([job], RunOptions("toy", ["x=1"], resume, overwrite))
        return job

    return run


@pytest.fixture
def compute(output):
    """compute("2/4", settings={...}) computes a shard and returns its job."""

    def compute(shard, job=None, command="toy", **settings):
        job = job or Letters(output, settings)
        options = RunOptions(command, ["x=1", f"shard={shard}"], shard=Shard.parse(shard))
        run_jobs([job], options)
        return job

    return compute


@pytest.fixture
def folder(output):
    return ShardFolder.of(output)


@pytest.fixture
def merge(output, folder):
    """merge(settings) merges the shards, and returns the job."""

    def merge(settings=None, into=folder):
        job = Letters(output, settings)
        run_jobs([job], RunOptions("toy", [], overwrite=True, merged=into))
        return job

    return merge


def test_a_job_writes_its_file_with_the_json_file_next_to_it(run, output, tmp_path):
    job = run()
    assert output.read_bytes() == b">abcdefghij" and job.checked == [(0, None)]
    about = json.loads(json_path(output).read_text())
    assert list(about) == ["file", "sha256", "dnadiff", "letters", "count", "settings"]
    assert about["settings"] == {"seed": 1} and about["letters"] == ">abcdefghij"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.json"]
    with pytest.raises(FileExistsError, match="out exists; set overwrite=true"):
        run()
    assert run(resume=True).computed == [] and run(overwrite=True).computed == list(range(10))


def test_a_stopped_job_is_resumed(run, output):
    with pytest.raises(KeyboardInterrupt):
        run(stop_at=4)
    with pytest.raises(FileExistsError, match="set resume=true"):
        run()
    with pytest.raises(ValueError, match="was started with seed=1, not 2"):
        run(resume=True, settings={"seed": 2})
    job = run(resume=True)
    assert job.computed == [4, 5, 6, 7, 8, 9] and job.totals == {"count": 10}
    assert output.read_bytes() == b">abcdefghij"


def test_what_is_next_to_a_complete_output_is_written_again_after_an_interruption(output):
    job = Letters(output)
    job.stop_finish = True
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], RunOptions("toy"))
    assert output.exists() and not json_path(output).exists()
    job = Letters(output)
    run_jobs([job], RunOptions("toy", resume=True))
    assert job.computed == [] and json.loads(json_path(output).read_text())["count"] == 10


def test_settings_of_earlier_versions_are_recognized(run):
    with pytest.raises(KeyboardInterrupt):
        run(stop_at=4, settings={"model": "sha256 of the file"})
    now = {"model": "identity"}
    with pytest.raises(ValueError, match='was started with model="sha256 of the file"'):
        run(resume=True, settings=now)
    earlier = {"model": lambda: ("sha256 of the file",)}
    assert run(resume=True, settings=now, earlier=earlier).computed == [4, 5, 6, 7, 8, 9]


def test_more_shards_than_units_are_empty_and_complete(compute, merge, output, folder):
    computed = [compute(f"{number}/7").computed for number in range(1, 8)]
    assert [item for each in computed for item in each] == list(range(10)) and computed.count(
        []
    ) == 3
    assert folder.missing() == []
    merge()
    assert output.read_bytes() == b">abcdefghij"


def test_a_file_that_is_written_at_once(output, folder):
    for number in (1, 2, 3):
        options = RunOptions("toy", shard=Shard(number, 3))
        assert run_jobs([Sum(output)], options) == folder.path
    assert run_jobs([Sum(output)], RunOptions("toy", merged=folder)) == output
    assert output.read_text() == "3"
    with pytest.raises(FileExistsError):
        run_jobs([Sum(output)], RunOptions("toy"))


def test_shards_in_any_order_give_all_results(compute, merge, output, folder):
    assert [compute(f"{number}/3").computed for number in (3, 1, 2)] == [
        [6, 7, 8, 9],
        [0, 1, 2],
        [3, 4, 5],
    ]
    job = merge()
    assert output.read_bytes() == b">abcdefghij" and job.seen == {"tilt"} and not job.computed
    assert folder.manifest.overrides == ["x=1"]


def test_the_first_manifest_stays(compute, output, folder):
    compute("1/2")
    before = folder.manifest_path.read_text()
    later = Manifest.of("toy", 2, ["x=2"], [Letters(output, prepared="other")])
    later.write(folder.manifest_path)  # as if both had started at once
    assert compute("2/2").prepared == "tilt"
    assert folder.manifest_path.read_text() == before and len(list(folder.path.iterdir())) == 5


def test_only_the_rows_of_a_shard_are_checked(compute):
    assert compute("2/4").checked == [(3, 6)]


def test_a_complete_shard_is_not_computed_again(compute, folder):
    compute("1/2")
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    assert compute("1/2").computed == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_stopped_shard_is_resumed(compute, merge, output, folder):
    with pytest.raises(KeyboardInterrupt):
        compute("2/2", Letters(output, stop_at=8))
    assert folder.missing() == [1, 2]
    assert compute("2/2").computed == [8, 9]
    compute("1/2")
    merge()
    assert output.read_bytes() == b">abcdefghij"
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("left", ["part", "entry"])
def test_a_shard_that_was_stopped_between_its_files_is_completed(
    compute, merge, output, folder, left
):
    compute("1/1")
    path = folder.part(Shard(1, 1), "letters")
    settings = {"fingerprint": folder.manifest.fingerprint, "shard": "1/1"}
    written = ResumableOutput(path, settings, overwrite=True)
    written.append(path.read_bytes(), 10)
    written.finish()  # its journal is there again
    if left == "part":
        folder.entry(Shard(1, 1)).unlink()
    assert compute("1/1").computed == []
    merge()
    assert output.read_bytes() == b">abcdefghij"
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


def test_missing_shards_are_listed(compute, merge, folder):
    compute("2/4")
    with pytest.raises(ValueError, match=r"lacks 3 of 4 shards: 1, 3, 4; compute them"):
        merge()
    with pytest.raises(FileNotFoundError, match="does not exist or has no shards"):
        merge(into=ShardFolder(folder.path / "other"))


@pytest.mark.parametrize("damage", ["remove", "cut", "change", "entry", "manifest"])
def test_damaged_shards_are_refused_by_name(compute, merge, folder, damage):
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
        merge()


def test_a_shard_of_another_fingerprint_counts_as_missing(compute, folder):
    for number in (1, 2):
        compute(f"{number}/2")
    path = folder.entry(Shard(1, 2))
    assert folder.missing() == []
    folder.complete(Shard(1, 2), "other", {})
    assert json.loads(path.read_text())["fingerprint"] == "other" and folder.missing() == [1]


def test_settings_of_the_shards_decide_and_only_the_device_may_differ(compute, merge, output):
    compute("1/1", device="cuda", model="a")
    merge({"device": "cpu", "model": "a"})
    about = json.loads(json_path(output).read_text())
    assert about["settings"] == {"device": "cuda", "model": "a"}
    with pytest.raises(ValueError, match='shards with model="a", and it is "b" now'):
        merge({"device": "cpu", "model": "b"})


def test_the_device_of_a_reward_may_differ_too(compute, merge):
    def reward(device, output):
        return {"reward": {"terms": {"a": {"device": device, "output": output}}}}

    compute("1/1", **reward("cuda", "x"))
    assert merge(reward("cpu", "x")).settings == reward("cuda", "x")
    with pytest.raises(ValueError, match="holds shards with reward="):
        merge(reward("cpu", "y"))


def test_an_output_is_needed_and_is_not_replaced(output):
    def checked(path, overwrite=False):
        return RunOptions.checked("toy", [], path, shard="1/2", overwrite=overwrite)

    with pytest.raises(ValueError, match="shard=1/2 needs output="):
        checked(None)
    output.write_text("kept")
    with pytest.raises(FileExistsError, match="exists; set overwrite=true"):
        checked(output)
    assert checked(output, overwrite=True).shard == Shard(1, 2)
