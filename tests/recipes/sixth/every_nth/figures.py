"""The figures of the recipe's report."""

from headrace.report import common
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure


def figures(facts: RunFacts) -> list[Figure]:
    """How much is left, then where the rows went."""
    step = facts.manifest.facts["step"]
    return [Figure("thinned", "How much is left?", f"One row of {step}."), common.rows_figure(facts)]
