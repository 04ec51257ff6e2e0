"""Ways of unmasking: one loop (`base`), one small file for each sampler."""
