"""Fast-dLLM: caches that are exact while no token changes, and what is read in each call."""

import pytest
import torch

from dnadiff.design.conditioning import Constrained
from dnadiff.diffusion.denoiser import BlockDenoiser, Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess, Score
from dnadiff.diffusion.sampler.analytic import Analytic
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.fast_dllm import DualCache, FastDLLM, NoCache, PrefixCache
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.diffusion.sampler.threshold import Threshold
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT

DNA = Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11))
LENGTH = 19
CACHES = [NoCache(), PrefixCache(), DualCache()]
INNER = [FirstHitting(), Grouped(3), Confidence(num_steps=2), Threshold(threshold=0.3)]
EVERY_CACHE = pytest.mark.parametrize("cache", CACHES, ids=lambda c: type(c).__name__)


def network(n_layers, **options):
    torch.manual_seed(0)
    net = (
        DiT(DNA, 16, n_layers, 2, 8, **{"dropout": 0.0, "max_length": LENGTH} | options)
        .double()
        .eval()
    )
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net


def sample(model, sampler, x_init, seed=0, **kwargs):
    return sampler.sample(
        model,
        AbsorbingProcess(DNA, LogLinear()),
        x_init,
        Draws.for_batch(seed, len(x_init)),
        **kwargs,
    )


def template():
    x = torch.full((4, LENGTH), 3)
    x[1, 7:9], x[2, :8], x[3, 15:] = 8, 10, 9
    return x


@EVERY_CACHE
@pytest.mark.parametrize("max_length", [LENGTH, 64, None])
@pytest.mark.parametrize("padded", [False, True])
def test_predictions_are_exact_while_no_token_changes(cache, max_length, padded):
    net = network(3, max_length=max_length)
    x = torch.randint(7, 11, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    valid = torch.stack([torch.arange(LENGTH) < n for n in (LENGTH, 12, 9)]) if padded else None
    whole = net.features(x, valid=valid)
    for block in (slice(0, 5), slice(5, 10), slice(15, LENGTH)):
        read = cache.read(block, LENGTH)
        state = None if isinstance(cache, NoCache) else net.around(x, read, valid=valid)
        found = net.step_block(x[:, read], state, valid=None if valid is None else valid[:, read])
        real = slice(None) if valid is None else valid[:, read]
        torch.testing.assert_close(found[real], whole[:, read][real], rtol=1e-10, atol=1e-10)


def test_a_cache_of_two_layers_is_approximate_once_a_token_changes():
    net, block = network(2), slice(5, 10)
    x = torch.full((1, LENGTH), 3)
    state = net.around(x, block)
    x[0, 6] = 8
    difference = (net.step_block(x[:, block], state) - net.features(x)[:, block]).abs().max()
    assert difference > 1e-3
    one = network(1)
    state = one.around(torch.full((1, LENGTH), 3), block)
    torch.testing.assert_close(
        one.step_block(x[:, block], state), one.features(x)[:, block], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1, 5, LENGTH])
def test_all_caches_sample_the_same_with_one_layer(inner, size):
    # Keys and values of the first layer depend on their own token alone, so that every cache is
    # exact.
    inner = Grouped(1) if size == 1 and isinstance(inner, (Grouped, Confidence)) else inner
    model = Denoiser(network(1))
    found = [sample(model, FastDLLM(inner, size, cache), template()) for cache in CACHES]
    assert all(torch.equal(found[0].tokens, other.tokens) for other in found[1:])
    assert (found[0].tokens != 3).all() and torch.equal(
        found[0].tokens[template() != 3], template()[template() != 3]
    )


def test_one_block_is_the_sampler_itself():
    model, inner = Denoiser(network(2)), Grouped(4)
    alone = sample(model, inner, template())
    in_blocks = [
        sample(model, FastDLLM(inner, LENGTH, cache), template()).tokens for cache in CACHES
    ]
    assert all(torch.equal(tokens, alone.tokens) for tokens in in_blocks)


def test_tokens_read_in_each_call():
    net, lengths = network(2), []

    class Recorded(Denoiser):
        def step_block(self, query, state=None):
            lengths.append(query.xt.shape[1])
            return super().step_block(query, state)

        def around(self, query, columns):
            lengths.append(query.xt.shape[1])
            return super().around(query, columns)

    counts = {}
    for cache in CACHES:
        lengths.clear()
        result = sample(Recorded(net), FastDLLM(Grouped(2), 5, cache), torch.full((2, LENGTH), 3))
        assert result.nfe == len(lengths) == FastDLLM(Grouped(2), 5, cache).num_steps_for(LENGTH)
        counts[type(cache).__name__] = list(lengths)
    assert counts["NoCache"] == [19] * 8
    assert counts["PrefixCache"] == [
        19,
        19,
        19,
        14,
        14,
        19,
        9,
        9,
        19,
        4,
        4,
    ]  # the first block has no prefix, and no cache
    assert counts["DualCache"] == [19, 5, 5] * 3 + [19, 4, 4]


def test_rows_do_not_depend_on_the_batch():
    model, sampler = Denoiser(network(3)), FastDLLM(Threshold(threshold=0.3), 5, DualCache())
    whole = sample(model, sampler, torch.full((4, LENGTH), 3)).tokens
    alone = sampler.sample(
        model,
        AbsorbingProcess(DNA, LogLinear()),
        torch.full((1, LENGTH), 3),
        Draws(0, torch.tensor([2])),
    )
    assert torch.equal(alone.tokens[0], whole[2])


@EVERY_CACHE
def test_constraints_and_frozen_masks_are_kept(cache):
    allowed = torch.zeros(2, 12, dtype=torch.bool)
    allowed[0, 7:11] = allowed[1, [8, 9]] = True  # any base; C or G
    kind = (torch.arange(LENGTH) % 2).expand(4, -1)
    frozen = torch.zeros(4, LENGTH, dtype=torch.bool)
    frozen[0, 3] = frozen[2, 12] = True
    model = Constrained(Denoiser(network(2)), kind, allowed)
    tokens = sample(model, FastDLLM(Grouped(2), 5, cache), template(), frozen=frozen).tokens
    assert (tokens[frozen] == 3).all() and (tokens[~frozen] != 3).all()
    free = (template() == 3) & ~frozen & (kind == 1)
    assert set(tokens[free].tolist()) == {8, 9}


@EVERY_CACHE
def test_ratios_are_sampled_as_probabilities_in_a_block(cache):
    model = Denoiser(network(2), Score(DNA), LogLinear())
    one, two = (
        sample(model, FastDLLM(inner, 5, cache), template()).tokens
        for inner in (Analytic(3), Ancestral(3))
    )
    assert torch.equal(one, two) and (one != 3).all()


@pytest.mark.parametrize(
    "inner", [Grouped(5), Confidence(num_steps=5)], ids=lambda s: type(s).__name__
)
def test_the_last_block_may_be_short(inner):
    sampler = FastDLLM(inner, 5)
    sampler.check_length(LENGTH)  # 5 + 5 + 5 + 4
    assert (sample(Denoiser(network(1)), sampler, template()).tokens != 3).all()
    with pytest.raises(ValueError, match=r"(num_groups|num_steps) 5 is larger than the length 4"):
        sampler.check_length(4)


def test_wrong_models_and_settings_are_refused():
    x = torch.full((1, LENGTH), 3)
    with pytest.raises(
        ValueError,
        match="needs a transformer with a key-value cache, such as dit; Caduceus has none",
    ):
        sample(Denoiser(Caduceus(DNA, d_model=8, n_layers=1)), FastDLLM(Grouped(2), 5), x)
    timed = Denoiser(network(1), noise=LogLinear(), time_conditioning=True)
    with pytest.raises(ValueError, match="conditioned on time; set sampler=grouped"):
        sample(timed, FastDLLM(Grouped(2), 5), x)
    with pytest.raises(
        ValueError,
        match=r"samples from a model that unmasks in any order, and this is a model .*; set "
        r"sampler=block",
    ):
        sample(BlockDenoiser(network(1), 5), FastDLLM(Grouped(2), 5), x)
    with pytest.raises(ValueError, match="choose grouped or another one"):
        Blockwise(FastDLLM(Grouped(2)))
    for inner in (SemiAR(Grouped(2)), Blockwise(Grouped(2)), FastDLLM(Grouped(2))):
        with pytest.raises(ValueError, match="choose threshold or another one"):
            FastDLLM(inner, 5)
    with pytest.raises(ValueError, match="block_size 0 must be an integer of at least 1"):
        FastDLLM(Grouped(2), 0)
    with pytest.raises(ValueError, match="length 20"):
        sample(Denoiser(network(1)), FastDLLM(Grouped(2), 5), torch.full((1, LENGTH + 1), 3))


def test_every_order_of_the_toy_comes_out_with_one_token_per_call(world):
    # With one position per call and a cache that is exact, the samples have the distribution of the
    # model.
    sampler = FastDLLM(FirstHitting(), 2, NoCache())
    tokens = world.draw(sampler, world.table(sampler), 40_000, seed=1).tokens
    found = world.frequencies(tokens, 3)
    assert (
        (found - world.joint).abs() < 4.5 * (world.joint * (1 - world.joint) / 40_000).sqrt()
    ).all()
