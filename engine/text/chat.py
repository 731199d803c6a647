"""Messages to a prompt, by the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..contract.errors import ModelError

Message = Mapping[str, str]


class ChatTemplate:
    """The template of `chat_template.jinja` or of `tokenizer_config.json`, in a sandbox: a model's file is not trusted."""

    def __init__(self, directory: Path) -> None:
        """ModelError when the directory declares no template, or one that does not parse."""
        self._config = _config(directory)
        source = _source(directory, self._config)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"{directory}: its chat template does not parse: {error}") from error

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """The conversation as the model was taught to see it. ModelError when the template refuses the messages."""
        special = {
            name: _token(self._config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=generation_prompt, tools=None, documents=None, **special
            )
        except TemplateError as error:
            raise ModelError(f"the chat template refuses these {len(messages)} messages: {error}") from error


def _config(directory: Path) -> Mapping[str, Any]:
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    return data if isinstance(data, dict) else {}


def _source(directory: Path, config: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    declared = config.get("chat_template")
    if isinstance(declared, list):
        declared = next((entry["template"] for entry in declared if entry.get("name") == "default"), None)
    if not isinstance(declared, str):
        raise ModelError(f"{directory}: declares no chat template; give the prompt as text or ids")
    return declared


def _token(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("content", ""))
    return value if isinstance(value, str) else ""


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
