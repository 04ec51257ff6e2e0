import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dnadiff.diffusion.denoiser import Conjoined, MaskedDenoiser, OtherStrand, site_log_probs
from dnadiff.diffusion.likelihood import estimators as likelihood
from dnadiff.diffusion.noise import Linear, LogLinear, ShiftedLogOdds
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.genomics.evaluation import estimator_kind
from dnadiff.networks.backbone.base import BlockBackbone


def estimate(toy, oracle, x0, **kwargs):
    process = AbsorbingProcess(toy.vocab, LogLinear())
    return likelihood.estimate(
        oracle, process, [(x0, {"all": torch.ones_like(x0, dtype=torch.bool)})], **kwargs
    )


@pytest.fixture
def many(toy):
    index = torch.multinomial(
        toy.joint, 6000, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    return toy.sequences[index]


def test_nelbo_of_the_oracle_is_the_entropy(toy, oracle, many):
    result = estimate(toy, oracle, many, num_draws=6)
    interval = result.interval()
    assert 3 * interval.value == pytest.approx(toy.entropy, abs=5 * 3 * interval.se)
    assert result.summary()["bits"] == pytest.approx(interval.value / math.log(2))


def test_se_mc_is_the_spread_of_repeated_evaluations(toy, oracle, many):
    results = [estimate(toy, oracle, many[:200], num_draws=4, seed=s) for s in range(60)]
    spread = np.std([r.interval().value for r in results], ddof=1)
    claimed = np.sqrt(np.mean([r.se_mc() ** 2 for r in results]))
    assert claimed == pytest.approx(spread, rel=0.3)  # 60 repetitions know a spread to 9 %


@pytest.mark.slow
def test_se_total_is_the_spread_over_other_data(toy, oracle, many):
    results = [
        estimate(toy, oracle, part, num_draws=2, seed=s, block_size=1)
        for s, part in enumerate(many.split(100))
    ]
    spread = np.std([r.interval().value for r in results], ddof=1)
    assert np.mean([r.interval().se for r in results]) == pytest.approx(spread, rel=0.3)


def test_the_mean_of_the_curve_is_the_nelbo(toy, oracle, many):
    # facts 5: NELBO = sum_n h(n)
    result = estimate(toy, oracle, many, num_draws=6)
    curve = result.curve(bins=3)
    assert curve.visible.tolist() == [0, 1, 2]
    assert curve.nats.sum() == pytest.approx(3 * result.interval().value, abs=0.02)
    assert curve.nats[0] > curve.nats[2]


def test_groups_add_up_and_positions_outside_are_neither_masked_nor_counted(toy, oracle, many):
    x0 = many[:50]
    counted = torch.ones_like(x0, dtype=torch.bool)
    counted[:, 0] = False
    first = torch.zeros_like(counted)
    first[:, 1] = True
    process = AbsorbingProcess(toy.vocab, LogLinear())
    result = likelihood.estimate(
        oracle, process, [(x0, {"all": counted, "a": first, "b": counted & ~first})], num_draws=2
    )
    np.testing.assert_allclose(result.nats["a"] + result.nats["b"], result.nats["all"])
    assert result.tokens["all"].sum() == 100 and result.counts.max() == 2


def test_noise_belongs_to_the_sequence_not_to_the_batch(toy, oracle, many):
    process = AbsorbingProcess(toy.vocab, LogLinear())
    whole = estimate(toy, oracle, many[:10], num_draws=2)
    pieces = [(p, {"all": torch.ones_like(p, dtype=torch.bool)}) for p in many[:10].split(3)]
    np.testing.assert_array_equal(
        likelihood.estimate(oracle, process, pieces, num_draws=2).nats["all"], whole.nats["all"]
    )


def test_odd_numbers_of_draws_are_refused(toy, oracle, many):
    with pytest.raises(ValueError, match="num_draws 3 must be even"):
        estimate(toy, oracle, many[:2], num_draws=3)


@pytest.fixture
def process(toy):
    return AbsorbingProcess(toy.vocab, LogLinear())


def whole(x0):
    return [(x0, {"all": torch.ones_like(x0, dtype=torch.bool)})]


def test_draws_are_doubled_until_the_error_is_reached_and_none_is_repeated(
    toy, oracle, process, many
):
    few = likelihood.estimate(oracle, process, whole(many[:100]), num_draws=2, seed=4)
    grown = []
    oracle.calls = 0
    result = likelihood.estimate(
        oracle,
        process,
        whole(many[:100]),
        target_se=few.se_mc() / 3,
        num_draws=2,
        seed=4,
        on_doubling=lambda n, se: grown.append((n, se)),
    )
    assert result.se_mc() <= few.se_mc() / 3 and grown[-1][1] > few.se_mc() / 3
    assert result.num_draws == 2 ** (len(grown) + 1) == oracle.calls
    np.testing.assert_array_equal(result.nats["all"][:, :2], few.nats["all"])
    assert len(np.unique(result.nats["all"][0])) > 2


def test_doubling_stops_at_max_draws(oracle, process, many):
    result = likelihood.estimate(
        oracle, process, whole(many[:20]), target_se=1e-9, num_draws=2, max_draws=12
    )
    assert result.num_draws == 8
    with pytest.raises(ValueError, match="iterated only once"):
        likelihood.estimate(oracle, process, iter(whole(many[:2])), target_se=0.1)
    with pytest.raises(ValueError, match="target_se 0 must be positive"):
        likelihood.estimate(oracle, process, whole(many[:2]), target_se=0)


class Uniform(MaskedDenoiser):
    """1/3 for each letter of the toy, the same for all that is asked."""

    def __init__(self):
        super().__init__(Vocab(4, 3, 3, (3,)))
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        return (
            torch.tensor([1 / 3, 1 / 3, 1 / 3, 0], dtype=torch.float64)
            .log()
            .expand(int(positions.sum()), 4)
        )

    def next_log_probs(self, x, cond=None, positions=None, valid=None):
        return self.log_probs(x, positions=positions)


def test_mdlm_protocol_is_one_draw_without_an_error_and_leaves_out_a_thousandth(process, many):
    # facts 2: the expectation over t in [1e-3, 1] is 0.999 log V
    x0 = many.repeat(3, 1)
    result = likelihood.one_draw(Uniform(), process, whole(x0))
    assert result.interval().value == pytest.approx(
        0.999 * math.log(3), abs=3 * result.interval().se
    )

    # With the mean of the Bernoulli masks instead of draws only the integrand remains, which
    # distinguishes log V from 0.999 log V.
    noise, everything = process.noise, lambda ids, t, maskable, draws: torch.full_like(ids, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "corrupt", everything)
        patch.setattr(noise, "weight", lambda t: LogLinear.weight(noise, t) * (1 - noise.alpha(t)))
        sure = likelihood.one_draw(Uniform(), process, whole(x0))
    assert sure.interval().value == pytest.approx(0.999 * math.log(3), rel=1e-9)
    assert result.num_draws == 1 and result.summary()["se_mc"] is None
    with pytest.raises(ValueError, match="exact counts"):
        result.curve()


def test_mdlm_protocol_has_the_nelbo_as_its_mean(toy, oracle, process, many):
    exact = float(likelihood.exact_nelbo(oracle, process, toy.sequences).mean())
    results = [
        likelihood.one_draw(oracle, process, whole(toy.sequences.repeat(100, 1)), seed=s)
        for s in range(6)
    ]
    each = [3 * r.interval().value for r in results]
    assert np.mean(each) == pytest.approx(exact, abs=4 * np.std(each, ddof=1) / 6**0.5)


@pytest.mark.parametrize(
    "noise",
    [Linear(0, 1), LogLinear(0.5), ShiftedLogOdds(), Linear()],
    ids=lambda n: type(n).__name__,
)
def test_mdlm_protocol_is_refused_where_it_would_give_no_bound(toy, many, noise):
    # A uniform predictor came to 1.27, 0.99 and 0.03 bits of four letters instead of 2; exact
    # counts know no schedule.
    process = AbsorbingProcess(toy.vocab, noise)
    with pytest.raises(ValueError, match="set protocol=count"):
        likelihood.one_draw(Uniform(), process, whole(many[:4]))
    assert likelihood.estimate(
        Uniform(), process, whole(many[:4]), num_draws=2
    ).interval().value == pytest.approx(math.log(3))


def test_mdlm_protocol_gives_each_window_its_own_nelbo_over_the_seeds(process):
    # Two windows, each always in its half of the times, came to 0 and 1.87 where both cost 1:
    # tokens cost 1/t-th of it late alone.
    class Late(Uniform):
        def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
            cost = torch.where(t > 0.5, 2.0, 0.0)[:, None].expand(xt.shape)[positions]
            return torch.stack([-cost] * 3 + [torch.full_like(cost, -torch.inf)], -1)

    x0 = torch.zeros(2, 400, dtype=torch.int64)
    each = np.array(
        [
            likelihood.one_draw(Late(), process, whole(x0), seed=s).per_sequence() / 400
            for s in range(400)
        ]
    )
    assert each.mean(0) == pytest.approx([1.0, 1.0], abs=0.2)
    again = likelihood.one_draw(Late(), process, whole(x0), seed=7).per_sequence() / 400
    assert (again == each[7]).all()


def test_the_error_of_the_curve_knows_that_draws_of_a_window_belong_together():
    # 40 windows that differ in level, 50 equal draws each: 40 measurements, not 2,000.
    level = np.random.default_rng(0).normal(1, 0.2, 40)
    counts = np.tile(np.arange(1, 51), (40, 1))
    result = likelihood.Likelihood(
        {"all": np.tile(level[:, None] * 100, 50)},
        {"all": np.full(40, 100)},
        counts,
        np.full(40, 100),
        1,
    )
    curve = result.curve(bins=1)
    assert curve.se[0] == pytest.approx(level.std(ddof=1) / 40**0.5, rel=0.01)
    assert curve.visible[0] == pytest.approx(
        100 - (counts[0] ** 2).sum() / counts[0].sum()
    )  # weighted as h is


def test_mdlm_protocol_counts_no_padding_even_where_it_masks_it(toy, oracle, process, many):
    x0 = many[:500]
    counted = torch.ones_like(x0, dtype=torch.bool)
    counted[:, 2] = False
    seen = likelihood.one_draw(oracle, process, [(x0, {"all": counted})])
    hidden = likelihood.one_draw(oracle, process, [(x0, {"all": counted})], mask_everything=True)
    assert seen.tokens["all"].sum() == hidden.tokens["all"].sum() == 1000
    assert hidden.per_sequence().sum() > seen.per_sequence().sum()  # less context
    assert hidden.counts.max() == 2


def test_uniform_predictor_has_no_monte_carlo_error(process, many):
    # facts 5
    result = likelihood.estimate(Uniform(), process, whole(many[:30]), num_draws=2, curve=True)
    assert result.interval().value == pytest.approx(
        math.log(3)
    ) and result.se_mc() == pytest.approx(0, abs=1e-12)
    assert result.start == pytest.approx(3 * math.log(3))


def test_mdlm_protocol_refuses_a_model_from_left_to_right_before_data_is_read(process):
    denoiser = Uniform()
    denoiser.reads = BlockBackbone
    with pytest.raises(
        ValueError,
        match=r"protocol=mdlm needs a model that unmasks in any order.* set protocol=count",
    ):
        estimator_kind(SimpleNamespace(denoiser=denoiser, process=process), "mdlm", 8)


def test_the_chain_rule_is_exact_and_has_no_monte_carlo_error(process, many):
    result = likelihood.chain_rule(Uniform(), whole(many[:30]))
    assert (
        result.interval().value == pytest.approx(math.log(3))
        and result.se_mc() == 0
        and result.summary()["se_mc"] == 0
    )


@pytest.fixture
def strands(make_oracle):
    """A law over three DNA letters that prefers one strand, and its oracle."""
    import itertools

    from dnadiff.data.tokenizer import DNATokenizer

    vocab = DNATokenizer().vocab
    sequences = torch.tensor(list(itertools.product(range(7, 11), repeat=3)))
    weights = (
        torch.rand(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64) ** 3 + 1e-3
    )
    return vocab, sequences, weights / weights.sum(), make_oracle


def test_the_other_strand_of_a_denoiser_is_the_denoiser_of_the_other_strand(strands):
    vocab, sequences, joint, make_oracle = strands
    process = AbsorbingProcess(vocab, LogLinear())
    oracle = make_oracle(sequences, joint, vocab)
    mirrored = OtherStrand(oracle, vocab)
    exact = likelihood.exact_nelbo(mirrored, process, sequences)
    torch.testing.assert_close(
        exact, likelihood.exact_nelbo(oracle, process, vocab.reverse_complement(sequences))
    )
    xt = torch.where(
        torch.rand(64, 3, generator=torch.Generator().manual_seed(1)) < 0.5,
        vocab.mask_id,
        sequences,
    )
    chosen = xt == vocab.mask_id
    torch.testing.assert_close(
        mirrored.log_probs(xt)[chosen], mirrored.log_probs(xt, positions=chosen)
    )


def test_both_strands_have_a_mean_and_a_gap_and_no_gap_for_a_symmetric_law(strands):
    vocab, sequences, joint, make_oracle = strands
    process = AbsorbingProcess(vocab, LogLinear())
    place = {tuple(s): i for i, s in enumerate(sequences.tolist())}
    other = torch.tensor([place[tuple(s)] for s in vocab.reverse_complement(sequences).tolist()])
    x = sequences[
        torch.multinomial(joint, 300, replacement=True, generator=torch.Generator().manual_seed(1))
    ]
    for law, same in ((joint, False), ((joint + joint[other]) / 2, True)):
        oracle = make_oracle(sequences, law, vocab)
        forward = likelihood.estimate(oracle, process, whole(x), num_draws=4)
        reverse = likelihood.estimate(OtherStrand(oracle, vocab), process, whole(x), num_draws=4)
        found = likelihood.both_strands(forward, reverse)
        assert found["mean"] == pytest.approx((found["forward"] + found["reverse"]) / 2)
        assert found["gap"] == pytest.approx(found["forward"] - found["reverse"])
        if same:
            assert (
                np.abs(forward.nats["all"] - reverse.nats["all"]).max() < 1e-12
            )  # facts 25: the masks are mirrored
        else:
            assert found["gap_high"] < 0  # drawn from the law: this strand is the likelier one


def test_conjoined_strands_have_one_law_and_a_bound_below_the_mean_of_both(strands):
    vocab, sequences, joint, make_oracle = strands
    process = AbsorbingProcess(vocab, LogLinear())
    oracle = make_oracle(sequences, joint, vocab)
    conjoined = Conjoined(oracle, vocab)
    xt = torch.where(
        torch.rand(64, 3, generator=torch.Generator().manual_seed(1)) < 0.5,
        vocab.mask_id,
        sequences,
    )
    here, there = oracle.log_probs(xt), OtherStrand(oracle, vocab).log_probs(xt)
    torch.testing.assert_close(conjoined.log_probs(xt).exp(), (here.exp() + there.exp()) / 2)
    chosen = xt == vocab.mask_id
    torch.testing.assert_close(
        conjoined.log_probs(xt)[chosen], conjoined.log_probs(xt, positions=chosen)
    )
    forward, reverse, both = (
        likelihood.exact_nelbo(network, process, sequences)
        for network in (oracle, OtherStrand(oracle, vocab), conjoined)
    )
    torch.testing.assert_close(
        both, likelihood.exact_nelbo(conjoined, process, vocab.reverse_complement(sequences))
    )
    assert (both <= (forward + reverse) / 2 + 1e-9).all() and (
        both < (forward + reverse) / 2 - 1e-3
    ).any()


def test_batches_of_the_other_strand_can_be_read_again(strands):
    vocab = strands[0]
    groups = {"all": torch.tensor([[True, True, False]])}
    batches = likelihood.ReverseComplemented([(torch.tensor([[7, 8, 11]]), groups)], vocab)
    for _ in range(2):
        (batch,) = batches
        assert (
            batch.ids.tolist() == [[11, 9, 10]]
            and batch.groups["all"].tolist() == [[False, True, True]]
            and batch.valid is None
        )


def test_the_other_strand_needs_a_complement(oracle, toy):
    with pytest.raises(ValueError, match="has no complement"):
        OtherStrand(oracle, toy.vocab)


@pytest.fixture(scope="module")
def network(trained):
    from dnadiff.weights import checkpoint

    return checkpoint.load(trained)


@pytest.fixture(scope="module")
def genome_windows(network):
    """Windows of 64 bases of the bundled genome, 6,400 of them, far from each other."""
    from dnadiff.formats.sequences import read_sequences

    ids = torch.from_numpy(
        network.tokenizer.encode(read_sequences("bundled:ecoli_K12_MG1655.fa.gz")[0].sequence)
    ).long()
    return torch.stack([ids[start : start + 64] for start in range(0, 6400 * 700, 700)])


@pytest.mark.slow
def test_200_evaluations_of_a_network_spread_as_se_mc_says(network, genome_windows):
    x0 = genome_windows[:48]
    results = [
        likelihood.estimate(network.denoiser, network.process, whole(x0), num_draws=4, seed=s)
        for s in range(200)
    ]
    spread = np.std([r.interval().value for r in results], ddof=1)
    claimed = np.sqrt(np.mean([r.se_mc() ** 2 for r in results]))
    print(f"spread {spread:.6f}, se_mc {claimed:.6f}, ratio {claimed / spread:.3f}")
    assert claimed == pytest.approx(spread, rel=0.2)  # 200 repetitions know a spread to 5 %


@pytest.mark.slow
def test_200_disjoint_sets_of_windows_spread_as_se_total_says(network, genome_windows):
    sets = [genome_windows[s::200] for s in range(200)]
    results = [
        likelihood.estimate(
            network.denoiser, network.process, whole(x), num_draws=2, seed=s, block_size=1
        )
        for s, x in enumerate(sets)
    ]
    spread = np.std([r.interval().value for r in results], ddof=1)
    claimed = np.sqrt(np.mean([r.interval().se ** 2 for r in results]))
    print(f"spread {spread:.6f}, se_total {claimed:.6f}, ratio {claimed / spread:.3f}")
    assert claimed == pytest.approx(spread, rel=0.2)


@pytest.mark.slow
def test_neighboring_windows_in_default_blocks_cover_the_mean_of_the_genome(network):
    """60 stretches of 320 windows side by side, 16 a block: se_total and the interval as `evaluate`
    gives them."""
    from dnadiff.formats.sequences import read_sequences

    ids = torch.from_numpy(
        network.tokenizer.encode(read_sequences("bundled:ecoli_K12_MG1655.fa.gz")[0].sequence)
    ).long()
    starts = np.linspace(0, len(ids) - 320 * 64, 60).astype(int)
    found = [
        likelihood.estimate(
            network.denoiser,
            network.process,
            whole(ids[s : s + 320 * 64].view(320, 64)),
            num_draws=2,
            seed=i,
        ).interval()
        for i, s in enumerate(starts.tolist())
    ]
    values, claimed = np.array([f.value for f in found]), np.sqrt(np.mean([f.se**2 for f in found]))
    covered = np.mean([f.low < values.mean() < f.high for f in found])
    print(
        f"spread {values.std(ddof=1):.6f}, se_total {claimed:.6f}, ratio "
        f"{claimed / values.std(ddof=1):.3f}, covered {covered:.2f}"
    )
    assert claimed == pytest.approx(values.std(ddof=1), rel=0.3)
    assert covered > 0.85


def test_a_masked_site_has_the_conditional_distribution_of_both_strands(strands):
    vocab, sequences, joint, make_oracle = strands
    process = AbsorbingProcess(vocab, LogLinear())
    oracle = make_oracle(sequences, joint, vocab)
    place = {tuple(s): p for s, p in zip(sequences.tolist(), joint.tolist())}
    sites = torch.zeros(64, 3, dtype=torch.bool).scatter_(1, torch.arange(64)[:, None] % 3, True)
    found = site_log_probs(oracle, process, sequences, sites)
    assert found.shape == (2, 64, vocab.size)
    complement = vocab.complement
    for row, window in enumerate(sequences.tolist()):
        site = row % 3
        changed = [[*window[:site], letter, *window[site + 1 :]] for letter in range(7, 11)]
        both = [changed, [[complement[x] for x in reversed(one)] for one in changed]]
        for strand, windows in enumerate(both):
            weights = torch.tensor([place[tuple(one)] for one in windows], dtype=torch.float64)
            torch.testing.assert_close(found[strand, row, 7:11].exp(), weights / weights.sum())
    torch.testing.assert_close(
        site_log_probs(oracle, process, sequences, sites, stranded=True), found[:1]
    )
    pairs = ~sites  # two masked sites: the same tokens elsewhere, whatever they are themselves
    changed = torch.where(pairs, torch.tensor(10), sequences)
    torch.testing.assert_close(
        site_log_probs(oracle, process, changed, pairs),
        site_log_probs(oracle, process, sequences, pairs),
    )
