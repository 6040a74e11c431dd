"""The setting `types`: column → the word of its type, sorted by column. Apart, because streams load no pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator


def _known(types: Mapping[str, str]) -> Mapping[str, str]:
    from headrace.formats.schema import type_named  # settings alone load no data libraries

    for word in types.values():
        type_named(word)
    return dict(sorted(types.items()))


TypeWords = Annotated[Mapping[str, str], AfterValidator(_known)]
