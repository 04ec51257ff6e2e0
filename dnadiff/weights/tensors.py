"""Reads files of tensors without running code from them, bounds the networks built for them, and
hashes their weights."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from dnadiff.fields import Json

if TYPE_CHECKING:
    from dnadiff.diffusion.denoiser import BaseDenoiser

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
        ValueError: if the file is damaged or truncated, or holds pickled code.
    """
    is_safetensors = path.suffix == ".safetensors"
    is_zip = not is_safetensors and _is_zip(path)
    if not is_safetensors and path.stat().st_size and not is_zip:
        with open(path, "rb") as file:
            first = file.read(4)
        if (
            first[:1] != b"\x80" and first[:2] != b"PK"
        ):  # neither a pickle nor a zip file, the formats of torch.save
            raise ValueError(f"{path} is not a file of tensors; name a run folder or a .ckpt file")
    try:
        if is_safetensors:
            return _read_safetensors(path)
        if is_zip:
            _check_members(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain values, and was not loaded: it could run "
            "code on this machine"
        ) from error
    # A damaged pickle or index makes torch and zipfile raise errors of many kinds.
    except (
        RuntimeError,
        EOFError,
        OSError,
        zipfile.BadZipFile,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        AssertionError,
    ) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise ValueError(
            f"{path} is damaged or truncated ({reason}); use another copy of it"
        ) from error


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # an index with impossible numbers
        return True


def _check_members(path: Path) -> None:
    # `torch.save` does not compress, so the size of the file bounds the work and the memory.
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if (
                member.compress_type != zipfile.ZIP_STORED
                or member.compress_size != member.file_size
            ):
                raise zipfile.BadZipFile(
                    f"{member.filename} is compressed, which torch.save does not do"
                )
        if (damaged := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} differs")


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
    needed, size = sum(t.numel() * t.element_size() for t in given), path.stat().st_size
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
    registered, limit = 0, _REGISTRATIONS * (num_tensors + 1)

    def count(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal registered
        registered += 1
        if registered > limit:
            raise ValueError(
                f"the network of the configuration has more parameters than the {num_tensors:,} "
                f"tensors in {path} can fill; "
                "use a file and a configuration that belong together"
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

    @override
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


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def listing(faults: Sequence[str]) -> str:
    """All faults in one line, with their number if there are many."""
    return (f"{len(faults)} faults: " if len(faults) > 30 else "") + "; ".join(faults)
