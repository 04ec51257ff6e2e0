"""The prediction of a fine-tuned model as a reward: its values are those of `predict`, and its
gradient that of the network."""

import csv
import json

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff import finetune
from dnadiff.design.predicted import PredictedReward
from dnadiff.design.reward import WeightedSum
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics.composition import header_facts
from dnadiff.supervised import ensemble
from dnadiff.train import train

FEW = [
    "epochs=1",
    "batch_size=8",
    "lr=0.01",
    "kmer=1",
    "scratch=false",
    "accelerator=cpu",
    "seeds=2",
    "average=false",
]
RUNS = {
    "classes": ["task.label_column=label"],
    "values": ["task.label_column=value", "task.kind=regression", "task.transform=log1p"],
    "first strand": ["task.label_column=label", "task.stranded=true", "seeds=1"],
    "one length": ["task.label_column=label", "head=flatten", "seeds=1"],
    "features alone": ["task.label_column=label", "inputs.one_hot=false", "seeds=1"],
    "both strands in one batch": ["task.label_column=label", "seeds=1"],  # Caduceus-PS
    "both strands and stranded": [
        "task.label_column=label",
        "task.stranded=true",
        "seeds=1",
        "head=flatten",
    ],  # Caduceus-PS
}


def trained_ps(folder):
    """The run folder of a small Caduceus-PS."""
    if not (folder / "ps").exists():
        args = [
            "backbone=caduceus_ps",
            "backbone.d_model=16",
            "backbone.n_layers=1",
            "trainer.max_steps=2",
            "trainer.accelerator=cpu",
        ]
        args += [
            "data=fasta",
            f"data.path={folder / 'tiny.fa'}",
            "data.length=64",
            "data.batch_size=4",
            "data.max_valid_windows=4",
        ]
        train.start([*args, f"hydra.run.dir={folder / 'ps'}"])
    return folder / "ps"


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """Fine-tuned runs by name."""
    folder, random = tmp_path_factory.mktemp("reward"), np.random.default_rng(0)
    with open(folder / "t.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sequence", "label", "value"])
        for number in range(60):
            text = "".join(
                random.choice(
                    list("ACGT"), 20, p=[0.3, 0.2, 0.2, 0.3] if number % 2 else [0.2, 0.3, 0.3, 0.2]
                )
            )
            table.writerow([text, "poor" if number % 2 else "rich", text.count("G") + 0.5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dnadiff.report.suite.write_suite", lambda *_: None)
        for name, more in RUNS.items():
            task = ["task=csv", f"task.path={folder / 't.csv'}", *FEW, *more]
            network = trained_ps(trained.parent) if name.startswith("both strands") else trained
            arguments = [f"checkpoint={network}", f"hydra.run.dir={folder / name}", *task]
            finetune.main(arguments)
    return {name: folder / name for name in RUNS}


SEQUENCES = ["ACGTTGACCATTGACCATGA", "GATTACAGATTACAGATTAC", "CCCGGGTTTAAACCCGGGTT"]


def test_rewards_are_the_predictions(runs):
    found = dnadiff.load(runs["classes"]).predict(SEQUENCES)
    odds = found.each_seed[..., 1].astype(float) - found.each_seed[..., 0].astype(float)
    assert PredictedReward(str(runs["classes"]))(SEQUENCES) == pytest.approx(odds.mean(0), abs=1e-6)
    assert PredictedReward(str(runs["classes"]), "poor")(SEQUENCES) == pytest.approx(
        -odds.mean(0), abs=1e-6
    )
    values = dnadiff.load(runs["values"]).predict(SEQUENCES).values[:, 0]
    reward = PredictedReward(str(runs["values"]))
    assert np.expm1(reward(SEQUENCES)) == pytest.approx(values, rel=1e-5)
    assert len(reward.inputs()) == 2 and all(
        len(digest) == 64 for digest in reward.inputs().values()
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_gradient_is_that_of_the_network(runs, name, monkeypatch):
    reward = PredictedReward(str(runs[name]))
    value, slope = reward.gradient(SEQUENCES)
    assert (
        value == pytest.approx(reward(SEQUENCES), abs=1e-5)
        and slope.shape == (3, 20, 4)
        and np.abs(slope).max() > 1e-4
    )
    # Move the embedding of A towards that of C, and, for the other strand, that of T towards that
    # of G: a change of the one-hot sequence.
    tokenizer = reward._model.tokenizer
    ids = torch.from_numpy(tokenizer.ids_from_bases(range(4)).astype(np.int64))
    moved = torch.zeros(len(ids), dtype=torch.bool)
    moved[[0, 3]] = True
    towards = ids[[1, 0, 0, 2]]
    expected = np.zeros(3)
    for row, text in enumerate(SEQUENCES):
        for at, letter in enumerate(text):
            if letter in "AT":
                expected[row] += (
                    slope[row, at, "ACGT".index({"A": "C", "T": "G"}[letter])]
                    - slope[row, at, "ACGT".index(letter)]
                )
    step, found, embedding = 4e-4, [], torch.nn.functional.embedding

    def mix(weight, sign):
        """The embeddings between those of the bases and those that they move to."""
        mixed = weight.detach().clone()
        mixed[ids[moved]] += sign * step * (weight[towards[moved]] - weight[ids[moved]])
        return mixed

    for sign in (
        1,
        -1,
    ):  # every embedding: that of the network, and the one-hot bases of the second head
        monkeypatch.setattr(
            torch.nn.functional,
            "embedding",
            lambda i, weight, *more, s=sign: embedding(i, mix(weight, s), *more),
        )
        found.append(PredictedReward(str(runs[name]))(SEQUENCES))
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(expected, rel=0.03, abs=0.005)


@pytest.mark.parametrize("name", ["classes", "both strands in one batch"])
def test_the_gradient_of_sequences_that_are_their_own_reverse_complements_is_that_among_others(
    runs, name
):
    reward, half = PredictedReward(str(runs[name])), "CCCGAGTTTA"
    palindrome = half + half[::-1].translate(str.maketrans("ACGT", "TGCA"))
    value, slope = reward.gradient([palindrome])
    among, slopes = reward.gradient([SEQUENCES[0], palindrome])
    assert value[0] == pytest.approx(among[1], abs=1e-6) and slope[0] == pytest.approx(
        slopes[1], abs=1e-6
    )
    assert np.abs(slope).max() > 1e-4
    # The prediction is the same for both strands, so the gradient is that of the reverse
    # complement, read backwards.
    assert slope[0] == pytest.approx(slope[0][::-1, ::-1], abs=1e-5)


def test_the_difference_of_two_predictions(cli, trained, runs, tmp_path):
    terms = [f"+reward@reward.terms.{name}=predicted" for name in ("on", "off")]
    terms += [
        f"reward.terms.on.checkpoint={runs['classes']}",
        f"reward.terms.off.checkpoint='{runs['first strand']}'",
    ]
    args = [
        *terms,
        "+reward.weights.off=-1",
        "num_samples=4",
        "batch_size=2",
        "length=20",
        "sampler.num_groups=5",
        "num_draws=0",
    ]
    status, _, err = cli(
        "sample", f"checkpoint={trained}", "reward=weighted", *args, "method=smc", "output=a.fa"
    )
    assert status == 0, err
    records = read_sequences(tmp_path / "a.fa")
    texts = [record.sequence.decode() for record in records]
    expected = PredictedReward(str(runs["classes"]))(texts) - PredictedReward(
        str(runs["first strand"])
    )(texts)
    assert [
        float(header_facts(record.description)["reward"]) for record in records
    ] == pytest.approx(expected, abs=1e-5)


def test_lengths_are_checked_before_the_network_runs(cli, trained, runs, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network ran")

    args = [
        f"checkpoint={trained}",
        "reward=predicted",
        "num_samples=2",
        "sampler.num_groups=5",
        "num_draws=0",
        "output=a.fa",
    ]
    with monkeypatch.context() as patch:
        patch.setattr("dnadiff.design.method.base.Designer.fill", refuse)
        status, _, err = cli(
            "sample", *args, f"reward.checkpoint={runs['one length']}", "length=30"
        )
        assert (
            status == 1
            and "its head takes only sequences of 20 bases, and designs have 30; set length=20"
            in err
        )
        with pytest.raises(ValueError, match="set length=20"):
            model = dnadiff.load(trained, device="cpu")
            reward = WeightedSum({"a": PredictedReward(str(runs["one length"]))})
            model.design(reward, template="N" * 21, target=1.0)
    assert cli("sample", *args, f"reward.checkpoint={runs['one length']}", "length=20")[0] == 0


def test_another_length_than_that_of_fine_tuning_is_logged(runs, caplog):
    reward = PredictedReward(str(runs["classes"]))
    for length in (20, 30):
        reward.check_length(length)
    (line,) = [record.message for record in caplog.records if "was fine-tuned on" in record.message]
    assert line.endswith(
        "on sequences of at most 20 bases, and designs have 30; predictions may be less accurate "
        "at other lengths"
    )


def test_a_run_of_finetune_may_name_trusted_packages(cli, trained, runs, monkeypatch):
    trusted, load = [], ensemble.load
    monkeypatch.setattr(
        ensemble,
        "load",
        lambda checkpoint, trust, device: (
            trusted.append(list(trust)) or load(checkpoint, trust, device)
        ),
    )
    args = [
        "length=20",
        "num_samples=1",
        "num_draws=0",
        "sampler.num_groups=2",
        "output=a.fa",
        "trust=[mine]",
    ]
    assert (
        cli(
            "sample",
            f"checkpoint={trained}",
            "reward=predicted",
            f"reward.checkpoint={runs['classes']}",
            *args,
        )[0]
        == 0
    )
    assert trusted == [["mine"]]


def test_a_judge_reads_designs_and_unguided_samples(cli, trained, runs, tmp_path):
    args = [f"checkpoint={trained}", "reward=gc", "num_samples=4", "length=20", "output=a.fa"]
    args += ["sampler.num_groups=5", "num_draws=0", "pilot=16", f"judge={runs['values']}"]
    status, _, err = cli("sample", *args, "report=a.html")
    assert status == 0, err
    judge = PredictedReward(str(runs["values"]))
    means = []
    for name in ("a.fa", "a.unguided.fa"):
        records = read_sequences(tmp_path / name)
        found = [float(header_facts(each.description)["judge"]) for each in records]
        assert found == pytest.approx(judge([each.sequence.decode() for each in records]), abs=1e-5)
        means.append(np.mean(found))
    content = json.loads((tmp_path / "a.fa.json").read_text())
    assert content["design"]["judge"] == {"unit": judge.unit, "mean": pytest.approx(means[0])}
    assert content["unguided"]["judge"] == pytest.approx(means[1])
    text = (tmp_path / "a.html").read_text()
    assert (
        f"The judge that was not used, {judge.unit}: {means[0]:.3g} on average, unguided "
        f"{means[1]:.3g}." in text
    )
    status, _, err = cli("sample", *args, "judge=absent", "output=b.fa")
    assert status == 1 and "absent" in err
    designs = dnadiff.load(trained, device="cpu").design(
        adenines, 2, length=20, judge=judge, beta=1.0, num_draws=0, pilot=2
    )
    assert [each.judge for each in designs] == pytest.approx(judge(designs), abs=1e-5)
    assert "judge" in designs.to_frame()


def adenines(sequences):
    """The fraction of A."""
    return [text.count("A") / len(text) for text in sequences]


def test_designs_for_a_prediction(cli, trained, runs, tmp_path):
    args = [
        f"checkpoint={trained}",
        "reward=predicted",
        f"reward.checkpoint={runs['values']}",
        "method=classifier_guidance",
        "beta=5",
    ]
    args += [
        "method.gradient=true",
        "num_samples=4",
        "length=20",
        "sampler.num_groups=5",
        "num_draws=0",
        "output=a.fa",
    ]
    status, _, err = cli("sample", *args)
    assert status == 0, err
    status, _, err = cli(
        "sample", *args, "overwrite=true", "length=30"
    )  # of any length that the head takes
    assert status == 0, err
    for wrong, message in (
        (f"reward.checkpoint={trained}", "is not a fine-tuned run"),
        ("reward.checkpoint=absent", "does not exist"),
        ("reward.output=high", "'high' is not predicted by this model"),
    ):
        status, _, err = cli("sample", *args, "output=b.fa", wrong)
        assert status == 1 and message in err and not (tmp_path / "b.fa").exists()
