"""What a sampler reports of its settings, and what a user's own sampler needs to implement."""

from dataclasses import dataclass

import pytest
import torch

from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.diffusion.sampler.forward_backward import ForwardBackward
from dnadiff.diffusion.sampler.gibbs import Gibbs
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.diffusion.sampler.remasking import Cap
from dnadiff.diffusion.sampler.remdm import ReMDM
from dnadiff.diffusion.sampler.semi_ar import SemiAR
from dnadiff.fields import checked
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir

NAMES = sorted(p.stem for p in (config_dir() / "sampler").glob("*.yaml"))
DEFAULTS = {"temperature": 1.0, "top_k": None, "nucleus": 1.0}


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_the_yaml(name):
    config = compose("sample", ["checkpoint=x", f"sampler={name}"])["sampler"]
    settings = build(config).settings()
    assert settings.keys() == config.keys() - {"_target_"}
    assert all(
        settings[key] == value
        for key, value in config.items()
        if not isinstance(value, dict) and key != "_target_"
    )


def test_nested_settings_are_dicts_with_the_class():
    grid = {"num_steps": 8, "noise_removal": "sample", **DEFAULTS}
    assert ReMDM(Cap(0.1), num_steps=8).settings() == {
        "remasking": {"class": "Cap", "eta": 0.1},
        **grid,
    }
    assert ForwardBackward(8).settings() == grid
    inner = {"class": "Grouped", "num_groups": 2, "sizes": [3, 5], **DEFAULTS}
    assert SemiAR(Grouped(sizes=(3, 5)), 8).settings() == {
        "sampler": inner,
        "window": 8,
        "stride": None,
    }
    assert Gibbs(1e1).settings() == {"num_sweeps": 10, "num_groups": None, **DEFAULTS}


@checked
@dataclass(eq=False)
class LeftToRight(Sampler):
    """A user's own sampler: `width` positions per call from the left, by the most probable
    token."""

    width: int = 1

    def num_steps_for(self, length):
        return -(-length // self.width)

    def fill(self, x, masked, calls, process, draws):
        for start in range(0, x.shape[1], self.width):
            now = masked & (torch.arange(x.shape[1]) // self.width == start // self.width)
            if now.any():
                x[now] = calls.log_probs(x, torch.ones(len(x)), now).argmax(-1)
        return x


class Plain(LeftToRight):
    """The same with a constructor of its own."""

    def __init__(self, stride, **more):
        super().__init__(width=stride)
        self.stride = stride


class Forgetful(LeftToRight):
    def __init__(self, speed=2):
        super().__init__()


def test_a_users_own_sampler_needs_one_method_and_records_its_settings(world):
    sampler, model = LeftToRight(2, nucleus=0.5), world.table()
    result = world.draw(sampler, model, 5)
    assert (result.nfe, result.rows) == (model.calls, model.rows) == (2, 2) and (
        result.tokens == result.tokens[0]
    ).all()
    assert sampler.settings() == {**DEFAULTS, "width": 2, "nucleus": 0.5}
    assert not sampler.exact and not sampler.has_weights and not sampler.supports_weights(8)
    with pytest.raises(ValueError, match="temperature 'x' must be a number above 0"):
        LeftToRight(temperature="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        LeftToRight(widht=2)


def test_a_constructor_must_store_its_arguments():
    assert Plain(3).settings() == {"stride": 3}
    with pytest.raises(
        ValueError,
        match=r"Forgetful does not store its argument speed; set self.speed in the constructor",
    ):
        Forgetful().settings()
