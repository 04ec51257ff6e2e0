"""Every experiment composes and takes two steps in each precision; those of the human genome use
chromosome 20."""

import json
import re
from functools import cache

import pytest
import torch

from dnadiff.distill import distill
from dnadiff.options.command import compose
from dnadiff.store.objects import build, config_dir
from dnadiff.train import train
from dnadiff.weights import checkpoint

STUDENTS = ["owt_sdtt"]  # of a model that is trained already
EXPERIMENTS = sorted(p.stem for p in (config_dir() / "experiment").glob("*.yaml"))
SMALL = [
    "data.length=64",
    "data.batch_size=2",
    "data.max_valid_windows=2",
    "backbone.n_layers=1",
    "backbone.d_model=16",
]
ONE_STEP = [
    "trainer.max_steps=1",
    "trainer.accumulate_grad_batches=1",
    "trainer.val_check_interval=1",
    "trainer.accelerator=cpu",
]


@cache
def published(name):
    """The configuration of an experiment as it is."""
    return compose("train", [f"experiment={name}"])


def stand_in(name, shared_data, tmp_path):
    """Overrides that replace the data of an experiment by local data."""
    data = published(name)["data"]
    if data["_target_"].endswith("TextDataModule"):
        (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        cut = (
            ["data.valid_documents=40", "data.documents=line"] if "valid_documents" in data else []
        )
        return [
            f"data.path={tmp_path / 'book.txt'}",
            "tokenizer=characters",
            "trainer.precision=32-true",
            *cut,
        ]
    if data.get("download"):
        return [
            f"data.path={shared_data / 'genomes' / 'GRCh37_chr20.fa.gz'}",
            "data.keep=null",
            "data/split=chr20",
            "data.num_workers=0",
        ]
    if data["path"] == "???":
        return [f"data.path={shared_data / 'genomes' / 'GRCh37_chr20.fa.gz'}"]
    return []


# With a network and data this small each of them is nearly the same run as another one.
REPEATED = {
    f"ablation_{name}"
    for name in ("steps_100", "steps_1000", "medium", "tiny", "time_conditioning", "no_carry_over")
}
REPEATED |= {f"ablation_noise_{name}" for name in ("cosine", "cosine_squared", "linear")} | {
    "lm1b_ar",
    "lm1b_block",
    "owt_sedd",
}
REPEATED |= {
    "ablation_noise_geometric",
    "ecoli_bundled",
    "chr20_hnf4a",
    "lm1b_mdlm_wrap",
    "lm1b_sedd",
    "owt_block",
    "text8_mdlm",
}


@pytest.mark.parametrize(
    ("accelerator", "precision"),
    [
        ("cpu", "32-true"),
        ("cpu", "bf16-mixed"),
        *(
            pytest.param("gpu", precision, marks=pytest.mark.gpu)
            for precision in ("32-true", "bf16-mixed", "16-mixed")
        ),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in REPEATED else [])
        for name in EXPERIMENTS
        if name not in STUDENTS
    ],
)
def test_every_experiment_takes_two_steps(name, accelerator, precision, shared_data, tmp_path):
    heads = published(name)["backbone"].get("n_heads")
    args = [
        f"experiment={name}",
        *stand_in(name, shared_data, tmp_path),
        *SMALL,
        *ONE_STEP,
        *(["backbone.n_heads=2"] if heads else []),
        *("trainer.max_steps=2", f"trainer.precision={precision}"),
        f"trainer.accelerator={accelerator}",
    ]
    metrics = train.start([*args, f"hydra.run.dir={tmp_path / 'run'}"]).content
    # Columns of related genomes predict much without training.
    least = 0.1 if published(name)["data"].get("alignment") else 0.5
    assert metrics["finished"] and metrics["step"] == 2 and least < metrics["valid_nll"] < 20
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["step"] == 2


STAGES = [
    pytest.param("hg38_mlm", "hg38_mdlm", [], marks=pytest.mark.slow),
    ("hg38_mlm", "hg38_sedd", []),
    ("lm1b_mdlm_wrap", "lm1b_block", ["backbone.n_heads=2"]),
    pytest.param(
        "owt_mdlm",
        "owt_block",
        ["backbone.n_heads=2", "time_conditioning=false"],
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("first", "second", "changed"), STAGES)
def test_the_second_stage_starts_from_the_first(first, second, changed, shared_data, tmp_path):
    start = [f"init_from={tmp_path / 'one'}", "optimizer.lr=0.0"]
    for name, folder, more in ((first, "one", changed), (second, "two", start)):
        small = [s for s in SMALL if folder == "one" or not s.startswith("backbone")]
        args = [
            f"experiment={name}",
            *stand_in(name, shared_data, tmp_path),
            *small,
            *ONE_STEP,
            *more,
        ]
        train.start([*args, f"hydra.run.dir={tmp_path / folder}"])
    first, then = (
        checkpoint.load(tmp_path / folder).denoiser.state_dict() for folder in ("one", "two")
    )
    assert all(torch.equal(first[key], then[key]) for key in first)


def test_the_student_of_a_text_model_is_distilled(shared_data, tmp_path):
    teacher, student, small = tmp_path / "teacher", tmp_path / "student", ["backbone.n_heads=2"]
    text = stand_in("owt_mdlm", shared_data, tmp_path)
    train.start(
        ["experiment=owt_mdlm", *text, *SMALL, *ONE_STEP, *small, f"hydra.run.dir={teacher}"]
    )
    row = compose("distill", ["experiment=owt_sdtt", f"checkpoint={teacher}"])
    assert row["objective"]["num_steps"] == 1024 and row["trainer"]["max_steps"] == 70_000
    assert (
        row["data"]["batch_size"] * row["trainer"]["accumulate_grad_batches"] == 128
        and row["objective"]["num_rounds"] * row["objective"]["steps_per_round"] == 70_000
    )
    cut = [each for each in (*text, *SMALL, *ONE_STEP) if not each.startswith("backbone")]
    cut += [f"checkpoint={teacher}", "optimizer.lr=0.0", f"hydra.run.dir={student}"]
    assert distill.start(["experiment=owt_sdtt", *cut]).finished
    first, then = (checkpoint.load(run).denoiser.state_dict() for run in (teacher, student))
    assert all(torch.equal(first[key], then[key]) for key in first)


def test_the_recipe_for_dna_is_the_published_one():
    rows = {name: published(name) for name in EXPERIMENTS if name.startswith("hg38_")}
    assert set(rows) == {"hg38_mlm", "hg38_mdlm", "hg38_sedd", "hg38_ar_mamba"}
    for name, row in rows.items():
        data, trainer = row["data"], row["trainer"]
        assert (
            data["batch_size"]
            * data["length"]
            * trainer["accumulate_grad_batches"]
            * trainer["devices"]
            == 2**20
        )
        first = name in ("hg38_mlm", "hg38_ar_mamba")
        assert (trainer["max_steps"], row["optimizer"]["lr"]) == (
            (10_000, 8e-3) if first else (50_000, 1e-3)
        )
        size = (row["backbone"]["d_model"], row["backbone"]["n_layers"])
        assert size == ((128, 4) if name == "hg38_ar_mamba" else (118, 4))
        assert data["split"]["valid"] == ["chr10"] and data["split"]["test"] == ["chr8", "chr20"]


@pytest.mark.parametrize(
    ("choices", "part"),
    [(["experiment=chr20_hnf4a"], "test"), (["data=fasta", "data/split=chr20"], "train")],
)
def test_the_hnf4a_promoter_is_held_out_of_its_experiment_alone(choices, part):
    split = build(compose("train", [*choices, "data.path=x"], resolve=False)["data"]["split"])
    parts, (low, high) = split(["20"], [63_025_520]), (42_984_159 - 1024, 42_984_444 + 1024)
    assert [
        name
        for name, intervals in parts.items()
        for each in intervals
        if each.start <= low and each.end >= high
    ] == [part]
    if part == "test":
        assert all(
            each.end <= 42_000_000 - 2048 or each.start >= 43_000_000 + 2048
            for each in parts["train"]
        )


def test_the_recipe_for_text_is_the_published_one():
    rows = {
        name: published(name)
        for name in EXPERIMENTS
        if name.startswith(("owt", "lm1b", "text8", "ablation")) and name not in STUDENTS
    }
    assert {
        "owt_mdlm",
        "owt_sedd",
        "owt_ar",
        "owt_block",
        "lm1b_mdlm",
        "lm1b_mdlm_wrap",
        "lm1b_block",
        "lm1b_d3pm",
    } <= set(rows)
    assert {"lm1b_sedd", "lm1b_ar", "text8_mdlm"} <= set(rows)
    for name, row in rows.items():
        data, trainer, size = (
            row["data"],
            row["trainer"],
            tuple(row["backbone"][key] for key in ("d_model", "n_layers", "n_heads")),
        )
        assert data["batch_size"] * trainer["accumulate_grad_batches"] * trainer["devices"] == 512
        assert trainer["max_steps"] == (150_000 if name.endswith("_block") else 1_000_000)
        assert data["length"] == {"owt": 1024, "lm1b": 128, "text8": 256}[data["name"]]
        assert size == {"ablation_tiny": (512, 8, 8), "ablation_medium": (1024, 24, 16)}.get(
            name, (768, 12, 12)
        )
        assert (row["optimizer"]["lr"], row["optimizer"]["betas"], row["weight_decay"]) == (
            3e-4,
            [0.9, 0.999],
            0,
        )
        assert (
            row["lr_scheduler"]["warmup_steps"] == 2500
            and row["callbacks"]["ema"]["decay"] == 0.9999
        )
        assert trainer["gradient_clip_val"] == 1 and row["backbone"]["dropout"] == 0.1
        padded = not data["wrap"]
        wrapped = ("mdlm_wrap", "block", "learned_order", "udlm", "gidd")
        assert padded == (data["name"] == "lm1b" and name.partition("_")[2] not in wrapped)
        protocol = row["objective"].get("protocol")  # None: the objective has one alone
        assert protocol in (None, "mdlm" if padded else "count")


@pytest.mark.parametrize(
    ("blocks", "whole"), [("lm1b_block", "lm1b_mdlm_wrap"), ("owt_block", "owt_mdlm")]
)
def test_block_diffusion_follows_its_mdlm_run(blocks, whole):
    row, before = published(blocks), published(whole)
    assert row["objective"] == {
        "_target_": "dnadiff.diffusion.objective.block_mdlm.BlockMDLM",
        "_partial_": True,
        "masking": {
            "_target_": "dnadiff.diffusion.objective.masking.Clipped",
            "low": 0.0,
            "high": 1.0,
            "stratified": True,
        },
        "block_size": 16,
        "weighting": "nelbo",
        "next_token_weight": 0.0,
        "protocol": "count",
    }
    others, search = {**row["callbacks"]}, row["callbacks"]["clip_search"]
    del others["clip_search"]
    assert (search["widths"], search["step"], search["max_batches"]) == (
        [0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
        0.05,
        100,
    )
    assert (
        row["trainer"]["max_steps"] + 850_000 == before["trainer"]["max_steps"]
        and row["trainer"]["val_check_interval"] == 5000
    )
    assert row["time_conditioning"] is False  # without which a network cannot be read in blocks
    assert all(
        row[key] == before[key]
        for key in ("data", "backbone", "optimizer", "lr_scheduler", "noise", "weight_decay")
    )
    assert others == before["callbacks"]
    commands = re.findall(
        r"dnadiff\.train (.*)",
        (config_dir() / "experiment" / f"{blocks}.yaml").read_text(encoding="utf-8"),
    )
    first, second = (compose("train", command.split(), resolve=False) for command in commands)
    assert (
        first["objective"] == before["objective"]
        and first["trainer"]["max_steps"] == 850_000
        and first["time_conditioning"] is False
    )
    assert (
        second["init_from"].startswith("runs/")
        and f"hydra.run.dir={second['init_from']}" in commands[0]
    )


def test_the_published_split_is_an_override_away(shared_data):
    bed = shared_data / "annotations" / "hg38.chr20.windows131072.split.bed.gz"
    extra = [
        "data/split=caduceus",
        f"data.split.bed={bed}",
        "data.windows=intervals",
        "data.max_n=1",
    ]
    data = compose("train", ["experiment=hg38_mdlm", *extra])["data"]
    assert data["split"] == {
        "_target_": "dnadiff.data.splits.CaduceusSplit",
        "bed": str(bed),
        "stretch": 2**20,
    }
