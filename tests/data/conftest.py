"""What the tests of data share."""

import pytest

from dnadiff.data.genome.genome import Genome


@pytest.fixture(scope="session")
def make_genome(tmp_path_factory):
    """Opens a genome of {name: letters}."""
    folder = tmp_path_factory.mktemp("genomes")

    def make(**records):
        (folder / "g.fa").write_text(
            "".join(f">{name}\n{letters}\n" for name, letters in records.items())
        )
        return Genome(folder / "g.fa")

    return make
