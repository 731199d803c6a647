"""A package whose ports have other names than exporters usually give: what it declares is the truth, on both backends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from warmcold.cli import main
from warmcold.engine import Engine, SamplingParams
from warmcold.fixtures import closed_forms

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
NAMES = {
    "input_ids": "tokens",
    "attention_mask": "visible",
    "position_ids": "places",
    "logits": "scores",
    "past_key_values.%d.key": "old_%d_k",
    "past_key_values.%d.value": "old_%d_v",
    "present.%d.key": "new_%d_k",
    "present.%d.value": "new_%d_v",
}
PROMPT = (1, 7, 3, 60, 22, 5, 9)


def renamed(name: str) -> str:
    """The new name of a port; any other name is left as it is."""
    for old, new in NAMES.items():
        for layer in range(4):
            if name == old.replace("%d", str(layer)):
                return new.replace("%d", str(layer))
    return name


@pytest.fixture(params=["snap-gqa-shared", "snap-decomposed", "snap-stateless"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a fixture model with every port renamed, declared so in its `genai_config.json`."""
    folder = shutil.copytree(MODELS / request.param, tmp_path / "model")
    graph = onnx.load(folder / "model.onnx")
    for port in (*graph.graph.input, *graph.graph.output):
        port.name = renamed(port.name)
    for node in graph.graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    onnx.save(graph, folder / "model.onnx")
    kinds = ("input_ids", "attention_mask", "position_ids")
    declared = {
        "inputs": {kind: NAMES[kind] for kind in kinds}
        | {f"past_{part}_names": NAMES[f"past_key_values.%d.{part}"] for part in ("key", "value")},
        "outputs": {"logits": NAMES["logits"]}
        | {f"present_{part}_names": NAMES[f"present.%d.{part}"] for part in ("key", "value")},
    }
    config = {"model": {"decoder": {"filename": "model.onnx", **declared}, "vocab_size": 61, "context_length": 256}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("backend", ["native", "ort"])
def test_a_model_with_other_port_names_runs(model: Path, backend: str) -> None:
    """Cold, and warm on top of it: what the closed form says, whatever its ports are called."""
    oracle = closed_forms.load(MODELS / "snap-gqa-shared")
    assert oracle is not None
    with Engine.load(model, backend=backend, page_size=4, chunk_size=3, min_capacity=4) as engine:
        session, params = engine.session(), SamplingParams(max_new_tokens=4)
        first = session.generate(PROMPT, params)
        assert first.tokens == tuple(oracle.greedy(PROMPT, 4))
        prompt = (*PROMPT, *first.tokens, 4)
        again = session.generate(prompt, params)
        assert again.tokens == tuple(oracle.greedy(prompt, 4))
        assert (again.reused > 0) == engine.spec.has_state


@pytest.mark.parametrize("backend", ["native", "ort"])
def test_a_bare_call_takes_the_names_that_the_package_gives(model: Path, backend: str) -> None:
    """Past arrays among the feeds, by their own names."""
    with Engine.load(model, backend=backend) as engine:
        spec = engine.spec
        feeds = {
            spec.input_ids: np.asarray([PROMPT], np.int64),
            spec.attention_mask: np.ones((1, len(PROMPT)), np.int64),
            spec.position_ids: np.arange(len(PROMPT), dtype=np.int64)[None],
        }
        for layer, pair in zip(spec.states, spec.past, strict=True):
            feeds |= {name: np.zeros((1, layer.heads, 0, layer.head_dim), layer.dtype) for name in pair}
        found = engine.bare({name: array for name, array in feeds.items() if name is not None})
        assert spec.logits == "scores"
        assert found["scores"].shape == (1, len(PROMPT), spec.vocab_size)


def test_verify_takes_the_names_that_the_package_gives(model: Path, tmp_path: Path) -> None:
    """The harness reads them for itself: both backends pass, each judged by the raw graph."""
    asked = ["verify", str(model), "--examples", "3", "--threads", "1", "--report", str(tmp_path / "r"), "--json"]
    seen = CliRunner().invoke(main, asked)
    data = json.loads(seen.stdout)
    assert (seen.exit_code, data["verdict"], len(data["legs"])) == (0, "PASS", 2)
    assert all(leg["checks"]["oracle"]["compared"] for leg in data["legs"])
