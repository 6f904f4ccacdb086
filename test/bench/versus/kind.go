//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/filled"
)

// kind is a proxy with its settings.
type kind struct {
	name    string // of the column, and in -proxies
	title   string // in tables
	mode    string // --proxy-mode
	variant string // of iptables, selected by the hint chain of kubelet; empty: none
	minSync string // minSyncPeriod in the configuration; empty: the default

	// gap is the time between two isolated changes. It is longer than minSyncPeriod, so that this is not measured.
	gap time.Duration
}

// sluice is the name of Sluice in its default mode, and the prefix of its names in other modes.
const sluice = "sluice"

func kinds() []kind {
	const shortest, short, long = "1ms", 200 * time.Millisecond, 1200 * time.Millisecond // 0 stands for the default of 1s
	return []kind{
		{sluice, "Sluice", "nftables", "", "", short},
		{"sluice-iptables-nft", "Sluice iptables (nft)", "iptables", "nft", "", short},
		{"sluice-iptables-legacy", "Sluice iptables (legacy)", "iptables", "legacy", "", short},
		{"sluice-ipvs", "Sluice ipvs", "ipvs", "nft", "", short},
		{"nftables", "kube-proxy nftables", "nftables", "", "", long},
		{"iptables", "kube-proxy iptables", "iptables", "", "", long},
		{"ipvs", "kube-proxy ipvs", "ipvs", "nft", "", long},
		{"nftables-eager", "kube-proxy nftables, minSyncPeriod " + shortest, "nftables", "", shortest, short},
		{"iptables-eager", "kube-proxy iptables, minSyncPeriod " + shortest, "iptables", "", shortest, short},
		{"ipvs-eager", "kube-proxy ipvs, minSyncPeriod " + shortest, "ipvs", "nft", shortest, short},
	}
}

func isSluice(name string) bool { return strings.HasPrefix(name, sluice) }

func proxyNames() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

// titleOf returns the title of a proxy, or its name if it is unknown.
func titleOf(name string) string {
	i := slices.Index(proxyNames(), name)
	if i < 0 {
		return name
	}
	return kinds()[i].title
}

const (
	healthAddress  = "127.0.0.1:10256"
	metricsAddress = "127.0.0.1:10249"
)

// config returns the KubeProxyConfiguration, which differs between proxies only in the mode and minSyncPeriod. It
// does not set conntrack, whose settings apply to the whole machine.
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
`, k.mode, kubeconfig, filled.NodeName, healthAddress, metricsAddress)
	if k.minSync != "" {
		text += fmt.Sprintf("%s: {minSyncPeriod: %s}\n", k.mode, k.minSync)
	}
	return text
}
