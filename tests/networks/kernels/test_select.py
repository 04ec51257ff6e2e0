import errno
import logging
import os
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from dnadiff.networks.kernels import cpu, native, select
from dnadiff.networks.kernels.backend import ScanInputs
from dnadiff.networks.kernels.facade import (
    gated_sum,
    linear,
    linear_halves,
    narrow_linear,
    rms_norm,
    selective_scan,
    short_conv,
)
from dnadiff.networks.kernels.select import SCANS, available_scans, check_scan


def test_every_scan_is_listed_with_its_reason(clear_caches, monkeypatch):
    assert list(available_scans()) == ["cpu", "triton", "mamba_ssm", "portable", "reference"]
    assert available_scans()["portable"] == available_scans()["reference"] == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    select._failure.cache_clear()
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
        rms_norm(torch.ones(2, 3), torch.ones(3), 1e-5)


def test_an_unknown_scan_is_refused_with_the_known_ones(scan_inputs, monkeypatch):
    with pytest.raises(
        ValueError,
        match="unknown scan 'fastest'; known are auto, cpu, triton, mamba_ssm, portable, reference",
    ):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="fastest")
    monkeypatch.setenv("DNADIFF_SCAN", "fused")
    with pytest.raises(ValueError, match="unknown scan 'fused'"):
        selective_scan(*scan_inputs(1, 3, 2, 2))


def test_the_argument_overrides_the_environment_variable(monkeypatch, scan_inputs):
    called = []
    for name, backend in SCANS.items():
        original = backend.selective_scan
        monkeypatch.setattr(
            backend,
            "selective_scan",
            lambda *x, name=name, original=original: called.append(name) or original(*x),
        )
    monkeypatch.setenv("DNADIFF_SCAN", "reference")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    selective_scan(*scan_inputs(1, 3, 2, 2), scan="portable")
    assert called == ["reference", "portable"]


def test_auto_logs_its_choice_once(clear_caches, monkeypatch, scan_inputs, caplog):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    for _ in range(3):
        selective_scan(*scan_inputs(1, 3, 2, 2))
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("selective scan: cpu (")


def test_a_scan_with_wrong_results_is_skipped_with_a_reason(
    clear_caches, monkeypatch, scan_inputs, caplog
):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    monkeypatch.setattr(SCANS["cpu"], "selective_scan", lambda inputs, *_: 1.5 * inputs.u)
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
    assert select.choose("auto", "cpu", torch.float64) == "portable"
    with pytest.raises(RuntimeError, match="float64 needs scan=portable"):
        selective_scan(*scan_inputs(1, 3, 2, 2, torch.float64), scan="cpu")


def test_other_devices_get_the_portable_scan(monkeypatch, clear_caches):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert select.choose("auto", "cuda", torch.float32) == "portable"
    with pytest.raises(RuntimeError, match="the tensors are on cuda"):
        select.choose("cpu", "cuda", torch.float32)


def test_a_compiled_model_is_one_graph_with_the_same_gradients(
    scan_inputs, values_and_grads, close, monkeypatch
):
    def mixer(u, delta, A, B, C, D, bias):
        weight = torch.stack([D, bias, D, bias], dim=-1)
        return selective_scan(
            short_conv(u, weight, bias, reverse=True), delta, A, B, C, D, bias, reverse=True
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
from dnadiff.networks.kernels.facade import selective_scan
from dnadiff.networks.kernels.select import available_scans
ones = torch.ones
inputs = [ones(1, 7, 3), torch.zeros(1, 7, 3), -ones(3, 2), *[ones(1, 7, 2)] * 2, ones(3), ones(3)]
{FIRST_CALLS["autocast"]}
assert available_scans()["cpu"] == "", available_scans()["cpu"]
"""
    environment = {key: value for key, value in os.environ.items() if key != "DNADIFF_SCAN"}
    process = python("-c", script, env=environment)
    assert process.wait() == 0, process.errors[-2000:]


def test_the_probe_runs_on_the_gpu_of_the_calling_thread(clear_caches, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        select,
        "_probe",
        lambda backend, device, streams: seen.append(str(device)) or [torch.ones(1)],
    )
    assert check_scan("mamba_ssm") == "mamba_ssm" and seen == ["cuda:3", "cuda:3"]


def test_products_on_gpu_and_cpu_may_have_different_precision(clear_caches, monkeypatch):
    gpu, other = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before, seen = (gpu.fp32_precision, other.fp32_precision), []
    monkeypatch.setattr(
        select,
        "_probe",
        lambda backend, device, streams: seen.append(other.fp32_precision) or [torch.ones(1)],
    )
    try:
        gpu.fp32_precision, other.fp32_precision = (
            "tf32",
            "ieee",
        )  # torch.get_float32_matmul_precision cannot express this
        assert available_scans()["cpu"] == "" and seen == ["ieee"] * len(seen) != []
        assert (gpu.fp32_precision, other.fp32_precision) == ("tf32", "ieee")
    finally:
        gpu.fp32_precision, other.fp32_precision = before


def calls(scan):
    """Every operation, for float32 or bfloat16 tensors."""
    x, w, square, taps = torch.ones(1, 3, 4), torch.ones(4), torch.ones(4, 4), torch.ones(4, 2)
    yield lambda t: selective_scan(t(x), t(x), -t(square), t(x), t(x), t(w), scan=scan)
    yield lambda t: short_conv(t(x), t(taps), t(w), scan=scan)
    yield lambda t: gated_sum(t(x), None, t(x), scan=scan)
    yield lambda t: rms_norm(t(x), t(w), 1e-5, scan=scan)
    yield lambda t: narrow_linear(t(x), t(square), scan=scan)
    yield lambda t: linear(t(x), t(square), scan=scan)
    yield lambda t: linear_halves(t(x), t(square), scan=scan)


@pytest.mark.parametrize("number", range(7))
def test_a_scan_that_is_unknown_or_cannot_run_is_refused_for_every_type_and_mode(
    number, clear_caches, monkeypatch
):
    monkeypatch.setattr(SCANS["cpu"], "selective_scan", lambda inputs, *_: 1.5 * inputs.u)
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
        "selective_scan",
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
def test_the_probe_finds_a_wrong_result_of_any_operation(name, clear_caches, monkeypatch):
    right = getattr(SCANS["cpu"], name)

    def wrong(*inputs):  # in the last column alone
        out = right(*inputs)
        first = out[0] if isinstance(out, tuple) else out
        first = torch.cat([first[..., :-1], 1.01 * first[..., -1:]], dim=-1)
        return (first, out[1]) if isinstance(out, tuple) else first

    monkeypatch.setattr(SCANS["cpu"], name, wrong)
    assert "differ from the portable scan's" in available_scans()["cpu"]


def test_the_probe_reaches_wide_tiles_and_their_remainders(clear_caches, monkeypatch):
    library, calls = native.library(), []

    class Spy:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(library, name)

    for name in ("cpu", "cpu_scan", "cpu_mixer"):
        monkeypatch.setattr(sys.modules[f"dnadiff.networks.kernels.{name}"], "library", Spy)
    assert available_scans()["cpu"] == ""
    others = {"dnadiff_gather"}  # not part of a scan
    assert set(native._SIGNATURES) - others <= set(calls)


def test_a_wrong_sum_for_the_gradient_of_a_weight_disables_onednn(monkeypatch):
    cpu._onednn_wins.cache_clear()
    monkeypatch.setattr(cpu, "_processor", lambda: "vendor_id : AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(cpu, "_outer_sum", lambda a, b, threads: 1.01 * a.T @ b)
    try:
        assert not cpu.onednn_wins()
    finally:
        cpu._onednn_wins.cache_clear()


@pytest.fixture
def stand_in(monkeypatch):
    """A module named mamba_ssm with the signature of `selective_scan_fn` in version 2.2, in place
    of its CUDA kernel."""

    def selective_scan_fn(
        u,
        delta,
        A,
        B,
        C,
        D=None,
        z=None,
        delta_bias=None,
        delta_softplus=False,
        return_last_state=False,
    ):
        assert delta_softplus and not return_last_state and z is None
        assert u.shape == delta.shape and B.shape == C.shape == (u.shape[0], A.shape[1], u.shape[2])
        step = F.softplus(delta if delta_bias is None else delta + delta_bias[:, None])  # (B, D, L)
        h, y = torch.zeros(*u.shape[:2], A.shape[1]), []
        for l in range(u.shape[2]):
            h = (
                torch.exp(step[:, :, l, None] * A) * h
                + (step * u)[:, :, l, None] * B[:, None, :, l]
            )
            y.append((h * C[:, None, :, l]).sum(-1) + D * u[:, :, l])
        return torch.stack(y, dim=2)

    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["mamba_ssm.ops.selective_scan_interface"].selective_scan_fn = selective_scan_fn


@pytest.mark.parametrize("reverse", [False, True])
def test_mamba_ssm_is_called_in_its_layout(reverse, stand_in, scan_inputs, values_and_grads, close):
    *inputs, bias = scan_inputs(2, 37, 5, 3)
    for last in (bias, None):
        leaves = [*inputs, last] if last is not None else inputs

        def ours(*x):
            return SCANS["mamba_ssm"].selective_scan(ScanInputs(*x), reverse)

        expected = values_and_grads(selective_scan, leaves, reverse=reverse, scan="reference")
        close(values_and_grads(ours, leaves), expected, 1e-5)


def test_mamba_ssm_is_chosen_on_a_device_where_it_works(
    clear_caches, stand_in, scan_inputs, monkeypatch, caplog
):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    monkeypatch.setattr(
        SCANS["cpu"], "unsupported", lambda device, dtype: "pretend that the cpu is a CUDA device"
    )
    monkeypatch.setattr(SCANS["mamba_ssm"], "unsupported", lambda device, dtype: "")
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    assert caplog.messages == [
        "selective scan: mamba_ssm (CUDA, flipped for the reverse direction)"
    ]


def test_a_missing_mamba_ssm_is_the_reason(clear_caches, scan_inputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    monkeypatch.setattr(SCANS["mamba_ssm"], "unsupported", lambda device, dtype: "")
    assert "mamba_ssm is not installed" in available_scans()["mamba_ssm"]
    with pytest.raises(
        RuntimeError, match=r"cannot run: mamba_ssm is not installed .* pip install -e '\.\[cuda\]'"
    ):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="mamba_ssm")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OSError("libx.so: failed to map segment from shared object"),
    ],
)
def test_lack_of_memory_is_an_error_and_not_a_reason_for_a_slower_scan(
    error, clear_caches, monkeypatch
):
    class Full(type(SCANS["cpu"])):
        def rms_norm(self, *_):
            raise error

    monkeypatch.setitem(SCANS, "cpu", Full())
    select._failure.cache_clear()
    with pytest.raises(MemoryError, match="no memory left for the kernels of Full"):
        select.choose("auto", "cpu", torch.float32)


def test_a_thread_is_not_started_without_memory(clear_caches, monkeypatch):
    def no_room(_, size):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(select.mmap, "mmap", no_room)
    select._failure.cache_clear()
    with pytest.raises(MemoryError, match="fewer than 64 MB of memory are left"):
        available_scans()
