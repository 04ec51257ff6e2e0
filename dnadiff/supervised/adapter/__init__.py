"""Adapters: few new parameters that are trained in place of the weights of a pretrained network."""
