"""Networks that read columns of an alignment, alone and behind every kind of denoiser."""

import itertools

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import (
    BlockDenoiser,
    CausalDenoiser,
    Conjoined,
    Denoiser,
    OtherStrand,
    Query,
    site_log_probs,
)
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.gaussian import GaussianProcess
from dnadiff.diffusion.likelihood.estimators import (
    ReverseComplemented,
    WindowBatch,
    cross_entropy,
    estimate,
)
from dnadiff.diffusion.noise import CosineSquared, LogLinear
from dnadiff.diffusion.objective.analog_bits import AnalogBits
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.learned_order import LearnedOrder
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.fast_dllm import FastDLLM
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.learned_order import LearnedOrderSampler
from dnadiff.diffusion.soft_masks import SoftMasked
from dnadiff.diffusion.vocab import CHANNELS, COMPLEMENT, complemented, mirrored
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.backbone.transformer import Transformer
from dnadiff.networks.columns import (
    FrequencyColumns,
    PosteriorAndFrequencyColumns,
    PosteriorColumns,
)

DNA = DNATokenizer().vocab
MASK, BASES = DNA.mask_id, slice(7, 11)
PROCESS = AbsorbingProcess(DNA, LogLinear())
KINDS = [Caduceus, CaduceusPS, DiT, Mamba, Transformer]
LAYERS = [PosteriorColumns, FrequencyColumns, PosteriorAndFrequencyColumns]


def columns_of(batch, length, seed=0):
    """Columns as an alignment gives them, every third one empty."""
    draws = torch.Generator().manual_seed(seed)
    found = torch.randn(batch, length, CHANNELS, generator=draws)
    for part in (slice(0, 4), slice(4, 8)):
        found[..., part] = found[..., part].log_softmax(-1)
    found[..., 9] = found[..., 9].abs() + 0.7
    return found * (torch.arange(length) % 3 != 2)[:, None]


def network(kind, layer=PosteriorColumns, dtype=torch.float64, **options):
    """A network with all parameters changed, so that nothing holds because a parameter is zero."""
    torch.manual_seed(1)
    made = kind(DNA, d_model=16, n_layers=2, **options)
    if layer is not None:
        made.read_columns(layer)
    with torch.no_grad():
        for p in made.parameters():
            p += 0.3 * torch.randn_like(p)
    return made.to(dtype).eval()


def sequences(batch=3, length=12):
    return torch.randint(7, 11, (batch, length), generator=torch.Generator().manual_seed(2))


def masked(ids):
    draws = torch.Generator().manual_seed(3)
    return torch.where(torch.rand(ids.shape, generator=draws) < 0.5, MASK, ids)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_zeros_are_no_columns(kind, layer):
    made, ids = network(kind, layer), sequences()
    without = made(ids)
    assert torch.equal(made(ids, cond=torch.zeros(3, 12, CHANNELS)), without)
    columns = columns_of(3, 12)
    assert (made(ids, cond=columns) - without)[..., BASES].abs().max() > 0.1
    layer = made.columns
    made.columns = None
    assert torch.equal(made(ids), without)  # the network without its layer
    made.columns = layer
    columns[1:] = 0
    assert torch.equal(made(ids, cond=columns)[1:], without[1:])


@pytest.mark.parametrize("layer", LAYERS)
def test_equivariance_of_both_strands(layer):
    for options in ({}, {"swap_strands": True}):
        made, ids, columns = network(CaduceusPS, layer, **options), sequences(), columns_of(3, 12)
        found = made(ids, cond=columns)[..., :12]
        other = made(DNA.reverse_complement(ids), cond=mirrored(columns))[..., :12]
        expected = found.flip(1)[..., list(DNA.complement)]
        torch.testing.assert_close(other, expected, rtol=1e-10, atol=1e-10)


def test_the_complement_of_a_column():
    columns = columns_of(2, 5)
    assert torch.equal(complemented(columns), columns[..., list(COMPLEMENT)])
    assert torch.equal(mirrored(mirrored(columns)), columns)
    assert torch.equal(mirrored(columns)[:, 0, :4], columns[:, -1, :4].flip(-1))
    labels = torch.eye(2)
    assert mirrored(labels) is labels and mirrored(None) is None


@pytest.mark.parametrize(
    ("layer", "part"),
    [(PosteriorColumns, slice(0, 4)), (FrequencyColumns, slice(4, 8))],
)
@pytest.mark.parametrize("kind", [DiT, Transformer])
def test_a_head_of_zeros_predicts_what_the_columns_say(kind, layer, part):
    torch.manual_seed(0)
    made = kind(DNA, d_model=16, n_layers=2)  # its head is zero
    made.read_columns(layer)
    columns, xt = columns_of(3, 12), torch.full((3, 12), MASK)
    denoiser = (Denoiser if kind is DiT else CausalDenoiser)(made)
    ask = denoiser.log_probs if kind is DiT else denoiser.next_log_probs
    found = ask(xt, cond=columns)[..., BASES]
    expected = torch.where(
        columns.any(-1, keepdim=True), columns[..., part], torch.tensor(0.25).log()
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_parameters_besides_the_layer_do_not_change():
    torch.manual_seed(0)
    plain = Caduceus(DNA, d_model=16, n_layers=1).state_dict()
    torch.manual_seed(0)
    made = Caduceus(DNA, d_model=16, n_layers=1)
    assert "columns" not in str([*made.state_dict()])
    made.read_columns(PosteriorColumns)
    state = made.state_dict()
    assert state.keys() - plain.keys() == {"columns.weight", "columns.a"}
    assert all(torch.equal(state[name], value) for name, value in plain.items())


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS, DiT])
def test_no_prediction_moves_with_a_hidden_base(kind):
    denoiser, ids, columns = Denoiser(network(kind)), sequences(), columns_of(3, 12)
    xt = masked(ids)
    hidden = xt == MASK
    before = denoiser.nll(ids, xt, None, columns, hidden)
    other = torch.where(hidden, 7 + (ids - 6) % 4, ids)
    log_probs = denoiser.log_probs(xt, None, columns, hidden)
    after = denoiser.nll(other, xt, None, columns, hidden)
    picked = (log_probs.gather(1, each[hidden][:, None])[:, 0] for each in (ids, other))
    torch.testing.assert_close((before, after), tuple(-each for each in picked))


@pytest.mark.parametrize("kind", [Caduceus, DiT])
def test_a_block_sees_columns_of_itself_and_before(kind):
    denoiser, x0, columns = BlockDenoiser(network(kind), 4), sequences(), columns_of(3, 12)
    xt = masked(x0)

    def logits(x0, columns):
        features = denoiser.read_features(Query(xt, cond=columns), x0)
        return denoiser.backbone.head_with_columns(features, columns)

    whole = logits(x0, columns)
    for at in range(12):
        block = at // 4
        changed = columns.clone()
        changed[:, at] += 1
        moved = (logits(x0, changed) - whole).abs().amax((0, 2)) > 1e-9
        assert not moved[: 4 * block].any() and moved[at]
        other = x0.clone()
        other[:, at] = 7 + (x0[:, at] - 6) % 4
        moved = (logits(other, columns) - whole).abs().amax((0, 2)) > 1e-9
        assert not moved[: 4 * (block + 1)].any()


def test_the_clean_stream_predicts_with_the_column_of_the_next_token():
    denoiser, x0, columns = BlockDenoiser(network(Caduceus), 4), sequences(), columns_of(3, 12)
    following = torch.ones(3, 12, dtype=torch.bool)
    following[:, 0] = False
    xt = masked(x0)

    def next_nll(x0, columns):
        query = Query(xt, cond=columns, positions=xt == MASK)
        return denoiser.nll_with_next(x0, query, following)[1].view(3, 11)

    whole = next_nll(x0, columns)
    for at in range(1, 12):
        changed = columns.clone()
        changed[:, at] += torch.arange(CHANNELS)
        moved = (next_nll(x0, changed) - whole).abs().amax(0) > 1e-9
        assert not moved[: at - 1].any() and moved[at - 1]  # the cost of token `at`
        other = x0.clone()
        other[:, at] = 7 + (x0[:, at] - 6) % 4
        assert not ((next_nll(other, columns) - whole).abs().amax(0) > 1e-9)[: at - 1].any()


@pytest.mark.parametrize("kind", [Mamba, Transformer])
def test_a_causal_model_reads_the_column_of_the_token_that_it_predicts(kind):
    denoiser, ids, columns = CausalDenoiser(network(kind)), sequences(), columns_of(3, 12)
    whole = denoiser.next_log_probs(ids, columns)[..., BASES]
    for at in range(12):
        other = ids.clone()
        other[:, at:] = 7 + (ids[:, at:] - 6) % 4
        found = denoiser.next_log_probs(other, columns)[..., BASES]
        assert torch.equal(found[:, : at + 1], whole[:, : at + 1])
        changed = columns.clone()
        changed[:, at] += torch.arange(CHANNELS)
        moved = denoiser.next_log_probs(ids, changed)[..., BASES] != whole
        assert not moved[:, :at].any() and moved[:, at].any()


@pytest.mark.parametrize("kind", [Mamba, Transformer])
def test_embeddings_of_a_causal_model_are_what_predicts_the_next_base(kind):
    denoiser, ids, columns = CausalDenoiser(network(kind)), sequences(), columns_of(3, 12)
    found = denoiser.features(ids, cond=columns)
    moved = columns.clone()
    moved[:, 5] += 1
    changed = (denoiser.features(ids, cond=moved) != found).any(-1)
    assert not changed[:, :4].any() and changed[:, 4].all()


@pytest.mark.parametrize("scan", ["auto", "reference"])
@pytest.mark.parametrize("kind", [Mamba, Transformer])
def test_token_by_token_equals_the_full_pass(kind, scan):
    options = {"scan": scan} if kind is Mamba else {}
    denoiser, ids = CausalDenoiser(network(kind, **options)), sequences()
    columns, token, state = columns_of(3, 12), torch.full((3,), MASK), None
    whole = denoiser.next_log_probs(ids, columns)
    seen = torch.cat([token[:, None], ids[:, :-1]], 1)
    for at in range(12):
        log_probs, state = denoiser.step(seen[:, at], state, columns)
        torch.testing.assert_close(log_probs, whole[:, at], rtol=1e-9, atol=1e-9)
    first, state = denoiser.read(seen[:, :5], None, columns)
    second, state = denoiser.step(seen[:, 5], state, columns)
    third, state = denoiser.read(seen[:, 6:], state, columns)
    joined = torch.cat([first, second[:, None], third], 1)
    torch.testing.assert_close(joined, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [Caduceus, DiT])
def test_block_by_block_equals_the_pass_over_all_blocks(kind):
    denoiser, x0, columns = BlockDenoiser(network(kind), 4), sequences(), columns_of(3, 12)
    xt, state = masked(x0), None
    whole = denoiser.log_probs(xt, None, columns)  # the clean stream reads xt, too
    for first in range(0, 12, 4):
        part = slice(first, first + 4)
        found = denoiser.step_block(Query(xt[:, part], cond=columns[:, part]), state)
        torch.testing.assert_close(found, whole[:, part], rtol=1e-9, atol=1e-9)
        state = denoiser.advance(Query(xt[:, part], cond=columns[:, part]), state)


def test_a_cache_around_some_positions_is_exact_before_tokens_change():
    denoiser, ids, columns = Denoiser(network(DiT)), sequences(), columns_of(3, 12)
    part = slice(4, 8)
    state = denoiser.around(Query(ids, cond=columns), part)
    found = denoiser.step_block(Query(ids[:, part], cond=columns[:, part]), state)
    network_logits = denoiser.backbone(ids, cond=columns)[:, part, :12]
    expected = denoiser.parameterization.log_probs(network_logits, ids[:, part])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("sampler", "denoiser"),
    [
        (Grouped(num_groups=3), lambda: Denoiser(network(Caduceus))),
        (Blockwise(Grouped(num_groups=2)), lambda: BlockDenoiser(network(Caduceus), 4)),
        (Blockwise(Grouped(num_groups=2)), lambda: BlockDenoiser(network(DiT), 4)),
        (FastDLLM(Grouped(num_groups=2), 4), lambda: Denoiser(network(DiT))),
        (Autoregressive(), lambda: CausalDenoiser(network(Mamba))),
        (Autoregressive(), lambda: CausalDenoiser(network(Transformer))),
        (LearnedOrderSampler(), lambda: LearnedOrder(PROCESS).denoiser(network(Caduceus))),
        (Grouped(num_groups=2), lambda: SoftMasked(network(Caduceus))),
        (Grouped(num_groups=2), lambda: Conjoined(Denoiser(network(Caduceus)), DNA)),
    ],
)
def test_samples_follow_columns_that_are_certain(sampler, denoiser):
    made, target, draws = denoiser().double(), sequences(4, 12), Draws.for_batch(0, 4)
    columns = torch.zeros(4, 12, CHANNELS)
    columns[..., :4] = torch.nn.functional.one_hot(target - 7, 4) * 200.0 - 200
    columns[..., 9] = 2
    with torch.no_grad():
        # the other parts of the network do not outweigh the columns
        made.backbone.columns.weight[:, :4] = 0
        made.backbone.columns.a.fill_(1.0)
    found = sampler.sample(made, PROCESS, torch.full((4, 12), MASK), draws, cond=columns).tokens
    assert torch.equal(found, target)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Denoiser(network(Caduceus)),
        lambda: SoftMasked(network(CaduceusPS)),
        lambda: Conjoined(Denoiser(network(Caduceus)), DNA),
    ],
)
def test_the_bound_with_columns_is_above_the_exact_likelihood_of_its_orders(make):
    # all 3-base sequences: for every order the chain rule sums to 1, and the bound is the mean
    denoiser, columns = make(), columns_of(1, 3)
    every = torch.tensor(list(itertools.product(range(7, 11), repeat=3)))
    cond = columns.expand(len(every), -1, -1)
    costs = []
    with torch.no_grad():
        for order in itertools.permutations(range(3)):
            hidden, nll = torch.ones(len(every), 3, dtype=torch.bool), 0
            for at in order:
                xt = torch.where(hidden, MASK, every)
                asked = torch.zeros_like(hidden)
                asked[:, at] = True
                nll = nll + denoiser.nll(every, xt, None, cond, asked)
                hidden[:, at] = False
            torch.testing.assert_close((-nll).exp().sum(), torch.ones((), dtype=nll.dtype))
            costs.append(nll)
        batch = WindowBatch(every, {}, cond=cond)
        bound = 0
        for size in (1, 2, 3):
            sets = list(itertools.combinations(range(3), size))
            for chosen in sets:
                hidden = torch.zeros(len(every), 3, dtype=torch.bool)
                hidden[:, list(chosen)] = True
                xt = torch.where(hidden, MASK, every)
                found = cross_entropy(denoiser, batch, xt, None, hidden).sum(-1)
                bound = bound + found / size / len(sets)
    costs = torch.stack(costs)
    torch.testing.assert_close(bound, costs.mean(0))
    mixture = -(-costs).logsumexp(0) + torch.tensor(6.0).log()
    assert (bound >= mixture - 1e-9).all()


def test_blocks_and_the_chain_rule_give_distributions():
    every = torch.tensor(list(itertools.product(range(7, 11), repeat=3)))
    cond = columns_of(1, 3).expand(len(every), -1, -1)
    groups = {"all": torch.ones_like(every, dtype=torch.bool)}
    for denoiser in (CausalDenoiser(network(Mamba)), BlockDenoiser(network(DiT), 1)):
        found = estimate(denoiser, PROCESS, [WindowBatch(every, groups, cond=cond)])
        total = torch.from_numpy(-found.per_sequence("all")).exp().sum()
        torch.testing.assert_close(total, torch.ones_like(total))


def test_the_other_strand_reads_complemented_columns():
    plain, ids, columns = Denoiser(network(Caduceus)), sequences(), columns_of(3, 12)
    xt = masked(ids)
    found = OtherStrand(plain, DNA).log_probs(xt, None, columns)
    there = plain.log_probs(DNA.reverse_complement(xt), None, mirrored(columns))
    torch.testing.assert_close(found, there.flip(1)[..., list(DNA.complement)])
    both = Denoiser(network(CaduceusPS))
    first, second = site_log_probs(both, PROCESS, ids, xt == MASK, cond=columns)
    torch.testing.assert_close(first, second)
    groups = {"all": xt == MASK}
    (turned,) = ReverseComplemented([WindowBatch(ids, groups, cond=columns)], DNA)
    assert torch.equal(turned.cond, mirrored(columns))


@pytest.mark.parametrize("objective", [BlockMDLM(PROCESS, 4), LearnedOrder(PROCESS)])
def test_gradients_reach_the_layer(objective):
    denoiser = objective.denoiser(network(Caduceus)).double()
    ids = sequences()
    draws = Draws.for_batch(1, 3)
    weight = torch.ones(3, 12)
    objective(denoiser, ids, weight, draws, columns_of(3, 12)).loss.backward()
    layer = denoiser.backbone.columns
    assert layer.a.grad.abs() > 0 and layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: network(Caduceus, None)(sequences(), cond=columns_of(3, 12)),
            "reads no alignment",
        ),
        (lambda: network(Caduceus)(sequences(), cond=columns_of(3, 11)), r"expected \(3, 12, 10\)"),
        (lambda: network(Caduceus)(sequences(), cond=torch.eye(3)), r"shape \(3, 3\), expected"),
        (
            lambda: network(Caduceus, num_labels=2),
            "data.alignment does not fit Caduceus with num_labels 2",
        ),
        (
            lambda: AnalogBits(GaussianProcess(DNA, CosineSquared())).denoiser(
                network(DiT), time_conditioning=True
            ),
            "data.alignment does not fit",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
