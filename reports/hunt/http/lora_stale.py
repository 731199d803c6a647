"""llama-server: keys and values computed under one LoRA scale are served to a request under another.

Same prompt, greedy, full log-probabilities. Three ways to get there, each judged against legal requests at the scale asked for:
  A  a request with "lora": [{"id": 0, "scale": 0}], then one without the field (the server's own scale, 1)
  B  a request, then POST /lora-adapters with another scale, then the same request
  C  as A, the field given; the first prompt went to the RAM prompt cache meanwhile (another prompt in between)

Usage: python lora_stale.py [URL]   of a server started with one adapter:  llama-server -m M.gguf --lora A.gguf --parallel 1
Ends with 1: shown (the last line says so), 0: not shown. Needs nothing but Python.
"""

import json
import sys
import urllib.request

URL = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080").rstrip("/")
P = [5 + (7 * i * i + 3 * i) % 240 for i in range(60)]
Q = [9 + (11 * i * i + 5 * i) % 240 for i in range(60)]


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))


def ask(prompt, lora=None, cold=False, n=6):
    """Tokens, log-probability by token id of the first one, and how many tokens came from the cache."""
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "n_probs": 10000, "return_tokens": True}
    body |= {"ignore_eos": True, "cache_prompt": not cold} | (
        {} if lora is None else {"lora": [{"id": 0, "scale": lora}]}
    )
    answer = call("/completion", body)
    rows = answer.get("completion_probabilities") or [{"top_logprobs": []}]
    return answer["tokens"], {e["id"]: e["logprob"] for e in rows[0]["top_logprobs"]}, answer["timings"]["cache_n"]


def server_scale(scale):
    call("/lora-adapters", [{"id": 0, "scale": scale}])


def apart(one, two):
    return max(abs(one[1][t] - two[1][t]) for t in one[1].keys() & two[1].keys())


def legal(scale):
    """P at a scale: cold, and by plain hits on beginnings of P computed at that same scale."""
    found = [ask(P, scale, cold=True)]
    for n in (1, 10, 30, 45, 59):
        ask(Q, scale, cold=True)
        ask(P[:n], scale, cold=True, n=0)
        found.append(ask(P, scale))
    return found


print("llama-server", call("/props").get("build_info"))
server_scale(1.0)
right, other = legal(1.0), ask(P, 0.0, cold=True)
spread = max(apart(one, two) for one in right for two in right)
hits = sum(one[2] > 0 for one in right)
print(f"scale 1: {right[0][0]}; {len(right)} legal requests ({hits} hit the cache) lie within {spread:.4g} nats")
print(f"scale 0: {other[0]}, {apart(right[0], other):.4g} nats off", flush=True)
shown = 0


def judge(name, warm):
    global shown
    off = min(apart(warm, one) for one in right)
    wrong = warm[2] > 0 and off > spread
    shown += wrong
    print(f"{name}\n   {warm[2]} cached, {warm[0]}, off all legal requests by at least {off:.4g} nats", flush=True)


ask(Q, 1.0, cold=True)
ask(P, 0.0)
judge("A  the field left out, after a request with scale 0", ask(P))
ask(Q, 1.0, cold=True)
server_scale(0.0)
ask(Q, cold=True)
ask(P)
server_scale(1.0)
judge("B  POST /lora-adapters 0 -> 1 between two requests", ask(P))
ask(Q, 1.0, cold=True)
ask(P, 0.0)
ask(Q, 0.0)
ask(Q, 1.0)
judge("C  back from the RAM prompt cache, filled at scale 0, for a request that says scale 1", ask(P, 1.0))
print(f"{'shown' if shown else 'not shown'} in {shown} of 3 ways")
sys.exit(int(shown > 0))
