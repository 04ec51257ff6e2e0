import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.gaussian import GaussianProcess
from dnadiff.diffusion.noise import CosineSquared
from dnadiff.diffusion.objective.analog_bits import AnalogBits, bits
from dnadiff.diffusion.objective.base import TrainingBatch
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.sampler.ddim import DDIM
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT

DNA = DNATokenizer().vocab
FIVE = Vocab(7, 6, 5, (5, 6))  # three bits, three patterns of which are no token


def model(kind=DiT, vocab=DNA, **options):
    torch.manual_seed(0)
    objective = AnalogBits(GaussianProcess(vocab, CosineSquared()), **options)
    network = {"dropout": 0.0, "n_heads": 2} if kind is DiT else {"time_conditioning": True}
    denoiser = objective.denoiser(kind(vocab, d_model=16, n_layers=1, **network))
    denoiser.process_type = GaussianProcess
    for weight in denoiser.backbone.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return objective, denoiser.eval()


def loss_of(objective, denoiser, step=0):
    x0 = torch.arange(7, 11).repeat(8, 3)
    weight = torch.ones(x0.shape)
    x0[:, 5], weight[:, 5] = 11, 0  # N
    return objective(denoiser, x0, weight, Draws.for_batch(0, 8, step))


def test_a_base_has_two_bits_and_its_complement_the_other_ones():
    table = bits(DNA)
    assert table.shape == (12, 2) and set(map(tuple, table[7:11].tolist())) == {
        (-1, -1), (1, -1), (-1, 1), (1, 1)
    }  # fmt: skip
    assert torch.equal(table[list(DNA.complement)][7:11], -table[7:11])
    assert not table[[*range(7), 11]].any()
    assert [bits(Vocab.ending_in_mask(size)).shape[1] for size in (2, 3, 5, 6, 30_001)] == [
        1, 1, 2, 3, 15
    ]  # fmt: skip


@pytest.mark.parametrize("vocab", [DNA, FIVE])
def test_bits_are_rounded_to_the_token_that_they_are_of(vocab):
    _, denoiser = model(vocab=vocab)
    tokens = torch.tensor(vocab.emitted)
    noisy = denoiser.codes[tokens] + 0.4 * torch.randn(50, len(tokens), denoiser.codes.shape[1])
    log_probs = denoiser.round(noisy.clamp(-1.9, 1.9))
    near = (noisy - denoiser.codes[tokens]).abs().amax(-1) < 0.9
    assert (log_probs.argmax(-1) == tokens)[near].all() and (log_probs.exp().amax(-1) > 0.99).all()
    anything = torch.randn(200, denoiser.codes.shape[1])
    assert vocab.is_emitted()[denoiser.round(anything).argmax(-1)].all()
    assert torch.equal(
        denoiser.nearest(anything), denoiser.codes[denoiser.round(anything).argmax(-1)]
    )


@pytest.mark.parametrize("kind", [DiT, Caduceus])
def test_the_loss_is_the_squared_error_of_counted_bits(kind):
    objective, denoiser = model(kind)
    found = loss_of(objective, denoiser)
    found.loss.backward()
    assert found.num_tokens == 8 * 11 and denoiser.input.weight.grad.abs().sum() > 0
    torch.nn.init.zeros_(denoiser.output.weight), torch.nn.init.zeros_(denoiser.output.bias)
    torch.testing.assert_close(loss_of(objective, denoiser).nll, torch.tensor(1.0))


def test_half_of_the_batches_read_an_estimate_of_their_own_and_train_after_it():
    objective, denoiser = model(self_conditioning=0.5)
    calls, original = [], denoiser.denoise

    def counted(z, t, cond=None, valid=None, estimate=None):
        calls.append(estimate is None)
        return original(z, t, cond, valid, estimate)

    denoiser.denoise = counted
    for step in range(200):
        with torch.no_grad():
            loss_of(objective, denoiser, step)
    read = calls.count(False)
    assert len(calls) == 200 + read and 70 < read < 130
    always = AnalogBits(objective.process, self_conditioning=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(always, denoiser).loss.backward()
    assert denoiser.backbone.blocks[0].mlp[0].weight.grad.abs().sum() > 0


def test_without_self_conditioning_the_network_has_no_input_for_it():
    assert model()[1].input.in_features == 4
    objective, denoiser = model(self_conditioning=0.0)
    assert denoiser.input.in_features == 2 and loss_of(objective, denoiser).loss.isfinite()


def test_sampling_with_the_posterior_mean_gives_the_tokens_and_carries_the_estimate():
    _, denoiser = model()
    target = denoiser.codes[torch.tensor([8, 10, 7, 9])]
    carried = []

    def oracle(z, t, cond=None, valid=None, estimate=None):
        carried.append(estimate)
        return target.expand_as(z) * (1.0 + 0.01 * len(carried))

    denoiser.denoise = oracle
    for settings in ({}, {"eta": 0.0}, {"time_difference": 1.5}, {"clamp": True}):
        carried.clear()
        template = torch.full((3, 4), DNA.mask_id)
        found = DDIM(num_steps=6, **settings).sample(
            denoiser, GaussianProcess(DNA, CosineSquared()), template, Draws.for_batch(0, 3)
        )
        assert found.tokens.tolist() == [[8, 10, 7, 9]] * 3 and found.nfe == 6
        assert carried[0] is None
        torch.testing.assert_close(carried[3], target.expand(3, 4, 2) * 1.03)


def test_given_tokens_are_kept_and_seen_without_noise_as_in_training():
    objective, denoiser = model(self_conditioning=0.0)
    process, seen = denoiser.process, []

    def watch(z, t, cond=None, valid=None, estimate=None):
        seen.append(z[:, 1:])
        return torch.zeros_like(z)

    denoiser.denoise = watch
    template = torch.full((2, 3), DNA.mask_id)
    template[:, 1], template[:, 2] = 8, 11
    result = DDIM(num_steps=5).sample(denoiser, process, template, Draws.for_batch(0, 2))
    assert (result.tokens[:, 1] == 8).all() and (result.tokens[:, 2] == 11).all()
    start = template.masked_fill(template == DNA.mask_id, 7)
    objective(denoiser, start, torch.tensor([[1.0, 0, 0]] * 2), Draws.for_batch(0, 2))
    edited = Draws.for_batch(1, 2)
    DDIM(num_steps=2).sample(denoiser, process, template, edited, start=start, start_t=0.5)
    assert len(seen) == 5 + 1 + 2
    for z in seen:
        assert torch.equal(z, denoiser.codes[[8, 11]].expand_as(z))


def test_a_start_without_a_step_before_the_rounding_is_refused():
    _, denoiser = model()
    template = torch.full((1, 4), DNA.mask_id)
    for start_t in (1e-4, 1e-5):
        with pytest.raises(ValueError, match=rf"start_t {start_t} must be above 0\.0001 .process"):
            DDIM(num_steps=2).sample(
                denoiser,
                denoiser.process,
                template,
                Draws.for_batch(0, 1),
                start=torch.full((1, 4), 8),
                start_t=start_t,
            )


def test_the_same_sample_has_the_same_noise_in_every_batch():
    _, denoiser = model()
    denoiser.denoise = lambda z, *_: z
    template = torch.full((6, 5), DNA.mask_id)

    def tokens(rows):
        draws = Draws(3, torch.tensor(rows))
        return DDIM(num_steps=4).sample(denoiser, denoiser.process, template[rows], draws).tokens

    whole = tokens([0, 1, 2, 3, 4, 5])
    assert torch.equal(tokens([4, 1]), whole[[4, 1]]) and whole.unique(dim=0).shape[0] > 1


def test_it_says_that_it_has_no_likelihood_and_other_formulas_refuse_its_process():
    objective, denoiser = model()
    batch = TrainingBatch(torch.full((1, 4), 8), torch.ones(1, 4), Draws.for_batch(0, 1))
    with pytest.raises(ValueError, match=r"AnalogBits has no likelihood: an error of bits"):
        objective.token_bound(denoiser, batch, torch.tensor([0.5]))
    with pytest.raises(ValueError, match=r"Bound needs a process.*Gaussian noise on vectors"):
        Bound(objective.process)
