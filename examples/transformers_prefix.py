"""Keep a prompt's prefix for Transformers: `python examples/transformers_prefix.py`."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvferry import embedded_store
from kvferry.integrations.transformers import KvferryCache

torch.manual_seed(7)  # for `AutoModelForCausalLM.from_pretrained("...")`, so that nothing is loaded
config = LlamaConfig(vocab_size=999, hidden_size=128, num_hidden_layers=2, intermediate_size=256)
config.update({"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1})
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(3, 999, (1, 200))

answers = []
with embedded_store() as store:
    for _ in range(2):
        with KvferryCache.for_model(model, remote_url=store.url, max_local_cpu_size=0.1) as cache:
            past, known = cache.load(prompt)
            print("known:", known, "of", prompt.shape[1], "tokens")
            output = model.generate(
                prompt, past_key_values=past, max_new_tokens=8, do_sample=False, pad_token_id=0
            )
            answers.append(output)
            cache.save(output, past)
print("equal:", torch.equal(*answers))
