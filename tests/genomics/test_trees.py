import numpy as np
import pytest

from dnadiff.genomics.trees import Tree, distances, neighbor_joining, read_newick


def path_lengths(tree):
    """Distances between the leaves along the tree."""
    nodes = max(node for a, b, _ in tree.edges for node in (a, b)) + 1
    d = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(d, 0)
    for a, b, length in tree.edges:
        d[a, b] = d[b, a] = length
    for middle in range(nodes):
        d = np.minimum(d, d[:, [middle]] + d[[middle]])
    return d[: len(tree.names), : len(tree.names)]


@pytest.mark.parametrize("genomes", [2, 3, 4, 5, 8, 30])
def test_neighbor_joining_recovers_an_additive_tree(genomes):
    rng = np.random.default_rng(genomes)
    edges, inner = [(0, 1, 0.5)], genomes
    for leaf in range(2, genomes):
        a, b, _ = edges.pop(rng.integers(len(edges)))
        edges += [(each, inner, float(rng.exponential())) for each in (a, b, leaf)]
        inner += 1
    truth = path_lengths(Tree([str(i) for i in range(genomes)], edges))
    tree = neighbor_joining(truth, [str(i) for i in range(genomes)])
    assert len(tree.edges) == 2 * genomes - 2
    np.testing.assert_allclose(path_lengths(tree), truth, atol=1e-10)


def test_neighbor_joining_of_the_example_of_saitou_and_nei():
    """Table 1 of their paper: eight sequences, and the tree of figure 1."""
    lower = [[7], [8, 5], [11, 8, 5], [13, 10, 7, 8], [16, 13, 10, 11, 5]]
    lower += [[13, 10, 7, 8, 6, 9], [17, 14, 11, 12, 10, 13, 8]]
    d = np.zeros((8, 8))
    for row, values in enumerate(lower, 1):
        d[row, : len(values)] = values
    tree = neighbor_joining(d + d.T, list("12345678"))
    length = {min(a, b): length for a, b, length in tree.edges if min(a, b) < 7}
    assert length == pytest.approx({0: 5, 1: 2, 2: 1, 3: 3, 4: 1, 5: 4, 6: 2})
    np.testing.assert_allclose(path_lengths(tree), d + d.T)


def test_lengths_are_not_negative():
    d = np.array([[0, 1, 9.0], [1, 0, 1], [9, 1, 0]])
    assert min(length for *_, length in neighbor_joining(d, list("abc")).edges) == 0


def test_newick_round_trip():
    names = ["a", "b c", "it's", "d_1", "e"]
    tree = neighbor_joining(np.random.default_rng(0).random((5, 5)) + 1, names)
    again = read_newick(tree.newick(), names)
    np.testing.assert_array_equal(path_lengths(again), path_lengths(tree))
    assert read_newick("(b:2,a:1e-1);", ["a", "b"]).newick() == "(b:2.0,a:0.1);"
    two = neighbor_joining(np.array([[0, 0.5], [0.5, 0]]), ["a", "b"]).newick()
    assert two == "(a:0.25,b:0.25);"


def test_leaves_without_a_genome_are_left_out():
    tree = read_newick("((a:1,(x:1,b:2)90:3)n:.5,(c:1,y:2):.25);", ["c", "b", "a"])
    assert tree.names == ["c", "b", "a"]
    np.testing.assert_allclose(path_lengths(tree), [[0, 6.75, 2.75], [6.75, 0, 6], [2.75, 6, 0]])


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
