# shellcheck shell=bash
# What scripts that fill a folder with programs share; they source this. They set
# wanted, which names all versions and stamps the folder, and programs.

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*"; }

# stamped says whether what the folder holds is of the versions wanted.
stamped() { [[ $(cat "$dir/versions" 2>/dev/null) == "${wanted:?}" ]]; }

# lacks says whether a program is missing, or of another version than wanted.
lacks() { ! stamped || [[ ! -x $dir/$1 ]]; }

# end_if_complete ends the script if the folder lacks nothing.
end_if_complete() {
	local name
	for name in "${programs[@]:?}"; do
		if lacks "$name"; then return; fi
	done
	say "$dir has $wanted"
	exit 0
}

# share DIR makes DIR a link to the folder of these versions that all checkouts of
# this user share, unless DIR is a folder already.
share() {
	if [[ -d $1 && ! -L $1 ]]; then return; fi
	local shared
	shared=${XDG_CACHE_HOME:-$HOME/.cache}/sluice-build/$(basename "$1")-$(sha256sum <<<"${wanted:?}" | cut -c 1-12)
	mkdir -p "$shared" "$(dirname "$1")"
	ln -sfn "$shared" "$1"
}

# begin DIR ends the script if DIR is complete. Else it locks DIR and makes tmp,
# a folder in it: what is put into tmp/bin is for install_all.
begin() {
	share "$1"
	dir=$(cd "$1" && pwd -P)
	end_if_complete

	# One run at a time: a second one waits here, then finds the work done. Under
	# the lock any other build folder is what a killed run left behind.
	exec 9>"$dir/.lock"
	if ! flock -n 9; then
		say "waiting for another run on $dir"
		flock 9
	fi
	end_if_complete
	rm -rf "$dir"/.build.*
	tmp=$(mktemp -d "$dir/.build.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT

	# The compiler's work folder is in there too, so removing it also ends an orphaned build.
	mkdir "$tmp/bin" "$tmp/work"
	export GOTMPDIR=$tmp/work GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0 GOOS='' GOARCH=''
}

# compile NAME PACKAGE [LDFLAGS] builds at low priority, to leave the machine usable.
# It keeps quiet about the hundred-odd modules it fetches.
compile() {
	say "building $1"
	nice go build -trimpath -ldflags "-s -w ${3-}" -o "$tmp/bin/$1" "$2" \
		2> >(grep -v '^go: downloading' >&2)
}

# install_all moves the stamp last, so that it never vouches for mixed versions.
install_all() {
	printf '%s\n' "$wanted" >"$tmp/versions"
	stamped || rm -f "$dir/versions"
	mv -f "$tmp/bin"/* "$dir"
	mv -f "$tmp/versions" "$dir/versions"
	say "done in ${SECONDS}s: $dir"
}
