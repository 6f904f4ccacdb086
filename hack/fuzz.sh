#!/usr/bin/env bash
# Run every fuzz test for a while, one after another. What they find is kept as
# a seed under testdata/fuzz of the package.
#
# usage: hack/fuzz.sh [TIME]
set -euo pipefail

time=${1:-20s}
cd "$(dirname "$0")/.."

grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd internal test | sort |
	while IFS=: read -r file func; do
		name=${func#func }
		printf 'fuzz: %s %s\n' "$(dirname "$file")" "$name"
		go test -run='^$' -fuzz="^$name\$" -fuzztime="$time" "./$(dirname "$file")" </dev/null
	done
