"""Samples as formatted records, in batches that do not depend on each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from typing_extensions import override

from dnadiff.config import Json
from dnadiff.data.work import Result, Work
from dnadiff.design.generate import ConditionalSampler, SampleBatch, fit_tilt
from dnadiff.design.records import Writer
from dnadiff.design.request import Request


@dataclass
class SampleWork(Work):
    """The samples of a request. Items are samples, units are batches.

    Attributes:
        generator: with a tilt that is not 0 if `gc` is given.
        header: how samples are made, for their headers.
        write: formats a record.
        weighted: whether headers have importance weights.
        gc: target fraction of G and C, for which `prepare` calibrates the tilt; None is no target.
    """

    generator: ConditionalSampler
    request: Request
    seed: int
    batch_size: int
    header: Mapping[str, Json]
    write: Writer
    weighted: bool
    gc: float | None = None

    unit = "batches"

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
            about = {**self.header, "calls": batch.nfe, **target.about, **found[i]}
            if self.weighted and batch.log_weight is not None:
                about["log_weight"] = f"{batch.log_weight[i]:.6f}"
            content += self.write(target.name, generator.text(target, sequence), about)
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
