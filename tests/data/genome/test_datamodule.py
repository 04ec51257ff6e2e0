import gzip
import logging
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from dnadiff.data.genome.datamodule import GenomeDataModule
from dnadiff.data.splits import FractionSplit, Interval
from dnadiff.data.text.datamodule import TextDataModule
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer
from dnadiff.diffusion.draws import Draws
from dnadiff.options.command import compose
from dnadiff.store.objects import build
from dnadiff.training.module import TrainingData
from dnadiff.weights.loaded import build_denoiser

CONFIGS = Path(__file__).parents[3] / "configs" / "data"


@pytest.fixture
def fasta(tmp_path):
    letters = "".join("ACGT"[(i * i + i // 7) % 4] for i in range(2000))
    (tmp_path / "g.fa").write_text(f">a\n{letters}\n")
    return tmp_path / "g.fa"


def genome(path, **options):
    options = {
        "split": FractionSplit(),
        "epoch_size": 20,
        "max_valid_windows": 4,
        "length": 16,
        "batch_size": 4,
        **options,
    }
    return GenomeDataModule(path, **options)


@pytest.mark.parametrize("name", sorted(p.stem for p in CONFIGS.glob("*.yaml")))
def test_every_data_configuration_gives_batches(name, fasta, tmp_path):
    own = [] if name == "ecoli" else [f"data.path={fasta}", "data.length=32"]
    if "tokenizer" in (CONFIGS / f"{name}.yaml").read_text():
        is_pairs = name == "pairs"
        line = "to be\tor not to be\n" if is_pairs else "to be or not to be\n"
        (tmp_path / "t.txt").write_text(line * 400)
        parts = ",".join(f"{part}:{tmp_path / 't.txt'}" for part in ("train", "valid", "test"))
        own = [
            f"data.path={{{parts}}}",
            "data.length=32",
            "tokenizer=characters",
            *(() if is_pairs else ("data.column=text",)),
        ]
    if name in ("hg38", "sequences"):
        letters = "".join("ACGT"[(i * i + i // 7) % 4] for i in range(30))
        records = "".join(
            f">{c}\n{letters[int(c[3:]) :] + letters}\n"
            for c in ("chr1", "chr2", "chr8", "chr10", "chr20", "chr21")
        )
        (tmp_path / "h.fa").write_text(records)
        own = [
            f"data.path={tmp_path / 'h.fa'}",
            f"data.length={32 if name == 'hg38' else 64}",
            "data.num_workers=0",
        ]
    split = (
        ["data.split={_target_: dnadiff.data.splits.ChromosomeSplit, valid: [chr8], test: [chr20]}"]
        if name == "sequences"
        else []
    )
    data = build(compose("train", ["seed=5", f"data={name}", *own, *split])["data"], trust=None)
    data.prepare()
    batch = next(iter(data.train_dataloader()))
    assert data.seed == 5
    assert (
        batch["ids"].shape == batch["weight"].shape
        and batch["ids"].dtype == torch.uint8
        and len(batch["ids"]) == data.batch_size
    )
    assert batch["ids"].shape[1] == data.length or name in ("sequences", "pairs")
    assert batch["ids"].max() < data.vocab.size and batch["weight"].max() == 1
    assert set(data.describe()) >= {"name", "split", "split_hash", "window", "n_policy"}


def test_bundled_genome_is_split_as_the_issue_says():
    data = GenomeDataModule(
        "bundled:ecoli_K12_MG1655.fa.gz", length=512, batch_size=16, split=FractionSplit()
    )
    assert data.intervals == {
        "train": [Interval(0, 0, 3713322)],
        "test": [Interval(0, 3713322, 4177487)],
        "valid": [Interval(0, 4177487, 4641652)],
    }
    assert len(data.test_windows()) == 907 and len(data.test_windows(length=1024)) == 454
    assert len(data.val_dataloader()) == 16 and len(data.train_dataloader()) == 454
    assert data.describe()["split_tokens"] == {"train": 3713322, "valid": 464165, "test": 464165}
    assert data.tokenizer == DNATokenizer() and data.augment_rc


def test_what_is_too_short_for_a_window_is_reported(tmp_path):
    (tmp_path / "g.fa").write_text(f">a\n{'ACGT' * 100}\n>plasmid\n{'ACGT' * 25}\n")
    data = genome(tmp_path / "g.fa")
    assert data.describe()["too_short_tokens"] == {"train": 0, "valid": 10, "test": 10}


def test_stranded_data_keeps_its_strand(fasta):
    assert genome(fasta).augment_rc and not genome(fasta, stranded=True).augment_rc
    assert genome(fasta, stranded=True, augment_rc=True).augment_rc


def test_sequences_are_the_intervals(fasta):
    data = genome(fasta)
    assert [len(s) for s in data.sequences("train")] == [1600]
    assert data.sequences("test")[0].tolist() == data.records[0][1600:1800].tolist()
    with pytest.raises(ValueError, match="split is 'dev'; expected one of train, valid, test"):
        data.sequences("dev")


def test_validation_is_spread_over_its_part_and_always_the_same(fasta):
    data = genome(fasta)
    indices = [b["index"].tolist() for b in data.val_dataloader()]
    assert indices == [b["index"].tolist() for b in data.val_dataloader()] == [[0, 4, 8, 12]]
    assert len(data.test_windows("valid")) == 13


def test_text_is_served_the_same_way(tmp_path):
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(b"to be, or not to be\r\n" * 40))
    data = TextDataModule(tmp_path / "book.txt.gz", length=16, batch_size=4)
    assert data.tokenizer == CharTokenizer("to be, or not\n") and data.name == "book.txt.gz"
    batch = next(iter(data.train_dataloader()))
    assert (
        batch["weight"].all()
        and data.tokenizer.decode(batch["ids"][0]) in "to be, or not to be\n" * 3
    )
    with pytest.raises(
        ValueError,
        match=r"book\.txt\.gz: character 'o' at position 2 is not among the 1 characters",
    ):
        TextDataModule(
            tmp_path / "book.txt.gz", length=16, batch_size=4, tokenizer=CharTokenizer("t")
        ).prepare()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("", "is empty"), ("short", "longest of 1 intervals has 4 tokens")],
)
def test_bad_text_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "book.txt").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TextDataModule(tmp_path / "book.txt", length=16, batch_size=4).prepare()


def test_a_genome_shorter_than_the_window_is_refused_with_the_remedy(fasta):
    data = GenomeDataModule(fasta, length=256, batch_size=4)
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match=r"^g\.fa: .*has 200 tokens, a window 256; set data\.length=200 or less",
        ):
            data.prepare()


@pytest.mark.parametrize(
    "key", ["length", "batch_size", "epoch_size", "max_valid_windows", "num_workers"]
)
def test_numbers_that_make_no_sense_are_refused(fasta, key):
    with pytest.raises(ValueError, match=rf"^{key} -1 must be an integer of at least"):
        GenomeDataModule(fasta, **{"length": 16, "batch_size": 4, key: -1})


def test_a_batch_of_nothing_but_n_costs_nothing(tmp_path):
    # Fact 11, with the data that make it: loss 0 and finite gradients.
    (tmp_path / "n.fa").write_text(">a\nACGT" + "N" * 396 + "\n")
    data = genome(tmp_path / "n.fa", max_n=1.0)
    batch = next(iter(data.train_dataloader()))
    empty = batch["weight"].sum(1) == 0
    assert empty.any()
    batch = {name: rows[empty] for name, rows in batch.items()}
    config = compose("train", ["backbone.d_model=16", "backbone.n_layers=1"])
    denoiser, process = build_denoiser(config, data.tokenizer)
    objective = build(config["objective"])(process=process)
    result = objective(
        denoiser,
        batch["ids"].long(),
        batch["weight"].float(),
        Draws.for_batch(0, len(batch["ids"])),
    )
    result.loss.backward()
    assert (
        float(result.loss.detach()) == 0
        and int(result.num_tokens) == 0
        and batch["weight"].sum() == 0
    )
    assert all(p.grad is None or p.grad.isfinite().all() for p in denoiser.parameters())


@pytest.fixture
def masked(tmp_path):
    """Lower case, a run of N and two records."""
    (tmp_path / "m.fa").write_text(
        f">a\n{'ACGTacgt' * 100}{'N' * 200}{'ACGT' * 100}\n>b\n{'acgtACGT' * 50}\n"
    )
    return tmp_path / "m.fa"


def whole(data):
    return {
        name: torch.cat([b[name] for b in data.train_dataloader()]) for name in ("ids", "weight")
    }


def test_soft_masked_bases_may_count_less_in_training_only(masked):
    plain, less, none = (
        whole(genome(masked, soft_weight=w, epoch_size=400)) for w in (1.0, 0.25, 0.0)
    )
    assert (
        plain["weight"].dtype == none["weight"].dtype == torch.uint8
        and less["weight"].dtype == torch.float32
    )
    assert torch.equal(plain["ids"], less["ids"]) and set(less["weight"].unique().tolist()) == {
        0.0,
        0.25,
        1.0,
    }
    assert torch.equal(less["weight"] == 1, none["weight"] == 1) and torch.equal(
        less["weight"] > 0, plain["weight"] > 0
    )
    tiles = genome(masked, soft_weight=0.0).test_windows("train")
    assert torch.equal(tiles[0]["weight"], torch.ones(16, dtype=torch.uint8))


def test_windows_of_n_are_left_out_and_counted(masked):
    data = genome(masked, epoch_size=2000)
    assert ((whole(data)["ids"] == 11).float().mean(1) <= 0.1).all()
    assert data.describe()["max_n"] == 0.1 and set(data.describe()["tiles_left_out_for_n"]) == {
        "valid",
        "test",
    }
    assert (
        (whole(genome(masked, epoch_size=2000, max_n=1.0))["ids"] == 11).float().mean(1) == 1
    ).any()


def test_no_window_touches_a_blacklist(masked, tmp_path):
    (tmp_path / "black.bed").write_text("a\t100\t300\nother\t0\t5\nb\t0\t350\n")
    data = genome(masked, blacklist=tmp_path / "black.bed", max_n=1.0)
    assert data.intervals["train"] == [Interval(0, 0, 100), Interval(0, 300, 1120)]
    assert data.intervals["test"] == [Interval(0, 1120, 1260), Interval(1, 350, 360)]
    (tmp_path / "black.bed").write_text("chrx\t100\t300\n")
    with pytest.raises(
        ValueError, match=r"black\.bed: line 1: no record is called chrx; the records are a, b"
    ):
        genome(masked, blacklist=tmp_path / "black.bed").prepare()


def test_species_are_told_to_the_model(masked, fasta):
    data = genome({"man": masked, "worm": fasta}, split=None, label_dropout=0.5, epoch_size=200)
    assert data.names == ["man:a", "man:b", "worm:a"] and data.conditions.labels == (
        "man",
        "worm",
    ) == tuple(data.describe()["labels"])
    cond = torch.cat([b["cond"] for b in data.train_dataloader()])
    assert cond.shape == (200, 2) and 60 < (cond.sum(1) == 0).sum() < 140
    assert next(iter(data.val_dataloader()))["cond"].sum(1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": "tiled"}, r"windows 'tiled' is not known; choose one of uniform, intervals"),
        ({"max_n": 1.5}, r"max_n 1\.5 must be a number from 0 to 1"),
        ({"soft_weight": -1}, r"soft_weight -1 must be a number from 0 to 1"),
        ({"iupac": "maybe"}, r"iupac 'maybe' is not known; choose one of unknown, refuse"),
        (
            {"start_method": "thread"},
            r"start_method 'thread' is not known; choose one of fork, spawn",
        ),
    ],
)
def test_words_and_shares_that_make_no_sense_are_refused(fasta, options, message):
    with pytest.raises(ValueError, match=message):
        genome(fasta, **options)


class Recorder(lightning.LightningModule):
    """A model that only notes what it is shown, and may be interrupted at a step."""

    def __init__(self, interrupt=None):
        super().__init__()
        self.scale, self.seen, self.interrupt = torch.nn.Parameter(torch.zeros(1)), [], interrupt

    def training_step(self, batch, _):
        if self.global_step == self.interrupt:
            raise KeyboardInterrupt
        self.seen.append(batch["ids"].tolist())
        return self.scale.sum()

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


class SaveOnException(Callback):
    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, module, error):
        trainer.save_checkpoint(self.path)


def fit(data, callbacks=(), resume=None, interrupt=None, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Recorder(interrupt)
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    saving = any(isinstance(c, ModelCheckpoint) for c in callbacks)
    trainer = lightning.Trainer(
        **quiet, callbacks=list(callbacks), enable_checkpointing=saving, **options
    )
    try:
        trainer.fit(model, TrainingData(data), ckpt_path=resume, weights_only=True)
    except (KeyboardInterrupt, SystemExit):
        assert interrupt is not None
    return model.seen


STEPS = {"max_steps": 12}
EPOCHS = {"max_epochs": 3, "val_check_interval": 3, "check_val_every_n_epoch": None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "saving"),
    [
        (STEPS, {"every_n_train_steps": 1}),
        (STEPS | {"val_check_interval": 3, "check_val_every_n_epoch": None}, {}),
        (
            STEPS | {"limit_train_batches": 3},
            {"every_n_epochs": 1, "save_on_train_epoch_end": True},
        ),
        (EPOCHS, {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
    ],
    ids=["every step", "after validation", "limited epochs", "end of epoch"],
)
def test_a_run_resumed_from_any_checkpoint_sees_the_windows_it_would_have_seen(
    fasta, tmp_path, options, saving
):
    keep = ModelCheckpoint(
        dirpath=tmp_path, save_top_k=-1, filename="{step}", auto_insert_metric_name=False, **saving
    )
    whole = fit(genome(fasta), [keep], **options)
    checkpoints = {int(file.stem): file for file in tmp_path.glob("*.ckpt")}
    assert len(checkpoints) >= 3
    for step, file in checkpoints.items():
        assert fit(genome(fasta), resume=file, **options) == whole[step:], f"resumed at step {step}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "step", [0, 5, *(pytest.param(step, marks=pytest.mark.slow) for step in (4, 7))]
)
def test_a_run_stopped_by_ctrl_c_repeats_and_loses_no_window(fasta, tmp_path, step):
    whole = fit(genome(fasta), **STEPS)
    before = fit(
        genome(fasta, num_workers=2),
        [SaveOnException(tmp_path / "x.ckpt")],
        interrupt=step,
        **STEPS,
    )
    assert before + fit(genome(fasta), resume=tmp_path / "x.ckpt", **STEPS) == whole


def test_a_genome_of_nothing_but_n_is_refused(tmp_path):
    (tmp_path / "n.fa").write_text(">a\n" + "N" * 400 + "\n")
    with pytest.raises(
        ValueError, match="no window for training has a base that counts: all are N"
    ):
        genome(tmp_path / "n.fa", max_n=1.0).prepare()


def test_a_genome_of_lower_case_is_refused_if_lower_case_has_no_weight(tmp_path):
    (tmp_path / "soft.fa").write_text(">a\n" + "acgt" * 100 + "\n")
    with pytest.raises(
        ValueError, match=r"no window for training .* data\.soft_weight=0; .* a weight above 0"
    ):
        genome(tmp_path / "soft.fa", soft_weight=0.0).prepare()
    genome(tmp_path / "soft.fa", soft_weight=0.5).prepare()
    (tmp_path / "some.fa").write_text(">a\n" + "acgt" * 20 + "N" * 20 + "C" + "acgt" * 5000 + "\n")
    genome(tmp_path / "some.fa", soft_weight=0.0, epoch_size=1).prepare()  # not in its window


def test_wrong_kinds_of_settings_are_named(tmp_path):
    for key, value in (("length", "abc"), ("batch_size", None), ("split", "chromosomes")):
        with pytest.raises(ValueError, match=key):
            genome(tmp_path / "n.fa", **{key: value})


def test_a_blacklist_that_does_not_fit_the_genome_is_noticed(masked, tmp_path):
    for row, message in (
        (
            "b\t0\t401",
            r"black\.bed: line 2 has the region b:0-401, which ends beyond b \(400 bases\); "
            r"records are read as linear; correct the line",
        ),
        (
            "chrb\t500\t505",
            r"black\.bed: line 2 has the region b:500-505, which ends beyond b",
        ),
    ):
        (tmp_path / "black.bed").write_text(f"a\t100\t300\n{row}\n")
        with pytest.raises(ValueError, match=message):
            genome(masked, blacklist=tmp_path / "black.bed").prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": True}, r"length True must be an integer of at least 1"),
        ({"max_n": "abc"}, r"max_n 'abc' must be a number from 0 to 1"),
        ({"max_n": None}, r"max_n None must be a number from 0 to 1"),
        ({"soft_weight": float("nan")}, r"soft_weight nan must be a number from 0 to 1"),
        ({"label_dropout": True}, r"label_dropout True must be a number from 0 to 1"),
        ({"path": 5}, r"path is or contains 5; expected the name of a file"),
        ({"path": [None]}, r"path is or contains None; expected"),
        ({"path": ""}, r"path is ''; expected"),
    ],
)
def test_settings_of_another_type_are_named(fasta, options, message):
    with pytest.raises(ValueError, match=message):
        genome(**{"path": fasta, **options}).prepare()


def test_text_that_changes_has_another_digest(tmp_path):
    digests = set()
    for letters in ("abab" * 100, "abba" * 100):
        (tmp_path / "book.txt").write_text(letters)
        digests.add(TextDataModule(tmp_path / "book.txt", length=16, batch_size=4).digest)
    assert len(digests) == 2
