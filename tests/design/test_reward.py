"""Rewards with values known by hand, and messages for files and names that cannot be read."""

import numpy as np
import pytest

from dnadiff.design.reward import (
    GCContent,
    Homopolymer,
    MotifMatch,
    RestrictionSites,
    Reward,
    Toward,
    WeightedSum,
    log_odds,
    read_jaspar,
    site_of,
)

JASPAR = """>MA0001.1\tTATA
A [ 0 9 0 9 ]
C [ 0 0 0 1 ]
G [ 1 0 0 0 ]
T [ 9 1 10 0 ]
>MA0002.2\tGATC
A [ 0 8 0 0 ]
C [ 0 0 0 8 ]
G [ 8 0 0 0 ]
T [ 0 0 8 0 ]
"""


def numerical(reward, sequence):
    """The change of a reward for each single base, from the first base of the alphabet."""
    return np.array(
        [
            [reward([sequence[:at] + base + sequence[at + 1 :]])[0] for base in "ACGT"]
            for at in range(len(sequence))
        ]
    )


def test_gc_content_and_its_gradient():
    assert GCContent()(["GGCC", "GATC", "NNGN", "NN"]).tolist() == [1.0, 0.5, 1.0, 0.0]
    value, slope = GCContent().gradient(["GATTNC"])
    assert value[0] == 0.4 and (slope[0, 4] == 0).all()
    # Linear in the bases: the gradient is the exact change.
    changes = numerical(GCContent(), "GATTACA")
    _, slope = GCContent().gradient(["GATTACA"])
    index = ["ACGT".index(base) for base in "GATTACA"]
    assert np.allclose(
        changes - GCContent()(["GATTACA"]), slope[0] - slope[0][range(7), index][:, None]
    )


def test_a_reward_at_its_target_is_0_and_not_minus_0():
    reward = Toward(GCContent(), 0.5)
    assert reward(["GATC", "GGGC"]).tolist() == [0.0, -0.5]
    assert reward.unit == "minus the distance of the fraction of G and C from 0.5"
    for value in reward(["GATC"]), reward.gradient(["GATC"])[0]:
        assert not np.signbit(value[0])


def test_runs_of_one_base():
    assert Homopolymer(3)(["ACGT", "AAAA", "CCAAAAAACC", "NNNNNN", ""]).tolist() == [
        0,
        -1,
        -3,
        0,
        0,
    ]


def test_the_best_match_of_a_motif_on_either_strand():
    motif = MotifMatch("TATAAT")
    values = motif(["GGTATAATGG", "CCATTATACC", "GGTATACTGG", "GGGG"])
    assert values.tolist() == [1.0, 1.0, 5 / 6, 0.0]
    assert MotifMatch("TATAAT", both_strands=False)(["CCATTATACC"])[0] < 1
    assert motif.site("CCATTATAC") == (2, 8, "-") and motif.site("GTATAAT") == (1, 7, "+")
    assert motif.site("TATAA") == (0, 0, "+")
    assert MotifMatch("TATAAT", absent=True, threshold=0.75)(
        ["GGTATAATGG", "GGGGGGGG"]
    ).tolist() == [-0.25, 0.0]
    ambiguous = MotifMatch("NRCGTGN", both_strands=False)
    assert (
        ambiguous(["AACGTGA"])[0] == ambiguous(["CGCGTGT"])[0] == 1.0
        and ambiguous(["CTCGTGT"])[0] == 0.8
    )


def test_scores_of_matrices_are_log_odds(tmp_path):
    # A matrix of one position, with 3 A and 1 C: (3 + 0.2) / 4.8 against 1/4.
    counts = np.array([[3, 1, 0, 0]])
    assert log_odds(counts)[0] == pytest.approx(np.log2(np.array([3.2, 1.2, 0.2, 0.2]) / 4.8 * 4))
    path = tmp_path / "one.jaspar"
    path.write_text(">M1\tone\nA [ 3 ]\nC [ 1 ]\nG [ 0 ]\nT [ 0 ]\n")
    found = MotifMatch(matrix=str(path), both_strands=False)(["A", "C", "G"])
    assert found == pytest.approx(log_odds(counts)[0, :3] / log_odds(counts)[0, 0])


def test_matrices_of_a_file(tmp_path):
    path = tmp_path / "m.jaspar"
    path.write_text(JASPAR)
    assert read_jaspar(path, "MA0002.2").tolist() == [
        [0, 0, 8, 0],
        [8, 0, 0, 0],
        [0, 0, 0, 8],
        [0, 8, 0, 0],
    ]
    assert MotifMatch(matrix=str(path), name="TATA")(["CTATAC", "CCCCCC"])[0] == 1.0
    with pytest.raises(
        ValueError, match=r"has 2 matrices; set reward.name to one of MA0001.1 TATA, MA0002.2 GATC"
    ):
        MotifMatch(matrix=str(path))
    with pytest.raises(ValueError, match="has 0 matrices called MYC"):
        MotifMatch(matrix=str(path), name="MYC")
    path.write_text(JASPAR.replace(" 8 ]", "]", 1))
    with pytest.raises(ValueError, match=r"m\.jaspar: the matrix MA0002.2 GATC has rows"):
        read_jaspar(path)
    path.write_text("no matrix")
    with pytest.raises(ValueError, match=r"m.jaspar"):
        MotifMatch(matrix=str(path))
    with pytest.raises(ValueError, match="set one of them"):
        MotifMatch()
    with pytest.raises(
        ValueError, match=r"reward.motif 'TAX': 'X' at position 3 is not an IUPAC letter"
    ):
        MotifMatch("TAX")
    with pytest.raises(ValueError, match="allows every sequence"):
        MotifMatch("NNN")


def test_rows_without_letters_are_in_the_order_of_the_bases(tmp_path):
    # As https://jaspar.elixir.no writes MA0004.1 under "raw PFM".
    path = tmp_path / "m.pfm"
    rows = [" 4 19 0 0 0 0", "16 0 20 0 0 0", " 0 1 0 20 0 20", " 0 0 0 0 20 0"]
    path.write_text("\n".join([">MA0004.1 Arnt", *rows, ">M2 x", *rows, ""]))
    expected = np.array([row.split() for row in rows], dtype=float).T.tolist()
    assert read_jaspar(path, "Arnt").tolist() == read_jaspar(path, "M2").tolist() == expected
    with_letters = [f"{base} [{row}]" for base, row in reversed([*zip("ACGT", rows)])]
    path.write_text("\n".join([">M3 y", *with_letters]))
    assert read_jaspar(path).tolist() == expected
    path.write_text("\n".join(rows))
    with pytest.raises(ValueError, match="line 1 is ' 4 19 0 0 0 0', expected >ID NAME or a row"):
        read_jaspar(path)
    for rows[2], sizes in (
        ("1 2", "6 of row 1, 6 of row 2, 2"),
        ("C 1 0 0 0 0 0", "row 2, 6 of C"),
    ):
        path.write_text("\n".join([">M4 z", *rows]))
        with pytest.raises(ValueError, match=f"the matrix M4 z has rows with .*{sizes}"):
            read_jaspar(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[ 3 ]",
            "[ 3 4 ]",
            r"the matrix M1 one has .*\(2 of A, 1 of C, 1 of G, 1 of T\), expected",
        ),
        ("T [ 0 ]\n", "", r"the matrix M1 one has .*\(1 of A, 1 of C, 1 of G\), expected"),
        ("G [", "C [", r"line 4 is 'C \[ 0 \]', expected >ID NAME or a row"),
        ("[ 3 ]", "[ 3_0 ]", r"line 2 is 'A \[ 3_0 \]', expected"),
        ("[ 3 ]", "[ -3 ]", r"line 2 is 'A \[ -3 \]', expected"),
        ("T [ 0 ]", "T [ 0 ]\n0", "line 6 is '0', expected"),
        ("3", "1e999", "the matrix M1 one has a position without counts, or a count that is no"),
    ],
)
def test_a_damaged_matrix_is_named_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "m.jaspar"
    path.write_text(">M1\tone\nA [ 3 ]\nC [ 1 ]\nG [ 0 ]\nT [ 0 ]\n".replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"reward\.matrix .*m\.jaspar: {message}"):
        read_jaspar(path)


def test_restriction_sites_are_counted_on_both_strands():
    sites = RestrictionSites(["EcoRI", "BsaI"])
    # GAATTC is its own reverse complement and counts once; BsaI is GGTCTC, and GAGACC on the other
    # strand.
    assert sites(["GAATTC", "GGTCTCGAGACC", "GAATTCGAATTC", "ACGT"]).tolist() == [-1, -2, -2, 0]
    assert RestrictionSites("GRCGYC")(["GACGTC", "GGCGCC", "GACGGC"]).tolist() == [-1, -1, 0]
    assert site_of("EcoRI") == "GAATTC"
    for wrong in ("EcoR", "ACX", "__class__"):
        with pytest.raises(ValueError, match=rf"reward.enzymes '{wrong}' is no enzyme"):
            RestrictionSites(wrong)
    with pytest.raises(ValueError, match=r"reward.enzymes is empty"):
        RestrictionSites([])


def test_weighted_sums_and_differences():
    both = WeightedSum({"gc": GCContent(), "runs": Homopolymer(3)}, {"runs": 0.5})
    assert isinstance(both, Reward) and not both.has_gradient
    assert both(["GGGGGA"])[0] == pytest.approx(5 / 6 - 1.0)
    difference = WeightedSum({"a": GCContent(), "b": GCContent()}, {"a": 2, "b": -1})
    assert difference.has_gradient
    value, slope = difference.gradient(["GA"])
    assert value[0] == 0.5 and slope[0, 0].tolist() == [0, 0.5, 0.5, 0]
    with pytest.raises(ValueError, match=r"reward.weights.c has no term; the terms are a"):
        WeightedSum({"a": GCContent()}, {"c": 1})
    with pytest.raises(ValueError, match="give at least one"):
        WeightedSum({})
