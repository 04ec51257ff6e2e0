import pytest
import torch

from dnadiff.diffusion.vocab import Vocab


def test_reverse_complement_reverses_and_swaps():
    vocab = Vocab(5, 4, 4, (4,), complement=(3, 2, 1, 0, 4))
    assert vocab.reverse_complement(torch.tensor([[0, 1, 4, 3]])).tolist() == [[0, 4, 2, 3]]


def test_no_complement_is_an_error_not_a_flip():
    with pytest.raises(ValueError, match="no complement"):
        Vocab(5, 4, 4, (4,)).reverse_complement(torch.tensor([[0]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_id": 9}, "mask_id"),
        ({"never_emitted": (1,)}, "must include mask_id"),
        ({"never_emitted": (0, 1, 2, 3, 4)}, "at least one token"),
        ({"complement": (0, 0, 1, 2, 3)}, "permutation"),
        ({"complement": (1, 2, 0, 3, 4)}, "own inverse"),
    ],
)
def test_contradictory_vocabularies_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Vocab(**({"size": 5, "mask_id": 4, "pad_id": 4, "never_emitted": (4,)} | fields))
