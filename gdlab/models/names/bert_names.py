"""The names of BERT, RoBERTa and DistilBERT in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gdlab.base.errors import ArgumentError
from gdlab.graph import Graph
from gdlab.models.bert import BERT, Mode, Task, TextConfig, TextNames, text_encoder
from gdlab.models.config_fields import Field, Fields, anything, flag, natural, only, positive, read_fields
from gdlab.models.encoder_block import BlockNames
from gdlab.models.family import WHERE, Family, GraphRequest, Sources
from gdlab.models.names.encoder_fields import activation, architecture, count, depth, has_cross_entropy, labels
from gdlab.models.names.encoder_names import check_training, sources_of

ROBERTA = TextNames(
    BERT.word, BERT.positions, BERT.types, BERT.norm, BERT.block, BERT.parts, BERT.pooler,
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias"),
    "classifier.dense", "classifier.out_proj",
)  # fmt: skip
DISTILBERT = TextNames(
    BERT.word, BERT.positions, "", BERT.norm, "transformer.layer.{}",
    BlockNames(("sa_layer_norm", "output_layer_norm"), "attention.out_lin", ("ffn.lin1", "ffn.lin2"),
               "attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "", ("vocab_transform", "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias"),
    "pre_classifier", "classifier",
)  # fmt: skip
HEADS = ("cls.", "lm_head.", "vocab_", "pre_classifier", "classifier", "qa_outputs")
TASKS: dict[str, Task] = {  # an architecture behind the family's name -> the head
    "Model": "features", "ForMaskedLM": "masked_lm", "ForPreTraining": "masked_lm",
    "ForSequenceClassification": "sequence", "ForTokenClassification": "tokens", "ForQuestionAnswering": "answers",
}  # fmt: skip
MODES = ("inference", "masked", "training")


COMMON: Fields = {
    "vocab_size": Field("vocab_size", natural, 30522),
    "max_position_embeddings": Field("max_positions", natural, 512),
    "tie_word_embeddings": Field("tied", flag, True),
    "problem_type": Field("trainable", has_cross_entropy, None),
    "is_decoder": Field("", only(False), False),
    "add_cross_attention": Field("", only(False), False),
    "chunk_size_feed_forward": Field("", anything, 0),  # the same numbers in parts
}
FIELDS: Fields = {
    **COMMON,
    "hidden_size": Field("width", natural, 768),
    "num_hidden_layers": Field("depth", depth, 12),
    "num_attention_heads": Field("num_heads", natural, 12),
    "intermediate_size": Field("hidden", natural, 3072),
    "type_vocab_size": Field("token_types", natural, 2),
    "hidden_act": Field("activation", activation, "gelu"),
    "layer_norm_eps": Field("eps", positive, 1e-12),
    "position_embedding_type": Field("", only("absolute"), "absolute"),
    **{f"pooler_{name}": Field("", anything, None) for name in (  # of Google's files; transformers reads none
        "fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type",
    )},
    "directionality": Field("", only("bidi"), "bidi"),
}  # fmt: skip
DISTIL_FIELDS: Fields = {
    **COMMON,
    "dim": Field("width", natural, 768),
    "n_layers": Field("depth", depth, 6),
    "n_heads": Field("num_heads", natural, 12),
    "hidden_dim": Field("hidden", natural, 3072),
    "activation": Field("activation", activation, "gelu"),
    "sinusoidal_pos_embds": Field("", anything, False),  # how the table began
    "tie_weights_": Field("", only(True), True),
    "qa_dropout": Field("", anything, 0.1),
    "seq_classif_dropout": Field("", anything, 0.2),
    "output_past": Field("", anything, True),
}


def _headed(fields: Mapping[str, Any], table: Fields, start: str) -> dict[str, Any]:
    """Return the values of the fields, with the head of the file's architecture."""
    values = read_fields(fields, table)
    task: Task = architecture(fields, TASKS, start)
    classes = labels(fields) if task in ("sequence", "tokens", "answers") else 0
    loss = task == "masked_lm" or (task in ("sequence", "tokens") and classes > 1 and values["trainable"])
    return {**values, "task": task, "classes": classes, "trainable": loss}


def bert(fields: Mapping[str, Any]) -> TextConfig:
    """Read config.json of BERT."""
    values = _headed(fields, FIELDS, "Bert")
    pooled = values["task"] in ("features", "sequence")
    return TextConfig(**values, pooled=pooled, lm_activation=values["activation"])


def roberta(fields: Mapping[str, Any]) -> TextConfig:
    """Read config.json of RoBERTa: positions begin behind the position of padding."""
    table = {**FIELDS, "pad_token_id": Field("pad", count, 1)}
    values = _headed(fields, table, "XLMRoberta" if fields.get("model_type") == "xlm-roberta" else "Roberta")
    return TextConfig(**values, pooled=values["task"] == "features", names=ROBERTA)


def distilbert(fields: Mapping[str, Any]) -> TextConfig:
    """Read config.json of DistilBERT: no token types, no pooler."""
    values = _headed(fields, DISTIL_FIELDS, "DistilBert")
    return TextConfig(**values, token_types=0, pooled=False, lm_activation=values["activation"],
                      dense_activation="relu", names=DISTILBERT)  # fmt: skip


def build(config: TextConfig, request: GraphRequest) -> Graph:
    """Make the graph of a request."""
    check_training(request, config.trainable)
    if request.length > config.longest:
        wanted = f"at most {config.longest}: the model has {config.max_positions} positions"
        raise ArgumentError(WHERE, "length", request.length, wanted)
    return text_encoder(config, request.length, request.batch, cast(Mode, request.mode))


def _sources(prefix: str) -> Any:
    def sources(config: TextConfig) -> Sources:
        """Return the tensor of every parameter."""
        return sources_of(text_encoder(config, 1), prefix, HEADS)

    return sources


TOKENS = "sequences of {0} tokens are"


def _length(config: TextConfig) -> int:
    return min(64, config.longest)


OLDER = ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta"))  # TensorFlow's names
BERT_FAMILY = Family(
    ("bert",), bert, build, _sources("bert."), MODES, "bert.",
    ("*pooler.dense.*", "cls.seq_relationship.*", "cls.predictions.transform.dense.*",
     "cls.predictions.transform.LayerNorm.*", "cls.predictions.bias"), length=_length,
    assumed=TOKENS, renamed=OLDER,
    copies={"cls.predictions.decoder.weight": "bert." + BERT.word, "cls.predictions.decoder.bias": BERT.lm[3]},
)  # fmt: skip
ROBERTA_FAMILY = Family(
    ("roberta", "xlm-roberta"), roberta, build, _sources("roberta."), MODES, "roberta.",
    ("*pooler.dense.*", "lm_head.dense.*", "lm_head.layer_norm.*", "lm_head.bias"), length=_length,
    assumed=TOKENS,
    copies={"lm_head.decoder.weight": "roberta." + BERT.word, "lm_head.decoder.bias": ROBERTA.lm[3]},
)  # fmt: skip
DISTILBERT_FAMILY = Family(
    ("distilbert",),
    distilbert,
    build,
    _sources("distilbert."),
    MODES,
    "distilbert.",
    ("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.bias"),
    length=_length,
    assumed=TOKENS,
    copies={"vocab_projector.weight": "distilbert." + BERT.word},
)
