"""S3, Google Cloud Storage and the Hugging Face Hub: genomes, patterns and manifests are read, and
outputs are uploaded as a whole."""

import logging
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem, get_filesystem_class, register_implementation

from dnadiff.data.genome.genome import Genome
from dnadiff.data.text.corpus import Files
from dnadiff.store import remote
from dnadiff.store.disk import check_output
from dnadiff.store.files import resolve
from dnadiff.store.remote import uploading


@contextmanager
def uploaded(address, overwrite=False):
    """A file to write, for the only output of a command."""
    with uploading({"output": address}, overwrite=overwrite) as local:
        yield Path(local["output"])


class Memory(AbstractFileSystem):
    """The files of `s3://` in this process. Reads and uploads raise the errors of `failures`, and
    None is no error."""

    protocol, cachable = "s3", False

    def __init__(self):
        super().__init__()
        self.kept, self.uploaded, self.asked, self.failures = {}, [], [], []

    def fail(self):
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error

    def info(self, path):
        if path not in self.kept:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.kept[path]), "type": "file"}

    def cat_file(self, path, start, end):
        self.asked.append((start, end))
        self.fail()
        return self.kept[path][start:end]

    def put_file(self, local, path):
        self.fail()
        self.kept[path] = Path(local).read_bytes()
        self.uploaded.append(path)


@pytest.fixture
def memory():
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra remote)")
    before, store = get_filesystem_class("s3"), Memory()
    register_implementation("s3", lambda: store, clobber=True)
    yield store
    register_implementation("s3", before, clobber=True)


def test_a_genome_is_fetched_and_again_when_it_changed(bucket):
    bucket.put("g.fa", b">chr1\nACGT\n")
    assert Genome(f"{bucket.url}/g.fa").lengths == {"chr1": 4}
    bucket.put("g.fa", b">chr1\nACGTAC\n")
    assert Genome(f"{bucket.url}/g.fa").lengths == {"chr1": 4}  # this process has asked
    remote._current.clear()
    assert Genome(f"{bucket.url}/g.fa").lengths == {"chr1": 6}


def test_patterns_and_manifests(bucket):
    for name in "ab":
        bucket.put(f"set/{name}.fa", f">{name}\nACGT\n".encode())
        bucket.put(f"set/{name}.jsonl", f'{{"text": "{name}"}}\n'.encode())
    bucket.put("set/m.tsv", b"path\tlabel\tweight\nb.fa\tyeast\t2\na.fa\thuman\t1\n")
    assert Genome(f"{bucket.url}/set/*.fa").names == ["a", "b"]
    assert list(Files(f"{bucket.url}/set/*.jsonl")) == ["a", "b"]
    genome = Genome(f"{bucket.url}/set/m.tsv")
    assert genome.names == ["yeast:b", "human:a"] and genome.weights.tolist() == [2, 1]
    with pytest.raises(
        FileNotFoundError, match=re.escape(f"{bucket.url}/set/*.fna matches no file")
    ):
        Genome(f"{bucket.url}/set/*.fna")
    bucket.put("set/bad.tsv", b"path\n/etc/hostname\n")
    with pytest.raises(
        ValueError, match=r"bad\.tsv: line 2: /etc/hostname is not in the folder of the manifest"
    ):
        Genome(f"{bucket.url}/set/bad.tsv")


def test_a_file_of_several_blocks_is_read_in_ranges_and_a_lost_one_is_tried_again(memory):
    content, block = bytes(range(256)) * (9 << 12), 1 << 23
    memory.kept["s3://b/x.bin"] = content
    lost = TimeoutError("no answer")
    memory.failures = [lost, lost, None, lost]
    assert resolve("s3://b/x.bin").read_bytes() == content
    # What came stays.
    assert memory.asked == [(0, block)] * 3 + [(block, len(content))] * 2


def test_what_does_not_exist_is_one_line(bucket):
    for address in (f"{bucket.url}/none.fa", f"{bucket.url}-of-nobody/none.fa"):
        with pytest.raises(FileNotFoundError, match=f"{address} does not exist; check the address"):
            resolve(address)
    bucket.put("set/a.fa", b">a\nACGT\n")
    with pytest.raises(FileNotFoundError, match=f"{bucket.url}/set is a folder; name a file in it"):
        resolve(f"{bucket.url}/set")
    scheme = bucket.url.partition(":")[0]
    with pytest.raises(ValueError, match=f"{scheme}://genomes names no file"):
        resolve(f"{scheme}://genomes")


def test_an_output_is_uploaded_when_it_is_complete(bucket, folder, caplog):
    with pytest.raises(RuntimeError), uploaded(f"{bucket.url}/out/x.txt") as file:
        file.write_bytes(b"half")
        raise RuntimeError
    assert bucket.get("out/x.txt") is None
    with (
        caplog.at_level(logging.INFO, logger="dnadiff"),
        uploaded(f"{bucket.url}/out/x.txt") as file,
    ):
        file.write_bytes(b"whole")
    assert bucket.get("out/x.txt") == b"whole" and "uploaded 5 bytes" in caplog.text
    assert not list((folder / "outputs").iterdir())
    with (
        pytest.raises(
            FileExistsError, match=re.escape(f"{bucket.url}/out/x.txt exists; set overwrite=true")
        ),
        uploaded(f"{bucket.url}/out/x.txt"),
    ):
        pass
    with uploaded(f"{bucket.url}/out/x.txt", overwrite=True) as file:
        file.write_bytes(b"other")
    assert bucket.get("out/x.txt") == b"other"


def test_a_large_file_is_uploaded_in_parts(bucket):
    content = bytes(range(256)) * (6 << 12)  # 6 MiB: more than stores take in one request
    with uploaded(f"{bucket.url}/large.bin") as file:
        file.write_bytes(content)
    assert bucket.get("large.bin") == content


def test_a_command_gets_files_of_this_machine(bucket):
    with uploading({"output": f"{bucket.url}/run/scores.tsv", "report": "r.html"}) as config:
        assert list(config) == ["output"]
        place = config["output"]
        assert place.endswith("/scores.tsv") and place.startswith("/")
        Path(place).write_text("table")
        Path(place).with_suffix(".json").write_text("{}")
    assert [bucket.get(f"run/scores.{ending}") for ending in ("tsv", "json")] == [b"table", b"{}"]
    with (
        pytest.raises(FileExistsError, match="overwrite=true"),
        uploading({"output": f"{bucket.url}/run/scores.tsv"}),
    ):
        pass


def test_a_folder_with_objects_is_not_replaced(bucket):
    bucket.put("model/config.json", b"{}")
    address = f"{bucket.url}/model"
    with (
        pytest.raises(FileExistsError, match=f"{address} exists; set overwrite=true"),
        uploading({"output": address}),
    ):
        pass
    with uploading({"output": address}, overwrite=True) as local:
        assert Path(local["output"]).name == "model"


def test_a_resumed_command_finds_what_it_had_written(bucket):
    config = {"output": f"{bucket.url}/run/a.tsv"}
    with pytest.raises(RuntimeError), uploading(config) as local:
        Path(local["output"]).write_text("half")
        raise RuntimeError
    with uploading(config, resume=True) as local:
        assert Path(local["output"]).read_text() == "half"
    with uploading(config, overwrite=True) as local:
        assert not Path(local["output"]).exists()  # a new start


def test_resuming_does_not_replace_a_complete_output(memory, folder):
    memory.kept |= {"s3://b/a.tsv": b"whole", "s3://b/a.tsv.json": b"{}"}
    config = {"output": "s3://b/a.tsv"}
    with (
        pytest.raises(FileExistsError, match=r"^s3://b/a\.tsv exists; set overwrite=true"),
        uploading(config, resume=True) as local,
    ):
        check_output(local["output"])
    assert memory.kept["s3://b/a.tsv"] == b"whole" and not list((folder / "outputs").iterdir())
    with uploading(config, resume=True, overwrite=True) as local:
        assert Path(local["output"]).read_text() == "whole"  # as a local file that may be replaced
        Path(local["output"]).write_text("other")
    assert memory.kept["s3://b/a.tsv"] == b"other" and memory.uploaded == ["s3://b/a.tsv"]


def test_a_copy_of_what_is_there_is_not_taken_for_an_unfinished_output(memory, folder):
    memory.kept |= {"s3://b/a.tsv": b"whole"}
    config = {"output": "s3://b/a.tsv"}
    with uploading(config, resume=True) as local:
        place = Path(local["output"])
        kept = {path: path.read_bytes() for path in place.parent.iterdir()}
    place.parent.mkdir()
    for path, content in kept.items():  # what a killed process leaves
        path.write_bytes(content)
    memory.kept["s3://b/a.tsv"] = b"of another process since"
    with uploading(config, resume=True) as local:
        assert Path(local["output"]).read_text() == "of another process since"
    assert memory.uploaded == []


def test_samples_are_resumed_only_until_they_are_complete(memory, cli, trained, folder):
    args = [
        f"checkpoint={trained}",
        "num_samples=2",
        "length=12",
        "sampler.num_groups=2",
        "output=s3://b/a.fa",
        "accelerator=cpu",
    ]
    assert cli("sample", *args)[0] == 0
    before = dict(memory.kept)
    assert set(before) == {"s3://b/a.fa", "s3://b/a.fa.json"}
    status, out, err = cli("sample", *args, "resume=true")
    assert (
        status == 0
        and "a.fa is complete already" in out
        and "s3://b/a.fa is complete already; it is not uploaded again" in err
    )
    status, _, err = cli("sample", *args, "resume=true", "seed=7")
    assert (
        status == 1
        and "s3://b/a.fa exists, and a.fa.json names other settings" in err.strip().splitlines()[-1]
    )
    assert memory.kept == before and not list((folder / "outputs").iterdir())


def test_an_upload_that_fails_keeps_the_result(memory):
    memory.failures = [TimeoutError("no answer")] * 9
    message = r"s3://b/y\.txt could not be uploaded: .*; the result is kept in (/\S+)"
    with pytest.raises(OSError, match=message) as error, uploaded("s3://b/y.txt") as file:
        file.write_bytes(b"result")
    place = str(error.value).rpartition(" ")[2]
    assert Path(place, "y.txt").read_text() == "result"


def test_an_output_stays_on_this_disk_until_all_are_uploaded(memory, folder):
    config = {"output": "s3://b/a.tsv", "track": "s3://b/t.bedgraph"}
    memory.failures = [None, ValueError("t.bedgraph is refused")]
    with pytest.raises(OSError, match="refused"), uploading(config, resume=True) as local:
        for key in ("output", "track"):
            Path(local[key]).write_text(key)
    with uploading(config, resume=True) as local:
        assert [Path(local[key]).read_text() for key in ("output", "track")] == ["output", "track"]
    assert set(memory.kept) == {"s3://b/a.tsv", "s3://b/t.bedgraph"} and not list(
        (folder / "outputs").iterdir()
    )


def test_what_cannot_be_written_is_one_line():
    with (
        pytest.raises(
            ValueError, match=r"https://x/y\.txt cannot be written by HTTP; choose s3://"
        ),
        uploaded("https://x/y.txt"),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"https://x/y\.txt cannot be written by HTTP"),
        uploading({"output": "https://x/y.txt"}),
    ):
        pass
    with pytest.raises(ValueError, match="is an address, and this is written as a file"):
        check_output("s3://bucket/y.txt")
