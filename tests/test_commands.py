"""The command line: --help, a user's own folder, and one-line errors with status 1 that leave
nothing behind."""

import inspect
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning import Trainer

from dnadiff.info import info
from dnadiff.options.base import Options, ShardedOptions
from dnadiff.options.command import (
    command,
    command_names,
    compose,
    is_named,
    named,
    report,
    run_folder,
    with_keys,
    without_memory,
)
from dnadiff.options.compose import unknown_in
from dnadiff.progress import pasted
from dnadiff.store.objects import config_dir
from dnadiff.store.remote import check_names

WRONG_TRAINING = {
    "trainer.max_stepz=3": "unknown key trainer.max_stepz; did you mean trainer.max_steps?",
    "experiment=bundled data.path=x.fa backbone/size=256x8": (
        "backbone/size=256x8 and experiment=bundled disagree: backbone.d_model is 256 in the first"
    ),
    "noise.steps=3": "unknown key noise.steps",
    "backbone.pad_vocab_to=0": "backbone.pad_vocab_to 0 must be an integer of at least 1",
    "backbon=dit": "unknown key backbon; did you mean backbone?",
    "data=fasta data.path=plain.fa "
    "data.window=intervals": "unknown key data.window; did you mean data.windows?",
    "backbone=caduceu": (
        "backbone=caduceu does not exist; did you mean caduceus?; known: "
        "caduceus, "
        "caduceus_ps, dit, mamba"
    ),
    "data=fasta": "data.path is missing: give data.path=...",
    "data=fasta data.path=none.fa": "none.fa does not exist",
    "data=fasta data.path=empty.fa": "empty.fa is empty",
    "data=fasta data.path=plain.fa": "plain.fa is not FASTA",
    "data=fasta data.path=double.fa": "has the name of an earlier record",
    "data=fasta data.path=protein.fa": "is not a nucleotide",
    "data=fasta data.path=short.fa": "shorter than the window",
    "data=text": "data.path is missing",
    "trainer.max_steps=few": "trainer.max_steps 'few' must be an integer",
    "objective.weighting=elbo": "choose one of nelbo, cross_entropy",
    "backbone.scan=fastest": "unknown backbone.scan 'fastest'",
    "backbone/size=119x4": (
        "backbone/size=119x4 does not exist; did you mean 118x4?; known: "
        "118x4, "
        "256x16, 256x4, 256x8, 64x4"
    ),
    "backbone.bidirectional_strategy=concat": (
        "backbone.bidirectional_strategy 'concat' is not known; choose one of add, ew_multiply"
    ),
    "data=text data.path=book.txt data.length=8 "
    "backbone=caduceus_ps": "this vocabulary has no complement",
    "data.length=0": "data.length 0 must be an integer of at least 1",
    "init_from=nowhere": "checkpoint nowhere does not exist",
    "seed=abc": "seed 'abc' must be an integer",
    "backbone.d_model=0": "backbone.d_model 0 must be an integer of at least 1",
    "backbone.n_layers=[1,2]": "backbone.n_layers [1, 2] must be an integer",
    "backbone.n_layers=0": "backbone.n_layers 0 must be an integer of at least 1",
    "noise.eps=abc": "noise.eps 'abc' must be a number of at least 0 and below 1",
    "data=fasta "
    "data.path='~no-such-user/x.fa'": "~no-such-user/x.fa: this machine knows no such home folder",
    "data=fasta data.path=short.fa data/split=fraction "
    "data.split.test=5": "data.split.test 5 must be a list",
    "resume=no": "resume=no is neither true nor false; set resume=true or resume=false",
    "data=wikitext2 data.wrap=flase": "data.wrap=flase is neither true nor false",
    "+nonsense=3": "unknown key nonsense",
    "a=[b": "cannot read the command line",
    "trainer.max_tim=3": "unknown key trainer.max_tim; did you mean trainer.max_time?",
    "trainer.max_time=10": (
        "trainer.max_time 10 must be a string, a timedelta, a mapping or null; write "
        "days:hours:minutes:seconds, as in trainer.max_time=00:00:10:00"
    ),
    "experiment=bundled data.path=x.fa optimizer=adamw": (
        "optimizer=adamw and experiment=bundled disagree: optimizer.fused is null in the first and "
        "true in the second; leave optimizer out, or add optimizer.fused=null"
    ),
    "experiment=bundled objective=mlm": (
        "objective=mlm has no masking to choose; leave objective, or experiment, out"
    ),
    "trainer.precision=64": "trainer.precision 64 is not supported; set 32-true or bf16-mixed",
    "lr=1": "unknown key lr; did you mean optimizer.lr?",
    "--data fasta": "cannot read --data: write data=fasta",
    "--num-steps=3": "cannot read --num-steps=3: write num_steps=3",
    "fasta": "cannot read fasta: expected KEY=VALUE",
}
WRONG_SAMPLING = {
    "temperature=0.8": "unknown key temperature; did you mean sampler.temperature?",
    "steps=10": "unknown key steps; did you mean sampler.num_groups?",
    "num_steps=10": "unknown key num_steps; did you mean sampler.num_groups?",
    "sampler.steps=10": "unknown key sampler.steps; did you mean sampler.num_groups?",
    "sampler.temp=1": "unknown key sampler.temp; did you mean sampler.temperature?",
    "sampler=ancestral steps=10": "unknown key steps; did you mean sampler.num_steps?",
    "top_k=2": "unknown key top_k; did you mean sampler.top_k?",
    "top_p=0.9": "unknown key top_p; did you mean sampler.nucleus?",
    "--checkpoint ecoli": "cannot read --checkpoint: write checkpoint=ecoli",
}


@pytest.mark.parametrize("wrong", WRONG_SAMPLING)
def test_the_names_of_other_packages_point_to_the_keys_of_the_sampler(cli, wrong):
    status, out, err = cli("sample", "checkpoint=ecoli", *wrong.split())
    assert status == 1 and err.startswith(f"error: {WRONG_SAMPLING[wrong]}") and not out


CHOICES = [
    ("experiment=bundled", "backbone/size=256x8"),
    ("experiment=bundled", "objective=d3pm"),
    ("experiment=bundled", "trainer=default"),
    ("experiment=ecoli_bundled", "backbone/size=118x4"),
    ("experiment=ecoli_bundled", "data=hg38"),
    ("experiment=lm1b_mdlm", "backbone/size=mini"),
    ("experiment=lm1b_mdlm", "data=owt"),
    ("experiment=lm1b_block", "objective/masking=beta"),
]


@pytest.mark.parametrize(("experiment", "choice"), CHOICES)
def test_a_choice_beside_an_experiment_wins_or_is_refused(experiment, choice):
    """Also in quotes, as Python writes some; values win always."""
    group, _, name = choice.partition("=")
    quoted = [experiment.replace("=", "='") + "'", f'{group}="{name}"']
    for given in ([experiment, choice], quoted):
        try:
            found = compose("train", [*given, "data.path=x"], resolve=False)
        except ValueError as error:
            wins = shlex.split(str(error).partition("or add ")[2])
            assert str(error).startswith(f"{choice} and {experiment} disagree: ")
            found = compose("train", [*given, "data.path=x", *wins], resolve=False)
        for key in group.removesuffix("/size").split("/"):
            found = found[key]
        content = yaml.safe_load((config_dir() / group / f"{name}.yaml").read_text())
        assert all(
            found[k] == v
            for k, v in content.items()
            if k not in ("defaults", "path") and "$" not in f"{v}"
        )


def test_every_name_of_lightnings_trainer_is_a_key():
    for name in inspect.signature(Trainer).parameters:
        assert compose("train", [f"trainer.{name}=null"], resolve=False)["trainer"][name] is None


@pytest.fixture
def bad_files(tmp_path):
    for name, text in {
        "empty.fa": "",
        "plain.fa": "ACGT\n",
        "double.fa": ">a\nACGT\n>a\nACGT\n",
        "protein.fa": ">a\nACGTEF\n",
        "short.fa": ">a\nACGTACGT\n",
        "book.txt": "to be or not to be\n" * 50,
    }.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("wrong", WRONG_TRAINING)
def test_wrong_training_input_gets_one_line(cli, bad_files, tmp_path, wrong):
    before = {p.name for p in tmp_path.iterdir()}
    status, out, err = cli("train", *wrong.split())
    line = err.strip().splitlines()[-1]
    assert status == 1 and line.startswith("error: ") and WRONG_TRAINING[wrong] in line
    assert "Traceback" not in err and not out
    assert {p.name for p in tmp_path.iterdir()} == before  # no run folder


def test_an_empty_mapping_is_a_known_key():
    config = {"data": {"options": {}, "path": 1}, "logger": {}}
    assert (
        unknown_in("loger", config)
        == "unknown key loger; did you mean logger?; known: data, logger"
    )
    assert (
        unknown_in("data.option", config)
        == "unknown key data.option; did you mean data.options?; known in data: options, path"
    )


def test_an_existing_folder_is_not_removed(cli, tmp_path):
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    assert cli("train", "data=fasta", "data.path=none.fa", "hydra.run.dir=mine/empty")[0] == 1
    assert (tmp_path / "mine" / "empty").is_dir()


def absent_inputs(command):
    options = named(command).options
    required = [
        f"{name}=none.x" for name, field in options.model_fields.items() if field.is_required()
    ]
    return required or ["data=fasta", "data.path=none.x"]


@pytest.mark.parametrize("command", command_names())
def test_a_failing_command_removes_only_folders_that_it_made(cli, tmp_path, command):
    (tmp_path / "results" / "mine").mkdir(parents=True)
    for inside in ("results/mine/run1", "results/mine/a/b", "new/run"):
        status, _, err = cli(command, "no_such_key=1", f"hydra.run.dir={inside}")
        assert status == 1, err
        status, _, err = cli(command, *absent_inputs(command), f"hydra.run.dir={inside}")
        assert status == 1 and err.startswith("error: "), err
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["results", "results/mine"]


def test_a_run_folder_of_another_machine_is_refused_without_its_secrets(cli, tmp_path):
    (tmp_path / "a.fa").write_text(">one\nACGTACGTACGTACGT\n")
    for given, shown in {
        "s3://bucket/run": "s3://bucket/run",
        "'https://x/run?sig=SECRET'": "https://x/run?...",
    }.items():
        status, out, err = cli(
            "genome", "action=describe", "data=fasta", "data.path=a.fa", f"hydra.run.dir={given}"
        )
        assert f"error: hydra.run.dir {shown} is on another machine" in err and "SECRET" not in err
        assert status == 1 and not out and [p.name for p in tmp_path.iterdir()] == ["a.fa"]


def test_messages_name_complete_keys():
    values = {"noise": {"low": 3.0, "high": 1.0}, "a": {"step": 2}, "b": {"step": 2}, "length": 4}
    assert (
        with_keys("low 3.0 must be below high 1.0", values)
        == "noise.low 3.0 must be below noise.high 1.0"
    )
    # Not those of another value, of two keys or inside a word, and not twice.
    for message in ("low 2", "low 3.05", "step 2", "below 3.0", "length 4", "noise.low 3.0 is low"):
        assert with_keys(message, values) == message


def test_commands_of_one_second_have_different_run_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        run_folder(Path("runs/now"), False) as first,
        run_folder(Path("runs/now"), False) as second,
    ):
        assert (first, second) == (Path("runs/now"), Path("runs/now_2"))
        # A folder that is given is shared, and so is one of several processes of a launcher.
        with run_folder(Path("runs/now"), True) as third:
            assert third == first and first.is_dir()
    assert not (tmp_path / "runs" / "now").exists()  # left empty
    assert is_named(["hydra.run.dir=mine"]) and not is_named(["seed=1"])
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert is_named([])


NAMES = ["runs/x", "./x", "../x y", "my run=1", "a,b", "it's", 'say "x"', "ü/é x", "b\\", 'b\\"c']
NAMES += ["a\\b", "x$y", "a:b;c", "[a]", "{a: b}", "null", "True", "inf", "1e5", "2024_run", "~/x"]
NAMES += ["x#y", "(a)", "tab\tx", "-x", "*.fa", "100%", "&", "a ", "`x`", "!x", "@x", "a|b"]


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_that_is_printed_can_be_pasted(name):
    (argument,) = shlex.split(pasted("output", name))
    assert compose("sample", ["checkpoint=x", argument])["output"] == name
    assert (name != "my run=1") or pasted("a.b", name) == "'a.b=\"my run=1\"'"


class StoppedOptions(Options):
    """Ends by a signal."""

    number: int


class StoppedResumableOptions(StoppedOptions):
    """Ends by a signal."""

    resume: bool = False


class StoppedDividedOptions(ShardedOptions, StoppedResumableOptions):
    """Ends by a signal."""

    output: str | None = None


@pytest.mark.parametrize(
    ("options", "more", "line"),
    [
        (StoppedOptions, ["overwrite=true"], "start again: python -m dnadiff.stopped number={}"),
        (
            StoppedResumableOptions,
            ["resume=true", "hydra.run.dir='my run=1'"],
            "resume it: python -m dnadiff.stopped_resumable number={} "
            "'hydra.run.dir='\"'\"'my run=1'\"'\"'' resume=true",
        ),
        (
            StoppedDividedOptions,
            ["output=x.tsv"],
            "resume it: python -m dnadiff.stopped_divided number={} output=x.tsv resume=true",
        ),
        (
            StoppedDividedOptions,
            ["output=x.tsv", "shard=1/2"],
            "resume it: python -m dnadiff.stopped_divided number={} output=x.tsv shard=1/2",
        ),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_the_line_that_continues_it(
    number, options, more, line, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    stopped = command(options)(lambda o: os.kill(os.getpid(), o.number))
    # A shell lets its background jobs ignore Ctrl-C, and so do the tests that one of them runs.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}[number]
    inherited = signal.signal(number, usual)
    try:
        with pytest.raises(SystemExit) as end:
            stopped.main([f"number={int(number)}", *more])
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, inherited)
        del stopped.known[stopped.name]
    assert end.value.code == 128 + number
    assert capfd.readouterr().err.endswith(f"\nstopped; to {line.format(int(number))}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        "sample checkpoint=ecoi num_samples=1",
        "score checkpoint=ecoli input=none.fa",
        "embed checkpoint=ecoli input=none.fa",
        "variants checkpoint=ecoli vcf=none.vcf genome=none.fa",
        "predict checkpoint=none input=none.fa",
        "train data=fasta data.path=none.fa",
        "train data=fasta data.path=[none.fa]",
        "train data=fasta data.path={x:[none.fa]}",
        "sample checkpoint=ecoli template=none.fa",
        "train init_from=none",
        "compare a=ecoli b=none",
        "judge samples=none.fa checkpoint=ecoli",
        "evaluate checkpoint=none",
        "train data.blacklist=none.bed",
        "train data/split=regions data.split.bed=none.bed",
        "finetune checkpoint=ecoli task=csv task.path=none.csv",
        "finetune checkpoint=ecoli task=fasta task.path={train:{x:none.fa}}",
        "finetune checkpoint=ecoli task=genomic_benchmarks task.path=none",
        "finetune checkpoint=ecoli task=ecoli_coding task.regions=none.bed",
        "variants checkpoint=ecoli saturate=none.bed.gz genome=bundled:ecoli_K12_MG1655.fa.gz",
        "score checkpoint=ecoli regions=none.gtf genome=bundled:ecoli_K12_MG1655.fa.gz",
        "sample checkpoint=ecoli infill=[chr:1-9,none.GFF3] genome=bundled:x",
        "sample checkpoint=ecoli reward=motif reward.motif=null reward.matrix=none.jaspar",
        "sample checkpoint=ecoli reward=gc method=metropolis start=none.fa",
        "zero_shot checkpoint=ecoli sets=[ptb] paths={ptb:none.txt}",
    ],
)
def test_a_path_that_is_absent_is_named_before_pytorch_is_loaded(wrong, python, without, tmp_path):
    code = f"{without('torch')}from dnadiff.__main__ import main\nmain({wrong.split()})"
    process = python("-c", code, cwd=tmp_path)
    assert process.wait() == 1 and not process.output
    assert process.errors.startswith("error: ") and process.errors.count("\n") == 1
    assert "does not exist" in process.errors and not list(tmp_path.iterdir())
    assert ("did you mean ecoli?" in process.errors) == ("ecoi" in wrong)


def test_a_region_of_a_record_with_a_version_is_no_file():
    check_names({"input": ["NC_000913.3:1-90"]}, ())  # regions, whose genome is missing
    for region in ("NC_000913.3:1-90", "NC_000913.3"):
        check_names({"input": region, "genome": "bundled:ecoli_K12_MG1655.fa.gz"}, ())
        with pytest.raises(FileNotFoundError, match=r"NC_000913\.3.* does not exist"):
            check_names({"input": region}, ())
    check_names({"saturate": "NC_000913.3:1-90", "regions": ["chr1", ["a/b.c:1-2"]]}, ())


def test_the_tasks_of_a_suite_may_be_absent(tmp_path):
    check_names({"task": {"path": str(tmp_path), "tasks": {"one": {"path": "none"}}}}, ())


def test_many_commands_of_one_second_have_folders_of_their_own(tmp_path):
    """While others remove the empty folders, and those above them."""

    def start(_):
        with run_folder(tmp_path / "runs" / "x" / "now", False) as made:
            made.joinpath("mine").touch(exist_ok=False)
            made.joinpath("mine").unlink()
            return made.is_dir()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(start, range(400)))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), run_folder(tmp_path / "file", True):
        pass


def test_an_existing_run_is_not_overwritten(cli, train_args, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt").write_text("mine")
    status, _, err = cli("train", *train_args())
    assert (
        status == 1
        and "run already holds a run" in err
        and (tmp_path / "run" / "checkpoints" / "last.ckpt").read_text() == "mine"
    )


@pytest.fixture
def other_files(tmp_path, trained):
    (tmp_path / "old.fa").write_text("kept")
    (tmp_path / "cut.ckpt").write_bytes((trained / "checkpoints" / "last.ckpt").read_bytes()[:5000])
    (tmp_path / "book.txt").write_text("to be or not to be\n" * 500)


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        ("sample", ["checkpoint={run}", "output=old.fa"], "old.fa exists; set overwrite=true"),
        ("sample", ["checkpoint={run}", "output=x.txt"], "this model writes .fa"),
        (
            "sample",
            ["checkpoint={run}", "output=x.fa", "length=-1"],
            "length -1 must be an integer of at least 1",
        ),
        (
            "sample",
            ["checkpoint={run}", "output=x.fa", "length=40", "sampler.num_groups=64"],
            "num_groups 64 is larger than the length 40",
        ),
        (
            "sample",
            ["checkpoint={run}", "output=x.fa", "num_samples=few"],
            "num_samples 'few' must be an integer",
        ),
        ("sample", ["checkpoint={run}", "output=x.fa", "seed=x"], "seed 'x' must be an integer"),
        ("finetune", ["checkpoint={run}", "kmer=14"], "kmer 14 must be an integer from 1 to 8"),
        ("finetune", ["checkpoint={run}", "seeds=0"], "seeds 0 must be an integer of at least 1"),
        ("sample", ["checkpoint={run}", "sampler=grouped2"], "did you mean grouped?"),
        ("sample", ["checkpoint=cut.ckpt"], "is damaged or cut short"),
        ("sample", [], "checkpoint is missing: give checkpoint=..."),
        ("sample", ["checkpoint=latest"], "checkpoint=latest found no run"),
        ("evaluate", ["checkpoint={run}", "num_draws=3"], "num_draws 3 must be even"),
        (
            "evaluate",
            ["checkpoint={run}", "data.length=8"],
            "the data come from the checkpoint's run",
        ),
        (
            "evaluate",
            ["checkpoint={run}", "data=text", "data.path=book.txt"],
            "choose data or a model of the same vocabulary",
        ),
        ("evaluate", ["checkpoint={run}", "part=tset"], "part 'tset' is not known"),
        ("evaluate", ["checkpoint={run}", "accelerator=tpu9"], "accelerator 'tpu9' is not known"),
    ],
)
def test_wrong_use_of_a_checkpoint_gets_one_line(
    cli, other_files, tmp_path, trained, command, args, message
):
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli(command, *(a.format(run=trained) for a in args))
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before and (
        tmp_path / "old.fa"
    ).read_text() == "kept"


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "evaluate",
        "sample",
        "judge",
        "judge_text",
        "copies",
        "zero_shot",
        "finetune",
        "score",
        "compress",
        "decompress",
        "genome",
        "align",
        "embed",
        "variants",
        "merge",
    ],
)
def test_help_is_for_newcomers(cli, command):
    status, out, _ = cli(command, "--help")
    assert status == 0 and f"python -m dnadiff.{command}" in out and "_target_" not in out


def test_each_example_of_help_is_a_line_of_its_own():
    for name in command_names():
        examples = [each for each in named(name).__doc__.split("\n\n") if "python -m" in each]
        for line in examples[0].splitlines():
            assert "python -m" not in line or line.startswith("    python -m dnadiff."), line


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_may_be_cut_by_its_reader(unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    run = [sys.executable, "-m", "dnadiff.train", "--help"]
    process = subprocess.run(run, stdout=writing, stderr=subprocess.PIPE, env=env, check=False)
    os.close(writing)
    assert process.returncode == 0 and not process.stderr


def test_the_configuration_is_composed_once(cli, tmp_path, monkeypatch):
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    (tmp_path / "a.fa").write_text(">one\nACGTACGTACGTACGT\n")
    compose, calls = ConfigLoaderImpl._load_configuration_impl, []
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "_load_configuration_impl",
        lambda *args, **options: calls.append(1) or compose(*args, **options),
    )
    status, out, err = cli("genome", "action=describe", "data=fasta", "data.path=a.fa")
    assert status == 0 and out.count("one ") == 1 and len(calls) == 1, err


def test_every_command_is_installed_as_a_script():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    scripts = tomllib.loads(text)["project"]["scripts"]
    lines = {f"dnadiff-{n.replace('_', '-')}": f"dnadiff.{n}:main" for n in command_names()}
    missing = [f'{k} = "{v}"' for k, v in lines.items() if scripts.get(k) != v]
    assert scripts.keys() == lines.keys() and not missing, f"[project.scripts] needs {missing}"


def test_the_list_of_commands():
    run = [sys.executable, "-m", "dnadiff"]
    listed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert all(f"dnadiff.{name}" in listed for name in ("train", "evaluate", "sample", "finetune"))
    wrong = subprocess.run([*run, "trian"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "did you mean train?" in wrong.stderr


def test_a_traceback_is_shown_on_request(python, tmp_path):
    for value, shown in (("1", True), ("0", False)):
        process = python(
            "-m",
            "dnadiff.decompress",
            "input=none.dnd",
            cwd=tmp_path,
            env=os.environ | {"HYDRA_FULL_ERROR": value},
        )
        assert process.wait() != 0 and ("Traceback" in process.errors) == shown


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A user's own folder of YAML files, and their package on the Python path: a noise schedule and
    a split of the sizes of a network."""
    package = tmp_path / "python" / "my_package"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        "from dnadiff.diffusion.noise import LogLinear\n\nclass MyNoise(LogLinear):\n    pass\n"
    )
    for name, text in {
        "noise/mine.yaml": "_target_: my_package.MyNoise\neps: 1.0e-3\n",
        "noise/broken.yaml": "_target_: [my_package\n",
        "noise/absent.yaml": "_target_: my_package.YourNoise\n",
        "data/mine.yaml": "defaults: [split: fraction]\n_target_: "
        "dnadiff.data.genome.datamodule.GenomeDataModule\nlength: 64\npath: ???\n"
        "batch_size: 4\nseed: 1\nstranded: false\n",
        "data/empty.yaml": "",
        "data/keys.yaml": "path: x.fa\n",
        "data/inherits.yaml": "defaults: [keys]\n",
        "data/number.yaml": "3\n",
        "sampler/mine.yaml": "_target_: dnadiff.diffusion.sampler.grouped.Grouped\nnum_groups: 4\n",
    }.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "python")
    yield "mine"
    sys.modules.pop("my_package", None)


WRONG_WITH_OWN_FOLDER = {
    "noise=mine noise.epss=3": "unknown key noise.epss; did you mean noise.eps?",
    "noise=mien": "noise=mien does not exist; did you mean mine?; known: absent, broken, cosine",
    "noise=mine resume=no": "resume=no is neither true nor false",
    "noise=mine "
    "trainer.max_stepz=3": "unknown key trainer.max_stepz; did you mean trainer.max_steps?",
    "noise=mine +nonsense=3": "unknown key nonsense",
    "noise=mine +noise.nonsense=3": "my_package.MyNoise: ",
    "data=mine": "data.path is missing: give data.path=...",
    "data=mine data.path=mine data.length=no": "data.length 'no' must be an integer of at least 1",
    "data=mine data.path=mine data.stranded=no": "data.stranded=no is neither true nor false",
    "data=mine data.pth=x.fa": "unknown key data.pth; did you mean data.path?",
    "noise=absent": "'my_package.YourNoise' does not exist",
    "noise=broken": "broken.yaml",
    "data=empty": "mine/data/empty.yaml has no _target_ and no defaults with one; add the class",
    "data=keys": "mine/data/keys.yaml has no _target_ and no defaults with one; add the class",
    "data=inherits": "mine/data/inherits.yaml has no _target_ and no defaults with one",
    "data=number": "mine/data/number.yaml holds one value; expected keys with values",
}


@pytest.mark.parametrize("wrong", WRONG_WITH_OWN_FOLDER)
def test_wrong_input_with_a_folder_of_ones_own_gets_one_line(cli, own_folder, tmp_path, wrong):
    status, out, err = cli("train", "--config-dir", own_folder, *wrong.split())
    line = err.strip().splitlines()[-1]
    assert status == 1 and line.startswith("error: ") and WRONG_WITH_OWN_FOLDER[wrong] in line, err
    assert "Traceback" not in err and not out and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", [["--config-dir=mine"], ["-cd", "mine"]])
def test_a_folder_of_ones_own_may_be_given_in_every_form(cli, own_folder, option):
    assert "did you mean noise.eps?" in cli("train", *option, "noise=mine", "noise.epss=3")[2]


def test_a_folder_of_ones_own_that_is_absent_is_named(cli, tmp_path):
    status, _, err = cli("train", "--config-dir", "nowhere", "noise=mine")
    assert (
        status == 1
        and err.startswith("error: ")
        and "nowhere' not found" in err
        and err.count("\n") == 1
    )


def test_a_class_of_ones_own_trains_and_is_loaded_if_trusted(cli, own_folder, train_args, tmp_path):
    status, _, err = cli(
        "train",
        "--config-dir",
        own_folder,
        *train_args("caduceus", 2, "noise=mine", "noise.eps=5e-4"),
    )
    assert status == 0, err
    sample = ["sample", "checkpoint=run", "num_samples=1", "length=20"]
    status, _, err = cli(*sample, "output=a.fa")
    assert status == 1 and "trust=[my_package]" in err
    status, _, err = cli(
        *sample, "output=b.fa", "trust=[my_package]", "--config-dir", own_folder, "sampler=mine"
    )
    assert status == 0 and "calls=4" in (tmp_path / "b.fa").read_text(), err


def test_help_lists_the_choices_of_ones_own(cli, own_folder):
    _, out, _ = cli("train", "--config-dir", own_folder, "--help")
    assert "noise: absent, broken, cosine" in out and "data: ag_news" in out and "mine" in out


GROUPS = {
    **dict.fromkeys(("copies", "evaluate", "compare"), "data data/split tokenizer"),
    **dict.fromkeys(("score", "embed", "predict", "explain"), "launcher"),
    "judge": "data data/split launcher tokenizer",
    "judge_text": "sampler sampler/cache sampler/remasking",
    "train": "adapter backbone backbone/size callbacks columns data data/split experiment logger "
    "lr_scheduler noise objective objective/masking objective/order optimizer process tokenizer "
    "trainer",
    "distill": "callbacks data data/split experiment logger lr_scheduler objective "
    "objective/masking objective/order optimizer tokenizer trainer",
    "sample": "launcher method reward sampler sampler/cache sampler/remasking",
    "finetune": "adapter baselines head task",
    "genome": "data data/split launcher tokenizer",
    "align": "engine launcher",
    "variants": "launcher variant_method",
}


@pytest.mark.parametrize("command", command_names())
def test_help_lists_the_choices_that_the_command_reads(cli, command):
    status, out, _ = cli(command, "--help")
    listed = out.partition("Choices:\n")[2].partition("\n\n")[0].splitlines()
    assert (
        status == 0
        and [line.partition(":")[0] for line in listed] == GROUPS.get(command, "").split()
    )


def test_a_command_is_a_function_with_a_signature_and_a_result(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parameters = inspect.signature(info).parameters
    assert (
        parameters["checkpoint"].annotation == "str" or parameters["checkpoint"].annotation is str
    )
    found = info(checkpoint=trained, output=tmp_path / "info.json")
    assert found.network == "Caduceus" and found.paths == (tmp_path / "info.json",)
    with pytest.raises(ValueError, match="unknown key chekpoint; did you mean checkpoint"):
        info(chekpoint="x")
    with pytest.raises(ValueError, match="overwrite 3 must be true or false"):
        info(checkpoint=trained, overwrite=3)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            lambda: torch.zeros(10**13),
            "x needs 40000000000000 bytes at once; lower batch_size (now",
        ),
        (lambda: np.zeros(10**13), "x needs 72.8 TiB at once; lower batch_size (now 32)"),
        (lambda: bytearray(10**14), "x needs more than is free; lower batch_size (now 32)"),
    ],
)
def test_an_allocation_that_fails_says_how_much_and_which_key_lowers_it(error, message):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        error()
    text = without_memory("x", caught.value, {"batch_size": 32, "data": {"length": None}})
    assert text.startswith(f"out of memory: {message}") and text.endswith(" or lower data.length")
    assert report(MemoryError(text), []) == f"error: {text}"
    assert without_memory("x", ValueError("other"), {}) == ""
