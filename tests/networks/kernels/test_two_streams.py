"""A mixer of a noised stream in blocks after a clean one, in one call."""

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.kernels.backend import MixerWay, MixerWeights
from dnadiff.networks.kernels.facade import for_mixer, kernels

# L, D, E, N, R, K and block sizes: fewer positions than taps, blocks that begin anywhere in a chunk
# of 32, 48 or 64, and shorter last blocks.
SHAPES = [
    ((3, 2, 3, 1, 1, 4), (1, 2, 3)),
    ((33, 8, 16, 16, 1, 1), (1, 16, 32)),
    ((70, 8, 24, 3, 1, 2), (1, 5, 64, 70)),
    ((50, 10, 20, 4, 1, 3), (2, 16)),
    ((101, 37, 70, 12, 7, 4), (1, 2, 5, 16, 33, 101)),
]
CASES = [(shape, block) for shape, blocks in SHAPES for block in blocks]
LARGE = SHAPES[-1][0]


def weights_of(in_proj, out_proj, *rest):
    return MixerWeights(in_proj, out_proj, [MixerWay(*rest[:7]), MixerWay(*rest[7:])])


def fuses_mixer(hidden, weights, scan="auto"):
    return kernels(scan, hidden).fuses(hidden, weights)


def two_stream_mixer(noised, clean, weights, block, valid=None, clean_output=True, scan="auto"):
    found = for_mixer(noised, weights, valid, scan, states=True)
    return found.two_stream_mixer(noised, clean, weights, block, valid, clean_output)


def run(*tensors, block, scan, valid=None, clean_output=True):
    weights = weights_of(*tensors[2:])
    outputs = two_stream_mixer(
        *tensors[:2], weights, block, valid, clean_output=clean_output, scan=scan
    )
    assert (outputs[1] is not None) == clean_output
    if outputs[1] is None:  # of a single block the noised stream reads nothing of the clean one
        return outputs[0] + 0 * tensors[1]
    return torch.stack([out for out in outputs if out is not None])


@pytest.mark.parametrize("clean_output", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("shape", "block"), CASES)
def test_values_and_gradients_match_the_operations_in_float64(
    shape, block, padded, clean_output, mixer_tensors, values_and_grads, close
):
    valid = torch.ones(2, shape[0], dtype=torch.bool)
    valid[1, shape[0] // 2 :] = False
    options = {"block": block, "valid": valid if padded else None, "clean_output": clean_output}
    expected = values_and_grads(
        run, mixer_tensors(*shape, 2, torch.float64, 2), scan="portable", **options
    )
    close(
        values_and_grads(run, mixer_tensors(*shape, 2, streams=2), scan="cpu", **options),
        expected,
        1e-5,
    )


@pytest.mark.parametrize("block", [1, 5, 33])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_the_number_of_threads_and_repeat_exactly(
    threads, block, mixer_tensors, values_and_grads, close
):
    expected = values_and_grads(
        run, mixer_tensors(*LARGE, 2, torch.float64, 2), block=block, scan="portable"
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first, second = (
            values_and_grads(run, mixer_tensors(*LARGE, 2, streams=2), block=block, scan="cpu")
            for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    close(first, expected, 1e-5)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_a_block_sees_itself_and_the_clean_blocks_before_it(mixer_tensors):
    noised, clean, *weights = (x.detach() for x in mixer_tensors(*LARGE, 2, streams=2))
    block, position = 5, 42  # in the block 40..44
    for stream, changed in ((0, range(40, 45)), (1, range(45, LARGE[0]))):
        streams = [noised.clone(), clean.clone()]
        streams[stream][:, position] += 1.0
        before, after = (
            run(*pair, *weights, block=block, scan="cpu")[0] for pair in ((noised, clean), streams)
        )
        assert torch.nonzero((before != after).any(2).any(0)).flatten().tolist() == list(changed)


def test_a_row_has_the_same_result_in_any_batch(mixer_tensors):
    noised, clean, *weights = (x.detach() for x in mixer_tensors(*LARGE, 2, streams=2))
    whole = run(noised, clean, *weights, block=5, scan="cpu")
    assert torch.equal(run(noised[1:], clean[1:], *weights, block=5, scan="cpu"), whole[:, 1:])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d_conv": 2},
        {"bidirectional_weight_tie": False},
        {"bidirectional_strategy": "ew_multiply"},
    ],
)
def test_a_network_computes_the_same_with_and_without_the_fused_mixer(options, close):
    torch.manual_seed(0)
    ids = torch.randint(7, 11, (2, 2, 37))
    network = Caduceus(DNATokenizer().vocab, d_model=20, n_layers=2, **options)
    results = []
    for network.scan in ("cpu", "portable"):
        features, clean = network.block_features(*ids, 4, clean=True)
        grads = torch.autograd.grad(
            features.sin().sum() + clean.sin().sum(), list(network.parameters())
        )
        results.append([features.detach(), clean.detach(), *grads])
    close(*results, 1e-4)


def test_what_the_kernel_does_not_compute_is_left_to_the_operations(
    mixer_tensors, values_and_grads, close
):
    noised, _, *rest = mixer_tensors(*LARGE, 2, streams=2)
    weights = weights_of(*rest)
    assert fuses_mixer(noised, weights, scan="cpu")
    assert not fuses_mixer(noised, weights, scan="portable")
    assert not fuses_mixer(noised.double(), weights)
    assert not fuses_mixer(noised, weights._replace(in_proj=torch.empty(2**19, 1)), scan="cpu")
    shape = (50, 10, 20, 4, 1, 6)  # more taps than the kernel has
    expected = values_and_grads(
        run, mixer_tensors(*shape, 2, torch.float64, 2), block=8, scan="reference"
    )
    close(
        values_and_grads(run, mixer_tensors(*shape, 2, streams=2), block=8, scan="cpu"),
        expected,
        1e-5,
    )


def test_a_second_derivative_is_refused(mixer_tensors):
    tensors = mixer_tensors(*SHAPES[0][0], 2, streams=2)
    (gradient,) = torch.autograd.grad(
        run(*tensors, block=2, scan="cpu").square().sum(), tensors[0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_wrong_arguments_are_refused(mixer_tensors):
    noised, clean, *rest = mixer_tensors(*LARGE, 2, streams=2)
    weights = weights_of(*rest)
    with pytest.raises(ValueError, match="block_size 102 does not fit sequences of 101 positions"):
        two_stream_mixer(noised, clean, weights, 102)
    with pytest.raises(ValueError, match="do not fit out_proj"):
        two_stream_mixer(noised, clean, weights._replace(in_proj=rest[0][1:]), 4)


def test_what_is_saved_does_not_depend_on_the_block_size(mixer_tensors):
    def saved(block):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            run(
                *mixer_tensors(256, 8, 16, 16, 1, 4, 2, streams=2), block=block, scan="cpu"
            ).sum().backward()
        return sizes

    assert saved(1) == saved(16) == saved(256)
