"""Summarize a plan in three lines: whether it holds, what it costs, and what would make it cheaper.

The lines use only the plan's figures, and a remedy is named only if it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MUCH = 1.1  # times the split: decoding less than this is not worth a word
_BADLY = 0.05  # of batches of one class more than a permutation has: worth a word


def advice_of(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the verdict, the reason and the remedy of a plan. plan: the record of `headrace plan --json`."""
    return _verdict(plan), _reason(plan), _remedy(plan)


def _verdict(plan: Mapping[str, Any]) -> str:
    if not plan["ok"]:
        return f"broken: {plan['overlap_rows']:,} rows would come twice and {plan['missing_rows']:,} be missing"
    left = plan["left_rows"]
    rows = f"{left - plan['dropped_rows']:,} of {left:,} rows" if plan["dropped_rows"] else f"all {left:,} rows"
    come = "once" if plan["epoch_rows"] <= plan["rows"] else "as often as the epoch asks"
    ranks = "1 rank takes" if plan["ranks"] == 1 else f"each of {plan['ranks']:,} ranks takes"
    filled = f"; {plan['padded_rows']:,} places of the last step are filled up" if plan["padded_rows"] else ""
    return f"{ranks} {plan['steps_per_rank']:,} steps, and {rows} come {come}{filled}"


def _reason(plan: Mapping[str, Any]) -> str:
    times, memory = plan["read_amplification"], f"{plan['peak_memory_bytes_per_rank'] / 1e6:,.1f} MB of memory"
    if plan["memory_holds"] == "the decoded split":
        return f"the split is small: each rank decodes all of it once and keeps it, in about {memory}"
    if times >= _MUCH:
        why = "blocks at the borders of lanes, and blocks that several ranks need, are decoded more than once"
        return f"the split is decoded up to {times:.1f} times, because {why}; a rank needs about {memory}"
    return f"each block is decoded about once over all ranks; a rank needs about {memory}"


def _remedy(plan: Mapping[str, Any]) -> str:
    remedies = []
    better = plan["better_lanes"]
    if better is not None:
        remedies.append(f"--lanes {better['lanes']} decodes {better['read_amplification']:.1f} times the split")
    if plan["dropped_rows"] > plan["ranks"] * plan["batch_size"]:
        remedies.append("--distribution balanced leaves no rows out, nor does --remainder pad")
    mixed = plan["mixing"].get("rank_batch")
    if mixed is not None and mixed["single_class"] > mixed["permutation_single_class"] + _BADLY:
        remedies.append(
            f"in files sorted by a class of half the rows, {mixed['single_class']:.0%} of batches hold one class: "
            + ("rewrite the shards with smaller row groups" if plan["shuffle"] else "--shuffle mixes them")
        )
    return "; ".join(remedies) or "nothing needs to change"
