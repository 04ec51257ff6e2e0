"""Files of tensors: read without running code from them, bounds of the networks built for them,
hashes of their weights, and checkpoints in several files.

Such a checkpoint is `NAME.ckpt` with everything but the tensors that are sharded, and
`NAME.shards/` with one file of each process. Sharded tensors are cut along their first axis, in the
order of the processes. Reading puts them together, so that a checkpoint loads in any number of
processes, and in commands that know nothing of processes.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from dnadiff.fields import Config, Json
from dnadiff.store.disk import atomic_write

if TYPE_CHECKING:
    from dnadiff.diffusion.denoiser import BaseDenoiser
    from dnadiff.networks.backbone.base import PublishedLayout

# Keys: the files of a checkpoint, and the name of a tensor in them.
SHARDS = "shards"
SHARDED = "sharded"
# A tied or shared parameter is registered several times, and some only until they are replaced: at
# most so often per tensor of a file.
_REGISTRATIONS = 8
_FILLS = (
    torch.nn.init.normal_,
    Tensor.normal_,
    Tensor.mul_,
    Tensor.div_,
)  # change numbers in place, and return the tensor
# a file may name a tied tensor several times; more memory than this many times the file's size is
# refused
_COPIES = 4


def read(path: Path) -> Json:
    """The contents of a `.safetensors` file, or of a file of tensors and plain values written by
    `torch.save`; no code in it runs.

    The checksums (CRC-32) in a file of `torch.save` are compared first, because torch does not do
    it. That reads the file once more, at about 2 GB/s. Safetensors files have no checksums.

    Raises:
        ValueError: if the file is damaged or cut short, or holds pickled code.
    """
    with path.open("rb") as file:
        first = file.read(4)
    is_safetensors = path.suffix == ".safetensors"
    is_zip = first.startswith(b"PK")
    # Neither a pickle nor a zip file, the formats of torch.save.
    if first and not (is_safetensors or is_zip or first.startswith(b"\x80")):
        raise ValueError(f"{path} is not a file of tensors; name a run folder or a .ckpt file")
    try:
        if is_safetensors:
            from safetensors.torch import load_file

            return load_file(path)
        if is_zip:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    # So that the size of the file bounds the work and the memory.
                    if (member.compress_type, member.compress_size) != (
                        zipfile.ZIP_STORED,
                        member.file_size,
                    ):
                        raise ValueError(
                            f"{member.filename} is compressed, which torch.save does not do"
                        )
                if (damaged := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of {damaged} differs")
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain values, or is damaged, and was not loaded: "
            "it could run code on this machine; use another copy of it"
        ) from error
    except Exception as error:  # a damaged pickle or index raises errors of many kinds
        named = type(error) is ValueError and "invalid literal" not in str(error)  # of int()
        reason = f" ({error})" if named else ""
        raise ValueError(
            f"{path} is damaged or cut short{reason}; use another copy of it"
        ) from error


def shards_of(path: Path) -> Path:
    """The folder of the shards of a checkpoint."""
    return path.with_suffix(".shards")


def split(
    content: Json, local: Callable[[Json], Tensor | None], parts: dict[str, Tensor], name: str = ""
) -> Json:
    """A nested checkpoint with each sharded tensor replaced by its name, under which this process's
    part of it is added to `parts`.

    `local` returns this process's part of a sharded tensor, and None for any other value.
    """
    if (part := local(content)) is not None:
        # Not a view, with which all it is part of would be saved.
        parts[name] = part.detach().cpu().clone()
        return {SHARDED: name}
    inner = content if isinstance(content, Mapping) else {}
    if isinstance(content, (list, tuple)):
        inner = dict(enumerate(content))
    kept = {key: split(value, local, parts, f"{name}/{key}") for key, value in inner.items()}
    if all(kept[key] is value for key, value in inner.items()):
        return content
    return kept if inner is content else list(kept.values())


def write_sharded(
    path: Path,
    content: Config,
    local: Callable[[Json], Tensor | None],
    rank: int,
    size: int,
    token: str,
    wait: Callable[[], None],
) -> None:
    """Write a checkpoint from all its processes; a run killed at any time leaves the old checkpoint
    or the new one.

    Args:
        path: of `NAME.ckpt`.
        local: as of `split`.
        rank, size: number of this process, and number of processes.
        token: the same new word in all processes; it is in the names of the files.
        wait: returns when all processes have called it.
    """
    parts: dict[str, Tensor] = {}
    content = split(content, local, parts)
    folder = shards_of(path)
    names = [f"{token}-{number}-of-{size}.ckpt" for number in range(1, size + 1)]
    with atomic_write(folder / names[rank], overwrite=True) as file:
        torch.save({"token": token, "tensors": parts}, file)
    wait()
    if rank == 0:
        with atomic_write(path, overwrite=True) as file:
            torch.save({**content, SHARDS: {"token": token, "files": names}}, file)
        for old in folder.glob("*.ckpt"):
            if old.name not in names:
                old.unlink(missing_ok=True)
    wait()


def read_sharded(path: Path, provide: Callable[[str], None] | None = None) -> Json:
    """The content of a checkpoint in one file or in several, with whole tensors.

    Args:
        provide: called with the name of each shard, such as to fetch it; None: the shards are next
            to the file.

    Raises:
        ValueError: if a file is missing or damaged, belongs to another checkpoint, or holds pickled
            code.
    """
    content = read(path)
    if not isinstance(content, dict) or SHARDS not in content:
        return content
    listed = content.pop(SHARDS)
    if not isinstance(listed, dict) or not isinstance(listed.get("files"), list):
        raise ValueError(f"{path} is damaged: it does not list its shards; use another copy of it")
    parts = []
    for name in listed["files"]:
        file = shards_of(path) / Path(str(name)).name
        if provide is not None:
            provide(file.name)
        if not file.is_file():
            raise ValueError(
                f"{path} needs {file}, which does not exist; copy the folder {file.parent.name} "
                f"together with {path.name}"
            )
        shard = read(file)
        tensors = shard.get("tensors") if isinstance(shard, dict) else None
        if not isinstance(tensors, dict) or shard.get("token") != listed.get("token"):
            raise ValueError(f"{file} does not belong to {path}; copy both from the same run")
        parts.append(tensors)

    def merged(value: Json) -> Json:
        if isinstance(value, dict) and value.keys() == {SHARDED}:
            name = value[SHARDED]
            if not all(isinstance(part.get(name), Tensor) for part in parts):
                raise ValueError(
                    f"{path} is damaged: its shards lack {str(name)[:80]}; use another copy of it"
                )
            return torch.cat([part.pop(name) for part in parts])
        if isinstance(value, dict):
            return {key: merged(each) for key, each in value.items()}
        return type(value)(map(merged, value)) if isinstance(value, (list, tuple)) else value

    return merged(content)


def fingerprint(network: torch.nn.Module) -> str:
    """SHA-256 of the names, types, shapes and bytes of all weights; it takes about a second per
    gigabyte."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def identity(denoiser: BaseDenoiser) -> str:
    """The identity of a model: SHA-256 of its vocabulary and its weights (`fingerprint`)."""
    vocab = denoiser.vocab
    parts = (vocab.size, vocab.mask_id, vocab.pad_id, vocab.never_emitted, vocab.complement)
    return hashlib.sha256(f"{parts} {fingerprint(denoiser)}".encode()).hexdigest()


def earlier_identities(denoiser: BaseDenoiser) -> dict[str, Callable[[], tuple[str, ...]]]:
    """What earlier versions wrote as the setting `model` in the place of its `identity`."""
    return {"model": lambda: (fingerprint(denoiser),)}


@torch.no_grad()
def round_weights(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round all parameters to the values that a file of `dtype` can hold; their own type stays.

    Raises:
        ValueError: if a value is outside the range of `dtype`; no parameter has changed then.
    """
    rounded = {name: parameter.to(dtype) for name, parameter in network.named_parameters()}
    for (name, parameter), value in zip(network.named_parameters(), rounded.values(), strict=True):
        if not torch.equal(value.isfinite(), parameter.isfinite()):
            raise ValueError(
                f"{name} has the value {parameter.abs().max():g}, and "
                f"{str(dtype).removeprefix('torch.')} holds at most "
                f"{torch.finfo(dtype).max:g}; use another dtype"
            )
    for name, parameter in network.named_parameters():
        parameter.copy_(rounded[name])


def check_memory(given: Iterable[Tensor], path: Path) -> None:
    """Raise ValueError if the tensors of a file need far more memory than the file's size, as views
    that repeat a few numbers do."""
    needed = sum(t.numel() * t.element_size() for t in given)
    size = path.stat().st_size
    if needed > _COPIES * size:
        raise ValueError(
            f"{path} has {size:,} bytes, and its tensors would need {needed:,}; use a file that "
            "holds all of their numbers"
        )


@contextmanager
def without_memory(num_tensors: int, path: Path) -> Iterator[None]:
    """Networks built inside have no memory for weights, and as many parameters as a file of
    `num_tensors` tensors can fill.

    A configuration that asks for millions of layers is refused after the first few.

    Raises:
        ValueError: if the network has more parameters.
    """
    registered = 0
    limit = _REGISTRATIONS * (num_tensors + 1)

    def count(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal registered
        registered += 1
        if registered > limit:
            raise ValueError(
                f"the network of the configuration has more parameters than the {num_tensors:,} "
                f"tensors in {path} can fill; use a file and a configuration that belong together"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        with on_meta_device():
            yield
    finally:
        hook.remove()


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Networks built inside have no memory for weights (`torch.device("meta")`), and building them
    does not import PyTorch's compiler."""
    with torch.device("meta"), _WithoutNumbers():
        yield


class _WithoutNumbers(TorchFunctionMode):
    """Leaves out what only changes numbers, which weights without memory do not have; PyTorch would
    import its compiler for it."""

    def __torch_function__(
        self,
        func: Callable[..., Json],
        types: Sequence[type],
        args: Sequence[Json] = (),
        kwargs: Mapping[str, Json] | None = None,
    ) -> Json:
        given = kwargs or {}
        if func in _FILLS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """The missing, surplus and misshapen tensors of a file; a network may be without memory."""
    return [
        *(f"missing {name}" for name in own if name not in given),
        *(f"surplus {name}" for name in given if name not in own),
        *(
            f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
            for name, tensor in own.items()
            if name in given and given[name].shape != tensor.shape
        ),
    ]


@torch.no_grad()
def fill(layout: PublishedLayout, given: Mapping[str, Tensor], source: Path) -> None:
    """Copy the tensors of a file, which `check_layout` has seen, into the network of a layout.

    Raises:
        ValueError: listing tensors that are different from the tensor to which they are tied or
            from a constant.
    """
    faults = []
    for tensor, names in layout.weights:
        first, *others = (name for name in names if name in given)
        faults += [
            f"{name} differs from {first}, to which it is tied"
            for name in others
            if not torch.equal(given[name].to(tensor), given[first].to(tensor))
        ]
        tensor.copy_(given[first])
    faults += [
        f"{name} differs from the value that follows from the configuration"
        for name, constant in layout.constants.items()
        if name in given and not torch.allclose(given[name].float(), constant.cpu().float())
    ]
    refuse(faults, source)


def check_layout(layout: PublishedLayout, given: Mapping[str, Tensor], source: Path) -> None:
    """Raise ValueError, listing tensors that are missing, surplus, or of the wrong shape or type;
    also works for a network on the meta device."""
    own = {name: tensor for name, tensor in layout.constants.items() if name in given}
    for tensor, names in layout.weights:
        own |= dict.fromkeys([name for name in names if name in given] or names[:1], tensor)
    faults = misfits(own, given) + [
        f"{name} holds {given[name].dtype}, expected floating point"
        for name in own.keys() & given.keys() - layout.constants.keys()
        if not given[name].is_floating_point()
    ]
    refuse(faults, source)


def refuse(faults: Sequence[str], source: Path) -> None:
    """Raise ValueError if a file's tensors have faults: all in one line, with their number if there
    are many."""
    if faults:
        number = f"{len(faults)} faults: " if len(faults) > 30 else ""
        raise ValueError(
            f"the weights in {source} do not fit its configuration: {number}{'; '.join(faults)}. "
            "Was it trained with another vocabulary or size?"
        )
