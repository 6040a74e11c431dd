"""Make the arguments of a transformers model from the batches of a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any, cast

import torch

from headrace.errors import SettingsError
from headrace.stream.loader.options import VALID
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.read.ragged import LENGTHS

IGNORED = -100  # the label that losses of transformers leave out
Collate = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


class Inputs(dict[str, Any]):
    """The arguments of a model for one batch.

    valid: bool [rows of the batch], true for those that are real, which come first; None where a row of the batch is no
    row of the arguments. rows: rows that the arguments hold. weight: what the loss counts for: trained labels, or rows.
    share: the factor of the loss in its optimizer step; None where the Trainer divides by labels itself. differs: ranks
    have unequal numbers of rows.
    """

    valid: torch.Tensor | None = None
    rows: int = 0
    weight: int = 0
    share: float | None = None
    differs: bool = False


class ModelInputs:
    """Convert the batches of one stream to `Inputs`, without padding rows.

    parameters: of the model's forward. all_columns: give it others too. label_names: arguments that hold labels.
    collate: makes arguments of rows. shifts_labels: the loss pairs a label with the token before it. counts_labels: the
    Trainer divides losses by the labels that it counts. Raises `SettingsError` for packed forms that models of
    transformers do not take, and for batches that they would not.
    """

    def __init__(
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
        self._takes_more = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
        self._parameters = parameters
        self._wanted = None if all_columns else {*parameters, *label_names}
        self._collate, self._shifts_labels, self._counts_labels = collate, shifts_labels, counts_labels
        form: Any = getattr(stream.passes, "form", None) or stream.options.form  # of bins packed now, or before
        if form is not None and (form.ignore_index != IGNORED or form.last_token != "keep"):
            raise SettingsError(
                f"packed: ignore_index is {form.ignore_index} and last_token {form.last_token!r}; models of"
                f' transformers shift labels themselves and ignore {IGNORED}: use PackedBatches(labels="same")'
            )
        self._labels_lie_left = form is not None and form.labels == "next"

    def __call__(self, batch: Any) -> Inputs:
        """Return the arguments for a batch: a list of rows, or a dict of tensors, which must have kept `valid`."""
        if isinstance(batch, dict) and not isinstance(batch.get(VALID), torch.Tensor):
            raise SettingsError(
                f'batch without "{VALID}": the Trainer has to know which rows are real; let the transform keep it'
            )
        if isinstance(batch, dict) and "cu_seqlens" in batch:
            made = Inputs(self._packed(batch))
            made.rows, real = len(made["input_ids"]), int(batch[VALID].sum())
        else:
            made = Inputs(self._of_rows(batch) if isinstance(batch, list) else self._of_tensors(batch))
            real = sum(bool(row[VALID]) for row in batch) if isinstance(batch, list) else int(batch[VALID].sum())
            size = len(batch) if isinstance(batch, list) else len(batch[VALID])
            made.valid, made.rows = torch.arange(size) < real, max(1, real)
        labels = made.get("labels")
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            made.weight = real
        elif real:
            made.weight = int(((labels[..., 1:] if self._shifts_labels else labels) != IGNORED).sum())
        elif self._counts_labels:  # else the mean over no label would be no number
            made["labels"] = torch.full_like(labels, IGNORED)
        return made

    def _of_rows(self, batch: list[dict[str, Any]]) -> Mapping[str, Any]:
        real = [row for row in batch if row[VALID]]
        rows = [{name: value for name, value in row.items() if name != VALID} for row in real or batch[:1]]
        return self._collate(rows)

    def _of_tensors(self, batch: dict[str, Any]) -> dict[str, Any]:
        valid = batch[VALID]
        kept = torch.nonzero(valid)[:, 0] if bool(valid.any()) else torch.zeros(1, dtype=torch.int64)
        made = _with_masks({name: value for name, value in batch.items() if name != VALID})
        if self._wanted is not None:
            made = {name: value for name, value in made.items() if name in self._wanted}
        for name, value in made.items():
            if not isinstance(value, torch.Tensor):
                raise SettingsError(
                    f"column {name}: the model would get {type(value).__name__}; for lists open the stream with"
                    ' lists="padded", with pack=, or with batch_format="rows" and a data collator; leave texts out with'
                    " columns="
                )
        return made if len(kept) == len(valid) else {name: value[kept] for name, value in made.items()}

    def _packed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return what keeps packed sequences apart: position ids for masks, cumulated lengths for FlashAttention."""
        labels = batch["labels"]
        if self._labels_lie_left:  # a row's last place has no next token, and a sequence's last one no label
            labels = torch.cat([torch.full_like(labels[:, :1], IGNORED), labels[:, :-1]], dim=1)
        made = {"input_ids": batch["input_ids"], "labels": labels, "position_ids": batch["position_ids"]}
        if "attention_mask" in batch:
            made["attention_mask"] = batch["attention_mask"]
        if self._takes_more:
            ends, longest = batch["cu_seqlens"], int(batch["max_seqlen"])
            made |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
        if "use_cache" in self._parameters:
            made["use_cache"] = False  # with a cache, transformers makes no mask from position ids
        return made


def _with_masks(values: dict[str, Any]) -> dict[str, Any]:
    """Return padded columns without their lengths: as the attention mask, and with labels that padding is not."""
    lengths = {name: values[name + LENGTHS] for name in values if name + LENGTHS in values}
    made = {
        name: value for name, value in values.items() if name.removesuffix(LENGTHS) not in lengths or name in lengths
    }

    def inside(name: str) -> torch.Tensor:
        places = torch.arange(values[name].shape[1])
        return cast(torch.Tensor, places < lengths[name][:, None])

    if "input_ids" in lengths and "attention_mask" not in made:
        made["attention_mask"] = inside("input_ids").to(torch.int64)
    if "labels" in lengths:
        made["labels"] = made["labels"].masked_fill(~inside("labels"), IGNORED)
    return made
