"""Mamba (arXiv 2312.00752), a unidirectional network for autoregressive models, and what the
networks of Mamba mixers share: embedding, residual stream of blocks, final norm, and a head tied to
the embedding."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Natural, PositiveInt, Probability, checked
from dnadiff.networks.backbone.base import (
    Backbone,
    BidirectionalBackbone,
    CausalBackbone,
    OptTensor,
    PublishedLayout,
    State,
)
from dnadiff.networks.backbone.layers import (
    Condition,
    LayerNorm,
    Modulation,
    RMSNorm,
    at_least_float32,
    modulate,
)
from dnadiff.networks.backbone.mixer import BiMamba, UniMamba
from dnadiff.networks.kernels.facade import SCANS, check_scan, check_states, choose

if TYPE_CHECKING:
    from dnadiff.networks.backbone.context import SequencePiece


class MambaBlock(nn.Module):
    """One layer: adds the previous layer's output to the residual stream, then normalizes,
    modulates by the condition, mixes and gates.

    The gate is 1 plus an output that starts at zero: a new network is the same with and without a
    condition, and no layer starts disconnected.
    """

    def __init__(
        self, norm: RMSNorm | LayerNorm, mixer: Any, modulation: Modulation | None
    ) -> None:
        super().__init__()
        self.norm = norm
        self.mixer = mixer
        self.adaLN_modulation = modulation

    def forward(
        self,
        stream: Tensor,
        branch: OptTensor,
        condition: OptTensor,
        valid: OptTensor,
        scan: str,
        piece: "SequencePiece | None" = None,
    ) -> tuple[Tensor, Tensor]:
        """stream, branch (B, L, D), condition (B, cond_dim) -> stream + branch, and this layer's
        branch, which the next layer adds."""
        stream, hidden, gate = self.enter(stream, branch, condition)
        if piece is None:
            mixed = self.mixer(hidden, valid, scan)
        else:
            mixed = piece.mix(self.mixer, hidden, valid)
        return stream, mixed if gate is None else gate * mixed

    def enter(
        self, stream: Tensor, branch: OptTensor, condition: OptTensor
    ) -> tuple[Tensor, Tensor, OptTensor]:
        """stream + branch, the input of the mixer, and what multiplies its output (None without a
        condition)."""
        stream, hidden = self.norm.after(stream, branch)
        if condition is None or self.adaLN_modulation is None:
            return stream, hidden, None
        shift, scale, gate = self.adaLN_modulation(condition)
        return stream, modulate(hidden, shift, scale), 1 + gate


class MambaBackbone(Backbone):
    """A residual stream of mixers.

    The published code adds a branch before each norm and once more at the end, which is the same
    stream.

    Args:
        vocab: the vocabulary.
        d_model: width D of the stream.
        n_layers: number of blocks.
        mixer: makes the mixer of one block from d_model, d_state, d_conv, expand and dt_rank.
        d_state: N, states per channel.
        d_conv: taps of the short convolution.
        expand: inner width over D.
        dt_rank: rank of the step-size projection; None is D/16, rounded up.
        norm_eps: epsilon of every norm.
        rms_norm: RMSNorm; False is LayerNorm with a bias.
        residual_in_fp32: keep the stream in float32 if the weights are narrower.
        pad_vocab_to: the rows of the embedding are rounded up to a multiple of this.
        num_labels: C, columns of `cond`; 0 for no labels.
        time_conditioning: take the noise level as an input.
        cond_dim: width of the vector to which labels and noise level are mapped.
        activation_checkpointing: save only each layer's input and recompute the layer in the
            backward pass.
        scan: which kernel computes the recurrence; `auto` is the fastest that works here.
        dropout: on what each block adds to the stream.
        compile: compile the layers (`torch.compile`); all but the first, which adds no branch,
            share one compilation. In block diffusion it is the pass over two streams that is
            compiled, not the reading of one block after another.
    """

    takes_labels = True
    layers: Any  # a list of `MambaBlock`s

    def __init__(
        self, vocab: Vocab, d_model: PositiveInt, n_layers: PositiveInt,
        mixer: Callable[[int, int, int, int, int | None], UniMamba], *,
        d_state: PositiveInt = 16, d_conv: PositiveInt = 4, expand: PositiveInt = 2,
        dt_rank: PositiveInt | None = None,
        norm_eps: float = 1e-5, rms_norm: bool = True, residual_in_fp32: bool = False,
        pad_vocab_to: PositiveInt = 8,
        num_labels: Natural = 0, time_conditioning: bool | None = False,
        cond_dim: PositiveInt = 128, dropout: Probability = 0.0,
        activation_checkpointing: bool = False, scan: str = "auto", compile: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(vocab, d_model, takes_sigma=bool(time_conditioning), num_labels=num_labels)
        self.dropout = nn.Dropout(dropout)
        self.pad_vocab_to = pad_vocab_to
        self.scan = check_scan(scan)
        self.residual_in_fp32 = residual_in_fp32
        self.activation_checkpointing = activation_checkpointing
        conditioned = bool(num_labels or time_conditioning)

        def norm() -> RMSNorm | LayerNorm:
            if rms_norm:
                return RMSNorm(d_model, norm_eps, scan)
            return LayerNorm(d_model, norm_eps, bias=True)

        def block() -> MambaBlock:
            made = norm(), mixer(d_model, d_state, d_conv, expand, dt_rank)
            return MambaBlock(*made, Modulation(cond_dim, d_model) if conditioned else None)

        self.embedding = nn.Embedding(math.ceil(vocab.size / pad_vocab_to) * pad_vocab_to, d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(block() for _ in range(n_layers))
        self.norm_f = norm()
        self.condition = Condition(cond_dim, num_labels, time_conditioning) if conditioned else None
        with torch.no_grad():  # as in GPT-2: the residual stream of n layers starts at unit scale
            for name, parameter in self.layers.named_parameters():
                if ".mixer.out_proj" in name:
                    parameter.div_(math.sqrt(n_layers))
        self.d_conv = d_conv
        self.piece: SequencePiece | None = None
        self.compiled = compile
        for layer in self.layers if compile else ():
            layer.compile()

    @property
    def trunk(self) -> nn.ModuleList:
        return self.layers

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        check_states(self.scan)
        if length is None:
            raise ValueError(
                f"context_parallel {num_pieces} needs windows of one length, and these data have "
                "sequences of many; set context_parallel=1"
            )
        if length % num_pieces:
            nearest = max(1, round(length / num_pieces)) * num_pieces
            raise ValueError(
                f"data.length {length} is not a multiple of context_parallel {num_pieces}, the "
                f"pieces of a sequence; set data.length={nearest}"
            )
        if length // num_pieces < self.d_conv - 1:
            raise ValueError(
                f"context_parallel {num_pieces} cuts data.length {length} into pieces of "
                f"{length // num_pieces} tokens, shorter than the "
                f"{self.d_conv - 1} that a convolution reads across their border; set "
                f"data.length={num_pieces * (self.d_conv - 1)} or more"
            )

    def embed(self, ids: Tensor) -> Tensor:
        found = self.embedding(ids)
        return at_least_float32(found) if self.residual_in_fp32 else found

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        condition = self.conditioned(sigma, cond)
        stream = h
        branch = None
        for layer in self.layers:
            stream, branch = self.before_layer(stream, branch)
            inputs = stream, branch, condition, valid, self.scan, self.piece
            stream, branch = self.run(layer, *inputs)
            branch = self.dropout(branch)
        return self.normalized(stream, branch)

    def conditioned(self, sigma: OptTensor, cond: OptTensor) -> OptTensor:
        """What modulates the layers, (B, cond_dim)."""
        return None if self.condition is None else self.condition(sigma, cond)

    def after(
        self,
        state: State | None,
        ids: Tensor,
        cond: OptTensor,
        mix: Callable[[Any, Tensor, OptTensor, OptTensor], Tensor],
    ) -> tuple[Tensor, OptTensor]:
        """The stream and its last branch (B, n, D) of n tokens after a state; `mix` is called with
        the mixer of each layer, its input, and the layer's tensors in the state."""
        self.check_inputs(ids, None, cond)
        condition = self.conditioned(None, cond)
        stream = self.embedded(ids, cond)
        branch = None
        for number, layer in enumerate(self.layers):
            stream, hidden, gate = layer.enter(stream, branch, condition)
            past, h = (None, None) if state is None else state.tensors[2 * number : 2 * number + 2]
            mixed = mix(layer.mixer, hidden, past, h)
            branch = mixed if gate is None else gate * mixed
        return stream, branch

    def carried(
        self, ids: Tensor, state: State | None, cond: OptTensor, valid: OptTensor
    ) -> tuple[Tensor, OptTensor, State]:
        """The stream and its last branch (B, n, D) of n more tokens in the forward direction, and
        the state after them."""
        tensors = list[Tensor]()
        scan = self.scan
        weight = self.embedding.weight
        if SCANS[choose(scan, weight.device.type, weight.dtype)].lacks_states:
            scan = "portable"

        def mix(mixer: Any, *inputs: OptTensor) -> Tensor:
            mixed, *now = mixer.carry(*inputs, valid, scan)
            tensors.extend(now)
            return mixed

        stream, branch = self.after(state, ids, cond, mix)
        return stream, branch, State(tensors, (0 if state is None else state.length) + ids.shape[1])

    def normalized(self, stream: Tensor, branch: OptTensor) -> Tensor:
        """The final norm of stream + branch (B, L, D), in the type of the weights."""
        return self.norm_f.after(stream, branch)[1].to(self.norm_f.weight.dtype)

    def before_layer(self, stream: Tensor, branch: OptTensor) -> tuple[Tensor, OptTensor]:
        """Transforms the stream (B, L, D) and its last branch before each layer; the identity
        unless a subclass exchanges strands."""
        return stream, branch

    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(nn.functional.linear(features, self.embedding.weight))

    def head_matrix(self) -> tuple[Tensor, OptTensor] | None:
        return self.embedding.weight, None


class BiMambaBackbone(MambaBackbone, BidirectionalBackbone):
    """Bidirectional Mamba blocks: what `Caduceus` and `CaduceusPS` share.

    Args:
        vocab, d_model, n_layers, **options: as in `MambaBackbone`.
        bidirectional_strategy, bidirectional_weight_tie: as in `BiMamba`.
    """

    def __init__(
        self, vocab: Vocab, d_model: PositiveInt = 128, n_layers: PositiveInt = 4,
        bidirectional_strategy: Literal["add", "ew_multiply"] = "add",
        bidirectional_weight_tie: bool = True, **options: Annotated[Any, MambaBackbone],
    ) -> None:  # fmt: skip
        mixer = partial(
            BiMamba,
            bidirectional_strategy=bidirectional_strategy,
            bidirectional_weight_tie=bidirectional_weight_tie,
        )
        super().__init__(vocab, d_model, n_layers, mixer, **options)

    def published_layout(self) -> PublishedLayout:
        """The layout of Caduceus-Ph.

        Deviation: a network with labels or time conditioning has `dnadiff_labels` in its
            config.json and tensors of other names for them. Published code reports these tensors
            as unused, and its network is this one without a label. Without the time it would be
            another model: it refuses `time_conditioning` in `ssm_cfg`, which it gives to its mixer.
        """
        block = self.layers[0]
        assert isinstance(block, MambaBlock) and isinstance(block.mixer, BiMamba)
        mixer = block.mixer
        direction = block.mixer.fwd
        tied = mixer.in_proj_rev is None
        config = {
            "model_type": "caduceus",
            "architectures": ["CaduceusForMaskedLM"],
            "d_model": mixer.in_proj.in_features,
            "n_layer": len(self.layers),
            "vocab_size": self.embedding.num_embeddings,
            "pad_vocab_size_multiple": self.pad_vocab_to,
            "ssm_cfg": {
                "d_state": direction.d_state,
                "d_conv": direction.conv_weight.shape[1],
                "expand": mixer.out_proj.in_features // mixer.in_proj.in_features,
                "dt_rank": direction.dt_rank,
                "conv_bias": True,
                "bias": False,
                **({"time_conditioning": True} if self.takes_sigma else {}),
            },
            "rms_norm": isinstance(self.norm_f, RMSNorm),
            "norm_epsilon": self.norm_f.eps,
            "residual_in_fp32": self.residual_in_fp32,
            "fused_add_norm": True,
            "bidirectional": True,
            "bidirectional_strategy": mixer.strategy,
            "bidirectional_weight_tie": tied,
            "rcps": False,
            "complement_map": None,
            "tie_word_embeddings": True,
        }
        if block.adaLN_modulation is not None:
            config["dnadiff_labels"] = {
                "num_labels": self.num_labels,
                "cond_dim": block.adaLN_modulation.weight.shape[1],
            }
        # The published convolution is a Conv1d with one input channel per group: (E, 1, K).
        weights = [
            (p.data.unsqueeze(1) if own.endswith("conv_weight") else p.data, names)
            for own, p in self.named_parameters()
            for names in (published_names(own, tied),)
        ]
        return PublishedLayout(config, weights)


def published_names(own: str, tied: bool) -> tuple[str, ...]:
    """The names of a parameter in published Caduceus-Ph files; tied ones have two."""
    if own == "embedding.weight":
        return "caduceus.backbone.embeddings.word_embeddings.weight", "lm_head.weight"
    name = f"caduceus.backbone.{own}"
    if projection := re.fullmatch(r"(.*\.mixer)\.(in_proj|out_proj)(_rev)?\.weight", name):
        where, which, rev = projection.groups()
        directions = ("rev",) if rev else ("fwd", "rev") if tied else ("fwd",)
        return tuple(f"{where}.mamba_{direction}.{which}.weight" for direction in directions)
    for ours, theirs in {
        r"\.mixer\.(fwd|rev)\.": r".mixer.mamba_\1.",
        r"\.conv_(weight|bias)$": r".conv1d.\1",
        r"\.dt_(weight|bias)$": r".dt_proj.\1",
    }.items():
        name = re.sub(ours, theirs, name)
    return (name,)


@checked
class Mamba(MambaBackbone, CausalBackbone):
    """The published Mamba language model: the features of position l depend on tokens 0..l only.

    Args:
        vocab, d_model, n_layers, **options: as in `MambaBackbone`.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        **options: Annotated[Any, MambaBackbone],
    ) -> None:
        super().__init__(vocab, d_model, n_layers, UniMamba, **options)

    def read(
        self, ids: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        stream, branch, state = self.carried(ids, state, cond, None)
        return self.normalized(stream, branch), state
