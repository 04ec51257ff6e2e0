"""The operations of a Mamba mixer that PyTorch lacks or computes slowly, with several
implementations ("scans") behind one facade.

`select` chooses between `cpu` (C++), `triton` and `mamba_ssm` (CUDA), `portable` (PyTorch, any
device) and `reference` (the definition, slow); `facade` and, for sequences in blocks, `blocks`
check arguments and call the chosen one. `log_sum` computes losses over large vocabularies without
holding logits.
"""
