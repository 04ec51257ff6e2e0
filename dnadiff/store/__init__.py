"""Bytes anywhere: local and remote files, caches, locks and checksums; secrets kept out."""
