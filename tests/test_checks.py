"""Checks of single values: what passes, what is returned, and what the message says."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pytest
from annotated_types import Interval
from typing_extensions import Unpack

from dnadiff import fields as checks
from dnadiff.data.tokenizer import TextTokenizer
from dnadiff.store.address import expand_user

NOT_NUMBERS = ["1", None, True, False, float("nan"), float("inf"), [1], 1j]


@pytest.mark.parametrize("value", [0, -2, 0.5, np.float32(0.5), np.int64(3)])
def test_finite_numbers_pass_unchanged(value):
    assert checks.is_number(value) and checks.check_value("key", value, float) is value


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_other_values_are_not_numbers(value):
    assert not checks.is_number(value) and not checks.is_integer(value)
    with pytest.raises(ValueError, match=re.escape(f"key {value!r} must be a finite number")):
        checks.check_value("key", value, float)


def test_an_integer_may_be_written_as_a_float():
    found = checks.check_value("key", 1e3, int)
    assert found == 1000 and type(found) is int and checks.is_integer(10.0, 10)
    assert not checks.is_integer(9.0, 10) and not checks.is_integer(2.5)


def test_a_home_folder_of_nobody_is_named():
    assert expand_user("~/x").is_absolute() and str(expand_user("a/~")) == "a/~"
    with pytest.raises(
        ValueError,
        match=r"~nobody-at-all/x: this machine knows no such home folder; write out the complete "
        r"path",
    ):
        expand_user("~nobody-at-all/x")


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
    (
        Annotated[int, Interval(ge=2, le=8)],
        [2, 8],
        [9, True, None],
        "key 9 must be an integer from 2 to 8",
    ),
    (
        Annotated[float, Interval(gt=0, lt=1)],
        [0.5],
        [1, 0],
        "key 1 must be a number above 0 and below 1",
    ),
    (
        checks.Probability,
        [0],
        [1, "a", True, None, math.nan],
        "key 1 must be a number of at least 0 and below 1",
    ),
    (checks.Name, ["label", 1, 1.5], ["", None, True, ["a"]], "key '' must be a string"),
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


class Inherited:
    def __init__(self, rate: str = "", **settings: Annotated[Any, Schedule]):
        pass


def test_arguments_of_another_class_are_compared_with_its_signature():
    checks.check_arguments(Inherited, {"kind": "a", "rate": "b", "size": 3}, "lr.")
    for wrong, message in (({"rate": 3}, "lr.rate 3"), ({"size": 0}, "lr.size 0")):
        with pytest.raises(ValueError, match=f"^{message} must be"):
            checks.check_arguments(Inherited, wrong, "lr.")


def test_arguments_are_compared_with_the_signature_and_named_by_their_dotted_key():
    checks.check_arguments(Schedule, {"kind": "a", "rate": None, "size": 3, "of nobody": []}, "lr.")
    for wrong, message in (
        ({"kind": 3}, "lr.kind 3 must be a string"),
        ({"size": 0}, "lr.size 0 must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            checks.check_arguments(Schedule, wrong, "lr.")
