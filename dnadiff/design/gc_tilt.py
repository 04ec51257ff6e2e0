"""A tilt of G and C against A and T that gives samples a mean GC."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

from dnadiff.design.request import Request
from dnadiff.design.template import gc_bounds
from dnadiff.draws import hash64

PILOT = 32
NEAR = 0.002  # calibrated so near
FAR = 0.02  # refused beyond


def check(gc: object, request: Request, tokenizer: Any) -> float:
    """A GC share that can be reached by what the request leaves open.

    Raises:
        ValueError: naming what can be.
    """
    if isinstance(gc, bool) or not isinstance(gc, Real) or not 0 < gc < 1:
        raise ValueError(f"gc {gc!r} must be a number between 0 and 1, the share of G and C that is asked for, such as 0.5")
    if tokenizer.vocab.complement is None:
        raise ValueError(f"gc={gc} is for models of DNA; leave it out")
    low = high = total = 0
    for target in request.evenly_spaced():
        start, end = target.designed
        least, most = gc_bounds(target.pattern.codes[start:end])
        low, high, total = low + least, high + most, total + end - start
    if not low < gc * total < high:
        raise ValueError(
            f"gc {gc} cannot be reached: what is given leaves a mean from {low / total:.3f} to {high / total:.3f}, ends left out; set gc between"
        )
    return float(gc)


class Fit(NamedTuple):
    """A tilt in log-odds, the mean GC that the pilot came to with it, and network calls that it took."""

    tilt: float
    reached: float
    nfe: int


def fit(filler: Any, request: Request, gc: float, seed: int, batch_size: int) -> Fit:
    """The tilt that gives a pilot of at least 32 samples of the request the mean `gc`; all tries share their noise.

    Args:
        filler: a `dnadiff.design.generate.ConditionalSampler`.
        request: samples are taken evenly from it.
        gc: as `check` gave it back.
        seed: the pilot's noise is its own.
        batch_size: samples at a time.

    Raises:
        ValueError: if no tilt comes near.
    """
    size, calls = max(PILOT, batch_size), 0
    numbered = [(i, request[i * len(request) // size]) for i in range(size)]

    def mean(tilt: float) -> float:
        nonlocal calls
        filled = [filler.with_tilt(tilt).fill(numbered[at : at + batch_size], hash64(seed, "pilot")) for at in range(0, size, batch_size)]
        calls += sum(batch.nfe for batch in filled)
        counts = [filler.gc(batch) for batch in filled]
        return sum(gc for gc, _ in counts) / sum(known for _, known in counts)

    tilt, reached, _ = calibrated(mean, gc)
    return Fit(tilt, reached, calls)


def calibrated(mean_gc: Callable[[float], float], target: float, tolerance: float = NEAR, most: int = 16) -> tuple[float, float, int]:
    """The tilt at which `mean_gc(tilt)`, a rising function, comes to `target`; with what it comes to, and the evaluations made.

    Regula falsi on log-odds, its stale end halved (Illinois), between ends that are first moved apart.

    Raises:
        ValueError: if no tilt comes near.
    """

    def off(tilt: float) -> float:
        return math.log(max(reached := mean_gc(tilt), 1e-6) / max(1 - reached, 1e-6)) - math.log(target / (1 - target))

    def near(value: float) -> bool:
        return abs(_share(value, target) - target) <= tolerance

    a, fa, calls = 0.0, off(0.0), 1
    b, fb = a, fa
    while not near(fb) and (fa < 0) == (fb < 0) and calls < most:
        a, fa = b, fb
        b = b - math.copysign(max(abs(fb) * 1.25, 0.05), fb)
        fb, calls = off(b), calls + 1
    best, f_best = min(((a, fa), (b, fb)), key=lambda pair: abs(pair[1]))
    while not near(f_best) and (fa < 0) != (fb < 0) and calls < most and abs(b - a) > 1e-4:
        c = (a * fb - b * fa) / (fb - fa)
        fc, calls = off(c), calls + 1
        if (fc < 0) == (fb < 0):
            fa /= 2
        else:
            a, fa = b, fb
        b, fb = c, fc
        if abs(fc) < abs(f_best):
            best, f_best = c, fc
    reached = _share(f_best, target)
    if abs(reached - target) > FAR:
        raise ValueError(f"gc {target} cannot be reached by this sampler: its pilot batch comes to {reached:.3f} at most; choose another")
    return best, reached, calls


def _share(off: float, target: float) -> float:
    """The share whose log-odds are `off` beyond those of `target`."""
    odds = math.exp(off) * target / (1 - target)
    return odds / (1 + odds)
