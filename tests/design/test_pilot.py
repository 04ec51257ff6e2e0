"""An automatic beta: exact on distributions that can be enumerated, and what the command and Python
make of it."""

import itertools
import json

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.designs import unguided_path
from dnadiff.design.generate import ConditionalSampler, Designs, effective_size
from dnadiff.design.method.base import Designer
from dnadiff.design.method.metropolis import Metropolis
from dnadiff.design.method.resample_move import ResampleMove
from dnadiff.design.method.smc import SMC
from dnadiff.design.pilot import Beta, Pilot, quantile, refined, tilted_mean
from dnadiff.design.request import Templates, dna_pattern
from dnadiff.design.reward import GCContent, as_reward
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics.composition import header_facts, sixmer_distance

DNA = DNATokenizer()
WORDS = ["".join(letters) for letters in itertools.product("ACGT", repeat=3)]
IDS = torch.from_numpy(np.stack([DNA.encode(word) for word in WORDS]).astype(np.int64))
JOINT = torch.rand(64, generator=torch.Generator().manual_seed(5), dtype=torch.float64) ** 2 + 0.02
JOINT /= JOINT.sum()
P = JOINT.numpy()
VALUES = 0.6 + 0.07 * np.random.default_rng(0).normal(size=64)  # small, as of a regression
REWARD = dict(zip(WORDS, VALUES.tolist()))
AUTO = Beta.parse("auto")


def reward(sequences):
    return [REWARD[sequence] for sequence in sequences]


def pilot_of(rewards, groups=None, log_weight=None):
    """A pilot that has drawn these rewards."""
    size = len(rewards)
    groups = np.zeros(size, int) if groups is None else np.array(groups)
    weight = np.zeros(size) if log_weight is None else log_weight
    return Pilot(groups, np.array(rewards, float), weight, Designs())


@pytest.fixture
def generator(make_oracle):
    def make(sampler=None):
        process = AbsorbingProcess(DNA.vocab, LogLinear(1e-3))
        oracle = make_oracle(IDS, JOINT, DNA.vocab)
        return ConditionalSampler(oracle, process, DNA, sampler or Grouped(3))

    return make


def request(count, *templates):
    patterns = [(name, dna_pattern(DNA, 3, name)) for name in templates or ("NNN",)]
    return Templates(patterns, count, DNA.vocab.mask_id)


def tilted(beta):
    """The exact mean reward under p(x) exp(beta r(x))."""
    w = P * np.exp(beta * VALUES)
    return float(w @ VALUES / w.sum())


def test_the_forms_of_beta():
    assert Beta.parse(10) == ("number", 10) and Beta.parse(0.5) == ("number", 0.5)
    assert Beta.parse("auto") == Beta.parse("q0.9") == ("quantile", 0.9)
    assert Beta.parse("q.95") == ("quantile", 0.95)
    assert Beta.parse("2sd") == ("sd", 2.0) and Beta.parse("0.5sd") == ("sd", 0.5)
    for wrong in (-1, "q1", "q0", "q90", "0sd", "sd", "10", "high", "", float("nan"), True, 1e300):
        with pytest.raises(ValueError, match="must be a number of at least 0, auto, a quantile"):
            Beta.parse(wrong)
    assert [AUTO.pilot_size(None, weights) for weights in (True, False)] == [256, 512]
    assert Beta.parse(3).pilot_size(None, True) == 64 and Beta.parse(3).pilot_size(0, True) == 0
    with pytest.raises(ValueError, match="pilot 15 is too few samples to choose beta by"):
        AUTO.pilot_size(15, True)


def test_quantiles_are_those_of_the_mid_distribution():
    # F of 0, 1 and 3 is 1/4, 5/8 and 7/8.
    values = np.array([0.0, 1.0, 0.0, 3.0])
    assert [quantile(values, level) for level in (0.1, 0.25, 0.625, 0.75, 0.875, 0.95)] == [
        *(0.0, 0.0, 1.0, 2.0, 3.0, 3.0)
    ]
    many = np.random.default_rng(0).normal(size=1001)
    assert quantile(many, 0.9) == pytest.approx(np.quantile(many, 0.9), abs=0.01)


def test_beta_reaches_the_quantile_exactly():
    rewards = np.random.default_rng(1).normal(0.6, 0.07, size=64)
    choice = pilot_of(rewards).chosen(AUTO, "r")
    level = quantile(rewards, 0.9)
    w = np.exp(choice.beta * rewards)
    assert w @ rewards / w.sum() == pytest.approx(level, abs=1e-9)
    assert choice.levels == {"0": pytest.approx(level)} and choice.sd == rewards.std()
    assert choice.effective == pytest.approx(w.sum() ** 2 / (w**2).sum()) and choice.effective > 6.4
    # In the unit of the reward, wherever its zero is.
    scaled = pilot_of(100 * rewards - 7).chosen(AUTO, "r")
    assert scaled.beta == pytest.approx(choice.beta / 100)
    assert scaled.effective == pytest.approx(choice.effective)
    in_sds = pilot_of(rewards).chosen(Beta.parse("2sd"), "r")
    assert in_sds.beta == 2 / rewards.std() and in_sds.levels == {}
    assert pilot_of(rewards).chosen(Beta.parse(10), "r") == (10, {}, None, None)


def test_mean_and_effective_size_are_monotone_sums():
    previous = -np.inf, np.inf
    for beta in np.linspace(0, 40, 9):
        w = P * np.exp(beta * VALUES)
        mean = tilted_mean(VALUES, np.log(P), beta)
        assert mean == pytest.approx(w @ VALUES / w.sum(), abs=1e-12)
        size = effective_size(beta * VALUES)
        assert previous[0] < mean and size <= previous[1]
        previous = mean, size


def test_a_heavy_tail_is_bounded_by_the_effective_size():
    rewards = np.exp(2.5 * np.random.default_rng(2).normal(size=256))
    choice = pilot_of(rewards).chosen(Beta.parse("q0.99"), "r")
    assert choice.effective == pytest.approx(25.6)
    assert tilted_mean(rewards, np.zeros(256), choice.beta) < quantile(rewards, 0.99)


def test_weights_of_constraints_are_in_the_mean():
    random = np.random.default_rng(3)
    rewards, log_weight = random.normal(size=(2, 100))
    choice = pilot_of(rewards, log_weight=log_weight).chosen(AUTO, "r")
    reached = tilted_mean(rewards, log_weight, choice.beta)
    assert reached == pytest.approx(quantile(rewards, 0.9), abs=1e-9)


def test_templates_have_levels_of_their_own():
    shape = np.random.default_rng(4).normal(size=32)
    rewards, groups = np.concatenate([5 + shape, -20 + shape]), [0] * 32 + [7] * 32
    choice = pilot_of(rewards, groups).chosen(AUTO, "r")
    alone = pilot_of(shape).chosen(AUTO, "r")
    assert choice.beta == pytest.approx(alone.beta, rel=0.05)
    assert choice.sd == pytest.approx(shape.std())
    level = alone.levels["0"]
    assert choice.levels == pytest.approx({"0": 5 + level, "7": level - 20}, abs=0.05)


def test_a_reward_without_spread_is_an_error():
    with pytest.raises(ValueError, match=r"reward Motif is 0\.5 for all 256 unguided samples, so"):
        pilot_of([0.5] * 256).chosen(AUTO, "Motif")
    with pytest.raises(ValueError, match="nothing to choose beta by"):
        pilot_of([3.0] * 8 + [4.0] * 8, [0] * 8 + [1] * 8).chosen(AUTO, "Motif")
    assert pilot_of([0.5] * 256).chosen(Beta.parse(10), "Motif").beta == 10


def test_refined_weights_have_the_mean_of_the_level():
    random = np.random.default_rng(5)
    rewards, log_weight = random.normal(size=(2, 64))
    for level in (0.2, 0.9, 1.3):
        more = refined(rewards, log_weight, 3.0, level)
        assert tilted_mean(rewards, log_weight, more) == pytest.approx(level, abs=1e-9)
    assert refined(rewards, log_weight, 3.0, 9.0) == 3.0  # cannot be reached
    assert refined(rewards, log_weight, 3.0, -9.0) == -3.0
    assert refined(rewards[:15], log_weight[:15], 3.0, 0.2) == 0.0
    assert refined(rewards, log_weight, 3.0, None) == 0.0
    log_weight[:40] = -np.inf
    more = refined(rewards, log_weight, 3.0, 0.2)
    assert tilted_mean(rewards, log_weight, more) == pytest.approx(0.2, abs=1e-9)


def test_a_pilot_has_the_distribution_of_the_sampler(generator):
    designer = Designer(generator(), SMC(), as_reward(reward), 5.0)
    found = Pilot.of(designer, request(9), 4000, 1, 500)
    share = np.array([found.designs.count(word) for word in WORDS]) / 4000
    assert 0.5 * np.abs(share - P).sum() < 0.06
    assert found.rewards.tolist() == reward(found.designs)
    assert found.nfe == 8 * 3 and found.designs[0].reward_calls == 1
    again = Pilot.of(designer, request(900), 40, 1, 7)
    assert again.designs == found.designs[:40]  # of number and seed alone
    choice = found.chosen(AUTO, "r")
    exact = float(np.interp(0.9, np.cumsum(P[(o := VALUES.argsort())]) - P[o] / 2, VALUES[o]))
    assert tilted(choice.beta) == pytest.approx(exact, abs=0.008)


def test_a_pilot_covers_the_templates(generator):
    designer = Designer(generator(), SMC(), as_reward(reward), 5.0)
    many = request(3)
    many.patterns = [(word, dna_pattern(DNA, 3, f"{word[:2]}N")) for word in WORDS[:40]]
    many.num_groups = 40
    found = Pilot.of(designer, many, 256, 1, 32)
    assert len(found.groups) == 256 and (np.unique(found.groups, return_counts=True)[1] == 8).all()
    assert all(
        design[:2] == WORDS[group][:2] and target.name.startswith(WORDS[group])
        for design, group, target in zip(found.designs, found.groups, found.targets)
    )
    few = Pilot.of(designer, many, 64, 1, 32)
    assert len(np.unique(few.groups)) == 8


@pytest.mark.parametrize("method", [SMC(), ResampleMove(num_stages=8, num_groups=2)])
def test_designs_that_are_written_have_the_mean_of_the_level(generator, method):
    # As it was: beta=10 is less than one standard deviation, nothing resampled, and the designs
    # had the distribution of the model.
    designer = Designer(generator(), method, as_reward(reward), 0.0)
    world = np.repeat(VALUES, np.round(P * 4000).astype(int))
    designer = designer.with_choice(pilot_of(world).chosen(AUTO, "r"))
    level = designer.levels["0"]
    found = designer.designs(request(800), 1, 100)
    if designer.has_weights(request(1)):
        found = designer.resampled(found, 400, 1)
        assert found.beta == pytest.approx(designer.goal.beta, rel=0.3)
    assert isinstance(found, Designs)
    assert np.mean(reward(found)) == pytest.approx(level, abs=0.006)
    assert level - P @ VALUES > 0.06  # far above the model


def test_the_last_stage_resamples_where_weights_are_lost(generator):
    # One stage and no accepted move: without resampling these are samples of the model.
    method = ResampleMove(num_stages=1, num_groups=2, threshold=0.0)
    designer = Designer(generator(), method, as_reward(reward), 20.0)
    assert designer.has_weights(request(1)) is None
    found = designer.designs(request(2000), 1, 2000)
    assert np.mean(reward(found)) == pytest.approx(tilted(20.0), abs=0.01)


def test_smc_without_weights_resamples_at_the_end(generator):
    hot = Grouped(3, temperature=1.0001)
    designer = Designer(generator(hot), SMC(threshold=0.01), as_reward(reward), 20.0)
    assert designer.has_weights(request(1)) is None
    found = designer.designs(request(1000), 1, 1000)
    assert np.mean(reward(found)) == pytest.approx(tilted(20.0), abs=0.01)


def test_six_mers_of_the_same_distribution_are_as_far_as_the_baseline():
    random = np.random.default_rng(6)
    one, two = random.integers(4, size=(2, 60, 80), dtype=np.uint8)
    same, baseline = sixmer_distance(one, two, 1)
    assert same == pytest.approx(baseline, rel=0.1)
    rich, _ = sixmer_distance(np.where(one == 0, 2, one).astype(np.uint8), two, 1)
    assert rich > 1.2 * baseline
    assert sixmer_distance(one, two[:3], 1) is None and sixmer_distance(one[:, :5], two, 1) is None


# The command and Python

RUN = ["reward=gc", "length=24", "sampler.num_groups=4", "batch_size=8", "num_draws=2"]


@pytest.fixture
def design(cli, trained, tmp_path):
    def run(*args, output="a.fa"):
        given = [f"checkpoint={trained}", *RUN, "num_samples=16", "pilot=24", f"output={output}"]
        status, out, err = cli("sample", *given, *args)
        assert status == 0, err
        return json.loads((tmp_path / f"{output}.json").read_text()), out, err

    return run


def test_designs_are_resampled_from_twice_as_many(design, tmp_path):
    content, out, err = design("method=smc", "copies=true")
    found, unguided = content["design"], content["unguided"]
    records = read_sequences(tmp_path / "a.fa")
    texts = [record.sequence.decode() for record in records]
    side = read_sequences(unguided_path(tmp_path / "a.fa"))
    values = GCContent()([record.sequence.decode() for record in side])
    about = [header_facts(record.description) for record in side]
    assert len(records) == 16 and content["weights"]["proposals"] == 32
    assert found["beta"] == "auto" and content["settings"]["pilot"] == unguided["number"] == 24
    assert unguided["reward"]["mean"] == pytest.approx(values.mean())
    level = quantile(values, 0.9)
    assert unguided["reward"]["quantiles"]["0.9"] == pytest.approx(level)
    assert found["steering"]["level"] == pytest.approx(level)
    assert found["steering"]["beta_of_pilot"] == pytest.approx(
        pilot_of(values).chosen(AUTO, "r").beta
    )
    assert found["mean"] == pytest.approx(GCContent()(texts).mean(), abs=1e-5)
    assert found["mean"] == pytest.approx(level, abs=0.03) and found["distinct"] == len({*texts})
    assert found["gc"] == pytest.approx(found["mean"]) and unguided["gc"] == pytest.approx(
        unguided["reward"]["mean"]
    )
    key = "js_6_from_unguided"
    assert found[key] > 0 and unguided[key] > 0
    assert [float(each["reward"]) for each in about] == pytest.approx(values, abs=1e-6)
    assert all(float(each["log_prob"]) < 0 and "longest_match" in each for each in about)
    # Calls of the pilot are counted apart.
    assert unguided["calls"] == 24 and unguided["network_calls"] == 3 * 4
    assert content["network_calls"] == 4 * 4 and found["calls"] == 4 * 32
    used = float(header_facts(records[0].description)["beta"])
    assert used == pytest.approx(found["steering"]["beta_of_pilot"], rel=1e-5)
    assert "quantile 0.9 of 24 unguided samples (effective sample size" in out and "beta: " in err
    assert "effective sample size" in out and ", resampled" in out


def test_numbers_keep_their_meaning(design, cli, trained, tmp_path):
    content, _, _ = design("method=smc", "beta=10", "pilot=0")
    assert "unguided" not in content and "steering" not in content["design"]
    assert not unguided_path(tmp_path / "a.fa").exists() and content["records"] == 16
    assert "proposals" not in content["design"]
    before = (tmp_path / "a.fa").read_bytes()
    content, _, _ = design("method=smc", "beta=10", "overwrite=true")
    assert (tmp_path / "a.fa").read_bytes() == before and content["unguided"]["number"] == 24
    content, _, _ = design("method=svdd", "beta=2sd", "resample=false", output="b.fa")
    steering = content["design"]["steering"]
    assert steering["beta"] == pytest.approx(2 / steering["sd"]) and steering["level"] is None
    assert content["records"] == 16 and "resampled" not in content["weights"]
    content, _, err = design("beta=3", output="c.fa")
    assert "beta is not used by best_of_n" in err and content["design"]["beta"] is None
    assert content["unguided"]["number"] == 24


@pytest.mark.parametrize("method", ["smc", "resample_move"])
def test_shards_and_merging_give_the_same_bytes(design, cli, trained, tmp_path, method):
    args = [f"method={method}", "num_samples=8"]
    expected, _, _ = design(*args)
    for shard in ("1/2", "2/2"):
        given = [f"checkpoint={trained}", *RUN, "pilot=24", *args, "output=m/a.fa"]
        assert cli("sample", *given, f"shard={shard}")[0] == 0
    status, _, err = cli("merge", "output=m/a.fa")
    assert status == 0, err
    for name in ("a.fa", "a.unguided.fa"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / name).read_bytes()
    merged = json.loads((tmp_path / "m" / "a.fa.json").read_text())
    assert {merged[key] == expected[key] for key in ("design", "unguided")} == {True}


STOPPING = """
from pathlib import Path
import numpy as np
from dnadiff.design.reward import Reward

class Stopping(Reward):
    calls = 0

    def __call__(self, sequences):
        Stopping.calls += 1
        if Path("stop").exists() and Stopping.calls > 11:
            raise KeyboardInterrupt
        return np.array([text.count("A") / len(text) for text in sequences])
"""


def test_an_interrupted_run_keeps_its_pilot(design, tmp_path, monkeypatch):
    (tmp_path / "stopping").mkdir()
    (tmp_path / "stopping/__init__.py").write_text(STOPPING)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["method=smc", "reward=none", "+reward._target_=stopping.Stopping", "trust=[stopping]"]
    (tmp_path / "stop").touch()
    with pytest.raises(AssertionError, match="to resume it"):
        design(*given)
    (tmp_path / "stop").unlink()
    side = (tmp_path / "a.unguided.fa").read_bytes()
    assert (tmp_path / ".a.fa.journal").exists() and not (tmp_path / "a.fa").exists()
    content, _, _ = design(*given, "resume=true")
    expected, _, _ = design(*given, output="b.fa")
    assert (tmp_path / "a.fa").read_bytes() == (tmp_path / "b.fa").read_bytes()
    assert side == (tmp_path / "b.unguided.fa").read_bytes()
    assert {content[key] == expected[key] for key in ("design", "unguided")} == {True}


WRONG = {
    "beta 'high' must be a number of at least 0, auto": ["reward=gc", "beta=high"],
    "pilot 4 is too few samples": ["reward=gc", "method=smc", "pilot=4"],
    "pilot is for designs": ["pilot=4"],
    "reward RestrictionSites is 0 for all 512 unguided samples, so there is nothing to choose": [
        *("reward=restriction_sites", "reward.enzymes=[GGGGGGGGGGCC]", "method=metropolis"),
    ],
    "b.unguided.fa": ["reward=gc", "output=b.fa"],
    "proposals is for resample=true": ["reward=gc", "beta=3", "proposals=40"],
    "resample=true needs a sampler with importance weights": [
        *("reward=gc", "method=smc", "sampler.temperature=0.5", "proposals=40"),
    ],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_end_in_one_line(cli, trained, tmp_path, message):
    (tmp_path / "b.unguided.fa").write_text("kept")
    given = ["length=12", "sampler.num_groups=1", "output=a.fa", "batch_size=256"]
    status, _, err = cli("sample", f"checkpoint={trained}", *given, *WRONG[message])
    assert status == 1 and message in err and err.count("error:") == 1, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.unguided.fa"]
    assert (tmp_path / "b.unguided.fa").read_text() == "kept"


def test_unguided_samples_in_python(trained):
    model = dnadiff.load(trained, device="cpu")
    given = {"length": 20, "sampler": Grouped(2), "num_draws": 0, "pilot": 16}
    found = model.design(GCContent(), 8, SMC(), **given)
    assert len(found) == 8 and len(found.unguided) == 16 and found.beta > 0
    assert [each.reward for each in found.unguided] == GCContent()(found.unguided).tolist()
    assert model.design(GCContent(), 2, **given).beta is None
    changed = model.design(
        GCContent(), 2, Metropolis(2), "2sd", start="ATATATATAT", **{**given, "length": None}
    )
    assert {len(each) for each in [*changed, *changed.unguided]} == {10}
    assert any(each != "ATATATATAT" for each in changed.unguided)
    sequence = "acgtacgtac" * 3
    inside = model.design(GCContent(), 2, infill=(sequence, 10, 20), **given)
    assert all(each[:10] == sequence[:10] and len(each) == 30 for each in inside.unguided)
