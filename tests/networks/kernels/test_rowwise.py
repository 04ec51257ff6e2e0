"""The operations on single positions: the gated sum, the norm, the narrow linear map and matrix
products."""

import pytest
import torch
import torch.nn.functional as F

from dnadiff.networks.kernels.facade import kernels
from dnadiff.networks.kernels.native import _onednn_works

SHAPES = [(1, 1, 1), (1, 3, 15), (2, 64, 16), (3, 65, 33), (2, 131, 70)]
R = [1, 3, 4, 8, 13, 16, 40]


def rms_norm(x, weight, eps, scan="auto"):
    return kernels(scan, x).rms_norm(x, weight, eps)


def linear(x, weight, scan="auto"):
    return kernels(scan, x).linear(x, weight)


def gated_sum(y, y_rev, z, scan="auto"):
    return kernels(scan, y).gated_sum(y, y_rev, z)


def linear_halves(x, weight, scan="auto"):
    return kernels(scan, x).linear_halves(x, weight)


def narrow_linear(x, weight, scan="auto"):
    return kernels(scan, x).narrow_linear(x, weight)


def normal(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gate_matches_its_definition_with_one_and_two_directions(
    shape, scan, values_and_grads, close
):
    expected = values_and_grads(
        gated_sum, normal(shape, shape, shape, dtype=torch.float64), scan="reference"
    )
    close(values_and_grads(gated_sum, normal(shape, shape, shape), scan=scan), expected, 2e-6)

    def one_way(y, z, **options):
        return gated_sum(y, None, z, **options)

    expected = values_and_grads(
        one_way, normal(shape, shape, dtype=torch.float64), scan="reference"
    )
    close(values_and_grads(one_way, normal(shape, shape), scan=scan), expected, 2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_norm_matches_its_definition(shape, scan, values_and_grads, close):
    def norm(x, weight, **options):
        return rms_norm(x, weight, 1e-2, **options)

    expected = values_and_grads(
        norm, normal(shape, shape[-1:], dtype=torch.float64), scan="reference"
    )
    close(values_and_grads(norm, normal(shape, shape[-1:]), scan=scan), expected, 1e-5)


def test_the_norm_accepts_any_number_of_axes_and_matches_pytorch(scan):
    x, weight = (t.detach() for t in normal((2, 3, 5, 64), (64,)))
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5, scan=scan),
        F.rms_norm(x, (64,), weight, 1e-5),
        rtol=1e-6,
        atol=1e-6,
    )
    assert torch.equal(
        rms_norm(x[0, 0, 0], weight, 1e-5, scan=scan), rms_norm(x, weight, 1e-5, scan=scan)[0, 0, 0]
    )


@pytest.mark.parametrize("r", R)
@pytest.mark.parametrize("product", [narrow_linear, linear])
def test_products_match_their_definition(product, r, scan, values_and_grads, close):
    for Bt, L, E in SHAPES:
        expected = values_and_grads(
            product, normal((Bt, L, r), (E, r), dtype=torch.float64), scan="reference"
        )
        close(values_and_grads(product, normal((Bt, L, r), (E, r)), scan=scan), expected, 1e-5)


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN"
)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("L", "R", "E"), [(33, 13, 33), (513, 70, 36), (700, 5, 40), (650, 64, 1), (9, 515, 512)]
)
def test_gradients_of_weights_are_right_with_either_library(
    L, R, E, threads, values_and_grads, close
):
    expected = values_and_grads(
        linear, normal((2, L, R), (E, R), dtype=torch.float64), scan="reference"
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        ours = values_and_grads(torch.ops.dnadiff.linear, normal((2, L, R), (E, R)))
    finally:
        torch.set_num_threads(before)
    close(ours, expected, 1e-5)


def test_halves_of_a_product_match_the_product(scan, values_and_grads, close):
    def joined(x, weight, **options):
        first, second = linear_halves(x, weight, **options)
        return first - 2 * second

    expected = values_and_grads(
        joined, normal((2, 33, 9), (22, 9), dtype=torch.float64), scan="reference"
    )
    close(values_and_grads(joined, normal((2, 33, 9), (22, 9)), scan=scan), expected, 1e-5)


def test_inputs_may_be_slices_or_transposed(scan, values_and_grads, close):
    wide = normal((2, 70, 44))[0].detach()
    y, y_rev, z = wide[..., :22], wide[..., :22].mT.contiguous().mT, wide[..., 22:]
    views, weight, taps = [y, y_rev, z], *normal((22,), (9, 22))

    def everything(y, y_rev, z, weight, taps, **options):
        x = rms_norm(gated_sum(y, y_rev, z, **options), weight, 1e-2, **options)
        return narrow_linear(x[:, ::2, 4:8], taps[:, 4:8], **options) + linear(
            x[:, ::2], taps, **options
        )

    def leaves(inputs):
        return [x.detach().requires_grad_() for x in inputs]

    expected = values_and_grads(
        everything,
        leaves([*(x.double() for x in views), weight.double(), taps.double()]),
        scan="reference",
    )
    close(values_and_grads(everything, leaves([*views, weight, taps]), scan=scan), expected, 1e-5)


def test_incoming_gradients_may_be_expanded(scan):
    for f, inputs in (
        (gated_sum, normal((2, 5, 9), (2, 5, 9), (2, 5, 9))),
        (lambda x, w, scan: rms_norm(x, w, 1e-2, scan=scan), normal((2, 5, 9), (9,))),
        (narrow_linear, normal((2, 5, 4), (9, 4))),
        (linear, normal((2, 5, 4), (9, 4))),
    ):
        ours = torch.autograd.grad(f(*inputs, scan=scan).sum(), inputs)
        expected = torch.autograd.grad(f(*inputs, scan="reference").sum(), inputs)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_large_gates_neither_overflow_nor_lose_their_gradient(scan):
    z = torch.tensor([[[-1e4, 1e4, -200.0, 200.0]]], requires_grad=True)
    y = torch.ones(1, 1, 4, requires_grad=True)
    out = gated_sum(y, None, z, scan=scan)
    out.sum().backward()
    assert out.flatten().tolist() == pytest.approx([0, 1e4, 0, 200], rel=1e-6, abs=1e-6)
    assert z.grad.flatten().tolist() == pytest.approx([0, 1, 0, 1], abs=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_gradients_do_not_depend_on_the_number_of_threads(threads, values_and_grads, close):
    def both(x, weight, taps, **options):
        return narrow_linear(rms_norm(x, weight, 1e-2, **options)[..., :7], taps, **options)

    shapes = (3, 150, 35), (35,), (40, 7)
    expected = values_and_grads(both, normal(*shapes, dtype=torch.float64), scan="reference")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        close(values_and_grads(both, normal(*shapes), scan="cpu"), expected, 1e-5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("gated_sum", normal((2, 7, 5), (2, 7, 5), (2, 7, 5))),
        ("gated_sum", [*normal((2, 7, 5)), None, *normal((2, 7, 5))]),
        ("rms_norm", [*normal((2, 7, 5), (5,)), 1e-2]),
        ("narrow_linear", normal((2, 7, 3), (5, 3))),
        ("linear", normal((2, 7, 3), (5, 3))),
    ],
    ids=["gate", "gate one way", "norm", "narrow", "linear"],
)
def test_the_cpu_operators_pass_opcheck(name, inputs):
    if name == "linear" and not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without oneDNN")
    torch.library.opcheck(getattr(torch.ops.dnadiff, name), tuple(inputs))


@pytest.mark.skipif(
    torch.__version__.startswith("2.11"),
    reason="the tracer of torch 2.11 cuts the graph here; eager use is not affected",
)
def test_a_compiled_function_is_one_graph_with_the_same_gradients(
    values_and_grads, close, monkeypatch
):
    def block(y, z, weight, taps):
        return linear(narrow_linear(rms_norm(gated_sum(y, y, z), weight, 1e-2), taps), taps.T)

    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    shapes = (2, 37, 6), (2, 37, 6), (6,), (11, 6)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    close(
        values_and_grads(compiled, normal(*shapes)), values_and_grads(block, normal(*shapes)), 1e-6
    )


def test_half_precision_and_autocast_are_left_to_pytorch(scan):
    y, z, weight, taps = (x.detach().bfloat16() for x in normal((2, 7, 6), (2, 7, 6), (6,), (5, 6)))
    assert torch.equal(gated_sum(y, y, z, scan=scan), (y + y) * F.silu(z))
    assert torch.equal(rms_norm(y, weight, 1e-5, scan=scan), F.rms_norm(y, (6,), weight, 1e-5))
    assert torch.equal(narrow_linear(y, taps, scan=scan), F.linear(y, taps))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(y.float(), taps.float(), scan=scan), F.linear(y, taps))


def test_tensors_without_storage_have_shapes():
    y, weight, taps = (x.detach().to("meta") for x in normal((2, 7, 6), (6,), (5, 6)))
    assert linear(rms_norm(gated_sum(y, y, y), weight, 1e-5), taps).shape == (2, 7, 5)


@pytest.mark.skipif(
    not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()),
    reason="PyTorch was built without one of the two libraries",
)
def test_onednn_is_used_only_where_the_library_of_pytorch_is_slow():
    assert _onednn_works("vendor_id : AuthenticAMD", "AVX512")
    assert not _onednn_works("vendor_id : GenuineIntel", "AVX512")
    assert not _onednn_works("", "AVX512")
    assert not _onednn_works("vendor_id : AuthenticAMD", "AVX2")


def test_empty_inputs_give_empty_outputs(scan):
    y, weight, taps = normal((0, 5, 4), (4,), (6, 4))
    assert (
        gated_sum(y, None, y, scan=scan).shape
        == rms_norm(y, weight, 1e-5, scan=scan).shape
        == (0, 5, 4)
    )
    assert narrow_linear(y, taps, scan=scan).shape == linear(y, taps, scan=scan).shape == (0, 5, 6)


@pytest.mark.parametrize(
    ("operation", "shapes", "message"),
    [
        (lambda x, w: rms_norm(x, w, 1e-5), [(1, 4, 8), (7,)], r"weight .* expected \(8,\)"),
        (linear, [(1, 4, 8), (5, 9)], r"weight .* expected \(5, 8\)"),
    ],
)
def test_operands_that_do_not_fit_are_refused_before_a_kernel_reads_them(
    operation, shapes, message
):
    with pytest.raises(ValueError, match=message):
        operation(*normal(*shapes))
