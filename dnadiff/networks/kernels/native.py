"""The C++ kernels: compiled at first use, loaded once, and called with pointers and sizes. Here are
also the scan and the operators on single positions; whole mixers are in `cpu`.

A library is found by two keys (source, flags and processor; compiler) and verified by the hash of
its own bytes, which is part of its name. One atomic rename publishes both, so processes that start
at the same time, or are killed, cannot leave a broken library. Loading a library executes code, so
only folders and files that no other user, except root, can write are trusted.

States are (..., N, E) here, and blocks count in the order of the walk: of a reverse scan the first
block is the last one of the sequence. The states that are kept for the backward pass are also those
that a scan returns.

An operator is a function on tensors that autograd and torch.compile know as one step. Where the
compiler asks for shapes alone, the same function runs on tensors without data, and `call` does
nothing.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ctypes import c_double, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import CustomOpDef

from dnadiff.networks.kernels.backend import OptionalTensor, gate_gradient
from dnadiff.progress import log
from dnadiff.store.address import cache_root

_FOLDER = Path(__file__).parent
_ABANDONED = 3600  # seconds after which a build folder is assumed to belong to a killed process
# The kernels are vectorized and unrolled by hand: -O3 takes a third longer to compile (1.0 instead
# of 0.7 s) and gains 2 to 3 %.
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
)
# From the fastest to the most portable: some ARM compilers need -mcpu, Apple's has no OpenMP (the
# source then uses threads).
_EXTRAS = tuple(
    (*cpu, omp)
    for omp in ("-fopenmp", "-pthread")
    for cpu in (("-march=native",), ("-mcpu=native",), ())
)
_FUNCTION = re.compile(r"^(void|int64_t) (dnadiff_\w+)\(([^)]*)\)", re.MULTILINE)
_PLAIN = {int, float, bool, type(None)}
_TYPES = {"int64_t": c_int64, "double": c_double, "int": c_int}  # of parameters, by value


class CannotCompile(RuntimeError):
    """There is no library and it cannot be compiled; the message gives the reason."""


def cache_folder() -> Path:
    """The folder of compiled kernels: `kernels` in $DNADIFF_CACHE, else in $XDG_CACHE_HOME/dnadiff,
    else in ~/.cache/dnadiff."""
    return cache_root().expanduser() / "kernels"


def find_compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of c++, g++ and clang++ on the path;
    CannotCompile if there is none."""
    if chosen := os.environ.get("CXX"):
        command = shlex.split(chosen)
        if not shutil.which(command[0]):
            raise CannotCompile(
                f"CXX={chosen} is not a program; point CXX to a C++17 compiler or unset it"
            )
        return command
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise CannotCompile(
        "no C++ compiler: none of c++, g++ and clang++ is on the PATH and CXX is not set"
    )


def load_library(folder: Path = _FOLDER, flags: tuple[str, ...] = _FLAGS) -> ctypes.CDLL:
    """The kernels of the sources in a folder, from the cache or compiled now (1.5 s on two idle
    cores); CannotCompile if that fails.

    Without a compiler, a cached library of any compiler is used if sources and processor are the
    same.
    """
    cache = _private_folder()
    key = _key(folder, flags, _instruction_set())
    try:
        compiler = find_compiler()
    except CannotCompile:
        if path := _cached(cache, f"kernels-{key}-*.so"):
            return _load(path)
        raise
    version = _run([*compiler, "--version"]).stdout
    name = f"kernels-{key}-{short_hash(*compiler, version)}"
    if path := _cached(cache, f"{name}-*.so"):
        return _load(path)
    with _build_folder(cache) as work:
        made = _compile(compiler, folder, flags, work)
        if cache is not None:
            # a read-only folder or a full disk: use it in this process only
            with suppress(OSError):
                made = made.rename(cache / f"{name}-{_digest(made)}.so")
        return _load(made)


def _key(folder: Path, flags: tuple[str, ...], processor: str) -> str:
    """The first part of a library's name."""
    sources = [path.read_text() for path in _sources(folder)]
    return short_hash(*flags, repr(_EXTRAS), sys.platform, processor, *sources)


def _sources(folder: Path, endings: tuple[str, ...] = (".h", ".cpp")) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in endings)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CannotCompile(f"the compiled kernels do not load: {error}") from error


def _private_folder() -> Path | None:
    """The cache folder, created if necessary; None, with a warning, if that fails or another user
    but root could write to it."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _writable_by_others(folder)
    except (OSError, RuntimeError) as error:  # a read-only or a missing home
        reason = str(error)
    if not reason:
        return folder
    log.warning("the C++ kernels are compiled for this process alone: %s", reason)
    return None


def _writable_by_others(path: Path) -> str:
    """Why another user than root could have written to a path; an empty string if none could."""
    status = path.stat()
    # root: a container's image holds kernels for the user who starts it
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return f"{path} can be written by others; chmod go-w changes that"
    return ""


@contextmanager
def _build_folder(folder: Path | None) -> Iterator[Path]:
    """A temporary folder to compile in: inside `folder` if that can be written, so that one rename
    publishes the result."""
    for left in folder.glob("compiling-*") if folder else ():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)
    place = folder if folder and os.access(folder, os.W_OK) else None
    try:
        work = tempfile.TemporaryDirectory(
            dir=place, prefix="compiling-", ignore_cleanup_errors=True
        )
    except OSError as error:
        message = f"no temporary folder can be created to compile in: {error}"
        raise CannotCompile(message) from error
    with work as path:
        yield Path(path)


def short_hash(*parts: str) -> str:
    """64 bits of the SHA-256 of some texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def processor() -> list[str]:
    """What Linux says about the first processor, one line for each property; elsewhere nothing."""
    try:
        return Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return []


def _instruction_set() -> str:
    """A home directory shared by different machines holds one library for each."""
    properties = ("model name", "flags", "Features", "CPU part")
    known = [line for line in processor() if line.split(":")[0].strip() in properties]
    return "\n".join(known) or f"{platform.machine()} {platform.processor()} {platform.version()}"


def _cached(folder: Path | None, pattern: str) -> Path | None:
    for path in sorted(folder.glob(pattern)) if folder else ():
        with suppress(OSError):  # another process removed it, or this one has no permission
            if (
                path.is_file()
                and not _writable_by_others(path)
                and _digest(path) == path.stem.rsplit("-", 1)[1]
            ):
                return path
            path.unlink()  # truncated or changed: loading it could crash the process
    return None


def _compile(compiler: list[str], folder: Path, flags: tuple[str, ...], work: Path) -> Path:
    """The library, built in the folder `work`: one process per source, then the linker."""
    sources = _sources(folder, (".cpp",))
    made = work / "kernels.so"
    message = "no message"
    objects = [str(work / f"{source.name}.o") for source in sources]
    for extra in _EXTRAS:
        given = (*flags, *extra)
        command = [*compiler, *given, f'-DDNADIFF_FLAGS="{short_hash(*given)}"']
        steps = [
            [*command, "-c", str(source), "-o", to]
            for source, to in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(len(steps)) as pool:
            results = [*pool.map(_run, steps)]
        failed = next((result for result in results if result.returncode), None)
        if failed is None:
            failed = _run([*command, "-shared", *objects, "-o", str(made)])
            if failed.returncode == 0 and made.exists():
                made.chmod(0o700)  # with a umask that lets the group write it would not be trusted
                return made
        lines = [line for line in failed.stderr.splitlines() if line.strip()] or ["no message"]
        message = next((line for line in lines if "error" in line), lines[0])
    raise CannotCompile(f"{shlex.join(compiler)} cannot compile the kernels: {message}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"{command[0]} does not run: {error}") from error


@cache
def library() -> ctypes.CDLL:
    """The library, with the argument types of its functions as the sources declare them."""
    loaded = load_library()
    loaded.dnadiff_vectors.restype = loaded.dnadiff_compiler.restype = ctypes.c_char_p
    for source in _sources(_FOLDER, (".cpp",)):
        for kind, name, parameters in _FUNCTION.findall(source.read_text()):
            function = getattr(loaded, name)
            function.argtypes = [
                c_void_p if "*" in parameter else _TYPES[parameter.split()[-2]]
                for parameter in parameters.split(",")
            ]
            function.restype = c_int64 if kind == "int64_t" else None
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Call `dnadiff_name` of the library: tensors by their addresses, None as null, then sizes and
    flags, to which the number of threads is added. Nothing for tensors without data."""
    if isinstance(arguments[0], FakeTensor):
        return
    values = [x if type(x) in _PLAIN else x.data_ptr() for x in arguments]
    getattr(library(), f"dnadiff_{name}")(*values, torch.get_num_threads())


def channel_groups(u: Tensor) -> int:
    """The number of groups of channels of each sequence, so that there is work for all threads."""
    if isinstance(u, FakeTensor):
        return 1
    return library().dnadiff_channel_groups(u.shape[0], u.shape[2], torch.get_num_threads())


def contiguous(*tensors: OptionalTensor) -> list[Any]:
    """All tensors contiguous; None stays."""
    return [None if x is None else x.contiguous() for x in tensors]


def rows(*tensors: OptionalTensor) -> tuple[list[Any], list[int]]:
    """Tensors `(Bt, L, X)` and their row strides, copied only if their rows are not evenly spaced;
    None and 0 for None."""
    found: list[OptionalTensor] = []
    strides = []
    for x in tensors:
        row = 0
        if x is not None and not isinstance(x, FakeTensor):
            (Bt, L, X), (batch, row, column) = x.shape, x.stride()
            row = row if L > 1 else X
            if (X > 1 and column != 1) or row < X or (Bt > 1 and batch != L * row):
                x = x.contiguous()
                row = X
        found.append(x)
        strides.append(row)
    return found, strides


P = ParamSpec("P")
R = TypeVar("R")


def operator(name: str) -> Callable[[Callable[..., object]], CustomOpDef]:
    """Decorator: the operator `dnadiff::name` of a function on tensors, which changes none of its
    arguments, and returns what it allocates for tensors without data.

    The compiler may trace into the function if it is called outside of a compiled graph; its calls
    of the C++ library end the trace there.
    """

    def define(kernel: Callable[..., object]) -> CustomOpDef:
        made = torch.library.custom_op(f"dnadiff::{name}", kernel, mutates_args=(), device_types=())
        made.register_fake(kernel)
        for device in ("CPU", "CUDA"):
            # the library of the operator: `register_kernel` would wrap the function, and a library
            # of our own would keep it when the module is imported again
            made._lib.impl(name, kernel, device)
        return made

    return define


def constant_in_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.assume_constant_result`: the compiler calls the function while it traces, and
    keeps the result."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    """Keeps the tensors of a custom operator for its backward pass, and its other arguments as
    `options`."""
    ctx.save_for_backward(*(x for x in inputs if x is None or isinstance(x, Tensor)))
    ctx.options = [x for x in inputs if x is not None and not isinstance(x, Tensor)]
    ctx.set_materialize_grads(False)


@operator("gated_sum")
def gated_sum(y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
    """(y + y_rev) silu(z), (Bt, L, E)."""
    (y, y_rev, z), strides = rows(y, y_rev, z)
    out = y.new_empty(y.shape)
    call("gate_forward", y, y_rev, z, out, y.shape[0] * y.shape[1], y.shape[2], *strides)
    return out


@operator("gated_sum_backward")
def _gate_backward(
    dout: Tensor, y: Tensor, y_rev: OptionalTensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    (dout, y, y_rev, z), strides = rows(dout, y, y_rev, z)
    dy = y.new_empty(y.shape)
    dz = y.new_empty(y.shape)
    sizes = y.shape[0] * y.shape[1], y.shape[2], *strides
    call("gate_backward", dout, y, y_rev, z, dy, dz, *sizes)
    return dy, dz


gated_sum.register_autograd(gate_gradient(_gate_backward), setup_context=save_inputs)


@operator("rms_norm")
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, added: OptionalTensor = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm times weight of total = x + added (Bt, L, E), 1 / rms (Bt, L) of each row, and
    total, which is empty if nothing is added."""
    ((x,), strides), (added, weight) = rows(x), contiguous(added, weight)
    (Bt, L, E), total = x.shape, None if added is None else x.new_empty(x.shape)
    out = x.new_empty(x.shape)
    scale = x.new_empty(Bt, L)
    call("norm_forward", x, added, weight, total, out, scale, Bt * L, E, *strides, eps)
    return out, scale, x.new_empty(0) if total is None else total


@operator("rms_norm_backward")
def _norm_backward(
    dout: Tensor, dtotal: OptionalTensor, total: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; `dtotal` is added to the first."""
    (dout, total), strides = rows(dout, total)
    dtotal, weight, scale = contiguous(dtotal, weight, scale)
    (Bt, L, E), dx = total.shape, total.new_empty(total.shape)
    sums = total.new_zeros(torch.get_num_threads(), E)
    call("norm_backward", dout, dtotal, total, weight, scale, dx, sums, Bt * L, E, *strides)
    return dx, sums.sum(0)


def _norm_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, added = inputs
    ctx.adds = added is not None
    ctx.save_for_backward(output[2] if ctx.adds else x, weight, output[1])
    ctx.set_materialize_grads(False)


def _norm_grad(
    ctx: Any, dout: OptionalTensor, _: object, dtotal: OptionalTensor
) -> tuple[OptionalTensor, ...]:
    dtotal = dtotal if ctx.adds else None
    dx = dtotal
    dweight = None
    if dout is not None:
        dx, dweight = _norm_backward(dout, dtotal, *ctx.saved_tensors)
    return dx, dweight, None, dx if ctx.adds else None


rms_norm.register_autograd(_norm_grad, setup_context=_norm_save)

MAX_RANK = 16  # of a narrow linear map: libraries multiply more columns efficiently
SMALL = 2**17  # entries of a weight whose panels fit into a core's cache
_SUMS = 2**18  # up to this size the gradient of a weight fits into one core's cache


@constant_in_graphs
def onednn_wins() -> bool:
    """Whether oneDNN is known to be faster on this processor, and works. Not decided by timing:
    every run on a machine makes the same choice."""
    return _onednn_wins()


@cache
def _onednn_wins() -> bool:
    return _onednn_works("\n".join(processor()), torch.backends.cpu.get_cpu_capability())


def _onednn_works(processor: str, capability: str) -> bool:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if capability != "AVX512" or "AuthenticAMD" not in processor:
        return False
    b = torch.full((75, 47), 0.5, device="cpu").cumsum(1)  # small sums, exact in float32
    try:
        return bool((_product(torch.ones_like(b), b) == b.sum(1)).all())
    except Exception:
        # The operator is not part of PyTorch's public API; PyTorch's choice is good enough.
        return False


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of two matrices, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def is_small(weight: Tensor) -> bool:
    """Whether the C++ kernel multiplies by this weight."""
    return weight.numel() <= SMALL


def multiplies(weight: Tensor) -> bool:
    """Whether `linear` is faster than PyTorch's own product with this weight."""
    return is_small(weight) or onednn_wins()


def _small_product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R) of any strides."""
    (E, R), ((flat,), (row,)) = weight.shape, rows(x.reshape(1, -1, x.shape[-1]))
    out = x.new_empty(*x.shape[:-1], E)
    strides = row, weight.stride(1), weight.stride(0), E
    call("product", flat, weight, out, flat.shape[1], R, E, *strides, False)
    return out


def _outer_sum(a: Tensor, b: Tensor) -> Tensor:
    """a^T b of (..., P) and (..., Q). Each thread has its own sums, which one more pass adds."""
    (a, b), strides = rows(*(x.reshape(1, -1, x.shape[-1]) for x in (a, b)))
    sums = a.new_zeros(torch.get_num_threads(), a.shape[2], b.shape[2])
    call("outer_sum", a, b, sums, *a.shape[1:], b.shape[2], *strides)
    return sums.sum(0)


@operator("narrow_linear")
def narrow_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R); R at most `MAX_RANK`."""
    return _small_product(x, weight)


@operator("narrow_linear_backward")
def _narrow_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _small_product(dout, weight.t()), _outer_sum(x, dout).T.contiguous()


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R); by oneDNN if the weight is large."""
    if is_small(weight) or isinstance(x, FakeTensor):
        return _small_product(x, weight)
    return _product(x.flatten(0, -2), weight).view(*x.shape[:-1], weight.shape[0])


@operator("linear_backward")
def _linear_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx, most = _multiply(dout, weight.t()), 64 * torch.get_num_threads() ** 2  # rows
    if not isinstance(x, FakeTensor) and (
        weight.numel() > _SUMS or (dout.numel() < most * weight.shape[0] and onednn_wins())
    ):
        return dx, _product(dout.flatten(0, -2).t(), x.flatten(0, -2).t())
    return dx, _outer_sum(dout, x)


linear = operator("linear")(_multiply)
narrow_linear.register_autograd(
    lambda ctx, dout: _narrow_backward(dout, *ctx.saved_tensors), setup_context=save_inputs
)
linear.register_autograd(
    lambda ctx, dout: _linear_backward(dout, *ctx.saved_tensors), setup_context=save_inputs
)


CHUNK = 32  # positions between two stored states
PLAIN = (None, 0, False, False)  # no initial state, one block that does not restart, no last state


def scan_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    delta_bias: OptionalTensor, reverse: bool, keep: bool,
    initial: OptionalTensor, block: int, restart: bool, last: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The scan's output; the states (Bt, chunks, N, E) that its backward pass reads (empty unless
    `keep`); the last state (empty unless `last`).

    `block` is the number of positions of a block, 0 for the whole sequence. `initial` is (Bt, N,
    E), or (Bt, blocks, N, E) if `restart`.
    """
    (u, delta, B, C), strides = rows(u, delta, B, C)
    A, D, bias, initial = contiguous(A, D, delta_bias, initial)
    (Bt, L, E), N, block = u.shape, A.shape[1], block or u.shape[1]
    y = u.new_empty(Bt, L, E)
    chunks = -(-L // block) * -(-block // CHUNK)
    kept = u.new_empty((Bt, chunks, N, E) if keep else (0,))
    end = u.new_empty((Bt, N, E) if last else (0,))
    call(
        "scan_forward", u, delta, A, B, C, D, bias, initial, y, kept if keep else None,
        end if last else None, Bt, L, E, N, block, *strides, reverse, restart, channel_groups(u),
    )  # fmt: skip
    return y, kept, end


def scan_backward(
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    bias: OptionalTensor, kept: Tensor, reverse: bool,
    initial: OptionalTensor, block: int, restart: bool, dkept: OptionalTensor,
    dlast: OptionalTensor,
) -> list[Tensor]:  # fmt: skip
    """The gradients of u, delta, A, B, C, D, the bias and, if there is one, the initial state."""
    (dy, u, delta, B, C), strides = rows(dy, u, delta, B, C)
    before = kept if kept.numel() else initial  # blocks of one chunk restart from initial states
    A, D, bias, before, dkept, dlast = contiguous(A, D, bias, before, dkept, dlast)
    (Bt, L, E), N, groups = u.shape, A.shape[1], channel_groups(u)
    du, ddelta, dA, dB, dC, dD, dbias = (
        u.new_empty(shape)
        for shape in (
            *[(Bt, L, E)] * 2, (Bt, N, E), *[(groups, Bt, L, N)] * 2, *[(Bt, E)] * 2
        )
    )  # fmt: skip
    dinitial = None if initial is None else u.new_empty(initial.shape)
    call(
        "scan_backward", dy, u, delta, A, B, C, D, bias, before, dkept, dlast, du, ddelta, dA, dB,
        dC, dD, dbias, dinitial, Bt, L, E, N, block or L, *strides, reverse, restart, groups,
    )  # fmt: skip
    dB, dC = (x.sum(0) if groups > 1 else x.view(Bt, L, N) for x in (dB, dC))
    found = [du, ddelta, dA.sum(0).T.contiguous(), dB, dC, dD.sum(0), dbias.sum(0)]
    return found if dinitial is None else [*found, dinitial]


scan_operator = operator("selective_scan")(scan_forward)
_scan_backward = operator("selective_scan_backward")(scan_backward)


def _scan_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.reverse, keep, initial, ctx.block, ctx.restart, ctx.last = inputs
    if keep or (ctx.restart and ctx.block <= CHUNK):
        ctx.save_for_backward(*tensors, initial, output[1])
    ctx.set_materialize_grads(False)


def _scan_grad(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:
    if all(x is None for x in grads):
        return (None,) * 13
    (dy, dkept, dlast), (*tensors, initial, kept) = grads, ctx.saved_tensors
    found = _scan_backward(
        torch.zeros_like(tensors[0]) if dy is None else dy, *tensors, kept, ctx.reverse, initial,
        ctx.block, ctx.restart, dkept if kept.numel() else None, dlast if ctx.last else None,
    )  # fmt: skip
    dbias = None if tensors[6] is None else found[6]
    dinitial = None if initial is None else found[7]
    return *found[:6], dbias, None, None, dinitial, None, None, None


scan_operator.register_autograd(_scan_grad, setup_context=_scan_save)


@operator("short_conv")
def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: OptionalTensor, block: int
) -> Tensor:
    """silu of a causal convolution; `near` (Bt, blocks, K - 1, E) are the inputs before each block
    of `block` positions, 0 for the whole sequence."""
    ((x,), strides), (weight, bias, near) = rows(x), contiguous(weight, bias, near)
    y = x.new_empty(x.shape)
    sizes = *x.shape, weight.shape[1], block, *strides
    call("conv_forward", x, weight, bias, near, y, *sizes, reverse)
    return y


@operator("short_conv_backward")
def _conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: OptionalTensor,
    block: int
) -> list[Tensor]:  # fmt: skip
    ((dy, x), strides), (weight, bias, near) = rows(dy, x), contiguous(weight, bias, near)
    (E, K), dx = weight.shape, x.new_empty(x.shape)
    sums = x.new_zeros(torch.get_num_threads(), K + 1, E)
    dnear = None if near is None else x.new_empty(near.shape)
    sizes = *x.shape, K, block, *strides
    call("conv_backward", dy, x, weight, bias, near, dx, dnear, sums, *sizes, reverse)
    sums = sums.sum(0)
    return [dx, sums[:K].T.contiguous(), sums[K].clone(), *([] if dnear is None else [dnear])]


def _conv_grad(ctx: Any, dy: Tensor) -> tuple[OptionalTensor, ...]:
    (*tensors, near), (reverse, block) = ctx.saved_tensors, ctx.options
    dx, dweight, dbias, *dnear = _conv_backward(dy, *tensors, reverse, near, block)
    return dx, dweight, dbias, None, *(dnear or [None]), None


short_conv.register_autograd(_conv_grad, setup_context=save_inputs)
