"""Samples as formatted records, in batches that do not depend on each other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from typing_extensions import override

from dnadiff.config import Json
from dnadiff.design import provenance
from dnadiff.design.generate import ConditionalSampler, SampleBatch, fit_tilt
from dnadiff.design.records import text_record, writer_of
from dnadiff.design.request import Request
from dnadiff.design.reward_options import Summary
from dnadiff.jobs.job import Result, ResumableJob
from dnadiff.jobs.journal import is_compressed, json_path
from dnadiff.metrics import memorization
from dnadiff.metrics.memorization import TrainingIndex
from dnadiff.progress import duration, table
from dnadiff.weights.loaded import Loaded

_ADDED = ("nfe", "rows", "tokens", "seconds")  # totals that are sums over batches
log = logging.getLogger("dnadiff")


class SampleJob(ResumableJob):
    """The samples of a request. Items are samples, units are batches.

    Args:
        generator: with a tilt that is not 0 if `gc` is given.
        header: how samples are made, for their headers.
        weighted: whether headers have importance weights.
        gc: target fraction of G and C, for which `prepare` calibrates the tilt; None is no target.
        resampled: records that are drawn from those of a group; None keeps all.
        started: options of the sampler as given, which a resumed file is compared with.
        inputs: what samples are conditioned on, for the JSON file.
        index: of the training data, in which copies are searched for.
        design: of a reward.
        page: writes the page of designs.
    """

    stream, label, items = "samples", "sample", "sequences"

    def __init__(
        self,
        model: Loaded,
        generator: ConditionalSampler,
        request: Request,
        output: Path,
        *,
        seed: int,
        batch_size: int,
        header: Mapping[str, Json],
        weighted: bool,
        gc: float | None,
        resampled: int | None,
        settings: Mapping[str, Json],
        started: Mapping[str, Json],
        inputs: Mapping[str, Json],
        index: Callable[[], TrainingIndex] | None = None,
        design: Summary | None = None,
        page: Callable[[], object] | None = None,
    ) -> None:
        self.model, self.generator, self.request, self.output = model, generator, request, output
        self.seed, self.batch_size, self.header_of_records = seed, batch_size, header
        self.weighted, self.gc, self.resampled, self.settings = weighted, gc, resampled, settings
        self.started, self.inputs, self.index = started, inputs, index
        self.design, self.page = design, page
        self.write_record, self.converts = writer_of(output), resampled is not None
        self.totals: dict[str, Json] = {
            "nfe": 0,
            "rows": 0,
            "tokens": 0,
            "gc": [0, 0],
            "seconds": 0.0,
            "tilt": None,
            "sessions": 0,
            "sampler_options": started,
            **({} if design is None else design.totals),
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
            self.design.add(self.totals, result.about)
        folded = super().fold(result)
        rate = (self.position - self.first) / max(time.monotonic() - self.clock, 1e-9)
        notes = {"sequences/s": f"{rate:.2f}", "network calls": f"{self.totals['nfe']:,}"}
        self.report(0, 0, **notes)
        return folded

    @override
    def convert(self, collected: Path) -> None:
        assert self.resampled is not None
        self._written_gc = provenance.resample(
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
        if self.write_record is not text_record and provenance.has_weights(collected, compressed):
            weights = provenance.weights(collected, compressed)
            extra["weights"] = provenance.summarize_weights(weights, request.each)
        if self.resampled is not None:
            extra["weights"] |= {"resampled": self.resampled}
        if self.index is not None:
            # The longest exact match of each record with the training part, either strand.
            found = memorization.of_file(self.output, self.index())
            extra["copies"] = memorization.summary(found)
        if self.design is not None:
            extra["design"] = self.design.summary(totals, len(request), self.output)
        # Upper limit of the network calls that fill the masks of a batch; methods of designs make
        # more.
        steps = {} if self.design else {"steps": sampler.num_steps_for(request.lengths[1])}
        self.content = {
            "records": len(request)
            if self.resampled is None
            else request.num_groups * self.resampled,
            "model": {
                "checkpoint": str(self.model.path),
                "sha256": self.settings["model"],
                "step": self.model.step,
            },
            "sampler": provenance.sampler_name(sampler),
            "sampler_settings": provenance.sampler_settings(sampler),
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
            rows += self.design.rows(content["design"], generated)
        if "weights" in content:
            w = content["weights"]
            drawn = ", resampled" if "resampled" in w else ""
            size = f"{w['effective_size']['mean']:.1f} of {w['proposals']:,}{drawn}"
            mass = "log normalizing constant" if self.design else "log mass of the constraints"
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
