"""The operations of a Mamba mixer that PyTorch lacks or computes slowly, with several
implementations ("scans") behind one facade.

`select` chooses between `cpu` (C++), `triton` and `mamba_ssm` (CUDA), `portable` (PyTorch, any
device) and `reference` (the definition, slow); `facade` and, for sequences in blocks, `blocks`
check arguments and call the chosen one. `log_sum` computes losses over large vocabularies without
holding logits.
"""

from dnadiff.kernels.backend import Backend, MixerWay, ScanInputs, ScanStates
from dnadiff.kernels.facade import (
    add_norm,
    continued_mixer,
    conv_blocks,
    fuses_mixer,
    fuses_two_streams,
    gated_scan,
    gated_sum,
    inputs_before_blocks,
    last_inputs,
    linear,
    linear_halves,
    mixer,
    narrow_linear,
    rms_norm,
    scan_blocks,
    scan_with_states,
    selective_scan,
    selective_scans,
    short_conv,
    short_convs,
    two_stream_mixer,
)
from dnadiff.kernels.log_sum import linear_log_sum
from dnadiff.kernels.select import (
    AUTO,
    SCANS,
    available_scans,
    check_scan,
    check_states,
    chosen_scan,
)

__all__ = [
    "AUTO",
    "SCANS",
    "Backend",
    "MixerWay",
    "ScanInputs",
    "ScanStates",
    "add_norm",
    "available_scans",
    "check_scan",
    "check_states",
    "chosen_scan",
    "continued_mixer",
    "conv_blocks",
    "fuses_mixer",
    "fuses_two_streams",
    "gated_scan",
    "gated_sum",
    "inputs_before_blocks",
    "last_inputs",
    "linear",
    "linear_halves",
    "linear_log_sum",
    "mixer",
    "narrow_linear",
    "rms_norm",
    "scan_blocks",
    "scan_with_states",
    "selective_scan",
    "selective_scans",
    "short_conv",
    "short_convs",
    "two_stream_mixer",
]
