import json
import os
import shutil

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.supervised import ensemble, runs, saved
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, build_classifier, keep_first_layers
from dnadiff.supervised.ensemble import LengthLimits
from dnadiff.supervised.saved import WeightsFile, write_weights
from dnadiff.supervised.targets import RegressionTarget

DNA = DNATokenizer()
NETWORKS = {
    "caduceus": (Caduceus, {"d_model": 16, "n_layers": 2, "d_state": 4}),
    "caduceus_ps": (CaduceusPS, {"d_model": 16, "n_layers": 2, "d_state": 4}),
    "dit": (DiT, {"d_model": 16, "n_layers": 2, "n_heads": 2, "cond_dim": 8, "max_length": 40}),
}
FLATTEN_HEAD = {
    "_target_": "dnadiff.supervised.heads.FlattenHead",
    "channels": 2,
    "hidden": 4,
}
SEQUENCES = ["ACGTTGACCA", "gattacan", "CCGCGCGGATTTTTTA", "A"]


def about(kind="dit", **changes):
    network, settings = NETWORKS[kind]
    return {
        "name": "fine-tuned",
        "classes": ["a", "b", "c"],
        "stranded": False,
        "layer": None,
        "network": {"_target_": f"{network.__module__}.{network.__name__}", **settings},
        "tokenizer": DNA.config(),
        "task": {"name": "t", "longest": 16},
        "pretrained": {"checkpoint": "x", "step": 1},
        "settings": {"lr": 0.001},
        "seeds": [1],
        "batch_size": 2,
        "metrics": {"auroc": float("nan")},
        **changes,
    }


def classifier(
    kind="dit", seed=1, stranded=False, layer=None, head=MEAN_HEAD, longest=40, inputs=None
):
    torch.manual_seed(seed)
    network, settings = NETWORKS[kind]
    made = build_classifier(
        keep_first_layers(network(DNA.vocab, **settings), layer),
        head,
        inputs or HeadInputs(),
        3,
        longest,
        stranded,
    )
    if head is MEAN_HEAD:
        torch.nn.init.normal_(made.head.bias)
    return made.eval()


def put(folder, made, seed=1, **changes):
    weights = write_weights(folder / "w.safetensors", made)
    saved.save(folder / "models", seed, weights, about(**changes))
    weights.path.unlink()


@pytest.mark.parametrize(
    ("kind", "stranded", "layer"),
    [
        ("caduceus", False, 1),
        ("caduceus_ps", False, None),
        ("caduceus_ps", True, None),
        ("dit", True, 1),
    ],
)
def test_a_loaded_classifier_is_the_saved_one(tmp_path, kind, stranded, layer):
    made = [classifier(kind, seed, stranded, layer) for seed in (10, 2)]
    for seed, one in zip((10, 2), made):
        put(tmp_path, one, seed, kind=kind, stranded=stranded, layer=layer, seeds=[2, 10])
    model = ensemble.load(tmp_path)
    assert (
        model.seeds == (2, 10) and model.classes == ("a", "b", "c") and model.stranded == stranded
    )
    for member, one in zip(model.members, (made[1], made[0])):
        assert all(
            torch.equal(tensor, member.classifier.state_dict()[name])
            for name, tensor in one.state_dict().items()
        )
    found = model.predict(SEQUENCES)
    assert found.each_seed.shape == (2, 4, 3) and np.allclose(found.probs.sum(1), 1)
    assert found.predicted == [model.classes[n] for n in found.probs.argmax(1)]
    if not stranded:
        other = model.predict(["TGGTCAACGT", "NTGTAATC", "TAAAAAATCCGCGCGG", "T"])
        assert np.allclose(found.probs, other.probs, atol=1e-6)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("global_pooling", [False, True])
def test_the_weights_of_a_convolutional_head_show_whether_it_has_global_pooling(
    tmp_path, global_pooling, one_hot
):
    head = {
        "_target_": "dnadiff.supervised.heads.ConvHead",
        "channels": 2,
        "hidden": 4,
        "num_bins": 2,
    }
    made = classifier(
        head=head | {"global_pooling": global_pooling}, inputs=HeadInputs(one_hot=one_hot)
    )
    put(
        tmp_path, made, head=head, inputs={"one_hot": one_hot}
    )  # a description that does not say which
    (member,) = ensemble.load(tmp_path).members
    found = member.classifier.head.features if one_hot else member.classifier.head
    assert (found.linear is not None) == global_pooling
    assert all(
        torch.equal(tensor, member.classifier.state_dict()[name])
        for name, tensor in made.state_dict().items()
    )


def test_weights_without_the_global_pooling_that_their_description_names_are_refused(tmp_path):
    head = {
        "_target_": "dnadiff.supervised.heads.ConvHead",
        "channels": 2,
        "hidden": 4,
        "num_bins": 2,
    }
    put(
        tmp_path,
        classifier(head=head | {"global_pooling": False}),
        head=head | {"global_pooling": True},
    )
    with pytest.raises(ValueError, match=r"do not fit its configuration"):
        ensemble.load(tmp_path)


def test_weights_that_read_the_length_as_one_number_are_refused(tmp_path):
    made = classifier(inputs=HeadInputs(length=True))
    made.head.weight = torch.nn.Parameter(made.head.weight[:, :-12].clone())
    put(tmp_path, made, inputs={"length": True})
    with pytest.raises(
        ValueError,
        match=r"do not fit its configuration: head\.weight is",
    ):
        ensemble.load(tmp_path)


def test_probabilities_are_averaged_and_the_spread_is_that_of_the_predicted_class():
    target = ClassTarget(("a", "b"))
    found = target.predicted(
        np.log(np.array([[[0.9, 0.1], [0.25, 0.75]], [[0.3, 0.7], [0.5, 0.5]]], np.float32))
    )
    assert np.allclose(found.probs, [[0.6, 0.4], [0.375, 0.625]]) and found.predicted == ["a", "b"]
    assert np.allclose(found.spread, [0.6, 0.25])
    assert np.isnan(target.predicted(found.each_seed[:1]).spread).all()


def test_what_each_base_would_contribute_is_that_of_predictions(tmp_path):
    for seed in (1, 2):
        put(tmp_path, classifier(seed=seed), seed, seeds=[1, 2])
    model = ensemble.load(tmp_path).to("cpu")
    rows = ["AAGT", "ACGT", "AGGT", "ATGT"]
    predict = model.contrasts("b")
    (found,) = model.explain(["ACGT"], "b")
    expected = predict([DNA.encode(row) for row in rows]).mean(0)
    np.testing.assert_allclose(found[1], expected - expected.mean(), atol=1e-5)
    assert found.shape == (4, 4) and not model.explain(["ANNT"], "b")[0][1].any()
    with pytest.raises(ValueError, match="target is missing; set it to 'a', 'b', 'c'"):
        model.explain(["ACGT"])


def test_a_sequence_that_cannot_be_read_is_named(tmp_path):
    put(tmp_path, classifier())
    model = ensemble.load(tmp_path)
    for sequences, message in (
        (["ACGT", "AC-T"], r"sequence 1: letter '-' at position 3"),
        (["ACGT", ""], "sequence 1 has an empty sequence"),
        (["A" * 41], r"sequence 0 has 41 bases, more than the 40 .*window=40"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(sequences)
    for sequences, message in (
        ("ACGT", r"put it into a list"),
        ({"A": "ACGT", "C": None}, r"sequence C: None \(of type NoneType\) is not a sequence"),
    ):
        with pytest.raises(TypeError, match=message):
            model.predict(sequences)
    named = model.predict({"A": "ACGT", "C": "GGGT"})
    np.testing.assert_array_equal(named.probs, model.predict(["ACGT", "GGGT"]).probs)
    assert model.predict([]).probs.shape == (0, 3)


@pytest.mark.parametrize("flat_seed", [1, 2])
def test_a_head_of_any_member_limits_the_lengths_of_the_ensemble(tmp_path, flat_seed):
    for seed in (1, 2):
        head = FLATTEN_HEAD if seed == flat_seed else MEAN_HEAD
        put(tmp_path, classifier(seed=seed, head=head, longest=16), seed, head=head, seeds=[1, 2])
    model = ensemble.load(tmp_path)
    assert model.limits == LengthLimits(16, 16)
    assert model.predict(["ACGTACGTACGTACGT"]).each_seed.shape == (2, 1, 3)
    for letters, remedy in (
        ("ACGT", "remove it, or fine-tune with head=attention"),
        ("A" * 17, "set window=16"),
    ):
        message = (
            f"sequence 1 has {len(letters)} bases, and the head of this classifier "
            f"accepts only sequences of 16; {remedy}"
        )
        with pytest.raises(ValueError, match=message):
            model.predict(["ACGTACGTACGTACGT", letters])
    assert model.window_of(None) == model.window_of(16) == 16
    with pytest.raises(
        ValueError,
        match=(
            "variants has a window of 12 bases, and the head of this classifier accepts "
            "only sequences of 16; set window=16"
        ),
    ):
        model.window_of(12)


def test_damage_is_found(tmp_path):
    put(tmp_path, classifier())
    folder = tmp_path / "models" / "seed_1"
    weights, text = (folder / runs.WEIGHTS).read_bytes(), (folder / runs.DESCRIPTION).read_text()
    (folder / runs.WEIGHTS).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"model.safetensors is damaged \(its SHA-256 differs\)"):
        ensemble.load(tmp_path)
    (folder / runs.WEIGHTS).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"model.safetensors is missing; copy the complete folder"
    ):
        ensemble.load(tmp_path)
    (folder / runs.WEIGHTS).write_bytes(weights)
    (folder / runs.DESCRIPTION).write_text(text.replace('"a"', '"A"'))
    with pytest.raises(ValueError, match=r"model.json is damaged \(its checksum differs\)"):
        ensemble.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": {"_target_": "os.system", "command": "true"}}, "refused to build 'os.system'"),
        ({"network": {"_target_": "dnadiff.data.tokenizer.DNATokenizer"}}, "vocab|no network"),
        ({"classes": ["a", "b"]}, "do not fit its configuration"),
        ({"layer": 1}, "do not fit its configuration"),
        ({"format": 2}, "has format 2, and this version reads 1"),
    ],
)
def test_a_description_of_something_else_is_refused(tmp_path, changes, message):
    put(tmp_path, classifier(), **changes)
    with pytest.raises(ValueError, match=message):
        ensemble.load(tmp_path)


def test_seeds_of_different_runs_are_not_averaged(tmp_path):
    put(tmp_path, classifier(seed=1), 1)
    put(tmp_path, classifier(seed=2), 2, pretrained={"checkpoint": "y", "step": 1})
    with pytest.raises(
        ValueError,
        match=r"seed_2 is of a different run from .*seed_1 \(different pretrained\); remove one "
        r"of them",
    ):
        ensemble.load(tmp_path)
    assert ensemble.load(tmp_path / "models" / "seed_2").seeds == (2,)


def test_a_killed_process_leaves_no_folder_that_looks_complete(tmp_path):
    put(tmp_path, classifier(seed=1))
    before = ensemble.load(tmp_path).predict(SEQUENCES).probs
    put(tmp_path, classifier(seed=1))  # the same again
    assert np.array_equal(ensemble.load(tmp_path).predict(SEQUENCES).probs, before)
    with pytest.raises(FileNotFoundError):  # before the weights of another run are copied
        saved.save(tmp_path / "models", 1, WeightsFile(tmp_path / "none", "0"), about())
    assert not runs.is_fine_tuned(tmp_path)
    put(tmp_path, classifier(seed=2))
    assert not np.array_equal(ensemble.load(tmp_path).predict(SEQUENCES).probs, before)


def test_the_classifiers_of_an_earlier_run_are_removed(tmp_path):
    for seed in (1, 2, 3):
        put(tmp_path, classifier(seed=seed), seed)
    shutil.copytree(tmp_path / "models" / "seed_1", tmp_path / "models" / "one_task" / "seed_1")
    (tmp_path / "models" / "seed_x").mkdir()
    runs.remove_all(tmp_path / "models")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["one_task", "seed_x"]
    assert not runs.is_fine_tuned(tmp_path)
    runs.remove_all(tmp_path / "none")


def test_an_interrupted_run_is_not_averaged(tmp_path):
    put(tmp_path, classifier(seed=1), seeds=[1, 2])
    with pytest.raises(
        ValueError,
        match=r"holds the seeds \[1\] of a run with the seeds \[1, 2\]: the run was interrupted; "
        r"start it again",
    ):
        ensemble.load(tmp_path)
    assert ensemble.load(tmp_path / "models" / "seed_1").seeds == (1,)
    put(tmp_path, classifier(seed=2), 2, seeds=[1, 2], settings={"lr": 0.002})
    with pytest.raises(ValueError, match="different settings"):
        ensemble.load(tmp_path)


def test_the_newest_run_is_the_one_that_ended_last(tmp_path):
    for name in ("old", "new"):
        put(tmp_path / name, classifier())
        (tmp_path / name / "finetune.yaml").touch()
    os.utime(tmp_path / "old" / "finetune.yaml", (1, 1))
    os.utime(tmp_path / "old" / "models")
    assert runs.find("latest", tmp_path) == [tmp_path / "new" / "models" / "seed_1"]


def test_folders_are_found(tmp_path, monkeypatch):
    put(tmp_path / "run", classifier())
    models = tmp_path / "run" / "models"
    for name in ("run", "run/models", "run/models/seed_1"):
        assert runs.find(tmp_path / name) == [models / "seed_1"] and runs.is_fine_tuned(
            tmp_path / name
        )
    shutil.copytree(models, tmp_path / "suite" / "models" / "one")
    shutil.copytree(models, tmp_path / "suite" / "models" / "two")
    with pytest.raises(
        ValueError,
        match=r"has classifiers of several tasks; name one of .*models/one, .*models/two",
    ):
        runs.find(tmp_path / "suite")
    assert runs.is_fine_tuned(tmp_path / "suite") and ensemble.load(
        tmp_path / "suite" / "models" / "one"
    ).seeds == (1,)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "finetune.yaml").touch()
    with pytest.raises(ValueError, match="without saved networks; run finetune again"):
        runs.find(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        runs.find(tmp_path / "absent")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="found no classifier under runs/finetune"):
        runs.find("latest")
    (tmp_path / "run" / "finetune.yaml").touch()
    shutil.copytree(tmp_path / "run", tmp_path / "runs" / "finetune" / "first")
    assert ensemble.load("latest").path.parent.name == "first"
    (
        tmp_path / "run" / "checkpoints"
    ).mkdir()  # a training run that also holds classifiers stays one
    assert not runs.is_fine_tuned(tmp_path / "run") and runs.find(tmp_path / "run")


def test_the_description_is_plain_json(tmp_path):
    put(tmp_path, classifier())
    content = json.loads((tmp_path / "models" / "seed_1" / "model.json").read_text())
    assert (
        content["metrics"] == {"auroc": None}
        and content["classes"] == ["a", "b", "c"]
        and content["seed"] == 1
    )


def regression(**changes):
    return RegressionTarget(["a", "b", "c"], **changes).settings()


def test_each_seed_of_a_regression_keeps_the_mean_and_deviation_of_its_own_items(tmp_path):
    means = {1: ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]), 2: ([10.0, 20.0, 30.0], [2.0, 2.0, 2.0])}
    for seed, (mean, std) in means.items():
        task = {"name": "t", "longest": 16, "items": {"train": {"sequences": seed}}}
        put(
            tmp_path,
            classifier(seed=7),
            seed,
            seeds=[1, 2],
            task=task,
            target=regression(mean=mean, std=std),
        )
    model = ensemble.load(tmp_path)
    assert [list(member.classifier.target.mean) for member in model.members] == [
        mean for mean, _ in means.values()
    ]
    first, second = model.predict(SEQUENCES).each_seed
    np.testing.assert_allclose(second, 2 * first + [10, 20, 30], rtol=1e-5)
    put(tmp_path, classifier(seed=7), 2, seeds=[1, 2], target=regression(loss="huber"))
    with pytest.raises(ValueError, match="different target"):
        ensemble.load(tmp_path)


def test_a_device_that_cannot_be_used_is_named_before_any_file(tmp_path):
    for device in ("abacus", "cuda:x", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(
            ValueError,
            match=rf"^device {device} cannot be used on this machine, or with this build of torch "
            rf"\(.*\); use cpu",
        ):
            ensemble.load(tmp_path / "absent", device=device)
