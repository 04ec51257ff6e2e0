"""Weights of models that go from left to right: tokens that a draw does not see are scored during
sampling, at any length."""

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.conditioning import Constrained, Guided
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.request import Templates, pattern_of
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Query
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba

SMALL = Vocab(4, 3, 3, (3,))  # letters 0, 1, 2; the mask is 3
DNA = DNATokenizer()
# The mask is 3, padding 4 and N 11. In the last row nothing is to be scored.
TEMPLATE = torch.tensor(
    [[3, 3, 8, 3, 7, 9], [7, 8, 3, 11, 9, 8], [3, 8, 3, 7, 4, 4], [8, 9, 3, 3, 3, 3]]
)
VALID = TEMPLATE != 4


def initialized(network):
    torch.manual_seed(4)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return network.double().eval()


def block_model(size, vocab=DNA.vocab, num_labels=2):
    return BlockDenoiser(
        initialized(Caduceus(vocab, d_model=8, n_layers=2, d_state=4, num_labels=num_labels)), size
    )


def three_of(template):
    """Three samples of a template."""
    return Templates([("template", pattern_of(DNA, template))], 3, DNA.vocab.mask_id)


def drawn(denoiser, sampler, template, kind=None, allowed=None, tilt=None, cond=None, valid=None):
    """Samples and log weights."""
    vocab = denoiser.vocab
    kind, allowed = (
        (torch.zeros(1).long(), vocab.is_emitted()[None]) if kind is None else (kind, allowed)
    )
    constrained = Constrained(denoiser, kind.expand(template.shape), allowed, tilt, template)
    draws, frozen = Draws.for_batch(0, len(template)), template != vocab.mask_id
    process = AbsorbingProcess(vocab, LogLinear())
    samples = sampler.sample(constrained, process, template, draws, frozen, cond, valid)
    return samples, constrained.log_weight()


def every_log_p(denoiser, tokens, hidden, place, cond=None, valid=None):
    """log p (B, V) at one place by reading the whole sequence, with the `hidden (L,)` or (B, L)
    tokens masked."""
    with torch.no_grad():
        return denoiser.log_probs(
            torch.where(hidden, denoiser.vocab.mask_id, tokens), None, cond, None, valid
        )[:, place]


def log_p(denoiser, tokens, hidden, place, cond=None, valid=None):
    """The same for the tokens themselves: (B,)."""
    return every_log_p(denoiser, tokens, hidden, place, cond, valid).gather(
        -1, tokens[:, place, None]
    )[:, 0]


def unseen_log_p(denoiser, tokens, template, size, cond=None, valid=None):
    """The chain rule of the fixed letters in blocks after the first one with a mask, one place
    after the other."""
    masked, total = template == 3, torch.zeros(len(tokens), dtype=torch.float64)
    for place in range(tokens.shape[1]):
        start = place - place % size
        fixed = (template[:, place] >= 7) & (template[:, place] <= 10) & masked[:, :start].any(-1)
        after = torch.arange(tokens.shape[1]) >= place
        hidden = (masked | (after & (template != 11) & (template != 4))) & (
            torch.arange(tokens.shape[1]) >= start
        )
        total += torch.where(fixed, log_p(denoiser, tokens, hidden, place, cond, valid), 0.0)
    return total


@pytest.mark.parametrize("weight", [None, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_the_weight_is_the_probability_of_the_tokens_that_were_not_seen(size, weight):
    model, cond = block_model(size), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    model = model if weight is None else Guided(model, weight)
    samples, found = drawn(model, Blockwise(Grouped(1)), TEMPLATE, cond=cond, valid=VALID)
    expected = unseen_log_p(model, samples.tokens, TEMPLATE, size, cond, VALID)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (expected[:3] < 0).any() == (size < 6) and expected[3] == 0


@pytest.mark.parametrize("weight", [1.0, 1.5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_weighted_samples_have_the_distribution_given_all_constraints(size, weight):
    # By enumeration: the probability of being drawn times the weight is the model's times
    # exp(tilt), where the constraints hold. The first two tokens are drawn, the second is no 0, and
    # neither sees a fixed one of a later block.
    model, count = Guided(block_model(size, SMALL), weight), 1000
    cond, template = torch.tensor([[1.0, 0.0]]), torch.tensor([[3, 3, 1, 2]]).expand(count, 4)
    allowed, tilt = (
        torch.tensor([[True, True, True, False], [False, True, True, False]]),
        torch.tensor([0.0, 0.7, 0.0, 0.0]),
    )
    samples, log_weight = drawn(
        model,
        Blockwise(Grouped(1)),
        template,
        torch.tensor([0, 1, 0, 0]),
        allowed,
        tilt,
        cond.expand(count, 2),
    )
    sequences = torch.tensor([[a, b, 1, 2] for a in range(3) for b in range(1, 3)])
    drawing, target = torch.zeros(2, 6, dtype=torch.float64)
    for place in range(4):
        hidden = torch.tensor(
            [
                start - start % size == place - place % size and (start < 2 or start >= place > 1)
                for start in range(4)
            ]
        )
        if place < 2:
            added = tilt.double() + torch.where(allowed[place], 0.0, -torch.inf)
            log_probs = every_log_p(model, sequences, hidden, place, cond.expand(6, 2))
            drawing += (
                (log_probs + added).log_softmax(-1).gather(-1, sequences[:, place, None])[:, 0]
            )
            target += (log_probs + added).gather(-1, sequences[:, place, None])[:, 0]
        elif place >= size:
            target += log_p(model, sequences, hidden, place, cond.expand(6, 2))
    assert float(drawing.exp().sum()) == pytest.approx(1)
    row = 2 * samples.tokens[:, 0] + samples.tokens[:, 1] - 1
    assert len(row.unique()) == 6
    torch.testing.assert_close(log_weight, (target - drawing)[row], rtol=0, atol=1e-9)


def test_a_dit_scores_tokens_beyond_its_length_in_constant_memory():
    network = initialized(
        DiT(DNA.vocab, d_model=8, n_layers=2, n_heads=2, cond_dim=4, max_length=8)
    ).float()
    model, sizes = BlockDenoiser(network, 2), set()
    request = three_of("ANNC" + "GATTACANC" * 4 + "ACG")
    read = network.step_block

    def recorded(xt, state=None, *rest):
        sizes.update(
            [
                ("block", xt.shape[1]),
                *(("state", x.shape[2]) for x in (state.tensors if state else ())),
            ]
        )
        return read(xt, state, *rest)

    network.step_block = recorded
    made = ConditionalSampler(
        model, AbsorbingProcess(DNA.vocab, LogLinear()), DNA, Blockwise(Grouped(1))
    )
    batch = made.fill([(i, request[i]) for i in range(3)], seed=0)
    assert {size for kind, size in sizes if kind == "block"} == {1, 2} and max(
        size for _, size in sizes
    ) == 8
    network.requires_grad_(
        False
    )  # by hand: one token after the other, the state after the blocks before.
    template = torch.from_numpy(request[0].pattern.ids)[None]
    tokens, total, state = torch.tensor(batch.tokens[0])[None], 0.0, None
    for start in range(0, tokens.shape[1], 2):
        block = tokens[:, start : start + 2]
        masked = template[:, start : start + 2] == 3
        for place in range(block.shape[1]):
            if start and not masked[0, place]:
                hidden = masked | (torch.arange(block.shape[1]) >= place)
                total += float(
                    model.step_block(Query(torch.where(hidden, 3, block)), state)[
                        0, place, block[0, place]
                    ]
                )
        state = model.advance(Query(block), state)
    assert float(batch.log_weight[0]) == pytest.approx(total, abs=1e-4)


def test_guided_samples_of_a_block_model_have_weights():
    model, labels = block_model(4), torch.tensor([[1.0, 0.0]])
    process, request = (
        AbsorbingProcess(DNA.vocab, LogLinear()),
        three_of("NNNNACGT"),
    )
    made = ConditionalSampler(Guided(model, 2.0), process, DNA, Blockwise(Grouped(1)), labels)
    batch = next(made.batches(request, 1, 3))
    assert made.has_weights(request) and (batch.log_weight < 0).all() and batch.nfe == 1 + 1 + 4


def test_an_autoregressive_model_never_reads_a_whole_sequence():
    network = initialized(Mamba(DNA.vocab, d_model=8, n_layers=1, d_state=4, num_labels=2))
    model, cond = CausalDenoiser(network), torch.eye(2).repeat(2, 1)
    whole, network.features = network.features, None
    samples, found = drawn(model, Autoregressive(), TEMPLATE, cond=cond, valid=VALID)
    network.features = whole
    with torch.no_grad():
        log_probs = model.next_log_probs(samples.tokens, cond).gather(
            -1, samples.tokens[..., None]
        )[..., 0]
    letters = (TEMPLATE >= 7) & (TEMPLATE <= 10)
    expected = torch.where(letters & ((TEMPLATE == 3).cumsum(-1) > 0), log_probs, 0.0).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (samples.nfe, samples.rows) == (6, 6 + 6 + 4 + 6)  # up to the last letter


def test_an_autoregressive_model_reads_what_is_scored_in_pieces():
    model = CausalDenoiser(initialized(Mamba(DNA.vocab, d_model=8, n_layers=2, d_state=4)))
    template = torch.cat([TEMPLATE[:2], torch.randint(7, 11, (2, 150))], 1)
    template[1, 140:] = 4
    samples, found = drawn(model, Autoregressive(), template, valid=template != 4)
    with torch.no_grad():
        log_probs = model.next_log_probs(samples.tokens).gather(-1, samples.tokens[..., None])[
            ..., 0
        ]
    letters = (template >= 7) & (template <= 10)
    expected = torch.where(letters & ((template == 3).cumsum(-1) > 0), log_probs, 0.0).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (samples.nfe, samples.rows) == (
        4 + 3,
        2 * 4 + 2 + 2 + 2,
    )  # up to the last mask, then 64, 64 and 24 tokens


def test_a_sampler_reads_on_for_the_weights_alone():
    model, template = block_model(2), TEMPLATE[:1].clone()
    template[:, 3] = 7  # masks in the first of three blocks
    samples, _ = drawn(model, Blockwise(Grouped(1)), template)
    assert (
        samples.nfe == 1 + 2 + 4
    )  # one that fills the masks, two that read a block, and one for each fixed token
    constrained = Constrained(model, torch.zeros_like(template), DNA.vocab.is_emitted()[None])
    process = AbsorbingProcess(DNA.vocab, LogLinear())
    alone = Blockwise(Grouped(1)).sample(constrained, process, template, Draws.for_batch(0, 1))
    assert alone.nfe == 1 and torch.equal(alone.tokens, samples.tokens)
