"""Effects of substitutions: in-silico mutagenesis against predictions of each changed sequence, and
masked bases of a pretrained model."""

import csv
import json

import numpy as np
import pytest

import dnadiff
from dnadiff import finetune
from dnadiff.data.genome.inputs import open_input
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.jobs.runner import RunOptions, run_jobs
from dnadiff.supervised.attribution import ExplainJob, Mutagenesis, hypothetical

TOKENIZER = DNATokenizer()
TURNED = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}


def reverse_complement(text):
    return "".join(TURNED[base] for base in reversed(text))


def two_networks(sequences, columns=None):
    """Any function of a sequence, which depends on all bases and on pairs of them."""
    found = []
    for ids in sequences:
        x = ids.astype(float) * np.arange(1, len(ids) + 1)
        found.append([np.sin(x).sum(), np.cos(x[:-1] * x[1:]).sum()])
    return np.array(found).T


def test_mutagenesis_predicts_every_substitution():
    text = "ACNGTTA"
    effects, predicted = Mutagenesis(two_networks)(TOKENIZER.encode(text))
    assert predicted == pytest.approx(two_networks([TOKENIZER.encode(text)]).mean())
    for place, base in enumerate(text):
        for number, other in enumerate("ACGT"):
            changed = TOKENIZER.encode(text[:place] + other + text[place + 1 :])
            expected = two_networks([changed]).mean() - predicted
            if base == "N":
                assert np.isnan(effects[place, number])
            else:
                assert effects[place, number] == pytest.approx(expected, abs=1e-9)
    own = hypothetical(effects)[0, 0]
    assert own == pytest.approx(-effects[0].mean()) and not hypothetical(effects)[2].any()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run of two seeds that tells sequences with GATTACA from others, and some sequences."""
    folder, random = tmp_path_factory.mktemp("explain"), np.random.default_rng(0)
    rows = []
    for i in range(80):
        letters = "".join(random.choice(list("ACGT"), 30))
        rows.append((letters[:10] + "GATTACA" + letters[17:] if i % 2 else letters, i % 2))
    with open(folder / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([("sequence", "label"), *rows])
    finetune.main(
        [
            "checkpoint=ecoli",
            f"hydra.run.dir={folder / 'run'}",
            "task=csv",
            f"task.path={folder / 'table.csv'}",
            *("epochs=1", "seeds=2", "lr=0.01", "scratch=false", "kmer=1", "accelerator=cpu"),
        ]
    )
    return folder


def write_genome(folder):
    genome = "".join(np.random.default_rng(1).choice(list("ACGT"), 40))
    (folder / "g.fa").write_text(f">c1\n{genome}\n")
    (folder / "r.bed").write_text("c1\t5\t17\ta\t0\t+\nc1\t11\t25\tb\t0\t-\n")
    return genome


def test_the_command_gives_what_predict_says_of_each_substitution(cli, world, tmp_path):
    genome = write_genome(tmp_path)
    given = (f"checkpoint={world / 'run'}", "genome=g.fa", "regions=r.bed", "accelerator=cpu")
    status, _, err = cli(
        *("explain", *given, "per_base=y.bedgraph", "output=y.npz", "report=y.html")
    )
    assert status == 0 and "26 bases = 156 predictions" in err, err
    found = np.load(tmp_path / "y.npz")
    assert found["effects"].shape == (2, 14, 4) and found["lengths"].tolist() == [12, 14]
    model = dnadiff.load(world / "run", device="cpu")

    def value(text):
        return np.mean([np.diff(p[0])[0] for p in model.predict([text]).each_seed])

    texts = [genome[5:17], reverse_complement(genome[11:25])]
    contributions = (found["hypothetical"] * found["one_hot"]).sum(-1)
    along = np.zeros((2, 40)) * np.nan
    for i, text in enumerate(texts):
        assert found["predicted"][i] == pytest.approx(value(text), abs=1e-5)
        for place in range(len(text)):
            changed = [value(text[:place] + base + text[place + 1 :]) for base in "ACGT"]
            expected = np.array(changed) - value(text)
            assert found["effects"][i, place] == pytest.approx(expected, abs=1e-5)
            assert found["one_hot"][i, place].argmax() == "ACGT".index(text[place])
            assert contributions[i, place] == pytest.approx(-expected.mean(), abs=1e-5)
            along[i, 5 + place if i == 0 else 24 - place] = contributions[i, place]
    assert not found["effects"][0, 12:].any() and not found["one_hot"][0, 12:].any()
    lines = [line.split("\t") for line in (tmp_path / "y.bedgraph").read_text().splitlines()]
    assert [int(start) for _, start, _, _ in lines] == list(range(5, 25))
    track = [float(value) for *_, value in lines]
    assert track == pytest.approx(np.nanmean(along[:, 5:25], 0), abs=1e-5)
    bases, hypo = (np.load(tmp_path / f"y.{x}.npz")["arr_0"] for x in ("sequences", "attributions"))
    assert bases.shape == hypo.shape == (2, 4, 14) and bases.dtype == np.float32
    np.testing.assert_array_equal(hypo.transpose(0, 2, 1), found["hypothetical"])
    page = (tmp_path / "y.html").read_text()
    assert "2 sequences: the bases that log-odds of class 1 depends on." in page


def test_the_other_strand_has_the_mirrored_attribution(cli, world, tmp_path):
    text = "ACGTTGACCANGATTA"
    (tmp_path / "x.fa").write_text(f">a\n{text}\n>b\n{reverse_complement(text)}\n")
    given = (f"checkpoint={world / 'run'}", "input=x.fa", "seeds=1", "accelerator=cpu")
    status, _, err = cli("explain", *given, "output=y.npz")
    assert status == 0, err
    effects = np.load(tmp_path / "y.npz")["effects"]
    np.testing.assert_allclose(effects[1], effects[0, ::-1, ::-1], atol=1e-5)
    known = np.isfinite(effects[0]).all(1)
    assert known.sum() == 15 and not known[10] and np.abs(effects[0, known]).max() > 1e-3
    status, _, err = cli("explain", *given, "seeds=99", "output=z.npz")
    assert status == 1 and "error: seeds 99 must be at most 2, the number of networks of" in err


def test_a_resumed_run_gives_the_bytes_of_an_uninterrupted_one(tmp_path):
    genome = write_genome(tmp_path)
    assert len(genome) == 40
    source = open_input(None, str(tmp_path / "g.fa"), str(tmp_path / "r.bed"), None)

    class Stopped(Mutagenesis):
        calls_left = 1

        def __call__(self, *given):
            if not self.calls_left:
                raise KeyboardInterrupt
            self.calls_left -= 1
            return super().__call__(*given)

    def job(name, explainer):
        track = tmp_path / f"{name}.bedgraph"
        return ExplainJob(explainer, source, tmp_path / f"{name}.npz", track, None, {})

    run_jobs([job("a", Mutagenesis(two_networks))], RunOptions("explain"))
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("b", Stopped(two_networks))], RunOptions("explain"))
    assert not (tmp_path / "b.npz").exists()
    again = Stopped(two_networks)  # computes the second sequence alone
    run_jobs([job("b", again)], RunOptions("explain", resume=True))
    for ending in (".npz", ".sequences.npz", ".attributions.npz", ".bedgraph"):
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()
    settings = [json.loads((tmp_path / f"{x}.npz.json").read_text())["settings"] for x in "ab"]
    assert settings[0] == settings[1] and not list(tmp_path.glob(".b*"))


def test_of_a_pretrained_model_effects_are_the_ratios_of_variants(cli, tmp_path):
    write_genome(tmp_path)
    status, _, err = cli(
        "explain", "checkpoint=ecoli", "genome=g.fa", "regions=r.bed", "output=y.npz"
    )
    assert status == 0, err
    found = np.load(tmp_path / "y.npz")
    status, _, err = cli(
        *("variants", "checkpoint=ecoli", "genome=g.fa", "saturate=r.bed", "output=v.tsv")
    )
    assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "v.tsv").open(), delimiter="\t"))
    ratios = {(int(row["pos"]) - 1, row["alt"]): float(row["LLR"]) for row in rows}
    for number, other in enumerate("ACGT"):
        for place in range(5, 25):
            expected = ratios.get((place, other), 0.0)
            if place < 17:
                assert found["effects"][0, place - 5, number] == pytest.approx(expected, abs=2e-4)
            if place >= 11:
                turned = "ACGT".index(TURNED[other])
                effect = found["effects"][1, 24 - place, turned]
                assert effect == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(
    "given, message",
    [
        (["checkpoint=ecoli", "target=1"], "target belongs to a fine-tuned run"),
        (["target=x"], "target 'x' is not predicted by this model; set it to '0', '1'"),
        (["output=y.tsv"], "output y.tsv must end in .npz"),
        (["per_base=y.wig"], "per_base y.wig has an unknown extension"),
        (["motifs=absent.jaspar"], "absent.jaspar"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(cli, world, tmp_path, given, message):
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    if not given[0].startswith("checkpoint"):
        given = [f"checkpoint={world / 'run'}", *given]
    status, _, err = cli("explain", "input=x.fa", "accelerator=cpu", *given)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(lines) == 1 and message in lines[0], err
