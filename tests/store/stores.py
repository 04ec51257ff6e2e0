"""Servers on this machine that speak the parts of two interfaces that reading and writing need:
Google Cloud Storage, and the Hugging Face Hub.

S3 has moto; for these two there is no server in Python. Files are kept in a dictionary, {path:
content}.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask, Response, abort, request
from werkzeug.serving import make_server

BUCKET = "genomes"
REPOSITORY = "lab/genomes"  # a dataset
_TIME = "2026-01-01T00:00:00.000000Z"


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Run an app; yields its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def content_of(files: dict[str, bytes], name: str) -> Response:
    """The content of a file, or the range of it that is asked for."""
    if name not in files:
        abort(404)
    reply = Response(files[name], mimetype="application/octet-stream")
    reply.set_etag(hashlib.md5(files[name]).hexdigest())
    return reply.make_conditional(
        request.environ, accept_ranges=True, complete_length=len(files[name])
    )


def google_storage(files: dict[str, bytes]) -> Flask:
    """The JSON interface of Cloud Storage for one bucket: metadata, lists, content, and both kinds
    of upload."""
    app, started = Flask("storage"), {}

    def about(name: str) -> dict:
        digest = base64.b64encode(hashlib.md5(files[name]).digest()).decode()
        times = {"updated": _TIME, "timeCreated": _TIME}
        return {
            "name": name,
            "bucket": BUCKET,
            "size": str(len(files[name])),
            "md5Hash": digest,
            "etag": digest,
            "generation": "1",
            **times,
        }

    @app.get("/storage/v1/b/<bucket>/o")
    def listed(bucket):
        if bucket != BUCKET:
            abort(404)
        prefix, mark = request.args.get("prefix", ""), request.args.get("delimiter", "")
        names = sorted(name for name in files if name.startswith(prefix))
        inside = [name for name in names if not mark or mark not in name[len(prefix) :]]
        folders = sorted(
            {
                prefix + name[len(prefix) :].partition(mark)[0] + mark
                for name in names
                if name not in inside
            }
        )
        return {
            "kind": "storage#objects",
            "items": [about(name) for name in inside],
            "prefixes": folders,
        }

    @app.get("/storage/v1/b/<bucket>/o/<path:name>")
    def metadata(bucket, name):
        return about(name) if bucket == BUCKET and name in files else abort(404)

    @app.get("/download/storage/v1/b/<bucket>/o/<path:name>")
    def content(bucket, name):
        return content_of(files, name) if bucket == BUCKET else abort(404)

    @app.post("/upload/storage/v1/b/<bucket>/o")
    def upload(bucket):
        if request.args["uploadType"] == "resumable":
            started[str(len(started))] = (request.json["name"], b"")
            reply = Response("")
            reply.headers["Location"] = (
                f"{request.host_url}upload/storage/v1/b/{bucket}/o/{len(started) - 1}"
            )
            return reply
        # two parts, of which the first names the file
        mark = request.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
        _, first, second, _ = request.data.split(b"--" + mark)
        name = json.loads(first.partition(b"\n\n")[2])["name"]
        files[name] = second.partition(b"\n\n")[2].removesuffix(b"\n")
        return about(name)

    @app.post("/upload/storage/v1/b/<bucket>/o/<number>")
    def chunk(bucket, number):
        name, before = started[number]
        span, _, total = request.headers["Content-Range"].removeprefix("bytes ").partition("/")
        assert int(span.partition("-")[0]) == len(before)
        started[number] = (name, before + request.data)
        if len(started[number][1]) < int(total):
            return Response("", 308, {"Range": f"bytes=0-{len(started[number][1]) - 1}"})
        files[name] = started[number][1]
        return about(name)

    return app


def hub(files: dict[str, bytes]) -> Flask:
    """The Hugging Face Hub for one dataset: its branch `main`, metadata, lists, content, and
    commits of small files."""
    app = Flask("hub")

    def about(name: str) -> dict:
        return {
            "type": "file",
            "path": name,
            "size": len(files[name]),
            "oid": hashlib.sha1(files[name]).hexdigest(),
        }

    def folders() -> dict[str, dict]:
        parents = {
            name.rsplit("/", depth)[0] for name in files for depth in range(1, 1 + name.count("/"))
        }
        return {
            name: {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
            for name in parents
        }

    def check(repository):
        if repository != REPOSITORY:
            abort(Response("{}", 404, {"X-Error-Code": "RepoNotFound"}))

    @app.get("/api/datasets/<path:repository>/revision/main")
    @app.get("/api/datasets/<path:repository>")
    def info(repository):
        check(repository)
        return {
            "id": repository,
            "sha": "0" * 40,
            "siblings": [],
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }

    @app.post("/api/datasets/<path:repository>/paths-info/main")
    def paths(repository):
        check(repository)
        names = request.form.getlist("paths") or request.get_json(silent=True)["paths"]
        return [
            about(name) if name in files else folders()[name]
            for name in names
            if name in files or name in folders()
        ]

    @app.get("/api/datasets/<owner>/<name>/tree/main")
    @app.get("/api/datasets/<owner>/<name>/tree/main/<path:folder>")
    def tree(owner, name, folder=""):
        check(f"{owner}/{name}")
        prefix, deep = (
            f"{folder}/" if folder else "",
            request.args.get("recursive", "").lower() == "true",
        )
        if folder and folder not in folders():
            abort(Response("{}", 404, {"X-Error-Code": "EntryNotFound"}))
        everything = {**{each: about(each) for each in files}, **folders()}
        return [
            row
            for each, row in sorted(everything.items())
            if each.startswith(prefix) and (deep or "/" not in each[len(prefix) :])
        ]

    @app.get("/datasets/<owner>/<name>/resolve/main/<path:file>")
    def content(owner, name, file):
        check(f"{owner}/{name}")
        return content_of(files, file)

    @app.post("/api/datasets/<path:repository>/preupload/main")
    def preupload(repository):
        check(repository)
        return {
            "files": [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in request.json["files"]
            ]
        }

    @app.post("/api/datasets/<path:repository>/commit/main")
    def commit(repository):
        check(repository)
        for line in map(json.loads, request.data.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return {
            "commitUrl": f"{request.host_url}datasets/{REPOSITORY}/commit/{'1' * 40}",
            "commitOid": "1" * 40,
            "success": True,
        }

    return app
