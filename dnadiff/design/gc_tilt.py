"""A tilt of G and C against A and T that gives samples a target mean GC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dnadiff.checks import fraction
from dnadiff.design.request import Request
from dnadiff.design.template import gc_bounds
from dnadiff.draws import hash64

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import Tokenizer
    from dnadiff.design.generate import ConditionalSampler

PILOT = 32
TOLERANCE = 0.002  # of the calibration
MAX_ERROR = 0.02  # larger errors are an error


def check(gc: float, request: Request, tokenizer: Tokenizer) -> float:
    """The target GC fraction as a float; a ValueError if it is not a fraction, or the masked
    positions of the request cannot reach it."""
    gc = fraction("gc", gc, inclusive=False)
    if tokenizer.vocab.complement is None:
        raise ValueError(f"gc={gc} is for models of DNA; leave it out")
    low = high = total = 0
    for target in request.evenly_spaced():
        start, end = target.designed
        minimum, maximum = gc_bounds(target.pattern.codes[start:end])
        low, high, total = low + minimum, high + maximum, total + end - start
    if not low < gc * total < high:
        raise ValueError(
            f"gc {gc} cannot be reached: the fixed positions allow means between {low / total:.3f} "
            f"and {high / total:.3f}; set gc between them"
        )
    return gc


class Fit(NamedTuple):
    """A tilt in log-odds, the mean GC of the pilot samples with it, and the network calls of the
    calibration with the sequences in them."""

    tilt: float
    reached: float
    nfe: int
    rows: int


def fit(
    generator: ConditionalSampler, request: Request, gc: float, seed: int, batch_size: int
) -> Fit:
    """The tilt at which a pilot of at least 32 samples of the request has the mean `gc` (see
    `check`), or a ValueError.

    Pilot samples are evenly spaced over the request, and have no importance weights. All
    evaluations share their noise, which is derived from `seed`.
    """
    size, calls, rows = max(PILOT, batch_size), 0, 0
    numbered = [(i, request[i * len(request) // size]) for i in range(size)]

    def mean(tilt: float) -> float:
        nonlocal calls, rows
        tilted, key = generator.with_tilt(tilt), hash64(seed, "pilot")
        batches = [
            tilted.fill(numbered[at : at + batch_size], key, weighted=False)
            for at in range(0, size, batch_size)
        ]
        calls, rows = (
            calls + sum(batch.nfe for batch in batches),
            rows + sum(batch.rows for batch in batches),
        )
        counts = [generator.gc(batch) for batch in batches]
        return sum(gc for gc, _ in counts) / sum(known for _, known in counts)

    tilt, reached, _ = find_tilt(mean, gc)
    return Fit(tilt, reached, calls, rows)


def find_tilt(
    mean_gc: Callable[[float], float],
    target: float,
    tolerance: float = TOLERANCE,
    max_calls: int = 16,
) -> tuple[float, float, int]:
    """The tilt at which the increasing function `mean_gc(tilt)` reaches `target`, the value there,
    and the number of evaluations.

    The search first brackets the target, then uses the Illinois variant of regula falsi on
    log-odds. A target that no tilt reaches is a ValueError.
    """

    def off(tilt: float) -> float:
        return math.log(max(reached := mean_gc(tilt), 1e-6) / max(1 - reached, 1e-6)) - math.log(
            target / (1 - target)
        )

    def near(value: float) -> bool:
        return abs(_fraction(value, target) - target) <= tolerance

    a, fa, calls = 0.0, off(0.0), 1
    b, fb = a, fa
    while not near(fb) and (fa < 0) == (fb < 0) and calls < max_calls:
        a, fa = b, fb
        b = b - math.copysign(max(abs(fb) * 1.25, 0.05), fb)
        fb, calls = off(b), calls + 1
    best, f_best = min(((a, fa), (b, fb)), key=lambda pair: abs(pair[1]))
    while not near(f_best) and (fa < 0) != (fb < 0) and calls < max_calls and abs(b - a) > 1e-4:
        c = (a * fb - b * fa) / (fb - fa)
        fc, calls = off(c), calls + 1
        if (fc < 0) == (fb < 0):
            fa /= 2
        else:
            a, fa = b, fb
        b, fb = c, fc
        if abs(fc) < abs(f_best):
            best, f_best = c, fc
    reached = _fraction(f_best, target)
    if abs(reached - target) > MAX_ERROR:
        raise ValueError(
            f"gc {target} cannot be reached by this sampler: its pilot batch reaches "
            f"{reached:.3f}; choose another"
        )
    return best, reached, calls


def _fraction(off: float, target: float) -> float:
    # The fraction whose log-odds exceed those of `target` by `off`.
    odds = math.exp(off) * target / (1 - target)
    return odds / (1 + odds)
