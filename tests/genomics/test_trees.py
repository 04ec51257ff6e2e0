import numpy as np
import pytest

from dnadiff.genomics.phylogeny import children, distances, neighbor_joining, newick, read_newick


def path_lengths(edges, names):
    """Distances between the leaves along the tree."""
    found = []
    for name in names:
        far = {name: 0.0}
        for node, below in reversed(children(edges, name).items()):
            far |= {child: far[node] + length for child, length in below}
        found.append([far[other] for other in names])
    return np.array(found)


@pytest.mark.parametrize("genomes", [2, 3, 4, 5, 8, 30])
def test_neighbor_joining_recovers_an_additive_tree(genomes):
    rng, names = np.random.default_rng(genomes), [f"g{i}" for i in range(genomes)]
    edges = [("g0", "g1", 0.5)]
    for number, name in enumerate(names[2:]):
        a, b, _ = edges.pop(rng.integers(len(edges)))
        edges += [(each, number, float(rng.exponential())) for each in (a, b, name)]
    truth = path_lengths(edges, names)
    joined = neighbor_joining(truth, names)
    assert len(joined) == 2 * genomes - 2
    np.testing.assert_allclose(path_lengths(joined, names), truth, atol=1e-10)


def test_neighbor_joining_of_the_example_of_saitou_and_nei():
    """Table 1 of their paper: eight sequences, and the tree of figure 1."""
    lower = [[7], [8, 5], [11, 8, 5], [13, 10, 7, 8], [16, 13, 10, 11, 5]]
    lower += [[13, 10, 7, 8, 6, 9], [17, 14, 11, 12, 10, 13, 8]]
    d = np.zeros((8, 8))
    for row, values in enumerate(lower, 1):
        d[row, : len(values)] = values
    edges = neighbor_joining(d + d.T, list("12345678"))
    length = {a: length for a, _, length in edges if a in list("1234567")}
    assert length == pytest.approx(dict(zip("1234567", (5, 2, 1, 3, 1, 4, 2))))
    np.testing.assert_allclose(path_lengths(edges, "12345678"), d + d.T)


def test_lengths_are_not_negative():
    d = np.array([[0, 1, 9.0], [1, 0, 1], [9, 1, 0]])
    assert min(length for *_, length in neighbor_joining(d, list("abc"))) == 0


def test_newick_round_trip():
    names = ["a", "b c", "it's", "d_1", "(e)"]
    edges = neighbor_joining(np.random.default_rng(0).random((5, 5)) + 1, names)
    again = read_newick(newick(edges), names)
    np.testing.assert_array_equal(path_lengths(again, names), path_lengths(edges, names))
    assert newick(read_newick("(b:2,a:1e-1);", ["a", "b"])) == "('b':2.0,'a':0.1);"
    two = neighbor_joining(np.array([[0, 0.5], [0.5, 0]]), ["a", "b"])
    assert newick(two) == "('a':0.25,'b':0.25);"


def test_leaves_without_a_genome_are_left_out():
    edges = read_newick("((a:1,(x:1,b:2)90:3)n:.5,(c:1,y:2):.25);", ["c", "b", "a"])
    expected = [[0, 6.75, 2.75], [6.75, 0, 6], [2.75, 6, 0]]
    np.testing.assert_allclose(path_lengths(edges, "cba"), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("((a:1,b:1):1,c:1;", "not a tree in Newick notation"),
        ("", "not a tree"),
        ("(a:1,b:1);(a:1,c:1);", "not a tree"),
        ("(a:1,b:1,d:1);", "none or several for c; its leaves are a, b, d"),
        ("(a:1,b:1,c:1,c:2);", "none or several for c"),
        ("(a,b,c);", "length"),
        ("(a:1,b:-1,c:1);", "length"),
        ("(a:1,b:x,c:1);", "none or several|length"),
    ],
)
def test_trees_that_do_not_fit_are_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        read_newick(text, ["a", "b", "c"])
    assert "\n" not in str(error.value)


def test_distances():
    codes = np.zeros((3, 4000), np.uint8)
    codes[1, ::4], codes[2, :2000] = 1, 5
    codes[2, 2000:] = 3
    d = distances(codes)
    assert d[0, 1] == pytest.approx(0.375 * ((1 - 0.25 * 4 / 3) ** -2 - 1))
    assert d[0, 2] == d[1, 2] == d.max() and (np.diag(d) == 0).all()
    codes[1] = np.where(np.arange(4000) % 8 < 4, 5, codes[1])  # few columns with every genome
    assert np.isfinite(distances(codes)).all()
