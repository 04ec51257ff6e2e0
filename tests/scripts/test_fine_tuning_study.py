import fine_tuning
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser


def row(**values):
    """A finished piece: scores of models, and the differences of the fine-tuned network from all others."""
    models = {name: {"value": value} for name, value in values.items()}
    tuned = values["fine-tuned"]
    differences = [
        {"a": "fine-tuned", "b": n, "difference": tuned - v, "low": tuned - v - 0.01, "high": tuned - v + 0.01} for n, v in values.items()
    ]
    return {"models": models, "differences": [d for d in differences if d["b"] != "fine-tuned"]}


SETS = {
    "a": row(**{"fine-tuned": 0.9, "scratch": 0.85, "CNN": 0.8, "conv head on one-hot": 0.92, "same head on one-hot": 0.91}),
    "b": row(**{"fine-tuned": 0.7, "scratch": 0.72, "CNN": 0.6, "conv head on one-hot": 0.5}),
    "c": row(**{"fine-tuned": 0.7, "6-mer logistic regression": 0.704, "scratch": 0.6}),
}


def test_the_best_baseline_is_a_head_on_the_bases_only_if_controls_count():
    assert [fine_tuning.against_best(one)[0] for one in SETS.values()] == ["scratch", "scratch", "6-mer logistic regression"]
    name, difference = fine_tuning.against_best(SETS["a"], controls=True)
    assert name == "conv head on one-hot" and difference["difference"] == pytest.approx(-0.02)
    assert fine_tuning.against_best({"models": {}, "differences": []}) == ("", None)


def test_the_summary_counts_intervals_above_zero_and_estimates_that_are_more_than_half_a_percent_behind():
    first, second = fine_tuning.summary(SETS).split(". ")
    assert first == "Of 3: better with an interval on 1, more than .005 below the best baseline on 1"
    assert second == "Of 3: better with an interval on 0, more than .005 below the best baseline, heads on the bases alone included on 2."


def test_pieces_of_another_version_of_the_defaults_are_not_finished(tmp_path):
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    made.kept.keep("set-tf_0", {"models": {}})
    assert "set-tf_0" in made.kept and len(made.finished("set")) == 1
    assert "set-tf_0" not in fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1, "version": 1}, tmp_path).kept


def test_only_pieces_with_few_items_and_of_the_ablation_have_a_limit(tmp_path, monkeypatch):
    commands = {}
    monkeypatch.setattr(fine_tuning.study, "command", lambda name, *arguments: commands.setdefault(piece, arguments))
    monkeypatch.setattr(
        fine_tuning.study, "read_json", lambda path: {"task": {"metric": "accuracy"}, "models": {}, "differences": [], "warning": None}
    )
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 2.5}, tmp_path)
    for piece, work in made.pieces.items():
        if not piece.startswith("head-"):
            work()
    limited = {piece for piece, arguments in commands.items() if "minutes=2.5" in arguments}
    assert limited == {piece for piece in commands if piece.startswith(("few-", "ablation-"))}
    features = {piece for piece, arguments in commands.items() if fine_tuning.FEATURES in arguments}
    assert features == {p for p in commands if p.startswith("features-") or (p.startswith("ablation-") and not p.endswith("-default"))}


def test_the_command_line_of_every_piece_has_one_value_for_each_key(tmp_path, monkeypatch):
    commands = {}
    monkeypatch.setattr(fine_tuning.study, "command", lambda name, *arguments: commands.setdefault(piece, arguments))
    result = {"task": {"metric": "accuracy"}, "models": {}, "differences": [], "warning": None}
    monkeypatch.setattr(fine_tuning.study, "read_json", lambda path: result)
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    for piece, work in made.pieces.items():
        if not piece.startswith("head-"):
            work()
    assert any(", " in piece for piece in commands)  # names with commas
    for piece, arguments in commands.items():
        overrides = {one.key_or_group: one for one in OverridesParser.create().parse_overrides(list(arguments))}
        assert not any(one.is_sweep_override() for one in overrides.values()), piece
        assert overrides["hydra.run.dir"].value() == str(tmp_path / "runs" / piece)


def test_averaged_seeds_with_lora_have_a_row_of_their_own(tmp_path):
    made = fine_tuning.Study(tmp_path, {**fine_tuning.FULL, "minutes": 1}, tmp_path)
    for kind, value in (("full", 0.5), ("lora", 0.25)):
        models = {name: {"value": value, "per_seed": [value]} for name in ("fine-tuned", "fine-tuned, 3 seeds averaged", "CNN")}
        made.kept.keep(f"few-mouse_2-100-{kind}", {"models": models})
    table = made.few_table()
    assert "| fine-tuned, 3 seeds averaged | 0.500 |" in table and "| fine-tuned, 3 seeds averaged, LoRA | 0.250 |" in table
