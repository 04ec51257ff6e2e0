"""`python -m dnadiff.zero_shot`: held-out likelihood on several sets of texts, each under each protocol, in one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import commands
from dnadiff.progress import table

PASSED = ("checkpoint", "part", "num_draws", "batch_size", "block_size", "accelerator", "seed", "trust")
log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Evaluate on all sets and return the contents of the JSON file: a row for each set, protocol and kind of tokens."""
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output
    from dnadiff.evaluate import evaluated

    output = check_output(config["output"] or run_dir / "zero_shot.json", config["overwrite"])
    config |= {"paths": config["paths"] or {}}
    check(config)
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    if loaded.tokenizer.vocab.complement is not None:
        raise ValueError(f"the sets are texts, and {loaded.path} was trained on DNA; evaluate it by python -m dnadiff.evaluate data=...")
    protocols = ["exact"] if hasattr(loaded.denoiser, "next_log_probs") else config["protocols"]
    length, rows, layouts = loaded.config["data"]["length"], [], {}
    for name in config["sets"]:
        for protocol in protocols:
            one = settings(config, name, "count" if protocol == "exact" else protocol, length)
            content = evaluated(one, run_dir / name / protocol)
            rows += rows_of(name, protocol, content)
            layouts[name] = content["data"].get("layout") or content["data"]["n_policy"]
            if content["data"]["name"] == loaded.config["data"].get("name"):
                log.warning(f"{name}: the model was trained on data of this name, so this is not zero-shot")
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(output, {"checkpoint": str(loaded.path), "step": loaded.step, "layouts": layouts, "rows": rows})
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
    if not isinstance(config["paths"], Mapping) or set(config["paths"]) - set(config["sets"]):
        raise ValueError(f"paths {config['paths']} must name files by set: 'paths={{{config['sets'][0]}: FILE}}'")


def settings(config: Mapping[str, Any], name: str, protocol: str, length: int) -> dict[str, Any]:
    """The configuration of `evaluate` for one set: windows as long as in training."""
    one = commands.compose_beside("evaluate", [f"data={name}"])
    one |= {key: config[key] for key in PASSED} | {"protocol": protocol, "orders": [], "output": None, "overwrite": config["overwrite"]}
    one["data"]["length"] = length
    if name in config["paths"]:
        one["data"]["path"] = config["paths"][name]
    elif one["data"].get("path") == "???":
        raise ValueError(f"{name} has no text of its own; name a file: 'paths={{{name}: FILE}}'")
    return one


def rows_of(name: str, protocol: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is reported of one evaluation."""
    groups, has = content["groups"], "without specials" in content["groups"]
    kinds = {"all": "counted" if has else "none", "without specials": "left out"}
    return [
        {"set": name, "protocol": protocol, "specials": kinds[group], "described": content["protocol"], **groups[group]}
        for group in kinds
        if group in groups
    ]


def show(rows: Sequence[Mapping[str, Any]], layouts: Mapping[str, str]) -> None:
    """The table, and what its words mean."""
    lines = [
        (
            r["set"],
            r["protocol"],
            r["specials"],
            f"{r['perplexity']:.2f}",
            f"{2 ** r['bits_low']:.2f} to {2 ** r['bits_high']:.2f}",
            f"{r['bits']:.4f}",
            f"{r['tokens']:,}",
        )
        for r in rows
    ]
    print(table(lines, ("set", "protocol", "specials", "perplexity", "95 % interval", "bits per token", "tokens")))
    for protocol, described in {r["protocol"]: r["described"] for r in rows}.items():
        print(f"{protocol}: {described}")
    for name, layout in layouts.items():
        print(f"{name}: {layout}")


def main() -> None:
    """The command line."""
    commands.run("zero_shot", run)


if __name__ == "__main__":
    main()
