"""Training losses that see a denoiser and never the network inside it (`base`)."""
