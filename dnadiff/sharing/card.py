"""The model card: `README.md` in the format of the Hugging Face Hub, written from what is recorded
of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from dnadiff.config import Config, Json, config_dir
from dnadiff.data.splits import MAX_HELD_OUT
from dnadiff.sharing.record import bits_text

LIBRARY, UNKNOWN = (
    "dnadiff",
    "unknown",
)  # `unknown` is what the Hub calls a license that is not stated
_SHOWN = 8  # held-out records named in the table
_POINTS = 8  # of h(n)
_GUIDE = "RESPONSIBLE_USE.md"
_INFO = "python -m dnadiff.info"


def model_card(name: str, about: Config) -> str:
    """The card of a model.

    Args:
        name: of the model, its title.
        about: as `dnadiff.sharing.record.summary` returns it; optionally with `duplicate_tied` and
            `dtype` of the weights in the file.
    """
    sections = {
        "What it is": what(about),
        "Data": data(about),
        "Split": split(about),
        "Likelihood": likelihood(about["likelihood"], about["curve"]),
        "License": licenses(about),
        "Intended use": intended(about),
        "Responsible use": responsible(about),
        "How to load it": loading(about),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"---\n{metadata(about)}---\n\n# {name}\n\n{body}\n"


def metadata(about: Config) -> str:
    """The YAML between the first two lines of dashes."""
    kind = "genomics" if is_dna(about) else "text"
    tags = [
        *(["dna"] if is_dna(about) else []),
        kind,
        "masked-diffusion",
        "language-model",
        about["network"].lower(),
    ]
    content = {
        "library_name": LIBRARY,
        "license": about["license"] or UNKNOWN,
        "tags": tags,
        "pipeline_tag": "fill-mask",
    }
    return yaml.safe_dump(content, sort_keys=False)


def is_dna(about: Config) -> bool:
    """Whether it is a model of DNA."""
    return bool(about["alphabet"] == "DNA")


def rows(pairs: Config) -> str:
    """A table of two columns in Markdown; what is None or empty is left out."""
    lines = [
        f"| {key} | {_cell(value)} |"
        for key, value in pairs.items()
        if value not in (None, "", [], {})
    ]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Json) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def what(about: Config) -> str:
    """Network, objective and amount of training."""
    table = {
        "network": about["network"],
        "parameters": about["parameters"],
        "objective": about["objective"],
        "noise schedule": about["noise"],
        "conditioned on time": "yes" if about["time_conditioning"] else None,
        "tokenizer": about["tokenizer"],
        "labels": ", ".join(about["labels"]),
        "training window, tokens": about["training_window"],
        "longest input, tokens": about["max_length"],
        "optimizer steps": about["step"],
        "tokens seen in training": about["tokens"],
        "seconds of training": None if about["seconds"] is None else round(about["seconds"]),
        "weights in the file": weights_in_file(about),
        "SHA-256 of the weights": about["fingerprint"],
    }
    text = (
        f"A language model of {about['alphabet']} that predicts masked tokens, trained with "
        f"dnadiff.\n\n{rows(table)}"
    )
    return "\n\n".join(filter(None, (text, about["remark"], about["note"])))


def weights_in_file(about: Config) -> str | None:
    """The type of rounded weights; None if they were not rounded."""
    if about.get("dtype") is None:
        return None
    return (
        f"{about['dtype']}; the likelihood below was measured with them"
        if about["likelihood"]
        else str(about["dtype"])
    )


def data(about: Config) -> str:
    """What it was trained on."""
    if not about["data"]:
        return "The training data are not recorded."
    changed = (
        " Its files changed since training: the numbers and names of records that they hold "
        "now are left out."
    )
    return f"Trained on {_cell(about['data'])}." + (changed if about["data_changed"] else "")


def split(about: Config) -> str:
    """Which part was held out."""
    held = {part: named(names) for part, names in (about["held_out_records"] or {}).items()}
    table = {
        "split": about["split"],
        "hash of records and split": about["split_hash"],
        **{f"tokens, {part}": number for part, number in (about["split_tokens"] or {}).items()},
        **{f"records with held-out parts, {part}": names for part, names in held.items()},
    }
    return rows(table) if about["split"] or about["split_hash"] else "The split is not recorded."


def named(records: Sequence[str]) -> str:
    """The first records, and how many more there are; a run stores at most `MAX_HELD_OUT` names."""
    least = "at least " if len(records) == MAX_HELD_OUT else ""
    return ", ".join(records[:_SHOWN]) + (
        f" and {least}{len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    )


def likelihood(found: Config | None, curve: Config | None = None) -> str:
    """Held-out likelihood next to its baselines, and h(n)."""
    if not found:
        return (
            "Not measured. `python -m dnadiff.evaluate` measures it and compares it with "
            "Markov "
            "models of the same training part."
        )
    header = ["tokens counted", "bits per token", "95 % interval", "number"]
    table = [
        [
            name,
            bits_text(g["bits"]),
            f"{bits_text(g['bits_low'])} to {bits_text(g['bits_high'])}",
            f"{g['tokens']:,}",
        ]
        for name, g in found["groups"].items()
    ]
    text = [
        f"Upper bounds on -log2 p of the {found['part']} part of {_cell(found['data'])}, windows "
        f"of {found['window']:,} tokens. "
        f"Protocol: {_cell(found['protocol'])}.",
        _markdown(header, table),
    ]
    if found["markov"]:
        baselines = [
            [
                f"Markov order {row['order']}, {name}",
                bits_text(g["bits"]),
                bits_text(g["difference_bits"], "+.4f"),
                f"{bits_text(g['low'], '+.4f')} to {bits_text(g['high'], '+.4f')}",
            ]
            for row in found["markov"]
            for name, g in row["groups"].items()
        ]
        text += [
            "Back-off Markov models fitted on the training part of the same data; a negative "
            "difference means that this model is better.",
            _markdown(
                ["baseline", "bits per token", "this model minus it", "95 % interval"], baselines
            ),
        ]
    if curve:
        last = len(curve["visible"]) - 1
        shown = sorted({round(i * last / (_POINTS - 1)) for i in range(_POINTS)})
        points = [[f"{curve['visible'][i]:,.0f}", bits_text(curve["bits"][i])] for i in shown]
        text += [
            "Bits of one token with n others of the window visible, h(n):",
            _markdown(["n", "h(n)"], points),
        ]
    return "\n\n".join(text)


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def licenses(about: Config) -> str:
    """Of the weights and of the data."""
    weights, of_data = (
        about["license"] or "not stated",
        about["data_license"] or "not recorded; state it here before you share this model",
    )
    return rows({"weights": weights, "training data": of_data})


def intended(about: Config) -> str:
    """What it can be used for, and what not."""
    text = f"For research: {about['purpose']}."
    if is_dna(about):
        text += (
            " Not for clinical, diagnostic or therapeutic use. Likelihoods are no evidence of "
            "function without a validation of their own."
        )
    return text


def responsible(about: Config) -> str:
    """The guide of the package for models of DNA, one level deeper."""
    if not is_dna(about):
        return (
            "Samples are statistical: unverified text in the style of the training data, "
            "including its errors and biases."
        )
    lines = (config_dir().parent / _GUIDE).read_text(encoding="utf-8").splitlines()
    return "\n".join(_deeper(lines[1:])).strip()


def _deeper(lines: Sequence[str]) -> Iterator[str]:
    return (f"#{line}" if line.startswith("#") else line for line in lines)


def loading(about: Config) -> str:
    """Python and the command line, for a copy of the folder and for the Hub: the name of the folder
    is chosen by whoever copies it."""
    sequences = '["ACGTTGACCTGA"]' if is_dna(about) else '["some text"]'
    published = ""
    if about["network"].startswith("Caduceus"):
        layout = (
            "\n\n`config.json` and `model.safetensors` have the layout of the published "
            "Caduceus code"
        )
        once = (
            f"{layout}, except that tied projections are stored once. For that code, export "
            "them again with `duplicate_tied=true`."
        )
        published = (
            f"{layout}, which loads them too." if about.get("duplicate_tied", True) else once
        )
        if about["labels"]:
            published += (
                " There the model is the one without a label; the tensors of labels are "
                "reported as unused."
            )
    return (
        "In a copy of this folder (elsewhere write its path instead of the dot):\n\n"
        f'```python\nimport dnadiff\n\nmodel = dnadiff.load(".")\nmodel.nll({sequences})  # nats '
        "per token, an upper bound\n"
        f"model.embed({sequences})\n```\n\n```\n{_INFO} checkpoint=.\n```\n\n"
        "From the Hugging Face Hub, with the name and a commit of this repository:\n\n"
        f'```python\nmodel = dnadiff.load("hf:ORG/NAME@COMMIT")\n```\n\n```\n{_INFO} '
        f"checkpoint=hf:ORG/NAME@COMMIT\n```{published}"
    )


def write_card(folder: Path, name: str, about: Config) -> None:
    """Write `README.md` into a folder."""
    from dnadiff.store.disk import atomic_write

    with atomic_write(folder / "README.md") as file:
        file.write(model_card(name, about).encode())
