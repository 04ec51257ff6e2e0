"""Lightning's Trainer and the processes of a run: which settings a run may choose, which strategy
connects its processes, which of them share a window (context parallelism), and how weights,
gradients and optimizer states are cut into shards, one in each process (FSDP2, arXiv
2304.11277)."""

import io
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.gaussian import VectorDenoiser
from dnadiff.fields import Config, Json, PositiveInt, check_value, is_integer
from dnadiff.networks.backbone import context
from dnadiff.networks.backbone.base import BlockBackbone, Peers
from dnadiff.store.disk import atomic_write
from dnadiff.store.objects import build
from dnadiff.weights.tensors import read_sharded, shards_of, write_sharded

DATA_STATE = "TrainingData"  # key of the state of `TrainingData` in a checkpoint
# Arguments that are the same in every run.
FIXED: Config = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "check_val_every_n_epoch": None,
    "use_distributed_sampler": False,
}
# Arguments that training sets itself, and what to set instead.
INSTEAD = {
    "logger": "choose loggers by logger=, as in logger=[csv,tensorboard]",
    "plugins": "set trainer.precision or trainer.strategy",
    "default_root_dir": "set hydra.run.dir",
    "enable_checkpointing": (
        "set callbacks.checkpoints.every_n_steps, or callbacks.checkpoints=null"
    ),
    "enable_progress_bar": "set callbacks.progress=null for no progress bar",
    "enable_model_summary": "add lightning.pytorch.callbacks.ModelSummary to trainer.callbacks",
    "num_sanity_val_steps": (
        "leave it out, because the network is checked on one sequence before training"
    ),
    "check_val_every_n_epoch": "set trainer.val_check_interval, in optimizer steps",
    "use_distributed_sampler": (
        "leave it out, because the windows of each process are different already"
    ),
}
INTEGERS = ("max_steps", "val_check_interval", "accumulate_grad_batches")
# Weights in half precision lose small steps.
_PRECISIONS = r"64|(64|bf16|16)-true|transformer-engine(-float16)?"


def trainer_settings(trainer: Config) -> Config:
    """The arguments of the Trainer with its integers as `int`: they may be written as 1e4.

    Raises:
        ValueError: for a key that would have no effect, naming the one to set instead, or a value
            that cannot be used.
    """
    for key, remedy in INSTEAD.items():
        if key in trainer:
            raise ValueError(
                f"trainer.{key} would have no effect, because training sets it itself; {remedy}"
            )
    if re.fullmatch(_PRECISIONS, precision := str(trainer.get("precision"))):
        raise ValueError(
            f"trainer.precision {precision} is not supported; set 32-true or bf16-mixed (weights "
            "in half precision would lose small steps)"
        )
    word = trainer.get("strategy", "auto")
    known = r"auto|fsdp2|ddp(_find_unused_parameters_(true|false))?"
    # A mapping is a class of Lightning or of the user.
    if not isinstance(word, Mapping) and not re.fullmatch(known, str(word)):
        raise ValueError(
            f"trainer.strategy {word} is not supported; choose auto (one process, or ddp), ddp "
            "(ddp_spawn and ddp_fork start processes without the command line), or fsdp2, which "
            "shards weights as fsdp and deepspeed do"
        )
    trainer = trainer | {
        key: check_value(f"trainer.{key}", trainer[key], PositiveInt) for key in INTEGERS
    }
    accumulated = trainer["accumulate_grad_batches"]
    for key in ("limit_train_batches", "overfit_batches"):
        limit = trainer.get(key)
        is_all = limit is None or (isinstance(limit, float) and limit in (0.0, 1.0))
        is_whole = is_integer(limit, 0) and limit % accumulated == 0
        if accumulated > 1 and not is_all and not is_whole:
            raise ValueError(
                f"trainer.{key} {limit} would end an epoch in the middle of an optimizer step of "
                f"{accumulated} batches; set a multiple of trainer.accumulate_grad_batches"
            )
    return trainer


def validation_interval(settings: Config) -> int:
    """Batches between validations, such that they are evenly spaced about `val_check_interval`
    steps apart and the last is at the end.

    The interval is rounded down to integer steps: 7 steps with 2 validations have them after 3 and
    6.
    """
    steps = settings["max_steps"]
    times = max(1, round(steps / settings["val_check_interval"]))
    return max(1, steps // times) * settings["accumulate_grad_batches"]


def build_trainer(settings: Config, callbacks: Sequence[Callback], run_dir: Path) -> Trainer:
    """The Trainer of `trainer_settings`, without loggers."""
    plugins: list[object] = [AtomicCheckpoints()]
    # Torchrun also works inside a job. `Checkpoints` saves at the signal of SLURM, and the job is
    # requeued by its script.
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        plugins.append(SLURMEnvironment(auto_requeue=False))
    sharded = {"strategy": ShardedStrategy()} if settings.get("strategy") == "fsdp2" else {}
    return build(
        {**settings, "val_check_interval": validation_interval(settings), **FIXED},
        **sharded,
        callbacks=callbacks,
        plugins=plugins,
        default_root_dir=str(run_dir),
        trust=None,
    )


def check_processes(trainer: Trainer, per_window: int) -> None:
    """Raise ValueError if the processes of a run cannot be divided into groups of `per_window`, or
    nothing starts those of other machines."""
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
            "this run (trainer.devices times trainer.num_nodes); set one to a multiple of the other"
        )


def check_sharded(trainer: Trainer, denoiser: BaseDenoiser) -> None:
    """Raise ValueError if a run with shards would train parameters outside the network, which
    nothing shards and whose gradients nothing adds up."""
    names = denoiser.outside_network
    if names and isinstance(trainer.strategy, ShardedStrategy):
        raise ValueError(
            f"trainer.strategy fsdp2 does not fit this objective, expected ddp: it trains {names} "
            "besides the network; set trainer.strategy=ddp"
        )


def allow_unused(trainer: Trainer, denoiser: BaseDenoiser) -> None:
    """Let several processes train a network of noisy vectors, which does not use its embedding and
    its head."""
    if isinstance(trainer.strategy, DDPStrategy) and isinstance(denoiser, VectorDenoiser):
        trainer.strategy._ddp_kwargs["find_unused_parameters"] = True


def spread(denoiser: BaseDenoiser, per_window: int) -> Peers:
    """Let consecutive processes read pieces of the same windows; called once in all processes.
    Returns those of this process."""
    own, _ = dist.new_subgroups(per_window)
    peers = context.ProcessGroupPeers(own)
    context.spread(denoiser.backbone, peers)
    return peers


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints atomically, next to their target: a killed run leaves the old file or the
    new one. Damaged files are refused."""

    def save_checkpoint(
        self, checkpoint: Config, path: str | os.PathLike[str], storage_options: object = None
    ) -> None:
        def size() -> int:
            content = io.BytesIO()
            torch.save(checkpoint, content)
            return content.tell()

        path = Path(path)
        with atomic_write(path, overwrite=True, size=size) as file:
            torch.save(checkpoint, file)
        shutil.rmtree(shards_of(path), ignore_errors=True)  # of a run with another strategy

    # Tensors arrive on the CPU, and no code in the file runs, whatever is asked.
    def load_checkpoint(  # type: ignore[override]
        self,
        path: str | os.PathLike[str],
        map_location: object = None,
        weights_only: bool | None = None,
    ) -> Config:
        return with_current_state(read_sharded(Path(path)))


def with_current_state(checkpoint: Config) -> Config:
    """The contents of a checkpoint with the state of `TrainingData`, which older versions saved
    under the name of the data's class."""
    for value in checkpoint.values():
        if isinstance(value, dict) and "train_loader" in value:
            return {DATA_STATE: value, **checkpoint}
    return checkpoint


class ShardedStrategy(DDPStrategy):
    """`trainer.strategy=fsdp2`: every layer is gathered when it runs, and the optimizer updates one
    shard of it in each process.

    A network is built as a whole in every process, filled from a checkpoint if a run is resumed,
    and then cut. Checkpoints have one file for each process (`dnadiff.weights.tensors`).
    """

    mesh: DeviceMesh

    def setup_environment(self) -> None:
        super().setup_environment()
        self.mesh = init_device_mesh(self.root_device.type, (self.world_size,))

    def configure_ddp(self) -> None:
        """Shard the blocks of the denoiser, instead of wrapping the module."""
        assert self.lightning_module is not None
        denoiser = self.lightning_module.denoiser
        assert isinstance(denoiser, BaseDenoiser)
        shard(denoiser, self.mesh)
        self.barrier()

    def save_checkpoint(
        self, checkpoint: Config, filepath: str | os.PathLike[str], storage_options: object = None
    ) -> None:
        path, token = self.broadcast((filepath, secrets.token_hex(4)))
        write_sharded(
            Path(path), checkpoint, _local, self.global_rank, self.world_size, token, self.barrier
        )

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Json]) -> None:
        """Load the state of each optimizer, of which this process keeps its shards."""
        for optimizer, content in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(with_shards(content, optimizer))


def shard(denoiser: BaseDenoiser, mesh: DeviceMesh) -> None:
    """Cut the parameters of a network into shards, in place.

    Layers are gathered one by one. The layers of a network that reads blocks run in another way
    than by their `forward`, and are gathered together.
    """
    network = denoiser.backbone
    for layer in network.trunk or () if denoiser.reads is not BlockBackbone else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    register_fsdp_forward_method(network, "features")  # nothing calls `forward`
    if isinstance(network, BlockBackbone):
        register_fsdp_forward_method(network, "block_features")


def reshard(module: nn.Module) -> None:
    """Drop the weights that were gathered for a pass without a backward pass, which would drop
    them."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def with_shards(content: Config, optimizer: Optimizer) -> Config:
    """The state of an optimizer, in which whole tensors of the shape of a parameter are cut as the
    parameter is."""
    numbers = [number for group in content["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: cut(value, parameter) for name, value in content["state"][number].items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in content["state"]
    }
    return {**content, "state": state}


def cut(value: Json, parameter: Tensor) -> Json:
    """A whole tensor of the shape of `parameter`, cut as it is; any other value as it is."""
    if (
        not isinstance(value, Tensor)
        or not isinstance(parameter, DTensor)
        or value.shape != parameter.shape
    ):
        return value
    if parameter.placements != (Shard(0),):
        raise ValueError(
            f"a parameter is distributed as {parameter.placements}, expected shards along its "
            "first axis"
        )
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def _local(value: Json) -> Tensor | None:
    """This process's part of a distributed tensor; None for any other value."""
    is_cut = isinstance(value, DTensor) and value.placements != (Replicate(),)
    return value.to_local() if is_cut else None


def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """The part of each tensor that is in this process: for operations on each element."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
