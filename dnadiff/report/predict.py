"""The page of `predict`: the distribution of the predictions, where they are, and the highest."""

from typing import Any

from dnadiff.options.base import Result
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table, interval

_SHOWN = 50
_COLORS = 10  # records
_PLACE = ("chrom", "start", "end", "strand", "name", "length", "predicted", "label")


def page(result: Result, options: Any) -> Page:
    """The page of a finished table."""
    frame = result.frame.astype({"name": str})
    content = result.content
    columns = [f"{x}_{c}" for c in content["classes"] for x in ("p", "predicted")]
    columns = [column for column in columns if column in frame]
    chosen = f"p_{options.track_class}"
    value = chosen if chosen in columns else columns[-1]  # the second of two classes
    is_class = "predicted" in frame
    label = "label" if "label" in frame else None
    title = value.replace("p_", "probability of ", 1)
    named = frame.rename(columns={value: title})
    chart = charts.histogram(named, title, label)
    text = "All predictions; a dashed line is a mean."
    pictures = [Picture("values", f"distribution of {value}", text, chart)]
    if "start" in frame:
        place = "chrom" if "chrom" in frame else "name"
        chart = charts.scatter(
            named,
            "start",
            title,
            place if frame[place].nunique() <= _COLORS else None,
            (place, "start", "end", title),
        )
        text = "Each prediction at its place; at most 5,000 are drawn."
        pictures.append(Picture("places", f"{value} by place", text, chart))
    highest = frame.sort_values(value, ascending=False, kind="stable")[:_SHOWN]
    shown = [each for each in (*_PLACE, *columns) if each in frame]
    rows = [
        [name, each["value"], interval(each["low"], each["high"])]
        for name, each in (content["metrics"] or {"averaged": {}})["averaged"].items()
    ]
    metrics = Section("Metrics", [Table(("metric", "value", "95 % interval"), rows)])
    known = max(content["predictions"] - content["without_known_base"], 1)
    tally = [
        f"{n:,} times {name}" if is_class else f"mean {name} {n / known:.4g}"
        for name, n in content["predicted"].items()
    ]
    return Page(
        f"Predictions: {content['task']}",
        f"{content['predictions']:,} predictions: {', '.join(tally)}.",
        pictures,
        Table.of(highest[shown], f"The highest of {value}."),
        [metrics] if rows else [],
        {"checkpoint": options.checkpoint, "seeds": content["seeds"]},
    )
