"""Denoisers: what objectives, samplers and likelihoods call.

A denoiser combines a network with a reading of its logits as log-probabilities of x0. There is one
for each way to read a sequence (`dnadiff.backbone.base`): `Denoiser` for masked diffusion on both
sides of a mask, `CausalDenoiser` for autoregressive models, and `BlockDenoiser` for block
diffusion. All derive from `BaseDenoiser`, and those that unmask from `MaskedDenoiser`. The head runs
on the requested positions alone, which saves most of the memory with a large vocabulary.
"""

from dnadiff.backbone.base import (
    Backbone,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    State,
)
from dnadiff.denoiser.base import BaseDenoiser, MaskedDenoiser, NetworkDenoiser, OptTensor
from dnadiff.denoiser.block import BlockDenoiser
from dnadiff.denoiser.causal import CausalDenoiser
from dnadiff.denoiser.masked import Denoiser
from dnadiff.denoiser.wrapper import DenoiserWrapper, InBlock, InContext, PiecewiseDenoiser

__all__ = [
    "Backbone",
    "BaseDenoiser",
    "BidirectionalBackbone",
    "BlockBackbone",
    "BlockDenoiser",
    "CausalBackbone",
    "CausalDenoiser",
    "Denoiser",
    "DenoiserWrapper",
    "InBlock",
    "InContext",
    "MaskedDenoiser",
    "NetworkDenoiser",
    "OptTensor",
    "PiecewiseDenoiser",
    "State",
]
