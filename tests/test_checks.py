"""Checks of single values: what passes, what is returned, and what the message says."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import pytest
from typing_extensions import Unpack

from dnadiff import fields as checks
from dnadiff.data.tokenizer import TextTokenizer
from dnadiff.store.address import expand_user

NOT_NUMBERS = ["1", None, True, False, float("nan"), float("inf"), [1], 1j]


@pytest.mark.parametrize("value", [0, -2, 0.5, np.float32(0.5), np.int64(3)])
def test_finite_numbers_pass_unchanged(value):
    assert checks.is_number(value) and checks.number("key", value) is value


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_other_values_are_not_numbers(value):
    assert not checks.is_number(value) and not checks.is_integer(value)
    with pytest.raises(ValueError, match=re.escape(f"key {value!r} must be a finite number")):
        checks.number("key", value)


def test_an_integer_may_be_written_as_a_float():
    assert checks.integer("key", 1e3) == 1000 and type(checks.integer("key", 1e3)) is int
    assert (
        checks.is_integer(10.0, 10)
        and not checks.is_integer(9.0, 10)
        and not checks.is_integer(2.5)
    )


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {}, "key 0 must be an integer of at least 1"),
        (2.5, {}, "key 2.5 must be an integer of at least 1"),
        (True, {"minimum": 0}, "key True must be an integer of at least 0"),
        (9, {"minimum": 2, "maximum": 8}, "key 9 must be an integer from 2 to 8"),
        (None, {}, "key None must be an integer of at least 1"),
    ],
)
def test_integers_outside_the_range_are_refused(value, limits, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checks.integer("key", value, **limits)


def test_an_optional_integer_may_be_none():
    assert checks.optional_integer("key", None) is None and checks.optional_integer("key", 4.0) == 4
    with pytest.raises(ValueError, match="key 0 must be an integer"):
        checks.optional_integer("key", 0)


def test_fractions_include_the_ends_by_default():
    assert [checks.fraction("key", value) for value in (0, 0.5, 1)] == [0, 0.5, 1]
    assert checks.fraction("key", 0.5, inclusive=False) == 0.5
    for value in (-0.1, 1.1, "0.5", True, None):
        with pytest.raises(
            ValueError, match=re.escape(f"key {value!r} must be a number from 0 to 1")
        ):
            checks.fraction("key", value)
    for value in (0, 1):
        with pytest.raises(ValueError, match=f"key {value} must be a number between 0 and 1"):
            checks.fraction("key", value, inclusive=False)


def test_only_booleans_are_booleans():
    assert checks.boolean("key", True) is True and checks.boolean("key", False) is False
    for value in ("true", "", 0, 1, None):
        with pytest.raises(ValueError, match=re.escape(f"key {value!r} must be true or false")):
            checks.boolean("key", value)


def test_names_are_strings_and_numbers_become_strings():
    assert [checks.name("key", value) for value in ("label", 1, 1.5)] == ["label", "1", "1.5"]
    for value in ("", None, True, ["a"]):
        with pytest.raises(ValueError, match=re.escape(f"key {value!r} must be a name")):
            checks.name("key", value)


def test_a_home_folder_of_nobody_is_named():
    assert expand_user("~/x").is_absolute() and str(expand_user("a/~")) == "a/~"
    with pytest.raises(
        ValueError,
        match=r"~nobody-at-all/x: this machine knows no such home folder; write out the complete "
        r"path",
    ):
        expand_user("~nobody-at-all/x")


@pytest.mark.parametrize("wrong", [1, -0.1, "a", True, None, float("nan")])
def test_a_number_below_one(wrong):
    assert checks.below_one("x", 0) == 0
    with pytest.raises(ValueError, match=r"x .* must be a number of at least 0 and below 1"):
        checks.below_one("x", wrong)


HINTS = [
    (
        checks.PositiveInt,
        [1, 1e3],
        [0, -1, 1.5, True, "1", 10**30, None],
        "key 0 must be an integer of at least 1",
    ),
    (
        checks.Fraction | None,
        [0, 0.5, None],
        [-1, 1.5, math.nan],
        "key -1 must be a number from 0 to 1 or null",
    ),
    (bool, [True, False], [0, "no", None], "key 0 must be true or false"),
    (str, ["a"], ["", " ", ["a"], {}], "key '' must be a string"),
    (
        Path | str | None,
        ["a", Path("a"), None],
        [1, "", []],
        "key 1 must be a string or null; put it into quotes, as in 'key=\"1\"'",
    ),
    (Literal["a", "b"], ["a"], ["c", 1], "key 'c' is not known; choose one of a, b"),
    (Sequence[int], [[1], (2,)], ["12", [1, "x"], {}], "key '12' must be a list"),
    (list[checks.Natural] | int, [3, [0]], [[0, -1]], "key[1] -1 must be an integer of at least 0"),
    (Mapping[str, int], [{"a": 1}], [{"a": "x"}, 1], "key.a 'x' must be an integer"),
    (tuple[int, float], [[1, 0.5]], [["x", 1]], "key[0] 'x' must be an integer"),
    (
        dict[str, checks.Built | None],
        [{"a": {"_target_": "x"}, "b": None}],
        [{"a": 1}],
        "key.a 1 must be an object with a _target_ or null",
    ),
    (Callable[[], int], [len], ["x"], "key 'x' must be a Callable"),
    (TextTokenizer, [{"_target_": "x"}], [1, "x", []], "key 1 must be a TextTokenizer"),
    (float, [0.1, 1], ["x", math.inf, 10**30], "key 'x' must be a finite number"),
]


@pytest.mark.parametrize(("hint", "right", "wrong", "message"), HINTS)
def test_a_value_is_compared_with_a_type_hint(hint, right, wrong, message):
    for value in right:
        checks.check_value("key", value, hint)
    for number, value in enumerate(wrong):
        with pytest.raises(ValueError, match=r"^key\b.*" if number else f"^{re.escape(message)}$"):
            checks.check_value("key", value, hint)


class Settings(TypedDict, total=False):
    size: checks.PositiveInt


class Schedule:
    def __init__(self, kind: str, rate: float = None, **settings: Unpack[Settings]):  # noqa: RUF013
        pass


def test_arguments_are_compared_with_the_signature_and_named_by_their_dotted_key():
    checks.check_arguments(Schedule, {"kind": "a", "rate": None, "size": 3, "of nobody": []}, "lr.")
    for wrong, message in (
        ({"kind": 3}, "lr.kind 3 must be a string"),
        ({"size": 0}, "lr.size 0 must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            checks.check_arguments(Schedule, wrong, "lr.")
