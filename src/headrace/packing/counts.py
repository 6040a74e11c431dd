"""What a whole run read, kept and left out: rows, sequences, tokens and labels, each counted where it happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.packing import choose as choosing
from headrace.packing.chats.rejects import REASONS
from headrace.packing.choose import Choice
from headrace.packing.config import PackedSequences
from headrace.packing.encode_shard import NO_SPLIT_KEY, SAMPLED_OUT, TOO_LONG, TOO_SHORT
from headrace.run.receipts import Receipt

_KINDS = ("sequences", "tokens", "labels")
BIN_WITHOUT_LABEL = "bin_without_label"
DROPPED = (*REASONS, NO_SPLIT_KEY, TOO_SHORT, TOO_LONG, SAMPLED_OUT, *choosing.REASONS, BIN_WITHOUT_LABEL)


@dataclass(frozen=True)
class Counts:
    """Rows, tokens and labels of the whole run, each from the stage that saw them."""

    rows_read: int
    rows: int
    dropped: Counter[str]
    encoded: Mapping[str, int]
    lost: Mapping[str, Mapping[str, int]]
    packed: Mapping[str, int]
    written: Mapping[str, int]

    @classmethod
    def of(
        cls,
        encoded: Sequence[Receipt],
        choice: Choice,
        packed: Sequence[Receipt],
        written: Sequence[Receipt],
    ) -> Counts:
        """From the receipts of the stages, and the choice between the first two."""
        dropped: Counter[str] = Counter()
        lost: dict[str, Counter[str]] = {}
        for receipt in encoded:
            dropped.update(receipt.result["dropped"])
            for reason, loss in receipt.result["lost"].items():
                lost.setdefault(reason, Counter()).update(loss)
        for reason, each in choice.left_out.items():
            dropped[reason] += each.rows
            lost[reason] = Counter(sequences=each.sequences, tokens=each.tokens, labels=each.labels)
        empty = Counter[str]()
        for receipt in packed:
            empty.update(receipt.result["dropped"])
        dropped[BIN_WITHOUT_LABEL] += empty.pop("rows", 0)
        lost[BIN_WITHOUT_LABEL] = empty
        return cls(
            rows_read=sum(receipt.result["rows_read"] for receipt in encoded),
            rows=sum(receipt.result["rows"] for receipt in packed),
            dropped=dropped,
            encoded=summed(encoded, ("encoded_sequences", "encoded_tokens", "encoded_labels")),
            lost={reason: {name: loss[name] for name in _KINDS} for reason, loss in lost.items()},
            packed=summed(packed, ("bins", "sequences", "tokens", "stored_tokens", "labels", "bins_without_label")),
            written=summed(written, ("bins", "sequences", "stored_tokens", "mask_sum")),
        )

    def must_add_up(self, settings: PackedSequences) -> None:
        """Rows read = in splits + dropped; tokens encoded = written + lost; so of labels. Raises `HeadraceError`."""
        facts = [("rows", self.rows_read, self.rows, self.dropped.total())]
        for name in ("tokens", "labels"):
            gone = sum(loss[name] for loss in self.lost.values())
            facts.append((name, self.encoded[f"encoded_{name}"], self.packed[name], gone))
        for name in ("bins", "sequences", "stored_tokens"):
            facts.append((f"written {name}", self.packed[name], self.written[name], 0))
        if settings.loss_mask_alignment == "shift_left":
            facts.append(("written labels", self.packed["labels"], self.written["mask_sum"], 0))
        for name, before, kept, gone in facts:
            if before != kept + gone:
                raise HeadraceError(
                    f"{name} are not conserved: {before:,} before, {kept:,} kept and {gone:,} left out; this is a "
                    f"fault of headrace, nothing was published: please report it with config.json of the run"
                )


def summed(receipts: Sequence[Receipt], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(receipt.result[name] for receipt in receipts) for name in names}
