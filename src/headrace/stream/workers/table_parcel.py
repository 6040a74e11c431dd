"""Keep the path from which users' loops import `whole_batch`."""

from headrace.stream.workers.parcel import whole_batch as whole_batch
