"""Masks at a rate of each token in the commands: the checkpoint has what is counted or learned."""

import pytest
import torch

import dnadiff
from dnadiff.evaluate import evaluate
from dnadiff.train import train
from dnadiff.weights import checkpoint

NETWORK = ["backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"]
RARE, COMMON = 8, 7  # C and A


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "tiny.fa").write_text(">one\n" + "AAATATAAGATAAC" * 100 + "\n")
    return folder


def trained(folder, name, *choices):
    data = ["data=fasta", f"data.path={folder / 'tiny.fa'}", "data.length=32", "data.batch_size=4"]
    few = ["data.max_valid_windows=4", "trainer.max_steps=2", "trainer.val_check_interval=2"]
    run = [*few, "trainer.accelerator=cpu", f"hydra.run.dir={folder / name}"]
    train.start([*data, *run, *choices])
    return folder / name


@pytest.fixture(scope="module")
def spindle(tiny):
    return trained(tiny, "spindle", *NETWORK, "process=spindle", "objective=bound")


@pytest.fixture(scope="module")
def genmd4(tiny):
    return trained(tiny, "genmd4", *NETWORK, "process=token_rates", "objective=genmd4")


def test_frequencies_are_counted_once_and_loaded_without_data(spindle, tiny):
    loaded = checkpoint.load(spindle)
    information = loaded.process.information
    assert information[RARE] > 0.3 and information[COMMON] < 0
    assert loaded.denoiser.process is loaded.process
    assert "process.information" in loaded.denoiser.state_dict()
    (tiny / "tiny.fa").rename(tiny / "moved.fa")
    found = dnadiff.load(spindle, "cpu").sample(2, length=12)
    (tiny / "moved.fa").rename(tiny / "tiny.fa")
    assert all(len(text) == 12 and set(text) <= set("ACGT") for text in found)


def test_their_bound_is_evaluated_and_their_samples_are_drawn(spindle, genmd4, cli, tmp_path):
    for run in (spindle, genmd4):
        result = evaluate(checkpoint=str(run), part="valid", orders=[0], num_draws=16).content
        assert 0.2 < result["groups"]["all"]["nll"] < 3
        given = ["sample", f"checkpoint={run}", "num_samples=2", "length=12", "overwrite=true"]
        status, _, err = cli(*given, "output=a.fa")
        assert status == 0, err
        status, _, err = cli(*given, "sampler=grouped", "output=b.fa")
        assert status == 1 and "rate of each token" in err and "set sampler=reverse" in err


def test_learned_rates_move_and_are_loaded(genmd4):
    loaded = checkpoint.load(genmd4)
    moved = loaded.process.values[list(loaded.process.vocab.emitted)] - 1
    assert (moved.abs() > 1e-4).all()
    saved = torch.load(genmd4 / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(saved["denoiser.process.raw"], loaded.process.raw)


def test_training_starts_from_a_network_of_another_process(spindle, tiny):
    start = [f"init_from={spindle}", "optimizer.lr=0.0"]
    run = trained(tiny, "plain", *start)
    first, then = (checkpoint.load(each).denoiser for each in (spindle, run))
    assert all(
        torch.equal(value, first.backbone.state_dict()[name])
        for name, value in then.backbone.state_dict().items()
    )
    back = trained(tiny, "back", f"init_from={run}", "process=spindle", "objective=bound")
    assert checkpoint.load(back).process.information[RARE] > 0.3


def test_learned_rates_are_trained_on_whole_windows(genmd4):
    loaded = checkpoint.load(genmd4).denoiser
    with pytest.raises(ValueError, match=r"expected 1: .* process.raw; set context_parallel=1"):
        loaded.check_pieces(2, 32)


def test_genmd4_names_the_process_that_it_needs(tiny, cli):
    given = ["train", "data=fasta", f"data.path={tiny / 'tiny.fa'}", *NETWORK]
    status, _, err = cli(*given, "objective=genmd4")
    assert status == 1 and "GenMD4 needs" in err and "process=token_rates" in err
