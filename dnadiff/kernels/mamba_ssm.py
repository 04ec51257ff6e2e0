"""The scan of the package mamba_ssm (arXiv 2312.00752): CUDA kernels with channels first. The other
operations are PyTorch's.

Only `mamba_ssm.ops.selective_scan_interface.selective_scan_fn` is called. It runs forward only, so
a reverse scan flips its inputs.
"""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from dnadiff.kernels.backend import ScanInputs
from dnadiff.kernels.portable import TorchOperations


class MambaSSMBackend(TorchOperations):
    """float32 tensors on a CUDA device."""

    device_type = "cuda"
    supports_float64 = False

    @override
    def description(self) -> str:
        return "CUDA, flipped for the reverse direction"

    @override
    def lacks_states(self) -> str:
        return "states that enter or leave a scan; its kernel always starts from zero"

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        try:
            from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
        except ImportError as error:
            raise RuntimeError(
                f"mamba_ssm is not installed ({error}); pip install -e '.[cuda]' in the checkout "
                "adds it"
            ) from error
        u, delta, A, B, C, D, delta_bias = inputs
        u, delta, B, C = ((x.flip(1) if reverse else x).mT for x in (u, delta, B, C))
        y = selective_scan_fn(u, delta, A, B, C, D, delta_bias=delta_bias, delta_softplus=True).mT
        return y.flip(1) if reverse else y
