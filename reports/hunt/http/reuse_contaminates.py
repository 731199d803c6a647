"""llama-server: what one request's n_cache_reuse shifted is served to later requests that did not ask for it.

  1  prompt A + B + C
  2  prompt A + C with "n_cache_reuse": 8: C's keys and values, computed with B before them, are moved (approximate, by choice)
  3  prompt A + C + D without that option: an exact prefix match on what was moved
The server was started with its default, --cache-reuse 0. Request 3 is judged against legal requests of the same prompt: cold,
and plain hits on beginnings of it.

Usage: python reuse_contaminates.py [URL]    of a server started with:  llama-server -m M.gguf --parallel 1
Ends with 1: shown (the last line says so), 0: not shown. Needs nothing but Python.
"""

import json
import random
import sys
import urllib.request

URL = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080").rstrip("/")
ids = [random.randrange(5, 240) for _ in range(200)]  # new ones each time: the server remembers old prompts
A, B, C, D, OTHER = ids[:20], ids[20:60], ids[60:120], ids[120:124], ids[124:160]


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))


def ask(prompt, cold=False, reuse=None, n=6):
    """Tokens, log-probability by token id of the first one, and how many tokens came from the cache."""
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "n_probs": 10000, "return_tokens": True}
    body |= {"ignore_eos": True, "cache_prompt": not cold} | ({"n_cache_reuse": reuse} if reuse else {})
    answer = call("/completion", body)
    rows = answer.get("completion_probabilities") or [{"top_logprobs": []}]
    return answer["tokens"], {e["id"]: e["logprob"] for e in rows[0]["top_logprobs"]}, answer["timings"]["cache_n"]


def apart(one, two):
    return max(abs(one[1][t] - two[1][t]) for t in one[1].keys() & two[1].keys())


print("llama-server", call("/props").get("build_info"))
prompt = A + C + D
ask(OTHER, cold=True)
ask(A + B + C, n=0)
second = ask(A + C, reuse=8, n=0)
warm = ask(prompt)
right = [ask(prompt, cold=True)]
for n in (1, 10, 20, 40, 80, 83):
    ask(OTHER, cold=True)
    ask(prompt[:n], cold=True, n=0)
    right.append(ask(prompt))
spread = max(apart(one, two) for one in right for two in right)
off = min(apart(warm, one) for one in right)
print(f"request 2, which asked for it: {second[2]} of {len(A + C)} cached")
print(f"request 3: {warm[2]} of {len(prompt)} cached, {warm[0]}\n   cold        {right[0][0]}")
print(f"   off all {len(right)} legal requests by at least {off:.4g} nats")
print(f"   these, with {[one[2] for one in right]} cached, lie within {spread:.4g}")
shown = warm[2] > len(A) and off > spread
print("shown" if shown else "not shown")
sys.exit(int(shown))
