import pytest
import torch

from dnadiff.networks.kernels import facade as threads


@pytest.fixture
def four(monkeypatch, tmp_path):
    """PyTorch with four threads, none of which the environment asks for."""
    for name in threads._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DNADIFF_CACHE", str(tmp_path))
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield tmp_path / "kernels"
    torch.set_num_threads(before)


def test_a_trial_is_made_once_for_a_machine(four, monkeypatch):
    trials = []
    monkeypatch.setattr(threads, "_trial", lambda most: trials.append(most) or 2)
    assert threads.choose_threads() == torch.get_num_threads() == 2
    torch.set_num_threads(4)
    assert threads.choose_threads() == torch.get_num_threads() == 2
    assert trials == [4] and len(list(four.glob("threads-*"))) == 1


@pytest.mark.parametrize("content", ["", "x", "0", "5"])
def test_a_damaged_choice_is_made_again(content, four, monkeypatch):
    monkeypatch.setattr(threads, "_trial", lambda most: 1)
    threads.choose_threads()
    next(four.glob("threads-*")).write_text(content)
    torch.set_num_threads(4)
    assert threads.choose_threads() == 1


def test_the_environment_decides_before_any_trial(four, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(threads, "_trial", lambda most: 1 / 0)
    assert threads.choose_threads() == 4


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [((1.0, 1.0, 1.0), 1), ((1.0, 0.5, 0.49), 2), ((1.0, 0.6, 0.3), 4), ((1.0, 1.2, 2.0), 1)],
)
def test_more_threads_are_used_if_they_are_clearly_faster(costs, chosen, four, monkeypatch):
    cost, now = dict(zip((1, 2, 4), costs, strict=True)), [0.0]

    def scan(*_):
        now[0] += cost[torch.get_num_threads()] * 1e-3

    monkeypatch.setattr(threads, "selective_scan", scan)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    assert threads._trial(4) == chosen


def test_nothing_is_tried_or_stored_on_a_busy_machine(four, monkeypatch):
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (3.0, 0.1, 0.1))
    monkeypatch.setattr(threads, "_trial", lambda most: 1 / 0)
    assert threads.choose_threads() == 4 and not list(four.glob("threads-*"))


@pytest.mark.parametrize(("cold", "chosen"), [(0.2, 4), (10.0, 1)])
def test_a_cold_start_does_not_decide(cold, chosen, four, monkeypatch):
    now = [0.0]

    def scan(*_):  # at first more threads gain nothing
        now[0] += 1e-3 if now[0] < cold else 1e-3 / torch.get_num_threads()

    monkeypatch.setattr(threads, "selective_scan", scan)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    assert threads._trial(4) == chosen
