"""Reading of files, compressed or not, wherever they are.

A path `bundled:NAME` is a file that ships with the package; an address such as `s3://BUCKET/FILE`
is fetched into the cache (`remote`). File formats are read in `genome` and `text`.
"""

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias

from dnadiff.store.address import (
    CACHED,
    existing,
    expand_user,
    file_name,
    is_remote,
    parse,
    shortened,
)
from dnadiff.store.disk import check_regular
from dnadiff.store.remote import fetch, store_of, stored

ByteReader: TypeAlias = "IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile"
COMPRESSED = (".gz", ".bgz", ".bz2", ".xz", ".zst")  # endings of names
_BUNDLED = "bundled:"
BUNDLED = Path(__file__).parents[1] / "data" / "bundled"
LICENSES = {
    "ecoli_K12_MG1655.fa.gz": (
        "INSDC record U00096.3, which may be used and redistributed without restriction"
    )
}  # of sequences
_GZIP = b"\x1f\x8b"
_MAX_BLANK = 1_000_000  # lines
# The empty block that ends every bgzip file (SAM specification, section 4.1.2).
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def resolve(path: str | Path) -> Path:
    """The file behind `path`: `bundled:NAME` inside the package, the copy in the cache of an
    address, `~` expanded.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is a folder.
        OSError: if it is an address and cannot be fetched.
    """
    text = str(path)
    if is_remote(text):
        return fetch(parse(text))
    if is_remote(text.removeprefix(CACHED)):
        return stored(parse(text.removeprefix(CACHED)))
    if text.startswith(_BUNDLED):
        return bundled(text.removeprefix(_BUNDLED))
    found = existing(text.removeprefix(CACHED))  # a file of this machine is its own copy
    if found.is_dir():
        raise ValueError(f"{path} is a folder; name the file in it")
    check_regular(found, path)
    return found


def matches(text: str) -> list[str] | None:
    """The files that a pattern with `*`, `?`, `[...]` or `**` describes, sorted; None if the text
    is no pattern.

    Raises:
        FileNotFoundError: if there are none.
    """
    if is_remote(text):
        # What follows is a query.
        is_pattern = glob.has_magic(text.partition("?")[0] if "http" in text[:4].lower() else text)
        if not is_pattern:
            return None
        address = parse(text)
        place = ""
        text = address.shown
        found = store_of(address).matches()
    else:
        path = expand_user(text)
        place = f" (it is read from {Path.cwd()})"
        if text.startswith(CACHED) or not glob.has_magic(text) or path.exists():
            return None
        names = glob.glob(str(path), recursive=True)
        found = sorted(name for name in names if not Path(name).is_dir())
    if not found:
        raise FileNotFoundError(f"{text} matches no file; check the pattern{place}")
    return found


def is_file(path: str | Path) -> bool:
    """Whether a text names a file, not a value: a file of this machine, a bundled one, or an
    address."""
    text = str(path)
    return text.startswith((_BUNDLED, CACHED)) or is_remote(text) or expand_user(text).is_file()


class TextFile(io.TextIOWrapper):
    """A text file whose lines are read within limits: gzip makes a gigabyte of line ends, or a line
    of a gigabyte, from a megabyte.

    Attributes:
        path: for messages.
        longest: characters of a line.
    """

    path: object = ""
    longest = 1 << 26
    _num_blank = 0

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline(self.longest)
        self._num_blank = self._num_blank + 1 if line.isspace() else 0
        if self._num_blank > _MAX_BLANK:
            raise ValueError(f"{self.path} has {_MAX_BLANK:,} blank lines in a row; remove them")
        if len(line) == self.longest:
            raise ValueError(
                f"{self.path} has a line of more than {self.longest:,} characters, so that it is "
                "no file of this format; break the line, or give another file"
            )
        if not line:
            raise StopIteration
        return line


def read_text(path: str | Path, most: int = 1 << 28) -> str:
    """The content of a text file that is small by its nature; a ValueError if it has more than
    `most` characters, otherwise as `open_text`."""
    with open_text(path) as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"{path} has more than {most:,} characters; give a smaller file")
    return content


@contextmanager
def open_text(path: str | Path) -> Iterator[TextFile]:
    r"""Open a plain or compressed file of UTF-8 text for reading; `\r\n` and `\r` arrive as `\n`.
    See `decompressed`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty, damaged or not text, or beyond the limits of `TextFile`;
            also for errors met while the caller reads.
    """
    with open_binary(path) as content:
        text = TextFile(content, encoding="utf-8-sig")
        text.path = path
        try:
            yield text
        except UnicodeDecodeError as error:
            text.detach().seek(0)  # type: ignore[attr-defined]
            where, byte = _not_utf8(content)
            raise ValueError(
                f"{path}: {where} ({byte:#04x}) is not UTF-8 text; give a text file, plain or "
                "compressed, or convert it (iconv -t UTF-8)"
            ) from error
        finally:
            with suppress(ValueError):  # a generator that is collected may find it closed
                text.detach()


def _not_utf8(lines: Iterable[bytes]) -> tuple[str, int]:
    """The place of the first byte that is not UTF-8, and this byte."""
    for number, line in enumerate(lines, 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return f"line {number}: byte {error.start + 1}", line[error.start]
    raise AssertionError("a text that could not be decoded")


@contextmanager
def open_binary(path: str | Path) -> Iterator[ByteReader]:
    """Open a plain or compressed file for reading; see `decompressed`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty or damaged; also for errors met while the caller reads.
    """
    path = shortened(str(path))
    with resolve(path).open("rb") as raw, decompressed(path, raw) as content:
        yield content


@contextmanager
def decompressed(path: str | Path, raw: BinaryIO) -> Iterator[ByteReader]:
    """The content of an open file, decompressed if it is gzip, bgzip, bzip2, xz or zstd, which its
    first bytes say and not its name.

    A compressed file is read to its end, where its checksum is, even if the caller stops earlier.

    Raises:
        ValueError: if it is damaged, or compressed in another way; also for errors met while the
            caller reads.
    """
    start = _start(path, raw)
    opened = next((open_ for mark, open_ in _READ.items() if mark.match(start)), None)
    if opened is None:
        yield raw
        return
    check_bgzip(path, raw)
    try:
        with opened(raw) as content:
            _start(path, content)
            yield content
            for _ in chunks(content):
                pass
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        # Errors of the system pass.
        of_content = isinstance(error, gzip.BadGzipFile) or str(error) == _DAMAGED_BZIP2
        if isinstance(error, OSError) and not of_content:
            raise
        raise ValueError(
            f"{path} is damaged or cut short ({error}); fetch or compress it again"
        ) from error


def _start(path: str | Path, content: ByteReader) -> bytes:
    """The first bytes of an open file, which is left at its beginning; ValueError if there are
    none, or they are of an archive, or of a compression that is not read."""
    start = content.read(512)
    content.seek(0)
    if not start:
        raise ValueError(f"{path} is empty; give a file with content")
    if other := _NOT_READ.match(start):
        raise ValueError(
            f"{path} is packed by {other.lastgroup}, which is not read; unpack it, or compress its "
            "file by gzip, bgzip, bzip2, xz or zstd"
        )
    return start


def _zstd(raw: BinaryIO) -> IO[bytes]:
    """The content of a zstd file in a temporary file, because the stream cannot rewind."""
    import pyarrow  # 0.1 s

    content = tempfile.TemporaryFile()  # noqa: SIM115  # whoever reads it closes it
    try:
        with pyarrow.input_stream(raw.name, compression="zstd") as packed:
            shutil.copyfileobj(packed, content)
    except OSError as error:
        raise EOFError(str(error)) from error
    content.seek(0)
    return content


_READ: dict[re.Pattern[bytes], Callable[[BinaryIO], ByteReader]] = {
    re.compile(re.escape(_GZIP)): lambda raw: gzip.GzipFile(fileobj=raw),
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): bz2.BZ2File,
    re.compile(rb"\xfd7zXZ\0"): lzma.LZMAFile,
    re.compile(rb"\x28\xb5\x2f\xfd"): _zstd,
}
_NOT_READ = re.compile(
    rb"(?s)(?P<zip>PK\x03\x04)|(?P<p7zip>7z\xbc\xaf\x27\x1c)|(?P<lz4>\x04\x22\x4d\x18)|"
    rb"(?P<compress>\x1f\x9d)|(?P<rar>Rar!)|(?P<tar>.{257}ustar[\x00 ])"
)
_DAMAGED_BZIP2 = "Invalid data stream"  # an `OSError` like any other


def chunks(content: ByteReader, size: int = 1 << 22) -> Iterator[bytes]:
    """The rest of an open file in pieces."""
    while chunk := content.read(size):
        yield chunk


def check_bgzip(path: str | Path, raw: BinaryIO) -> None:
    """Refuse a bgzip file without its last block; an open file is left at its beginning.

    Raises:
        ValueError: a file that is cut between two blocks would read without an error.
    """
    start = raw.read(18)
    if start[:4] == _GZIP + b"\x08\x04" and start[12:16] == b"BC\x02\x00":
        raw.seek(-min(len(BGZIP_END), raw.seek(0, os.SEEK_END)), os.SEEK_END)
        if raw.read() != BGZIP_END:
            raise ValueError(
                f"{path} is damaged or cut short: it is bgzip and does not end with the empty "
                "block that bgzip writes last; fetch it again, or, if you know that it is "
                "complete, pack it again with gunzip and bgzip"
            )
    raw.seek(0)


def bare_name(path: object) -> str:
    """The name of a file or of the file at an address, in lower case, without the ending of a
    compression: what its format is known by."""
    name = file_name(path).lower()
    return next((name.removesuffix(end) for end in COMPRESSED if name.endswith(end)), name)


def bundled(name: str) -> Path:
    """Path of the bundled file `name`.

    Raises:
        FileNotFoundError: if there is no bundled file of that name; the message lists the bundled
            files.
    """
    found = BUNDLED / name
    known = sorted(p.name for p in BUNDLED.iterdir() if p.suffix in (".gz", ".bed", ".tsv", ".xz"))
    if name not in known:
        raise FileNotFoundError(
            f"bundled:{name} does not ship with dnadiff; what does: {', '.join(known)}"
        )
    return found
