"""Motifs of attributions: planted ones are found with their places and strands."""

import re

import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.motifs import known_motifs
from dnadiff.formats.regions import Region
from dnadiff.supervised.attribution import Mutagenesis, discover, hypothetical, one_hot, write_sites

MOTIF = "TTGACAGT"
REVERSED = "ACTGTCAA"


def test_sites_have_the_coordinates_and_the_strand_of_the_genome(tmp_path):
    motif = {"name": "positive_1", "sites": [[0, 2, 5, "+"], [1, 2, 5, "+"], [1, 0, 4, "-"]]}
    regions = [Region("c1", 10, 20, strand="+"), Region("c2", 10, 20, strand="-")]
    write_sites(tmp_path / "x.bed", [motif], regions)
    assert (tmp_path / "x.bed").read_text().splitlines() == [
        "c1\t12\t15\tpositive_1\t0\t+",
        "c2\t15\t18\tpositive_1\t0\t-",
        "c2\t16\t20\tpositive_1\t0\t+",
    ]


def test_known_motifs_are_letters_and_matrices(tmp_path):
    path = tmp_path / "m.jaspar"
    path.write_text(">M1 one\nA [ 3 0 ]\nC [ 1 0 ]\nG [ 0 4 ]\nT [ 0 0 ]\n>M2\n1\n1\n1\n1\n")
    found = known_motifs(["TAN", str(path)])
    assert list(found) == ["TAN", "M1 one", "M2"]
    assert found["TAN"].argmax(1)[:2].tolist() == [3, 0]
    assert found["TAN"][2] == pytest.approx([0.25] * 4)
    assert found["M1 one"][0] == pytest.approx(np.array([3.2, 1.2, 0.2, 0.2]) / 4.8)
    assert known_motifs(None) == {} and list(known_motifs("TATAAT")) == ["TATAAT"]


def planted():
    """Sequences with a motif on either strand, and a soft best match on both strands as
    predictor."""
    random = np.random.default_rng(0)
    texts = []
    for number in range(300):
        letters = "".join(random.choice(list("ACGT"), 60))
        place = int(random.integers(10, 40))
        motif = MOTIF if number % 2 else REVERSED
        texts.append(letters[:place] + motif + letters[place + len(motif) :])
    weights = np.array([1.0, 1.4, 1.8, 2.2, 2.1, 1.7, 1.3, 0.9])[:, None]
    forward = weights * one_hot(DNATokenizer().encode(MOTIF))
    noise = random.normal(0, 0.1, (60, 4))  # contributions of both signs
    patterns = [forward, forward[::-1, ::-1]]

    def predict(sequences, columns=None):
        bases = np.stack([one_hot(ids) for ids in sequences]).astype(float)
        windows = np.lib.stride_tricks.sliding_window_view(bases, len(MOTIF), 1)
        scores = sum(np.exp(np.einsum("slbw,wb->sl", windows, each)).sum(1) for each in patterns)
        return (np.log(scores) + (bases * noise).sum((1, 2)))[None]

    return texts, predict


@pytest.mark.slow
def test_a_planted_motif_is_found_with_its_places_and_strands():
    pytest.importorskip("modiscolite", reason="extra explain: modisco-lite is not installed")
    texts, predict = planted()
    explain = Mutagenesis(predict)
    ids = [DNATokenizer().encode(text) for text in texts]
    effects = np.stack([explain(each)[0] for each in ids])
    bases = np.stack([one_hot(each) for each in ids])
    known = known_motifs(["TATAAT", "TTGACA", "GGCCAATCT"])
    found = discover(bases, hypothetical(effects), known)
    first = found[0]
    assert first["name"] == "positive_1" and first["match"] == "TTGACA" and first["E"] < 0.05
    forward = MOTIF in first["consensus"].upper()
    shown = MOTIF if forward else REVERSED
    shift = first["consensus"].upper().index(shown)
    assert len(first["sites"]) >= 50 and first["match_strand"] == "+-"[not forward]
    right = 0
    for number, start, end, strand in first["sites"]:
        assert end - start == len(first["consensus"]) == len(first["matrix"])
        here = REVERSED if (strand == "-") == forward else MOTIF
        low = start + shift if strand == "+" else end - shift - len(MOTIF)
        right += texts[number][low : low + len(MOTIF)] == here
    assert right == len(first["sites"])
    assert found == discover(bases, hypothetical(effects), known)


def test_sequences_shorter_than_a_window_have_no_motif(caplog):
    pytest.importorskip("modiscolite", reason="extra explain: modisco-lite is not installed")
    assert discover(np.zeros((3, 20, 4)), np.zeros((3, 20, 4)), {}) == []
    assert re.search("no motif found in 3 sequences", caplog.text)
