"""Interactive charts of pages, by Vega-Altair: values on hover, zoom by the wheel, no network.

A chart reads the rows of a frame, at most 5,000 of them, evenly spaced; the file next to the page
has all. Its text has the color of the page's text, also in dark mode.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dnadiff.fields import Json, JsonDict
from dnadiff.plot.figures import ROWS, Saturation
from dnadiff.plot.style import FAINT, MODEL, OTHER, PALETTE, percentages

if TYPE_CHECKING:
    import altair as alt
    import pandas

    Chart = alt.Chart | alt.LayerChart | alt.FacetChart

Titles = Mapping[str, str]  # of columns, with their units
_NO_TITLES: Titles = MappingProxyType({})
MAX_POINTS = 5000
HEIGHT = 300
_TEXT: Json = {"labelColor": "currentColor", "titleColor": "currentColor"}
_AXIS: Json = {
    "domainColor": "currentColor",
    "tickColor": "currentColor",
    "gridColor": "currentColor",
}
CONFIG: Json = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "axis": {
        **_TEXT,
        **_AXIS,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "gridOpacity": 0.1,
    },
    "legend": {**_TEXT, "orient": "bottom", "columns": 3, "symbolOpacity": 1, "labelLimit": 240},
    "title": {"color": "currentColor", "anchor": "start"},
    "view": {"stroke": None},
    "range": {"category": PALETTE},
}

_WIDTH: Json = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


@functools.cache
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
    rows = frame.iloc[places].to_dict("records")
    return [{str(key): _plain(value) for key, value in row.items()} for row in rows]


def scatter(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    tooltip: Sequence[str] = (),
    link: str | None = None,
    titles: Titles = _NO_TITLES,
) -> Chart:
    """Points at two columns of numbers, colored by a third; `link` is a column of addresses that a
    click opens, `titles` the labels of columns with their units."""
    import altair as alt

    is_number = color is not None and frame[color].dtype.kind in "iuf"
    scale: Json = {"scale": alt.Scale(scheme="viridis")} if is_number else {"sort": None}
    points = _chart(frame).mark_circle(size=36, opacity=0.65)
    encoded = points.encode(
        x=_axis(alt.X, x, titles),
        y=_axis(alt.Y, y, titles),
        color=_color(color, titles, "Q" if is_number else "N", **scale),
        tooltip=_tooltip(frame, tooltip or (x, y, color), titles),
        **({} if link is None else {"href": f"{link}:N"}),
    )
    return encoded.add_params(_zoom()).properties(height=HEIGHT)


def lines(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    band: tuple[str, str] | None = None,
    titles: Titles = _NO_TITLES,
    log: bool = False,
) -> Chart:
    """Lines through the rows in the order of `x`, one for each value of `color`; `band` names the
    columns of the lower and the upper end of a band around them, `log` makes `y` logarithmic."""
    import altair as alt

    base = _chart(frame)
    place = _axis(alt.X, x, titles)
    of_line = {"color": _color(color, titles, sort=None)}
    kind = {"type": "log"} if log else {}
    drawn = base.mark_line(point=alt.OverlayMarkDef(size=25), strokeWidth=1.8).encode(
        x=place,
        y=_axis(alt.Y, y, titles, **kind),
        tooltip=_tooltip(frame, (color, x, y, *(band or ())), titles),
        **of_line,
    )
    layers = [drawn.add_params(_zoom())]
    if band is not None:
        low, high = band
        area = base.mark_area(opacity=0.18)
        layers.insert(0, area.encode(x=place, y=f"{low}:Q", y2=f"{high}:Q", **of_line))
    return alt.layer(*layers).properties(height=HEIGHT)


def bars(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    color: str | None = None,
    interval: tuple[str, str] | None = None,
    titles: Titles = _NO_TITLES,
) -> Chart:
    """Horizontal bars: a number `x` for each name `y`, in the order of the rows; `interval` names
    the columns of the ends of a line on each bar."""
    import altair as alt

    base = _chart(frame)
    row = alt.Y(f"{y}:N", sort=None, title=titles.get(y), axis=alt.Axis(labelLimit=200))
    drawn = base.mark_bar(opacity=0.85).encode(
        x=alt.X(f"{x}:Q", title=titles.get(x, x)),
        y=row,
        color=_color(color, titles, sort=None),
        tooltip=_tooltip(frame, (y, x, color, *(interval or ())), titles),
    )
    layers: list[alt.Chart] = [drawn]
    if interval is not None:
        low, high = interval
        ends = base.mark_rule(color=OTHER, strokeWidth=2)
        layers.append(ends.encode(x=f"{low}:Q", x2=f"{high}:Q", y=row))
    return alt.layer(*layers).properties(height=alt.Step(26))


def histogram(
    frame: pandas.DataFrame, x: str, color: str | None = None, titles: Titles = _NO_TITLES
) -> Chart:
    """The distribution of a column of numbers, for each value of `color`: % of its rows in each of
    at most 40 bins, and dashed lines at the means."""
    import altair as alt
    import pandas

    values = frame[x].to_numpy(float)
    edges = np.histogram_bin_edges(values[np.isfinite(values)], min(40, max(len(values) // 5, 8)))
    groups = [("", frame)] if color is None else list(frame.groupby(color, sort=False))
    shares, means = [], []
    for name, group in groups:
        known = group[x].to_numpy(float)
        known = known[np.isfinite(known)]
        of_bin = percentages(known, edges) if len(known) else np.zeros(len(edges) - 1)
        ends = zip(edges, edges[1:], of_bin)
        shares += [{"low": a, "high": b, "share": c, "name": name} for a, b, c in ends if c]
        means.append({"name": name, "mean": known.mean() if len(known) else None})
    table = pandas.DataFrame(shares)
    names = {"low": "from", "high": "to", "share": "%", **titles}
    of_group = {"color": _color(None if color is None else "name", {"name": ""}, sort=None)}
    filled = (
        _chart(table)
        .mark_bar(opacity=0.5, binSpacing=0)
        .encode(
            x=alt.X(
                "low:Q",
                bin="binned",
                title=titles.get(x, x),
                scale=alt.Scale(zero=False, nice=False),
            ),
            x2="high:Q",
            y=alt.Y("share:Q", title="%", stack=None),
            tooltip=_tooltip(table, ("name", "low", "high", "share")[color is None :], names),
            **of_group,
        )
    )
    dashed = _chart(pandas.DataFrame(means)).mark_rule(strokeDash=[5, 4], strokeWidth=1.6)
    return alt.layer(filled, dashed.encode(x="mean:Q", **of_group)).properties(height=HEIGHT)


def heat_map(found: Saturation, genes: Iterable[Sequence[Json]] | None = None) -> Chart:
    """Effects of all variants of a region, alleles x positions of the genome, which zooms along the
    genome; letters of the genome where there is room for them, and genes below."""
    import altair as alt
    import pandas

    names = ["position", "base", "allele", "effect", "information"]
    table = pandas.DataFrame([*found.variants()], columns=names)
    table["low"], table["high"] = table["position"] - 0.5, table["position"] + 0.5
    first, last = found.start + 0.5, found.start + len(found.bases) + 0.5
    bars = [
        {"low": max(g[1] + 0.5, first), "high": min(g[2] + 0.5, last), "gene": g[3], "strand": g[4]}
        for g in genes or ()
        if g[0] == found.chrom and g[1] + 1 < last and g[2] > first
    ]
    order = [*found.rows, *["genes"] * bool(bars)]
    scale = alt.Scale(domain=[first, last], nice=False, zero=False)
    place = alt.X(
        "low:Q", title=found.chrom, scale=scale, axis=alt.Axis(format=",d", tickMinStep=1)
    )
    row = alt.Y("allele:N", sort=order, scale=alt.Scale(domain=order), title=None)
    colors = alt.Scale(scheme="redblue", domain=[-found.limit, found.limit], clamp=True)
    legend = alt.Legend(title=found.unit, gradientLength=160)
    shown = ["position", "base", "allele", "effect", *["information"] * found.has_information]
    marks = (
        _chart(table)
        .mark_rect()
        .encode(
            x=place,
            x2="high:Q",
            y=row,
            color=alt.Color("effect:Q", scale=colors, legend=legend),
            tooltip=_tooltip(table, shown, {"effect": found.unit, "information": "bits"}),
        )
    )
    # Letters of at most 12 pixels, none where a base has less than 6.
    pixels = "width / (domain('x')[1] - domain('x')[0])"
    own = pandas.DataFrame(
        [(found.start + 1 + i, base) for i, base in enumerate(found.bases) if base in ROWS],
        columns=["position", "allele"],
    )
    letters = _chart(own).mark_text(
        color="currentColor", fontSize=alt.expr(f"{pixels} < 6 ? 0 : min(12, {pixels})"), clip=True
    )
    layers = [
        marks.add_params(_zoom("x")),
        letters.encode(x=alt.X("position:Q", scale=scale), y=row),
    ]
    if bars:
        track = _chart(pandas.DataFrame(bars).assign(allele="genes"))
        encoded: Json = {"x": place, "y": row}
        hover = [alt.Tooltip(field=name, type="nominal") for name in ("gene", "strand")]
        boxes = track.mark_bar(color=FAINT, opacity=0.6, clip=True)
        text = track.mark_text(color="currentColor", align="left", dx=3, fontSize=10, clip=True)
        layers += [
            boxes.encode(x2="high:Q", tooltip=hover, **encoded),
            text.encode(text="gene:N", **encoded),
        ]
    return alt.layer(*layers).properties(height=alt.Step(24))


def _plain(value: Any) -> Json:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _chart(frame: pandas.DataFrame) -> alt.Chart:
    import altair as alt

    return alt.Chart(alt.InlineData(values=records(frame)))


def _tooltip(
    frame: pandas.DataFrame, columns: Sequence[str | None], titles: Titles
) -> list[alt.Tooltip]:
    import altair as alt

    forms: Json = {"f": {"type": "quantitative", "format": ".4g"}}
    forms["i"] = forms["u"] = {"type": "quantitative", "format": ","}
    return [
        alt.Tooltip(
            field=column,
            title=titles.get(column, column),
            **forms.get(frame[column].dtype.kind, {"type": "nominal"}),
        )
        for column in dict.fromkeys(columns)
        if column is not None
    ]


def _color(column: str | None, titles: Titles, kind: str = "N", **more: Any) -> Any:
    import altair as alt

    if column is None:
        return alt.value(MODEL)
    return alt.Color(f"{column}:{kind}", title=titles.get(column, column) or None, **more)


def _axis(kind: Any, column: str, titles: Titles, **scale: Any) -> Any:
    """An axis of numbers that need not contain 0."""
    import altair as alt

    title = titles.get(column, column)
    return kind(f"{column}:Q", title=title, scale=alt.Scale(zero=False, nice=True, **scale))


def _zoom(*encodings: Any) -> alt.Parameter:
    """Wheel and drag change the scales, of both axes if none is given; a double click resets
    them."""
    import altair as alt

    given: Json = {"encodings": [*encodings]} if encodings else {}
    return alt.selection_interval(bind="scales", name="zoom", **given)
