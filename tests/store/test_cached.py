"""Fetching from a web server on this machine: once, whole or not at all, resumed, and one line for
every failure."""

import hashlib
import http.server
import json
import logging
import re
import shutil
import ssl
import subprocess
import threading
import urllib.request

import pytest
from fsspec import get_filesystem_class, register_implementation

from dnadiff.data.genome.genome import Genome
from dnadiff.data.text.corpus import Files
from dnadiff.store import address as addresses
from dnadiff.store import remote
from dnadiff.store.address import file_name, parse, shortened, shown
from dnadiff.store.files import open_binary, resolve
from dnadiff.store.remote import LostError

FASTA = (">chr1\n" + "ACGTTGCA" * 4000 + "\n").encode()


def no_copy(folder, name="x.fa"):
    return not list((folder / "remote").glob(f"*/{name}"))


def again(server):
    """Another process asks."""
    remote._current.clear()
    return resolve(server.fasta)


def test_a_file_is_fetched_once_with_its_checksum(server, caplog):
    with caplog.at_level(logging.INFO, logger="dnadiff"):
        file = resolve(server.fasta)
    assert file.read_bytes() == FASTA and file.name == "x.fa"
    assert f"fetched 32,007 bytes, sha256 {hashlib.sha256(FASTA).hexdigest()}" in caplog.text
    assert (
        resolve(server.fasta) == again(server) == file and len(server.asked) == 1
    )  # the server answered that it has not changed
    assert Genome(server.fasta).lengths == {"chr1": 32_000}
    with open_binary(server.fasta) as content:
        assert content.read() == FASTA


def test_a_file_that_changed_there_is_fetched_again(server, caplog):
    resolve(server.fasta)
    server.files["/x.fa"] = FASTA + b"A\n"
    assert again(server).read_bytes() == FASTA + b"A\n" and "has changed since" in caplog.text


def test_a_copy_that_was_damaged_is_fetched_again(server):
    file = resolve(server.fasta)
    file.write_bytes(FASTA[:-2] + b"C\n")
    assert resolve(server.fasta).read_bytes() == FASTA


def test_without_a_connection_the_copy_is_used(server, caplog):
    file = resolve(server.fasta)
    server.status = 503
    assert again(server) == file and "HTTP 503" in caplog.text and "the copy of 20" in caplog.text


def test_of_a_folder_the_copies_are_used_without_a_connection(server, caplog):
    server.files |= {"/m/model.json": b"{}", "/m/model.bin": b"weights"}
    folder, names = parse(f"{server.url}/m"), ("never.json", "model.json", "absent.md", "model.bin")
    found = remote.fetch_some(folder, names)
    server.status = 503
    remote._current.clear()
    assert remote.fetch_some(folder, names) == found
    assert [remote.target_of(each).read_bytes() for each in found] == [b"{}", b"weights"]
    assert (
        "never.json could not be fetched (HTTP 503" in caplog.text
        and "/m the files in the cache are used" in caplog.text
    )
    with pytest.raises(
        LostError, match=r"other/never\.json could not be fetched \(HTTP 503 .*\) after 3 tries"
    ):
        remote.fetch_some(parse(f"{server.url}/other"), names)


def test_a_server_that_refuses_access_does_not_remove_copies(server, caplog):
    server.files |= {"/m/model.bin": b"weights"}
    found = remote.fetch_some(parse(f"{server.url}/m"), ("model.bin", "absent.json"))
    (copy,) = map(remote.target_of, found)
    server.status = 403
    remote._current.clear()
    assert remote.fetch_some(parse(f"{server.url}/m"), ("model.bin", "absent.json")) == found
    assert copy.read_bytes() == b"weights" and "HTTP 403" in caplog.text
    server.status = 404
    remote._current.clear()
    assert remote.fetch_some(parse(f"{server.url}/m"), ("model.bin",)) == []
    assert not copy.exists()


def test_a_weak_tag_shows_changes_and_does_not_resume_in_another_call(server, caplog):
    server.weak, server.cuts = True, 1
    assert resolve(server.fasta) == again(server)
    assert [asked for _, asked in server.asked] == [None, "bytes=10000-"] and server.conditions == [
        None,
        None,
    ]
    server.files["/x.fa"] = FASTA + b"A\n"
    assert again(server).read_bytes() == FASTA + b"A\n" and "has changed since" in caplog.text
    part = remote.target_of(parse(f"{server.url}/y.fa")).with_name(".y.fa.part")
    server.files["/y.fa"] = FASTA
    part.write_bytes(FASTA[:100])
    part.with_name(".y.fa.part.json").write_text(
        json.dumps({"version": f'W/"{hash(FASTA)}"', "total": len(FASTA)})
    )
    assert resolve(f"{server.url}/y.fa").read_bytes() == FASTA and server.asked[-1] == (
        "/y.fa",
        None,
    )


def test_what_a_query_says_is_in_no_message_and_no_file(server, folder, caplog):
    address = f"{server.fasta}?sv=1&sig=SECRET"
    with caplog.at_level(logging.INFO, logger="dnadiff"):
        file = resolve(address)
        server.status = 503
        assert again_of(address) == file
        for status in (403, 404, 500):
            server.status = status
            with pytest.raises(OSError, match=re.escape(f"{server.url}/y.fa?... ")) as error:
                resolve(f"{server.url}/y.fa?sv=1&sig=SECRET")
            assert "SECRET" not in str(error.value)
    assert (
        f"{server.fasta}?...: fetched 32,007 bytes" in caplog.text and "SECRET" not in caplog.text
    )
    assert not [
        path for path in folder.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()
    ]
    for wrong in (
        f"{address} b",
        "https://user:SECRET@server/x.fa",
        "https://server?sig=SECRET",
        "ftp://server/x.fa",
    ):
        with pytest.raises(ValueError, match=r"address|names no file") as error:
            parse(wrong)
        assert "SECRET" not in str(error.value)


def again_of(address):
    """Another process asks."""
    remote._current.clear()
    return resolve(address)


def test_the_note_of_an_earlier_version_is_read(server):
    file = resolve(f"{server.fasta}?sig=1")
    note = file.with_name(".x.fa.json")
    about = json.loads(note.read_text())
    del about["address_sha256"]
    note.write_text(json.dumps(about | {"address": f"{server.fasta}?sig=1"}))
    assert again_of(f"{server.fasta}?sig=1") == file and len(server.asked) == 1
    note.write_text(json.dumps(about | {"address": f"{server.fasta}?..."}))
    again_of(f"{server.fasta}?sig=1")
    assert len(server.asked) == 2  # not known to be of this address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h/x.fa?sv=1&sig=a/b", "https://h/x.fa?..."),
        ("cached:https:/h/x.fa?sig=1", "cached:https:/h/x.fa?..."),
        ("input='https://u:p@h/x.fa?sig=1'", "input='https://h/x.fa?..."),
        ("[https://a/x?s=1,https://b/y?t=2]", "[https://a/x?..."),
        ("s3://b/what?.fa", "s3://b/what?.fa"),
        ("what?.txt", "what?.txt"),
        ("input=https://u:p@ss@h/x.fa", "input=https://h/x.fa"),
        ("https://h/a b?sig=1 2", "https://h/a b?..."),
        ("no https://u:p@q@h/x?s=1, as a@b? says", "no https://h/x?... as a@b? says"),
        ("prompt='See http://h now. OK? Yes'", "prompt='See http://h now. OK? Yes'"),
    ],
)
def test_how_addresses_are_shown(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("argument", "short", "complete"),
    [
        ("a.path=https://h/1?b=1,2&c=[3]", "a.path=https://h/1?...", ["https://h/1?b=1,2&c=[3]"]),
        ("+p='https://h/2?a=\\'1'", "+p='https://h/2?...'", ["https://h/2?a='1"]),
        ("p=[HTTP://h/3?s=a,'https:/h/4?s=b,c']", "p=[http://h/3?...,'https://h/4?...']",
         ["http://h/3?s=a", "https://h/4?s=b,c"]),
        ("p={a:https://h/5?s=1,b:/x/what?.fa}", "p={a:https://h/5?...,b:/x/what?.fa}",
         ["https://h/5?s=1"]),
        ("p=[https://h/6?id=1,https://h/6?id=2]", "p=[https://h/6?...,https://h/6?...2]",
         ["https://h/6?id=1", "https://h/6?id=2"]),
        ("p=[s3://b/what?.fa,what?.txt,https://h/7?...]",
         "p=[s3://b/what?.fa,what?.txt,https://h/7?...]", ["https://h/7?..."]),
        ("p=x,https://h/8?s=1", "p=x,https://h/8?...", ["https://h/8?s=1"]),
        ("p='https://h/9?s=1 2'", "p='https://h/9?...'", ["https://h/9?s=1 2"]),
        ('p="[\'https://h/10?s=1\']"', 'p="[\'https://h/10?...\']"', ["https://h/10?s=1"]),
    ],
)  # fmt: skip
def test_arguments_are_shortened_and_read_completely(argument, short, complete):
    assert shortened([argument]) == [short] == shortened([short])
    found = re.findall(r"https?://[^\s,'\]}]+", short)
    assert [parse(address).text for address in found] == complete


@pytest.mark.parametrize(
    "text",
    [
        "Visit http://h.com now. OK? Yes",
        "Visit HTTP://h.com/x?a=1&b=2 now",
        "it\\'s (http://h.com/x?a=1), see https://h.com/y?a=1, and [https://h.com/z?a=1]",
    ],
)
def test_a_text_that_contains_an_address_is_not_changed(text):
    for each in (text.replace("\\", ""), f"prompt='{text}'", f'prompt=["{text}","{text}"]'):
        assert shortened(each) == each and shortened({"prompt": [each]}) == {"prompt": [each]}


def test_without_fetching_the_message_says_what_allows_it(server):
    message = r"x\.fa is not in the cache, and nothing is fetched; unset DNADIFF_OFFLINE, or give"
    with remote.reading_cache(), pytest.raises(FileNotFoundError, match=message):
        resolve(server.fasta)
    message = r"x\.fa is not in the cache, and what a checkpoint names is not fetched; name it on"
    with pytest.raises(FileNotFoundError, match=message):
        resolve(f"cached:{server.fasta}")
    assert not server.asked


def test_a_shortened_address_is_the_copy_in_the_cache(server):
    with pytest.raises(
        FileNotFoundError,
        match=r"x\.fa\?\.\.\. is not in the cache, and no file has .*; give the complete address$",
    ):
        resolve(f"{server.fasta}?...")
    assert not server.asked
    file = resolve(f"{server.fasta}?id=1")
    asked = len(server.asked)
    addresses._complete.clear()  # another process
    assert resolve(f"{server.fasta}?...") == file and len(server.asked) == asked
    server.files["/x.fa"] = FASTA + b"ACGT\n"
    resolve(f"{server.fasta}?id=2")
    addresses._complete.clear()
    with pytest.raises(
        FileNotFoundError, match=r"is several files in the cache, .* complete address$"
    ):
        resolve(f"{server.fasta}?...")


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("https://h/x.fa?sig=1", "http://h/x.fa?sig=SECRET", False),
        ("https://h/x.fa", "HTTP://other/x.fa", False),
        ("https://h/x.fa", "ftp://h/x.fa", False),
        ("http://h/x.fa", "ftp://h/x.fa", False),
        ("https://h/x.fa", "https://other/x.fa", True),
        ("http://h/x.fa", "https://h/x.fa", True),
        ("http://h/x.fa", "http://other/x.fa", True),
    ],
)
def test_a_redirect_keeps_a_connection_encrypted(old, new, allowed):
    request = urllib.request.Request(old)

    def follow():
        return remote._Redirects().redirect_request(request, None, 302, "Found", {}, new)

    if allowed:
        assert follow().full_url == new
    else:
        with pytest.raises(
            ValueError, match=r"is redirected to .*not encrypted; to allow"
        ) as error:
            follow()
        assert "SECRET" not in str(error.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_an_encrypted_address_that_is_redirected_to_a_plain_one_is_not_read(
    server, tmp_path, monkeypatch
):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "k",
         "-out", "c", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip

    class Redirecting(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"{server.fasta}?sig=SECRET")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            """Nothing is printed."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    encrypted = http.server.HTTPServer(("127.0.0.1", 0), Redirecting)
    encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
    threading.Thread(target=encrypted.serve_forever, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "c"))
    with pytest.raises(ValueError, match=r"/x\.fa\?\.\.\., which is not encrypted") as error:
        resolve(f"https://localhost:{encrypted.server_port}/x.fa")
    assert "SECRET" not in str(error.value) and not server.asked
    encrypted.shutdown()
    encrypted.server_close()


@pytest.mark.parametrize("address", ["https://u:p@ss@h/x.fa", "s3://k:s@b/x.fa", "ftp://u@h/x.fa"])
def test_an_address_with_a_user_name_is_refused(address):
    for given in (address, f"data.path='{address}'", {"path": [address]}):
        with pytest.raises(ValueError, match=r"//[hb]/x\.fa contains a user name") as error:
            shortened(given)
        assert "@" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [{}, {"tag": False}, {"ranges": False, "cuts": 1}, {"chunked": True, "cuts": 1}],
    ids=str,
)
def test_a_lost_connection_is_resumed(server, settings):
    vars_of = {"cuts": 2, **settings}
    for key, value in vars_of.items():
        setattr(server, key, value)
    assert resolve(server.fasta).read_bytes() == FASTA
    if "ranges" not in settings and "chunked" not in settings:
        assert [asked for _, asked in server.asked] == [None, "bytes=10000-", "bytes=20000-"]


def test_a_connection_that_does_not_come_back_is_one_line_and_leaves_no_file(server, folder):
    server.cuts, server.replies = 1, 1
    with pytest.raises(
        OSError,
        match=(
            r"x\.fa could not be fetched \(HTTP 503 .*\) after 3 tries; 10,000 bytes are "
            r"kept, and the next call"
        ),
    ):
        resolve(server.fasta)
    assert no_copy(folder)
    server.replies = None
    assert resolve(server.fasta).read_bytes() == FASTA and server.asked[-1][1] == "bytes=10000-"
    assert [p.name for p in (folder / "remote").glob("*/*part*")] == []


def test_a_part_of_another_version_is_not_continued(server):
    part = remote.target_of(parse(server.fasta)).with_name(".x.fa.part")
    part.write_bytes(b"of a version before it")
    part.with_name(".x.fa.part.json").write_text('{"version": "\\"old\\"", "total": 32007}')
    assert resolve(server.fasta).read_bytes() == FASTA and server.asked == [("/x.fa", "bytes=22-")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"announced": 5}, r"the connection was lost after 32,007 of 32,012 bytes after 3 tries"),
        ({"length": False}, r"does not say how long the file is"),
        ({"status": 403}, r"the server refuses it \(HTTP 403"),
        ({"status": 404}, r"does not exist \(HTTP 404"),
        ({"status": 500}, r"could not be fetched \(HTTP 500 .*\) after 3 tries"),
        ({"files": {"/x.fa": b""}}, r"is empty"),
    ],
    ids=str,
)
def test_a_file_that_did_not_come_whole_is_not_there(server, folder, settings, message):
    for key, value in settings.items():
        setattr(server, key, value)
    with pytest.raises(
        (OSError, ValueError), match=re.escape(server.fasta) + ".*" + message
    ) as error:
        resolve(server.fasta)
    assert no_copy(folder) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:9/x.fa", "Connection refused.* after 3 tries"),
        ("http://no-such-server.invalid/x.fa", "there is no server of that name"),
        ("https://", "names no file"),
        ("http://127.0.0.1/", "names no file"),
        ("http://127.0.0.1:port/x.fa", "is not an address that HTTP can read"),
        ("http://127.0.0.1/a b.fa", "contains a space"),
        ("https://x/*.fa", "HTTP cannot list files"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_line(address, message):
    with pytest.raises((OSError, ValueError), match=message) as error:
        Genome(address)
    assert "\n" not in str(error.value)


def test_a_name_that_is_not_known_is_a_lost_connection():
    with pytest.raises(LostError, match="there is no server of that name, or no network"):
        resolve("http://no-such-server.invalid/x.fa")


def test_a_path_has_the_address_that_was_written():
    from pathlib import Path

    assert (
        parse(Path("s3://bucket/a//b.fa")).text == "s3://bucket/a/b.fa"
        and parse("HTTPS://x/y.fa").text == "https://x/y.fa"
    )
    signed = parse("https://x/folder/y.fa.gz?key=1/2")
    assert (signed.name, signed.folder, signed.inside("z").text) == (
        "y.fa.gz",
        "https://x/folder?key=1/2",
        "https://x/folder/y.fa.gz/z?key=1/2",
    )
    assert parse("s3://b/what?.fa").name == "what?.fa"
    assert [parse(f"{scheme}://b/a b/c d.fa").name for scheme in ("s3", "gs", "hf")] == [
        "c d.fa"
    ] * 3
    with pytest.raises(ValueError, match="contains a control character"):
        parse("s3://b/a\tb.fa")


@pytest.mark.parametrize(
    ("address", "extra"),
    [("s3://b/x.fa", "remote"), ("gs://b/x.fa", "remote"), ("hf://a/b/x.fa", "hub")],
)
def test_a_missing_package_is_one_line_that_names_the_extra(address, extra):
    scheme = address[:2]
    pytest.importorskip({"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}[scheme])
    known = get_filesystem_class(scheme)

    def missing():
        raise ImportError(f"No module named '{scheme}fs'")

    register_implementation(scheme, missing, clobber=True)
    try:
        with pytest.raises(
            ValueError,
            match=rf"{address} needs a package that is not installed: pip install -e "
            rf"'\.\[{extra}\]'",
        ):
            resolve(address)
    finally:
        register_implementation(scheme, known, clobber=True)


def test_a_call_killed_between_note_and_bytes_leaves_no_mixture(server):
    # The bytes of another version are removed before the note of this one is written.
    part = remote.target_of(parse(server.fasta)).with_name(".x.fa.part")
    note = {"version": f'"{hash(FASTA)}"', "total": len(FASTA)}
    part.with_name(".x.fa.part.json").write_text(json.dumps(note))
    assert resolve(server.fasta).read_bytes() == FASTA


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("folder/x.fa.gz", "x.fa.gz"),
        ("what?.txt", "what?.txt"),
        ("https://h/a/x.jsonl?download=1&as=y/z.csv", "x.jsonl"),
        ("cached:https:/h/x.gtf.gz?a=b", "x.gtf.gz"),
        ("s3://b/x.tsv", "x.tsv"),
    ],
)
def test_the_name_of_a_file_has_no_query(path, name):
    assert file_name(path) == name


@pytest.mark.parametrize("prefix", ["", "cached:"])
def test_an_address_with_a_query_is_no_pattern_and_may_be_a_manifest(server, prefix):
    server.files |= {"/m.tsv": b"path\tlabel\nx.fa\tone\n", "/t.jsonl": b'{"text": "ab"}\n'}
    for name in ("m.tsv?sig=1", "x.fa?sig=1", "t.jsonl?sig=1"):
        resolve(f"{server.url}/{name}")
    assert Genome(f"{prefix}{server.url}/m.tsv?sig=1").names == ["one:chr1"]
    assert list(Files(f"{prefix}{server.url}/t.jsonl?sig=1")) == ["ab"]
