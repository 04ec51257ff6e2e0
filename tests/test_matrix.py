"""{DNA, text} x {dit, caduceus}, and both causal networks: the same objective and sampler classes,
trained for a step and sampled."""

import json

import pytest

from dnadiff.options.command import compose
from dnadiff.store.objects import config_dir, locate
from dnadiff.weights.checkpoint import load

# Where the group is there, OpenWebText; local text stands in for it either way.
OWT = "owt" if (config_dir() / "data" / "owt.yaml").is_file() else "text"
SMALL = [
    "data.length=64",
    "data.batch_size=2",
    "data.max_valid_windows=2",
    "backbone.n_layers=1",
    "backbone.d_model=16",
]
SMALL += [
    "trainer.max_steps=1",
    "trainer.val_check_interval=1",
    "trainer.accumulate_grad_batches=1",
    "trainer.accelerator=cpu",
]


def target(*args, group):
    command = "sample" if group == "sampler" else "train"
    return locate(compose(command, args, resolve=False)[group]["_target_"], None)


@pytest.fixture
def stand_in(tiny_fasta, tmp_path):
    """Overrides that put a local file in the place of a data group's own."""
    book = tmp_path / "book.jsonl" if OWT == "owt" else tmp_path / "book.txt"
    texts = ["The quick brown fox jumps over the lazy dog."] * 200
    book.write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in texts) if OWT == "owt" else "\n".join(texts)
    )
    more = (
        ["tokenizer=characters", "data.path_is=all", "data.valid_documents=null"]
        if OWT == "owt"
        else []
    )
    text = [f"data={OWT}", f"data.path={book}", *more]
    return {
        "dna": [
            "data=hg38",
            f"data.path={tiny_fasta}",
            "data.keep=null",
            "data/split=fraction",
            "data.num_workers=0",
        ],
        "text": text,
    }


def test_the_two_papers_share_objective_and_sampler():
    dna, text = ["data=hg38", "backbone=caduceus"], [f"data={OWT}", "backbone=dit"]
    assert target(*dna, group="objective") is target(*text, group="objective")
    assert (
        target(group="sampler").__module__ == "dnadiff.diffusion.sampler.grouped"
    )  # the command's, whatever the checkpoint holds
    assert target(*dna, group="backbone") is not target(*text, group="backbone")


@pytest.mark.parametrize("data", ["dna", pytest.param("text", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("backbone", "more", "sampler"),
    [
        ("dit", ["backbone.n_heads=2"], ["sampler.num_groups=2"]),
        ("caduceus", [], ["sampler.num_groups=2"]),
        ("caduceus", ["objective=block_mdlm"], ["sampler=block", "sampler.sampler.num_groups=2"]),
        (
            "dit",
            ["objective=block_mdlm", "backbone.n_heads=2"],
            ["sampler=block", "sampler.sampler.num_groups=2"],
        ),
        ("transformer", ["objective=ar", "backbone.n_heads=2"], ["sampler=ar"]),
        ("mamba", ["objective=ar"], ["sampler=ar"]),
    ],
)
def test_every_pair_trains_a_step_and_samples(
    cli, stand_in, data, backbone, more, sampler, tmp_path
):
    status, _, err = cli(
        "train", *stand_in[data], f"backbone={backbone}", *more, *SMALL, "hydra.run.dir=run"
    )
    assert status == 0, err
    loaded = load(tmp_path / "run")
    assert type(loaded.denoiser.backbone).__module__ == f"dnadiff.networks.backbone.{backbone}"
    assert locate(loaded.config["objective"]["_target_"], None) is target(
        f"backbone={backbone}", *more[:1], group="objective"
    )
    name = "x.fa" if data == "dna" else "x.txt"
    status, _, err = cli(
        "sample", "checkpoint=run", *sampler, "num_samples=2", "length=32", f"output={name}"
    )
    assert status == 0, err
    drawn = (tmp_path / name).read_text()
    assert len("".join(line for line in drawn.splitlines() if not line.startswith(">"))) > 40
