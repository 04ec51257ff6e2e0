import gzip
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from Bio import SeqIO

from dnadiff.data.base import ProcessRank, TrainLoader
from dnadiff.data.genome.genome import Genome
from dnadiff.data.splits import Interval
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import UniformWindows

DNA = DNATokenizer()


def loader(size=20, batch_size=4, num_workers=0, **process):
    records = [DNA.encode("ACGTTGCANGATC" * 30)]
    return TrainLoader(
        UniformWindows(records, [Interval(0, 0, 390)], 16, size, DNA.vocab, seed=3),
        batch_size,
        num_workers,
        ProcessRank(**process),
    )


def from_file(path, length, num_workers=0, start_method=None, size=60, **options):
    genome = Genome(path)
    intervals = [Interval(number, 0, n) for number, n in enumerate(genome.lengths.values())]
    windows = UniformWindows(
        genome.records, intervals, length, size, DNA.vocab, 3, True, genome.n_runs, 0.1, **options
    )
    return TrainLoader(windows, 4, num_workers, start_method=start_method)


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


def test_an_epoch_has_a_multiple_of_the_batches_of_an_optimizer_step():
    plain, ours = loader(size=18), loader(size=18, accumulated=4)
    first, second = contents(ours), contents(ours)
    assert len(ours) == len(first) == len(second) == 8
    assert first[:5] == contents(plain) and second[:5] == contents(plain)
    ids = [ids for _, ids in first + second]
    assert all(ids.count(each) == 1 for each in ids)  # further windows


def test_the_batches_after_all_windows_are_those_of_an_epoch_of_their_own():
    asked = []
    source = SimpleNamespace(size=6, batch=lambda *key: asked.append(key))
    list(TrainLoader(source, 2, process=ProcessRank(1, 3, accumulated=3)))
    assert source.size == 6 and asked == [(number << 32, 1, 2, 3) for number in range(3)]


def test_a_step_is_resumed_at_its_first_batch():
    ours = loader(accumulated=4, progress=lambda: (6, 8))
    expected = contents(ours)
    assert ours.state_dict() == {"epoch": 0, "batch": 4}
    again = loader(accumulated=4)
    again.load_state_dict({"epoch": 0, "batch": 6})  # of an older version
    assert contents(again) == expected[4:]


def test_workers_change_nothing():
    alone, pair = loader(), loader(num_workers=2)
    for _ in range(2):
        assert contents(alone) == contents(pair)


def test_ranks_share_an_epoch_and_no_window_occurs_twice():
    alone = [row for batch in contents(loader(batch_size=4)) for row in zip(*batch)]
    ranks = [contents(loader(batch_size=2, rank=r, world_size=2)) for r in range(2)]
    together = [
        row
        for pair in zip(*ranks)
        for rows in zip(*(zip(*batch) for batch in pair))
        for row in rows
    ]
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


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
@pytest.mark.parametrize(
    ("start_method", "workers"),
    [("fork", (2, 4)), pytest.param("spawn", (1, 4), marks=pytest.mark.slow)],
)
def test_workers_of_either_kind_give_the_same_windows_as_biopython(tmp_path, start_method, workers):
    # Two gzip files and soft-masking; what is compared is the multiset of (index, window) of an
    # epoch.
    texts = {
        f"r{i}": "".join(
            "ACGTacgtN"[(j * j + i * j // 3) % 9] if j % 97 else "NNN" for j in range(900)
        )
        for i in range(4)
    }
    for half in (0, 1):
        body = "".join(
            f">{name}\n{text}\n" for name, text in list(texts.items())[2 * half : 2 * half + 2]
        )
        (tmp_path / f"{half}.fa.gz").write_bytes(gzip.compress(body.encode()))
    ours = {n: from_file(tmp_path, 16, n, start_method if n else None) for n in (0, *workers)}
    seen = {
        n: Counter(str(row) for batch in contents(loader) for row in zip(*batch))
        for n, loader in ours.items()
    }
    assert all(seen[n] == seen[0] for n in workers) and sum(seen[0].values()) == 60
    windows, records = ours[0].windows, {}
    for half in (0, 1):
        with gzip.open(tmp_path / f"{half}.fa.gz", "rt") as handle:
            records |= {r.id: r.seq.upper() for r in SeqIO.parse(handle, "fasta")}
    names = list(texts)
    for index in range(60):
        record, start, reverse = (each.tolist()[0] for each in windows.places(0, np.array([index])))
        part = records[names[record]][start : start + 16]
        letters = str(part.reverse_complement() if reverse else part)
        assert (
            DNA.decode(windows[0, index]["ids"]) == letters
            and str((index, windows[0, index]["ids"].tolist())) in seen[0]
        )


def test_chr20_is_what_biopython_reads(shared_data):
    path = shared_data / "genomes" / "GRCh37_chr20.fa.gz"
    windows = from_file(path, 1024, size=400).windows
    with gzip.open(path, "rt") as handle:
        (record,) = SeqIO.parse(handle, "fasta")
    for index in range(400):
        _, start, reverse = (each.tolist()[0] for each in windows.places(5, np.array([index])))
        part = record.seq[start : start + 1024].upper()
        assert DNA.decode(windows[5, index]["ids"]) == str(
            part.reverse_complement() if reverse else part
        )
