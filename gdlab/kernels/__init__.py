"""Write the WGSL of a dispatch: shader files joined with declared pieces, and products from a small generator."""

from gdlab.kernels.dispatch_wgsl import plan_wgsl, wgsl
from gdlab.kernels.pieces import shader_folder

__all__ = ["plan_wgsl", "shader_folder", "wgsl"]
