package config

// flagDef is one flag.
type flagDef struct {
	name    string
	short   string
	since   string   // the first Kubernetes release known to have it; empty: kube-proxy never had it
	removed string   // the first release known to be without it; empty: 1.37 has it
	initial string   // the default, as the help text shows it
	fields  []string // the fields of the file it overrides
	own     func(*ownFlags) any
	usage   string   // of a removed flag: what it does now, and what to use instead
	quiet   []string // of a removed flag: values that need no warning, as ignoring them changes nothing
}

type flagGroup struct {
	title string
	flags []flagDef
}

// table is the command line: every flag that kube-proxy has or had, and --manifests.
func table() []flagGroup { return append(current(), removedFlags()...) }

// current are the flags of the help text, as kube-proxy 1.37 has them.
func current() []flagGroup {
	return []flagGroup{
		{"Most used", mostUsed()},
		{"Traffic", traffic()},
		{"Health, metrics, profiling", servers()},
		{"Run once and exit", runOnce()},
		{"Node and kernel settings", kernel()},
		{"API client and timing", client()},
		{"Logging", logging()},
		{"Only in iptables mode", onlyIPTables()},
		{"Only in ipvs mode", onlyIPVS()},
		{"Only on Windows", windows()},
		{"Deprecated", deprecated()},
	}
}

func on(fields ...string) []string { return fields }

func mostUsed() []flagDef {
	return []flagDef{
		{
			name: "manifests", own: func(o *ownFlags) any { return &o.manifests },
			usage: "read Services from this file or folder, or from standard input (-), instead of an API server; repeatable",
		},
		{
			name: "kubeconfig", since: "1.0", fields: on("clientConnection.kubeconfig"),
			usage: "file with the credentials for the API server; without it, those of the pod this runs in",
		},
		{
			name: "config", since: "1.7", own: func(o *ownFlags) any { return &o.config },
			usage: "KubeProxyConfiguration v1alpha1 file; flags given as well win over it",
		},
		{
			name: "proxy-mode", since: "1.1", fields: on("mode"),
			usage: "data plane: nftables (the default) or iptables",
		},
		{
			name: "cluster-cidr", since: "1.3", fields: on("clusterCIDR"),
			usage: "pod address ranges of the cluster, separated by commas, to tell pods from other clients",
		},
		{
			name: "nodeport-addresses", since: "1.10", initial: "primary", fields: on("nodePortAddresses"),
			usage: "addresses that serve NodePorts: CIDRs, primary, localhost, all; separated by commas",
		},
		{
			name: "hostname-override", since: "1.1", fields: on("hostnameOverride"),
			usage: "name of this node; without it, the hostname",
		},
		{
			name: "v", since: "1.0", short: "v", initial: "0", fields: on("logging.verbosity"),
			usage: "log more: 0 to 3 what a person should know, from 4 on each write to the kernel too",
		},
	}
}

func traffic() []flagDef {
	return []flagDef{
		{
			name: "detect-local-mode", since: "1.18", initial: "ClusterCIDR", fields: on("detectLocalMode"),
			usage: "how to tell pods of this node: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
		},
		{
			name: "pod-bridge-interface", since: "1.25", fields: on("detectLocal.bridgeInterface"),
			usage: "for BridgeInterface: what arrives on this interface is from a pod",
		},
		{
			name: "pod-interface-name-prefix", since: "1.25", fields: on("detectLocal.interfaceNamePrefix"),
			usage: "for InterfaceNamePrefix: what arrives on an interface whose name begins so is from a pod",
		},
		{
			name: "masquerade-all", since: "1.1", initial: "false", fields: on("iptables.masqueradeAll", "nftables.masqueradeAll"),
			usage: "source NAT for everything sent to cluster addresses",
		},
		{
			name: "bind-address", since: "1.0", initial: "0.0.0.0", fields: on("bindAddress"),
			usage: "if not 0.0.0.0 or ::, the primary address of this node; nothing listens on it",
		},
		{
			name: "feature-gates", since: "1.4", fields: on("featureGates"),
			usage: "feature gates of Kubernetes; AllowServiceExternalIPs=false leaves externalIPs out",
		},
	}
}

func servers() []flagDef {
	return []flagDef{
		{
			name: "healthz-bind-address", since: "1.0", initial: "0.0.0.0:10256", fields: on("healthzBindAddress"),
			usage: "IP or IP:port of the health server; 0 or empty: none",
		},
		{
			name: "metrics-bind-address", since: "1.7", initial: "127.0.0.1:10249", fields: on("metricsBindAddress"),
			usage: "IP or IP:port of the metrics server; 0 or empty: none",
		},
		{
			name: "bind-address-hard-fail", since: "1.19", initial: "false", fields: on("bindAddressHardFail"),
			usage: "exit if the health or metrics server cannot listen",
		},
		{
			name: "profiling", since: "1.7", initial: "false", fields: on("enableProfiling"),
			usage: "serve pprof on the metrics server",
		},
	}
}

func runOnce() []flagDef {
	return []flagDef{
		{
			name: "version", since: "1.0", initial: "false", own: func(o *ownFlags) any { return &o.version },
			usage: "print the version (raw: all that is known); vX.Y.Z: report this version instead",
		},
		{
			name: "write-config-to", since: "1.7", own: func(o *ownFlags) any { return &o.writeTo },
			usage: "write the configuration in force, defaults and flags included, to this file",
		},
		{
			name: "cleanup", since: "1.8", initial: "false", own: func(o *ownFlags) any { return &o.cleanup },
			usage: "remove everything that Sluice, or a kube-proxy that no longer runs, put into the kernel",
		},
		{
			name: "init-only", since: "1.29", initial: "false", own: func(o *ownFlags) any { return &o.initOnly },
			usage: "make the settings of this node that need privileges, make sure that the kernel can do what is needed",
		},
	}
}

func kernel() []flagDef {
	return []flagDef{
		{
			name: "ignore-kube-proxy", initial: "false", own: func(o *ownFlags) any { return &o.ignore },
			usage: "remove kube-proxy's rules although a kube-proxy runs; otherwise they stay until it is stopped",
		},
		{
			name: "oom-score-adj", since: "1.0", initial: "-999", fields: on("oomScoreAdj"),
			usage: "how readily the kernel kills this process, -1000 to 1000",
		},
		{
			name: "conntrack-max-per-core", since: "1.4", initial: "32768", fields: on("conntrack.maxPerCore"),
			usage: "tracked connections per CPU; 0: leave the limit as it is",
		},
		{
			name: "conntrack-min", since: "1.6", initial: "131072", fields: on("conntrack.min"),
			usage: "tracked connections at least",
		},
		{
			name: "conntrack-tcp-timeout-established", since: "1.2", initial: "24h0m0s", fields: on("conntrack.tcpEstablishedTimeout"),
			usage: "forget idle TCP connections after this; 0: leave as it is",
		},
		{
			name: "conntrack-tcp-timeout-close-wait", since: "1.6", initial: "1h0m0s", fields: on("conntrack.tcpCloseWaitTimeout"),
			usage: "forget TCP connections in CLOSE_WAIT after this; 0: leave as it is",
		},
		{
			name: "conntrack-tcp-be-liberal", since: "1.29", initial: "false", fields: on("conntrack.tcpBeLiberal"),
			usage: "do not take TCP packets outside the window for invalid",
		},
		{
			name: "conntrack-udp-timeout", since: "1.29", initial: "0s", fields: on("conntrack.udpTimeout"),
			usage: "forget unanswered UDP flows after this; 0: leave as it is",
		},
		{
			name: "conntrack-udp-timeout-stream", since: "1.29", initial: "0s", fields: on("conntrack.udpStreamTimeout"),
			usage: "forget answered UDP flows after this; 0: leave as it is",
		},
	}
}

func client() []flagDef {
	return []flagDef{
		{
			name: "master", since: "1.0", own: func(o *ownFlags) any { return &o.master },
			usage: "URL of the API server, overrides the one in the kubeconfig",
		},
		{
			name: "kube-api-content-type", since: "1.4", initial: protobuf, fields: on("clientConnection.contentType"),
			usage: "content type of requests",
		},
		{
			name: "kube-api-qps", since: "1.2", initial: "5", fields: on("clientConnection.qps"),
			usage: "requests per second; negative: no limit",
		},
		{
			name: "kube-api-burst", since: "1.2", initial: "10", fields: on("clientConnection.burst"),
			usage: "requests at once",
		},
		{
			name: "config-sync-period", since: "1.2", initial: "15m0s", fields: on("configSyncPeriod"),
			usage: "time between two full looks at what the API server said; no effect: none is needed",
		},
		{
			name: "reload-jitter", initial: "2s", own: func(o *ownFlags) any { return &o.jitter },
			usage: "longest random wait before a changed --config file takes effect; none with manifests or SIGHUP",
		},
		{
			name: "iptables-sync-period", since: "1.1", initial: "30s", fields: on("iptables.syncPeriod", "nftables.syncPeriod"),
			usage: "twice this late, a change makes the proxy unhealthy (not in mode ipvs); a tenth: looks at iptables-legacy",
		},
		{
			name: "iptables-min-sync-period", since: "1.6", initial: "0s", fields: on("iptables.minSyncPeriod", "nftables.minSyncPeriod"),
			usage: "least time between two changes of the kernel, in every mode but ipvs; 0: at once",
		},
	}
}

func logging() []flagDef {
	return []flagDef{
		{
			name: "logging-format", since: "1.28", initial: "text", fields: on("logging.format"),
			usage: "text or json",
		},
		{
			name: "vmodule", since: "1.0", fields: on("logging.vmodule"),
			usage: "verbosity by source file (text format only), added to the file's",
		},
		{
			name: "log-flush-frequency", since: "1.0", initial: "5s", fields: on("logging.flushFrequency"),
			usage: "longest time a log line is held back",
		},
		{
			name: "log-text-split-stream", since: "1.30", initial: "false", fields: on("logging.options.text.splitStream"),
			usage: "text format: errors to standard error, the rest to standard output",
		},
		{
			name: "log-text-info-buffer-size", since: "1.30", initial: "0", fields: on("logging.options.text.infoBufferSize"),
			usage: "text format with split streams: buffer of standard output",
		},
		{
			name: "log-json-split-stream", since: "1.28", initial: "false", fields: on("logging.options.json.splitStream"),
			usage: "json format: errors to standard error, the rest to standard output",
		},
		{
			name: "log-json-info-buffer-size", since: "1.28", initial: "0", fields: on("logging.options.json.infoBufferSize"),
			usage: "json format with split streams: buffer of standard output",
		},
	}
}

func onlyIPTables() []flagDef {
	return []flagDef{
		{
			name: "iptables-masquerade-bit", since: "1.2", initial: "14", fields: on("iptables.masqueradeBit"),
			usage: "bit of the packet mark that asks for source NAT, 0 to 31; the mode ipvs has the same one",
		},
		{
			name: "iptables-localhost-nodeports", since: "1.26", initial: "true", fields: on("iptables.localhostNodePorts"),
			usage: "serve NodePorts on 127.0.0.1, if it is among the addresses that serve them; false: never",
		},
	}
}

func onlyIPVS() []flagDef {
	return []flagDef{
		{
			name: "ipvs-sync-period", since: "1.8", initial: "30s", fields: on("ipvs.syncPeriod"),
			usage: "time between two full looks at the kernel",
		},
		{
			name: "ipvs-min-sync-period", since: "1.8", initial: "0s", fields: on("ipvs.minSyncPeriod"),
			usage: "least time between two changes of the kernel; 0: at once",
		},
		{
			name: "ipvs-scheduler", since: "1.8", fields: on("ipvs.scheduler"),
			usage: "how to choose an endpoint; empty: rr",
		},
		{
			name: "ipvs-exclude-cidrs", since: "1.11", fields: on("ipvs.excludeCIDRs"),
			usage: "virtual servers in these ranges are left alone; separated by commas",
		},
		{
			name: "ipvs-strict-arp", since: "1.15", initial: "false", fields: on("ipvs.strictARP"),
			usage: "answer ARP only on the interface that has the address",
		},
		{
			name: "ipvs-tcp-timeout", since: "1.18", initial: "0s", fields: on("ipvs.tcpTimeout"),
			usage: "forget idle TCP connections after this; 0: leave as it is",
		},
		{
			name: "ipvs-tcpfin-timeout", since: "1.18", initial: "0s", fields: on("ipvs.tcpFinTimeout"),
			usage: "forget TCP connections after FIN after this; 0: leave as it is",
		},
		{
			name: "ipvs-udp-timeout", since: "1.18", initial: "0s", fields: on("ipvs.udpTimeout"),
			usage: "forget UDP flows after this; 0: leave as it is",
		},
	}
}

func windows() []flagDef {
	return []flagDef{
		{
			name: "windows-service", since: "1.11", initial: "false", fields: on("windowsRunAsService"),
			usage: "run as a service",
		},
		{
			name: "source-vip", since: "1.14", fields: on("winkernel.sourceVip"),
			usage: "source address for NAT",
		},
		{
			name: "network-name", since: "1.14", fields: on("winkernel.networkName"),
			usage: "network to work on",
		},
		{
			name: "enable-dsr", since: "1.14", initial: "false", fields: on("winkernel.enableDSR"),
			usage: "direct server return",
		},
		{
			name: "root-hnsendpoint-name", since: "1.25", initial: "cbr0", fields: on("winkernel.rootHnsEndpointName"),
			usage: "endpoint of the node in an l2bridge network",
		},
		{
			name: "forward-healthcheck-vip", since: "1.25", initial: "false", fields: on("winkernel.forwardHealthCheckVip"),
			usage: "forward health checks of a virtual address",
		},
	}
}

func deprecated() []flagDef {
	return []flagDef{
		{
			name: "healthz-port", since: "1.0", initial: "10256", own: func(o *ownFlags) any { return &o.healthzPort },
			usage: "use --healthz-bind-address; port of the health server if that says none; 0: none",
		},
		{
			name: "metrics-port", since: "1.14", initial: "10249", own: func(o *ownFlags) any { return &o.metricsPort },
			usage: "use --metrics-bind-address; port of the metrics server if that says none; 0: none",
		},
		{
			name: "show-hidden-metrics-for-version", since: "1.18", fields: on("showHiddenMetricsForVersion"),
			usage: "no effect: no metrics are hidden",
		},
	}
}
