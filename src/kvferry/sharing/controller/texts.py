"""From a text to its tokens, with the tokenizer of the models that instances run."""

from __future__ import annotations

import os
from array import array

from kvferry.base.errors import ConfigError

__all__ = ["Tokenizer"]


class Tokenizer:
    """A tokenizer.json of Hugging Face. Threads: any.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or the package `tokenizers` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError:
            text = "tokenizer_file needs the package tokenizers: pip install tokenizers"
            raise ConfigError(text) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # it raises no narrower kind
            raise ConfigError(f"tokenizer_file: {path} is no tokenizer: {error}") from None

    def tokens(self, text: str) -> array[int]:
        """Of a prompt, with what the tokenizer puts around each."""
        return array("q", self._tokenizer.encode(text).ids)
