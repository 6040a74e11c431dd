"""Make the arguments of a transformers model from the batches of a stream, and hand its rows to
TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import Parameter
from typing import Any

import torch

from headrace.errors import SettingsError, StreamError, setting
from headrace.stream.loader.options import VALID
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.read.by_source import without_source
from headrace.stream.read.ragged import LENGTHS

IGNORED = -100  # the label that losses of transformers leave out
Collate = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


class Inputs(dict[str, Any]):
    """The arguments of a model for one batch.

    valid: bool [rows of the batch], true for those that are real, which come first; None where a
    row of the batch is no row of the arguments. rows: rows that the arguments hold. weight: what
    the loss counts for: trained labels, or rows. fraction: the factor of the loss in its optimizer
    step; None where the Trainer divides by labels itself. differs: ranks have unequal numbers of
    rows.
    """

    valid: torch.Tensor | None = None
    rows: int = 0
    weight: int = 0
    fraction: float | None = None
    differs: bool = False


class ModelInputs:
    """Convert the batches of one stream to `Inputs`, without padding rows.

    parameters: of the model's forward. all_columns: give it others too. label_names: arguments that
    hold labels. collate: makes arguments of rows. shifts_labels: the loss pairs a label with the
    token before it. counts_labels: the Trainer divides losses by the labels that it counts. Raises
    `SettingsError` for packed forms that models of transformers do not take, and for batches that
    they would not.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        stream: StreamLoader,
        *,
        parameters: Mapping[str, Parameter],
        all_columns: bool,
        label_names: Collection[str],
        collate: Collate,
        shifts_labels: bool,
        counts_labels: bool,
    ) -> None:
        self._takes_more = any(
            parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        self._parameters = parameters
        if all_columns:
            self._accepted = None
        else:
            self._accepted = {*parameters, *label_names}
        self._collate = collate
        self._shifts_labels = shifts_labels
        self._counts_labels = counts_labels
        # of bins packed now, or before
        form: Any = getattr(stream.passes, "form", None) or stream.options.form
        if form is not None and (form.ignore_index != IGNORED or form.last_token != "keep"):
            raise SettingsError(
                f"its ignore_index is {form.ignore_index} and its last_token {form.last_token!r},"
                f" and models of transformers shift labels themselves and ignore {IGNORED}",
                setting="packed",
                remedy='use PackedBatches(labels="same")',
            )
        self._labels_lie_left = form is not None and form.labels == "next"

    def __call__(self, batch: Any) -> Inputs:
        """Return the arguments for a batch: a list of rows, or a dict of tensors, which must have
        kept `valid`.
        """
        if isinstance(batch, dict) and not isinstance(batch.get(VALID), torch.Tensor):
            raise SettingsError(
                "a batch lacks it, and the Trainer has to know which rows are real",
                column=VALID,
                remedy="let the transform keep it",
            )
        if isinstance(batch, dict) and "cu_seqlens" in batch:
            inputs = Inputs(self._packed(batch))
            inputs.rows, real = len(inputs["input_ids"]), int(batch[VALID].sum())
        else:
            if isinstance(batch, list):
                size = len(batch)
                valid_rows = [row for row in batch if row[VALID]]
                real = len(valid_rows)
                inputs = Inputs(self._collate(_without_mask(valid_rows or batch[:1])))
            else:
                size = len(batch[VALID])
                real = int(batch[VALID].sum())
                inputs = Inputs(self._of_tensors(batch))
            inputs.valid, inputs.rows = torch.arange(size) < real, max(1, real)
        labels = inputs.get("labels")
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            inputs.weight = real
        elif real:
            inputs.weight = int(
                ((labels[..., 1:] if self._shifts_labels else labels) != IGNORED).sum()
            )
        elif self._counts_labels:  # else the mean over no label would be no number
            inputs["labels"] = torch.full_like(labels, IGNORED)
        return inputs

    def _of_tensors(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return padded columns without their lengths: as the attention mask, and with labels that
        padding is not.
        """
        valid = batch[VALID]
        if bool(valid.any()):
            rows = torch.nonzero(valid)[:, 0]
        else:
            rows = torch.zeros(1, dtype=torch.int64)
        inputs = {name: batch[name] for name in without_source(list(batch))}
        lengths = {name: inputs[name + LENGTHS] for name in inputs if name + LENGTHS in inputs}
        for name in lengths:
            if name + LENGTHS not in lengths:
                del inputs[name + LENGTHS]
        inside: dict[str, torch.Tensor] = {}
        for name in lengths.keys() & {"input_ids", "labels"}:
            inside[name] = torch.arange(inputs[name].shape[1]) < lengths[name][:, None]
        if "input_ids" in inside and "attention_mask" not in inputs:
            inputs["attention_mask"] = inside["input_ids"].to(torch.int64)
        if "labels" in inside:
            inputs["labels"] = inputs["labels"].masked_fill(~inside["labels"], IGNORED)
        if self._accepted is not None:
            inputs = {name: value for name, value in inputs.items() if name in self._accepted}
        _check_tensors(inputs)
        if len(rows) == len(valid):
            return inputs
        return {name: value[rows] for name, value in inputs.items()}

    def _packed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return what keeps packed sequences apart: position ids for masks, cumulated lengths for
        FlashAttention.
        """
        labels = batch["labels"]
        # a row's last place has no next token, and a sequence's last one no label
        if self._labels_lie_left:
            labels = torch.cat([torch.full_like(labels[:, :1], IGNORED), labels[:, :-1]], dim=1)
        inputs = {
            "input_ids": batch["input_ids"],
            "labels": labels,
            "position_ids": batch["position_ids"],
        }
        if "attention_mask" in batch:
            inputs["attention_mask"] = batch["attention_mask"]
        if self._takes_more:
            ends = batch["cu_seqlens"]
            longest = int(batch["max_seqlen"])
            inputs |= {
                "cu_seq_lens_q": ends,
                "cu_seq_lens_k": ends,
                "max_length_q": longest,
                "max_length_k": longest,
            }
        if "use_cache" in self._parameters:
            # with a cache, transformers makes no mask from position ids
            inputs["use_cache"] = False
        return inputs


class RowFeed:
    """Rows for TRL's preparation of a dataset, a batch at a time.

    prepared: what TRL made of `dataset`.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.prepared: Any = None

    def __call__(self) -> Iterator[dict[str, Any]]:
        yield from self.rows

    def dataset(self) -> Any:
        """Return a dataset of the current rows."""
        from datasets import IterableDataset

        return IterableDataset.from_generator(self)

    @property
    def tokenised(self) -> bool:
        """Tell whether the rows are tokens already, as `headrace preferences` makes them."""
        return "prompt_ids" in self.rows[0]

    def prepare(self, rows: list[dict[str, Any]], *, mismatched: bool) -> list[dict[str, Any]]:
        """Return rows as TRL's data collators take them.

        Raises `StreamError` if there are more or fewer.

        mismatched: whether each prompt also gets the answer of another one, from which KTO
        estimates its KL term.
        """
        if self.tokenised and not mismatched:
            return rows
        if self.tokenised:
            result = []
            for row, before in zip(rows, [*rows[-1:], *rows], strict=False):
                result.append({**row, "KL_completion_ids": before["completion_ids"]})
            return result
        self.rows = rows
        ready = list(self.prepared)
        if len(ready) != len(rows):
            raise StreamError(
                f"{len(rows)} rows were prepared to {len(ready)}, and a stream's rows are one"
                " example each",
                remedy="pack with headrace, with packing=False for the trainer",
            )
        return ready


def _without_mask(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for row in rows:
        result.append({name: row[name] for name in without_source(list(row))})
    return result


def first_rows(stream: StreamLoader) -> list[dict[str, Any]]:
    """Return rows from which TRL sees the columns.

    Raises `SettingsError` unless they are rows or tokens.
    """
    if stream.options.batch_format == "rows":
        batches = iter(stream)
        rows: Any = next(batches, None)
        del batches
        if not rows:
            raise SettingsError("it has no rows", path=str(stream), remedy="give another split")
        return _without_mask(rows[:1])
    names = stream.options.columns or stream.index.schema.names
    if "input_ids" not in names and stream.options.pack is None:
        raise SettingsError(
            f"the stream lacks it, and has {list(names)}",
            path=str(stream),
            column="input_ids",
            remedy=(
                f"open it with {setting('batch_format', 'rows')} for texts that the trainer"
                " tokenises"
            ),
        )
    return [{"input_ids": [0, 0], "labels": [0, 0]}]


def _check_tensors(inputs: dict[str, Any]) -> None:
    """Raise `SettingsError` for a value that no model takes."""
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            raise SettingsError(
                f"the model would get {type(value).__name__}",
                column=name,
                remedy=(
                    f"leave texts out with {setting('columns')}; for lists open the stream with"
                    f" {setting('lists', 'padded')}, with {setting('pack')}, or with"
                    f" {setting('batch_format', 'rows')} and a data collator"
                ),
            )
