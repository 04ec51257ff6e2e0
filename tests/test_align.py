"""The command align: from genomes to an alignment with columns."""

import json

import numpy as np
import pytest

from dnadiff.align import align
from dnadiff.data.alignment import GAP, Alignment
from dnadiff.diffusion.vocab import DEPTH, FREQUENCY, POSTERIOR, RATE
from dnadiff.formats.sequences import Record, read_sequences, write_fasta
from dnadiff.genomics.alignment.engines import installed
from dnadiff.genomics.alignment.work import Relative
from dnadiff.jobs.runner import RunOptions, run_jobs
from dnadiff.merge import merge

SIZE = 12_000
pytestmark = pytest.mark.skipif(
    installed().name == "none", reason="neither LAST, minimap2 nor mappy is installed"
)


def changed(bases, share, rng):
    other = np.where(rng.random(len(bases)) < share, rng.choice(list(b"ACGT"), len(bases)), bases)
    return other.astype(np.uint8)


@pytest.fixture(scope="module")
def clade(tmp_path_factory):
    """A target of two records, and relatives: three homologs, a near copy, the target itself, a
    homolog twice, and a genome without homology."""
    folder, rng = tmp_path_factory.mktemp("clade"), np.random.default_rng(3)
    target = rng.choice(list(b"ACGT"), SIZE).astype(np.uint8)
    ancestor = changed(target, 0.12, rng)
    genomes = {
        "near": changed(target, 0.02, rng),
        "a": changed(ancestor, 0.1, rng),
        "b": changed(ancestor, 0.1, rng),
        "c": changed(target, 0.3, rng),
        "noise": rng.choice(list(b"ACGT"), SIZE).astype(np.uint8),
        "self": target,
    }
    (folder / "related").mkdir()
    for name, bases in genomes.items():
        path = folder / "related" / f"{name}.fa.gz"
        write_fasta(path, [Record("contig", "", bases.tobytes())])
    write_fasta(folder / "related" / "twice.fa", [Record("x", "", genomes["a"].tobytes())])
    half = SIZE // 2 - 1
    records = [
        Record("one", "", target[:half].tobytes()),
        Record("two", "", target[half:].tobytes()),
    ]
    write_fasta(folder / "t.fa", records)
    return folder


@pytest.fixture(scope="module")
def made(clade):
    prefix = clade / "track" if _has_tracks() else None
    align(**arguments(clade), output=str(clade / "t.aln"), tracks=prefix and str(prefix))
    return Alignment(clade / "t.aln")


def _has_tracks() -> bool:
    try:
        import pyBigWig  # noqa: F401
    except ImportError:
        return False
    return True


def arguments(clade):
    return {"genome": str(clade / "t.fa"), "related": str(clade / "related/*")}


def test_genomes_that_do_not_help_are_left_out_with_their_reasons(made):
    assert [each.name for each in made.genomes] == ["a", "b", "c"]
    assert {each.name: each.reason for each in made.left_out} == {
        "near": "a near copy of the target (near_copies=0.96)",
        "noise": "does not align",
        "self": "the target itself",
        "twice": "the same genome as a",
    }
    assert all(0.6 < each.identity < 0.9 and each.coverage > 0.9 for each in made.genomes)
    assert all(each.chance < 0.1 for each in made.genomes)


def test_columns_are_those_of_the_phylogeny(made):
    size = made.records["two"]
    columns, codes = made.columns("two", 0, size), made.codes("two", 0, size)
    depth = (codes < GAP).sum(0)
    np.testing.assert_allclose(np.expm1(columns[:, DEPTH]), depth, atol=0.01)
    counts = np.stack([(codes == base).sum(0) for base in range(4)], 1)
    known = depth > 0
    expected = np.log((counts + 0.1) / (depth[:, None] + 0.4))
    np.testing.assert_allclose(columns[known][:, FREQUENCY], expected[known], atol=0.01)
    np.testing.assert_allclose(np.exp(columns[known][:, POSTERIOR]).sum(1), 1, atol=0.01)
    assert not columns[~known].any() and np.isfinite(columns[:, RATE]).all()
    target = made.target("two", 0, size)
    posterior = columns[np.arange(size), target][depth == 3]
    assert posterior.mean() > np.log(0.5)  # the others tell the base
    assert all(name in made.tree for name in ("a", "b", "c", "target"))


def test_a_table_a_picture_and_a_json_file_are_next_to_it(clade, made):
    header, *rows = (clade / "t.tsv").read_text().splitlines()
    assert header.split("\t")[:3] == ["genome", "identity", "coverage"]
    assert [row.split("\t")[0] for row in rows] == ["a", "b", "c", "near", "noise", "self", "twice"]
    assert (clade / "t.png").read_bytes().startswith(b"\x89PNG")
    about = json.loads((clade / "t.aln.json").read_text())
    assert about["tree"] == made.tree and len(about["genomes"]) == 7 and about["seconds"] > 0
    assert not list(clade.glob(".*"))


def test_tracks_have_a_value_for_each_column(clade, made):
    pyBigWig = pytest.importorskip("pyBigWig", reason="pyBigWig is not installed")
    columns, target = made.columns("one", 0, 3000), made.target("one", 0, 3000)
    known = columns[:, DEPTH] > 0
    expected = {"rate": columns[:, RATE], "depth": np.expm1(columns[:, DEPTH])}
    expected["log_posterior"] = columns[np.arange(3000), target]
    for name, values in expected.items():
        with pyBigWig.open(str(clade / f"track.{name}.bw")) as file:
            found = np.array(file.values("one", 0, 3000))
        np.testing.assert_allclose(found, np.where(known, values, np.nan), rtol=1e-5)
    assert (clade / "track.phase.bw").exists()


def test_an_interrupted_alignment_is_resumed(clade, made, tmp_path, caplog):
    class Interrupted(Relative):
        def rows(self, target):
            raise KeyboardInterrupt

    output = str(tmp_path / "t.aln")
    keys = [f"{key}={value}" for key, value in arguments(clade).items()] + [f"output={output}"]
    (job,) = align.function(align.compose(keys))
    job.sources[2] = Interrupted("", "")
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], RunOptions("align"))
    assert not (tmp_path / "t.aln").exists()
    with pytest.raises(FileExistsError, match="resume=true"):
        align(**arguments(clade), output=output)
    caplog.set_level("INFO", "dnadiff")
    align(**arguments(clade), output=output, resume=True)
    assert "resuming after 2 genomes" in caplog.text
    assert (tmp_path / "t.aln").read_bytes() == (clade / "t.aln").read_bytes()


def test_shards_give_the_same_file(clade, made, tmp_path):
    output = str(tmp_path / "t.aln")
    for shard in ("1/2", "2/2"):
        align(**arguments(clade), output=output, shard=shard)
    merge(output=output)
    assert (tmp_path / "t.aln").read_bytes() == (clade / "t.aln").read_bytes()


def test_an_alignment_is_computed_again_with_other_settings(clade, made, tmp_path):
    tree = tmp_path / "x.nwk"
    tree.write_text("((a:.1,b:.1):.1,c:.3,target:.02);")
    output = tmp_path / "y.aln"
    related = str(clade / "t.aln")
    align(
        genome=str(clade / "t.fa"),
        related=related,
        output=str(output),
        tree=str(tree),
        gaps="state",
        kappa=3,
    )
    found = Alignment(output)
    assert (found.genomes, found.left_out) == (made.genomes, made.left_out)
    np.testing.assert_array_equal(found.codes("two", 0, 999), made.codes("two", 0, 999))
    assert not np.array_equal(found.columns("two", 0, 999), made.columns("two", 0, 999))
    assert found.about["model"]["profiles"][0][4] > 0  # of the gap
    assert found.about["model"]["kappa"] == 3
    align(genome=str(clade / "t.fa"), related=related, output=str(output), overwrite=True)
    np.testing.assert_array_equal(
        Alignment(output).columns("two", 0, 999), made.columns("two", 0, 999)
    )


def test_a_compact_alignment_has_the_same_columns(clade, made, tmp_path):
    given = {"genome": str(clade / "t.fa"), "output": str(tmp_path / "y.aln.xz")}
    align(**given, related=made.path)
    found = Alignment(given["output"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "y.aln.xz",
        "y.aln.xz.json",
        "y.png",
        "y.tsv",
    ]
    expected = made.columns("two", 0, 999)
    expected[:, FREQUENCY] = 0
    np.testing.assert_allclose(
        found.columns("two", 0, 999), expected, atol=0.053
    )  # those of `made` are float16
    assert [each.name for each in found.genomes] == [each.name for each in made.genomes]
    again = {**given, "related": found.path, "output": str(tmp_path / "z.aln")}
    with pytest.raises(ValueError, match=r"y\.aln\.xz is compact: .* give the genomes"):
        align(**again)


def test_a_ready_alignment_needs_no_program(clade, tmp_path):
    (tmp_path / "t.fa").write_text(">t\n" + "ACGTACGTAC" * 9)
    other = "ACGTTCGTAC" * 4 + "-" * 10 + "ACGAACGTAC" * 4
    (tmp_path / "x.afa").write_text(f">t\n{'ACGTACGTAC' * 9}\n>b\n{other}\n>c\n{other[::-1]}\n")
    align(
        genome=str(tmp_path / "t.fa"),
        related=str(tmp_path / "x.afa"),
        output=str(tmp_path / "x.aln"),
    )
    found = Alignment(tmp_path / "x.aln")
    assert [(each.name, each.chance) for each in found.genomes] == [("b", None), ("c", None)]
    assert found.codes("t", 36, 54)[0].tolist() == [2, 3, 0, 1] + [GAP] * 10 + [0, 1, 2, 0]


def test_records_of_a_file_are_genomes(clade, tmp_path):
    records = [
        each._replace(name=name)
        for name in ("a", "b", "self")
        for each in read_sequences(clade / "related" / f"{name}.fa.gz")
    ]
    write_fasta(tmp_path / "all.fa", records)
    output = tmp_path / "x.aln"
    align(
        genome=str(clade / "t.fa"),
        related=str(tmp_path / "all.fa"),
        each_record=True,
        output=str(output),
    )
    found = Alignment(output)
    assert [each.name for each in found.genomes] == ["a", "b"]
    assert [each.reason for each in found.left_out] == ["the target itself"]


def test_relatives_that_cannot_be_used_are_an_error(clade, tmp_path):
    related = [str(clade / "related" / f"{name}.fa.gz") for name in ("noise", "self")]
    message = "related: none of 2 genomes can be used: does not align, the target itself"
    with pytest.raises(ValueError, match=message):
        align(genome=str(clade / "t.fa"), related=related, output=str(tmp_path / "x.aln"))
    assert not list(tmp_path.glob("x.*"))


def test_what_the_columns_depend_on_may_change_when_it_is_resumed(clade, tmp_path, caplog):
    given = {
        "genome": str(clade / "t.fa"),
        "related": [str(clade / "related" / f"{name}.fa.gz") for name in ("near", "self")],
        "output": str(tmp_path / "x.aln"),
    }
    message = (
        r"none of 2 genomes can be used: a near copy .*resume=true, which keeps the alignments"
    )
    with pytest.raises(ValueError, match=message):
        align(**given)
    with pytest.raises(FileExistsError, match=r"/x\.aln is unfinished \(2 genomes\); set resume"):
        align(**given)
    (tmp_path / "x.nwk").write_text("(other:.1,target:.02);")
    with pytest.raises(
        ValueError, match=r"one leaf .* for near; .*change near_copies or tree with"
    ):
        align(**given, near_copies=None, tree=str(tmp_path / "x.nwk"), resume=True)
    with pytest.raises(ValueError, match=r"/x\.aln was started with related="):
        align(**{**given, "related": given["related"][:1]}, resume=True)
    caplog.set_level("INFO", "dnadiff")
    align(**given, near_copies=None, resume=True)
    assert "resuming after 2 genomes" in caplog.text
    assert [each.name for each in Alignment(given["output"]).genomes] == ["near"]
    assert not list(tmp_path.glob(".*"))
    about = json.loads((tmp_path / "x.aln.json").read_text())["settings"]
    assert about["near_copies"] is None and about["genome"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output": "x.maf"}, r"output x\.maf has another format; its name must end in \.aln or"),
        ({"related": "none/*.fa"}, r"none/\*\.fa matches no file"),
        ({"engine": "blast"}, "engine"),
        ({"near_copies": 1.5}, "near_copies"),
        ({"gaps": "other"}, "gaps"),
    ],
)
def test_bad_options_are_refused(clade, given, message):
    with pytest.raises((ValueError, OSError), match=message):
        align(**{**arguments(clade), "output": "x.aln", **given})


def test_a_tree_without_the_target_is_refused_before_aligning(clade, tmp_path):
    (tmp_path / "x.nwk").write_text("((a:.1,b:.1):.1,c:.02);")
    with pytest.raises(ValueError, match=r"the tree must have one leaf .* for target"):
        align(**arguments(clade), output=str(tmp_path / "x.aln"), tree=str(tmp_path / "x.nwk"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.nwk"]


def test_a_tree_needs_no_leaf_for_genomes_that_are_left_out(clade, made, tmp_path):
    (tmp_path / "x.nwk").write_text("((a:.1,b:.1):.1,c:.3,target:.02);")
    output = tmp_path / "x.aln"
    align(**arguments(clade), output=str(output), tree=str(tmp_path / "x.nwk"))
    assert Alignment(output).left_out == made.left_out


def test_an_alignment_of_another_assembly_is_refused(clade, made, tmp_path):
    (tmp_path / "o.fa").write_text(">one\n" + "ACGT" * 30)
    with pytest.raises(ValueError, match="was made for another assembly: its record one"):
        align(genome=str(tmp_path / "o.fa"), related=made.path, output=str(tmp_path / "x.aln"))


def test_a_complete_alignment_is_left_alone(clade, made, capsys):
    tracks = {"tracks": str(clade / "track")} if _has_tracks() else {}
    given = {**arguments(clade), **tracks, "output": made.path, "engine": installed().name}
    align(**given, resume=True)
    assert "is complete already" in capsys.readouterr().out
