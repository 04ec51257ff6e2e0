"""The file of samples: records as FASTA, JSON lines or text with settings and weights in their
headers, resampling by these weights, and the JSON file next to it."""

from __future__ import annotations

import inspect
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.design.generate import (
    ConditionalSampler,
    SampleBatch,
    effective_size,
    fit_tilt,
    systematic_resample,
)
from dnadiff.design.request import Request
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.sampler.base import Configurable, Sampler
from dnadiff.fields import Json, is_number
from dnadiff.formats.fasta import as_bytes, synthetic_record
from dnadiff.genomics.metrics import memorization
from dnadiff.genomics.metrics.memorization import TrainingIndex
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import is_compressed, json_path, open_bytes
from dnadiff.progress import duration, table
from dnadiff.store.disk import atomic_write, json_object
from dnadiff.weights.loaded import Loaded

_WEIGHT = re.compile(rb" log_weight=(\S+)")
_DESIGNED = re.compile(rb" designed=(\d+)-(\d+)")
_BARE = re.compile(r"[^\s\"'=]+")
_REWARD = re.compile(rb'[ "]reward(?:=|": )(-?[0-9.e+-]+)')
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


FASTA = (".fa", ".fasta", ".fna")
JSONL = ".jsonl"
TEXT = (".txt", JSONL)
Writer: TypeAlias = Callable[
    [str, str, Mapping[str, object]], bytes
]  # name, text and header of a record -> its bytes


def fasta_record(name: str, text: str, about: Mapping[str, object]) -> bytes:
    """A FASTA record whose header has `key=value` pairs."""
    return as_bytes(
        synthetic_record(name, text, **{key: header_value(value) for key, value in about.items()})
    )


def jsonl_record(name: str, text: str, about: Mapping[str, Json]) -> bytes:
    """A line of JSON."""
    about = {**about, "log_weight": float(about["log_weight"])} if "log_weight" in about else about
    return (
        json.dumps(
            {"name": name, "synthetic": True, **about, "text": text}, ensure_ascii=False
        ).encode()
        + b"\n"
    )


def text_record(name: str, text: str, about: Mapping[str, object]) -> bytes:
    """The text, followed by an empty line."""
    return text.encode() + b"\n\n"


def writer_of(output: Path) -> Writer:
    """The function that formats records for a file of this name."""
    name = output.name.removesuffix(".gz")
    return (
        fasta_record
        if name.endswith(FASTA)
        else jsonl_record
        if name.endswith(JSONL)
        else text_record
    )


def header_of(
    sampler: Sampler,
    seed: int,
    changed: Mapping[str, tuple[Json, Json]],
    method: Mapping[str, Json],
) -> dict[str, Json]:
    """How the samples were made, for their headers: the name of the sampler on the command line,
    and settings that are not the default.

    Args:
        changed: values and defaults of settings of the request.
        method: of a design.
    """
    # The calls are those of the batch, known afterwards.
    about: dict[str, Json] = {"sampler": sampler_name(sampler), "calls": 0}
    about |= header_settings(sampler)
    about |= {name: value for name, (value, default) in changed.items() if value != default}
    return about | {**method, "seed": seed}


def check_suffix(output: Path, is_dna: bool) -> None:
    """Raise ValueError unless DNA is written to FASTA, or text to .txt or .jsonl."""
    allowed = [
        end + compressed for compressed in ("", ".gz") for end in (FASTA if is_dna else TEXT)
    ]
    if not output.name.endswith(tuple(allowed)):
        raise ValueError(
            f"output {output} is the name of another kind of file; this model writes "
            f"{', '.join(allowed)}"
        )


_REWARDS: dict[str, Json] = {"reward_sum": 0.0, "reward_best": None, "reward_calls": 0}
_ADDED = ("nfe", "rows", "tokens", "seconds")  # totals that are sums over batches
log = logging.getLogger("dnadiff")


@dataclass(eq=False, kw_only=True)
class SampleJob(ResumableJob):
    """The samples of a request. Items are samples, units are batches.

    Args:
        generator: with a tilt that is not 0 if `gc` is given.
        header_of_records: how samples are made, for their headers.
        weighted: whether headers have importance weights.
        gc: target fraction of G and C, for which `prepare` calibrates the tilt; None is no target.
        resampled: records that are drawn from those of a group; None keeps all.
        started: options of the sampler as given, which a resumed file is compared with.
        inputs: what samples are conditioned on, for the JSON file.
        index: of the training data, in which copies are searched for.
        design: what the JSON file says of the reward and the method of designs.
        page: writes the page of designs.
    """

    stream, label, items = "samples", "sample", "sequences"

    model: Loaded
    generator: ConditionalSampler
    request: Request
    output: Path
    seed: int
    batch_size: int
    header_of_records: Mapping[str, Json]
    weighted: bool
    gc: float | None
    resampled: int | None
    settings: Mapping[str, Json]
    started: Mapping[str, Json]
    inputs: Mapping[str, Json]
    index: TrainingIndex | None = None
    design: Mapping[str, Json] | None = None
    page: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.write_record, self.converts = writer_of(self.output), self.resampled is not None
        self.totals: dict[str, Json] = {
            "nfe": 0,
            "rows": 0,
            "tokens": 0,
            "gc": [0, 0],
            "seconds": 0.0,
            "tilt": None,
            "sessions": 0,
            "sampler_options": self.started,
            **({} if self.design is None else _REWARDS),
        }
        self.content: dict[str, Json] = {}
        self._written_gc: tuple[int, int] | None = None

    @property
    @override
    def total(self) -> int:
        return len(self.request)

    @override
    def starts(self) -> list[int]:
        return [*self.generator.batch_starts(self.request, self.batch_size), len(self.request)]

    @override
    def prepare(self) -> Json:
        """The tilt for the target GC: its log-odds, what the pilot batch reaches, and the network
        calls that this takes."""
        if self.gc is None:
            return None
        found = fit_tilt(self.generator, self.request, self.gc, self.seed, self.batch_size)
        return {
            "log_odds": found.tilt,
            "pilot": found.reached,
            "calls": found.nfe,
            "rows": found.rows,
        }

    @override
    def begin(self) -> None:
        sampler, (low, high) = self.generator.sampler, self.request.lengths
        span = f"{high} tokens" if low == high else f"{low} to {high} tokens"
        calls = (
            f", at most {sampler.num_steps_for(high)} network calls per batch"
            if self.design is None
            else ""
        )
        if self.weighted and self.model.denoiser.block_size is not None:
            calls += ", and one for each token that is fixed in a later block"
        log.info(
            f"model: {self.model.path}; {len(self.request)} sequences of {span} by "
            f"{self.header_of_records['sampler']}{calls}"
        )
        self.totals["sessions"] += 1
        self.first, self.clock = self.position, time.monotonic()
        if self.gc is not None:
            self._calibrate()

    def _calibrate(self) -> None:
        """Set the tilt for the target GC, calibrated now or, for a resumed file or shards, when
        they were started."""
        if self.totals["tilt"] is None:
            start = time.monotonic()
            found = self.prepare() if self.prepared is None else self.prepared
            self.totals["tilt"] = {
                "log_odds": found["log_odds"],
                "pilot": found["pilot"],
                "pilot_calls": found["calls"],
            }
            self.totals["nfe"] += found["calls"]
            self.totals["rows"] += found["rows"]
            self.totals["seconds"] += time.monotonic() - start
            log.info(
                f"gc: the pilot reaches {found['pilot']:.4f} with log-odds {found['log_odds']:+.4f}"
                f" for G and C ({found['calls']} network calls)"
            )
        self.prepared = self.totals["tilt"]

    @override
    def fold(self, result: Result) -> tuple[bytes, int]:
        for key in _ADDED:
            self.totals[key] += result.about[key]
        if self.gc is not None:
            self.totals["gc"] = [a + b for a, b in zip(self.totals["gc"], result.about["gc"])]
        if self.design is not None:
            best, about = self.totals["reward_best"], result.about
            self.totals["reward_best"] = max(
                -math.inf if best is None else best, about["reward_best"]
            )
            for key in ("reward_sum", "reward_calls"):
                self.totals[key] += about[key]
        folded = super().fold(result)
        rate = (self.position - self.first) / max(time.monotonic() - self.clock, 1e-9)
        notes = {"sequences/s": f"{rate:.2f}", "network calls": f"{self.totals['nfe']:,}"}
        self.report(0, 0, **notes)
        return folded

    @override
    def convert(self, collected: Path) -> None:
        assert self.resampled is not None
        self._written_gc = resample(
            collected, self.output, self.request.each, self.resampled, self.seed
        )

    @override
    def finish(self, collected: Path) -> dict[str, Json]:
        totals, request, sampler = self.totals, self.request, self.generator.sampler
        compressed, gc = is_compressed(self.output), self._written_gc or totals["gc"]
        extra: dict[str, Json] = {}
        if self.gc is not None:
            reached = gc[0] / max(gc[1], 1)
            extra["gc"] = {"target": self.gc, "reached": reached, **totals["tilt"]}
        if self.write_record is not text_record and has_weights(collected, compressed):
            of_records = weights(collected, compressed)
            extra["weights"] = summarize_weights(of_records, request.each)
        if self.resampled is not None:
            extra["weights"] |= {"resampled": self.resampled}
        if self.index is not None:
            # The longest exact match of each record with the training part, either strand.
            found = memorization.of_file(self.output, self.index)
            extra["copies"] = memorization.summary(found)
        if self.design is not None:
            extra["design"] = {**self.design, **self._rewards()}
        # Upper limit of the network calls that fill the masks of a batch; methods of designs make
        # more.
        steps = (
            {} if self.design is not None else {"steps": sampler.num_steps_for(request.lengths[1])}
        )
        self.content = {
            "records": len(request)
            if self.resampled is None
            else request.num_groups * self.resampled,
            "model": {
                "checkpoint": str(self.model.path),
                "sha256": self.settings["model"],
                "step": self.model.step,
            },
            "sampler": sampler_name(sampler),
            "sampler_settings": sampler_settings(sampler),
            # As given, with defaults that depend on the model left open.
            "sampler_options": totals.get("sampler_options"),
            **steps,
            "network_calls": totals["nfe"],
            "rows": totals["rows"],
            "tokens": totals["tokens"],
            "seconds": round(totals["seconds"], 3),
            "sessions": totals["sessions"],
            "seed": self.seed,
            **extra,
            "inputs": self.inputs,
        }
        return self.content

    def _rewards(self) -> dict[str, Json]:
        """The mean and the best reward, of the records written if they are resampled."""
        totals = self.totals
        mean, best = totals["reward_sum"] / len(self.request), totals["reward_best"]
        calls: dict[str, Json] = {"calls": totals["reward_calls"]}
        if self.resampled is not None:
            calls = {"proposals": {"mean": mean, "best": best}, **calls}
            written = written_rewards(self.output)
            mean, best = sum(written) / len(written), max(written)
        return {"mean": mean, "best": best, **calls}

    @override
    def side_file(self, head: Mapping[str, Json], content: Mapping[str, Json]) -> Json:
        about = {"file": head["file"], "sha256": head["sha256"], "synthetic": True}
        return super().side_file({**about, "dnadiff": head["dnadiff"]}, content)

    @override
    def after(self) -> None:
        if self.page is not None:
            self.page()

    @override
    def found_complete(self) -> None:
        if self.index is not None:
            log.info(f"python -m dnadiff.copies looks for copies in {self.output}")
        self.after()

    @override
    def closing(self, seconds: float) -> str:
        content, generated = self.content, len(self.request)
        pilot = f"; {content['gc']['pilot_calls']:,} of them set the GC" if "gc" in content else ""
        rows: list[tuple[str, ...]] = [
            (
                "sequences",
                f"{content['records']:,} of {content['tokens'] / generated:,.0f} tokens",
            ),
            ("sampler", f"{content['sampler']}, seed {self.seed}"),
            (
                "network calls",
                f"{content['network_calls']:,} ({content['rows']:,} sequences in them{pilot})",
            ),
            ("time", duration(content["seconds"])),
            ("sequences/s", f"{generated / max(content['seconds'], 1e-9):.2f}"),
        ]
        if "gc" in content:
            gc = content["gc"]
            rows.append(("GC", f"{gc['reached']:.4f}, target {gc['target']:g}"))
        if self.design is not None:
            design = content["design"]
            each = design["calls"] / generated
            rewards = f"{design['mean']:.4f} on average, {design['best']:.4f} at best"
            rows.append(("reward", rewards))
            rows.append(("reward calls", f"{design['calls']:,} ({each:.1f} for each design)"))
        if "weights" in content:
            w = content["weights"]
            drawn = ", resampled" if "resampled" in w else ""
            size = f"{w['effective_size']['mean']:.1f} of {w['proposals']:,}{drawn}"
            mass = (
                "log normalizing constant"
                if self.design is not None
                else "log mass of the constraints"
            )
            rows.append(("effective sample size", size))
            rows.append((mass, f"{w['log_mass']['mean']:.2f} nats"))
        if "copies" in content:
            longest = content["copies"]["longest"]
            text = f"{longest['max']} bases, {longest['mean']:.1f} on average"
            rows.append(("longest match with training", text))
        return f"{table(rows)}\n{super().closing(seconds)} and {json_path(self.output)}"

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        generator = (
            self.generator
            if self.prepared is None
            else self.generator.with_tilt(self.prepared["log_odds"])
        )
        first, before = start + skip, time.monotonic()
        for batch in generator.batches(self.request, self.seed, self.batch_size, first):
            result = self._result(generator, batch, first)
            now = time.monotonic()
            self.report(result.items, result.about["tokens"])
            yield result._replace(about={**result.about, "seconds": now - before})
            first, before = first + result.items, time.monotonic()

    def _result(self, generator: ConditionalSampler, batch: SampleBatch, first: int) -> Result:
        numbers = range(first, first + len(batch.targets))
        found, content = generator.about(batch, numbers, self.seed), b""
        for i, (target, sequence) in enumerate(zip(batch.targets, batch.tokens)):
            about = {**self.header_of_records, "calls": batch.nfe, **target.about, **found[i]}
            if self.weighted and batch.log_weight is not None:
                about["log_weight"] = f"{batch.log_weight[i]:.6f}"
            content += self.write_record(target.name, generator.text(target, sequence), about)
        totals: dict[str, Json] = {
            "nfe": batch.nfe,
            "rows": batch.rows,
            "tokens": sum(len(x) for x in batch.tokens),
        }
        if self.gc is not None:
            totals["gc"] = list(generator.gc(batch))
        if batch.rewards is not None:
            totals |= {
                "reward_sum": float(batch.rewards.sum()),
                "reward_best": float(batch.rewards.max()),
            }
            totals["reward_calls"] = batch.reward_calls
        return Result(len(numbers), content, totals)


def written_rewards(path: Path) -> list[float]:
    """The rewards in the headers of a FASTA file, or in the lines of a .jsonl file."""
    with open_bytes(path, is_compressed(path)) as file:
        return [
            float(found[1])
            for line in file
            if line[:1] in b">{" and (found := _REWARD.search(line))
        ]
