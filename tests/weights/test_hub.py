"""Models of the Hugging Face Hub, fetched with its own package from a server on this machine that
stands in for it."""

import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.weights import checkpoint
from dnadiff.weights.published import export_published, load_published

COMMIT, NAME = "0123456789abcdef0123456789abcdef01234567", "kuleshov-group/caduceus"
PINNED = f"hf:{NAME}@{COMMIT}"
FILES = (
    rf"download config\.json and model\.safetensors \(and dnadiff\.json, .* of "
    rf"https://huggingface\.co/{NAME} into a folder"
)


class Hub(ThreadingHTTPServer):
    """One repository, with the requests of the Hub's protocol that a download needs.

    Attributes:
        files: contents by name, all of one commit.
        sent: names of the files whose contents were requested.
        is_down: every connection is closed without an answer.
        drops: name of a file of which the first half is sent; then the server is down.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.is_down, self.drops = False, ""
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """A client that went away is no error."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.server.is_down:
            self.close_connection = True
            return
        if re.fullmatch(rf"/api/models/{NAME}(/revision/(main|v1\.0|{COMMIT}))?", path):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer(
                json.dumps(
                    {
                        "id": NAME,
                        "modelId": NAME,
                        "sha": COMMIT,
                        "siblings": siblings,
                        "private": False,
                        "downloads": 0,
                        "likes": 0,
                        "tags": [],
                    }
                ).encode()
            )
        elif re.fullmatch(rf"/api/models/{NAME}/tree/{COMMIT}", path):
            entries = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),
                }
                for name, content in self.server.files.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif (found := re.fullmatch(rf"/{NAME}/resolve/{COMMIT}/(.+)", path)) and found[
            1
        ] in self.server.files:
            self.send_file(found[1])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound" if NAME in path else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send_file(self, name: str) -> None:
        content = self.server.files[name]
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if self.command == "GET":
            self.server.sent.append(name)
        if self.command == "GET" and self.server.drops == name:
            self.server.is_down = self.close_connection = True
            self.answer(content, headers, len(content) // 2)
        else:
            self.answer(content, headers)

    def answer(self, content: bytes, headers=(), size: int | None = None) -> None:
        self.send_response(200)
        for key, value in {
            "Content-Type": "application/json",
            **dict(headers),
            "Content-Length": str(len(content)),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:size])


def forget_package() -> dict[str, ModuleType]:
    """Let huggingface_hub be imported again, since it reads the environment then."""
    names = [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The Hub for this process, with a small Caduceus, and a cache of its own."""
    pytest.importorskip(
        "huggingface_hub", reason="the package huggingface_hub is not installed (extra hub)"
    )
    hub = Hub()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "127.0.0.1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }.items():
            patch.setenv(key, value)
        for key in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
            patch.delenv(key, raising=False)
        before = forget_package()
        folder = export_published(
            Denoiser(Caduceus(DNATokenizer().vocab, 16, 1)), tmp_path / "made"
        )
        hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.files |= {
            "README.md": b"---\nlicense: apache-2.0\n---\n",
            "pytorch_model.bin": b"pickled",
            "modeling_caduceus.py": b"code",
        }
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the package's attempts
        yield hub
        hub.shutdown()
        hub.server_close()
        forget_package()
        sys.modules.update(before)


def stored(tmp_path):
    """The names of the files in the Hub's cache that belong to a commit."""
    return sorted(path.name for path in tmp_path.glob("hf/hub/models--*/snapshots/*/*"))


def test_a_model_is_fetched_at_its_commit_without_code_or_pickles(server, tmp_path):
    loaded = checkpoint.load(PINNED)
    assert (
        sorted(server.sent) == stored(tmp_path) == ["README.md", "config.json", "model.safetensors"]
    )
    assert (loaded.origin.kind, loaded.origin.license) == (
        "Hugging Face Hub",
        "apache-2.0",
    ) and loaded.path.parent.name == COMMIT
    ours, theirs = (
        loaded.denoiser.state_dict(),
        checkpoint.load(tmp_path / "made").denoiser.state_dict(),
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    checkpoint.load(PINNED)
    assert len(server.sent) == 3  # once


@pytest.mark.parametrize("revision", ["", "@main", "@v1.0"])
def test_a_revision_that_is_no_commit_is_resolved_and_logged(revision, server, caplog):
    with caplog.at_level("INFO", "dnadiff"):
        checkpoint.load(f"hf:{NAME}{revision}")
        assert f"hf:{NAME}: commit {COMMIT}; to pin it: hf:{NAME}@{COMMIT}" in caplog.messages
        caplog.clear()
        server.is_down = True
        checkpoint.load(f"hf:{NAME}{revision}")
    assert (
        sum(
            "the files of an earlier download are used" in m and COMMIT in m
            for m in caplog.messages
        )
        == 1
    )
    assert f"hf:{NAME}: commit {COMMIT}; to pin it: hf:{NAME}@{COMMIT}" in caplog.messages


@pytest.mark.parametrize("without", ["connection", "network"])
def test_a_pinned_commit_in_the_cache_is_used_without_the_hub_and_one_line_says_so(
    without, server, caplog, monkeypatch
):
    before = checkpoint.load(PINNED).path
    if without == "network":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server.is_down = True
    with caplog.at_level("INFO", "dnadiff"):
        assert checkpoint.load(PINNED).path == before
    said = [m for m in caplog.messages if m.startswith("hf:")]
    assert len(said) == 1 and said[0].endswith(
        f"the files of an earlier download are used, commit {COMMIT}"
    )


@pytest.mark.parametrize(
    "name", [PINNED, f"hf:{NAME}", f"hf:{NAME}@other", f"hf:{NAME}@{COMMIT[::-1]}"]
)
def test_without_a_cached_copy_the_error_says_which_files_to_put_where(name, server):
    server.is_down = name in (PINNED, f"hf:{NAME}")
    with pytest.raises(
        ValueError,
        match=(
            rf"could not be fetched .*nor is it in the Hub's cache; {FILES}, and give "
            rf"checkpoint=FOLDER"
        ),
    ) as caught:
        checkpoint.load(name)
    assert "\n" not in str(caught.value)


def test_a_dropped_connection_leaves_no_half_written_file_and_is_resumed(server, tmp_path):
    server.drops = "model.safetensors"
    with pytest.raises(ValueError, match=rf"could not be fetched .*{FILES}"):
        checkpoint.load(PINNED)
    assert "model.safetensors" not in stored(tmp_path) and "model.safetensors" in server.sent
    with pytest.raises(
        ValueError, match="could not be fetched"
    ):  # what was fetched of it is no model
        checkpoint.load(PINNED)
    server.drops, server.is_down = "", False
    assert checkpoint.load(PINNED).path.read_bytes() == server.files["model.safetensors"]


def test_weights_that_are_not_safetensors_are_not_fetched(server):
    del server.files["model.safetensors"]
    with pytest.raises(
        ValueError, match=r"has no model\.safetensors, and only weights in safetensors are read"
    ):
        checkpoint.load(PINNED)
    assert "pytorch_model.bin" not in server.sent


def test_an_exported_model_needs_its_description_on_the_hub_too(server, exported, tmp_path):
    server.files = {path.name: path.read_bytes() for path in exported.iterdir()}
    code = (
        (exported / "README.md").read_text().split("```python\n")[2].split("```")[0]
    )  # of the card
    found = {"dnadiff": dnadiff}
    exec(code.replace("ORG/NAME@COMMIT", f"{NAME}@{COMMIT}"), found)
    assert type(found["model"].loaded.objective).__name__ == "MDLM" and "dnadiff.json" in stored(
        tmp_path
    )


def test_an_exported_model_on_the_hub_without_its_description_is_refused(server, exported):
    server.files = {
        path.name: path.read_bytes() for path in exported.iterdir() if path.name != "dnadiff.json"
    }
    with pytest.raises(
        FileNotFoundError, match=r"dnadiff\.json is missing: this folder was exported by dnadiff"
    ):
        checkpoint.load(PINNED)


def test_load_published_fetches_safetensors_of_a_commit(server):
    assert isinstance(load_published(f"{NAME}@{COMMIT}").backbone, Caduceus)
    assert sorted(server.sent) == ["config.json", "model.safetensors"]


def test_load_published_fetches_other_weights_if_there_are_no_safetensors(server):
    del server.files["model.safetensors"]
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is not a file of tensors"):
        load_published(NAME, revision=COMMIT)


@pytest.mark.parametrize(
    "name", ["hf:", "hf:caduceus", "hf:a/b/c", "hf:../x y", f"hf:{NAME}@", f"hf:{NAME}@a b"]
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="write hf:ORG/NAME or hf:ORG/NAME@REVISION"):
        checkpoint.load(name)
