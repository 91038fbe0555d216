"""Windows over images: convolution and pooling."""
