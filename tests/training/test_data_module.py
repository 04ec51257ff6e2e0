"""The state of a training run's data in checkpoints."""

from dnadiff.training.trainer import with_current_state

STATE = {"train_loader": {"epoch": 1, "batch": 3}}


def test_the_state_that_older_versions_saved_under_the_class_of_the_data_is_found():
    old = {"state_dict": {}, "global_step": 4, "GenomeDataModule": STATE}
    assert with_current_state(old) == {**old, "TrainingData": STATE}


def test_the_state_of_a_current_checkpoint_stays_as_it_is():
    current = {"state_dict": {}, "TrainingData": STATE, "loops": {"train_loader": 1}}
    assert with_current_state(current)["TrainingData"] == STATE
    assert with_current_state({"state_dict": {}}) == {"state_dict": {}}
