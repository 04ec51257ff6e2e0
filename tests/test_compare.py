"""The command line `compare`."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.data.windows import Conditions
from dnadiff.diffusion.likelihood.estimates import COUNT, EXACT, Likelihood
from dnadiff.genomics import evaluation
from dnadiff.genomics.held_out import Scores, token_groups
from dnadiff.options.command import compose
from dnadiff.weights.loaded import build_denoiser

QUICK = ("num_draws=4", "accelerator=cpu", "overwrite=true")


@pytest.fixture
def compare(cli, tmp_path):
    """compare("a=x", "b=y") -> (content of the JSON file, what was printed)."""

    def run(*args):
        status, out, err = cli("compare", *QUICK, "output=c.json", *args)
        assert status == 0, err
        return json.loads((tmp_path / "c.json").read_text()), out

    return run


def untrained(path, trained, *overrides):
    """A checkpoint of an untrained network on the data of a training run."""
    data = yaml.safe_load((trained / "config.yaml").read_text())["data"]
    config = compose(
        "train",
        ["data=fasta", "data.path=x", "backbone.d_model=16", "backbone.n_layers=1", *overrides],
    ) | {"data": data}
    torch.manual_seed(0)
    state = {
        f"denoiser.{name}": tensor
        for name, tensor in build_denoiser(config, DNATokenizer())[0].state_dict().items()
    }
    described = {"config": config, "tokenizer": DNATokenizer().config()}
    torch.save({"state_dict": state, "hyper_parameters": described, "global_step": 0}, path)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory, trained):
    return untrained(tmp_path_factory.mktemp("other") / "other.ckpt", trained, "backbone=caduceus")


def test_a_model_does_not_differ_from_itself(compare, trained):
    content, out = compare(f"a={trained}", f"b={trained}")
    for group in content["groups"].values():
        d = group["difference"]
        assert (
            d["nll"] == d["low"] == d["high"] == d["se_mc"] == 0
            and d["verdict"] == "not distinguishable"
        )
    assert (
        content["groups"]["all"]["a"] == content["groups"]["all"]["b"]
        and "not distinguishable" in out
    )


def test_the_difference_is_that_of_two_evaluations_with_the_interval_of_pairs(
    cli, compare, trained, other, tmp_path
):
    nll = {}
    for name, run in (("a", trained), ("b", other)):
        args = (
            *QUICK,
            f"checkpoint={run}",
            "orders=[]",
            f"output={name}.json",
            f"windows={name}.npz",
        )
        assert cli("evaluate", *args)[0] == 0
        nll[name] = json.loads((tmp_path / f"{name}.json").read_text())["groups"]
    content, out = compare(f"a={trained}", f"b={other}")
    scores = [Scores.load(tmp_path / f"{name}.npz") for name in "ab"]
    assert content["groups"].keys() == nll["a"].keys()
    for name, group in content["groups"].items():
        found, paired = group["difference"], scores[0].minus(scores[1], name)
        assert group["a"] == nll["a"][name] and group["b"] == nll["b"][name]
        assert [found[key] for key in ("nll", "low", "high", "se_total")] == pytest.approx(
            [paired.value, paired.low, paired.high, paired.se]
        )
        assert found["bits"] == pytest.approx(found["nll"] / math.log(2))
    whole = content["groups"]["all"]["difference"]
    assert whole["verdict"] == "better" and " better" in out
    swapped, _ = compare(f"a={other}", f"b={trained}")
    assert swapped["groups"]["all"]["difference"]["nll"] == pytest.approx(-whole["nll"])
    assert swapped["groups"]["all"]["difference"]["verdict"] == "worse"


def test_conjoining_one_of_two_equal_models_never_costs_bits_in_the_mean(compare, trained):
    content, _ = compare(f"a={trained}", f"b={trained}", "conjoin=[b]")
    assert (
        not content["a"]["conjoined"]
        and content["b"]["conjoined"]
        and "both strands" in content["protocol"]["b"]
    )
    assert content["groups"]["all"]["difference"]["nll"] != 0
    both, _ = compare(f"a={trained}", f"b={trained}", "conjoin=true")
    assert both["groups"]["all"]["difference"]["nll"] == 0
    assert both["groups"]["all"]["a"] == content["groups"]["all"]["b"]


def test_an_autoregressive_model_is_compared_by_its_exact_likelihood(
    cli, compare, trained, tiny_fasta, tmp_path
):
    untrained(tmp_path / "ar.ckpt", trained, "backbone=mamba", "objective=ar")
    content, _ = compare(
        f"a={trained}", "b=ar.ckpt", "data=fasta", f"data.path={tiny_fasta}", "data.length=64"
    )
    assert content["groups"]["all"]["b"]["se_mc"] == 0 and "chain rule" in content["protocol"]["b"]
    whole = content["groups"]["all"]
    assert whole["difference"]["nll"] == pytest.approx(whole["a"]["nll"] - whole["b"]["nll"])
    assert whole["difference"]["se_mc"] == pytest.approx(whole["a"]["se_mc"])
    assert content["own_data"] is False and "of" in content["novelty"]
    status, _, err = cli("compare", *QUICK, f"a={trained}", "b=ar.ckpt", "conjoin=true")
    assert status == 1 and err.strip().splitlines()[-1].startswith(
        "error: b: conjoin=true needs a model that unmasks in random order; that of objective AR"
    )


def test_an_exact_likelihood_takes_any_number_of_draws(cli, trained, tiny_fasta, tmp_path):
    untrained(tmp_path / "ar.ckpt", trained, "backbone=mamba", "objective=ar")
    (tmp_path / "x.fa").write_text(">a\nACGTTGAACGTT\n")
    data = ["data=fasta", f"data.path={tiny_fasta}", "data.length=64", "accelerator=cpu"]
    for number in (1, 3):
        draws = f"num_draws={number}"
        for name, *args in (
            ("compare", "a=ar.ckpt", "b=ar.ckpt", *data),
            ("evaluate", "checkpoint=ar.ckpt", "orders=[]", *data),
            ("score", "checkpoint=ar.ckpt", "input=x.fa", "window=64"),
        ):
            status, _, err = cli(name, *args, draws, f"output={name}-{number}")
            assert status == 0, err
    assert (tmp_path / "score-1").read_bytes() == (tmp_path / "score-3").read_bytes()
    status, _, err = cli(
        "compare", "a=ar.ckpt", f"b={trained}", *data, "num_draws=1", "output=c.json"
    )
    assert (
        status == 1
        and "error: b: num_draws 1 must be even and at least 2" in err
        and not (tmp_path / "c.json").exists()
    )


def toy(draws, protocol=COUNT, tokens=(4, 4, 4, 4, 4)):
    nats = np.arange(5.0 * draws).reshape(5, draws) ** 1.5
    return Likelihood(
        {"all": nats},
        {"all": np.array(tokens)},
        np.ones((5, draws), int),
        np.array(tokens),
        1,
        protocol,
    )


def test_draws_are_paired_and_an_exact_likelihood_is_subtracted_from_each():
    paired = toy(4).minus(toy(4))
    assert not paired.nats["all"].any() and paired.se_mc() == 0
    one = toy(4).minus(toy(1, EXACT))
    np.testing.assert_array_equal(one.nats["all"], toy(4).nats["all"] - toy(1).nats["all"])
    assert one.se_mc() == pytest.approx(toy(4).se_mc()) and one.protocol == COUNT
    np.testing.assert_array_equal(toy(1, EXACT).minus(toy(4)).nats["all"], -one.nats["all"])
    assert toy(1, EXACT).minus(toy(1, EXACT)).protocol == EXACT
    for other in (toy(2), toy(4, tokens=(4, 4, 4, 4, 3))):
        with pytest.raises(ValueError, match="different windows or draws"):
            toy(4).minus(other)


def test_a_base_is_novel_only_if_it_is_so_for_both_models(tmp_path):
    letters = "".join(np.random.default_rng(0).choice(list("ACGT"), 1000))

    def data_of(name, text):
        (tmp_path / f"{name}.fa").write_text(f">{name}\n{text}\n")
        data = GenomeDataModule(tmp_path / f"{name}.fa", length=100, batch_size=2)
        data.prepare()
        return data

    data = data_of("data", letters)  # the test part is 800 to 900
    trained_on = [
        data_of(*each) for each in (("x", letters[800:840] * 40), ("y", letters[870:900] * 50))
    ]
    tiles = data.test_windows("test")
    x, y, both = (
        token_groups(data, tiles, "test", parts)["repeated"]
        for parts in (trained_on[:1], trained_on[1:], trained_on)
    )
    assert x.any() and y.any() and not (x & y).any() and (both == (x | y)).all()
    found = token_groups(data, tiles, "test", trained_on)
    assert (found["novel"] == ~both).all() and not both.all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["b=absent"], "b: checkpoint absent does not exist"),
        (["num_draws=3"], "num_draws 3 must be even"),
        (["conjoin=[c]"], "conjoin[0] 'c' is not known; choose one of a, b"),
        (["part=tset"], "part 'tset' is not known"),
        (["protocol=mdml"], "protocol 'mdml' is not known"),
        (["data.length=4"], "data.length: the data come from the checkpoint's run"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(cli, trained, tmp_path, args, message):
    status, _, err = cli(
        "compare", f"a={trained}", *([] if args[0].startswith("b=") else [f"b={trained}"]), *args
    )
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_different_vocabularies_are_refused():
    dna, text, other = (
        SimpleNamespace(tokenizer=tokenizer, conditions=Conditions())
        for tokenizer in (DNATokenizer(), CharTokenizer("abc"), CharTokenizer("abcd"))
    )
    evaluation.check_vocabularies(dna, dna)
    with pytest.raises(
        ValueError,
        match=r"a reads dna \(12 tokens\), and b reads characters \(5 tokens\).*cannot be compared",
    ):
        evaluation.check_vocabularies(dna, text)
    with pytest.raises(
        ValueError, match=r"a reads characters \(5 tokens\), and b reads characters \(6 tokens\)"
    ):
        evaluation.check_vocabularies(text, other)


def test_different_labels_are_refused():
    labels = (("human", "yeast"), ("human", "mouse"), ())
    a, b, without = (
        SimpleNamespace(tokenizer=DNATokenizer(), conditions=Conditions(names)) for names in labels
    )
    evaluation.check_vocabularies(a, a)
    evaluation.check_vocabularies(a, without)
    with pytest.raises(
        ValueError,
        match=(
            "a has the labels human, yeast, and b has the labels human, mouse: windows cannot "
            "have the labels"
        ),
    ):
        evaluation.check_vocabularies(a, b)
