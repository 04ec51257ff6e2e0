"""Exact facts on windows of five bases: all orders and masks are enumerated."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Denoiser
from dnadiff.diffusion.likelihood.estimators import exact_nelbo
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.regions import Region, Rows
from dnadiff.genomics.variants.effects import Scorer, default_method
from dnadiff.genomics.variants.methods import (
    NUM_BASES,
    Block,
    LogProb,
    Masked,
    PairedWindow,
    Reading,
)
from dnadiff.genomics.variants.variant import Alleles, Edit, Saturation, Skipped
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.options.command import compose
from dnadiff.store.objects import build

SUBSTITUTIONS = [
    Edit("one", 2, "G", "T"),
    Edit("one", 0, "A", "C"),
    Edit("one", 1, "CG", "TT"),
    Edit("one", 1, "CGT", "GGA"),
]
INDELS = [
    Edit("one", 4, "", "AC"),
    Edit("one", 3, "TA", ""),
    Edit("one", 4, "A", "CCG"),
    Edit("one", 2, "GTA", "C"),
]
GENOME = "ACGTACGGT"
VOCAB = DNATokenizer().vocab


def llr(network, method, edits):
    at_sites = predicted(network, [(e.record, e.start) for e in edits])
    return method.llr(network, edits, at_sites)[0]


def predicted(network, sites, sites_per_window=None):
    return network.site_predictions(sites, sites_per_window).at(sites)


def autoregressive():
    torch.manual_seed(0)
    return CausalDenoiser(Mamba(VOCAB, d_model=8, n_layers=1)).eval()


def complemented(letters):
    return reverse_complement(letters)


@pytest.mark.parametrize("edit", SUBSTITUTIONS, ids=lambda e: f"{e.ref}>{e.alt}")
def test_every_method_gives_the_exact_ratio_of_a_consistent_model(
    edit, oracle, make_network, methods, log_p
):
    network = make_network(oracle, "ACGTA")
    other = "ACGTA"[: edit.start] + edit.alt + "ACGTA"[edit.end :]
    forward = log_p(oracle, other) - log_p(oracle, "ACGTA")
    reverse = log_p(oracle, complemented(other)) - log_p(oracle, complemented("ACGTA"))
    for name, method in methods.items():
        np.testing.assert_allclose(
            llr(network, method, [edit])[:, 0], [forward, reverse], atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("edit", INDELS, ids=lambda e: f"{e.ref}>{e.alt}")
def test_an_indel_is_the_ratio_of_two_windows_of_equal_length(
    edit, oracle, make_network, methods, log_p
):
    network = make_network(oracle, GENOME)
    pair = network.pair(edit, False)
    letters = [DNATokenizer().decode(ids) for ids in (pair.ref, pair.alt)]
    assert len(letters[0]) == len(letters[1]) == 5 and letters[0] in GENOME
    changed = GENOME[: edit.start] + edit.alt + GENOME[edit.end :]
    assert letters[1] in changed
    expected = log_p(oracle, letters[1]) - log_p(oracle, letters[0])
    for name in ("block", "window"):
        assert llr(network, methods[name], [edit])[0, 0] == pytest.approx(expected, abs=1e-6), name


def test_the_block_of_an_indel_is_the_conditional_ratio_of_equally_many_bases(
    oracle, make_network, methods
):
    network, edit = make_network(oracle, GENOME), Edit("one", 4, "", "A")
    pair = network.pair(edit, False)
    places = pair.aligned(1)
    assert (
        len(places[0]) == len(places[1]) == 3
    )  # a flank on each side, and the inserted base with the end base of REF

    def conditional(ids, place):
        rest = np.setdiff1d(np.arange(5), place)
        fits = (oracle.sequences[:, rest] == torch.from_numpy(ids[rest].astype(np.int64))).all(-1)
        same = (oracle.sequences == torch.from_numpy(ids.astype(np.int64))).all(-1)
        return math.log(oracle.joint[same].sum() / oracle.joint[fits].sum())

    expected = conditional(pair.alt, places[1]) - conditional(pair.ref, places[0])
    assert llr(network, methods["small block"], [edit])[0, 0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "edit", [SUBSTITUTIONS[0], SUBSTITUTIONS[2], INDELS[1]], ids=lambda e: f"{e.ref}>{e.alt}"
)
def test_whole_windows_have_the_difference_of_the_bounds_whatever_the_network(
    edit, inconsistent, make_network, methods
):
    network = make_network(inconsistent(), GENOME)
    pair = network.pair(edit, False)
    ids = torch.from_numpy(np.stack([pair.ref, pair.alt]).astype(np.int64))
    bounds = exact_nelbo(network.denoiser, network.process, ids)
    for name in ("block", "window"):
        assert llr(network, methods[name], [edit])[0, 0] == pytest.approx(
            float(bounds[0] - bounds[1]), abs=1e-9
        ), name
    if edit.kind == "SNVs":  # and what is masked alone is something else
        assert (
            abs(llr(network, methods["masked"], [edit])[0, 0] - float(bounds[0] - bounds[1])) > 1e-3
        )


@pytest.mark.parametrize(
    "edit", [SUBSTITUTIONS[0], SUBSTITUTIONS[3], *INDELS[1:3]], ids=lambda e: f"{e.ref}>{e.alt}"
)
def test_the_other_strand_of_the_genome_exchanges_the_strands(
    edit, inconsistent, make_network, methods
):
    here, there = (
        make_network(inconsistent(), GENOME),
        make_network(inconsistent(), complemented(GENOME)),
    )
    mirrored = Edit("one", len(GENOME) - edit.end, *(complemented(x) for x in (edit.ref, edit.alt)))
    for name, method in methods.items():
        if name != "masked" or not edit.surplus:
            np.testing.assert_allclose(
                llr(here, method, [edit])[:, 0],
                llr(there, method, [mirrored])[::-1, 0],
                atol=1e-9,
                err_msg=name,
            )


@pytest.mark.parametrize(
    ("method", "edit"),
    [
        (BLOCK := Block(block=4, num_orders=4), SUBSTITUTIONS[0]),
        (PAIRED := PairedWindow(num_draws=8), INDELS[1]),
        pytest.param(BLOCK, INDELS[1], marks=pytest.mark.slow),
        pytest.param(PAIRED, SUBSTITUTIONS[0], marks=pytest.mark.slow),
    ],
    ids=["block SNV", "window deletion", "block deletion", "window SNV"],
)
def test_the_error_is_the_spread_over_seeds(method, edit, inconsistent, make_network):
    network = [
        make_network(inconsistent(), GENOME, seed=seed, stranded=True, batch_size=256)
        for seed in range(200)
    ]
    values, variances = zip(
        *(method.difference(Reading(n, edit, np.zeros(4), False)) for n in network)
    )
    assert math.sqrt(np.mean(variances)) == pytest.approx(np.std(values, ddof=1), rel=0.2)


def test_a_block_shares_what_is_equal(inconsistent, make_network):
    # One order of five places with the variant at step r: one call for both alleles there, two for
    # each later step.
    network = make_network(inconsistent(), "ACGTA", batch_size=1, stranded=True)

    class Fixed(Block):
        def orders(self, count, draws):
            return np.array([[0, 1, 2, 3, 4], [2, 0, 1, 3, 4]])

    network.denoiser.calls = 0
    Fixed(block=10).llr(network, [SUBSTITUTIONS[0]], np.zeros((1, 1, NUM_BASES)))
    assert network.denoiser.calls == (1 + 2 * 2) + (1 + 2 * 4)


def test_blocks_are_smaller_around_substitutions(inconsistent, make_network):
    network = make_network(inconsistent(), GENOME, stranded=True)
    for edit, size in [(SUBSTITUTIONS[0], 4), (INDELS[1], 16)]:
        given, default = (llr(network, Block(block, 2), [edit]) for block in (size, None))
        np.testing.assert_array_equal(given, default)
    assert not np.array_equal(
        llr(network, Block(2, 2), [SUBSTITUTIONS[0]]),
        llr(network, Block(None, 2), [SUBSTITUTIONS[0]]),
    )


def test_several_alternatives_and_neighbors_cost_one_call_each(inconsistent, make_network):
    network = make_network(inconsistent(), GENOME, stranded=True, batch_size=1)
    network.denoiser.calls = 0
    found = predicted(network, [("one", 4)] * 3 + [("one", 5)])
    assert (
        network.denoiser.calls == 2
        and (found[0, 0] == found[0, 2]).all()
        and (found[0, 0] != found[0, 3]).any()
    )


@pytest.mark.parametrize("sites", [2, 4])
def test_distant_sites_of_a_local_network_can_share_a_window(sites, inconsistent, make_network):
    letters = "".join(np.random.default_rng(0).choice(list("ACGT"), 60))
    network = make_network(
        inconsistent(32, local=True), letters, window=32, sites_per_window=sites, batch_size=1
    )
    everywhere = [("one", site) for site in range(60)]
    network.denoiser.calls = 0
    several = predicted(network, everywhere)
    assert (
        network.denoiser.calls == 2 * {2: 32, 4: 16}[sites]
    )  # both strands; the last 60 - 48 sites fill windows in part
    np.testing.assert_allclose(several, predicted(network, everywhere, 1), atol=1e-12)


def test_effects_do_not_depend_on_batches_or_other_variants(inconsistent, make_network):
    edits, method = SUBSTITUTIONS + INDELS, default_method()
    whole = llr(make_network(inconsistent(), GENOME, batch_size=64), method, edits)
    small = llr(make_network(inconsistent(), GENOME, batch_size=1), method, edits[::-1])[:, ::-1]
    np.testing.assert_allclose(whole, small, atol=1e-12)


def test_n_stays_visible_and_at_a_site_there_is_no_value(inconsistent, make_network):
    network = make_network(inconsistent(), "ACNTACGGT", stranded=True)
    found = predicted(network, [("one", 2), ("one", 3)])
    assert np.isnan(found[0, 0]).all() and np.exp(found[0, 1]).sum() == pytest.approx(1)
    pair = network.pair(Edit("one", 3, "T", "G"), False)
    assert DNATokenizer().decode(pair.ref) == "CNTAC" and pair.aligned(None)[0].tolist() == [
        0,
        2,
        3,
        4,
    ]
    # An inserted base would be compared with an N at the end of the window: no value.
    blocked = make_network(inconsistent(), "ACGTANGGT", stranded=True)
    assert np.isnan(llr(blocked, Block(2, 2), [Edit("one", 3, "", "G")])).all()


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9])
def test_windows_at_the_ends_of_a_record(start, inconsistent, make_network):
    network = make_network(inconsistent(), GENOME)
    edits = [Edit("one", start, "", "GA")] + (
        [Edit("one", start, GENOME[start], "")] if start < 9 else []
    )
    for reverse in (False, True):
        for edit in edits:
            pair = network.pair(edit, reverse)
            assert len(pair.ref) == len(pair.alt) == 5 and len(set(pair.aligned(None)[1])) == 5
            assert DNATokenizer().decode(pair.ref) in (complemented(GENOME) if reverse else GENOME)


@pytest.mark.parametrize("length", [1, 4, 5, 6])
def test_every_method_scores_every_variant_of_a_short_record(length, inconsistent, make_network):
    letters, draw = GENOME[:length], np.random.default_rng(length)
    network = make_network(inconsistent(8, local=True), letters, window=16, sites_per_window=2)
    alleles = Alleles(network.reference, network.window)
    rows = list(Saturation([Region("one", 0, length)], network.reference, deletions=True))
    for _ in range(8):
        start, end = sorted(draw.integers(0, length + 1, 2).tolist())
        if (
            start < end
            and (alt := "".join(draw.choice(list("ACGT"), draw.integers(1, 6))))
            != letters[start:end]
        ):
            rows += Rows([("one", start + 1, letters[start:end], alt)])
    rows = [row for row in rows if max(len(row.ref), *map(len, row.alts)) <= 5]
    for method in (default_method(), Block(2, 2), PairedWindow(2)):
        scored = [
            each for chunk in Scorer(network, method, alleles, False).chunks(rows) for each in chunk
        ]
        values = [
            result.LLR
            for _, results in scored
            for result in results
            if not isinstance(result, Skipped)
        ]
        assert len(scored) == len(rows) and values and np.isfinite(values).all()
        skipped = {
            result.reason
            for _, results in scored
            for result in results
            if isinstance(result, Skipped)
        }
        assert skipped <= {"the record is too short for windows of equal length", "ALT equals REF"}


def test_masked_refuses_indels_and_each_method_the_other_kind_of_model():
    with pytest.raises(
        ValueError, match="alleles of equal length, and those of one:4 TA>- differ in length"
    ):
        Masked().check(INDELS[1])
    with pytest.raises(
        ValueError, match="cannot use a left-to-right model; set variant_method to log_prob"
    ):
        Masked().for_model(autoregressive())
    with pytest.raises(ValueError, match="cannot use a masked diffusion model"):
        LogProb(1).for_model(Denoiser(Caduceus(VOCAB, d_model=8, n_layers=1)))
    assert isinstance(default_method().for_model(autoregressive()), LogProb)


def test_draws_are_checked_where_they_are_used_by_the_name_that_users_set():
    # The error was "variant_method.autoregressive.num_draws 1 must be an integer of at least 2",
    # whatever the model.
    blocks = [BlockDenoiser(Caduceus(VOCAB, d_model=8, n_layers=1), size) for size in (1, 2)]
    for draws in (1, 3):
        method = build(
            compose("variants", ["checkpoint=x", "genome=g.fa", f"num_draws={draws}"])[
                "variant_method"
            ],
            trust=None,
        )
        for exact in (autoregressive(), blocks[0]):
            assert method.for_model(exact).num_draws == draws
        message = f"^num_draws {draws} must be even and at least 2: two draws per stratum"
        with pytest.raises(ValueError, match=message):
            method.for_model(blocks[1])
        with pytest.raises(ValueError, match=message):
            PairedWindow(draws)


def test_draws_are_as_many_in_python_as_on_the_command_line():
    config = compose("variants", ["checkpoint=x", "genome=g.fa"])
    assert LogProb().num_draws == PairedWindow().num_draws == config["num_draws"] == 64


def test_an_autoregressive_model_has_the_difference_of_log_p(make_network):
    denoiser = autoregressive()
    network = make_network(denoiser, GENOME)
    values, variance = LogProb().llr(network, [SUBSTITUTIONS[0], INDELS[0]], np.zeros((2, 2, 4)))
    pair = network.pair(INDELS[0], True)
    ids = torch.from_numpy(np.stack([pair.ref, pair.alt]).astype(np.int64))
    log_p = denoiser.next_log_probs(ids).gather(-1, ids[..., None]).double().sum((1, 2)).detach()
    assert (
        values[1, 1] == pytest.approx(float(log_p[1] - log_p[0]), abs=1e-4)
        and (variance == 0).all()
    )


def test_a_block_model_reads_both_windows_in_every_draw():
    block = SimpleNamespace(autoregressive=False, block_size=4)
    ar = SimpleNamespace(autoregressive=True, block_size=None)
    assert [LogProb(8).reads("SNVs", model) for model in (block, ar)] == [16, 2]
