"""The command line's own business: protocols, the target error, both strands, the code length; `test_sample_evaluate` has the rest."""

import json
import math

import pytest


@pytest.fixture
def evaluate(cli, trained, tmp_path):
    """evaluate("num_draws=4") -> (content of the JSON file, what was printed)."""

    def run(*args, checkpoint=trained):
        status, out, err = cli("evaluate", f"checkpoint={checkpoint}", "orders=[]", "output=e.json", "overwrite=true", *args)
        assert status == 0, err
        return json.loads((tmp_path / "e.json").read_text()), out, err

    return run


def test_target_se_is_reached_by_doubling(evaluate):
    first, _, _ = evaluate("num_draws=2")
    target = first["groups"]["all"]["se_mc"] / 2.5
    content, out, err = evaluate("num_draws=2", f"target_se={target}")
    assert content["groups"]["all"]["se_mc"] <= target and content["num_draws"] >= 8
    assert f"{content['num_draws']} stratified draws" in content["protocol"] and content["protocol"] in out
    assert "2 more" in err
    capped, _, err = evaluate("num_draws=2", "target_se=1e-9", "max_draws=4")
    assert capped["num_draws"] == 4 and "raise max_draws" in err


def test_the_protocol_of_mdlm(evaluate):
    content, out, _ = evaluate("protocol=mdlm")
    assert "one draw of coins" in content["protocol"] and content["num_draws"] == 1
    assert content["groups"]["all"]["se_mc"] is None and content["curve"] is None and content["code_length"] is None
    assert "n/a" in out
    counted, _, _ = evaluate("num_draws=16")
    assert content["groups"]["all"]["bits"] == pytest.approx(counted["groups"]["all"]["bits"], rel=0.5)  # one draw is coarse


def test_both_strands(evaluate):
    content, out, _ = evaluate("num_draws=4", "both_strands=true")
    found = content["both_strands"]["all"]
    assert found["forward"] == content["groups"]["all"]["nll"]
    assert found["mean"] == pytest.approx((found["forward"] + found["reverse"]) / 2)
    assert "forward" in out and "gap" in out


def test_the_code_length_of_k_calls(evaluate):
    content, out, _ = evaluate("num_draws=32")
    rows = content["code_length"]["rows"]
    assert [r["groups"] for r in rows] == [1, 2, 4, 8, 16, 32, 64] and "lost structure" in out
    uniform = [r["uniform"]["bits"] for r in rows]
    assert uniform == sorted(uniform, reverse=True)
    assert all(r["optimal"]["bits"] <= r["uniform"]["bits"] + 1e-12 and sum(r["optimal"]["sizes"]) == 64 for r in rows)
    assert rows[0]["uniform"]["lost_structure"] == 1 and rows[-1]["uniform"]["lost_structure"] == pytest.approx(0, abs=1e-12)
    whole = content["groups"]["all"]
    assert rows[-1]["uniform"]["bits"] == pytest.approx(whole["bits"], abs=5 * whole["se_mc"] / math.log(2) + 0.02)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["protocol=mdml"], "protocol 'mdml' is not known; choose count or mdlm"),
        (["protocol=mdlm", "target_se=0.1"], "leave target_se out"),
        (["target_se=small"], "target_se small must be positive"),
        (["target_se=-1"], "target_se -1 must be positive"),
        (["num_draws=8", "max_draws=4"], "max_draws 4 is less than num_draws 8"),
    ],
)
def test_impossible_requests_get_one_line(cli, trained, tmp_path, args, message):
    status, _, err = cli("evaluate", f"checkpoint={trained}", *args)
    assert status == 1 and message in err.strip().splitlines()[-1] and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_autoregressive_model_is_exact(cli, train_args, evaluate, tmp_path):
    args = [a for a in train_args("mamba") if not a.startswith("backbone.bi")]
    status, _, err = cli("train", *args, "objective=ar")
    assert status == 0, err
    content, _, _ = evaluate("both_strands=true", checkpoint="run")
    assert content["groups"]["all"]["se_mc"] == 0 and "chain rule" in content["protocol"] and content["code_length"] is None
    assert content["both_strands"]["all"]["reverse"] > 0
