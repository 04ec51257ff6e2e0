"""Constructors and functions that compare their arguments with their type hints."""

import re
from dataclasses import dataclass

import pytest

from dnadiff.fields import Fraction, Natural, PositiveInt, checked


@checked
class Grid:
    def __init__(self, num_steps: PositiveInt, scale: float = 1.0, names: tuple[str, ...] = ()):
        self.num_steps, self.scale, self.names = num_steps, scale, names


@checked
@dataclass
class Coin:
    seed: Natural
    share: Fraction = 0.5


@checked
def repeat(text: str, times: PositiveInt = 2, fresh: bool = False) -> str:
    return text * times


def test_integral_floats_become_integers_and_lists_tuples():
    grid = Grid(1e3, 2, ["a"])
    assert (grid.num_steps, type(grid.num_steps), grid.scale, grid.names) == (1000, int, 2, ("a",))
    assert Coin(3.0).seed == 3 and repeat("x", times=3.0) == "xxx"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Grid(0), "num_steps 0 must be an integer of at least 1"),
        (lambda: Grid(True), "num_steps True must be an integer of at least 1"),
        (lambda: Grid("3"), "num_steps '3' must be an integer of at least 1"),
        (lambda: Grid(3, names=["a", 1]), "names[1] 1 must be a string"),
        (lambda: Coin(1, share=1.5), "share 1.5 must be a number from 0 to 1"),
        (lambda: repeat("x", fresh="yes"), "fresh=yes is neither true nor false"),
    ],
)
def test_other_values_are_refused_with_their_name(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_wrong_number_of_arguments_is_an_error_of_python():
    with pytest.raises(TypeError, match="num_steps"):
        Grid()
