"""Labels and values that windows are conditioned on."""

import numpy as np
import pytest

from dnadiff.data.genome.datamodule import ShortSequenceDataModule
from dnadiff.data.windows import Conditions, RecordConditions

GIVEN = Conditions(("class=odd", "yeast"), {"activity": (2.0, 0.5), "ph": (7.0, 1.0)})


def test_a_label_has_one_column_and_a_value_two():
    assert GIVEN.num_columns == 6
    assert GIVEN.choices == ("class=odd", "yeast", "activity=NUMBER", "ph=NUMBER")
    assert GIVEN.row(["class=odd", "ph=8.5"]) == [1, 0, 0, 0, 1, 1.5]
    assert GIVEN.row(["activity=2"]) == [0, 0, 1, 0, 0, 0]  # the mean is not the same as no value


def test_conditions_are_read_as_they_are_described():
    assert Conditions.read(GIVEN.describe(), 6) == GIVEN
    assert Conditions.read({"labels": ["human", "yeast"]}, 2).labels == ("human", "yeast")
    for described in ({}, {"labels": ["one"]}):  # without names they are numbers
        assert Conditions.read(described, 2) == Conditions(("0", "1"))
    assert Conditions().describe() == {"labels": []} and not Conditions().num_columns


def test_records_have_standardized_values():
    given = RecordConditions.of([["a"], [], ["b"]], {"activity": [1.0, 3.0, 5.0]})
    assert given.conditions.values["activity"] == (3.0, pytest.approx(np.sqrt(8 / 3)))
    rows = given.rows(np.array([2, 1]))
    assert rows[:, :3].tolist() == [[0, 1, 1], [0, 0, 1]]
    assert rows[:, 3] == pytest.approx([np.sqrt(1.5), 0])
    assert given.conditions.row(["b", "activity=5"]) == pytest.approx(rows[0].tolist())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yest", "label 'yest' is not known; did you mean yeast?; this model knows class=odd,"),
        ("activity", "label 'activity': activity is '', expected a number"),
        ("activty=1", "label 'activty=1' is not known; did you mean activity=NUMBER?"),
        ("activity=high", "label 'activity=high': activity is 'high', expected a number"),
        ("ph=nan", "label 'ph=nan': ph is 'nan', expected a number"),
    ],
)
def test_what_a_model_does_not_know_is_refused(name, message):
    with pytest.raises(ValueError) as caught:
        GIVEN.row([name])
    assert message in str(caught.value)


def write(folder, cells, name="t.csv"):
    lines = [f"ACGT{'ACGT'[i % 4] * (i % 9 + 1)},{cell},x" for i, cell in enumerate(cells)]
    (folder / name).write_text("\n".join(["sequence,activity,set", *lines]))
    return folder / name


def module(path, **options):
    return ShortSequenceDataModule(path, length=32, batch_size=4, **options)


def test_a_table_and_headers_give_the_same_values(tmp_path):
    table = module(write(tmp_path, range(40)), condition_columns=["activity"], label="set")
    lines = [f">{i + 1} activity={i} set=x\nACGT{'ACGT'[i % 4] * (i % 9 + 1)}\n" for i in range(40)]
    (tmp_path / "s.fa").write_text("".join(lines))
    fasta = module(tmp_path / "s.fa", condition_columns=["activity"], label="set")
    assert table.conditions == fasta.conditions
    assert table.conditions.choices == ("set=x", "activity=NUMBER")
    for a, b in zip(table.train_dataloader(), fasta.train_dataloader()):
        assert a.keys() == b.keys() and all((a[key] == b[key]).all() for key in a)
    assert table.describe()["values"] == {"activity": (19.5, pytest.approx(np.arange(40).std()))}


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ([1, "high", 3], {}, "activity of record 2 is 'high', expected a number; correct it"),
        ([1, "", 3], {}, "activity of record 2 is '', expected a number; correct it"),
        ([2, 2, 2], {}, "activity is 2 in all records, expected different values; leave it out"),
        (
            [1, 2, 3],
            {"condition_columns": ["ph"]},
            "record 1 has no ph= in its header; write '>1 ph=...', or set "
            "data.condition_columns=[]",
        ),
    ],
)
def test_values_that_are_no_numbers_are_refused(tmp_path, cells, options, message):
    data = module(write(tmp_path, cells), **{"condition_columns": ["activity"], **options})
    with pytest.raises(ValueError) as caught:
        data.prepare()
    assert message in str(caught.value)


def test_a_row_of_another_length_names_its_line(tmp_path):
    path = write(tmp_path, [1, "2,7", 3])
    with pytest.raises(ValueError, match=r"t\.csv: line 3 is not a row of a table with the column"):
        module(path).prepare()
