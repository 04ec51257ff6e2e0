"""`python -m dnadiff.zero_shot`: held-out likelihood on several sets of texts, each under each protocol, in one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import table

PASSED = ("checkpoint", "num_draws", "batch_size", "block_size", "accelerator", "seed", "trust")
PARTS = ("test", "valid", "train", "published")
LAYOUT = ("length", "wrap", "insert_eos", "insert_valid_eos", "insert_special_tokens")  # of the training run: sets differ in text alone
PUBLISHED = dict.fromkeys(("ptb", "wikitext2", "wikitext103", "owt"), "valid")  # the paper's numbers; of the others test
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Evaluate on all sets and return the contents of the JSON file: a row for each set, protocol and kind of tokens."""
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output, write_json
    from dnadiff.evaluate import evaluated

    output = check_output(config["output"] or run_dir / "zero_shot.json", config["overwrite"])
    config |= {"paths": config["paths"] or {}}
    check(config)
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is not None:
        raise ValueError(f"the sets are texts, and {loaded.path} was trained on DNA; evaluate it by python -m dnadiff.evaluate data=...")
    protocols = ["exact"] if hasattr(loaded.denoiser, "next_log_probs") else config["protocols"]
    chosen, rows, layouts = {name: settings(config, name, loaded.config["data"]) for name in config["sets"]}, [], {}
    for one in chosen.values():  # what cannot be had or read is said before the long work
        data = build(one["data"], trust=None)
        data.expect(loaded.tokenizer)
        data.prepare()
        data.test_windows(one["part"])
    for name, one in chosen.items():
        for protocol in protocols:
            content = evaluated(one | {"protocol": "count" if protocol == "exact" else protocol}, run_dir / name / protocol)
            rows += rows_of(name, one["part"], protocol, content)
            layouts[name] = content["data"].get("layout") or content["data"]["n_policy"]
            if content["data"]["name"] == loaded.config["data"].get("name"):
                log.warning(f"{name}: the model was trained on data of this name, so this is not zero-shot")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, {"checkpoint": str(loaded.path), "step": loaded.step, "layouts": layouts, "rows": rows})
    show(rows, layouts)
    print(f"files are in {output}")
    return rows


def check(config: Mapping[str, Any]) -> None:
    """Refuse sets, protocols and paths that do not exist before anything is read.

    Raises:
        ValueError: naming the value and the choices.
    """
    for key in ("sets", "protocols"):
        if not isinstance(config[key], list) or not config[key] or len(set(config[key])) < len(config[key]):
            raise ValueError(
                f"{key} {config[key]} must be a list of names, each once, such as {key}=[{'ptb,lambada' if key == 'sets' else 'count'}]"
            )
    if wrong := [p for p in config["protocols"] if p not in ("count", "mdlm")]:
        raise ValueError(f"protocols {wrong[0]!r} is not known; choose count, mdlm or both")
    if config["part"] not in PARTS:
        raise ValueError(f"part {config['part']!r} is not known; choose one of {', '.join(PARTS)}")
    if not isinstance(config["paths"], Mapping) or set(config["paths"]) - set(config["sets"]):
        raise ValueError(f"paths {config['paths']} must name files by set: 'paths={{{config['sets'][0]}: FILE}}'")


def settings(config: Mapping[str, Any], name: str, trained_on: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of `evaluate` for one set: windows as long as in training and laid out as there, as in MDLM's code."""
    one = commands.recompose("evaluate", [f"data={name}"])
    one |= {key: config[key] for key in PASSED} | {"orders": [], "output": None, "overwrite": config["overwrite"]}
    one["part"] = PUBLISHED.get(name, "test") if config["part"] == "published" else config["part"]
    one["data"] |= {key: trained_on[key] for key in LAYOUT if key in trained_on and key in one["data"]}
    if name in config["paths"]:
        one["data"]["path"] = config["paths"][name]
    elif one["data"].get("path") == "???":
        raise ValueError(f"{name} has no text of its own; name a file: 'paths={{{name}: FILE}}'")
    return one


def rows_of(name: str, part: str, protocol: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is reported of one evaluation."""
    groups, has = content["groups"], "without specials" in content["groups"]
    kinds = {"all": "counted" if has else "none", "without specials": "left out"}
    return [
        {"set": name, "part": part, "protocol": protocol, "specials": kinds[group], "described": content["protocol"], **groups[group]}
        for group in kinds
        if group in groups
    ]


def show(rows: Sequence[Mapping[str, Any]], layouts: Mapping[str, str]) -> None:
    """The table, and what its words mean."""
    lines = [
        (
            r["set"],
            r["part"],
            r["protocol"],
            r["specials"],
            f"{r['perplexity']:.2f}",
            f"{2 ** r['bits_low']:.2f} to {2 ** r['bits_high']:.2f}",
            f"{r['bits']:.4f}",
            f"{r['tokens']:,}",
        )
        for r in rows
    ]
    print(table(lines, ("set", "part", "protocol", "specials", "perplexity", "95 % interval", "bits per token", "tokens")))
    for protocol, described in {r["protocol"]: r["described"] for r in rows}.items():
        print(f"{protocol}: {described}")
    for name, layout in layouts.items():
        print(f"{name}: {layout}")


def main() -> None:
    """The command line."""
    commands.run("zero_shot", run)


if __name__ == "__main__":
    main()
