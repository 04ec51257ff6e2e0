"""Fine-tuning of a generator: `train init_from=MODEL` with LoRA, labels and values."""

import numpy as np
import pytest
import torch
import yaml

import dnadiff
from dnadiff.networks.adapter import build_adapter
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import build_denoiser
from dnadiff.weights.tensors import fingerprint

IDS = torch.randint(7, 11, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """60 random sequences, the more A the higher their activity."""
    path = tmp_path_factory.mktemp("measured") / "t.csv"
    draw = np.random.default_rng(1)
    lines = ["sequence,activity,set"]
    for number in range(60):
        p = draw.uniform(0.1, 0.7)
        letters = draw.choice(list("ACGT"), 32, p=[p, *[(1 - p) / 3] * 3])
        lines.append(f"{''.join(letters)},{p:.3f},{'a' if number % 2 else 'b'}")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def arguments(table, trained):
    def arguments(folder, *more):
        return [
            *(f"init_from={trained}", "data=sequences", f"data.path={table}", "data.length=32"),
            *("data.condition_columns=[activity]", "data.batch_size=4", "data.stranded=true"),
            *("trainer.accelerator=cpu", "trainer.val_check_interval=2", "trainer.max_steps=4"),
            *("optimizer.lr=1e-2", f"hydra.run.dir={folder}", *more),
        ]

    return arguments


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory):
    """A generator that was fine-tuned for four steps with LoRA."""
    from dnadiff.train import train

    folder = tmp_path_factory.mktemp("generator")
    train.start(arguments(folder / "run", "adapter=lora", "adapter.rank=2"))
    return folder / "run"


def log_probs(denoiser, cond):
    masked = torch.full_like(IDS, denoiser.vocab.mask_id)
    with torch.no_grad():
        return denoiser.log_probs(torch.where(IDS > 8, IDS, masked), None, cond)


def test_the_loaded_network_is_the_adapted_one_with_merged_updates(run, trained):
    loaded = checkpoint.load_silently(run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["adapter"]["rank"] == 2 and "adapter" not in loaded.config
    attached, _ = build_denoiser(config, loaded.tokenizer)
    saved = checkpoint.read(run / "checkpoints" / "best.ckpt")["state_dict"]
    attached.load_state_dict({key.removeprefix("denoiser."): saved[key] for key in saved})
    cond = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    found = log_probs(loaded.denoiser, cond)
    torch.testing.assert_close(found, log_probs(attached.eval(), cond), atol=1e-5, rtol=1e-5)
    start = checkpoint.load_silently(trained).denoiser.state_dict()
    own = loaded.denoiser.state_dict()
    new = own.keys() - start.keys()
    assert new == {"backbone.condition.label_map.weight"} | {
        key for key in own if key.endswith("adaLN_modulation.weight")
    }
    changed = {key for key in start if not torch.equal(start[key], own[key])}
    assert changed and all(key.endswith("proj.weight") for key in changed)
    assert all(own[key].abs().max() > 0 for key in new)


def test_the_run_starts_as_the_initial_model(arguments, cli, trained, tmp_path):
    more = ("optimizer.lr=0", "weight_decay=0", "adapter=lora", "adapter.rank=2")
    status, _, err = cli("train", *arguments(tmp_path / "still", *more))
    assert status == 0, err
    still = checkpoint.load_silently(tmp_path / "still").denoiser
    before = log_probs(checkpoint.load_silently(trained).denoiser, None)
    for cond in (None, torch.tensor([[1.0, -3.0], [0.0, 0.0]])):
        assert torch.equal(log_probs(still, cond), before)


def test_a_dropout_of_one_is_no_condition(arguments, cli, tmp_path):
    more = ("data.label_dropout=1", "data.label=set")
    status, _, err = cli("train", *arguments(tmp_path / "dropped", *more))
    assert status == 0, err
    loaded = checkpoint.load_silently(tmp_path / "dropped")
    assert loaded.conditions.choices == ("set=a", "set=b", "activity=NUMBER")
    cond = torch.tensor([loaded.conditions.row(["set=a", "activity=3"])] * 2)
    assert torch.equal(log_probs(loaded.denoiser, cond), log_probs(loaded.denoiser, None))


def test_samples_of_no_guidance_are_unconditional_and_depend_on_the_value_otherwise(run):
    model = dnadiff.load(run, "cpu")
    assert model.labels == ("activity=NUMBER",)
    mean, sd = model.loaded.conditions.values["activity"]
    row = model.conditioned({"activity": 0.7}, 2)[1]
    assert row.tolist() == [[1, pytest.approx((0.7 - mean) / sd)]]
    free = model.sample(3, length=32, seed=3)
    assert model.sample(3, length=32, seed=3, label={"activity": 0.7}, guidance=0) == free
    strong = [
        model.sample(3, length=32, seed=3, label={"activity": value}, guidance=20)
        for value in (0.1, 0.7)
    ]
    assert strong[0] != strong[1]


def test_a_resumed_run_ends_with_the_same_weights(arguments, cli, tmp_path):
    more = ("adapter=lora", "adapter.rank=2", "lr_scheduler=constant")
    assert cli("train", *arguments(tmp_path / "whole", *more))[0] == 0
    part = arguments(tmp_path / "part", *more)
    assert cli("train", *part, "trainer.max_steps=2")[0] == 0
    status, _, err = cli("train", *part, "resume=true")
    assert status == 0, err
    whole, part = (checkpoint.load_silently(tmp_path / name) for name in ("whole", "part"))
    assert whole.step == part.step == 4 and whole.conditions == part.conditions
    assert fingerprint(whole.denoiser) == fingerprint(part.denoiser)


def test_an_exported_generator_makes_the_same_samples(run, cli, tmp_path):
    assert cli("export", f"checkpoint={run}", "output=exported")[0] == 0
    sampled = []
    for name in (run, "exported"):
        arguments = ("num_samples=2", "length=32", "label={activity:0.6}", "guidance=2")
        status, _, err = cli(
            "sample", f"checkpoint={name}", *arguments, "output=s.fa", "overwrite=true"
        )
        assert status == 0, err
        sampled.append((tmp_path / "s.fa").read_text())
    assert sampled[0] == sampled[1] and 'label="activity=0.6" guidance=2' in sampled[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.condition_columns=[set]"], "set of record 1 is 'b', expected a number"),
        (
            ["backbone.num_labels=3"],
            "num_labels 0, but 3 was requested); leave out backbone.num_labels=3",
        ),
        (["init_from=null", "backbone.num_labels=3"], "backbone.num_labels 3 does not fit the"),
        (["init_from=null", "adapter=lora"], "adapter trains updates of a trained network, and"),
        (["init_from=null", "backbone=dit"], "DiT takes no labels and values, and the data have"),
    ],
)
def test_what_does_not_fit_is_refused(more, message, arguments, cli, tmp_path):
    status, _, err = cli("train", *arguments(tmp_path / "refused", *more))
    assert status == 1 and message in err and err.count("error") == 1, err
    assert not (tmp_path / "refused").exists()


def test_a_conditioned_model_is_continued_with_the_same_conditions(run, arguments, cli, tmp_path):
    status, _, err = cli("train", *arguments(tmp_path / "more", f"init_from={run}"))
    assert status == 0, err
    status, _, err = cli(
        "train", *arguments(tmp_path / "other", f"init_from={run}", "data.label=set")
    )
    assert status == 1 and "takes the labels activity=NUMBER, and the data have set=a, set=b" in err


def test_something_else_is_no_adapter():
    with pytest.raises(ValueError, match=r"adapter .*Fraction is not an adapter"):
        build_adapter({"_target_": "fractions.Fraction"}, None)
