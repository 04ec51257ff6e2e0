"""The command line for models of vectors: training from its yaml, samples, likelihoods, and what
they are refused for."""

import json
import os
import subprocess
import sys

import pytest
import torch

import dnadiff
from dnadiff.diffusion.sampler.ddim import DDIM
from dnadiff.formats.sequences import read_sequences
from dnadiff.train import train

KINDS = {
    "analog_bits": ["objective=analog_bits", "noise=cosine_squared", "backbone=dit"],
    "diffusion_lm": ["objective=diffusion_lm", "noise=sqrt", "objective.num_steps=50"],
}


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    """The run folder of a small network trained for two steps."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 300 + "NNNN\n")
    args = ["data=fasta", f"data.path={folder / 'tiny.fa'}", "data.length=32", "data.batch_size=4"]
    args += ["data.max_valid_windows=4", "backbone.d_model=16", "backbone.n_layers=1"]
    args += ["process=gaussian", *KINDS[request.param]]
    args += ["backbone.n_heads=2"] if "backbone=dit" in args else []
    args += ["trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.accelerator=cpu"]
    train.start([*args, f"hydra.run.dir={folder / request.param}"])
    return folder / request.param


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_a_network_of_vectors(kind, tmp_path):
    (tmp_path / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 300 + "\n")
    args = ["data=fasta", "data.path=tiny.fa", "data.length=32", "data.batch_size=4"]
    args += ["data.max_valid_windows=4", "backbone.d_model=16", "backbone.n_layers=1"]
    args += ["trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.accelerator=cpu"]
    args += ["process=gaussian", f"objective={kind}", "trainer.devices=2", "hydra.run.dir=run"]
    command = [sys.executable, "-m", "dnadiff.train", *args]
    own = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
    env = {key: value for key, value in os.environ.items() if key not in own}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["step"] == 2


def records(path):
    return [r.sequence.decode() for r in read_sequences(str(path))]


def test_samples_are_drawn_from_noise_from_templates_and_from_given_sequences(run, cli, tmp_path):
    given = ["sample", f"checkpoint={run}", "batch_size=2", "sampler.num_steps=5", "sampler=ddim"]
    status, _, err = cli(*given, "num_samples=3", "length=20", "output=a.fa")
    assert status == 0, err
    found = records(tmp_path / "a.fa")
    assert [len(text) for text in found] == [20] * 3 and set("".join(found)) <= set("ACGT")
    model = dnadiff.load(run, "cpu")
    assert isinstance(model.default_sampler(20), DDIM)
    sampler = DDIM(num_steps=5)
    assert model.sample(3, length=20, batch_size=2, sampler=sampler, seed=1) == found
    (tmp_path / "t.fa").write_text(">t\nACGNNNNNACGT\n")
    status, _, err = cli(*given, "num_samples=2", "template=t.fa", "output=b.fa")
    assert status == 0, err
    assert all(text[:3] + text[-4:] == "ACGACGT" for text in records(tmp_path / "b.fa"))
    (tmp_path / "s.fa").write_text(">s\nACGTACGTACGTACGTACGT\n")
    status, _, err = cli(*given, "num_samples=2", "start=s.fa", "start_t=0.3", "output=c.fa")
    assert status == 0, err
    assert all(set(text) <= set("ACGT") for text in records(tmp_path / "c.fa"))


def test_diffusion_lm_has_a_bound_and_analog_bits_says_that_it_has_none(run, cli, tmp_path):
    given = [f"checkpoint={run}", "num_draws=4"]
    status, out, err = cli("evaluate", *given, "part=valid", "orders=[0]", "output=e.json")
    if run.name == "diffusion_lm":
        assert status == 0 and "bound of the objective" in out, err
        group = json.loads((tmp_path / "e.json").read_text())["groups"]["all"]
        assert group["bits"] > 0 and group["se_mc"] > 0
        model = dnadiff.load(run, "cpu")
        assert (model.nll(["ACGTACGT", "AACC"], num_draws=4) > 0).all()
    else:
        assert status == 1 and not (tmp_path / "e.json").exists()
        assert err.count("\n") < 4 and "AnalogBits has no likelihood: an error of bits" in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sample", "sampler=reverse", "output=x.fa"], "set sampler=ddim"),
        (["sample", "sampler=grouped", "output=x.fa"], "set sampler=ddim"),
        (["sample", "template=r.fa", "output=x.fa"], "a constraint on samples needs an absorbing"),
        (
            ["finetune", "task=demo_human_or_worm", "hydra.run.dir=x.run"],
            "a classifier reads tokens",
        ),
        (["compress", "input=r.fa", "output=x.dna"], "needs an absorbing process"),
        (["variants", "vcf=v.vcf", "genome=r.fa", "output=x.tsv"], "needs an absorbing process"),
    ],
)
def test_formulas_for_masks_refuse_them(run, command, message, cli, tmp_path):
    (tmp_path / "r.fa").write_text(">t\nACGRNNNNACGT\n")
    (tmp_path / "v.vcf").write_text(
        "##fileformat=VCFv4.2\n##contig=<ID=t,length=12>\n"
        "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\nt\t2\t.\tC\tA\t.\t.\t.\n"
    )
    name, *rest = command
    status, _, err = cli(name, f"checkpoint={run}", *rest)
    assert status == 1 and err.count("\n") < 4 and message in err
    assert not list(tmp_path.glob("x.*"))


def test_an_exported_model_has_its_layers_too(run, cli, tmp_path):
    status, _, err = cli("export", f"checkpoint={run}", "output=model")
    assert status == 0, err
    one, other = dnadiff.load(run, "cpu"), dnadiff.load(tmp_path / "model", "cpu")
    sampler = DDIM(num_steps=4)
    drawn = [each.sample(2, length=12, sampler=sampler, seed=1) for each in (one, other)]
    assert drawn[0] == drawn[1]


def test_embeddings_read_the_vectors_of_the_tokens(run):
    model = dnadiff.load(run, "cpu")
    found = model.embed(["ACGTACGTAC", "GGGGGGGGGG"])
    assert found.shape == (2, 16) and not torch.allclose(*torch.from_numpy(found))
    torch.nn.init.zeros_(model.denoiser.input.weight)
    constant = model.embed(["ACGTACGTAC", "GGGGGGGGGG"])
    torch.testing.assert_close(*torch.from_numpy(constant))


def test_a_time_before_the_rounding_is_refused_and_leaves_no_file(run, cli, tmp_path):
    (tmp_path / "s.fa").write_text(">s\nACGTACGTACGTACGTACGT\n")
    given = [f"checkpoint={run}", "start=s.fa", "start_t=5e-5", "output=c.fa"]
    status, _, err = cli("sample", *given)
    assert status == 1 and err.count("\n") < 4
    assert "start_t 5e-05 must be above 0.0001 (process.t_min)" in err
    assert [each.name for each in tmp_path.iterdir()] == ["s.fa"]


def test_a_run_with_layers_of_other_shapes_starts_no_other_objective(run, cli, tmp_path):
    data = run.parent / "tiny.fa"
    given = ["train", "data=fasta", f"data.path={data}", "data.length=32", "data.batch_size=4"]
    given += ["process=gaussian", f"init_from={run}", "hydra.run.dir=new", "trainer.max_steps=1"]
    other = next(words for kind, words in KINDS.items() if kind != run.name)
    narrow = ["objective=diffusion_lm", "objective.width=8"]
    for words in (other[:2], narrow) if run.name == "diffusion_lm" else (other[:2],):
        status, _, err = cli(*given, *words, "trainer.accelerator=cpu")
        assert status == 1 and err.count("\n") < 4, err
        assert f"init_from={run} has " in err and "as in that run, or leave out init_from" in err
        assert not (tmp_path / "new").exists()


def test_a_run_needs_its_process_and_the_time(cli, tmp_path):
    (tmp_path / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 300 + "\n")
    given = ["train", "data=fasta", "data.path=tiny.fa", "data.length=32", "hydra.run.dir=run"]
    for more, message in (
        (["objective=analog_bits"], "set process=gaussian"),
        (["objective=bound", "process=gaussian"], "Bound needs a process"),
        (["objective=diffusion_lm", "process=gaussian", "time_conditioning=false"], "needs the"),
    ):
        status, _, err = cli(*given, *more)
        assert status == 1 and err.count("\n") < 4 and message in err
        assert not (tmp_path / "run").exists()
