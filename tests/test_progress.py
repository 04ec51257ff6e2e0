import io
import logging
import warnings

from dnadiff.progress import Progress, configure_logging, duration, printable, table


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_an_unknown_total_has_no_remaining_time():
    stream = io.StringIO()
    Progress(None, "finetune", every=0, stream=stream).update(3, 300)
    assert stream.getvalue().startswith("finetune  3  ") and "left" not in stream.getvalue()
    stream = io.StringIO()
    Progress(9, "finetune", every=0, stream=stream).update(0, 300)  # before the first step
    assert stream.getvalue().startswith("finetune  0/9  ") and "left" not in stream.getvalue()
    bar = Progress(None, "finetune", stream=Terminal())
    bar.update(2)
    bar.close()


def test_a_terminal_gets_a_bar_and_its_cursor_back(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    bar = Progress(4, "train [red]x", stream=stream)
    bar.update(4, tokens=10, loss="[b]1.5")
    bar.close()
    text = stream.getvalue()
    assert (
        "train [red]x" in text and "4/4  loss [b]1.5" in text and "━" in text and "tokens/s" in text
    )
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1 and text.endswith("\n\x1b[?25h")


def test_other_streams_get_plain_lines():
    stream = io.StringIO()
    bar = Progress(4, "train", every=0, stream=stream)
    bar.update(1)
    bar.update(1, valid=1.25)
    bar.close()
    lines = stream.getvalue().splitlines()
    assert (
        lines[0].startswith("train  1/4")
        and lines[1].startswith("train  2/4  valid 1.25")
        and "\x1b" not in stream.getvalue()
    )


def test_a_stream_without_a_terminal_gets_no_line_at_the_end():
    stream = io.StringIO()
    Progress(1, "train", stream=stream).update(1)
    assert stream.getvalue() == ""


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


def test_commands_show_no_warnings_of_libraries():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        configure_logging()
        for module in ("sklearn.base", "torch.nn", "torch.cuda", "my_reward"):
            warnings.warn_explicit(module, UserWarning, "x.py", 1, module)
    assert [str(one.message) for one in shown] == ["torch.cuda", "my_reward"]
