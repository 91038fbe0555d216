"""Devices that run plans: NumPy on this machine, and WebGPU adapters through wgpu."""
