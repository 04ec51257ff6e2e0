"""Heads: padding, strands and positions, for every yaml under configs/head."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.finetune import finetune
from dnadiff.networks.backbone.caduceus import Caduceus
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.store.objects import build, config_dir
from dnadiff.supervised.classifier import HeadInputs, build_classifier, check_head
from dnadiff.supervised.heads import position_features
from dnadiff.supervised.items import Items, TaskData, make_batch, reverse_complement_rows
from dnadiff.supervised.networks import FineTunedModel, OneHotModel

DNA = DNATokenizer()
NAMES = sorted(p.stem for p in (config_dir() / "head").glob("*.yaml") if p.stem != "auto")
ANY_LENGTH = [name for name in NAMES if name != "flatten"]
EVERY = pytest.mark.parametrize("name", NAMES)


@cache
def composed(name):
    return finetune.compose(["checkpoint=x", f"head={name}"]).head


def settings(name, **more):
    return composed(name) | more


def head(name, width=8, outputs=3, length=12, **more):
    torch.manual_seed(0)
    return build(settings(name, **more), width=width, num_outputs=outputs, max_length=length).eval()


def network(kind):
    torch.manual_seed(0)
    if kind == "dit":
        made = DiT(DNA.vocab, d_model=16, n_layers=2, n_heads=2, cond_dim=8, dropout=0.0)
        for block in made.blocks:  # adaLN starts as the identity
            torch.nn.init.normal_(block.adaLN_modulation.weight, std=0.5)
        return made
    return {"caduceus": Caduceus, "caduceus_ps": CaduceusPS}[kind](
        DNA.vocab, d_model=16, n_layers=2, d_state=4
    )


def items(count, low, high, seed=0, labels=None):
    random = np.random.default_rng(seed)
    sequences = [
        random.integers(7, 11, random.integers(low, high + 1)).astype(np.uint8)
        for _ in range(count)
    ]
    return Items.from_sequences(
        sequences, np.arange(count) % 2 if labels is None else labels, DNA.vocab.pad_id
    )


@EVERY
def test_every_head_maps_features_to_outputs_and_has_gradients(name):
    made, x = head(name).train(), torch.randn(5, 12, 8, requires_grad=True)
    made(x).square().sum().backward()
    assert made(x).shape == (5, 3) and x.grad.abs().sum() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_padding_has_no_influence(name):
    made, x = head(name), torch.randn(3, 12, 8)
    valid = torch.arange(12) < torch.tensor([[12], [7], [3]])
    padded = made(
        torch.where(valid[..., None], x, float("nan"))
        if name == "mean"
        else torch.where(valid[..., None], x, 50.0),
        valid,
    )
    alone = torch.cat([made(x[i : i + 1, :n]) for i, n in enumerate((12, 7, 3))])
    torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-5)


@EVERY
def test_only_the_published_head_ignores_the_order(name):
    made, x = head(name), torch.randn(2, 12, 8)
    same = torch.allclose(made(x), made(x.flip(1)), atol=1e-6)
    assert same == (name == "mean")


def test_the_part_of_the_convolutional_head_without_positions_pools_the_whole_sequence():
    made, x = head("conv"), torch.randn(2, 12, 8)
    for layer in (
        made.output[-1],
        *made.convolutions,
    ):  # leaves only the first layer, of each position
        torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    normed = made.norm(x)
    hidden = torch.nn.functional.gelu(made.first(normed))
    expected = made.linear(torch.cat([normed.mean(1), hidden.mean(1), hidden.amax(1)], 1))
    torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made(x.flip(1)), expected, rtol=1e-5, atol=1e-5)


def test_positions_are_exact_near_both_ends():
    found = position_features(torch.tensor([12, 7]), 12, 4)
    torch.testing.assert_close(found[1, 0], position_features(torch.tensor([7]), 7, 4)[0, 0])
    begin, end = found.unflatten(-1, (2, 8)).unbind(2)
    torch.testing.assert_close(begin[0], begin[1])
    torch.testing.assert_close(end[0, 5:], end[1, :7])  # both count from the last token
    assert torch.cdist(begin[0], begin[0]).fill_diagonal_(9).min() > 0.5


@EVERY
@pytest.mark.parametrize("one_hot", [False, True])
def test_both_strands_give_the_same_prediction_for_a_network_that_reads_both(name, one_hot):
    length = (12, 12) if name == "flatten" else (7, 12)
    given = items(6, *length)
    other = Items(
        reverse_complement_rows(given.ids, given.lengths, DNA.vocab).to(torch.uint8),
        given.lengths,
        given.labels,
    )
    made = build_classifier(
        network("caduceus_ps"), settings(name), HeadInputs(one_hot=one_hot), 2, 12, stranded=False
    )
    assert made.invariant
    torch.testing.assert_close(
        made.predict(given, 4, True), made.predict(other, 4, True), rtol=1e-4, atol=1e-5
    )
    stranded = build_classifier(
        network("caduceus_ps"), settings(name), HeadInputs(one_hot=one_hot), 2, 12, stranded=True
    )
    assert not stranded.invariant
    assert not torch.allclose(
        stranded.predict(given, 4, False), stranded.predict(other, 4, False), atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "stranded"), [("dit", True), ("caduceus_ps", True), ("caduceus_ps", False)]
)
def test_the_mean_head_is_a_linear_map_of_the_mean_features(kind, stranded):
    backbone = network(kind)
    made = build_classifier(backbone, settings("mean"), HeadInputs(), 3, 12, stranded).eval()
    batch = make_batch(items(4, 7, 12), torch.arange(4), DNA.vocab)
    features = made.read(batch.ids, batch.valid)
    valid = torch.ones(4, 12) if batch.valid is None else batch.valid
    mean = sum((each * valid[..., None]).sum(1) for each in features) / valid.sum(1)[:, None]
    weight, bias = made.head.weight, made.head.bias
    expected = torch.nn.functional.linear(mean / len(features), weight, bias)
    torch.testing.assert_close(made(batch.ids, batch.valid), expected, rtol=1e-5, atol=1e-5)


def test_inputs_have_the_layers_the_bases_and_the_length():
    backbone, inputs = network("caduceus").eval(), HeadInputs((1, 2), one_hot=True, length=True)
    batch = make_batch(items(2, 9, 12), torch.arange(2), DNA.vocab)
    (found,) = inputs.read(backbone, DNA.vocab, batch.ids, batch.valid, True)
    assert (
        found.shape[-1]
        == inputs.width(backbone, DNA.vocab, True)
        == 3 * 16 + 13 + len(DNA.vocab.emitted)
    )
    torch.testing.assert_close(found[..., :16], backbone.features(batch.ids, valid=batch.valid))
    assert not torch.allclose(found[..., 16:32], found[..., 32:48], atol=1e-2)
    torch.testing.assert_close(
        found[..., 16:32].mean(-1), torch.zeros(found.shape[:2]), atol=1e-5, rtol=0
    )
    emitted = torch.tensor(DNA.vocab.emitted)
    real = torch.ones_like(batch.ids, dtype=torch.bool) if batch.valid is None else batch.valid
    assert torch.equal(emitted[found[..., 61:].argmax(-1)][real], batch.ids[real])
    length = int(real[1].sum())
    expected = [math.log(length / 1000)]
    for wave in (math.sin, math.cos):
        expected += [wave(2 * math.pi * length / (4 * 8 ** (k / 2))) for k in range(6)]
    torch.testing.assert_close(
        found[1, :, 48:61], torch.tensor(expected).expand(found.shape[1], -1), atol=1e-5, rtol=0
    )
    assert not backbone.layers[0]._forward_hooks  # nothing stays behind


@EVERY
@pytest.mark.parametrize("kind", ["caduceus", "caduceus_ps"])
def test_the_bases_have_a_head_of_their_own_whose_outputs_are_added(name, kind):
    backbone, inputs = (
        network(kind),
        HeadInputs((1,) if kind == "caduceus" else (), one_hot=True, length=True),
    )
    made = build_classifier(backbone, settings(name), inputs, 3, 12, stranded=False).eval()
    batch = make_batch(
        items(4, *((12, 12) if name == "flatten" else (7, 12))), torch.arange(4), DNA.vocab
    )
    total = made(batch.ids, batch.valid)
    count = len(DNA.vocab.emitted)
    assert made.head.bases.width == count
    assert type(made.head.bases) is type(made.head.features)
    parts = made.read(batch.ids, batch.valid)
    each = [
        made.head.features(part[..., :-count], batch.valid)
        + made.head.bases(part[..., -count:], batch.valid)
        for part in parts
    ]
    torch.testing.assert_close(total, torch.stack(each).mean(0))
    real = torch.ones_like(batch.ids, dtype=torch.bool) if batch.valid is None else batch.valid
    assert torch.equal(
        torch.tensor(DNA.vocab.emitted)[parts[0][..., -count:].argmax(-1)][real], batch.ids[real]
    )
    if batch.valid is not None:  # padding has no influence on either head
        short = int(batch.valid.sum(1).argmin())
        alone = batch.ids[short : short + 1, : int(batch.valid[short].sum())]
        torch.testing.assert_close(total[short : short + 1], made(alone), rtol=1e-4, atol=1e-5)
    assert made.max_length == (12 if name == "flatten" else None)


@pytest.mark.parametrize("kind", ["caduceus", "dit"])
def test_layers_are_read_under_activation_checkpointing(kind):
    batch, gradients = make_batch(items(2, 12, 12), torch.arange(2), DNA.vocab), []
    for checkpointing in (False, True):
        made = build_classifier(
            network(kind), settings("conv"), HeadInputs((1, 2)), 2, 12, True
        ).eval()
        made.backbone.activation_checkpointing = checkpointing
        torch.manual_seed(3)
        torch.nn.init.normal_(made.head.output[-1].weight)
        made(batch.ids).square().sum().backward()
        gradients.append([p.grad for p in made.backbone.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 4
    for plain, again in zip(*gradients):
        torch.testing.assert_close(plain, again)


def test_inputs_that_a_network_does_not_have_are_refused():
    with pytest.raises(
        ValueError, match=r"inputs\.layers 3 is not one of the 2 layers of this Caduceus"
    ):
        build_classifier(network("caduceus"), settings("conv"), HeadInputs((3,)), 2, 12, True)
    with pytest.raises(
        ValueError,
        match=r"the layers of a CaduceusPS cannot be read one by one; set inputs.layers=\[\]",
    ):
        build_classifier(network("caduceus_ps"), settings("conv"), HeadInputs((1,)), 2, 12, True)


def at_one_place(count, seed, place=20, length=40):
    """Class 1 has TATA at a place, class 0 at another one: k-mers and composition are the same."""
    random = np.random.default_rng(seed)
    ids = random.integers(7, 11, (count, length)).astype(np.uint8)
    labels = np.arange(count) % 2
    for row, label in enumerate(labels):
        at = place if label else (place + random.integers(6, 14)) % (length - 4)
        ids[row, at : at + 4] = [10, 7, 10, 7]
    return Items.from_sequences(list(ids), labels, DNA.vocab.pad_id)


@pytest.mark.parametrize("name", [pytest.param("conv", marks=pytest.mark.slow), "flatten"])
def test_a_head_with_positions_learns_what_the_mean_cannot(name):
    data = TaskData(
        "place",
        ["elsewhere", "here"],
        *(at_one_place(n, seed) for seed, n in enumerate((600, 100, 200))),
        stranded=True,
    )
    scores = {}
    for each in ("mean", name):
        model = OneHotModel(
            DNA,
            build({**settings(each), "_partial_": True}, trust=None),
            lr=5e-3,
            epochs=6,
        )
        scores[each] = float(
            (model.fit_predict(data, 1).argmax(-1) == data.test.labels).float().mean()
        )
    assert scores["mean"] < 0.65 and scores[name] > 0.8, scores


def of_two_lengths(count, seed):
    """Class 1 has 30 bases, class 0 has 28 or 32: the class is the length, and no monotonic
    function of it."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 2
    lengths = np.where(labels, 30, random.choice([28, 32], count))
    return Items.from_sequences(
        [random.integers(7, 11, n).astype(np.uint8) for n in lengths], labels, DNA.vocab.pad_id
    )


def test_the_control_on_the_bases_reads_the_length_only_on_request():
    data = TaskData(
        "length",
        ["a", "b"],
        *(of_two_lengths(n, seed) for seed, n in enumerate((200, 60, 200))),
        stranded=True,
    )
    scores = {}
    for length in (False, True):
        head = build({**settings("mean"), "_partial_": True}, trust=None)
        model = OneHotModel(
            DNA,
            head,
            lr=0.1,
            epochs=4,
            batch_size=16,
            length=length,
        )
        scores[length] = float(
            (model.fit_predict(data, 1).argmax(-1) == data.test.labels).float().mean()
        )
        assert model.describe()["inputs"]["length"] is length
    assert scores[False] < 0.7 and scores[True] > 0.95, scores


def test_flatten_needs_one_length():
    one, several = items(4, 12, 12), items(40, 9, 12)
    check_head(settings("flatten"), TaskData("t", ["a", "b"], one, one, one))
    with pytest.raises(
        ValueError,
        match=(
            "head=flatten is for sequences of one length, and these have 9 to 12 bases; set "
            "head=attention"
        ),
    ):
        check_head(settings("flatten"), TaskData("t", ["a", "b"], one, one, several))
    made = build_classifier(network("dit"), settings("flatten"), HeadInputs(), 2, 12, True)
    assert made.max_length == 12
    with pytest.raises(ValueError, match="takes sequences of 12 bases"):
        made(one.ids[:, :11].long())


@EVERY
def test_settings_of_heads_are_checked(name):
    for key in settings(name):
        if key == "_target_":
            continue
        for wrong in ("abc", -1, 1 if key == "global_pooling" else True, None, [1]):
            with pytest.raises(ValueError, match=rf"(head\.)?{key}"):
                head(name, **{key: wrong})


def test_a_fine_tuned_network_with_a_head_gives_the_same_numbers_again():
    data = TaskData(
        "place",
        ["elsewhere", "here"],
        *(at_one_place(n, s) for s, n in enumerate((32, 16, 16))),
        stranded=True,
    )
    model = FineTunedModel(
        lambda seed: network("caduceus"),
        1e-3,
        head=settings("attention"),
    )
    first = model.fit_predict(data, 1)
    assert (
        torch.equal(first, model.fit_predict(data, 1))
        and model.describe()["head"]["num_heads"] == 8
    )
