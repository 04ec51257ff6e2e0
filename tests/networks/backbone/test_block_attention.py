"""The rule of attention in blocks, its dense masks, and its tiles for `flex_attention`."""

import itertools

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from dnadiff.networks.backbone.attention import (
    FlexStreams,
    block_mask,
    cached_mask,
    compiled_flex,
    dense_streams,
    positions,
    two_streams,
)
from dnadiff.networks.backbone.layers import masked_attention

SHAPES = [
    (1, 1),
    (7, 1),
    (8, 3),
    (9, 4),
    (12, 12),
    (16, 4),
    (20, 7),
    (21, 30),
]  # length, block size


def expected_mask(length, size, valid):
    """The rule, position by position: (L + L, L + L), noised before clean."""
    mask = torch.zeros(2 * length, 2 * length, dtype=torch.bool)
    for q, kv in itertools.product(range(2 * length), repeat=2):
        noised_q, noised_kv, block_q, block_kv = (
            q < length,
            kv < length,
            q % length // size,
            kv % length // size,
        )
        if noised_q:
            seen = block_kv == block_q if noised_kv else block_kv < block_q
        else:
            seen = not noised_kv and block_kv <= block_q
        mask[q, kv] = (seen and bool(valid[kv % length])) or q == kv
    return mask


def padding(length):
    return torch.stack(
        [torch.arange(length) < max(1, length - 3), torch.arange(length) >= length // 2]
    )


@pytest.mark.parametrize(("length", "size"), SHAPES)
def test_a_query_sees_what_the_paper_says(length, size):
    whole, first, second = (
        torch.ones(length, dtype=torch.bool),
        slice(0, length),
        slice(length, None),
    )
    everything, valid = slice(None), padding(length)
    assert torch.equal(
        positions(length, size, None).dense(everything, everything)[0, 0],
        expected_mask(length, size, whole),
    )
    streams = two_streams(torch.zeros(2, 2 * length, 4), 16, size, valid)
    for row in range(2):
        expected = expected_mask(length, size, valid[row])
        assert torch.equal(streams.noised[row, 0], expected[first])
        assert (
            torch.equal(streams.clean[row, 0], expected[second, second])
            and not expected[second, first].any()
        )


def test_the_cached_mask_has_the_cached_tokens_the_block_and_padding_itself():
    found = cached_mask(torch.tensor([[[True, False, True, True, False, True]]]), 3)
    assert found[0, 0].int().tolist() == [
        [1, 0, 1, 1, 0, 1],
        [1, 0, 1, 1, 1, 1],
        [1, 0, 1, 1, 0, 1],
    ]


@pytest.mark.parametrize("tile", [1, 3, 4, 8, 64])
@pytest.mark.parametrize(("length", "size"), SHAPES)
def test_tiles_are_those_of_the_dense_mask(length, size, tile):
    function = positions(length, size, None).function(1)
    ours = block_mask(function, length, size, False, "cpu", tile)
    theirs = create_block_mask(
        function, 1, 1, 2 * length, 2 * length, device="cpu", BLOCK_SIZE=tile
    )
    assert ours.shape == theirs.shape and ours.seq_lengths == theirs.seq_lengths
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
        chosen = torch.arange(-(-2 * length // tile)) < getattr(ours, name)[..., None]
        indices = [getattr(mask, name.replace("num_blocks", "indices")) for mask in (ours, theirs)]
        assert torch.equal(*(torch.where(chosen, index, -1) for index in indices))


def test_with_padding_every_tile_is_masked():
    mask = block_mask(positions(16, 4, padding(16)).function(2), 16, 4, True, "cpu", tile=4)
    whole = block_mask(positions(16, 4, None).function(2), 16, 4, False, "cpu", tile=4)
    assert int(whole.full_kv_num_blocks.sum()) > 0 == int(mask.full_kv_num_blocks.sum())
    assert torch.equal(mask.to_dense(), whole.to_dense())


def streams(length, size, valid, device="cpu"):
    """The attention of both streams with dense masks, and with `flex_attention`."""
    where = positions(length, size, valid, device)
    mask = block_mask(where.function(2), length, size, valid is not None, device)
    # on a CPU not compiled: the rule without the kernel
    flex = FlexStreams(mask, flex_attention if device == "cpu" else compiled_flex())
    return dense_streams(where, length), flex


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("length", "size"), [(9, 4), pytest.param(100, 16, marks=pytest.mark.slow)]
)
def test_flex_attention_equals_dense_masks(length, size, padded):
    q, k, v = torch.randn(
        3, 2, 2, 2 * length, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    dense, flex = streams(length, size, padding(length) if padded else None)
    torch.testing.assert_close(flex(q, k, v), dense(q, k, v), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        flex.noised_only()(q, k, v), dense.noised_only()(q, k, v), rtol=0, atol=1e-12
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("length", "size"), [(64, 1), (200, 16), (512, 48), (333, 333)])
def test_compiled_flex_attention_and_its_gradient_equal_dense_masks(length, size, padded, dtype):
    torch._dynamo.reset()  # it stops compiling a function that other tests compiled often
    device = torch.device("cuda")
    valid = padding(length).to(device) if padded else None
    x = torch.randn(4, 2, 2, 2 * length, 64, generator=torch.Generator().manual_seed(0)).to(
        device, dtype
    )
    results = []
    for attention in streams(length, size, valid, device):
        for each in (attention, attention.noised_only()):
            q, k, v = inputs = [part.clone().requires_grad_() for part in x[:3]]
            mixed = each(q, k, v)
            results.append(
                [mixed, *torch.autograd.grad((mixed * x[3][:, :, : mixed.shape[2]]).sum(), inputs)]
            )
    error = 2e-2 if dtype == torch.bfloat16 else 5e-3  # TF32 products
    for dense, flex in zip(results[:2], results[2:]):
        for ours, theirs in zip(flex, dense, strict=True):
            assert (ours - theirs).norm() < error * theirs.norm()


@pytest.mark.parametrize("given", [False, True])
def test_attention_with_a_mask_never_uses_cudnn(given):
    """Its gradients are wrong on some GPUs, where it is PyTorch's first choice."""
    allowed = []

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is scaled_dot_product_attention:
                allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
            return function(*args, **kwargs or {})

    q, k, v = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if given else None
    with Recorded():
        mixed = masked_attention(q, k, v, mask)
    assert allowed == [not given] and torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.equal(mixed, scaled_dot_product_attention(q, k, v, attn_mask=mask))


def test_a_transformer_is_imported_without_the_compiler(python, without):
    """In PyTorch 2.7 that takes seconds, and fails while a network without memory is built."""
    code = (
        f"{without()}name = 'torch.nn.attention.flex_attention'\nsys.modules.pop(name, None)\n"
        "import torch\nwith torch.device('meta'): import dnadiff.networks.backbone.dit\n"
        "assert name not in sys.modules"
    )
    process = python("-c", code)
    assert process.wait() == 0, process.errors[-2000:]
