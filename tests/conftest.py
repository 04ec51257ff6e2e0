"""Fixtures of the whole suite. The process that distributes tests to others reads this file too, so
it does not import PyTorch."""

import gc
import gzip
import importlib.util
import logging
import os
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

STARTER = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep Python's garbage collector from visiting the million objects of PyTorch and its modules,
    while they are made and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` without a CUDA device."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def neighbor(name: str) -> ModuleType:
    """The module of this folder with that name."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first test, make the copy of this process that `python` forks, if a test needs
    it."""
    if any("python" in item.fixturenames for item in session.items):
        session.config.stash[STARTER] = neighbor("processes").Starter()
        session.config.add_cleanup(session.config.stash[STARTER].close)


@pytest.fixture(scope="session")
def python(request, tmp_path_factory):
    """Starts a Python process that need not import PyTorch: python("-m", "dnadiff.train", ...) ->
    tests/processes.py's `Process`."""
    starter = request.config.stash[STARTER]
    starter.folder = tmp_path_factory.mktemp("printed")
    return starter.start


@pytest.fixture(scope="session")
def without():
    """Code that lets the rest of a `python("-c", ...)` import this package again, and none of the
    packages with these names."""
    return lambda *absent: (
        f"import sys\nfor name in [*sys.modules]:\n    root = name.partition('.')[0]\n"
        f"    if root == 'dnadiff': del sys.modules[name]\n    elif root in {absent}: "
        "sys.modules[name] = None\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
    )


@pytest.fixture(scope="session", autouse=True)
def cache_folder(request, tmp_path_factory) -> Path:
    """Packed genomes of the tests go into a folder of their own, also those of the processes that
    tests start.

    The C++ kernels, ten seconds of compilation, are kept in pytest's cache: all processes of
    pytest-xdist and later runs find them there. With `-p no:cacheprovider` there is no such cache,
    and each process compiles them.
    """
    folder, cache = tmp_path_factory.mktemp("cache"), getattr(request.config, "cache", None)
    if cache is not None:
        kernels = cache.mkdir("kernels")
        kernels.chmod(0o700)  # a folder that others can write is not trusted
        (folder / "kernels").symlink_to(kernels)
    os.environ["DNADIFF_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Files are written without waiting until they are on the disk, which takes milliseconds each;
    tests lose no power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def objects_are_frozen():
    """Training asks whether objects are frozen. They are (`pytest_collection`), and counting a
    million of them takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gc.get_freeze_count", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_for_absent_devices():
    """Every random seed is also kept for the first use of a GPU, with its stack, and every Trainer
    searches all packages for callbacks."""
    torch, trainer = (
        sys.modules.get(name)
        for name in ("torch", "lightning.pytorch.trainer.connectors.callback_connector")
    )
    with pytest.MonkeyPatch.context() as patch:
        if torch is not None and not torch.cuda.is_available():
            patch.setattr("torch.cuda.manual_seed_all", lambda seed: None)
            patch.setattr("torch.xpu.manual_seed_all", lambda seed: None)
        if trainer is not None:
            patch.setattr(trainer, "_load_external_callbacks", lambda group: [])
        yield


@pytest.fixture(scope="session", autouse=True)
def composing_once():
    """The files of a configuration are read and merged once for each set of choices; the processes
    of `python` do it every time."""
    with pytest.MonkeyPatch.context() as patch:
        neighbor("composition").remember(patch)
        yield


@pytest.fixture(autouse=True)
def log_of_a_library():
    """Each test begins with the log as it is before a command of this process configures it, so
    that `caplog` sees its messages."""
    log = logging.getLogger("dnadiff")
    log.handlers, log.propagate = [], True


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped elsewhere."""
    folder = Path(__file__).parents[1] / ".." / "shared" / "data"
    if not folder.is_dir():
        reason = "real data not found: ../shared/data beside the checkout"
        if os.environ.get("DNADIFF_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder.resolve()


@pytest.fixture(scope="session")
def ecoli() -> np.ndarray:
    """The bundled genome of *E. coli*, 0 to 3 for ACGT and 4 for others."""
    lines = gzip.decompress(
        (files("dnadiff.data") / "bundled" / "ecoli_K12_MG1655.fa.gz").read_bytes()
    ).split(b"\n")
    table = np.full(256, 4, np.uint8)
    table[list(b"ACGT")] = range(4)
    return table[np.frombuffer(b"".join(lines[1:]).upper(), np.uint8)]


@pytest.fixture(scope="session")
def worlds() -> ModuleType:
    return neighbor("worlds")


@pytest.fixture
def toy(worlds):
    return worlds.toy()


@pytest.fixture
def oracle(toy, make_oracle):
    return make_oracle(toy.sequences, toy.joint, toy.vocab)


@pytest.fixture
def make_oracle(worlds):
    """Oracle(sequences, joint, vocab)."""
    return worlds.Oracle


@pytest.fixture(scope="session")
def parity():
    """Reads a file of tensors computed by the published implementations (tests/parity)."""
    from safetensors.torch import load_file

    return lambda name: load_file(Path(__file__).parent / "parity" / f"{name}.safetensors")


@pytest.fixture
def tiny_fasta(tmp_path):
    """A FASTA file of 6,000 bases with a run of N, drawn from a period of seven so that a network
    can learn it."""
    path = tmp_path / "tiny.fa"
    body = ("ACGTTGA" * 900)[:6000]
    body = body[:500] + "N" * 20 + body[520:]
    path.write_text(">one\n" + "\n".join(body[i : i + 60] for i in range(0, len(body), 60)) + "\n")
    return path


@pytest.fixture
def cli(monkeypatch, tmp_path, capfd):
    """Runs a command line in `tmp_path` within this process: cli("train", "seed=2") -> (exit
    status, output, errors)."""
    import importlib

    monkeypatch.chdir(tmp_path)

    def run(name, *args):
        capfd.readouterr()
        try:
            importlib.import_module(f"dnadiff.{name}").main(args)
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        return status, *capfd.readouterr()

    return run


SMALL = [
    "data.length=64",
    "data.batch_size=4",
    "trainer.val_check_interval=4",
    "data.max_valid_windows=4",
    "trainer.accelerator=cpu",
]
SMALL_NETWORK = {
    "caduceus": ["backbone.d_model=16", "backbone.n_layers=1"],
    "dit": ["backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"],
    "mamba": ["backbone.d_model=16", "backbone.n_layers=1"],
    "transformer": ["backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"],
}


@pytest.fixture
def train_args(tiny_fasta):
    """Arguments of a training run of seconds: train_args(backbone, steps, *more)."""

    def args(backbone="caduceus", steps=4, *more, data=("data=fasta", f"data.path={tiny_fasta}")):
        return [
            *data,
            f"backbone={backbone}",
            *SMALL,
            *SMALL_NETWORK[backbone],
            f"trainer.max_steps={steps}",
            "hydra.run.dir=run",
            *more,
        ]

    return args


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The run folder of a small Caduceus trained for a few steps on a FASTA file."""
    from dnadiff.train import train

    folder = tmp_path_factory.mktemp("trained")
    path = folder / "tiny.fa"
    path.write_text(">one\n" + "ACGTTGA" * 860 + "\n")
    args = [
        "data=fasta",
        f"data.path={path}",
        *SMALL,
        *SMALL_NETWORK["caduceus"],
        "trainer.max_steps=30",
        "optimizer.lr=1e-2",
    ]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    return folder / "run"


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    """The folder that `export` writes of the trained run."""
    from dnadiff.export import export

    folder = tmp_path_factory.mktemp("exported")
    return export(checkpoint=str(trained), output=str(folder / "model")).paths[0]


@pytest.fixture(scope="session")
def peers() -> ModuleType:
    return neighbor("peers")
