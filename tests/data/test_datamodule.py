import gzip
import logging
from pathlib import Path

import lightning
import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from omegaconf import OmegaConf

from dnadiff.data.datamodule import GenomeDataModule, TextDataModule
from dnadiff.data.splits import FractionSplit, Interval
from dnadiff.data.tokenizer import CharTokenizer, DNATokenizer

CONFIGS = Path(__file__).parents[2] / "configs" / "data"


@pytest.fixture
def fasta(tmp_path):
    letters = "".join("ACGT"[(i * i + i // 7) % 4] for i in range(2000))
    (tmp_path / "g.fa").write_text(f">a\n{letters}\n")
    return tmp_path / "g.fa"


def genome(path, **options):
    options = {"split": FractionSplit(), "epoch_size": 20, "max_valid_windows": 4, **options}
    return GenomeDataModule(path, length=16, batch_size=4, **options)


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_data_configuration_gives_batches(config, fasta):
    tree = OmegaConf.merge(OmegaConf.create({"seed": 5}), {"data": OmegaConf.load(config)})
    if OmegaConf.is_missing(tree.data, "path"):
        tree.data.path = str(fasta)
        tree.data.length = 32
    data = instantiate(tree.data)
    data.prepare()
    batch = next(iter(data.train_dataloader()))
    assert data.seed == 5
    assert batch["ids"].shape == batch["weight"].shape == (data.batch_size, data.length)
    assert batch["ids"].max() < data.vocab.size and batch["weight"].max() == 1
    assert set(data.describe()) >= {"name", "split", "split_hash", "window", "n_policy"}


def test_bundled_genome_is_split_as_the_issue_says():
    data = GenomeDataModule("bundled:ecoli_K12_MG1655.fa.gz", length=512, batch_size=16, split=FractionSplit())
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
    assert data.test_windows().skipped == [Interval(1, 80, 90)]


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
    assert batch["weight"].all() and data.tokenizer.decode(batch["ids"][0]) in "to be, or not to be\n" * 3
    with pytest.raises(ValueError, match=r"book\.txt\.gz: character 'o' at position 2 is not among the 1 characters"):
        TextDataModule(tmp_path / "book.txt.gz", length=16, batch_size=4, tokenizer=CharTokenizer("t")).prepare()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), ("", "is empty"), ("short", "longest of 1 intervals has 4 tokens")]
)
def test_bad_text_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "book.txt").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TextDataModule(tmp_path / "book.txt", length=16, batch_size=4).prepare()


def test_a_genome_shorter_than_the_window_is_refused_with_the_remedy(fasta):
    data = GenomeDataModule(fasta, length=256, batch_size=4)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^g\.fa: .*has 200 tokens, a window 256; set data\.length=200 or less"):
            data.prepare()


@pytest.mark.parametrize("key", ["length", "batch_size", "epoch_size", "max_valid_windows", "num_workers"])
def test_numbers_that_make_no_sense_are_refused(fasta, key):
    with pytest.raises(ValueError, match=rf"{key} is -1; set data\.{key} to"):
        GenomeDataModule(fasta, **{"length": 16, "batch_size": 4, key: -1})


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
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saving = any(isinstance(c, ModelCheckpoint) for c in callbacks)
    trainer = lightning.Trainer(**quiet, callbacks=list(callbacks), enable_checkpointing=saving, **options)
    try:
        trainer.fit(model, data, ckpt_path=resume, weights_only=True)
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
        (STEPS | {"limit_train_batches": 3}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
        (EPOCHS, {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
    ],
    ids=["every step", "after validation", "limited epochs", "end of epoch"],
)
def test_a_run_resumed_from_any_checkpoint_sees_the_windows_it_would_have_seen(fasta, tmp_path, options, saving):
    keep = ModelCheckpoint(dirpath=tmp_path, save_top_k=-1, filename="{step}", auto_insert_metric_name=False, **saving)
    whole = fit(genome(fasta), [keep], **options)
    checkpoints = {int(file.stem): file for file in tmp_path.glob("*.ckpt")}
    assert len(checkpoints) >= 3
    for step, file in checkpoints.items():
        assert fit(genome(fasta), resume=file, **options) == whole[step:], f"resumed at step {step}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [0, 4, 5, 7])
def test_a_run_stopped_by_ctrl_c_repeats_and_loses_no_window(fasta, tmp_path, step):
    whole = fit(genome(fasta), **STEPS)
    before = fit(genome(fasta, num_workers=2), [SaveOnException(tmp_path / "x.ckpt")], interrupt=step, **STEPS)
    assert before + fit(genome(fasta), resume=tmp_path / "x.ckpt", **STEPS) == whole
