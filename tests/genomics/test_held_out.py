import json
import logging
import math

import numpy as np
import pytest

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.diffusion.bootstrap import ratio
from dnadiff.genomics.held_out import Scores, fit_markov

WINDOWS = np.array([[0, 64 * i, 64] for i in range(40)])
TOKENS = {"all": np.full(40, 64), "novel": np.full(40, 60)}


def scores(seed, windows=WINDOWS, data="hash"):
    nats = {name: np.random.default_rng(seed).normal(80, 5, 40) for name in TOKENS}
    return Scores(windows, nats, TOKENS, 1, data)


def test_scores_survive_the_file(tmp_path):
    first, second = scores(0), scores(1)
    first.save(tmp_path / "a.npz")
    again = Scores.load(tmp_path / "a.npz")
    assert again.minus(second) == first.minus(second) and again.mean("novel") == first.mean("novel")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_differences_are_paired():
    first = scores(0)
    more = Scores(
        WINDOWS, {name: nats + 0.64 for name, nats in first.nats.items()}, TOKENS, 1, "hash"
    )
    difference = more.minus(first)
    assert difference.value == pytest.approx(0.01) and difference.se < 1e-12 < first.mean().se
    assert more.mean() == ratio(more.nats["all"], TOKENS["all"], np.arange(40))


@pytest.mark.parametrize(
    "other", [scores(1, WINDOWS + 1), scores(1, WINDOWS[:39]), scores(1, data="other")]
)
def test_scores_of_other_windows_are_refused(other):
    with pytest.raises(ValueError, match="different windows"):
        scores(0).minus(other)


def test_evaluate_writes_them(cli, trained, tmp_path):
    args = [f"checkpoint={trained}", "num_draws=2", "orders=[]", "output=e.json"]
    status, _, err = cli("evaluate", *args, "windows=w.npz")
    assert status == 0, err
    content = json.loads((tmp_path / "e.json").read_text())
    found = Scores.load(tmp_path / "w.npz")
    assert found.mean().value / math.log(2) == pytest.approx(content["groups"]["all"]["bits"])
    assert found.tokens["repeated"].sum() == content["groups"]["repeated"]["tokens"]
    assert (
        len(found.windows) == len(found.nats["all"]) and found.data == content["data"]["split_hash"]
    )
    status, _, err = cli("evaluate", *args, "overwrite=false", "windows=w.npz")
    assert status == 1 and "exists" in err


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
