"""The page of `sample`: what it says is what the files say."""

import json
import re
from html import unescape

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.design.designs import unguided_path
from dnadiff.design.reward import GCContent, MotifMatch
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics.composition import header_facts

RUN = ["length=24", "sampler.num_groups=4", "output=a.fa", "report=p/a.html", "batch_size=8"]
DESIGN = ["reward=gc", "num_samples=8", "num_draws=2", "pilot=24"]
REAL = "".join(f">r{i}\n{'ACGTTGA' * 6}\n>n{i}\n{'GGCNAATTCC' * 3}\n" for i in range(5))


@pytest.fixture
def page(cli, trained, tmp_path):
    """Runs `sample` with these arguments: (the HTML without scripts, its text, the JSON file)."""

    def run(*args, checkpoint=trained):
        status, out, err = cli("sample", f"checkpoint={checkpoint}", *RUN, *args)
        assert status == 0, err
        assert "the page is p/a.html" in out
        html = (tmp_path / "p/a.html").read_text()
        text = re.sub(r"<(svg|style|script).*?</\1>", "", html, flags=re.DOTALL)
        text = " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())
        return html, text, json.loads((tmp_path / "a.fa.json").read_text())

    return run


def test_the_page_of_designs_says_what_the_files_say(page, tmp_path):
    (tmp_path / "r.fa").write_text(REAL)
    html, text, content = page(*DESIGN, "method=smc", "copies=true", "real=r.fa")
    records = read_sequences(tmp_path / "a.fa")
    about = [header_facts(record.description) for record in records]
    reward = np.array([float(each["reward"]) for each in about])
    distinct = len({record.sequence for record in records})
    without = content["unguided"]["reward"]["mean"]
    effective = content["weights"]["effective_size"]["mean"]
    matches = [int(each["longest_match"]) for each in about]
    nearest = records[int(np.argmax(matches))].name
    assert (
        f"8 designs, {distinct} distinct: mean reward {reward.mean():.3g} against {without:.3g} "
        f"unguided; effective sample size {effective:.3g} of 16; {nearest} has the longest "
        f"match with the training part, {max(matches)} bases. Reward: fraction of G and C."
    ) in text
    assert '"title": "reward: fraction of G and C"' in html
    assert f"{content['design']['js_6_from_unguided']:.4g}" in text
    best = records[int(reward.argmax())]
    assert best.sequence.decode() in text and f"{reward.max():.4g}" in text
    assert "Compared with 5 windows of r.fa, counted on the given strand" in text
    assert "python -m dnadiff.sample" in text and "screen them with current tools" in text
    side = read_sequences(unguided_path(tmp_path / "a.fa"))
    points = re.findall(r'"set": ?"(\w+)"', html)
    assert points.count("unguided") == 2 * len(side) == 48 and points.count("real") == 2 * 5
    # Real sequences have rewards and likelihoods like designs.
    window = ("ACGTTGA" * 6)[:24]
    assert content["real"]["reward"] == pytest.approx([GCContent()([window])[0]] * 5)
    assert len(content["real"]["log_prob"]) == 5
    # A complete file gets its page later.
    (tmp_path / "p/a.html").unlink()
    again, _, _ = page(*DESIGN, "method=smc", "copies=true", "real=r.fa", "resume=true")
    assert again == html


MOTIFS = {
    "motif": (["reward=motif", "reward.motif=TTGT"], ["TTGT"]),
    "sum": (
        [
            *("reward=weighted", "+reward@reward.terms.a=motif", "reward.terms.a.motif=TTGT"),
            *("+reward@reward.terms.b=motif", "reward.terms.b.motif=CAGG"),
            "+reward@reward.terms.c=gc",
        ],
        ["TTGT", "CAGG"],
    ),
}


@pytest.mark.parametrize("kind", MOTIFS)
def test_the_best_matches_of_motifs_are_marked(page, kind):
    reward, motifs = MOTIFS[kind]
    html, text, _ = page(*reward, *DESIGN[1:])
    assert f"{motifs[0]}, underlined" in text
    rows = re.findall(r"<tr>\s*<th scope=\"row\">a?\w+</th>(.*?)</tr>", html, re.DOTALL)
    rows = [row for row in rows if "<mark>" in row]
    assert rows
    for row in rows:
        cells = [unescape(each) for each in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        sequence = re.sub("<[^>]+>", "", cells[-1])
        inside = set()
        for motif, place in zip(motifs, cells[-1 - len(motifs) : -1]):
            start, end, strand = MotifMatch(motif).site(sequence)
            assert place == f"{start + 1} to {end}, {strand}"
            inside |= {*range(start, end)}
        shown = "".join(re.findall("<mark>(.*?)</mark>", cells[-1]))
        assert shown == "".join(sequence[i] for i in sorted(inside))


def test_designs_are_searched_for_in_the_training_part_by_default(page, cli, trained, tmp_path):
    _, text, content = page(*DESIGN)
    assert content["settings"]["copies"] is True
    longest = content["copies"]["longest"]
    assert f"has the longest match with the training part, {longest['max']} bases" in text
    assert content["unguided"]["longest_match"] > 0
    args = [f"checkpoint={trained}", *RUN[:3], *DESIGN, "overwrite=true"]
    status, out, err = cli("sample", *args)
    unguided = f"unguided {content['unguided']['longest_match']:.1f}"
    assert status == 0 and f"{longest['mean']:.1f} on average, {unguided}" in out, err
    assert cli("sample", *args, "copies=false")[0] == 0
    assert "copies" not in json.loads((tmp_path / "a.fa.json").read_text())
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"]["config"]["data"]["path"] = str(tmp_path / "gone.fa")
    torch.save(content, tmp_path / "moved.ckpt")
    status, _, err = cli("sample", "checkpoint=moved.ckpt", *args[1:])
    (line,) = [line for line in err.splitlines() if "copies" in line]
    assert status == 0 and "the training part is not here" in line


def test_likelihoods_of_real_sequences_are_those_of_the_model(page, tmp_path, trained):
    (tmp_path / "r.fa").write_text(REAL)
    _, _, content = page(*DESIGN[:2], "num_draws=96", "pilot=0", "real=r.fa")
    expected = dnadiff.load(trained, device="cpu").nll([("ACGTTGA" * 6)[:24]], num_draws=96)
    assert np.mean(content["real"]["log_prob"]) == pytest.approx(-expected[0], abs=0.15)


def test_the_page_of_samples(page, tmp_path):
    _, text, content = page("num_samples=12")
    records = read_sequences(tmp_path / "a.fa")
    letters = "".join(record.sequence.decode() for record in records)
    gc = 100 * sum(map(letters.count, "GC")) / len(letters)
    distinct = len({record.sequence for record in records})
    assert f"12 samples, {distinct} distinct: 24 bases, {gc:.1f} % G and C." in text
    assert "windows of tiny.fa" in text and "6-mers, bits" in text
    assert "reward" not in text.split("How it was made")[0] and "unguided" not in content


def test_templates_without_data_bounds_or_one_length(page, trained, tmp_path):
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"]["config"]["data"]["path"] = str(tmp_path / "gone.fa")
    torch.save(content, tmp_path / "moved.ckpt")
    (tmp_path / "t.fa").write_text(">s\nNNNNACGTNNNN\n>t\nNNNNNNNNNNNNNNNN\n")
    html, text, _ = page(
        *DESIGN[:2],
        "num_draws=0",
        "template=t.fa",
        "length=null",
        checkpoint=tmp_path / "moved.ckpt",
    )
    assert (
        "the longest match" not in text
        and "Compared with" not in text
        and "Sequence logo" not in html
    )
    assert text.startswith("16 designs") and "log-probability" not in html.split("<script>")[0]


WRONG = {
    "real is for the page of report=": ["report=null", "real=r.fa"],
    "report a.pdf has another format; its name must end in .html": ["report=a.pdf"],
    "absent.fa": ["real=absent.fa"],
    "real r.fa has 2 windows of 24 bases, the length of the samples; give at least 4": [
        "real=r.fa"
    ],
    "real has no window of 30 bases": ["real=r.fa", "length=30"],
    "old.html": ["report=old.html"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_end_in_one_line(cli, trained, tmp_path, message):
    (tmp_path / "r.fa").write_text(f">a\n{'ACGT' * 6}\n>b\n{'ACGT' * 6}\n>c\n{'N' * 40}\n")
    (tmp_path / "old.html").write_text("kept")
    status, _, err = cli("sample", f"checkpoint={trained}", *RUN, *DESIGN, *WRONG[message])
    assert status == 1 and message in err and "Traceback" not in err and err.count("error:") == 1
    assert not (tmp_path / "a.fa").exists() and not (tmp_path / ".a.fa.part").exists()
    assert (tmp_path / "old.html").read_text() == "kept"
