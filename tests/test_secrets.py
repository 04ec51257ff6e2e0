"""Queries, user names and passwords of addresses are in no file and in no message."""

import http.server
import threading
from pathlib import Path

import pytest

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.diffusion.draws import hash64
from dnadiff.formats.sequences import read_sequences
from dnadiff.options.command import command_names, compose, named
from dnadiff.score import score
from dnadiff.store.objects import leaves

SECRET = "S3CRET"


@pytest.fixture
def server(tmp_path_factory):
    """A server of the files in a folder, for whoever knows the secret: (folder, address of a
    name)."""
    folder = tmp_path_factory.mktemp("served")

    class Signed(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def do_GET(self):
            super().do_GET() if SECRET in self.path else self.send_error(403)

        def log_message(self, *args):
            """Nothing is printed."""

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Signed)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield folder, lambda name: f"http://127.0.0.1:{served.server_port}/{name}?sv=1&sig={SECRET}"
    served.shutdown()
    served.server_close()


@pytest.fixture
def run(cli, tmp_path, tmp_path_factory, monkeypatch):
    """Runs a command line and searches what it printed and wrote; its status and its errors."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("DNADIFF_CACHE", str(cache))

    def search(command, *arguments):
        status, out, err = cli(command, *arguments)
        places = [path for folder in (tmp_path, cache) for path in folder.rglob("*")]
        found = [
            str(path)
            for path in places
            if SECRET in path.name or (path.is_file() and SECRET.encode() in path.read_bytes())
        ]
        assert SECRET not in out + err, (command, arguments, out + err)
        assert not found, (command, arguments)
        return status, out, err

    return search


def letters_of(seed, count):
    return "".join("ACGT"[hash64(seed, i) % 4] for i in range(count))


def write_genome(path):
    letters = letters_of(1, 6000)
    path.write_text(f">one\n{letters}\n>two\n{letters[::-1][:1000]}\n")


def address_keys(command):
    """The keys of a command whose values may be an address: all that take a text."""
    config = compose(command, resolve=False)
    return sorted(
        key
        for key, value in leaves(config)
        if (value is None or isinstance(value, str)) and not key.endswith(("_target_", "_partial_"))
    )


@pytest.mark.parametrize("command", command_names())
def test_no_key_of_a_failing_command_shows_a_secret(command, run, server):
    options = named(command).options
    fields = options.model_fields
    needed = {name: "none.x" for name, field in fields.items() if field.is_required()}
    keys = address_keys(command)
    assert len(keys) >= 2
    signed = server[1]("none.fa")
    for key in keys:
        for address in (
            signed,
            f"http://user:{SECRET}@127.0.0.1/none.fa",
            f"s3://{SECRET}:pw@bucket/none.fa",
        ):
            given = [f"{k}={v}" for k, v in ({**needed, key: f"'{address}'"}).items()]
            run(command, "--cfg", "job", *given)
            if command != "train" or "." not in key:
                status, _, err = run(command, *given, "hydra.run.dir=run")
                assert status == 1 or command == "info", (key, err)


def test_training_and_what_reads_its_run_write_no_secret(run, server, tmp_path, train_args):
    folder, signed = server
    write_genome(folder / "g.fa")
    (folder / "b.bed").write_text("one\t0\t64\n")
    data = ["data=fasta", f"data.path='{signed('g.fa')}'", f"data.blacklist='{signed('b.bed')}'"]

    def succeed(command, *arguments):
        status, out, err = run(command, *arguments)
        assert status == 0, err
        return out + err

    succeed("train", *train_args("caduceus", 2, "hydra.run.dir=run", data=data))
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"{signed('g.fa').partition('?')[0]}?..." in config
    # Another signature is the same file, and what a run names is read from the cache.
    data[1] = data[1].replace("sv=1", "sv=2")
    again = train_args("caduceus", 4, "hydra.run.dir=run", "resume=true", data=data)
    assert "different" not in succeed("train", *again)
    (folder / "g.fa").rename(folder / "moved.fa")
    succeed("evaluate", "checkpoint=run", "output=run/evaluate.json", "num_draws=2")
    succeed("copies", "checkpoint=run", f"input='{signed('moved.fa')}'", "output=copies.json")
    succeed("info", "checkpoint=run")
    succeed("export", "checkpoint=run", "output=exported")


def test_scores_designs_and_predictions_write_no_secret(run, server, tmp_path, trained):
    folder, signed = server
    write_genome(folder / "g.fa")
    rows = [f"{letters_of(i, 60)},{i % 2}" for i in range(60)]
    (folder / "t.csv").write_text("\n".join(["sequence,label", *rows]) + "\n")
    letters = (folder / "g.fa").read_text().split("\n")[1]
    (folder / "v.tsv").write_text(
        "chrom\tpos\tref\talt\n" + f"one\t101\t{letters[100]}\t{'CA'[letters[100] == 'C']}\n"
    )
    (folder / "t.fa").write_text(">t\nACGTNNNNACGT\n")
    (folder / "m.jaspar").write_text(">M\nA [9 0]\nC [0 9]\nG [1 0]\nT [0 1]\n")
    (folder / "r.bed").write_text("one\t100\t200\n")

    def of(name):
        return f"'{signed(name)}'"

    def succeed(command, *arguments, checkpoint=trained):
        status, out, err = run(command, f"checkpoint={checkpoint}", *arguments)
        assert status == 0, err
        return out + err

    genome = f"genome={of('g.fa')}"
    succeed("score", f"input={of('g.fa')}", "output=s.tsv", "per_base=s.bedgraph", "num_draws=2")
    succeed("score", f"regions={of('r.bed')}", genome, "output=r.tsv", "num_draws=2")
    succeed("embed", f"input={of('g.fa')}", "output=e.npz")
    succeed("variants", f"vcf={of('v.tsv')}", genome, "output=v.tsv")
    succeed("sample", f"template={of('t.fa')}", "num_samples=4", "output=t.fa")
    infill = [f"infill={of('r.bed')}", genome, "num_samples=2", "output=i.fa", "length=128"]
    succeed("sample", *infill)
    # The matrix of a reward is not fetched, but read from the cache.
    assert run("sample", f"checkpoint={trained}", genome, f"infill={of('m.jaspar')}")[0] == 1
    motif = ["reward=motif", f"reward.matrix={of('m.jaspar')}", "reward.name=M", "num_samples=4"]
    succeed("sample", *motif, "length=64", "output=m.fa", "report=m.html")
    task = ["task=csv", f"task.path={of('t.csv')}", "seeds=1", "epochs=1", "lr=1e-3"]
    succeed("finetune", *task, "scratch=false", "hydra.run.dir=ft", "task.protocol=fixed")
    succeed("predict", f"input={of('t.csv')}", "output=p.tsv", checkpoint=tmp_path / "ft")


def test_shards_and_their_launcher_know_secrets_and_do_not_write_them(run, server, trained):
    folder, signed = server
    write_genome(folder / "g.fa")
    given = [f"checkpoint={trained}", f"input='{signed('g.fa')}'", "num_draws=2"]
    for arguments in (
        ["score", *given, "output=whole.tsv"],
        ["score", *given, "output=launched.tsv", "launcher=processes", "launcher.shards=2"],
        *(["score", *given, "output=merged.tsv", f"shard={i}/2"] for i in (1, 2)),
        ["merge", "output=merged.tsv"],  # it finds the copy in the cache
    ):
        status, _, err = run(*arguments)
        assert status == 0, err
    contents = [Path(f"{name}.tsv").read_bytes() for name in ("whole", "launched", "merged")]
    assert len(set(contents)) == 1


def test_python_shows_no_secret_either(server, trained, tmp_path, monkeypatch):
    folder, signed = server
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    write_genome(folder / "g.fa")
    (folder / "v.tsv").write_text("chrom\tpos\tref\talt\none\t101\tA\tC\none\t0\tA\tC\n")
    (folder / "empty.fa").write_text("")
    (folder / "bad.fa").write_text(">a\nACGT!\n")
    model = dnadiff.load(trained)
    for call in (
        lambda: model.variants(signed("v.tsv"), signed("g.fa")),
        lambda: model.variants(signed("none.tsv"), signed("g.fa")),
        lambda: model.variants([("one", 1, "A", "C")], signed("bad.fa")),
        lambda: Genome(signed("empty.fa")),
        lambda: Genome([signed("bad.fa")]),
        lambda: dnadiff.load(signed("bad.fa")),
        lambda: dnadiff.load(signed("run")),
        lambda: score(checkpoint=str(trained), input=signed("bad.fa"), output="s.tsv"),
        lambda: list(read_sequences(signed("bad.fa"))),
    ):
        with pytest.raises((ValueError, OSError)) as error:
            call()
        assert SECRET not in str(error.value) and "?..." in str(error.value)
