"""Run plans on Vulkan, Metal and DX12 adapters."""
