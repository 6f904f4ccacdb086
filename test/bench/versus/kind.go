//go:build linux

package main

import (
	"fmt"
	"time"
)

// kind is a proxy with its settings.
type kind struct {
	name    string // of the column
	mode    string // --proxy-mode
	minSync string // minSyncPeriod in the configuration; empty: the default

	// gap is how long after one isolated change the next is made: longer than
	// minSyncPeriod, which would otherwise be what is measured.
	gap time.Duration
}

// sluice is the name of the one that is not kube-proxy.
const sluice = "sluice"

func kinds() []kind {
	const none, short = "1ms", 200 * time.Millisecond // 0 stands for the default of 1s
	return []kind{
		{sluice, "nftables", "", short},
		{"nftables", "nftables", "", 1200 * time.Millisecond},
		{"iptables", "iptables", "", 1200 * time.Millisecond},
		{"nftables-eager", "nftables", none, short},
		{"iptables-eager", "iptables", none, short},
	}
}

func proxyNames() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

// title is how people call it.
func (k kind) title() string {
	switch {
	case k.name == sluice:
		return "Sluice"
	case k.minSync != "":
		return "kube-proxy " + k.mode + ", minSyncPeriod " + k.minSync
	}
	return "kube-proxy " + k.mode
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
