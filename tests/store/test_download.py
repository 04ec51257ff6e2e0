"""Fetching from a server on this machine: resuming, checking, and what is said without a
network."""

import hashlib

import pytest

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.store.remote import Download

CONTENT = (">chr1\n" + "ACGTTGCA" * 4000 + "\n").encode()


def ranges(server):
    return [asked for _, asked in server.asked]


def download(url, content=CONTENT, **options):
    return Download(
        url, **{"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **options}
    )


def test_a_file_is_fetched_once(server, folder):
    one = download(server.fasta)
    assert (
        one.fetch() == folder / "downloads" / one.sha256[:16] / "x.fa" == one.target
        and next(folder.glob("downloads/*/x.fa")).read_bytes() == CONTENT
    )
    one.fetch()
    assert len(server.asked) == 1 and not list(folder.glob("downloads/*/.*.part*"))


def test_a_broken_transfer_is_taken_up_where_it_stopped(server, folder):
    server.cuts = 2
    download(server.fasta).fetch()
    assert (
        ranges(server) == [None, "bytes=10000-", "bytes=20000-"]
        and next(folder.glob("downloads/*/x.fa")).read_bytes() == CONTENT
    )


def test_an_interrupted_call_is_resumed_by_the_next(server, folder):
    server.cuts, server.replies = 1, 1
    with pytest.raises(
        OSError,
        match=(
            r"10,000 bytes are kept, and the next call resumes: put x\.fa \(32,007 bytes, sha256 "
            r"[0-9a-f]{64}\) at .*x\.fa"
        ),
    ):
        download(server.fasta).fetch()
    server.replies = None
    assert download(server.fasta).fetch().read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=10000-"


def test_a_server_without_ranges_sends_all_again(server, folder):
    server.ranges, server.cuts = False, 1
    assert download(server.fasta).fetch().read_bytes() == CONTENT


def test_the_wrong_file_is_refused_and_removed(server, folder):
    with pytest.raises(
        ValueError, match=r"the downloaded file is not the expected one .* was removed"
    ):
        download(server.fasta, sha256="0" * 64).fetch()
    assert not [p for p in folder.glob("downloads/*/*") if not p.name.startswith(".")]
    with pytest.raises(ValueError, match="the downloaded file is not the expected one"):
        download(server.fasta, content=CONTENT[:-5]).fetch()
    download(server.fasta).target.write_bytes(b"mine")
    with pytest.raises(
        ValueError,
        match=r"has 4 bytes and is not the file of 32,007 bytes .* remove it, or set data\.path",
    ):
        download(server.fasta).fetch()


def test_without_a_network_it_says_which_file_to_put_where(server, folder):
    for url, reason in (
        ("http://127.0.0.1:9/x.fa", "refused"),
        (server.fasta.replace("x.fa", "y.fa"), "HTTP 404"),
    ):
        with pytest.raises(
            OSError,
            match=(
                rf"(could not be fetched|does not exist) \(.*{reason}.*: put .\.fa \(.* at "
                rf"{folder}/downloads/[0-9a-f]+/.\.fa, or set data\.path to a copy"
            ),
        ):
            download(url).fetch()


def test_data_that_is_not_there_is_downloaded_and_packed(server, folder):
    data = GenomeDataModule(None, 64, 4, download=download(server.fasta))
    assert data.genome.lengths == {"chr1": 32_000} and data.name == "x.fa"
    with pytest.raises(ValueError, match="path names no file"):
        GenomeDataModule(None, 64, 4)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "https://x.org/", "https://x.org/..", "https://x.org/.bashrc"]
)
def test_only_files_from_the_web_are_fetched(url):
    with pytest.raises(ValueError, match=r"download\.url is .*; expected http"):
        download(url)


def test_a_file_of_the_right_size_is_not_enough(server, folder):
    one = download(server.fasta)
    one.target.write_bytes(b"N" * len(CONTENT))
    with pytest.raises(ValueError, match="is not the file of 32,007 bytes expected"):
        one.fetch()
    assert server.asked == []


def test_a_server_that_sends_too_much_is_refused(server, folder):
    with pytest.raises(ValueError, match="is not the expected one"):
        download(server.fasta, size=10).fetch()


@pytest.mark.parametrize("name", ["x.fa.part", "x.fa.lock", ".hidden", "a b.fa", "x?y"])
def test_names_that_could_meet_other_files_are_refused(name):
    with pytest.raises(ValueError, match=r"download\.url"):
        download(f"http://127.0.0.1/{name}")


def test_a_checkpoint_may_not_reach_out_to_the_network():
    from dnadiff.data.base import run_data
    from dnadiff.store.objects import build

    data = {
        "_target_": "dnadiff.data.genome.datamodule.GenomeDataModule",
        "path": None,
        "download": {"_target_": "dnadiff.store.remote.Download"},
    }
    with pytest.raises(ValueError, match="refused to build"):
        build(data)
    with pytest.raises(ValueError, match="name it again, as in data=hg38"):
        run_data(data, None)
    options = {"path": "x.fa", "length": 4, "batch_size": 1}
    assert run_data(data | options, None).download is None
