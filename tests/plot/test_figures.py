import matplotlib
import numpy as np
import pandas as pd
import pytest

from dnadiff import plot
from dnadiff.plot import principal_components, saturation


def alleles(*rows, score="LLR", **more):
    frame = pd.DataFrame(rows, columns=["chrom", "pos", "ref", "alt", score])
    return frame.assign(**more)


def test_alleles_are_in_the_rows_of_their_bases():
    frame = alleles(
        ("one", 1, "A", "C", -1.0),
        ("one", 3, "G", "T", -2.0),
        ("one", 2, "CG", "C", -3.0),
        ("two", 3, "A", "T", -4.0),
        information=0.5,
    )
    first = saturation(frame, ("one", 0, 4))
    second = saturation(frame, ("one", 2, 6))  # regions overlap
    third = saturation(frame, ("two", 2, 3))
    assert first.effects[0].tolist()[:2] == [0.0, -1.0] and first.bases == ["A", "N", "G", "N"]
    assert first.effects[2, 3] == second.effects[0, 3] == -2.0
    assert first.effects[2, 4] == second.effects[0, 4] == -3.0
    assert third.effects[0, 3] == -4.0 and np.isnan(third.effects[0, 4])
    assert len(first.rows) == 5 and len(third.rows) == 4  # deletions only if there are some


@pytest.mark.parametrize(
    "rows, start, expected",
    [
        ([("AC", "C", -1.0), ("AC", "A", -2.0)], 0, [-1.0, -2.0]),
        ([("AA", "A", -1.0)], 1, [-1.0]),  # either base: the same sequence
    ],
)
def test_the_first_deletions_of_a_record_have_their_places(rows, start, expected):
    frame = alleles(*[("one", 1, *row) for row in rows])
    assert saturation(frame, ("one", start, 2)).effects[:, 4].tolist() == expected


def test_letters_are_information_or_the_contribution_of_the_base():
    half = np.log(0.5)
    rows = [("one", 7, "A", "C", half), ("one", 7, "A", "G", -99.0), ("one", 7, "A", "T", -99.0)]
    bits = saturation(alleles(*rows, information=1.2)).letters
    assert np.allclose(bits, [[0.8, 0.4, 0, 0]])
    frame = alleles(*rows)
    frame.attrs["region"] = "one:7-7"  # as `Model.saturate` returns it
    assert plot.heat_map(frame)[0, 0].get_title("left") == "one:7-7"
    changes = [("one", 7, "A", base, change) for base, change in zip("CGT", (-3.0, -2.0, 1.0))]
    found = saturation(alleles(*changes, score="difference"))
    assert found.start == 6 and np.allclose(found.letters, [[1.0, 0, 0, 0]])


def test_what_is_missing_is_named():
    frame = alleles(("one", 7, "A", "C", 1.0), ("two", 7, "A", "C", 1.0))
    with pytest.raises(ValueError, match="2 records; give region"):
        saturation(frame)
    with pytest.raises(ValueError, match="no column ref"):
        saturation(frame.drop(columns="ref"))
    with pytest.raises(ValueError, match="no column LLR or difference"):
        saturation(frame.drop(columns="LLR"))


@pytest.mark.parametrize("height, top", [(0.05, 0.25), (0.4, 0.5), (0.9, 1.0), (1.7, 2.0)])
def test_the_axis_of_the_letters_fits_them(height, top):
    rows = [("one", 1 + i, "A", base, 0.0) for i in range(70) for base in "CGT"]
    axes = plot.heat_map(alleles(*rows, information=height))
    assert axes.shape == (2, 2) and axes[0, 0].get_ylim() == (0, top)
    labels = [label.get_text() for label in axes[0, 1].get_xticklabels()]
    assert labels == ["10", "20", "30"]  # of the genome, in two lines of 35
    assert [text.get_text() for text in axes[1, 1].texts] == ["A"] * 35
    assert axes[1, 1].get_yticklabels()[-1].get_text() == "T"


def test_genes_are_below_the_heat_map():
    rows = [("one", 1001 + i, "A", base, 0.0) for i in range(9) for base in "CGT"]
    genes = [
        ("one", 990, 1005, "thrA", "+"),
        ("one", 1006, 1200, "thrB", "-"),
        ("two", 0, 9, "x", "."),
    ]
    axes = plot.heat_map(alleles(*rows, information=0.1), genes=genes)
    texts = axes[0, 2].texts
    assert [text.get_text() for text in texts] == ["thrA →", "thrB ←"]
    assert texts[0].get_position()[1] > texts[1].get_position()[1]


def test_a_logo_takes_sequences_heights_and_frames():
    axes = plot.logo(["AC", "AG", "AC", "AG"])
    assert axes.get_ylabel() == "bits" and axes.get_ylim() == (0, 2.0)
    signed = pd.DataFrame([[0.5, 0, 0, -1.0]], columns=list("ACGT"))
    assert plot.logo(signed).get_ylim() == (-1.0, 0.5)
    assert len(plot.logo(signed.to_numpy()).patches) == 2
    with pytest.raises(ValueError, match="different lengths"):
        plot.logo(["AC", "A"])


def test_principal_components_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    vectors = np.random.default_rng(0).normal(size=(30, 5)) * [5, 3, 1, 1, 1]
    points, shares = principal_components(vectors)
    reference = PCA(2).fit(vectors)
    assert np.allclose(np.abs(points), np.abs(reference.transform(vectors)))
    assert np.allclose(shares, reference.explained_variance_ratio_)
    assert np.allclose(points, principal_components(vectors.astype(np.float32))[0], atol=1e-4)
    axes = plot.embedding(vectors, ["a", "b"] * 15)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    with pytest.raises(ValueError, match=r"shape \(1, 5\)"):
        plot.embedding(vectors[:1])


def test_runs_and_designs_are_drawn_from_their_files(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,train_nll,valid_nll\n1,2.0,\n2,1.5,1.6\n3,1.2,\n")
    lines = plot.training(tmp_path).lines
    assert [line.get_xdata().tolist() for line in lines] == [[1, 2, 3], [2]]
    frame = pd.DataFrame({"sequence": ["ACGT"], "reward": [1.0], "log_prob": [-4.0]})
    drawn = plot.designs(frame, frame.assign(reward=0.5)).lines
    assert [line.get_ydata().tolist() for line in drawn] == [[0.5], [1.0]]
    assert drawn[1].get_xdata().tolist() == [-1.0]  # per base


def test_settings_of_matplotlib_stay_those_of_the_user():
    before = matplotlib.rcParams["axes.grid"]
    axes = plot.logo(["AC"])
    assert matplotlib.rcParams["axes.grid"] == before and plot.logo(["AC"], axes) is axes
