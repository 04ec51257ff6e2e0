"""Design from the command line and from Python: templates, motifs, infilling, GC, weights,
resuming, and invalid options."""

import gzip
import hashlib
import json
import re
import signal
import time

import numpy as np
import pytest

import dnadiff
from dnadiff.design import samples
from dnadiff.design.generate import effective_size
from dnadiff.design.request import CODES, Infill
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics import memorization
from dnadiff.jobs.journal import ResumableOutput, discard, temporary_path

APPEND = ResumableOutput.append


def interrupted_after_two(self, content, count, **notes):
    """`ResumableOutput.append`, interrupted after two samples."""
    if self.done == 2:
        raise KeyboardInterrupt
    APPEND(self, content, count, **notes)


@pytest.fixture(scope="module")
def model(trained):
    return dnadiff.load(trained, device="cpu")


@pytest.fixture
def genome(tmp_path):
    """A genome with soft-masked and unknown bases, and intervals in it."""
    rng = np.random.default_rng(0)
    body = "".join(rng.choice(list("ACGTacgt"), 400))
    body = body[:90] + "NNN" + body[93:]
    (tmp_path / "g.fa").write_text(f">c1 some words\n{body}\n>c2\n{'ACGTTGA' * 9}\n")
    rows = [
        "c1\t100\t130\tfirst one\t0\t-",
        "c1\t0\t20\t.\t0\t.",
        "c1\t390\t400\tend\t0\t+",
        "c2\t20\t30\t.\t0\t.",
        "c1\t100\t130\t.\t0\t.",
    ]
    (tmp_path / "r.bed").write_text("\n".join(rows) + "\n")
    return {"c1": body, "c2": "ACGTTGA" * 9}


def facts(record):
    return dict(word.split("=", 1) for word in record.description.split() if "=" in word)


def test_templates_motifs_and_ranges_in_files(cli, trained, tmp_path):
    template = "acgtNNNNNNNNRYSWKMBDHVNNNNNNNNNNtata"
    (tmp_path / "t.fa").write_text(f">t1\n{template}\n>t2\nNNNNGATTACANNNN\n")
    status, out, err = cli(
        "sample",
        f"checkpoint={trained}",
        "template=t.fa",
        "num_samples=3",
        "motif=WW@5",
        "output=a.fa",
    )
    assert status == 0, err
    records = read_sequences(tmp_path / "a.fa")
    assert [r.name for r in records] == [
        "t1_1",
        "t1_2",
        "t1_3",
        "t2_1",
        "t2_2",
        "t2_3",
    ] and "effective sample size" in out
    for record in records:
        text, wanted = (
            record.sequence.decode(),
            template if record.name[1] == "1" else "NNNNGATTACANNNN",
        )
        assert all(CODES[b] & CODES[a] for a, b in zip(wanted.upper(), text.upper()))
        assert (
            record.description.startswith("synthetic sampler=grouped")
            and float(facts(record)["log_weight"]) <= 0
        )
    assert all(r.sequence.startswith(b"acgt") and r.sequence.endswith(b"tata") for r in records[:3])
    args = [
        "motif=[TATAAT@10,CCAAT@-10:-]",
        "length=40:70",
        "num_samples=7",
        "batch_size=3",
        "output=b.fa.gz",
    ]
    assert cli("sample", f"checkpoint={trained}", *args)[0] == 0
    texts = [r.sequence.decode() for r in read_sequences(tmp_path / "b.fa.gz")]
    assert (
        all(t[10:16] == "TATAAT" and t[-10:-5] == "ATTGG" and 40 <= len(t) <= 70 for t in texts)
        and len(set(map(len, texts))) > 2
    )


def test_the_json_file_records_how_the_samples_were_made(cli, trained, tmp_path):
    status, out, err = cli(
        "sample",
        f"checkpoint={trained}",
        "num_samples=4",
        "output=a.fa",
        "sampler=first_hitting",
        "copies=true",
        "length=30",
    )
    assert status == 0, err
    content = json.loads((tmp_path / "a.fa.json").read_text())
    assert (
        content["sha256"] == hashlib.sha256((tmp_path / "a.fa").read_bytes()).hexdigest()
        and content["synthetic"] is True
    )
    assert (
        content["model"]["sha256"]
        == hashlib.sha256((trained / "checkpoints" / "best.ckpt").read_bytes()).hexdigest()
    )
    assert (
        content["sampler"],
        content["network_calls"],
        content["rows"],
        content["seed"],
        content["records"],
    ) == (
        "first_hitting",
        30,
        117,  # the first call of four masks alike evaluates one
        1,
        4,
    )
    assert content["steps"] == 30
    assert (
        content["dnadiff"] == dnadiff.__version__
        and content["seconds"] > 0
        and "weights" not in content
    )
    assert 1 <= content["copies"]["longest"]["max"] <= 30 and "longest match with training" in out
    assert cli("copies", "input=a.fa", f"checkpoint={trained}", "output=c.tsv")[0] == 0
    table = [line.split("\t") for line in (tmp_path / "c.tsv").read_text().splitlines()]
    assert (
        table[0] == ["name", "length", "longest_match", "seen_24mers"]
        and max(int(row[2]) for row in table[1:]) == content["copies"]["longest"]["max"]
    )


def test_a_feature_chooses_the_intervals_of_a_gtf_file(cli, trained, genome, tmp_path):
    (tmp_path / "r.gtf").write_text(
        "c1\tx\tgene\t1\t60\t.\t+\t.\t\nc1\tx\tCDS\t31\t34\t.\t-\t0\t\n"
    )
    args = [
        f"checkpoint={trained}",
        "infill=r.gtf",
        "genome=g.fa",
        "num_samples=1",
        "length=64",
        "output=w.fa",
    ]
    assert cli("sample", *args, "feature=CDS")[0] == 0
    assert [r.name for r in read_sequences(tmp_path / "w.fa")] == ["c1:31-34(-)_1"]
    assert json.loads((tmp_path / "w.fa.json").read_text())["inputs"]["feature"] == "CDS"
    status, _, err = cli("sample", *args, "resume=true")
    assert status == 1 and "w.fa" in err


def test_infilling_keeps_the_flanks_byte_for_byte(cli, trained, genome, tmp_path):
    args = [f"checkpoint={trained}", "infill=r.bed", "genome=g.fa", "num_samples=2", "length=64"]
    assert (
        cli("sample", *args, "output=w.fa")[0] == 0
        and cli("sample", *args, "output=d.fa", "write=designed")[0] == 0
    )
    windows, parts = read_sequences(tmp_path / "w.fa"), read_sequences(tmp_path / "d.fa")
    names = ["c1:101-130(-)", "c1:1-20", "c1:391-400(+)", "c2:21-30", "c1:101-130"]
    assert (
        [r.name for r in windows]
        == [f"{name}_{k}" for name in names for k in (1, 2)]
        == [r.name for r in parts]
    )
    for window, part in zip(windows, parts):
        chrom, low, high = re.fullmatch(r"(\w+):(\d+)-(\d+)", facts(window)["window"]).groups()
        real = genome[chrom][int(low) - 1 : int(high)]
        real = reverse_complement(real) if "(-)" in window.name else real
        first, last = map(int, facts(window)["designed"].split("-"))
        text = window.sequence.decode()
        assert (
            text[: first - 1] == real[: first - 1]
            and text[last:] == real[last:]
            and len(text) == len(real)
        )
        assert text[first - 1 : last] == part.sequence.decode() and set(
            part.sequence.decode()
        ) <= set("ACGT")
        on_strand = reverse_complement(real) if "(-)" in window.name else real
        place = (
            (int(high) - last, int(high) - first + 1)
            if "(-)" in window.name
            else (int(low) + first - 2, int(low) + last - 1)
        )
        assert (
            window.name.startswith(f"{chrom}:{place[0] + 1}-{place[1]}")
            and on_strand in genome[chrom]
        )
    assert "N" in windows[0].sequence.decode() and facts(windows[0])["region"] == "first_one"
    assert len({r.sequence for r in parts}) == len(parts)


def test_intervals_at_the_ends_and_in_short_records(genome, tmp_path):
    from dnadiff.data.genome.genome import Genome
    from dnadiff.formats.regions import read_bed

    opened = Genome(str(tmp_path / "g.fa"))
    request = Infill(opened, read_bed(tmp_path / "r.bed", opened.lengths), 1, 64)
    assert [request[i].designed for i in range(4)] == [
        (17, 47),
        (0, 20),
        (54, 64),
        (20, 30),
    ] and request.lengths == (63, 64)
    with pytest.raises(
        ValueError,
        match=r"infill: c1:101-130\(-\) has 30 bases, more than the 29 that are read at once",
    ):
        Infill(opened, read_bed(tmp_path / "r.bed", opened.lengths), 1, 29)


def test_gc_reaches_its_target(cli, trained, tmp_path):
    status, out, err = cli(
        "sample",
        f"checkpoint={trained}",
        "num_samples=64",
        "length=60",
        "gc=0.7",
        "output=a.fa",
        "sampler.num_groups=6",
    )
    assert status == 0, err
    letters = b"".join(r.sequence for r in read_sequences(tmp_path / "a.fa")).decode()
    share = sum(map(letters.count, "GC")) / len(letters)
    assert (
        share == pytest.approx(0.7, abs=0.03)
        and f"{share:.4f}, target 0.7" in out
        and "the pilot reaches 0.7" in err
    )
    assert all(
        float(facts(r)["log_weight"]) != 0 and facts(r)["gc"] == "0.7"
        for r in read_sequences(tmp_path / "a.fa")
    )
    content, calls = (
        json.loads((tmp_path / "a.fa.json").read_text()),
        [int(facts(r)["calls"]) for r in read_sequences(tmp_path / "a.fa")],
    )
    pilot, size = content["gc"]["pilot_calls"], content["settings"]["batch_size"]
    assert (
        content["network_calls"] == sum(calls[::size]) + pilot
        and f"{pilot} of them set the GC" in out
        and pilot > 0
    )


def test_resampling_draws_by_weight(cli, trained, tmp_path):
    (tmp_path / "t.fa").write_text(">t1\nNNNNNRRYYSSWWKKNNNNN\n>t2\nNNNNGATTACANNNN\n")
    args = [f"checkpoint={trained}", "template=t.fa", "sampler.num_groups=5", "num_samples=4"]
    assert cli("sample", *args[:-1], "num_samples=30", "output=p.fa")[0] == 0
    status, out, err = cli("sample", *args, "proposals=30", "resample=true", "output=a.fa")
    assert status == 0, err
    pool = {r.name: r for r in read_sequences(tmp_path / "p.fa")}
    chosen = read_sequences(tmp_path / "a.fa")
    assert [r.name for r in chosen] == [
        f"t{t}_{k}" for t in (1, 2) for k in (1, 2, 3, 4)
    ] and ", resampled" in out
    for record in chosen:
        assert pool[f"{record.name[:2]}_{facts(record)['proposal']}"].sequence == record.sequence
    weights = np.array(
        [float(facts(r)["log_weight"]) for n, r in pool.items() if n.startswith("t1")]
    )
    content = json.loads((tmp_path / "a.fa.json").read_text())["weights"]
    size = np.exp(weights - weights.max()).sum() ** 2 / np.exp(2 * (weights - weights.max())).sum()
    assert (
        content["effective_size"]["least"] == pytest.approx(size, rel=1e-5)
        and content["proposals"] == 30
        and content["resampled"] == 4
    )


def test_a_killed_process_resumes_to_the_same_bytes(python, cli, trained, tmp_path):
    name = "a.fa.gz"
    args = [
        f"checkpoint={trained}",
        "num_samples=12",
        "batch_size=2",
        "length=80:100",
        "sampler=first_hitting",
        "motif=TATRAT@5",
    ]
    assert cli("sample", *args, f"output=complete_{name}")[0] == 0
    process = python("-m", "dnadiff.sample", *args, "output=" + name, cwd=tmp_path)
    journal, end = temporary_path(tmp_path / name, "journal"), time.monotonic() + 600
    while time.monotonic() < end and process.poll() is None and not journal.is_file():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.errors
    assert journal.is_file() and not (tmp_path / name).exists(), (
        "the process ended before it could be killed"
    )
    status, _, err = cli("sample", *args, "output=" + name)
    assert status == 1 and "is unfinished" in err
    status, _, err = cli("sample", *args, "output=" + name, "resume=true")
    assert status == 0 and "resuming after" in err, err
    assert (tmp_path / name).read_bytes() == (tmp_path / f"complete_{name}").read_bytes()
    one, other = (json.loads((tmp_path / f"{p}{name}.json").read_text()) for p in ("", "complete_"))
    same = ("sha256", "network_calls", "rows", "tokens", "weights", "settings")
    assert all(one[key] == other[key] for key in same) and (one["sessions"], other["sessions"]) == (
        2,
        1,
    )
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert "is complete already" in cli("sample", *args, "output=" + name, "resume=true")[1]


def test_a_file_is_resumed_with_the_same_settings_only(cli, trained, tmp_path, monkeypatch):
    (tmp_path / "t.fa").write_text(">t\nNNRNNNANNN\n")
    args = {
        "num_samples": "4",
        "batch_size": "2",
        "seed": "1",
        "template": "t.fa",
        "gc": "null",
        "sampler.temperature": "1",
        "sampler": "first_hitting",
    }

    def sample(*more, **changed):
        return cli(
            "sample",
            f"checkpoint={trained}",
            "output=a.fa",
            *more,
            *(f"{k}={v}" for k, v in (args | changed).items()),
        )

    with monkeypatch.context() as patched:
        patched.setattr(ResumableOutput, "append", interrupted_after_two)
        assert sample()[0] == 130
    begun = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    others = {
        "num_samples": "5",
        "batch_size": "3",
        "seed": "2",
        "gc": "0.5",
        "sampler.temperature": "0.9",
        "sampler": "grouped",
    }
    for key, value in others.items():
        status, _, err = sample("resume=true", **{key: value})
        assert (
            status == 1
            and f"was started with {key.partition('.')[0]}=" in err
            and err.count("\n") <= 2
        ), err
    (tmp_path / "t.fa").write_text(">t\nNNYNNNANNN\n")
    assert "was started with template=" in sample("resume=true")[2]
    (tmp_path / "t.fa").write_text(">t\nNNRNNNANNN\n")
    assert sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir()) == begun
    assert sample("resume=true")[0] == 0 and len(read_sequences(tmp_path / "a.fa")) == 4
    temporary_path(tmp_path / "a.fa", "journal").write_text(
        "{}"
    )  # a process that ended between the last two steps
    status, out, _ = sample("resume=true")
    assert (
        status == 0
        and "is complete already" in out
        and not temporary_path(tmp_path / "a.fa", "journal").exists()
    )


@pytest.mark.parametrize(
    "sampler", [["sampler=grouped"], ["sampler=semi_ar", "sampler.window=32", "sampler.stride=32"]]
)
def test_groups_chosen_at_the_start_are_kept_by_a_resumed_file(
    sampler, cli, trained, tmp_path, monkeypatch
):
    # `evaluate` stored an h(n) in the run in the meantime: the number of groups was 64, and would
    # be 9.
    args = [f"checkpoint={trained}", "num_samples=4", "batch_size=2", "length=64", *sampler]
    monkeypatch.setattr(
        StoredCurve,
        "groups",
        lambda self, length, num_groups, sizes: {"num_groups": num_groups, "sizes": sizes},
    )
    assert cli("sample", *args, "output=complete.fa")[0] == 0

    with monkeypatch.context() as patched:
        patched.setattr(ResumableOutput, "append", interrupted_after_two)
        assert cli("sample", *args, "output=a.fa")[0] == 130
    monkeypatch.setattr(
        StoredCurve,
        "groups",
        lambda self, length, num_groups, sizes: {"num_groups": num_groups or 9, "sizes": sizes},
    )
    inner = "sampler.num_groups=5" if len(sampler) == 1 else "sampler.sampler.num_groups=5"
    assert (
        "was started with sampler=" in cli("sample", *args, inner, "output=a.fa", "resume=true")[2]
    )
    status, _, err = cli("sample", *args, "output=a.fa", "resume=true")
    assert (
        status == 0 and (tmp_path / "a.fa").read_bytes() == (tmp_path / "complete.fa").read_bytes()
    ), err
    for name in ("a.fa", "complete.fa"):
        assert "is complete already" in cli("sample", *args, f"output={name}", "resume=true")[1]
    # A file that is replaced is a new one.
    status, _, err = cli("sample", *args, "output=a.fa", "resume=true", "overwrite=true", "seed=5")
    assert status == 0, err
    settings = json.loads((tmp_path / "a.fa.json").read_text())["settings"]["sampler"]
    assert (settings if len(sampler) == 1 else settings["sampler"])["num_groups"] == 9


def test_resampling_and_gc_resume_too(cli, trained, tmp_path, monkeypatch):
    args = [
        f"checkpoint={trained}",
        "num_samples=3",
        "proposals=9",
        "resample=true",
        "batch_size=2",
        "length=40",
        "gc=0.6",
        "sampler.num_groups=4",
    ]
    assert cli("sample", *args, "output=complete.fa")[0] == 0
    append = ResumableOutput.append

    def broken(self, content, count, **notes):
        if self.done == 4:
            raise KeyboardInterrupt
        append(self, content, count, **notes)

    monkeypatch.setattr(ResumableOutput, "append", broken)
    assert cli("sample", *args, "output=a.fa")[0] == 130
    monkeypatch.setattr(ResumableOutput, "append", append)
    status, _, err = cli("sample", *args, "output=a.fa", "resume=true")
    assert status == 0 and "the pilot" not in err  # its tilt is in the journal
    assert (tmp_path / "a.fa").read_bytes() == (tmp_path / "complete.fa").read_bytes()
    assert (
        len(
            {
                json.loads((tmp_path / name).read_text())["network_calls"]
                for name in ("a.fa.json", "complete.fa.json")
            }
        )
        == 1
    )
    letters = b"".join(r.sequence for r in read_sequences(tmp_path / "a.fa")).decode()
    reached = json.loads((tmp_path / "a.fa.json").read_text())["gc"]["reached"]
    assert reached == pytest.approx(
        sum(map(letters.count, "GC")) / len(letters)
    )  # of what is in the file, not of all proposals


def test_the_gc_of_resampled_designs_is_that_of_the_designed_part(tmp_path):
    records = [
        (">a_1 synthetic designed=2-3 log_weight=0", "GATG"),
        (">a_2 synthetic designed=2-3 log_weight=-99", "AGGT"),
    ]
    records += [
        (">b_1 synthetic log_weight=0.5", "acgN"),
        (">b_2 synthetic log_weight=-99", "AAAA"),
    ]
    (tmp_path / "p.fa").write_text("".join(f"{header}\n{body}\n" for header, body in records))
    weights = samples.numbers_of(tmp_path / "p.fa", tmp_path / "k.fa", "log_weight")
    samples.resample(tmp_path / "p.fa", tmp_path / "k.fa", 2, 3, 1, weights)
    assert samples.gc_of(tmp_path / "k.fa") == 6 / 15  # AT and acgN, three times each


def test_the_journal_of_a_replaced_file_is_removed(tmp_path, monkeypatch):
    output = tmp_path / "a.fa"
    first = ResumableOutput(output, {"seed": 1})
    first.append(b">one\nACGT\n", 1)
    first.close()
    second = ResumableOutput(output, {"seed": 2}, overwrite=True)

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ResumableOutput, "_write_journal", killed)
        with pytest.raises(KeyboardInterrupt):
            second.append(b">another\nACGTACGT\n", 1)
    second.close()
    assert ResumableOutput(output, {"seed": 1}, resume=True).done == 0


def test_files_of_killed_processes_are_removed(tmp_path):
    code = "0f" * 16
    left = [
        f".a.fa.{code}.part",
        f".a.fa.json.{code}.part",
        f"..a.fa.journal.{code}.part",
        ".a.fa.part",
        ".a.fa.journal",
    ]
    others = [
        "a.fa",
        f".b.a.fa.{code}.part",
        ".axfa.part",
        f".axfa.{code}.part",
        f"a.fa.{code}.part",
    ]
    for name in left + others:
        (tmp_path / name).write_text("")
    discard(tmp_path / "a.fa")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(others)


def test_copies_of_any_fasta(cli, trained, tmp_path):
    base = (np.arange(40) * 7 % 11 % 4).astype(np.uint8)
    training = memorization.TrainingIndex([base], 8)
    text = "".join("ACGT"[b] for b in base[:20])
    headers = [
        "a designed=3-12",
        "b designed=abc",
        "c designed=30-40",
        "d designed=12-3",
        "e redesigned=3-12",
        "f",
    ]
    (tmp_path / "x.fa").write_text("".join(f">{header}\n{text}\n" for header in headers))
    assert [m.length for m in memorization.of_file(tmp_path / "x.fa", training)] == [
        10,
        20,
        20,
        20,
        20,
        20,
    ]
    status, _, err = cli("copies", "input=none.fa", f"checkpoint={trained}")
    assert status == 1 and "none.fa does not exist" in err


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    from dnadiff.train import train

    folder = tmp_path_factory.mktemp("text")
    (folder / "book.txt").write_text("the cat sat on the mat. the dog sat on the log. " * 100)
    network = ["backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"]
    args = [
        "data=text",
        f"data.path={folder}/book.txt",
        "data.length=32",
        "data.batch_size=4",
        *network,
    ]
    args += ["trainer.accelerator=cpu", "trainer.max_steps=2", "data.max_valid_windows=2"]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    return folder / "run"


def test_text_by_prompt_and_template(cli, text_run, tmp_path):
    (tmp_path / "t.txt").write_text("the [MASK*3] sat[MASK]\n")
    status, _, err = cli(
        "sample", f"checkpoint={text_run}", "template=t.txt", "num_samples=3", "output=a.jsonl"
    )
    assert status == 0, err
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert (
        all(
            re.fullmatch(r"the .{3} sat.", row["text"]) and row["synthetic"] is True for row in rows
        )
        and len(rows) == 3
    )
    assert (
        cli(
            "sample",
            f"checkpoint={text_run}",
            "prompt=the dog",
            "num_samples=2",
            "output=b.txt.gz",
            "length=20",
        )[0]
        == 0
    )
    texts = gzip.decompress((tmp_path / "b.txt.gz").read_bytes()).decode().split("\n\n")
    assert (
        all(text.startswith("the dog") and len(text) == 20 for text in texts[:2]) and texts[2] == ""
    )
    (tmp_path / "full.txt").write_text("the cat\n")
    (tmp_path / "huge.txt").write_text("the [MASK*99999999999]\n")
    (tmp_path / "long.txt").write_text("a" * 10_000_001)
    with pytest.raises(ValueError, match="infill is for models of DNA"):
        dnadiff.load(text_run, device="cpu").infill("the dog", 1, 3)
    for argument, message in (
        ("motif=TA@3", "for models of DNA"),
        ("gc=0.4", "for models of DNA"),
        ("prompt=THE", "'T' at position 1"),
        ("template=full.txt", "leaves nothing to generate; give [MASK]"),
        ("template=huge.txt", "[MASK*99999999999] is more than can be generated at once"),
        ("template=long.txt", "a template of 10,000,001 letters is more than can be generated"),
        ("output=a.fa", ".txt, .jsonl"),
    ):
        status, _, err = cli("sample", f"checkpoint={text_run}", argument)
        assert status == 1 and message in err and err.count("\n") == 1, err


def test_weights_of_text_are_summarized_too(cli, tmp_path):
    (tmp_path / "book.txt").write_text("the cat sat on the mat. the dog sat on the log. " * 100)
    network = [
        "objective=ar",
        "backbone=transformer",
        "backbone.d_model=16",
        "backbone.n_layers=1",
        "backbone.n_heads=2",
    ]
    data = [
        "data=text",
        "data.path=book.txt",
        "data.length=32",
        "data.batch_size=4",
        "data.max_valid_windows=2",
    ]
    assert (
        cli(
            "train",
            *data,
            *network,
            "trainer.accelerator=cpu",
            "trainer.max_steps=2",
            "hydra.run.dir=run",
        )[0]
        == 0
    )
    (tmp_path / "t.txt").write_text("the [MASK*3] sat")
    args = ["checkpoint=run", "sampler=ar", "template=t.txt", "num_samples=6", "batch_size=4"]
    status, out, err = cli("sample", *args, "output=a.jsonl.gz")
    assert status == 0 and "effective sample size" in out, err
    rows = [
        json.loads(line)
        for line in gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()
    ]
    weights = np.array([row["log_weight"] for row in rows])
    content = json.loads((tmp_path / "a.jsonl.gz.json").read_text())["weights"]
    assert (
        content["effective_size"]["mean"]
        == pytest.approx(effective_size(weights, [row["text"] for row in rows]))
        and content["effective_size"]["counts"] == "distinct sequences"
        and content["proposals"] == 6
        and (weights < 0).all()
    )


REFUSED = [
    (["template=bad.fa"], "bad.fa: line 2: record x: letter 'J' at column 3 is not a nucleotide"),
    (["template=none.fa"], "none.fa does not exist"),
    (["template=full.fa"], "template x leaves nothing to generate"),
    (["template=ok.fa", "length=30"], "template and length exclude each other"),
    (["template=ok.fa", "prompt=ACG"], "template and prompt exclude each other"),
    (["motif=TAXT@3"], "motif TAXT@3: 'X' at position 3 is not an IUPAC letter"),
    (
        ["motif=TATA@62"],
        "motif TATA@62 covers 62 to 66 (0-based, half-open), outside a sequence of 64 bases",
    ),
    (["motif=[TATA@3,GG@4]"], "motif GG@4 contradicts motif TATA@3 at position 4"),
    (
        ["motif=CC@9", "template=ok.fa"],
        "motif CC@9 contradicts the template at position 10 (0-based) of 20 bases: C against R",
    ),
    (["motif=TATA@30", "length=20:60"], "outside a sequence of"),
    (["length=60:20"], "length '60:20' cannot be parsed; write a number, or SHORTEST:LONGEST"),
    (["length=a:b"], "length 'a:b' cannot be parsed"),
    (["infill=r.bed"], "infill=regions.bed (or regions=) and genome=g.fa belong together"),
    (
        ["infill=off.bed", "genome=g.fa"],
        "off.bed: line 2 has the region c1:390-401, which ends beyond c1 (400 bases)",
    ),
    (["infill=other.bed", "genome=g.fa"], "other.bed: line 1: no record is called c9"),
    (["infill=r.bed", "genome=g.fa", "length=20"], "more than the 20 that are read at once"),
    (["infill=r.bed", "genome=g.fa", "length=20:40"], "windows of one length"),
    (["infill=r.bed", "genome=g.fa", "template=ok.fa"], "infill and template exclude each other"),
    (
        ["infill=r.bed", "genome=g.fa", "write=some"],
        "write 'some' is not known; choose one of window, designed",
    ),
    (["gc=1.2"], "gc 1.2 must be a number above 0 and below 1"),
    (
        ["gc=0.9", "template=at.fa"],
        "gc 0.9 cannot be reached: the fixed positions allow means between 0.000 and 0.600",
    ),
    (["resample=true"], "resample=true: these samples have no weights"),
    (
        ["resample=true", "gc=0.5", "sampler=remdm"],
        "resample=true needs a sampler with importance weights",
    ),
    (
        ["resample=true", "gc=0.5", "sampler.temperature=0.9"],
        "resample=true needs a sampler with importance weights",
    ),
    (
        ["resample=true", "motif=RRY@4", "length=20:30"],
        "resample=true compares sequences of one length",
    ),
    (["copies=no"], "copies=no is neither true nor false"),
    (["overwrite=no"], "overwrite=no is neither true nor false"),
    (["prompt=1984"], "prompt 1984 must be a string or null; put it into quotes"),
    (["prompt=ACJ"], "prompt: 'J' at position 3 is not an IUPAC letter"),
    (["output=5"], "output 5 must be a string or null; put it into quotes"),
    (["proposals=20"], "proposals is for resample=true"),
    (["proposals=3", "resample=true", "gc=0.5"], "proposals 3 are fewer than the num_samples 16"),
    (["write=designed"], "write is for infill="),
    (["feature=CDS"], "feature is for rows of a GTF or GFF file of infill= or regions="),
    (
        ["infill=r.bed", "genome=g.fa", "feature=CDS"],
        "feature 'CDS' chooses rows of a GTF or GFF file, and r.bed is BED",
    ),
    (["resume=true"], "resume=true needs output=, the file to resume"),
    (["output=a.jsonl"], "another kind of file"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_invalid_input_gives_one_line_and_writes_nothing(
    arguments, message, cli, trained, genome, tmp_path
):
    for name, letters in (
        ("bad", "ACJT"),
        ("full", "ACGT"),
        ("ok", "NNNNNNNNNNRRNNNNNNNN"),
        ("at", "ATATWWNNNNNNNNN" * 2),
    ):
        (tmp_path / f"{name}.fa").write_text(f">x\n{letters}\n")
    (tmp_path / "off.bed").write_text("c1\t0\t10\nc1\t390\t401\n")
    (tmp_path / "other.bed").write_text("c9\t0\t10\n")
    before = sorted(p.name for p in tmp_path.iterdir())
    args = [] if any(a.startswith(("output", "resume")) for a in arguments) else ["output=out.fa"]
    status, _, err = cli("sample", f"checkpoint={trained}", *arguments, *args)
    assert status == 1 and message in err, err
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        err.splitlines()[-1]
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_python_gives_strings_with_their_bounds(model):
    designs = model.sample(3, template="ACGTNNNNRYNNacgt", motif="TT@4")
    assert all(
        d.startswith("ACGTTT") and d.endswith("acgt") and d[8] in "AG" and d[9] in "CT"
        for d in designs
    )
    assert all(d.log_prob < 0 and d.log_weight < 0 for d in designs) and isinstance(designs[0], str)
    plain = model.sample(2, length=20, seed=1)
    assert model.sample(2, length=np.int64(20), seed=1) == plain  # as numpy counts
    assert (
        plain[0].log_prob is None
        and plain[0].log_weight == 0
        and model.sample(2, length=20, num_draws=2)[0].log_prob < 0
    )
    rich = "".join(model.sample(20, length=40, gc=0.75, seed=1))
    assert 0.68 < sum(map(rich.count, "GC")) / len(rich) < 0.82
    for call, message in (
        (lambda: model.sample(1, template="ACGZ"), "'Z' at position 4"),
        (lambda: model.sample(1, template="NN", length=3), "leave prompt and length out"),
        (
            lambda: model.infill("ACGT", 2, 2),
            "start 2 and end 2 must be an interval in the sequence of 4",
        ),
        (lambda: model.infill("ACGTACGT", 0, 8, length=4), "longer than the 4 tokens"),
        (lambda: model.infill("ACGTACGT", 0.5, 8), "start 0.5 must be an integer"),
        (lambda: model.infill("ACGTACGT", 0, 8, length=7.5), "length 7.5 must be an integer"),
        (lambda: model.infill("ACGTACGT", 0, 8, num_draws=3), "num_draws 3 must be even"),
        (lambda: model.sample("3"), "n '3' must be an integer"),
        (lambda: model.sample(1, template=["NN"]), "must be a string"),
        (
            lambda: model.sample(1, length=9, batch_size=1.5),
            "batch_size 1.5 must be an integer of at least 1",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"None \(of type NoneType\) is not a sequence"):
        model.infill(None, 0, 8)


def test_python_infills_within_a_long_sequence(model):
    sequence = "acgtTGA" * 30 + "NNR" + "ACGTTGA" * 30
    designs = model.infill(sequence, 200, 220, n=4, num_draws=64)
    assert len(set(designs)) > 1 and all(len(d) == len(sequence) for d in designs)
    assert all(
        d[:200] == sequence[:200] and d[220:] == sequence[220:] and set(d[200:220]) <= set("ACGT")
        for d in designs
    )
    # what the training repeats is more probable in its place than what was drawn: bounds tell
    assert max(d.log_prob for d in designs) < 0 and designs[0].log_weight == 0
