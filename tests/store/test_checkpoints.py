"""Checkpoints on other machines, and addresses inside of checkpoints, which are never fetched."""

import dataclasses
import functools
import http.server
import threading
from pathlib import Path

import pytest
import torch

from dnadiff.data.base import run_data
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.store import remote
from dnadiff.store.files import resolve
from dnadiff.store.objects import build
from dnadiff.store.remote import LostError
from dnadiff.weights import checkpoint
from dnadiff.weights.tensors import fingerprint, write_sharded


@pytest.fixture
def running(trained, exported, tmp_path):
    """A server with the folders `run` and `model` of a trained model."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if not self.server.is_down:
                super().do_GET()

        def log_message(self, *args):
            pass

    for name, folder in (("run", trained), ("model", exported)):
        (tmp_path / "served").mkdir(exist_ok=True)
        (tmp_path / "served" / name).symlink_to(folder)
    running = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "served"))
    )
    running.is_down = False
    threading.Thread(
        target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def models(running):
    """Its address."""
    return f"http://127.0.0.1:{running.server_address[1]}"


def test_a_file_a_run_folder_and_an_exported_folder_are_loaded_from_a_server(models, trained):
    expected = checkpoint.load(trained).denoiser.state_dict()
    for name in (f"{models}/run/checkpoints/best.ckpt", f"{models}/run", f"{models}/model/"):
        found = checkpoint.load(name).denoiser.state_dict()
        assert all(torch.equal(weights, expected[key]) for key, weights in found.items())


@pytest.fixture
def sharded(trained, tmp_path):
    """The folder of the run on the server, with all tensors of its checkpoint in a shard."""
    folder = tmp_path / "served" / "sharded"
    content = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)
    write_sharded(
        folder / "checkpoints" / "best.ckpt",
        content,
        lambda value: value if isinstance(value, torch.Tensor) and value.ndim else None,
        0,
        1,
        "ab",
        lambda: None,
    )
    return folder


def test_a_run_on_a_server_has_its_evaluation_and_its_shards(models, trained, sharded):
    expected = checkpoint.load(trained)
    (sharded / "evaluate.json").write_text('{"of": "the run"}')
    for name in (f"{models}/sharded", f"{models}/sharded/checkpoints/best.ckpt"):
        found = checkpoint.load(name)
        assert fingerprint(found.denoiser) == fingerprint(expected.denoiser)
        assert found.path.parent.name == "checkpoints"
        assert StoredCurve(found.path, found.denoiser).file.read_text() == '{"of": "the run"}'


def test_a_run_on_a_server_is_loaded_where_the_cache_has_no_links(
    models, trained, sharded, monkeypatch
):
    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    expected = fingerprint(checkpoint.load(trained).denoiser)
    for name in ("run", "sharded", "sharded"):
        assert fingerprint(checkpoint.load(f"{models}/{name}").denoiser) == expected


def test_copies_are_loaded_without_a_connection(models, running):
    names = [f"{models}/run", f"{models}/run/checkpoints/best.ckpt", f"{models}/model"]
    expected = [fingerprint(checkpoint.load(name).denoiser) for name in names]

    running.is_down = True
    for name, weights in zip(names, expected):
        remote._current.clear()
        assert fingerprint(checkpoint.load(name).denoiser) == weights
    remote._current.clear()
    with pytest.raises(
        OSError,
        match=r"other/\S+ could not be fetched \(Remote end closed .*\) after 3 tries",
    ):
        checkpoint.load(f"{models}/other")


def test_a_lost_connection_does_not_select_other_weights(server):
    server.files = {"/run/checkpoints/last.ckpt": b"of an earlier step"}
    server.lost = ("/run/checkpoints/best.ckpt",)
    with pytest.raises(LostError, match=r"best\.ckpt could not be fetched \(HTTP 503"):
        checkpoint.load(f"{server.url}/run")


def test_a_checkpoint_that_does_not_exist_is_one_line(models):
    with pytest.raises(
        FileNotFoundError, match=r"checkpoints/none\.ckpt does not exist \(HTTP 404"
    ):
        checkpoint.load(f"{models}/run/checkpoints/none.ckpt")
    with pytest.raises(
        FileNotFoundError,
        match=r"none does not exist, or is no folder with an exported or a published model",
    ):
        checkpoint.load(f"{models}/none")


def data_of(trained, **changes):
    """The data of a checkpoint of unknown origin."""
    model = checkpoint.load(trained)
    model = dataclasses.replace(
        model, config=model.config | {"data": model.config["data"] | changes}
    )
    return run_data(model.config["data"], model.tokenizer)


def test_an_address_in_a_checkpoint_is_never_fetched(server, trained, folder, tmp_path):
    (tmp_path / "m.tsv").write_text(f"path\n{server.fasta}\n")
    for path in (server.fasta, [server.fasta], {"x": server.fasta}, str(tmp_path / "m.tsv")):
        with pytest.raises(
            FileNotFoundError,
            match=(
                r"x\.fa is not in the cache, and what a checkpoint names is not fetched; name it "
                r"on"
            ),
        ):
            data_of(trained, path=path).prepare()
    for change in (
        {"blacklist": server.fasta},
        {"split": {"_target_": "dnadiff.data.splits.RegionSplit", "bed": server.fasta}},
    ):
        with pytest.raises(FileNotFoundError, match="is not in the cache"):
            data_of(trained, **change).prepare()
    with pytest.raises(FileNotFoundError, match="is not in the cache"):
        data_of(trained, path=f"{server.url}/*.fa").prepare()  # a pattern is not listed either
    assert server.asked == [] and not list(folder.glob("remote/*/x.fa"))


def test_what_the_user_fetched_is_read_again_without_the_server(server, trained, tmp_path):
    (tmp_path / "m.tsv").write_text(f"path\n{server.fasta}\n")
    resolve(server.fasta)
    server.files.clear()
    for path in (server.fasta, str(tmp_path / "m.tsv")):
        data = data_of(trained, path=path)
        data.prepare()
        assert data.names == ["chr1"] and data.describe()["tokens"] == 32_000
    assert len(server.asked) == 1


def test_only_the_users_own_configuration_may_fetch(server):
    split = {"_target_": "dnadiff.data.splits.RegionSplit", "bed": server.fasta}
    assert (
        build(split).bed == f"cached:{server.fasta}"
        and build(split, trust=None).bed == server.fasta
    )


def test_a_compressed_file_is_decompressed_from_a_server(server, cli, trained, tmp_path):
    pytest.importorskip("constriction", reason="needs the extra: pip install -e '.[compress]'")
    (tmp_path / "x.fa").write_text(">a\nACGTTGACG\n")
    status, _, err = cli(
        "compress",
        f"checkpoint={trained}",
        "batch_size=4",
        "num_groups=2",
        "window=32",
        "threads=1",
        "input=x.fa",
        "output=x.dnd",
    )
    assert status == 0, err
    server.files["/y.fa.dnd"] = (tmp_path / "x.dnd").read_bytes()
    status, _, err = cli(
        "decompress", f"checkpoint={trained}", f'input="{server.url}/y.fa.dnd?sig=1"'
    )
    assert status == 0, err
    (found,) = tmp_path.rglob("y.fa")
    assert found.read_text() == (tmp_path / "x.fa").read_text()
