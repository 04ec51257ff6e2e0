"""A sequence in pieces, one in each of several threads, against the whole sequence in one."""

import copy

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.d3pm import D3PM
from dnadiff.diffusion.objective.masking import ExactCount
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.objective.mlm import MLM
from dnadiff.diffusion.objective.sedd import SEDD
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import CHANNELS, Vocab
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.context import SequencePiece, spread
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.columns import PosteriorColumns
from dnadiff.networks.kernels.backend import ScanInputs
from dnadiff.networks.kernels.facade import selective_scan
from dnadiff.training.module import PiecewiseDenoiser

DNA = AbsorbingProcess(DNATokenizer().vocab, LogLinear())
LENGTH, TURNED = 24, {"swap_strands": True}
OTHER = {"bidirectional_strategy": "ew_multiply", "bidirectional_weight_tie": False, "d_conv": 1}
TIMED = {"time_conditioning": True, "activation_checkpointing": True}


def model(kind, objective, dtype=torch.float64, **options):
    torch.manual_seed(0)
    network = kind(objective.process.vocab, d_model=16, n_layers=2, **options)
    for parameter in network.parameters():
        if not parameter.any():  # of the modulation, which would be without effect
            torch.nn.init.normal_(parameter, std=0.1)
    return objective.denoiser(network, options.get("time_conditioning")).to(dtype)


def batch(padded):
    draws = torch.Generator().manual_seed(1)
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[1, 15:], valid[2, 4:] = (
        False,
        False,
    )  # the second row ends within a piece, the third leaves pieces empty
    weight = torch.ones(3, LENGTH).index_fill(
        1, torch.arange(6), 0
    )  # of four pieces, the first one has nothing to predict
    return (
        torch.randint(7, 11, (3, LENGTH), generator=draws),
        weight * valid if padded else weight,
        valid if padded else None,
    )


def loss_and_gradients(objective, denoiser, parameters, x0, weight, valid):
    result = objective(denoiser, x0, weight, Draws.for_batch(3, len(x0), step=1), None, valid)
    return result.loss.detach(), torch.autograd.grad(result.loss, parameters)


def of_pieces(objective, denoiser, size, peers, *given):
    def own(one):
        mine = copy.deepcopy(denoiser)
        spread(mine.backbone, one)
        return loss_and_gradients(
            objective, PiecewiseDenoiser(mine, one), list(mine.parameters()), *given
        )

    losses, gradients = zip(*peers.together(size, own))
    return losses, [sum(each) for each in zip(*gradients)]


@pytest.mark.parametrize(
    ("kind", "objective", "options", "padded", "size"),
    [
        (Caduceus, MDLM(DNA), {}, True, 4),
        (Caduceus, MDLM(DNA, ExactCount(), "cross_entropy"), OTHER, True, 3),
        (Caduceus, SEDD(DNA), TIMED, False, 2),
        (Caduceus, D3PM(DNA), {}, False, 2),
        (Caduceus, MLM(DNA), {}, True, 2),
        (CaduceusPS, MDLM(DNA), {}, True, 4),
        (CaduceusPS, MDLM(DNA), TURNED, False, 3),
        (Mamba, AR(DNA), {}, True, 4),
    ],
)
def test_pieces_have_the_loss_and_the_gradients_of_the_whole(
    kind, objective, options, padded, size, peers
):
    denoiser, given = model(kind, objective, **options), batch(padded)
    loss, gradients = loss_and_gradients(objective, denoiser, list(denoiser.parameters()), *given)
    losses, sums = of_pieces(objective, denoiser, size, peers, *given)
    assert all(torch.equal(each, losses[0]) for each in losses)
    torch.testing.assert_close(losses[0], loss, rtol=1e-13, atol=0)
    torch.testing.assert_close(sums, list(gradients), rtol=1e-11, atol=1e-13)


def test_pieces_in_float32_differ_by_rounding(peers):
    objective, given = MDLM(DNA), batch(False)
    denoiser = model(Caduceus, objective, torch.float32)
    _, gradients = loss_and_gradients(objective, denoiser, list(denoiser.parameters()), *given)
    _, sums = of_pieces(objective, denoiser, 4, peers, *given)
    norm, error = (
        torch.nn.utils.get_total_norm(each)
        for each in (gradients, [a - b for a, b in zip(sums, gradients)])
    )
    assert error < 1e-6 * norm


def test_pieces_of_a_network_with_a_large_vocabulary(peers):
    objective = AR(AbsorbingProcess(Vocab(1100, 3, 4, (0, 1, 2, 3, 4, 5, 6, 11)), LogLinear()))
    denoiser, given = model(Mamba, objective), batch(False)
    assert denoiser.fused_head
    loss, gradients = loss_and_gradients(objective, denoiser, list(denoiser.parameters()), *given)
    losses, sums = of_pieces(objective, denoiser, 2, peers, *given)
    torch.testing.assert_close((losses[0], sums), (loss, list(gradients)), rtol=1e-11, atol=1e-13)
    sedd = SEDD(objective.process)
    denoiser = model(Caduceus, sedd)
    loss, gradients = loss_and_gradients(sedd, denoiser, list(denoiser.parameters()), *given)
    losses, sums = of_pieces(sedd, denoiser, 2, peers, *given)
    torch.testing.assert_close((losses[0], sums), (loss, list(gradients)), rtol=1e-11, atol=1e-13)


def test_predictions_everywhere_keep_their_shape(peers):
    denoiser, (x0, _, _) = model(Caduceus, MDLM(DNA)), batch(False)
    xt = torch.where(torch.arange(LENGTH) % 3 == 0, DNA.vocab.mask_id, x0)

    def own(one):
        mine = copy.deepcopy(denoiser)
        spread(mine.backbone, one)
        return PiecewiseDenoiser(mine, one).log_probs(xt).detach()

    for found in peers.together(3, own):
        torch.testing.assert_close(found, denoiser.log_probs(xt).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [Caduceus, CaduceusPS, Mamba])
def test_pieces_read_their_columns_of_an_alignment(kind, peers):
    objective = (AR if kind is Mamba else MDLM)(DNA)
    torch.manual_seed(0)
    network = kind(DNA.vocab, d_model=16, n_layers=2)
    network.read_columns(PosteriorColumns)
    denoiser, (x0, weight, valid) = objective.denoiser(network).double(), batch(True)
    columns = torch.randn(*x0.shape, CHANNELS, dtype=torch.float64)

    def loss(model):
        found = objective(model, x0, weight, Draws.for_batch(3, 3, step=1), columns, valid).loss
        return found.detach(), torch.autograd.grad(found, list(model.parameters()))

    def own(one):
        mine = copy.deepcopy(denoiser)
        spread(mine.backbone, one)
        return loss(PiecewiseDenoiser(mine, one))

    whole, gradients = loss(denoiser)
    losses, parts = zip(*peers.together(3, own))
    sums = [sum(each) for each in zip(*parts)]
    torch.testing.assert_close((losses[0], sums), (whole, list(gradients)), rtol=1e-11, atol=1e-13)


def test_what_is_sent_does_not_depend_on_the_length(peers):
    E, N, sent = 512, 16, {}
    for length in (8, 64):
        torch.manual_seed(0)
        u, delta = torch.randn(2, 1, length, E).requires_grad_().unbind(0)
        B, C = torch.randn(2, 1, length, N).unbind(0)
        inputs = ScanInputs(u, delta, -torch.rand(E, N), B, C, torch.ones(E))

        def own(one, inputs=inputs):
            (y,) = SequencePiece(one, scan="portable").scans([inputs])
            y.sum().backward()
            return one.bytes_sent

        sent[length] = peers.together(2, own)
    assert (
        sent[8] == sent[64] == [2 * 4 * E * N + 4 * E] * 2
    )  # the state, its gradient and the sums of steps: 68 KB


def test_one_piece_is_the_whole(peers):
    torch.manual_seed(0)
    u, delta = torch.randn(2, 2, 9, 5).unbind(0)
    B, C = torch.randn(2, 2, 9, 4).unbind(0)
    inputs = ScanInputs(u, delta, -torch.rand(5, 4), B, C, torch.ones(5), torch.randn(5))
    (found,) = peers.together(
        1, lambda one: SequencePiece(one, scan="portable").scans([inputs, inputs])
    )
    for reverse, y in enumerate(found):
        torch.testing.assert_close(
            y, selective_scan(*inputs, reverse=bool(reverse), scan="portable")
        )


@pytest.mark.parametrize(
    ("pieces", "length", "what"),
    [
        (3, 64, "not a multiple of context_parallel 3.*data.length=63"),
        (8, 16, "pieces of 2 tokens"),
        (2, None, "one length"),
    ],
)
def test_what_cannot_be_cut_into_pieces_is_refused(pieces, length, what):
    with pytest.raises(ValueError, match=what):
        Caduceus(DNA.vocab, d_model=16, n_layers=1).check_pieces(pieces, length)


def test_a_transformer_has_no_state_to_pass_on():
    from dnadiff.networks.backbone.dit import DiT

    network = DiT(DNA.vocab, d_model=16, n_layers=1, n_heads=2)
    with pytest.raises(
        ValueError,
        match="context_parallel 2 does not fit DiT, expected 1: only a network of Mamba layers",
    ):
        network.check_pieces(2, 64)
