#!/bin/sh
# Run a download again when it fails, a little later each time; it ends as its last attempt did.
#     retry.sh pip install …
for wait in ${RETRY_WAITS_S:-2 5 15} last; do
	"$@" && exit 0
	code=$?
	[ "$wait" = last ] && exit $code
	echo "failed ($code), again in $wait s: $*" >&2
	sleep "$wait"
done
