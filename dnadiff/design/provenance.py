"""How a file of samples was made: settings and weights in its headers, resampling by these weights,
and the JSON file next to it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dnadiff.checks import is_number
from dnadiff.config import Config, Json
from dnadiff.design.generate import effective_size, systematic_resample
from dnadiff.draws import hash64
from dnadiff.jobs.journal import is_compressed, open_bytes
from dnadiff.sampler.base import Configurable, Sampler
from dnadiff.store.address import shown_addresses
from dnadiff.store.disk import atomic_write, json_object

_WEIGHT = re.compile(rb" log_weight=(\S+)")
_DESIGNED = re.compile(rb" designed=(\d+)-(\d+)")
_BARE = re.compile(r"[^\s\"'=]+")
_VALUES, _FILES = (
    ("motif", "prompt", "label", "feature"),
    ("template", "infill", "genome", "start"),
)  # keys of what samples are conditioned on
# Keys of a header that are no settings of a sampler: a setting of the same name gets the prefix
# "sampler.".
_RESERVED = {
    "name",
    "sequence",
    "sampler",
    "calls",
    "label",
    "guidance",
    "gc",
    "seed",
    "window",
    "designed",
    "region",
    "log_weight",
}


def sampler_name(sampler: Sampler) -> str:
    """The name of the module of a sampler, which is its name on the command line."""
    return type(sampler).__module__.rpartition(".")[2]


def sampler_settings(sampler: Sampler) -> dict[str, Json]:
    """Every setting of a sampler and its class, for the JSON file; a value that JSON cannot
    represent becomes a string."""
    settings = {
        "class": f"{type(sampler).__module__}.{type(sampler).__qualname__}",
        **sampler.settings(),
    }
    return json.loads(json.dumps(settings, default=str))


def header_settings(sampler: Configurable) -> dict[str, Json]:
    """The settings of a sampler that differ from the defaults of its class, for a FASTA header.

    Settings of a nested sampler or strategy are called `outer.inner`, and its class `outer.class`.
    All settings, including the defaults, are in the JSON file next to the FASTA file
    (`sampler_settings`).
    """
    found: dict[str, Json] = {}
    parameters = inspect.signature(type(sampler)).parameters
    for name, value in sampler.settings().items():
        inner, default = vars(sampler)[name], parameters[name].default
        if isinstance(inner, Configurable):
            found[f"{name}.class"] = type(inner).__name__
            found |= {f"{name}.{key}": each for key, each in header_settings(inner).items()}
        elif value != default:
            found[f"sampler.{name}" if name in _RESERVED else name] = value
    return found


def header_value(value: object) -> str:
    """A value of a `key=value` pair in a FASTA header: JSON, but strings without spaces, quotes and
    = are not quoted."""
    return (
        value
        if isinstance(value, str) and _BARE.fullmatch(value)
        else json.dumps(value, separators=(",", ":"), default=str)
    )


def weights(path: Path, compressed: bool) -> NDArray[np.float64]:
    """The log weights (S,) in the headers of a FASTA file, or in the lines of a .jsonl file."""
    with open_bytes(path, compressed) as file:
        return np.array([found for line in file if (found := _weight(path, line)) is not None])


def has_weights(path: Path, compressed: bool) -> bool:
    """Whether the first record of a FASTA or .jsonl file has a weight."""
    with open_bytes(path, compressed) as file:
        return _weight(path, file.readline()) is not None


def _weight(path: Path, line: bytes) -> float | None:
    if line.startswith(b"{"):
        found = json_object(line, f"a line of {path}").get("log_weight")
    else:
        match = _WEIGHT.search(line) if line.startswith(b">") else None
        found = None if match is None else float(match[1])
    if found is None or is_number(found):
        return found
    raise ValueError(
        f"{path}: the log_weight {found!r} of a record is not a number; generate the samples again"
    )


def resample(source: Path, output: Path, each: int, keep: int, seed: int) -> tuple[int, int]:
    """Write `keep` of every `each` records of a FASTA file, drawn in proportion to their weights;
    the file is written atomically.

    The source has log weights in its headers, and is compressed if `output` is. A record that is
    drawn twice is written twice. Names are numbered again; the original number of a record is its
    `proposal`. Returns the number of G and C in the designed parts of the records written, and of
    known bases.
    """
    compressed = is_compressed(output)
    log_weight = weights(source, compressed)
    uniforms = [
        (hash64(seed, "resample", group) + 0.5) / 2**64 for group in range(len(log_weight) // each)
    ]
    taken = [
        systematic_resample(log_weight[g * each : (g + 1) * each], keep, u)
        for g, u in enumerate(uniforms)
    ]
    times = np.concatenate([np.bincount(rows, minlength=each) for rows in taken])
    number = gc = known = 0
    with open_bytes(source, compressed) as file, atomic_write(output, overwrite=True) as target:
        for i, (header, body) in enumerate(_records(file)):
            number = 0 if i % each == 0 else number
            name, _, rest = header.removeprefix(b">").partition(b" ")
            base, _, own = name.rpartition(b"_")
            num_gc, num_known = _gc(header, body)
            gc, known = gc + num_gc * int(times[i]), known + num_known * int(times[i])
            for _ in range(times[i]):
                number += 1
                target.write(b">%s_%d %s proposal=%s\n" % (base, number, rest.rstrip(), own))
                target.write(body)
    return gc, known


def _gc(header: bytes, body: bytes) -> tuple[int, int]:
    # In the part that the header calls `designed`, or in the whole record.
    letters, part = body.replace(b"\n", b"").upper(), _DESIGNED.search(header)
    letters = letters if part is None else letters[int(part[1]) - 1 : int(part[2])]
    gc = letters.count(b"G") + letters.count(b"C")
    return gc, gc + letters.count(b"A") + letters.count(b"T")


def _records(file: BufferedIOBase) -> Iterator[tuple[bytes, bytes]]:
    header = b""
    lines: list[bytes] = []
    for line in file:
        if line.startswith(b">"):
            if header:
                yield header, b"".join(lines)
            header, lines = line, []
        else:
            lines.append(line)
    if header:
        yield header, b"".join(lines)


def summarize_weights(log_weight: NDArray[np.float64], each: int) -> dict[str, Json]:
    """The effective sample size, and the log of the probability mass that satisfies the
    constraints, over the targets."""
    groups = log_weight.reshape(-1, each)
    sizes = [effective_size(row) for row in groups]
    top = groups.max(1)
    mass = np.log(np.exp(groups - top[:, None]).mean(1)) + top
    return {
        "proposals": each,
        "effective_size": {"least": min(sizes), "mean": float(np.mean(sizes))},
        # The mean weight is an unbiased estimate of the model's probability that a free sample
        # satisfies the constraints.
        "log_mass": {"least": float(mass.min()), "mean": float(mass.mean())},
    }


def inputs(config: Config) -> dict[str, Json]:
    """What the samples are conditioned on, for the JSON file: values, and the names of files."""
    found = {key: config[key] for key in (*_VALUES, *_FILES) if config[key] is not None}
    return {key: shown_addresses(value) if key in _FILES else value for key, value in found.items()}
