"""docs/extending.md is complete: its files, written to a folder, run by its own command lines."""

import json
import random
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dnadiff.data.alignment import write_alignment
from dnadiff.data.genome.inputs import open_input
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.sequences import read_sequences
from dnadiff.options.compose import import_plugins
from dnadiff.store.disk import read_yaml
from dnadiff.store.objects import build
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.ensemble import LengthLimits
from dnadiff.supervised.predictions import Columns, SequenceFile

MIXTURES = Path(__file__).parent / "diffusion" / "process" / "test_mixture.py"
PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my_project")
    for name, content in re.findall(
        r"```(?:python|yaml)\n# ([\w./]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(content)
    letters = random.Random(1)
    sequence = "".join(letters.choices("ACGT", k=6000))
    (folder / "phages.fa").write_text(f">phage\n{sequence}\n")
    (folder / "phages.pairs").write_text(f"#pairs\nphage {sequence}\n")
    return folder


@pytest.fixture(scope="module")
def run(python, project):
    """Runs one command line of the page, as its reader does in a folder of their own: (exit status,
    errors)."""

    def one(line):
        process = python(*line.split()[1:], cwd=project)
        return process.wait(), process.errors

    return one


@pytest.fixture(scope="module")
def done(run):
    """Runs the command lines of the page."""
    lines = (
        re.search(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
        .strip()
        .splitlines()
    )
    assert lines and all(line.startswith("python -m dnadiff") for line in lines)
    for line in lines:
        status, errors = run(line)
        assert status == 0, f"{line}\n{errors}"


def test_its_command_lines_run(done, project):
    records = (project / "x.fa").read_text().split(">")[1:]
    assert len(records) == 2 and all(len(record.split("\n")[1]) == 32 for record in records)
    content = json.loads((project / "x.fa.json").read_text())
    assert "LeftToRight" in json.dumps(content) or "left_to_right" in json.dumps(content)


def test_its_file_format_is_read_in_training(run, project):
    status, errors = run(
        "python -m dnadiff.train plugins=[my_formats] --config-dir configs data=phages "
        "data.path=phages.pairs backbone=conv trainer.max_steps=1 hydra.run.dir=pairs"
    )
    assert status == 0, errors
    assert (project / "pairs" / "checkpoints").is_dir()


def test_its_layer_reads_columns(run, project):
    letters = [*map(b"ACGT".index, read_sequences(str(project / "phages.fa"))[0].sequence)]
    columns = np.ones((6000, 10), np.float32)
    write_alignment(project / "phages.aln", {"phage": 6000}, letters, [letters], columns)
    status, errors = run(
        "python -m dnadiff.train --config-dir configs data=phages data.alignment=phages.aln "
        "columns=depth backbone=conv trainer.max_steps=1 hydra.run.dir=aligned"
    )
    assert status == 0, errors
    line = "evaluate checkpoint=aligned part=valid orders=[]"
    status, errors = run(f"python -m dnadiff.{line} trust=[my_models]")
    assert status == 0, errors
    config = read_yaml(project / "aligned" / "config.yaml")
    assert config["columns"] == {"_target_": "my_models.Depth"}


def test_its_file_format_is_read_by_every_input(project, monkeypatch, tmp_path):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(project)
    import_plugins(["plugins=[my_formats]"])
    pairs, fasta = str(project / "phages.pairs"), str(project / "phages.fa")
    assert read_sequences(pairs)[0].sequence == read_sequences(fasta)[0].sequence
    assert open_input(pairs, None, None, None).digest == open_input(fasta, None, None, None).digest
    assert open_input(None, pairs, "phage:1-8", None).lengths == [8]
    (query,) = SequenceFile(
        pairs, DNATokenizer(), ClassTarget(), Columns(), None, None, LengthLimits()
    )
    assert query.name == "phage"


def test_its_process_is_right_by_enumeration(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    yaml = "configs/process/letters.yaml"
    exact = SimpleNamespace(**runpy.run_path(str(MIXTURES)))
    process = build(
        read_yaml(project / yaml) | {"_partial_": False},
        vocab=exact.VOCAB,
        noise=exact.LINEAR,
        trust=("my_models",),
    )
    nats = float(exact.DATA @ exact.bound(process, exact.predictions))
    assert nats == pytest.approx(exact.NATS, abs=1e-5)
    drawn = exact.sampled(process, exact.predictions, 200)
    assert (drawn - exact.DATA).abs().max() < 2e-3


@pytest.mark.parametrize(
    ("line", "user"),
    [
        ("evaluate part=valid protocol=mdlm output=n.json", "estimator mdlm"),
        ("sample num_samples=2 length=32 sampler=grouped output=n.fa", "sampler Grouped"),
        ("compress input=phages.fa output=n.dnd", "compress"),
    ],
)
def test_formulas_for_masks_refuse_its_model(done, run, line, user):
    command, *rest = line.split()
    status, errors = run(
        f"python -m dnadiff.{command} checkpoint=letters trust=[my_models] {' '.join(rest)}"
    )
    assert status == 1, errors
    last = errors.strip().splitlines()[-1]
    assert user in last and "needs an absorbing process" in last and "Letters" in last


@pytest.mark.parametrize("line", ["evaluate part=valid", "score input=phages.fa output=n.tsv"])
def test_its_likelihoods_are_those_of_its_bound(done, run, line):
    status, errors = run(f"python -m dnadiff.{line} checkpoint=letters trust=[my_models]")
    assert status == 0, errors


def test_a_checkpoint_with_foreign_classes_needs_trust(done, run):
    status, errors = run(
        "python -m dnadiff.evaluate checkpoint=run part=valid output=untrusted.json"
    )
    assert status == 1 and "trust=[my_models]" in errors and len(errors.strip().splitlines()) == 1


def test_a_wrong_key_is_one_line(run):
    status, errors = run(
        "python -m dnadiff.train --config-dir configs data=phages backbone=conv backbone.kernel=5 "
        "hydra.run.dir=other"
    )
    assert status == 1 and len(errors.strip().splitlines()) == 1
    assert "backbone.kernel" in errors and "kernel_size" in errors


def test_a_command_of_a_stranger_runs_and_refuses_wrong_keys(done, run, project):
    table = [line.split("\t") for line in (project / "skew.tsv").read_text().splitlines()]
    assert len(table) == 2 and all(-1 <= float(skew) <= 1 for _, skew in table)
    status, errors = run(
        "python -m dnadiff gc_skew plugins=[gc_skew] input=x.fa output=y.tsv num_bases=0"
    )
    assert status == 1 and "num_bases 0 must be an integer of at least 1" in errors
    status, errors = run("python -m dnadiff gc_skew input=x.fa output=y.tsv")
    assert status == 1 and "there is no command gc_skew" in errors
