#!/usr/bin/env bash
# Install what a make target needs and this machine lacks.
#
# usage: hack/setup.sh build|demo|test|kernel|rest|cluster|site
#
# As root on Debian or Ubuntu everything missing is installed with apt-get;
# elsewhere it is named, with the way to get it, and the script fails. Go itself
# needs no root: where it is missing or too old, the pinned toolchain is fetched
# through the Go module proxy into .cache/go. A run with nothing missing writes
# nothing and needs no network.
set -euo pipefail

# The toolchain, and the SHA-256 of its zip for each architecture. The go line
# of go.mod asks for this version or an older one.
go_version=1.26.8
go_sha256_amd64=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7
go_sha256_arm64=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99

# The oldest Node.js that builds the site (site/package.json).
node_major=18

say() { printf 'setup: %s\n' "$*"; }

die() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# good_go says whether the go command at hand can build this module. It may
# switch to a newer toolchain by itself, which counts.
good_go() { have go && go list -m >/dev/null 2>&1; }

# good_node says whether node can build the site.
good_node() { node -e "process.exit(parseInt(process.versions.node) < $node_major ? 1 : 0)"; }

# compiles says whether the C compiler finds the C library, for the race detector.
compiles() { have gcc && printf '#include <stdlib.h>\n' | gcc -E - >/dev/null 2>&1; }

# fetches says whether there is a way to download over HTTPS.
fetches() { (have curl || have wget) && { [[ -n ${SSL_CERT_FILE:-} ]] || [[ -s /etc/ssl/certs/ca-certificates.crt ]] || ! have apt-get; }; }

# need NAME PACKAGE... notes the packages that bring something that is missing.
need() {
	names+=("$1")
	packages+=("${@:2}")
}

need_for_build() {
	if [[ ! -e $root/.cache/go/bin/go ]] && ! good_go; then
		fetches || need curl curl ca-certificates
		have unzip || need unzip unzip
	elif [[ ! -s /etc/ssl/certs/ca-certificates.crt ]] && have apt-get; then
		need "CA certificates" ca-certificates # for modules
	fi
}

need_for_test() {
	have ip || need ip iproute2
	have nft || need nft nftables
	have nsenter || need nsenter util-linux
	{ have iptables-nft && have iptables-legacy; } || need "iptables of both variants" iptables
	have ipset || need ipset ipset
	have firewalld || need firewalld firewalld # as a test runs it, see without_services
	have dbus-daemon || need dbus-daemon dbus
	have conntrack || need conntrack conntrack
	have shellcheck || need shellcheck shellcheck
	compiles || need "gcc with libc headers" gcc libc6-dev
}

# need_for_rest is for make test-rest, besides need_for_test.
need_for_rest() {
	have systemd-analyze || need systemd-analyze systemd
	have musl-gcc || need musl-gcc musl-tools
	have_browser || need Chromium chromium fonts-dejavu-core
	need_for_windows
	need_for_kernel
}

# have_browser says whether test/page finds a browser, or this is Ubuntu, whose Chromium is a snap: test/page then skips.
have_browser() {
	have chromium-headless-shell || have chromium || have google-chrome || grep -qsx 'ID=ubuntu' /etc/os-release
}

# need_for_windows is for tests of the program for Windows (test/wine). Wine and
# Debian's packages of it are for amd64 only.
need_for_windows() {
	[[ $(uname -m) == x86_64 ]] || return 0
	[[ -x /usr/lib/wine/wine64 ]] || need wine64 wine64
	have x86_64-w64-mingw32-gcc || need mingw-w64 gcc-mingw-w64-x86-64
}

# need_for_kernel is for hack/test-kernel.sh.
need_for_kernel() {
	local name
	compiles || need "gcc with libc headers" gcc libc6-dev
	for name in make flex bison bc perl; do
		have "$name" || need "$name" "$name"
	done
	have xz || need xz xz-utils
	have strip || need binutils binutils
}

# need_for_cluster is for make cluster and test/cluster.
need_for_cluster() {
	have containerd || need containerd containerd # as a test runs it, see without_services
	have runc || need runc runc
	[[ -x /usr/lib/cni/ptp || -x /opt/cni/bin/ptp ]] || need "the network plugins of CNI" containernetworking-plugins
	have nsenter || need nsenter util-linux
	have nft || need nft nftables
	{ have iptables-nft && have iptables-legacy; } || need "iptables of both variants" iptables
}

# need_for_site is for make site, which needs no Go.
need_for_site() {
	have node || need node nodejs
	have npm || need npm npm
}

# install_missing brings everything noted, or says what is to be brought.
install_missing() {
	[[ ${#packages[@]} -gt 0 ]] || return 0
	local missing
	missing=$(printf ', %s' "${names[@]}")
	missing=${missing#, }
	if ! have apt-get; then
		die "'make $level' needs $missing: install with this system's package manager (on Debian: ${packages[*]})"
	fi
	if [[ $(id -u) -ne 0 ]]; then
		die "'make $level' needs $missing: run it as root, or first 'sudo apt-get install ${packages[*]}'"
	fi
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	quietly apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
	without_services apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}"
}

# without_services has packages start nothing on this machine: programs are for
# tests, which run them in namespaces. Some would also come with the next start of
# the machine, so their units are masked until somebody wants them: systemctl unmask
# firewalld containerd.
without_services() {
	local policy=/usr/sbin/policy-rc.d name unit ours=
	for name in firewalld containerd; do
		unit=/etc/systemd/system/$name.service
		if [[ " ${packages[*]} " == *" $name "* && ! -e $unit && ! -L $unit ]]; then
			mkdir -p "${unit%/*}"
			ln -s /dev/null "$unit"
			say "$name is masked: it is not to run on this machine"
		fi
	done
	if [[ ! -e $policy ]]; then
		ours=$policy
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	quietly "$@"
	[[ -z $ours ]] || rm -f "$ours"
	trap - EXIT
}

# quietly shows the output of a command only if it fails.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" </dev/null >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		die "failed: $*"
	fi
	rm -f "$log"
}

# download URL FILE
download() {
	if have curl; then
		curl -fsSL --retry 3 -o "$2" "$1"
	else
		wget -q --tries=3 -O "$2" "$1"
	fi
}

# fetch_toolchain FILE downloads from the first module proxy that has it.
fetch_toolchain() {
	local proxies proxy
	proxies=${GOPROXY:-$(go env GOPROXY 2>/dev/null || true)}
	for proxy in $(tr ',|' '  ' <<<"${proxies:-https://proxy.golang.org}"); do
		case $proxy in direct | off) continue ;; esac
		say "fetching Go $go_version from $proxy"
		download "${proxy%/}/golang.org/toolchain/@v/v0.0.1-go$go_version.linux-$arch.zip" "$1" && return
	done
	die "cannot fetch Go $go_version: set GOPROXY to a module proxy that can be reached, or install Go $go_version from https://go.dev/dl"
}

# install_go puts the toolchain into .cache/go, whole or not at all.
install_go() {
	local arch want tmp
	case $(uname -sm) in
	'Linux x86_64') arch=amd64 want=$go_sha256_amd64 ;;
	'Linux aarch64') arch=arm64 want=$go_sha256_arm64 ;;
	*) die "install Go $go_version or newer from https://go.dev/dl: there is none pinned for $(uname -sm)" ;;
	esac
	mkdir -p "$root/.cache"
	tmp=$(mktemp -d "$root/.cache/.go.XXXXXX")
	# shellcheck disable=SC2064 # the folder of now
	trap "rm -rf '$tmp'" EXIT
	fetch_toolchain "$tmp/go.zip"
	if ! sha256sum --check --status <<<"$want  $tmp/go.zip"; then
		die "the Go $go_version that came has another SHA-256 than $want: nothing was installed"
	fi
	unzip -q "$tmp/go.zip" -d "$tmp"
	mv "$tmp/golang.org/toolchain@v0.0.1-go$go_version.linux-$arch" "$tmp/go"
	chmod -R u+w "$tmp/go"
	chmod -R +x "$tmp/go/bin" "$tmp/go/pkg/tool"
	rm -rf "$root/.cache/go"
	mv "$tmp/go" "$root/.cache/go"
	say "Go $go_version is in .cache/go"
}

level=${1:-}
case $level in
build | demo | test | kernel | rest | cluster | site) ;;
*)
	echo "usage: $0 build|demo|test|kernel|rest|cluster|site" >&2
	exit 2
	;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
PATH=$root/.cache/go/bin:$PATH
names=() packages=()
[[ $level == site ]] || need_for_build
case $level in
site) need_for_site ;;
test) need_for_test ;;
kernel) need_for_kernel ;;
rest) need_for_test && need_for_rest && need_for_cluster ;;
cluster) need_for_cluster ;;
esac
install_missing
if [[ $level == site ]]; then
	good_node || die "'make site' needs Node.js $node_major or newer, and node is $(node --version): see https://nodejs.org/en/download"
	exit
fi
good_go || install_go
good_go || die "Go $(go env GOVERSION 2>/dev/null) cannot build this module: $(go list -m 2>&1 | tail -n 1)"
