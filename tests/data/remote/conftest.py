"""A web server on this machine that can do what real ones do wrong, and S3 by moto."""

import http.server
import threading
from typing import ClassVar

import pytest

from dnadiff.data.remote import cached, transfer

FASTA = (">chr1\n" + "ACGTTGCA" * 4000 + "\n").encode()


class Server(http.server.BaseHTTPRequestHandler):
    """Files by path; each setting is what the server does wrong."""

    protocol_version = "HTTP/1.1"
    files: ClassVar = {}
    ranges = True  # answers a range with that range
    tag = True  # names the version of a file
    length = True  # names the length of a file
    chunked = False
    cut, cuts = 10_000, 0  # so many bytes are sent of a reply, so often
    announced = 0  # bytes too many in Content-Length
    status = None  # of every reply
    asked = ()  # the header Range of each request for a file

    def do_GET(self):
        name, content = self.path.partition("?")[0], self.files.get(self.path.partition("?")[0])
        if self.status is not None or content is None:
            return self.send_error(self.status or 404)
        tag = f'"{hash(content)}"'
        if self.tag and self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
            return None
        wanted = self.headers.get("Range") if self.headers.get("If-Range", tag) == tag and self.ranges else None
        type(self).asked.append((name, self.headers.get("Range")))
        start, _, end = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        body = content[int(start) : int(end) + 1 if end else None]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{len(content)}")
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
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body) + (b"" if cut else b"0\r\n\r\n") if self.chunked else body)
        self.close_connection = True
        return None

    def log_message(self, *args):
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, a process that has asked no server, and no waiting."""
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cached, "_current", set())
    monkeypatch.setattr(transfer, "WAITS", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def server():
    Mine = type("Mine", (Server,), {"asked": [], "files": {"/x.fa": FASTA}})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    Mine.url = f"http://127.0.0.1:{running.server_address[1]}"
    Mine.fasta = f"{Mine.url}/x.fa"
    yield Mine
    running.shutdown()
    running.server_close()


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


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """An empty bucket as a file system of fsspec; its address is `bucket.url`."""
    import fsspec

    for key, value in (("AWS_ENDPOINT_URL", s3_server), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")):
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    if files.exists("genomes"):
        files.rm("genomes", recursive=True)
    files.mkdir("genomes")
    files.url = "s3://genomes"
    return files
