"""BLEU, chrF and ROUGE of small examples that can be computed by hand."""

import math
import sys

import pytest

from dnadiff.genomics.metrics.text_quality import similarity

SAME = ["the cat sat on the mat", "a dog ran in the park", "it was red and very old"]


@pytest.fixture
def references(tmp_path):
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    (tmp_path / "r.txt").write_text("".join(f"{line}\n" for line in SAME))
    return str(tmp_path / "r.txt")


def values(rows):
    return {row["metric"]: row["value"] for row in rows}


def test_equal_texts_have_all_of_it(references):
    rows = similarity(SAME, references)
    assert values(rows) == pytest.approx(
        dict.fromkeys(("BLEU", "chrF", "ROUGE-1", "ROUGE-2", "ROUGE-L"), 100)
    )
    assert rows[0]["low"] == pytest.approx(100) == rows[0]["high"] and "tok:13a" in rows[0]["how"]


def test_empty_texts_have_nothing_of_it(references):
    assert set(values(similarity(["", "", ""], references)).values()) == {0}


def test_bleu_and_rouge_by_hand(tmp_path, references):
    (tmp_path / "one.tsv").write_text("egal\tthe cat sat on the mat\n")
    found = values(similarity(["the cat sat on the"], str(tmp_path / "one.tsv")))
    # all n-grams of five tokens are right, of six: the brevity penalty is exp(1 - 6/5)
    assert found["BLEU"] == pytest.approx(100 * math.exp(1 - 6 / 5))
    # recall 5/6 at precision 1; of bigrams 4/5
    assert found["ROUGE-1"] == pytest.approx(100 * 2 * (5 / 6) / (1 + 5 / 6))
    assert found["ROUGE-2"] == pytest.approx(100 * 2 * (4 / 5) / (1 + 4 / 5))
    assert found["ROUGE-L"] == pytest.approx(found["ROUGE-1"])


def test_intervals_contain_the_value_and_narrow_with_more_texts(tmp_path, references):
    widths = []
    for times in (4, 32):
        (tmp_path / "r.txt").write_text("".join(f"{line}\n" for line in SAME * times))
        rows = similarity(
            ["the cat sat", "a dog ran in the park", "it was blue"] * times, references
        )
        assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
        widths.append([row["high"] - row["low"] for row in rows])
    assert all(few > many for few, many in zip(*widths))


def test_other_numbers_of_texts_are_refused(references):
    with pytest.raises(ValueError, match=r"3 references and samples= 2 texts; give one for each"):
        similarity(SAME[:2], references)


def test_a_missing_package_names_the_extra(references, monkeypatch):
    monkeypatch.delitem(sys.modules, "rouge_score.rouge_scorer", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "rouge_score", raising=False)
    with pytest.raises(ValueError, match=r"needs the package rouge_score.*\[translation\]"):
        similarity(SAME, references)
