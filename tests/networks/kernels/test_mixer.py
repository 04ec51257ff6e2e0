"""A whole mixer in one call, and the residual addition fused with the norm."""

import pytest
import torch

from dnadiff.networks.backbone.mixer import BiMamba, UniMamba
from dnadiff.networks.kernels.backend import MixerWay, MixerWeights
from dnadiff.networks.kernels.facade import for_mixer, kernels

SHAPES = [(1, 3, 2, 1, 1, 1), (50, 10, 20, 4, 1, 4), (97, 37, 70, 12, 7, 3)]  # L, D, E, N, R, K


def fuses_mixer(hidden, weights, scan="auto"):
    return kernels(scan, hidden).fuses(hidden, weights)


def mixer(hidden, weights, valid=None, scan="auto"):
    return for_mixer(hidden, weights, valid, scan).mixer(hidden, weights, valid)


def run(*tensors, valid=None, scan):
    ways = [MixerWay(*tensors[i : i + 7]) for i in range(3, len(tensors), 7)]
    return mixer(tensors[0], MixerWeights(*tensors[1:3], ways), valid, scan)


@pytest.mark.parametrize("num_ways", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_match_the_operations_in_float64(
    shape, padded, num_ways, mixer_tensors, values_and_grads, close
):
    valid = torch.ones(2, shape[0], dtype=torch.bool)
    valid[1, shape[0] // 2 :] = False
    valid = valid if padded else None
    expected = values_and_grads(
        run, mixer_tensors(*shape, num_ways, torch.float64), valid=valid, scan="reference"
    )
    close(
        values_and_grads(run, mixer_tensors(*shape, num_ways), valid=valid, scan="cpu"),
        expected,
        1e-5,
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_number_of_threads_and_repeat_exactly(
    threads, mixer_tensors, values_and_grads, close
):
    expected = values_and_grads(run, mixer_tensors(*SHAPES[2], 2, torch.float64), scan="reference")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first, second = (
            values_and_grads(run, mixer_tensors(*SHAPES[2], 2), scan="cpu") for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    close(first, expected, 1e-5)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_a_row_has_the_same_result_in_any_batch(mixer_tensors):
    tensors = [x.detach() for x in mixer_tensors(*SHAPES[2], 2)]
    whole = run(*tensors, scan="cpu")
    assert torch.equal(run(tensors[0][1:], *tensors[1:], scan="cpu"), whole[1:])


@pytest.mark.parametrize("make", [UniMamba, BiMamba])
def test_a_layer_computes_the_same_with_and_without_the_fused_mixer(make, close):
    torch.manual_seed(0)
    layer, hidden = make(20), torch.randn(2, 60, 20)
    for valid in (None, torch.arange(60).expand(2, 60) < 41):
        keep = slice(None) if valid is None else valid
        close([layer(hidden, valid, "cpu")[keep]], [layer(hidden, valid, "portable")[keep]], 1e-5)


def test_what_the_kernel_does_not_compute_is_left_to_the_operations(mixer_tensors):
    hidden, in_proj, out_proj, *rest = mixer_tensors(*SHAPES[1], 1)
    weights = MixerWeights(in_proj, out_proj, [MixerWay(*rest)])
    assert fuses_mixer(hidden, weights, scan="cpu")
    assert not fuses_mixer(hidden, weights, scan="portable")
    assert not fuses_mixer(hidden.double(), weights) and not fuses_mixer(hidden[:0], weights)
    large = weights._replace(in_proj=torch.empty(2**19, 1))
    assert not fuses_mixer(hidden, large, scan="cpu")
    long = weights.ways[0]._replace(conv_weight=torch.randn(20, 5))
    assert not fuses_mixer(hidden, weights._replace(ways=[long]), scan="cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fuses_mixer(hidden, weights, scan="cpu")


def test_more_taps_than_the_kernel_has_are_computed_by_the_operations(
    mixer_tensors, values_and_grads, close
):
    shape = (50, 10, 20, 4, 1, 6)
    expected = values_and_grads(run, mixer_tensors(*shape, 2, torch.float64), scan="reference")
    close(values_and_grads(run, mixer_tensors(*shape, 2), scan="cpu"), expected, 1e-5)


def test_a_second_derivative_is_refused(mixer_tensors):
    tensors = mixer_tensors(*SHAPES[1], 1)
    (gradient,) = torch.autograd.grad(
        run(*tensors, scan="cpu").square().sum(), tensors[0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_wrong_shapes_are_refused(mixer_tensors):
    hidden, in_proj, out_proj, *rest = mixer_tensors(*SHAPES[1], 1)
    weights = MixerWeights(in_proj, out_proj, [MixerWay(*rest)])
    with pytest.raises(ValueError, match="do not fit out_proj"):
        mixer(hidden, weights._replace(in_proj=in_proj[:-1]))
    with pytest.raises(ValueError, match=r"valid has shape \(2, 3\), expected \(2, 50\)"):
        mixer(hidden, weights, torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("used", ["both", "sum", "norm"])
def test_the_sum_and_its_norm_match_their_definition(used, scan, values_and_grads, close):
    def both(x, added, weight, scan):
        total, normed = kernels(scan, x).add_norm(x, added, weight, 1e-2)
        return {"both": total * normed, "sum": total * weight, "norm": normed}[used]

    def tensors(dtype):
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randn(s, generator=generator).to(dtype).requires_grad_()
            for s in ((3, 50, 21), (3, 50, 21), (21,))
        ]

    expected = values_and_grads(both, tensors(torch.float64), scan="reference")
    close(values_and_grads(both, tensors(torch.float32), scan=scan), expected, 1e-5)
