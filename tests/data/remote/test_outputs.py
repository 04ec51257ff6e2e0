"""S3 by moto: genomes, patterns and manifests are read, and outputs are uploaded as a whole."""

import logging
from pathlib import Path

import pytest

from dnadiff.data.files import atomic_write, check_output, resolve
from dnadiff.data.genome.genome import Genome
from dnadiff.data.remote import cached, outputs
from dnadiff.data.remote.store import LostError

RUN = Path("runs/x")


def test_a_genome_is_fetched_from_s3_and_again_when_it_changed(bucket):
    bucket.pipe_file("genomes/g.fa", b">chr1\nACGT\n")
    assert Genome.open("s3://genomes/g.fa").lengths == {"chr1": 4}
    bucket.pipe_file("genomes/g.fa", b">chr1\nACGTAC\n")
    assert Genome.open("s3://genomes/g.fa").lengths == {"chr1": 4}  # this process has asked
    cached._current.clear()
    assert Genome.open("s3://genomes/g.fa").lengths == {"chr1": 6}


def test_patterns_and_manifests_of_s3(bucket):
    for name in "ab":
        bucket.pipe_file(f"genomes/set/{name}.fa", f">{name}\nACGT\n".encode())
    bucket.pipe_file("genomes/set/m.tsv", b"path\tlabel\tweight\nb.fa\tyeast\t2\na.fa\thuman\t1\n")
    assert Genome.open("s3://genomes/set/*.fa").names == ["a", "b"]
    genome = Genome.open("s3://genomes/set/m.tsv")
    assert genome.names == ["yeast:b", "human:a"] and genome.weights.tolist() == [2, 1]
    with pytest.raises(FileNotFoundError, match=r"s3://genomes/set/\*\.fna matches no file"):
        Genome.open("s3://genomes/set/*.fna")
    bucket.pipe_file("genomes/set/bad.tsv", b"path\n/etc/hostname\n")
    with pytest.raises(ValueError, match=r"bad\.tsv: line 2: /etc/hostname is not in the folder of the manifest"):
        Genome.open("s3://genomes/set/bad.tsv")


def test_a_file_of_several_blocks_is_read_in_ranges_and_a_lost_one_is_tried_again(bucket, monkeypatch):
    content = bytes(range(256)) * 40
    bucket.pipe_file("genomes/x.bin", content)
    monkeypatch.setattr("dnadiff.data.remote.objects.BLOCK", 1000)
    failures = iter([True, True, False, True] + [False] * 99)
    read = type(bucket).cat_file

    def lossy(self, path, **options):
        if next(failures):
            raise TimeoutError("no answer")
        return read(self, path, **options)

    monkeypatch.setattr(type(bucket), "cat_file", lossy)
    assert resolve("s3://genomes/x.bin").read_bytes() == content


def test_what_does_not_exist_is_one_line(bucket):
    for address in ("s3://genomes/none.fa", "s3://no-such-bucket/none.fa"):
        with pytest.raises(FileNotFoundError, match=rf"{address} does not exist; check the address"):
            resolve(address)
    with pytest.raises(ValueError, match="s3://genomes names no file"):
        resolve("s3://genomes")


def test_an_output_is_uploaded_when_it_is_complete(bucket, folder, caplog):
    with pytest.raises(RuntimeError), atomic_write("s3://genomes/out/x.txt") as file:
        file.write(b"half")
        raise RuntimeError
    assert not bucket.exists("genomes/out/x.txt")
    with caplog.at_level(logging.INFO, logger="dnadiff"), atomic_write("s3://genomes/out/x.txt") as file:
        file.write(b"whole")
    assert bucket.cat_file("genomes/out/x.txt") == b"whole" and "uploaded 5 bytes" in caplog.text
    assert not list((folder / "outputs").iterdir())
    with (
        pytest.raises(FileExistsError, match=r"s3://genomes/out/x\.txt exists; set overwrite=true"),
        atomic_write("s3://genomes/out/x.txt"),
    ):
        pass
    with atomic_write("s3://genomes/out/x.txt", overwrite=True) as file:
        file.write(b"other")
    bucket.invalidate_cache()
    assert bucket.cat_file("genomes/out/x.txt") == b"other"


def test_a_command_gets_files_of_this_machine(bucket):
    with outputs.uploading({"output": "s3://genomes/run/scores.tsv", "input": "s3://genomes/g.fa", "overwrite": False}, RUN) as config:
        assert config["input"] == "s3://genomes/g.fa"
        place = config["output"]
        assert place.endswith("/scores.tsv") and place.startswith("/")
        Path(place).write_text("table")
        Path(place).with_suffix(".json").write_text("{}")
    assert [bucket.cat_file(f"genomes/run/scores.{ending}") for ending in ("tsv", "json")] == [b"table", b"{}"]
    with pytest.raises(FileExistsError, match="overwrite=true"), outputs.uploading({"output": "s3://genomes/run/scores.tsv"}, RUN):
        pass


def test_a_resumed_command_finds_what_it_had_written(bucket):
    config = {"output": "s3://genomes/run/a.tsv", "overwrite": False, "resume": False}
    with pytest.raises(RuntimeError), outputs.uploading(config, RUN) as local:
        Path(local["output"]).write_text("half")
        raise RuntimeError
    with outputs.uploading({**config, "resume": True}, RUN) as local:
        assert Path(local["output"]).read_text() == "half"
    with outputs.uploading({**config, "overwrite": True}, RUN) as local:
        assert not Path(local["output"]).exists()  # a new start


def test_an_upload_that_fails_keeps_the_result(bucket, monkeypatch):
    def fails(self, file, address):
        raise LostError(f"{address.text} could not be read or written (no answer)")

    monkeypatch.setattr("dnadiff.data.remote.objects.ObjectStore.upload", fails)
    message = r"s3://genomes/y\.txt could not be uploaded: .*; the result is kept in (/\S+)"
    with pytest.raises(OSError, match=message) as error, atomic_write("s3://genomes/y.txt") as file:
        file.write(b"result")
    place = str(error.value).rpartition(" ")[2]
    assert Path(place, "y.txt").read_text() == "result"


def test_what_cannot_be_written_is_one_line():
    with pytest.raises(ValueError, match=r"https://x/y\.txt cannot be written by HTTP; choose s3://"), atomic_write("https://x/y.txt"):
        pass
    with (
        pytest.raises(ValueError, match=r"https://x/y\.txt cannot be written by HTTP"),
        outputs.uploading({"output": "https://x/y.txt"}, RUN),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"hydra\.run\.dir s3://bucket/run is on another machine"),
        outputs.uploading({}, Path("s3://bucket/run")),
    ):
        pass
    with pytest.raises(ValueError, match="is an address, and this is written as a file"):
        check_output("s3://bucket/y.txt")
