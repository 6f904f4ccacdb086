package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// setDefaults sets the fields that neither the file nor a flag sets. A zero in the file counts as not set where zero
// cannot work, because programs such as kubeadm write every field. For the addresses of servers see server.
func (c *check) setDefaults() {
	cfg := c.config
	cfg.APIVersion, cfg.Kind = apiVersion, kind
	ifZero(&cfg.BindAddress, "0.0.0.0")
	ifZero(&cfg.ClientConnection.ContentType, protobuf)
	ifZero(&cfg.ClientConnection.QPS, 5)
	ifZero(&cfg.ClientConnection.Burst, 10)
	ifZero(&cfg.Logging.Format, "text")
	if c.byFlag["logging.flushFrequency"] == "" && cfg.Logging.FlushFrequency.Duration.Duration == 0 {
		cfg.Logging.FlushFrequency = logsapi.TimeOrMetaDuration{
			Duration: metav1.Duration{Duration: 5 * time.Second}, SerializeAsString: true,
		}
	}
	c.periods()
	ifNil(&cfg.IPTables.MasqueradeBit, 14)
	ifNil(&cfg.NFTables.MasqueradeBit, 14)
	ifNil(&cfg.IPTables.LocalhostNodePorts, true)
	ifZero(&cfg.DetectLocalMode, v1alpha1.LocalMode(clusterCIDR))
	ifNil(&cfg.OOMScoreAdj, -999)
	ifNil(&cfg.Conntrack.MaxPerCore, 32768)
	ifNil(&cfg.Conntrack.Min, 131072)
	ifNil(&cfg.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	ifNil(&cfg.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	if len(cfg.NodePortAddresses) == 0 {
		cfg.NodePortAddresses = []string{nodePortDefault(string(cfg.Mode))}
	}
}

// periods sets the periods that must not be 0. The least time between two writes is 0 by default, in every mode.
func (c *check) periods() {
	for path, d := range periods(c.config) {
		if d.Duration != 0 || c.byFlag[path] != "" {
			continue
		}
		d.Duration = 30 * time.Second
		if path == "configSyncPeriod" {
			d.Duration = 15 * time.Minute
		}
	}
}

// periods are the fields where 0 makes no sense.
func periods(cfg *v1alpha1.KubeProxyConfiguration) map[string]*metav1.Duration {
	return map[string]*metav1.Duration{
		"configSyncPeriod":    &cfg.ConfigSyncPeriod,
		"iptables.syncPeriod": &cfg.IPTables.SyncPeriod,
		"nftables.syncPeriod": &cfg.NFTables.SyncPeriod,
		"ipvs.syncPeriod":     &cfg.IPVS.SyncPeriod,
	}
}

// nodePortDefault is the keyword for an empty list of NodePort addresses.
func nodePortDefault(mode string) string {
	switch mode {
	case "iptables", "ipvs", userspaceMode, kernelspaceMode:
		return "all"
	}
	return "primary"
}

func ifZero[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func ifNil[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}
