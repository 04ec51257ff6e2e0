import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import dnadiff
from dnadiff.predict import predict

LABELS = np.array([10, 2] * 30)


@pytest.fixture(scope="module")
def sequences():
    """Random sequences, of which those of class 10 have more G and C."""
    random = np.random.default_rng(0)
    shares = {10: [0.1, 0.4, 0.4, 0.1], 2: [0.4, 0.1, 0.1, 0.4]}
    return ["".join(random.choice(list("ACGT"), 24, p=shares[label])) for label in LABELS]


@pytest.fixture(scope="module")
def settings(trained):
    return {"checkpoint": str(trained), "head": "mean", "epochs": 4, "lr": 0.01, "device": "cpu"}


@pytest.fixture(scope="module")
def classifier(sequences, settings):
    return dnadiff.Classifier(**settings, seeds=2).fit(sequences, LABELS)


def test_parameters_are_those_of_scikit_learn():
    model = dnadiff.Regressor("yeast", head="mean", loss="huber")
    assert (
        clone(model).get_params() == model.get_params() and model.get_params()["epochs"] == "auto"
    )
    assert repr(model) == "Regressor(checkpoint='yeast', head='mean', loss='huber')"
    assert model.set_params(seeds=3).seeds == 3


def test_classes_are_in_the_order_of_scikit_learn(classifier, sequences):
    assert classifier.classes_.tolist() == [2, 10]  # as names, 10 is first
    probs = classifier.predict_proba(sequences)
    assert probs.shape == (60, 2) and np.allclose(probs.sum(1), 1)
    assert classifier.predict(sequences).tolist() == [2 if p > q else 10 for p, q in probs]
    assert classifier.score(sequences, LABELS) > 0.9


def test_a_fit_is_a_function_of_its_seed(classifier, sequences, settings):
    again = clone(classifier).fit(pd.Series(sequences), pd.Series(LABELS.astype(str)))
    assert again.classes_.tolist() == ["10", "2"]
    assert np.array_equal(
        again.predict_proba(sequences)[:, ::-1], classifier.predict_proba(sequences)
    )


def test_a_saved_estimator_is_a_fine_tuned_run(classifier, sequences, tmp_path):
    classifier.save(tmp_path / "run")
    loaded = dnadiff.load(tmp_path / "run", device="cpu")
    assert (loaded.classes, loaded.seeds, loaded.longest) == (("10", "2"), (1, 2), 24)
    expected = classifier.predict_proba(sequences)
    assert np.array_equal(loaded.predict(sequences).values[:, ::-1], expected)
    (tmp_path / "x.fa").write_text("".join(f">{i}\n{s}\n" for i, s in enumerate(sequences)))
    written = predict(
        checkpoint=str(tmp_path / "run"),
        input=str(tmp_path / "x.fa"),
        output=str(tmp_path / "p.tsv"),
        accelerator="cpu",
    )
    assert np.allclose(written.frame[["p_2", "p_10"]], expected, atol=1e-5)
    with pytest.raises(FileExistsError, match="exists; set overwrite=True to replace it"):
        classifier.save(tmp_path / "run")
    classifier.save(tmp_path / "run", overwrite=True)


def test_cross_validation_and_pipelines(sequences, settings):
    model = dnadiff.Classifier(**settings, combine=False)
    frame = pd.DataFrame({"sequence": sequences})
    assert cross_val_score(model, frame, LABELS, cv=2).min() > 0.7
    upper = FunctionTransformer(lambda given: [each.upper() for each in given])
    pipeline = make_pipeline(upper, model)
    search = GridSearchCV(pipeline, {"classifier__lr": [1e-9, 0.01]}, cv=2)
    lower = [each.lower() for each in sequences]
    assert search.fit(lower, LABELS).best_params_ == {"classifier__lr": 0.01}


def test_regression_of_one_and_of_several_values(sequences, settings):
    gc = np.array([(each.count("G") + each.count("C")) / 24 for each in sequences])
    model = dnadiff.Regressor(**settings).fit(sequences, gc)
    assert model.predict(sequences).shape == (60,) and model.score(sequences, gc) > 0.8
    both = np.stack([gc, -gc], 1)
    both[0] = np.nan
    several = clone(model).fit(sequences, both)
    assert several.predict(sequences).shape == (60, 2)
    assert np.isnan(several.predict(["NNNN"])).all()


@pytest.mark.parametrize(
    ("changed", "labels", "message"),
    [
        ({}, LABELS[:-1], "inconsistent numbers of samples: \\[60, 59\\]"),
        ({}, np.arange(60) / 7, "Unknown label type: continuous"),
        ({}, [1] * 60, "X has one class, '1', in y; classification needs two or more"),
        ({}, [1] * 59 + [2], "class '2' has too few different sequences to set some aside"),
        ({"head": "cnn"}, LABELS, "head 'cnn' is not known; choose attention, conv, flatten, mean"),
        ({"epochs": "many"}, LABELS, "epochs 'many' must be"),
        ({"valid_fraction": 1.0}, LABELS, "valid_fraction 1.0 must be"),
        ({"lr": 1e30}, LABELS, "lr 1e\\+30 must be"),
    ],
)
def test_what_cannot_be_learned_is_named(sequences, settings, changed, labels, message):
    with pytest.raises(ValueError, match=message):
        dnadiff.Classifier(**settings | changed).fit(sequences, labels)


def test_wrong_sequences_are_named(classifier, sequences):
    with pytest.raises(ValueError, match="X: sequence 1: letter 'X' at position 3"):
        clone(classifier).fit(["ACGT", "ACXT"], [0, 1])
    with pytest.raises(ValueError, match="X has no sequences"):
        clone(classifier).fit([], [])
    with pytest.raises(ValueError, match="X: sequence 1 has no known base"):
        classifier.predict(["ACGT", "NNNN"])
    assert np.isnan(classifier.predict_proba(["ACGT", "NNNN"])[1]).all()
    with pytest.raises(NotFittedError):
        dnadiff.Classifier().predict(sequences)
