"""Text to ids and back, by the model's own `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from ..contract.errors import ModelError


class TextTokenizer:
    """A model directory's tokenizer."""

    def __init__(self, directory: Path) -> None:
        """ModelError when the directory has no readable `tokenizer.json`."""
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{directory}: has no tokenizer.json; give token ids instead of text")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{file}: the tokenizers library refuses it: {error}") from error

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`. Markers written in the text become their ids; `special` adds what the model adds by itself."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))
