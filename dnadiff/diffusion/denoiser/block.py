"""The denoiser of block diffusion (BD3-LM, arXiv 2503.09573): blocks from left to right, masked
diffusion inside a block."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser.base import MaskedDenoiser, NetworkDenoiser, OptTensor
from dnadiff.diffusion.parameterization import SUBS
from dnadiff.diffusion.positions import at, indices
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.base import Backbone, BlockBackbone, State


@checked
class BlockDenoiser(NetworkDenoiser, MaskedDenoiser):
    """A network that reads blocks under SUBS: the distribution of x0 in each block given xt in it
    and x0 in all blocks before it.

    `nll` evaluates all blocks at once, each with the tokens of x0 before it. `log_probs` has xt
    alone: its predictions are those of the model where no earlier block is masked, as in sampling
        from left to right. `step_block` and `advance` compute the same for one block after another,
        without reading earlier blocks again.

    Args:
        backbone: the network.
        block_size: b, tokens of a block; the last block of a sequence may have fewer.

    Examples:
        >>> import torch
        >>> from dnadiff.networks.backbone.caduceus import Caduceus
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> vocab = DNATokenizer().vocab
        >>> denoiser = BlockDenoiser(Caduceus(vocab, d_model=16, n_layers=1), block_size=2)
        >>> x0 = torch.tensor([[7, 8, 10, 9]])  # A, C, T, G
        >>> xt = torch.tensor([[7, 3, 3, 3]])  # A, mask, mask, mask
        >>> # -log p of C given A, of T and of G given A, C
        >>> denoiser.nll(x0, xt, positions=xt == vocab.mask_id).shape
        torch.Size([3])
        >>> state = denoiser.advance(x0[:, :2])
        >>> # both masked positions of the second block, 12 token ids
        >>> denoiser.step_block(xt[:, 2:], state).shape
        torch.Size([1, 2, 12])
    """

    reads = BlockBackbone
    backbone: BlockBackbone

    def __init__(self, backbone: Backbone, block_size: PositiveInt) -> None:
        super().__init__(backbone)
        self.block_size: int = block_size
        self.parameterization = SUBS(backbone.vocab)
        self.banned = self.parameterization.banned

    @override
    def check_window(self, length: int | None) -> None:
        if length is not None and self.block_size > length:
            raise ValueError(
                f"objective.block_size {self.block_size} is more than the {length} tokens of a "
                "window; lower it, or raise data.length"
            )

    @override
    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        return self._both(ids, ids, None, valid)[0]

    @override
    def read_features(self, xt: Tensor, t: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        return self._both(xt, xt, cond, valid)[0]

    def _both(
        self, xt: Tensor, x0: Tensor, cond: OptTensor, valid: OptTensor, clean: bool = False
    ) -> tuple[Tensor, OptTensor]:
        size = min(self.block_size, xt.shape[1])
        if size == xt.shape[1] and not clean:  # no block reads the clean stream
            return self.backbone.features(xt.long(), None, cond, valid), None
        return self.backbone.block_features(xt.long(), x0.long(), size, cond, valid, clean)

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        tokens = at(xt, positions)
        logits = self.logits(xt, t, cond, positions, valid)
        return self.parameterization.log_probs(logits, tokens)

    @override
    def nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        index = indices(positions)
        features = self._both(xt, x0, cond, valid)[0]
        return self._nll_of(at(features, index).flatten(0, -2), at(x0, index).flatten())

    def nll_with_next(
        self,
        x0: Tensor,
        xt: Tensor,
        cond: OptTensor,
        positions: Tensor,
        next_positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        """`nll`, and -log p of the tokens at `next_positions (B, L)` bool given those before each,
        from the clean stream: (M,) and (N,).

        Both come from one pass. The first token has no token before it, and is not predicted here.

        It is for networks with `BlockBackbone.clean_is_causal`: another clean stream would copy the
        next token.

        Raises:
            ValueError: if position 0 is requested.
        """
        if next_positions[:, 0].any():
            raise ValueError("next_positions includes position 0, which has no token before it")
        index, following = indices(positions), indices(next_positions)
        before = indices(next_positions.roll(-1, 1))  # row l - 1 predicts token l
        noised, clean = self._both(xt, x0, cond, valid, clean=True)
        assert clean is not None
        return self._nll_of(at(noised, index), at(x0, index)), self._nll_of(
            at(clean, before), at(x0, following)
        )

    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """`log_probs` of one block, without reading earlier blocks again.

        Args:
            xt: (B, n) the block, of at most `block_size` tokens.
            state: after the blocks before it (see `advance`); None for the first block. It is not
                modified.
            cond, positions, valid: as in `log_probs`, for the block.
        """
        features = at(self.backbone.step_block(xt.long(), state, cond, valid), positions)
        return self.parameterization.log_probs(self._head(features), at(xt, positions))

    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        """Read one more finished block x0 (B, n): the state after it, from the state before it (not
        modified)."""
        return self.backbone.advance(x0.long(), state, cond, valid)
