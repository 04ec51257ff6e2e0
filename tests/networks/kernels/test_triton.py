"""The Triton back end without a GPU: results from Triton's interpreter, in a separate process, and
kernels compiled ahead of time.

With a CUDA device the same cases run there (`-m gpu`).
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dnadiff.networks.kernels import facade, triton_scan
from dnadiff.networks.kernels.facade import SCANS, available_scans, selective_scan
from dnadiff.networks.kernels.portable import PortableBackend

HERE = Path(__file__).parent
try:
    TRITON = tuple(int(part) for part in version("triton").split(".")[:2])
except PackageNotFoundError:
    TRITON = (0, 0)
needs_triton = pytest.mark.skipif(
    TRITON < triton_scan.MIN_TRITON,
    reason=f"needs Triton {'.'.join(map(str, triton_scan.MIN_TRITON))} or later (Linux)",
)


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = script(HERE / "triton_cases.py")
# For networks in half precision: the error relative to that of the portable scan, which also
# rounds. Others: 1e-5, gradients 1e-4.
HALF = {name: 1e-2 for name in (*cases.SCANS, *cases.STATES, *cases.LOSSES) if "bfloat16" in name}
HALF |= {"float16": 2e-3, "network under autocast": 1.5, "network of bfloat16": 1.5}
QUICK = [
    "gated in bfloat16 in chunks",
    "blocks in chunks",
    "reverse convolution of short blocks",
    "norm after addition",
    "loss",
]  # every kind of kernel
MORE = [
    name
    for name in (
        *cases.SCANS,
        *cases.STATES,
        *cases.CONVS,
        *cases.ROWWISE,
        *cases.LONG,
        *cases.LOSSES,
        *cases.NETWORKS,
        *cases.OTHERS,
    )
    if name not in QUICK
]


@cache
def interpreted(*names: str) -> dict[str, list[float]]:
    environment = {key: value for key, value in os.environ.items() if key != "DNADIFF_SCAN"} | {
        "TRITON_INTERPRET": "1"
    }
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, HERE / "triton_cases.py", *names],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def small(name: str, errors: list[float]) -> None:
    assert errors[0] < HALF.get(name, 1e-5) and max(errors) < HALF.get(name, 1e-4), errors


@needs_triton
@pytest.mark.parametrize("name", QUICK)
def test_interpreted_kernels_match_the_float64_reference(name):
    small(name, interpreted(*QUICK)[name])


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_interpreted_kernels_match_with_the_float64_reference(name):
    small(name, interpreted(name)[name])


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize("name", [*QUICK, *MORE])
def test_kernels_on_a_gpu_match_the_float64_reference(name, monkeypatch):
    for constant in ("_WARPS", "_KEPT"):  # set by the cases, restored afterwards
        monkeypatch.setattr(triton_scan, constant, getattr(triton_scan, constant))
    monkeypatch.setattr(facade, "_failure", facade._failure)  # replaced by the cases of networks
    small(name, cases.run(name, "cuda"))


@pytest.mark.gpu
def test_triton_is_chosen_on_a_gpu(monkeypatch):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert (
        available_scans()["triton"] == ""
        and facade.choose("auto", "cuda", torch.float32) == "triton"
    )


@pytest.fixture(scope="module")
def registers() -> ModuleType:
    return script(HERE.parents[2] / "scripts" / "bench" / "registers.py")


@needs_triton
@pytest.mark.slow
def test_every_kernel_builds_for_hopper(registers):
    launches = [
        launch
        for ways in ("both", "blocks")
        for launch in registers.layer(16, 2, torch.float32, True, ways)
    ]  # small tiles compile quickly
    launches += registers.loss(torch.float32)
    assert {launch.kernel.__name__ for launch in launches} == {
        name for module in registers.MODULES.values() for name in kernels_of(module)
    }
    for launch in {
        launch.kernel.__name__: launch for launch in launches
    }.values():  # the slow tests build every specialization
        built = launch.build(90)
        assert built.cubin[:4] == b"\x7fELF" and built.spilled <= 64, (launch.name(), built.spilled)


def kernels_of(module: ModuleType) -> set[str]:
    """The kernels of a module that are launched: device functions have no sizes that change from
    call to call."""
    return {
        name
        for name, value in vars(module).items()
        if hasattr(value, "arg_names") and value.do_not_specialize
    }


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("ways", ["both", "back", "gated", "blocks"])
def test_every_specialization_of_a_real_width_builds_with_few_spills(registers, ways, dtype, arch):
    for E, chunks in (
        (512, False),
        (512, True),
        (236, True),
    ):  # rows of 236 do not start at multiples of 16
        for launch in registers.different(registers.layer(E, 16, dtype, chunks, ways)):
            built = launch.build(arch)
            # On sm_80 `gradients` with a gate spills up to 348 bytes in 16 bits; its tiles were
            # chosen by times on sm_90.
            limit = {80: 360, 90: 300}[arch] if launch.kernel.__name__ == "gradients" else 160
            assert built.spilled <= limit, (launch.name(), built.spilled)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("E", "N"), [(236, 16), (512, 64), (64, 1), (37, 5)])
def test_other_widths_and_numbers_of_states_build(registers, E, N):
    for launch in registers.different(registers.layer(E, N, torch.bfloat16, chunks=True, L=999)):
        launch.build(90)


@needs_triton
@pytest.mark.parametrize("kernel", ["outputs", "gradients"])
def test_offsets_beyond_two_billion_are_computed_in_64_bits(registers, kernel):
    import triton
    from triton.backends.compiler import GPUTarget

    launch = next(
        x for x in registers.layer(16, 2, torch.float32, chunks=True) if x.kernel.__name__ == kernel
    )
    text = triton.compile(
        launch.source(), target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}
    ).asm["ttir"]
    products = [line.split(" loc(")[0] for line in text.splitlines() if "arith.muli" in line]
    scalars = [
        line for line in products if "tensor<" not in line and "%c4_i32" not in line
    ]  # x // 4 * 4 is no larger than x
    assert len(scalars) > 10 and all(line.endswith(": i64") for line in scalars), scalars
    tensors = [line for line in products if "tensor<" in line]
    assert all(line.endswith(("xi64>", "x1xi32>")) for line in tensors), (
        tensors
    )  # 32 bits: states times channels, alone


def test_sequences_are_cut_into_chunks_if_they_do_not_fill_the_gpu():
    assert triton_scan._cut(1024, 1024, 132) == (1, 1024)
    # one sequence, 512 channels, both directions
    chunks, chunk = triton_scan._cut(8, 131072, 132)
    assert chunk % triton_scan._KEPT == 0 and (chunks - 1) * chunk < 131072 <= chunks * chunk
    assert 4 * 8 * 132 * 0.8 < 8 * chunks <= 4 * 8 * 132
    assert triton_scan._cut(8, 100, 132) == (1, 128)


def test_a_missing_or_old_triton_or_gpu_is_the_reason(monkeypatch, clear_caches):
    triton_scan.load_kernels.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        RuntimeError, match=r"Triton is not installed .*pip install -e '\.\[triton\]'"
    ):
        triton_scan.load_kernels("triton_kernels")
    old = ModuleType("triton")
    old.__version__ = "2.1.0"
    monkeypatch.setitem(sys.modules, "triton", old)
    with pytest.raises(RuntimeError, match=r"Triton 2\.1\.0 is too old, 3\.6 or later is needed"):
        triton_scan.load_kernels("triton_kernels")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(
        RuntimeError, match=r"Tesla T4 has compute capability 7\.5, the kernels need 8\.0 or later"
    ):
        triton_scan.check_gpu(torch.device("cuda", 0))
    triton_scan.load_kernels.cache_clear()
    triton_scan.check_gpu.cache_clear()


def test_float64_and_other_devices_are_refused():
    assert "float64 needs scan=portable" in SCANS["triton"].unsupported("cuda", torch.float64)
    assert "needs a CUDA device" in SCANS["triton"].unsupported("cpu", torch.float32)


class Limited(PortableBackend):
    max_states = SCANS["triton"].max_states


def test_more_states_than_fit_go_to_portable_unless_the_scan_was_asked_for(
    in_place_of_cpu, scan_inputs, caplog
):
    in_place_of_cpu(Limited())
    facade._warn_once.cache_clear()
    caplog.set_level(logging.WARNING, "dnadiff")
    inputs = scan_inputs(1, 3, 2, 65)
    selective_scan(*inputs)
    selective_scan(*inputs)
    assert [m for m in caplog.messages if "65 states" in m] == [
        "selective scan: portable instead of cpu, because of 65 states a channel; this kernel "
        "holds at most 64 in registers"
    ]
    with pytest.raises(
        RuntimeError, match="scan 'cpu' was asked for and cannot run: 65 states a channel"
    ):
        selective_scan(*inputs, scan="cpu")
