"""The page about designs: what it says is what the files say."""

import json
import re
from html import unescape

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.design.reward import GCContent
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics.composition import pareto_front
from dnadiff.genomics.metrics.designs import header_facts, mean_hamming
from dnadiff.report import designs
from dnadiff.report.designs import bin_edges, described, tradeoff
from dnadiff.report.page import panel

RUN = [
    "reward=gc",
    "num_samples=6",
    "batch_size=3",
    "length=24",
    "sampler.num_groups=4",
    "num_draws=2",
    "output=a.fa",
    "report=p/a.html",
]
REAL = "".join(f">r{i}\n{'ACGTTGA' * 6}\n>n{i}\n{'GGCNAATTCC' * 3}\n" for i in range(5))


@pytest.fixture
def page(cli, trained, tmp_path):
    """Runs `sample` with these arguments and returns the page: (its HTML, its text)."""

    def run(*args, checkpoint=trained):
        status, out, err = cli("sample", f"checkpoint={checkpoint}", *RUN, *args)
        assert status == 0, err
        assert "the page is p/a.html" in out
        html = (tmp_path / "p/a.html").read_text()
        shown = re.sub(r"<(svg|style|details).*?</\1>", "", html, flags=re.DOTALL)
        return html, " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())

    return run


def test_the_page_says_what_the_files_say(page, tmp_path):
    html, text = page("method=smc", "beta=20", "copies=true", "trust=[]")
    content, records = (
        json.loads((tmp_path / "a.fa.json").read_text()),
        read_sequences(tmp_path / "a.fa"),
    )
    about = [header_facts(record.description) for record in records]
    reward, log_prob = (
        np.array([float(each[key]) for each in about]) for key in ("reward", "log_prob")
    )
    counts = np.stack(
        [(np.array([list(r.sequence) for r in records]) == base).sum(0) for base in b"ACGT"], 1
    )
    assert (
        "<title>6 designs for GCContent</title>" in html
        and "The method is SMC with beta 20" in text
    )
    for name in ("tradeoff", "rewards", "kmers", "gc", "logo"):
        assert f'id="{name}-' in html
    assert (
        f"Reward, mean {reward.mean():.4g} Best {reward.max():.4g}" in text
        and "Reward, weighted mean" in text
    )
    assert f"Log-probability, mean −{-log_prob.mean() / 24:.3f}" in text
    assert (
        f"Reward calls {content['design']['calls']} {content['design']['calls'] / 6:.1f} for each"
        in text
    )
    assert f"Effective sample size {content['weights']['effective_size']['mean']:.1f} Of 6" in text
    assert "of each template; copies count once." in text
    assert f"Distinct sequences {len({r.sequence for r in records})} Of 6." in text
    assert f"mean of pairs {mean_hamming(counts):.1f} Bases" in text
    assert f"training data {content['copies']['longest']['max']} Bases" in text
    front = pareto_front(log_prob / 24, reward)
    rows = [
        f"{records[i].name.replace('_', '_ ')} {reward[i]:.5g} −{-log_prob[i] / 24:.4f}"
        for i in front
    ]
    assert " ".join(rows) in text and f"The Pareto front: {len(front)} designs." in text
    assert (
        "designs that no other design matches or exceeds in both values and exceeds in at least one"
        in text
    )
    assert "beta=20 copies=true 'trust=[]'" in unescape(html)  # can be pasted into a shell
    assert (
        "python -m dnadiff.sample" in text
        and "screen them with current tools" in text
        and "windows of tiny.fa" in text
    )


def test_real_sequences_have_rewards_and_likelihoods(page, tmp_path, trained):
    (tmp_path / "r.fa").write_text(REAL)
    _, text = page("real=r.fa")
    # Records of 42 bases have one window of 24; windows with N are left out.
    expected = GCContent()([("ACGTTGA" * 6)[:24]])[0]
    assert (
        f"Reward of real sequences, mean {expected:.4g} Best {expected:.4g}, of 5 real sequences."
        in text
    )
    assert "Compared with 5 real sequences of r.fa" in text and "Effective sample size" not in text


def test_likelihoods_of_real_sequences_are_those_of_the_model(page, tmp_path, trained, monkeypatch):
    (tmp_path / "r.fa").write_text(REAL)
    seen, write = {}, designs.write_page

    def write_page(path, template, **values):
        seen.update(values)
        return write(path, template, **values)

    monkeypatch.setattr(designs, "write_page", write_page)
    page("real=r.fa", "num_draws=96")
    log_prob, _ = seen["points"]
    expected = dnadiff.load(trained, device="cpu").nll([("ACGTTGA" * 6)[:24]], num_draws=96)
    assert log_prob.shape == (5,)
    assert log_prob.mean() == pytest.approx(-expected[0], abs=0.15) and expected[0] > 0.5


def test_the_page_of_best_of_n_names_no_beta_and_a_file_names_no_query(page, tmp_path, monkeypatch):
    (tmp_path / "t.fa").write_text(f">t\n{'N' * 24}\n")
    monkeypatch.setattr("dnadiff.store.files.fetch", lambda address: tmp_path / "t.fa")
    html, text = page("template='https://h/t.fa?sv=1&sig=SECRET'", "length=null")
    assert "The method is BestOfN, the sampler grouped" in text and "beta" not in text
    content = (tmp_path / "a.fa.json").read_text()
    assert (
        json.loads(content)["inputs"] == {"template": "https://h/t.fa?..."}
        and "SECRET" not in content + html
    )


def test_a_complete_file_gets_its_page_later(page, cli, trained, tmp_path):
    first, _ = page()
    (tmp_path / "p/a.html").unlink()
    before = (tmp_path / "a.fa.json").read_bytes()
    assert page("resume=true")[0] == first and (tmp_path / "a.fa.json").read_bytes() == before


def test_resampled_designs_of_two_templates(page, tmp_path):
    (tmp_path / "t.fa").write_text(">s\nNNNNACGTNNNN\n>t\nNNNNNNNNNNNNNNNN\n")
    _, text = page(
        "template=t.fa",
        "length=null",
        "method=smc",
        "resample=true",
        "proposals=8",
        "num_samples=3",
    )
    records = read_sequences(tmp_path / "a.fa")
    log_prob = [
        float(header_facts(r.description)["log_prob"]) / (8 if r.name.startswith("s") else 16)
        for r in records
    ]
    assert (
        len(records) == 6 and f"Log-probability, mean −{-np.mean(log_prob):.3f}" in text
    )  # of the 8 and the 16 designed bases
    assert (
        "Of 8 designs of each template, then resampled" in text
        and "Reward, weighted mean" not in text
    )
    assert "There is no logo: the designs have different lengths" in text and "Hamming" not in text


def test_without_bounds_or_readable_data_the_page_says_so(page, trained, tmp_path):
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"]["config"]["data"]["path"] = str(tmp_path / "gone.fa")
    torch.save(content, tmp_path / "moved.ckpt")
    html, text = page("num_draws=0", checkpoint=tmp_path / "moved.ckpt")
    assert (
        "no Pareto front" in text
        and "Compared with" not in text
        and 'id="tradeoff-' not in html
        and 'id="rewards-' in html
    )


WRONG = {
    "report is for designs; set reward= too": ["reward=none", "real=null"],
    "real is for designs; set reward= too": ["reward=none", "report=null", "real=r.fa"],
    "real= has the sequences that the page of report=": ["report=null", "real=r.fa"],
    "report a.pdf has another format; its name must end in .html": ["report=a.pdf"],
    "absent.fa": ["real=absent.fa"],
    "real r.fa has 2 windows of 24 bases, the length of the designs; give at least 4": [
        "real=r.fa"
    ],
    "real has no window of 30 bases": ["real=r.fa", "length=30"],
    "old.html": ["report=old.html"],
    "old.html exists": [
        "report=old.html",
        "resume=true",
    ],  # the page of another run: there is nothing to resume
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_end_in_one_line(cli, trained, tmp_path, message):
    (tmp_path / "r.fa").write_text(f">a\n{'ACGT' * 6}\n>b\n{'ACGT' * 6}\n>c\n{'N' * 40}\n")
    (tmp_path / "old.html").write_text("kept")
    status, _, err = cli("sample", f"checkpoint={trained}", *RUN, *WRONG[message])
    assert status == 1 and message in err and "Traceback" not in err and err.count("error:") == 1
    assert (
        not (tmp_path / "a.fa").exists()
        and not (tmp_path / ".a.fa.part").exists()
        and (tmp_path / "old.html").read_text() == "kept"
    )


def test_the_front_that_is_drawn_is_that_of_all_designs():
    log_prob, reward = np.array([-1.0, -1.2, -1.1, -1.3]), np.array([0.0, 1.0, 2.0, 1.5])
    axes = panel(lambda a: tradeoff(a, log_prob, reward, (np.array([-1.4]), np.array([3.0])))).axes[
        0
    ]
    (front,) = [line for line in axes.lines if line.get_label() == "Pareto front"]
    assert (
        front.get_xydata().tolist() == [[-1.1, 2.0], [-1.0, 0.0]]
        and front.get_drawstyle() == "steps-pre"
    )
    many = np.arange(5000.0)
    axes = panel(lambda a: tradeoff(a, -many, many, None)).axes[0]
    lines = {line.get_label(): len(line.get_xdata()) for line in axes.lines}
    assert lines == {"designs": 2000, "Pareto front": 5000}


def test_values_on_a_grid_are_in_the_middle_of_bins():
    assert bin_edges(np.array([0.25, 0.5, 1.0])) == pytest.approx(
        [0.125, 0.375, 0.625, 0.875, 1.125]
    )
    assert bin_edges(np.array([0.583333, 7 / 12, 0.75, 0.666667])) == pytest.approx(
        np.array([13, 15, 17, 19]) / 24, abs=1e-5
    )
    assert bin_edges(np.array([2.0, 2.0])).tolist() == [1.5, 2.5]
    percent = np.arange(101) / 3
    inside = np.histogram(percent, bin_edges(percent))[0]
    assert (
        inside[:-1].tolist() == [5] * 20 and inside.sum() == 101
    )  # as many grid points in each bin, but the last
    assert len(bin_edges(np.random.default_rng(0).normal(size=500))) == 25


def test_configurations_in_words():
    sites = {
        "_target_": "dnadiff.design.reward.RestrictionSites",
        "enzymes": ["EcoRI", "BsaI"],
        "file": None,
        "trust": [],
    }
    weighted = {
        "_target_": "dnadiff.design.reward.Weighted",
        "terms": {"sites": sites},
        "both": True,
    }
    assert (
        described(weighted)
        == "Weighted (terms sites RestrictionSites (enzymes EcoRI BsaI), both yes)"
    )
