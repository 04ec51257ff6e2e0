"""Pages of HTML from the templates next to this file, and the page and overview picture of a run.

Templates escape all text that they get. The numbers come from `dnadiff.genomics.metrics` and from
the JSON files of the commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup, escape

from dnadiff.report import figures, panels, results
from dnadiff.report.headlines import headlines, listed, sentences
from dnadiff.report.results import Results, RunResults, has_loss, markov_models
from dnadiff.store.disk import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PATHS = {"path": 1, "checkpoint": 3}  # names of files, and how many of their last parts are shown
_LABELS = {
    "n_policy": "N policy",
    "num_draws": "Draws",
    "path": "File",
    "scan": "Scan kernel",
    "step": "Steps",
}
_NOTHING = "nothing to report: give metrics, evaluation, samples with real windows, or finetune"


@cache
def environment() -> Environment:
    """Jinja's environment of the templates, with the panels and tables that they show."""
    found = Environment(
        loader=PackageLoader("dnadiff.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"cell": _cell, "label": _label, "shown": shown, "svg": figures.inline_svg}
    functions = (
        *(figures.panel, figures.group_panels, headlines, sentences, listed, has_loss),
        *(markov_models, results.metric_of, results.progress, results.loss_rows, results.bits_rows),
        *(results.curve_rows, results.kmer_rows, results.gc_rows),
    )
    found.globals |= {function.__name__: function for function in functions}
    found.globals |= {"panels": panels, "tested": _tested, "responsible_use": _responsible_use}
    found.globals["version"] = _version
    return found


def write_page(path: str | os.PathLike[str], template: str | Template, **values: object) -> Path:
    """Write the page of a template, or of the one of this name, atomically and return its path."""
    name = f"{template}.html.j2" if isinstance(template, str) else template
    content = environment().get_template(name).render(values)
    with atomic_write(Path(path), overwrite=True) as file:
        file.write(content.encode())
    return Path(path)


def write_report(
    path: str | os.PathLike[str],
    results: RunResults,
    *,
    title: str | None = None,
    details: Results | None = None,
    commands: Sequence[str] = (),
) -> Path:
    """Write the report page of a run.

    Args:
        path: an existing file is replaced atomically.
        title: by default it has the name of the data.
        details: further facts about the model, such as `{"scan": "cpu", "Layers": 4}`.
        commands: command lines that produced the results.

    Raises:
        ValueError: if there are no results.
    """
    evaluation, finetune = results.evaluation, results.finetune
    if not (results.metrics or evaluation or results.composition or finetune):
        raise ValueError(_NOTHING)
    name = (evaluation or {}).get("data", {}).get("name")
    shows = [f"how well it predicts held-out {results.unit}s"] if evaluation else []
    shows += ["how its samples compare with real windows"] if results.composition else []
    shows += ["how it classifies sequences"] if finetune else []
    return write_page(
        path,
        "run",
        title=title or (f"Masked diffusion on {name}" if name else "A masked diffusion run"),
        data_name=name,
        shows=shows,
        has_baselines=finetune or (evaluation and markov_models(evaluation)),
        results=results,
        details=details,
        commands=commands,
    )


def save_overview(path: str | os.PathLike[str], results: RunResults, pixels: int = 1200) -> Path:
    """Save the main panels of a run in one picture, `.png` (`pixels` wide) or `.svg`.

    Raises:
        ValueError: if there are no results, or the name has another suffix.
    """
    metrics, evaluation, composition = results.metrics, results.evaluation, results.composition
    unit = results.unit
    chosen: list[Callable[[Axes], None]] = []
    if metrics and has_loss(metrics):
        chosen.append(partial(panels.loss_curve, metrics=metrics, unit=unit))
    if evaluation:
        chosen.append(partial(panels.held_out_bits, evaluation=evaluation, unit=unit))
        if evaluation.get("curve"):
            curve, uniform = panels.visibility_curve, results.uniform_bits
            chosen.append(partial(curve, evaluation=evaluation, unit=unit, uniform_bits=uniform))
    if composition:
        drawn = (panels.kmer_frequencies, panels.gc_content)
        chosen += [partial(draw, composition=composition) for draw in drawn]
    if results.finetune:
        chosen.append(partial(panels.accuracies, finetune=results.finetune))
    if not chosen:
        raise ValueError(_NOTHING.replace("report", "draw"))
    return figures.save(figures.overview(chosen), path, pixels)


def _cell(text: str) -> Markup:
    """The text with a line break allowed after each underscore: long names would push the last
    columns off the screen."""
    return escape(text).replace("_", Markup("_<wbr>"))


def _label(key: str) -> str:
    return _LABELS.get(key) or key[:1].upper() + key[1:].replace("_", " ")


def shown(value: object, key: str = "") -> str:
    """A value as text; absolute paths are cut to their last parts, so that a shared page does not
    show the folders of its author."""
    if isinstance(value, Mapping):
        inner = {name: key if key in _PATHS else str(name) for name in value}
        return ", ".join(f"{name} {shown(value[name], inner[name])}" for name in value)
    if isinstance(value, list | tuple):
        return ", ".join(shown(each, key) for each in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if key in _PATHS:  # several are joined
        return ", ".join(_short_path(one, _PATHS[key]) for one in str(value).split(", "))
    return str(value)


def _short_path(path: str, parts: int) -> str:
    return str(Path(*Path(path).parts[-parts:])) if os.path.isabs(path) else path


def _tested(evaluation: Results) -> Results:
    return {key: evaluation[key] for key in ("part", "protocol", "num_draws") if key in evaluation}


def _responsible_use() -> str:
    package = Path(__file__).resolve().parents[1]
    places = (folder / "RESPONSIBLE_USE.md" for folder in (package, package.parent))
    return next(path for path in places if path.is_file()).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return metadata.version("dnadiff")
    except metadata.PackageNotFoundError:
        return "(not installed)"
