"""Files on other machines, by their address: fetched into the cache, and written back.

`http://` and `https://` need no further package; `s3://`, `gs://` and `hf://` are read by fsspec.
Only what a user names is fetched: an address in a checkpoint has the prefix `cached:`
(`dnadiff.config.build`), which allows a copy in the cache and nothing else.
"""
