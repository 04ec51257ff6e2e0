"""Contracts over every yaml: a new file is tested the moment it exists."""

import inspect
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from typing_extensions import is_typeddict

from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.denoiser import BlockDenoiser, CausalDenoiser, Denoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.gaussian import GaussianProcess
from dnadiff.diffusion.noise import LogLinear, NoiseSchedule
from dnadiff.diffusion.objective.analog_bits import AnalogBits
from dnadiff.diffusion.order import Order, OrderDenoiser
from dnadiff.diffusion.process import SUBS
from dnadiff.networks.backbone.base import Backbone, BlockBackbone, CausalBackbone
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir, locate
from dnadiff.train import TrainOptions
from dnadiff.training.run import check_compatible
from dnadiff.weights.loaded import build_denoiser, build_objective

TOKENIZERS = {"dna": DNATokenizer(), "text": CharTokenizer("abc xyz")}


@cache
def composed(command, *overrides):
    """A configuration, not to be changed: most tests need one of a few."""
    return compose(command, overrides)


def choices(group):
    return sorted(p.stem for p in (config_dir() / group).glob("*.yaml"))


def small(backbone):
    """A yaml's network made small."""
    settings = composed("train", f"backbone={backbone}")["backbone"] | {
        "d_model": 16,
        "n_layers": 1,
    }
    return (
        settings
        | ({"n_heads": 2} if "n_heads" in settings else {})
        | ({"max_length": 64} if "max_length" in settings else {})
    )


@pytest.mark.parametrize(
    "path", sorted(config_dir().rglob("*.yaml")), ids=lambda p: str(p.relative_to(config_dir()))
)
def test_targets_exist_and_take_the_keys_given(path):
    import yaml

    assert not unknown_keys(yaml.safe_load(path.read_text(encoding="utf-8")))


def unknown_keys(node):
    """The keys next to a `_target_` that it does not take; those of `**options: Unpack[...]` are
    the options', those of `**options: Annotated[Any, Class]` the class's."""
    if not isinstance(node, dict):
        return []
    found = [key for value in node.values() for key in unknown_keys(value)]
    if "_target_" in node and not str(node["_target_"]).startswith("lightning."):
        taken = keywords(locate(node["_target_"], None))
        found += [
            key
            for key in node
            if key not in taken and key not in ("_target_", "_partial_", "defaults")
        ]
    return found


def keywords(target):
    parameters = inspect.signature(target).parameters
    names = {
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_type_hints(
                target.__init__ if inspect.isclass(target) else target, include_extras=True
            )[name]
            *_, kind = get_args(options)
            names |= get_type_hints(kind).keys() if is_typeddict(kind) else keywords(kind)
    return names


def test_a_misspelled_key_of_options_is_seen():
    node = composed("train", "backbone=caduceus")["backbone"] | {
        "d_sate": 16,
        "nested": {"_target_": "dnadiff.diffusion.noise.LogLinear", "epps": 1},
    }
    assert unknown_keys(node) == ["epps", "d_sate", "nested"]


@pytest.mark.parametrize(
    "folder", ["networks/backbone", "diffusion/objective", "diffusion/sampler"]
)
def test_the_word_on_the_command_line_is_the_path(folder):
    import yaml

    import dnadiff

    root, group = Path(dnadiff.__file__).parent, folder.rpartition("/")[2]
    for name in choices(group):
        assert (root / folder / f"{name}.py").is_file()
        target = yaml.safe_load((config_dir() / group / f"{name}.yaml").read_text())["_target_"]
        assert target.startswith(f"dnadiff.{folder.replace('/', '.')}.{name}.")


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", choices("backbone"))
def test_backbones_keep_the_contract(name, kind):
    torch.manual_seed(0)
    vocab = TOKENIZERS[kind].vocab
    if name == "caduceus_ps" and vocab.complement is None:
        with pytest.raises(ValueError, match="no complement"):
            build(small(name), vocab=vocab)
        return
    network = build(small(name), vocab=vocab).eval()
    assert isinstance(network, Backbone)
    ids = torch.full((2, 9), vocab.emitted[0])
    ids[0, 3] = vocab.mask_id
    before = ids.clone()
    features = network.features(ids)
    assert features.shape == (2, 9, network.d_model) and torch.equal(ids, before)
    assert network(ids).shape[-1] >= vocab.size and network(ids).dtype == torch.float32
    torch.testing.assert_close(network.head(features[:, 2]), network(ids)[:, 2])
    network(ids).logsumexp(-1).mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", choices("noise"))
def test_schedules_run_from_clean_to_masked(name):
    noise = build(composed("train", f"noise={name}")["noise"])
    t = torch.linspace(0, 1, 33, dtype=torch.float64, requires_grad=True)
    alpha = noise.alpha(t)
    assert isinstance(noise, NoiseSchedule)
    # A schedule may be cut at both ends (geometric is): what an integral over t leaves out is at
    # most 2e-3 of the mask probability there.
    assert 0.998 < alpha[0] <= 1 and 0 <= alpha[-1] < 2e-3 and (alpha.diff() < 0).all()
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    torch.testing.assert_close(noise.dalpha(t.detach()), slope)
    torch.testing.assert_close(noise.inverse(alpha), t)
    inside = t.detach()[1:]
    torch.testing.assert_close(
        noise.weight(inside), -noise.dalpha(inside) / (1 - noise.alpha(inside))
    )
    torch.testing.assert_close(noise.sigma(inside[:-1]), -noise.alpha(inside[:-1]).log())
    assert noise.sigma(t.detach()).isfinite().all()
    beyond = noise.inverse(torch.tensor([1.1, 1.0, 0.0, -0.1], dtype=torch.float64))
    assert (
        beyond.min() >= 0 and beyond.max() <= 1
    )  # the nearer end, for samplers and counts that ask for any fraction of masks


def maskings(objective):
    """The maskings that an objective can use; None for one that draws no masks by that group."""
    if "masking" not in composed("train", f"objective={objective}")["objective"]:
        return [None]
    return ["discrete_time"] if objective == "d3pm" else choices("objective/masking")


def fits(backbone, reads):
    """Whether a network of these settings reads sequences in this way, one of the subclasses of
    `Backbone`."""
    return issubclass(locate(backbone["_target_"], None), reads)


def process_for(user):
    """The first process that an objective or a sampler has formulas for."""
    needed = locate(user["_target_"], None).process_type
    kinds = {
        name: locate(composed("train", f"process={name}")["process"]["_target_"], None)
        for name in choices("process")
    }
    return next(name for name, kind in kinds.items() if issubclass(kind, needed))


@pytest.mark.parametrize(
    ("name", "masking"),
    [(name, masking) for name in choices("objective") for masking in maskings(name)],
)
@pytest.mark.parametrize("backbone", choices("backbone"))
def test_objectives_train_every_backbone_that_fits(name, masking, backbone):
    torch.manual_seed(0)
    objective = composed("train", f"objective={name}")["objective"]
    chosen = [f"objective={name}", f"process={process_for(objective)}"]
    chosen += [f"objective/masking={masking}"] if masking else []
    config = composed("train", *chosen) | {"backbone": small(backbone), "init_from": "RUN"}
    config = TrainOptions.of(config).recorded()
    if not fits(config["backbone"], locate(config["objective"]["_target_"], None).reads):
        with pytest.raises(ValueError, match="does not fit backbone"):
            check_compatible(config)
        return
    check_compatible(config)
    denoiser, process = build_denoiser(config, TOKENIZERS["dna"], trust=None)
    objective = build_objective(config, process, trust=None)
    x0 = torch.randint(7, 11, (4, 32))
    weight = torch.ones(4, 32)
    x0[:, 5], weight[:, 5] = 11, 0
    for loss in (objective, objective.evaluation()):
        denoiser.zero_grad()
        result = loss(denoiser, x0, weight, Draws.for_batch(0, 4))
        result.loss.backward()
        assert result.loss.isfinite() and not result.nll.requires_grad
        assert result.num_tokens == 124 or (name == "mlm" and 0 < result.num_tokens < 60)
        gradients = [p.grad for p in denoiser.parameters() if p.grad is not None]
        # The first teacher is an untrained copy, which may predict the same whatever it sees.
        agrees = name == "sdtt" and loss is objective
        assert agrees or sum(float(each.abs().sum()) for each in gradients) > 0


WRONG = {
    int: [0, -1, 1.5, "abc", [1, 2], True, {}],
    float: [-1, "abc", [0.1], True, {}],
    bool: ["abc", [True], 3, {}],
    str: [1, [1], {}, "abc"],
}
ZERO_IS_A_VALUE = ("num_labels", "dropout", "norm_eps")


@pytest.mark.parametrize("name", choices("backbone"))
def test_wrong_values_of_a_network_are_named(name):
    settings = small(name)
    settings |= {"time_conditioning": False} if "time_conditioning" in settings else {}
    for key in settings.keys() - {"_target_", "time_conditioning"}:
        for wrong in WRONG[type(settings[key])]:
            if key in ZERO_IS_A_VALUE and wrong == 0 and wrong is not False:
                continue
            with pytest.raises(ValueError, match=key) as caught:
                build(settings | {key: wrong}, vocab=TOKENIZERS["dna"].vocab)
            assert repr(wrong) in str(caught.value) or f"{key}={wrong} " in str(caught.value), key


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", choices("sampler"))
def test_samplers_fill_templates_and_count_correctly(name, kind):
    torch.manual_seed(0)
    vocab = TOKENIZERS[kind].vocab
    settings = composed("sample", "checkpoint=x", f"sampler={name}")["sampler"]
    few = (
        {"num_groups": 5}
        if name == "grouped"
        else {"num_steps": 20}
        if settings.get("num_steps")
        else {}
    )
    sampler = build(settings | few)
    backbone = next(
        each for each in ("transformer", "dit", "caduceus") if fits(small(each), sampler.reads)
    )
    network, calls = build(small(backbone), vocab=vocab).eval(), []
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    denoiser = {
        CausalBackbone: CausalDenoiser,
        BlockBackbone: lambda network: BlockDenoiser(network, 5),
    }.get(sampler.reads, Denoiser)(network)
    if name == "learned_order":
        denoiser = OrderDenoiser(network, SUBS(vocab), LogLinear(), False, Order(0.1), True)
    methods = {CausalBackbone: ["step"], BlockBackbone: ["step_block", "advance"]}.get(
        sampler.reads, ["features"]
    )
    config = composed("train", f"process={process_for(settings)}")
    process = build(config["process"], vocab=vocab, noise=build(config["noise"]))()
    if isinstance(process, GaussianProcess):
        denoiser, methods = AnalogBits(process).denoiser(network).eval(), ["mix"]
    denoiser.process_type = type(process)
    for method in ["step_block", "around"] if name == "fast_dllm" else methods:
        original = getattr(network, method)
        setattr(
            network,
            method,
            lambda *a, original=original, **k: calls.append(len(a[0])) or original(*a, **k),
        )
    x_init = torch.full((3, 12), vocab.mask_id)
    frozen = torch.zeros(3, 12, dtype=torch.bool)
    x_init[:, 4], frozen[1, 7] = vocab.emitted[-1], True
    result = sampler.sample(denoiser, process, x_init, Draws.for_batch(0, 3), frozen=frozen)
    assert (result.nfe, result.rows) == (len(calls), sum(calls))
    assert isinstance(sampler.exact, bool) and result.nfe <= sampler.num_steps_for(12)
    assert (result.tokens[:, 4] == vocab.emitted[-1]).all() and result.tokens[1, 7] == vocab.mask_id
    filled = result.tokens.clone()
    filled[1, 7] = vocab.emitted[0]
    assert torch.isin(filled, torch.tensor(vocab.emitted)).all()
    again = sampler.sample(denoiser, process, x_init, Draws.for_batch(0, 3), frozen=frozen)
    assert torch.equal(again.tokens, result.tokens)


def test_text_and_dna_fraction_objective_and_sampler(tmp_path):
    # The mission in one test, with resolved configurations; `test_train` runs the four
    # combinations.
    book = tmp_path / "book.txt"
    classes = set()
    for data in (["data=ecoli"], ["data=text", f"data.path={book}"]):
        for backbone in ("dit", "caduceus"):
            settings = composed("train", *data, f"backbone={backbone}")
            classes.add(
                (
                    locate(settings["objective"]["_target_"], None),
                    locate(settings["noise"]["_target_"], None),
                )
            )
    assert len(classes) == 1
