"""`python -m dnadiff.judge_text`: samples of text under a local causal model, with their entropy and repetition, beside real text."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnadiff import checks, commands
from dnadiff.config import build
from dnadiff.progress import Progress, table

log = logging.getLogger("dnadiff")


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Sample or read, judge, and return the contents of the JSON file."""
    import numpy as np
    import torch

    from dnadiff import checkpoint
    from dnadiff.data.files import check_output, write_json
    from dnadiff.metrics.text_quality import by_position, describe, token_nats
    from dnadiff.model import Model

    output = check_output(config["output"] or run_dir / "judge_text.json", config["overwrite"])
    config |= {
        key: checks.integer(key, config[key], least) for key, least in (("num_samples", 1), ("words", 1), ("batch_size", 1), ("seed", 0))
    }
    if (config["checkpoint"] is None) == (config["samples"] is None):
        raise ValueError("give either checkpoint=RUN, which is sampled, or samples=FILE")
    device = commands.pick_device(config["accelerator"])
    judge = load_judge(config["judge"], config["trust"], device)
    model = None if config["checkpoint"] is None else Model(checkpoint.load(config["checkpoint"], config["trust"]), device)
    drawn = None if model is None else draw(config, model)
    same = model is not None and model.tokenizer == judge.tokenizer  # whatever each is called
    if same:
        texts = list(drawn)
    elif model is None:
        texts = [reread(documents(text, judge.tokenizer), judge.tokenizer) for text in read_texts(config["samples"])]
    else:
        texts = [reread(spoken(row, model.tokenizer), judge.tokenizer) for row in drawn]
    texts = [ids for ids in texts if len(ids)]
    if not texts:
        raise ValueError(f"no sample of {config['samples'] or model.path} has a token of the judge {judge.path}")
    nats = token_nats(judge.denoiser, [torch.from_numpy(x) for x in texts], judge.length, config["batch_size"])
    real = real_texts(judge, config, [len(x) for x in texts])
    rows = {"samples": describe(texts, config["words"], nats).summary()}
    if real:
        known = token_nats(judge.denoiser, [torch.from_numpy(x) for x in real], judge.length, config["batch_size"])
        rows["real text"] = describe(real, config["words"], known).summary()
    content = {
        "judge": {"checkpoint": str(judge.path), "step": judge.step, "window": judge.length, "tokenizer": judge.tokenizer.name},
        "samples": {"source": str(config["samples"] or model.path), "seed": config["seed"], "sampler": config["sampler"]["_target_"]},
        "words": config["words"],
        "rows": rows,
        "by_position": [],
    }
    if model is not None:
        starts = stretches(config, model, drawn.shape[1])
        content["by_position"] = by_position(drawn, starts, config["words"], np.stack(nats) if same else None)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, content)
    show(content)
    print(f"files are in {output}")
    return content


@dataclass(frozen=True)
class JudgeModel:
    """A causal model of text.

    Attributes:
        denoiser: `CausalDenoiser`.
        tokenizer: its own.
        length: tokens that it reads at once.
        path: where it came from.
        step: optimizer steps taken; None for GPT-2.
        data: configuration of the data that it was trained on; None for GPT-2.
    """

    denoiser: Any
    tokenizer: Any
    length: int
    path: Path
    step: int | None = None
    data: Mapping[str, Any] | None = None


def load_judge(source: str, trust: Sequence[str], device: str) -> JudgeModel:
    """A run of objective=ar, or a folder with GPT-2 and its tokenizer.

    Raises:
        ValueError: if it is no causal model of text.
    """
    from dnadiff import checkpoint
    from dnadiff.published import model

    folder = Path(source)
    if (folder / model.CONFIG).is_file():
        from dnadiff.data.text.pretrained import Pretrained

        tokenizer = Pretrained(str(folder)).load()
        denoiser = model.load_gpt2(folder, tokenizer.vocab).to(device)
        return JudgeModel(denoiser, tokenizer, denoiser.backbone.max_length, folder)
    loaded = checkpoint.load(source, trust)
    if not loaded.denoiser.causal or loaded.tokenizer.vocab.complement is not None:
        raise ValueError(f"judge {loaded.path} must be an autoregressive model of text: train one with objective=ar data=...")
    data = loaded.config["data"]
    return JudgeModel(loaded.denoiser.to(device), loaded.tokenizer, int(data["length"]), loaded.path, loaded.step, data)


def draw(config: dict[str, Any], model: Any) -> Any:
    """Samples of the model: (S, L) ids."""
    import numpy as np

    from dnadiff.design.options import check_settings, resolved_sampler
    from dnadiff.design.request import Free

    if model.tokenizer.vocab.complement is not None:
        raise ValueError(f"{model.path} was trained on DNA; samples of DNA are judged by python -m dnadiff.judge")
    check_settings(config["sampler"])
    length = model.length if config["length"] is None else checks.integer("length", config["length"], 1)
    config["sampler"] = resolved_sampler(config["sampler"], model, length)
    request = Free(model.tokenizer, config["num_samples"], (length, length), config["seed"])
    filler = model.conditional_sampler(build(config["sampler"], trust=None), request)
    bar, rows = Progress(config["num_samples"], "sample"), []
    for batch in filler.batches(request, config["seed"], config["batch_size"]):
        rows += batch.tokens
        bar.update(len(batch.tokens), sum(map(len, batch.tokens)))
    bar.close()
    return np.stack(rows).astype(np.int64)


def spoken(ids: Any, tokenizer: Any) -> list[str]:
    """The documents in `ids (L,)`: what tokens that begin or end a text separate, decoded without them."""
    import numpy as np

    special = np.isin(ids, tokenizer.special_ids)
    runs = np.split(ids, np.flatnonzero(special[1:] != special[:-1]) + 1) if len(ids) else []
    return [tokenizer.decode(run) for run in runs if run[0] not in tokenizer.special_ids]


def documents(text: str, tokenizer: Any) -> list[str]:
    """The documents in a text: what spellings of the tokens with which the tokenizer begins or ends one separate."""
    spellings = {s for s in (getattr(tokenizer, "bos", None), getattr(tokenizer, "eos", None)) if s}
    return re.split("|".join(map(re.escape, sorted(spellings))), text) if spellings else [text]


def reread(texts: Sequence[str], tokenizer: Any) -> Any:
    """The documents of one sample in the judge's tokens (L,), its own end token between them where it has one.

    Spelled out, a special token would be read as letters: `<|endoftext|>` as seven tokens that no text holds.
    """
    import numpy as np

    found = [ids for text in texts if len(ids := tokenizer.encode(text))]
    end = [] if tokenizer.eos_id is None else [[tokenizer.eos_id]]
    parts = [part for number, ids in enumerate(found) for part in ([*end, ids] if number else [ids])]
    return np.concatenate([np.zeros(0), *parts]).astype(np.int64)


def read_texts(path: str | Path) -> list[str]:
    """The texts of a file: the field `text` of each line of a .jsonl, or what blank lines separate in a .txt; plain or gzip.

    Raises:
        ValueError: if there is none, or the file is of another kind.
    """
    from dnadiff.data.files import open_text

    name = str(path).removesuffix(".gz")
    with open_text(path) as file:
        content = file.read()
    if name.endswith(".jsonl"):
        try:
            # Not splitlines(), which also splits at characters that a text may hold, such as U+2028.
            lines = [json.loads(line) for line in content.split("\n") if line.strip()]
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: a line is not JSON ({error})") from None
        if any(not isinstance(line, dict) or not isinstance(line.get("text"), str) for line in lines):
            raise ValueError(f"{path}: each line must be a JSON object with a field text")
        texts = [line["text"] for line in lines]
    elif name.endswith(".txt"):
        texts = content.split("\n\n")
    else:
        raise ValueError(f"{path} must be a .jsonl or a .txt file, plain or gzip")
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts


def real_texts(judge: Any, config: Mapping[str, Any], lengths: Sequence[int]) -> list[Any]:
    """As many held-out texts of the judge's data, of the samples' median length; none, with a message, where they cannot be had."""
    import numpy as np

    from dnadiff.likelihood.held_out import without_download

    if judge.data is None:
        return []
    length = int(np.median(lengths))
    try:
        data = build(without_download(judge.data), trust=("dnadiff", *config["trust"]))
        data.expect(judge.tokenizer)
        data.prepare()
        tiles = data.test_windows("test", length)
        items = [tiles[i] for i in np.linspace(0, len(tiles) - 1, min(len(tiles), len(lengths))).round().astype(int)]
    except (ValueError, OSError) as error:
        log.info(f"real text is left out, for the judge's own cannot be read in windows of {length}: {error}")
        return []
    return [item["ids"].numpy().astype(np.int64)[item["weight"].numpy() > 0] for item in items if item["weight"].any()]


def stretches(config: Mapping[str, Any], model: Any, length: int) -> list[int]:
    """First positions of the rows of the table by position: a first window's worth in strides too, so that all rows are of one size."""
    sampler, stride = config["sampler"], config["stride"]
    if stride is None and "window" in sampler:
        stride = sampler["stride"] or max(1, sampler["window"] // 2)
    stride = max(1, model.length // 4) if stride is None else checks.integer("stride", stride, 1)
    return list(range(0, length, stride))


def show(content: Mapping[str, Any]) -> None:
    """The tables."""

    def cells(row: Mapping[str, Any]) -> list[str]:
        shown = []
        for key, form in (("perplexity", ".2f"), ("entropy", ".3f"), ("repetition", ".1%")):
            if key not in row:
                shown.append("")
                continue
            low, high = row[f"{key}_low"], row[f"{key}_high"]
            shown.append(f"{row[key]:{form}}" + ("" if math.isnan(low) else f" ({low:{form}} to {high:{form}})"))
        return shown

    header = ("generative perplexity", "entropy, nats", f"{content['words']}-token words said before")
    print(table([(name, f"{r['texts']:,}", *cells(r)) for name, r in content["rows"].items()], ("", "texts", *header)))
    print(
        f"under {content['judge']['checkpoint']}, in pieces of at most {content['judge']['window']} of its tokens; entropy of the same tokens"
    )
    if content["by_position"]:
        print()
        print(table([(f"{r['start']:,} to {r['end']:,}", *cells(r)) for r in content["by_position"]], ("tokens", *header)))


def main() -> None:
    """The command line."""
    commands.run("judge_text", run)


if __name__ == "__main__":
    main()
