"""What reads the columns of an alignment next to sequences: likelihoods, information, embeddings,
samples."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff.data.alignment import Alignment, write_alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import GenomeInput
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.request import Infill
from dnadiff.diffusion.denoiser import CausalDenoiser, Denoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.vocab import CHANNELS, COMPLEMENT
from dnadiff.formats.regions import Region
from dnadiff.genomics.information import Information
from dnadiff.genomics.scores import ScoreJob
from dnadiff.model import Model
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.columns import PosteriorColumns
from dnadiff.supervised.embeddings import EmbedJob
from dnadiff.weights.loaded import Loaded

DNA = DNATokenizer()
LENGTH = 80
TEXT = "".join(np.random.default_rng(0).choice(list("ACGT"), LENGTH))


def columns_of(length: int, seed: int = 0) -> np.ndarray:
    """Posteriors and frequencies that sum to 1, with numbers that float16 rounds."""
    random = np.random.default_rng(seed)
    log_p = np.log(random.dirichlet([0.5] * 4, (length, 2)) + 1e-3)
    log_p -= np.logaddexp.reduce(log_p, -1, keepdims=True)
    rest = random.random((length, 2))
    return np.concatenate([log_p.reshape(length, 8), rest], 1).astype(np.float32)


@pytest.fixture
def genome(tmp_path) -> Genome:
    (tmp_path / "g.fa").write_text(f">chr1\n{TEXT}\n>other\n{TEXT[::-1]}\n")
    return Genome(tmp_path / "g.fa")


@pytest.fixture
def stored(tmp_path) -> Alignment:
    target = ["ACGT".index(base) for base in TEXT]
    return write_alignment(
        tmp_path / "x.aln", {"chr1": LENGTH}, target, [target], columns_of(LENGTH)
    )


def model(kind=Caduceus, predicts=True, reads=True, **settings) -> Model:
    """An untrained model; unless it `predicts`, its head is zero, and the columns decide."""
    torch.manual_seed(0)
    network = kind(DNA.vocab, d_model=16, n_layers=1, **settings)
    if reads:
        network.read_columns(PosteriorColumns)
        torch.nn.init.normal_(network.columns.weight)
    if not predicts:
        for name, parameter in network.named_parameters():
            if name.startswith(("embedding", "lm_head")):  # tied to the head
                torch.nn.init.zeros_(parameter)
    wrap = CausalDenoiser if kind is Mamba else Denoiser
    process = AbsorbingProcess(DNA.vocab, LogLinear())
    config = {"data": {"length": 32}}
    return Model(Loaded(wrap(network).eval(), process, DNA, config, Path("x.ckpt"), 1))


def aligned(genome, stored, *regions: Region) -> GenomeInput:
    source = GenomeInput(genome, regions)
    source.align(stored)
    return source


def score_job(one: Model, source, **settings) -> ScoreJob:
    settings = {"window": 32, "batch_size": 4, "num_draws": 4, "seed": 1, **settings}
    return ScoreJob(one.loaded, source, Path("s.tsv"), **settings)


def nats_of(job: ScoreJob, start: int = 0) -> np.ndarray:
    """Nats, variance and counted bases of each window."""
    return np.concatenate([np.frombuffer(r.content).reshape(-1, 3) for r in job.results(start)])


def cross_entropy(columns: np.ndarray, text: str) -> float:
    """-log of the posterior of each base, summed; float16 rounds what sums to one."""
    log_p = torch.from_numpy(columns[:, :4]).log_softmax(-1).numpy()
    return -sum(row["ACGT".index(base)] for row, base in zip(log_p, text))


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS, Mamba])
@pytest.mark.parametrize("strand", "+-")
def test_score_of_a_zero_head_is_the_cross_entropy_of_the_posterior(genome, stored, kind, strand):
    source = aligned(genome, stored, Region("chr1", 3, 74, strand=strand))
    found = nats_of(score_job(model(kind, predicts=False), source, num_draws=128))
    assert len(found) == 3 and found[:, 2].sum() == 71
    expected = cross_entropy(stored.columns("chr1", 3, 74), TEXT[3:74])  # on either strand
    error = max(4 * found[:, 1].sum() ** 0.5, 1e-3)  # a model that goes from left to right has none
    assert found[:, 0].sum() == pytest.approx(expected, abs=error) and error < 0.1 * expected


def test_a_score_depends_on_the_columns_and_continues_where_it_stopped(genome, stored):
    regions = [Region("chr1", i, i + 20, strand="+-"[i % 2]) for i in range(50)]
    one, source = model(), aligned(genome, stored, *regions)
    with_columns = nats_of(score_job(one, source))
    without = nats_of(score_job(one, GenomeInput(genome, regions)))
    assert not np.isclose(with_columns[:, 0], without[:, 0], rtol=1e-4).any()
    np.testing.assert_allclose(nats_of(score_job(one, source), 17), with_columns[17:], rtol=1e-6)


def test_a_record_without_columns_is_read_as_without_an_alignment(genome, stored):
    regions = [Region("other", 5, 40), Region("other", 0, 30, strand="-")]
    one = model()
    found = nats_of(score_job(one, aligned(genome, stored, *regions)))
    np.testing.assert_array_equal(found, nats_of(score_job(one, GenomeInput(genome, regions))))
    zeros = [np.zeros((35, CHANNELS), np.float32)]
    text = TEXT[::-1][5:40]
    assert one.nll([text], columns=zeros) == one.nll([text])


def test_an_alignment_is_part_of_the_settings_of_a_job(genome, stored, tmp_path):
    region = Region("chr1", 0, 20)
    one, plain = model(), GenomeInput(genome, [region])
    source = aligned(genome, stored, region)
    assert score_job(one, source).settings["alignment"] == stored.identity
    assert "alignment" not in score_job(one, plain).settings
    kind = {"pool": "mean", "layer": None, "stranded": False, "dtype": "float32", "batch_size": 2}
    job = EmbedJob(one.loaded, source, tmp_path / "e.npz", **kind)
    assert job.settings["alignment"] == stored.identity and "alignment" not in job.about


@pytest.mark.parametrize("kind", [Caduceus, Mamba, DiT])
def test_nll_with_columns_is_what_score_computes(genome, stored, kind):
    settings = {"n_heads": 2, "cond_dim": 8} if kind is DiT else {}
    one = model(kind, **settings)
    columns = stored.columns("chr1", 4, 34, reverse=True)
    text = DNA.decode(genome.window("chr1", 4, 34, "-"))
    source = aligned(genome, stored, Region("chr1", 4, 34, strand="-"))
    [[nats, *_]] = nats_of(score_job(one, source, num_draws=128))
    found = one.nll([text], num_draws=128, columns=[columns])[0]
    assert found * 30 == pytest.approx(nats, rel=0.03)
    assert abs(one.nll([text], num_draws=128)[0] / found - 1) > 1e-3
    for wrong in ([columns[1:]], columns, [columns, columns], [columns[:, :9]]):
        with pytest.raises(ValueError, match="columns must be an array of each sequence") as error:
            one.nll([text], columns=wrong)
        assert len(str(error.value)) < 200
    assert one.nll([text], num_draws=128, columns=[columns.tolist()])[0] == found


def test_a_model_that_reads_no_alignment_refuses_columns():
    with pytest.raises(ValueError, match="this Caduceus reads no alignment"):
        model(reads=False).nll([TEXT], columns=[columns_of(LENGTH)])


@pytest.mark.parametrize("stranded", [True, False])
def test_information_of_a_zero_head_is_that_of_the_posterior(genome, stored, stranded):
    one = model(predicts=False)
    source = aligned(genome, stored, Region("chr1", 10, 60, strand="-"), Region("other", 0, 9))
    information = Information(one.denoiser, one.process, 24, 4, stranded)
    whole, sites = source.sites()
    found = {}
    for tile, values in (pair for group in information.along(whole, sites) for pair in group):
        found |= dict(zip(range(tile.low, tile.high), values)) if not tile.window.record else {}
    log_p = torch.from_numpy(stored.columns("chr1", 10, 60)[:, :4]).double().log_softmax(-1)
    expected = 2 + (log_p.exp() * log_p).sum(-1) / np.log(2)
    np.testing.assert_allclose([found[i] for i in range(10, 60)], expected, atol=1e-5)


def test_information_of_sequences_is_that_of_the_same_records(genome, stored):
    one, columns = model(), stored.columns("chr1", 0, LENGTH)
    texts = ["ACGTTGA", TEXT]
    given = [np.zeros((7, CHANNELS)), columns]
    found = one.information(texts, window=24, spacing=8, columns=given)
    assert [len(each) for each in found] == [7, LENGTH]
    plain = one.information(texts, window=24, spacing=8)
    np.testing.assert_array_equal(found[0], plain[0])
    assert np.abs(found[1] - plain[1]).max() > 1e-3
    source = aligned(genome, stored, Region("chr1", 0, LENGTH))
    information = Information(one.denoiser, one.process, 24, 8)
    values = [v for group in information.along(*source.sites()) for _, v in group]
    np.testing.assert_allclose(np.concatenate(values), found[1], atol=1e-5)


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS, Mamba])
@pytest.mark.parametrize("pool", ["mean", "none"])
def test_embeddings_of_both_strands_of_a_region_are_equal(genome, stored, tmp_path, kind, pool):
    regions = [Region("chr1", 3, 40), Region("chr1", 3, 40, strand="-"), Region("chr1", 0, 9)]
    one = model(kind)
    job = EmbedJob(
        one.loaded,
        aligned(genome, stored, *regions),
        tmp_path / "e.npz",
        batch_size=2,
        pool=pool,
        layer=None,
        stranded=False,
        dtype="float32",
    )
    content = b"".join(result.content for result in job.results())
    values = np.frombuffer(content, np.float32).reshape(-1, job.embedder.width)
    forward, reverse, short = np.split(values, job.offsets[1:-1])
    if pool == "mean":
        forward, reverse, short = (each[0] for each in (forward, reverse, short))
    other = reverse[::-1] if pool == "none" else reverse
    np.testing.assert_allclose(forward, other, atol=1e-5)
    texts = [DNA.decode(genome.window(r.chrom, r.start, r.end, r.strand)) for r in regions]
    columns = [stored.columns(r.chrom, r.start, r.end, r.strand == "-") for r in regions]
    found = one.embed(texts, pool=pool, batch_size=3, columns=columns)
    for one_vector, expected in zip(found, (forward, reverse, short)):
        np.testing.assert_allclose(one_vector, expected, atol=1e-5)
    assert np.abs(one.embed(texts, pool=pool)[0] - forward).max() > 1e-3


def test_samples_of_a_zero_head_have_the_frequencies_of_the_posterior(stored):
    one, columns = model(predicts=False), stored.columns("chr1", 0, 12)
    samples = one.sample(4000, columns=columns, sampler=Grouped(num_groups=4), batch_size=1000)
    found = np.array([[list(s)[i] for s in samples] for i in range(12)])
    frequency = np.stack([(found == base).mean(1) for base in "ACGT"], 1)
    p = torch.from_numpy(columns[:, :4]).softmax(-1).numpy()
    assert np.abs(frequency - p).max() < 5 * (0.25 / 4000) ** 0.5
    with pytest.raises(ValueError, match=r"cond has shape \(1, 12, 10\), expected \(1, 20, 10\)"):
        one.sample(1, length=20, columns=columns)


def test_a_sharp_posterior_is_copied_by_every_kind_of_request(genome, stored, tmp_path):
    """Columns that name one base each: every sample is that sequence, on its strand."""
    named = "".join(np.random.default_rng(5).choice(list("ACGT"), LENGTH))
    columns = columns_of(LENGTH)
    columns[:, :4] = -30
    columns[np.arange(LENGTH), ["ACGT".index(base) for base in named]] = 0
    sharp = write_alignment(
        tmp_path / "sharp.aln", {"chr1": LENGTH}, [0] * LENGTH, [[0] * LENGTH], columns
    )
    other = named[::-1].translate(str.maketrans("ACGT", "TGCA"))
    regions = [Region("chr1", 10, 31), Region("chr1", 40, 77, strand="-")]
    for kind in (Caduceus, Mamba):
        one = model(kind, predicts=False)
        request = Infill(genome, regions, 2, None, alignment=sharp)
        assert request.lengths == (21, 37)
        generator = one.conditional_sampler(one.default_sampler(37), request)
        found = generator.designs(request, seed=1, batch_size=3)
        assert found == [named[10:31]] * 2 + [other[LENGTH - 77 : LENGTH - 40]] * 2
        generator.num_draws = 2
        bounds = generator.designs(request, seed=1, batch_size=4)
        assert all(each.log_prob == pytest.approx(0, abs=1e-3) for each in bounds)
    one = model(predicts=False)
    request = Infill(genome, [Region("chr1", 30, 40, strand="-")], 1, 24, alignment=sharp)
    [design] = one._designs(one.conditional_sampler(None, request), request, 1, 4, None, 0)
    flanks = DNA.decode(genome.window("chr1", 23, 47, "-"))
    expected = other[LENGTH - 40 : LENGTH - 30]
    assert design == flanks[:7] + expected + flanks[17:]
    [whole] = one.infill(TEXT, 30, 40, length=24, columns=columns)
    assert whole == TEXT[:30] + named[30:40] + TEXT[40:]


def test_complement_is_its_own_inverse():
    assert [COMPLEMENT[i] for i in COMPLEMENT] == list(range(CHANNELS))
