#!/usr/bin/env bash
# Look for known vulnerabilities that code of this module reaches, in Go's standard library too.
#
# usage: hack/vuln.sh GOVULNCHECK [VERSION]
#
# GOVULNCHECK is the program. VULN_DB is the URL of the database, if it is not https://vuln.go.dev. With VERSION it prints
# an OpenVEX document about that version of Sluice: which known vulnerabilities of its modules affect it, and which do not.
#
# Exit status:
#   0   no vulnerability is known, or the document is written
#   3   there are vulnerabilities, which are printed
#   75  not run: the database cannot be reached, and nothing is known (EX_TEMPFAIL)
# Another status is that of govulncheck, which failed.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
	echo "usage: $0 GOVULNCHECK [VERSION]" >&2
	exit 2
fi
cd "$(dirname "$0")/.."

found=$(mktemp) errors=$(mktemp)
trap 'rm -f "$found" "$errors"' EXIT
format=()
if [[ $# -eq 2 ]]; then format=(-format openvex); fi
status=0
"$1" -db "${VULN_DB:-https://vuln.go.dev}" "${format[@]}" ./... >"$found" 2>"$errors" || status=$?
# govulncheck knows neither the author nor the product.
module=$(sed -n 's/^module //p' go.mod)
sed "s|\"Unknown Author\"|\"https://$module\"|; s|\"Unknown Product\"|\"pkg:golang/$module@${2:-}\"|" "$found"
cat "$errors" >&2
# So govulncheck begins each error of the database.
if [[ $status -eq 1 ]] && grep -q '^govulncheck: fetching vulnerabilities: ' "$errors"; then
	echo 'vuln: not run: the database of vulnerabilities cannot be reached' >&2
	exit 75
fi
exit "$status"
