"""The processes of a training run: which strategy connects them, and which of them share a window
(context parallelism)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch.distributed as dist

from dnadiff.backbone.peers import Peers, ProcessGroupPeers
from dnadiff.config import Json

if TYPE_CHECKING:
    from lightning import Trainer
    from lightning.pytorch.plugins.environments import SLURMEnvironment
    from lightning.pytorch.strategies import Strategy

    from dnadiff.denoiser import BaseDenoiser

# Words of Lightning that are refused, with the reason.
_REFUSED = {
    "fsdp": (
        "FSDP1 does not run on a CPU, and it gathers weights for `forward` alone; set "
        "trainer.strategy=fsdp2, which shards the same"
    ),
    "deepspeed": (
        "it replaces the optimizer and the checkpoints of this package; set "
        "trainer.strategy=fsdp2, or ddp"
    ),
    "ddp_spawn": "it starts processes that do not read the command line; set trainer.strategy=ddp",
    "ddp_fork": "it starts processes that do not read the command line; set trainer.strategy=ddp",
    "ddp_notebook": "it is for notebooks; set trainer.strategy=ddp",
}
# How the libraries of torch.distributed say that another process has ended.
_LOST = re.compile(
    r"gloo|NCCL|closed by peer|reset by peer|Broken pipe|Timed out waiting|process group",
    re.IGNORECASE,
)


def check_strategy(word: Json) -> None:
    """Raise ValueError, with the reason, if `trainer.strategy` is not supported."""
    if isinstance(word, Mapping):  # a class of Lightning or of the user
        return
    for refused, reason in _REFUSED.items():
        if str(word) == refused or (str(word).startswith(f"{refused}_") and refused != "ddp"):
            raise ValueError(f"trainer.strategy {word} is not supported: {reason}")
    if word not in ("auto", "fsdp2") and not re.fullmatch(
        r"ddp(_find_unused_parameters_(true|false))?", str(word)
    ):
        raise ValueError(
            f"trainer.strategy {word} is not known; choose auto (one process, or ddp), ddp or fsdp2"
        )


def strategies(word: Json) -> dict[str, Strategy]:
    """The argument of the Trainer for a strategy of this package; empty for one that Lightning
    knows by its name."""
    if word != "fsdp2":
        return {}
    from dnadiff.training.sharded import ShardedStrategy

    return {"strategy": ShardedStrategy()}


def cluster() -> list[SLURMEnvironment]:
    """Plugins for the scheduler that started this process: under SLURM, `Checkpoints` saves at its
    signal, and the job is requeued by its script."""
    from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    started_by_srun = (
        SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    )  # torchrun also works inside a job
    return [SLURMEnvironment(auto_requeue=False)] if started_by_srun else []


def check_processes(trainer: Trainer, per_window: int) -> None:
    """Raise ValueError if the processes of a run cannot be divided into groups of `per_window`, or
    nothing starts those of other machines."""
    from lightning.pytorch.strategies import ParallelStrategy

    strategy = trainer.strategy
    if (
        trainer.num_nodes > 1
        and "NODE_RANK" not in os.environ
        and isinstance(strategy, ParallelStrategy)
        and strategy.cluster_environment is not None
        and not strategy.cluster_environment.creates_processes_externally
    ):
        raise ValueError(
            f"trainer.num_nodes {trainer.num_nodes}, but this process was not started by torchrun "
            "or srun, which start those of the other "
            "machines; see docs/scaling.md, or set trainer.num_nodes=1"
        )
    if trainer.world_size % per_window:
        raise ValueError(
            f"context_parallel {per_window} does not divide the {trainer.world_size} processes of "
            "this run (trainer.devices times "
            "trainer.num_nodes); set one to a multiple of the other"
        )


def spread(denoiser: BaseDenoiser, per_window: int) -> Peers:
    """Let consecutive processes read pieces of the same windows; called once in all processes.
    Returns those of this process."""
    groups = [
        list(range(first, first + per_window))
        for first in range(0, dist.get_world_size(), per_window)
    ]
    own, _ = dist.new_subgroups_by_enumeration(groups)
    peers = ProcessGroupPeers(own)
    denoiser.backbone.spread(peers)
    return peers


def lost_process(error: Exception, trainer: Trainer) -> str | None:
    """How an error says that another process of the run ended; None if it does not."""
    if trainer.world_size == 1 or not (
        isinstance(error, dist.DistError) or _LOST.search(str(error))
    ):
        return None
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
