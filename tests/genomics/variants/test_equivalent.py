"""Indels that can be written in several ways: each spelling is one edit, with the same numbers."""

import itertools

import numpy as np
import pandas
import pytest

import dnadiff
from dnadiff.formats.nucleotides import ids_of
from dnadiff.formats.regions import Region, Row, open_source
from dnadiff.genomics.variants.effects import Scorer
from dnadiff.genomics.variants.methods import Block, PairedWindow, Reading
from dnadiff.genomics.variants.variant import Alleles, Edit, Saturation, Sequences, normalized, pair

REPEATS = "AACACACGGGGGNNTTAGAGAGATTTCCAA"  # at both ends, and beside N


def edits_of(letters, rows, window=40):
    alleles = Alleles(Sequences({"one": letters}), window)
    return [alleles.edits(Row("row", "one", p, ".", r, (a,)))[0][0] for p, r, a in rows]


def spellings(letters, longest=4):
    """Every row of up to so many bases of a record whose alleles differ in length, by the sequence
    that it makes."""
    found = {}
    for start, size in itertools.product(range(len(letters)), range(1, longest + 1)):
        ref = letters[start : start + size]
        if len(ref) == size and "N" not in ref:
            for alt in {
                *(ref[:i] + ref[j:] for i in range(size) for j in range(i + 1, size + 1)),
                *(
                    ref[:i] + extra + ref[i:]
                    for i in range(size + 1)
                    for extra in ("A", "GG", "AC", "TG")
                ),
            } - {""}:
                result = letters[:start] + alt + letters[start + size :]
                found.setdefault(result, []).append((start + 1, ref, alt))
    return found


def test_every_spelling_of_an_indel_is_one_edit():
    for result, rows in spellings(REPEATS).items():
        edits = set(edits_of(REPEATS, rows))
        assert len(edits) == 1, rows
        edit = edits.pop()
        made = REPEATS[: edit.start] + edit.alt + REPEATS[edit.end :]
        places = [
            start
            for start in range(len(REPEATS) - len(edit.ref) + 1)
            if REPEATS[:start] == result[:start]
            and REPEATS[start + len(edit.ref) :] == result[start + len(edit.alt) :]
        ]
        assert made == result and places == [
            edit.start - edit.shifts // 2 + i for i in range(edit.shifts + 1)
        ]


@pytest.mark.parametrize(
    ("row", "edit"),
    [
        ((5, "CAC", "C"), Edit("one", 3, "AC", "", shifts=4)),  # in the middle of the repeat
        ((2, "A", "ACA"), Edit("one", 4, "", "CA", shifts=6)),
        ((12, "GNN", "GGNN"), Edit("one", 9, "", "G", shifts=5)),  # up to N
        ((29, "AA", "A"), Edit("one", 28, "A", "", shifts=1)),  # up to the end of the record
        ((1, "AAC", "AC"), Edit("one", 0, "A", "", shifts=1)),  # with bases that both share
        ((7, "CGG", "TG"), Edit("one", 6, "CG", "T")),  # a complex one has a single place
        ((7, "CGG", "CTG"), Edit("one", 7, "G", "T")),
        ((7, "CGG", "GCG"), Edit("one", 6, "CG", "GC")),
    ],
)
def test_edits_of_repeats(row, edit):
    assert edits_of(REPEATS, [row]) == [edit]


def test_a_long_repeat_is_read_in_pieces():
    letters = "C" + "ACG" * 50_000 + "T"
    first, second = edits_of(letters, [(1, "CACG", "C"), (149_998, "GACG", "G")])
    assert first == second == Edit("one", 74_999, "CGA", "", shifts=149_997)


def test_a_mismatch_stays_where_it_is_written():
    (edit,) = edits_of("TAAAAT", [(3, "AC", "A")])
    assert edit == Edit("one", 3, "C", "", differs=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("start", "ref", "alt"), [(3, "", "CA"), (7, "G", ""), (18, "AG", "")])
def test_all_placements_have_the_same_windows(start, ref, alt, reverse):
    genome = Sequences({"one": REPEATS.replace("N", "T")})
    edit = normalized(genome, Edit("one", start, ref, alt))
    for window in (6, 12, 64):
        here = pair(genome, edit, window, reverse)
        placed, longer = here.placements(), int(len(alt) > len(ref))
        starts = [each.starts[longer] for each in placed]
        assert starts == list(range(starts[0], starts[0] + len(placed)))
        assert window < 64 or len(placed) == edit.shifts + 1
        for each in placed:
            windows = [each.ref, each.alt]
            size, at = max(each.sizes), each.starts[longer]
            rest = np.delete(windows[longer], np.arange(at, at + size))
            other, shorter_at = windows[1 - longer], each.starts[1 - longer]
            extra = slice(0, len(other) - size) if each.ends_right else slice(size, None)
            assert (other[extra] == rest).all() and 0 <= at <= len(windows[longer]) - size
            assert shorter_at == at + (0 if each.ends_right else size)


def test_at_most_16_placements_are_spread_evenly():
    edit = normalized(genome := Sequences({"one": "C" + "A" * 61 + "C"}), Edit("one", 30, "A", ""))
    assert edit.shifts == 60
    starts = [each.starts[0] for each in pair(genome, edit, 100).placements()]
    assert starts == list(range(1, 62, 4))


def conditional(oracle, ids, places):
    """log p of the bases at some places given the rest of a window."""
    rest = np.setdiff1d(np.arange(len(ids)), places)
    same = oracle.sequences.numpy() == ids
    return float((oracle.joint[same.all(1)].sum() / oracle.joint[same[:, rest].all(1)].sum()).log())


@pytest.mark.parametrize("edit", [Edit("one", 2, "A", ""), Edit("one", 3, "", "A")])
def test_the_block_has_the_mean_of_the_conditional_ratios_of_all_placements(
    edit, oracle, make_network, methods, log_p
):
    network = make_network(oracle, "GCAAACTG")
    edit = normalized(network.reference, edit)
    for strand, reverse in enumerate(network.strands):
        here, expected = network.pair(edit, reverse), []
        for placed in here.placements():
            ref, alt = placed.aligned(1)
            expected.append(
                conditional(oracle, here.alt.astype(np.int64), alt)
                - conditional(oracle, here.ref.astype(np.int64), ref)
            )
        assert len(set(np.round(expected, 6))) > 2
        found = methods["small block"].llr(network, [edit], np.zeros((2, 1, 4)))[0]
        assert found[strand, 0] == pytest.approx(np.mean(expected), abs=1e-9)
        # Whole windows have one ratio, wherever the block is.
        whole = log_p(oracle, ids_to_letters(here.alt)) - log_p(oracle, ids_to_letters(here.ref))
        for name in ("block", "window"):
            found = methods[name].llr(network, [edit], np.zeros((2, 1, 4)))[0]
            assert found[strand, 0] == pytest.approx(whole, abs=1e-6), name


def ids_to_letters(ids):
    return "".join("ACGT"[each - ids_of("A")[0]] for each in ids)


def test_the_error_of_several_placements_is_the_spread_over_seeds(inconsistent, make_network):
    values, variances = [], []
    for seed in range(200):
        network = make_network(
            inconsistent(8), "GCAAAACTG", window=8, seed=seed, stranded=True, batch_size=256
        )
        edit = normalized(network.reference, Edit("one", 2, "A", ""))
        value, variance = Block(block=4, num_orders=5).difference(
            Reading(network, edit, np.zeros(4), False)
        )
        values.append(value)
        variances.append(variance)
    assert np.sqrt(np.mean(variances)) == pytest.approx(np.std(values, ddof=1), rel=0.2)


def test_deletions_of_a_repeat_are_computed_once(inconsistent, make_network):
    network = make_network(inconsistent(), "GCAAACTG", stranded=True)
    rows = list(Saturation([Region("one", 2, 5)], network.reference, deletions=True))
    scorer = Scorer(network, Block(2, 2), Alleles(network.reference, 5))
    deletions = [row for row in rows if len(row.ref) == 2]
    network.denoiser.calls = 0
    (found,) = scorer.chunks(deletions[:1])
    calls, network.denoiser.calls = network.denoiser.calls, 0
    (three,) = scorer.chunks(deletions)
    assert network.denoiser.calls == calls
    np.testing.assert_array_equal([effects[0] for _, effects in three], [found[0][1][0]] * 3)
    assert [row.pos for row, _ in three] == [2, 3, 4]  # as they came


@pytest.fixture
def repeats():
    """Two records, and rows (left, right) of one deletion and one insertion in each."""
    flanks = "".join(np.random.default_rng(5).choice(list("ACGT"), 120))
    genome, rows = {}, []
    for name, unit, count in (("r0", "A", 7), ("r1", "GCC", 3)):
        genome[name] = part = f"{flanks[:60]}T{unit * count}T{flanks[60:]}"
        end, size = 61 + len(unit) * count, len(unit)
        rows += [
            (name, 61, "T" + unit, "T"),
            (name, end - size, part[end - size - 1 : end], part[end - size - 1]),
            (name, 61, "T", "T" + unit),
            (name, end, part[end - 1], part[end - 1] + unit),
        ]
    return genome, rows


NUMBERS = ["LLR", "SE", "LLR_forward", "LLR_reverse", "entropy", "information", "L2"]


def test_two_spellings_have_equal_numbers_in_python_and_in_every_file(
    repeats, trained, cli, tmp_path
):
    genome, rows = repeats
    model = dnadiff.load(trained, "cpu")
    found = model.variants(rows, genome, L2=True)
    assert found[["pos", "ref", "alt"]].values.tolist() == [list(row[1:]) for row in rows]
    assert (found.SE > 0).all() and (found.reason == "").all()
    first, second = (found[NUMBERS].values[i::2] for i in (0, 1))
    np.testing.assert_array_equal(first, second)
    frame = pandas.DataFrame(rows, columns=["chrom", "pos", "ref", "alt"])
    pandas.testing.assert_frame_equal(model.variants(frame, genome, L2=True), found)
    both = model.variants([("r0", 61, "TA", "T,TAA")], genome)  # two alleles in one row
    assert both.LLR.tolist() == found.LLR[[0, 2]].tolist()

    (tmp_path / "g.fa").write_text("".join(f">{name}\n{x}\n" for name, x in genome.items()))
    head = "".join(f"##contig=<ID={name}>\n" for name in genome)
    lines = "".join(f"{c}\t{p}\t.\t{r}\t{a}\t.\t.\t.\n" for c, p, r, a in rows)
    columns = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    (tmp_path / "x.vcf").write_text(f"##fileformat=VCFv4.2\n{head}{columns}{lines}")
    (tmp_path / "x.tsv").write_text(frame.to_csv(sep="\t", index=False))
    for name in ("x.vcf", "x.tsv"):
        args = [f"checkpoint={trained}", f"vcf={name}", "genome=g.fa", "accelerator=cpu"]
        status, _, err = cli("variants", *args, f"output=y_{name}")
        assert status == 0, err
    table = pandas.read_csv(tmp_path / "y_x.tsv", sep="\t")
    assert table[["pos", "ref", "alt"]].values.tolist() == [list(row[1:]) for row in rows]
    np.testing.assert_allclose(table.LLR, found.LLR, atol=1e-5)
    np.testing.assert_array_equal(table[NUMBERS[:6]][::2], table[NUMBERS[:6]][1::2])
    written = list(open_source(tmp_path / "y_x.vcf"))  # rows and coordinates as they came
    assert [(x.chrom, x.pos, x.ref, *x.alts) for x in written] == rows
    info = [row.text.split("\t")[7] for row in written]
    assert info[::2] == info[1::2] and all(info)


@pytest.mark.parametrize("method", [PairedWindow(4), Block(6, 3)])
def test_every_method_has_one_number_for_both_spellings(method, repeats, trained):
    genome, rows = repeats
    found = dnadiff.load(trained, "cpu").variants(rows, genome, method=method)
    np.testing.assert_array_equal(found[NUMBERS[:6]].values[::2], found[NUMBERS[:6]].values[1::2])
