"""Percentiles among random SNVs, and the calibration of indels, against brute force."""

import json
import random

import numpy as np
import pytest

from dnadiff.data.alignment import Alignment
from dnadiff.formats.regions import Region, Rows
from dnadiff.genomics.variants.effects import Scorer
from dnadiff.genomics.variants.methods import AlignedGenome, VariantMethod
from dnadiff.genomics.variants.neutral import (
    FILE_NAME,
    NUM_INDELS,
    kind_of,
    random_places,
    random_variants,
)
from dnadiff.genomics.variants.phylogeny import Phylogeny
from dnadiff.genomics.variants.variant import Alleles, Edit, Saturation, Sequences

LETTERS = "".join(random.Random(2).choices("ACGT", k=300))
RUNS = "".join(
    "".join(random.Random(n).choices("ACGT", k=9)) + "ACGT"[n % 4] * (4 + n % 5) for n in range(400)
)


class Known(VariantMethod):
    """A score that is a function of the variant."""

    name = "known"

    def llr(self, network, edits, at_sites):
        values = [len(e.alt) - 3.0 * len(e.ref) + np.sin(e.start) for e in edits]
        return np.tile(values, (2, 1)), np.full((2, len(edits)), np.nan)


def effects(scorer, rows):
    return [each for chunk in scorer.chunks(rows) for _, found in chunk for each in found]


def aligned(tmp_path, make_alignment, letters=LETTERS):
    reference = Sequences({"one": letters[:170], "two": letters[170:]})
    make_alignment(tmp_path / "g.aln", {"one": letters[:170], "two": letters[170:]})
    return AlignedGenome(reference, Alignment(tmp_path / "g.aln"))


def scorer_of(network, method, folder, percentile=False, calibrate=False):
    scorer = Scorer(network, method, Alleles(network.reference, network.window))
    scorer.compare(folder / "checkpoints" / "last.ckpt", percentile, calibrate)
    return scorer


def test_the_percentile_is_the_rank_among_the_snvs_with_the_same_change(tmp_path, make_alignment):
    network = aligned(tmp_path, make_alignment)  # so short that all of its SNVs are drawn
    regions = [Region("one", 0, 170), Region("two", 0, 130)]
    rows = list(Saturation(regions, network.reference))
    scorer = scorer_of(network, Phylogeny(), tmp_path, percentile=True)
    assert scorer.columns[-2:] == ["percentile", "percentile_SE"]
    found = effects(scorer, rows)
    changes = [f"{row.ref}>{alt}" for row in rows for alt in row.alts]
    for one, change in zip(found, changes):
        same = [x.LLR for x, other in zip(found, changes) if other == change and x.LLR == x.LLR]
        below = sum(x < one.LLR for x in same) + sum(x == one.LLR for x in same) / 2
        n = len(same)
        if one.LLR != one.LLR:
            assert np.isnan(one.percentile)
            continue
        assert one.percentile == pytest.approx(100 * below / n)
        p = (below + 1) / (n + 2)
        assert one.percentile_SE == pytest.approx(100 * (p * (1 - p) / (n + 3)) ** 0.5)
    assert len({*changes}) == 12 and sum(np.isnan(x.percentile) for x in found) == 3 * 60


def test_random_snvs_are_scored_once_for_each_model_genome_and_alignment(tmp_path, make_alignment):
    network, rows = aligned(tmp_path, make_alignment), Rows([("one", 2, LETTERS[1], "ACGT")])
    rows = list(Saturation([Region("one", 1, 2)], network.reference))
    first = effects(scorer_of(network, Phylogeny(), tmp_path, True), rows)
    file = tmp_path / FILE_NAME
    content = json.loads(file.read_text())
    ((key, part),) = content.items()
    assert part["settings"]["alignment"] == network.alignment.identity
    part[f"{rows[0].ref}>{rows[0].alts[0]}"] = [-100.0, 100.0, 100.0]
    file.write_text(json.dumps(content))
    found = effects(scorer_of(network, Phylogeny(), tmp_path, True), rows)
    assert found[0].percentile == pytest.approx(100 / 3)
    assert found[1].percentile == first[1].percentile
    make_alignment(tmp_path / "g.aln", {"one": LETTERS[:170], "two": LETTERS[170:]}, seed=9)
    other = AlignedGenome(network.reference, Alignment(tmp_path / "g.aln"))
    effects(scorer_of(other, Phylogeny(), tmp_path, True), rows)
    assert len(json.loads(file.read_text())) == 2 and key in json.loads(file.read_text())


KINDS = [
    (Edit("one", 5, "", "A"), "insertion of 1"),
    (Edit("one", 5, "AC", "", shifts=2), "deletion of 2"),
    (Edit("one", 5, "A", "", shifts=2), "deletion of 1"),
    (Edit("one", 5, "A", "", shifts=3), "deletion of 1 in a homopolymer run"),
    (Edit("one", 5, "", "CC", shifts=4), "insertion of 2 in a homopolymer run"),
    (Edit("one", 5, "ACG", "T"), "deletion of 2"),
    (Edit("one", 5, "A", "T"), "A>T"),
]


@pytest.mark.parametrize(("edit", "kind"), KINDS, ids=[kind for _, kind in KINDS])
def test_random_variants_are_of_one_kind(edit, kind):
    assert kind_of(edit) == kind
    if not edit.surplus:
        return
    alleles = Alleles(Sequences({"x": RUNS[:2000], "y": RUNS[2000:] + "NNN"}), 64)
    edits = random_variants(alleles, edit)
    assert len({*edits}) == len(edits) == NUM_INDELS
    assert {kind_of(each) for each in edits} == {kind} and {e.record for e in edits} == {"x", "y"}
    assert not any(each.differs for each in edits)
    assert edits == random_variants(alleles, edit)  # always the same ones


def test_random_places_are_those_of_all_records():
    alleles = Alleles(Sequences({"x": "ACG", "y": "A", "z": "ACGTA"}), 4)
    every = [("x", 0), ("x", 1), ("x", 2), ("y", 0), *(("z", n) for n in range(5))]
    assert sorted(random_places(alleles, 200, "test")) == every
    drawn = [random_places(alleles, 1, f"test {n}")[0] for n in range(900)]
    assert all(60 < drawn.count(place) < 150 for place in every)  # 100 each


def test_the_mean_of_random_variants_is_subtracted(tmp_path, make_network, inconsistent):
    network = make_network(inconsistent(local=True), RUNS, window=64)
    scorer = scorer_of(network, Known(), tmp_path, calibrate=True)
    rows = Rows([("one", 9, RUNS[8:10], RUNS[8]), ("one", 30, RUNS[29], "ACGT"[RUNS[29] == "A"])])
    deletion, snv = effects(scorer, rows)
    alleles = scorer.alleles
    edit = alleles.edits(next(iter(rows)))[0][0]
    indels = random_variants(alleles, edit)
    values = Known().llr(network, indels, None)[0][0]
    assert deletion.LLR_calibrated == pytest.approx(deletion.LLR - values.mean(), abs=1e-5)
    assert snv.LLR_calibrated == pytest.approx(snv.LLR, abs=1e-6)
    bias = scorer.neutral.bias(edit)
    assert bias["indels"] == NUM_INDELS
    assert bias["bias_before"] == pytest.approx(values.mean(), abs=1e-6)
    after = values[::2].mean() - values[1::2].mean()
    assert bias["bias_after"] == pytest.approx(after, abs=1e-6)
    assert abs(bias["bias_after"]) < 4 * bias["bias_after_SE"] < abs(bias["bias_before"])


def test_a_genome_with_few_indels_of_a_kind_calibrates_none(tmp_path, make_network, inconsistent):
    network = make_network(inconsistent(), "ACGT" * 5 + "AAAAA" + "ACGT" * 5, window=5)
    scorer = scorer_of(network, Known(), tmp_path, calibrate=True)
    (found,) = effects(scorer, Rows([("one", 21, "AA", "A")]))
    assert np.isnan(found.LLR_calibrated) and not np.isnan(found.LLR)
    edit = Edit("one", 21, "A", "", shifts=5)
    assert scorer.neutral.bias(edit)["indels"] == 1
