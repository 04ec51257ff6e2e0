"""Columns of an alignment for the items of a task, and classifiers that read them."""

import gzip

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import write_alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.vocab import CHANNELS, complemented
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.columns import PosteriorColumns
from dnadiff.supervised.baselines import LinearProbe
from dnadiff.supervised.classifier import MEAN_HEAD, HeadInputs, build_classifier
from dnadiff.supervised.items import make_batch
from dnadiff.supervised.networks import FineTunedModel
from dnadiff.supervised.saved import compute_digest
from dnadiff.supervised.tasks import CsvTask, GenomicBenchmark, RegionWindows

DNA = DNATokenizer()
SIZE = 4000
LETTERS = np.random.default_rng(0).integers(0, 4, SIZE)
TEXT = "".join("ACGT"[each] for each in LETTERS)
SHIFT = 100 * np.arange(SIZE)[:, None]  # far from each other


def columns_of(inside: np.ndarray) -> np.ndarray:
    """The number of genomes says whether a position is inside; nothing else differs."""
    columns = np.zeros((SIZE, CHANNELS), np.float32)
    columns[:, :8] = np.log(0.25)
    columns[:, 9] = np.where(inside, 4, 1)
    return columns


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A random genome with stretches of 100 bases, every second one inside a region, and an
    alignment that is deeper there."""
    folder = tmp_path_factory.mktemp("items")
    (folder / "g.fa").write_text(f">chr1\n{TEXT}\n")
    inside = np.arange(SIZE) // 100 % 2 == 1
    rows = [f"chr1\t{i}\t{i + 100}\tr\t0\t+\n" for i in range(100, SIZE, 200)]
    (folder / "r.bed").write_text("".join(rows))
    write_alignment(folder / "x.aln", {"chr1": SIZE}, LETTERS, [LETTERS], columns_of(inside))
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """An alignment in which every column differs from every other one."""
    columns = np.random.default_rng(1).random((SIZE, CHANNELS)).astype(np.float16)
    path = tmp_path_factory.mktemp("stored") / "y.aln"
    return write_alignment(path, {"chr1": SIZE}, LETTERS, [LETTERS], columns)


@pytest.fixture
def intervals(tmp_path):
    """Intervals of two classes, on both strands, of 20 and 21 bases."""
    top = tmp_path / "toy"
    (top / "metadata.yaml").parent.mkdir()
    (top / "metadata.yaml").write_text("version: 0\nclasses:\n  a: {}\n  b: {}\n")
    for part, first in (("train", 0), ("test", 2000)):
        for number, name in enumerate("ab"):
            starts = range(first + 1000 * number, first + 1000 * (number + 1), 50)
            rows = "".join(
                f"{i},1,{start},{start + 20 + i % 2},{'+-'[i % 2]}\n"
                for i, start in enumerate(starts)
            )
            (top / part).mkdir(exist_ok=True)
            content = gzip.compress(f"id,region,start,end,strand\n{rows}".encode())
            (top / part / f"{name}.csv.gz").write_bytes(content)
    return top


def place_of(ids: np.ndarray) -> tuple[int, int, bool]:
    """Where a sequence is in the genome, and whether it is on the other strand."""
    text = DNA.decode(ids)
    if (start := TEXT.find(text)) >= 0:
        return start, start + len(text), False
    start = TEXT.find(reverse_complement(text.encode()).decode())
    return start, start + len(text), True


def check_columns(items, stored) -> set[bool]:
    """The strands of the items, whose columns are those of their places."""
    strands = set()
    for i, length in enumerate(items.lengths.tolist()):
        start, end, reverse = place_of(items.ids[i, :length].numpy())
        expected = torch.from_numpy(stored.columns("chr1", start, end, reverse))
        batch = make_batch(items, torch.tensor([i]), DNA.vocab)
        assert torch.equal(batch.cond[0], expected)
        strands.add(reverse)
    return strands


@pytest.mark.parametrize("max_length", [None, 15])
def test_items_of_intervals_have_the_columns_of_their_strand(world, stored, intervals, max_length):
    task = GenomicBenchmark(intervals, genome=world / "g.fa", max_length=max_length)
    data = task.load(DNA, stored)
    for items in (data.train, data.valid, data.test):
        assert items.source.alignment is stored and set(items.lengths.tolist()) == (
            {20, 21} if max_length is None else {15}
        )
    found = set.union(*(check_columns(x, stored) for x in (data.train, data.valid, data.test)))
    assert found == {False, True}
    both = data.train.concatenate(data.test, DNA.vocab.pad_id)
    assert len(both) == 60 - len(data.valid) + 20 and check_columns(both, stored) == found
    check_columns(both.select(torch.tensor([5, 3, 40])), stored)
    plain = task.load(DNA)
    assert plain.train.source is None and plain.train.pieces is None
    assert make_batch(plain.train, torch.tensor([0]), DNA.vocab).cond is None
    about = {"model": "x"}
    assert compute_digest(plain, about) != compute_digest(data, about)


def test_windows_inside_and_outside_regions_have_their_columns(world, stored):
    task = RegionWindows(str(world / "g.fa"), str(world / "r.bed"), length=30, k=12)
    data = task.load(DNA, stored)
    for items in (data.train, data.valid, data.test):
        assert check_columns(items, stored) == {False}
    assert torch.equal(data.train.ids, task.load(DNA).train.ids)


def test_a_reversed_item_has_the_columns_of_the_other_strand(world, stored, intervals):
    items = GenomicBenchmark(intervals, genome=world / "g.fa").load(DNA, stored).train
    index = torch.arange(4)
    lengths, reverse = items.lengths[index], torch.tensor([True, False, True, True])
    plain = make_batch(items, index, DNA.vocab)
    batch = make_batch(items, index, DNA.vocab, reverse)
    assert plain.cond.shape == (4, 21, CHANNELS) and not plain.valid.all()
    for row, length in enumerate(lengths.tolist()):
        own, other = plain.cond[row, :length], batch.cond[row, :length]
        assert torch.equal(other, complemented(own.flip(0)) if reverse[row] else own)


def test_sequences_without_coordinates_and_another_assembly_are_refused(
    world, stored, intervals, tmp_path
):
    (tmp_path / "t.csv").write_text("sequence,label\n" + "ACGT,a\nCCGT,b\n" * 9)
    with pytest.raises(ValueError, match=r"t\.csv has sequences without coordinates"):
        CsvTask(tmp_path / "t.csv").load(DNA, stored)
    (tmp_path / "g.fa").write_text(f">chr1\n{TEXT[::-1]}\n")
    for task in (
        GenomicBenchmark(intervals, genome=tmp_path / "g.fa"),
        RegionWindows(str(tmp_path / "g.fa"), str(world / "r.bed"), length=30),
    ):
        with pytest.raises(ValueError, match="made for another assembly"):
            task.load(DNA, stored)


def network(kind=Caduceus, seed: int = 0, zero: bool = False):
    torch.manual_seed(seed)
    made = kind(DNA.vocab, d_model=16, n_layers=1, d_state=4)
    made.read_columns(PosteriorColumns)
    torch.nn.init.normal_(made.columns.weight, std=0.0 if zero else 0.5)
    return made.eval()


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS])
def test_an_unstranded_classifier_has_the_same_outputs_on_both_strands(world, stored, kind):
    genome = Genome(world / "g.fa")
    task = RegionWindows(str(world / "g.fa"), str(world / "r.bed"), length=30, k=12)
    items = task.load(DNA, stored).test
    head = build_classifier(network(kind), MEAN_HEAD, HeadInputs(), 2, 30, False)
    both = head.predict(items, 4, both_strands=True)
    one = head.predict(items, 4, both_strands=False)
    other = torch.stack(
        [
            head(*make_batch(items, torch.tensor([i]), DNA.vocab, torch.tensor([True]))[:3])[0]
            for i in range(len(items))
        ]
    ).log_softmax(-1)
    if kind is CaduceusPS:
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    mean = torch.stack([one, other]).exp().mean(0).log()
    torch.testing.assert_close(both, mean, atol=1e-5, rtol=1e-3)
    probe = LinearProbe(lambda seed: network(kind), batch_size=4)
    probe.network = network(kind)
    vectors = probe.features(items, False)
    assert vectors.shape == (len(items), 16) and genome.digest
    plain = probe.features(task.load(DNA).test, False)
    assert np.abs(vectors - plain).max() > 1e-3


@pytest.fixture(scope="module")
def data(world):
    """A task whose classes only the columns tell apart, with and without them."""
    from dnadiff.data.alignment import Alignment

    stored = Alignment(world / "x.aln")
    task = RegionWindows(str(world / "g.fa"), str(world / "r.bed"), length=30, stride=10, k=12)
    return {"columns": task.load(DNA, stored), "none": task.load(DNA)}


def accuracy(predictions, data) -> float:
    return float((predictions.argmax(-1) == data.test.labels).double().mean())


def test_features_of_a_frozen_network_and_fine_tuning_use_the_columns(data):
    probe = LinearProbe(lambda seed: network())
    with_columns, without = data["columns"], data["none"]
    assert accuracy(probe.fit_predict(with_columns), with_columns) == 1
    assert accuracy(LinearProbe(lambda seed: network()).fit_predict(without), without) < 0.9
    settings = {"epochs": 3, "batch_size": 8, "mixup": 0.2}
    for head_epochs in (0, 2):
        model = FineTunedModel(lambda seed: network(), 5e-3, head_epochs=head_epochs, **settings)
        assert accuracy(model.fit_predict(with_columns, 1), with_columns) == 1
    assert accuracy(model.fit_predict(without, 1), without) < 0.9
