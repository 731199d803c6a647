"""llama-cpp-python: a draft model on a recurrent or hybrid model ends in "llama_decode returned -1".

When a drafted token is rejected, generate() sets n_tokens back and calls kv_cache_seq_rm, whose answer it does not look at: a
recurrent state cannot be cut, so it answers False. The next llama_decode is given positions that the state is already past,
and refuses.

Usage: python draft_recurrent.py MODEL.gguf    (mamba, lfm2, ...)
Ends with 1: shown (the last line says so), 0: not shown. Needs llama_cpp only.
"""

import sys

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

prompt = [5, 6, 7, 8] * 8
print("llama_cpp", llama_cpp.__version__, flush=True)


def reply(**more):
    llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, verbose=False, **more)
    tokens = []
    try:
        for token in llm.generate(prompt, temp=0.0):
            tokens.append(token)
            if len(tokens) == 20:
                break
    except RuntimeError as error:
        return tokens, f"RuntimeError: {error}"
    return tokens, None


plain, failed = reply()
drafted, error = reply(draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4))
print(f"   without a draft model {plain} {failed or ''}\n   with                  {drafted} {error or ''}")
shown = bool(error) and not failed
print("shown" if shown else "not shown")
sys.exit(int(shown))
