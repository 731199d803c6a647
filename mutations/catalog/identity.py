"""Faults in `engine/turn/identity.py`: requests that must not share KV, and get the same digest."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/identity.py"

MUTANTS = (
    Mutant(
        id="identity-none-is-empty",
        file=_FILE,
        text='_block(digest, b"none", b"")',
        replacement='_block(digest, b"str", b"")',
        kind="cache_key_collision",
        source="https://github.com/vllm-project/vllm/issues/44701",
        expected_check="reuse",
        note="A request of nobody and one of somebody without a name share KV.",
    ),
    Mutant(
        id="identity-by-length",
        file=_FILE,
        text='_block(digest, b"str", value.encode())',
        replacement='_block(digest, b"str", str(len(value)).encode())',
        kind="cache_key_collision",
        source="https://github.com/waybarrios/vllm-mlx/pull/444",
        expected_check="reuse",
        note="Texts of one length are told apart by nothing.",
    ),
    Mutant(
        id="identity-without-payload",
        file=_FILE,
        text='digest.update(tag + b":" + str(len(payload)).encode() + b":" + payload)',
        replacement="digest.update(tag)",
        kind="cache_key_collision",
        source="https://github.com/InternLM/lmdeploy/pull/4985",
        expected_check="reuse",
        note="The digest holds which kinds of fields there are and not what they say.",
    ),
)
