"""Block sampling: the state replaces earlier blocks exactly, and samples have the distribution of
the model."""

import itertools

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.conditioning import Constrained, Guided
from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.request import FREE, Pattern, Target
from dnadiff.diffusion.denoiser import (
    BlockDenoiser,
    Conjoined,
    Denoiser,
    InBlock,
    OtherStrand,
    Query,
    site_log_probs,
)
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate, exact_nelbo
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.diffusion.sampler.threshold import Threshold
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus

SMALL = Vocab(4, 3, 3, (3,))  # letters 0, 1, 2; the mask is 3
DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
INNER = [FirstHitting(), Grouped(3), Confidence(num_steps=2), Threshold(threshold=0.4)]


def denoiser(size, vocab=DNA, **options):
    torch.manual_seed(4)
    net = Caduceus(vocab, d_model=8, n_layers=2, d_state=4, **options).double().eval()
    torch.nn.init.normal_(net.embedding.weight, std=0.6)
    for name, parameter in net.named_parameters():
        if "adaLN" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return BlockDenoiser(net, size)


def sample(model, sampler, x_init, seed=0, **kwargs):
    return sampler.sample(
        model,
        AbsorbingProcess(model.vocab, LogLinear()),
        x_init,
        Draws.for_batch(seed, len(x_init)),
        **kwargs,
    )


class Uncached(BlockDenoiser):
    """The same predictions by reading everything again: `log_probs` of the whole sequence. The
    state is what has been read."""

    def step_block(self, query, state=None):
        xt = query.xt
        before = xt[:, :0] if state is None else state.tensors[0]
        found = self.log_probs(torch.cat([before, xt], 1), None, query.cond)[:, before.shape[1] :]
        return found if query.positions is None else found[query.positions]

    def advance(self, query, state=None):
        x0 = query.xt
        from dnadiff.networks.backbone.base import State

        return State([x0.clone() if state is None else torch.cat([state.tensors[0], x0], 1)])


@pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1, 4, 5, 30])
def test_the_cached_sampler_equals_the_uncached_one(inner, size):
    inner = Grouped(1) if size == 1 and isinstance(inner, (Grouped, Confidence)) else inner
    model, x_init = denoiser(size), torch.full((3, 13), 3)
    x_init[1, 7:9], x_init[2, :4] = 8, 10  # given tokens, also to the right of masks
    cached = sample(model, Blockwise(inner), x_init)
    uncached = sample(Uncached(model.backbone, size), Blockwise(inner), x_init)
    assert torch.equal(cached.tokens, uncached.tokens)
    assert (
        (cached.tokens != 3).all()
        and (cached.tokens[1, 7:9] == 8).all()
        and (cached.tokens[2, :4] == 10).all()
    )


def test_rows_do_not_depend_on_the_batch():
    model, x_init = denoiser(4), torch.full((4, 18), 3)
    whole = sample(model, Blockwise(Grouped(2)), x_init).tokens
    process = AbsorbingProcess(DNA, LogLinear())
    one = (
        Blockwise(Grouped(2)).sample(model, process, x_init[:1], Draws(0, torch.tensor([2]))).tokens
    )
    assert torch.equal(one[0], whole[2])


def test_network_calls_are_counted_and_bounded():
    model, x_init = denoiser(4), torch.full((2, 18), 3)
    fitted = Blockwise(Grouped(2)).fitted(model)
    found = sample(model, Blockwise(Grouped(2)), x_init)
    assert found.nfe == 5 * 2 + 4  # five blocks of two calls, and four that are read
    assert found.nfe <= fitted.num_steps_for(18) == 5 * 3
    assert found.rows == 2 * found.nfe - 1  # nothing distinguishes the rows in the first call


def enumerated(model, length, size):
    """p of each sequence of three letters by blocks in which one position after the other is
    unmasked in random order."""
    sequences = torch.tensor(list(itertools.product(range(3), repeat=length)))
    p = torch.ones(len(sequences), dtype=torch.float64)
    with torch.no_grad():
        for start in range(0, length, size):
            places = range(start, min(start + size, length))
            orders = list(itertools.permutations(places))
            block = torch.zeros_like(p)
            for order in orders:
                chain = torch.ones_like(p)
                for step, place in enumerate(order):
                    hidden = torch.zeros(length, dtype=torch.bool)
                    hidden[list(order[step:])] = True
                    position = torch.zeros(sequences.shape, dtype=torch.bool)
                    position[:, place] = True
                    chain *= (
                        -model.nll(sequences, torch.where(hidden, 3, sequences), positions=position)
                    ).exp()
                block += chain / len(orders)
            p *= block
    return p


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def test_samples_have_the_distribution_of_the_model(size):
    model, count = denoiser(size, SMALL), 20_000
    p = enumerated(model, 4, size)
    assert float(p.sum()) == pytest.approx(1)
    tokens = sample(model, Blockwise(FirstHitting()), torch.full((count, 4), 3)).tokens
    found = torch.bincount(tokens @ torch.tensor([27, 9, 3, 1]), minlength=81) / count
    assert float((found - p).abs().sum() / 2) < 0.01  # total variation; about 0.003 is expected


def test_labels_and_guidance():
    model, x_init = denoiser(4, num_labels=2), torch.full((3, 10), 3)
    cond = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    plain = sample(model, Blockwise(Grouped(2)), x_init, cond=cond)
    assert torch.equal(
        sample(Guided(model, 1.0), Blockwise(Grouped(2)), x_init, cond=cond).tokens, plain.tokens
    )
    assert not torch.equal(sample(model, Blockwise(Grouped(2)), x_init).tokens, plain.tokens)
    guided, uncached = (Guided(m, 2.5) for m in (model, Uncached(model.backbone, 4)))
    found = sample(guided, Blockwise(Grouped(2)), x_init, cond=cond)
    assert torch.equal(
        found.tokens, sample(uncached, Blockwise(Grouped(2)), x_init, cond=cond).tokens
    )
    # By hand: the distribution in the second block.
    x0 = found.tokens[:, :8]
    state = guided.advance(Query(x0[:, :4], None, cond))
    labeled, unlabeled = (
        model.log_probs(torch.cat([x0[:, :4], x_init[:, :4]], 1), None, c)[:, 4:]
        for c in (cond, torch.zeros_like(cond))
    )
    expected = (2.5 * labeled - 1.5 * unlabeled)[..., 7:11].log_softmax(-1)
    torch.testing.assert_close(
        guided.step_block(Query(x_init[:, :4], None, cond), state)[..., 7:11], expected
    )


def test_padding_is_not_filled_and_changes_nothing():
    model, x_init = denoiser(4), torch.full((2, 15), 3)
    valid = torch.arange(15) < torch.tensor([[9], [15]])
    x_init[~valid] = 4
    found = sample(model, Blockwise(Grouped(2)), x_init, frozen=~valid, valid=valid).tokens
    assert (found[~valid] == 4).all()
    alone = sample(model, Blockwise(Grouped(2)), x_init[:1, :9]).tokens
    assert (
        torch.equal(found[0, :9], alone[0]) or found[0, :9].shape == alone[0].shape
    )  # groups of the last block depend on its masks


def test_blocks_are_as_exact_as_the_sampler_inside():
    assert [Blockwise(inner).exact for inner in INNER] == [True, True, True, False]
    assert Blockwise(FirstHitting()).fitted(denoiser(4)).exact and not SemiAR(FirstHitting()).exact


def test_memory_and_time_do_not_grow_with_what_was_read():
    model = denoiser(8)
    state = model.advance(Query(torch.full((2, 8), 7)))
    size = sum(x.numel() for x in state.tensors)
    for _ in range(5):
        state = model.advance(Query(torch.full((2, 8), 9)), state)
    assert sum(x.numel() for x in state.tensors) == size and state.length == 48


def test_models_and_samplers_that_do_not_fit_are_refused():
    model, x_init = denoiser(4), torch.full((1, 8), 3)
    with pytest.raises(
        ValueError,
        match=(
            "Grouped samples from a model that unmasks in any order, and this is a model that "
            "was trained in blocks"
        ),
    ):
        sample(model, Grouped(2), x_init)
    with pytest.raises(
        ValueError,
        match=r"Blockwise samples from a model that was trained in blocks, .* set sampler=grouped",
    ):
        sample(Denoiser(model.backbone), Blockwise(Grouped(2)), x_init)
    with pytest.raises(
        ValueError,
        match=r"sampler\.block_size 5 is not that of the model, which was trained in blocks of 4",
    ):
        sample(model, Blockwise(Grouped(2), block_size=5), x_init)
    for other in (Autoregressive(), SemiAR(Grouped(2), window=2), None):
        with pytest.raises(
            ValueError, match=r"sampler\.sampler .* does not fill the masks of a block in any order"
        ):
            Blockwise(other)
    with pytest.raises(ValueError, match="does not fill the masks of a window in any order"):
        SemiAR(Blockwise(Grouped()))
    with pytest.raises(ValueError, match="num_groups 5 is larger than the length 4"):
        sample(model, Blockwise(Grouped(5)), x_init)


def test_functions_for_any_order_refuse_a_block_model():
    model, process = (
        denoiser(
            4, Vocab(12, 3, 4, DNA.never_emitted, complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11))
        ),
        AbsorbingProcess(DNA, LogLinear()),
    )
    x0 = torch.full((1, 6), 7)
    calls = [
        lambda: exact_nelbo(model, process, x0),
        lambda: site_log_probs(model, process, x0, x0 == 7, stranded=True),
        lambda: OtherStrand(model, model.vocab),
        lambda: Conjoined(model, model.vocab),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="needs a model that unmasks in any order"):
            call()
    constrained = Constrained(
        model, torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 12, dtype=torch.bool)
    )
    with pytest.raises(
        ValueError, match="does not provide the nll"
    ):  # it would read masks of earlier blocks
        constrained.nll(x0, torch.full((1, 6), 3))


def test_log_prob_of_a_design_is_given_the_fixed_tokens_of_the_first_block():
    # One block: the generated tokens given the others. Blocks of one: everything from the first
    # generated token on.
    pattern = Pattern(np.array([7, 3, 3, 8, 3, 9]), np.full(6, FREE, np.uint8), None)
    target, tokens = Target("t", pattern, (0, 6), (0, 6), {}), np.array([7, 8, 9, 8, 10, 9])
    found = {}
    for size in (6, 1):
        model = denoiser(size).float()
        sampler = ConditionalSampler(
            model, AbsorbingProcess(DNA, LogLinear()), DNATokenizer(), Blockwise(Grouped(1))
        )
        batch = SampleBatch([target], [tokens], 1, 1, None)
        found[size] = float(sampler.bounds(batch, [0], 2, seed=0)[0])
        counted = torch.tensor([[False, True, True, size == 1, True, size == 1]])
        windows = [
            WindowBatch(torch.from_numpy(tokens)[None], {"all": counted}, rows=torch.tensor([0]))
        ]
        expected = -estimate(
            model, AbsorbingProcess(DNA, LogLinear()), windows, 2, 0, 1
        ).per_sequence()[0]
        assert found[size] == pytest.approx(expected)


def test_dropout_is_applied_in_blocks():
    net = denoiser(4, dropout=0.5).backbone.train()
    x = torch.full((1, 8), 7)
    torch.manual_seed(0)
    first = net.block_features(x, x, 4)[0]
    assert not torch.equal(first, net.block_features(x, x, 4)[0])


def test_a_block_is_a_masked_diffusion_model():
    model = denoiser(4)
    view = InBlock(model, model.advance(Query(torch.full((3, 4), 9))))
    xt = torch.full((3, 4), 3)
    assert (
        view.block_size is None
        and not view.left_to_right
        and not view.same_for_all_rows
        and InBlock(model, None).same_for_all_rows
    )
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(view.for_rows(rows).log_probs(xt[rows]), view.log_probs(xt)[rows])
