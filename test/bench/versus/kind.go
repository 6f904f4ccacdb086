//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
)

// kind is a proxy with its settings.
type kind struct {
	name    string // of the column
	title   string // as people call it
	mode    string // --proxy-mode
	variant string // of iptables, where it is chosen as kubelet does; empty: it is not
	minSync string // minSyncPeriod in the configuration; empty: the default

	// gap is how long after one isolated change the next is made: longer than
	// minSyncPeriod, which would otherwise be what is measured.
	gap time.Duration
}

// sluice begins the names of those that are not kube-proxy; alone it is the
// name of the one with the default mode.
const sluice = "sluice"

func kinds() []kind {
	const none, short, long = "1ms", 200 * time.Millisecond, 1200 * time.Millisecond // 0 stands for the default of 1s
	return []kind{
		{sluice, "Sluice", "nftables", "", "", short},
		{"sluice-iptables-nft", "Sluice iptables (nft)", "iptables", "nft", "", short},
		{"sluice-iptables-legacy", "Sluice iptables (legacy)", "iptables", "legacy", "", short},
		{"nftables", "kube-proxy nftables", "nftables", "", "", long},
		{"iptables", "kube-proxy iptables", "iptables", "", "", long},
		{"nftables-eager", "kube-proxy nftables, minSyncPeriod " + none, "nftables", "", none, short},
		{"iptables-eager", "kube-proxy iptables, minSyncPeriod " + none, "iptables", "", none, short},
	}
}

// ours reports whether it is Sluice.
func (k kind) ours() bool { return strings.HasPrefix(k.name, sluice) }

func proxyNames() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

const (
	healthAddress  = "127.0.0.1:10256"
	metricsAddress = "127.0.0.1:10249"
)

// config is the KubeProxyConfiguration, which is the same for all but for the
// mode. The settings of connection tracking are left alone: they are the whole
// machine's.
func (k kind) config(kubeconfig string) string {
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
clusterCIDR: 10.0.0.0/8
detectLocalMode: ClusterCIDR
healthzBindAddress: %s
metricsBindAddress: %s
enableProfiling: true
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, k.mode, kubeconfig, nodeName, healthAddress, metricsAddress)
	if k.minSync != "" {
		text += fmt.Sprintf("%s: {minSyncPeriod: %s}\n", k.mode, k.minSync)
	}
	return text
}
