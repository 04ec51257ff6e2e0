"""`python -m dnadiff.evaluate`: held-out likelihood with error bars, beside Markov models of the training part of the same data."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.bootstrap import effective_block_size, verdict
from dnadiff.config import build
from dnadiff.progress import Progress, table

log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Evaluate, print the tables, and return the contents of the JSON file."""
    content = evaluated(config, run_dir)
    show(content, content["is_dna"])
    print(f"files are in {config['output'] or run_dir / 'evaluate.json'}")
    return content


def evaluated(config: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Evaluate, write the JSON file and return its contents."""
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output, write_json
    from dnadiff.likelihood import Conjoined, both_strands, check_one_draw
    from dnadiff.likelihood.held_out import Scores, Windows, fit_markov, markov_rows, token_groups, without_download

    output = check_output(config["output"] or run_dir / "evaluate.json", config["overwrite"])
    scores = check_output(config["windows"], config["overwrite"]) if config["windows"] else None
    config = check(config)
    device = commands.pick_device(config["accelerator"])
    loaded = checkpoint.load(config["checkpoint"], config["trust"])
    is_dna = loaded.tokenizer.vocab.complement is not None
    if config["protocol"] == "mdlm" and not hasattr(loaded.denoiser, "next_log_probs"):
        check_one_draw(loaded.process.noise)
    check_strands(config, loaded.denoiser, is_dna)
    data = build(
        config.get("data") or without_download(loaded.config["data"]), trust=None if config.get("data") else ("dnadiff", *config["trust"])
    )
    data.expect(loaded.tokenizer)
    check_length(config["length"] or data.length, loaded.denoiser.backbone.max_length)
    data.prepare()
    tiles = data.test_windows(config["part"], config["length"])
    log.info(
        f"model: {loaded.path}, step {loaded.step:,}; {len(tiles):,} windows of {tiles.length} tokens of {data.name} ({config['part']})"
    )

    trained_on = training_data(loaded, data if not config.get("data") else None, config["trust"]) if is_dna else None
    groups = token_groups(data, tiles, trained_on, config["part"])
    markov = fit_markov(data, config["orders"]) if is_dna else {}  # what it refuses, it refuses before the long work
    denoiser = loaded.denoiser.to(device)
    windows = Windows(tiles, groups, config["batch_size"], getattr(denoiser.backbone, "num_labels", 0) > 0)
    judged = Conjoined(denoiser, loaded.tokenizer.vocab) if config["conjoin"] else denoiser
    result, start, reverse = measure(config, judged, loaded.process, windows, data)
    named = [name for name in result.tokens if result.tokens[name].sum()]
    about = described(data, tiles.length)
    content = {
        "model": described_model(loaded, config["conjoin"]),
        "data": about,
        "part": config["part"],
        "num_draws": result.num_draws,
        "target_se": config["target_se"],
        "seed": config["seed"],
        "protocol": describe_protocol(config, result, about),
        "block_size": effective_block_size(len(tiles), config["block_size"]),
        "se_total_note": dependence(tiles, config["block_size"]),
        "novelty": None if trained_on is None else f"against the training part of {trained_on.name}",
        "groups": {name: result.summary(name) for name in named},
        "both_strands": {} if reverse is None else {name: both_strands(result, reverse, name) for name in named},
        "markov": markov_rows(data, tiles, groups, result, markov, config["part"]),
        "curve": None,
        "code_length": None,
    }
    if start is not None:
        content |= curves(result, start, tiles.length)
    output.parent.mkdir(parents=True, exist_ok=True)
    if scores is not None:
        scores.parent.mkdir(parents=True, exist_ok=True)
        Scores.from_result(result, data, tiles).save(scores)
    write_json(output, content)
    return content | {"is_dna": is_dna}


def described_model(loaded: Any, conjoined: bool) -> dict[str, Any]:
    """What the result says of the network."""
    parameters = sum(p.numel() for p in loaded.denoiser.parameters())
    backbone = type(loaded.denoiser.backbone).__name__
    return {"checkpoint": str(loaded.path), "backbone": backbone, "parameters": parameters, "step": loaded.step, "conjoined": conjoined}


def training_data(loaded: Any, own: Any | None, trust: Sequence[str]) -> Any | None:
    """The data that the model was trained on, to tell novel bases from repeated ones; None with a message where they cannot be had.

    Args:
        loaded: the model.
        own: the same data where they are evaluated anyway.
        trust: further packages whose classes its configuration may name.
    """
    from dnadiff.likelihood.held_out import MAX_KMERS, without_download

    data = own
    if data is None:
        try:
            data = build(without_download(loaded.config["data"]), trust=("dnadiff", *trust))
            data.prepare()
        except (ValueError, OSError) as error:
            log.info(f"novel and repeated bases are left out, for the data of the training run cannot be read: {error}")
            return None
    tokens = sum(i.end - i.start for i in data.intervals["train"])
    if tokens > MAX_KMERS:
        log.info(f"novel and repeated bases are left out: the training part has {tokens:,} bases, and their words would fill the memory")
        return None
    return data


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its whole numbers as such (8.0 and 1e1 are some); impossible values are refused before anything is read.

    Raises:
        ValueError: naming the key, the value and the choices.
    """
    config = dict(config)
    for key, least in (("num_draws", 1), ("max_draws", 2), ("batch_size", 1), ("block_size", 1), ("seed", 0)):
        config[key] = checks.integer(key, config[key], least)
    if config["length"] is not None:
        config["length"] = checks.integer("length", config["length"], 1)
    orders = config["orders"]
    if not isinstance(orders, list) or any(isinstance(k, bool) or k not in range(27) for k in orders):
        raise ValueError(f"orders {orders} must be a list of Markov orders from 0 to 26, such as [0,3,6,12]")
    config["orders"] = [int(k) for k in orders]
    if config["num_draws"] < 2 or config["num_draws"] % 2:
        raise ValueError(f"num_draws {config['num_draws']} must be even and at least 2: two draws a stratum give the Monte-Carlo error")
    if config["part"] not in ("test", "valid", "train"):
        raise ValueError(f"part {config['part']!r} is not known; choose test, valid or train")
    if config["protocol"] not in ("count", "mdlm"):
        raise ValueError(f"protocol {config['protocol']!r} is not known; choose count or mdlm (one draw, without se_mc)")
    if config["target_se"] is not None and config["protocol"] == "mdlm":
        raise ValueError("protocol=mdlm is one draw, whose error is not known; leave target_se out, or set protocol=count")
    target = config["target_se"]
    if target is not None and (isinstance(target, bool) or not isinstance(target, (int, float)) or not target > 0):
        raise ValueError(f"target_se {target} must be positive, in nats per token; null makes num_draws draws")
    if config["max_draws"] < config["num_draws"]:
        raise ValueError(f"max_draws {config['max_draws']} is less than num_draws {config['num_draws']}; set max_draws to at least as many")
    return config


def check_strands(config: Mapping[str, Any], denoiser: Any, is_dna: bool) -> None:
    """Refuse what needs another strand, or another way of reading it.

    Raises:
        ValueError: naming the key.
    """
    for key in ("both_strands", "conjoin"):
        if not isinstance(config[key], bool):
            raise ValueError(f"{key} {config[key]!r} must be true or false")
        if config[key] and not is_dna:
            raise ValueError(f"{key}=true needs DNA; this model was trained on text, which has one strand: leave it out")
    if config["conjoin"] and config["both_strands"]:
        raise ValueError(
            "conjoin=true makes both strands cost the same, so both_strands=true has nothing to compare; leave one of them out"
        )
    if config["conjoin"] and hasattr(denoiser, "next_log_probs"):
        raise ValueError(
            "conjoin=true needs a diffusion model: read from the other end an autoregressive one has another order; set both_strands=true"
        )


def check_length(length: int, longest: int | None) -> None:
    """Refuse windows that the network does not take, before Markov models are fitted.

    Raises:
        ValueError: naming both lengths.
    """
    if longest is not None and length > longest:
        raise ValueError(f"windows of {length} tokens are more than the {longest} that this network takes; set length={longest} or less")


def measure(config: Mapping[str, Any], denoiser: Any, process: Any, windows: Any, data: Any) -> tuple[Any, Any, Any]:
    """The likelihoods of the windows, what they cost in one call (None where that is not asked), and those of the other strand (or None)."""
    from dnadiff import likelihood

    causal, settings = hasattr(denoiser, "next_log_probs"), {"seed": config["seed"], "block_size": config["block_size"]}
    vocab = process.vocab

    def on(network: Any, batches: Any, target_se: float | None, min_draws: int = 0) -> Any:
        calls = 1 if causal or config["protocol"] == "mdlm" else config["num_draws"]
        bar = Progress(len(windows), "evaluate")

        def progress(n: int) -> None:
            bar.update(n, n * windows.tiles.length * calls)

        def grown(draws: int, se: float) -> None:
            nonlocal calls
            calls = draws
            bar.total += len(windows)
            log.info(f"se_mc is {se:.5f} nats after {draws} draws, target_se {target_se}: {draws} more")

        if causal:
            result = likelihood.chain_rule(network, batches, config["block_size"], progress)
        elif config["protocol"] == "mdlm":
            result = likelihood.one_draw(network, process, batches, progress=progress, mask_everything=vocab.complement is None, **settings)
        else:
            draws = {"num_draws": config["num_draws"], "max_draws": config["max_draws"], "min_draws": min_draws}
            result = likelihood.estimate_to(network, process, batches, target_se, progress=progress, grown=grown, **draws, **settings)
            if target_se is not None and result.se_mc() > target_se:
                log.warning(
                    f"se_mc is {result.se_mc():.5f} after max_draws={config['max_draws']}, above target_se {target_se}; raise max_draws"
                )
        bar.close()
        return result

    result = on(denoiser, windows, config["target_se"])
    counted = not causal and config["protocol"] == "count"
    start = likelihood.all_masked(denoiser, process, windows) if counted else None
    reverse = None
    if config["both_strands"] and causal:
        reverse = on(denoiser, likelihood.ReverseComplemented(windows, vocab), None)
    elif config["both_strands"]:
        reverse = on(likelihood.OtherStrand(denoiser, vocab), windows, None, result.num_draws)
    return result, start, reverse


def described(data: Any, length: int) -> dict[str, Any]:
    """What a reported number must name of the data, in the windows of `length` tokens that were evaluated."""
    about = {**data.describe(), "window": length}
    return about | {"layout": data.layout(length)} if "layout" in about else about


def describe_protocol(config: Mapping[str, Any], result: Any, about: Mapping[str, Any]) -> str:
    """What a reported number must name, in words: how it was estimated, and for text how documents became windows."""
    return "; ".join([how(config, result), *([about["layout"]] if "layout" in about else [])])


def how(config: Mapping[str, Any], result: Any) -> str:
    """The estimate in words."""
    from dnadiff.likelihood.record import COUNT, EXACT

    size = effective_block_size(len(result.available), config["block_size"])
    windows = f"blocks of {size} window{'s' * (size > 1)}" + f" (not {config['block_size']}, to have 20)" * (size < config["block_size"])
    if config["conjoin"]:
        windows = f"both strands' probabilities averaged at every call; {windows}"
    if result.protocol == EXACT:
        return f"-log p by the chain rule, exact; {windows}"
    if result.protocol == COUNT:
        return f"NELBO, count form, {result.num_draws} stratified draws per window; {windows}"
    return f"NELBO, MDLM's protocol: one draw of coins per window, times stratified over batches of {config['batch_size']}; {windows}"


def dependence(tiles: Any, block_size: int) -> str | None:
    """What must be said of `se_total` where neighbouring windows are resampled singly; None where nothing must."""
    from itertools import pairwise

    near = any(a.record == b.record and b.start - a.start <= tiles.length for a, b in pairwise(tiles.tiles))
    if effective_block_size(len(tiles), block_size) > 1 or not near:
        return None
    return "se_total may be too narrow: windows side by side are taken for independent (blocks of 1); evaluate more of them"


def curves(result: Any, start: Any, length: int) -> dict[str, Any]:
    """h(n) and the code length of K network calls."""
    from dnadiff.likelihood import curve as code_curve

    curve, bit = result.curve(), math.log(2)
    return {
        "curve": {"visible": curve.visible.tolist(), "bits": (curve.nats / bit).tolist(), "se": (curve.se / bit).tolist()},
        "code_length": code_curve.code_length_table(code_curve.CurveSamples.from_estimates(result, start), length),
    }


def show(content: Mapping[str, Any], is_dna: bool) -> None:
    """The closing table."""
    unit = "bits per base" if is_dna else "bits per token"
    rows, bit = [], math.log(2)
    for name, g in content["groups"].items():
        se_mc = "n/a" if g["se_mc"] is None else f"{g['se_mc'] / bit:.4f}"
        rows.append(
            (name, f"{g['bits']:.4f}", f"{g['nll']:.4f}", f"{g['perplexity']:.4f}", se_mc, f"{g['se_total'] / bit:.4f}", f"{g['tokens']:,}")
        )
    print(table(rows, ("tokens counted", unit, "nats", "perplexity", "se_mc (bits)", "se_total (bits)", "number")))
    print(content["protocol"])
    if content["se_total_note"]:
        print(content["se_total_note"])
    if content["both_strands"]:
        print()
        print(
            table(
                [strand_row(name, g) for name, g in content["both_strands"].items()],
                ("bits", "forward", "reverse", "mean", "gap", "95 % interval"),
            )
        )
    if content["markov"]:
        print()
        rows = [
            (
                f"Markov order {m['order']}, {name}",
                f"{g['bits']:.4f}",
                f"{g['difference_bits']:+.4f}",
                f"[{g['low']:+.4f}, {g['high']:+.4f}]",
                verdict(g["low"], g["high"], above="worse", below="better"),
            )
            for m in content["markov"]
            for name, g in m["groups"].items()
        ]
        print(
            table(
                rows, (f"fitted on {content['markov'][0]['trained_on']} (train)", unit, "model minus it", "95 % interval", "the model is")
            )
        )
    if content["code_length"]:
        print()
        rows = [code_length_row(row) for row in content["code_length"]["rows"]]
        print(table(rows, ("network calls", unit, "lost structure", "best sizes", "lost structure", "se (bits)")))


def strand_row(name: str, g: Mapping[str, float]) -> tuple[str, ...]:
    """One group of tokens read on both strands, in bits."""
    bit = math.log(2)
    interval = f"[{g['gap_low'] / bit:+.4f}, {g['gap_high'] / bit:+.4f}]"
    return (name, *(f"{g[key] / bit:.4f}" for key in ("forward", "reverse", "mean")), f"{g['gap'] / bit:+.4f}", interval)


def code_length_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The price of K calls with groups of equal and of best sizes."""
    cells = []
    for each in (row["uniform"], row["optimal"]):
        lost = "n/a" if each["lost_structure"] is None else f"{100 * each['lost_structure']:.1f} %"
        cells += [f"{each['bits']:.4f}", lost]
    return (f"{row['groups']}", *cells, "n/a" if row["uniform"]["se"] is None else f"{row['uniform']['se']:.4f}")


def main() -> None:
    """The command line."""
    commands.run("evaluate", run)


if __name__ == "__main__":
    main()
