import logging

import pytest
import torch

from dnadiff.kernels import SCANS, available_scans, select, selective_scan, short_conv


def test_every_scan_is_listed_with_its_reason():
    assert list(available_scans()) == list(SCANS) == ["cpu", "portable", "reference"]
    assert available_scans()["portable"] == available_scans()["reference"] == ""


def test_an_unknown_scan_is_refused_with_the_known_ones(scan_inputs, monkeypatch):
    with pytest.raises(ValueError, match="unknown scan 'fastest'; known are auto, cpu, portable, reference"):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="fastest")
    monkeypatch.setenv("DNADIFF_SCAN", "triton")
    with pytest.raises(ValueError, match="unknown scan 'triton'"):
        selective_scan(*scan_inputs(1, 3, 2, 2))


def test_the_environment_variable_forces_a_scan_and_the_argument_wins(monkeypatch, scan_inputs):
    called = []
    for name, module in SCANS.items():
        original = module.selective_scan
        monkeypatch.setattr(module, "selective_scan", lambda *x, name=name, original=original: called.append(name) or original(*x))
    monkeypatch.setenv("DNADIFF_SCAN", "reference")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    selective_scan(*scan_inputs(1, 3, 2, 2), scan="portable")
    assert called == ["reference", "portable"]


def test_auto_says_once_what_it_took(fresh_choice, monkeypatch, scan_inputs, caplog):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    caplog.set_level(logging.INFO, "dnadiff")
    for _ in range(3):
        selective_scan(*scan_inputs(1, 3, 2, 2))
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("selective scan: cpu (")


def test_a_scan_that_computes_wrongly_is_left_out_with_a_reason(fresh_choice, monkeypatch, scan_inputs, caplog):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    monkeypatch.setattr(SCANS["cpu"], "selective_scan", lambda u, *_: 1.5 * u)
    caplog.set_level(logging.INFO, "dnadiff")
    selective_scan(*scan_inputs(1, 3, 2, 2))
    first, second = caplog.records
    assert first.levelname == "WARNING" and "not cpu" in first.getMessage()
    assert second.getMessage() == "selective scan: portable (PyTorch)"
    with pytest.raises(RuntimeError, match="scan 'cpu' was asked for and cannot run"):
        selective_scan(*scan_inputs(1, 3, 2, 2), scan="cpu")


def test_float64_goes_to_portable_and_a_forced_cpu_says_why(monkeypatch, scan_inputs):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert select._choose("auto", "cpu", torch.float64) == "portable"
    with pytest.raises(RuntimeError, match="float64 needs scan=portable"):
        selective_scan(*scan_inputs(1, 3, 2, 2, torch.float64), scan="cpu")


def test_other_devices_get_the_portable_scan(monkeypatch):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    assert select._choose("auto", "cuda", torch.float32) == "portable"
    with pytest.raises(RuntimeError, match="the tensors are on cuda"):
        select._choose("cpu", "cuda", torch.float32)


def test_a_compiled_model_is_one_graph_with_the_same_gradients(scan_inputs, values_and_grads, close, monkeypatch):
    def mixer(u, delta, A, B, C, D, bias):
        weight = torch.stack([D, bias, D, bias], dim=-1)
        return selective_scan(short_conv(u, weight, bias, reverse=True), delta, A, B, C, D, bias, reverse=True)

    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    expected = values_and_grads(mixer, scan_inputs(2, 37, 5, 3))
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    close(values_and_grads(compiled, scan_inputs(2, 37, 5, 3)), expected, 1e-6)


def test_the_first_call_may_come_under_no_grad_or_inference_mode(fresh_choice, scan_inputs, monkeypatch):
    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    with torch.inference_mode():
        selective_scan(*scan_inputs(1, 3, 2, 2))
    assert available_scans()["cpu"] == ""
