"""Commands that read the columns of an alignment with regions of its genome: score, embed, sample,
finetune and predict."""

import csv
import json
import math

import numpy as np
import pytest

import dnadiff
from dnadiff.data.alignment import Alignment, write_alignment
from dnadiff.formats.nucleotides import reverse_complement
from dnadiff.formats.sequences import read_sequences

SIZE = 3000
LETTERS = np.random.default_rng(1).integers(0, 4, SIZE)
TEXT = "".join("ACGT"[each] for each in LETTERS)
NAMED = "".join("ACGT"[each] for each in np.random.default_rng(2).integers(0, 4, SIZE))


def columns_of(letters: np.ndarray, p: float) -> np.ndarray:
    """Posteriors that give each of the letters a probability p."""
    columns = np.zeros((len(letters), 10), np.float32)
    for part in (slice(0, 4), slice(4, 8)):
        columns[:, part] = np.log((1 - p) / 3)
        columns[np.arange(len(letters)), part.start + letters] = np.log(p)
    columns[:, 9] = np.log(4)
    return columns


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A genome with a plasmid, and alignments of its chromosome: `x.aln` knows nine of ten bases,
    `named.aln` names the bases of another sequence, and `other.aln` is of another assembly."""
    folder = tmp_path_factory.mktemp("aligned")
    (folder / "g.fa").write_text(f">chr\n{TEXT}\n>plasmid\n{TEXT[700:1200]}\n")
    named = np.array(["ACGT".index(base) for base in NAMED])
    for name, target, letters, p in (
        ("x", LETTERS, LETTERS, 0.9),
        ("named", LETTERS, named, 1 - 1e-9),
        ("other", 3 - LETTERS, LETTERS, 0.9),
    ):
        columns = columns_of(letters, p)
        write_alignment(folder / f"{name}.aln", {"chr": SIZE}, target, [target] * 3, columns)
    depth = columns_of(LETTERS, 0.25)
    depth[:, 9] = np.where(np.arange(SIZE) // 100 % 2, 4, 1)
    write_alignment(folder / "depth.aln", {"chr": SIZE}, LETTERS, [LETTERS] * 3, depth)
    rows = [f"chr\t{i}\t{i + 100}\tr\t0\t+\n" for i in range(100, SIZE, 200)]
    (folder / "deep.bed").write_text("".join(rows))
    return folder


@pytest.fixture(scope="module")
def run(world):
    """A run of two steps that reads the alignment."""
    from dnadiff.train import train

    sizes = ("data.length=32", "data.batch_size=4", "backbone.d_model=16", "backbone.n_layers=1")
    steps = ("trainer.max_steps=2", "trainer.val_check_interval=2", "data.max_valid_windows=4")
    where = (f"data.path={world / 'g.fa'}", f"hydra.run.dir={world / 'run'}")
    aligned = f"data.alignment={world / 'x.aln'}"
    train.start(["data=fasta", aligned, "trainer.accelerator=cpu", *sizes, *steps, *where])
    return world / "run"


@pytest.fixture
def start(cli, world, run):
    """Runs a command on the run, with the genome."""

    def start(name, *more, alignment="x.aln", genome=True):
        given = [f"checkpoint={run}", *more]
        given += [f"genome={world / 'g.fa'}"] if genome else []
        given += [f"alignment={world / alignment}"] if alignment else []
        return cli(name, *given)

    return start


@pytest.fixture
def regions(tmp_path):
    rows = ["chr\t100\t190\ta\t0\t+", "chr\t100\t190\tb\t0\t-", "plasmid\t0\t90\tc\t0\t+"]
    (tmp_path / "r.bed").write_text("\n".join(rows) + "\n")
    return tmp_path / "r.bed"


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_score_reads_the_columns_of_regions_on_their_strand(start, regions, tmp_path):
    status, _, err = start("score", f"regions={regions}", "output=s.tsv")
    assert status == 0, err
    assert "1 of 3 sequences are of records that" in err
    forward, reverse, plasmid = (float(row["bits_per_base"]) for row in rows(tmp_path / "s.tsv"))
    assert forward < 1.1 and reverse < 1.1 and plasmid > 1.9
    assert json.loads((tmp_path / "s.tsv.json").read_text())["related_genomes"] == 3
    assert start("score", f"regions={regions}", "output=t.tsv", alignment=None)[0] == 0
    without = [float(row["bits_per_base"]) for row in rows(tmp_path / "t.tsv")]
    assert min(without) > 1.9 and without[2] == plasmid
    assert "related_genomes" not in json.loads((tmp_path / "t.tsv.json").read_text())


def test_records_of_a_file_have_the_columns_of_the_target(start, world, regions, tmp_path):
    files = f"input={world / 'g.fa'}", "output=f.tsv", "per_base=f.bedgraph"
    status, _, err = start("score", *files, "spacing=8", genome=False)
    assert status == 0, err
    chrom, plasmid = rows(tmp_path / "f.tsv")
    assert float(chrom["bits_per_base"]) < 1.1 and float(plasmid["bits_per_base"]) > 1.9
    track = [line.split() for line in (tmp_path / "f.bedgraph").read_text().splitlines()]
    values = {(row[0], int(row[1])): float(row[3]) for row in track}
    assert np.mean([values["chr", i] for i in range(SIZE)]) > 1
    assert max(values["plasmid", i] for i in range(500)) < 0.5
    assert start("score", f"regions={regions}", "output=s.tsv", "per_base=s.bedgraph")[0] == 0


@pytest.mark.parametrize("name", ["score", "embed"])
def test_shards_and_an_interrupted_job_give_the_same_file(start, world, regions, tmp_path, name):
    key, out = ("regions", "tsv") if name == "score" else ("input", "npz")
    given = f"{key}={regions}", "batch_size=1"
    assert start(name, *given, f"output=whole.{out}")[0] == 0
    whole = (tmp_path / f"whole.{out}").read_bytes()
    for i in (1, 2):
        assert start(name, *given, f"output=parts.{out}", f"shard={i}/2")[0] == 0
    from dnadiff.merge import merge

    merge(output=f"parts.{out}")
    assert (tmp_path / f"parts.{out}").read_bytes() == whole
    if name == "score":
        again = (*given, f"output=whole.{out}", "resume=true")
        assert start(name, *again)[0] == 0 and (tmp_path / f"whole.{out}").read_bytes() == whole
        status, _, err = start(name, *again, alignment="named.aln")
        assert status != 0 and "alignment" in err


def test_embeddings_depend_on_the_columns_and_not_on_the_strand(start, regions, tmp_path):
    assert start("embed", f"input={regions}", "output=e.npz")[0] == 0
    assert (
        start("embed", f"input={regions}", "output=f.npz", "alignment=none", alignment=None)[0] == 0
    )
    found, plain = (np.load(tmp_path / f"{each}.npz")["embeddings"] for each in "ef")
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert np.abs(found[0] - plain[0]).max() > 1e-3
    np.testing.assert_array_equal(found[2], plain[2])


def test_sequences_of_a_region_follow_its_columns(start, regions, tmp_path):
    given = f"regions={regions}", "num_samples=3", "output=s.fa"
    status, _, err = start("sample", *given, alignment="named.aln")
    assert status == 0, err
    found = [(r.name, r.sequence.decode()) for r in read_sequences(tmp_path / "s.fa")]
    assert [name for name, _ in found[2:4]] == ["chr:101-190(+)_3", "chr:101-190(-)_1"]
    texts = [text for _, text in found]
    assert texts[:3] == [NAMED[100:190]] * 3
    assert texts[3:6] == [reverse_complement(NAMED[100:190].encode()).decode()] * 3
    assert len({*texts[6:]}) == 3 and {len(text) for text in texts} == {90}
    about = json.loads((tmp_path / "s.fa.json").read_text())
    assert about["settings"]["alignment"]
    status, _, err = start("sample", *given[:2], "output=free.fa", alignment=None)
    assert status == 0 and "it predicts from the sequence alone" in err
    free = [r.sequence.decode() for r in read_sequences(tmp_path / "free.fa")]
    assert len({*free}) == 9 and {len(text) for text in free} == {90}


def test_sequences_of_a_transcript_follow_the_columns_of_its_exons(start, tmp_path):
    blocks = "2\t30,20\t0,60"
    rows = (f"chr\t100\t180\tt\t0\t{s}\t100\t180\t0\t{blocks}\n" for s in "+-")
    (tmp_path / "t.bed").write_text("".join(rows))
    given = "regions=t.bed", "spliced=true", "num_samples=1", "output=s.fa"
    status, _, err = start("sample", *given, alignment="named.aln")
    assert status == 0, err
    forward, reverse = read_sequences(tmp_path / "s.fa")
    spliced = NAMED[100:130] + NAMED[160:180]
    assert forward.sequence.decode() == spliced and forward.name == "chr:101-180(+)_1"
    assert reverse.sequence == reverse_complement(spliced.encode())
    assert json.loads((tmp_path / "s.fa.json").read_text())["settings"]["spliced"] is True


def test_infill_keeps_the_flanks_and_follows_the_columns(start, tmp_path):
    given = "infill=chr:101-120", "num_samples=2", "length=64", "output=i.fa"
    status, _, err = start("sample", *given, alignment="named.aln")
    assert status == 0, err
    window = TEXT[78:100] + NAMED[100:120] + TEXT[120:142]
    found = [r.sequence.decode() for r in read_sequences(tmp_path / "i.fa")]
    assert found == [window] * 2
    assert start("sample", *given, "resume=true", alignment="named.aln")[0] == 0
    status, _, err = start("sample", *given, "resume=true")
    assert status != 0 and "names other settings" in err


def test_python_reads_the_same_columns(run, world, start, regions, tmp_path):
    assert start("score", f"regions={regions}", "output=s.tsv", "num_draws=2")[0] == 0
    model, stored = dnadiff.load(run, device="cpu"), Alignment(world / "x.aln")
    columns = stored.columns("chr", 100, 132)
    found = model.nll([TEXT[100:132]], num_draws=64, columns=[columns])[0] / math.log(2)
    assert found < 1.1 < 1.9 < model.nll([TEXT[100:132]], num_draws=64)[0] / math.log(2)
    named = Alignment(world / "named.aln").columns("chr", 10, 40)
    assert model.sample(2, columns=named) == [NAMED[10:40]] * 2


@pytest.mark.parametrize(
    "name, arguments, problem",
    [
        ("score", ["regions=chr:1-90", "alignment={}/other.aln"], "made for another assembly"),
        ("embed", ["input=chr:1-90", "alignment={}/other.aln"], "made for another assembly"),
        ("sample", ["infill=chr:1-9", "alignment={}/other.aln"], "made for another assembly"),
        ("score", ["regions=chr:1-90", "alignment={}/g.fa"], "is not an alignment of related"),
        (
            "sample",
            ["regions=chr:1-90", "infill=chr:1-9", "alignment={}/x.aln"],
            "regions and infill exclude each other",
        ),
        ("sample", ["infill=chr:1-9", "spliced=true"], "infill and spliced exclude each other"),
        ("sample", ["regions=chr:1-90", "length=9", "alignment={}/x.aln"], "exclude each other"),
    ],
)
def test_what_does_not_fit_is_one_line(start, world, name, arguments, problem):
    output = f"output=x.{dict(score='tsv', embed='npz', sample='fa')[name]}"
    given = [each.format(world) for each in arguments]
    status, _, err = start(name, *given, output, alignment=None)
    assert status != 0 and len(err.strip().splitlines()) == 1 and problem in err, err


def test_a_missing_genome_and_a_model_that_reads_none_are_one_line(start, world, cli, trained):
    status, _, err = start("sample", "output=x.fa", genome=False)
    assert status != 0 and "alignment is for bases of genome= in regions= or infill=" in err
    aligned = f"alignment={world / 'x.aln'}"
    (world / "genes.fa").write_text(">gene1\nACGTACGTA\n")
    given = f"input={world / 'genes.fa'}", "output=s.tsv"
    status, _, err = start("score", *given, genome=False)
    assert status != 0 and "gene1" in err and "has the records chr" in err
    place = f"genome={world / 'g.fa'}", f"checkpoint={trained}"
    for name, *keys in (
        ("score", "regions=chr:1-90", "output=x.tsv"),
        ("embed", "input=chr:1-90", "output=x.npz"),
        ("sample", "infill=chr:1-9", "output=x.fa"),
    ):
        status, _, err = cli(name, aligned, *keys, *place)
        assert status != 0 and "reads no alignment" in err
        assert len(err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def classifier(world, run):
    """The run folder of a classifier of windows inside and outside regions that only the depth of
    their columns tells apart."""
    from dnadiff.finetune import finetune

    task = f"task.genome={world / 'g.fa'}", f"task.regions={world / 'deep.bed'}"
    sizes = "task.length=30", "task.stride=10", "task.k=12", "task.max_train=60"
    rest = "scratch=false", "seeds=1", "kmer=1", "epochs=4", "lr=0.01", "accelerator=cpu"
    aligned = f"alignment={world / 'depth.aln'}", "probe=true", "head_epochs=2"
    folder = f"hydra.run.dir={world / 'classes'}"
    finetune.start(
        [f"checkpoint={run}", "task=ecoli_coding", *task, *sizes, *aligned, *rest, folder]
    )
    return world / "classes"


def test_fine_tuning_and_frozen_features_read_the_columns(classifier):
    models = json.loads((classifier / "finetune.json").read_text())["models"]
    accuracy = {name: model["metrics"]["accuracy"]["value"] for name, model in models.items()}
    assert accuracy["fine-tuned"] == accuracy["frozen + logistic regression"] == 1
    assert accuracy["1-mer logistic regression"] < 0.8


def test_predict_reads_regions_and_records_with_their_columns(classifier, world, cli, tmp_path):
    places = [(100, "+"), (140, "-"), (200, "+"), (250, "-"), (930, "+")]
    (tmp_path / "r.bed").write_text(
        "".join(f"chr\t{i}\t{i + 30}\tx\t0\t{s}\n" for i, s in places) + "plasmid\t0\t30\ty\t0\t+\n"
    )
    model, aligned = f"checkpoint={classifier}", f"alignment={world / 'depth.aln'}"
    given = f"genome={world / 'g.fa'}", "regions=r.bed", "output=p.tsv"
    status, _, err = cli("predict", model, aligned, *given)
    assert status == 0 and "1 of 6 sequences are of records" in err, err
    found = rows(tmp_path / "p.tsv")
    expected = ["coding", "coding", "noncoding", "noncoding", "coding"]
    assert [row["predicted"] for row in found[:5]] == expected
    assert [row["name"] for row in found[:2]] == ["chr:101-130(+)", "chr:141-170(-)"]
    whole = f"input={world / 'g.fa'}", "window=30", "stride=10", "output=w.tsv"
    assert cli("predict", model, aligned, *whole)[0] == 0
    windows = {(row["name"], int(row["start"])): row for row in rows(tmp_path / "w.tsv")}
    for row, (start, _) in zip(found[:5], places):
        same = windows["chr", start]
        assert float(same["p_coding"]) == pytest.approx(float(row["p_coding"]), abs=1e-5)
    stored, python = Alignment(world / "depth.aln"), dnadiff.load(classifier, device="cpu")
    columns = [stored.columns("chr", i, i + 30, s == "-") for i, s in places]
    texts = [TEXT[i : i + 30] for i, _ in places]
    texts = [
        reverse_complement(text.encode()).decode() if s == "-" else text
        for text, (_, s) in zip(texts, places)
    ]
    values = python.predict(texts, columns=columns).combined[:, 0]
    p = [float(row["p_coding"]) for row in found[:5]]
    np.testing.assert_allclose(np.exp(values) if values.min() < 0 else values, p, atol=1e-5)
    status, _, err = cli("predict", model, *given, "overwrite=true")
    assert status == 0 and "was trained with an alignment, and none is given" in err
    assert [row["predicted"] for row in rows(tmp_path / "p.tsv")[:5]] != expected
    shards = [(*given[:2], "output=s.tsv", "window=7", f"shard={i}/2") for i in (1, 2)]
    assert [cli("predict", model, aligned, *each)[0] for each in shards] == [0, 0]
    from dnadiff.merge import merge

    merge(output="s.tsv")
    assert cli("predict", model, aligned, *given[:2], "output=o.tsv", "window=7")[0] == 0
    assert (tmp_path / "s.tsv").read_bytes() == (tmp_path / "o.tsv").read_bytes()


def test_a_spliced_transcript_is_predicted_as_its_sequence_and_columns(
    classifier, world, cli, tmp_path
):
    (tmp_path / "t.bed").write_text("chr\t100\t160\tt\t0\t-\t100\t160\t0\t2\t20,10\t0,50\n")
    model, aligned = f"checkpoint={classifier}", f"alignment={world / 'depth.aln'}"
    given = f"genome={world / 'g.fa'}", "regions=t.bed", "spliced=true", "output=p.tsv"
    status, _, err = cli("predict", model, aligned, *given)
    assert status == 0, err
    [row] = rows(tmp_path / "p.tsv")
    text = reverse_complement((TEXT[100:120] + TEXT[150:160]).encode()).decode()
    assert [row["name"], row["length"]] == ["chr:101-160(-)", "30"]
    stored, python = Alignment(world / "depth.aln"), dnadiff.load(classifier, device="cpu")
    columns = [stored.columns("chr", *part, True) for part in ((150, 160), (100, 120))]
    (value,) = python.predict([text], columns=[np.concatenate(columns)]).combined[:, 0]
    p = float(row["p_coding"])
    np.testing.assert_allclose(np.exp(value), p, atol=1e-5)
    about = json.loads((tmp_path / "p.tsv.json").read_text())
    assert about["inputs"]["spliced"] is True


def test_predictions_that_do_not_fit_are_one_line(classifier, world, cli, tmp_path):
    (tmp_path / "t.csv").write_text("sequence\nACGTACGT\n")
    model, genome = f"checkpoint={classifier}", f"genome={world / 'g.fa'}"
    status, _, err = cli("predict", model, "input=t.csv", "alignment=none", "output=t.tsv")
    assert status == 0 and "sequence alone" not in err, err
    for arguments, problem in (
        (["regions=chr:1-90", genome, f"alignment={world / 'other.aln'}"], "another assembly"),
        (["input=t.csv", f"alignment={world / 'x.aln'}"], "t.csv"),
        ([], "input is missing"),
        (["regions=chr:1-90"], "needs genome=g.fa"),
    ):
        status, _, err = cli("predict", model, *arguments, "output=p.tsv")
        assert status != 0 and problem in err.splitlines()[-1], err


def test_tasks_of_bare_sequences_refuse_an_alignment(run, world, cli, tmp_path):
    (tmp_path / "t.csv").write_text("sequence,label\n" + "ACGTACGT,a\nACGTCCGT,b\n" * 9)
    given = "task=csv", "task.path=t.csv", f"alignment={world / 'x.aln'}"
    status, _, err = cli("finetune", f"checkpoint={run}", *given)
    assert status != 0 and "t.csv has sequences without coordinates" in err
