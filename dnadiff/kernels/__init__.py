"""The two operations of a Mamba mixer that PyTorch lacks, behind one façade over several implementations ("scans").

`select` chooses between `cpu` (C++), `portable` (PyTorch, any device) and `reference` (the definition, slow).
"""

from dnadiff.kernels.select import SCANS, available_scans, check_scan, selective_scan, short_conv

__all__ = ["SCANS", "available_scans", "check_scan", "selective_scan", "short_conv"]
