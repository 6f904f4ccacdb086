#!/usr/bin/env bash
# Write the files of a release into dist/. The same commit gives the same bytes, in any
# folder, at any time and for any user. SHA256SUMS comes last: without it dist/ is not complete.
#
# usage: hack/dist.sh VERSION
#
# ALLOW_DIRTY=1 accepts changes that are not committed.
set -euo pipefail
cd "$(dirname "$0")/.."

changes=$(git status --porcelain)
if [[ -n $changes && ${ALLOW_DIRTY:-} != 1 ]]; then
	printf 'dist: commit these changes first, or set ALLOW_DIRTY=1 for files that nobody can build again:\n%s\n' "$changes" >&2
	exit 1
fi

wanted=go$(sed -n 's/^go_version=//p' hack/setup.sh)
if [[ $(go env GOVERSION) != "$wanted" ]]; then
	echo "dist: a release is built with $wanted, and go is $(go env GOVERSION): set GOTOOLCHAIN=$wanted, or install it" >&2
	exit 1
fi

# Nothing of the environment goes into the programs.
export GOFLAGS='' GOEXPERIMENT='' GOFIPS140=off GOAMD64=v1 GOARM64=v8.0 GOWORK=off
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH VERSION=$1

rm -rf dist
umask 022
make build-all image
go run -trimpath ./hack/dist -version "$1" -bin bin -out dist
echo "dist: $(wc -l <dist/SHA256SUMS) files and images in dist/, with their checksums in SHA256SUMS"
