"""`python -m dnadiff.merge` in wrong use and after interruptions, and what the commands say about
`shard=`."""

import contextlib
import http.server
import json
import shutil
import threading

import numpy as np
import pytest

from dnadiff import sample as sample_command
from dnadiff.jobs.journal import check_of
from dnadiff.jobs.shards import Manifest, MergeMark
from dnadiff.store.disk import json_hash

SAMPLE = (
    "num_samples=6",
    "batch_size=2",
    "length=20",
    "sampler.num_groups=4",
    "accelerator=cpu",
    "output=s.fa",
)


@pytest.fixture
def sample(cli, trained):
    """sample("shard=1/2") -> (exit status, output, errors)."""
    return lambda *more: cli("sample", f"checkpoint={trained}", *SAMPLE, *more)


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory):
    """A folder with an output without shards, and two complete shards of another one."""
    folder = tmp_path_factory.mktemp("shards")
    with contextlib.chdir(folder):
        for more in (["output=whole.fa"], ["shard=2/2"], ["shard=1/2"]):
            sample_command.main([f"checkpoint={trained}", *SAMPLE, *more])
    return folder


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["shard=5/4"], "shard 5/4: the first number must be from 1 to the second one"),
        (["shard=0/4"], "shard 0/4: the first number must be from 1 to the second one"),
        (["shard=x"], "shard 'x' must be i/n, as in shard=3/200"),
        (["shard=2"], "shard 2 must be i/n"),
        (["shard=1/2", "output=null"], "shard=1/2 needs output=, the same for all shards"),
        (["shard=1/2", "output=old.fa"], "old.fa exists; set overwrite=true"),
        (
            ["shard=1/2", "launcher=processes", "launcher.shards=2"],
            "shard=1/2 and launcher= exclude each other",
        ),
        (["launcher=processes", "launcher.shards=2", "output=null"], "launcher= needs output="),
        (
            ["shard=1/2", "output=s3://bucket/s.fa"],
            "output s3://bucket/s.fa is on another machine, and shards need a folder",
        ),
        (["launcher=processes"], "launcher.shards is missing"),
        (
            ["launcher=processes", "launcher.shards=0"],
            "launcher.shards 0 must be an integer of at least 1",
        ),
        (
            ["launcher=processes", "launcher.shards=2", "output=old.fa"],
            "old.fa exists; set overwrite=true",
        ),
    ],
)
def test_wrong_use_of_shards_gets_one_line(sample, tmp_path, args, message):
    (tmp_path / "old.fa").write_text("kept")
    status, _, err = sample(*args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["old.fa"] and (
        tmp_path / "old.fa"
    ).read_text() == "kept"


def test_shards_of_another_action_of_genome_are_refused(cli):
    assert (
        "shard=1/2 is for action=pack"
        in cli("genome", "data=ecoli", "shard=1/2", "output=x.json")[2]
    )


def test_merging_names_what_is_missing(sample, cli, tmp_path):
    status, _, err = cli("merge", "output=s.fa")
    assert (
        status == 1
        and "s.fa.shards does not exist or has no shards; compute them first: shard=1/N" in err
    )
    assert sample("shard=2/3")[0] == 0
    status, _, err = cli("merge", "output=s.fa")
    assert status == 1 and "s.fa.shards lacks 2 of 3 shards: 1, 3; compute them" in err
    status, _, err = sample("shard=1/3", "seed=2")
    assert status == 1 and "holds shards with seed=1, not 2" in err.strip().splitlines()[-1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.fixture
def expected(made):
    """The bytes without shards."""
    return (made / "whole.fa").read_bytes()


@pytest.fixture
def shards(made, tmp_path):
    """Two complete shards."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_merging_writes_the_output_and_removes_the_shards(shards, cli, expected, tmp_path):
    status, out, err = cli("merge", "output=s.fa")
    assert status == 0 and "s.fa is complete" in out, err
    assert (tmp_path / "s.fa").read_bytes() == expected and not (tmp_path / "s.fa.shards").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "s.fa",
        "s.fa.json",
        "whole.fa",
        "whole.fa.json",
    ]
    status, _, err = cli("merge", "output=s.fa")
    assert status == 1 and "s.fa is complete already" in err


def test_what_an_earlier_merge_could_not_remove_is_not_in_the_way(shards, cli, expected, tmp_path):
    for name in (".s.fa.shards.removed", ".s.fa.shards.0123.removed"):
        (tmp_path / name / "held").mkdir(parents=True)
    assert cli("merge", "output=s.fa")[0] == 0
    assert (tmp_path / "s.fa").read_bytes() == expected and not [
        path for path in tmp_path.iterdir() if "removed" in path.name
    ]


def test_an_output_is_not_replaced_and_shards_are_kept_if_asked(shards, cli, expected, tmp_path):
    (tmp_path / "s.fa").write_text("old")
    status, _, err = cli("merge", "output=s.fa")
    assert (
        status == 1
        and "s.fa exists; set overwrite=true" in err
        and (tmp_path / "s.fa").read_text() == "old"
    )
    assert cli("merge", "output=s.fa", "overwrite=true", "keep=true")[0] == 0
    assert (tmp_path / "s.fa").read_bytes() == expected and (tmp_path / "s.fa.shards").is_dir()
    assert cli("merge", "output=t.fa", "shards=s.fa.shards")[0] == 0
    assert (tmp_path / "t.fa").read_bytes() == expected and not (tmp_path / "s.fa.shards").exists()


@pytest.mark.parametrize("where", ["second shard", "folder of shards", "mark"])
def test_a_stopped_merge_is_resumed(shards, cli, expected, tmp_path, where):
    output, folder = tmp_path / "s.fa", tmp_path / "s.fa.shards"
    mark = MergeMark(output)
    if where == "second shard":  # after the first one was written
        part = next(path for path in folder.glob("0002.*.part"))
        content = part.read_bytes()
        part.write_bytes(content[:-1])
        status, _, err = cli("merge", "output=s.fa")
        assert status == 1 and "was changed or cut short" in err and mark.is_under_way
        part.write_bytes(content)
    else:
        mark.set()
        before = mark.path.read_text()
        mark.remove()
        assert cli("merge", "output=s.fa", "keep=true")[0] == 0
        mark.path.write_text(before)
        if where == "mark":
            shutil.rmtree(folder)
    status, _, err = cli("merge", "output=s.fa")
    assert status == 0, err
    assert output.read_bytes() == expected
    names = ["s.fa", "s.fa.json", "whole.fa", "whole.fa.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_file_from_before_a_stopped_merge_is_not_its_output(shards, cli, expected, tmp_path):
    (tmp_path / "s.fa").write_text("old")
    MergeMark(tmp_path / "s.fa").set()  # stopped before it wrote anything
    status, _, err = cli("merge", "output=s.fa")
    assert (
        status == 1
        and "s.fa exists; set overwrite=true" in err
        and (tmp_path / "s.fa").read_text() == "old"
    )
    (tmp_path / "s.fa.shards").rename(tmp_path / "elsewhere")
    assert cli("merge", "output=s.fa", "shards=missing")[0] == 1
    assert cli("merge", "output=s.fa", "shards=elsewhere", "overwrite=true")[0] == 0
    assert (tmp_path / "s.fa").read_bytes() == expected


def test_another_checkpoint_at_merge_is_refused(shards, cli, trained, tmp_path):
    manifest = tmp_path / "s.fa.shards" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["streams"]["samples"]["settings"]["model"] = "other"
    rewrite(manifest, content)
    for number in (1, 2):
        entry = tmp_path / "s.fa.shards" / f"000{number}.json"
        about = json.loads(entry.read_text())
        about["fingerprint"] = Manifest.read(manifest).fingerprint
        rewrite(entry, about)
    status, _, err = cli("merge", "output=s.fa")
    assert (
        status == 1 and 'holds shards with model="other", and it is' in err.strip().splitlines()[-1]
    )


GPU = """
import os

import numpy as np

from dnadiff.design.reward import Reward


class Adenine(Reward):
    def __init__(self, device="cpu"):
        if device == os.environ.get("ABSENT"):
            raise ValueError(f"no device {device}")

    def __call__(self, sequences):
        return np.array([float(s.count("A")) for s in sequences])
"""


def test_shards_of_a_reward_on_a_gpu_are_merged_without_one(cli, trained, tmp_path, monkeypatch):
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "__init__.py").write_text(GPU)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = [
        "num_samples=2",
        "batch_size=1",
        "length=12",
        "sampler.num_groups=2",
        "accelerator=cpu",
        "output=g.fa",
        "trust=[gpu]",
    ]
    reward = [
        "+reward._target_=gpu.Adenine",
        "+reward.device=cuda",
        "method.num_candidates=2",
        "num_draws=0",
    ]
    for number in (1, 2):
        status, _, err = cli("sample", f"checkpoint={trained}", *args, *reward, f"shard={number}/2")
        assert status == 0, err
    monkeypatch.setenv("ABSENT", "cuda")
    status, _, err = cli("merge", "output=g.fa", "trust=[gpu]")
    assert status == 0, err
    assert (
        json.loads((tmp_path / "g.fa.json").read_text())["settings"]["reward"]["device"] == "cuda"
    )


def test_a_merge_of_metrics_that_was_stopped_after_the_picture_is_repeated(cli, tmp_path):
    draw = np.random.default_rng(1)
    for name, number, size in (("y.fa", 12, 30), ("z.fa", 3, 305)):
        (tmp_path / name).write_text(
            "".join(
                f">s{i}\n{''.join(draw.choice(list('ACGT'), size=size))}\n" for i in range(number)
            )
        )
    assert (
        cli(
            "judge",
            "samples=y.fa",
            "real=z.fa",
            "num_splits=20",
            "order=2",
            "output=j.json",
            "shard=1/1",
        )[0]
        == 0
    )

    assert cli("merge", "output=j.json", "keep=true")[0] == 0
    (tmp_path / "j.json").unlink()
    MergeMark(tmp_path / "j.json").set()
    status, _, err = cli("merge", "output=j.json")
    assert status == 0, err
    assert (
        (tmp_path / "j.png").exists()
        and (tmp_path / "j.json").exists()
        and not (tmp_path / "j.json.shards").exists()
    )


def rewrite(path, content):
    """Write a JSON file with its checksum."""
    content.pop("check")
    is_manifest = path.name == "manifest.json"
    check = json_hash(content)[:16] if is_manifest else check_of(content)
    path.write_text(json.dumps(content | {"check": check}))


@pytest.mark.parametrize(
    "override",
    ["+sampler.x={_target_: os.system, command: touch hacked}", "sampler._target_=os.system"],
)
def test_a_manifest_runs_no_code(shards, cli, tmp_path, override):
    manifest = tmp_path / "s.fa.shards" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["overrides"].append(override)
    rewrite(manifest, content)
    status, _, err = cli("merge", "output=s.fa")
    assert (
        status == 1 and "refused to build 'os.system'" in err and not (tmp_path / "hacked").exists()
    )


def with_override(folder, override):
    manifest = folder / "s.fa.shards" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["overrides"].append(override)
    rewrite(manifest, content)


@pytest.mark.parametrize(
    "override",
    [
        "template='{url}/t.fa'",
        "template='{url}/t.fa?sig=1'",
        "checkpoint='{url}/run'",
        "checkpoint='{url}/best.ckpt'",
        "checkpoint=hf:org/name",
        "reward=motif",
    ],
)
def test_a_manifest_fetches_nothing(shards, cli, tmp_path, override):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *args):
            """Nothing is printed."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with_override(tmp_path, override.format(url=url))
    if "template" in override:
        with_override(tmp_path, "length=null")
    if override == "reward=motif":
        with_override(tmp_path, f"+reward.matrix={url}/m.jaspar")
    status, _, err = cli("merge", "output=s.fa")
    assert status == 1 and not asked and not (tmp_path / "s.fa").exists(), err
    assert ("hf:" in override) == ("HF_HUB_OFFLINE is set" in err)
    if "template" in override:
        assert "/t.fa" in err and "is not in the cache" in err
        assert cli("merge", "output=s.fa", "fetch=true")[0] == 1
        assert asked == [f"/{override.rpartition('/')[2]}"[:-1]]
    server.shutdown()
    server.server_close()


def test_a_manifest_imports_nothing(shards, cli, tmp_path):
    (tmp_path / "stranger.py").write_text("open('hacked', 'w').close()")
    with_override(tmp_path, "plugins=[stranger]")
    status, _, err = cli("merge", "output=s.fa")
    assert status == 1 and not (tmp_path / "hacked").exists()
    assert "the shards were computed with plugins=[stranger]; if you trust it, add it here" in err


@pytest.mark.parametrize("name", ["notes.txt", "0001.txt", "run/log.txt", ".hidden", "0003.x.part"])
def test_a_merge_removes_no_file_that_no_shard_wrote(shards, cli, expected, tmp_path, name):
    folder = tmp_path / "s.fa.shards"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    (tmp_path / ".s.fa.shards.mine.removed").mkdir()
    for left in ("0003.log", ".0001.samples.part.journal", "empty"):
        (folder / left).touch() if "." in left else (folder / left).mkdir()
    status, _, err = cli("merge", "output=s.fa")
    assert status == 0 and (tmp_path / "s.fa").read_bytes() == expected
    assert f"is left, because no shard wrote {name.partition('/')[0]} in it" in err
    assert (folder / name).read_text() == "mine" and (
        tmp_path / ".s.fa.shards.mine.removed"
    ).exists()
    assert not (tmp_path / ".s.fa.merging").exists()


def test_a_link_to_shards_is_left(shards, cli, expected, tmp_path):
    (tmp_path / "s.fa.shards").rename(tmp_path / "elsewhere")
    (tmp_path / "s.fa.shards").symlink_to(tmp_path / "elsewhere")
    assert cli("merge", "output=s.fa")[0] == 0 and (tmp_path / "s.fa").read_bytes() == expected
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()


def test_a_manifest_of_a_command_without_shards_is_refused(shards, cli, tmp_path):
    manifest = tmp_path / "s.fa.shards" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["command"] = "train"
    rewrite(manifest, content)
    for entry in (tmp_path / "s.fa.shards").glob("000*.json"):
        entry.unlink()
    status, _, err = cli("merge", "output=s.fa")
    assert status == 1 and ("lacks 2 of 2 shards" in err)


def test_shards_of_different_environments_get_a_warning(shards, cli, tmp_path):
    entry = tmp_path / "s.fa.shards" / "0001.json"
    about = json.loads(entry.read_text())
    about["environment"]["threads"] = 7
    rewrite(entry, about)
    status, _, err = cli("merge", "output=s.fa")
    assert status == 0 and "computed in different environments" in err and "threads 7" in err
