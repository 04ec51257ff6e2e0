import numpy as np
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.items import Items, TaskData, make_batch
from dnadiff.supervised.networks import CNN, MIN_LENGTH, PublishedCNN, pooled_length

DNA = DNATokenizer()


def test_cnn_has_the_published_layers():
    # (251 - 7) // 2 = 122, (122 - 7) // 2 = 57, (57 - 7) // 2 = 25
    assert pooled_length(251) == 25
    assert (pooled_length(MIN_LENGTH - 1), pooled_length(MIN_LENGTH)) == (0, 1)
    sizes = sum(p.numel() for p in CNN(DNA.vocab, 2, 251).parameters())
    convolutions = 100 * 16 * 8 + 16 + 16 * 8 * 8 + 8 + 8 * 4 * 8 + 4 + 2 * (16 + 8 + 4)
    assert sizes == 12 * 100 + convolutions + 4 * 25 * 512 + 512 + 512 * 2 + 2


def test_padding_changes_no_prediction_and_short_sequences_are_accepted():
    torch.manual_seed(0)
    network = CNN(DNA.vocab, 3, 60).eval()
    items = Items.from_sequences(
        [DNA.encode(s) for s in ("ACGTACGTAC" * 5, "TTGACA", "G")], [0, 1, 2], DNA.vocab.pad_id
    )
    with torch.no_grad():
        together = make_batch(items, torch.arange(3), DNA.vocab)
        alone = torch.cat(
            [network(items.ids[i : i + 1, : items.lengths[i]].long()) for i in range(3)]
        )
        assert torch.allclose(network(together.ids, together.valid), alone, atol=1e-6)


def test_cnn_learns_a_motif_with_confident_predictions():
    random = np.random.default_rng(0)

    def items(number: int) -> Items:
        sequences = random.integers(7, 11, (number, 80)).astype(np.uint8)
        labels = np.arange(number) % 2
        for row in np.flatnonzero(labels):
            place = random.integers(10, 60)
            sequences[row, place : place + 10] = DNA.encode("TGACGTCATT")
        return Items.from_sequences(list(sequences), labels, DNA.vocab.pad_id)

    data = TaskData("motif", ["no", "yes"], items(600), items(100), items(200), stranded=True)
    log_probs = PublishedCNN(DNA, lr=5e-3, epochs=8, batch_size=32).fit_predict(data, 0)
    assert (log_probs.argmax(-1) == data.test.labels).float().mean() > 0.9
    assert log_probs.exp().max() > 0.95  # two sigmoids are limited to 0.73
