"""llama-cpp-python: a recurrent or hybrid model cannot take the same prompt twice.

generate() sets n_tokens back to the shared prefix and ignores that kv_cache_seq_rm refuses.

Usage: python recurrent_prefix.py MODEL.gguf    (mamba, lfm2, ...)
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp only.
"""

import sys

import llama_cpp

print("llama_cpp", llama_cpp.__version__, flush=True)
llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False)
prompt = [10, 20, 30, 40]
first = next(llm.generate(prompt, temp=0.0))
try:
    again = next(llm.generate(prompt, temp=0.0))
except RuntimeError as error:
    print(f"shown: token {first}; the same prompt again: RuntimeError: {error}")
    sys.exit(1)
print(f"not shown: token {first}; the same prompt again: token {again}")
