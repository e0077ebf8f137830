"""Makes one model: config, tokenizer and random weights. Runs in an engine's environment.

python -P model_maker.py NAME FOLDER SEED
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPECIALS = ("<s>", "</s>", "<user>", "<model>", "<end>")
VOCABULARY = 2048
CONTEXT = 32_768
CHAT = (
    "{% for m in messages %}<{{ 'model' if m.role == 'assistant' else 'user' }}>"
    "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)

# Name: (architecture, deviation of the weights, what differs from the architecture's defaults).
SHAPES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "tiny": (
        "llama",
        0.08,
        {
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
    ),
    "small": (
        "llama",
        0.05,
        {
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 64,
        },
    ),
    # Llama-3.1-8B, with fewer words: for a GPU.
    "8b": (
        "llama",
        0.03,
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
    ),
    # Multi-head latent attention: one compressed vector a token in place of keys and values.
    "mla": (
        "deepseek_v2",
        0.08,
        {
            "hidden_size": 256,
            "intermediate_size": 704,
            "moe_intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 64,
            "v_head_dim": 64,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 4,  # all layers dense
        },
    ),
}


def words(seed: int = 1) -> list[str]:
    """Some words of no language."""
    draw = random.Random(seed)
    syllables = [head + tail for head in "bdfgklmnprstvwz" for tail in ("a", "e", "ion", "o", "us")]
    return sorted({"".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(1200)})


def sentences(known: list[str], count: int) -> Iterator[str]:
    """Text to learn a vocabulary from."""
    draw = random.Random(2)
    for _ in range(count):
        yield " ".join(draw.choices(known, k=draw.randint(5, 25))) + "."


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE, which can say any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    known = words()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(known, 3000), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "model_max_length": CONTEXT,
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "words.json").write_text(json.dumps(known))


def write_weights(folder: Path, name: str, seed: int) -> int:
    """Config and weights; the number of parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, deviation, shape = SHAPES[name]
    config = AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        **shape,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a large one takes minutes on a CPU
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    draw = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for _, weight in sorted(made.named_parameters()):
            numbers = torch.randn(weight.shape, generator=draw, device=device)
            # The scales of norms have one axis.
            weight.copy_(numbers * deviation if weight.dim() > 1 else 1 + 0.1 * numbers)
    made.save_pretrained(folder)
    return sum(weight.numel() for weight in made.parameters())


if __name__ == "__main__":
    _name, _folder, _seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    _folder.mkdir(parents=True)
    write_tokenizer(_folder)
    print(write_weights(_folder, _name, _seed))
