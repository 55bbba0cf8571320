#!/usr/bin/env bash
# Sums up the rounds that a conversion's measure.sh prints: of each figure the median, the least and the most.
#
#   bench/conversions/medians.sh FILE...
set -euo pipefail
awk '
/^[0-9]+ .*: [0-9]+$/ {
    value = $NF
    key = $0
    sub(/^[0-9]+ /, "", key)
    sub(/: [0-9]+$/, "", key)
    if (!(key in rounds)) keys[++count] = key
    n = ++rounds[key]
    # Insertion, so that the values are in order.
    for (i = n; i > 1 && values[key, i - 1] > value + 0; i--) values[key, i] = values[key, i - 1]
    values[key, i] = value + 0
}
END {
    for (k = 1; k <= count; k++) {
        key = keys[k]
        n = rounds[key]
        median = n % 2 ? values[key, (n + 1) / 2] : (values[key, n / 2] + values[key, n / 2 + 1]) / 2
        printf "%s: median %d (%d to %d), %d rounds\n", key, median, values[key, 1], values[key, n], n
    }
}' "$@"
