"""Block diffusion: the two ends are `mdlm` and the chain rule, and any block size equals
enumeration."""

import itertools

import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.likelihood.estimators import WindowBatch, estimate
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.ar import AR
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.masking import Bernoulli, Clipped, ExactCount, Importance
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.mamba import Mamba
from dnadiff.networks.kernels import facade

L = 10


@pytest.fixture
def dna():
    return DNATokenizer().vocab


@pytest.fixture
def process(dna):
    return AbsorbingProcess(dna, LogLinear())


@pytest.fixture
def net(dna):
    torch.manual_seed(2)
    return Caduceus(dna, d_model=8, n_layers=2, d_state=4).double()


@pytest.fixture
def x0():
    return torch.randint(7, 11, (4, L), generator=torch.Generator().manual_seed(1))


def gradients(loss, net):
    return torch.autograd.grad(loss, list(net.parameters()))


@pytest.mark.parametrize(
    "masking",
    [Bernoulli(), ExactCount(), Importance(), Clipped(0.3, 0.8)],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("weighting", ["nelbo", "cross_entropy"])
def test_one_block_is_mdlm(process, net, x0, masking, weighting):
    draws, weight = Draws.for_batch(3, 4), torch.ones(4, L)
    results = []
    for objective in (
        MDLM(process, masking, weighting),
        BlockMDLM(process, L, masking, weighting),
        BlockMDLM(process, 99, masking, weighting),
    ):
        results.append(objective(objective.denoiser(net), x0, weight, draws))
    for other in results[1:]:
        torch.testing.assert_close(other.loss, results[0].loss, rtol=0, atol=1e-12)
        torch.testing.assert_close(other.nll, results[0].nll, rtol=0, atol=1e-12)
    for a, b in zip(gradients(results[0].loss, net), gradients(results[1].loss, net)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def token_by_token(net, x0):
    """-log p(x_l | x_<l) with a cached state: (B, L)."""
    state, nll = None, []
    for at in range(x0.shape[1]):
        features = net.step_block(torch.full_like(x0[:, :1], net.vocab.mask_id), state)
        log_probs = net.head(features)[:, 0, 7:11].log_softmax(-1)
        nll.append(-log_probs.gather(-1, x0[:, at, None] - 7)[:, 0])
        state = net.advance(x0[:, at : at + 1], state)
    return torch.stack(nll, 1)


def test_blocks_of_one_are_the_chain_rule(process, net, x0):
    for masking in (ExactCount(), ExactCount(stratified=False)):
        objective = BlockMDLM(process, 1, masking)
        loss = objective(objective.denoiser(net), x0, torch.ones(4, L), Draws.for_batch(3, 4))
        expected = token_by_token(net, x0).mean()
        torch.testing.assert_close(loss.loss, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(loss.nll, expected.detach(), rtol=0, atol=1e-12)
        for a, b in zip(gradients(loss.loss, net), gradients(expected, net)):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    result = estimate(
        objective.denoiser(net),
        process,
        [WindowBatch(x0, {"all": torch.ones(4, L, dtype=torch.bool)})],
        8,
    )
    assert (
        result.num_draws == 1 and result.se_mc() == 0
    )  # one network call is exact: there is nothing to draw
    torch.testing.assert_close(
        torch.from_numpy(result.per_sequence()),
        token_by_token(net, x0).sum(1).detach(),
        rtol=0,
        atol=1e-6,
    )


def enumerated(denoiser, x0, size):
    """The bound of each sequence (B,), by enumeration of the masks of each block: sum over k and
    masks of k of the mean cross-entropy."""
    total = torch.zeros(len(x0), dtype=torch.float64)
    for start in range(0, x0.shape[1], size):
        places = range(start, min(start + size, x0.shape[1]))
        for k in range(1, len(places) + 1):
            masks = list(itertools.combinations(places, k))
            for chosen in masks:
                positions = torch.zeros(x0.shape, dtype=torch.bool)
                positions[:, list(chosen)] = True
                nll = denoiser.nll(x0, torch.where(positions, 3, x0), positions=positions).detach()
                total += nll.view(len(x0), k).mean(1) / len(masks)
    return total


@pytest.mark.parametrize(
    "size", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_the_bound_and_its_estimate_equal_enumeration(process, net, x0, size):
    x0 = x0[:, :7]
    objective = BlockMDLM(process, size, weighting="nelbo")
    denoiser = objective.denoiser(net)
    exact = enumerated(denoiser, x0, size)
    windows = [WindowBatch(x0, {"all": torch.ones(4, 7, dtype=torch.bool)})]
    result = estimate(denoiser, process, windows, 64)
    error = torch.from_numpy(result.variance_mc()).sqrt()
    assert ((torch.from_numpy(result.per_sequence()) - exact).abs() <= 4 * error + 1e-6).all()
    with torch.no_grad():
        x0_32 = x0.repeat(8, 1)
        losses = [
            objective(denoiser, x0_32, torch.ones(32, 7), Draws.for_batch(5, 32, step)).nll
            for step in range(12)
        ]
    mean, spread = torch.stack(losses).mean(), torch.stack(losses).std() / 12**0.5
    assert abs(mean - exact.mean() / 7) <= 4 * spread + 1e-6


def test_tokens_of_weight_zero_and_padding_are_not_counted(process, net, x0):
    weight, valid = torch.ones(4, L), torch.ones(4, L, dtype=torch.bool)
    weight[0, 4:], valid[0, 4:] = 0, False
    weight[1, 2] = 0
    ids = torch.where(valid, x0, 4)
    ids[1, 2] = 11  # N
    objective = BlockMDLM(process, 3)
    loss = objective(objective.denoiser(net), ids, weight, Draws.for_batch(0, 4), valid=valid)
    assert loss.num_tokens == weight.sum() and torch.isfinite(loss.loss)
    other = torch.where(valid, ids, 7)  # what stands in padding does not matter
    again = objective(objective.denoiser(net), other, weight, Draws.for_batch(0, 4), valid=valid)
    torch.testing.assert_close(loss.loss, again.loss, rtol=0, atol=1e-12)


def test_the_auxiliary_loss_is_next_token_prediction_by_the_clean_stream(process, net, x0):
    draws, weight = Draws.for_batch(0, 4), torch.ones(4, L)
    plain, more = BlockMDLM(process, 3), BlockMDLM(process, 3, next_token_weight=0.5)
    a, b = (objective(objective.denoiser(net), x0, weight, draws) for objective in (plain, more))
    clean = net.block_features(x0, x0, 1, clean=True)[1]
    nll = -net.head(clean[:, :-1])[..., 7:11].log_softmax(-1).gather(-1, x0[:, 1:, None] - 7)
    torch.testing.assert_close(b.loss - a.loss, 0.5 * nll.mean(), rtol=0, atol=1e-12)
    assert a.nll == b.nll
    assert more.evaluation().next_token_weight == 0


def test_an_auxiliary_loss_that_would_copy_is_refused(process, dna):
    net = Caduceus(dna, 8, 1)
    net.clean_is_causal = False  # as for DiT
    with pytest.raises(
        ValueError,
        match=r"objective\.next_token_weight 0\.5 must be 0: the clean stream of Caduceus sees "
        r"whole blocks",
    ):
        BlockMDLM(process, 3, next_token_weight=0.5).denoiser(net)


def test_blocks_of_a_batch_have_independent_masks_of_all_counts(process, x0):
    objective = BlockMDLM(process, 5)
    x0 = x0.repeat(1, 8)  # 16 blocks of 5 in each of 4 rows
    masked = objective.corrupt(x0, torch.ones_like(x0, dtype=torch.bool), Draws.for_batch(1, 4))
    counts = (masked.xt == 3).view(4, 16, 5).sum(-1)
    assert (
        sorted(counts.flatten().tolist()) == sorted(list(range(1, 6)) * 13)[:64]
        or counts.flatten().bincount()[1:].min() >= 12
    )
    assert all(set(row.tolist()) == {1, 2, 3, 4, 5} for row in counts)
    torch.testing.assert_close(masked.weight.view(4, 16, 5)[..., 0], 5 / counts.double())


@pytest.mark.parametrize("value", [0, -1, 2.5, "x", True])
def test_impossible_block_sizes_are_refused(process, value):
    with pytest.raises(ValueError, match="block_size"):
        BlockMDLM(process, value)


def test_networks_that_do_not_fit_are_refused(process, dna):
    with pytest.raises(
        ValueError,
        match=(
            "BlockMDLM does not fit backbone Mamba: it needs a network that reads blocks, "
            "caduceus or dit"
        ),
    ):
        BlockMDLM(process, 4).denoiser(Mamba(dna, 8, 1))
    with pytest.raises(ValueError, match="time_conditioning=true"):
        BlockMDLM(process, 4).denoiser(Caduceus(dna, 8, 1, time_conditioning=True), True)
    # Weights for a time that no block reads were trained on nothing.
    with pytest.raises(
        ValueError,
        match=r"^backbone\.time_conditioning true, expected false: .*; set "
        r"backbone\.time_conditioning=false$",
    ):
        BlockMDLM(process, 4).denoiser(Caduceus(dna, 8, 1, time_conditioning=True))
    with pytest.raises(
        ValueError, match="AR does not fit backbone Caduceus: it needs a causal network"
    ):
        AR(process).denoiser(Caduceus(dna, 8, 1))


def test_a_scan_without_states_is_refused_with_the_denoiser(process, dna, monkeypatch):
    # On a machine where it runs, the first pass over blocks refused it: after the data were read.
    monkeypatch.setattr(facade, "_failure", lambda name: "")
    for scan in ("mamba_ssm", "auto"):
        monkeypatch.setenv("DNADIFF_SCAN", "mamba_ssm")
        net = Caduceus(dna, 8, 1, scan=scan)
        with pytest.raises(
            RuntimeError,
            match=r"scan 'mamba_ssm' was asked for and cannot run: states .*; set scan=portable",
        ):
            BlockMDLM(process, 4).denoiser(net)
        MDLM(process).denoiser(net)
    monkeypatch.delenv("DNADIFF_SCAN")
    BlockMDLM(process, 4).denoiser(net)


def test_weights_of_an_unblocked_run_fit(process, net, dna, x0):
    plain, blocked = (
        Denoiser(net),
        BlockMDLM(process, 4).denoiser(Caduceus(dna, d_model=8, n_layers=2, d_state=4).double()),
    )
    assert blocked.load_state_dict(plain.state_dict()).missing_keys == []
