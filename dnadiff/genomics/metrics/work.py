"""The metrics of samples as a JSON file and a picture; groups of metrics do not depend on each
other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from typing_extensions import override

from dnadiff.fields import Json
from dnadiff.genomics.metrics.composition import Distance
from dnadiff.genomics.metrics.sample_quality import (
    QualityMetric,
    QualityPart,
    SampleQuality,
    SampleQualityEvaluator,
)
from dnadiff.jobs.job import Job, Result
from dnadiff.progress import table
from dnadiff.store.disk import atomic_write, write_json


class JudgeJob(Job):
    """All metrics of an evaluator. Items are groups of metrics.

    Args:
        about: what the JSON file says before the metrics.
        options: of the evaluator.
        searched: digest of the data that are searched for copies.
        draw: the picture, as the bytes of a PNG file.
    """

    stream = "metrics"
    label = "judge"

    def __init__(
        self,
        evaluator: SampleQualityEvaluator,
        output: Path,
        about: Mapping[str, Json],
        options: Mapping[str, Json],
        searched: str | None,
        draw: Callable[[SampleQuality], bytes],
    ) -> None:
        self.evaluator, self.output, self.about, self.draw = evaluator, output, about, draw
        self.picture = output.with_name(f"{output.name.removesuffix('.json')}.png")
        self.side_files = (self.picture,)
        windows = {"samples": evaluator.samples, "real": evaluator.real}
        digests = {
            key: hashlib.sha256(bases.tobytes()).hexdigest() for key, bases in windows.items()
        }
        self.settings = {**options, **digests, "searched": searched}
        self.quality: SampleQuality | None = None
        self.content: dict[str, Json] = {}

    @override
    def starts(self) -> list[int]:
        return list(range(len(self.evaluator.parts()) + 1))

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for part in self.evaluator.parts()[start + skip :]:
            found = part()
            curves = (
                None
                if found.information is None
                else [curve.tolist() for curve in found.information]
            )
            self.report(1, 0)
            content = {"metrics": list(map(asdict, found.metrics)), "information": curves}
            yield Result(1, json.dumps(content).encode())

    @override
    def write(self, results: Iterator[Result]) -> None:
        """Write the picture, then the JSON file, which says that both are complete; nothing before
        both are known."""
        quality = self.quality = self.evaluator.joined(map(_part_of, results))
        self.content = {**self.about, **quality.content()}
        drawn = self.draw(quality)
        with atomic_write(self.picture, overwrite=True) as file:
            file.write(drawn)
        write_json(self.output, self.content)

    @override
    def closing(self, seconds: float) -> str:
        quality = self.quality
        assert quality is not None
        rows: list[tuple[str, ...]] = [
            (
                m.name,
                m.unit,
                f"{m.distance.samples:.4g}",
                ""
                if math.isnan(m.distance.interval[0])
                else f"{m.distance.interval[0]:.4g} to {m.distance.interval[1]:.4g}",
                f"{m.distance.baseline:.4g}",
                f"{m.distance.low:.4g} to {m.distance.high:.4g}",
                "WARNING: too similar" if m.warns else m.verdict,
            )
            for m in quality.metrics
        ]
        columns = ("metric", "unit", "samples", "95 % interval", "real", "95 % of real sets")
        return "\n".join(
            [
                table(rows, (*columns, "the samples are")),
                f"sets of {quality.num_compared:,} sequences of {quality.length:,} bases; "
                "distances are between a set and as many real windows",
                *(f"WARNING: {line}" for line in quality.warnings()),
                f"files are in {self.output} and {self.picture}",
            ]
        )


def _part_of(result: Result) -> QualityPart:
    """The metrics in a result."""
    content = json.loads(result.content)
    metrics = []
    for about in content["metrics"]:
        values = about["distance"] | {"interval": tuple(about["distance"]["interval"])}
        metrics.append(QualityMetric(**(about | {"distance": Distance(**values)})))
    curves = content["information"]
    return QualityPart(
        metrics, None if curves is None else (np.array(curves[0]), np.array(curves[1]))
    )
