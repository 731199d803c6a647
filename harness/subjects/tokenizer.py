"""Text to ids by a model's own `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.errors import RefusedError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenizerFile:
    """The `tokenizer.json` of a model directory, loaded when a text is first given to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def encode(self, text: str) -> Sequence[int]:
        """Ids, without those that a model wants around a text. RefusedError where there is no such file."""
        return self._loaded.encode(text, add_special_tokens=False).ids

    @cached_property
    def _loaded(self) -> Tokenizer:
        file = self._directory / "tokenizer.json"
        if not file.is_file():
            raise RefusedError(
                f"{self._directory}: has no tokenizer.json, so a prompt cannot be given as text; give token ids"
            )
        from tokenizers import Tokenizer  # takes longer to import than everything else here

        return Tokenizer.from_file(str(file))
