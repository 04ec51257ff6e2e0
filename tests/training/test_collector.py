import gc

import pytest
import torch

from dnadiff.training.optim import frozen_objects

COUNT = gc.get_freeze_count


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", COUNT)  # the suite replaces it


def test_objects_are_frozen_inside_and_ordinary_again_after_an_error():
    gc.unfreeze()  # the suite runs with frozen modules
    try:
        with pytest.raises(ValueError, match="stop"), frozen_objects():
            assert gc.get_freeze_count() > 100_000 and not any(
                x is torch.nn.Module for x in gc.get_objects()
            )
            raise ValueError("stop")
        assert gc.get_freeze_count() == 0 and any(x is torch.nn.Module for x in gc.get_objects())
    finally:
        gc.freeze()


def test_objects_that_the_caller_has_frozen_stay_frozen():
    gc.freeze()
    kept = []
    with frozen_objects():
        kept.append([])
    # Frozen objects that are no longer used are still deleted, so the count may have become a
    # little smaller.
    assert gc.get_freeze_count() > 100_000 and any(x is kept for x in gc.get_objects())
