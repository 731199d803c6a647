"""Tokenizer and chat template: the model's own files, nothing assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmcold.engine.contract.errors import ModelError
from warmcold.engine.text.chat import ChatTemplate
from warmcold.engine.text.tokenizer import TextTokenizer

ZOO = Path(__file__).parents[2] / "fixtures" / "zoo"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_text_survives_the_way_there_and_back() -> None:
    """A byte-level tokenizer decodes what it encoded."""
    tokenizer = TextTokenizer(ZOO / "llama-optimum-fp32")
    text = "naïve café — 12345\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_missing_or_broken_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    """ModelError with the path."""
    with pytest.raises(ModelError, match=r"no tokenizer\.json; give token ids"):
        TextTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="refuses it"):
        TextTokenizer(tmp_path)


def _directory(tmp_path: Path, template: object) -> Path:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<e>"}))
    return tmp_path


def test_messages_are_rendered_by_the_models_template(tmp_path: Path) -> None:
    """Turn by turn, with the assistant's opening at the end; a longer chat begins with the shorter one."""
    chat = ChatTemplate(_directory(tmp_path, CHATML))
    one = [{"role": "user", "content": "hi"}]
    assert chat.render(one) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    two = [*one, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "so"}]
    assert chat.render(two).startswith(chat.render(one, generation_prompt=False))


def test_a_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    """`chat_template.jinja` is where newer exporters put it; named templates of the older form are understood."""
    directory = _directory(tmp_path, [{"name": "default", "template": "named {{ eos_token }}"}])
    assert ChatTemplate(directory).render([]) == "named <e>"
    (directory / "chat_template.jinja").write_text("file")
    assert ChatTemplate(directory).render([]) == "file"


@pytest.mark.parametrize(
    ("template", "message"),
    [(None, "declares no chat template"), ("{% for %}", "does not parse"), ("{{ raise_exception('no system') }}", "no system"),
     ("{{ messages.__class__.__mro__ }}", "refuses")],
)  # fmt: skip
def test_a_bad_template_is_the_models_fault(tmp_path: Path, template: object, message: str) -> None:
    """Missing, unparsable, refusing, or reaching out of the sandbox: ModelError."""
    with pytest.raises(ModelError, match=message):
        ChatTemplate(_directory(tmp_path, template)).render([{"role": "user", "content": "x"}])
