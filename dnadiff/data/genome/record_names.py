"""Names of records in files of regions and of variants, checked against those of a genome."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

log = logging.getLogger("dnadiff")


def check_names(
    wanted: Iterable[str], known: Collection[str], where: str, skip_unknown: bool = False
) -> None:
    """Refuse names that no record has; the message lists both sets and points out `chr1` next to
    `1`.

    With `skip_unknown` some names may be unknown, which gives a warning. All of them may not, nor
    may `chr1` next to `1`.

    Raises:
        ValueError: if a name in `wanted` is not in `known`; the message begins with `where`.
    """
    wanted, among = list(dict.fromkeys(wanted)), known if isinstance(known, Mapping) else set(known)
    found, unknown = (
        [name for name in wanted if name in among],
        [name for name in wanted if name not in among],
    )
    if not unknown:
        return
    known = list(known)
    message = f"{where}: no record is called {listing(unknown)}; the records are {listing(known)}"
    bare = {name.removeprefix("chr") for name in known}
    if any(name.removeprefix("chr") in bare for name in unknown):
        message += " (one side writes 'chr1' where the other writes '1': rename one)"
    elif found:
        message += f"; found were {listing(found)}"
        if skip_unknown:
            log.warning(f"{message}; rows of other records are left out")
            return
    raise ValueError(message)


def listing(names: list[str], maximum: int = 8) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:maximum]) + (
        f" and {len(names) - maximum} more" if len(names) > maximum else ""
    )
