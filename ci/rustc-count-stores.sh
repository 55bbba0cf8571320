#!/bin/sh
# The compiler for the workspace's own crates, with `--cfg count_stores` (see ci/shared-stores.sh). As
# RUSTC_WORKSPACE_WRAPPER it leaves dependencies as they are, so cargo does not build them again.
exec "$@" --cfg count_stores
