"""The parts of scripts/variants that can be checked without a trained model, and the shortest study on a tiny one."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "variants"))
import coding
import measures
import methods
import promoters

from dnadiff.kmers import UNKNOWN
from dnadiff.markov.model import BackoffMarkov
from dnadiff.variant_effect.variant import Sequences

LETTERS = "ACGTTGACCATGNAACGGTTAACCGGATATCC"


def test_snvs_of_a_gene_have_the_classes_of_the_genetic_code():
    found = coding.snvs_of_gene("ATGTGGTTATAA", 100, 112, "+")  # Met Trp Leu stop
    kinds = {(position, alt): kind for position, _, alt, kind, _ in found}
    assert len(found) == 18 and {position for position, _ in kinds} == set(range(103, 109))
    assert kinds[104, "A"] == kinds[105, "A"] == "nonsense" and kinds[103, "A"] == "missense"
    assert kinds[108, "G"] == kinds[106, "C"] == "synonymous" and kinds[107, "A"] == kinds[107, "G"] == "nonsense"
    reverse = coding.snvs_of_gene(str(coding.reverse_complement("ATGTGGTTATAA")), 100, 112, "-")
    mirrored = {(211 - p, coding.COMPLEMENT[r], coding.COMPLEMENT[a], k, c) for p, r, a, k, c in reverse}
    assert mirrored == set(found)


@pytest.mark.parametrize("order", [0, 2])
def test_markov_scores_are_differences_of_whole_windows(order):
    genome = Sequences({"one": LETTERS})
    draw = np.random.default_rng(0)
    model = BackoffMarkov.fit([draw.integers(0, 4, 500).astype(np.uint8)], order)
    bases = np.array(["ACGTN".index(x) for x in LETTERS], np.uint8)
    for position in (0, 9, 14, 31):
        alt = (bases[position] + 1) % 4
        changed = bases.copy()
        changed[position] = alt
        both = [np.nansum(model.log_probs(x)) + np.nansum(model.log_probs(measures.reverse_complement(x))) for x in (changed, bases)]
        found = measures.markov_llr(model, order, genome, "one", np.array([position]), np.array([alt]))
        assert found[0] == pytest.approx((both[0] - both[1]) / 2, abs=1e-9) and UNKNOWN == 4


def test_measures_and_their_paired_intervals():
    draw = np.random.default_rng(0)
    truth, group = draw.random(300), np.arange(300) // 3
    scores = {"good": truth + 0.3 * draw.random(300), "noise": draw.random(300)}
    found = measures.bootstrap(lambda s, w: measures.auroc(s, truth > 0.5, w), scores, group, "noise")
    assert found["good"]["value"] > 0.9 > found["noise"]["high"] and found["good"]["difference_low"] > 0.2
    assert found["noise"]["difference"] == found["noise"]["difference_high"] == 0
    assert measures.auroc(np.zeros(4), np.array([0, 1, 0, 1]), np.ones(4)) == 0.5
    assert measures.spearman(truth, truth**3, np.ones(300)) == pytest.approx(1)


def test_the_weight_matrix_finds_the_consensus():
    spaced = "G" * 20 + "TTGACA" + "C" * 17 + "TATAAT" + "G" * 20
    assert promoters.sigma70_score(spaced) == pytest.approx(12 * np.log(0.7 / 0.25))
    assert promoters.sigma70_score(spaced.replace("C" * 17, "C" * 20)) < promoters.sigma70_score(spaced)
    assert promoters.sigma70_score(spaced[:40]) < 0


def test_the_study_of_methods_runs_and_resumes(trained, tmp_path, monkeypatch, capsys):
    genome = trained.parent / "tiny.fa"
    args = ["methods.py", f"--checkpoint={trained}", f"--genome={genome}", f"--output={tmp_path}", "--quick"]
    monkeypatch.setattr(sys, "argv", args)
    methods.main()
    first = capsys.readouterr().out
    assert "window_over_block" in first and "| sites_16" in first
    files = {path: path.read_bytes() for path in (tmp_path / "quick").glob("*.json")}
    methods.main()
    assert len(files) == 6 and {path: path.read_bytes() for path in files} == files
