import pytest
import torch

from dnadiff.data.loader import TrainLoader
from dnadiff.data.splits import Interval
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import TrainWindows

DNA = DNATokenizer()


def loader(size=20, batch_size=4, **options):
    records = [DNA.encode("ACGTTGCANGATC" * 30)]
    return TrainLoader(TrainWindows(records, [Interval(0, 0, 390)], 16, size, DNA.vocab, seed=3), batch_size, **options)


def contents(batches):
    return [(b["index"].tolist(), b["ids"].tolist()) for b in batches]


def test_a_batch_is_three_small_tensors():
    batch = next(iter(loader()))
    assert {k: (v.dtype, tuple(v.shape)) for k, v in batch.items()} == {
        "ids": (torch.uint8, (4, 16)),
        "weight": (torch.uint8, (4, 16)),
        "index": (torch.int64, (4,)),
    }


def test_epochs_differ_and_are_made_of_whole_batches():
    ours = loader(size=18)
    first, second = contents(ours), contents(ours)
    assert len(ours) == len(first) == len(second) == 5
    assert [i for index, _ in first for i in index] == list(range(20)) and first != second


def test_workers_change_nothing():
    alone, pair = loader(), loader(num_workers=2)
    for _ in range(2):
        assert contents(alone) == contents(pair)


def test_ranks_share_an_epoch_and_no_window_occurs_twice():
    alone = [row for batch in contents(loader(batch_size=4)) for row in zip(*batch)]
    ranks = [contents(loader(batch_size=2, rank=r, world_size=2)) for r in range(2)]
    together = [row for pair in zip(*ranks) for batch in pair for row in zip(*batch)]
    assert together == alone


@pytest.mark.parametrize("left_after", range(11))
def test_a_loader_left_anywhere_goes_on_from_there(left_after):
    whole = loader()
    expected = contents(whole) + contents(whole)
    left = loader()
    seen = []
    while len(seen) < left_after:
        for batch in left:
            seen += contents([batch])
            if len(seen) == left_after:
                break
    resumed = loader()
    resumed.load_state_dict(left.state_dict())
    while len(seen) < 10:
        seen += contents(resumed)
    assert seen == expected


def test_batches_draw_nothing_from_the_global_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    contents(loader())
    assert torch.equal(before, torch.get_rng_state())
