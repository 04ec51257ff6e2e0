"""Scans with given and returned states, and scans and convolutions of blocks."""

import pytest
import torch
import torch.nn.functional as F

from dnadiff.networks.kernels import facade
from dnadiff.networks.kernels.backend import ScanInputs, Walk, taps_before_blocks
from dnadiff.networks.kernels.facade import (
    SCANS,
    kernels,
    last_inputs,
    selective_scan,
)
from dnadiff.networks.kernels.portable import PortableBackend

# The fast scans, with the type in which they are compared with the reference in float64, and the
# tolerance.
EXACT = [
    ("reference", torch.float64, 1e-10),
    ("portable", torch.float64, 1e-10),
    ("cpu", torch.float32, 2e-5),
]
every_scan = pytest.mark.parametrize(
    ("scan", "dtype", "tolerance"), EXACT, ids=[name for name, *_ in EXACT]
)
# L, block size: one and several blocks in a chunk and several chunks in a block, shorter last
# blocks, b = 1, b = L.
SHAPES = [(7, 1), (12, 4), (13, 4), (37, 16), (70, 33), (150, 70), (20, 20), (100, 64)]


def short_conv(x, weight, bias, *, reverse=False, initial=None, block_size=0, scan="auto"):
    if initial is not None and not block_size:
        initial, block_size = initial[:, None], x.shape[1]
    backend = kernels(scan, x)
    return backend.short_conv(x, weight, bias, reverse, initial, block_size)


def scan_with_states(inputs, block, initial=None, scan="auto"):
    """A scan, and the states that enter its blocks."""
    walk = Walk(False, initial, block, states=True)
    return kernels(scan, inputs.u, inputs.A.shape[1], True).scan(inputs, walk)


def scan_blocks(inputs, block, initial=None, reverse=False, scan="auto"):
    """A scan of every block as a sequence of its own."""
    walk = Walk(reverse, initial, block, restart=True)
    return kernels(scan, inputs.u, inputs.A.shape[1], True).scan(inputs, walk).y


def grads_of(outputs, inputs):
    """Outputs, and the gradients of a fixed weighted sum of them."""
    weights = [
        torch.arange(y.numel(), dtype=torch.float64).view(y.shape).mul(0.37).sin().to(y.dtype)
        for y in outputs
    ]
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return [*(y.detach() for y in outputs), *torch.autograd.grad(total, inputs)]


def states_like(A, *batch, dtype):
    shape = (*batch, *A.shape)
    return (
        torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        .mul(0.61)
        .cos()
        .view(shape)
        .to(dtype)
        .requires_grad_()
    )


@pytest.mark.parametrize("reverse", [False, True])
@every_scan
def test_pieces_that_hand_over_their_state_are_one_long_scan(
    scan, dtype, tolerance, reverse, scan_inputs, close
):
    inputs = scan_inputs(2, 80, 19, 5, dtype)
    u, delta, A, B, C, D, bias = inputs
    h = start = states_like(A, 2, dtype=dtype)
    pieces, cuts = [], [(0, 3), (3, 4), (4, 45), (45, 80)]
    for i, j in reversed(cuts) if reverse else cuts:
        y, h = selective_scan(
            u[:, i:j],
            delta[:, i:j],
            A,
            B[:, i:j],
            C[:, i:j],
            D,
            bias,
            reverse=reverse,
            initial_state=h,
            return_last_state=True,
            scan=scan,
        )
        pieces.append(y)
    ours = grads_of([torch.cat(pieces[::-1] if reverse else pieces, dim=1), h], [*inputs, start])
    wide = [*scan_inputs(2, 80, 19, 5, torch.float64), states_like(A, 2, dtype=torch.float64)]
    whole = selective_scan(
        *wide[:7], reverse=reverse, initial_state=wide[7], return_last_state=True, scan="reference"
    )
    close(ours, grads_of(whole, wide), tolerance)


def separate_blocks(clean, noised, block):
    """The noised version by its definition: every block is scanned after the clean positions before
    it, all from their first one."""
    A, D, bias, parts = clean.A, clean.D, clean.delta_bias, []
    for i in range(0, clean.u.shape[1], block):
        rows = (
            torch.cat([x[:, :i], y[:, i : i + block]], dim=1)
            for x, y in zip((*clean[:2], *clean[3:5]), (*noised[:2], *noised[3:5]))
        )
        u, delta, B, C = rows
        parts.append(selective_scan(u, delta, A, B, C, D, bias, scan="reference")[:, i:])
    return torch.cat(parts, dim=1)


def two_versions(scan_inputs, L, dtype):
    """The inputs of a clean and of a noised version with common parameters, and all their
    leaves."""
    leaves = scan_inputs(2, L, 5, 3, dtype)
    noised = [x.detach().roll(1, 0).requires_grad_() for x in (*leaves[:2], *leaves[3:5])]
    clean = ScanInputs(*leaves)
    return (
        clean,
        ScanInputs(*noised[:2], clean.A, *noised[2:], clean.D, clean.delta_bias),
        [*leaves, *noised],
    )


@pytest.mark.parametrize(("L", "block"), SHAPES)
@every_scan
def test_two_scans_equal_separate_scans_of_every_block_after_its_prefix(
    scan, dtype, tolerance, L, block, scan_inputs, close
):
    clean, noised, leaves = two_versions(scan_inputs, L, dtype)
    y0, starts, last = scan_with_states(clean, block, scan=scan)
    yt = scan_blocks(noised, block, starts, scan=scan)
    assert starts[:, 0].eq(0).all() and last.dtype == dtype
    ours = grads_of([yt, y0], leaves)
    clean, noised, leaves = two_versions(scan_inputs, L, torch.float64)
    close(
        ours,
        grads_of(
            [separate_blocks(clean, noised, block), selective_scan(*clean, scan="reference")],
            leaves,
        ),
        tolerance,
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("L", "block"), SHAPES)
@every_scan
def test_a_scan_of_blocks_is_a_scan_of_each_block(
    scan, dtype, tolerance, L, block, reverse, given, scan_inputs, close
):
    def run(wide, by_block):
        inputs = scan_inputs(2, L, 19, 5, wide)
        u, delta, A, B, C, D, bias = inputs
        states = states_like(A, 2, -(-L // block), dtype=wide) if given else None
        leaves = [*inputs, states] if given else inputs
        if by_block:
            return grads_of(
                [scan_blocks(ScanInputs(*inputs), block, states, reverse=reverse, scan=scan)],
                leaves,
            )
        parts = [
            selective_scan(
                *(x[:, i : i + block] for x in (u, delta)), A,
                *(x[:, i : i + block] for x in (B, C)), D, bias,
                reverse=reverse, initial_state=None if states is None else states[:, i // block],
                scan="reference",
            )
            for i in range(0, L, block)
        ]  # fmt: skip
        return grads_of([torch.cat(parts, dim=1)], leaves)

    close(run(dtype, True), run(torch.float64, False), tolerance)


@pytest.mark.parametrize(("L", "block"), SHAPES)
@every_scan
def test_states_before_blocks_and_their_gradients_match_scans_of_the_prefixes(
    scan, dtype, tolerance, L, block, scan_inputs, close
):
    def run(wide, together):
        inputs = scan_inputs(2, L, 19, 5, wide)
        u, delta, A, B, C, D, bias = inputs
        start = states_like(A, 2, dtype=wide)
        if together:
            y, starts, last = scan_with_states(ScanInputs(*inputs), block, start, scan=scan)
            return grads_of([starts, last, y], [*inputs, start])
        ends = []
        for i in [*range(block, L, block), L]:
            rows = (x[:, :i] for x in (u, delta, B, C))
            u_, delta_, B_, C_ = rows
            y, h = selective_scan(
                u_,
                delta_,
                A,
                B_,
                C_,
                D,
                bias,
                initial_state=start,
                return_last_state=True,
                scan="reference",
            )
            ends.append(h)
        return grads_of([torch.stack([start, *ends[:-1]], dim=1), ends[-1], y], [*inputs, start])

    close(run(dtype, True), run(torch.float64, False), tolerance)


@every_scan
def test_one_of_the_results_alone_has_the_right_gradient(
    scan, dtype, tolerance, scan_inputs, close
):
    for number in range(3):

        def run(wide, by, number=number):
            inputs = scan_inputs(2, 37, 5, 3, wide)
            start = states_like(inputs[2], 2, dtype=wide)
            outputs = scan_with_states(ScanInputs(*inputs), 8, start, scan=by)
            weight = (
                torch.arange(outputs[number].numel(), dtype=torch.float64)
                .sin()
                .view(outputs[number].shape)
                .to(wide)
            )
            grads = torch.autograd.grad(
                (outputs[number] * weight).sum(),
                [*inputs, start],
                allow_unused=True,
                materialize_grads=True,
            )
            return list(grads)

        close(run(dtype, scan), run(torch.float64, "reference"), tolerance)


@pytest.mark.parametrize("reverse", [False, True])
def test_portable_gradients_match_finite_differences(reverse, scan_inputs):
    inputs = scan_inputs(1, 11, 2, 2, torch.float64)
    start, states = (
        states_like(inputs[2], 1, dtype=torch.float64),
        states_like(inputs[2], 1, 3, dtype=torch.float64),
    )

    def carried(h, *x):
        walk = Walk(reverse, h, None if reverse else 5, states=True)
        found = SCANS["portable"].scan(ScanInputs(*x), walk)
        return tuple(x for x in found if x is not None)

    def restarted(h, *x):
        return scan_blocks(ScanInputs(*x), 5, h, reverse=reverse, scan="portable")

    assert torch.autograd.gradcheck(carried, [start, *inputs])
    assert torch.autograd.gradcheck(restarted, [states, *inputs])


def test_portable_second_derivatives_match_the_reference(scan_inputs, close):
    def run(scan):
        inputs = scan_inputs(1, 13, 3, 2, torch.float64)
        leaves = [*inputs, states_like(inputs[2], 1, dtype=torch.float64)]
        outputs = scan_with_states(ScanInputs(*inputs), 4, leaves[-1], scan=scan)
        first = torch.autograd.grad(sum(y.sin().sum() for y in outputs), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    close(run("portable"), run("reference"), 1e-10)


def test_the_decay_of_a_piece_is_the_exponential_of_its_steps(scan, scan_inputs):
    u, delta, A, B, C, D, bias = (x.detach() for x in scan_inputs(2, 40, 4, 3))
    start = states_like(A, 2, dtype=torch.float32)
    ends = [
        selective_scan(
            u, delta, A, B, C, D, bias, initial_state=h, return_last_state=True, scan=scan
        )[1]
        for h in (start, start.detach() * 0)
    ]
    decay = torch.exp(F.softplus(delta + bias).sum(1)[..., None] * A)
    torch.testing.assert_close(ends[0] - ends[1], decay * start, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(ends[0].sum(), start)
    torch.testing.assert_close(gradient, decay, rtol=1e-4, atol=1e-6)


def conv_tensors(L, K, dtype):
    generator = torch.Generator().manual_seed(L + K)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for s in ((2, L, 19), (19, K), (19,))
    ]


def near_inputs(blocks, K, dtype):
    return (
        torch.arange(2 * blocks * (K - 1) * 19, dtype=torch.float64)
        .mul(0.7)
        .sin()
        .view(2, blocks, K - 1, 19)
        .to(dtype)
        .requires_grad_()
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("L", "block", "K"),
    [(7, 1, 4), (13, 2, 4), (37, 16, 4), (150, 70, 4), (70, 70, 3), (12, 5, 1), (20, 8, 9)],
)
@every_scan
def test_a_convolution_of_blocks_is_one_of_each_block_with_its_neighbors(
    scan, dtype, tolerance, L, block, K, reverse, given, close
):
    def run(wide, together):
        x, weight, bias = leaves = conv_tensors(L, K, wide)
        near = near_inputs(-(-L // block), K, wide) if given else None
        leaves = [*leaves, near] if given and K > 1 else leaves
        if together:
            return grads_of(
                [
                    short_conv(
                        x, weight, bias, block_size=block, initial=near, reverse=reverse, scan=scan
                    )
                ],
                leaves,
            )
        parts = []
        for i in range(0, L, block):
            rows = x[:, i : i + block]
            others = (
                torch.zeros_like(x[:, :0]).expand(2, 0, 19) if near is None else near[:, i // block]
            )
            row = torch.cat([rows, others] if reverse else [others, rows], dim=1)
            y = short_conv(row, weight, bias, reverse=reverse, scan="reference")
            parts.append(y[:, : rows.shape[1]] if reverse else y[:, others.shape[1] :])
        return grads_of([torch.cat(parts, dim=1)], leaves)

    close(run(dtype, True), run(torch.float64, False), tolerance)


@pytest.mark.parametrize("reverse", [False, True])
@every_scan
def test_pieces_that_hand_over_their_last_inputs_are_one_convolution(
    scan, dtype, tolerance, reverse, close
):
    x, weight, bias = conv_tensors(80, 4, dtype)
    near, pieces = near_inputs(1, 4, dtype)[:, 0], []
    start = near
    for i, j in [(0, 3), (3, 4), (4, 45), (45, 80)][:: -1 if reverse else 1]:
        pieces.append(short_conv(x[:, i:j], weight, bias, reverse=reverse, initial=near, scan=scan))
        near = (
            last_inputs(torch.cat([x[:, i:j], near], 1).flip(1), 4).flip(1)
            if reverse
            else last_inputs(torch.cat([near, x[:, i:j]], 1), 4)
        )
    ours = grads_of([torch.cat(pieces[::-1] if reverse else pieces, dim=1)], [x, weight, bias])
    wide = conv_tensors(80, 4, torch.float64)
    first = start.detach().double()
    row = torch.cat([wide[0], first] if reverse else [first, wide[0]], dim=1)
    y = short_conv(row, *wide[1:], reverse=reverse, scan="reference")
    close(ours, grads_of([y[:, :80] if reverse else y[:, 3:]], wide), tolerance)


@pytest.mark.parametrize(("L", "block"), [(9, 1), (9, 2), (12, 4), (13, 4), (5, 5)])
def test_inputs_before_blocks_are_those_of_the_sequence(L, block):
    x = torch.arange(1.0, L + 1).view(1, L, 1).requires_grad_()
    found = taps_before_blocks(x, 4, block)[0, :, :, 0].tolist()
    assert found == [[float(max(0, i + k)) for k in (-2, -1, 0)] for i in range(0, L, block)]
    assert taps_before_blocks(x, 1, block).shape == (1, -(-L // block), 0, 1)


def test_last_inputs_reach_back_through_short_pieces():
    x = torch.tensor([[[4.0], [5.0]]])
    assert last_inputs(x, 4).flatten().tolist() == [0, 4, 5]
    assert last_inputs(x, 2).flatten().tolist() == [5]
    assert last_inputs(x, 1).shape == (1, 0, 1)


def test_half_precision_keeps_its_states_in_float32(scan, scan_inputs):
    inputs = ScanInputs(*(x.detach().bfloat16() for x in scan_inputs(2, 20, 8, 4)))
    y, starts, last = scan_with_states(inputs, 8, scan=scan)
    assert (y.dtype, starts.dtype, last.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    wide = scan_with_states(ScanInputs(*(x.float() for x in inputs)), 8, scan="reference")
    torch.testing.assert_close(starts, wide.starts, rtol=1e-4, atol=1e-4)
    assert scan_blocks(inputs, 8, starts, scan=scan).dtype == torch.bfloat16


def test_an_empty_batch_has_empty_states(scan, scan_inputs):
    y, starts, last = scan_with_states(ScanInputs(*scan_inputs(0, 5, 4, 2)), 2, scan=scan)
    assert y.shape == (0, 5, 4) and starts.shape == (0, 3, 4, 2) and last.shape == (0, 4, 2)
    assert scan_blocks(ScanInputs(*scan_inputs(0, 5, 4, 2)), 2, scan=scan).shape == (0, 5, 4)


def test_sequences_without_positions_keep_their_state(scan, scan_inputs):
    inputs = scan_inputs(2, 0, 4, 3)
    start = states_like(inputs[2], 2, dtype=torch.float32)
    y, last = selective_scan(*inputs, initial_state=start, return_last_state=True, scan=scan)
    assert y.shape == (2, 0, 4) and torch.equal(last, start)


def test_wrong_arguments_are_refused_with_what_was_expected(scan_inputs):
    inputs = ScanInputs(*scan_inputs(2, 20, 4, 3))
    with pytest.raises(
        ValueError, match=r"initial_state has shape \(2, 3, 4\), expected \(2, 4, 3\)"
    ):
        selective_scan(*inputs, initial_state=torch.zeros(2, 3, 4))
    with pytest.raises(
        ValueError,
        match=r"initial_state has type torch\.bfloat16, expected torch\.float32, in which",
    ):
        selective_scan(*inputs, initial_state=torch.zeros(2, 4, 3).bfloat16())


class Stateless(PortableBackend):
    lacks_states = SCANS["mamba_ssm"].lacks_states


def test_a_scan_without_states_is_refused_with_the_reason(in_place_of_cpu, scan_inputs, caplog):
    inputs = scan_inputs(1, 6, 2, 2)
    in_place_of_cpu(Stateless())
    reason = (
        "scan 'cpu' was asked for and cannot run: states that enter or leave a scan; its kernel "
        "always starts from zero; set scan=portable"
    )
    for call in (
        lambda: selective_scan(*inputs, return_last_state=True, scan="cpu"),
        lambda: scan_with_states(ScanInputs(*inputs), 2, scan="cpu"),
        lambda: scan_blocks(ScanInputs(*inputs), 2, scan="cpu"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            call()
    facade._warn_once.cache_clear()
    assert scan_blocks(ScanInputs(*inputs), 2).shape == (1, 6, 2)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        "selective scan: portable instead of cpu, because of states that enter or leave a scan; "
        "its kernel always starts from zero"
    ]


def test_no_array_holds_the_states_of_all_positions(scan_inputs):
    Bt, L, E, N, block = 2, 256, 16, 16, 16
    for scan in ("cpu", "portable"):
        sizes: list[int] = []
        inputs, noised = (ScanInputs(*scan_inputs(Bt, L, E, N)) for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            y, starts, _ = scan_with_states(inputs, block, scan=scan)
            y = (
                y
                + scan_blocks(noised, block, starts, scan=scan)
                + scan_blocks(noised, block, reverse=True, scan=scan)
            )
        y.sum().backward()
        assert (
            max(sizes) == Bt * L * E
        )  # the states before blocks; those of all positions would be 16 times as many


def test_a_compiled_model_is_one_graph_with_the_same_gradients(scan_inputs, close, monkeypatch):
    def two_streams(u, delta, A, B, C, D, bias):
        inputs = ScanInputs(
            short_conv(u, torch.stack([D, bias], dim=-1), bias, block_size=8, reverse=True),
            delta,
            A,
            B,
            C,
            D,
            bias,
        )
        y, starts, last = scan_with_states(inputs, 8)
        return (
            y + scan_blocks(inputs, 8, starts) + scan_blocks(inputs, 8, reverse=True) + last.sum()
        )

    monkeypatch.delenv("DNADIFF_SCAN", raising=False)
    ours, expected = scan_inputs(2, 37, 5, 3), scan_inputs(2, 37, 5, 3)
    compiled = torch.compile(two_streams, backend="aot_eager", fullgraph=True)
    close(grads_of([compiled(*ours)], ours), grads_of([two_streams(*expected)], expected), 1e-6)


@pytest.mark.parametrize(
    "test_utils",
    [("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")],
)
def test_the_cpu_operators_pass_opcheck(test_utils, scan_inputs):
    *inputs, bias = scan_inputs(2, 35, 5, 3)
    one, several = (
        states.detach().mT.contiguous().requires_grad_()
        for states in (
            states_like(inputs[2], 2, dtype=torch.float32),
            states_like(inputs[2], 2, 5, dtype=torch.float32),
        )
    )
    for options in (
        (True, one, 8, False, True),
        (False, several, 8, True, False),
        (False, None, 8, True, False),
    ):
        torch.library.opcheck(
            torch.ops.dnadiff.selective_scan,
            (*inputs, bias, False, *options),
            test_utils=test_utils,
        )
    x, weight, bias = conv_tensors(35, 4, torch.float32)
    torch.library.opcheck(
        torch.ops.dnadiff.short_conv,
        (x, weight, bias, True, near_inputs(5, 4, torch.float32), 8),
        test_utils=test_utils,
    )
