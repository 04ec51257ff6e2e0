"""Left to right, with a memory that must say what the full pass says."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from dnadiff.diffusion.denoiser import CausalDenoiser, Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.backbone.transformer import GPT2, Transformer

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
PROCESS = AbsorbingProcess(DNA, LogLinear())


def network(kind, **settings):
    torch.manual_seed(0)
    built = {
        "mamba": lambda: Mamba(DNA, 16, 3, d_state=8, **settings),
        "transformer": lambda: Transformer(DNA, 16, 2, 2, **settings),
    }[kind]()
    for name, p in built.named_parameters():
        if p.ndim == 2 and "A_log" not in name:
            torch.nn.init.normal_(p, std=0.3)
    return CausalDenoiser(built.eval())


@pytest.mark.parametrize("kind", ["mamba", "transformer"])
@torch.no_grad()
def test_token_by_token_equals_the_full_pass(kind):
    denoiser, ids = (
        network(kind),
        torch.randint(7, 11, (3, 140)),
    )  # more than twice the first room for keys and values
    whole = denoiser.next_log_probs(ids)
    token, state = torch.full((3,), 3), None
    for at in range(140):
        log_probs, state = denoiser.step(token, state)
        torch.testing.assert_close(log_probs, whole[:, at], rtol=1e-5, atol=1e-5)
        token = ids[:, at]
    assert state.length == 140


@pytest.mark.parametrize("kind", ["mamba", "transformer"])
@torch.no_grad()
def test_several_tokens_at_once_equal_the_full_pass(kind):
    denoiser, ids, cond = network(kind), torch.randint(7, 11, (3, 90)), None
    if kind == "mamba":
        denoiser, cond = network(kind, num_labels=3), torch.eye(3)
    whole, seen = (
        denoiser.next_log_probs(ids, cond),
        torch.cat([torch.full((3, 1), 3), ids[:, :-1]], 1),
    )
    first, state = denoiser.read(seen[:, :2], None, cond)  # fewer than the taps of a convolution
    second, state = denoiser.step(seen[:, 2], state, cond)
    third, state = denoiser.read(seen[:, 3:], state, cond)
    torch.testing.assert_close(
        torch.cat([first, second[:, None], third], 1), whole, rtol=1e-5, atol=1e-5
    )
    assert state.length == 90


@torch.no_grad()
def test_in_bfloat16_token_by_token_is_as_good_as_the_full_pass():
    # Both against float32. A state kept in bfloat16 forgets: slow channels decay by less than the
    # type can say.
    exact, denoiser, ids = (
        network("mamba"),
        network("mamba").to(torch.bfloat16),
        torch.randint(7, 11, (3, 400)),
    )
    for one in (exact, denoiser):
        for layer in one.backbone.layers:
            layer.mixer.fwd.dt_bias.fill_(-6.0)  # steps of 0.0025: a memory of hundreds of tokens
    whole, truth = denoiser.next_log_probs(ids), exact.next_log_probs(ids)
    token, state, steps = torch.full((3,), 3), None, []
    for at in range(400):
        log_probs, state = denoiser.step(token, state)
        steps.append(log_probs)
        token = ids[:, at]
    ours, theirs = (
        (x[:, 200:, 7:11] - truth[:, 200:, 7:11]).square().mean().sqrt()
        for x in (torch.stack(steps, 1), whole)
    )
    assert ours < 1.3 * theirs


@torch.no_grad()
def test_mamba_remembers_under_labels_and_wide_streams():
    denoiser = network("mamba", num_labels=2, rms_norm=False, residual_in_fp32=True)
    ids, cond = torch.randint(7, 11, (2, 20)), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    whole, state, token = denoiser.next_log_probs(ids, cond), None, torch.full((2,), 3)
    for at in range(20):
        log_probs, state = denoiser.step(token, state, cond)
        torch.testing.assert_close(log_probs, whole[:, at], rtol=1e-5, atol=1e-5)
        token = ids[:, at]
    assert (whole[0] - denoiser.next_log_probs(ids)[0])[:, 7:11].abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["mamba", "transformer"])
def test_samples_equal_draws_from_the_full_pass(kind):
    # Each token is the draw from the distribution of its prefix, with the sample's own uniform.
    denoiser, draws = network(kind), Draws.for_batch(3, 4)
    result = Autoregressive().sample(denoiser, PROCESS, PROCESS.prior(4, 12), draws)
    probs = denoiser.next_log_probs(result.tokens).double().exp()
    cdf, u = probs.cumsum(-1), draws.uniform("token", 12)[..., None]
    at = result.tokens[..., None]
    assert ((cdf - probs).gather(-1, at) - 1e-5 < u).all() and (u < cdf.gather(-1, at) + 1e-5).all()
    assert (result.nfe, result.rows) == (12, 48)


def test_a_sequence_is_read_to_its_last_mask():
    denoiser, x_init = network("mamba"), torch.full((3, 10), 7)
    x_init[0, 2], x_init[1, 6] = 3, 3
    result = Autoregressive().sample(denoiser, PROCESS, x_init, Draws.for_batch(0, 3))
    assert (result.nfe, result.rows) == (7, 3 + 7) and (result.tokens != 3).all()
    alone = Autoregressive().sample(denoiser, PROCESS, x_init[1:2], Draws(0, torch.tensor([1])))
    assert torch.equal(alone.tokens[0], result.tokens[1])


def test_a_token_does_not_wait_for_the_gpu_where_no_sequence_ends(world):
    model = world.table(Autoregressive())
    expected = world.draw(Autoregressive(), model, 9).tokens

    class NeverAll(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            assert function is not torch.Tensor.all, "the processor waits for a reduction"
            return function(*args, **kwargs or {})

    with NeverAll():
        found = world.draw(Autoregressive(), model, 9).tokens
    assert torch.equal(found, expected)


def test_misfits_are_refused():
    with pytest.raises(
        ValueError,
        match=(
            "Autoregressive samples from an autoregressive model, and this is a model that "
            "unmasks in any order"
        ),
    ):
        Autoregressive().sample(
            Denoiser(DiT(DNA, 16, 1, 2, 8)), PROCESS, PROCESS.prior(1, 4), Draws.for_batch(0, 1)
        )
    with pytest.raises(
        ValueError, match=r"Grouped samples from a model that unmasks in any order.* set sampler=ar"
    ):
        Grouped().sample(network("mamba"), PROCESS, PROCESS.prior(1, 4), Draws.for_batch(0, 1))
    with pytest.raises(
        ValueError, match="GPT2 cannot read token by token; mamba and transformer can"
    ):
        GPT2(DNA, 16, 1, 2, max_length=8, rows=12, start=3).step(torch.tensor([7]))
    with pytest.raises(ValueError, match="length 5 exceeds"):
        Autoregressive().sample(
            network("transformer", max_length=4),
            PROCESS,
            PROCESS.prior(1, 5),
            Draws.for_batch(0, 1),
        )
