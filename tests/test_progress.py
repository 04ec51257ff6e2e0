import logging

from dnadiff.commands import configure_logging
from dnadiff.progress import duration, printable, table


def test_durations_have_hours_only_if_needed():
    assert (duration(75), duration(3605)) == ("1:15", "1:00:05")


def test_control_characters_are_escaped_and_long_names_shortened():
    assert printable("chr1\x1b[2J\r\x07\x9b\u202eé\udcff") == r"chr1\x1b[2J\r\x07\x9b\u202eé\udcff"
    long = printable("record " + "A" * 1000 + "Z is bad")
    assert long == "record " + "A" * 200 + " [601 more characters] " + "A" * 199 + "Z is bad"
    assert len(printable("a b " * 50_000_000)) < 8100
    assert table([("a\x1b[1m", "1")]) == r"a\x1b[1m  1"


def test_messages_of_the_log_are_escaped_line_by_line(capsys):
    configure_logging()
    logging.getLogger("dnadiff").info("one\x1b[2J\ntwo")
    assert capsys.readouterr().err == "one\\x1b[2J\ntwo\n"
