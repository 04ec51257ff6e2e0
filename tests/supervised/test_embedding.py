"""Embeddings: what is computed, the files, and bad input."""

import copy
import json

import numpy as np
import pytest
import torch

import dnadiff
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import CausalDenoiser, Denoiser
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.table import has_page_checksums
from dnadiff.networks.backbone.base import CausalBackbone
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.supervised.classifier import keep_first_layers
from dnadiff.supervised.embeddings import POOLS, Embedder, Embeddings, pool_of

TOKENIZER = DNATokenizer()
TEXTS = ["ACGTTGACCA", "GATTACAGGATCCATGCAAGTCAG", "NNACG", "ACGTTGACCA", "T"]
NETWORKS = {
    "caduceus": lambda vocab: Caduceus(vocab, d_model=8, n_layers=3),
    "caduceus_ps": lambda vocab: CaduceusPS(vocab, d_model=8, n_layers=3),
    "dit": lambda vocab: DiT(vocab, d_model=8, n_layers=3, n_heads=2, max_length=64),
    "mamba": lambda vocab: Mamba(vocab, d_model=8, n_layers=3),
}


@pytest.fixture(params=NETWORKS)
def backbone(request):
    torch.manual_seed(0)
    network = NETWORKS[request.param](TOKENIZER.vocab).eval()
    with torch.no_grad():
        for weights in network.parameters():  # some are 0 at first, so that layers do nothing
            weights += 0.1 * torch.randn_like(weights)
    return network


def read_by(backbone):
    return CausalDenoiser(backbone) if isinstance(backbone, CausalBackbone) else Denoiser(backbone)


def ids_of(texts):
    return [TOKENIZER.encode(text) for text in texts]


def features(backbone, ids):
    with torch.no_grad():
        return backbone.features(torch.as_tensor(ids).long()[None])[0].numpy()


def test_embeddings_are_the_features_of_both_strands_pooled(backbone):
    every = Embedder(read_by(backbone), POOLS["none"])(ids_of(TEXTS), 2)
    means, largest = (
        Embedder(read_by(backbone), POOLS["mean"])(ids_of(TEXTS), 3),
        Embedder(read_by(backbone), POOLS["max"])(ids_of(TEXTS), 32),
    )
    for ids, rows, mean, largest_of_row in zip(ids_of(TEXTS), every, means, largest):
        forward = features(backbone, ids)
        if backbone.reads_both_strands:
            first, second = np.split(forward, 2, axis=1)
            expected = (first + second[:, ::-1]) / 2
        else:
            expected = (
                forward
                + features(backbone, TOKENIZER.vocab.reverse_complement(torch.as_tensor(ids)))[::-1]
            ) / 2
        np.testing.assert_allclose(rows, expected, atol=2e-6)
        np.testing.assert_allclose(mean, expected.mean(0), atol=2e-6)
        np.testing.assert_allclose(largest_of_row, expected.max(0), atol=2e-6)


def test_both_strands_have_one_embedding_and_stranded_ones_differ(backbone):
    strands = ids_of([TEXTS[1], reverse_complement(TEXTS[1])])
    for pool in (POOLS["mean"], POOLS["max"]):
        one, other = Embedder(read_by(backbone), pool)(strands)
        np.testing.assert_allclose(one, other, atol=2e-6)
    one, other = Embedder(read_by(backbone), stranded=True)(strands)
    assert np.abs(one - other).max() > 1e-3
    np.testing.assert_allclose(one, features(backbone, strands[0]).mean(0), atol=2e-6)


def test_a_layer_is_the_network_without_the_later_ones_and_leaves_it_intact(backbone):
    before = copy.deepcopy(backbone.state_dict())
    short = keep_first_layers(copy.deepcopy(backbone), 2)
    found, whole = (
        Embedder(read_by(backbone), layer=layer, stranded=True)(ids_of(TEXTS))
        for layer in (2, None)
    )
    np.testing.assert_allclose(found[1], features(short, ids_of(TEXTS)[1]).mean(0), atol=2e-6)
    assert np.abs(found[1] - whole[1]).max() > 1e-4
    after = backbone.state_dict()
    assert list(after) == list(before) and all(
        torch.equal(after[key], before[key]) for key in before
    )
    with pytest.raises(ValueError, match="layer 4 is not one of this network's 3"):
        Embedder(read_by(backbone), layer=4)
    assert len(backbone.trunk) == 3


def test_the_batch_does_not_matter(backbone):
    one, two = (Embedder(read_by(backbone))(ids_of(TEXTS), size) for size in (1, 4))
    np.testing.assert_allclose(np.stack(one), np.stack(two), atol=2e-6)


def test_text_has_one_strand():
    tokenizer = CharTokenizer("abc")
    torch.manual_seed(0)
    network = Caduceus(tokenizer.vocab, d_model=8, n_layers=1).eval()
    ids = tokenizer.encode("abcab")
    np.testing.assert_allclose(
        Embedder(read_by(network))([ids])[0], features(network, ids).mean(0), atol=2e-6
    )


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "x.fa").write_text("".join(f">s{i}\n{text}\n" for i, text in enumerate(TEXTS)))
    (tmp_path / "g.fa").write_text(">c1\nAAACGTTGACCATTT\n>c2\nGATTACA\n")
    (tmp_path / "r.bed").write_text("c2\t0\t4\tfirst\t0\t-\nc1\t3\t13\tsecond\t0\t.\n")


@pytest.fixture(scope="module")
def model(trained):
    return dnadiff.load(trained, device="cpu")


def test_npz_holds_what_the_model_computes(cli, trained, model, tmp_path):
    texts = 8 * TEXTS  # 32 and 8 are computed together
    (tmp_path / "x.fa").write_text("".join(f">s{i}\n{text}\n" for i, text in enumerate(texts)))
    status, out, err = cli(
        "embed", f"checkpoint={trained}", "input=x.fa", "output=e.npz", "batch_size=2"
    )
    assert status == 0, err
    assert "files are in e.npz" in out
    with np.load(tmp_path / "e.npz") as found:
        np.testing.assert_allclose(found["embeddings"], model.embed(texts, batch_size=2), atol=2e-6)
        assert found["embeddings"].dtype == np.float32 and found["name"].tolist() == [
            f"s{i}" for i in range(40)
        ]
        assert not found["start"].any() and found["end"].tolist() == list(map(len, texts))
        assert json.loads(str(found["settings"]))["pool"] == "mean"
    first = (tmp_path / "e.npz").read_bytes()
    assert (
        cli(
            "embed",
            f"checkpoint={trained}",
            "input=x.fa",
            "output=e.npz",
            "batch_size=2",
            "overwrite=true",
        )[0]
        == 0
    )
    assert (tmp_path / "e.npz").read_bytes() == first


def test_a_vector_for_each_position(cli, trained, model, inputs, tmp_path):
    for name in ("e.npz", "e.parquet"):
        settings = ("pool=none", "dtype=float16", "layer=1", "stranded=true", "batch_size=2")
        assert (
            cli("embed", f"checkpoint={trained}", "input=x.fa", f"output={name}", *settings)[0] == 0
        )
    expected = model.embed(
        TEXTS, pool="none", dtype="float16", layer=1, stranded=True, batch_size=2
    )
    assert [rows.shape for rows in expected] == [(len(text), 16) for text in TEXTS] and expected[
        0
    ].dtype == np.float16
    with np.load(tmp_path / "e.npz") as found:
        np.testing.assert_allclose(found["embeddings"], np.concatenate(expected), atol=2e-3)
        assert (
            found["offsets"].tolist() == np.cumsum([0, *map(len, TEXTS)]).tolist()
            and found["embeddings"].dtype == np.float16
        )
    from pyarrow import parquet

    rows = parquet.read_table(tmp_path / "e.parquet")["embedding"].to_pylist()
    for row, values in zip(rows, expected):
        np.testing.assert_allclose(np.array(row), values, atol=2e-3)


def test_parquet_of_regions_has_their_coordinates(cli, trained, model, inputs, tmp_path):
    status, _, err = cli(
        "embed",
        f"checkpoint={trained}",
        "input=r.bed",
        "genome=g.fa",
        "output=e.parquet",
        "stranded=true",
        "pool=max",
    )
    assert status == 0, err
    from pyarrow import parquet

    path = tmp_path / "e.parquet"
    found = parquet.read_table(path)
    metadata = parquet.read_metadata(path)
    assert has_page_checksums(path, metadata, range(metadata.num_columns))
    assert found.drop_columns("embedding").to_pylist() == [
        {
            "name": "c2:1-4(-)",
            "chrom": "c2",
            "start": 0,
            "end": 4,
            "strand": "-",
            "region_name": "first",
        },
        {
            "name": "c1:4-13",
            "chrom": "c1",
            "start": 3,
            "end": 13,
            "strand": ".",
            "region_name": "second",
        },
    ]
    expected = model.embed(["AATC", "CGTTGACCAT"], pool="max", stranded=True)
    np.testing.assert_allclose(np.array(found["embedding"].to_pylist()), expected, atol=2e-6)


@pytest.mark.slow
def test_h5ad_opens_in_anndata(cli, trained, model, inputs, tmp_path):
    anndata = pytest.importorskip("anndata")
    status, _, err = cli(
        "embed", f"checkpoint={trained}", "input=r.bed", "genome=g.fa", "output=e.h5ad"
    )
    assert status == 0, err
    found = anndata.read_h5ad(tmp_path / "e.h5ad")
    np.testing.assert_allclose(found.X, model.embed(["AATC", "CGTTGACCAT"]), atol=2e-6)
    assert found.obs_names.tolist() == ["c2:1-4(-)", "c1:4-13"] and found.obs["start"].tolist() == [
        0,
        3,
    ]
    assert found.obs["region_name"].tolist() == ["first", "second"]
    assert found.obs["chrom"].tolist() == ["c2", "c1"] and found.obs["strand"].tolist() == [
        "-",
        ".",
    ]
    assert json.loads(found.uns["dnadiff"])["pool"] == "mean"
    assert sorted(p.name for p in tmp_path.glob("*e.h5ad*")) == ["e.h5ad", "e.h5ad.json"]


def test_pools_and_types_have_names():
    assert pool_of("none").per_position
    with pytest.raises(ValueError, match="pool 'sum' is not known; choose mean, max, none"):
        pool_of("sum")


def test_numbers_never_repeat_a_name():
    assert Embeddings.of(np.zeros((4, 1)), ["b", "a", "a", "c"]).names == ["b", "a_1", "a_2", "c"]
    assert Embeddings.of(np.zeros((3, 1)), ["a", "a", "a_1"]).names == ["a_0", "a_2", "a_1"]
    assert Embeddings.of(np.zeros((4, 1)), ["a_1", "a", "a", "a"]).names == [
        "a_1",
        "a_2",
        "a_3",
        "a_4",
    ]


def test_a_sequence_of_n_has_no_vector(cli, trained, model, tmp_path, caplog):
    found = model.embed(["ACGTTGA", "NNNN", "NNNA"])
    assert np.isnan(found).all(1).tolist() == [False, True, False] and np.isfinite(found[2]).all()
    assert caplog.messages == ["1 of 3 sequences are without a known base (all N), as nan"]
    each = model.embed(["NNNN", "ACGT"], pool="none")
    assert np.isnan(each[0]).all() and np.isfinite(each[1]).all()
    (tmp_path / "n.fa").write_text(">a\nACGTTGA\n>b\nNNNN\n>c\nNN\n")
    for pool in ("max", "none"):
        args = (f"checkpoint={trained}", "input=n.fa", f"output={pool}.npz", f"pool={pool}")
        status, out, err = cli("embed", *args)
        assert status == 0, err
        name, number = out.splitlines()[3].rsplit(maxsplit=1)
        assert (name.strip(), number) == ("without a known base (all N), as nan", "2")
        stored = np.load(tmp_path / f"{pool}.npz")["embeddings"]
        assert np.isnan(stored).all(1).sum() == (2 if pool == "max" else 6)


def test_no_sequence_gives_no_row(model):
    assert model.embed([]).shape == (0, 16) and model.embed([], pool="none") == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["output=e.txt"],
            "output e.txt has an unknown extension; known are .npz, .parquet, .h5ad",
        ),
        (["output=e.h5ad", "pool=none"], "AnnData has one vector for each sequence"),
        (["output=g.fa"], "g.fa exists; set overwrite=true"),
        (["output=e.npz", "pool=sum"], "pool 'sum' is not known"),
        (["output=e.npz", "layer=9"], "layer 9 is not one of this network's 1"),
        (["output=e.npz", "input=none.fa"], "none.fa does not exist"),
        (["output=e.npz", "input=r.bed"], "input r.bed is a file of regions, not FASTA"),
        (["output=e.npz", "input=[c1,c2]"], "give their genome as well"),
        (["output=e.npz", "input=c3:1-4", "genome=g.fa"], "no record is called c3"),
        (["output=e.npz", "input=c2:1-40", "genome=g.fa"], "ends beyond c2"),
        (["output=e.npz", "feature=CDS"], "feature 'CDS' chooses rows"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(cli, trained, inputs, tmp_path, args, message):
    before = {p.name for p in tmp_path.iterdir()}
    status, _, err = cli("embed", f"checkpoint={trained}", "input=x.fa", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_missing_package_is_named(cli, trained, inputs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "anndata", None)
    status, _, err = cli("embed", f"checkpoint={trained}", "input=x.fa", "output=e.h5ad")
    assert status == 1 and "pip install -e '.[anndata]'" in err


def test_a_sequence_longer_than_the_network_takes_is_named(tmp_path):
    from dnadiff.data.genome.inputs import FileInput

    (tmp_path / "x.fa").write_text(">short\nACGT\n>long\n" + "A" * 65 + "\n")
    with pytest.raises(
        ValueError, match="input: long has 65 bases and this network takes at most 64"
    ):
        Embedder(read_by(NETWORKS["dit"](TOKENIZER.vocab))).check_lengths(
            FileInput(tmp_path / "x.fa")
        )
