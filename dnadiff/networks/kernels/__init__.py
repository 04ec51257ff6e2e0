"""The operations of a Mamba mixer that PyTorch lacks or computes slowly, with several
implementations ("scans") behind one facade.

`facade` chooses between `cpu` (C++), `triton` and `mamba_ssm` (CUDA), `portable` (PyTorch, any
device) and `reference` (the definition, slow), checks arguments and calls the chosen one. A mixer
combines operations in `backend`, unless the chosen one has a kernel for all of it. `log_sum`
computes losses over large vocabularies without holding logits.
"""
