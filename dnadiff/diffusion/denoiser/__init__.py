"""Denoisers: what objectives, samplers and likelihoods call.

A denoiser combines a network with a reading of its logits as log-probabilities of x0. There is one
for each way to read a sequence (`dnadiff.networks.backbone.base`): `Denoiser` for masked diffusion
on both sides of a mask, `CausalDenoiser` for autoregressive models, and `BlockDenoiser` for block
diffusion. All derive from `BaseDenoiser`, and those that unmask from `MaskedDenoiser`. The head
runs on the requested positions alone, which saves most of the memory with a large vocabulary.
"""

from dnadiff.diffusion.denoiser.base import BaseDenoiser, MaskedDenoiser, NetworkDenoiser, OptTensor
from dnadiff.diffusion.denoiser.block import BlockDenoiser
from dnadiff.diffusion.denoiser.causal import CausalDenoiser
from dnadiff.diffusion.denoiser.masked import Denoiser
from dnadiff.diffusion.denoiser.wrapper import (
    DenoiserWrapper,
    InBlock,
    InContext,
    PiecewiseDenoiser,
)
from dnadiff.networks.backbone.base import (
    Backbone,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    State,
)

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
