"""Example networks: builders with a configuration, under the parameter names of public checkpoints."""

from gdlab.models.lm import TransformerLmConfig, transformer_lm
from gdlab.models.mlp import MlpConfig, mlp

__all__ = ["MlpConfig", "TransformerLmConfig", "mlp", "transformer_lm"]
