"""The WGSL of a dispatch: shader files joined with declared pieces, and matrix products from a small generator."""

from gdlab.kernels.join import wgsl
from gdlab.kernels.pieces import shader_folder

__all__ = ["shader_folder", "wgsl"]
