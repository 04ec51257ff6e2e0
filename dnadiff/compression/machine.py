"""What the bits of a probability depend on besides the settings: the model, the libraries, the
kernels and the processor."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from dnadiff.backbone.mamba_backbone import MambaBackbone
from dnadiff.compression.coding import library
from dnadiff.config import Config
from dnadiff.denoiser import BaseDenoiser
from dnadiff.kernels import AUTO, SCANS, chosen_scan
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import time_of

REMEDY = {
    "device": "decompress on the kind of device that compressed: set accelerator=cpu or gpu",
    "instructions": (
        "decompress on a machine with the same kind of processor, or set "
        "ATEN_CPU_CAPABILITY to the value in the file"
    ),
    "torch": "install that version of torch",
    "dtype": "load the model in that precision",
    "scan": "set DNADIFF_SCAN to the value in the file",
    "products": "call torch.set_float32_matmul_precision with the value in the file",
    "threads": "leave OMP_NUM_THREADS unset, or set it to the value in the file",
    "constriction": "install that version of constriction",
    "math": (
        "decompress with the same libraries, on a processor of that vendor, with the "
        "variables "
        "that the value names"
    ),
    "kernels": "set CXX to that compiler",
    "results": "its processor computes other bits though all else is equal; decompress there",
}
_VARIABLES = (
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)  # restrict the libraries' instructions
_LIBRARIES = {
    "MKL": r"Math Kernel Library Version ([\w.\-]+)",
    "oneDNN": r"MKL-DNN v([\w.]+)",
    "BLAS": r"BLAS_INFO=(\w+)",
}
_ROWS, _LENGTH = 2, 256  # of the input of `results`


def describe(denoiser: BaseDenoiser) -> dict[str, str | int]:
    """What floating-point results depend on besides the model and what `measure` returns. It must
    be the same for decompression."""
    device, dtype = next(denoiser.parameters()).device, next(denoiser.parameters()).dtype
    reads_scan = isinstance(denoiser.backbone, MambaBackbone)
    name = chosen_scan(
        denoiser.backbone.scan if isinstance(denoiser.backbone, MambaBackbone) else AUTO,
        device.type,
        dtype,
    )
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type.startswith("cuda")
        else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "scan": f"{name} ({SCANS[name].description()})" if reads_scan else "none",
        "products": torch.get_float32_matmul_precision(),
        "constriction": version(library().__name__),
        "math": math_libraries(device),
        "kernels": SCANS[name].compiler(),
    }


def measure(denoiser: BaseDenoiser, process: AbsorbingProcess) -> dict[str, str | int]:
    """The number of threads, and results with it, inside `coding.threads`."""
    return {"threads": torch.get_num_threads(), "results": results(denoiser, process)}


def math_libraries(device: torch.device) -> str:
    """The libraries of matrix products with their versions, and what their choice of instructions
    depends on besides `instructions`."""
    if device.type.startswith("cuda"):
        return f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    built = torch.__config__.show()
    found = [
        f"{name} {match[1]}"
        for name, pattern in _LIBRARIES.items()
        if (match := re.search(pattern, built))
    ]
    vendor = None
    with suppress(OSError):
        vendor = re.search(r"vendor_id\s*:\s*(\S+)", Path("/proc/cpuinfo").read_text()[:4096])
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return ", ".join([*found, vendor[1] if vendor else platform.machine(), *settings])


@torch.no_grad()
def results(denoiser: BaseDenoiser, process: AbsorbingProcess) -> str:
    """A hash of probabilities that the model computes for a fixed input: two sequences of 256
    tokens, every other one masked.

    A difference shows before any work what would otherwise be found at its end. Equality is no
    proof: other shapes may be computed by other code.
    """
    vocab, device = process.vocab, next(denoiser.parameters()).device
    length = min(_LENGTH, denoiser.max_length or _LENGTH)
    emitted = torch.tensor(vocab.emitted, device=device)
    x = emitted[torch.arange(_ROWS * length, device=device).view(_ROWS, length) % 7 % len(emitted)]
    x[:, ::2] = vocab.mask_id
    log_probs = denoiser.log_probs(x, time_of(x, process), None, x == vocab.mask_id)
    return hashlib.blake2b(log_probs.float().cpu().numpy().tobytes(), digest_size=16).hexdigest()


def check_model(path: str, recorded: str, here: str) -> None:
    """Raise ValueError if the fingerprints of two models differ."""
    if recorded != here:
        raise ValueError(
            f"{path} was compressed with another model ({recorded[:12]}, this is {here[:12]}); "
            "give its checkpoint"
        )


def check_match(
    path: str, recorded: Mapping[str, str | int], here: Mapping[str, str | int]
) -> None:
    """Raise ValueError, with the remedy, for the first entry that differs among those that are in
    both."""
    for key, remedy in REMEDY.items():
        if key in recorded and key in here and recorded[key] != here[key]:
            raise ValueError(
                f"{path} was compressed with {key} {recorded[key]}, here it is {here[key]}: "
                f"{remedy}"
            )


def fingerprint(denoiser: BaseDenoiser, config: Config) -> str:
    """A hash of the weights and of the architecture: the same for copies of a checkpoint under any
    name."""
    digest = hashlib.blake2b(digest_size=16)
    parts = {
        key: config.get(key) for key in ("backbone", "objective", "noise", "time_conditioning")
    }  # the process is absorbing (`coding.diffusion_denoiser`)
    same_weights = ("scan", "activation_checkpointing")
    parts["backbone"] = {
        key: value
        for key, value in dict(parts["backbone"] or {}).items()
        if key not in same_weights
    }
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(denoiser.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
