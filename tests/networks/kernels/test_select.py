import importlib.util
import logging
import os
import sys

import pytest
import torch

from dnadiff.networks.kernels import native
from dnadiff.networks.kernels.backend import ScanInputs, ScanStates, Walk
from dnadiff.networks.kernels.cpu import CppBackend
from dnadiff.networks.kernels.facade import (
    SCANS,
    available_scans,
    check_scan,
    choose,
    kernels,
    selective_scan,
)
from dnadiff.networks.kernels.portable import MambaSSMBackend, PortableBackend

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class Wrong(CppBackend):
    def scan(self, inputs, walk):
        return ScanStates(1.5 * inputs.u)


@without_gpu
def test_every_scan_is_listed_with_its_reason(clear_caches):
    assert list(available_scans()) == ["cpu", "triton", "mamba_ssm", "portable", "reference"]
    assert available_scans()["portable"] == available_scans()["reference"] == ""
    for name in ("triton", "mamba_ssm"):
        assert "needs a CUDA device" in available_scans()[name]


@pytest.mark.parametrize("name", ["mamba_ssm", "triton"])
def test_a_requested_scan_that_cannot_run_fails_with_its_reason(name, scan_inputs, monkeypatch):
    with pytest.raises(
        RuntimeError, match=f"scan '{name}' was asked for and cannot run: .*(CUDA|Triton)"
    ):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan=name)
    monkeypatch.setenv("DNADIFF_SCAN", name)
    with pytest.raises(RuntimeError, match=f"scan '{name}' was asked for and cannot run"):
        kernels("auto", torch.ones(2, 3))


def test_an_unknown_scan_is_refused_with_the_known_ones(scan_inputs, monkeypatch):
    with pytest.raises(
        ValueError,
        match="unknown scan 'fastest'; known are auto, cpu, triton, mamba_ssm, portable, reference",
    ):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="fastest")
    monkeypatch.setenv("DNADIFF_SCAN", "fused")
    with pytest.raises(ValueError, match="unknown scan 'fused'"):
        selective_scan(*scan_inputs(1, 3, 2, 2))


def test_the_argument_overrides_the_environment_variable(monkeypatch):
    monkeypatch.setenv("DNADIFF_SCAN", "reference")
    assert choose("auto", "cpu", torch.float32) == "reference"
    assert choose("portable", "cpu", torch.float32) == "portable"


def test_auto_logs_its_choice_once(clear_caches, monkeypatch, scan_inputs, caplog):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    for _ in range(3):
        selective_scan(*scan_inputs(1, 3, 2, 2))
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("selective scan: cpu (")


def test_a_scan_with_wrong_results_is_skipped_with_a_reason(in_place_of_cpu, scan_inputs, caplog):
    in_place_of_cpu(Wrong())
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    first, second = caplog.records
    assert first.levelname == "WARNING" and "not cpu" in first.getMessage()
    assert second.getMessage() == "selective scan: portable (PyTorch)"
    with pytest.raises(RuntimeError, match="scan 'cpu' was asked for and cannot run"):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="cpu")


def test_float64_goes_to_portable_and_a_requested_cpu_fails_with_the_reason(
    monkeypatch, scan_inputs
):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert choose("auto", "cpu", torch.float64) == "portable"
    with pytest.raises(RuntimeError, match="float64 needs scan=portable"):
        selective_scan(*scan_inputs(1, 3, 2, 2, torch.float64), scan="cpu")


@without_gpu
def test_other_devices_get_the_portable_scan(monkeypatch, clear_caches):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert choose("auto", "cuda", torch.float32) == "portable"
    with pytest.raises(RuntimeError, match="the tensors are on cuda"):
        choose("cpu", "cuda", torch.float32)


def test_a_compiled_model_is_one_graph_with_the_same_gradients(
    scan_inputs, values_and_grads, close, monkeypatch
):
    def mixer(u, delta, A, B, C, D, bias):
        weight = torch.stack([D, bias, D, bias], dim=-1)
        return selective_scan(
            kernels("auto", u).short_conv(u, weight, bias, True),
            delta,
            A,
            B,
            C,
            D,
            bias,
            reverse=True,
        )

    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    expected = values_and_grads(mixer, scan_inputs(2, 37, 5, 3))
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    close(values_and_grads(compiled, scan_inputs(2, 37, 5, 3)), expected, 1e-6)


def test_the_first_call_may_be_in_inference_mode(clear_caches, scan_inputs, monkeypatch):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    with torch.inference_mode():
        selective_scan(*scan_inputs(1, 3, 2, 2))
    assert available_scans()["cpu"] == ""


FIRST_CALLS = {
    "autocast": """
with torch.autocast("cpu", dtype=torch.bfloat16):
    selective_scan(*inputs)
""",
    "grad": """
try:
    torch.func.grad(lambda u: selective_scan(u, *inputs[1:]).sum())(inputs[0])
except RuntimeError:
    pass  # PyTorch's function transforms do not support gradients of custom operators
""",
    "vmap": """
torch.vmap(lambda u: selective_scan(u, *inputs[1:]))(inputs[0][None])
""",
    "meta": """
with torch.device("meta"):
    selective_scan(*inputs)
""",
    "saved tensors": """
with torch.autograd.graph.saved_tensors_hooks(lambda x: 1 / 0, lambda x: x):
    selective_scan(*inputs)
""",
    "compile": """
torch.compile(selective_scan, backend="aot_eager")(*inputs)
""",
}


@pytest.mark.parametrize("mode", FIRST_CALLS)
def test_the_mode_of_the_first_call_does_not_affect_the_choice(
    mode, clear_caches, scan_inputs, monkeypatch
):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    inputs = [x.detach() for x in scan_inputs(1, 70, 3, 2)]
    exec(FIRST_CALLS[mode], {"torch": torch, "selective_scan": selective_scan, "inputs": inputs})
    assert available_scans()["cpu"] == "" and check_scan("cpu") == "cpu"


def test_a_process_that_starts_under_autocast_has_the_cpu_scan(python):
    script = f"""
import torch
from dnadiff.networks.kernels.facade import available_scans, selective_scan
ones = torch.ones
inputs = [ones(1, 7, 3), torch.zeros(1, 7, 3), -ones(3, 2), *[ones(1, 7, 2)] * 2, ones(3), ones(3)]
{FIRST_CALLS["autocast"]}
assert available_scans()["cpu"] == "", available_scans()["cpu"]
"""
    environment = {key: value for key, value in os.environ.items() if key != "DNADIFF_SCAN"}
    process = python("-c", script, env=environment)
    assert process.wait() == 0, process.errors[-2000:]


@pytest.mark.gpu
def test_the_probe_runs_on_the_gpu_of_the_calling_thread(in_place_of_cpu):
    before, last, seen = torch.cuda.current_device(), torch.cuda.device_count() - 1, set()

    class Gpu(PortableBackend):
        device_type = "cuda"

        def linear(self, x, weight):
            seen.add(x.device.index)
            return super().linear(x, weight)

    in_place_of_cpu(Gpu())
    torch.cuda.set_device(last)
    try:
        assert check_scan("cpu") == "cpu" and seen == {last}
    finally:
        torch.cuda.set_device(before)


SEPARATE = hasattr(torch.backends.mkldnn, "matmul")  # precisions of devices, since PyTorch 2.9


@pytest.mark.skipif(SEPARATE, reason="PyTorch has a precision for each device")
def test_kernels_are_compared_in_full_precision(in_place_of_cpu):
    before, seen = torch.get_float32_matmul_precision(), set()

    class Seen(CppBackend):
        def linear(self, x, weight):
            seen.add(torch.get_float32_matmul_precision())
            return super().linear(x, weight)

    in_place_of_cpu(Seen())
    try:
        torch.set_float32_matmul_precision("medium")
        assert available_scans()["cpu"] == "" and seen == {"highest"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not SEPARATE, reason="PyTorch has one precision for all devices")
def test_products_on_gpu_and_cpu_may_have_different_precision(in_place_of_cpu):
    gpu, other = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before, seen = (gpu.fp32_precision, other.fp32_precision), set()

    class Seen(CppBackend):
        def linear(self, x, weight):
            seen.add((gpu.fp32_precision, other.fp32_precision))
            return super().linear(x, weight)

    in_place_of_cpu(Seen())
    try:
        # torch.get_float32_matmul_precision cannot express this
        gpu.fp32_precision, other.fp32_precision = "tf32", "ieee"
        assert available_scans()["cpu"] == "" and seen == {("ieee", "ieee")}
        assert (gpu.fp32_precision, other.fp32_precision) == ("tf32", "ieee")
    finally:
        gpu.fp32_precision, other.fp32_precision = before


def calls(scan):
    """Every operation, for float32 or bfloat16 tensors."""
    x, w, square, taps = torch.ones(1, 3, 4), torch.ones(4), torch.ones(4, 4), torch.ones(4, 2)
    yield lambda t: selective_scan(t(x), t(x), -t(square), t(x), t(x), t(w), scan=scan)
    yield lambda t: kernels(scan, t(x)).short_conv(t(x), t(taps), t(w))
    yield lambda t: kernels(scan, t(x)).gated_sum(t(x), None, t(x))
    yield lambda t: kernels(scan, t(x)).rms_norm(t(x), t(w), 1e-5)
    yield lambda t: kernels(scan, t(x)).narrow_linear(t(x), t(square))
    yield lambda t: kernels(scan, t(x)).linear(t(x), t(square))
    yield lambda t: kernels(scan, t(x)).linear_halves(t(x), t(square))


@pytest.mark.parametrize("number", range(7))
def test_a_scan_that_is_unknown_or_cannot_run_is_refused_for_every_type_and_mode(
    number, in_place_of_cpu
):
    in_place_of_cpu(Wrong())
    for name, error, message in (
        ("nonsense", ValueError, "unknown scan 'nonsense'"),
        ("cpu", RuntimeError, "scan 'cpu' was asked for and cannot run"),
    ):
        call = list(calls(name))[number]
        for convert in (
            lambda x: x,
            lambda x: x.bfloat16(),
            lambda x: x[:0] if x.dim() == 3 else x,
        ):
            with pytest.raises(error, match=message):
                call(convert)
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(error, match=message):
            call(lambda x: x)


@pytest.mark.parametrize(
    "name",
    [
        "scan",
        "short_conv",
        "gated_sum",
        "rms_norm",
        "narrow_linear",
        "linear",
        "linear_halves",
        "mixer",
        "two_stream_mixer",
    ],
)
def test_the_probe_finds_a_wrong_result_of_any_operation(name, in_place_of_cpu):
    def wrong(self, *inputs):  # in the last column alone
        out = getattr(super(Changed, self), name)(*inputs)
        first, *others = out if isinstance(out, tuple) else [out]
        first = torch.cat([first[..., :-1], 1.01 * first[..., -1:]], dim=-1)
        if not isinstance(out, tuple):
            return first
        return out._replace(y=first) if isinstance(out, ScanStates) else (first, *others)

    Changed = type("Changed", (CppBackend,), {name: wrong})
    in_place_of_cpu(Changed())
    assert "differ from the portable scan's" in available_scans()["cpu"]


def test_the_probe_reaches_wide_tiles_and_their_remainders(clear_caches, monkeypatch):
    library, calls = native.library(), set()

    class Spy:
        def __getattr__(self, name):
            calls.add(name)
            return getattr(library, name)

    monkeypatch.setattr(native, "library", Spy)
    assert available_scans()["cpu"] == ""
    sources = native._sources(native._FOLDER, (".cpp",))
    found = [native._FUNCTION.findall(source.read_text()) for source in sources]
    declared = {name for functions in found for _, name, _ in functions}
    assert declared <= calls


def test_sizes_come_after_pointers_and_before_flags():
    """A missing argument type would pass a 64-bit size as 32 bits and whatever is above them."""
    types = [*native._TYPES.values()]
    for name in ("scan_forward", "norm_forward", "mixer_input_backward"):
        kinds = getattr(native.library(), f"dnadiff_{name}").argtypes
        order = [types.index(kind) if kind in types else -1 for kind in kinds]
        assert order == sorted(order) and order[0] == -1, name


MAMBA = """
import torch
import torch.nn.functional as F

def selective_scan_fn(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
    return_last_state=False,
):
    assert delta_softplus and not return_last_state and z is None
    assert u.shape == delta.shape and B.shape == C.shape == (u.shape[0], A.shape[1], u.shape[2])
    step = F.softplus(delta if delta_bias is None else delta + delta_bias[:, None])  # (B, D, L)
    h, y = torch.zeros(*u.shape[:2], A.shape[1]), []
    for l in range(u.shape[2]):
        h = torch.exp(step[:, :, l, None] * A) * h + (step * u)[:, :, l, None] * B[:, None, :, l]
        y.append((h * C[:, None, :, l]).sum(-1) + D * u[:, :, l])
    return torch.stack(y, dim=2)
"""


class MambaOnCpu(MambaSSMBackend):
    device_type = "cpu"


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A module named mamba_ssm with the signature of `selective_scan_fn` in version 2.2, in place
    of its CUDA kernel."""
    folder = tmp_path / "mamba_ssm" / "ops"
    folder.mkdir(parents=True)
    (folder / "selective_scan_interface.py").write_text(MAMBA)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


@pytest.mark.parametrize("reverse", [False, True])
def test_mamba_ssm_is_called_in_its_layout(reverse, stand_in, scan_inputs, values_and_grads, close):
    *inputs, bias = scan_inputs(2, 37, 5, 3)
    for last in (bias, None):
        leaves = [*inputs, last] if last is not None else inputs

        def ours(*x):
            return SCANS["mamba_ssm"].scan(ScanInputs(*x), Walk(reverse)).y

        expected = values_and_grads(selective_scan, leaves, reverse=reverse, scan="reference")
        close(values_and_grads(ours, leaves), expected, 1e-5)


def test_mamba_ssm_is_chosen_on_a_device_where_it_works(
    in_place_of_cpu, stand_in, scan_inputs, caplog
):
    in_place_of_cpu(MambaOnCpu())
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    assert caplog.messages == ["selective scan: cpu (CUDA, flipped for the reverse direction)"]


@pytest.mark.skipif(
    importlib.util.find_spec("mamba_ssm") is not None, reason="mamba_ssm is installed"
)
def test_a_missing_mamba_ssm_is_the_reason(in_place_of_cpu, scan_inputs):
    in_place_of_cpu(MambaOnCpu())
    assert "mamba_ssm is not installed" in available_scans()["cpu"]
    with pytest.raises(
        RuntimeError,
        match=r"cannot run: mamba_ssm is not installed.*; use scan=triton, which is part of "
        r"this package, or MAMBA_KEEP_CUDA_BUILD=TRUE pip install -e '\.\[cuda\]'",
    ):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="cpu")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OSError("libx.so: failed to map segment from shared object"),
    ],
)
def test_lack_of_memory_is_an_error_and_not_a_reason_for_a_slower_scan(error, in_place_of_cpu):
    class Full(CppBackend):
        def rms_norm(self, *_):
            raise error

    in_place_of_cpu(Full())
    with pytest.raises(MemoryError, match="no memory left for the kernels of Full"):
        choose("auto", "cpu", torch.float32)


def test_a_thread_is_not_started_without_memory(python):
    script = """
import resource
from pathlib import Path
import torch
from dnadiff.networks.kernels.facade import available_scans
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    available_scans()
except MemoryError as error:
    assert "fewer than 64 MB of memory are left" in str(error), error
else:
    raise AssertionError("a thread was started")
"""
    process = python("-c", script)
    assert process.wait() == 0, process.errors[-2000:]
