"""`python -m dnadiff.judge_text`: generative perplexity of text samples under a causal model, with
entropy, repetition and real text."""

import math
from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from dnadiff.fields import Json, JsonDict, JsonMap, Natural, PositiveInt
from dnadiff.options.base import Accelerator, Group, Options, Result, group
from dnadiff.options.command import command
from dnadiff.progress import Progress, table
from dnadiff.store.objects import build

_OF_SAMPLING = ("sampler", "num_samples", "length", "stride", "seed")  # keys of sampling


class JudgeTextOptions(Options):
    """Judge text samples: generative perplexity under a local autoregressive model, entropy and
    repetition, compared with real text; or similarity to references.

        python -m dnadiff.judge_text checkpoint=RUN judge=AR_RUN
        python -m dnadiff.judge_text checkpoint=RUN judge=AR_RUN sampler=semi_ar length=4096
        python -m dnadiff.judge_text samples=texts.jsonl judge=AR_RUN
        python -m dnadiff.judge_text samples=targets.jsonl reference=pairs.tsv

    Repetition lowers the generative perplexity: compare it together with the entropy of the same
    tokens, and both with those of real text (the test part of the judge's own data).
    """

    sampler: Group = group("grouped")
    """as of dnadiff.sample"""
    checkpoint: str | None = None
    """run to sample from"""
    samples: str | None = None
    """or a file with texts: .jsonl with a field text, or .txt with blank lines between texts"""
    judge: str | None = None
    """a run of objective=ar, or a folder with GPT-2 (config.json, model.safetensors,
    tokenizer.json)"""
    reference: str | None = None
    """instead of a judge: a text for each of samples=, in lines or the targets of pairs, for BLEU,
    chrF and ROUGE"""
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
        is_similarity = self.reference is not None
        if (self.judge is None) != is_similarity or (is_similarity and self.samples is None):
            raise ValueError(
                "give either judge=, a run of objective=ar or a folder with GPT-2, or reference= "
                "with a text for each of samples=FILE"
            )
        return self


@command(JudgeTextOptions)
def judge_text(options: JudgeTextOptions) -> Result:
    """Sample or read texts, and judge them."""
    import numpy as np

    from dnadiff.design.request import Free
    from dnadiff.design.samples import check_settings, resolved_sampler
    from dnadiff.genomics.metrics import text_quality
    from dnadiff.model import Model
    from dnadiff.store.disk import write_json

    output = options.new_output("judge_text.json")
    for key in options.given(*_OF_SAMPLING) if options.samples is not None else ():
        raise ValueError(
            f"{key} is for samples of checkpoint=, and the texts of "
            f"samples={options.samples} exist already; leave it out"
        )
    if options.reference is not None:
        written = text_quality.read_texts(str(options.samples), keeps_empty=True)
        metrics = text_quality.similarity(written, options.reference)
        similar: JsonDict = {"samples": options.samples, "reference": options.reference}
        similar |= {"texts": len(written), "metrics": metrics}
        write_json(output, similar)
        shown = [
            (m["metric"], *(f"{m[key]:.2f}" for key in ("value", "low", "high"))) for m in metrics
        ]
        print(f"{table(shown, ('', '%', 'from', 'to'))}\nfiles are in {output}")
        return Result(similar, (output,), metrics)
    judge = text_quality.JudgeModel.load(str(options.judge), options.trust, options.device)
    samples: dict[str, Json] = {"source": options.samples}
    drawn = None
    starts = [0]
    is_same = False
    if options.samples is not None:
        found = [judge.encoded(text) for text in text_quality.read_texts(options.samples)]
    else:
        model = Model(options.loaded(), options.device)
        if model.loaded.is_dna:
            raise ValueError(
                f"{model.path} was trained on DNA; samples of DNA are judged by python -m "
                "dnadiff.judge"
            )
        settings = model.sampler_options(options)
        check_settings(settings)
        length = options.length or model.length
        chosen = resolved_sampler(settings, model.loaded, model.stored_curve, length, length)
        request = Free(model.tokenizer, options.num_samples, length, options.seed)
        generator = model.conditional_sampler(build(chosen, trust=None), request)
        bar = Progress(options.num_samples, "sample")
        rows = []
        for batch in generator.batches(request, options.seed, options.batch_size):
            rows += batch.tokens
            bar.update(len(batch.tokens), sum(map(len, batch.tokens)))
        bar.close()
        drawn = np.stack(rows).astype(np.int64)
        is_same = model.tokenizer == judge.tokenizer
        found = judge.read(drawn, model.tokenizer)
        samples = {"source": str(model.path), "seed": options.seed}
        samples["sampler"] = chosen["_target_"]
        stride = options.stride
        if stride is None and "window" in chosen:
            stride = chosen["stride"] or max(1, chosen["window"] // 2)
        stride = stride or max(1, model.loaded.training_length("stride") // 4)
        starts = list(range(0, length, stride))
    texts = [ids for ids in found if len(ids)]
    if not texts:
        raise ValueError(f"no sample of {samples['source']} has a token of the judge {judge.path}")
    n = options.ngram_size
    nats = judge.nats(texts, options.batch_size)
    described = {"samples": text_quality.describe(texts, n, nats)}
    real, source = text_quality.real_texts(judge, options.trust, [len(x) for x in texts])
    if real:
        of_real = text_quality.describe(real, n, judge.nats(real, options.batch_size))
        described["real text"] = of_real | {"source": source}
    content = {
        "judge": {
            "checkpoint": str(judge.path),
            "step": judge.step,
            "window": judge.length,
            "tokenizer": judge.tokenizer.name,
        },
        "samples": samples,
        "ngram_size": n,
        "rows": described,
        "by_position": [],
    }
    if drawn is not None:
        at = text_quality.at_positions(nats, drawn, judge.tokenizer) if is_same else None
        content["by_position"] = text_quality.by_position(drawn, starts, n, at)
    write_json(output, content)
    show(content)
    print(f"files are in {output}")
    return Result(content, (output,))


def show(content: JsonMap) -> None:
    """Print the tables."""

    def cells(row: JsonMap) -> Iterator[str]:
        for key, form in (("perplexity", ".2f"), ("entropy", ".3f"), ("repetition", ".1%")):
            if key not in row:
                yield ""
                continue
            low = row[f"{key}_low"]
            high = row[f"{key}_high"]
            interval = "" if math.isnan(low) else f" ({low:{form}} to {high:{form}})"
            yield f"{row[key]:{form}}{interval}"

    repeated = f"repeated {content['ngram_size']}-grams of tokens"
    header = ("generative perplexity", "entropy, nats", repeated)
    rows = [(name, f"{r['texts']:,}", *cells(r)) for name, r in content["rows"].items()]
    print(table(rows, ("", "texts", *header)))
    judge = content["judge"]
    print(
        f"under {judge['checkpoint']}, in pieces of at most {judge['window']} of its tokens; "
        "entropy of the same tokens"
    )
    if "real text" in content["rows"]:
        print(f"the real text is of {content['rows']['real text']['source']}")
    if content["by_position"]:
        rows = [(f"{r['start']:,} to {r['end']:,}", *cells(r)) for r in content["by_position"]]
        print("\n" + table(rows, ("tokens", *header)))


main = judge_text.main

if __name__ == "__main__":
    main()
