"""Keep the path under which loops of users import `whole_batch`."""

from headrace.stream.workers.parcel import whole_batch as whole_batch
