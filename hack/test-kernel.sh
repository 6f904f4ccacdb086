#!/usr/bin/env bash
# Build the older kernel that test/uml runs tests on: user mode Linux 6.1.
#
# usage: hack/test-kernel.sh DIR
#
# Afterwards DIR/linux is the kernel. The source is Debian's package
# linux-source-6.1, which is not installed; Debian's package user-mode-linux would
# not do, as its nf_tables has neither IPv4 nor IPv6. A system that cannot build the
# kernel fails here, and test/uml fails without it: nothing would be tested on it. Only
# for a processor without user mode Linux nothing is built, and test/uml skips its tests.
# A second run returns at once.
set -euo pipefail

# shellcheck source=hack/fill.sh
source "$(dirname "$0")/fill.sh"

package=linux-source-6.1
config=$(cd "$(dirname "$0")" && pwd)/test-kernel.config
wanted="$package, configuration $(sha256sum "$config" | cut -c 1-12), registers of 16384 bytes"
programs=(linux)

die() {
	say "$*" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# impossible REASON ends the script with the way to get the kernel nevertheless.
impossible() {
	die "cannot build the older kernel: $*. Copy the folder $dir from a machine with Debian 12 on which 'make test-kernel' ran, or set TEST_KERNEL to such a folder"
}

quietly() { "$@" </dev/null >"$tmp/log" 2>&1; }

# offered says whether apt knows the package, after it fetched lists if need be.
offered() {
	apt-cache show "$package" >/dev/null 2>&1 && return
	quietly apt-get -q -o DPkg::Lock::Timeout=300 update || die "cannot fetch lists of packages: $(cat "$tmp/log")"
	apt-cache show "$package" >/dev/null 2>&1
}

# fetch_source unpacks the source into the build folder, which apt's own user must
# be able to enter.
fetch_source() {
	chmod 755 "$tmp"
	mkdir -m 777 "$tmp/deb"
	cd "$tmp/deb"
	say "fetching $package"
	quietly apt-get -q download "$package" || {
		quietly apt-get -q -o DPkg::Lock::Timeout=300 update || die "cannot fetch lists of packages: $(cat "$tmp/log")"
		quietly apt-get -q download "$package" || die "cannot fetch $package: $(cat "$tmp/log")"
	}
	dpkg-deb --fsys-tarfile ./*.deb | tar -x --to-stdout --wildcards "*/$package.tar.xz" |
		tar -xJ --strip-components=1 --exclude='*/drivers/gpu/*.[ch]' --one-top-level="$tmp/source"
	rm -rf "$tmp/deb"
}

# enlarge_registers makes room for the registers of newer processors. Linux 6.1 saves those of a process in 2,696 bytes, which ends at
# AVX-512; with AMX there are 11,008, and the kernel of this machine writes them all or none: every process of the guest then ends with
# SIGSEGV. user mode Linux has been asking for the size since 6.14. The registers are on the stack of the kernel (KERNEL_STACK_ORDER).
enlarge_registers() {
	local file=arch/x86/um/user-offsets.c
	sed -i 's/(HOST_FP_SIZE, 2696)/(HOST_FP_SIZE, 16384)/' "$tmp/source/$file"
	grep -q '(HOST_FP_SIZE, 16384)' "$tmp/source/$file" || die "$file of $package has changed: it has no HOST_FP_SIZE of 2696"
}

# build leaves nothing of the make that may run this script in the environment.
build() {
	say "building Linux from $package"
	cd "$tmp/source"
	local kmake=(env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u MAKEOVERRIDES make -s ARCH=um)
	quietly "${kmake[@]}" KCONFIG_ALLCONFIG="$config" allnoconfig || die "cannot configure: $(cat "$tmp/log")"
	quietly nice "${kmake[@]}" -j"$(nproc)" linux || die "cannot build: $(tail -n 30 "$tmp/log")"
	strip -o "$tmp/bin/linux" linux
}

if [[ $# -ne 1 || -z $1 ]]; then
	echo "usage: $0 DIR" >&2
	exit 2
fi

if [[ $(uname -m) != x86_64 ]]; then
	say "no older kernel to test on: user mode Linux is for x86_64, this machine is $(uname -m)"
	exit 0
fi
begin "$1"
{ have apt-get && have dpkg-deb; } || impossible "its source is Debian's package $package, and this system has no apt-get"
offered || impossible "this release of $(sed -n 's/^NAME="\?\([^"]*\)"\?/\1/p' /etc/os-release) has no package $package"
fetch_source
enlarge_registers
build
install_all
