"""A command: a Python function of its options, and a command line with one-line errors."""

from __future__ import annotations

import argparse
import ctypes
import inspect
import itertools
import json
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast

import yaml
from pydantic import ValidationError

from dnadiff.fields import Config, described
from dnadiff.options.base import (
    Options,
    Result,
    ShardedOptions,
    Start,
    hint_of,
    pages,
)
from dnadiff.options.compose import Composition, import_plugins, override
from dnadiff.progress import (
    Interrupted,
    PrintableOutput,
    configure_logging,
    log,
    pasted,
    printable,
)
from dnadiff.store.address import expand_user, is_remote, shortened
from dnadiff.store.address import parse as parse_address
from dnadiff.store.disk import check_output
from dnadiff.store.objects import build, check, imported, leaves
from dnadiff.supervised.runs import MODELS, refuse_classifier

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job

P = ParamSpec("P")
O = TypeVar("O", bound=Options)
# glibc returns large freed arrays to the system and requests them again in the next step, page by
# page: 20,000 page faults per step of Caduceus 64 x 4 at 8,192 tokens, a fifth of its time.
# Commands keep the memory instead. The first two are mallopt's names in malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1
# Of the environment: the number of processes that a launcher started together.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Keys of commands that name a file to write.
OUTPUTS = ("output", "per_base", "track", "dependency", "windows", "report", "browser")
_RESTARTS = (
    "resume",
    "overwrite",
    "report",
    "browser",
)  # say how files are written, not what is in them


def interrupt(number: int, _: object) -> None:
    """The handler of these signals."""
    raise Interrupted(128 + number)


class Command(Generic[P]):
    """A command, from `@command(ItsOptions)`: called with the keys of its options as keyword
    arguments, it returns its result.

    Keys inside groups are given as `**{"data.path": "x.fa"}`, choices of groups by their name.

    Attributes:
        options: the class of its options.
        function: of options; it returns the result, or, of `ShardedOptions`, jobs.
        name: the word on the command line: `zero_shot` for ZeroShotOptions.
        known: all commands that were imported, by name.
    """

    known: ClassVar[dict[str, Command[...]]] = {}

    def __init__(self, options: type[Options], function: Callable[[Any], Any]) -> None:
        self.options = options
        self.function = function
        words = options.__name__.removesuffix("Options")
        self.name = re.sub(r"(?<!^)(?=[A-Z])", "_", words).lower()
        self.known[self.name] = self
        self.__signature__ = inspect.Signature(list(options.__signature__.parameters.values()))
        self.__doc__ = help_text(self.name, options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run the command; raises ValueError or OSError with one line about what is wrong."""
        return self.start([override(key, value) for key, value in kwargs.items()])

    def compose(
        self, overrides: Sequence[str] = (), run_dir: Path | None = None, folder: Path | None = None
    ) -> Any:
        """The options that the arguments of a command line give.

        Args:
            run_dir: the run folder; None is what `hydra.run.dir` says.
            folder: the user's own folder of YAML files.

        Raises:
            ValueError: naming what is wrong.
        """
        import_plugins(overrides)
        composed = Composition(self.name, self.options, overrides, folder)
        config = composed.config()
        run_dir = run_dir or Path(config.hydra.run.dir)
        values = composed.plain(config)
        try:
            return self.options.of(values, Start(run_dir, tuple(overrides), folder))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ValueError(composed.unknown_key(key))
        raise ValueError(str(first.get("ctx", {}).get("error") or f"{key}: {first['msg']}"))

    def start(
        self, overrides: Sequence[str] = (), run_dir: Path | None = None, folder: Path | None = None
    ) -> Result:
        """Run the command with the arguments of a command line; see `compose`."""
        options = self.compose(overrides, run_dir, folder)
        with run_folder(options.run_dir, is_named(overrides) or run_dir is not None) as made:
            options._start = options._start._replace(run_dir=made)
            values = dict(options)
            try:
                return self._checked(options, values)
            except (KeyboardInterrupt, Interrupted) as stop:
                folder = getattr(stop, "run_dir", None) or made
                log.info(f"\nstopped; {self._next(options, folder)}")
                raise
            except (ValueError, MemoryError, RuntimeError) as error:
                if memory := without_memory(self.name, error, values):
                    raise MemoryError(memory) from error
                text = with_keys(str(error), values)
                if type(error) is not ValueError or text == str(error):
                    raise
                raise ValueError(text) from error

    def _next(self, options: Any, run_dir: Path) -> str:
        """What to do after an interruption, as it can be pasted into a shell."""
        given = [o for o in options.arguments if not o.startswith(("resume=", "overwrite="))]
        names = {o.partition("=")[0] for o in given}
        divided = bool(names & {"shard", "launcher"})
        line = [f"--config-dir={options.config_folder}"] * bool(options.config_folder)
        line = [shlex.quote(o) for o in shortened(line + given)]
        if resumes := "resume" in self.options.model_fields and not divided:
            if not names & {"hydra.run.dir", *self.options.resumes_by}:
                line.append(pasted("hydra.run.dir", run_dir))
            line.append("resume=true")
        how = "resume it" if resumes or divided else "start again"
        return f"to {how}: python -m dnadiff.{self.name} {' '.join(line)}"

    def _checked(self, options: Any, values: Config) -> Result:
        """Check what the configuration builds, and run with a local file for each remote output."""
        refuse_classifier(values, self.name)
        pages = [expand_user(path).resolve() for path in options.pages.values()]
        if len({*pages}) < len(pages):
            raise ValueError(f"report and browser are the same file, {pages[0]}; give each its own")
        from dnadiff.store.remote import check_names, uploading

        check_names(values, MODELS)
        if is_first() and "torch" not in sys.modules:  # seconds, before the first result
            log.info(
                f"{self.name}: loading PyTorch" + (" and Lightning" if "trainer" in values else "")
            )
        check(values, trust=None)
        if is_remote(options.run_dir):
            raise ValueError(
                f"hydra.run.dir {parse_address(options.run_dir).shown} is on another machine, and "
                "a run folder is on this one; give output=... instead"
            )
        outputs = {key: values.get(key) for key in OUTPUTS}
        launcher = values.get("launcher")
        divided = launcher or values.get("shard") is not None
        for key, path in outputs.items() if divided else ():
            if is_remote(path):
                raise ValueError(
                    f"{key} {path} is on another machine, and shards need a folder that all of "
                    "them see; name a file there, and copy what merging writes"
                )
        complete = launcher and values.get("resume") and Path(values["output"] or "").is_file()
        if launcher and not complete:  # starts this command once for each shard
            return build(launcher, trust=None).launch(
                self.name,
                values["output"],
                options.arguments,
                shard=values["shard"],
                overwrite=options.overwrite,
                config_folder=options.config_folder,
            )
        if self.options.chooses_threads:
            from dnadiff.networks.kernels.facade import choose_threads

            choose_threads()
        with uploading(outputs, values.get("resume", False), options.overwrite) as local:
            return self.run(options.model_copy(update=local) if local else options)

    def run(self, options: Any) -> Result:
        """Compute what the function returns, run its jobs, and write the page of `report=`."""
        pages = pages_of(options)
        for path in pages.values():
            check_output(path, options.overwrite or getattr(options, "resume", False))
        if "browser" in pages:
            imported("dnadiff.report.browser").library()  # refuses now if it is not installed
        if isinstance(options, ShardedOptions):
            from dnadiff.jobs.runner import RunOptions, run_jobs

            given: Config = {"command": self.name, "overrides": options.overrides}
            given["named"] = is_named(options.arguments)
            # Refuses what exists before anything is loaded.
            running = options.into(RunOptions.checked, **given)
        result = self.function(options)
        if isinstance(result, list):
            result = result_of(run_jobs(result, running))
        self.write_page(options, result)
        return result

    def write_page(self, options: Any, result: Result) -> None:
        """Write the pages from the finished files of a run: `page(result, options)` of
        `dnadiff.report.browser` for `browser=`, and for `report=` of the module of `dnadiff.report`
        with the name of the command. A shard has none."""
        for key, path in pages_of(options).items():
            module = self.name if key == "report" else key
            page = imported(f"dnadiff.report.{module}").page(result, options)
            if page is None:
                path.unlink(missing_ok=True)  # of an earlier run
                continue
            if not page.commands:
                given = [o for o in options.overrides if o.partition("=")[0] not in _RESTARTS]
                line = shlex.join(["python", "-m", f"dnadiff.{self.name}", *given])
                page = replace(page, commands=(line,))
            imported("dnadiff.report.page").write(page, path)

    def main(self, argv: Sequence[str] | None = None) -> None:
        """The command line: an error ends the process with status 1 and one line on standard
        error; HYDRA_FULL_ERROR=1 shows the traceback. `argv` None is what the process was given.
        """
        # GNU OpenMP threads spin at barriers for milliseconds: on a busy machine ten times slower.
        # docs/results/performance.md has the numbers.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        keep_freed_memory()
        configure_logging()
        page, folder, overrides = parse(sys.argv[1:] if argv is None else argv)
        if page == "help":
            found = Composition(self.name, self.options, (), folder).choices().items()
            listed = "\n".join(f"{group}: {', '.join(names)}" for group, names in found)
            return print_page(help_text(self.name, self.options, listed))
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    handlers[number] = signal.signal(number, interrupt)
        try:
            if page == "job":
                import_plugins(overrides)
                values = compose(self.name, overrides, resolve=False, folder=folder)
                return print(yaml.safe_dump(values, sort_keys=False, width=1000).rstrip())
            with redirect_stdout(PrintableOutput(sys.stdout)):  # type: ignore[type-var]
                self.start(overrides, folder=folder)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            print(report(error, overrides), file=sys.stderr)
            raise SystemExit(1) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def pages_of(options: Options) -> dict[str, Path]:
    """The pages that this process writes, by their key."""
    divided = getattr(options, "shard", None) is not None
    if divided or not is_first():
        return {}
    return {key: expand_user(path) for key, path in options.pages.items()}


def is_first() -> bool:
    """Whether this is the only process of a launch, or the first."""
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)


def command(options: Callable[P, O]) -> Callable[[Callable[[O], Result | list[Job]]], Command[P]]:
    """Make a function of options a command, whose signature for type checkers and editors is that
    of the class of options."""
    return lambda run: Command(cast(type[Options], options), run)


def result_of(output: Path) -> Result:
    """The result of jobs, whose numbers are in a JSON file: the output, or the file next to it."""
    about = output if output.suffix == ".json" else output.with_name(f"{output.name}.json")
    content = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    return Result(content, (output,))


def compose(
    name: str, overrides: Sequence[str] = (), resolve: bool = True, folder: Path | None = None
) -> Config:
    """The configuration of a command as a plain dict, for scripts and tests.

    Args:
        resolve: replace `${...}` by values.
        folder: the user's own folder of YAML files, as in `--config-dir`.
    """
    composed = Composition(name, named(name).options, overrides, folder)
    return composed.plain(composed.config(), resolve, required=False)


def command_names() -> list[str]:
    """The commands of this package: the files of its top level that declare one."""
    files = Path(__file__).parents[1].glob("*.py")
    return sorted(
        p.stem
        for p in files
        if re.search(r"^@command\(", p.read_text(encoding="utf-8"), re.MULTILINE)
    )


def named(name: str) -> Command[...]:
    """The command of this package, or of an imported plugin, with this name."""
    if name not in Command.known:
        imported(f"dnadiff.{name}")
    return Command.known[name]


def parse(arguments: Sequence[str]) -> tuple[str, Path | None, list[str]]:
    """What to show instead of running (`help`, `job` or nothing), the user's own folder of YAML
    files, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shows_help: Any = {"action": "store_const", "const": "help", "dest": "shown", "default": ""}
    parser.add_argument("--help", "-h", **shows_help)
    parser.add_argument("--cfg", "-c", choices=["job"], dest="shown")
    parser.add_argument("--config-dir", "-cd", type=Path)
    options, rest = parser.parse_known_args(arguments)
    return options.shown, options.config_dir, rest


def is_named(overrides: Sequence[str]) -> bool:
    """Whether the run folder is shared: the user named it, or the processes of one launch have the
    same. A batch script of SLURM with one task is not several."""
    several = any(os.environ.get(name, "1") != "1" for name in _SIZES)
    return (
        "LOCAL_RANK" in os.environ
        or several
        or any(o.startswith("hydra.run.dir=") for o in overrides)
    )


@contextmanager
def run_folder(path: Path, shared: bool) -> Iterator[Path]:
    """A run folder. It, and the folders above it, are removed if they are left empty and were not
    there before.

    Args:
        shared: use a folder that exists; otherwise a number is added, because the default names of
            two commands of one second are the same.
    """
    path = Path(os.path.abspath(path))
    new = [folder for folder in path.parents if not folder.exists()]
    is_new = not (shared and path.exists())
    candidate = path
    try:
        for number in itertools.count(2):
            try:
                candidate.mkdir(parents=True, exist_ok=shared)
                break
            except FileNotFoundError:  # another command removed the folder above: once more
                continue
            except FileExistsError:
                if shared:  # it is a file
                    raise
                candidate = path.with_name(f"{path.name}_{number}")
        here = Path.cwd()  # short names in messages
        yield candidate.relative_to(here) if candidate.is_relative_to(here) else candidate
    finally:
        with suppress(OSError):  # not empty
            for folder in (candidate, *new) if is_new else ():
                folder.rmdir()


def report(error: Exception, overrides: Sequence[str]) -> str:
    """The line on standard error that ends a command; it names the key of a value that it repeats,
    such as the name of a missing file."""
    parts: tuple[object, ...] = (str(error),)
    if isinstance(error, OSError) and error.strerror:
        parts = error.filename, error.strerror
    text = " ".join(": ".join(str(part) for part in parts if part).split()) or type(error).__name__
    text = printable(text)
    forced = isinstance(error, RuntimeError) and "was asked for and cannot run" in text
    expected = isinstance(error, (ValueError, OSError, yaml.YAMLError))
    expected = expected or text.startswith("out of memory")
    if not forced and (not expected or isinstance(error, UnicodeDecodeError)):
        text = f"{type(error).__name__}: {text} (HYDRA_FULL_ERROR=1 shows where)"
    for override_ in reversed(overrides):
        key, _, value = override_.lstrip("+").partition("=")
        value = value.strip("'\"")
        if value and re.match(rf"(checkpoint )?{re.escape(value)}[ :]", text):
            return f"error: {text}" if text.startswith(f"{key} ") else f"error: {key}: {text}"
    return f"error: {text}"


# What NumPy, PyTorch, Arrow, CUDA, C++ and the system say.
_NO_MEMORY = re.compile(r"allocate memory|out of memory|bad_alloc|ALLOC_FAILED")
_AMOUNT = re.compile(r"(?:allocate|malloc of size) ([\d.]+)( [KMGTPE]iB)?")


def without_memory(name: str, error: Exception, values: Config) -> str:
    """What needed how much memory, and the keys that lower it; an empty string for other errors.

    Args:
        name, values: of the command.
    """
    text = " ".join(str(error).split())
    if not isinstance(error, MemoryError) and not _NO_MEMORY.search(text):
        return ""
    found = _AMOUNT.search(text)
    needed = f"{found[1]}{found[2] or ' bytes'} at once" if found else text or "more than is free"
    keys = [
        f"lower {key}{f' (now {value})' if value else ''}"
        for key, value in leaves(values)
        if key.rpartition(".")[2] in ("batch_size", "window", "length") and value is not False
    ]
    remedy = " or ".join(keys) or "use a machine with more memory"
    return f"out of memory{' of the GPU' * ('CUDA' in text)}: {name} needs {needed}; {remedy}"


def with_keys(message: str, values: Config) -> str:
    """A message in which each name of an argument, followed by its value, is the complete key: the
    values of a command have the keys, and what they build only knows its own arguments."""
    keys: dict[str, set[str]] = {}
    for key, value in leaves(values):
        keys.setdefault(f"{key.rpartition('.')[2]} {value!r}", set()).add(key)
    for pair, places in keys.items():
        name, _, value = pair.partition(" ")
        if len(places) == 1:  # of others the message does not say which it means
            said = rf"(?<![\w.]){re.escape(name)}(?= {re.escape(value)}(?![\w.]))"
            message = re.sub(said, next(iter(places)), message)
    return message


def print_page(text: str) -> None:
    """Print a text that the reader may stop reading, as in `--help | head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # what is left would be written again at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def help_text(name: str, options: type[Options], choice_list: str = "") -> str:
    """What `--help` prints: examples, all keys with their defaults, notes, and the choices of
    config groups."""
    header, examples, notes = pages(options)
    shared = Options.model_fields
    fields = {k: f for k, f in options.model_fields.items() if k not in shared} | shared
    lines = []
    for key, field in fields.items():
        shown = options.groups().get(key, (None,))[0] or field.get_default()
        known = not field.is_required() and shown not in (None, [], {})
        value = f" ({override('', shown)[1:]})".replace("'", "") if known else ""
        text = " ".join((field.description or described(hint_of(field))).split())
        filled = textwrap.wrap(text + value, 76) or [""]
        lines += [f"  {key:20} {filled[0]}", *(f"  {'':20} {line}" for line in filled[1:])]
    lines.append(f"  {'plugins':20} modules to import first, as in plugins=[my_package.gc_skew]")
    parts = [header, examples, "\n".join(lines), notes]
    parts += [f"Choices:\n{choice_list}"] if choice_list else []
    return "\n\n".join(part for part in parts if part)


def reference() -> str:
    """The page of all commands and their keys, in Markdown."""
    pages = (f"## {name}\n\n```text\n{named(name).__doc__}\n```\n" for name in command_names())
    return "\n".join(["# Commands and their keys\n", *pages])


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for the next allocation; True if the C library is glibc
    and accepts the setting.

    It applies to the whole process: for programs, not for libraries. Peak memory does not change.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):  # another C library
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(
        _MMAP_THRESHOLD, 2**25
    )  # older releases refuse more than 32 MiB
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mapped)
