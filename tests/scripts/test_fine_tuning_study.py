import fine_tuning
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser


def row(**values):
    """A finished piece: scores of models, and the differences of the fine-tuned network from all
    others."""
    models = {name: {"value": value} for name, value in values.items()}
    tuned = values["fine-tuned"]
    differences = [
        {
            "a": "fine-tuned",
            "b": n,
            "difference": tuned - v,
            "low": tuned - v - 0.01,
            "high": tuned - v + 0.01,
        }
        for n, v in values.items()
    ]
    return {"models": models, "differences": [d for d in differences if d["b"] != "fine-tuned"]}


SETS = {
    "a": row(
        **{
            "fine-tuned": 0.9,
            "scratch": 0.85,
            "CNN": 0.8,
            "conv head on one-hot": 0.92,
            "same head on one-hot": 0.91,
        }
    ),
    "b": row(**{"fine-tuned": 0.7, "scratch": 0.72, "CNN": 0.6, "conv head on one-hot": 0.5}),
    "c": row(**{"fine-tuned": 0.7, "6-mer logistic regression": 0.704, "scratch": 0.6}),
}


def test_the_fine_tuned_network_is_compared_with_the_best_of_each_group():
    best = [
        [fine_tuning.against_best(one, [group])[0] for group in fine_tuning.GROUPS]
        for one in SETS.values()
    ]
    assert best[0] == ["CNN", "scratch", "conv head on one-hot", ""]
    assert best[1:] == [
        ["CNN", "scratch", "conv head on one-hot", ""],
        ["6-mer logistic regression", "scratch", "", ""],
    ]
    differences = [
        {"a": "combination", "b": name, "difference": 0.1} for name in SETS["a"]["models"]
    ]
    of_all = {**SETS["a"], "predictor": "combination", "differences": differences}
    of_all["members"] = ["fine-tuned", "conv head on one-hot"]
    best = fine_tuning.against_best(of_all, [fine_tuning.MEMBER])
    assert best == ("conv head on one-hot", differences[3])
    name, difference = fine_tuning.against_best(SETS["b"], fine_tuning.GROUPS[:2])
    assert name == "scratch" and difference["difference"] == pytest.approx(-0.02)
    assert fine_tuning.against_best({"models": {}, "differences": []}, fine_tuning.GROUPS) == (
        "",
        None,
    )
    shown = [fine_tuning.best_of_group(SETS["a"], group) for group in fine_tuning.GROUPS]
    assert shown == [
        "+0.100 (+0.090 to +0.110), CNN",
        "+0.050 (+0.040 to +0.060)",
        "-0.020 (-0.030 to -0.010), conv baseline",
        "",
    ]


def test_the_summary_counts_intervals_and_estimates_that_are_more_than_half_a_percent_behind():
    rest = fine_tuning.summary(SETS).rstrip(".").removeprefix("Compared with the ")
    counts = dict(line.split(": ") for line in rest.split("; "))
    of = "of {} better with an interval on {}, worse on {}, more than .005 below on {}"
    assert counts == {
        "best baseline": of.format(3, 2, 0, 0),
        "scratch": of.format(3, 2, 1, 1),
        "best head on the bases": of.format(2, 1, 1, 1),
        "best baseline, scratch included": of.format(3, 1, 1, 1),
    }


def test_pieces_of_another_version_of_the_defaults_are_not_finished(tmp_path):
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    made.kept.keep("set-tf_0", {"models": {}})
    assert "set-tf_0" in made.kept and len(made.finished("set")) == 1
    assert (
        "set-tf_0"
        not in fine_tuning.Study(
            tmp_path, {**fine_tuning.FULL, "minutes": 1, "version": 1}, tmp_path
        ).kept
    )


def test_the_overlap_table_has_no_score_of_an_empty_part(tmp_path):
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    of = {
        name: {
            "inside pretraining": {"items": 0},
            "outside pretraining": {"items": 1200, "accuracy": 0.75},
        }
        for name in fine_tuning.OVERLAP
    }
    assert made.overlap() == ""
    made.kept.keep("overlap-mouse_2", {"metric": "accuracy", "subsets": of})
    assert made.overlap().splitlines()[-1] == "| `mouse_2` | 0 / 1,200 | - | - | 0.750 | 0.750 |"
    genomes = [piece for piece in made.pieces if piece.startswith("overlap-")]
    assert (
        "overlap-cnnprom_bacillus" not in genomes and len(genomes) == 23
    )  # multi reads four genomes


def test_the_scores_outside_the_training_part_are_kept_with_their_differences(
    tmp_path, monkeypatch
):
    def part(items, value):
        return {"items": items, "accuracy": value, "low": value - 0.1, "high": value + 0.1}

    models = {
        name: {"accuracy": all_, "low": 0, "high": 1, "per_seed": [all_], "seconds": 1.0}
        | {"subsets": {"inside training": part(40, inside), "outside training": part(60, outside)}}
        for name, all_, inside, outside in (
            ("fine-tuned", 0.9, 0.95, 0.85),
            ("scratch", 0.8, 0.9, 0.7),
            ("6-mer logistic regression", 0.85, 0.9, 0.8),
        )
    }
    differences = [
        {
            "a": "fine-tuned",
            "b": name,
            "difference": 0.1,
            "low": 0.0,
            "high": 0.2,
            "subsets": {"outside training": {"items": 60, **ends}},
        }
        for name, ends in (
            ("scratch", {"difference": 0.15, "low": 0.01, "high": 0.3}),
            ("6-mer logistic regression", {"difference": 0.05, "low": -0.1, "high": 0.1}),
        )
    ]
    task = {"metric": "accuracy", "items": {"train": {"0": 5}}, "tested": 100}
    result = {"task": task, "models": models, "differences": differences, "warning": None}
    size = {**fine_tuning.FULL, "minutes": 1}
    made = fine_tuning.Study(tmp_path, size, tmp_path, lambda *arguments: result)
    assert made.training_overlap() == ""
    row = made.pieces["set-tf_0"]()
    assert all("subsets" not in one for one in row["differences"])
    made.kept.keep("set-tf_0", row)
    line = next(
        line for line in made.training_overlap().splitlines() if line.startswith("| `tf_0`")
    )
    expected = (
        "| `tf_0` | 40 / 60 | 0.950 | 0.850 | 0.700 | +0.050 (-0.100 to +0.100), 6-mers | "
        "+0.150 (+0.010 to +0.300) |  |  |"
    )
    assert line == expected
    for m in models.values():
        m["subsets"] = {}
    assert "outside_training" not in made.pieces["set-tf_0"]()


def run_all(folder, minutes):
    """The arguments of `finetune` in each piece but the choice of heads."""
    commands = {}

    def finetune(output, *arguments):
        commands[output.parent.name] = arguments
        return {"task": {"metric": "accuracy"}, "models": {}, "differences": [], "warning": None}

    made = fine_tuning.Study(folder, {**fine_tuning.FULL, "minutes": minutes}, folder, finetune)
    for piece, work in made.pieces.items():
        if not piece.startswith("head-"):
            work()
    return commands


def test_only_pieces_with_few_items_and_of_the_ablation_have_a_limit(tmp_path):
    commands = run_all(tmp_path, 2.5)
    limited = {piece for piece, arguments in commands.items() if "minutes=2.5" in arguments}
    assert limited == {
        piece for piece in commands if piece.startswith(("few-", "ablation-", "combined-"))
    }
    features = {piece for piece, arguments in commands.items() if fine_tuning.FEATURES in arguments}
    assert features == {
        p
        for p in commands
        if p.startswith("features-") or (p.startswith("ablation-") and not p.endswith("-default"))
    }


def test_the_command_line_of_every_piece_has_one_value_for_each_key(tmp_path):
    commands = run_all(tmp_path, 1)
    assert any(", " in piece for piece in commands)  # names with commas
    for piece, arguments in commands.items():
        overrides = {
            one.key_or_group: one
            for one in OverridesParser.create().parse_overrides(list(arguments))
        }
        assert len(overrides) == len(arguments), piece
        assert not any(one.is_sweep_override() for one in overrides.values()), piece
        assert overrides["hydra.run.dir"].value() == str(tmp_path / "runs" / piece)


def test_tables_of_few_items_have_a_row_for_each_kind_of_training(tmp_path):
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    for kind, value in (("full", 0.5), ("lora", 0.25)):
        models = {
            name: {"value": value, "per_seed": [value - 0.01, value + 0.01]}
            for name in ("fine-tuned", "GC alone", "CNN")
        }
        made.kept.keep(
            f"few-mouse_2-100-{kind}",
            {"models": models if kind == "full" else {"fine-tuned": models["fine-tuned"]}},
        )
    lines = made.few_table().splitlines()[2:]
    expected = [("fine-tuned", "0.500"), ("LoRA", "0.250"), ("CNN", "0.500")]
    assert [line.split(" |")[1:3] for line in lines] == [
        [f" {name}", f" {value} ± 0.010"] for name, value in expected
    ]
