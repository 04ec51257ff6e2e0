import functools
import json

import pytest

from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.masking import Bernoulli
from dnadiff.options.command import compose, named
from dnadiff.store import objects as config


def test_build_makes_nested_objects_and_partials():
    masking = config.build(
        {"_target_": "dnadiff.diffusion.objective.masking.Bernoulli", "t_min": 2e-3}
    )
    assert isinstance(masking, Bernoulli) and masking.t_min == 2e-3
    partial = config.build(
        {
            "_target_": "dnadiff.diffusion.objective.mdlm.MDLM",
            "_partial_": True,
            "masking": {"_target_": "dnadiff.diffusion.objective.masking.Bernoulli"},
        }
    )
    assert isinstance(partial, functools.partial) and isinstance(
        partial.keywords["masking"], Bernoulli
    )
    assert isinstance(
        config.build([{"_target_": "dnadiff.diffusion.noise.LogLinear"}, 3][0]), LogLinear
    )


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "dnadiff.diffusion.draws.hashlib.blake2b",
        "dnadiff.weights.checkpoint.os.system",
        "dnadiff.train.resource.getrusage",
        "dnadiff.networks.kernels.native._run",
        "dnadiff.store.objects.build",
        "dnadiff.training.optim.warmup_cosine",
        "dnadiff.weights.loaded.Loaded",
        "torch.load",
    ],
)
def test_nothing_outside_the_package_is_called(target):
    with pytest.raises(ValueError, match=r"refused|does not exist"):
        config.build({"_target_": "dnadiff.diffusion.noise.LogLinear", "eps": {"_target_": target}})


def test_everything_is_checked_before_anything_is_called(tmp_path):
    called = tmp_path / "called"
    hostile = {
        "first": {"_target_": "dnadiff.data.tokenizer.CharTokenizer", "characters": "ab"},
        "second": {"deep": [{"_target_": "os.system", "command": "true"}]},
    }
    with pytest.raises(ValueError, match=r"refused to build 'os\.system'"):
        config.build(hostile)
    assert not called.exists()


def test_a_trusted_package_is_allowed():
    assert (
        config.build({"_target_": "fractions.Fraction", "numerator": 3}, trust=("fractions",)) == 3
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("dnadiff.diffusion.noise.Missing", "does not exist"),
        ("dnadiff.nowhere.X", "does not exist"),
    ],
)
def test_misspelled_targets_are_named(target, message):
    with pytest.raises(ValueError, match=message):
        config.build({"_target_": target})


def test_an_unknown_argument_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"dnadiff\.diffusion\.noise\.LogLinear.*'epsilon'"):
        config.build({"_target_": "dnadiff.diffusion.noise.LogLinear", "epsilon": 1})


@pytest.mark.parametrize("backbone", ["caduceus", "caduceus_ps", "mamba"])
def test_published_sizes_have_names(backbone):
    def size(*overrides):
        found = compose("train", [f"backbone={backbone}", *overrides])["backbone"]
        return found["d_model"], found["n_layers"]

    assert size() == (64, 4)
    for name in (
        ("64x4", "118x4", "256x4", "256x8", "256x16") if backbone == "caduceus" else ("118x4",)
    ):
        assert size(f"backbone/size={name}") == tuple(map(int, name.split("x")))
    assert size("backbone/size=256x8", "backbone.d_model=32") == (32, 8)


@pytest.mark.parametrize("backbone", ["dit", "transformer"])
def test_the_published_sizes_of_the_transformers_by_name(backbone):
    sizes = {
        "mini": (128, 4, 4),
        "tiny": (512, 8, 8),
        "small": (768, 12, 12),
        "medium": (1024, 24, 16),
    }
    for name, expected in sizes.items():
        found = compose("train", [f"backbone={backbone}", f"backbone/size={name}"])["backbone"]
        assert (found["d_model"], found["n_layers"], found["n_heads"]) == expected
    assert compose("train", [f"backbone={backbone}"])["backbone"]["d_model"] == 128


def test_leaves_have_dotted_keys():
    assert dict(config.leaves({"noise": {"eps": 0.001}, "seed": 1})) == {
        "noise.eps": 0.001,
        "seed": 1,
    }


def test_files_that_are_read_once_compose_as_those_that_are_read_again(python):
    # The fixture `composing_once` of all tests; another process reads and merges every file.
    chosen = [
        "data=fasta",
        "data.path=x.fa",
        "backbone=dit",
        "+data.split.low=3",
        "~callbacks.ema",
        "data.keep=[a,b]",
    ]
    cases = [
        ("train", chosen),
        ("train", [*chosen[:3], "data.path=y.fa"]),
        ("train", []),
        ("sample", ["sampler=block", "checkpoint=x"]),
    ]
    code = (
        "import json, sys\nfrom dnadiff.options.command import "
        "compose\nprint(json.dumps([compose(*case) "
        "for case in json.loads(sys.argv[1])]))"
    )
    process = python("-c", code, json.dumps(cases))
    once = [compose(*case) for case in cases]
    once[0]["data"]["split"]["low"] = 4  # a change of one result is not seen in the next
    assert process.wait() == 0, process.errors
    assert [compose(*case) for case in cases] == json.loads(process.output)


def test_all_keys_are_printed(cli):
    status, output, errors = cli("train", "seed=7", "--cfg", "job")
    assert status == 0 and "\nseed: 7\n" in f"\n{output}", errors


@pytest.mark.parametrize("header", ["# @pack", "# @package a b", "#@package"])
def test_a_damaged_header_of_an_own_yaml_file_is_named(tmp_path, header):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"{header}\nseed: 3\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: the header is @pack.*; expected '# @packag"):
        named("train").compose(["experiment=mine", "data=ecoli"], tmp_path, tmp_path)
