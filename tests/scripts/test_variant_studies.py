"""The parts of scripts/studies/variants that can be checked without a trained model, and the
shortest studies on a tiny one."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "studies" / "variants"))
import coding
import measures
import methods
import page
import promoters
import scoring
import study

from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import UNKNOWN
from dnadiff.formats.sequences import Record, write_fasta
from dnadiff.genomics.markov import BackoffMarkov
from dnadiff.genomics.variants.variant import Sequences

LETTERS = "ACGTTGACCATGNAACGGTTAACCGGATATCC"


def test_snvs_of_a_gene_have_the_classes_of_the_genetic_code():
    found = coding.snvs_of_gene(
        "ATGTGGTTATAA", coding.Gene("a", "one", 100, 112, "+")
    )  # Met Trp Leu stop
    kinds = {(snv.position, snv.alt): snv.kind for snv in found}
    assert len(found) == 18 and {position for position, _ in kinds} == set(range(103, 109))
    assert kinds[104, "A"] == kinds[105, "A"] == "nonsense" and kinds[103, "A"] == "missense"
    assert (
        kinds[108, "G"] == kinds[106, "C"] == "synonymous"
        and kinds[107, "A"] == kinds[107, "G"] == "nonsense"
    )
    reverse = coding.snvs_of_gene(
        str(coding.reverse_complement("ATGTGGTTATAA")), coding.Gene("a", "one", 100, 112, "-")
    )
    complement = coding.COMPLEMENT
    mirrored = {
        s._replace(position=211 - s.position, ref=complement[s.ref], alt=complement[s.alt])
        for s in reverse
    }
    assert mirrored == set(found)


@pytest.fixture
def genes(tmp_path):
    """Two genes that share the bases 12 to 15, a gene of two parts, one of 10 bases, and one with
    two stops inside."""
    body = "ATGTGGTTAGCATAA" + "CATGTGGTAA" + "ATGTAATAATTGTAA"
    write_fasta(tmp_path / "x.fa", [Record("one", "", body.encode())])
    rows = [
        ("a", 0, 15),
        ("b", 12, 21),
        ("joined", 0, 3),
        ("joined", 6, 9),
        ("broken", 15, 25),
        ("pseudo", 25, 40),
    ]
    return coding.Genes(
        [coding.Gene(name, "one", *place, "+") for name, *place in rows],
        Genome(tmp_path / "x.fa"),
    )


def test_genes_of_several_parts_and_without_a_reading_frame_are_left_out(genes):
    assert [gene.name for gene in genes.frames] == ["a", "b"]
    assert {reason: [part.name for part in parts] for reason, parts in genes.left_out.items()} == {
        "several parts": ["joined", "joined"],
        "no open reading frame": ["broken", "pseudo"],
    }
    shared = np.flatnonzero(genes.overlaps["one"]).tolist()
    assert shared == [
        0,
        1,
        2,
        6,
        7,
        8,
        12,
        13,
        14,
        *range(15, 21),
    ]  # with the parts of the joined gene, and with the broken one


def test_snvs_in_overlaps_are_left_out_and_counted(genes):
    rows, counts = coding.chosen_snvs(genes, ("one", 0, 40), None, 100)
    assert {row.position for row in rows if row.gene == "a"} == {3, 4, 5, 9, 10, 11} and not [
        row for row in rows if row.gene == "b"
    ]
    assert (
        counts["SNVs in overlaps"] == 9 + 9 and counts["genes"] == 2
    )  # positions 6 to 8 of a, and 15 to 17 of b
    assert (counts["several parts"], counts["no open reading frame"]) == (1, 2)
    assert sum(counts[kind] for kind in coding.CLASSES) == len(rows) == 18
    few, _ = coding.chosen_snvs(genes, ("one", 0, 15), 1, 2)
    assert all(sum(row.kind == kind for row in few) == 2 for kind in ("missense", "nonsense"))


def test_codon_usage_is_the_log_ratio_of_counts(genes):
    snv = coding.SNV("a", "one", 3, "T", "A", "missense", "TGG>AGG")
    found = coding.codon_usage(
        genes, ("one", 0, 40), [snv]
    )  # genes a and b: ATG TGG TTA GCA, TAA CAT
    assert found[0] == pytest.approx(np.log(0.5) - np.log(1.5))


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
        both = [
            np.nansum(model.log_probs(x))
            + np.nansum(model.log_probs(measures.reverse_complement(x)))
            for x in (changed, bases)
        ]
        found = measures.markov_llr(
            model, order, genome, "one", np.array([position]), np.array([alt])
        )
        assert found[0] == pytest.approx((both[0] - both[1]) / 2, abs=1e-9) and UNKNOWN == 4


def test_measures_and_their_paired_intervals():
    draw = np.random.default_rng(0)
    truth, group = draw.random(300), np.arange(300) // 3
    scores = {"good": truth + 0.3 * draw.random(300), "noise": draw.random(300)}
    found = measures.bootstrap(
        lambda s, w: measures.auroc(s, truth > 0.5, w), scores, group, ["noise"], num_resamples=60
    )
    assert (
        found["good"]["value"] > 0.9 > found["noise"]["high"]
        and found["good"]["minus"]["noise"]["low"] > 0.2
    )
    assert found["noise"]["minus"] == {} and measures.shown(
        found["good"]["minus"]["noise"], sign=True
    ).startswith("+0.")
    assert measures.auroc(np.zeros(4), np.array([0, 1, 0, 1]), np.ones(4)) == 0.5
    assert measures.spearman(truth, truth**3, np.ones(300)) == pytest.approx(1)


def test_the_mean_over_sets_is_paired():
    found = measures.over_sets(
        {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([0.5, 1.5, 2.5])}, ["b"]
    )
    assert (
        found["a"]["value"] == 2
        and found["a"]["minus"]["b"] == {"value": 0.5, "low": 0.5, "high": 0.5}
        and found["b"]["minus"] == {}
    )
    assert found["a"]["high"] - 2 == pytest.approx(
        4.302653 / np.sqrt(3), rel=1e-6
    )  # Student's t with two degrees of freedom
    assert (
        measures.shown(
            measures.over_sets({"a": np.array([0.25])}, [])["a"] | {"low": None, "high": None}
        )
        == "0.250 (- to -)"
    )


def test_a_calibrated_error_has_the_ratio_one():
    draw = np.random.default_rng(0)
    found = methods.ratio(draw.normal(0, 2, 400), np.full(400, 2.0))
    assert found["low"] < 1 < found["high"] and found["value"] == pytest.approx(1, abs=0.1)
    assert methods.ratio(draw.normal(0, 2, 400), np.full(400, 1.0))["high"] < 0.6


def test_agreement_separates_noise_from_disagreement():
    draw = np.random.default_rng(0)
    truth, noise = draw.normal(0, 3, 1000), draw.normal(0, 4, 1000)
    found = methods.agreement(truth, truth + 0.5 + noise, np.full(1000, 16.0), 16.0)
    assert found["difference"]["low"] < -0.5 < found["difference"]["high"] and found["correlation"][
        "value"
    ] == pytest.approx(0.6, abs=0.05)
    assert (
        found["correlation_without_noise"] == pytest.approx(1, abs=0.08)
        and found["sd_of_difference_without_noise"] < 1
    )


def test_the_weight_matrix_finds_the_consensus():
    spaced = "G" * 20 + "TTGACA" + "C" * 17 + "TATAAT" + "G" * 20
    assert promoters.sigma70_score(spaced) == pytest.approx(12 * np.log(0.7 / 0.25))
    assert promoters.sigma70_score(spaced.replace("C" * 17, "C" * 20)) < promoters.sigma70_score(
        spaced
    )
    assert promoters.sigma70_score(spaced[:40]) < 0


@pytest.fixture
def subject(trained):
    return scoring.Subject(trained, trained.parent / "tiny.fa")


def test_common_masks_give_equal_sequences_equal_scores(subject):
    letters = ["ACGTTGAACGTTGACC", "ACGTTGAACGTTGACA", "ACGTTGAACGTTGACC"]
    found = promoters.log_likelihoods(
        subject.model, letters, 4, 0, 2
    )  # the third is in another batch
    assert found[0] == pytest.approx(found[2], abs=1e-4) and (found < 0).all()


def test_pieces_hold_for_one_model_and_one_input(subject, tmp_path):
    options = argparse.Namespace(quick=False)
    kept = subject.kept(options, tmp_path, region="one")
    kept.keep("a", {"value": 1})
    assert "a" in subject.kept(options, tmp_path, region="one") and "a" not in subject.kept(
        options, tmp_path, region="two"
    )
    next(subject.model.denoiser.parameters()).data.add_(1e-3)
    stale = subject.kept(options, tmp_path, region="one")
    assert "a" not in stale and "a" in kept
    with pytest.raises(study.NotYet):
        stale["a"]


def test_scores_are_those_of_the_model_and_are_resumed(subject, tmp_path):
    kept = subject.kept(argparse.Namespace(quick=False), tmp_path)
    rows = methods.random_variants(subject.genome, subject.part("valid"), 5, indels=False)
    found = subject.scores(kept, "x", rows)
    expected = subject.model.variants(rows, subject.genome)
    np.testing.assert_allclose(found["LLR"], expected["LLR"], atol=1e-5)
    with scoring.windows_read(subject.model) as windows:
        assert len(subject.scores(kept, "x", rows)) == 5
    assert not windows  # the finished file is read
    with scoring.windows_read(subject.model) as windows:
        subject.scores(kept, "x", rows, resume=False)
    assert sum(windows) == 10  # both strands


def test_the_study_of_methods_runs_and_resumes(trained, tmp_path, monkeypatch, capsys):
    genome = trained.parent / "tiny.fa"
    args = [
        f"--checkpoint={trained}",
        f"--genome={genome}",
        f"--output={tmp_path}",
        f"--collect={tmp_path / 'x.json'}",
        "--quick",
    ]
    monkeypatch.setattr(
        scoring, "configure_process", lambda: None
    )  # it chooses threads for the whole process
    methods.main(args)
    first = capsys.readouterr().out
    assert "`window` over `block=16`" in first and "`block=4`" in first and "| 8 | 8 |" in first
    files = {path: path.read_bytes() for path in (tmp_path / "quick").glob("*.json")}
    methods.main(args)
    assert {path: path.read_bytes() for path in files} == files
    collected = json.loads((tmp_path / "x.json").read_text())
    assert {f"{name}.json" for name in (*collected, "sites_1")} == {path.name for path in files} - {
        path.name for path in files if path.name.endswith(".tsv.json")
    }


def test_the_page_has_the_numbers_of_the_tables():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text


def test_a_table_that_was_not_measured_says_so(tmp_path):
    (tmp_path / "variants_methods.json").write_text("{}")
    found = page.filled(
        "<!-- table coding -->\nold\n<!-- end -->\n<!-- table sites -->\n<!-- end -->", tmp_path
    )
    assert "Not measured." in found and "| sites per window |" in found and "old" not in found
