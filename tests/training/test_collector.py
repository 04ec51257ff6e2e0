import gc

import pytest

from dnadiff.training.collector import frozen_objects


def test_objects_are_frozen_inside_and_ordinary_again_after_an_error():
    with pytest.raises(ValueError, match="stop"), frozen_objects():
        assert gc.get_freeze_count() > 1000
        raise ValueError("stop")
    assert gc.get_freeze_count() == 0
