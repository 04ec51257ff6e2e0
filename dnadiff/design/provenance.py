"""What a file of samples says of itself: weights in its headers, resampling by them, and the JSON beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnadiff import __version__
from dnadiff.data.files import atomic_write
from dnadiff.design.generate import effective_size, systematic_resample
from dnadiff.design.output import opened, sha256
from dnadiff.draws import hash64

_WEIGHT = re.compile(rb" log_weight=(\S+)")
_DESIGNED = re.compile(rb" designed=(\d+)-(\d+)")


def json_path(output: Path) -> Path:
    """Where the JSON of a file of samples lies."""
    return output.with_name(output.name + ".json")


def weights(path: Path, packed: bool) -> NDArray[np.float64]:
    """The log weights in the headers of a FASTA file, or the lines of a .jsonl, (S,)."""
    with opened(path, packed) as file:
        return np.array([found for line in file if (found := _weight(line)) is not None])


def has_weights(path: Path, packed: bool) -> bool:
    """Whether the first record of a FASTA or .jsonl file has a weight."""
    with opened(path, packed) as file:
        return _weight(file.readline()) is not None


def _weight(line: bytes) -> float | None:
    """The log weight that a line of either file states, if it does."""
    if line.startswith(b"{"):
        found = json.loads(line).get("log_weight")
    else:
        match = _WEIGHT.search(line) if line.startswith(b">") else None
        found = None if match is None else match[1]
    return None if found is None else float(found)


def resample(source: Path, output: Path, each: int, keep: int, seed: int) -> tuple[int, int]:
    """Write `keep` of every `each` records of a FASTA file, taken in proportion to their weights; the file appears when it is complete.

    A record taken twice is there twice. Names are counted anew; the number that a record had is its `proposal`.

    Args:
        source: FASTA with log weights in its headers, packed if `output` is to be.
        output: replaced if it is there.
        each: proposals for each target, one target after the other.
        keep: records written for each target.
        seed: of the one random number that each target takes.

    Returns:
        How many letters of what was designed, in the records written, are G or C, and how many are known at all.
    """
    log_weight = weights(source, output.suffix == ".gz")
    uniforms = [(hash64(seed, "resample", group) + 0.5) / 2**64 for group in range(len(log_weight) // each)]
    taken = [systematic_resample(log_weight[g * each : (g + 1) * each], keep, u) for g, u in enumerate(uniforms)]
    times = np.concatenate([np.bincount(rows, minlength=each) for rows in taken])
    number = gc = known = 0
    with opened(source, output.suffix == ".gz") as file, atomic_write(output, overwrite=True) as target:
        for i, (header, body) in enumerate(_records(file)):
            number = 0 if i % each == 0 else number
            name, _, rest = header.removeprefix(b">").partition(b" ")
            base, _, own = name.rpartition(b"_")
            some, all_ = _gc(header, body)
            gc, known = gc + some * int(times[i]), known + all_ * int(times[i])
            for _ in range(times[i]):
                number += 1
                target.write(b">%s_%d %s proposal=%s\n" % (base, number, rest.rstrip(), own))
                target.write(body)
    return gc, known


def _gc(header: bytes, body: bytes) -> tuple[int, int]:
    """G and C, and known bases, in a record, or in the part that its header says was designed."""
    letters, part = body.replace(b"\n", b"").upper(), _DESIGNED.search(header)
    letters = letters if part is None else letters[int(part[1]) - 1 : int(part[2])]
    gc = letters.count(b"G") + letters.count(b"C")
    return gc, gc + letters.count(b"A") + letters.count(b"T")


def _records(file: Any) -> Iterator[tuple[bytes, bytes]]:
    """Header and the lines below it, one record after the other."""
    header, lines = b"", []
    for line in file:
        if line.startswith(b">"):
            if header:
                yield header, b"".join(lines)
            header, lines = line, []
        else:
            lines.append(line)
    if header:
        yield header, b"".join(lines)


def of_weights(log_weight: NDArray[np.float64], each: int) -> dict[str, Any]:
    """What weights say: the effective number of samples, and the log of the mass that the constraints leave, for each target."""
    groups = log_weight.reshape(-1, each)
    sizes = [effective_size(row) for row in groups]
    top = groups.max(1)
    mass = np.log(np.exp(groups - top[:, None]).mean(1)) + top
    return {
        "proposals": each,
        "effective_size": {"least": min(sizes), "mean": float(np.mean(sizes))},
        # The mean weight is an unbiased estimate of how probable the model finds it that a free sample keeps the constraints.
        "log_mass": {"least": float(mass.min()), "mean": float(mass.mean())},
    }


def write(output: Path, content: Mapping[str, Any]) -> Path:
    """The JSON beside a file of samples, with the file's own hash."""
    path = json_path(output)
    whole = {"file": output.name, "sha256": sha256(output), "synthetic": True, "dnadiff": __version__, **content}
    with atomic_write(path, overwrite=True) as file:
        file.write((json.dumps(whole, indent=2) + "\n").encode())
    return path


def is_complete(output: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the file is there with the JSON of a finished run of these settings, and is what that run wrote."""
    try:
        content = json.loads(json_path(output).read_text(encoding="utf-8"))
        same = content["settings"] == json.loads(json.dumps(settings))
        return same and output.is_file() and content["sha256"] == sha256(output)
    except (OSError, ValueError, KeyError, TypeError):
        return False
