import json
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.records import Interval
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import TiledWindows
from dnadiff.diffusion.bootstrap import ratio
from dnadiff.genomics.held_out import Scores, fit_markov, token_groups

DNA = DNATokenizer()
WINDOWS = np.array([[0, 64 * i, 64] for i in range(40)])
TOKENS = {"all": np.full(40, 64), "novel": np.full(40, 60)}


def scores(seed, windows=WINDOWS, data="hash"):
    nats = {name: np.random.default_rng(seed).normal(80, 5, 40) for name in TOKENS}
    return Scores(windows, nats, TOKENS, 1, data)


def test_scores_survive_the_file(tmp_path):
    first, second = scores(0), scores(1)
    first.save(tmp_path / "a.npz")
    again = Scores.load(tmp_path / "a.npz")
    assert again.minus(second) == first.minus(second)
    assert again.minus(second, "novel") == first.minus(second, "novel")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_differences_are_paired():
    first = scores(0)
    more = Scores(
        WINDOWS, {name: nats + 0.64 for name, nats in first.nats.items()}, TOKENS, 1, "hash"
    )
    difference = more.minus(first)
    assert difference.value == pytest.approx(0.01) and difference.se < 1e-12
    nats = scores(1).nats["all"] - first.nats["all"]
    assert scores(1).minus(first) == ratio(nats, TOKENS["all"], np.arange(40))


@pytest.mark.parametrize(
    "other", [scores(1, WINDOWS + 1), scores(1, WINDOWS[:39]), scores(1, data="other")]
)
def test_scores_of_other_windows_are_refused(other):
    with pytest.raises(ValueError, match="different windows"):
        scores(0).minus(other)


def gtf(*rows):
    """Rows of record, type, first and last."""
    return "".join(f'{r}\tx\t{t}\t{a}\t{b}\t.\t+\t.\tgene_id "g";\n' for r, t, a, b in rows)


def test_types_of_regions_divide_the_tokens(tmp_path, caplog):
    bases = "ACGTNCGTACGT"
    data = SimpleNamespace(names=["1"], records=[DNA.encode(bases)], tokenizer=DNA)
    tiles = TiledWindows(data.records, [Interval(0, 0, 12)], 4, DNA.vocab)
    rows = [("chr1", "CDS", 4, 6), ("chr1", "gene", 1, 10), ("chr1", "exon", 2, 8)]
    (tmp_path / "x.gtf").write_text(gtf(*rows, ("chr1", "gene", 5, 6), ("chr9", "gene", 1, 99)))
    (tmp_path / "x.bed").write_text(
        "".join(f"{name}\t{first - 1}\t{last}\t{kind}\n" for name, kind, first, last in rows)
    )
    for name in ("x.gtf", "x.bed"):
        groups = token_groups(data, tiles, "test", annotation=str(tmp_path / name))
        assert {key: "".join("-+"[int(x)] for x in groups[key].ravel()) for key in groups} == {
            "all": "++++-+++++++",
            "outside": "----------++",
            "in gene": "+-------++--",
            "in exon": "-++---++----",
            "in CDS": "---+-+------",  # N is not counted
        }
    assert "no record is called chr9" in caplog.text
    many = [("1", f"t{number}", 1, 2) for number in range(51)]
    (tmp_path / "many.gtf").write_text(gtf(*many))
    with pytest.raises(ValueError, match=r"many\.gtf has 51 types .* expected at most 50"):
        token_groups(data, tiles, "test", annotation=str(tmp_path / "many.gtf"))


def test_evaluate_writes_them(cli, trained, tmp_path):
    args = [f"checkpoint={trained}", "num_draws=2", "orders=[0]", "output=e.json"]
    (tmp_path / "x.gtf").write_text(gtf(("one", "gene", 4700, 5000)))
    more = ["windows=w.npz", "annotation=x.gtf", "report=e.html"]
    status, out, err = cli("evaluate", *args, *more)
    assert status == 0, err
    content = json.loads((tmp_path / "e.json").read_text())
    tokens = {name: group["tokens"] for name, group in content["groups"].items()}
    assert (
        tokens["in gene"] == 5000 - 4816 and tokens["in gene"] + tokens["outside"] == tokens["all"]
    )
    assert "in gene" in content["markov"][0]["groups"] and content["annotation"] == "x.gtf"
    assert "in gene" in out and "in gene" in (tmp_path / "e.html").read_text()
    found = Scores.load(tmp_path / "w.npz")
    bits = found.nats["all"].sum() / found.tokens["all"].sum() / math.log(2)
    assert bits == pytest.approx(content["groups"]["all"]["bits"])
    assert found.tokens["repeated"].sum() == content["groups"]["repeated"]["tokens"]
    assert (
        len(found.windows) == len(found.nats["all"]) and found.data == content["data"]["split_hash"]
    )
    status, _, err = cli("evaluate", *args, "overwrite=false", "windows=w.npz")
    assert status == 1 and "exists" in err
    (tmp_path / "far.gtf").write_text(gtf(("one", "gene", 1, 9)))
    status, _, err = cli("evaluate", *args, "overwrite=true", "annotation=far.gtf")
    assert status == 0 and "no region of annotation far.gtf is in the test part" in err
    (tmp_path / "bad.gtf").write_text("one\tx\n")
    for name in ("bad.gtf", "absent.gtf"):
        status, _, err = cli("evaluate", *args, "overwrite=true", f"annotation={name}")
        assert status == 1 and name in err and "24-mers" not in err and "Traceback" not in err


def test_orders_whose_counts_do_not_fit_into_memory_are_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("dnadiff"), "propagate", True)
    (tmp_path / "g.fa").write_text(">a\n" + "ACGTTGCATTGACCA" * 40 + "\n")
    data = GenomeDataModule(tmp_path / "g.fa", length=32, batch_size=2)
    fitted = fit_markov(data, [12, 2])
    assert list(fitted) == [2, 12]
    with caplog.at_level(logging.INFO):
        bounded = fit_markov(data, [12, 2], max_bases=479)
        assert fit_markov(data, [11], max_bases=479) == {}
    assert (
        list(bounded) == [2]
        and bounded[2].order == 2
        and bounded[2].strengths == fitted[2].strengths[:3]
    )
    assert (
        "order 12 are left out because the counts of 480 training bases do not fit into memory; "
        "set orders=[2]" in caplog.text
    )
