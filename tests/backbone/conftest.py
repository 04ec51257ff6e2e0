"""Published networks of tests/parity, filled through the same list of names that reads folders."""

import pytest

from dnadiff.published import published_layout
from dnadiff.vocab import Vocab


@pytest.fixture(scope="session")
def dna():
    """The alphabet of 12 ids."""
    return Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11), complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, 11))


@pytest.fixture(scope="session")
def published(parity):
    """published(network, file name, prefix) -> the file's arrays, after its weights went into the network."""

    def fill(network, name, prefix=""):
        file = parity(name)
        weights = {prefix + key.removeprefix("weights."): value for key, value in file.items() if key.startswith("weights.")}
        published_layout(network.eval()).fill(weights, name)
        return file

    return fill
