#!/usr/bin/env bash
# Download the Debian packages in debian.txt for a processor.
#
# usage: hack/image/debian.sh amd64|arm64 DIR
#
# DEBIAN has the archives to try, in that order: the present one of Debian drops a
# package when a new version replaces it. A package that is in DIR already is
# not downloaded again; hack/image verifies its checksum.
set -euo pipefail

arch=$1 dir=$2
archives=${DEBIAN:-http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20261126T000000Z}

if [[ ! -x /usr/lib/apt/apt-helper ]]; then
	echo 'image: Debian packages are fetched and read by apt and dpkg: on another system build the image with docker' >&2
	exit 1
fi
mkdir -p "$dir"

# fetch SHA256 PATH
fetch() {
	local file=$dir/${2##*/} archive
	[[ ! -e $file ]] || return 0
	for archive in $archives; do
		if /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file "$archive/$2" "$file.part" "SHA256:$1" >/dev/null; then
			mv "$file.part" "$file"
			return
		fi
	done
	echo "image: none of $archives has $2 with SHA-256 $1" >&2
	return 1
}

while read -r sum path; do
	fetch "$sum" "$path" </dev/null
done < <(grep -E "_($arch|all)\.deb$" "$(dirname "$0")/debian.txt")
