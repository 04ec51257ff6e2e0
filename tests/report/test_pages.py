"""Pages of commands from their finished files."""

import importlib
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from dnadiff.embed import EmbedOptions
from dnadiff.explain import ExplainOptions
from dnadiff.options.base import Reported, Result
from dnadiff.options.command import command_names, named
from dnadiff.report import embed, evaluate, explain, score, train
from dnadiff.report.page import write


def chart_of(page, name):
    (found,) = [picture for picture in page.pictures if picture.name == name]
    return found.content.to_dict(validate=False)


@pytest.mark.parametrize("name", command_names())
def test_every_command_with_a_report_has_its_page(name):
    if issubclass(named(name).options, Reported):
        assert callable(importlib.import_module(f"dnadiff.report.{name}").page)


def test_the_page_of_a_run_has_its_losses_and_validations(tmp_path):
    columns = ["step", "tokens", "seconds", "train_loss", "train_nll", "lr"]
    columns += ["valid_nll", "valid_nll_live"]
    rows = [(5, 50, 1.0, 1.4, 1.4, 0.1, None, None), (10, 100, 2.0, 1.2, 1.3, 0.1, None, None)]
    rows += [
        (10, 100, 2.5, None, None, None, 1.25, 1.26),
        (15, 150, 4.0, 1.1, 1.2, 0.1, None, None),
    ]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "metrics.csv", index=False)
    metrics = {"step": 15, "tokens": 150, "seconds": 4.0, "valid_nll": 1.25, "best_valid_nll": 1.25}
    metrics |= {"parameters": 7, "tokens_per_second": 37, "peak_memory_mb": 9}
    page = train.page(Result(metrics, (tmp_path,)), SimpleNamespace(seed=1))
    assert page.sentence == "15 steps on 150 tokens in 0:04: validation 1.2500 nats per token."
    assert page.table.rows == [(10, 100, "0:02", "1.2500")]
    assert "validation, averaged weights" in str(chart_of(page, "loss"))
    assert "50" in str(chart_of(page, "speed"))
    assert "http:" not in write(page, tmp_path / "x.html").read_text().split("<script")[0]


def test_the_page_of_an_evaluation_compares_groups_and_models(tmp_path):
    group = {"bits": 1.9, "nll": 1.3, "perplexity": 3.7, "bits_low": 1.8, "bits_high": 2.0}
    group |= {"tokens": 90, "se_mc": 0.1, "se_total": 0.1}
    content = {
        "is_dna": True,
        "groups": {"all": group, "novel": {**group, "bits": 1.95}},
        "markov": [{"order": 3, "groups": {"all": {"bits": 1.96, "perplexity": 3.9}}}],
        "curve": {"visible": [0, 4], "bits": [2.0, 1.8], "se": [0.01, 0.02]},
        "novelty": "against the training part of g.fa",
        "part": "test",
        "protocol": "NELBO",
        "model": {"checkpoint": "/a/b/run"},
        "data": {"name": "g.fa", "window": 64},
    }
    page = evaluate.page(Result(content), None)
    assert page.sentence == (
        "1.9000 bits per base (95 % interval 1.8000 to 2.0000) on 90 tokens of the test part; "
        "the best Markov model needs 1.9600."
    )
    assert [row[:3] for row in page.table.rows] == [
        ["this model", "all", "1.9000"],
        ["this model", "novel", "1.9500"],
        ["Markov order 3", "all", "1.9600"],
    ]
    assert "Markov order 3" in str(chart_of(page, "models"))
    assert "'low': 1.9804" in str(chart_of(page, "curve"))
    write(page, tmp_path / "x.html")


def test_the_page_of_scores_weights_records_by_their_bases(tmp_path):
    (tmp_path / "s.tsv").write_text(
        "name\tlength\tcounted\tnats_per_base\tbits_per_base\tse_mc\ttotal_bits\n"
        "a\t10\t10\t1.3\t1.9\t0.1\t19\nb\t30\t30\t1.1\t1.5\t0.1\t45\nc\t5\t0\tnan\tnan\tnan\tnan\n"
    )
    page = score.page(Result({"settings": {"window": 64}}, (tmp_path / "s.tsv",)), None)
    assert page.sentence == "3 records, 40 bases: 1.600 bits per base."
    assert page.table.rows[2] == ["c", 5, 0, None, None, None, None]
    assert [picture.name for picture in page.pictures] == ["distribution", "lengths"]
    write(page, tmp_path / "x.html")


def test_principal_components_are_those_of_scikit_learn():
    vectors = np.random.default_rng(0).normal(size=(20, 5)) * [9, 4, 1, 1, 1]
    points, shares = embed.principal_components(vectors)
    expected = PCA(2).fit(vectors)
    assert np.allclose(np.abs(points), np.abs(expected.transform(vectors)))
    assert np.allclose(shares, expected.explained_variance_ratio_)


def test_the_page_of_embeddings_is_colored_by_the_names_of_regions(tmp_path):
    vectors = np.float32([[0, 1, 0], [1, 0, 0], [np.nan] * 3, [3, 3, 3]])
    names = np.array(["a", "b", "c", "d"])
    chrom = np.array(["chr1", "chr2", "chr1", "chr1"])
    np.savez(tmp_path / "e.npz", embeddings=vectors, name=names, chrom=chrom, settings="{}")
    options = EmbedOptions(checkpoint="ecoli", input="x.fa")
    page = embed.page(Result({}, (tmp_path / "e.npz",)), options)
    assert page.sentence.startswith("4 sequences, 3 numbers each: two principal components hold")
    assert [row[:2] for row in page.table.rows] == [["a", "chr1"], ["b", "chr2"], ["d", "chr1"]]
    assert chart_of(page, "components")["encoding"]["color"]["field"] == "chrom"
    write(page, tmp_path / "x.html")


def test_the_page_of_embeddings_is_colored_by_a_table_of_ones_own(tmp_path):
    vectors = np.float32([[0, 1, 0], [1, 0, 0], [2, 1, 5], [3, 3, 3]])
    np.savez(tmp_path / "e.npz", embeddings=vectors, name=np.array([*"0123"]), settings="{}")
    (tmp_path / "m.tsv").write_text("activity\tname\n0.5\t2\n1.5\t0\n9\t0\n")
    given = {"checkpoint": "ecoli", "input": "x.fa", "report": "r.html"}
    options = EmbedOptions(**given, metadata=str(tmp_path / "m.tsv"))
    page = embed.page(Result({}, (tmp_path / "e.npz",)), options)
    assert [row[:2] for row in page.table.rows] == [
        ["0", 1.5],
        ["1", None],
        ["2", 0.5],
        ["3", None],
    ]
    assert chart_of(page, "components")["encoding"]["color"]["field"] == "activity"
    other = tmp_path / "other.csv"
    other.write_text("name,activity\n00,1\n")
    with pytest.raises(ValueError, match="none of the sequences in its column name, such as 0"):
        embed.page(Result({}, (tmp_path / "e.npz",)), EmbedOptions(**given, metadata=str(other)))
    (tmp_path / "m.csv").write_text("id,activity\n0,1\n")
    with pytest.raises(ValueError, match=r"m.csv has the columns id, activity; give name"):
        embed.read_metadata(str(tmp_path / "m.csv"))


def test_the_page_of_explain_says_that_no_motif_was_found(tmp_path):
    one_hot = np.eye(4)[None, [0, 1, 2, 3, 0, 1]]
    arrays = {"one_hot": one_hot, "hypothetical": one_hot / 2, "effects": one_hot - 1}
    np.savez(tmp_path / "y.npz", **arrays, lengths=[6], name=["a"], settings="{}")
    options = ExplainOptions(checkpoint="ecoli", input="x.fa")
    for content, end in ({}, ""), ({"motifs": []}, "; no motif was found"):
        page = explain.page(Result({"unit": "label", **content}, (tmp_path / "y.npz",)), options)
        assert page.sentence == f"1 sequences: the bases that label depends on{end}."
