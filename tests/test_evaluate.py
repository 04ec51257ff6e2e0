"""The command line `evaluate`: protocols, the target error, both strands and the code length; see
also `test_sample_evaluate`."""

import json
import math

import pytest


@pytest.fixture
def evaluate(cli, trained, tmp_path):
    """evaluate("num_draws=4") -> (content of the JSON file, what was printed)."""

    def run(*args, checkpoint=trained):
        status, out, err = cli(
            "evaluate",
            f"checkpoint={checkpoint}",
            "orders=[]",
            "output=e.json",
            "overwrite=true",
            *args,
        )
        assert status == 0, err
        return json.loads((tmp_path / "e.json").read_text()), out, err

    return run


def test_target_se_is_reached_by_doubling(evaluate):
    first, _, _ = evaluate("num_draws=2")
    target = first["groups"]["all"]["se_mc"] / 2.5
    content, out, err = evaluate("num_draws=2", f"target_se={target}")
    assert content["groups"]["all"]["se_mc"] <= target and content["num_draws"] >= 8
    assert (
        f"{content['num_draws']} stratified draws" in content["protocol"]
        and content["protocol"] in out
    )
    assert "2 more" in err
    capped, _, err = evaluate("num_draws=2", "target_se=1e-9", "max_draws=4")
    assert capped["num_draws"] == 4 and "raise max_draws" in err


def test_the_protocol_of_mdlm(evaluate):
    content, out, _ = evaluate("protocol=mdlm")
    assert "one draw of Bernoulli masks" in content["protocol"] and content["num_draws"] == 1
    assert (
        content["groups"]["all"]["se_mc"] is None
        and content["curve"] is None
        and content["code_length"] is None
    )
    assert "n/a" in out
    counted, _, _ = evaluate("num_draws=16")
    assert content["groups"]["all"]["bits"] == pytest.approx(
        counted["groups"]["all"]["bits"], rel=0.5
    )  # one draw is coarse


def test_both_strands(evaluate):
    content, out, _ = evaluate("num_draws=4", "both_strands=true")
    found = content["both_strands"]["all"]
    assert found["forward"] == content["groups"]["all"]["nll"]
    assert found["mean"] == pytest.approx((found["forward"] + found["reverse"]) / 2)
    assert "forward" in out and "gap" in out


def test_conjoined_strands_are_reported_and_have_at_most_the_mean_nll_of_both(evaluate):
    apart, _, _ = evaluate("num_draws=4", "both_strands=true")
    content, out, _ = evaluate("num_draws=4", "conjoin=true")
    assert (
        "both strands' probabilities averaged" in content["protocol"] and content["protocol"] in out
    )
    assert content["model"]["conjoined"] and not apart["model"]["conjoined"]
    strands = [apart["both_strands"]["all"][k] for k in ("forward", "reverse")]
    assert (
        min(strands) - 0.01 < content["groups"]["all"]["nll"] < sum(strands) / 2
    )  # the same masks: Jensen holds draw by draw


def test_conjoining_needs_two_strands_and_a_diffusion_model(cli, train_args, trained):
    status, _, err = cli("evaluate", f"checkpoint={trained}", "conjoin=true", "both_strands=true")
    assert status == 1 and "leave one out" in err
    args = [a for a in train_args("mamba") if not a.startswith("backbone.bi")]
    assert cli("train", *args, "objective=ar")[0] == 0
    status, _, err = cli("evaluate", "checkpoint=run", "conjoin=true")
    assert (
        status == 1
        and "needs a model that unmasks in random order; that of objective AR has" in err
    )


def test_the_code_length_of_k_calls(evaluate):
    content, out, _ = evaluate("num_draws=32")
    rows = content["code_length"]["rows"]
    assert [r["groups"] for r in rows] == [1, 2, 4, 8, 16, 32, 64] and "lost structure" in out
    uniform = [r["uniform"]["bits"] for r in rows]
    assert uniform == sorted(uniform, reverse=True)
    assert all(
        r["optimal"]["bits"] <= r["uniform"]["bits"] + 1e-12 and sum(r["optimal"]["sizes"]) == 64
        for r in rows
    )
    assert rows[0]["uniform"]["lost_structure"] == 1 and rows[-1]["uniform"][
        "lost_structure"
    ] == pytest.approx(0, abs=1e-12)
    whole = content["groups"]["all"]
    assert rows[-1]["uniform"]["bits"] == pytest.approx(
        whole["bits"], abs=5 * whole["se_mc"] / math.log(2) + 0.02
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["protocol=mdml"], "protocol 'mdml' is not known; choose one of count, mdlm"),
        (["protocol=mdlm", "target_se=0.1"], "leave target_se out"),
        (["target_se=small"], "target_se 'small' must be a number above 0"),
        (["target_se=-1"], "target_se -1 must be a number above 0"),
        (["num_draws=8", "max_draws=4"], "max_draws 4 is less than num_draws 8"),
        (["seed=abc"], "seed 'abc' must be an integer"),
        (["seed=true"], "seed True must be an integer"),
        (["num_draws=inf"], "num_draws inf must be an integer"),
        (["orders=[true]"], "must be an integer from 0 to 26"),
        (["orders=[2.5]"], "must be an integer from 0 to 26"),
        (["target_se=true"], "target_se True must be a number above 0"),
    ],
)
def test_invalid_options_give_one_line(cli, trained, tmp_path, args, message):
    status, _, err = cli("evaluate", f"checkpoint={trained}", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_autoregressive_model_is_exact(cli, train_args, evaluate, tmp_path):
    args = [a for a in train_args("mamba") if not a.startswith("backbone.bi")]
    status, _, err = cli("train", *args, "objective=ar")
    assert status == 0, err
    content, _, _ = evaluate("both_strands=true", checkpoint="run")
    assert (
        content["groups"]["all"]["se_mc"] == 0
        and "chain rule" in content["protocol"]
        and content["code_length"] is None
    )
    assert content["both_strands"]["all"]["reverse"] > 0


def test_integers_in_any_notation(evaluate):
    content, _, _ = evaluate(
        "num_draws=4.0",
        "batch_size=1e1",
        "length=6.4e1",
        "max_draws=1e2",
        "seed=2.0",
        "orders=[3.0]",
        "block_size=2.0",
    )
    assert (
        content["num_draws"] == 4
        and content["data"]["window"] == 64
        and content["markov"][0]["order"] == 3
    )


def test_the_mdlm_protocol_needs_a_schedule_for_which_it_is_a_bound(cli, train_args, tmp_path):
    schedule = ("noise=linear", "noise.sigma_max=1", "objective/masking=count")
    assert cli("train", *train_args("caduceus", 1, *schedule))[0] == 0
    (tmp_path / "empty.fa").touch()  # the error comes before data is read
    empty = ("data=fasta", "data.path=empty.fa")
    status, _, err = cli("evaluate", "checkpoint=run", "protocol=mdlm", *empty)
    assert (
        status == 1
        and "Linear ends with a mask probability of 0.632" in err
        and "set protocol=count" in err
    )
    assert cli("evaluate", "checkpoint=run", "num_draws=2", "orders=[]", "output=e.json")[0] == 0


def test_the_data_of_the_markov_models_are_named(evaluate, tmp_path):
    (tmp_path / "other.fa").write_text(">x\n" + "ACGTTGCATTGACCA" * 300 + "\n")
    content, out, _ = evaluate(
        "data=fasta", "data.path=other.fa", "data.length=64", "num_draws=2", "orders=[2]"
    )
    assert content["markov"][0]["trained_on"] == content["data"]["name"] == "other.fa"
    assert "fitted on other.fa (train)" in out


def test_errors_of_the_markov_models_come_before_the_network_runs(cli, trained, monkeypatch):
    from dnadiff.genomics import evaluation, held_out

    monkeypatch.setattr(
        held_out.BackoffMarkov,
        "fit",
        lambda *_: (_ for _ in ()).throw(ValueError("nothing to count")),
    )
    monkeypatch.setattr(evaluation, "estimate", lambda *_, **__: pytest.fail("the network ran"))
    status, _, err = cli("evaluate", f"checkpoint={trained}", "orders=[3]")
    assert status == 1 and "nothing to count" in err


def test_windows_longer_than_the_network_accepts_are_an_error_before_data_is_read(
    cli, train_args, tmp_path
):
    assert cli("train", *train_args("dit", 1))[0] == 0
    (tmp_path / "empty.fa").touch()
    for args in (["length=128"], ["data=fasta", "data.path=empty.fa", "data.length=128"]):
        status, _, err = cli("evaluate", "checkpoint=run", *args)
        assert (
            status == 1
            and (
                "windows of 128 tokens are longer than the 64 that this network accepts; set "
                "length=64 or less"
            )
            in err
        )
        assert "model:" not in err  # logged after windows are cut, before Markov models are fitted
    assert (
        cli(
            "evaluate",
            "checkpoint=run",
            "data=fasta",
            f"data.path={tmp_path / 'tiny.fa'}",
            "length=64",
            "num_draws=2",
            "orders=[]",
        )[0]
        == 0
    )


def test_the_block_size_is_reported(evaluate):
    content, out, _ = evaluate("num_draws=2")  # 10 adjacent windows: too few for blocks of 16
    assert (
        content["block_size"] == 1
        and "blocks of 1 window (not 16, to have 20)" in content["protocol"]
    )
    assert "may be too narrow" in content["se_total_note"] and content["se_total_note"] in out
    content, out, _ = evaluate("num_draws=2", "length=8", "block_size=2")
    assert (
        content["block_size"] == 2
        and "blocks of 2 windows" in content["protocol"]
        and content["se_total_note"] is None
    )


def test_distant_windows_need_no_note():
    from types import SimpleNamespace

    from dnadiff.genomics.evaluation import dependence_note

    def tiles(*places):
        class Tiles:
            length, tiles = 8, [SimpleNamespace(record=r, start=s) for r, s in places]

            def __len__(self):
                return len(self.tiles)

        return Tiles()

    assert dependence_note(tiles((0, 0), (1, 8), (1, 40)), 16) is None
    assert "treated as independent" in dependence_note(tiles((0, 0), (1, 0), (1, 8)), 16)


def test_special_tokens_are_counted_or_not():
    from types import SimpleNamespace

    import numpy as np
    import torch

    from dnadiff.genomics.held_out import token_groups

    ids = torch.tensor(
        [[2, 5, 6, 3, 2, 7], [5, 5, 3, 1, 1, 1]]
    )  # 2 begins, 3 ends a text, 1 is padding
    tiles = [{"ids": row, "weight": (row != 1).float()} for row in ids]
    groups = token_groups(
        SimpleNamespace(tokenizer=SimpleNamespace(special_ids=(2, 3))), tiles, "test"
    )
    np.testing.assert_array_equal(groups["all"].sum(1), [6, 3])
    np.testing.assert_array_equal(
        groups["without specials"], [[0, 1, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]]
    )
