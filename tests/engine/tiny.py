"""A model folder so small that a step takes milliseconds: random weights of the Llama family, and a
vocabulary of single words.
"""

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support.tiny import write_llama

VOCABULARY: Final = 64
END: Final = 2


def make_tiny_model(folder: Path) -> Path:
    """Write the folder; the same weights each time."""
    folder.mkdir(parents=True)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    more = {"max_position_embeddings": 128, "tie_word_embeddings": False, "eos_token_id": END}
    write_llama(folder, sizes, more, seed=7, spread=0.2)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder
