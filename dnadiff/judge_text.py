"""`python -m dnadiff.judge_text`: generative perplexity of text samples under a causal model, with
entropy, repetition and real text."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from dnadiff.fields import Config, Json, Natural, PositiveInt
from dnadiff.options.base import Accelerator, Group, Options, Result, group
from dnadiff.options.command import command
from dnadiff.progress import Progress, table
from dnadiff.store.objects import build

if TYPE_CHECKING:
    import numpy as np

    from dnadiff.genomics.metrics.text_quality import JudgeModel
    from dnadiff.model import Model

_OF_SAMPLING = ("sampler", "num_samples", "length", "stride", "seed")  # keys of sampling
log = logging.getLogger("dnadiff")


class JudgeTextOptions(Options):
    """Judge text samples: generative perplexity under a local autoregressive model, entropy and
    repetition, compared with real text.

        python -m dnadiff.judge_text checkpoint=RUN judge=AR_RUN
        python -m dnadiff.judge_text checkpoint=RUN judge=AR_RUN sampler=semi_ar length=4096
        python -m dnadiff.judge_text samples=texts.jsonl judge=AR_RUN

    Repetition lowers the generative perplexity: compare it together with the entropy of the same
    tokens, and both with those of real text (the test part of the judge's own data).
    """

    sampler: Group = group("grouped")
    """as of dnadiff.sample"""
    checkpoint: str | None = None
    """run to sample from"""
    samples: str | None = None
    """or a file with texts: .jsonl with a field text, or .txt with blank lines between texts"""
    judge: str
    """a run of objective=ar, or a folder with GPT-2 (config.json, model.safetensors,
    tokenizer.json)"""
    num_samples: PositiveInt = 16
    """number of samples"""
    length: PositiveInt | None = None
    """tokens per sample; null: the training window"""
    stride: PositiveInt | None = None
    """tokens in each row of the table by position; null: sampler.stride, or else a quarter of the
    training window"""
    ngram_size: PositiveInt = 4
    """n of the n-grams of tokens whose repetition is measured"""
    batch_size: PositiveInt = 16
    """sequences in a batch"""
    accelerator: Accelerator = "auto"
    """where the networks compute"""
    seed: Natural = 1
    """of the samples"""
    output: str | None = None
    """JSON file; null: judge_text.json in the run folder"""

    @model_validator(mode="after")
    def _names_one_source(self) -> Self:
        if (self.checkpoint is None) == (self.samples is None):
            raise ValueError("give either checkpoint=RUN, which is sampled, or samples=FILE")
        return self


@command(JudgeTextOptions)
def judge_text(options: JudgeTextOptions) -> Result:
    """Sample or read texts, and judge them."""
    import torch

    from dnadiff.genomics.metrics.text_quality import (
        JudgeModel,
        at_positions,
        by_position,
        describe,
        token_nats,
    )
    from dnadiff.model import Model
    from dnadiff.store.address import shown
    from dnadiff.store.disk import check_output, write_json
    from dnadiff.weights import checkpoint

    output = check_output(options.output or options.run_dir / "judge_text.json", options.overwrite)
    for key in options.given(*_OF_SAMPLING) if options.samples is not None else ():
        raise ValueError(
            f"{key} is for samples of checkpoint=, and the texts of "
            f"samples={shown(options.samples)} exist already; leave it out"
        )
    judge = JudgeModel.load(options.judge, options.trust, options.device)
    model, drawn, sampler = None, None, options.sampler
    if options.checkpoint is not None:
        model = Model(checkpoint.load(options.checkpoint, options.trust), options.device)
        drawn, sampler = draw(options, model)
    found = ids_of_texts(options.samples, judge, model, drawn)
    texts = [ids for ids in found if len(ids)]
    source = shown(options.samples if model is None else model.path)
    if not texts:
        raise ValueError(f"no sample of {source} has a token of the judge {judge.path}")

    def nats_of(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        return token_nats(
            judge.denoiser, [torch.from_numpy(x) for x in texts], judge.length, options.batch_size
        )

    nats = nats_of(texts)
    rows = {"samples": describe(texts, options.ngram_size, nats).summary()}
    real, real_source = real_texts(judge, options.trust, [len(x) for x in texts])
    if real:
        rows["real text"] = describe(real, options.ngram_size, nats_of(real)).summary() | {
            "source": real_source
        }
    content = {
        "judge": {
            "checkpoint": str(judge.path),
            "step": judge.step,
            "window": judge.length,
            "tokenizer": judge.tokenizer.name,
        },
        "samples": {"source": source}
        | ({} if model is None else {"seed": options.seed, "sampler": sampler["_target_"]}),
        "ngram_size": options.ngram_size,
        "rows": rows,
        "by_position": [],
    }
    if model is not None and drawn is not None:
        at = (
            at_positions(nats, drawn, judge.tokenizer)
            if model.tokenizer == judge.tokenizer
            else None
        )
        content["by_position"] = by_position(
            drawn,
            segment_starts(options.stride, sampler, model, drawn.shape[1]),
            options.ngram_size,
            at,
        )
    write_json(output, content)
    show(content)
    print(f"files are in {output}")
    return Result(content, (output,))


def draw(options: JudgeTextOptions, model: Model) -> tuple[np.ndarray, Config]:
    """Samples of the model: (S, L) ids, and the sampler with what it takes from the model."""
    import numpy as np

    from dnadiff.design.request import Free
    from dnadiff.design.samples import check_settings, resolved_sampler

    if model.tokenizer.vocab.complement is not None:
        raise ValueError(
            f"{model.path} was trained on DNA; samples of DNA are judged by python -m dnadiff.judge"
        )
    check_settings(options.sampler)
    length = model.length if options.length is None else options.length
    chosen = resolved_sampler(options.sampler, model.loaded, model.stored_curve, length)
    request = Free(model.tokenizer, options.num_samples, (length, length), options.seed)
    sampler = model.conditional_sampler(build(chosen, trust=None), request)
    bar, rows = Progress(options.num_samples, "sample"), []
    for batch in sampler.batches(request, options.seed, options.batch_size):
        rows += batch.tokens
        bar.update(len(batch.tokens), sum(map(len, batch.tokens)))
    bar.close()
    return np.stack(rows).astype(np.int64), chosen


def ids_of_texts(
    samples: str | None, judge: JudgeModel, model: Model | None, drawn: np.ndarray | None
) -> list[np.ndarray]:
    """Token ids of each text under the judge's tokenizer, from the samples or from the file
    `samples`."""
    from dnadiff.genomics.metrics.text_quality import (
        content_span,
        decoded_documents,
        encode_with_separators,
        split_documents,
    )

    if model is None or drawn is None:
        assert samples is not None
        return [
            encode_with_separators(split_documents(text, judge.tokenizer), judge.tokenizer)
            for text in read_texts(samples)
        ]
    if model.tokenizer == judge.tokenizer:  # whatever their names
        return [row[slice(*content_span(row, judge.tokenizer))] for row in drawn]
    return [
        encode_with_separators(decoded_documents(row, model.tokenizer), judge.tokenizer)
        for row in drawn
    ]


def read_texts(path: str | Path) -> list[str]:
    """The texts of a file: the field `text` of each line of a .jsonl, or the paragraphs between
    blank lines of a .txt; plain or gzip."""
    from dnadiff.store.address import file_name, shown
    from dnadiff.store.files import open_text

    with open_text(path) as file:
        content = file.read()
    reader = _READERS.get(Path(file_name(path).lower().removesuffix(".gz")).suffix)
    if reader is None:
        raise ValueError(f"{shown(path)} must be a .jsonl or a .txt file, plain or gzip")
    texts = [text for text in reader(shown(path), content) if text.strip()]
    if not texts:
        raise ValueError(f"{shown(path)} contains no text")
    return texts


def _json_lines(path: str | Path, content: str) -> list[str]:
    from dnadiff.store.disk import parse_json

    # Not splitlines(), which also splits at characters that a text may contain, such as U+2028.
    lines = [
        parse_json(line, f"{path}: line {number}")
        for number, line in enumerate(content.split("\n"), 1)
        if line.strip()
    ]
    if any(not isinstance(line, dict) or not isinstance(line.get("text"), str) for line in lines):
        raise ValueError(f"{path}: each line must be a JSON object with a field text")
    return [line["text"] for line in lines]


_READERS: dict[str, Callable[[str | Path, str], list[str]]] = {
    ".jsonl": _json_lines,
    ".txt": lambda path, content: content.split("\n\n"),
}


def real_texts(
    judge: JudgeModel, trust: Sequence[str], lengths: Sequence[int]
) -> tuple[list[np.ndarray], str]:
    """As many held-out texts of the judge's data as samples, of their median length, and the name
    of the part that they are from.

    That is the test part, or the validation part of data without one. There are none, with a log
    message, if they cannot be read.
    """
    import numpy as np

    from dnadiff.data.base import run_data
    from dnadiff.genomics.metrics.text_quality import content_span

    if judge.data is None:
        log.info(
            f"no comparison with real text: {judge.path} names no data; for a row of it, judge a "
            "file of real text too (samples=real.txt)"
        )
        return [], ""
    length = int(np.median(lengths))
    try:
        data = run_data(judge.data, judge.tokenizer, trust)
        data.prepare()
        part = "test" if "test" in data.parts else "valid"
        tiles = data.test_windows(part, length)
        whole = [
            i for i, tile in enumerate(tiles.tiles) if tile.skip == 0
        ]  # the last of an interval may overlap the one before
        items = [
            tiles[whole[i]]
            for i in np.linspace(0, len(whole) - 1, min(len(whole), len(lengths)))
            .round()
            .astype(int)
        ]
    except (
        ValueError,
        FileNotFoundError,
    ) as error:  # data of another machine; a disk that fails ends the command
        log.info(
            "no comparison with real text: the judge's data cannot be read in windows of "
            f"{length}: {error}"
        )
        return [], ""
    texts = [item["ids"].numpy().astype(np.int64)[item["weight"].numpy() > 0] for item in items]
    texts = [ids[slice(*content_span(ids, judge.tokenizer))] for ids in texts]
    return [ids for ids in texts if len(ids)], f"{data.name}, part {part}"


def segment_starts(stride: int | None, sampler: Config, model: Model, length: int) -> list[int]:
    """First positions of the rows of the table by position, at equal distances."""
    if stride is None and "window" in sampler:
        stride = sampler["stride"] or max(1, sampler["window"] // 2)
    if stride is None:
        stride = max(1, model.loaded.training_length("stride") // 4)
    return list(range(0, length, stride))


def show(content: Mapping[str, Json]) -> None:
    """Print the tables."""

    def cells(row: Mapping[str, Json]) -> list[str]:
        shown = []
        for key, form in (("perplexity", ".2f"), ("entropy", ".3f"), ("repetition", ".1%")):
            if key not in row:
                shown.append("")
                continue
            low, high = row[f"{key}_low"], row[f"{key}_high"]
            shown.append(
                f"{row[key]:{form}}"
                + ("" if math.isnan(low) else f" ({low:{form}} to {high:{form}})")
            )
        return shown

    header = (
        "generative perplexity",
        "entropy, nats",
        f"repeated {content['ngram_size']}-grams of tokens",
    )
    print(
        table(
            [(name, f"{r['texts']:,}", *cells(r)) for name, r in content["rows"].items()],
            ("", "texts", *header),
        )
    )
    judge = content["judge"]
    print(
        f"under {judge['checkpoint']}, in pieces of at most {judge['window']} of its tokens; "
        "entropy of the same tokens"
    )
    if "real text" in content["rows"]:
        print(f"the real text is of {content['rows']['real text']['source']}")
    if content["by_position"]:
        print()
        print(
            table(
                [(f"{r['start']:,} to {r['end']:,}", *cells(r)) for r in content["by_position"]],
                ("tokens", *header),
            )
        )


main = judge_text.main

if __name__ == "__main__":
    main()
