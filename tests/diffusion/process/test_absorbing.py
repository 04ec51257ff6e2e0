import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion import gaussian
from dnadiff.diffusion import process as processes
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood import estimators
from dnadiff.diffusion.noise import CosineSquared, LogLinear
from dnadiff.diffusion.objective import masking
from dnadiff.diffusion.objective.analog_bits import AnalogBits
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.process import SUBS, AbsorbingProcess
from dnadiff.diffusion.sampler import base as samplers
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.dit import DiT

TABLES = runpy.run_path(str(Path(__file__).parents[2] / "posteriors.py"))
plug_in_posterior, posterior = TABLES["plug_in_posterior"], TABLES["posterior"]

VOCAB = Vocab(4, 3, 3, (3,))
DNA = DNATokenizer().vocab
UNIFORM = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0], dtype=torch.float64).log()


def step(process, t, s, remask=0.0, xt=((3, 1),)):
    xt = torch.tensor(xt)
    times = [torch.tensor([v], dtype=torch.float64) for v in (t, s)]
    return posterior(process, UNIFORM.expand(*xt.shape, -1), xt, *times, remask)[0]


def test_a_masked_token_stays_with_one_half():
    # facts 13: t = 0.5 -> s = 0.25, eps = 0
    masked, visible = step(AbsorbingProcess(VOCAB, LogLinear(0.0)), 0.5, 0.25)
    assert masked[3].item() == pytest.approx(0.5)
    assert visible.tolist() == [0, 1, 0, 0]


def test_remasking_keeps_the_marginal():
    # facts 17: alpha_t = 0.5, alpha_s = 0.5 + 1/1024, r = 0.008
    masked, visible = step(AbsorbingProcess(VOCAB, LogLinear(0.0)), 0.5, 0.5 - 1 / 1024, 0.008)
    assert 1 - masked[3].item() == pytest.approx(0.00995313, abs=1e-8)
    assert 0.5 * (1 - masked[3].item()) + 0.5 * visible[1].item() == pytest.approx(0.5 + 1 / 1024)


def test_remasking_is_clamped_so_that_rows_stay_probabilities():
    process = AbsorbingProcess(VOCAB, LogLinear(0.0))
    for t, s, r in ((0.9, 0.1, 1.0), (0.2, 0.1, 5.0), (1.0, 0.5, 0.3)):
        rows = step(process, t, s, r)
        assert rows.min() >= 0
        torch.testing.assert_close(rows.sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "vocab"), [("dna", Vocab(16, 3, 4, (3,))), ("text", Vocab(33, 32, 32, (32,)))]
)
def test_ancestral_posterior_equals_the_published_one(parity, name, vocab):
    file = parity(f"mdlm_losses_{name}")
    log_probs = SUBS(vocab).log_probs(file["raw_logits"], file["xt"])
    t = file["t_sampler"]
    # The published sampler uses the mask probability t itself, whatever the schedule: eps = 0 here.
    probs = posterior(AbsorbingProcess(vocab, LogLinear(0.0)), log_probs, file["xt"], t, t - 0.1)
    torch.testing.assert_close(probs, file["ddpm_probs_dt0.1"], rtol=0, atol=1e-6)


def test_corrupt_masks_the_right_fraction_and_nothing_else():
    process = AbsorbingProcess(VOCAB, LogLinear(0.0))
    x0 = torch.ones(200, 500, dtype=torch.int64)
    maskable = torch.arange(500).expand(200, -1) < 400
    xt = process.corrupt(x0, torch.full((200,), 0.3), maskable, Draws.for_batch(0, 200))
    assert (xt[:, 400:] == 1).all() and set(xt.unique().tolist()) == {1, 3}
    assert (xt[:, :400] == 3).double().mean().item() == pytest.approx(
        0.3, abs=5 * (0.21 / 80_000) ** 0.5
    )


def test_corrupt_count_masks_exactly_so_many_uniformly():
    process = AbsorbingProcess(VOCAB, LogLinear())
    maskable = torch.tensor([[True, False, True, True]]).expand(3000, -1)
    xt = process.corrupt_count(
        torch.zeros(3000, 4, dtype=torch.int64),
        torch.full((3000,), 2),
        maskable,
        Draws.for_batch(1, 3000),
    )
    masked = xt == 3
    assert (masked.sum(-1) == 2).all() and not masked[:, 1].any()
    assert ((masked.double().mean(0)[[0, 2, 3]] - 2 / 3).abs() < 5 * (2 / 9 / 3000) ** 0.5).all()


def test_plug_in_posterior_is_the_ancestral_step_without_mass_on_the_mask():
    process = AbsorbingProcess(VOCAB, LogLinear(1e-3))
    xt, t, s = (
        torch.tensor([[3, 1, 3]]),
        torch.tensor([0.7], dtype=torch.float64),
        torch.tensor([0.2], dtype=torch.float64),
    )
    log_probs = UNIFORM.expand(1, 3, 4)
    torch.testing.assert_close(
        plug_in_posterior(process, log_probs, xt, t, s), posterior(process, log_probs, xt, t, s)
    )
    # With mass on the mask: rows stay probabilities, and a visible token stays what it is whatever
    # the distribution says.
    rows = plug_in_posterior(
        process,
        torch.log_softmax(torch.arange(4.0, dtype=torch.float64), -1).expand(1, 3, 4),
        xt,
        t,
        s,
    )
    torch.testing.assert_close(rows.sum(-1), torch.ones(1, 3, dtype=torch.float64))
    assert rows[0, 1].tolist() == [0, 1, 0, 0]


class NoFloat64(TorchFunctionMode):
    """The meta device as an Apple GPU: it has no float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if (
            isinstance(found, torch.Tensor)
            and found.device.type == "meta"
            and found.dtype == torch.float64
        ):
            raise TypeError("float64 on a device that has none")
        return found


@pytest.fixture
def without_float64(monkeypatch):
    """Makes the meta device one without float64."""
    substitutes = {
        torch.Tensor: {"to": to_the_cpu(torch.Tensor.to)},
        processes: {"float64_device": lambda device: torch.device("cpu")},
        gaussian: {"float64_device": lambda device: torch.device("cpu")},
        estimators: {
            "float64_device": lambda device: torch.device("cpu"),
            "widest_dtype": lambda device: torch.float32,
        },
        masking: {"widest_dtype": lambda device: torch.float32},
        samplers: {"widest_dtype": lambda device: torch.float32},
    }
    for owner, changed in substitutes.items():
        for name, value in changed.items():
            monkeypatch.setattr(owner, name, value)
    with NoFloat64():
        yield


def test_vectors_get_noise_and_lose_it_on_a_device_without_float64(without_float64):
    process = gaussian.GaussianProcess(DNA, CosineSquared())
    objective, draws = AnalogBits(process), Draws.for_batch(0, 2)
    denoiser = objective.denoiser(DiT(DNA, 8, 1, 2, 8))
    denoiser.codes = torch.ones(12, 2, device="meta")
    denoiser.backbone.mix = lambda h, sigma, cond, valid: h + sigma[:, None, None]
    for layer in (denoiser.input, denoiser.output):
        layer.to("meta")
    x0, weight = torch.full((2, 5), 8, device="meta"), torch.ones(2, 5, device="meta")
    assert objective.compute(denoiser, TrainingBatch(x0, weight, draws)).loss.is_meta
    times, clean = process.times(3, x0), denoiser.codes[x0]
    assert times.dtype == torch.float64 and process.times(3, clean, 0.5)[-1] == 0.5
    zt = process.corrupt(clean, times[2:], weight > 0, draws)
    estimate = denoiser.denoise(zt, times[2].expand(2))
    mean, std = process.reverse(estimate, zt, times[2], times[1])
    cost = process.step_cost(estimate, clean, times[1:3, None], times[:2, None])
    for each in (zt, estimate, mean, std, cost, process.ends(clean)):
        assert each.is_meta and each.dtype == torch.float32


def test_own_bounds_and_grids_of_times_on_a_device_without_float64(without_float64):
    seen = []

    def bound(denoiser, batch, u):
        seen.append((u.device.type, u.dtype))
        return u[:, None] * batch.weight

    ids = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    batch = estimators.WindowBatch(ids, {"all": torch.ones_like(ids, dtype=torch.bool)})
    draw = estimators._own_draw(SimpleNamespace(bound=bound), batch, 1, 4, Draws.for_batch(0, 2))
    assert draw.nats["all"].dtype == torch.float64 and seen == [("meta", torch.float32)]
    assert samplers.GridSampler.times(SimpleNamespace(num_steps=4), "meta").is_meta


def test_masks_are_drawn_on_a_device_without_float64(without_float64):
    process, draws = AbsorbingProcess(Vocab(4, 3, 3, (3,)), LogLinear()), Draws.for_batch(0, 2)
    x0, maskable = (
        torch.zeros(2, 5, dtype=torch.int64, device="meta"),
        torch.ones(2, 5, dtype=torch.bool, device="meta"),
    )
    rate, count = torch.full((2,), 0.5, device="meta"), torch.tensor([1, 2], device="meta")
    assert process.masked_at(x0, rate[:, None], maskable, draws).is_meta
    assert process.corrupt_count(x0, count, maskable, draws).is_meta
    assert estimators.stratified_counts(count[:, None], 0, 2, draws).is_meta


def to_the_cpu(to):
    """`Tensor.to`, with zeros for values that a meta tensor does not have."""

    def moved(x, *args, **kwargs):
        devices = (getattr(arg, "device", arg) for arg in args)
        to_cpu = any(isinstance(each, torch.device) and each.type == "cpu" for each in devices)
        return (
            torch.zeros(x.shape, dtype=x.dtype) if x.is_meta and to_cpu else to(x, *args, **kwargs)
        )

    return moved
