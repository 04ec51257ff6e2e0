"""`python -m dnadiff.zero_shot`: held-out likelihood on several text data sets, under several
protocols, in one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.progress import table

if TYPE_CHECKING:
    from dnadiff.denoiser import BaseDenoiser

PASSED = (
    "checkpoint",
    "num_draws",
    "batch_size",
    "block_size",
    "accelerator",
    "seed",
    "trust",
    "overwrite",
)
PARTS = ("test", "valid", "train", "published")
LAYOUT = (
    "length",
    "wrap",
    "insert_eos",
    "insert_valid_eos",
    "insert_special_tokens",
)  # of the training run: only the text differs
PUBLISHED = dict.fromkeys(
    ("ptb", "wikitext2", "wikitext103", "owt"), "valid"
)  # the part of the paper's numbers; test for other sets
KINDS = {"all": "counted", "without specials": "left out"}  # how a group treats special tokens
MISSING = "???"  # a value that the user must give, in Hydra's notation
log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "sets": list[str],
    "paths": dict[str, str | list[str] | dict[str, str | list[str]]] | None,
    "protocols": list[str],
    "part": str,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Json]:
    """Evaluate on all sets and return the contents of the JSON file: a row for each set, protocol
    and group of tokens."""
    from dnadiff.likelihood.evaluation import Evaluation, estimator_for, evaluate
    from dnadiff.store.disk import check_output, write_json
    from dnadiff.weights import checkpoint

    output = check_output(config["output"] or run_dir / "zero_shot.json", config["overwrite"])
    config |= {"paths": config["paths"] or {}}
    check(config)
    model = checkpoint.load(config["checkpoint"], config["trust"])
    if model.tokenizer.vocab.complement is not None:
        raise ValueError(
            f"the sets are texts, and {model.path} was trained on DNA; evaluate it by python -m "
            "dnadiff.evaluate data=..."
        )
    device = commands.pick_device(config["accelerator"])
    protocols = protocols_of(model.denoiser, config["protocols"])
    for protocol in protocols.values():
        estimator = estimator_for(model.denoiser, protocol)
        estimator.check(model.denoiser, model.process.noise, config["num_draws"])
    trained_on = model.config.get("data") or {"length": model.training_length()}
    chosen = {name: settings(config, name, trained_on) for name in config["sets"]}
    for name, one in chosen.items():  # errors come before the first evaluation
        data = build(one["data"], trust=None)
        data.expect(model.tokenizer)
        if one["part"] not in data.parts:
            remedy = "".join(f"part={part}, or " for part in data.parts)
            raise ValueError(
                f"{name} has no {one['part']} part; set {remedy}'paths={{{name}: {{{one['part']}: "
                f"FILE}}}}'"
            )
        data.prepare()
        data.test_windows(one["part"])
    rows: list[Json] = []
    layouts: dict[str, str] = {}
    replace = (
        config["overwrite"] or config["output"] is None
    )  # without zero_shot.json, those in its folder are of an interrupted command
    for name, one in chosen.items():
        for shown, protocol in protocols.items():
            path = check_output(run_dir / name / shown / "evaluate.json", replace)
            chosen_settings = {field.name: one[field.name] for field in fields(Evaluation)}
            asked = Evaluation(**chosen_settings | {"protocol": protocol})
            content = evaluate(model, asked, path, None, one["data"], one["trust"], device)
            rows += rows_of(name, one["part"], shown, content)
            layouts[name] = content["data"].get("layout") or content["data"]["n_policy"]
            if content["data"]["name"] == trained_on.get("name"):
                log.warning(
                    f"{name}: the model was trained on data of this name, so this is not zero-shot"
                )
    write_json(
        output,
        {"checkpoint": str(model.path), "step": model.step, "layouts": layouts, "rows": rows},
    )
    show(rows, layouts)
    print(f"files are in {output}")
    return rows


def check(config: Config) -> None:
    """Check sets, protocols and paths before anything is read; raises ValueError, naming the value
    and the choices."""
    from dnadiff.likelihood.evaluation import PROTOCOLS

    for key, example in (("sets", "ptb,lambada"), ("protocols", "count")):
        if (
            not isinstance(config[key], list)
            or not config[key]
            or len(set(config[key])) < len(config[key])
        ):
            raise ValueError(
                f"{key} {config[key]} must be a list of different names, such as {key}=[{example}]"
            )
    if wrong := [p for p in config["protocols"] if p not in PROTOCOLS]:
        raise ValueError(f"protocols {wrong[0]!r} is not known; choose count, mdlm or both")
    if config["part"] not in PARTS:
        raise ValueError(f"part {config['part']!r} is not known; choose one of {', '.join(PARTS)}")
    if not isinstance(config["paths"], Mapping) or set(config["paths"]) - set(config["sets"]):
        raise ValueError(
            f"paths {config['paths']} must name files by set: 'paths={{{config['sets'][0]}: FILE}}'"
        )


def protocols_of(denoiser: BaseDenoiser, chosen: Sequence[str]) -> dict[str, str]:
    """The protocols by the name to show: those chosen, if the model has the choice."""
    from dnadiff.likelihood.estimators import is_exact

    if is_exact(denoiser):
        return {"exact": "count"}
    return {name: name for name in (["count"] if denoiser.left_to_right else chosen)}


def settings(config: Config, name: str, trained_on: Config) -> Config:
    """The configuration of `evaluate` for one set, with windows of the training length and layout,
    as in MDLM's code."""
    one = commands.recompose("evaluate", [f"data={name}"])
    one |= {key: config[key] for key in PASSED} | {"orders": []}
    one["part"] = {
        **dict.fromkeys(PARTS, config["part"]),
        "published": PUBLISHED.get(name, "test"),
    }[config["part"]]
    one["data"] |= {
        key: trained_on[key] for key in LAYOUT if key in trained_on and key in one["data"]
    }
    if name in config["paths"]:
        one["data"]["path"] = files_by_part(one["data"], one["part"], config["paths"][name])
    elif one["data"].get("path") == MISSING:
        raise ValueError(f"{name} has no text of its own; name a file: 'paths={{{name}: FILE}}'")
    return one


def files_by_part(
    data: Config, part: str, path: str | list[str] | Config
) -> str | list[str] | Config:
    """Local files of a set by part: those without a part are the one that is evaluated.

    They are left as they are if the set finds the part in them itself: by its split, or at the end
    of the training part.
    """
    path_is = data.get("path_is", "all")
    if isinstance(path, Mapping) or path_is == "all":
        return path
    if part == "valid" and path_is == "train" and data.get("valid_documents") is not None:
        return path
    return {part: path}


def rows_of(name: str, part: str, protocol: str, content: Json) -> list[Json]:
    """The rows of one evaluation, one for each group of tokens."""
    groups = {group: content["groups"][group] for group in KINDS if group in content["groups"]}
    kinds = KINDS if len(groups) > 1 else dict.fromkeys(KINDS, "none")
    return [
        {
            "set": name,
            "part": part,
            "protocol": protocol,
            "specials": kinds[group],
            "described": content["protocol"],
            **numbers,
        }
        for group, numbers in groups.items()
    ]


def show(rows: Sequence[Json], layouts: Mapping[str, str]) -> None:
    """Print the table and the legend of protocols and layouts."""
    lines: list[tuple[str, ...]] = [
        (
            *(r[key] for key in ("set", "part", "protocol", "specials")),
            f"{r['perplexity']:.2f}",
            f"{2 ** r['bits_low']:.2f} to {2 ** r['bits_high']:.2f}",
            f"{r['bits']:.4f}",
            f"{r['tokens']:,}",
        )
        for r in rows
    ]
    print(
        table(
            lines,
            (
                "set",
                "part",
                "protocol",
                "specials",
                "perplexity",
                "95 % interval",
                "bits per token",
                "tokens",
            ),
        )
    )
    for name, description in {**{r["protocol"]: r["described"] for r in rows}, **layouts}.items():
        print(f"{name}: {description}")


def main() -> None:
    """The command line."""
    commands.run("zero_shot", run, KEYS)


if __name__ == "__main__":
    main()
