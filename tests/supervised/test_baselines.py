import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.supervised.baselines import (
    GCAlone,
    KmerBoosting,
    KmerLogistic,
    LengthAlone,
    kmer_counts,
)
from dnadiff.supervised.classes import OrdinalTarget
from dnadiff.supervised.items import Items, TaskData

DNA = DNATokenizer()


@pytest.mark.filterwarnings("error")
def test_many_classes_give_no_warning_of_a_library():
    rng = np.random.default_rng(0)
    items = Items.from_sequences(
        list(rng.integers(7, 11, (60, 30)).astype(np.uint8)), np.arange(60) % 40, DNA.vocab.pad_id
    )
    data = TaskData("many", [f"c{i}" for i in range(40)], items, items, items)
    for model in (KmerLogistic(DNA, 2), KmerBoosting(DNA, 2, rounds=(2,)), GCAlone(DNA)):
        assert model.fit_predict(data).shape == (60, 40)


def counts(*sequences: str, both_strands: bool) -> list[dict[int, float]]:
    items = Items.from_sequences(
        [DNA.encode(s) for s in sequences], [0] * len(sequences), DNA.vocab.pad_id
    )
    table = kmer_counts(DNA.bases(items.ids.numpy()), 2, both_strands).toarray()
    return [{int(code): row[code] for code in np.flatnonzero(row)} for row in table]


def test_kmers_are_counted_within_rows_and_never_across_an_unknown_base():
    # AA 0, AC 1, CG 6, GT 11; CA is 4
    assert counts("AACG", "GTNCA", "A", both_strands=False) == [
        {0: 1, 1: 1, 6: 1},
        {11: 1, 4: 1},
        {},
    ]


def test_both_strands_share_one_count():
    assert counts("AAC", reverse_complement("AAC"), both_strands=True) == [{0: 1, 1: 1}] * 2


def test_two_repeats_are_classified_and_permuted_labels_give_chance():
    random = np.random.default_rng(0)

    def items(number: int, permuted: bool) -> Items:
        labels = np.arange(number) % 2
        sequences = [
            DNA.encode(
                random.permutation(
                    ["ACGGT", "TTGCA", "CAGAC"] if y else ["AAGGT", "CTGAA", "CAGTC"]
                ).tolist()[0]
                * 4
            )
            for y in labels
        ]
        return Items.from_sequences(
            sequences, random.integers(0, 2, number) if permuted else labels, DNA.vocab.pad_id
        )

    def accuracy(permuted: bool) -> float:
        data = TaskData(
            "t", ["a", "b"], items(60, permuted), items(20, permuted), items(300, permuted)
        )
        return float(
            (KmerLogistic(DNA, k=3).fit_predict(data).argmax(-1) == data.test.labels).float().mean()
        )

    assert accuracy(permuted=False) == 1.0
    assert 0.35 < accuracy(permuted=True) < 0.65


def test_log_probs_are_normalized_and_have_a_column_for_each_class():
    items = Items.from_sequences(
        [DNA.encode(s) for s in ("AAAAAA", "CCCCCC", "ACACAC")] * 3, [0, 1, 2] * 3, DNA.vocab.pad_id
    )
    log_probs = KmerLogistic(DNA, k=2).fit_predict(
        TaskData("t", ["a", "b", "c"], items, items, items)
    )
    assert log_probs.shape == (9, 3)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(9, dtype=log_probs.dtype))


def test_a_fit_does_not_change_what_predictions_depend_on():
    items = Items.from_sequences([DNA.encode("ACG"), DNA.encode("CCG")] * 3, [0, 1] * 3, 4)
    model = KmerLogistic(DNA, k=2)
    before = model.describe()
    model.fit_predict(TaskData("t", ["a", "b"], items, items, items))
    assert model.describe() == before


def drawn(number: int, seed: int) -> TaskData:
    """Class 1 is longer and has a higher GC content."""
    random = np.random.default_rng(seed)

    def items(count: int) -> Items:
        labels = np.arange(count) % 2
        share = [[0.4, 0.1, 0.1, 0.4], [0.1, 0.4, 0.4, 0.1]]
        sequences = [
            random.choice(
                [7, 8, 9, 10, 11], 40 + 20 * y, p=[*(0.98 * np.array(share[y])), 0.02]
            ).astype(np.uint8)
            for y in labels
        ]
        return Items.from_sequences(sequences, labels, DNA.vocab.pad_id)

    return TaskData("t", ["a", "b"], items(number), items(60), items(100))


def test_length_gc_and_kmer_boosting_learn_their_features():
    data = drawn(200, 0)
    for model, least in (
        (LengthAlone(DNA), 1.0),
        (GCAlone(DNA), 0.95),
        (KmerBoosting(DNA, k=2, rounds=(20,)), 0.95),
    ):
        log_probs = model.fit_predict(data)
        assert (log_probs.argmax(-1) == data.test.labels).double().mean() >= least, type(
            model
        ).__name__
        assert model.describe()["kind"] == type(model).__name__
        assert "bases" not in model.describe()


def test_gc_content_ignores_unknown_bases_and_padding():
    items = Items.from_sequences(
        [DNA.encode(s) for s in ("GCAN", "AAAAAAAA", "NN")], [0, 1, 0], DNA.vocab.pad_id
    )
    assert np.allclose(GCAlone(DNA).features(items, False)[:, 0], [2 / 3, 0, 0.5])


def test_boosting_features_are_the_same_for_both_strands():
    forward = Items.from_sequences([DNA.encode("ACGGTTAC")], [0], DNA.vocab.pad_id)
    backward = Items.from_sequences(
        [DNA.encode(reverse_complement("ACGGTTAC"))], [0], DNA.vocab.pad_id
    )
    model = KmerBoosting(DNA, k=3)
    assert np.array_equal(model.features(forward, False), model.features(backward, False))
    assert model.features(forward, False).shape == (1, 64)
    assert model.features(forward, True).shape == (1, 64)


def test_models_of_levels_are_chosen_by_the_loss():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 90)
    ids = [random.choice([7, 8, 9, 10], 30, p=np.roll([0.4, 0.3, 0.2, 0.1], y)) for y in labels]
    items = Items.from_sequences([x.astype(np.uint8) for x in ids], labels, DNA.vocab.pad_id)
    target = OrdinalTarget(["1", "2", "3"])
    model = KmerLogistic(DNA, 1, strengths=(1e-6, 10.0))
    data = TaskData("levels", ["1", "2", "3"], items, items, items, target=target)
    predicted = model.fit_predict(data)
    assert model.fit_info["chosen"] == "C = 10"
    loss = target.fit(items.labels).valid_loss(predicted, items.labels)
    assert model.fit_info["valid_loss"] == loss == min(model.fit_info["tried"].values())
