"""llama-cpp-python: a state loaded into a Llama with a longer n_ctx leaves it unable to hold more than the saver could.

load_state replaces input_ids, whose length is the object's n_ctx, by the saver's shorter array. llama.cpp accepts the state;
the first prompt longer than the saver's n_ctx then fails in eval() with a ValueError of numpy.

Usage: python load_into_longer.py MODEL.gguf
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp only.
"""

import sys

import llama_cpp

print("llama_cpp", llama_cpp.__version__, flush=True)


def load(n_ctx):
    return llama_cpp.Llama(sys.argv[1], n_ctx=n_ctx, n_threads=1, verbose=False)


prompt = [5 + n % 200 for n in range(300)]
short, long = load(256), load(1024)
next(short.generate(prompt[:40], temp=0.0))
long.load_state(short.save_state())
print(f"n_ctx {long.n_ctx()}, input_ids holds {len(long.input_ids)}")
print(f"a prompt of {len(prompt)} tokens, on a fresh Llama: token {next(load(1024).generate(prompt, temp=0.0))}")
try:
    print(f"not shown: after load_state: token {next(long.generate(prompt, temp=0.0))}")
except ValueError as error:
    print(f"shown: after load_state: ValueError: {error}")
    sys.exit(1)
