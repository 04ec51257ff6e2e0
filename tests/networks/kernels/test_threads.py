from functools import partial

import pytest
import torch

from dnadiff.networks.kernels import facade


@pytest.fixture
def four(monkeypatch, tmp_path):
    """PyTorch with four threads, none of which the environment asks for."""
    for name in facade._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield tmp_path / "kernels"
    torch.set_num_threads(before)


choose = partial(facade.choose_threads, load=lambda: (0.1, 0.1, 0.1))


def test_a_trial_is_made_once_for_a_machine(four):
    assert choose(lambda most: most // 2) == torch.get_num_threads() == 2
    torch.set_num_threads(4)
    assert choose(lambda most: 1) == torch.get_num_threads() == 2
    assert len(list(four.glob("threads-*"))) == 1


@pytest.mark.parametrize("content", ["", "x", "0", "5"])
def test_a_damaged_choice_is_made_again(content, four):
    choose(lambda most: 1)
    next(four.glob("threads-*")).write_text(content)
    torch.set_num_threads(4)
    assert choose(lambda most: 1) == 1


def test_the_environment_decides_before_any_trial(four, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert choose(lambda most: 1) == 4


def test_nothing_is_tried_or_stored_on_a_busy_machine(four):
    assert facade.choose_threads(lambda most: 1, load=lambda: (3.0, 0.1, 0.1)) == 4
    assert not list(four.glob("threads-*"))


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [((1.0, 1.0, 1.0), 1), ((1.0, 0.5, 0.49), 2), ((1.0, 0.6, 0.3), 4), ((1.0, 1.2, 2.0), 1)],
)
def test_more_threads_are_used_if_they_are_clearly_faster(costs, chosen, four):
    cost, now = dict(zip((1, 2, 4), costs, strict=True)), [0.0]

    def scan():
        now[0] += cost[torch.get_num_threads()] * 1e-3

    assert facade._trial(4, scan, lambda: now[0]) == chosen


@pytest.mark.parametrize(("cold", "chosen"), [(0.2, 4), (10.0, 1)])
def test_a_cold_start_does_not_decide(cold, chosen, four):
    now = [0.0]

    def scan():  # at first more threads gain nothing
        now[0] += 1e-3 if now[0] < cold else 1e-3 / torch.get_num_threads()

    assert facade._trial(4, scan, lambda: now[0]) == chosen
