"""The example models at sizes that a test can run."""

from __future__ import annotations

from collections.abc import Callable

import gdlab as gd
from gdlab import models

RESNET = models.ResNetConfig(image_size=16, width=4, blocks=(1, 2), classes=5)
RESNET_WIDE = models.ResNetConfig(image_size=16, width=4, blocks=(1, 1), classes=5, block="bottleneck", groups=2,
                                  base_width=32)  # fmt: skip
VIT = models.VitConfig(image_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, mlp_dim=16)
VIT5 = models.VitConfig(image_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, mlp_dim=16, classes=5)
WHISPER = models.WhisperConfig(n_mels=5, n_audio_ctx=6, n_audio_state=8, n_audio_head=2, n_audio_layer=2)
UNET = models.UnetConfig(
    sample_size=8, block_out_channels=(4, 8), attention_head_dim=4, norm_num_groups=2, in_channels=2, out_channels=2
)  # fmt: skip
SMALL: dict[str, Callable[[], gd.Graph]] = {
    "resnet18": lambda: models.resnet18(RESNET, 2, "inference"),
    "residual_network": lambda: models.residual_network(RESNET_WIDE, 2, "inference"),
    "vit_encoder": lambda: models.vit_encoder(VIT, 2),
    "vit_encoder, a head": lambda: models.vit_encoder(VIT5, 1),
    "whisper_encoder": lambda: models.whisper_encoder(WHISPER, 2),
    "unet_small": lambda: models.unet_small(UNET, 2, "inference"),
}
TRAINED: dict[str, Callable[[], gd.Graph]] = {
    "resnet18": lambda: models.resnet18(RESNET, 2),
    "residual_network": lambda: models.residual_network(RESNET_WIDE, 2),
    "vit_encoder": lambda: models.vit_encoder(VIT5, 2, "training"),
    "unet_small": lambda: models.unet_small(UNET, 2),
}  # fmt: skip
