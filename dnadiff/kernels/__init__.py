"""The operations of a Mamba mixer that PyTorch lacks or is slow at, behind one façade over several implementations ("scans").

`select` chooses between `cpu` (C++), `portable` (PyTorch, any device) and `reference` (the definition, slow). `log_sum` is what losses over large
vocabularies need of a head.
"""

from dnadiff.kernels.log_sum import linear_log_sum
from dnadiff.kernels.select import (
    SCANS,
    available_scans,
    check_scan,
    chosen_scan,
    gated_sum,
    linear,
    linear_halves,
    narrow_linear,
    rms_norm,
    selective_scan,
    short_conv,
)

__all__ = [
    "SCANS",
    "available_scans",
    "check_scan",
    "chosen_scan",
    "gated_sum",
    "linear",
    "linear_halves",
    "linear_log_sum",
    "narrow_linear",
    "rms_norm",
    "selective_scan",
    "short_conv",
]
