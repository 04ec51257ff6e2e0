"""Tables that the package wrote and reads back."""

import pytest

from dnadiff.formats.table import read_csv, read_log


def test_a_table_is_read_with_quotes_and_any_line_ends(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a,b\r\n1,"x, ""y"""\r\n\r\n,2\n')
    assert read_csv(tmp_path / "t.csv") == (
        ["a", "b"],
        [{"a": "1", "b": 'x, "y"'}, {"a": "", "b": "2"}],
    )
    (tmp_path / "t.csv").write_bytes(b"")
    assert read_csv(tmp_path / "t.csv") == ([], [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a,b\n1\n2,3\n",
            r"t\.csv, line 2: the row has 1 fields, the header 2; correct the row or remove it",
        ),
        (b"a,b\n1,2,3\n", r"t\.csv, line 2: the row has 3 fields"),
        (b'a,b\n1,"2\n', r"t\.csv is damaged: it is not a table \(unexpected end of data\)"),
        (b"a,b\n1,\xff\n", r"t\.csv is damaged: it is not UTF-8 text"),
        (b"a,a\n1,2\n", r"t\.csv is damaged: a column has no name, or the name of another one"),
        (b"a,\n1,2\n", r"t\.csv is damaged: a column has no name"),
    ],
)
def test_a_damaged_table_is_refused_in_one_line(content, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_csv(tmp_path / "t.csv")
    assert "\n" not in str(caught.value)


def test_a_last_row_that_was_cut_is_left_out(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3")
    assert read_csv(tmp_path / "t.csv")[1] == [{"a": "1", "b": "2"}]
    assert "t.csv: line 3 was cut and is left out" in caplog.text
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4")
    assert len(read_csv(tmp_path / "t.csv")[1]) == 2
    assert len(read_csv(tmp_path / "t.csv", ended=True)[1]) == 1


def test_cells_of_a_log_are_numbers_or_empty(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1e3,\n")
    assert read_log(path, ("a", "b"), ("a",)) == [{"a": "1e3", "b": ""}]
    with pytest.raises(ValueError, match=r"line 2: b is '', which is not a number; correct"):
        read_log(path, ("a", "b"), ("b",))
    path.write_text("a,b\n1,2\n1,one\n")
    with pytest.raises(ValueError, match=r"line 3: b is 'one', which is not a number; correct"):
        read_log(path, ("a", "b"), ("a",))
