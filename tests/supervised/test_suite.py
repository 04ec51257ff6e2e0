import gzip
import logging
from pathlib import Path

import pytest

from dnadiff.finetune import finetune
from dnadiff.options.command import compose
from dnadiff.supervised.tasks import find_sources, find_tasks


def table(path: Path, parts: str = "", rows: int = 2) -> Path:
    """A small table; `parts` (letters t and e) are rows of train and test."""
    words = {"t": "train", "e": "test"}
    lines = (
        ["sequence,label,split", *(f"ACGT,a,{words[p]}" for p in parts)]
        if parts
        else ["sequence,label", *["ACGT,a"] * rows]
    )
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def settings(folder: Path, *names: str) -> dict:
    return {name: {"name": name, "path": str(folder / name)} for name in names}


def test_exact_names_come_first_then_divided_tables(tmp_path):
    test_alone = table(tmp_path / "ocr.official_test.csv.gz", "e" * 400)
    sample = table(tmp_path / "ocr.sample.csv", rows=500)
    divided = table(tmp_path / "ocr.chr20.csv.gz", "te")
    table(tmp_path / "ocr_other.csv", "te")
    (tmp_path / "ocr.notes.txt").write_text("no table")
    found = find_sources(tmp_path, "ocr")
    assert found[0] == divided and set(found) == {divided, sample, test_alone}
    exact = table(tmp_path / "ocr.csv")
    assert find_sources(tmp_path, "ocr")[0] == exact


@pytest.mark.parametrize("place", ["ocr", "datasets/ocr", "Genomic_Benchmarks_ocr"])
def test_a_folder_is_found_in_each_place_and_comes_before_tables(tmp_path, place):
    table(tmp_path / "ocr.csv")
    (tmp_path / place).mkdir(parents=True)
    assert find_sources(tmp_path, "ocr") == [tmp_path / place]


def test_a_table_that_cannot_be_read_comes_last(tmp_path):
    (tmp_path / "ocr.broken.csv.gz").write_bytes(b"\x1f\x8b nothing" * 50)
    whole = table(tmp_path / "ocr.whole.csv", "te")
    assert find_sources(tmp_path, "ocr")[0] == whole


def test_tasks_with_data_get_their_path_and_the_others_are_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="dnadiff")
    logging.getLogger("dnadiff").propagate = True
    own = table(tmp_path / "mine.csv")
    tasks = settings(tmp_path, "a", "b", "c") | {"d": {"name": "d", "path": str(own)}}
    table(tmp_path / "a.csv"), table(tmp_path / "a.more.csv")
    (tmp_path / "b").mkdir()
    found = find_tasks(tasks)
    assert {name: task["path"] for name, task in found.items()} == {
        "a": str(tmp_path / "a.csv"),
        "b": str(tmp_path / "b"),
        "d": str(own),
    }
    assert "no data for c" in caplog.text
    assert "not used: a.more.csv (task.tasks.a.path=FILE selects another)" in caplog.text
    with pytest.raises(FileNotFoundError, match=r"holds none of x, y; set task\.path"):
        find_tasks(settings(tmp_path, "x", "y"))


def test_the_default_path_is_the_download_folder_of_the_benchmark_package():
    one = finetune.compose(["checkpoint=x", "task=human_ocr_ensembl"]).task
    every = finetune.compose(["checkpoint=x", "task=genomic_benchmarks"]).task["tasks"]
    assert (
        len(every) == 9
        and one["path"]
        == every["human_ocr_ensembl"]["path"]
        == "~/.genomic_benchmarks/human_ocr_ensembl"
    )


def test_a_human_genome_is_not_read_for_the_tasks_of_other_species():
    tasks = compose(
        "finetune",
        ["checkpoint=x", "task=genomic_benchmarks", "task.genome=hg.fa", "task.fly_genome=dm.fa"],
    )["task"]["tasks"]
    assert (
        tasks["human_ocr_ensembl"]["genome"] == "hg.fa"
        and tasks["drosophila_enhancers_stark"]["genome"] == "dm.fa"
    )
    assert tasks["dummy_mouse_enhancers_ensembl"]["genome"] is None


def test_all_available_tasks_are_found(shared_data):
    tasks = compose(
        "finetune",
        [
            "checkpoint=x",
            "task=genomic_benchmarks",
            f"task.path={shared_data / 'benchmarks/genomic_benchmarks'}",
        ],
    )
    found = {
        name: Path(task["path"]).name for name, task in find_tasks(tasks["task"]["tasks"]).items()
    }
    assert found["human_nontata_promoters"] == "human_nontata_promoters.chr20.csv.gz"
    assert (
        found["human_ocr_ensembl"] == "human_ocr_ensembl.chr20.csv.gz"
        and "demo_human_or_worm" in found
    )
