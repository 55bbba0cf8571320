#!/usr/bin/env bash
# The compiler for the workspace's own crates, with `--cfg count_stores` (see ci/shared-stores.sh). As
# RUSTC_WORKSPACE_WRAPPER it leaves dependencies as they are, so cargo does not build them again.
# Not sh: dash drops variables whose name has a hyphen, and CARGO_BIN_EXE_uvfs-tests is one.
exec "$@" --cfg count_stores
