"""How rewritten shards are written again without some of their rows."""

from headrace.run.erase import Erasure

ERASURE = Erasure(encoding="fast")
