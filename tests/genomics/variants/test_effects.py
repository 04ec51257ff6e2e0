"""Which network calls are made for many variants, and in which order their effects come."""

import tracemalloc

import numpy as np
import pytest

from dnadiff.formats.regions import Region, Rows
from dnadiff.genomics.variants.effects import Audit, Scorer, default_method, divided
from dnadiff.genomics.variants.methods import Block
from dnadiff.genomics.variants.variant import Alleles, Edit, Saturation

WINDOW = 64


@pytest.fixture
def letters():
    return "".join(np.random.default_rng(0).choice(list("ACGT"), 1600))


@pytest.fixture
def make_scorer(inconsistent, make_network, letters):
    """make_scorer(sites_per_window) of a network that reads the neighbors of a site alone, on one
    strand."""

    def make(sites_per_window=8, local=True):
        network = make_network(
            inconsistent(WINDOW, local=local),
            letters,
            window=WINDOW,
            sites_per_window=sites_per_window,
            stranded=True,
            batch_size=4,
        )
        return Scorer(network, default_method(), Alleles(network.reference, WINDOW))

    return make


def saturated(scorer, start=200, size=512):
    return Saturation([Region("one", start, start + size)], scorer.network.reference)


def ratios(chunks):
    return [
        (row.pos, alt, effect.LLR)
        for chunk in chunks
        for row, results in chunk
        for alt, effect in zip(row.alts, results)
    ]


def test_saturation_needs_a_call_for_as_many_sites_as_share_a_window(make_scorer):
    one, several = make_scorer(1), make_scorer(8)
    one.chunk = several.chunk = 30  # ten sites; a window has eight
    alone, together = (ratios(scorer.chunks(saturated(scorer))) for scorer in (one, several))
    assert [each[:2] for each in together] == [each[:2] for each in alone] and len(alone) == 3 * 512
    np.testing.assert_allclose(
        [each[2] for each in together], [each[2] for each in alone], atol=1e-9
    )
    compared = 16  # calls of four windows for the 64 sites that are predicted alone as well
    assert (
        several.network.denoiser.calls - compared <= 512 / 8 / 4 * 1.2
        and one.network.denoiser.calls >= 512 / 4
    )
    assert several.audit.sites == 64 and several.audit.shared == 512 and several.audit.rms < 1e-9


def snvs(reference, *positions):
    """An SNV at each position, counted from 1."""
    bases = ["ACGT"[reference.window("one", pos - 1, pos)[0] - 7] for pos in positions]
    return Rows(
        [("one", pos, base, "A" if base != "A" else "C") for pos, base in zip(positions, bases)]
    )


def test_the_error_is_that_of_sites_that_shared_a_window(make_scorer):
    scorer = make_scorer(8, local=False)
    found = ratios(scorer.chunks(snvs(scorer.network.reference, 100, 300, 310, 500)))
    assert scorer.audit.shared == scorer.audit.sites == 2 and scorer.audit.rms > 0.01
    single = make_scorer(1, local=False)
    exact = ratios(single.chunks(snvs(scorer.network.reference, 100, 300, 310, 500)))
    differs = [abs(a[2] - b[2]) > 1e-9 for a, b in zip(found, exact)]
    assert differs == [False, True, True, False]
    apart = make_scorer(8, local=False)
    list(apart.chunks(snvs(scorer.network.reference, 100, 300, 500)))
    assert apart.audit == Audit()


@pytest.mark.parametrize("sites_per_window", [1, 8])
def test_a_part_that_is_done_is_left_out_and_the_rest_is_the_same(sites_per_window, make_scorer):
    whole, rest = (
        make_scorer(sites_per_window, local=False),
        make_scorer(sites_per_window, local=False),
    )
    for scorer in (whole, rest):
        scorer.chunk, scorer.look_ahead = 30, 6  # blocks of 128 sites
    expected = ratios(whole.chunks(saturated(whole, size=150)))
    for done in (10, 130, 150):
        rest.num_scored = 0
        assert (
            ratios(rest.chunks(saturated(rest, size=150), done)) == expected[3 * done :]
        )  # to the last bit
        assert rest.num_scored == len(expected) - 3 * done


def test_rows_are_held_up_to_a_number_of_characters(make_scorer):
    rows = [row._replace(text="x" * 40) for row in saturated(make_scorer(1), size=7)]
    assert [len(part) for part in divided(rows, 1024, largest_text=100)] == [3, 3, 1]


def test_the_memory_of_a_block_does_not_grow_with_its_network_calls(inconsistent, make_network):
    network = make_network(
        inconsistent(local=True), "ACGTTGCA" * 250, window=1200, stranded=True, batch_size=4
    )
    edit = Edit("one", 500, "", "ACGTA" * 20)
    tracemalloc.start()
    Block(block=4, num_orders=2).llr(network, [edit], np.zeros((1, 1, 4)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2 * 104 * 1200 / 2  # half of the masks of all calls
