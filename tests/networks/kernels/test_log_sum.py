import pytest
import torch

from dnadiff.networks.kernels.log_sum import _difference, _Portable, linear_log_sum


def plain(features, weight, bias, ids, banned):
    logits = torch.nn.functional.linear(features, weight, bias)
    hidden = torch.zeros(len(weight), dtype=torch.bool)
    hidden[list(banned)] = True
    return logits.masked_fill(hidden, -torch.inf).logsumexp(1), logits.gather(1, ids)


def inputs(dtype=torch.float32, rows=13, with_bias=True):
    torch.manual_seed(0)
    made = [torch.randn(rows, 6), torch.randn(50, 6), torch.randn(50) if with_bias else None]
    return [None if x is None else x.to(dtype).requires_grad_() for x in made], torch.randint(
        0, 40, (rows, 2)
    )


@pytest.mark.parametrize("block", [1, 7, 50, 64])
@pytest.mark.parametrize("with_bias", [True, False])
def test_value_and_gradient_match_the_plain_computation(block, with_bias):
    results = []
    for call in (plain, lambda *a: linear_log_sum(*a, block=block)):
        given, ids = inputs(torch.float64, with_bias=with_bias)
        log_sum, picked = call(*given, ids, (48, 49, 44))
        loss = (
            log_sum.square() - (1 + torch.arange(13)) * picked[:, 0] * log_sum + 3 * picked[:, 1]
        ).sum()
        results.append(
            [log_sum, picked, *torch.autograd.grad(loss, [x for x in given if x is not None])]
        )
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_a_column_may_be_gathered_twice():
    given, _ = inputs(torch.float64)
    ids = torch.full((13, 2), 3)
    linear_log_sum(*given, ids)[1].sum().backward()
    torch.testing.assert_close(
        given[2].grad, 26.0 * torch.nn.functional.one_hot(torch.tensor(3), 50).double()
    )


def test_float32_and_autocast_keep_the_sum_in_float32():
    given, ids = inputs()
    exact = plain(*(x.double() for x in given), ids, ())[0]
    assert (linear_log_sum(*given, ids)[0] - exact).abs().max() < 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_sum, picked = linear_log_sum(*given, ids)
        logits = torch.nn.functional.linear(given[0], given[1]).float() + given[2]
    assert log_sum.dtype == picked.dtype == torch.float32
    torch.testing.assert_close(log_sum, logits.logsumexp(1), rtol=2e-3, atol=2e-3)
    (log_sum - picked[:, 0]).sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in given)


def test_empty_inputs_give_empty_outputs_and_zero_gradients():
    given, ids = inputs(rows=0)
    log_sum, picked = linear_log_sum(*given, ids)
    (log_sum.sum() + picked.sum()).backward()
    assert log_sum.shape == (0,) and all((x.grad == 0).all() for x in given)


def test_nothing_as_large_as_the_logits_is_saved_for_the_backward_pass():
    given, ids = inputs()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        linear_log_sum(*given, ids, block=10)
    assert max(kept) == 50 * 6 < 13 * 50


class Failing:
    @staticmethod
    def add_log_sum(*_):
        raise RuntimeError("no compiler")


class Wrong(_Portable):
    @staticmethod
    def add_log_sum(logits, bias, ids, first, log_sum, picked):
        log_sum.fill_(7.0)


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [(Failing, "no compiler"), (Wrong, "its results differ from PyTorch's by"), (_Portable, "")],
)
def test_kernels_that_fail_or_differ_are_found(kernels, reason):
    found = _difference(torch.device("cpu"), kernels)
    assert found.startswith(reason) if reason else found == ""
