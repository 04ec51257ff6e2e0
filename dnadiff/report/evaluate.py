"""The page of `evaluate`: held-out likelihood next to Markov models, by groups of bases, and how it
depends on the number of visible tokens."""

from __future__ import annotations

from typing import Any

from dnadiff.options.base import Result
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Table


def page(result: Result, options: Any) -> Page:
    """The page of the content of the JSON file."""
    import pandas

    content = result.content
    model = content["groups"]["all"]
    unit = "bits per base" if content["is_dna"] else "bits per token"
    named = {"this model": content["groups"]}
    named |= {f"Markov order {m['order']}": m["groups"] for m in content["markov"]}
    rows = [
        {"model": name, "group": group, unit: g["bits"], "perplexity": g["perplexity"]}
        | {"low": g.get("bits_low"), "high": g.get("bits_high"), "tokens": g.get("tokens")}
        for name, groups in named.items()
        for group, g in groups.items()
    ]
    frame = pandas.DataFrame(rows)
    ends = "low", "high"
    novel = f"; novel: in no 24-mer, {content['novelty']}" if content["novelty"] else ""
    novel += "; in and outside: types of regions" if "annotation" in content else ""
    pictures = []
    all_tokens = f"All tokens: {unit}, lower is better, and the 95 % interval of this model."
    by_group = f"This model by groups of tokens, with 95 % intervals{novel}."
    for row, part, text in (
        ("model", frame[frame["group"] == "all"], all_tokens),
        ("group", frame[frame["model"] == "this model"], by_group),
    ):
        if len(part) > 1:
            drawn = charts.dots(part, unit, row, ends)
            pictures.append(Picture(f"{row}s", f"{unit} of each {row}", text, drawn))
    if content["curve"]:
        visible = "visible tokens"
        names = {"visible": visible, "bits": unit}
        curve = pandas.DataFrame(content["curve"]).rename(columns=names)
        error = 1.96 * curve["se"]
        curve = curve.assign(low=curve[unit] - error, high=curve[unit] + error)
        drawn = charts.lines(curve, visible, unit, band=ends)
        text = "h(n): the cost of one more token, if n random others of its window are visible."
        pictures.append(Picture("curve", "h(n) by visible tokens", text, drawn))
    others = frame[(frame["model"] != "this model") & (frame["group"] == "all")]
    best = f"; the best Markov model needs {others[unit].min():.4f}" if len(others) else ""
    sentence = (
        f"{model['bits']:.4f} {unit} (95 % interval {model['bits_low']:.4f} to "
        f"{model['bits_high']:.4f}) on {model['tokens']:,} tokens of the {content['part']} part"
        f"{best}."
    )
    cells = [
        [f"{x:.4f}".replace("nan", "—") if isinstance(x, float) else x for x in row.values()]
        for row in rows
    ]
    made = {**content["model"], "data": content["data"]["name"]}
    return Page(
        "Held-out likelihood",
        sentence,
        pictures,
        Table(list(rows[0]), cells, content["protocol"], range(2, 7)),
        made=made | {"window": content["data"]["window"]},
    )
