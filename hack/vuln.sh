#!/usr/bin/env bash
# Look for known vulnerabilities that code of this module reaches, in Go's standard library too.
#
# usage: hack/vuln.sh GOVULNCHECK
#
# GOVULNCHECK is the program. VULN_DB is the URL of the database, if it is not https://vuln.go.dev.
#
# Exit status:
#   0   no vulnerability is known
#   3   there are vulnerabilities, which are printed
#   75  not run: the database cannot be reached, and nothing is known (EX_TEMPFAIL)
# Another status is that of govulncheck, which failed.
set -euo pipefail

if [[ $# -ne 1 ]]; then
	echo "usage: $0 GOVULNCHECK" >&2
	exit 2
fi
cd "$(dirname "$0")/.."

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
status=0
"$1" -db "${VULN_DB:-https://vuln.go.dev}" ./... 2>"$errors" || status=$?
cat "$errors" >&2
# So govulncheck begins each error of the database.
if [[ $status -eq 1 ]] && grep -q '^govulncheck: fetching vulnerabilities: ' "$errors"; then
	echo 'vuln: not run: the database of vulnerabilities cannot be reached' >&2
	exit 75
fi
exit "$status"
