"""The scripts behind the tables of the documentation: their exact parts, and that they run."""

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dnadiff.backbone.caduceus import Caduceus
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import Denoiser, MaskedDenoiser
from dnadiff.likelihood import curve
from dnadiff.noise import LogLinear
from dnadiff.options.command import compose
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.first_hitting import FirstHitting
from dnadiff.sampler.grouped import Grouped
from dnadiff.training.run import check_compatible
from dnadiff.vocab import Vocab

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name):
    sys.path.insert(
        0, str((SCRIPTS / name).parent)
    )  # as for a program: scripts import modules of their folder
    spec = importlib.util.spec_from_file_location(Path(name).stem, SCRIPTS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="module")
def source():
    return script("experiments/known_source")


@pytest.fixture(scope="module")
def chain(source):
    return source.Chain()


def test_single_sites_of_windows_with_few_counted_bases(monkeypatch, tmp_path):
    rates, generator = script("experiments/mask_rates"), torch.manual_seed(0)
    vocab = DNATokenizer().vocab
    denoiser = Denoiser(Caduceus(vocab, d_model=8, n_layers=1, d_state=4))
    loaded = SimpleNamespace(
        config={"data": {}}, denoiser=denoiser, process=AbsorbingProcess(vocab, LogLinear())
    )
    ids = torch.randint(7, 11, (8,), generator=generator)
    tiles = [
        {"ids": ids, "weight": (torch.arange(8) < counted).float()} for counted in (0, 1, 2, 3, 8)
    ]
    data = SimpleNamespace(prepare=lambda: None, test_windows=lambda part, length: tiles)
    monkeypatch.setattr(rates.checkpoint, "load", lambda run: loaded)
    monkeypatch.setattr(rates, "build", lambda config: data)
    made, predict = [], rates.site_log_probs
    monkeypatch.setattr(
        rates, "site_log_probs", lambda d, p, x, mask: made.append(mask) or predict(d, p, x, mask)
    )
    found = rates.Study(tmp_path, {**rates.QUICK, "sites": 3}).site(tmp_path)
    assert (
        [len(mask) for mask in made] == [1, 2, 3, 3]
        and len(found["by_window"]) == 4
        and found["bits"] > 0
    )
    assert (
        made[0].nonzero().tolist() == [[0, 0]]
        and made[2].any(0).tolist() == [True] * 3 + [False] * 5
    )


def test_entropy_of_the_known_source(source, chain):
    assert 1.199 < chain.rate <= 1.2 and chain.stationary.sum() == pytest.approx(1)
    windows = np.array(list(itertools.product(range(4), repeat=6)), np.uint8)
    log_p = chain.log_prob(windows)
    assert np.exp(log_p).sum() == pytest.approx(1)
    assert -(np.exp(log_p) * log_p).sum() / 6 / math.log(2) == pytest.approx(chain.window_bits(6))
    bases = chain.sample(400, 1000, seed=3)
    assert -chain.log_prob(bases).mean() / 1000 / math.log(2) == pytest.approx(
        chain.window_bits(1000), abs=0.01
    )


def test_forward_backward_equals_the_enumerated_posterior(chain):
    windows = np.array(list(itertools.product(range(4), repeat=6)), np.uint8)
    joint = np.exp(chain.log_prob(windows))
    bases = chain.sample(5, 6, seed=5)
    masked = np.random.default_rng(0).random(bases.shape) < 0.6
    for x, hidden, found in zip(bases, masked, chain.posterior(bases, masked)):
        weight = joint * ((windows == x) | hidden).all(1)
        expected = (
            np.stack(
                [[weight[windows[:, at] == letter].sum() for letter in range(4)] for at in range(6)]
            )
            / weight.sum()
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_mean_of_exact_h_equals_the_entropy(source, chain):
    h, se = chain.exact_h(24, 200, seed=1)
    assert h.mean() / math.log(2) == pytest.approx(
        chain.window_bits(24), abs=4 * np.sqrt((se**2).sum()) / 24 / math.log(2)
    )
    alpha = torch.linspace(1, 0, 9).numpy()
    weights = source.step_weights(24, alpha)
    assert weights.sum() == pytest.approx(1) and weights @ h == pytest.approx(
        curve.discrete_time(h, alpha) / 24
    )


def test_relative_variances_of_known_noise():
    bench = script("bench/objective")
    noise = torch.Generator().manual_seed(0)
    gradients = torch.tensor([3.0, 4.0]) + torch.randn(200_000, 2, generator=noise)
    losses = 2 + torch.randn(200_000, generator=noise)
    loss, gradient = bench.relative_variances(losses, gradients.sum(0), gradients.square().sum())
    assert loss == pytest.approx(1 / 4, rel=0.02) and gradient == pytest.approx(2 / 25, rel=0.02)
    assert bench.default_method() in bench.METHODS


@pytest.fixture(scope="module")
def timing():
    return script("bench/sampler_timing")


class Logits(MaskedDenoiser):
    """The interface of a denoiser that `ddpm_cache` uses, from an oracle."""

    def __init__(self, oracle, vocab):
        super().__init__(vocab)
        self.oracle, self.calls = oracle, 0

    def logits(self, x):
        self.calls += 1
        return self.oracle.log_probs(x).float().clamp(min=-50)


def test_ddpm_cache_matches_the_distribution_and_its_calls_are_counted(timing, oracle, toy):
    torch.manual_seed(0)
    model = Logits(oracle, toy.vocab)
    result = timing.ddpm_cache(model, torch.full((6_000, 3), 3), 32)
    frequencies = torch.bincount(result.tokens @ torch.tensor([9, 3, 1]), minlength=27) / 6_000
    assert (frequencies - toy.joint).abs().sum() / 2 < 0.05 and result.nfe == model.calls <= 33
    # expected number of changes, with the step that ends at 1e-5 and the call that removes the
    # noise
    for batch, expected in ((1, 641), (16, 1000)):
        calls = [timing.ddpm_calls(batch, 1024, 1000, seed) for seed in range(20)]
        assert np.mean(calls) == pytest.approx(expected + 1, abs=8)


@pytest.mark.slow
def test_ddpm_cache_reuses_probabilities_while_no_token_changes(timing, oracle, toy):
    calls = []
    for _ in range(200):
        model = Logits(oracle, toy.vocab)
        calls.append(timing.ddpm_cache(model, torch.full((1, 3), 3), 20).nfe)
        assert calls[-1] == model.calls
    assert np.mean(calls) == pytest.approx(
        np.mean([timing.ddpm_calls(1, 3, 20, seed) for seed in range(400)]), abs=0.2
    )
    # one call at first, one for each change but that of the last step, and one at the end
    assert timing.ddpm_seconds((1.0, 0.1), 64, 1024, 8) == pytest.approx(8 * 1.0 + 1.0 - 0.1)


def test_calls_and_rows_are_counted_by_the_sampler(timing):
    process = timing.AbsorbingProcess(Vocab(3, 2, 2, (2,)), LogLinear())
    found = timing.counted(Grouped(4), process, 3, 8)
    assert (found.nfe, found.rows) == (4, 1 + 3 * 3)  # three rows of masks need one row


def test_a_partial_plan_starts_from_the_state_of_the_sampler(timing, oracle, toy):
    process, draws = timing.AbsorbingProcess(toy.vocab, LogLinear()), timing.Draws.for_batch(0, 5)
    plan = FirstHitting().plan(torch.ones(5, 3, dtype=torch.bool), process, draws)
    some = timing.PartialPlan(plan, torch.tensor([1]))
    x = some.template(process)
    assert torch.equal(x != 3, plan.step == 0) and torch.isin(x, torch.arange(4)).all()
    found = some.sample(oracle, process, x, draws)
    assert found.nfe == 1 and torch.equal(found.tokens == 3, plan.step == 2)


def test_timed_parts_add_up_to_the_complete_time(timing, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(MaskedDenoiser):
        """Takes 3 s for a sequence on a fake clock."""

        def log_probs(self, x, t, cond, positions, valid):
            now[0] += 3 * len(x)
            return timing.Uniform(self.vocab).log_probs(x, t, cond, positions, valid)

        def logits(self, x):
            now[0] += 3 * len(x)
            return torch.zeros(*x.shape, 3)

    vocab = Vocab(3, 2, 2, (2,))
    process = timing.AbsorbingProcess(vocab, LogLinear())
    found = timing.time_planned(Grouped(16), Slow(vocab), process, 8, 4, 2, 32, 100.0)
    assert (found.calls, found.rows, found.ddpm_costs) == (16, 1 + 15 * 8, (3 * 8, 0))
    assert (
        found.seconds == pytest.approx(3 * (8 / 4 + 15 * 8)) and found.fraction < 0.5
    )  # the first call's one row is scaled too
    complete = timing.time_planned(Grouped(16), Slow(vocab), process, 8, 8, 8, 32, 1600.0)
    assert complete.seconds == 3 * 121 and complete.fraction == 1
    published = timing.time_ddpm(
        Slow(vocab), 8, 8, 32, 5, {"ddpm_costs": (24.0, 0.0), "memory_mb": None}, 1000.0
    )
    assert published.seconds == 24 * published.calls == 24 * 6 and published.rows == 8 * 6


def test_steps_at_equal_loss_are_interpolated():
    sampling = script("bench/sampling")
    assert (
        sampling.steps_at([(0.1, 10), (0.01, 100)], 0.0316) == 32
        and sampling.steps_at([(0.1, 10), (0.01, 100)], 0.001) is None
    )


def test_every_model_of_the_text_study_composes_and_fits():
    study = script("experiments/text_objectives")
    for arguments in (*study.MODELS.values(), *study.ABLATIONS.values()):
        config = compose(
            "train", [*arguments, *study.FULL["size"], "data=text", "data.path=book.txt"]
        )
        check_compatible(config)
        assert config["backbone"]["dropout"] == 0 and (
            config["backbone"]["d_model"],
            config["backbone"]["n_layers"],
        ) == (128, 4)
    switches = [
        compose("train", study.ABLATIONS[f"T1000-{n}"])["objective"]
        for n in ("zero_masking", "carry-over", "neither")
    ]
    assert [(s["zero_masking"], s["carry_over"]) for s in switches] == [
        (True, False),
        (False, True),
        (False, False),
    ]


def test_the_dit_benchmark_compares_gradients():
    bench = script("bench/dit_step")
    one = {"loss": 2.0, "gradients": {"a": [3.0, 1.0]}}
    assert bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.3]}}, 0.2) == pytest.approx(
        0.1
    )
    with pytest.raises(SystemExit, match=r"differ by 1\.0e-01"):
        bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.3]}}, 0.05)
    for broken in ([math.nan, math.nan], [3.0, math.inf]):
        with pytest.raises(SystemExit, match="differ by nan"):
            bench.compare({"loss": 2.0, "gradients": {"a": broken}}, one, 0.2)
    with pytest.raises(SystemExit, match="only one has gradients of b"):
        bench.compare(one, {"loss": 2.0, "gradients": {"a": [3.0, 1.0], "b": [1.0, 1.0]}}, 0.2)
    shape = bench.argparse.Namespace(size="tiny", n_layers=1, batch=1, length=10, vocab=100)
    products = (
        12 * 512**2 * 10 + 3 * 512 * 100
    )  # multiply-adds of the layer and of the head at three positions
    attention = 2 * 10 * 10 * 512  # of attention scores and of values
    assert bench.model_flops(shape, 3) == 6 * (products + attention)


def test_the_book_is_split_as_by_the_data_module(tmp_path):
    book = script("experiments/war_and_peace")
    (tmp_path / "book.txt").write_text("".join(chr(97 + i % 26) for i in range(1000)))
    found = book.Book(tmp_path / "book.txt", "cpu")
    assert [len(found.parts[p][0]) for p in ("train", "test", "valid")] == [800, 100, 100]
    rows = found.batch(book.Size(length=5, batch=4), step=0, seed=1)
    assert rows.shape == (4, 5) and ((rows[:, 1:] - rows[:, :-1]) % 26 == 1).all()
    assert torch.equal(found.windows("valid", 30), found.parts["valid"][0][:90].view(3, 30))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "shows"),
    [
        (
            "experiments/text_objectives",
            ["--quick", "--only", "shakespeare", "--output"],
            "| AR, transformer |",
        ),
        ("experiments/war_and_peace", ["--quick", "--output"], "test, best of these"),
        (
            "bench/dit_step",
            ["--size", "mini", "--vocab", "2000", "--length", "64", "--repeats", "1", "--json"],
            "loss and gradients differ by",
        ),
    ],
)
def test_scripts_for_text_run(name, arguments, shows, tmp_path, shared_data):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    data = (
        []
        if name.startswith("bench")
        else [
            "--data",
            str(shared_data / "text" / ("war_and_peace.txt.gz" if "war" in name else "")),
        ]
    )
    run = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments, str(tmp_path / "out"), *data]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and shows in done.stdout, done.stdout + done.stderr


def test_two_sided_predictions_are_posteriors_of_the_markov_chain():
    from dnadiff.markov.model import BackoffMarkov

    infilling = script("experiments/infilling")
    rng = np.random.default_rng(1)
    model = BackoffMarkov.fit(
        [
            rng.choice(4, 200, p=[0.1, 0.2, 0.3, 0.4]).astype(np.uint8),
            np.tile([0, 2, 1, 1, 3], 40).astype(np.uint8),
        ],
        2,
        1.0,
    )
    window = np.array([0, 2, 1, 1, 3, 0, 2, 2], np.uint8)
    mask = np.array([0, 0, 1, 1, 0, 1, 0, 0], bool)
    fills = np.array(list(itertools.product(range(4), repeat=3)), np.uint8)
    filled = np.tile(window, (64, 1))
    filled[:, mask] = fills
    weight = np.exp([model.log_probs(x).sum() for x in filled])
    expected = (
        np.stack([[weight[fills[:, i] == b].sum() for b in range(4)] for i in range(3)])
        / weight.sum()
    )
    found = infilling.two_sided(
        model, np.tile(window, (40, 1)), np.tile(mask, (40, 1)), sweeps=60, burn=5
    )
    np.testing.assert_allclose(found[:, mask].mean(0), expected, atol=0.03)
    seen = np.where(mask, 4, window).astype(np.uint8)[None]
    left = infilling.one_sided(model, seen)[0]
    np.testing.assert_allclose(left[2], np.exp(infilling.log_prob_rows(model, window))[2])
    both = infilling.neighbors(model, seen)[0, 5]
    other = np.exp(infilling.log_prob_rows(model, np.array([1, 1, 4], np.uint8)))[2][
        ::-1
    ]  # GG to the right is CC to the left on the reverse strand
    expected = (
        np.exp(infilling.log_prob_rows(model, seen[0]))[5]
        * other
        / np.exp(infilling.log_prob_rows(model, np.array([4], np.uint8)))[0]
    )
    np.testing.assert_allclose(both, expected / expected.sum())


def test_accuracies_of_few_windows_have_no_interval():
    percent = script("experiments/infilling")._percent
    assert (
        percent({"value": 0.25, "low": None, "high": None})
        == "25.00"
        == percent({"value": 0.25, "low": np.nan, "high": np.nan})
    )
    assert (
        percent({"value": 0.25, "low": 0.2, "high": 0.3}) == "25.00 (20.00 to 30.00)"
        and percent(None) == ""
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("bench/sampling", "slower than ddpm_cache at equal code length"),
        ("bench/objective", "Lowest mean"),
        ("experiments/known_source", "| `sedd` | sum of h(n)"),
        ("experiments/ecoli_objectives", "| mlm, then mdlm |"),
        ("experiments/infilling", "| ecoli | random | most frequent base |"),
        ("experiments/downstream", "# Linear probes"),
        ("experiments/pretraining", "| fine-tuned, mlm_mdlm |"),
        ("experiments/fine_tuning", "| fine-tuned, LoRA |"),
    ],
)
def test_studies_run_and_reuse_finished_pieces(name, shows, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--output", str(tmp_path)]
    first = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert first.returncode == 0 and shows in first.stdout, first.stdout + first.stderr
    again = subprocess.run(
        [*run, "--table"], capture_output=True, text=True, check=True, env=environment
    )
    assert shows in again.stdout and "$ python" not in again.stdout


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu_and_writes_every_row(python, tmp_path):
    run = [
        SCRIPTS / "bench" / "gpu.py",
        "--device",
        "cpu",
        "--quick",
        "--json",
        tmp_path / "rows.json",
    ]
    process = python(
        *run, env=os.environ | {"DNADIFF_BENCH_STATE": str(tmp_path / "state")}
    )  # as a process that `supervised` starts
    assert process.wait() == 0 and "failed" not in process.output, process.output + process.errors
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert not [row for row in rows if "error" in row]
    errors = [row["value"] for row in rows if row["name"].startswith("error of")]
    assert len(errors) == 4 and max(errors) < 1e-5
    steps = [row for row in rows if row["name"].startswith("step")]
    # Not below 1: the limit is measured too, and on a busy machine in a worse moment.
    assert {row["name"].split()[3] for row in steps} == {"L128", "L512"} and all(
        0 < row["of_limit"] < math.inf for row in steps
    )
    assert [row for row in rows if row["name"].startswith("scan forward+backward")]


@pytest.mark.slow
def test_gpu_benchmark_starts_no_cell_after_its_time_limit(tmp_path):
    run = [
        sys.executable,
        str(SCRIPTS / "bench" / "gpu.py"),
        "--device",
        "cpu",
        "--quick",
        "--minutes",
        "0",
    ]
    done = subprocess.run(
        run, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "skipped: no time left" in done.stdout and "tokens/s" not in done.stdout


def test_a_failed_cell_is_a_row_and_the_others_continue(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS / "bench"))
    report = script("bench/measuring").Report(tmp_path / "rows.json", minutes=1)
    report.cell("one", lambda: 1 / 0)
    report.cell("two", lambda: report.add("two", 2.0, "ms"))
    assert "division by zero" in capsys.readouterr().out
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == [
        "one",
        "two",
    ]
