"""Published weights in and out: tensor names, `config.json`, and one module per model family.

Importing the package registers the layout of each family with `published_layout`.
"""

from dnadiff.published.layout import PublishedLayout, published_layout
from dnadiff.published.model import PublishedModel, export_published, is_published, load_published

__all__ = [
    "PublishedLayout",
    "PublishedModel",
    "export_published",
    "is_published",
    "load_published",
    "published_layout",
]
