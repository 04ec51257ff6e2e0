import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dnadiff.kernels import available_scans, build, cpu, linear, narrow_linear, selective_scan


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def libraries(folder):
    return sorted(folder.glob("*.so"))


def test_processes_that_start_at_once_share_one_library(empty_cache):
    # The file alone, without the package around it: no torch to import.
    script = f"import runpy; runpy.run_path({build.__file__!r})['load_library']().dnadiff_vectors"
    processes = [subprocess.Popen([sys.executable, "-c", script], env=os.environ.copy()) for _ in range(2)]
    assert [p.wait(timeout=100) for p in processes] == [0, 0]
    assert build.load_library().dnadiff_vectors
    for path in empty_cache.iterdir():
        assert path in libraries(empty_cache)  # nothing half-made is left behind


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A library of this machine's, compiled once; tests damage copies of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DNADIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Path(build.load_library()._name)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-9] + b"different"],
    ids=["cut short", "empty", "changed"],
)
def test_a_damaged_library_is_noticed_and_replaced(damage, built, empty_cache, monkeypatch):
    empty_cache.mkdir()
    (empty_cache / built.name).write_bytes(damage(built.read_bytes()))
    monkeypatch.setattr(build, "_compile", lambda compiler, folder, key: built)
    assert build.load_library()._name == str(built)
    assert libraries(empty_cache) == []


def test_a_sound_library_is_not_compiled_again(built, empty_cache, monkeypatch):
    empty_cache.mkdir()
    (empty_cache / built.name).write_bytes(built.read_bytes())
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.load_library()._name == str(empty_cache / built.name)


def test_without_a_compiler_auto_is_portable_and_a_forced_cpu_fails(fresh_choice, empty_cache, monkeypatch, scan_inputs, caplog):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 4, 3, 2))
    assert "no C++ compiler" in caplog.messages[0] and caplog.messages[1] == "selective scan: portable (PyTorch)"
    assert "no C++ compiler" in available_scans()["cpu"]
    with pytest.raises(RuntimeError, match=r"scan 'cpu' was asked for and cannot run: no C\+\+ compiler"):
        selective_scan(*scan_inputs(1, 4, 3, 2), scan="cpu")


def test_a_compiler_that_does_not_exist_or_fails_is_named(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(build.CannotCompile, match="no-such-compiler"):
        build.load_library()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.CannotCompile, match="false cannot compile the kernels"):
        build.load_library()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the flags name x86 instructions")
@pytest.mark.parametrize(
    ("command", "extras"),
    [("c++ -mno-avx512f", build._EXTRAS), ("c++ -mno-avx", build._EXTRAS), ("c++", (("-march=native", "-pthread"),))],
    ids=["without AVX-512", "without AVX", "without OpenMP"],
)
def test_lesser_compilers_and_processors_compute_the_same(
    command, extras, fresh_choice, empty_cache, monkeypatch, scan_inputs, values_and_grads, close
):
    monkeypatch.setenv("CXX", command)
    monkeypatch.setattr(build, "_EXTRAS", extras)
    assert available_scans()["cpu"] == ""
    assert ("AVX" in cpu.detail()) == (command != "c++ -mno-avx")
    for L, E, N in ((70, 21, 7), (33, 40, 16)):
        expected = values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="reference")
        close(values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="cpu"), expected, 1e-5)
        x, weight = torch.ones(2, L, N).cumsum(1).sin(), torch.ones(E, N).cumsum(0).cos()
        for product in (linear, narrow_linear):
            expected = values_and_grads(product, [x.clone().requires_grad_(), weight.clone().requires_grad_()], scan="reference")
            close(values_and_grads(product, [x.clone().requires_grad_(), weight.clone().requires_grad_()], scan="cpu"), expected, 1e-5)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DNADIFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "dnadiff"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / ".cache" / "dnadiff"
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "mine"))
    assert build.cache_folder() == tmp_path / "mine"
