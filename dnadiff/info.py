"""`python -m dnadiff.info`: what a model is, what it was trained on, how well it predicts, and what
it is for."""

from dnadiff.fields import Json
from dnadiff.options.base import Checkpoint, Options, Result
from dnadiff.options.command import command
from dnadiff.progress import pasted, printable, table

LABELS = {
    "checkpoint": "weights",
    "source": "source",
    "network": "network",
    "parameters": "parameters",
    "objective": "objective",
    "noise": "noise schedule",
    "tokenizer": "tokenizer",
    "labels": "labels",
    "columns": "reads of an alignment",
    "max_length": "longest input",
    "training_window": "training window",
    "data": "training data",
    "split": "split",
    "split_hash": "hash of the split",
    "step": "steps",
    "tokens": "tokens seen",
    "seconds": "seconds of training",
    "license": "license",
    "data_license": "license of the data",
    "purpose": "for",
}
MISSING = "not recorded"
OPTIONAL = ("labels", "columns", "max_length", "seconds")  # absent means that there are none


class InfoOptions(Options):
    """What a model is, what it was trained on, how well it predicts held-out sequence, and what it
    is for.

        python -m dnadiff.info checkpoint=RUN
        python -m dnadiff.info checkpoint=hf:ORG/NAME@COMMIT output=info.json
    """

    checkpoint: Checkpoint
    output: str | None = None
    """JSON file with the same facts"""


@command(InfoOptions)
def info(options: InfoOptions) -> Result:
    """Print the table, and write the JSON file if there is an `output`."""
    from dnadiff.sharing import record
    from dnadiff.store.disk import check_output, write_json
    from dnadiff.weights.checkpoint import load_silently

    output = None if options.output is None else check_output(options.output, options.overwrite)
    loaded = load_silently(options.checkpoint, options.trust)
    about = record.summary(loaded, record.origin_of(loaded, record.stored_evaluation(loaded)))
    cells = {key: cell(about.get(key)) for key in LABELS}
    shown = {key: text or MISSING for key, text in cells.items() if text or key not in OPTIONAL}
    print(table([(LABELS[key], text) for key, text in shown.items()]))
    if about["data_changed"]:
        print(
            "\nThe files of the training data had changed when the model was exported: their "
            "records are left out."
        )
    for text in filter(None, (about["remark"], about["note"])):
        print(f"\n{printable(text)}")
    if found := about["likelihood"]:
        bits = record.bits_text
        rows: list[tuple[str, ...]] = []
        for name, g in found["groups"].items():
            interval = f"{bits(g['bits_low'])} to {bits(g['bits_high'])}"
            rows.append((name, bits(g["bits"]), interval, f"{g['tokens']:,}"))
        rows += [
            (f"Markov order {model['order']}, {name}", bits(g["bits"]), "", "")
            for model in found["markov"]
            for name, g in model["groups"].items()
        ]
        head = printable(f"{found['part']} part, windows of {found['window']}")
        print("\n" + table(rows, (head, "bits per token", "95 % interval", "number")))
        print(printable(f"{found['data']}: {found['protocol']}"))
    else:
        print(
            "\nheld-out likelihood: not measured (python -m dnadiff.evaluate "
            f"{printable(pasted('checkpoint', about['checkpoint']))})"
        )
    if output is not None:
        write_json(output, about)
        print(f"files are in {output}")
    return Result(about, () if output is None else (output,))


def cell(value: Json) -> str:
    """A value in the table; empty if it is missing."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


main = info.main

if __name__ == "__main__":
    main()
