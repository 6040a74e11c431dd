"""Coordinate the ranks of a job: one loop on each rank, the store of torch's process group between
them, and sockets between those of one machine.

        rank 0                            store of the group                       rank 1
    ┌──────────────────────┐                                             ┌──────────────────────┐
    │ topology             │   a rank finds out who it is, without       │ topology             │
    │   who am I?          │   the store                                 │   who am I?          │
    ├──────────────────────┤                                             ├──────────────────────┤
    │ start, for each pass │                                             │ start, for each pass │
    │   same data for all? │   contract ──▶ begin/…  ◀── contract        │   same data for all? │
    │                      │   nobody gets a batch before all have       │                      │
    │                      │   arrived; a difference stops everybody     │                      │
    ├──────────────────────┤                                             ├──────────────────────┤
    │ watch                │   failure ──▶ failure/<n> ──▶ all ranks     │ watch                │
    │   loop: batches      │   progress ─▶ beat/…  ──▶ rank 0 logs       │   loop: batches      │
    │   thread: looks at   │               who waits for data            │   thread: looks at   │
    │   store and peers    │                                             │   store and peers    │
    └──────────┬───────────┘                                             └──────────┬───────────┘
               └───────────── peers: a socket on one machine, which ends ───────────┘
                              with the process that holds it

                   group: the keys of the store, below the name of the present group

A loader says `Watch(self, contract).over(batches)` around a pass, and gets the barrier, errors that
stop every rank, and warnings about ranks that stall.

No module here decides which rank reads which row: that is arithmetic (see `order`). Without a
process group everything but `topology` does nothing, except that a rank still logs its own errors
and stalls.
"""
