import sys

import numpy as np
from gguf import GGUFReader, GGUFWriter

src, out = sys.argv[1], sys.argv[2]
r = GGUFReader(src)
rng = np.random.default_rng(0)
rank = 4
w = GGUFWriter(out, "llama")
w.add_type("adapter")
w.add_string("adapter.type", "lora")
w.add_float32("adapter.lora.alpha", float(rank))
for t in r.tensors:
    if t.name.endswith(("attn_k.weight", "attn_v.weight")):
        n_in, n_out = (int(x) for x in t.shape)
        w.add_tensor(t.name + ".lora_a", (rng.standard_normal((rank, n_in)) * n_in**-0.5).astype(np.float32))
        w.add_tensor(t.name + ".lora_b", (rng.standard_normal((n_out, rank)) * 0.7).astype(np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
