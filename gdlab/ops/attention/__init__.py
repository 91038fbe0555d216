"""Scaled dot-product attention: its forms, their gradients, caches of keys and values, biases by distance."""
