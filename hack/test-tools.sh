#!/usr/bin/env bash
# Fetch the programs that the tests of deploy/ and of DNS resolvers run: kubectl,
# helm, prometheus, promtool and coredns.
#
# usage: hack/test-tools.sh DIR
#
# kubectl and helm are built from their Go modules, in one go because most of
# either is the same libraries, and coredns with only the plugins that tests use.
# The other two are taken out of Debian's package without installing it, so
# nothing is started; where there is no apt-get, those on the PATH are used. A second run returns at once, and one that finds some of
# the programs fetches the others.
set -euo pipefail

# shellcheck source=hack/fill.sh
source "$(dirname "$0")/fill.sh"

kubernetes=v0.36.3 # of the libraries; kubectl calls it v1.36.3
helm=v3.21.4       # the release that is built on these libraries
coredns=v1.14.7
wanted="kubectl v1.${kubernetes#v0.}, helm $helm, coredns $coredns with Services, prometheus"
programs=(kubectl helm prometheus promtool coredns)

die() {
	say "$*" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# build_clients makes a throw-away main module of both. kubectl's own main is no
# more than what is written here.
build_clients() {
	mkdir -p "$tmp/clients/kubectl"
	cd "$tmp/clients"
	go mod init tools/clients 2>/dev/null
	go mod edit -require="k8s.io/kubectl@$kubernetes" -require="helm.sh/helm/v3@$helm"
	cat >kubectl/main.go <<'GO'
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
GO
	compile kubectl ./kubectl "-X k8s.io/component-base/version.gitVersion=v1.${kubernetes#v0.}"
	local minor=${kubernetes#v0.} module=helm.sh/helm/v3
	compile helm $module/cmd/helm "-X $module/internal/version.version=$helm \
		-X $module/pkg/chartutil.k8sVersionMajor=1 -X $module/pkg/chartutil.k8sVersionMinor=${minor%.*} \
		-X $module/pkg/lint/rules.k8sVersionMajor=1 -X $module/pkg/lint/rules.k8sVersionMinor=${minor%.*}"
}

# build_coredns makes a main of the plugins that tests use; with all of them it
# would take minutes.
build_coredns() {
	mkdir "$tmp/coredns"
	cd "$tmp/coredns"
	go mod init tools/coredns 2>/dev/null
	go mod edit -require="github.com/coredns/coredns@$coredns"
	cat >main.go <<'GO'
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	dnsserver.Directives = []string{"health", "ready", "errors", "log", "cache", "kubernetes", "file"}
	coremain.Run()
}
GO
	compile coredns .
}

fetch_prometheus() {
	if have apt-get && have dpkg; then
		say "fetching prometheus"
		unpack_prometheus
	elif have prometheus && have promtool; then
		ln -s "$(command -v prometheus)" "$(command -v promtool)" "$tmp/bin/"
	else
		die "the tests of deploy/ need prometheus and promtool: put them on the PATH (https://prometheus.io/download)"
	fi
}

# unpack_prometheus runs in the build folder, which apt's own user must be able to
# enter. Lists of packages are fetched only if those at hand do not do.
unpack_prometheus() {
	chmod 755 "$tmp"
	mkdir -m 777 "$tmp/deb"
	cd "$tmp/deb"
	quietly apt-get -q download prometheus || {
		quietly apt-get -q -o DPkg::Lock::Timeout=300 update || die "cannot fetch lists of packages: $(cat "$tmp/log")"
		quietly apt-get -q download prometheus || die "cannot fetch prometheus: $(cat "$tmp/log")"
	}
	dpkg -x ./*.deb tree
	mv tree/usr/bin/prometheus tree/usr/bin/promtool "$tmp/bin"
}

quietly() { "$@" </dev/null >"$tmp/log" 2>&1; }

if [[ $# -ne 1 || -z $1 ]]; then
	echo "usage: $0 DIR" >&2
	exit 2
fi

begin "$1"
if lacks prometheus || lacks promtool; then (fetch_prometheus); fi
if lacks coredns; then (build_coredns); fi
if lacks kubectl || lacks helm; then (build_clients); fi
install_all
