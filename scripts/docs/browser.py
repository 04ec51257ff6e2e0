"""Open every page of the site in headless Chromium at two widths: pictures of the pages, and an
error for each message of the console, and for each block of code that is wider than its frame.

    python scripts/docs/browser.py [FOLDER] [--site SITE] [--chromium PATH] [--only TEXT]

The site is that of scripts/docs.sh (default: runs/site); the pictures go to FOLDER (default:
runs/screenshots), named PAGE_WIDTH.png.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import subprocess
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WIDTHS = {1280: 2400, 420: 3200}  # and the height of the picture
FRAME = Path(__file__).with_name("frame.html")
MESSAGE = re.compile(r"CONSOLE[^\]]*\] (.*)")


class Quiet(SimpleHTTPRequestHandler):
    """A server of the site and of the frame, without a log."""

    def translate_path(self, path: str) -> str:
        """The file of an address."""
        return str(FRAME) if path.startswith("/?") else super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def look(chromium: str, address: str, picture: Path, size: tuple[int, int]) -> list[str]:
    """Write a picture of a page, and return the messages of its console."""
    with tempfile.TemporaryDirectory() as profile:
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            "--virtual-time-budget=3000",
            f"--screenshot={picture}",
        ]
        done = subprocess.run(
            [chromium, *options, address], capture_output=True, text=True, check=False, timeout=180
        )
    if not picture.is_file():
        raise SystemExit(f"error: no picture of {address}: {done.stderr[-300:]}")
    return MESSAGE.findall(done.stderr)


def main() -> None:
    """Open all pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/screenshots"))
    parser.add_argument("--site", type=Path, default=Path("runs/site"))
    parser.add_argument(
        "--chromium",
        default=shutil.which("chromium") or shutil.which("google-chrome") or "chromium",
    )
    parser.add_argument("--only", default="", help="pages whose path contains this text")
    options = parser.parse_args()
    pages = [
        path
        for path in sorted(options.site.rglob("*.html"))
        if options.only in str(path.relative_to(options.site))
    ]
    if not pages:
        raise SystemExit(f"error: --site {options.site} has no pages; run scripts/docs.sh first")
    options.folder.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(options.site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wrong = 0
    for page in pages:
        name = str(page.relative_to(options.site).with_suffix("")).replace("/", "_")
        for width, height in WIDTHS.items():
            query = f"?{width}&{page.relative_to(options.site)}"
            for message in look(
                options.chromium,
                f"http://127.0.0.1:{server.server_port}/{query}",
                options.folder.absolute() / f"{name}_{width}.png",
                (width, height),
            ):
                wrong += 1
                print(f"{page.relative_to(options.site)}, {width} pixels: {message}", flush=True)
    print(f"{len(pages)} pages at {len(WIDTHS)} widths; {wrong} messages of the console")
    raise SystemExit(int(wrong > 0))


if __name__ == "__main__":
    main()
