"""An engine of one's own as a subject, whole: keep the past of each session, cut it to what the prompt shares, feed the rest.

warmcold conformance fixtures/models/snap-gqa-growing --subject docs/my_engine.py:MyEngine
warmcold verify      fixtures/models/snap-gqa-growing --subject docs/my_engine.py:MyEngine
"""

from pathlib import Path

import numpy as np
import onnxruntime as ort

from warmcold.harness.contract import Capabilities, Instance, Level, Observation, RefusedError, ReuseModel, Subject


class MyEngine(Subject):
    """What is loaded once: the weights, and what the engine lets be seen of it."""

    name, max_context, vocab_size = "my_engine", 64, 61
    capabilities = Capabilities(level=Level.L4, operations=frozenset({"sessions", "new"}), reuse=ReuseModel(exact=True))

    def __init__(self, model, *, threads=2):
        self.model = self.onnx = Path(model)  # raw ONNX Runtime can play this file: matched arm and oracle for nothing
        self.session = ort.InferenceSession(self.model / "model.onnx", providers=["CPUExecutionProvider"])
        self.ports = {port.name: port.shape for port in self.session.get_inputs()}
        self.outputs = [port.name for port in self.session.get_outputs()]

    def open(self, settings, *, poison):
        return Conversation(self)

    def describe(self):
        return {"onnxruntime": ort.__version__}


class Conversation(Instance):
    """A fresh instance: of each session the tokens it holds (prompt and reply), and the arrays of those that were fed."""

    def __init__(self, engine):
        self.engine, self.held = engine, {}

    def new_session(self, session):
        self.held.pop(session, None)

    def turn(self, op, prompt):
        context, past = self.held.get(op.session, ((), {}))
        differs = (i for i, (a, b) in enumerate(zip(context, prompt, strict=False)) if a != b)
        shared = next(differs, min(len(context), len(prompt)))
        fed = next(iter(past.values())).shape[2] if past else 0
        n = min(shared, fed, len(prompt) - 1)
        seen, past = self.play(op, prompt, n, {name: rows[:, :, :n] for name, rows in past.items()})
        self.held[op.session] = ((*prompt, *seen.tokens), past)
        return seen

    def cold(self, op, prompt):
        return self.play(op, prompt, 0, {})[0]

    def play(self, op, prompt, n, past):
        """One request on a past of `n` positions; what was seen, and the past afterwards. The last token is not fed."""
        if not 0 < len(prompt) <= self.engine.max_context:
            raise RefusedError(f"a prompt of {len(prompt)} tokens; give 1 to {self.engine.max_context}")
        seeded, feed, tokens, rows, logits = kv(past), list(prompt[n:]), [], [], []
        count = min(op.max_new_tokens, self.engine.max_context + 1 - len(prompt))
        while not rows or len(tokens) < count:
            out, past = self.step(feed, n + sum(rows), past)
            rows.append(len(feed))
            logits.append(out[0, -1])
            feed = [int(np.argmax(logits[-1]))]
            tokens += feed if count else []
        seen = Observation(tokens=tuple(tokens), stop="length", reused=n, prefilled=len(prompt) - n, rows=tuple(rows),
                           logits=tuple(logits), seeded=seeded, end=kv(past))  # fmt: skip
        return seen, past

    def step(self, feed, start, past):
        """One model call: logits, and the past grown by what was fed."""
        total, ports = start + len(feed), self.engine.ports
        feeds = {"input_ids": [feed], "attention_mask": [[1] * total], "position_ids": [list(range(start, total))]}
        feeds = {name: np.array(values, np.int64) for name, values in feeds.items() if name in ports}
        empty = {
            name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in ports.items() if "past" in name
        }
        out = dict(zip(self.engine.outputs, self.engine.session.run(None, feeds | (past or empty)), strict=True))
        return out["logits"], {name: out[name.replace("past_key_values", "present")] for name in empty}


def kv(past):
    """Per layer (keys, values), each [heads, positions, head_dim]."""
    keys, values = ([rows[0].copy() for name, rows in past.items() if name.endswith(part)] for part in ("key", "value"))
    return tuple(zip(keys, values, strict=True))
