import pytest
import torch
import torch.nn.functional as F

from dnadiff.networks.kernels.facade import kernels


def short_conv(x, weight, bias, *, reverse=False, scan="auto"):
    return kernels(scan, x).short_conv(x, weight, bias, reverse)


def inputs(Bt, L, E, K, dtype=torch.float32):
    generator = torch.Generator().manual_seed(L + E + K)
    shapes = ((Bt, L, E), (E, K), (E,))
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def plain(x, weight, bias):
    """Causal, by PyTorch's convolution."""
    K = weight.shape[1]
    return F.silu(
        F.conv1d(x.mT, weight[:, None], bias, padding=K - 1, groups=len(bias))[..., : x.shape[1]]
    ).mT


def mirrored(x, weight, bias):
    return plain(x.flip(1), weight, bias).flip(1)


@pytest.mark.parametrize("K", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("L", "E"), [(1, 3), (3, 16), (64, 19), (200, 5)])
def test_values_and_gradients_match_a_plain_convolution(K, L, E, scan, values_and_grads, close):
    for reverse, definition in ((False, plain), (True, mirrored)):
        expected = values_and_grads(definition, inputs(2, L, E, K, torch.float64))
        close(
            values_and_grads(short_conv, inputs(2, L, E, K), reverse=reverse, scan=scan),
            expected,
            2e-5,
        )


def test_output_depends_on_the_past_or_with_reverse_on_the_future(scan):
    x, weight, bias = torch.zeros(1, 9, 1), torch.tensor([[1.0, 2.0, 4.0]]), torch.zeros(1)
    x[0, 4] = 1.0
    one, two, four = F.silu(torch.tensor([1.0, 2.0, 4.0])).tolist()
    assert short_conv(x, weight, bias, scan=scan)[0, :, 0].tolist() == pytest.approx(
        [0, 0, 0, 0, four, two, one, 0, 0]
    )
    assert short_conv(x, weight, bias, reverse=True, scan=scan)[0, :, 0].tolist() == pytest.approx(
        [0, 0, one, two, four, 0, 0, 0, 0]
    )


def test_large_inputs_neither_overflow_nor_lose_their_gradient(scan):
    x = torch.tensor([[[-1e4], [1e4], [-200.0], [200.0]]], requires_grad=True)
    y = short_conv(x, torch.ones(1, 1), torch.zeros(1), scan=scan)
    y.sum().backward()
    assert y.flatten().tolist() == pytest.approx([0, 1e4, 0, 200], rel=1e-6, abs=1e-6)
    assert x.grad.flatten().tolist() == pytest.approx([0, 1, 0, 1], abs=1e-6)


def test_a_slice_of_channels_is_accepted(scan, values_and_grads, close):
    wide = torch.randn(2, 70, 22, generator=torch.Generator().manual_seed(0))
    _, weight, bias = inputs(2, 70, 11, 4)
    for half in wide.chunk(2, dim=-1):
        expected = values_and_grads(plain, [half.contiguous().requires_grad_(), weight, bias])
        close(
            values_and_grads(short_conv, [half.detach().requires_grad_(), weight, bias], scan=scan),
            expected,
            2e-5,
        )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_gradients_do_not_depend_on_the_number_of_threads(threads, values_and_grads, close):
    expected = values_and_grads(plain, inputs(3, 150, 35, 4, torch.float64))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        close(values_and_grads(short_conv, inputs(3, 150, 35, 4), scan="cpu"), expected, 2e-5)
    finally:
        torch.set_num_threads(before)


def test_portable_gradients_match_finite_differences():
    for reverse in (False, True):
        arguments = inputs(2, 5, 2, 3, torch.float64)
        assert torch.autograd.gradcheck(
            lambda *x, r=reverse: short_conv(*x, reverse=r, scan="portable"), arguments
        )


def test_the_cpu_operator_passes_opcheck():
    for reverse in (False, True):
        torch.library.opcheck(
            torch.ops.dnadiff.short_conv, (*inputs(2, 70, 5, 4), reverse, None, 0)
        )


def test_bfloat16_inputs_give_bfloat16_outputs(scan):
    x, weight, bias = inputs(2, 20, 6, 4)
    y = short_conv(x.bfloat16(), weight, bias, scan=scan)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(
        y.float(), plain(x.bfloat16().float(), weight, bias), rtol=8e-3, atol=8e-3
    )


def test_a_filter_that_is_too_long_for_the_kernel_is_left_to_pytorch(close):
    x, weight, bias = torch.randn(2, 12, 5), torch.randn(5, 9), torch.randn(5)
    close(
        [short_conv(x, weight, bias, scan="cpu")],
        [short_conv(x.double(), weight.double(), bias.double(), scan="reference")],
        1e-5,
    )
