import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from dnadiff.networks.kernels import build
from dnadiff.networks.kernels.facade import linear, narrow_linear, selective_scan
from dnadiff.networks.kernels.select import SCANS, available_scans


def overwrite(path, content):
    """Another file of the same name. Changing a library in place that this process has mapped ends
    the process with a bus error."""
    os.remove(path)  # not Path.unlink, which a test replaces
    path.write_bytes(content)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def filled_cache(built, empty_cache):
    """A cache that contains a library for this machine."""
    empty_cache.mkdir(parents=True, mode=0o700)
    shutil.copy(built, empty_cache)
    return empty_cache


def test_the_library_names_its_compiler_and_flags():
    name = SCANS["cpu"].compiler()
    assert re.fullmatch(r"(g\+\+|.*[Cc]lang) \d.*, flags [0-9a-f]{16}", name)
    assert SCANS["portable"].compiler() == "none"


@pytest.fixture
def compiled(built, monkeypatch):
    """Copies the library instead of compiling; the list has one entry per call."""
    calls = []

    def copy(compiler, work):
        calls.append(work)
        return Path(shutil.copy(built, work))

    monkeypatch.setattr(build, "_compile", copy)
    return calls


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


def libraries(folder):
    return sorted(folder.glob("*.so"))


FAST = (*build._FLAGS, "-O0")  # for tests that compile to see how, not what: a fifth of the time
UNOPTIMIZED = tuple((*extra, "-O0") for extra in build._EXTRAS)


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_library(empty_cache, monkeypatch):
    # The file alone, without the package around it: no torch to import.
    script = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build._FLAGS = {FAST!r}
build.load_library().dnadiff_vectors
"""
    monkeypatch.setattr(build, "_FLAGS", FAST)
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=os.environ.copy()) for _ in range(2)
    ]
    assert [p.wait(timeout=600) for p in processes] == [0, 0]
    assert build.load_library().dnadiff_vectors
    assert list(empty_cache.iterdir()) == libraries(empty_cache) and libraries(
        empty_cache
    )  # no incomplete file is left
    # Most compilers write the same bytes every time, and so the same name; some include the time.
    assert len(libraries(empty_cache)) == 1 or sys.platform == "darwin"


@pytest.fixture(scope="module")
def built():
    """A library for this machine, that of the whole suite; tests damage copies of it."""
    return Path(build.load_library()._name)


DAMAGES = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "changed": lambda data: data[:-9] + b"different",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_detected_and_replaced(damage, built, filled_cache, compiled):
    overwrite(filled_cache / built.name, DAMAGES[damage](built.read_bytes()))
    assert build.load_library().dnadiff_vectors and len(compiled) == 1
    assert [p.read_bytes() == built.read_bytes() for p in libraries(filled_cache)] == [True]


def test_an_intact_library_is_not_compiled_again(built, filled_cache, compiled):
    assert build.load_library()._name == str(filled_cache / built.name)
    assert not compiled


def test_another_compiler_processor_source_or_flag_gives_another_library(
    built, filled_cache, compiled, monkeypatch, tmp_path
):
    (tmp_path / "c++").write_text("#!/bin/sh\necho another version\n")
    (tmp_path / "c++").chmod(0o755)
    changes = [
        lambda patch: patch.setenv("CXX", str(tmp_path / "c++")),
        lambda patch: patch.setattr(build, "_processor", lambda: "another"),
        lambda patch: patch.setattr(build, "_SOURCES", build._SOURCES[:1]),
        lambda patch: patch.setattr(build, "_FLAGS", (*build._FLAGS, "-g")),
    ]
    for count, change in enumerate(changes, 1):
        with monkeypatch.context() as patch:
            change(patch)
            build.load_library()
        assert len(compiled) == count and len(libraries(filled_cache)) == count + 1
    assert build.load_library()._name == str(filled_cache / built.name)


def test_without_a_compiler_a_cached_library_of_this_processor_is_loaded(
    built, filled_cache, without_compiler, monkeypatch
):
    assert build.load_library()._name == str(filled_cache / built.name)
    monkeypatch.setattr(build, "_processor", lambda: "another")
    with pytest.raises(build.CannotCompile, match=r"no C\+\+ compiler"):
        build.load_library()


def test_without_a_compiler_a_damaged_library_is_still_refused(
    built, filled_cache, without_compiler
):
    overwrite(filled_cache / built.name, built.read_bytes()[:-9] + b"different")
    with pytest.raises(build.CannotCompile, match=r"no C\+\+ compiler"):
        build.load_library()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_trusted(mode, built, filled_cache, compiled, caplog):
    filled_cache.chmod(mode)
    before = libraries(filled_cache)
    assert build.load_library()._name != str(filled_cache / built.name)
    assert len(compiled) == 1 and compiled[0].parent != filled_cache and not compiled[0].exists()
    assert libraries(filled_cache) == before
    assert [
        m
        for m in caplog.messages
        if "for this process alone" in m and str(filled_cache) in m and "chmod go-w" in m
    ]


def test_a_library_that_others_can_write_is_never_loaded(filled_cache, built, compiled, tmp_path):
    source = tmp_path / "planted.cpp"
    source.write_text(
        f"#include <cstdio>\n__attribute__((constructor)) void run() {{ "
        f'fclose(fopen("{tmp_path}/ran", "w")); }}\n'
    )
    subprocess.run(
        [
            *build.find_compiler(),
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            str(tmp_path / "planted.so"),
        ],
        check=True,
    )
    name = built.name.rsplit("-", 1)[0]
    planted = filled_cache / f"{name}-{build._digest(tmp_path / 'planted.so')}.so"
    shutil.copy(tmp_path / "planted.so", planted)
    (filled_cache / built.name).unlink()
    planted.chmod(0o777)
    assert build.load_library().dnadiff_vectors and len(compiled) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_files_of_another_user_are_not_trusted(what, built, filled_cache, compiled, monkeypatch):
    foreign, stat = filled_cache if what == "folder" else filled_cache / built.name, Path.stat

    def owned(path, **options):
        status = list(stat(path, **options))
        status[4] += path == foreign  # the user
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", owned)
    build.load_library()
    assert len(compiled) == 1


def test_kernels_that_root_compiled_are_used_by_others(built, filled_cache, compiled, monkeypatch):
    stat = Path.stat

    def owned(path, **options):
        status = list(stat(path, **options))
        status[4] = 0  # the user
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert build.load_library()._name == str(filled_cache / built.name) and not compiled
    filled_cache.chmod(0o777)  # also by others
    assert build.load_library()._name != str(filled_cache / built.name) and len(compiled) == 1


def test_the_kernels_work_from_a_folder_that_cannot_be_written(
    built, filled_cache, compiled, monkeypatch
):
    def refuse(*_, **__):
        raise PermissionError("read-only")

    for name in (
        "unlink",
        "rename",
        "mkdir",
    ):  # root may write everywhere, so permissions alone do not test this
        monkeypatch.setattr(Path, name, refuse)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        assert build.load_library()._name == str(filled_cache / built.name) and not compiled
        overwrite(filled_cache / built.name, b"damaged")
        assert build.load_library().dnadiff_vectors and len(compiled) == 1
    assert build.load_library().dnadiff_vectors and len(compiled) == 2  # no folder at all
    assert libraries(filled_cache) == [filled_cache / built.name] and [
        p.exists() for p in compiled
    ] == [False, False]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_kernels_work_from_a_read_only_folder(filled_cache, built, compiled):
    overwrite(filled_cache / built.name, b"damaged")
    filled_cache.chmod(0o500)
    try:
        assert build.load_library().dnadiff_vectors and len(compiled) == 1
    finally:
        filled_cache.chmod(0o700)


def test_a_file_that_another_process_removes_meanwhile_is_ignored(
    filled_cache, compiled, monkeypatch
):
    glob = Path.glob
    gone = filled_cache / "kernels-gone-gone-gone.so"
    monkeypatch.setattr(
        Path,
        "glob",
        lambda path, pattern: [gone] if pattern.endswith(".so") else glob(path, pattern),
    )
    assert build.load_library().dnadiff_vectors and len(compiled) == 1


def test_the_folder_of_a_killed_compilation_is_removed_later(empty_cache, compiled):
    for name, age in (("compiling-old", 2 * build._ABANDONED), ("compiling-new", 5)):
        (empty_cache / name).mkdir(parents=True, mode=0o700)
        (empty_cache / name / "kernels.so").write_bytes(b"half")
        os.utime(empty_cache / name, (time.time() - age,) * 2)
    empty_cache.chmod(0o700)
    build.load_library()
    assert sorted(p.name for p in empty_cache.glob("compiling-*")) == [
        "compiling-new"
    ]  # it may still be running


def test_without_a_home_the_kernels_are_compiled_for_one_process(compiled, monkeypatch, caplog):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DNADIFF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert build.load_library().dnadiff_vectors and not compiled[0].exists()
    assert "Could not determine home directory" in caplog.text


def test_sources_are_compiled_in_parallel_and_a_failing_one_is_named(
    built, empty_cache, monkeypatch
):
    run, together, objects = build._run, threading.Barrier(len(build._SOURCES), timeout=600), []

    def compile_or_link(command):
        if "--version" in command:
            return run(command)
        if "-c" in command:
            together.wait()  # until all are compiled at the same time
            objects.append(command[-1])
        else:
            assert set(objects) <= set(command)
            shutil.copy(built, command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(build, "_run", compile_or_link)
    assert build.load_library().dnadiff_vectors and len(objects) == len(build._SOURCES)
    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build, "_SOURCES", ("absent.cpp",))
    with pytest.raises(build.CannotCompile, match=r"absent\.cpp"):
        build._compile(build.find_compiler(), empty_cache)


def test_without_a_compiler_auto_is_portable_and_a_requested_cpu_fails(
    clear_caches, empty_cache, without_compiler, monkeypatch, scan_inputs, caplog
):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 4, 3, 2))
    assert (
        "no C++ compiler" in caplog.messages[0]
        and caplog.messages[1] == "selective scan: portable (PyTorch)"
    )
    assert "no C++ compiler" in available_scans()["cpu"]
    with pytest.raises(
        RuntimeError, match=r"scan 'cpu' was asked for and cannot run: no C\+\+ compiler"
    ):
        selective_scan(*scan_inputs(1, 4, 3, 2), scan="cpu")


def test_a_compiler_that_does_not_exist_or_fails_is_named(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(build.CannotCompile, match="no-such-compiler"):
        build.load_library()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.CannotCompile, match="false cannot compile the kernels"):
        build.load_library()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the flags name x86 instructions"
)
@pytest.mark.parametrize(
    ("command", "extras"),
    [
        pytest.param("c++ -mno-avx512f", UNOPTIMIZED, marks=pytest.mark.slow),
        ("c++ -mno-avx", UNOPTIMIZED),
        pytest.param("c++", (("-march=native", "-pthread", "-O0"),), marks=pytest.mark.slow),
        pytest.param("c++ -mno-avx512f", build._EXTRAS, marks=pytest.mark.slow),
    ],
    ids=["without AVX-512", "without AVX", "without OpenMP", "without AVX-512, optimized"],
)
def test_other_compilers_and_processors_compute_the_same(
    command, extras, clear_caches, empty_cache, monkeypatch, scan_inputs, values_and_grads, close
):
    monkeypatch.setenv("CXX", command)
    monkeypatch.setattr(build, "_EXTRAS", extras)
    assert available_scans()["cpu"] == ""
    assert ("AVX" in SCANS["cpu"].description()) == (command != "c++ -mno-avx")
    for L, E, N in ((70, 21, 7), (33, 40, 16)):
        expected = values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="reference")
        close(values_and_grads(selective_scan, scan_inputs(2, L, E, N), scan="cpu"), expected, 1e-5)
        x, weight = torch.ones(2, L, N).cumsum(1).sin(), torch.ones(E, N).cumsum(0).cos()
        for product in (linear, narrow_linear):
            expected = values_and_grads(
                product,
                [x.clone().requires_grad_(), weight.clone().requires_grad_()],
                scan="reference",
            )
            close(
                values_and_grads(
                    product,
                    [x.clone().requires_grad_(), weight.clone().requires_grad_()],
                    scan="cpu",
                ),
                expected,
                1e-5,
            )


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("DNADIFF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "dnadiff" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / ".cache" / "dnadiff" / "kernels"
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path / "mine"))
    assert build.cache_folder() == tmp_path / "mine" / "kernels"
