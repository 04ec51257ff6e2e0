import io
import logging
import warnings
from contextlib import redirect_stderr

import pytest

from dnadiff.progress import (
    Progress,
    advance,
    bar,
    beat,
    configure_logging,
    duration,
    log,
    phase,
    printable,
    table,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_an_unknown_total_has_no_remaining_time():
    for total, steps, start in ((None, 3, "3  "), (9, 0, "0/9  ")):  # 0: before the first step
        stream = io.StringIO()
        shown = Progress(total, "finetune", every=0, stream=stream)
        shown.update(steps, 300)
        shown.close()
        assert stream.getvalue().startswith(f"finetune  {start}")
        assert "left" not in stream.getvalue()
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
    bar = Progress(1, "train", stream=stream)
    bar.update(1)
    bar.close()
    assert stream.getvalue() == ""


def test_network_calls_estimate_the_steps_of_an_unfinished_batch():
    now = 0.0
    stream = io.StringIO()
    shown = Progress(
        2000, "variants", unit="rows", calls=8, every=1, stream=stream, clock=lambda: now
    )
    for second in (0.5, 1.0, 1.5, 2.0):  # of which two are shown
        now = second
        beat(800)
    shown.update(1000)  # 3.2 calls each
    now = 4.0
    beat(1600)
    shown.update(500)
    now = 6.0
    beat(100_000)  # more than all of them should need: nothing is known
    shown.close()
    assert stream.getvalue().splitlines() == [
        "variants  200/2,000 rows  1,600 calls/s  0:09 left",
        "variants  400/2,000 rows  1,600 calls/s  0:08 left",
        "variants  1,500/2,000 rows  1,200 calls/s  0:01 left",
        "variants  1,500/2,000 rows  17,467 calls/s  0:02 left",
    ]
    beat()  # with nothing to show


def test_what_is_shown_never_falls_back():
    now = 0.0
    stream = io.StringIO()
    shown = Progress(58, "variants", calls=2, every=1, stream=stream, clock=lambda: now)
    for calls in (90, 200, 10):
        now += 1
        beat(calls)
    now += 1
    shown.update(20)
    now += 1
    shown.update(30)
    shown.close()
    counts = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert counts == ["45/58", "45/58", "45/58", "45/58", "50/58"]


def test_a_display_of_a_call_that_failed_is_not_drawn_again():
    stream = io.StringIO()
    shown = Progress(10, "failed", every=0, stream=stream)
    stream.close()
    beat()
    del shown
    stream = io.StringIO()
    shown = Progress(10, "next", every=0, stream=stream)
    beat()
    assert "next" in stream.getvalue() and "failed" not in stream.getvalue()
    shown.close()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_messages_are_written_above_the_bars(terminal):
    with redirect_stderr(terminal):
        configure_logging()
        outer = Progress(4, "train")
        inner = Progress(2, "reading")  # to the same terminal
        log.info("a [message] of " + "x" * 300)
        inner.update(2)
        inner.close()
        outer.update(4)
        outer.close()
    configure_logging()
    text = terminal.getvalue()
    line = next(line for line in text.split("\n") if "a [message] of " + "x" * 300 in line)
    assert "\r\x1b[2K\x1b[1A\x1b[2Ka [" in line and text.count("\x1b[?25l") == 1
    assert "2/2" in text and text.rindex("4/4") > text.rindex("reading")


def test_a_phase_moves_on_a_terminal_and_is_a_line_elsewhere(terminal, capsys):
    with redirect_stderr(terminal), phase("fitting"):
        pass
    assert "fitting" in terminal.getvalue() and "0:00:00" in terminal.getvalue()
    with phase("fitting"):
        beat()
    assert capsys.readouterr().err == "fitting  ...\n"


def test_loops_in_python_are_shown_by_tqdm_if_asked(capsys):
    for enabled in (True, False):
        with bar(3, "score", "sequences", enabled):
            beat(10)
            advance(3, 300)
        text = capsys.readouterr().err
        assert ("score 100%|" in text and "3/3" in text and "tokens/s" in text) is enabled


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
