import numpy as np
import pytest

from dnadiff.data.genome.datamodule import ShortSequenceDataModule
from dnadiff.genomics.metrics.memorization import held_out_windows


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    records = ["".join(rng.choice(list("ACGT"), size=40 + number % 21)) for number in range(120)]
    (tmp_path / "x.fa").write_text(
        "".join(f">s{i}\n{record}\n" for i, record in enumerate(records))
    )
    return ShortSequenceDataModule(tmp_path / "x.fa", length=64, batch_size=4)


@pytest.mark.parametrize("length", [45, 55])
def test_windows_of_complete_sequences_have_the_requested_length_and_no_padding(data, length):
    windows = held_out_windows(data, "test", length)
    long_enough = [
        i for i in data.intervals["test"] if len(data.open().records[i.record]) >= length
    ]
    assert len(windows) == len(long_enough) and {len(bases) for bases in windows} == {length}
    assert max(bases.max() for bases in windows) < 4


def test_sequences_that_are_too_short_are_refused(data):
    with pytest.raises(ValueError, match="no interval of 64 bases"):
        held_out_windows(data, "test", 64)
