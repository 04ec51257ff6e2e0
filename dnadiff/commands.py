"""What the command lines share: composing the configuration, the run folder, and errors in one line.

Only this file, `config` and the command lines know Hydra.
"""

from __future__ import annotations

import ctypes
import difflib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff.checks import integer
from dnadiff.config import compose, config_dir, with_current_choices

# glibc returns large arrays to the system when they are freed and asks for them again in the next step, page by page: 20,000 page
# faults per step of Caduceus 64 x 4 at 8,192 tokens, a fifth of its time. Commands keep the memory instead.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them in malloc.h
_LARGEST = 2**31 - 1
Command = Callable[[dict[str, Any], Path, list[str]], None]
COMMANDS = {
    "train": "train a masked diffusion model on a genome or a text",
    "evaluate": "held-out likelihood with error bars, beside Markov models",
    "zero_shot": "held-out likelihood on several sets of texts, in one table",
    "score": "the likelihood of each record of a FASTA file, to a table",
    "sample": "write synthetic sequences to FASTA",
    "judge": "samples against held-out windows, in every number beside a floor",
    "judge_text": "samples of text under a local causal model, with their entropy and repetition",
    "copies": "the longest match of each record of a FASTA file with the training part",
    "finetune": "fine-tune a trained model into a classifier, beside baselines",
    "genome": "pack and describe a genome, extract regions of it",
    "compress": "a FASTA file as the code that a trained model gives it",
    "decompress": "the FASTA file back, byte for byte",
}


def run(name: str, function: Command, argv: Sequence[str] | None = None) -> None:
    """Run one command line: compose `configs/<name>.yaml` with the overrides, call `function(config, run folder, overrides)`.

    An error ends the process with status 1 and one line on standard error; HYDRA_FULL_ERROR=1 shows the traceback.
    A run folder that a refused start left empty is removed.
    """
    # GNU OpenMP threads spin at every barrier for milliseconds; on a machine that does anything else besides, that costs a factor
    # of ten (6,000 against 63,000 tokens/s measured on two cores with one busy). On idle cores a training step of the demo's network takes
    # 104 ms with 1,000 turns, 96 with 10,000, 97 with 100,000; on busy ones 10,000 is as good as 1,000, and 30,000 half as fast.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_freed_memory()
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing, and the one line is ours
    if argv is not None:
        sys.argv = [f"dnadiff.{name}", *argv]
    configure_logging()
    sys.argv[1:] = with_current_choices(sys.argv[1:])
    overrides = [a for a in sys.argv[1:] if not a.startswith("-")]
    try:
        _main(name, function)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if before == "1":
            raise
        print(f"error: {explain(error, name, overrides)}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]


def _main(name: str, function: Command) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    kept = {Path(a.partition("=")[2]) for a in sys.argv if a.startswith("hydra.run.dir=")}
    kept = {path for path in kept if path.exists()}  # a folder that was there before is not ours to remove
    caught: list[Exception] = []  # raised again outside, for Hydra writes its own line about every error that passes through it

    # Hydra resolves a relative folder against the caller's file, which breaks outside a checkout.
    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)
    def main(config: Any) -> None:
        run_dir = Path(HydraConfig.get().runtime.output_dir)
        run_dir = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir  # short names in messages
        configure_logging()
        try:
            overrides = list(HydraConfig.get().overrides.task)
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            refuse_unread(plain, overrides, name)
            refuse_words(plain, overrides, name)
            function(plain, run_dir, overrides)
        except Exception as error:
            caught.append(error)
        finally:
            if run_dir not in kept:
                remove_if_empty(run_dir)

    main()
    if caught:
        raise caught[0]


def configure_logging() -> None:
    """Our own messages at INFO; of Lightning only what a user must act on."""
    log = logging.getLogger("dnadiff")
    log.handlers, log.propagate = [logging.StreamHandler(sys.stderr)], False
    log.setLevel(logging.INFO)
    for name in ("pytorch", "fabric"):
        # Lightning sets the level of its own root when it is imported; that of this child it leaves alone.
        logging.getLogger(f"lightning.{name}.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning.*")
    warnings.filterwarnings("ignore", message=r".*(lr_scheduler\.step|isinstance\(treespec|num_workers).*")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for the next allocation; True if the C library is glibc and agreed.

    A setting of the whole process: for programs, not for libraries. The peak of memory stays what it was.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    # Older releases refuse a threshold above 32 MiB for a mapping of its own.
    mapped = mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mapped)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing, and the parents that this leaves with nothing."""
    for path in (folder, *folder.parents[:2]):
        try:
            path.rmdir()
        except OSError:
            return


def explain(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """One line: what is wrong and what to do."""
    text = _first_line(error)
    kind = type(error).__name__
    if kind in ("ConfigCompositionException", "MissingConfigException", "OverrideParseException", "ConfigAttributeError", "ConfigKeyError"):
        return _explain_config(error, name, overrides)
    if kind == "MissingMandatoryValue" or kind == "InterpolationToMissingValueError":
        key = re.search(r"(?:Missing mandatory value|MissingMandatoryValue while resolving.*?interpolation.*?)[: ]+([\w.]+)", str(error))
        where = re.search(r"full_key: ([\w.]+)", str(error))
        missing = (where or key).group(1) if where or key else "a value"
        return f"{missing} is missing: give {missing}=... on the command line (python -m dnadiff.{name} --help shows how)"
    forced = isinstance(error, RuntimeError) and "was asked for and cannot run" in text
    if forced or (isinstance(error, (ValueError, OSError)) and kind != "UnicodeDecodeError"):
        return text
    return f"{kind}: {text} (HYDRA_FULL_ERROR=1 shows where)"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _explain_config(error: Exception, name: str, overrides: Sequence[str]) -> str:
    text = str(error)
    if choice := re.search(r"Could not find '([\w/]+)'.*Available options in '([\w/]+)':\s*(.*)", text, re.DOTALL):
        group, known = choice[2], re.findall(r"[\w.\-]+", choice[3].partition("\n\n")[0].partition("\nConfig search path")[0])
        wanted = choice[1].removeprefix(group + "/")
        return f"{group}={wanted} does not exist{_closest(wanted, known)}; known: {', '.join(sorted(known))}"
    if type(error).__name__ == "OverrideParseException":
        return (
            f"cannot read the command line: {' '.join(text.split())[:160]} ; quote values with special characters, as in 'path=\"a b.fa\"'"
        )
    if key := re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)'", text):
        return unknown_key(key[1].partition("@")[0], name, overrides)
    return " ".join(text.split())


def unknown_key(key: str, name: str, overrides: Sequence[str] = ()) -> str:
    """What to say of a key or group that the command does not have, with the groups that were chosen."""
    config = recompose(name, group_choices(overrides), resolve=False)
    if key.startswith("data.") and not config.get("data"):
        return f"{key}: the data come from the checkpoint's run; to evaluate on others replace the whole group, as in data=fasta data.path=my.fa"
    known = list(flatten(config))
    shelf = key.rpartition(".")[0]
    beside = [k for k in known if k.rpartition(".")[0] == shelf and shelf] or sorted({k.partition(".")[0] for k in known})
    return f"unknown key {key}{_closest(key, known)}; known{f' in {shelf}' if shelf else ''}: {', '.join(k.rpartition('.')[2] for k in sorted(set(beside)))}"


def group_choices(overrides: Sequence[str]) -> list[str]:
    """Those overrides that choose a file of a group, as in `data=fasta`."""
    return [o for o in overrides if (config_dir() / o.lstrip("+").partition("=")[0].partition("@")[0]).is_dir()]


def recompose(name: str, overrides: Sequence[str], resolve: bool = True) -> dict[str, Any]:
    """The configuration of a command, from inside one."""
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    return compose(name, overrides, resolve)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys."""
    for key, value in config.items():
        yield prefix + str(key)
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")


def refuse_unread(config: Mapping[str, Any], overrides: Sequence[str], name: str) -> None:
    """Refuse a new key of the top level: nobody would read it. Deeper ones (+trainer.x=1) go to a constructor, which checks.

    Raises:
        ValueError: naming the key and the nearest one that exists.
    """
    added = [o.lstrip("+").partition("=")[0] for o in overrides if o.startswith("+")]
    if added and (unread := [key for key in added if key.partition(".")[0] not in recompose(name, [], resolve=False)]):
        raise ValueError(unknown_key(unread[0], name, overrides))


def refuse_words(config: Mapping[str, Any], overrides: Sequence[str], name: str) -> None:
    """Refuse a word where the configuration has true or false: Python would take any, `no` included, for true.

    Raises:
        ValueError: naming the key and the word.
    """
    given = {key: value for key, value in leaves(config) if isinstance(value, str) and value.isalpha()}
    keys = [key for key in (o.lstrip("+").partition("=")[0] for o in overrides) if key in given]
    if not keys:
        return
    before = dict(leaves(recompose(name, group_choices(overrides), resolve=False)))
    for key in keys:
        if isinstance(before.get(key), bool):
            raise ValueError(f"{key}={given[key]} is neither true nor false: say {key}=true or {key}=false")


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of everything that is not itself a mapping."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value


def pick_device(accelerator: str) -> str:
    """The torch device meant by `auto`, `cpu`, `gpu`, `cuda` or `mps`."""
    import torch

    known = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"}
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator not in known:
        raise ValueError(f"accelerator {accelerator!r} is not known; choose auto, {', '.join(known)}")
    if known[accelerator] == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"accelerator={accelerator}: this machine or this build of torch has no CUDA device; use auto or cpu")
    return known[accelerator]


def check_window(window: int | None, loaded: Any) -> int:
    """The longest window that a command reads records in, of which the network takes so many tokens; the model must be one of DNA.

    Raises:
        ValueError: if it is one of text, or the window is too long.
    """
    if loaded.tokenizer.vocab.complement is None:
        raise ValueError(f"input is read as DNA, but {loaded.path} was trained on text; give a model of DNA")
    window = int(loaded.config["data"]["length"]) if window is None else integer("window", window)
    most = loaded.denoiser.backbone.max_length
    if most is not None and window > most:
        raise ValueError(f"window {window} is more than the {most} tokens that this network takes; set window to that or less")
    return window


def _closest(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""
