"""Whether the Hugging Face Hub can be asked at all, so that a machine without a network says so at once and not after many tries."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY")


def reachable() -> bool:
    """Whether the Hub's name can be looked up; with a proxy, which does that itself, always true."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    try:
        socket.getaddrinfo(urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname, 443)
        return True
    except OSError:
        return False
