"""The noise of training: one global batch over devices and accumulation steps."""

from types import SimpleNamespace

import pytest
import torch

from dnadiff.draws import hash64
from dnadiff.noise import LogLinear
from dnadiff.objective.masking import Bernoulli, ExactCount
from dnadiff.process import AbsorbingProcess
from dnadiff.training.module import DiffusionModule
from dnadiff.vocab import Vocab


@pytest.mark.parametrize(("world", "accumulated"), [(1, 1), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("masking", [Bernoulli(t_min=0.0), ExactCount()], ids=lambda m: type(m).__name__)
def test_times_are_stratified_over_all_devices_and_accumulation_steps(masking, world, accumulated):
    process = AbsorbingProcess(Vocab(12, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), LogLinear())
    x0, step, rows, times = torch.full((4, 4000), 7), 5, [], []
    for rank in range(world):
        trainer = SimpleNamespace(world_size=world, global_rank=rank)
        module = SimpleNamespace(trainer=trainer, device=torch.device("cpu"), seed=2)
        for micro in range(accumulated):
            draws = DiffusionModule.draws(module, "train", 4, step, micro, accumulated)
            rows += draws.rows.tolist()
            times += masking(process, x0, x0 > 0, draws).t.tolist()
            assert (draws.seed, draws.step, draws.global_batch_size) == (hash64(2, "train"), step, 4 * world * accumulated)
    size = 4 * world * accumulated
    assert sorted(rows) == list(range(size))
    places = [int(t * size) for t in times] if isinstance(masking, Bernoulli) else [int((t * 0.999 - 1e-4) * size) for t in times]
    assert sorted(places) == list(range(size))
