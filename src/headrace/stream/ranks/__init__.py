"""Coordinate the ranks of a job: one loop on each rank, and the store of torch's process group
between them.

        rank 0                            store of the group                       rank 1
    ┌──────────────────────┐                                             ┌──────────────────────┐
    │ topology             │   a rank finds out who it is, without       │ topology             │
    │   who am I?          │   the store                                 │   who am I?          │
    ├──────────────────────┤                                             ├──────────────────────┤
    │ watch, for each pass │                                             │ watch, for each pass │
    │   same data for all? │   contract ──▶ begin/…  ◀── contract        │   same data for all? │
    │                      │   nobody gets a batch before all have       │                      │
    │                      │   arrived; a difference stops everybody     │                      │
    │                      │   failure ──▶ failure/<n> ──▶ all ranks     │                      │
    │   loop: batches      │   PID     ──▶ here/…  ◀── same machine      │   loop: batches      │
    │   thread: looks at   │               looks in /proc who died       │   thread: looks at   │
    │   the store          │   progress ─▶ beat/…  ──▶ rank 0 logs       │   the store          │
    │                      │               who waits for data            │                      │
    └──────────────────────┘                                             └──────────────────────┘
                   group: the keys of the store, below the name of the present group

A loader says `Watch(self, contract).over(batches)` around a pass, and gets the barrier, errors that
stop every rank, and warnings about ranks that stall.

No module here decides which rank reads which row: that is arithmetic (see `order`). Without a
process group everything but `topology` does nothing, except that a rank still logs its own errors
and stalls.
"""
