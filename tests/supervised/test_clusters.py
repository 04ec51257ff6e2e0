import numpy as np
import pytest

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.supervised import items

DNA = DNATokenizer()


def bases(*sequences: str) -> list[np.ndarray]:
    return [DNA.bases(DNA.encode(s)) for s in sequences]


def test_copies_on_either_strand_are_one_cluster():
    assert items.cluster_copies(bases("AACG", "TTTT", "CGTT", "AAAA", "AACGA")).tolist() == [
        0,
        1,
        0,
        1,
        2,
    ]


def test_chains_of_shared_kmers_join_sequences():
    random = np.random.default_rng(0)
    text = "".join(random.choice(list("ACGT"), 60))
    alone = "".join(random.choice(list("ACGT"), 30))
    found = items.cluster_by_shared_kmers(
        bases(text[:30], alone, reverse_complement(text[15:45]), text[30:]), 12
    )
    assert found[0] == found[2] == found[3] != found[1]


def test_copies_shorter_than_k_are_one_cluster():
    found = items.cluster_by_shared_kmers(bases("ACG", "CGT", "AAA"), 12)
    assert found[0] == found[1] != found[2]


def test_complete_clusters_are_sampled_and_a_giant_one_is_skipped():
    owner = np.array([0] * 60 + list(range(1, 41)))
    chosen = items.sample_clusters(owner, 0.2, np.random.default_rng(0))
    assert chosen.sum() == 20
    assert not chosen[:60].any()
    with pytest.raises(ValueError, match="two or more"):
        items.sample_clusters(np.zeros(5), 0.2, np.random.default_rng(0))


def test_folds_keep_clusters_together_and_classes_balanced():
    owner, labels = np.repeat(np.arange(50), 2), np.repeat(np.arange(50) % 2, 2)
    fold = items.assign_folds(owner, labels, 5, np.random.default_rng(0))
    assert (fold[::2] == fold[1::2]).all()
    assert [np.bincount(labels[fold == f]).tolist() for f in range(5)] == [[10, 10]] * 5
    with pytest.raises(ValueError, match="2 groups of sequences cannot fill 3 folds"):
        items.assign_folds(np.array([0, 1]), np.array([0, 1]), 3, np.random.default_rng(0))


def test_any_number_of_shared_kmers_joins():
    random = np.random.default_rng(1)
    for common in (255, 256, 257, 512):
        shared = "".join(random.choice(list("ACGT"), common + 23))
        ends = ["".join(random.choice(list("ACGT"), 40)) for _ in range(2)]
        found = items.cluster_by_shared_kmers(
            bases(shared + ends[0], ends[1] + shared, ends[0][:30]), 24
        )
        assert found[0] == found[1] == found[2]
