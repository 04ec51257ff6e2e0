import pytest

from dnadiff.formats.regions import Row
from dnadiff.genomics.variants.variant import Alleles, Edit, Sequences, Skipped, pair, trimmed

GENOME = Sequences({"chr1": "ACGTNACGTA", "MT": "CCCCC"})


def row(chrom="chr1", pos=2, ref="C", alts=("T",)):
    return Row("x.vcf: line 9", chrom, pos, ".", ref, alts)


@pytest.mark.parametrize(
    ("pos", "ref", "alt", "edit"),
    [
        (2, "C", "T", Edit("chr1", 1, "C", "T")),
        (2, "c", "t", Edit("chr1", 1, "C", "T")),
        (2, "CGT", "CAT", Edit("chr1", 2, "G", "A")),  # an SNV in the notation of three bases
        (2, "CG", "TT", Edit("chr1", 1, "CG", "TT")),
        (2, "C", "CAA", Edit("chr1", 2, "", "AA")),
        (2, "CGT", "C", Edit("chr1", 2, "GT", "")),
        (2, "CGT", "GA", Edit("chr1", 1, "CGT", "GA")),
    ],
)
def test_alleles_become_edits(pos, ref, alt, edit):
    found, mismatch = Alleles(GENOME, 8).edits(row(pos=pos, ref=ref, alts=(alt,)))
    assert found == [edit] and not mismatch


def test_trimming_leaves_the_changed_bases():
    assert trimmed(Edit("a", 5, "AAAA", "AA")) == Edit("a", 5, "AA", "")
    assert trimmed(Edit("a", 5, "AC", "AC")).longest == 0


def test_alleles_without_an_effect_are_skipped_with_a_reason():
    alts = ("*", ".", "<DEL>", "G[chr2:5[", "G.", ".G", "N", "C", "A")
    found, _ = Alleles(GENOME, 8).edits(row(alts=alts))
    reasons = [each.reason for each in found[:-1]]
    assert [reason.split()[0] for reason in reasons] == [
        "*",
        "no",
        "a",
        "a",
        "a",
        "a",
        "an",
        "ALT",
    ] and isinstance(found[-1], Edit)


@pytest.mark.parametrize("pos", [0, 11])
def test_breakends_and_symbolic_alleles_may_be_at_a_telomere(pos):
    found, mismatch = Alleles(GENOME, 8).edits(
        row(pos=pos, ref="N", alts=(".[chr2:5[", "<DEL>", ".A"))
    )
    assert (
        found == [Skipped("a breakend"), Skipped("a symbolic allele"), Skipped("a breakend")]
        and not mismatch
    )


@pytest.mark.parametrize("ref", ["", "C", "CG", "CGTT"])
@pytest.mark.parametrize("alt", ["A", "", "AA", "ACCA"])
def test_windows_are_shorter_where_an_allele_has_too_few_bases(ref, alt):
    genome = Sequences({"chr1": "ACGTTACGTA"})
    lengths = [
        (edit.window_length(10, window), len(pair(genome, edit, window).ref))
        for edit, window in edits_and_windows(ref, alt)
    ]
    assert all(found == expected for found, expected in lengths)
    assert {found for found, _ in lengths} >= {6, min(10, 10 - len(ref) + len(alt))}


def edits_and_windows(ref, alt):
    edits = [Edit("chr1", start, ref, alt) for start in range(11 - len(ref))]
    return [(edit, window) for edit in edits if edit.has_windows(10) for window in range(6, 13)]


@pytest.mark.parametrize("name", ["1", "chr1"])
def test_chr_prefixes_do_not_matter(name):
    assert Alleles(GENOME, 8).edits(row(name))[0][0].record == "chr1"
    assert Alleles(GENOME, 8).edits(row("chrM", 1))[0][0].record == "MT"


def test_another_ref_is_a_mismatch_that_can_be_skipped_or_kept():
    found, mismatch = Alleles(GENOME, 8).edits(row(ref="A"))
    assert found[0].differs and "has REF A, the genome C" in mismatch
    found, mismatch = Alleles(GENOME, 8, skip_mismatches=True).edits(row(ref="A"))
    assert found == [Skipped("REF differs from the genome", differs=True)] and mismatch


@pytest.mark.parametrize(
    ("pos", "ref", "alt", "expected"),
    [
        (5, "A", "C", Skipped("N in the genome at REF")),
        (4, "TAA", "T", Skipped("N in the genome at REF")),
        (4, "TNA", "T", Skipped("an allele with N or another ambiguity code")),
        (5, "NA", "N", Edit("chr1", 5, "A", "")),  # a deletion written with an N before it
        (5, "AA", "A", Edit("chr1", 4, "A", "")),
        (5, "A", "AG", Edit("chr1", 5, "", "G")),
        (5, "N", "NG", Edit("chr1", 5, "", "G")),
        (5, "N", "G", Skipped("an allele with N or another ambiguity code")),
    ],
)
@pytest.mark.parametrize("skip_mismatches", [False, True])
def test_n_in_the_genome_is_no_mismatch_and_has_no_value(pos, ref, alt, expected, skip_mismatches):
    found, mismatch = Alleles(GENOME, 8, skip_mismatches).edits(row(pos=pos, ref=ref, alts=(alt,)))
    if (pos, ref, alt) == (
        5,
        "AA",
        "A",
    ):  # the base on the right is removed first, so that the N is replaced
        expected = Skipped("N in the genome at REF")
    assert found == [expected] and not mismatch


@pytest.mark.parametrize("size", range(1, 6))
def test_indels_without_windows_of_equal_length_are_skipped(size):
    genome = Sequences({"chr1": "ACGTAC"})
    for pos in range(1, 7 - size):
        (deletion,), _ = Alleles(genome, 8).edits(
            row(pos=pos, ref="ACGTAC"[pos - 1 : pos + size], alts=("ACGTAC"[pos - 1],))
        )
        (insertion,), _ = Alleles(genome, 8).edits(
            row(
                pos=pos, ref="ACGTAC"[pos - 1], alts=("ACGTAC"[pos - 1] + "ACGTAC"[pos - 1] * size,)
            )
        )
        for edit, removed in ((deletion, size), (insertion, 0)):
            fits = size <= max(pos, 6 - pos - removed)
            assert (
                isinstance(edit, Edit)
                if fits
                else edit == Skipped("the record is too short for windows of equal length")
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chrom": "chr7"}, "x.vcf: line 9: the genome lacks a contig: no record is called chr7"),
        ({"pos": 11, "ref": "A"}, r"position 11 is not inside chr1 \(1-10\)"),
        ({"pos": 9, "ref": "TAC"}, "not inside chr1"),
        (
            {"pos": 0},
            r"REF C at position 0 is not inside chr1 \(1-10\); positions are counted from 1",
        ),
        ({"pos": 0, "alts": ("<DEL>", "T")}, "position 0 is not inside chr1"),
        ({"pos": 12, "ref": "N", "alts": ("<DEL>",)}, "position 12 is not inside chr1"),
        ({"ref": "X"}, "REF 'X' is not an allele of nucleotides"),
        ({"alts": ("-",)}, "with the base before it, as in REF=CA ALT=C"),
        ({"alts": ("",)}, "is not an allele of nucleotides"),
    ],
)
def test_wrong_rows_are_refused_with_their_line(change, message):
    with pytest.raises(ValueError, match=message):
        Alleles(GENOME, 8).edits(row(**change))


def test_alleles_longer_than_the_window_are_skipped():
    (found, other), _ = Alleles(GENOME, 8).edits(row(alts=("CAAAAAAAAA", "T")))
    assert found == Skipped("longer than the window of 8 bases") and isinstance(other, Edit)
