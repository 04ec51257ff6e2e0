"""The file of samples: the settings of a sampler for a model, records as FASTA, JSON lines or text
with settings and weights in their headers, resampling by these weights, and the JSON file next to
it."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from dnadiff.data.kmers import UNKNOWN
from dnadiff.design.generate import (
    ConditionalSampler,
    SampleBatch,
    effective_size,
    fit_tilt,
    resample_group,
)
from dnadiff.design.request import Request
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.diffusion.sampler.base import Configurable, Sampler
from dnadiff.fields import Config, Json, JsonDict, JsonMap, PositiveInt, check_value
from dnadiff.formats.sequences import Record, iter_sequences, wrapped
from dnadiff.genomics.metrics import memorization
from dnadiff.genomics.metrics.composition import designed_bases, header_facts
from dnadiff.genomics.metrics.memorization import TrainingIndex
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import is_compressed, json_path, open_bytes, read_journal
from dnadiff.progress import duration, log, table
from dnadiff.renamed import with_current_names
from dnadiff.store.disk import atomic_write, hash_file, read_json
from dnadiff.store.objects import build, leaves, without_key
from dnadiff.weights.loaded import Loaded

# Digits after the decimal point, in headers.
_DIGITS = {"reward": 6, "reward_calls": 1, "ess": 1, "log_prob": 3}
_BARE = re.compile(r"[^\s\"'=]+")
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


def continued_sampler(
    settings: Config,
    model: Loaded,
    curve: StoredCurve,
    lengths: tuple[int, int],
    output: Path | None,
    overwrite: bool,
) -> Config:
    """The settings of the sampler of a file that is resumed: the choices that it was started with,
    also if `evaluate.json` has changed since, if model and options are the same. Otherwise
    `resolved_sampler`.

    Args:
        lengths: tokens in the shortest and in the longest sequence.
        output: the file that is resumed; None is none.
        overwrite: a complete file may be replaced, and is not continued.
    """
    started: Config = {}
    with suppress(OSError, ValueError):  # of a complete file
        if output and not overwrite:
            started = read_json(json_path(output), ("settings", "sampler_options"))
    with suppress(OSError, ValueError):  # of an unfinished one, unless its journal is damaged
        if output:
            journal = read_journal(output)
            started = journal["notes"] | {"settings": journal["settings"]}
    options = started.get("sampler_options")
    earlier = started.get("settings")
    if (
        isinstance(earlier, dict)
        and options == json.loads(json.dumps(settings))
        and earlier.get("lengths") == list(lengths)
        and earlier.get("model") == hash_file(model.path)
    ):
        return with_current_names(earlier)["sampler"]
    return resolved_sampler(settings, model, curve, lengths[1], lengths[0])


def resolved_sampler(
    settings: Config,
    model: Loaded,
    curve: StoredCurve,
    length: int,
    shortest: int,
    has_curve: bool = True,
) -> Config:
    """The settings of a sampler with defaults that depend on the model: the window, the block, and
    groups from its h(n).

    Groups are chosen for `length` tokens, and at most as many as the shortest sequence has tokens.
    Without `has_curve`, as inside the blocks of a model that was trained without them, the h(n) is
    not used. A model that does not define a default is a ValueError.
    """
    part: int | None = None  # of the sampler inside
    if "window" in settings:
        key = "sampler.window"
        own = settings["window"]
        part = model.training_length(key) if own is None else check_value(key, own, PositiveInt)
        settings = {**settings, "window": part}
    elif "block_size" in settings:
        trained = model.denoiser.block_size
        own = settings["block_size"]
        size = trained if own is None else check_value("sampler.block_size", own, PositiveInt)
        part = size or length
        has_curve = has_curve and trained is not None
    if part is not None:
        limits = min(part, length), min(part, shortest)
        inner = resolved_sampler(settings["sampler"], model, curve, *limits, has_curve)
        return {**settings, "sampler": inner}
    if "sizes" not in settings:
        return settings
    given = settings["num_groups"]
    sizes = settings["sizes"]
    if not has_curve:
        if isinstance(sizes, str):
            raise ValueError(
                f"sizes {sizes!r} needs the h(n) of a block, and this model was trained without "
                "blocks; expected numbers such as [8,8,16], or null: leave sizes out for equal "
                "groups"
            )
        return settings
    chosen = curve.groups(length, given, sizes)
    number = chosen["num_groups"] or len(chosen["sizes"] or ())
    if given is None and isinstance(sizes, str | None) and number:
        kind = "groups of optimal sizes" if chosen["sizes"] else "equal groups"
        measured = curve.measured_length()
        assumed = f" of {measured} tokens, if h(n) depends on the visible fraction only"
        log.info(
            f"{number} {kind} lose at most 2 % of the structure, by evaluate.json in the "
            f"run{'' if measured == length else assumed}"
        )
    if given is None and chosen["num_groups"] is not None:
        chosen["num_groups"] = min(chosen["num_groups"], shortest)
    return settings | chosen


def check_settings(settings: Config) -> None:
    """Check the settings of a sampler before a model is loaded; raises ValueError naming the
    setting."""
    if ("noise_removal", "none") in ((key.split(".")[-1], x) for key, x in leaves(settings)):
        raise ValueError(
            "noise_removal=none leaves masks in the samples, which a file cannot represent; choose "
            "sample or argmax"
        )
    build(without_key(settings, "sizes"), trust=None)  # they may depend on the h(n) of the model


def sampler_name(sampler: Sampler) -> str:
    """The name of the module of a sampler, which is its name on the command line."""
    return type(sampler).__module__.rpartition(".")[2]


def sampler_settings(sampler: Sampler) -> JsonDict:
    """Every setting of a sampler and its class, for the JSON file; a value that JSON cannot
    represent becomes a string."""
    settings = {
        "class": f"{type(sampler).__module__}.{type(sampler).__qualname__}",
        **sampler.settings(),
    }
    return json.loads(json.dumps(settings, default=str))


def header_settings(sampler: Configurable) -> JsonDict:
    """The settings of a sampler that differ from the defaults of its class, for a FASTA header.

    Settings of a nested sampler or strategy are called `outer.inner`, and its class `outer.class`.
    All settings, including the defaults, are in the JSON file next to the FASTA file
    (`sampler_settings`).
    """
    found: JsonDict = {}
    parameters = inspect.signature(type(sampler)).parameters
    for name, value in sampler.settings().items():
        inner = vars(sampler)[name]
        default = parameters[name].default
        if isinstance(inner, Configurable):
            found[f"{name}.class"] = type(inner).__name__
            found |= {f"{name}.{key}": each for key, each in header_settings(inner).items()}
        elif value != default:
            found[f"sampler.{name}" if name in _RESERVED else name] = value
    return found


def records_of(path: Path, output: Path) -> Iterator[tuple[JsonMap, str | bytes]]:
    """What the header of each record of a file says that is written to `output` (FASTA or .jsonl),
    and the sequence."""
    if JSONL in output.suffixes:
        with open_bytes(path, is_compressed(output)) as file:
            for about in map(json.loads, file):
                yield about, about["text"]
    else:
        for record in iter_sequences(path):
            yield header_facts(record.description), record.sequence


def numbers_of(path: Path, output: Path, name: str) -> ndarray:
    """The numbers (S,) of this name in the headers of `records_of`."""
    return np.array([float(about[name]) for about, _ in records_of(path, output)])


def resample(
    source: Path, output: Path, each: int, keep: int, seed: int, log_weight: ndarray
) -> None:
    """Write `keep` of every `each` records of a FASTA file, drawn in proportion to their weights;
    the file is written atomically.

    A record that is drawn twice is written twice. Names are numbered again; the original number of
    a record is its `proposal`.
    """
    times: list[int] = []  # how often each record is written
    for group, of_group in enumerate(log_weight.reshape(-1, each)):
        taken = resample_group(of_group, keep, seed, group)
        times += np.bincount(taken, minlength=each).tolist()
    number = 0
    with atomic_write(output, overwrite=True) as target:
        for i, record in enumerate(iter_sequences(source)):
            number = 0 if i % each == 0 else number
            base, _, own = record.name.rpartition("_")
            about = f"{record.description} proposal={own}"
            for _ in range(times[i]):
                number += 1
                target.writelines(wrapped(Record(f"{base}_{number}", about, record.sequence)))


def gc_of(path: Path) -> float:
    """The fraction of G and C among the known bases of the designed parts of a FASTA file."""
    counts = np.zeros(UNKNOWN + 1, np.int64)
    for record in iter_sequences(path):
        counts += np.bincount(designed_bases(record), minlength=len(counts))
    return float(counts[1:3].sum() / max(counts[:UNKNOWN].sum(), 1))


def summarize_weights(log_weight: ndarray, sequences: Sequence[Hashable], each: int) -> JsonDict:
    """The effective number of distinct sequences, and the log of the probability mass that
    satisfies the constraints, over the targets."""
    groups = log_weight.reshape(-1, each)
    sizes = [
        effective_size(group, sequences[number * each :][:each])
        for number, group in enumerate(groups)
    ]
    top = groups.max(1)
    mass = np.log(np.exp(groups - top[:, None]).mean(1)) + top
    return {
        "proposals": each,
        "effective_size": {
            "counts": "distinct sequences",
            "least": min(sizes),
            "mean": float(np.mean(sizes)),
        },
        # The mean weight is an unbiased estimate of the model's probability that a free sample
        # satisfies the constraints.
        "log_mass": {"least": float(mass.min()), "mean": float(mass.mean())},
    }


FASTA = (".fa", ".fasta", ".fna")
JSONL = ".jsonl"
TEXT = (".txt", JSONL)


def record_of(output: Path, name: str, text: str, about: JsonMap) -> bytes:
    """A record of a file of this name: FASTA whose header has `key=value` pairs, a line of JSON, or
    the text followed by an empty line.

    Values of pairs are JSON, but strings without spaces, quotes and = are not quoted.
    """
    about = {k: round(x, _DIGITS[k]) if k in _DIGITS else x for k, x in about.items()}
    kind = output.name.removesuffix(".gz")
    if kind.endswith(FASTA):
        words = ["synthetic"]
        for key, value in about.items():
            is_bare = isinstance(value, str) and _BARE.fullmatch(value)
            shown = value if is_bare else json.dumps(value, separators=(",", ":"), default=str)
            words.append(f"{key}={shown}")
        return b"".join(wrapped(Record(name, " ".join(words), text.encode("ascii"))))
    if not kind.endswith(JSONL):
        return f"{text}\n\n".encode()
    record = {"name": name, "synthetic": True, **about, "text": text}
    if "log_weight" in about:
        record["log_weight"] = float(about["log_weight"])
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def check_suffix(output: Path, is_dna: bool) -> None:
    """Raise ValueError unless DNA is written to FASTA, or text to .txt or .jsonl."""
    allowed = [end + gz for gz in ("", ".gz") for end in (FASTA if is_dna else TEXT)]
    if not output.name.endswith(tuple(allowed)):
        raise ValueError(
            f"output {output} is the name of another kind of file; this model writes "
            f"{', '.join(allowed)}"
        )


# Totals that are sums over batches.
_ADDED = {"nfe", "rows", "tokens", "seconds", "reward_sum", "reward_calls"}


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
    """

    stream = "samples"
    label = "sample"
    items = "sequences"
    found = "tilt"  # the total that has what `prepare` found
    mass = "log mass of the constraints"  # the name of the log of the mean weight

    model: Loaded
    generator: ConditionalSampler
    request: Request
    output: Path
    seed: int
    batch_size: int
    header_of_records: JsonMap
    weighted: bool
    gc: float | None
    resampled: int | None
    settings: JsonMap
    started: JsonMap
    inputs: JsonMap
    index: TrainingIndex | None = None

    def __post_init__(self) -> None:
        self.converts = self.resampled is not None
        self.totals: JsonDict = {
            "nfe": 0,
            "rows": 0,
            "tokens": 0,
            "seconds": 0.0,
            self.found: None,
            "sessions": 0,
            "sampler_options": self.started,
        }
        self.content: JsonDict = {}

    @property
    def total(self) -> int:
        return len(self.request)

    def starts(self) -> list[int]:
        return self.starts_of(self.generator.units(self.request, self.batch_size))

    @property
    def steps(self) -> int | None:
        """An upper limit of the network calls that fill the masks of a batch, if there is one."""
        return self.generator.sampler.num_steps_for(self.request.lengths[1])

    def tuned(self) -> ConditionalSampler:
        """The generator with what `prepare` found."""
        tilt = self.prepared
        return self.generator if tilt is None else self.generator.with_tilt(tilt["log_odds"])

    def totals_of(self, batch: SampleBatch) -> JsonDict:
        """The numbers of a batch that are added up."""
        return {"nfe": batch.nfe, "rows": batch.rows, "tokens": sum(map(len, batch.tokens))}

    def weights(self, collected: Path) -> ndarray:
        """The log weights (S,) of the collected records."""
        return numbers_of(collected, self.output, "log_weight")

    def prepare(self) -> Json:
        """The tilt for the target GC: its log-odds, what the pilot batch reaches, and the network
        calls that this takes."""
        if self.gc is None:
            return None
        fitted = fit_tilt(self.generator, self.request, self.gc, self.seed, self.batch_size)
        return fitted._asdict()

    def begin(self) -> None:
        low, high = self.request.lengths
        span = f"{high} tokens" if low == high else f"{low} to {high} tokens"
        calls = "" if self.steps is None else f", at most {self.steps} network calls per batch"
        if self.weighted and self.model.denoiser.block_size is not None:
            calls += ", and one for each token that is fixed in a later block"
        log.info(
            f"model: {self.model.path}; {len(self.request)} sequences of {span} by "
            f"{self.header_of_records['sampler']}{calls}"
        )
        self.totals["sessions"] += 1
        if self.totals[self.found] is None:
            # Found now or, for a resumed file or shards, when they were started.
            start = time.monotonic()
            self.totals[self.found] = self.kept(self.prepared or self.prepare())
            self.totals["seconds"] += time.monotonic() - start
        self.prepared = self.totals[self.found]

    def kept(self, found: Json) -> Json:
        """What is kept of what `prepare` found, which is counted here."""
        if found is None:
            return None
        self.totals["nfe"] += found["calls"]
        self.totals["rows"] += found["rows"]
        log.info(
            f"gc: the pilot reaches {found['pilot']:.4f} with log-odds {found['log_odds']:+.4f} "
            f"for G and C ({found['calls']} network calls)"
        )
        kept = {key: found[key] for key in ("log_odds", "pilot")}
        return kept | {"pilot_calls": found["calls"]}

    def fold(self, result: Result) -> tuple[bytes, int]:
        for key in result.about.keys() & _ADDED:
            self.totals[key] += result.about[key]
        self.report(0, 0, **{"network calls": f"{self.totals['nfe']:,}"})
        return super().fold(result)

    def convert(self, collected: Path) -> None:
        assert self.resampled is not None
        each, weights = self.request.each, self.weights(collected)
        resample(collected, self.output, each, self.resampled, self.seed, weights)

    def finish(self, collected: Path) -> JsonDict:
        totals = self.totals
        request = self.request
        sampler = self.generator.sampler
        extra: JsonDict = {}
        if self.gc is not None:
            reached = gc_of(self.output)
            extra["gc"] = {"target": self.gc, "reached": reached, **totals["tilt"]}
        if self.weighted and not self.output.name.removesuffix(".gz").endswith(".txt"):
            sequences = [sequence for _, sequence in records_of(collected, self.output)]
            extra["weights"] = summarize_weights(self.weights(collected), sequences, request.each)
        if self.resampled is not None:
            extra["weights"]["resampled"] = self.resampled
        if self.index is not None:
            # The longest exact match of each record with the training part, either strand.
            found = memorization.of_file(self.output, self.index)
            extra["copies"] = memorization.summary(found)
        self.content = {
            "synthetic": True,
            "records": request.num_groups * (self.resampled or request.each),
            "model": {
                "checkpoint": str(self.model.path),
                "sha256": self.settings["model"],
                "step": self.model.step,
            },
            "sampler": sampler_name(sampler),
            "sampler_settings": sampler_settings(sampler),
            # As given, with defaults that depend on the model left open.
            "sampler_options": totals["sampler_options"],
            **({} if self.steps is None else {"steps": self.steps}),
            "network_calls": totals["nfe"],
            **{key: totals[key] for key in ("rows", "tokens")},
            "seconds": round(totals["seconds"], 3),
            "sessions": totals["sessions"],
            "seed": self.seed,
            **extra,
            "inputs": self.inputs,
        }
        return self.content

    def table(self) -> dict[str, str]:
        """What is printed of the finished file."""
        return {}

    def closing(self, seconds: float) -> str:
        content = self.content
        generated = len(self.request)
        gc, of_weights = (content.get(key) for key in ("gc", "weights"))
        pilot = f"; {gc['pilot_calls']:,} of them set the GC" if gc else ""
        calls = f"{content['network_calls']:,} ({content['rows']:,} sequences in them{pilot})"
        sequences = f"{content['records']:,} of {content['tokens'] / generated:,.0f} tokens"
        rows: dict[str, str] = {
            "sequences": sequences,
            "sampler": f"{content['sampler']}, seed {self.seed}",
            "network calls": calls,
            "time": duration(content["seconds"]),
            "sequences/s": f"{generated / max(content['seconds'], 1e-9):.2f}",
        }
        if gc:
            rows["GC"] = f"{gc['reached']:.4f}, target {gc['target']:g}"
        rows |= self.table()
        if of_weights:
            drawn = ", resampled" if "resampled" in of_weights else ""
            size = f"{of_weights['effective_size']['mean']:.1f} of {of_weights['proposals']:,}"
            rows["effective sample size"] = f"{size} (copies count once){drawn}"
            rows[self.mass] = f"{of_weights['log_mass']['mean']:.2f} nats"
        if "copies" in content:
            longest = content["copies"]["longest"]
            text = f"{longest['max']} bases, {longest['mean']:.1f} on average"
            if unguided := content.get("unguided"):
                text += f", unguided {unguided['longest_match']:.1f}"
            rows["longest match with training"] = text
        return (
            f"{table(list(rows.items()))}\n{super().closing(seconds)} and {json_path(self.output)}"
        )

    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        generator = self.tuned()
        first = start + skip
        before = time.monotonic()
        for batch in generator.batches(self.request, self.seed, self.batch_size, first):
            numbers = range(first, first + len(batch.targets))
            content = b""
            found = generator.facts(batch, numbers, self.seed)
            for row, (target, sequence) in enumerate(zip(batch.targets, batch.tokens)):
                about = {**self.header_of_records, "calls": batch.nfe, **target.about, **found[row]}
                if self.weighted and batch.log_weight is not None:
                    about["log_weight"] = f"{batch.log_weight[row]:.6f}"
                text = generator.text(target, sequence)
                content += record_of(self.output, target.name, text, about)
            totals = self.totals_of(batch) | {"seconds": time.monotonic() - before}
            self.report(len(numbers), totals["tokens"])
            yield Result(len(numbers), content, totals)
            first = first + len(numbers)
            before = time.monotonic()
