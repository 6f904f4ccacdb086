package config

// moment is when a changed setting takes effect.
type moment int

const (
	whileRunning moment = iota + 1
	atStart
	never // a process never sees it change, or only along with another setting
)

// setting is one field of Config, or several that are one field of the file.
type setting struct {
	name    string // in Config
	file    string // in the file; TIMES, RULES: the section of the mode; FORMAT: that of logs
	changes moment
	ofMode  bool // it means something else in another mode
}

// allSettings are all of them: every field of Config is in one.
func allSettings() []setting {
	return append(append(runningSettings(), startSettings()...), fixedSettings()...)
}

func runningSettings() []setting {
	return []setting{
		{"BindAddress", "bindAddress", whileRunning, false},
		{"Healthz", "healthzBindAddress", whileRunning, false},
		{"Metrics", "metricsBindAddress", whileRunning, false},
		{"HardFail", "bindAddressHardFail", whileRunning, false},
		{"Profiling", "enableProfiling", whileRunning, false},
		{"Detector.Mode", "detectLocalMode", whileRunning, false},
		{"Detector.ClusterCIDRs", "clusterCIDR", whileRunning, false},
		{"Detector.Interface", "detectLocal.bridgeInterface", whileRunning, false},
		{"Detector.Prefix", "detectLocal.interfaceNamePrefix", whileRunning, false},
		{"NodePorts", "nodePortAddresses", whileRunning, true},
		{"Loopback", "iptables.localhostNodePorts", whileRunning, true},
		{"MasqueradeAll", "RULES.masqueradeAll", whileRunning, true},
		{"MasqueradeMark", "RULES.masqueradeBit", whileRunning, true},
		{"SyncPeriod", "TIMES.syncPeriod", whileRunning, true},
		{"MinSyncPeriod", "TIMES.minSyncPeriod", whileRunning, true},
		{"OOMScoreAdj", "oomScoreAdj", whileRunning, false},
		{"Conntrack.MaxPerCore", "conntrack.maxPerCore", whileRunning, false},
		{"Conntrack.Min", "conntrack.min", whileRunning, false},
		{"Conntrack.TCPEstablished", "conntrack.tcpEstablishedTimeout", whileRunning, false},
		{"Conntrack.TCPCloseWait", "conntrack.tcpCloseWaitTimeout", whileRunning, false},
		{"Conntrack.TCPBeLiberal", "conntrack.tcpBeLiberal", whileRunning, false},
		{"Conntrack.UDP", "conntrack.udpTimeout", whileRunning, false},
		{"Conntrack.UDPStream", "conntrack.udpStreamTimeout", whileRunning, false},
		{"Logging.Format", "logging.format", whileRunning, false},
		{"Logging.Verbosity", "logging.verbosity", whileRunning, false},
		{"Logging.VModule", "logging.vmodule", whileRunning, false},
		{"Logging.FlushFrequency", "logging.flushFrequency", whileRunning, false},
		{"Logging.SplitStream", "logging.options.FORMAT.splitStream", whileRunning, false},
		{"Logging.InfoBufferSize", "logging.options.FORMAT.infoBufferSize", whileRunning, false},
	}
}

func startSettings() []setting {
	return []setting{
		{"Mode", "mode", atStart, false},
		{"NodeName", "hostnameOverride", atStart, false},
		{"Client.Kubeconfig", "clientConnection.kubeconfig", atStart, false},
		{"Client.ContentType", "clientConnection.contentType", atStart, false},
		{"Client.AcceptContentTypes", "clientConnection.acceptContentTypes", atStart, false},
		{"Client.QPS", "clientConnection.qps", atStart, false},
		{"Client.Burst", "clientConnection.burst", atStart, false},
		{"ResyncPeriod", "configSyncPeriod", atStart, false},
		{"FeatureGates", "featureGates", atStart, false},
	}
}

// fixedSettings are those that only flags say, and one that follows from the
// feature gates.
func fixedSettings() []setting {
	return []setting{
		{"ExternalIPs", "", never, false},
		{"Manifests", "", never, false},
		{"Client.Master", "", never, false},
		{"WriteConfigTo", "", never, false},
		{"Cleanup", "", never, false},
		{"InitOnly", "", never, false},
		{"IgnoreKubeProxy", "", never, false},
		{"Version", "", never, false},
		{"effective", "", never, false},
	}
}
