import json
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode

from dnadiff.networks.kernels.facade import selective_scan
from dnadiff.networks.kernels.native import PLAIN

PARITY = Path(__file__).parents[2] / "parity" / "selective_scan.safetensors"
NAMES = ("u", "delta", "A", "B", "C", "D", "delta_bias")

LENGTHS, STATES = (1, 2, 3, 31, 64, 300), (1, 5, 8, 16, 64)
FAST = [
    (scan, dtype)
    for scan, dtype in product(("cpu", "portable"), (torch.float32, torch.float64))
    if (scan, dtype) != ("cpu", torch.float64)
]


def test_outputs_and_gradients_match_mamba_ssm(scan, close):
    with safe_open(PARITY, "pt") as file:
        fixture = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert isinstance(json.loads(file.metadata()["config"]), dict)
    channels_last = {
        name: x.mT.contiguous() if x.dim() == 3 else x
        for name, x in fixture.items()
        if name != "last_state"
    }
    inputs = {name: channels_last[name].requires_grad_() for name in (*NAMES, "z")}
    out = selective_scan(*(inputs[name] for name in NAMES), scan=scan) * F.silu(inputs["z"])
    grads = torch.autograd.grad(out, list(inputs.values()), channels_last["dout"])
    close(
        [out.detach(), *grads],
        [channels_last["out"], *(channels_last[f"grad_{name}"] for name in inputs)],
        1e-4,
    )


@pytest.mark.parametrize("N", STATES)
@pytest.mark.parametrize("L", LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_scan_matches_the_float64_reference(
    L, N, reverse, scan_inputs, values_and_grads, close
):
    expected = values_and_grads(
        selective_scan, scan_inputs(2, L, 19, N, torch.float64), reverse=reverse, scan="reference"
    )
    for scan, dtype in FAST:
        ours = values_and_grads(
            selective_scan, scan_inputs(2, L, 19, N, dtype), reverse=reverse, scan=scan
        )
        close(ours, expected, 1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("N", STATES)
@pytest.mark.parametrize("reverse", [False, True])
def test_long_scans_match_in_float64(N, reverse, scan_inputs, values_and_grads, close):
    # The reference's loop over positions takes seconds here: it confirms the portable scan once in
    # each direction, with which others agree.
    inputs = scan_inputs(1, 4097, 3, N, torch.float64)
    expected = values_and_grads(selective_scan, inputs, reverse=reverse, scan="portable")
    if N == 5:
        close(
            expected,
            values_and_grads(selective_scan, inputs, reverse=reverse, scan="reference"),
            1e-12,
        )
    for scan in ("cpu", "portable"):
        close(
            values_and_grads(
                selective_scan, scan_inputs(1, 4097, 3, N), reverse=reverse, scan=scan
            ),
            expected,
            1e-5,
        )


def second_derivatives(inputs, **options):
    """Of a scalar made of all first derivatives."""
    first = torch.autograd.grad(
        selective_scan(*inputs, **options).sin().sum(), inputs, create_graph=True
    )
    return list(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))


@pytest.mark.parametrize("L", [5, 64, 65, 150])
@pytest.mark.parametrize("reverse", [False, True])
def test_portable_second_derivatives_match_the_reference_across_chunks(
    L, reverse, scan_inputs, close
):
    expected = second_derivatives(
        scan_inputs(2, L, 3, 2, torch.float64), reverse=reverse, scan="reference"
    )
    close(
        second_derivatives(
            scan_inputs(2, L, 3, 2, torch.float64), reverse=reverse, scan="portable"
        ),
        expected,
        1e-10,
    )


def test_the_cpu_scan_refuses_a_second_derivative(scan_inputs):
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        second_derivatives(scan_inputs(1, 70, 3, 2), scan="cpu")


@pytest.mark.parametrize("E", [1, 15, 16, 33, 70])
def test_results_do_not_depend_on_the_number_of_threads(E, scan_inputs, values_and_grads, close):
    threads = torch.get_num_threads()
    expected = values_and_grads(
        selective_scan, scan_inputs(3, 40, E, 6, torch.float64), scan="portable"
    )
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            close(
                values_and_grads(selective_scan, scan_inputs(3, 40, E, 6), scan="cpu"),
                expected,
                1e-5,
            )
    finally:
        torch.set_num_threads(threads)


def test_reverse_is_the_scan_of_the_reversed_sequence(scan, scan_inputs):
    u, delta, A, B, C, D, bias = scan_inputs(2, 75, 6, 4)
    flipped = selective_scan(
        u.flip(1), delta.flip(1), A, B.flip(1), C.flip(1), D, bias, scan=scan
    ).flip(1)
    torch.testing.assert_close(
        selective_scan(u, delta, A, B, C, D, bias, reverse=True, scan=scan), flipped
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_does_not_change_the_state_and_has_no_gradient(
    scan, reverse, scan_inputs, values_and_grads
):
    inputs = scan_inputs(2, 70, 5, 3)
    keep = torch.ones(70, dtype=torch.bool)
    keep[[0, 11, 12, 40, 69]] = False
    with torch.no_grad():
        inputs[1][:, ~keep] = -1e4
    y, *grads = values_and_grads(selective_scan, inputs, reverse=reverse, scan=scan)
    short = [x[:, keep] if x.dim() == 3 else x for x in inputs]
    torch.testing.assert_close(
        y[:, keep], selective_scan(*short, reverse=reverse, scan=scan), rtol=1e-5, atol=1e-5
    )
    assert all(g.isfinite().all() for g in grads)
    assert grads[1][:, ~keep].eq(0).all() and grads[3][:, ~keep].eq(0).all()


def test_strong_and_weak_decay_keep_their_precision(scan, scan_inputs, values_and_grads, close):
    def decays(dtype):
        inputs = scan_inputs(1, 130, 6, 4, dtype)
        with torch.no_grad():
            inputs[1][:, ::3] = 60.0  # exp(step A) underflows
            inputs[1][:, 1::3] = -12.0  # exp(step A) is 1 up to rounding
            inputs[2][:, 0] = -100.0
        return inputs

    expected = values_and_grads(selective_scan, decays(torch.float64), scan="reference")
    close(values_and_grads(selective_scan, decays(torch.float32), scan=scan), expected, 1e-5)


def test_bias_is_optional(scan, scan_inputs, values_and_grads, close):
    *inputs, bias = scan_inputs(2, 33, 7, 3)
    expected = values_and_grads(
        selective_scan, [*inputs, torch.zeros_like(bias).requires_grad_()], scan="reference"
    )[:-1]
    close(values_and_grads(selective_scan, inputs, scan=scan), expected, 1e-5)


def test_inputs_may_be_slices_or_transposed(scan, scan_inputs, values_and_grads, close):
    u, delta, A, B, C, D, bias = (x.detach() for x in scan_inputs(2, 37, 9, 4))
    expected = values_and_grads(selective_scan, scan_inputs(2, 37, 9, 4), scan="reference")
    both = torch.cat([torch.zeros(2, 37, 3), B, C], dim=-1)
    views = [
        u.mT.contiguous().mT,
        delta,
        A.T.contiguous().T,
        both[..., 3:7],
        both[..., 7:],
        D,
        bias,
    ]
    close(
        values_and_grads(selective_scan, [x.requires_grad_() for x in views], scan=scan),
        expected,
        1e-5,
    )


def test_half_precision_is_computed_in_float32(scan, scan_inputs):
    inputs = [x.detach().bfloat16() for x in scan_inputs(2, 40, 8, 4)]
    y = selective_scan(*inputs, scan=scan)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(
        y,
        selective_scan(*(x.float() for x in inputs), scan="reference").bfloat16(),
        rtol=8e-3,
        atol=1e-4,
    )


def test_autocast_does_not_change_the_result(scan, scan_inputs):
    inputs = scan_inputs(2, 40, 8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = selective_scan(*inputs, scan=scan)
    assert torch.equal(inside, selective_scan(*inputs, scan=scan))


@pytest.mark.parametrize("reverse", [False, True])
def test_portable_gradients_match_finite_differences(reverse, scan_inputs):
    inputs = scan_inputs(2, 11, 2, 2, torch.float64)
    assert torch.autograd.gradcheck(
        lambda *x: selective_scan(*x, reverse=reverse, scan="portable"), inputs
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "test_utils",
    [("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")],
)
def test_the_cpu_operator_passes_opcheck(reverse, test_utils, scan_inputs):
    *inputs, bias = scan_inputs(2, 35, 5, 3)
    for last in (bias, None):
        torch.library.opcheck(
            torch.ops.dnadiff.selective_scan,
            (*inputs, last, reverse, True, *PLAIN),
            test_utils=test_utils,
        )


@pytest.mark.parametrize("E", [1, 5, 8, 9, 16, 21])
def test_the_cpu_operator_returns_no_uninitialized_memory(E, scan_inputs):
    inputs = [x.detach() for x in scan_inputs(2, 35, E, 3)]
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        outputs = torch.ops.dnadiff.selective_scan(*inputs, False, True, *PLAIN)
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(x.isfinite().all() for x in outputs)


def test_only_the_reference_saves_all_states(scan_inputs):
    Bt, L, E, N = 2, 256, 16, 16
    for scan in ("cpu", "portable"):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            selective_scan(*scan_inputs(Bt, L, E, N), scan=scan)
        assert sizes and max(sizes) <= Bt * L * E


class Trace(TorchDispatchMode):
    """Counts operations and records the largest tensor."""

    def __init__(self):
        super().__init__()
        self.calls, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        for x in out if isinstance(out, tuple | list) else (out,):
            if (
                isinstance(x, torch.Tensor)
                and x.untyped_storage().nbytes() >= x.numel() * x.element_size()
            ):  # not an expanded view
                self.largest = max(self.largest, x.numel())
        return out


def test_portable_never_allocates_all_states_and_its_loop_does_not_grow_with_length(
    scan_inputs, values_and_grads
):
    calls = []
    for L in (512, 2048):
        inputs = scan_inputs(1, L, 16, 16)
        with Trace() as trace:
            values_and_grads(selective_scan, inputs, scan="portable")
        assert trace.largest <= L * 16  # all states would be 256 L
        calls.append(trace.calls)
    assert calls[1] < 1.2 * calls[0]


def test_an_empty_batch_gives_an_empty_output(scan, scan_inputs):
    y = selective_scan(*scan_inputs(0, 5, 4, 2), scan=scan)
    assert y.shape == (0, 5, 4)
    y.sum().backward()


def test_a_wrong_shape_is_named(scan_inputs):
    u, delta, A, B, C, D, bias = scan_inputs(2, 5, 4, 3)
    with pytest.raises(ValueError, match=r"C has shape \(2, 4, 3\), expected \(2, 5, 3\)"):
        selective_scan(u, delta, A, B, C[:, 1:], D, bias)
    with pytest.raises(ValueError, match=r"u must be \(batch, length, channels\)"):
        selective_scan(u[0], delta, A, B, C, D, bias)


def test_saved_states_may_be_restored_at_any_address(scan_inputs, values_and_grads, close):
    def moved(saved):
        room = torch.empty(saved.numel() + 1)
        return room[1:].view(saved.shape).copy_(saved)  # four bytes beyond an aligned address

    inputs = scan_inputs(2, 70, 32, 16)
    expected = values_and_grads(selective_scan, inputs, scan="cpu")
    with torch.autograd.graph.saved_tensors_hooks(moved, lambda saved: saved):
        close(values_and_grads(selective_scan, inputs, scan="cpu"), expected, 1e-7)


def test_forward_mode_differentiation_is_refused(scan_inputs):
    inputs = [x.detach() for x in scan_inputs(1, 5, 3, 2)]
    with pytest.raises(NotImplementedError, match="scan=reference"):
        torch.func.jvp(
            lambda u: selective_scan(u, *inputs[1:], scan="cpu"), (inputs[0],), (inputs[0],)
        )


def test_integers_are_refused(scan_inputs):
    u, *others = scan_inputs(1, 3, 2, 2)
    with pytest.raises(ValueError, match=r"u has type torch\.int64, expected float32"):
        selective_scan(u.long(), *others)
