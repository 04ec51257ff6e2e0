"""The theory: noise, processes, denoisers, objectives, samplers and likelihoods of diffusion over
tokens."""
