"""Interactive charts of pages, by Vega-Altair: values on hover, zoom by the wheel, no network.

A chart reads the rows of a frame, at most 5,000 of them, evenly spaced; the file next to the page
has all. Names of columns are the titles of axes. Text has the color of the page's text, also in
dark mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import altair as alt
import numpy as np
import pandas

from dnadiff.fields import Json, JsonDict
from dnadiff.plot import (
    ARROWS,
    FAINT,
    MODEL,
    PALETTE,
    ROWS,
    Gene,
    Saturation,
)

Chart = alt.Chart | alt.LayerChart | alt.FacetChart
MAX_POINTS = 5000
_MAX_MARKED = 200  # points on lines
HEIGHT = 300
_TEXT: Json = {"labelColor": "currentColor", "titleColor": "currentColor"}
CONFIG: Json = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "axis": {
        **_TEXT,
        **dict.fromkeys(("domainColor", "tickColor", "gridColor"), "currentColor"),
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "gridOpacity": 0.1,
        "labelFlush": False,
        "labelOverlap": True,
        "labelSeparation": 6,
    },
    "legend": {
        **_TEXT,
        "orient": "bottom",
        "columns": {"signal": "width < 500 ? 1 : 2"},  # names would be cut on a phone
        "symbolOpacity": 1,
        "labelLimit": 240,
    },
    "title": {"color": "currentColor", "anchor": "start"},
    "view": {"stroke": None},
    "range": {"category": PALETTE},
}
_WIDTH: Json = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )


def specification(chart: Chart, label: str) -> JsonDict:
    """A chart in Vega-Lite's JSON, as wide as its place on the page; `label` is for screen
    readers."""
    made = chart.to_dict(validate=False)
    return {**made, "description": label, "config": CONFIG, **_WIDTH}


def records(frame: pandas.DataFrame) -> list[JsonDict]:
    """At most 5,000 rows of a frame, evenly spaced, for JSON: a value that is not finite is
    null."""
    places = np.linspace(0, len(frame) - 1, min(len(frame), MAX_POINTS)).astype(int)
    rows = frame.iloc[places].replace([np.inf, -np.inf], np.nan).astype(object)
    return rows.where(rows.notna(), None).to_dict("records")


def scatter(
    frame: pandas.DataFrame, x: str, y: str, color: str | None = None, tooltip: Sequence[str] = ()
) -> Chart:
    """Points at two columns of numbers, colored by a third."""
    encoded = (
        _chart(frame)
        .mark_circle(size=36, opacity=0.65)
        .encode(
            x=_axis(alt.X, x),
            y=_axis(alt.Y, y),
            color=_color(frame, color),
            tooltip=_tooltip(frame, tooltip or (x, y, color)),
        )
    )
    return encoded.add_params(_zoom()).properties(height=HEIGHT)


def lines(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    band: tuple[str, str] | None = None,
) -> Chart:
    """Lines through the rows in the order of `x`, one for each value of `color`, with points if
    they are few; `band` names the columns of the lower and the upper end of a band around them."""
    points = alt.OverlayMarkDef(size=25) if len(frame) <= _MAX_MARKED else False
    base = _chart(frame).encode(x=_axis(alt.X, x), color=_color(frame, color))
    drawn = base.mark_line(point=points, strokeWidth=1.8).encode(
        y=_axis(alt.Y, y), tooltip=_tooltip(frame, (color, x, y, *(band or ())))
    )
    layers = [drawn.add_params(_zoom())]
    if band is not None:
        low, high = band
        area = base.mark_area(opacity=0.18)
        layers.insert(0, area.encode(y=_axis(alt.Y, low, title=y), y2=_end(alt.Y2, high)))
    return alt.layer(*layers).properties(height=HEIGHT)


def dots(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    interval: tuple[str, str],
    color: str | None = None,
    zero: bool = False,
) -> Chart:
    """Points at a number `x` for each name `y`, of one or two lines, in the order of the rows;
    `interval` names the columns of the ends of a line through each point, and `zero` puts 0 on the
    axis."""
    axis = alt.Axis(labelLimit=200, labelExpr="split(datum.label, '\\n')", labelOverlap=False)
    base = _chart(frame).encode(
        y=_field(alt.Y, y, type="nominal", sort=None, title=None, axis=axis),
        color=_color(frame, color),
    )
    low, high = interval
    scale = alt.Scale(zero=zero)
    lines = base.mark_rule(strokeWidth=2).encode(
        x=_axis(alt.X, low, title=x, scale=scale), x2=_end(alt.X2, high)
    )
    points = base.mark_circle(size=90, opacity=1).encode(
        x=_axis(alt.X, x, scale=scale), tooltip=_tooltip(frame, (y, x, color, *interval))
    )
    return alt.layer(lines, points).properties(height=alt.Step(28))


def histogram(frame: pandas.DataFrame, x: str, color: str | None = None) -> Chart:
    """The distribution of a column of numbers, for each value of `color`: % of its rows in each of
    at most 40 bins, and dashed lines at the means."""
    groups: list[Any] = [] if color is None else [color]
    known = frame[np.isfinite(frame[x].to_numpy(float))][[x, *groups]]
    base = _chart(known).encode(color=_color(known, color))
    shares = base.transform_joinaggregate(total="count()", groupby=groups)
    shares = shares.transform_calculate(share="100 / datum.total")
    percent: Json = {"aggregate": "sum", "field": "share", "type": "quantitative", "title": "%"}
    binned: Json = {"type": "quantitative", "bin": alt.Bin(maxbins=40)}
    filled = shares.mark_bar(opacity=0.5, binSpacing=0).encode(
        x=_field(alt.X, x, **binned),
        y=alt.Y(stack=None, **percent),
        tooltip=[
            _field(alt.Tooltip, x, **binned),
            alt.Tooltip(format=".3g", **percent),
            *_tooltip(known, groups),
        ],
    )
    dashed = base.mark_rule(strokeDash=[5, 4], strokeWidth=1.6)
    means = dashed.encode(x=_axis(alt.X, x, aggregate="mean"))
    return alt.layer(filled, means).properties(height=HEIGHT)


def heat_map(found: Saturation, genes: Iterable[Gene] = ()) -> Chart:
    """Effects of all variants of a region, alleles x positions of the genome, which zooms along the
    genome; letters of the genome where there is room for them. The genes of each strand are a row
    below."""
    names = ["position", "base", "allele", found.unit, "bits"]
    table = pandas.DataFrame([*found.variants()], columns=names)
    table["low"], table["high"] = table["position"] - 0.5, table["position"] + 0.5
    tracks = pandas.DataFrame(
        [
            (gene[3], f"genes {ARROWS.get(gene[4], '')}", low + 0.5, high + 0.5)
            for low, high, gene in found.overlapping(genes)
        ],
        columns=["gene", "allele", "low", "high"],
    )
    rows = [*found.rows, *sorted({*tracks["allele"]})]
    scale = alt.Scale(domain=[found.start + 0.5, found.end + 0.5], nice=False, zero=False)
    ticks = alt.Axis(format=",d", tickMinStep=1)
    axis = partial(alt.X, title=found.chrom, scale=scale, axis=ticks)
    row = alt.Y("allele:N", sort=rows, scale=alt.Scale(domain=rows), title=None)
    between: Json = {"x": axis("low:Q"), "x2": "high", "y": row}
    color = _field(
        alt.Color,
        found.unit,
        type="quantitative",
        scale=alt.Scale(scheme="redblue", domain=[-found.limit, found.limit], clamp=True),
        legend=alt.Legend(gradientLength=160),
    )
    tooltip = _tooltip(table, names if found.has_information else names[:-1])
    marks = _chart(table).mark_rect().encode(color=color, tooltip=tooltip, **between)
    # Letters of at most 12 pixels, none where a base has less than 6.
    pixels = "width / (domain('x')[1] - domain('x')[0])"
    own = pandas.DataFrame(
        {"position": range(found.start + 1, found.end + 1), "allele": found.bases}
    )
    letters = _chart(own[own["allele"].isin(ROWS)]).mark_text(
        color="currentColor", fontSize=alt.expr(f"{pixels} < 6 ? 0 : min(12, {pixels})"), clip=True
    )
    layers = [
        marks.add_params(_zoom("x")),
        letters.encode(x=axis("position:Q"), y=row, text="allele:N"),
    ]
    if len(tracks):
        drawn = _chart(tracks).encode(tooltip="gene:N", **between)
        layers.append(drawn.mark_rect(color=FAINT, opacity=0.5, clip=True))
        named = drawn.mark_text(align="left", dx=4, color="currentColor", clip=True)
        layers.append(named.encode(x2=alt.Undefined, text="gene:N"))
    return alt.layer(*layers).properties(height=alt.Step(24))


def _chart(frame: pandas.DataFrame) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=records(frame)))


def _field(kind: Any, column: str, **more: Any) -> Any:
    """The encoding of a column, whose name is the title; Vega reads dots and brackets in the name
    of a field as a path."""
    return kind(**{"field": re.sub(r"([.\[\]])", r"\\\1", column), "title": column, **more})


def _end(kind: Any, column: str) -> Any:
    """The other end of a bar or line; Vega would append its title."""
    return _field(kind, column, title=alt.Undefined)


def _axis(kind: Any, column: str, **more: Any) -> Any:
    """An axis of numbers that need not contain 0."""
    return _field(kind, column, **{"type": "quantitative", "scale": alt.Scale(zero=False), **more})


def _color(frame: pandas.DataFrame, column: str | None) -> Any:
    if column is None:
        return alt.value(MODEL)
    if frame[column].dtype.kind in "iuf":
        return _field(alt.Color, column, type="quantitative", scale=alt.Scale(scheme="viridis"))
    return _field(alt.Color, column, type="nominal", sort=None)


def _tooltip(frame: pandas.DataFrame, columns: Iterable[str | None]) -> list[alt.Tooltip]:
    forms: Json = {"f": {"type": "quantitative", "format": ".4g"}}
    forms["i"] = forms["u"] = {"type": "quantitative", "format": ","}
    return [
        _field(alt.Tooltip, column, **forms.get(frame[column].dtype.kind, {"type": "nominal"}))
        for column in dict.fromkeys(columns)
        if column is not None
    ]


def _zoom(encodings: Sequence[Any] = ("x", "y")) -> alt.Parameter:
    """Wheel and drag change the scales of these axes; a double click resets them."""
    return alt.selection_interval(bind="scales", name="zoom", encodings=list(encodings))
