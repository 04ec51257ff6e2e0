"""`python -m dnadiff.zero_shot`: held-out likelihood on several text data sets, under several
protocols, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from dnadiff.fields import Config, Json, PositiveInt
from dnadiff.options.base import MISSING, ModelOptions, Result
from dnadiff.options.command import command, compose
from dnadiff.progress import log, table
from dnadiff.store.objects import build

if TYPE_CHECKING:
    from dnadiff.diffusion.denoiser import BaseDenoiser

# Keys of the data of the training run: only the text differs.
LAYOUT = ("length", "wrap", "insert_eos", "insert_valid_eos", "insert_special_tokens")
# The part of the paper's numbers; test for other sets.
PUBLISHED = dict.fromkeys(("ptb", "wikitext2", "wikitext103", "owt"), "valid")
KINDS = {"all": "counted", "without specials": "left out"}  # how a group treats special tokens
Paths = str | list[str] | dict[str, str | list[str]]  # files, or files by part


class ZeroShotOptions(ModelOptions):
    """Likelihood of text data sets that a model was not trained on, several sets in one command.

        python -m dnadiff.zero_shot checkpoint=RUN
        python -m dnadiff.zero_shot checkpoint=RUN 'sets=[ptb,lambada]' 'paths={ptb: ptb.test.txt}'

    Each number is listed with its protocol, and with special tokens (begin, end) both counted and
    left out. Windows have the length and layout of training (wrapped or padded, the same special
    tokens); each set has its own detokenizer.
    """

    sets: list[str] = ["ptb", "wikitext2", "wikitext103", "lm1b", "lambada", "ag_news"]
    """names of data="""
    paths: dict[str, Paths] | None = None
    """local files by set, FILE or {valid: FILE}; other sets are downloaded from the Hub"""
    protocols: list[Literal["mdlm", "count"]] = ["mdlm", "count"]
    """autoregressive models (and blocks of one token) always use exact, block diffusion count"""
    part: Literal["test", "valid", "train", "published"] = "test"
    """published: the part of each set that the paper reports"""
    num_draws: PositiveInt = 8
    """network calls per window, for protocol count"""
    block_size: PositiveInt = 16
    """windows in a bootstrap block"""
    output: str | None = None
    """JSON file; null: zero_shot.json in the run folder"""

    @model_validator(mode="after")
    def _lists_are_of_different_names(self) -> Self:
        for key, example in (("sets", "ptb,lambada"), ("protocols", "count")):
            names = getattr(self, key)
            if not names or len(set(names)) < len(names):
                raise ValueError(
                    f"{key} {names} must be a list of different names, such as {key}=[{example}]"
                )
        if set(self.paths or {}) - set(self.sets):
            raise ValueError(
                f"paths {self.paths} must name files by set: 'paths={{{self.sets[0]}: FILE}}'"
            )
        return self


@command(ZeroShotOptions)
def zero_shot(options: ZeroShotOptions) -> Result:
    """Evaluate on all sets; a row for each set, protocol and group of tokens."""
    from dnadiff.genomics.evaluation import Evaluation, estimator_kind, evaluate
    from dnadiff.store.disk import check_output, write_json

    output = options.new_output("zero_shot.json")
    model = options.loaded()
    if model.is_dna:
        raise ValueError(
            f"the sets are texts, and {model.path} was trained on DNA; evaluate it by python -m "
            "dnadiff.evaluate data=..."
        )
    protocols = protocols_of(model.denoiser, options.protocols)
    for protocol in protocols.values():
        estimator_kind(model, protocol, options.num_draws)
    trained_on = model.config.get("data") or {"length": model.training_length()}
    chosen: dict[str, tuple[str, Config]] = {}
    for name in options.sets:  # errors come before the first evaluation
        part = PUBLISHED.get(name, "test") if options.part == "published" else options.part
        chosen[name] = part, data_of(name, part, (options.paths or {}).get(name), trained_on)
    for name, (part, described) in chosen.items():
        data = build(described, trust=None)
        data.expect(model.tokenizer)
        if part not in data.parts:
            remedy = "".join(f"part={known}, or " for known in data.parts)
            raise ValueError(
                f"{name} has no {part} part; set {remedy}'paths={{{name}: {{{part}: FILE}}}}'"
            )
        data.prepare()
        data.test_windows(part)
    rows: list[Json] = []
    layouts: dict[str, str] = {}
    # Without zero_shot.json, the files in its folder are of an interrupted command.
    replace = options.overwrite or options.output is None
    for name, (part, described) in chosen.items():
        for shown, protocol in protocols.items():
            path = check_output(options.run_dir / name / shown / "evaluate.json", replace)
            asked = options.into(Evaluation, part=part, protocol=protocol, data=described)
            content = evaluate(model, asked, path)
            rows += rows_of(name, part, shown, content)
            layouts[name] = content["data"].get("layout") or content["data"]["n_policy"]
            if content["data"]["name"] == trained_on.get("name"):
                log.warning(
                    f"{name}: the model was trained on data of this name, so this is not zero-shot"
                )
    content = {"checkpoint": str(model.path), "step": model.step, "layouts": layouts}
    write_json(output, content | {"rows": rows})
    show(rows, layouts)
    print(f"files are in {output}")
    return Result(content, (output,), rows)


def protocols_of(denoiser: BaseDenoiser, chosen: Sequence[str]) -> dict[str, str]:
    """The protocols by the name to show: those chosen, if the model has the choice."""
    from dnadiff.diffusion.likelihood.estimators import is_exact

    if is_exact(denoiser):
        return {"exact": "count"}
    return {name: name for name in (["count"] if denoiser.left_to_right else chosen)}


def data_of(name: str, part: str, path: Paths | None, trained_on: Config) -> Config:
    """The data of one set, with windows of the training length and layout, as in MDLM's code."""
    data: Config = compose("evaluate", [f"data={name}"])["data"]
    data |= {key: trained_on[key] for key in LAYOUT if key in trained_on and key in data}
    if path is not None:
        data["path"] = files_by_part(data, part, path)
    elif data.get("path") == MISSING:
        raise ValueError(f"{name} has no text of its own; name a file: 'paths={{{name}: FILE}}'")
    return data


def files_by_part(data: Config, part: str, path: Paths) -> Paths:
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
    lines = [
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


main = zero_shot.main

if __name__ == "__main__":
    main()
