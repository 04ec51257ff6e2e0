"""A web server on this machine that can do what real ones do wrong, and three object stores."""

import http.server
import runpy
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dnadiff.store import remote

FASTA = (">chr1\n" + "ACGTTGCA" * 4000 + "\n").encode()


class Server(http.server.BaseHTTPRequestHandler):
    """Files by path; each setting is what the server does wrong."""

    protocol_version = "HTTP/1.1"
    files: ClassVar = {}
    ranges = True  # answers a range with that range
    tag = True  # names the version of a file
    weak = False  # by a weak tag
    length = True  # names the length of a file
    chunked = False
    cut, cuts = 10_000, 0  # so many bytes are sent of a reply, so often
    announced = 0  # bytes too many in Content-Length
    status = None  # of every reply
    lost = ()  # files that cannot be reached
    replies = None  # after so many requests every reply is an error
    asked = ()  # the header Range of each request for a file
    conditions = ()  # the header If-Range of each of them

    def do_GET(self):
        name, content = self.path.partition("?")[0], self.files.get(self.path.partition("?")[0])
        if name in self.lost:
            return self.send_error(503)
        if self.status is not None or content is None:
            return self.send_error(self.status or 404)
        if self.replies is not None and len(self.asked) >= self.replies:
            return self.send_error(503)
        tag = f'W/"{hash(content)}"' if self.weak else f'"{hash(content)}"'
        if self.tag and self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
            return None
        wanted = (
            self.headers.get("Range")
            if self.headers.get("If-Range", tag) == tag and self.ranges
            else None
        )
        type(self).asked.append((name, self.headers.get("Range")))
        type(self).conditions.append(self.headers.get("If-Range"))
        start, _, end = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        body = content[int(start) : int(end) + 1 if end else None]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header(
                "Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{len(content)}"
            )
        if self.tag:
            self.send_header("ETag", tag)
        if self.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif self.length:
            self.send_header("Content-Length", str(len(body) + self.announced))
        self.send_header("Connection", "close")
        self.end_headers()
        cut = type(self).cuts > 0
        type(self).cuts -= cut
        body = body[: self.cut] if cut else body
        self.wfile.write(
            b"%x\r\n%s\r\n" % (len(body), body) + (b"" if cut else b"0\r\n\r\n")
            if self.chunked
            else body
        )
        self.close_connection = True
        return None

    def log_message(self, *args):
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, a process that has asked no server, and no waiting."""
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    remote._current.clear()
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def server():
    Mine = type("Mine", (Server,), {"asked": [], "conditions": [], "files": {"/x.fa": FASTA}})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    threading.Thread(
        target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    Mine.url = f"http://127.0.0.1:{running.server_address[1]}"
    Mine.fasta = f"{Mine.url}/x.fa"
    yield Mine
    running.shutdown()
    running.server_close()


class Bucket(ABC):
    """Files of one store on this machine, as its owner sees them: {path: content}."""

    url: str

    @abstractmethod
    def put(self, name: str, content: bytes) -> None: ...

    @abstractmethod
    def get(self, name: str) -> bytes | None: ...

    @property
    def files(self):
        """The file system that reads it in this process."""
        import fsspec

        return fsspec.filesystem(self.url.partition(":")[0])


class S3(Bucket):
    """S3 by moto; a request of its own for every file."""

    url = "s3://genomes"

    def __init__(self):
        import fsspec

        self.own = fsspec.filesystem("s3", skip_instance_cache=True)
        if self.own.exists("genomes"):
            self.own.rm("genomes", recursive=True)
        self.own.mkdir("genomes")

    def put(self, name, content):
        self.own.pipe_file(f"genomes/{name}", content)

    def get(self, name):
        self.own.invalidate_cache()
        return self.own.cat_file(f"genomes/{name}") if self.own.exists(f"genomes/{name}") else None


class Kept(Bucket):
    """A server that keeps its files in a dictionary of this process."""

    def __init__(self, url, kept):
        self.url, self.kept = url, kept
        kept.clear()

    def put(self, name, content):
        self.kept[name] = content

    def get(self, name):
        return self.kept.get(name)


@pytest.fixture(scope="session")
def s3_server():
    """The address of an S3 server on this machine."""
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed (extra test)")
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra remote)")
    running = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture(scope="session")
def stores():
    """The module `stores` of this folder."""
    pytest.importorskip("flask", reason="flask is not installed (extra test)")
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stores.py"))))


@pytest.fixture(scope="session")
def google_server(stores):
    """The files of a server with the interface of Google Cloud Storage."""
    gcsfs = pytest.importorskip("gcsfs.core", reason="gcsfs is not installed (extra remote)")
    from fsspec import config, register_implementation

    with (
        stores.serving(stores.google_storage(kept := {})) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        patch.setitem(config.conf, "gs", {"token": "anon"})
        # The default class asks a second server, by gRPC and TLS, for the kind of bucket.
        register_implementation("gs", gcsfs.GCSFileSystem, clobber=True)
        yield kept
    register_implementation("gs", "gcsfs.GCSFileSystem", clobber=True)


@pytest.fixture(scope="session")
def hub_server(stores):
    """The files of a server with the interface of the Hugging Face Hub."""
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="huggingface_hub is not installed (extra hub)"
    )
    config = pytest.importorskip("fsspec.config", reason="fsspec is not installed (extra remote)")
    with stores.serving(stores.hub(kept := {})) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            constants, "HF_HUB_OFFLINE", False
        )  # this server is local; HF_HUB_OFFLINE=1 is read on import
        patch.setitem(config.conf, "hf", {"endpoint": url, "token": "hf_test"})
        yield kept


@pytest.fixture(params=["s3", "gs", "hf"])
def bucket(request, monkeypatch):
    """An empty bucket; its address is `bucket.url`."""
    if request.param == "gs":
        return Kept("gs://genomes", request.getfixturevalue("google_server"))
    if request.param == "hf":
        return Kept("hf://datasets/lab/genomes", request.getfixturevalue("hub_server"))
    for key, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server"))
    return S3()
