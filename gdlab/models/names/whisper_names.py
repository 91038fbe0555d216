"""The names of Whisper's encoder in transformers and in OpenAI's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gdlab.graph import Graph
from gdlab.models.config_fields import Field, Fields, anything, natural, only, read_fields
from gdlab.models.encoder_block import BlockNames
from gdlab.models.family import Family, GraphRequest, Sources
from gdlab.models.names.encoder_fields import activation, architecture, depth
from gdlab.models.names.encoder_names import check_request, sources_of
from gdlab.models.whisper import OPENAI, WhisperConfig, WhisperNames, whisper_encoder

TRANSFORMERS = WhisperNames(
    ("encoder.conv1", "encoder.conv2"), "encoder.layers.{}",
    BlockNames(("self_attn_layer_norm", "final_layer_norm"), "self_attn.out_proj", ("fc1", "fc2"),
               "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "encoder.layer_norm", "encoder.embed_positions.weight",
)  # fmt: skip
OPENAI_TABLE = replace(OPENAI, positions="encoder.positional_embedding")  # as the file has it
OF_DECODER = (
    "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "decoder_layerdrop", "max_target_positions",
    "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "median_filter_width", "alignment_heads",
    "lang_ids", "task_ids", "max_length", "is_encoder_decoder", "num_hidden_layers", "no_timestamps_token_id",
)  # fmt: skip
OF_TRAINING = (
    "encoder_layerdrop", "activation_dropout", "init_std", "apply_spec_augment", "mask_time_prob", "mask_time_length",
    "mask_time_min_masks", "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "classifier_proj_size",
    "use_weighted_layer_sum",
)  # fmt: skip
FIELDS: Fields = {
    "num_mel_bins": Field("n_mels", natural, 80),
    "max_source_positions": Field("n_audio_ctx", natural, 1500),
    "d_model": Field("n_audio_state", natural, 384),
    "encoder_attention_heads": Field("n_audio_head", natural, 6),
    "encoder_layers": Field("n_audio_layer", depth, 4),
    "encoder_ffn_dim": Field("mlp_dim", natural, 1536),
    "activation_function": Field("activation", activation, "gelu"),
    "scale_embedding": Field("", anything, False),  # read by the decoder alone
    **{name: Field("", anything, None) for name in (*OF_DECODER, *OF_TRAINING)},
}
OPENAI_FIELDS: Fields = {  # `dims` of a checkpoint
    **{name: Field(name, natural) for name in ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head")},
    "n_audio_layer": Field("n_audio_layer", depth),
    **{name: Field("", anything, None) for name in (
        "n_vocab", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer",
    )},
    "quantization": Field("", only(None), None),
}  # fmt: skip


def config(fields: Mapping[str, Any]) -> WhisperConfig:
    """Read config.json of transformers or with the dimensions of OpenAI's checkpoints."""
    if "n_audio_state" in fields:
        return WhisperConfig(**read_fields(fields, OPENAI_FIELDS), names=OPENAI_TABLE)
    architecture(fields, {"Model": None, "ForConditionalGeneration": None}, "Whisper")
    return WhisperConfig(**read_fields(fields, FIELDS), names=TRANSFORMERS)


def build(config: WhisperConfig, request: GraphRequest) -> Graph:
    """Make the graphfor spectrograms of the length that the table of positions has."""
    check_request(request, config.n_audio_ctx, "the positions that the encoder has: pad the spectrogram with silence")
    return whisper_encoder(config, request.batch)


def sources(config: WhisperConfig) -> Sources:
    """Return the tensor of every parameter."""
    return sources_of(whisper_encoder(config), "model." if config.names == TRANSFORMERS else "")


WHISPER_FAMILY = Family(
    ("whisper",), config, build, sources, ("inference",), "model.",
    ("model.decoder.*", "decoder.*", "proj_out.weight"), length=lambda config: config.n_audio_ctx, assumed="",
)  # fmt: skip
