"""Design methods on a world of 64 sequences: what claims p(x) exp(beta r(x)) reaches it, with its
weights included."""

import itertools
from typing import ClassVar

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.generate import ConditionalSampler, effective_size
from dnadiff.design.method.base import Designer
from dnadiff.design.method.best_of_n import BestOfN
from dnadiff.design.method.classifier_guidance import ClassifierGuidance
from dnadiff.design.method.metropolis import Metropolis
from dnadiff.design.method.resample_move import ResampleMove
from dnadiff.design.method.smc import SMC
from dnadiff.design.method.svdd import SVDD
from dnadiff.design.request import Free, Templates, dna_pattern
from dnadiff.design.reward import CountedReward, FunctionReward, Reward, as_reward
from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.ancestral import Ancestral
from dnadiff.diffusion.sampler.ar import Autoregressive
from dnadiff.diffusion.sampler.confidence import Confidence
from dnadiff.diffusion.sampler.first_hitting import FirstHitting
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.networks.backbone.mamba import Mamba

DNA = DNATokenizer()
WORDS = ["".join(letters) for letters in itertools.product("ACGT", repeat=3)]
IDS = torch.from_numpy(np.stack([DNA.encode(word) for word in WORDS]).astype(np.int64))
JOINT = torch.rand(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64) ** 2 + 0.02
JOINT /= JOINT.sum()
SCORES = dict(
    zip(
        WORDS,
        torch.rand(64, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        .mul(2)
        .tolist(),
    )
)
BETA = 1.5


def scores(sequences):
    return [SCORES[sequence] for sequence in sequences]


class Linear(Reward):
    """A linear function of the one-hot sequence, for which the first order is exact."""

    has_gradient = True

    weight = np.random.default_rng(0).normal(size=(3, 4))

    def __call__(self, sequences):
        return np.array(
            [
                sum(self.weight[at, "ACGT".index(base)] for at, base in enumerate(text))
                for text in sequences
            ]
        )

    def gradient(self, sequences):
        return self(sequences), np.broadcast_to(self.weight, (len(sequences), 3, 4))


class Sine(Linear):
    """A differentiable reward whose first order is not exact."""

    def __call__(self, sequences):
        return np.sin(super().__call__(sequences))

    def gradient(self, sequences):
        return self(sequences), np.cos(super().__call__(sequences))[:, None, None] * self.weight


@pytest.fixture
def generator(make_oracle):
    def make(sampler=None, tilt=0.0, joint=JOINT):
        denoiser = make_oracle(IDS, joint, DNA.vocab)
        return ConditionalSampler(
            denoiser,
            AbsorbingProcess(DNA.vocab, LogLinear(1e-3)),
            DNA,
            sampler or FirstHitting(),
            None,
            tilt,
        )

    return make


def with_quick_text(designer):
    """The designer with a table for decoding, which takes most of the time of many designs for a
    reward that is a table."""
    letters = np.zeros(DNA.vocab.size, np.uint8)
    letters[DNA.ids_from_bases(range(4)).astype(int)] = list(b"ACGT")
    designer.text = lambda target, ids: letters[ids].tobytes().decode()
    return designer


def request(count, template="NNN"):
    return Templates([("x", dna_pattern(DNA, 3, template))], count, DNA.vocab.mask_id)


def reached(designer, count, batch_size, template="NNN"):
    """The weighted frequencies (64,) of `count` designs, and the log of the mean weight."""
    found, total = np.zeros(64), 0.0
    for batch in designer.batches(request(count, template), 1, batch_size):
        weights = (
            np.ones(len(batch.tokens)) if batch.log_weight is None else np.exp(batch.log_weight)
        )
        for ids, weight, reward in zip(batch.tokens, weights, batch.rewards):
            word = DNA.decode(ids)
            assert abs(reward - designer.goal.reward.reward([word])[0]) < 1e-9
            found[WORDS.index(word)] += weight
        total += weights.sum()
    return found / total, np.log(total / count)


def target(reward, beta, template="NNN", tilt=0.0):
    """The exact distribution p(x | template) exp(beta r(x)), and the log of its normalizing
    constant given the fixed bases."""
    allowed = {"N": "ACGT", "R": "AG", "Y": "CT", "S": "CG"}
    fits = np.array([all(b in allowed.get(a, a) for a, b in zip(template, word)) for word in WORDS])
    visible = np.array(
        [all(a not in "ACGT" or a == b for a, b in zip(template, word)) for word in WORDS]
    )
    gc = np.array(
        [sum(b in "CG" for b, a in zip(word, template) if a not in "ACGT") for word in WORDS]
    )
    mass = JOINT.numpy() * fits * np.exp(beta * np.asarray(reward(WORDS)) + tilt * gc)
    return mass / mass.sum(), np.log(mass.sum() / (JOINT.numpy() * visible).sum())


METHODS = {
    "smc": SMC(threshold=0.7),
    "smc that always resamples": SMC(threshold=1.0, anneal=False),
    "importance sampling": SMC(threshold=0.0),
    "smc, every second step": SMC(threshold=0.9, every=2),
    "resample_move": ResampleMove(num_stages=4, num_moves=2, num_positions=3, threshold=0.95),
    "annealed importance sampling": ResampleMove(num_stages=4, num_positions=3, threshold=0.0),
    "svdd": SVDD(num_candidates=3),
    "svdd, every second step": SVDD(num_candidates=3, every=2),
    "classifier_guidance": ClassifierGuidance(),
    "classifier_guidance, every second step": ClassifierGuidance(every=2),
}


@pytest.mark.parametrize(
    ("template", "count"), [("NCN", 3_000), pytest.param("RYN", 4_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", METHODS)
def test_weighted_designs_have_the_target_distribution(generator, name, template, count):
    designer = Designer(generator(), METHODS[name], as_reward(scores), BETA)
    assert designer.has_weights(request(1))
    found, log_mean = reached(designer, count, count, template)
    exact, log_constant = target(scores, BETA, template)
    assert 0.5 * np.abs(found - exact).sum() < 0.045
    assert abs(log_mean - log_constant) < 0.08


@pytest.mark.slow
@pytest.mark.parametrize("template", ["NNN", "NCN", "RNY"])
@pytest.mark.parametrize("name", METHODS)
def test_the_total_variation_of_many_designs_is_below_one_percent(generator, name, template):
    # The distance falls with the root of the number of designs. Resampling at every step leaves
    # fewer distinct ancestors (64,000 designs are .016 away), and the weights of SVDD vary more
    # (100,000 are .011 away).
    count = 300_000 if name == "smc that always resamples" or name.startswith("svdd") else 100_000
    found, _ = reached(
        Designer(generator(), METHODS[name], as_reward(scores), BETA), count, 100_000, template
    )
    assert 0.5 * np.abs(found - target(scores, BETA, template)[0]).sum() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("template", "count"), [("NNN", 150_000), ("NCN", 100_000)])
def test_guidance_by_the_gradient_of_a_curved_reward_is_exact_with_its_weights(
    generator, template, count
):
    found, log_mean = reached(
        with_quick_text(Designer(generator(), ClassifierGuidance(gradient=True), Sine(), BETA)),
        count,
        count,
        template,
    )
    exact, log_constant = target(Sine(), BETA, template)
    assert 0.5 * np.abs(found - exact).sum() < 0.01 and abs(log_mean - log_constant) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "count", "num_steps"),
    [("NNN", 100_000, 14), ("NCN", 40_000, 14), ("RNY", 40_000, 24)],
)
def test_the_total_variation_of_many_chains_is_below_one_percent(
    generator, template, count, num_steps
):
    # With a partial letter a proposal has one position, and takes more steps.
    designer = Designer(
        generator(), Metropolis(num_steps, num_positions=3), as_reward(scores), BETA
    )
    found, _ = reached(with_quick_text(designer), count, count, template)
    assert 0.5 * np.abs(found - target(scores, BETA, template)[0]).sum() < 0.01


class Enumerated(Draws):
    """Two rows and two positions with the uniform numbers that `numbers` has for a purpose and a
    step."""

    numbers: ClassVar[dict] = {}

    def uniform(self, purpose, *shape):
        return torch.tensor(self.numbers[purpose, self.step], dtype=torch.float64).view(2, *shape)


class EnumeratedSMC(SMC):
    """Draws from `Enumerated`."""

    def design(self, run):
        run.draws = Enumerated(run.seed, run.draws.rows)
        return super().design(run)


@pytest.mark.slow
def test_the_mean_weight_of_two_particles_is_unbiased(make_oracle):
    # All outcomes of two particles over {A, C}^2, of which the rows fill their two positions in
    # opposite orders. The second token of a row has its own number, also after the row was
    # resampled: with the number of the first token, the mean would be 3 % too small.
    words = ["AA", "AC", "CA", "CC"]
    ids = torch.from_numpy(np.stack([DNA.encode(word) for word in words]).astype(np.int64))
    denoiser = make_oracle(ids, torch.full((4,), 0.25, dtype=torch.float64), DNA.vocab)
    made = ConditionalSampler(
        denoiser, AbsorbingProcess(DNA.vocab, LogLinear(1e-3)), DNA, FirstHitting()
    )
    designer = Designer(
        made,
        EnumeratedSMC(threshold=1.0, anneal=False),
        as_reward(lambda s: [text.count("A") for text in s]),
        BETA,
    )
    designer.goal.reward._is_checked = True
    two = Templates([("x", dna_pattern(DNA, 2, "NN"))], 2, DNA.vocab.mask_id)
    # The number of the systematic resampling decides at these limits, by the difference of the
    # rewards, -2 to 2.
    share = 1 / (1 + np.exp(-BETA * np.arange(-2, 3)))
    limits = [0.0, *sorted({round(float(x % 1), 12) for x in 2 * share if 0 < x % 1 < 1}), 1.0]
    total = 0.0
    for first, second, predicted in itertools.product(
        itertools.product((0.25, 0.75), repeat=2), repeat=3
    ):
        for low, high in itertools.pairwise(limits):
            Enumerated.numbers = {
                ("reveal", 0): [[0.9, 0.1], [0.1, 0.9]],
                ("token", 0): [[first[0], second[0]], [second[1], first[1]]],
                ("token", 1): [[second[0]] * 2, [second[1]] * 2],
                ("resample", 0): [(low + high) / 2] * 2,
                **{
                    ("predicted", step): [[predicted[0]] * 2, [predicted[1]] * 2] for step in (0, 1)
                },
            }
            (batch,) = designer.batches(two, 1, 2)
            total += np.exp(batch.log_weight).mean() * (high - low) / 64
    assert total == pytest.approx(np.mean(np.exp(BETA * np.array([2, 1, 1, 0]))), rel=1e-9)


def test_resampling_keeps_what_belongs_to_a_particle(make_oracle):
    # A sampler that fills several positions in some steps and none in others, and a network that is
    # conditioned on time.
    for sampler in (Ancestral(num_steps=6), FirstHitting()):
        denoiser = make_oracle(IDS, JOINT, DNA.vocab)
        denoiser.time_conditioning = True
        made = ConditionalSampler(
            denoiser, AbsorbingProcess(DNA.vocab, LogLinear(1e-3)), DNA, sampler
        )
        designer = Designer(made, SMC(threshold=1.0), as_reward(scores), BETA)
        found, log_mean = reached(designer, 3_000, 3_000, "NCY")
        exact, log_constant = target(scores, BETA, "NCY")
        distance = 0.5 * np.abs(found - exact).sum()
        assert (
            distance < (0.05 if sampler.exact and isinstance(sampler, FirstHitting) else 0.2)
            and abs(log_mean - log_constant) < 0.15
        )


@pytest.mark.parametrize("method", [Metropolis(num_steps=1), ResampleMove(num_stages=1), SMC()])
def test_a_length_beyond_the_network_is_refused_before_anything_is_sampled(generator, method):
    made = generator()
    made.denoiser.max_length = 2
    designer = Designer(made, method, as_reward(scores), BETA)
    message = (
        f"method {type(method).__name__} reads whole sequences, and 3 tokens are more than "
        "the 2 that this network takes; use .*at most 2"
    )
    with pytest.raises(ValueError, match=message):
        designer.check_request(request(2), 2)
    assert (designer.goal.reward.calls, made.denoiser.calls) == (0, 0)
    Designer(made, BestOfN(1), as_reward(scores), BETA).check_request(request(2), 2)


def test_designs_do_not_depend_on_the_batch(generator):
    for method in (
        SVDD(num_candidates=2, every=2),
        ClassifierGuidance(),
        Metropolis(num_steps=3),
        BestOfN(2),
    ):
        found = []
        for size in (1, 4, 12):
            batches = Designer(
                generator(Ancestral(num_steps=5)), method, as_reward(scores), BETA
            ).batches(request(12, "NYN"), 1, size)
            found.append(
                [
                    (DNA.decode(ids), round(reward, 9))
                    for b in batches
                    for ids, reward in zip(b.tokens, b.rewards)
                ]
            )
        assert found[0] == found[1] == found[2]


def purines_first():
    """A distribution (64,) in which C and T are never the first base."""
    joint = torch.tensor([0.0 if word[0] in "CT" else 1.0 for word in WORDS], dtype=torch.float64)
    return joint / joint.sum()


@pytest.mark.parametrize(
    ("method", "template"), [(SMC(), "YNN"), (SVDD(), "YAC"), (ResampleMove(num_stages=2), "YAC")]
)
def test_a_template_of_probability_zero_is_refused(generator, method, template):
    designer = Designer(generator(joint=purines_first()), method, as_reward(scores), BETA)
    with pytest.raises(
        ValueError,
        match=r"no design of the batch that begins with x_1 has a probability above 0.*change "
        r"the letters, motif= or label=",
    ):
        list(designer.batches(request(8, template), 1, 8))


def test_a_weight_of_zero_stays_zero(generator):
    # A model that excludes most of what a template asks for.
    joint = purines_first()
    joint[WORDS.index("CAA")] = 0.2 / 32
    designer = Designer(
        generator(joint=joint / joint.sum()), SMC(threshold=1.0), as_reward(scores), BETA
    )
    (batch,) = designer.batches(request(60, "NRY"), 1, 60)
    assert not np.isnan(batch.log_weight).any()


@pytest.mark.parametrize("sampler", [FirstHitting(), Grouped(num_groups=2)])
@pytest.mark.parametrize("method", [SMC(), ClassifierGuidance()])
def test_without_a_reward_designs_are_the_samples_of_the_model(generator, sampler, method):
    # beta = 0: the same tokens from the same noise, and equal weights.
    made = Designer(generator(sampler), method, as_reward(scores), 0.0)
    (batch,) = made.batches(request(50, "NNN"), 1, 50)
    plain = made.fill([(i, request(50, "NNN")[i]) for i in range(50)], hash64(1, "design"))
    assert (
        np.array_equal(batch.tokens, plain.tokens)
        and np.allclose(batch.log_weight, 0)
        and effective_size(batch.log_weight) == pytest.approx(50)
    )
    assert batch.nfe == plain.nfe


def test_the_first_order_of_a_linear_reward_is_exact(generator):
    linear = Linear()
    exact, first = (
        Designer(generator(), ClassifierGuidance(gradient=g), linear, BETA) for g in (False, True)
    )
    (one,), (two,) = (designer.batches(request(40), 1, 40) for designer in (exact, first))
    assert np.array_equal(one.tokens, two.tokens) and np.allclose(one.log_weight, two.log_weight)
    assert (
        exact.goal.reward.calls == 40 * 3 * (1 + 3) + 40
    )  # each of 3 steps: x0 and 3 changes; then the designs
    assert first.goal.reward.calls == 40 * 3 * 2 + 40


@pytest.mark.parametrize(("template", "tilt"), [("NCN", 0.0), ("RNC", 0.0), ("NCN", 0.7)])
def test_metropolis_reaches_the_target_distribution(generator, template, tilt):
    made = generator(tilt=tilt)
    designer = Designer(made, Metropolis(num_steps=12, num_positions=3), as_reward(scores), BETA)
    found, _ = reached(designer, 2000, 2000, template)
    assert not designer.has_weights(request(1))
    assert 0.5 * np.abs(found - target(scores, BETA, template, tilt)[0]).sum() < 0.06


@pytest.mark.parametrize(("template", "tilt"), [("RNC", 0.0), ("NCN", 0.7)])
def test_resample_move_reaches_the_target_distribution_with_constraints(generator, template, tilt):
    designer = Designer(
        generator(tilt=tilt),
        ResampleMove(num_stages=5, num_positions=3, threshold=0.9),
        as_reward(scores),
        BETA,
    )
    found, log_mean = reached(designer, 3_000, 3_000, template)
    exact, log_constant = target(scores, BETA, template, tilt)
    assert 0.5 * np.abs(found - exact).sum() < 0.06 and abs(log_mean - log_constant) < 0.08


def test_the_mean_weight_of_small_populations_is_unbiased(generator):
    method = ResampleMove(num_stages=3, num_positions=2, threshold=1.0)
    designer = Designer(generator(), method, as_reward(scores), BETA)
    means = np.array(
        [np.exp(batch.log_weight).mean() for batch in designer.batches(request(1_500), 1, 3)]
    )
    expected = np.exp(target(scores, BETA)[1])
    assert (
        abs(means.mean() - expected) < 4 * means.std() / np.sqrt(len(means))
        and means.std() > 0.05 * expected
    )


def test_resample_move_has_weights_only_if_every_call_draws_one_position(generator):
    for sampler, groups, weighted in (
        (FirstHitting(), None, True),
        (Grouped(), None, True),
        (Grouped(num_groups=2), None, False),
        (FirstHitting(), 2, False),
        (FirstHitting(temperature=0.9), None, False),
    ):
        designer = Designer(
            generator(sampler),
            ResampleMove(num_stages=2, num_groups=groups),
            as_reward(scores),
            BETA,
        )
        (batch,) = designer.batches(request(6), 1, 6)
        assert (batch.log_weight is not None) == bool(designer.has_weights(request(6))) == weighted


def test_metropolis_leaves_the_target_distribution_unchanged(generator):
    # Started from the exact distribution, one step ends there; proposals in one call (num_groups=1)
    # would not.
    exact, _ = target(scores, BETA)
    starts = np.random.default_rng(0).choice(64, 3_000, p=exact)
    (pattern,) = request(1).patterns
    chosen = Templates(
        [pattern], len(starts), DNA.vocab.mask_id, start=[IDS[i].numpy() for i in starts]
    )
    for groups, most in ((None, 0.08), (1, 1.0)):
        designer = Designer(
            generator(),
            Metropolis(num_steps=4, num_positions=3, num_groups=groups),
            as_reward(scores),
            BETA,
        )
        (batch,) = designer.batches(chosen, 2, len(starts))
        found = np.bincount(
            [WORDS.index(DNA.decode(ids)) for ids in batch.tokens], minlength=64
        ) / len(starts)
        distance = 0.5 * np.abs(found - exact).sum()
        assert distance < most
    assert distance > 0.12


def test_designs_from_a_given_sequence_change_few_positions(generator):
    (pattern,), start = request(1).patterns, DNA.encode("GAT").astype(np.int64)
    chosen = Templates([pattern], 30, DNA.vocab.mask_id, start=[start] * 30)
    method = Metropolis(num_steps=10, max_changes=1, best=True)
    designer = Designer(generator(), method, as_reward(scores), 20.0)
    (batch,) = designer.batches(chosen, 1, 30)
    changed = [facts["changes"] for facts in designer.facts(batch, range(30), 1)]
    near = [word for word in WORDS if sum(a != b for a, b in zip(word, "GAT")) <= 1]
    assert set(changed) <= {0, 1} and max(batch.rewards) == max(scores(near))
    assert all(
        reward >= SCORES["GAT"] for reward in batch.rewards
    )  # best: never worse than the start


def test_designs_in_python_have_the_numbers_of_their_records(generator):
    (pattern,), start = request(1).patterns, DNA.encode("GAT").astype(np.int64)
    chosen = Templates([pattern], 4, DNA.vocab.mask_id, start=[start] * 4)
    made = generator()
    made.longest_match = lambda bases: np.array([len(b) for b in bases])
    designer = Designer(made, Metropolis(3), as_reward(scores), 0.0)
    for design in designer.designs(chosen, 1, 4):
        assert (
            design.changes == sum(a != b for a, b in zip(design, "GAT"))
            and design.longest_match == 3
            and design.ess is None
        )
    assert design.reward_calls == designer.goal.reward.calls / 4
    weighted = Designer(generator(), SVDD(num_candidates=2), as_reward(scores), BETA).designs(
        request(6), 1, 3
    )
    assert all(
        design.reward_calls == 3 * 2 and 1 <= design.ess <= 3 and design.changes is None
        for design in weighted
    )
    assert list(weighted.to_frame()) == [
        "sequence",
        "log_prob",
        "log_weight",
        "reward",
        "reward_calls",
        "ess",
    ]


@pytest.mark.parametrize(
    "method", [SMC(), SVDD(num_candidates=2), ResampleMove(num_stages=8, num_moves=1)]
)
def test_the_effective_size_of_designs_counts_copies_once(generator, method):
    designer = Designer(generator(), method, as_reward(scores), 2.0)
    designs = designer.designs(request(32), 3, 32)
    weight = {word: 0.0 for word in designs}
    for word in designs:
        weight[word] += np.exp(word.log_weight)
    of_words = np.array(list(weight.values()))
    assert len(weight) < 32
    assert designs[0].ess == pytest.approx(of_words.sum() ** 2 / (of_words**2).sum(), rel=1e-4)
    assert designs[0].ess <= len(weight) + 0.05


def test_best_of_n_has_the_distribution_of_the_maximum(generator):
    designer = Designer(generator(), BestOfN(num_candidates=4), as_reward(scores), 1.0)
    found, _ = reached(designer, 2500, 500, "NCN")
    order, p = np.argsort(scores(WORDS)), target(scores, 0.0, "NCN")[0]
    below = np.concatenate([[0], np.cumsum(p[order])]) ** 4
    exact = np.zeros(64)
    exact[order] = np.diff(below)
    assert 0.5 * np.abs(found - exact).sum() < 0.05 and designer.goal.reward.calls == 4 * 2500


def test_batches_have_one_template_and_start_anywhere(generator):
    patterns = [(name, dna_pattern(DNA, 3, name)) for name in ("NNN", "ANN")]
    both = Templates(patterns, 5, DNA.vocab.mask_id)
    batches = list(Designer(generator(), SVDD(), as_reward(scores)).batches(both, 1, 2))
    assert [len(batch.targets) for batch in batches] == [2, 2, 1, 2, 2, 1]
    rest = list(Designer(generator(), SVDD(), as_reward(scores)).batches(both, 1, 2, 5))
    assert all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.log_weight, b.log_weight)
        for a, b in zip(batches[3:], rest)
    )
    with pytest.raises(ValueError, match="3 to 5; set length to a number"):
        Designer(generator(), SVDD(), as_reward(scores)).check_request(Free(DNA, 5, (3, 5)), 2)


def test_a_target_value_is_approached(generator):
    designer = Designer(
        generator(), Metropolis(num_steps=40, best=True), as_reward(scores, 1.0), 10.0
    )
    (batch,) = designer.batches(request(50), 1, 50)
    reached = [SCORES[DNA.decode(ids)] for ids in batch.tokens]
    assert (
        np.allclose(batch.rewards, -np.abs(np.array(reached) - 1.0))
        and np.abs(np.array(reached) - 1.0).mean() < 0.05
    )
    toward = as_reward(Linear(), 0.5)
    value, slope = toward.gradient(["ACG", "TTT"])
    assert np.array_equal(value, toward(["ACG", "TTT"]))
    sign = -np.sign(Linear()(["ACG", "TTT"]) - 0.5)
    assert np.array_equal(slope, sign[:, None, None] * Linear.weight)


def test_what_does_not_fit_a_method_is_refused(generator):
    with pytest.raises(ValueError, match="beta -1 must be a number of at least 0"):
        Designer(generator(), SMC(), as_reward(scores), -1)
    with pytest.raises(
        ValueError,
        match=(
            "needs a sampler whose order does not depend on tokens, not Confidence; set "
            "sampler=grouped"
        ),
    ):
        Designer(generator(Confidence()), SVDD(), as_reward(scores))
    with pytest.raises(
        ValueError, match="gradient=true needs a differentiable reward, and scores has no gradient"
    ):
        Designer(generator(), ClassifierGuidance(gradient=True), as_reward(scores))
    causal = generator(Autoregressive())
    causal.denoiser = CausalDenoiser(Mamba(DNA.vocab, d_model=8, n_layers=1))
    for method in (SMC(), Metropolis(), ResampleMove()):
        with pytest.raises(
            ValueError,
            match=f"method {type(method).__name__} .*goes from left to right; use best_of_n",
        ):
            Designer(causal, method, as_reward(scores))
    with pytest.raises(ValueError, match=r"num_candidates 0 must be"):
        BestOfN(0)
    with pytest.raises(ValueError, match=r"threshold 1\.5"):
        SMC(threshold=1.5)


def test_a_population_of_one_is_refused_and_a_small_one_warns(generator, caplog):
    def check(method, count, batch_size, num_templates=1):
        patterns = [(str(i), dna_pattern(DNA, 3, "NNN")) for i in range(num_templates)]
        caplog.clear()
        Designer(generator(), method, as_reward(scores)).check_request(
            Templates(patterns, count, DNA.vocab.mask_id), batch_size
        )
        return caplog.text

    for count, batch_size in ((1, 32), (4, 1)):
        with pytest.raises(
            ValueError, match="method SMC steers a population, and a batch has one design here"
        ):
            check(SMC(), count, batch_size, num_templates=3)
        # Importance sampling does not resample, and moves have their reward in a population of one
        # too.
        assert not any(
            check(method, count, batch_size)
            for method in (SMC(threshold=0.0), ResampleMove(), BestOfN(), SVDD())
        )
    assert "the smallest batch of a template has 7" in check(SMC(), 7, 32) and "has 2:" in check(
        SMC(), 10, 3
    )
    assert not check(SMC(), 33, 32) and not check(SMC(), 8, 8, 4)


def test_only_populations_are_divided_evenly(generator):
    two = Templates([(name, dna_pattern(DNA, 3, "NNN")) for name in "xy"], 33, DNA.vocab.mask_id)

    def starts(method, batch_size, first=0):
        units = Designer(generator(), method, as_reward(scores)).units(two, batch_size, first)
        return [numbers[0] for numbers in units]

    for method in (SMC(), ResampleMove()):
        assert (
            starts(method, 32) == [0, 17, 33, 50]
            and starts(method, 32, 33) == [33, 50]
            and starts(method, 33) == [0, 33]
        )
        assert (
            starts(method, 10) == [0, 9, 17, 25, 33, 42, 50, 58]
            and starts(method, 10, 17) == starts(method, 10)[2:]
        )
        assert starts(method, 1) == list(range(66))
    for method in (BestOfN(), SVDD(), Metropolis(), SMC(threshold=0.0)):
        assert starts(method, 32) == [0, 32, 33, 65] and starts(method, 32, 33) == [33, 65]


@pytest.mark.parametrize("method", [BestOfN(1), SMC(), ClassifierGuidance(gradient=True)])
def test_a_random_reward_is_found_in_a_batch_of_one(generator, method):
    random = np.random.default_rng(0)

    class Random(Linear):
        def __call__(self, sequences):
            return random.normal(size=len(sequences))

    with pytest.raises(
        ValueError, match=r"returned .* and then .* it must be a function of the sequence"
    ):
        list(Designer(generator(), method, Random(), BETA).batches(request(1), 1, 1))


def test_calls_with_one_sequence_are_checked_together():
    sizes = []

    def batch_mean(sequences):
        sizes.append(len(sequences))
        return np.arange(len(sequences)) - np.arange(len(sequences)).mean()

    counted = CountedReward(FunctionReward(batch_mean))
    assert counted(["ACG"]) == counted(["ACG"]) == 0
    with pytest.raises(ValueError, match=r"returned 0 and then -0\.5 for TTT"):
        counted(["TTT"])
    assert sizes == [1, 1, 1, 1, 2] and counted.calls == 2
    counted = wrong(lambda s: sizes.append(len(s)) or scores(s))
    sizes.clear()
    for word in ("ACG", "TTT", "ACG", "GGG"):
        counted([word])
    assert sizes == [1, 1, 1, 2, 1, 1] and counted.calls == 4  # checks are not counted


def wrong(result):
    return CountedReward(FunctionReward(result))


def test_rewards_are_checked():
    two = ["ACG", "TTT"]
    with pytest.raises(ValueError, match=r"reward <lambda> is nan for TTT; return finite numbers"):
        wrong(lambda s: [1.0, float("nan")][: len(s)])(two)
    with pytest.raises(ValueError, match=r"is inf for ACG"):
        wrong(lambda s: [float("inf")] * len(s))(two)
    with pytest.raises(ValueError, match=r"returned an array of shape \(1,\) for 2 sequences"):
        wrong(lambda s: [1.0])(two)
    with pytest.raises(ValueError, match=r"reward scores failed for CCCCC: KeyError: 'CCCCC'"):
        wrong(scores)(["CCCCC"])
    with pytest.raises(ValueError, match=r"returned -0\.5 and then 0 for ACG"):
        wrong(lambda s: np.arange(len(s)) - np.arange(len(s)).mean())(two)
    counted = wrong(scores)
    assert counted(two).tolist() == scores(two) and counted.calls == 2
    assert counted(two[:1]).tolist() == scores(two[:1]) and counted.calls == 3
    with pytest.raises(ValueError, match="has no gradient"):
        counted.gradient(two)
    linear = Linear()
    linear.gradient = lambda s: (Linear()(s), np.zeros((len(s), 3, 3)))
    with pytest.raises(ValueError, match=r"gradient of shape \(2, 3, 3\), not \(2, 3, 4\)"):
        CountedReward(linear).gradient(two)
    linear.gradient = lambda s: (Linear()(s) + 1, np.zeros((len(s), 3, 4)))
    with pytest.raises(
        ValueError, match=r"returned .* and then .* it must be a function of the sequence"
    ):
        CountedReward(linear).gradient(two)
