"""The metrics of samples as JSON, one part after the other; parts do not depend on each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from typing_extensions import override

from dnadiff.data.work import Result, Work
from dnadiff.metrics.composition import Distance
from dnadiff.metrics.sample_quality import QualityMetric, QualityPart, SampleQualityEvaluator


@dataclass
class QualityWork(Work):
    """All metrics of an evaluator. Items are groups of metrics."""

    evaluator: SampleQualityEvaluator

    unit = "groups of metrics"

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
            yield Result(
                1,
                json.dumps(
                    {"metrics": [asdict(metric) for metric in found.metrics], "information": curves}
                ).encode(),
            )


def part_of(result: Result) -> QualityPart:
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
