import copy

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.supervised.baselines import LinearProbe, NearestNeighbors
from dnadiff.supervised.items import Items, TaskData, reverse_complement_rows
from dnadiff.supervised.targets import RegressionTarget

DNA = DNATokenizer()


def rich_or_poor(number: int, seed: int) -> Items:
    random = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    share = [[0.4, 0.1, 0.1, 0.4], [0.1, 0.4, 0.4, 0.1]]
    sequences = [
        random.choice([7, 8, 9, 10], random.integers(20, 31), p=share[y]).astype(np.uint8)
        for y in labels
    ]
    return Items.from_sequences(sequences, labels, DNA.vocab.pad_id)


@pytest.fixture(scope="module")
def network() -> Caduceus:
    torch.manual_seed(0)
    return Caduceus(DNA.vocab, d_model=16, n_layers=2, d_state=4)


@pytest.fixture(scope="module")
def task() -> TaskData:
    return TaskData(
        "gc", ["poor", "rich"], rich_or_poor(120, 0), rich_or_poor(40, 1), rich_or_poor(60, 2)
    )


def embed(network, items, batch_size, both_strands):
    probe = LinearProbe(lambda seed: network, batch_size=batch_size)
    probe.network = network
    return probe.features(items, not both_strands)


def test_features_do_not_depend_on_padding_or_strand(network):
    items = rich_or_poor(9, 3)
    both = embed(network, items, 4, both_strands=True)
    alone = np.concatenate(
        [embed(network, items.select(torch.tensor([i])), 1, both_strands=True) for i in range(9)]
    )
    other = Items(
        reverse_complement_rows(items.ids, items.lengths, DNA.vocab).to(torch.uint8),
        items.lengths,
        items.labels,
    )
    assert np.allclose(both, alone, atol=1e-5)
    assert np.allclose(both, embed(network, other, 4, both_strands=True), atol=1e-5)


def test_a_network_that_reads_both_strands_processes_an_item_once():
    torch.manual_seed(0)
    network, tokens = CaduceusPS(DNA.vocab, d_model=16, n_layers=2, d_state=4), []
    items = rich_or_poor(9, 3)
    other = Items(
        reverse_complement_rows(items.ids, items.lengths, DNA.vocab).to(torch.uint8),
        items.lengths,
        items.labels,
    )
    features = network.features
    network.features = lambda ids, *more: tokens.append(ids.numel()) or features(ids, *more)
    both = embed(network, items, 9, True)
    assert both.shape == (9, 16) and tokens == [9 * int(items.lengths.max())]
    assert np.allclose(both, embed(network, other, 4, both_strands=True), atol=1e-6)
    assert embed(network, items, 9, both_strands=False).shape == (9, 32)


@pytest.mark.parametrize("kind", [LinearProbe, NearestNeighbors])
def test_probes_classify_composition_without_changing_the_network(network, task, kind):
    before = copy.deepcopy(network.state_dict())
    probe = kind(lambda seed: network)
    log_probs = probe.fit_predict(task, 0)
    assert (log_probs.argmax(-1) == task.test.labels).float().mean() > 0.85
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(60, dtype=log_probs.dtype))
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    reads = []
    probe.fit_predict(task, 1, lambda steps, tokens: reads.append(tokens))
    assert reads == []  # all features are in memory by then


def test_permuted_labels_give_chance(network, task):
    def permuted(items: Items, seed: int) -> Items:
        return Items(
            items.ids,
            items.lengths,
            items.labels[torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))],
        )

    test = rich_or_poor(400, 9)
    data = TaskData(
        "gc", task.classes, permuted(task.train, 0), permuted(task.valid, 1), permuted(test, 2)
    )
    log_probs = LinearProbe(lambda seed: network).fit_predict(data, 0)
    assert (log_probs.argmax(-1) == data.test.labels).float().mean() == pytest.approx(0.5, abs=0.12)


def test_a_sequence_longer_than_max_length_is_refused(task):
    short = DiT(
        DNA.vocab, d_model=16, n_layers=1, n_heads=2, cond_dim=8, dropout=0.0, max_length=25
    )
    with pytest.raises(ValueError, match="takes at most 25"):
        LinearProbe(lambda seed: short).fit_predict(task, 0)


def test_neighbors_are_counted_among_items_with_a_label(network, task):
    values = torch.arange(120.0)[:, None].repeat(1, 2)
    values[20:, 1] = torch.nan
    train = Items(task.train.ids, task.train.lengths, values)
    data = TaskData("gc", ["a", "b"], train, train, task.test, target=RegressionTarget(["a", "b"]))
    model = NearestNeighbors(lambda seed: network)
    assert model.fit_predict(data).shape == (60, 2) and list(model.fit_info["tried"]) == [
        f"{k} neighbors" for k in (1, 5, 15)
    ]
