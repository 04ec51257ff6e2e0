"""The scripts behind the tables of the documentation: what is exact in them, and that they run."""

import importlib.util
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff import code_length

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name):
    spec = importlib.util.spec_from_file_location(Path(name).stem, SCRIPTS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def source():
    return script("experiments/known_source")


@pytest.fixture(scope="module")
def chain(source):
    return source.Chain()


def test_the_source_is_what_it_says(source, chain):
    assert 1.199 < chain.rate <= 1.2 and chain.stationary.sum() == pytest.approx(1)
    windows = np.array(list(itertools.product(range(4), repeat=6)), np.uint8)
    log_p = chain.log_prob(windows)
    assert np.exp(log_p).sum() == pytest.approx(1)
    assert -(np.exp(log_p) * log_p).sum() / 6 / math.log(2) == pytest.approx(chain.window_bits(6))
    bases = chain.sample(400, 1000, seed=3)
    assert -chain.log_prob(bases).mean() / 1000 / math.log(2) == pytest.approx(chain.window_bits(1000), abs=0.01)


def test_forward_backward_is_the_posterior(chain):
    windows = np.array(list(itertools.product(range(4), repeat=6)), np.uint8)
    joint = np.exp(chain.log_prob(windows))
    bases = chain.sample(5, 6, seed=5)
    masked = np.random.default_rng(0).random(bases.shape) < 0.6
    for x, hidden, found in zip(bases, masked, chain.posterior(bases, masked)):
        weight = joint * ((windows == x) | hidden).all(1)
        expected = np.stack([[weight[windows[:, at] == letter].sum() for letter in range(4)] for at in range(6)]) / weight.sum()
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_exact_h_adds_up_to_the_entropy(source, chain):
    h, se = chain.exact_h(24, 200, seed=1)
    assert h.mean() / math.log(2) == pytest.approx(chain.window_bits(24), abs=4 * np.sqrt((se**2).sum()) / 24 / math.log(2))
    alpha = torch.linspace(1, 0, 9).numpy()
    weights = source.step_weights(24, alpha)
    assert weights.sum() == pytest.approx(1) and weights @ h == pytest.approx(code_length.discrete_time(h, alpha) / 24)


def test_relative_variances_of_known_noise():
    bench = script("bench/objective")
    noise = torch.Generator().manual_seed(0)
    gradients = torch.tensor([3.0, 4.0]) + torch.randn(200_000, 2, generator=noise)
    losses = 2 + torch.randn(200_000, generator=noise)
    loss, gradient = bench.relative_variances(losses, gradients.sum(0), gradients.square().sum())
    assert loss == pytest.approx(1 / 4, rel=0.02) and gradient == pytest.approx(2 / 25, rel=0.02)
    assert bench.default_method() in bench.METHODS


@pytest.fixture(scope="module")
def sampling():
    return script("bench/sampling")


def test_the_published_sampler_has_its_law_and_its_calls(sampling, oracle, toy):
    class Logits(torch.nn.Module):
        vocab = toy.vocab

        def logits(self, x):
            return oracle.log_probs(x).float().clamp(min=-50)

    torch.manual_seed(0)
    drawn = sampling.ddpm_cache(Logits(), torch.full((20_000, 3), 3), 64).tokens
    law = torch.bincount(drawn @ torch.tensor([9, 3, 1]), minlength=27) / len(drawn)
    assert (law - toy.joint).abs().sum() / 2 < 0.03
    # facts.md 16, with the step that ends at 1e-5 and the call that removes the noise
    for batch, expected in ((1, 641), (16, 1000)):
        calls = [sampling.ddpm_calls(batch, 1024, 1000, seed) for seed in range(20)]
        assert np.mean(calls) == pytest.approx(expected + 1, abs=8)


def test_some_steps_of_a_plan_and_equal_loss(sampling, oracle, toy):
    process = sampling.AbsorbingProcess(toy.vocab, sampling.LogLinear())
    some = sampling.Some(sampling.FirstHitting(), 2).sample(oracle, process, torch.full((5, 3), 3), sampling.Draws.for_batch(0, 5))
    assert some.nfe == 2 and some.rows == 10 and ((some.tokens == 3).sum(-1) == 1).all()
    assert sampling.steps_at([(0.1, 10), (0.01, 100)], 0.0316) == 32 and sampling.steps_at([(0.1, 10), (0.01, 100)], 0.001) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("bench/sampling", "times faster than ddpm_cache with T = 64"),
        ("bench/objective", "Lowest mean"),
        ("experiments/known_source", "| `sedd` | sum of h(n)"),
        ("experiments/ecoli_objectives", "| mlm, then mdlm |"),
    ],
)
def test_scripts_run_and_go_on(name, shows, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--output", str(tmp_path)]
    first = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert first.returncode == 0 and shows in first.stdout, first.stdout + first.stderr
    again = subprocess.run([*run, "--table"], capture_output=True, text=True, check=True, env=environment)
    assert shows in again.stdout and "$ python" not in again.stdout
