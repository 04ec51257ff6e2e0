"""The study of guided promoter design: its parts on exact cases, and all of its pieces on tiny
made-up tables."""

import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path += [
    str(Path(__file__).parents[2] / "scripts" / "studies" / name) for name in ("variants", "design")
]  # both have a module called promoters
import comparison
import designers
import halves
import judging
import peer_methods as peers
import study

import dnadiff
from dnadiff import finetune
from dnadiff.data.kmers import reverse_complement
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.design.reward import CountedReward, FunctionReward, Reward
from dnadiff.formats.sequences import Record, write_fasta

SPEC = importlib.util.spec_from_file_location(
    "design_promoters", Path(halves.__file__).with_name("promoters.py")
)
promoters = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(promoters)
LENGTH, SIZE = 40, 6000
CALLS = {
    "best_of_n": 8,
    "smc": 8,
    "svdd": 8,
    "classifier_guidance": 7,
    "genetic": 8,
    "genetic_strong": 8,
}  # of each design, with --quick


def letters_of(bases):
    return "".join("ACGT"[base] for base in bases)


@pytest.fixture(scope="module")
def genome():
    return np.random.default_rng(0).integers(0, 4, SIZE).astype(np.uint8)


@pytest.fixture(scope="module")
def rows(genome):
    """Promoters every 40 bases, half of them on the other strand; the test part is a stretch, and
    one row is not in the genome."""
    found = []
    for number, start in enumerate(range(0, SIZE - LENGTH, 40)):
        bases = genome[start : start + LENGTH]
        text = letters_of(reverse_complement(bases) if number % 2 else bases)
        found.append(
            halves.Promoter(
                text, 1.0 + text.count("A") / 4, "test" if 2000 <= start < 2800 else "train"
            )
        )
    return [*found, halves.Promoter("ACGT" * 10, 3.0, "train")]


def test_places_are_found_on_both_strands(genome):
    twice = np.concatenate([genome, genome[100:200]])
    asked = [
        genome[500:540],
        reverse_complement(genome[700:740]),
        genome[110:150],
        np.zeros(40, np.uint8),
    ]
    assert halves.places(asked, twice).tolist() == [500, 700, halves.REPEATED, halves.ABSENT]


def test_halves_share_no_base(genome, rows):
    made = halves.Halves(rows, genome, guard=30)
    start = {half: made.start[np.char.startswith(made.part, half)] for half in halves.HALVES}
    gap = (start["a"][:, None] - start["b"]) % SIZE
    assert np.minimum(gap, SIZE - gap).min() >= LENGTH + 30
    test = made.start[made.part == "test"]
    assert not halves.overlaps(np.concatenate([*start.values()]), test, LENGTH).any()
    assert made.counts["absent"] == 1 and made.counts["near an edge"] > 0 and made.part[-1] == ""
    assert (
        min(made.counts[name] for name in ("a train", "a valid", "b train", "b valid", "test")) > 0
    )
    last = [
        made.start[made.part == name].max() for name in ("a train", "a valid", "b train", "b valid")
    ]
    assert last == sorted(last)


def test_sequences_that_share_a_word_with_the_other_half_are_left_out(genome, rows):
    copied = genome.copy()
    copied[4000:4040] = genome[800:840]
    copied[4030:4040] = (
        3 - copied[4030:4040]
    )  # the first 30 bases of a promoter of half a are also in one of half b
    changed = [
        row._replace(sequence=letters_of(copied[4000:4040])) if number == 100 else row
        for number, row in enumerate(rows)
    ]
    made = halves.Halves(changed, copied, guard=30)
    assert made.counts["shares a 24-mer"] == 1 and made.start[100] == 4000 and made.part[100] == ""


def test_overlaps_are_those_of_the_nearest_start():
    assert halves.overlaps(np.array([0, 39, 40, 100, 141]), np.array([0, 101]), 40).tolist() == [
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.fixture
def counted():
    return CountedReward(FunctionReward(lambda texts: [float(text.count("A")) for text in texts]))


def test_the_genetic_algorithm_spends_its_budget_and_improves(counted):
    random = np.random.default_rng(0)
    start = peers.uniform_sequences(16, 30, random)
    found, values = peers.evolve(counted, start, 400, 3, random)
    assert counted.calls == 400 and len(set(found)) == 3
    assert values.tolist() == sorted((text.count("A") for text in found), reverse=True)
    assert values.min() > max(text.count("A") for text in start)


def test_variation_keeps_the_length_and_changes_something():
    random = np.random.default_rng(0)
    assert peers.crossed("AAAA", "CCCC", random) in ("ACCC", "AACC", "AAAC")
    for rate in (0.1, 5.0):
        changed = peers.mutated("ACGTACGTAC", rate, random)
        assert len(changed) == 10 and changed != "ACGTACGTAC"
    assert peers.survivors(["A", "A", "C"], np.array([2.0, 2.0, 1.0]), 2)[0] == ["A", "C"]


class Linear(Reward):
    """The number of A, with its gradient."""

    has_gradient = True

    def __call__(self, sequences):
        return np.array([float(text.count("A")) for text in sequences])

    def gradient(self, sequences):
        slope = np.zeros((len(sequences), len(sequences[0]), 4))
        slope[..., 0] = 1
        return self(sequences), slope


def test_ledidi_reads_the_reward_with_its_gradient(monkeypatch):
    """The package is replaced by a module of its interface, which takes one step."""

    class Ledidi:
        def __init__(self, model, shape, l, batch_size, max_iter, **rest):
            assert shape == (4, 5) and rest["early_stopping_iter"] == max_iter
            self.model, self.batch_size, self.max_iter = model, batch_size, max_iter

        def fit_transform(self, x, goal):
            assert self.model(x).shape == goal.shape == (1, 1)
            for _ in range(self.max_iter):
                step = x.expand(self.batch_size, -1, -1).clone().requires_grad_()
                ((self.model(step) - goal) ** 2).sum().backward()
                assert (
                    torch.equal(step.grad.argmin(1), torch.zeros(self.batch_size, 5))
                    and not step.grad[:, 1:].any()
                )
                x = (
                    torch.nn.functional.one_hot((x - step.grad[:1]).argmax(1), 4)
                    .transpose(1, 2)
                    .float()
                )

    fake = types.ModuleType("ledidi")
    fake.__spec__, fake.Ledidi = ModuleSpec("ledidi", None), Ledidi
    monkeypatch.setitem(sys.modules, "ledidi", fake)
    reward = CountedReward(Linear())
    assert peers.ledidi_design(reward, "ACGTC", 17, 2, 0.01, 9.0, 0) == ("AAAAA", 5.0)
    assert reward.calls == 1 + 2 * 2 * 4 and peers.texts_of(peers.one_hot(["ACGTC"])) == ["ACGTC"]


def test_a_missing_peer_is_named(monkeypatch):
    monkeypatch.setattr(peers, "has_ledidi", lambda: False)
    assert "ledidi" not in designers.available()
    with pytest.raises(ValueError, match="pip install ledidi"):
        peers.ledidi_design(None, "A", 1, 1, 0.0, 0.0, 0)


def test_tables_compare_with_the_baseline():
    random, strong = (
        np.random.default_rng(0),
        peers.uniform_sequences(30, 20, np.random.default_rng(1)),
    )
    names = {designers.BASELINE: 0.0, "better": 1.0}
    found = {}
    for name, shift in names.items():
        values = {value: random.normal(shift, 0.1, 30) for value in comparison.VALUES}
        found[name] = comparison.described(
            values, range(30), peers.uniform_sequences(30, 20, random), strong
        )
    minus = comparison.differences(found, comparison.VALUES)["better"]["A"]
    assert minus["low"] < 1 < minus["high"] and minus["low"] > 0.8
    assert found["better"]["top"]["A"]["value"] > found["better"]["mean"]["A"]["high"]
    assert comparison.decile(np.arange(20.0), np.ones(20), -np.arange(20.0)) == 0.5
    assert comparison.hamming(["ACGT", "AAAA"], ["ACGA"]).tolist() == [
        [1],
        [2],
    ] and comparison.diversity(["AC", "AG", "AC"]) == pytest.approx(2 / 3)


def test_tables_compare_methods_with_the_peers_that_start_from_the_same_sequences():
    means = {
        "smc": 2.0,
        "genetic": 1.0,
        "ledidi": 3.0,
        "metropolis_strong": 5.0,
        "genetic_strong": 4.0,
        "unguided": 0.0,
    }
    found = {
        name: {"group": [0, 1], "values": {"A": [mean, mean], "B": [mean, mean]}}
        for name, mean in means.items()
    }
    tables = [
        [line.split(" | ") for line in table.splitlines()]
        for table in comparison.peer_tables(found, ["B"])
    ]
    rows = {
        table[0][0].removeprefix("| "): [
            (row[0].removeprefix("| "), row[1][:5]) for row in table[2:]
        ]
        for table in tables
    }
    assert rows == {
        "method minus genetic": [("smc", "+1.00")],
        "method minus genetic_strong": [("metropolis_strong", "+1.00")],
        "method minus ledidi": [("smc", "-1.00")],
    }


def test_a_judge_that_changed_is_refused():
    judging.checked("x", [1.0, 2.0], np.array([1.0, 2.00005]))
    with pytest.raises(ValueError, match="judge x changed by"):
        judging.checked("x", [1.0, 2.0], np.array([1.0, 2.1]))


@pytest.fixture
def inputs(tmp_path, genome, rows):
    """A genome, the table of promoters in it, and a grid of designed ones."""
    write_fasta(tmp_path / "genome.fa", [Record("one", "", letters_of(genome).encode())])
    lines = [f"{row.sequence},{row.expression},{row.split}" for row in rows]
    (tmp_path / "tss.csv").write_text("\n".join(["sequence,expression,split", *lines]) + "\n")
    random = np.random.default_rng(1)
    grid = [
        f"{text},{1 + text.count('A') / 50},x_bg{row % 8}:9"
        for row, text in enumerate(peers.uniform_sequences(80, 198, random))
    ]
    (tmp_path / "grid.csv").write_text("\n".join(["sequence,expression,name", *grid]) + "\n")
    return [
        f"--tss={tmp_path / 'tss.csv'}",
        f"--sigma70={tmp_path / 'grid.csv'}",
        f"--genome={tmp_path / 'genome.fa'}",
        f"--output={tmp_path / 'out'}",
    ]


def test_models_of_judges_can_be_built(inputs):
    tables = [Path(given.partition("=")[2]) for given in inputs[:2]]
    for judge in judging.judges(*tables, 1, 1).values():
        judge.model(DNATokenizer()).check(judge.data)


@pytest.mark.slow
def test_the_study_runs_and_resumes(trained, inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        promoters.scoring, "configure_process", lambda: None
    )  # it chooses threads for the whole process
    monkeypatch.setattr("dnadiff.report.suite.write_suite", lambda *_: None)
    monkeypatch.setattr(
        study,
        "command",
        lambda _, *given: finetune.main([*given, "accelerator=cpu"]),
    )
    monkeypatch.setattr(peers, "has_ledidi", lambda: False)
    for name, (function, grid) in designers.METHODS.items():
        monkeypatch.setitem(designers.METHODS, name, (function, grid[-2:]))

    def run(*more):
        promoters.main([*inputs, f"--checkpoint={trained}", "--quick", *more])
        return capsys.readouterr().out

    folder, pieces = (
        tmp_path / "out" / "quick",
        [f"--only={name}" for name in ("tables", "oracle", "judge", "tune", "design")],
    )
    text = run(*pieces, f"--collect={tmp_path / 'x.json'}")
    for name in designers.METHODS:
        assert name == "ledidi" or f"| {name} | " in text
    assert (
        "best_of_n" in text
        and "strong promoters" in text
        and (folder / promoters.PICTURE).stat().st_size > 1000
    )
    designs = {
        name: json.loads((folder / f"design-{name}.json").read_text())
        for name in designers.available()
    }
    for name, row in designs.items():
        assert {len(sequence) for sequence in row["sequences"]} == {LENGTH} and len(
            row["rewards"]
        ) == len(row["groups"]) == 4
        assert (
            row["price"]["calls_per_design"] == CALLS.get(name, row["price"]["calls_per_design"])
            and row["price"]["calls_per_design"] <= 8
        ), name
    assert max(designs["genetic_strong"]["rewards"]) >= max(designs["unguided"]["rewards"])
    files = {path: path.read_bytes() for path in folder.glob("*.json")}
    assert (
        not any(key in (tmp_path / "x.json").read_text() for key in ('"sequences"', '"expression"'))
        and "design-" not in (tmp_path / "x.json").read_text()
    )
    run(*pieces)
    assert {path: path.read_bytes() for path in files} == files
    svdd = {"method": "svdd", "designs": 2, "settings": {"beta": 1.0, "candidates": 4}}
    run(f"--measure={json.dumps({**svdd, 'file': str(tmp_path / 'm.json')})}")
    assert json.loads((tmp_path / "m.json").read_text())["megabytes"] > 50


@pytest.mark.parametrize(
    ("name", "calls"),
    [("best_of_n", 7), ("smc", 32), ("classifier_guidance", 43), ("resample_move", 12)],
)
def test_methods_of_the_smaller_study_have_their_share_of_64_network_calls(trained, name, calls):
    reward = FunctionReward(lambda texts: np.array([text.count("A") / 9 for text in texts]))
    task = designers.Task(dnadiff.load(trained, "cpu"), designers.TimedReward(reward), 9, [])
    method, (settings,) = designers.available(conditional=True)[name]
    if name == "classifier_guidance":  # which needs a gradient
        assert method.args == (name, 2 / 3) and round(64 * 2 / 3) == calls
        return
    found = method(task, 2, 64, 0, **settings)
    assert 2 * calls - 4 < found.calls <= 2 * calls and len(found.sequences) == 2


def test_a_task_is_read_as_by_the_command_line():
    task = judging.task_data(["task=ecoli_coding", "task.max_train=20"], DNATokenizer())
    assert task.counts()["train"] == {"coding": 20, "noncoding": 20}
