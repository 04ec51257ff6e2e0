"""Designs from the command line: every method, weighted sums, given sequences, resuming, and
invalid options."""

import json
import signal
import time

import numpy as np
import pytest

import dnadiff
from dnadiff.design.method.metropolis import Metropolis
from dnadiff.design.method.smc import SMC
from dnadiff.design.reward import GCContent, MotifMatch
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.formats.sequences import read_sequences

METHODS = {
    "best_of_n": ["method.num_candidates=3"],
    "smc": ["method.every=2"],
    "svdd": ["method.num_candidates=2"],
    "classifier_guidance": ["method.gradient=true"],
    "metropolis": ["method.num_steps=4", "method.num_positions=2"],
    "resample_move": ["method.num_stages=3", "method.num_positions=2"],
}
FEW = ["num_samples=4", "batch_size=2", "length=24", "output=a.fa"]


def facts(record):
    return dict(word.split("=", 1) for word in record.description.split() if "=" in word)


@pytest.fixture
def design(cli, trained, tmp_path):
    """Runs `sample` with these arguments: (records, content of the JSON file, output)."""

    def run(*args):
        status, out, err = cli("sample", f"checkpoint={trained}", *FEW, *args)
        assert status == 0, err
        return (
            read_sequences(tmp_path / "a.fa"),
            json.loads((tmp_path / "a.fa.json").read_text()),
            out + err,
        )

    return run


@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_designs_with_their_rewards(design, method):
    records, content, out = design(
        "reward=gc", f"method={method}", *METHODS[method], "beta=20", "copies=true"
    )
    values = GCContent()([record.sequence.decode() for record in records])
    about = [facts(record) for record in records]
    assert np.allclose([float(each["reward"]) for each in about], values, atol=1e-6)
    assert all(
        each["method"] == method and each.get("beta") == (None if method == "best_of_n" else "20")
        for each in about
    )
    assert all(
        float(each["log_prob"]) < 0 and 0 <= int(each["longest_match"]) <= 24 for each in about
    )
    assert all(
        float(each["reward_calls"]) == pytest.approx(content["design"]["calls"] / 4, abs=1)
        for each in about
    )
    weighted = method in ("smc", "svdd", "classifier_guidance", "resample_move")
    assert all(("log_weight" in each) == ("ess" in each) == weighted for each in about)
    found = content["design"]
    assert found["beta"] == (None if method == "best_of_n" else 20)
    assert (
        found["mean"] == pytest.approx(values.mean())
        and found["best"] == values.max()
        and found["calls"] > 4
    )
    assert found["method"]["_target_"].startswith(f"dnadiff.design.method.{method}.") and found[
        "reward"
    ]["_target_"].endswith("GCContent")
    assert (
        "reward calls" in out
        and out.count("RESPONSIBLE_USE.md") == 1
        and ("log normalizing constant" in out) == weighted
    )


def test_weighted_sums_of_rewards_with_a_template(design, tmp_path):
    (tmp_path / "t.fa").write_text(">t\nNNNNNNGAATNNNNNNNNRYNNNN\n")
    sites = [
        "+reward@reward.terms.sites=restriction_sites",
        "reward.terms.sites.enzymes=[GAATTC]",
        "+reward.weights.sites=2",
    ]
    terms = [
        "reward=weighted",
        "+reward@reward.terms.box=motif",
        "reward.terms.box.motif=TATAAT",
        *sites,
    ]
    records, content, _ = design(
        *terms,
        "template=t.fa",
        "length=null",
        "method=smc",
        "resample=true",
        "proposals=8",
        "num_samples=4",
    )
    for record in records:
        text = record.sequence.decode()
        expected = MotifMatch("TATAAT")([text])[0] - 2 * text.count("GAATTC")
        assert (
            text[6:10] == "GAAT"
            and text[18] in "AG"
            and text[19] in "CT"
            and float(facts(record)["reward"]) == pytest.approx(expected)
        )
    written = [float(facts(record)["reward"]) for record in records]
    assert content["design"]["mean"] == pytest.approx(np.mean(written)) and content["design"][
        "best"
    ] == pytest.approx(max(written))
    assert (
        len(records) == 4
        and content["weights"]["resampled"] == 4
        and set(content["design"]["reward"]["terms"]) == {"box", "sites"}
    )


def test_given_sequences_are_changed_where_the_template_allows_it(design, tmp_path):
    given = {"p1": "ATTATATTTAACCGAATATTATTA", "p2": "ATATATATATATATATATATATAT"}
    (tmp_path / "s.fa").write_text("".join(f">{name}\n{text}\n" for name, text in given.items()))
    (tmp_path / "t.fa").write_text(">t\nATNNNNNNNNNNNNNNNNNNNNNN\n")
    args = [
        "reward=gc",
        "method=metropolis",
        "method.num_steps=30",
        "method.max_changes=3",
        "method.best=true",
        "start=s.fa",
        "length=null",
    ]
    records, content, _ = design(*args, "template=t.fa", "num_samples=2", "beta=100")
    assert [record.name for record in records] == ["p1_1", "p1_2", "p2_1", "p2_2"] and content[
        "inputs"
    ]["start"] == "s.fa"
    for record in records:
        text, before = record.sequence.decode(), given[record.name[:2]]
        changed = sum(a != b for a, b in zip(text, before))
        assert int(facts(record)["changes"]) == changed <= 3 and text[:2] == "AT"
        assert GCContent()([text])[0] >= GCContent()([before])[0]
    assert any(int(facts(record)["changes"]) for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svdd", "smc", "resample_move"])
def test_a_killed_run_is_resumed_with_the_same_bytes(cli, trained, tmp_path, python, method):
    args = [
        "reward=gc",
        f"method={method}",
        "length=24",
        "num_samples=30",
        "batch_size=2",
        "sampler.num_groups=6",
        f"checkpoint={trained}",
    ]
    process = python("-m", "dnadiff.sample", *args, "output=a.fa", cwd=tmp_path)
    part, end = tmp_path / ".a.fa.part", time.monotonic() + 600
    while (
        time.monotonic() < end
        and process.poll() is None
        and not (part.exists() and part.stat().st_size > 500)
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert part.exists() and not (tmp_path / "a.fa").exists()
    status, _, err = cli("sample", *args, "output=a.fa", "resume=true", "beta=9")
    assert status == 1 and "was started with beta=auto, not 9" in err
    status, _, err = cli("sample", *args, "output=a.fa", "resume=true")
    assert status == 0, err
    assert cli("sample", *args, "output=b.fa")[0] == 0
    assert (tmp_path / "a.fa").read_bytes() == (tmp_path / "b.fa").read_bytes()
    one, two = (json.loads((tmp_path / f"{name}.fa.json").read_text())["design"] for name in "ab")
    assert one["calls"] == two["calls"] and one["mean"] == pytest.approx(two["mean"])


WRONG = {
    "target is for designs; set reward= too": ["target=0.5"],
    "start= has complete sequences, which this sampler does not change; set start_t=": [
        "start=bases.fa",
        "length=null",
    ],
    "start_t and reward exclude each other": [
        *("reward=gc", "method=metropolis", "start=bases.fa", "start_t=0.2", "length=null"),
    ],
    "start_t is for sequences of start=, to which it adds noise": ["start_t=0.3"],
    "start_t 1.5 must be": ["start=bases.fa", "start_t=1.5", "length=null"],
    "beta is for designs": ["beta=50"],
    "method is for designs": ["method=smc"],
    "method.num_candidates is for designs; set reward= too": ["method.num_candidates=64"],
    "method SMC steers a population, and a batch has one design here": [
        "reward=gc",
        "method=smc",
        "batch_size=1",
    ],
    "gc and reward exclude each other": ["reward=gc", "gc=0.5"],
    "beta -1 must be": ["reward=gc", "beta=-1"],
    "beta inf must be a number of at least 0, auto,": ["reward=gc", "beta=inf"],
    "num_draws 3 must be even": ["reward=gc", "num_draws=3"],
    "designs are compared at one length, and this request has 20 to 30": [
        "reward=gc",
        "length=20:30",
    ],
    "start is for methods that change given sequences, and BestOfN does not": [
        "reward=gc",
        "start=bases.fa",
        "length=null",
    ],
    "method=resample_move needs sampler=first_hitting": [
        "reward=gc",
        "method=resample_move",
        "method.num_groups=2",
        "resample=true",
    ],
    "start and length exclude each other": [
        "reward=gc",
        "start=s.fa",
        "method=metropolis",
    ],
    "resample=true needs a method with importance weights, and BestOfN has none": [
        "reward=gc",
        "resample=true",
    ],
    "needs a sampler whose order does not depend on tokens, not Confidence": [
        "reward=gc",
        "method=smc",
        "sampler=confidence",
    ],
    "gradient=true needs a differentiable reward, and Homopolymer has no gradient": [
        *("reward=homopolymer", "method=classifier_guidance", "method.gradient=true"),
    ],
    "start: p1 has N at position 3, which its template does not allow there": [
        "reward=gc",
        "start=s.fa",
        "length=null",
        "method=metropolis",
    ],
    "reward.motif 'TAX'": ["reward=motif", "reward.motif=TAX"],
    "'EcoR' is no enzyme": ["reward=restriction_sites", "reward.enzymes=EcoR"],
    "refused to build 'os.system'": ["reward=gc", "reward._target_=os.system"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_end_in_one_line(cli, trained, tmp_path, message):
    (tmp_path / "s.fa").write_text(">p1\nATNATATTTAACCGAATATTATTA\n")
    (tmp_path / "bases.fa").write_text(">p1\nATCATATTTAACCGAATATTATTA\n")
    status, _, err = cli("sample", f"checkpoint={trained}", *FEW, *WRONG[message])
    assert (
        status == 1
        and message in err
        and "Traceback" not in err
        and not (tmp_path / "a.fa").exists()
    )


def test_a_reward_of_a_trusted_package(cli, trained, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(
        "import numpy as np\nfrom dnadiff.design.reward import Reward\n\n\nclass Adenine(Reward):\n"
        "    def __init__(self, scale: float = 1.0) -> None:\n        self.scale = scale\n\n"
        "    def __call__(self, sequences):\n        return np.array([self.scale * s.count('A') "
        "for s in sequences])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ["+reward._target_=mine.Adenine", "+reward.scale=2.0"]
    status, _, err = cli("sample", f"checkpoint={trained}", *FEW, *args)
    assert status == 1 and "trust=[mine] on the command line" in err
    assert cli("sample", f"checkpoint={trained}", *FEW, *args, "trust=[mine]")[0] == 0
    record = read_sequences(tmp_path / "a.fa")[0]
    assert float(facts(record)["reward"]) == 2 * record.sequence.count(b"A")


def test_designs_in_python(trained):
    model = dnadiff.load(trained, device="cpu")

    def gc(sequences):
        return [sum(base in "GC" for base in text) / len(text) for text in sequences]

    found = model.design(gc, 3, length=20, sampler=Grouped(4), batch_size=2)
    assert [design.reward for design in found] == gc(found) and all(
        design.log_prob < 0 for design in found
    )
    weighted = model.design(
        GCContent(), 3, SMC(), template="ACGTNNNNNNNNRNNNN", sampler=Grouped(4), num_draws=0
    )
    assert all(
        d.startswith("ACGT") and d[12] in "AG" and d.log_prob is None and d.log_weight is not None
        for d in weighted
    )
    sequence = "acgtacgtac" * 6
    changed = model.design(
        gc, 2, infill=(sequence, 20, 30), length=40, sampler=Grouped(4), num_draws=0
    )
    assert all(d.reward_calls == 16 and d.ess is None for d in [*found, *changed]) and all(
        1 <= d.ess <= 6 for d in weighted
    )
    assert all(
        d[:20] == sequence[:20] and d[30:] == sequence[30:] and len(d) == 60 for d in changed
    )
    near = model.design(
        gc,
        2,
        Metropolis(10, max_changes=2, best=True),
        start="ATATATATAT",
        target=0.1,
        num_draws=0,
        template="ATNNNNNNNN",
    )
    assert all(
        sum(a != b for a, b in zip(d, "ATATATATAT")) == d.changes <= 2 and d[:2] == "AT"
        for d in near
    )
    assert [d.reward for d in near] == [-abs(value - 0.1) for value in gc(near)]
    with pytest.raises(
        ValueError, match="start is for methods that change given sequences, and BestOfN does not"
    ):
        model.design(gc, start="ACGT")
    assert (
        near[0].log_weight is None
        and found[0].log_weight is None
        and weighted[0].log_weight is not None
    )
    for wrong, message in (
        (
            {"infill": (sequence, 20, 30), "template": "NNN"},
            "infill excludes template, motif and start",
        ),
        ({"infill": (sequence, 20)}, r"must be \(sequence, start, end\)"),
        ({"n": 2.5}, "2.5"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"num_draws": 3}, "num_draws 3 must be even"),
        ({"target": "x"}, "target 'x'"),
        ({"method": "smc"}, "must be a DesignMethod"),
        ({"method": SMC(), "beta": 10}, "method SMC steers a population"),
    ):
        with pytest.raises(ValueError, match=message):
            model.design(gc, **({"n": 1} | wrong))
    with pytest.raises(ValueError, match="start: start has 4 bases and no template of that length"):
        model.design(gc, 1, Metropolis(), start="ACGT", template="NNN")


def test_short_designs_of_a_model_with_a_stored_curve():
    assert (
        len(
            dnadiff.load("ecoli", device="cpu").design(
                lambda s: [0.0] * len(s), 1, template="ACGTNNNN", num_draws=0
            )[0]
        )
        == 8
    )
