import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyfaidx
import pytest
import torch
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

import dnadiff
from dnadiff.data.genome.inputs import ArrayInput
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.scores import ScoreJob
from dnadiff.model import Model
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.backbone.transformer import Transformer
from dnadiff.score import score
from dnadiff.weights.loaded import Loaded


@pytest.fixture(scope="module")
def model(trained):
    return dnadiff.load(trained, device="cpu")


def test_samples_are_strings_of_bases(model):
    samples = model.sample(5, length=70, seed=1)
    assert (
        [len(s) for s in samples] == [70] * 5
        and set("".join(samples)) <= set("ACGT")
        and len(set(samples)) > 1
    )
    assert model.sample(5, length=70, seed=1) == samples != model.sample(5, length=70, seed=2)
    assert model.sample(n=2, length=70, seed=1) == samples[:2]


def test_every_call_draws_new_sequences_and_says_their_seed(model):
    one, two = (model.sample(3, length=40) for _ in range(2))
    assert one != two and model.sample(3, length=40, seed=one.seed) == one
    text = "ACGTTGA" * 6
    filled = model.infill(text, 10, 30, num_draws=0)
    again = model.infill(text, 10, 30, num_draws=0, seed=filled.seed)
    assert filled == again and again.seed == filled.seed is not None
    designed = model.design(lambda texts: [t.count("G") for t in texts], length=12, num_draws=0)
    assert designed.seed is not None


def test_loops_show_their_progress_if_asked(model, capsys):
    two = ["ACGTTGAC", "TTGACATT"]
    genome = {"a": "ACGTTGACATTGACCA" * 4}
    small = {"length": 8, "num_draws": 0}
    loops = {
        "sample": lambda **more: model.sample(2, length=8, **more),
        "nll": lambda **more: model.nll(two, **more),
        "score": lambda **more: model.score(two, **more),
        "embed": lambda **more: model.embed(two, **more),
        "information": lambda **more: model.information(two, **more),
        "unguided": lambda **more: model.design(lambda s: [1.0] * len(s), **small, **more),
        "variants": lambda **more: model.saturate("a:20-24", genome, **more),
    }
    infill = {"sample ": lambda **more: model.infill("ACGTTGACA", 3, 6, **more)}
    for name, loop in [*loops.items(), *infill.items()]:
        loop()
        assert capsys.readouterr().err == ""
        loop(progress=True)
        shown = capsys.readouterr().err
        assert name in shown and ("100%" in shown or name == "variants")  # of unknown length


def test_a_low_temperature_gives_probable_samples(model):
    sampler = SemiAR(Grouped(4))
    cold, hot = (
        model.sample(4, length=70, seed=1, temperature=t, sampler=sampler) for t in (0.1, 3.0)
    )
    assert model.nll(cold).mean() < model.nll(hot).mean()
    assert (sampler.temperature, sampler.sampler.temperature) == (1, 1)
    same = model.sample(2, length=20, seed=1, temperature=1.0)
    assert same == model.sample(2, length=20, seed=1)
    with pytest.raises(ValueError, match="temperature 0 must be"):
        model.sample(temperature=0)


def test_designs_are_written_as_fasta(model, tmp_path):
    designs = model.sample(2, length=30, num_draws=2)
    designs.to_fasta(tmp_path / "x.fa")
    one, two = read_sequences(tmp_path / "x.fa")
    assert [one.sequence.decode(), two.sequence.decode()] == designs
    assert (one.name, two.name) == ("design_1", "design_2")
    assert one.description == f"log_weight=0 log_prob={designs[0].log_prob:.6g}"
    with pytest.raises(FileExistsError):
        designs.to_fasta(tmp_path / "x.fa")


def test_scores_are_those_of_the_command(model, trained, tmp_path):
    texts = {"NA": "ACGTTGA" * 30, "2": "NNNN", "3": "ccgta" * 20}
    (tmp_path / "x.fa").write_text("".join(f">{name}\n{text}\n" for name, text in texts.items()))
    options = {"checkpoint": str(trained), "num_draws": 2, "accelerator": "cpu"}
    written = score(**options, input=str(tmp_path / "x.fa"), output=str(tmp_path / "s.tsv"))
    found = model.score(texts, num_draws=2)
    assert list(found.name) == list(texts) and np.isnan(found.nats_per_base[1])
    assert found.drop(columns="name").equals(written.frame.drop(columns="name"))
    where = "NA:11-150"
    of_region = score(
        **options, genome=str(tmp_path / "x.fa"), regions=where, output=str(tmp_path / "r.tsv")
    )
    genome = dnadiff.Genome(tmp_path / "x.fa")
    assert model.score(where, genome, num_draws=2).equals(of_region.frame)


def test_a_region_is_saturated(model):
    genome = {"chr": "ACGTTGA" * 10}
    found = model.saturate("chr:2-3", genome, deletions=True)
    rows = [("chr", pos, ref, alt) for pos, ref, alt in zip(found.pos, found.ref, found.alt)]
    snvs = [
        (2, "C", "A"),
        (2, "C", "G"),
        (2, "C", "T"),
        (3, "G", "A"),
        (3, "G", "C"),
        (3, "G", "T"),
    ]
    assert sorted(row[1:] for row in rows) == sorted([*snvs, (1, "AC", "A"), (2, "CG", "C")])
    assert found.LLR.tolist() == model.variants(rows, genome).LLR.tolist()
    assert found.attrs["region"] == "chr:2-3"


def test_a_model_is_pushed_to_the_hub(model):
    calls = []

    class Hub:
        def create_repo(self, *given, **options):
            calls.append((given, options))

        def upload_folder(self, repo_id, folder_path):
            calls.append((repo_id, sorted(path.name for path in folder_path.iterdir())))
            return SimpleNamespace(oid="c" * 40)

    assert model.push_to_hub("lab/phages", license="mit", api=Hub()) == f"hf:lab/phages@{'c' * 40}"
    files = ["README.md", "config.json", "dnadiff.json", "model.safetensors"]
    assert calls == [(("lab/phages",), {"private": True, "exist_ok": True}), ("lab/phages", files)]

    class Refusing(Hub):
        def create_repo(self, *given, **options):
            raise OSError("401 Unauthorized")

    with pytest.raises(
        ValueError, match=r"hf:lab/x could not be written \(401 Unauthorized\); log"
    ):
        model.push_to_hub("lab/x", api=Refusing())


def test_models_are_listed_and_moved(model):
    assert "ecoli" in dnadiff.list_models()
    assert model.to("cpu") is model and model.device.type == "cpu"


def test_nll_takes_strings_and_records_of_any_length(model):
    text = "ACGTTGA" * 10
    values = model.nll(
        [text, SeqRecord(Seq(text.lower()), id="a"), "CCCCCCCC", "NNNN"], num_draws=16
    )
    assert values.shape == (4,) and np.isnan(values[3])
    assert values[0] < 1.2 < values[2]  # trained on repeats of ACGTTGA; 1.386 is guessing
    assert values[1] == pytest.approx(values[0], abs=0.3)


def test_a_data_frame_has_a_column_of_sequences(model):
    texts = ["ACGTTGA" * 4, "CCGTA" * 4]
    frame = pd.DataFrame({"sequence": texts, "label": [0, 1]}, index=["x", "y"])
    assert model.nll(frame).tolist() == model.nll(texts).tolist()
    assert list(model.embed(frame).to_frame().index) == ["x", "y"]
    named = frame.assign(name=["one", "two"])
    assert list(model.embed(named).to_frame().index) == ["one", "two"]
    with pytest.raises(TypeError, match="without a column sequence \\(it has a\\); rename the one"):
        model.nll(pd.DataFrame({"a": texts}))


def test_nll_of_a_sequence_does_not_depend_on_its_company(model):
    one, two = "ACGTTGA" * 10, "CCGTA" * 14
    together = model.nll([two, one, two])
    assert together[1] == pytest.approx(model.nll([one])[0], rel=1e-6) and together[
        0
    ] == pytest.approx(together[2], rel=1e-6)
    assert (
        together[1]
        == pytest.approx(model.nll([one, two], batch_size=1)[0], rel=1e-6)
        != model.nll([one], seed=2)[0]
    )


def autoregressive(tokenizer, backbone=Mamba, **settings):
    """An untrained autoregressive model, as `load` would return it."""
    torch.manual_seed(0)
    denoiser = CausalDenoiser(backbone(tokenizer.vocab, d_model=16, n_layers=1, **settings)).eval()
    config = {"data": {"length": 64}}
    return Model(
        Loaded(
            denoiser,
            AbsorbingProcess(tokenizer.vocab, LogLinear()),
            tokenizer,
            config,
            Path("x.ckpt"),
            1,
        )
    )


def by_the_chain_rule(model, ids):
    """-log p of `ids (L,)`, one token at a time, summed."""
    with torch.no_grad():
        log_probs = model.denoiser.next_log_probs(torch.as_tensor(ids).long()[None])[0]
    emitted = model.tokenizer.vocab.is_emitted()[torch.as_tensor(ids).long()]
    return -log_probs.gather(-1, torch.as_tensor(ids).long()[:, None])[emitted].sum().item(), int(
        emitted.sum()
    )


def test_nll_of_an_autoregressive_model_is_the_chain_rule_and_what_score_computes():
    model = autoregressive(DNATokenizer())
    sequences = [
        "ACGTTGACCN" * 3,
        "GATTACA",
        "NNN",
        "ACGTTGA" * 200,
    ]  # the last one has 1,400 tokens
    found = model.nll(sequences)
    assert np.isnan(found[2]) and np.array_equal(
        found, model.nll(sequences, num_draws=2, seed=9), equal_nan=True
    )
    ids = [model.tokenizer.encode(s) for s in sequences]
    source = ArrayInput(ids)
    job = ScoreJob(
        model.loaded, source, Path("s.tsv"), window=2000, batch_size=2, num_draws=8, seed=1
    )
    table = b"".join(job.fold(found)[0] for found in job.results()).decode()
    rows = [line.split("\t") for line in table.splitlines()]
    for i in (0, 1, 3):
        total, tokens = by_the_chain_rule(model, ids[i])
        assert (
            found[i]
            == pytest.approx(total / tokens, rel=1e-5)
            == pytest.approx(float(rows[i][3]), abs=1e-6)
            and float(rows[i][5]) == 0
        )


@pytest.mark.parametrize("size", [100, 1030])
def test_nll_of_an_autoregressive_model_with_any_vocabulary(size):
    # From 1,024 tokens on losses compute no logits.
    letters = "".join(chr(0x4E00 + i) for i in range(size))
    model = autoregressive(CharTokenizer(letters), Transformer, n_heads=2, max_length=64)
    assert model.denoiser.fused_head == (size >= 1024)
    text = letters[3:40]
    total, tokens = by_the_chain_rule(model, model.tokenizer.encode(text))
    assert model.nll([text])[0] == pytest.approx(total / tokens, rel=1e-5)
    with pytest.raises(ValueError, match="goes from left to right"):
        model.denoiser.require_any_order("unmasking")


def test_embeddings_tell_sequences_apart(model):
    vectors = model.embed(["ACGTTGA" * 10, "ACGTTGA" * 10, "C" * 30])
    assert vectors.shape == (3, 16) and vectors.dtype == np.float32
    assert np.array_equal(vectors[0], vectors[1]) and not np.allclose(vectors[0], vectors[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.sample(0), "n 0"),
        (lambda m: m.sample(1, length=0), "length 0"),
        (lambda m: m.nll(["A", ""]), "sequence 1 has an empty sequence"),
        (lambda m: m.nll(["ACGZ"]), "'Z' at position 4"),
        (lambda m: m.sample(1, batch_size=0), "batch_size 0"),
        (lambda m: m.nll(["ACGT"], batch_size=0), "batch_size 0"),
        (lambda m: m.embed(["ACGT"], batch_size=0), "batch_size 0"),
        (lambda m: m.embed(["ACGT"], dtype="int8"), "dtype 'int8'"),
        (lambda m: m.information(["ACGT"], batch_size=0), "batch_size 0"),
        (lambda m: m.sample(1, seed=1.5), "seed 1.5"),
        (lambda m: m.design(len, length=0), "length 0"),
        (lambda m: m.embed(["A"] * 100 + ["AC-GT"]), "sequence 100: letter '-' at position 3"),
        (lambda m: m.information({"A": "AC", "C": "A!"}), "sequence C: letter '!' at position 2"),
    ],
)
def test_impossible_requests_are_refused(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


@pytest.mark.parametrize(
    "given",
    [
        {"A": "ACGTTGA", "C": "GGGTTGA"},  # the keys are letters of nucleotides too
        pd.Series(["ACGTTGA", "GGGTTGA"], ["A", "C"]),
        np.array(["ACGTTGA", "GGGTTGA"]),
        (text for text in ("ACGTTGA", "GGGTTGA")),
        [b"ACGTTGA", bytearray(b"GGGTTGA")],
        SeqIO.to_dict(SeqRecord(Seq(text), id=text) for text in ("ACGTTGA", "GGGTTGA")),
    ],
)
def test_the_sequences_in_a_collection_are_read_and_not_its_keys(model, given):
    expected = model.embed(["ACGTTGA", "GGGTTGA"])
    np.testing.assert_array_equal(model.embed(given), expected)


def test_keys_and_indices_become_names(model):
    assert list(model.embed({"A": "ACGT", "C": "GG"}).to_frame().index) == ["A", "C"]
    series = pd.Series(["ACGT", "GG"], [4, 9])
    assert list(model.embed(series).to_frame().index) == ["4", "9"]


def test_an_iterator_of_biopython_is_several_sequences(model, tmp_path):
    (tmp_path / "x.fa").write_text(">one\nACGTTGA\n>two\nGGGTTGA\n")
    records = SeqIO.parse(tmp_path / "x.fa", "fasta")
    assert list(model.embed(records).to_frame().index) == ["one", "two"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ACGT", r"sequences is a single sequence; put it into a list: \[sequence\]"),
        (b"ACGT", "sequences is a single sequence"),
        (bytearray(b"ACGT"), "sequences is a single sequence"),
        (SeqRecord(Seq("ACGT")), "sequences is a single sequence"),
        (pd.DataFrame({"A": ["ACGT"]}), "without a column sequence"),
        (np.array([["ACGT"]]), "sequences is of type ndarray"),
        ({"ACGT", "GG"}, "sequences is of type set"),
        (Path("x.fa"), "sequences is of type PosixPath"),
        (None, "sequences is of type NoneType"),
        (["A"] * 100 + [None], r"sequence 100: None \(of type NoneType\) is not a sequence; give"),
        (pd.Series(["A", float("nan")]), r"sequence 1: nan \(of type float\) is not a sequence"),
        (pd.Series(["A", None], dtype="string"), r"sequence 1: <NA> \(of type NAType\)"),
        ([1, 2], r"sequence 0: 1 \(of type int\) is not a sequence"),
        ({"A": ["A", "C"]}, r"sequence A: \['A', 'C'\] \(of type list\)"),
    ],
)
def test_what_holds_no_sequences_is_refused_and_an_item_named(model, given, message):
    for call in (model.nll, model.embed, model.information):
        with pytest.raises(TypeError, match=message):
            call(given)


def test_a_sequence_that_is_too_long_is_named():
    model = autoregressive(CharTokenizer("abc"), Transformer, n_heads=2, max_length=8)
    with pytest.raises(ValueError, match="sequence 1: length 9 is more than this network takes"):
        model.nll(["abc", "a" * 9])
    with pytest.raises(TypeError, match="sequence 0: None"):
        model.nll([None])
    assert model.nll([b"abc"]) == model.nll(["abc"])


def test_a_seed_of_numpy_is_the_same_seed(model):
    seed = np.int64(2)
    assert model.sample(2, length=20, seed=seed) == model.sample(2, length=20, seed=2)
    assert model.infill("ACGT" * 8, 4, 8, length=16, seed=seed) == model.infill(
        "ACGT" * 8, 4, 8, length=16, seed=2
    )
    assert np.array_equal(
        model.nll(["ACGTTGA"], num_draws=2, seed=seed), model.nll(["ACGTTGA"], num_draws=2, seed=2)
    )


def test_a_design_in_flanks_takes_whole_numbers_of_any_type(model):
    found = model.design(
        lambda sequences: [s.count("G") for s in sequences],
        length=16,
        infill=("ACGT" * 8, 1e1, np.int64(14)),
        num_draws=0,
    )
    assert (
        len(found[0]) == 32
        and found[0][:10] == ("ACGT" * 8)[:10]
        and found[0][14:] == ("ACGT" * 8)[14:]
    )


def test_a_generator_of_records_keeps_their_names(model):
    records = (SeqRecord(Seq("ACGT"), id=name) for name in ("one", "two"))
    assert list(model.embed(records).to_frame().index) == ["one", "two"]


def test_public_names_are_found_when_they_are_used():
    names = {"Classifier", "Genome", "Regressor", "list_models", "load"}
    assert names <= set(dnadiff.__all__) and all(callable(getattr(dnadiff, n)) for n in names)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        dnadiff.lod  # noqa: B018


def test_records_of_pyfaidx_are_sequences(model, tmp_path):
    (tmp_path / "x.fa").write_text(">one\n" + "ACGTTGA" * 5 + "\n")
    fasta = pyfaidx.Fasta(str(tmp_path / "x.fa"))
    text = str(fasta["one"])
    np.testing.assert_array_equal(
        model.nll([fasta["one"], fasta["one"][:]], batch_size=1),
        model.nll([text, text], batch_size=1),
    )
    assert model.infill(fasta["one"], 3, 9, seed=1) == model.infill(text, 3, 9, seed=1)
    np.testing.assert_array_equal(model.nll(fasta), model.nll([text]))
    with pytest.raises(TypeError, match="put it into a list"):
        model.nll(fasta["one"])
    (row,) = model.variants([("one", 3, "G", "A")], fasta).itertuples()
    (same,) = model.variants([("one", 3, "G", "A")], {"one": text}).itertuples()
    assert row.LLR == same.LLR


def test_results_become_data_frames(model):
    record = SeqRecord(Seq("ACGTTGA" * 4), id="gene")
    vectors = model.embed([record, "ACGTTGA", record])
    table, stored = vectors.to_frame(), vectors.to_anndata()
    assert list(table.index) == ["gene_0", "1", "gene_2"] == list(stored.obs_names)
    assert (
        table.shape == stored.shape == vectors.shape
        and (vectors == stored.X).all()
        and list(stored.var_names) == list(table.columns)
    )
    assert vectors[:1].names is None and vectors[:1].to_anndata().shape == (1, vectors.shape[1])
    designs = model.sample(3, length=20, num_draws=2)
    frame = designs.to_frame()
    assert (
        list(frame.sequence) == designs
        and list(frame.log_prob) == [design.log_prob for design in designs]
        and len(frame.columns) == 4
    )


def test_anndata_missing_is_one_line(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[anndata\]'"):
        model.embed(["ACGTTGA"]).to_anndata()
