import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dnadiff.networks.kernels import native
from dnadiff.networks.kernels.facade import (
    SCANS,
    available_scans,
    kernels,
    selective_scan,
)

FAST = (*native._FLAGS, "-O0")  # for tests that compile to see how, not what: a fifth of the time
SOURCES = Path(native.__file__).parent


def overwrite(path, content):
    """Another file of the same name. Changing a library in place that this process has mapped ends
    the process with a bus error."""
    os.remove(path)
    path.write_bytes(content)


def libraries(folder):
    return sorted(folder.glob("*.so"))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture(scope="module")
def built():
    """A library for this machine, that of the whole suite; tests damage copies of it."""
    return Path(native.load_library()._name)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """compiler(script) makes a shell script the compiler; it has the real one in $REAL."""

    def use(script):
        real = " ".join(native.find_compiler())
        path = tmp_path / "compiler"
        path.write_text(f'#!/bin/sh\nREAL="{real}"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return use


@pytest.fixture
def compiled(built, compiler, tmp_path):
    """A compiler that links by copying the library; returns the folders in which it did."""
    log = tmp_path / "linked"
    compiler(f"""
if [ "$1" = --version ]; then exec $REAL --version; fi
for to in "$@"; do :; done
case "$*" in *-shared*) cp "{built}" "$to"; dirname "$to" >> "{log}";; esac""")
    return lambda: [Path(line) for line in log.read_text().split()] if log.exists() else []


@pytest.fixture
def filled_cache(empty_cache, compiled, tmp_path):
    """A cache that contains a library for this machine and the compiler of `compiled`."""
    native.load_library()
    (tmp_path / "linked").unlink()
    return empty_cache


@pytest.fixture
def cached(filled_cache):
    (path,) = libraries(filled_cache)
    return path


@pytest.fixture
def without_compiler(monkeypatch):
    def remove():
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)

    return remove


def test_the_library_names_its_compiler_and_flags():
    name = SCANS["cpu"].compiler()
    assert re.fullmatch(r"(g\+\+|.*[Cc]lang) \d.*, flags [0-9a-f]{16}", name)
    assert SCANS["portable"].compiler() == "none"


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_library(empty_cache):
    script = f"""
from dnadiff.networks.kernels import native
native.load_library(flags={FAST!r}).dnadiff_vectors
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)
    ]
    assert [p.wait(timeout=600) for p in processes] == [0, 0]
    assert native.load_library(flags=FAST).dnadiff_vectors
    # no incomplete file is left
    assert list(empty_cache.iterdir()) == libraries(empty_cache) != []
    # Most compilers write the same bytes every time, and so the same name; some include the time.
    assert len(libraries(empty_cache)) == 1 or sys.platform == "darwin"


@pytest.mark.parametrize(
    "damaged",
    [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-9] + b"different"],
    ids=["cut short", "empty", "changed"],
)
def test_a_damaged_library_is_detected_and_replaced(
    damaged, built, cached, compiled, without_compiler
):
    overwrite(cached, damaged(built.read_bytes()))
    assert native.load_library().dnadiff_vectors and len(compiled()) == 1
    assert [p.read_bytes() == built.read_bytes() for p in libraries(cached.parent)] == [True]
    overwrite(cached, damaged(built.read_bytes()))
    without_compiler()
    with pytest.raises(native.CannotCompile, match=r"no C\+\+ compiler"):
        native.load_library()


def test_an_intact_library_is_not_compiled_again(cached, compiled):
    assert native.load_library()._name == str(cached) and not compiled()


def test_another_compiler_source_or_flag_gives_another_library(cached, compiled, tmp_path):
    native.load_library(flags=(*native._FLAGS, "-g"))
    sources = shutil.copytree(SOURCES, tmp_path / "sources")
    (sources / "simd.h").open("a").write("// changed\n")
    native.load_library(sources)
    with (tmp_path / "compiler").open("a") as script:
        script.write("if [ $1 = --version ]; then echo another version; fi\n")
    text = (tmp_path / "compiler").read_text().replace("exec $REAL --version", "echo another")
    (tmp_path / "compiler").write_text(text)
    native.load_library()
    assert len(compiled()) == 3 and len(libraries(cached.parent)) == 4
    keys = {native._key(SOURCES, FAST, processor) for processor in ("one", "another")}
    assert len(keys) == 2


def test_without_a_compiler_a_cached_library_of_these_sources_is_loaded(
    cached, without_compiler, tmp_path
):
    without_compiler()
    assert native.load_library()._name == str(cached)
    (tmp_path / "sources").mkdir()
    with pytest.raises(native.CannotCompile, match=r"no C\+\+ compiler"):
        native.load_library(tmp_path / "sources")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_trusted(mode, cached, compiled, caplog):
    cached.parent.chmod(mode)
    assert native.load_library()._name != str(cached)
    (work,) = compiled()
    assert work.parent != cached.parent and not work.exists()
    assert libraries(cached.parent) == [cached]
    (message,) = caplog.messages
    assert "for this process alone" in message and str(cached.parent) in message
    assert "chmod go-w" in message


def test_a_library_that_others_can_write_is_never_loaded(cached, compiled, tmp_path):
    source = tmp_path / "planted.cpp"
    source.write_text(
        f"#include <cstdio>\n__attribute__((constructor)) void run() {{ "
        f'fclose(fopen("{tmp_path}/ran", "w")); }}\n'
    )
    made, real = tmp_path / "planted.so", shutil.which("c++") or "g++"
    subprocess.run([real, "-shared", "-fPIC", source, "-o", made], check=True)
    name = cached.name.rsplit("-", 1)[0]
    planted = cached.parent / f"{name}-{native._digest(made)}.so"
    shutil.copy(made, planted)
    cached.unlink()
    planted.chmod(0o777)
    assert native.load_library().dnadiff_vectors and len(compiled()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_files_of_another_user_are_not_trusted(what, cached, compiled):
    os.chown(cached.parent if what == "folder" else cached, 4321, -1)
    native.load_library()
    assert len(compiled()) == 1


def test_files_of_root_are_trusted_by_others():
    assert native._writable_by_others(Path("/bin/sh").resolve()) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_kernels_work_from_a_read_only_folder(cached, compiled):
    cached.parent.chmod(0o500)
    try:
        assert native.load_library()._name == str(cached) and not compiled()
        cached.parent.chmod(0o700)
        overwrite(cached, b"damaged")
        cached.parent.chmod(0o500)
        assert native.load_library().dnadiff_vectors and len(compiled()) == 1
    finally:
        cached.parent.chmod(0o700)


def test_a_file_that_another_process_removes_meanwhile_is_ignored(cached, compiled):
    name = cached.name.rsplit("-", 1)[0]
    (cached.parent / f"{name}-0000.so").symlink_to("gone.so")
    assert native.load_library()._name == str(cached) and not compiled()


def test_the_folder_of_a_killed_compilation_is_removed_later(empty_cache, compiled):
    for name, age in (("compiling-old", 2 * native._ABANDONED), ("compiling-new", 5)):
        (empty_cache / name).mkdir(parents=True, mode=0o700)
        (empty_cache / name / "kernels.so").write_bytes(b"half")
        os.utime(empty_cache / name, (time.time() - age,) * 2)
    empty_cache.chmod(0o700)
    native.load_library()
    # it may still be running
    assert [p.name for p in empty_cache.glob("compiling-*")] == ["compiling-new"]


def test_without_a_home_the_kernels_are_compiled_for_one_process(compiled, monkeypatch, caplog):
    for name in ("DNADIFF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    assert native.load_library().dnadiff_vectors and not compiled()[0].exists()
    assert "compiled for this process alone" in caplog.text


def test_sources_are_compiled_in_parallel_and_a_failing_one_is_named(
    built, empty_cache, compiler, tmp_path
):
    count = len(list(SOURCES.glob("*.cpp")))
    # waits until all are compiled at the same time
    compiler(f"""
for to in "$@"; do :; done
case "$*" in
  *--version*) echo 1;;
  *-shared*) test $# -gt {count} && cp "{built}" "$to";;
  *) touch "$to"; while [ $(ls $(dirname "$to") | wc -l) -lt {count} ]; do sleep 0.05; done;;
esac""")
    assert native.load_library().dnadiff_vectors
    (tmp_path / "broken.cpp").write_text("#include <absent.h>\n")
    os.environ.pop("CXX")
    with pytest.raises(native.CannotCompile, match=r"absent\.h"):
        native.load_library(tmp_path)


def test_without_a_compiler_auto_is_portable_and_a_requested_cpu_fails(
    clear_caches, empty_cache, without_compiler, monkeypatch, scan_inputs, caplog
):
    without_compiler()
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 4, 3, 2))
    assert "no C++ compiler" in caplog.messages[0]
    assert caplog.messages[1] == "selective scan: portable (PyTorch)"
    assert "no C++ compiler" in available_scans()["cpu"]
    with pytest.raises(
        RuntimeError, match=r"scan 'cpu' was asked for and cannot run: no C\+\+ compiler"
    ):
        selective_scan(*scan_inputs(1, 4, 3, 2), scan="cpu")


def test_a_compiler_that_does_not_exist_or_fails_is_named(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(native.CannotCompile, match="no-such-compiler"):
        native.load_library()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(native.CannotCompile, match="false cannot compile the kernels"):
        native.load_library()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the flags name x86 instructions"
)
@pytest.mark.parametrize(
    ("command", "vectors"),
    [
        pytest.param('$REAL -mno-avx512f "$@" -O0', True, marks=pytest.mark.slow),
        ('$REAL -mno-avx "$@" -O0', False),
        pytest.param(
            'case "$*" in *-fopenmp*) exit 1;; esac; $REAL "$@" -O0', True, marks=pytest.mark.slow
        ),
        pytest.param('$REAL -mno-avx512f "$@"', True, marks=pytest.mark.slow),
    ],
    ids=["without AVX-512", "without AVX", "without OpenMP", "without AVX-512, optimized"],
)
def test_other_compilers_and_processors_compute_the_same(
    command, vectors, clear_caches, empty_cache, compiler, scan_inputs, values_and_grads, close
):
    compiler(command)
    assert available_scans()["cpu"] == ""
    assert ("AVX" in SCANS["cpu"].description()) == vectors
    for L, E, N in ((70, 21, 7), (33, 40, 16)):
        expected = values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="reference")
        close(values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="cpu"), expected, 1e-5)

        def linear(x, weight, scan):
            return kernels(scan, x).linear(x, weight)

        def narrow(x, weight, scan):
            return kernels(scan, x).narrow_linear(x, weight)

        for product in (linear, narrow):
            ours, theirs = (
                values_and_grads(
                    product,
                    [
                        torch.ones(2, L, N).cumsum(1).sin().requires_grad_(),
                        torch.ones(E, N).cumsum(0).cos().requires_grad_(),
                    ],
                    scan=scan,
                )
                for scan in ("cpu", "reference")
            )
            close(ours, theirs, 1e-5)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DNADIFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / "dnadiff" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / ".cache" / "dnadiff" / "kernels"
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "mine"))
    assert native.cache_folder() == tmp_path / "mine" / "kernels"
