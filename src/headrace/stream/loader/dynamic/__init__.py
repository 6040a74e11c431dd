"""Experimental: distribution="dynamic" lets ranks claim blocks when they are ready, so a slow rank reads fewer rows.

    stream = headrace.open("out").stream("train", batch_size=256, shuffle=True, distribution="dynamic")
    for batch in stream:
        if batch["valid"].any(): ...

Every row is delivered once over all ranks, and every rank gets the same number of batches. The faster rank decides who
gets which row, so no run repeats another's order. Choose it for work that is not in step at every batch: evaluation,
embedding, local updates. A loop with a collective at every batch works too, at the pace of its slowest rank. A batch
holds rows of one or two blocks, so this mixes less than "balanced" does.

A rank that finds no claim left finishes its rows, looks up how many batches the claims of each rank make, and fills up
to the largest of these numbers with batches without a valid row. The number of batches is known only then, so there is
no `len`.

The ranks agree through a store: that of torch.distributed's default group, or `store=`. Passes, and `state_dict` during
or after one, are collective: every rank starts the same passes, and calls it after the same number of batches. Memory:
the block that is being delivered and the next one.
"""
