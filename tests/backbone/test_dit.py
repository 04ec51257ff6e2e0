import pytest
import torch

from dnadiff.backbone.dit import DiT
from dnadiff.vocab import Vocab

TEXT = Vocab(33, 32, 32, (32,))


@pytest.fixture
def published(parity):
    file = parity("mdlm_dit")
    network = DiT(TEXT, 64, 2, 4, 16).eval()
    network.load_state_dict({k.removeprefix("weights."): v for k, v in file.items() if k.startswith("weights.") and "inv_freq" not in k})
    return network, file


def test_logits_equal_the_published_network(published):
    network, file = published
    torch.testing.assert_close(network(file["input_ids"], file["sigma"]), file["logits"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(network(file["input_ids"]), file["logits_sigma0"], rtol=1e-5, atol=1e-5)


def test_padding_marked_invalid_changes_nothing(published):
    network, file = published
    ids = file["input_ids"]
    padded = torch.cat([ids, torch.full((2, 5), 32)], 1)
    valid = (torch.arange(29) < 24).expand(2, -1)
    torch.testing.assert_close(network(padded, valid=valid)[:, :24], network(ids), rtol=1e-4, atol=1e-5)


def test_a_new_network_starts_at_zero_logits():
    torch.manual_seed(0)
    assert DiT(TEXT, 16, 2, 2, 8)(torch.tensor([[1, 2]])).abs().sum() == 0


def test_lengths_beyond_its_training_are_refused():
    with pytest.raises(ValueError, match="length 9 exceeds what this DiT was built for"):
        DiT(TEXT, 16, 1, 2, 8, max_length=8)(torch.zeros(1, 9, dtype=torch.int64))


def test_widths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="d_model 15"):
        DiT(TEXT, 15, 1, 2, 8)
