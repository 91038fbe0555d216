"""Encoders of text (BERT: Devlin and others, 2018) with their heads, under the parameter names of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gdlab import nn, ops
from gdlab.base.errors import GraphError
from gdlab.graph import Graph, Value
from gdlab.models.blocks import check_extents, check_multiple
from gdlab.models.encoder_block import BlockConfig, BlockNames, encoder_block, function

WHERE = "text_encoder"
Mode = Literal["inference", "masked", "training"]
Task = Literal["features", "masked_lm", "sequence", "tokens", "answers"]


@dataclass(frozen=True, slots=True)
class TextNames:
    """The names of the parameters of `text_encoder`; `block` has the place of the number. `word`, `positions` and
    `types` are tables. `pooler` and `dense` are empty where a family has none; `lm` names dense, norm, table and bias
    of the head that predicts masked tokens."""

    word: str
    positions: str
    types: str
    norm: str
    block: str
    parts: BlockNames
    pooler: str
    lm: tuple[str, str, str, str]
    dense: str
    classifier: str
    tokens: str = "classifier"
    answers: str = "qa_outputs"


BERT = TextNames(
    "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm", "encoder.layer.{}",
    BlockNames(("attention.output.LayerNorm", "output.LayerNorm"), "attention.output.dense",
               ("intermediate.dense", "output.dense"), "attention.self.query", "attention.self.key",
               "attention.self.value"),
    "pooler.dense",
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder.weight",
     "cls.predictions.bias"),
    "", "classifier",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The extents of `text_encoder`; the defaults are those of BERT base. `token_types` 0: no table of them.

    `pad` -1: the first position is 0. Else tokens that are not `pad` have the positions `pad` + 1, `pad` + 2 …, and
    `pad` itself, wherever it stands, the position `pad` (RoBERTa). `pooled`: a dense layer and tanh of the first token.
    `tied`: the head of masked tokens has the table of words. A head for sequences has a dense layer of its own
    (`names.dense`) or stands behind the pooler. `trainable`: the loss is a cross entropy.
    """

    vocab_size: int = 30522
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    hidden: int = 3072
    max_positions: int = 512
    token_types: int = 2
    eps: float = 1e-12
    activation: str = "gelu"
    pad: int = -1
    pooled: bool = True
    task: Task = "features"
    classes: int = 0
    tied: bool = True
    trainable: bool = True
    lm_activation: str = "gelu"
    dense_activation: str = "tanh"
    names: TextNames = BERT

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block."""
        return BlockConfig(self.width, self.num_heads, self.hidden, self.names.parts, self.eps, "post", self.activation)

    @property
    def behind_pooler(self) -> bool:
        """Whether the head stands behind the pooler."""
        return self.task == "sequence" and not self.names.dense

    @property
    def longest(self) -> int:
        """The largest number of tokens in a sequence."""
        return self.max_positions - self.pad - 1


def text_encoder(
    config: TextConfig | None = None, length: int = 128, batch: int = 1, mode: Mode = "inference"
) -> Graph:
    """Return the graph of a post-norm encoder: `token_ids` u32[batch · length], sequences one behind the other, and
    with several token types `token_type_ids` u32[batch · length] -> `last_hidden_state` f32[batch, length, width] and,
    `pooled`, `pooler_output` f32[batch, width]. Before them, by task, `logits`: masked_lm f32[batch, length,
    vocab_size], sequence f32[batch, classes], tokens and answers f32[batch, length, classes].

    inference: every token of a sequence is attended to; there is no mask, so `length` is that of the text
    masked:    `attention_mask` f32[batch, length] besides: 1 for tokens, 0 for padding
    training:  as masked, and `labels`, one-hot f32[batch · length, …] or, of sequences, f32[batch, classes] -> `loss`,
               the mean cross entropy of the rows of labels that are not zero
    """
    c = TextConfig() if config is None else config
    _check(c, length, batch, mode)
    with Graph() as g:
        model = _TextModel(c, length, batch, mode)
        x = model.blocks()
        pooled = model.pooled(x) if c.pooled and (mode != "training" or c.behind_pooler) else None
        if c.task != "features":
            logits = model.heads[c.task](x, pooled)
            if mode == "training":
                g.output(_loss(logits), "loss")
                return g
            rows = (batch, length) if c.task != "sequence" else (batch,)
            g.output(logits.reshape((*rows, -1)).named("logits"), "logits")
        g.output(x.reshape((batch, length, c.width)).named("last_hidden_state"), "last_hidden_state")
        if pooled is not None:
            g.output(pooled.named("pooler_output"), "pooler_output")
    return g


def _check(c: TextConfig, length: int, batch: int, mode: Mode) -> None:
    if mode not in ("inference", "masked", "training"):
        raise GraphError(WHERE, "mode", repr(mode), "'inference', 'masked' or 'training'")
    if mode == "training" and (c.task in ("features", "answers") or not c.trainable):
        raise GraphError(WHERE, "mode", f"'training' of {c.task}", "a head whose loss is the cross entropy of a class")
    classes = 1 if c.task in ("features", "masked_lm") else c.classes
    check_extents(WHERE, length=length, batch=batch, vocab_size=c.vocab_size, width=c.width, depth=c.depth,
                  num_heads=c.num_heads, hidden=c.hidden, max_positions=c.max_positions, classes=classes)  # fmt: skip
    check_multiple(WHERE, "width", c.width, c.num_heads)
    function(WHERE, c.activation)
    if length > c.longest:
        raise GraphError(WHERE, "length", length, f"at most {c.longest}: the model has {c.max_positions} positions")
    if c.behind_pooler and not c.pooled:
        raise GraphError(WHERE, "pooled", False, "True: the head of sequences stands behind the pooler")


class _TextModel:
    """The parts of an encoder of `batch` sequences, as methods that append their ops."""

    def __init__(self, config: TextConfig, length: int, batch: int, mode: Mode) -> None:
        self.config, self.length, self.batch = config, length, batch
        self.tokens = ops.input_u32("token_ids", (batch * length,))
        several = config.token_types > 1
        self.types = ops.input_u32("token_type_ids", (batch * length,)) if several else None
        self.mask = None if mode == "inference" else ops.input("attention_mask", (batch, length))
        self.words = nn.Embedding(config.names.word, config.vocab_size, config.width)
        self.heads = {"masked_lm": self._masked_lm, "sequence": self._sequence, "tokens": self._tokens,
                      "answers": self._tokens}  # fmt: skip

    def blocks(self) -> Value:
        """Append the embeddings and the blocks: f32[batch · length, width]."""
        c = self.config
        x = self._embedded()
        for i in range(c.depth):
            x = encoder_block(x, c.names.block.format(i), c.block, self.batch, self.mask)
        return x

    def pooled(self, x: Value) -> Value:
        """Return a dense layer and tanh of the first token: f32[batch, width]."""
        return ops.tanh(nn.Linear(self.config.names.pooler, self.config.width, self.config.width)(self._first(x)))

    def _first(self, x: Value) -> Value:
        sequences = x.reshape((self.batch, self.length, self.config.width))
        return sequences.slice((0, 0, 0), (self.batch, 1, self.config.width)).reshape((self.batch, self.config.width))

    def _embedded(self) -> Value:
        c = self.config
        x = self._placed(self.words(self.tokens))
        if c.token_types:
            table = ops.parameter(c.names.types, (c.token_types, c.width), init="normal(0.02)")
            row = table.reshape((c.width,)) if self.types is None else None
            x = ops.bias_add(x, row) if row is not None else x + ops.embedding(self.types, table)
        return nn.LayerNorm(c.names.norm, c.width, c.eps)(x)

    def _placed(self, x: Value) -> Value:
        """Add the rows of positions."""
        c = self.config
        table = ops.parameter(c.names.positions, (c.max_positions, c.width), init="normal(0.02)")
        if c.pad >= 0:
            return x + ops.embedding(self._counted(), table)
        rows = table.slice((0, 0), (self.length, c.width))
        if self.batch == 1:
            return x + rows
        return (x.reshape((self.batch, self.length, c.width)) + rows).reshape((-1, c.width))

    def _counted(self) -> Value:
        """Return the positions, which count the tokens that are no padding from `pad` + 1 on: u32[batch · length]."""
        ids = ops.to_f32(self.tokens).reshape((self.batch, self.length))
        there = ops.clamp(ops.abs(ids - float(self.config.pad)), 0.0, 1.0)
        return ops.to_u32((ops.cumsum(there) * there + float(self.config.pad)).reshape((-1,)))

    # heads
    def _masked_lm(self, x: Value, pooled: Value | None) -> Value:
        c = self.config
        dense, norm, table, bias = c.names.lm
        h = function(WHERE, c.lm_activation)(nn.Linear(dense, c.width, c.width)(x))
        h = nn.LayerNorm(norm, c.width, c.eps)(h)
        words = self.words.weight if c.tied else ops.parameter(table, (c.vocab_size, c.width), init="normal(0.02)")
        return ops.bias_add(ops.matmul_bt(h, words), ops.parameter(bias, (c.vocab_size,), init="zeros"))

    def _sequence(self, x: Value, pooled: Value | None) -> Value:
        c = self.config
        if c.names.dense:
            dense = nn.Linear(c.names.dense, c.width, c.width)
            pooled = function(WHERE, c.dense_activation)(dense(self._first(x)))
        assert pooled is not None  # checked before
        return nn.Linear(c.names.classifier, c.width, c.classes)(pooled)

    def _tokens(self, x: Value, pooled: Value | None) -> Value:
        c = self.config
        return nn.Linear(c.names.tokens if c.task == "tokens" else c.names.answers, c.width, c.classes)(x)


def _loss(logits: Value) -> Value:
    """Return the cross entropy per row of labels that has a class (`cross_entropy_loss` divides by the number of all
    rows)."""
    labels = ops.input("labels", logits.shape)
    return ops.cross_entropy_loss(logits, labels) * float(logits.shape[0]) / labels.sum().reshape((1,))
