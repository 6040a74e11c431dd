"""MaxText's own training program with contexts of histories as its input.

    python headrace_input.py config.yml [name=value …]

is `python -m maxtext.trainers.pre_train.train config.yml …` where `dataset_type: grain` reads the prepared histories
that `grain_train_files` names. MaxText has no place to name an input of one's own, so this takes the place of the
function that makes its Grain iterator; everything else, checkpoints among it, is MaxText's. What has to agree with the
contexts comes from MaxText's configuration: length, segments, seed, batch size, hosts.
"""

from __future__ import annotations

from typing import Any

import headrace.grain

VOCABULARY = 268


def options_of(config: Any) -> dict[str, Any]:
    """What contexts have to be like for this configuration of MaxText. Raises `ValueError` where none would do."""
    if config.vocab_size < VOCABULARY:
        raise ValueError(
            f"vocab_size is {config.vocab_size}; contexts have tokens up to {VOCABULARY - 1}: give more"
        )
    if not config.packing:
        raise ValueError("packing is false; several segments share a context, and Transformer Engine's attention keeps"
                         " them apart only with packing: true")  # fmt: skip
    return {
        "context_tokens": config.max_target_length,
        "seed": config.data_shuffle_seed,
        "shuffle": "contexts" if config.enable_data_shuffling else "none",
        "max_segments": config.max_segments_per_seq if config.max_segments_per_seq > 0 else None,
    }


def batches_of(config: Any, host: int, hosts: int) -> Any:
    """The batches of one host, without end or for `num_epoch` epochs; a state is good for any number of hosts."""
    return headrace.grain.elastic(
        headrace.grain.contexts(config.grain_train_files, config.train_split, **options_of(config)),
        config.global_batch_size_to_load,
        host=host,
        hosts=hosts,
        epochs=config.num_epoch if config.num_epoch > 0 else None,
        workers=config.grain_worker_count,
    )


def train_iterator(config: Any, mesh: Any, process_indices: list[int]) -> Any:
    """What MaxText's `make_grain_train_iterator` would return."""
    import jax
    from maxtext.input_pipeline.multihost_dataloading import MultiHostDataLoadIterator

    batches = batches_of(config, process_indices.index(jax.process_index()), len(process_indices))
    iterator = MultiHostDataLoadIterator(batches, mesh, config.generate_padding_batch_train)
    iterator.local_iterator = (
        batches  # not its iter(): by the type checkpoints see that any number of hosts may resume
    )
    iterator.close = (
        batches.close
    )  # MaxText's own would also end orphaned worker processes of other programs
    return iterator


def main() -> None:
    """MaxText's main."""
    from absl import app
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.trainers.pre_train import train

    input_pipeline_interface.make_grain_train_iterator = train_iterator
    app.run(train.main)


if __name__ == "__main__":
    main()
