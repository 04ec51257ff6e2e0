"""Folders that are uploaded to the Hugging Face Hub; `store.remote.fetch_hub` fetches them."""

from pathlib import Path
from typing import Any

from dnadiff.store.remote import HUB_PREFIX


def push_folder(
    folder: Path, repository: str, private: bool, token: str | None = None, api: Any = None
) -> str:
    """Upload the files of a folder to the repository `ORG/NAME`, which is made if it does not
    exist, and return its address with the commit, `hf:ORG/NAME@COMMIT`.

    Args:
        token: None is the one that `hf auth login` stored.
        api: a `huggingface_hub.HfApi`; None makes one.

    Raises:
        ValueError: if the Hub refuses, in one line.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = api or HfApi(token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"hf:{repository} could not be written ({reason}); log in with hf auth login, or give "
            "token, and check ORG/NAME"
        ) from error
    return f"{HUB_PREFIX}{repository}@{commit.oid}"
