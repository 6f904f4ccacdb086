#!/usr/bin/env bash
# Build what make cluster needs besides hack/test-assets.sh: kubelet, the controller
# manager and the scheduler.
#
# usage: hack/test-cluster.sh DIR
#
# They are built from the Go module of Kubernetes, so the module proxy is all this
# needs. A second run returns at once.
set -euo pipefail

# shellcheck source=hack/fill.sh
source "$(dirname "$0")/fill.sh"
# shellcheck source=hack/kubernetes.sh
source "$(dirname "$0")/kubernetes.sh"

wanted="kubernetes ${kubernetes:?}"
programs=(kubelet kube-controller-manager kube-scheduler)

if [[ $# -ne 1 || -z $1 ]]; then
	echo "usage: $0 DIR" >&2
	exit 2
fi

begin "$1"
say "building $wanted; the first time takes minutes"
for name in "${programs[@]}"; do
	if lacks "$name"; then (build_kubernetes "$name"); fi
done
install_all
