"""Per-base information against enumerated conditionals, the windows around each base, and the
files."""

import gzip
import itertools
import math

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import ArrayInput, GenomeInput
from dnadiff.data.records import Interval
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser, MaskedDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.formats import tracks
from dnadiff.formats.regions import Region
from dnadiff.genomics.information import Information, tiles
from dnadiff.jobs.journal import ResumableOutput
from dnadiff.networks.backbone.mamba import Mamba

TOKENIZER = DNATokenizer()
VOCAB = TOKENIZER.vocab
PROCESS = AbsorbingProcess(VOCAB, LogLinear())


class Chain(MaskedDenoiser):
    """The exact conditionals of a stationary first-order Markov chain, as far as a window shows
    them: only the two neighbors matter."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.transition = (
            torch.rand(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3
            + 0.01
        )
        self.transition /= self.transition.sum(1, keepdim=True)
        self.stationary = torch.linalg.matrix_power(self.transition, 200)[0]
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def log_probs(self, xt, t=None, cond=None, positions=None, valid=None):
        known = (xt >= 7) & (xt <= 10)
        bases = (xt - 7).clamp(0, 3)
        left = torch.where(known[..., None], self.transition[bases], self.stationary)
        right = torch.where(known[..., None], self.transition.T[bases], 1.0)
        left = torch.cat([self.stationary.expand(len(xt), 1, 4), left[:, :-1]], 1)
        right = torch.cat([right[:, 1:], torch.ones(len(xt), 1, 4, dtype=torch.float64)], 1)
        probs = left * right
        result = torch.full((*xt.shape, VOCAB.size), -math.inf, dtype=torch.float64)
        result[..., 7:11] = (probs / probs.sum(-1, keepdim=True)).log()
        return result if positions is None else result[positions]

    def joint(self, bases):
        """log p of whole sequences (S, L)."""
        return self.stationary[bases[:, 0]].log() + self.transition[
            bases[:, :-1], bases[:, 1:]
        ].log().sum(1)


def enumerated(joint, ids):
    """2 - H of each position given all others, from the joint distribution: log p of sequences of
    bases (S, L)."""
    bases = torch.as_tensor(ids).long() - 7
    found = []
    for i in range(len(bases)):
        changed = bases.repeat(4, 1)
        changed[:, i] = torch.arange(4)
        p = joint(changed).softmax(0)
        found.append(2 + float((p * p.log2()).sum()))
    return np.array(found)


def both(joint, ids):
    """The mean of `enumerated` over the strands."""
    other = VOCAB.reverse_complement(torch.as_tensor(ids)).numpy()
    return (enumerated(joint, ids) + enumerated(joint, other)[::-1]) / 2


def sequence(length, seed=0):
    return np.random.default_rng(seed).integers(7, 11, length).astype(np.uint8)


@pytest.mark.parametrize(
    ("window", "spacing", "batch_size"), [(8, 2, 3), (9, 4, 32), (64, 2, 5), (200, 7, 32)]
)
def test_information_is_the_enumerated_conditional_entropy_of_every_base(
    window, spacing, batch_size
):
    # Windows are much shorter than the sequences: a base at the border of a window, without a
    # neighbor, would get another value.
    chain, sequences = Chain(), [sequence(150), sequence(3, 1), sequence(61, 2)]
    found = Information(chain, PROCESS, window, spacing, batch_size=batch_size).of_sequences(
        sequences
    )
    for values, ids in zip(found, sequences):
        np.testing.assert_allclose(values, both(chain.joint, ids), atol=1e-6)
    alone = Information(chain, PROCESS, window, spacing, stranded=True).of_sequences(sequences)
    np.testing.assert_allclose(alone[0], enumerated(chain.joint, sequences[0]), atol=1e-6)
    assert np.abs(alone[0] - found[0]).max() > 0.01


def test_information_of_any_distribution_if_single_bases_are_masked(make_oracle):
    every = torch.tensor(list(itertools.product(range(7, 11), repeat=3)))
    weights = (
        torch.rand(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64) ** 3 + 1e-3
    )
    oracle = make_oracle(every, weights / weights.sum(), VOCAB)

    def joint(bases):
        return (weights / weights.sum()).log()[(bases * torch.tensor([16, 4, 1])).sum(1)]

    found = Information(oracle, PROCESS, 3, 3).of_sequences(list(every.numpy()))
    for values, ids in zip(found, every.numpy()):
        np.testing.assert_allclose(values, both(joint, ids), atol=1e-6)


def test_n_has_no_value_and_stays_visible():
    chain, ids = Chain(), sequence(40)
    ids[[0, 20, 21]] = 11
    (found,) = Information(chain, PROCESS, 16, 4, stranded=True).of_sequences([ids])
    assert np.flatnonzero(np.isnan(found)).tolist() == [0, 20, 21]
    np.testing.assert_allclose(found[1:20], enumerated(chain.joint, ids[1:20]), atol=1e-6)


def test_an_autoregressive_model_is_refused():
    with pytest.raises(ValueError, match="goes from left to right"):
        Information(CausalDenoiser(Mamba(VOCAB, d_model=16, n_layers=1)), PROCESS, 8, 2)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 8, 33])
def test_tiles_predict_each_site_once_with_context_on_both_sides(window):
    lengths = [50, 3, 8, 200]
    sites = [
        Interval(0, 0, 50),
        Interval(1, 1, 2),
        Interval(3, 0, 1),
        Interval(3, 5, 120),
        Interval(3, 190, 200),
    ]
    found = list(tiles(sites, lengths, window))
    predicted = [(t.window.record, i) for t in found for i in range(t.low, t.high)]
    assert predicted == [(p.record, i) for p in sites for i in range(p.start, p.end)]
    for (record, start, end), low, high in found:
        assert 0 <= start <= low < high <= end <= lengths[record] and end - start == min(
            window, lengths[record]
        )
        assert low - start >= min(window // 4, low) and end - high >= min(
            window // 4, lengths[record] - high
        )
    starts = [(t.window.record, t.window.start) for t in found]
    assert starts == sorted(starts)


def test_regions_have_the_context_of_the_genome_and_are_merged(tmp_path):
    chain, ids = Chain(), sequence(120)
    (tmp_path / "g.fa").write_text(
        f">b\n{TOKENIZER.decode(sequence(30, 4))}\n>a\n{TOKENIZER.decode(ids)}\n"
    )
    regions = [Region("a", 70, 90), Region("a", 10, 30, strand="-"), Region("a", 25, 40)]
    source, sites = GenomeInput(Genome(tmp_path / "g.fa"), regions).sites()
    assert source.names == ["a:1-120"] and sites == [Interval(0, 10, 40), Interval(0, 70, 90)]
    expected = both(chain.joint, ids)
    for group in Information(chain, PROCESS, 16, 4).along(source, sites):
        for tile, values in group:
            np.testing.assert_allclose(values, expected[tile.low : tile.high], atol=1e-6)


def test_later_tiles_do_not_depend_on_skipped_ones():
    chain, source = Chain(), ArrayInput([sequence(400)])
    information, sites = Information(chain, PROCESS, 8, 2), [Interval(0, 0, 400)]
    every = [one for group in information.along(source, sites) for one in group]
    later = [one for group in information.along(source, sites, 64) for one in group]
    assert len(later) == len(every) - 64 > 0
    assert all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in zip(every[64:], later))


def test_bed_graph_leaves_out_bases_without_a_value():
    values = np.array([np.nan, 0.5, 1.23456, np.nan, 2], np.float32)
    assert (
        tracks.bed_graph("chr1", 3, values)
        == b"chr1\t4\t5\t0.5000\nchr1\t5\t6\t1.2346\nchr1\t7\t8\t2.0000\n"
    )
    assert tracks.bed_graph("chr1", 0, np.full(3, np.nan, np.float32)) == b""


def test_an_unknown_extension_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises(
        ValueError, match=r"per_base x.wig has an unknown extension; known are .bedgraph"
    ):
        tracks.is_big_wig("x.wig")
    monkeypatch.setitem(__import__("sys").modules, "pyBigWig", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[tracks\]'"):
        tracks.is_big_wig("x.bw")


TEXT = {
    "one": "ACGTTGA" * 14,
    "two": "GATTACAGGANNCCATGC",
    "three": "NNNN",
    "four": "ACGTTGATTGACCA" * 3,
}
SETTINGS = ("input=x.fa", "output=s.tsv", "num_draws=2", "spacing=4", "batch_size=1", "window=32")


@pytest.fixture
def records(tmp_path):
    (tmp_path / "x.fa").write_text(
        "".join(f">{name} words\n{letters}\n" for name, letters in TEXT.items())
    )


def values_of(path):
    text = (
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    ).decode()
    return {
        (name, int(start)): float(value)
        for name, start, _, value in map(str.split, text.splitlines())
    }


def test_the_command_writes_the_values_of_the_model(cli, trained, records, tmp_path):
    status, out, err = cli("score", f"checkpoint={trained}", *SETTINGS, "per_base=x.bedgraph.gz")
    assert status == 0, err
    assert "the track is in x.bedgraph.gz" in out
    found = values_of(tmp_path / "x.bedgraph.gz")
    expected = dnadiff.load(trained, device="cpu").information(
        list(TEXT.values()), window=32, spacing=4
    )
    assert [len(values) for values in expected] == [len(letters) for letters in TEXT.values()]
    places = [
        (name, i)
        for name, letters in TEXT.items()
        for i, letter in enumerate(letters)
        if letter != "N"
    ]
    assert list(found) == places
    every = {
        (name, i): value
        for name, values in zip(TEXT, expected)
        for i, value in enumerate(values.tolist())
    }
    assert all(
        found[place] == pytest.approx(every[place], abs=1e-4) and 0 <= found[place] <= 2
        for place in places
    )
    assert np.mean([found["one", i] for i in range(98)]) > np.mean(
        [found["two", i] for i in range(10)]
    )  # trained on repeats of ACGTTGA


@pytest.mark.parametrize(("name", "stops"), [("x.bedgraph", (2, -2)), ("x.bw", (-2,))])
def test_a_killed_command_continues_to_the_same_bytes(
    cli, trained, records, tmp_path, monkeypatch, name, stops
):
    if name == "x.bw":
        pytest.importorskip("pyBigWig")
    letters = "".join(np.random.default_rng(0).choice(list("ACGTN"), 8500))
    (tmp_path / "x.fa").write_text(f">one\n{letters[:8200]}\n>two\n{letters[8200:]}\n")
    append, calls, stop = ResumableOutput.append, [], None

    def counted(self, *args, **notes):
        append(self, *args, **notes)
        calls.append(self.output.name)
        if len(calls) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResumableOutput, "append", counted)
    small = ("window=8", "num_draws=2", "spacing=2", "batch_size=32")  # several groups
    run = ("score", f"checkpoint={trained}", "input=x.fa", *small)
    assert cli(*run, "output=a/s.tsv", f"per_base=a/{name}")[0] == 0
    total, of_table = len(calls), calls.count("s.tsv")
    assert of_table > 2 and total - of_table > 2  # groups
    for number, place in enumerate(stops):
        made = (f"output={number}/s.tsv", f"per_base={number}/{name}")
        stop = place % total
        calls.clear()
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text("of an earlier run")
        assert cli(*run, *made, "overwrite=true")[0] == 130
        stop = None
        status, _, err = cli(*run, *made, "resume=true")
        assert status == 0, err
        assert sorted(p.name for p in (tmp_path / str(number)).iterdir()) == sorted(
            ("s.tsv", "s.tsv.json", name, f"{name}.json")
        )
        for file in ("s.tsv", name):
            assert (tmp_path / "a" / file).read_bytes() == (
                tmp_path / str(number) / file
            ).read_bytes()
    status, out, _ = cli(*run, *made, "resume=true")
    assert status == 0 and "files are in" not in out  # complete already
    status, _, err = cli(*run, *made)
    assert status == 1 and f"{number}/s.tsv exists" in err


def test_big_wig_holds_the_values_of_bed_graph(cli, trained, records, tmp_path):
    library = pytest.importorskip("pyBigWig")
    for name in ("x.bedgraph", "x.bw"):
        assert (
            cli("score", f"checkpoint={trained}", *SETTINGS, f"per_base={name}", "overwrite=true")[
                0
            ]
            == 0
        )
    expected = values_of(tmp_path / "x.bedgraph")
    with library.open(str(tmp_path / "x.bw")) as file:
        assert file.chroms() == {name: len(letters) for name, letters in TEXT.items()}
        for name, letters in TEXT.items():
            for i, value in enumerate(file.values(name, 0, len(letters))):
                assert math.isnan(value) == (letters[i] == "N") and (
                    math.isnan(value) or abs(value - expected[name, i]) < 1e-4
                )


def test_a_track_without_a_known_base_is_a_file_without_values(cli, trained, tmp_path):
    pytest.importorskip("pyBigWig")
    (tmp_path / "x.fa").write_text(">n\nNNNN\n")
    for name in ("x.bedgraph", "x.bw"):
        assert (
            cli("score", f"checkpoint={trained}", *SETTINGS, f"per_base={name}", "overwrite=true")[
                0
            ]
            == 0
        )
    assert (tmp_path / "x.bedgraph").read_bytes() == b"" and (tmp_path / "x.bw").stat().st_size > 0
