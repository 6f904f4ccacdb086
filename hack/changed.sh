#!/usr/bin/env bash
# Print the folders of the Go packages that differ from the main branch, committed or not.
#
# usage: hack/changed.sh
#
# Compared is with the merge base of the branch that this one tracks, else of main; without both
# with the commit before.
set -euo pipefail
cd "$(dirname "$0")/.."

base=
for branch in '@{upstream}' origin/main main; do
	base=$(git merge-base HEAD "$branch" 2>/dev/null) && break
done
[[ -n $base ]] || base=HEAD~1

{
	git diff --name-only "$base" -- '*.go'
	git ls-files --others --exclude-standard -- '*.go'
} | sed 's|^|./|; s|/[^/]*$||' | sort -u | while read -r folder; do
	if compgen -G "$folder/*.go" >/dev/null; then echo "$folder"; fi
done
