"""The sections about a run on the page of the demo."""

import csv
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dnadiff.diffusion.bootstrap import UNDECIDED, verdict
from dnadiff.report.page import inline_svg, panel, write_page
from dnadiff.report.suite import accuracy_bars

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from run_sections import (
    TEMPLATES,
    RunResults,
    headlines,
    read_metrics,
    sentences,
    smoothed,
)

# All sections about a run.
PAGE = TEMPLATES.from_string("""
{% extends "base.html.j2" %}
{% import "parts.html.j2" as parts %}
{% import "sections.html.j2" as sections %}
{% block header %}<h1>{{ title }}</h1>{{ parts.notice() }}{% endblock %}
{% block content %}
{{ sections.main_results(results) }}
{{ sections.about(results.evaluation, details) }}
{{ sections.training(results.metrics) }}
{{ sections.likelihood(results.evaluation) }}
{{ sections.context(results.evaluation) }}
{{ sections.downstream(results.finetune) }}
{% endblock %}
{% block footer %}{{ parts.footer(commands) }}{% endblock %}
""")
HOSTILE = "<script>alert('x')</script> & $a_b$ \"q\""


def _group(bits, tokens):
    return {
        "nll": bits * np.log(2),
        "bits": bits,
        "perplexity": 2**bits,
        "se_mc": 0.0002,
        "se_total": 0.0015,
        "bits_low": bits - 0.004,
        "bits_high": bits + 0.004,
        "tokens": tokens,
    }


def _markov(order, bits, difference, low, high):
    values = {
        "bits": bits,
        "perplexity": 2**bits,
        "difference_bits": difference,
        "low": low,
        "high": high,
    }
    return {"order": order, "groups": {"all": values, "novel": values}}


def _evaluation(name="E. coli"):
    return {
        "model": {
            "checkpoint": "/home/someone/runs/a/checkpoints/last.ckpt",
            "backbone": "Caduceus",
            "parameters": 467328,
            "step": 300,
            "tokens": 4915200,
        },
        "data": {
            "name": name,
            "path": "/home/someone/genome.fa",
            "split": "fraction",
            "split_hash": "3f9a1c",
            "split_tokens": {"train": 80, "test": 10},
        },
        "part": "test",
        "num_draws": 8,
        "protocol": "count form",
        "groups": {
            "all": _group(1.9312, 464165),
            "novel": _group(1.9337, 452093),
            "repeated": {"bits": None, "tokens": 0},
        },
        "markov": [
            _markov(12, 1.9203, 0.0109, 0.0087, 0.0131),
            _markov(0, 1.9993, -0.0681, -0.0703, -0.0659),
            _markov(3, 1.952, -0.0208, -0.023, -0.0186),
            _markov(6, 1.9331, -0.0019, -0.0041, 0.0003),
        ],
        "curve": {"visible": [10, 30, 50], "bits": [1.98, 1.94, 1.92], "se": [0.002, 0.002, 0.003]},
    }


def _finetune(name="fine-tuned"):
    return {
        "task": {
            "name": "ecoli_coding",
            "classes": ["coding", "noncoding"],
            "chance": 0.5,
            "items": {"train": {"coding": 80}, "valid": {"coding": 20}},
            "protocol": "fixed",
        },
        "models": {
            name: {"accuracy": 0.861, "low": 0.828, "high": 0.892, "per_seed": [0.85, 0.87]},
            "from scratch": {
                "accuracy": 0.812,
                "low": 0.776,
                "high": 0.846,
                "per_seed": [0.80, 0.82],
            },
        },
        "differences": [
            {
                "a": name,
                "b": "from scratch",
                "difference": 0.049,
                "low": 0.019,
                "high": 0.08,
                "verdict": "better",
            }
        ],
        "notes": {"seeds": 2},
    }


def _metrics():
    nan = np.nan
    return {
        "step": np.arange(6.0),
        "tokens": np.arange(6.0) * 1e6,
        "train_nll": np.array([1.39, 1.38, 1.36, nan, 1.35, 1.34]),
        "valid_nll": np.array([nan, nan, nan, 1.37, nan, 1.35]),
        "valid_nll_live": np.array([nan, nan, nan, 1.36, nan, 1.355]),
    }


def _everything():
    return {
        "metrics": _metrics(),
        "evaluation": _evaluation(),
        "finetune": _finetune(),
    }


def _write(path, results, title="A run", details=None, commands=()):
    return write_page(path, PAGE, title=title, results=results, details=details, commands=commands)


class _Page(HTMLParser):
    VOID = frozenset({"meta", "br", "link", "img", "wbr"})

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.tags, self.text, self.pictures = (
            [],
            [],
            [],
            [],
            [],
            [],
        )
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.open += [tag] if tag not in self.VOID else []
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.pictures += [values] if tag == "svg" else []

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style",):
            self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    _write(
        path,
        RunResults(**_everything()),
        details={"scan": "cpu"},
        commands=["python -m dnadiff.train data=ecoli"],
    )
    return path.read_text(encoding="utf-8")


def test_page_is_well_formed_and_every_picture_has_a_label(page):
    parsed = _Page(page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids)) > 50
    assert len(parsed.pictures) == 6
    assert all(
        picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in parsed.pictures
    )


def test_page_loads_nothing_from_elsewhere(page):
    parsed = _Page(page)
    assert "http:" not in page and "https:" not in page and "@import" not in page
    assert all(
        address.startswith("#") and address[1:] in parsed.ids for address in parsed.addresses
    )
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(parsed.ids)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)


def test_page_shows_the_numbers_and_no_absolute_path(page):
    text = " ".join(_Page(page).text)
    expected = (
        "1.9312",
        "1.9272 to 1.9352",
        "−0.0208",
        "−0.0230 to −0.0186",
        "86.1",
        "+1.9 to +8.0",
        "467,328",
        "3f9a1c",
        "train 80, test 10",
        "cpu",
        "RESPONSIBLE_USE.md",
    )
    assert all(number in text for number in expected)
    assert (
        "someone" not in page
        and "a/checkpoints/last.ckpt" in text
        and "python -m dnadiff.train data=ecoli" in text
    )


def test_captions_claim_no_more_than_the_numbers(page):
    text = " ".join(page.split())
    assert (
        "objective=ar it is the negative log-likelihood itself" in text
        and "which is not a bound" in text
    )
    assert (
        "95 % intervals over blocks of neighboring windows" in text
        and "Monte Carlo error only" not in text
    )


def test_same_input_gives_the_same_bytes_also_from_json(tmp_path):
    parts = {"evaluation": _evaluation(), "finetune": _finetune()}
    pages = [
        _write(tmp_path / "r.html", RunResults(**each)).read_bytes()
        for each in (parts, json.loads(json.dumps(parts)))
    ]
    assert pages[0] == pages[1]
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_verdicts_follow_from_the_intervals():
    said = sentences(RunResults(evaluation=_evaluation(), finetune=_finetune()))
    assert said[0].endswith(
        "the model is better than order 0 and 3; not distinguishable from order 6; worse than "
        "order 12."
    )
    assert said[1] == "On ecoli_coding, fine-tuned is better than from scratch."
    rows = {
        row.name: row
        for row in headlines(RunResults(evaluation=_evaluation(), finetune=_finetune()))
    }
    assert rows["Model minus Markov order 3, bits per base"].reading.startswith(
        "The model is better than order 3"
    )
    assert rows["Model minus Markov order 6, bits per base"].reading.startswith(
        "Not distinguishable from order 6."
    )
    assert (
        verdict(float("nan"), 1.0, "a", "b", "c") == verdict(None, None, "a", "b", "c") == UNDECIDED
    )


def test_a_difference_of_one_run_has_no_verdict_on_the_page():
    result = _finetune()
    result["differences"][0]["verdict"] = "one run, no verdict"
    results = RunResults(finetune=result)
    assert sentences(results) == []
    (row,) = [row for row in headlines(results) if "minus" in row.name]
    assert row.reading == "one run, no verdict" and row.interval == "+1.9 to +8.0"
    for each in (result["models"]["fine-tuned"], result["differences"][0]):
        each |= {"low": None, "high": None}
    rows = headlines(results)
    assert rows[0].interval == rows[-1].interval == "too few items"


def test_hostile_names_are_escaped(tmp_path):
    results = RunResults(evaluation=_evaluation(HOSTILE), finetune=_finetune(HOSTILE))
    path = _write(
        tmp_path / "r.html", results, title=HOSTILE, details={HOSTILE: HOSTILE}, commands=[HOSTILE]
    )
    parsed = _Page(path.read_text(encoding="utf-8"))
    assert "script" not in parsed.tags and parsed.open == []
    assert "".join(parsed.text).count(HOSTILE) >= 5


@pytest.mark.parametrize("part", ["metrics", "evaluation", "finetune"])
def test_one_part_is_enough(tmp_path, part):
    results = RunResults(**{part: _everything()[part]})
    parsed = _Page(_write(tmp_path / "r.html", results).read_text(encoding="utf-8"))
    assert parsed.open == [] and 1 <= len(parsed.pictures) <= 3


def test_model_without_markov_models_or_groups(tmp_path):
    evaluation = _evaluation() | {"markov": [], "groups": {"all": _group(1.31, 10000)}}
    results = RunResults(evaluation=evaluation)
    text = _write(tmp_path / "r.html", results).read_text(encoding="utf-8")
    assert "1.3100" in text and "Markov order" not in text and "uniform guessing" in text


def test_svg_keeps_dollar_signs_of_a_name_and_matplotlib_settings():
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg = inline_svg(
        panel(accuracy_bars, result=_finetune("$x^2$ net"), published=()), "one", "a picture"
    )
    assert (
        "$x^2$ net" in svg
        and 'id="one-' in svg
        and "xmlns" not in svg
        and dict(matplotlib.rcParams) == before
    )


def test_metrics_are_read_with_empty_cells(tmp_path):
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(
            [["step", "train_nll", "valid_nll"], [1, 1.25, ""], [2, "", 1.5]]
        )
    metrics = read_metrics(path)
    assert (
        metrics["step"].tolist() == [1, 2]
        and metrics["train_nll"][0] == 1.25
        and np.isnan(metrics["valid_nll"][0])
    )
    path.write_text("step,train_nll\n1,abc\n")
    with pytest.raises(ValueError, match="line 2: train_nll is 'abc'"):
        read_metrics(path)
    path.write_text("step,train_nll\n1,2\n2\n")
    with pytest.raises(ValueError, match="line 3: the row has 1 fields, the header 2"):
        read_metrics(path)


def test_smoothing_keeps_a_constant_and_the_length():
    assert smoothed(np.full(100, 2.0)).tolist() == [2.0] * 100
    assert smoothed(np.array([1.0, 2.0, 6.0])).tolist() == [1.5, 3.0, 4.0]
