"""Networks (`backbone`) and the kernels that they compute with."""
