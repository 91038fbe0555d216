"""Write tokens with a language model: `model.generate(prompt, max_new_tokens=64)`."""

from gdlab.generate.tokens import Tokens, generate, unload

__all__ = ["Tokens", "generate", "unload"]
