"""Networks with the weights of tests/parity, loaded by the same list of names that reads published
folders."""

import pytest

from dnadiff.diffusion.vocab import Vocab
from dnadiff.weights import tensors


@pytest.fixture(scope="session")
def dna():
    """The DNA vocabulary of 12 ids."""
    return Vocab(
        12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11), complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11)
    )


@pytest.fixture(scope="session")
def published(parity):
    """published(network, file name, prefix) copies the weights of a file into a network and returns
    its arrays."""

    def fill(network, name, prefix=""):
        file = parity(name)
        weights = {
            prefix + key.removeprefix("weights."): value
            for key, value in file.items()
            if key.startswith("weights.")
        }
        tensors.fill(network.eval().published_layout(), weights, name)
        return file

    return fill
