"""Checkpoints in several files: written by all processes, read as a whole."""

import pytest
import torch

from dnadiff.training.trainer import AtomicCheckpoints
from dnadiff.weights.tensors import read_sharded, write_sharded


class Part(torch.Tensor):
    """Stands for a distributed tensor."""


def content(scale=1.0):
    weight = (torch.arange(10.0).view(5, 2) * scale).as_subclass(Part)
    step = {"step": torch.tensor(3.0), "exp_avg": weight}
    return {
        "state_dict": {"weight": weight, "id": torch.tensor([7])},
        "optimizer_states": [{"state": {0: step}}],
        "global_step": 3,
    }


def save(path, token, size=2, scale=1.0, ranks=None):
    """What `size` processes write, one after the other; the first, which writes the file that lists
    the others, is last."""
    for rank in reversed(range(size)) if ranks is None else ranks:

        def own(value, rank=rank):
            return (
                value.as_subclass(torch.Tensor).chunk(size)[rank]
                if isinstance(value, Part)
                else None
            )

        write_sharded(path, content(scale), own, rank, size, token, lambda: None)


def test_whole_tensors_come_back(tmp_path):
    save(tmp_path / "last.ckpt", "ab", size=3)
    assert sorted(p.name for p in (tmp_path / "last.shards").iterdir()) == [
        f"ab-{n}-of-3.ckpt" for n in (1, 2, 3)
    ]
    found, expected = read_sharded(tmp_path / "last.ckpt"), content()
    assert found["global_step"] == 3 and found["state_dict"]["id"].tolist() == [7]
    assert torch.equal(
        found["state_dict"]["weight"], expected["state_dict"]["weight"].as_subclass(torch.Tensor)
    )
    state = found["optimizer_states"][0]["state"][0]
    assert (
        state["exp_avg"].tolist() == expected["state_dict"]["weight"].tolist()
        and float(state["step"]) == 3
    )


def test_a_run_killed_while_it_writes_keeps_the_old_checkpoint(tmp_path):
    save(tmp_path / "last.ckpt", "old")
    save(
        tmp_path / "last.ckpt", "new", scale=2.0, ranks=[1]
    )  # the first process does not get there
    assert (
        read_sharded(tmp_path / "last.ckpt")["state_dict"]["weight"].tolist()
        == content()["state_dict"]["weight"].tolist()
    )
    save(tmp_path / "last.ckpt", "newer", scale=3.0)
    assert (
        read_sharded(tmp_path / "last.ckpt")["state_dict"]["weight"].tolist()
        == content(3.0)["state_dict"]["weight"].tolist()
    )
    assert len(list((tmp_path / "last.shards").iterdir())) == 2


def test_one_file_replaces_shards(tmp_path):
    save(tmp_path / "last.ckpt", "ab")
    AtomicCheckpoints().save_checkpoint({"global_step": 4}, tmp_path / "last.ckpt")
    assert (
        read_sharded(tmp_path / "last.ckpt") == {"global_step": 4}
        and not (tmp_path / "last.shards").exists()
    )


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (
            lambda folder: (folder / "ab-2-of-2.ckpt").unlink(),
            "last.ckpt needs .*ab-2-of-2.ckpt.*copy the folder last.shards",
        ),
        (
            lambda folder: torch.save({"token": "cd", "tensors": {}}, folder / "ab-2-of-2.ckpt"),
            "does not belong to",
        ),
        (
            lambda folder: torch.save({"token": "ab", "tensors": {}}, folder / "ab-2-of-2.ckpt"),
            "its shards lack /state_dict/weight",
        ),
        (
            lambda folder: torch.save(
                {"shards": {"token": "ab", "files": None}}, folder.parent / "last.ckpt"
            ),
            "does not list its shards",
        ),
        (
            lambda folder: (folder / "ab-1-of-2.ckpt").write_bytes(b"PK"),
            "ab-1-of-2.ckpt (is damaged|holds more than tensors)",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage, what):
    save(tmp_path / "last.ckpt", "ab")
    damage(tmp_path / "last.shards")
    with pytest.raises(ValueError, match=what):
        read_sharded(tmp_path / "last.ckpt")


def test_a_shard_outside_the_folder_is_not_read(tmp_path):
    save(tmp_path / "last.ckpt", "ab")
    torch.save({"shards": {"token": "ab", "files": ["../../secret.ckpt"]}}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"last\.shards/secret\.ckpt, which does not exist"):
        read_sharded(tmp_path / "last.ckpt")
