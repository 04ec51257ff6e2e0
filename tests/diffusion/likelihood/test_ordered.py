"""Exact likelihoods of deterministic orders: a distribution over sequences, equal to the chain rule
by hand."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from dnadiff.diffusion.denoiser import BlockDenoiser, Denoiser
from dnadiff.diffusion.likelihood.estimators import ORDERS, WindowBatch, exact_nelbo, ordered
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.genomics.evaluation import Estimator, Evaluation
from dnadiff.networks.backbone.caduceus import Caduceus

VOCAB = Vocab(4, 3, 3, (3,))
L = 4
SEQUENCES = torch.tensor(list(itertools.product(range(3), repeat=L)))


@pytest.fixture
def denoiser():
    torch.manual_seed(5)
    net = Caduceus(VOCAB, d_model=8, n_layers=2, d_state=4).double()
    torch.nn.init.normal_(net.embedding.weight, std=0.5)
    return Denoiser(net)


class Windowed(list):
    """Batches with the length of their windows, which the progress line reads."""

    def __init__(self, batches, length):
        super().__init__(batches)
        self.tiles = SimpleNamespace(length=length)


def nats(denoiser, order, ids=SEQUENCES, counted=None):
    counted = torch.ones_like(ids, dtype=torch.bool) if counted is None else counted
    return ordered(
        denoiser,
        AbsorbingProcess(VOCAB, LogLinear()),
        [WindowBatch(ids, {"all": counted})],
        ORDERS[order],
    )


@pytest.mark.parametrize("order", ORDERS)
def test_probabilities_of_all_sequences_sum_to_one(denoiser, order):
    result = nats(denoiser, order)
    assert torch.from_numpy(result.per_sequence()).neg().exp().sum() == pytest.approx(1, abs=1e-9)
    assert result.se_mc() == 0


def test_left_to_right_is_the_chain_rule(denoiser):
    total = torch.zeros(len(SEQUENCES), dtype=torch.float64)
    for at in range(L):
        xt = torch.where(torch.arange(L) >= at, 3, SEQUENCES)
        total -= denoiser.log_probs(xt)[:, at].gather(-1, SEQUENCES[:, at, None])[:, 0].detach()
    torch.testing.assert_close(
        torch.from_numpy(nats(denoiser, "left_to_right").per_sequence()), total
    )


def test_confidence_follows_the_predictions(denoiser):
    expected, some = [], SEQUENCES[::7]
    for x in some:
        xt, total = torch.full((1, L), 3), 0.0
        while (xt == 3).any():
            log_probs = denoiser.log_probs(xt)[0].detach()
            at = max(
                (i for i in range(L) if xt[0, i] == 3), key=lambda i: float(log_probs[i].max())
            )
            total -= float(log_probs[at, x[at]])
            xt[0, at] = x[at]
        expected.append(total)
    torch.testing.assert_close(
        torch.from_numpy(nats(denoiser, "confidence", some).per_sequence()),
        torch.tensor(expected, dtype=torch.float64),
    )


def test_the_strided_order():
    order = ORDERS["strided"](40).argsort().tolist()
    assert (
        order[:8] == [0, 16, 32, 8, 24, 4, 12, 20]
        and sorted(order) == list(range(40))
        and order[10:] == sorted(range(2, 40, 4)) + list(range(1, 40, 2))
    )


def test_the_mean_over_all_fixed_orders_is_the_bound(denoiser):
    process, few = AbsorbingProcess(VOCAB, LogLinear()), SEQUENCES[::7]
    batch = [WindowBatch(few, {"all": torch.ones_like(few, dtype=torch.bool)})]
    each = [
        ordered(
            denoiser, process, batch, lambda _, order=order: torch.tensor(order).argsort()
        ).per_sequence()
        for order in itertools.permutations(range(L))
    ]
    torch.testing.assert_close(
        torch.from_numpy(sum(each) / len(each)), exact_nelbo(denoiser, process, few)
    )


def test_tokens_that_are_not_counted_are_visible(denoiser):
    counted = torch.tensor([False, True, True, False]).expand(len(SEQUENCES), L)
    result = (
        torch.from_numpy(nats(denoiser, "confidence", counted=counted).per_sequence())
        .neg()
        .exp()
        .view(3, 9, 3)
    )
    torch.testing.assert_close(result.sum(1), torch.ones(3, 3, dtype=torch.float64))


def test_models_from_left_to_right_are_refused(denoiser):
    with pytest.raises(ValueError, match=r"order needs a model that unmasks .*leave it out"):
        nats(BlockDenoiser(denoiser.backbone, 2), "strided")


def test_the_command_reports_the_order(cli, trained, tmp_path):
    status, out, err = cli(
        "evaluate",
        f"checkpoint={trained}",
        "order=left_to_right",
        "output=e.json",
        "orders=[]",
        "length=20",
        "part=valid",
    )
    assert status == 0, err
    found = json.loads((tmp_path / "e.json").read_text())
    assert (
        "order left_to_right, exact" in found["protocol"]
        and found["code_length"] is None
        and "left_to_right" in out
    )
    assert found["groups"]["all"]["se_mc"] == 0
    status, _, err = cli("evaluate", f"checkpoint={trained}", "order=sideways", "output=f.json")
    assert status != 0 and "order" in err and not (tmp_path / "f.json").exists()


@pytest.mark.parametrize("order", ["left_to_right", "strided"])
def test_the_other_strand_is_unmasked_in_the_same_order(order):
    """Mirrored masks would unmask the reverse complement from its end."""
    vocab = Vocab(5, 4, 4, (4,), (3, 2, 1, 0, 4))
    torch.manual_seed(3)
    network = Caduceus(vocab, d_model=8, n_layers=2, d_state=4).double()
    torch.nn.init.normal_(network.embedding.weight, std=0.5)
    denoiser, process, ids = (
        Denoiser(network),
        AbsorbingProcess(vocab, LogLinear()),
        torch.tensor([[0, 1, 2, 2, 3], [3, 3, 0, 1, 1]]),
    )
    windows = Windowed(
        [WindowBatch(ids, {"all": torch.ones_like(ids, dtype=torch.bool)})], ids.shape[1]
    )
    tokenizer = SimpleNamespace(vocab=vocab)
    model = SimpleNamespace(denoiser=denoiser, process=process, tokenizer=tokenizer, is_dna=True)
    estimator = Estimator(model, Evaluation(order=order))
    estimator.windows = windows
    found = estimator.other_strand(estimator.run(denoiser))
    mirrored = vocab.reverse_complement(ids)
    expected = ordered(
        denoiser,
        process,
        [WindowBatch(mirrored, {"all": torch.ones_like(ids, dtype=torch.bool)})],
        ORDERS[order],
    )
    assert found.per_sequence().tolist() == pytest.approx(
        expected.per_sequence().tolist(), abs=1e-12
    )


@pytest.mark.parametrize("option", ["protocol=mdlm", "target_se=0.01"])
def test_options_of_the_bound_are_refused_with_an_order(trained, cli, option):
    status, _, err = cli("evaluate", f"checkpoint={trained}", "order=strided", option)
    assert (
        status != 0
        and "order=strided is exact and draws nothing; leave protocol and target_se out" in err
    )
