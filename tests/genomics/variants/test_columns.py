"""Networks that read columns of an alignment. One whose own logits are zero predicts what the
columns say, so every number is known."""

import random

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import Alignment
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Denoiser
from dnadiff.diffusion.vocab import COMPLEMENT
from dnadiff.formats.nucleotides import ids_of, reverse_complement
from dnadiff.genomics.variants.effects import Scorer, default_method, predicted_effects
from dnadiff.genomics.variants.methods import AlignedGenome, Block, LogProb, Masked, PairedWindow
from dnadiff.genomics.variants.phylogeny import Phylogeny
from dnadiff.genomics.variants.variant import Alleles, Edit
from dnadiff.genomics.variants.work import dependency
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.transformer import Transformer
from dnadiff.networks.columns import PosteriorColumns

VOCAB = DNATokenizer().vocab
LETTERS = "".join(random.Random(8).choices("ACGT", k=41))
SUBSTITUTIONS = [
    Edit("one", 0, LETTERS[0], "C" if LETTERS[0] != "C" else "A"),
    Edit("one", 20, LETTERS[20], "C" if LETTERS[20] != "C" else "A"),
    Edit("one", 22, LETTERS[22:25], reverse_complement(LETTERS[22:25])[::-1]),
]
INDELS = [
    Edit("one", 13, "", "GAC"),
    Edit("one", 17, LETTERS[17:20], ""),
    Edit("one", 26, LETTERS[26:29], "C"),
    Edit("one", 39, LETTERS[39:41], ""),
]
METHODS = {
    "masked": Masked(),
    "block": Block(block=6),
    "window": PairedWindow(num_draws=2),
    "log_prob": LogProb(),
}


def network_of(kind, reads=PosteriorColumns, **options):
    torch.manual_seed(0)
    made = kind(VOCAB, d_model=16, n_layers=2, **options)
    made.read_columns(reads)
    return made.double().eval()


@pytest.fixture
def world(make_network, make_alignment, tmp_path):
    """world(denoiser): a network on a genome of one record, and its columns."""

    def make(denoiser, **settings):
        columns = make_alignment(tmp_path / "g.aln", {"one": LETTERS}).astype(np.float64)
        alignment = Alignment(tmp_path / "g.aln")
        settings = {"window": 9, "alignment": alignment, **settings}
        return make_network(denoiser, LETTERS, **settings), columns

    return make


def ratios(network, method, edits):
    found = network.site_predictions([(e.record, max(e.start, 0)) for e in edits])
    empty = np.full((len(network.strands), len(edits), 4), np.nan)
    at_sites = empty if method.for_left_to_right else found.at([(e.record, e.start) for e in edits])
    return method.llr(network, edits, at_sites)[0]


@pytest.mark.parametrize("method", ["masked", "block", "window"])
def test_a_network_that_adds_nothing_scores_as_the_phylogeny(method, world):
    network, columns = world(Denoiser(network_of(DiT)))
    columns[::5, :4] = np.log(1 / 4)  # where nothing is aligned, the network has no preference
    expected = [
        sum(
            columns[edit.start + i, "ACGT".index(b)] - columns[edit.start + i, "ACGT".index(a)]
            for i, (a, b) in enumerate(zip(edit.ref, edit.alt))
        )
        for edit in SUBSTITUTIONS
    ]
    found = ratios(network, METHODS[method], SUBSTITUTIONS)
    if method == "window":  # an estimate: of the same mean
        found = ratios(network, PairedWindow(num_draws=400), SUBSTITUTIONS)
        np.testing.assert_allclose(found, [expected] * 2, atol=1.5)
    else:
        np.testing.assert_allclose(found, [expected] * 2, atol=1e-3)
        reader = AlignedGenome(network.reference, network.alignment)
        alone = ratios(reader, Phylogeny(), SUBSTITUTIONS)
        known = ~np.isnan(alone[0])
        np.testing.assert_allclose(found[:, known], alone[:, known], atol=1e-3)
        assert known.tolist() == [False, False, True]


def sums(pair, places):
    """log p of the bases of both windows at some places, by their columns."""
    found = []
    for ids, columns, where in zip((pair.ref, pair.alt), pair.columns, places):
        log_p = np.where(columns[:, 9:] > 0, columns[:, :4], np.log(1 / 4))
        found.append(log_p[where, np.asarray(ids)[where] - 7].sum())
    return found[1] - found[0]


@pytest.mark.parametrize("edit", INDELS, ids=lambda e: f"{e.ref}>{e.alt}")
def test_windows_of_an_indel_have_the_columns_of_their_bases(edit, world):
    network, columns = world(Denoiser(network_of(DiT)))
    for reverse in (False, True):
        pair = network.pair(edit, reverse)
        for ids, rows, start, size in zip(pair[:2], pair.columns, pair.starts, pair.sizes):
            kept = 0 if reverse else min(pair.sizes)
            letters = DNATokenizer().decode(ids)
            rows = rows[::-1, COMPLEMENT] if reverse else rows
            letters = reverse_complement(letters) if reverse else letters
            start = len(ids) - start - size if reverse else start
            if size != len(edit.ref):
                assert not rows[start + kept : start + size - (reverse and min(pair.sizes))].any()
            first = edit.start - start
            np.testing.assert_array_equal(rows[:start], columns[first : edit.start])
            after = edit.end + len(ids) - start - size
            np.testing.assert_array_equal(rows[start + size :], columns[edit.end : after])
            assert letters[:start] == LETTERS[first : edit.start]
            if size == len(edit.ref):
                np.testing.assert_array_equal(rows[:, 9], columns[first:after, 9])
        found = network.predictions(pair, [0, 1], [(np.ones(9, bool), np.ones(9, bool))] * 2)
        ((_, _, log_p),) = found
        log_p = log_p[:, 7:11].view(2, 9, 4)
        for rows, values in zip(pair.columns, log_p):
            expected = np.where(rows[:, 9:] > 0, rows[:, :4], np.log(1 / 4))
            np.testing.assert_allclose(values, expected, atol=2e-3)


@pytest.mark.parametrize("edit", INDELS, ids=lambda e: f"{e.ref}>{e.alt}")
def test_an_indel_is_the_sum_of_the_columns_of_both_blocks(edit, world):
    network, _ = world(Denoiser(network_of(DiT)))
    causal, _ = world(CausalDenoiser(network_of(Transformer, n_heads=2)))
    blocks, _ = world(BlockDenoiser(network_of(DiT), 1))
    found = ratios(network, Block(block=6), [edit])
    whole = [ratios(each, LogProb(), [edit])[:, 0] for each in (causal, blocks)]
    for strand in (False, True):
        pair = network.pair(edit, strand)
        assert found[int(strand), 0] == pytest.approx(sums(pair, pair.aligned(3)), abs=1e-2)
        expected = sums(pair, [np.arange(9)] * 2)
        np.testing.assert_allclose([each[int(strand)] for each in whole], expected, atol=1e-2)


class Mirrored:
    """The other strand of a genome, with its alignment."""

    def __init__(self, alignment):
        self.alignment = alignment

    def columns(self, record, start, end, reverse=False):
        size = len(LETTERS)
        return self.alignment.columns(record, size - end, size - start, not reverse)


@pytest.mark.parametrize("edit", [*SUBSTITUTIONS, *INDELS[:3]], ids=lambda e: f"{e.ref}>{e.alt}")
def test_both_strands_read_their_own_columns(edit, world, make_network):
    made = network_of(Caduceus)
    with torch.no_grad():
        for p in made.parameters():
            p += 0.3 * torch.randn_like(p)
    network, _ = world(Denoiser(made))
    records = {"one": reverse_complement(LETTERS)}
    object.__setattr__(
        other := make_network(Denoiser(made), records, window=9),
        "alignment",
        Mirrored(network.alignment),
    )
    start = len(LETTERS) - edit.end
    ref, alt = (reverse_complement(each) for each in (edit.ref, edit.alt))
    turned = edit._replace(start=start, ref=ref, alt=alt)
    method = Block(block=4)
    method.orders = lambda count, draws: np.arange(count)[None].repeat(2, 0)
    one, two = (ratios(*each) for each in ((network, method, [edit]), (other, method, [turned])))
    np.testing.assert_allclose(one[:, 0], two[::-1, 0], atol=1e-6)
    assert abs(one[0, 0] - one[1, 0]) > 1e-3
    tables = [
        [row.split("\t")[3:] for row in dependency(*each, 3).decode().split("\n")[1:-1]]
        for each in ((network, edit), (other, turned))
    ]
    here, there = (np.array(each, float) for each in tables)
    np.testing.assert_allclose(here, there[::-1, ::-1], atol=2e-6)
    alleles = Alleles(network.reference, 9), Alleles(other.reference, 9)
    effects = [
        Scorer(each, default_method(), alleles[number], True)
        for number, each in enumerate((network, other))
    ]
    both = []
    for scorer, each in zip(effects, (edit, turned)):
        scorer.begin_block([each], True)
        both.append(scorer._effects([each])[0])
    assert pytest.approx(both[1].L2) == both[0].L2 and both[0].L2 > 0
    if edit.ref:
        assert both[0].depth == both[1].depth


def test_sites_in_one_window_have_their_own_columns(world):
    network, columns = world(Denoiser(network_of(DiT)), window=32)
    sites = [("one", place) for place in range(41)]
    columns[::5, :4] = np.log(1 / 4)
    for most in (1, 4):
        found = network.site_predictions(sites, most).at(sites)
        np.testing.assert_allclose(found, [columns[:, :4]] * 2, atol=2e-3)
    assert ids_of("ACGT").tolist() == [7, 8, 9, 10]


def test_predictions_of_both_alleles_read_their_own_columns(world):
    network, _ = world(Denoiser(network_of(DiT)))
    seen = []

    def predict(windows, columns):
        seen.append((windows, columns))
        return np.array([[each[:, 9].sum() for each in columns]])

    alleles = Alleles(network.reference, 9)
    edits = [SUBSTITUTIONS[1], INDELS[0]]
    found = predicted_effects(predict, alleles, network.alignment, edits)
    ((windows, columns),) = seen
    pairs = [network.pair(edit, False) for edit in edits]
    expected = [*(p.columns[0] for p in pairs), *(p.columns[1] for p in pairs)]
    assert all(np.array_equal(*each) for each in zip(columns, expected))
    assert all(np.array_equal(*each) for each in zip(windows, [p.ref for p in pairs]))
    assert found[0].difference == 0 and found[1].difference != 0
