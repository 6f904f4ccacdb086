#!/usr/bin/env bash
# Build the API server and etcd that the integration tests run against, and the
# kube-proxy of the same version that they take over from.
#
# usage: hack/test-assets.sh DIR
#
# Afterwards KUBEBUILDER_ASSETS=DIR lets test/apiserver find the first two, and
# KUBE_PROXY=DIR/kube-proxy names the third. They are built from their Go modules,
# so the module proxy is all this needs. A second run returns at once, and one
# that finds some of the programs builds the others. A run with KUBEBUILDER_ASSETS
# already set and filled does nothing: those binaries are used as they are.
set -euo pipefail

# shellcheck source=hack/fill.sh
source "$(dirname "$0")/fill.sh"
# shellcheck source=hack/kubernetes.sh
source "$(dirname "$0")/kubernetes.sh"

etcd=v3.6.16
wanted="kubernetes ${kubernetes:?}, etcd $etcd"
programs=(kube-apiserver etcd kube-proxy)

filled() { [[ -x $1/kube-apiserver && -x $1/etcd && -x ${KUBE_PROXY:-$1/kube-proxy} ]]; }

build_etcd() {
	module etcd go.etcd.io/etcd/server/v3 "$etcd"
	compile etcd go.etcd.io/etcd/server/v3 ""
}

if [[ $# -ne 1 || -z $1 ]]; then
	echo "usage: $0 DIR" >&2
	exit 2
fi
if [[ -n ${KUBEBUILDER_ASSETS:-} ]] && filled "$KUBEBUILDER_ASSETS"; then
	say "using KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS"
	exit 0
fi

begin "$1"
say "building $wanted; the first time takes minutes"
if lacks etcd; then (build_etcd); fi
for name in kube-apiserver kube-proxy; do
	if lacks "$name"; then (build_kubernetes "$name"); fi
done
install_all
