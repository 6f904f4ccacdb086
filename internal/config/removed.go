package config

import (
	"fmt"
	"slices"
)

// removedFlags are the flags that older versions of kube-proxy had. Unit files
// and manifests still carry them, so each is accepted: with its effect if there
// is one, else with a warning. The help text does not show them.
func removedFlags() []flagGroup {
	return []flagGroup{
		{"Replaced", replaced()},
		{"Log files and headers", klog()},
		{"Registry credentials", credentials()},
		{"Libraries", libraries()},
	}
}

func anyText(*ownFlags) any { return new(string) }

func anyBool(*ownFlags) any { return new(bool) }

func replaced() []flagDef {
	return []flagDef{
		{
			name: "cleanup-iptables", since: "1.1", removed: "1.15", quiet: []string{"false"},
			own:   func(o *ownFlags) any { return &o.cleanup },
			usage: "does what --cleanup does; use --cleanup",
		},
		{
			name: "cleanup-ipvs", since: "1.9", removed: "1.21", quiet: []string{"true"}, own: anyBool,
			usage: "no effect: --cleanup removes the IPVS servers of kube-proxy too, and leaves those of other programs alone",
		},
		{
			name: "conntrack-max", since: "1.2", removed: "1.15", quiet: []string{"0"},
			own:   func(o *ownFlags) any { return &o.conntrackMax },
			usage: "sets conntrack.min to this and conntrack.maxPerCore to 1; use --conntrack-min and --conntrack-max-per-core",
		},
		{
			name: "proxy-port-range", since: "1.0", removed: "1.31", quiet: []string{"", "0", "0-0"}, fields: on("portRange"),
			usage: "no effect: only the mode userspace opened ports for Services; remove the flag",
		},
		{
			name: "udp-timeout", since: "1.2", removed: "1.26", quiet: []string{"250ms"}, own: anyText,
			usage: "no effect: only the mode userspace had UDP sessions; use --conntrack-udp-timeout for those of the kernel",
		},
		{
			name: "resource-container", since: "1.0", removed: "1.16", quiet: []string{""}, own: anyText,
			usage: "no effect: use Slice= in the systemd unit, or the resources of the pod",
		},
		{
			name: "legacy-userspace-proxy", since: "1.1", removed: "1.1", own: anyBool,
			usage: "no effect: use --proxy-mode; only alpha versions of kube-proxy 1.1 had the flag",
		},
	}
}

// klog are the flags of the log library before Kubernetes 1.26.
func klog() []flagDef {
	const file = "no effect: logs go to standard error; use StandardError=append:FILE in the systemd unit, or the container runtime's log"
	return []flagDef{
		{name: "logtostderr", since: "1.0", removed: "1.26", quiet: []string{"true"}, own: anyBool, usage: file},
		{
			name: "alsologtostderr", since: "1.0", removed: "1.26", quiet: []string{"true", "false"}, own: anyBool,
			usage: "no effect: logs always go to standard error",
		},
		{name: "log-dir", since: "1.0", removed: "1.26", quiet: []string{""}, own: anyText, usage: file},
		{name: "log-file", since: "1.13", removed: "1.26", quiet: []string{""}, own: anyText, usage: file},
		{
			name: "log-file-max-size", since: "1.15", removed: "1.26", quiet: []string{"1800"}, own: anyText,
			usage: "no effect: Sluice writes no log files; use logrotate, or the limits of journald or the container runtime",
		},
		{
			name: "stderrthreshold", since: "1.0", removed: "1.26", quiet: []string{"2"}, own: anyText,
			usage: "no effect: everything goes to standard error; use --log-text-split-stream to have errors alone there",
		},
		{
			name: "log-backtrace-at", since: "1.0", removed: "1.26", quiet: []string{"", ":0"}, own: anyText,
			usage: "no effect: use --vmodule to log more of one source file",
		},
		{
			name: "skip-headers", since: "1.13", removed: "1.26", quiet: []string{"false"}, own: anyBool,
			usage: "no effect: log lines always have a time and a level; cut them off where logs are collected",
		},
		{
			name: "skip-log-headers", since: "1.15", removed: "1.26", quiet: []string{"true", "false"}, own: anyBool,
			usage: "no effect: log files have no headers, because Sluice writes no log files",
		},
		{
			name: "add-dir-header", since: "1.17", removed: "1.26", quiet: []string{"false"}, own: anyBool,
			usage: "no effect: log lines do not name the source file; remove the flag",
		},
		{
			name: "one-output", since: "1.20", removed: "1.26", quiet: []string{"true", "false"}, own: anyBool,
			usage: "no effect: each log line is written once",
		},
	}
}

// credentials are flags of the library that fetched container images. kube-proxy
// fetches none.
func credentials() []flagDef {
	const usage = "no effect, as in kube-proxy: it pulls no images; use the kubelet's --image-credential-provider-config"
	return []flagDef{
		{name: "google-json-key", since: "1.1", removed: "1.13", quiet: []string{""}, own: anyText, usage: usage},
		{name: "azure-container-registry-config", since: "1.6", removed: "1.30", quiet: []string{""}, own: anyText, usage: usage},
	}
}

// libraries are flags of cAdvisor and others that hyperkube proxy, the
// documentation of kube-proxy, or kube-proxy itself listed because the program
// contained the library.
func libraries() []flagDef {
	return slices.Concat(
		library(anyText, "1.1", "1.37", "boot-id-file", "machine-id-file"),
		library(anyText, "1.1", "1.10", "docker-run"),
		library(anyText, "1.1", "1.35",
			"application-metrics-count-limit", "container-hints", "docker", "docker-root",
			"event-storage-age-limit", "event-storage-event-limit", "global-housekeeping-interval", "housekeeping-interval",
			"storage-driver-buffer-duration", "storage-driver-db", "storage-driver-host", "storage-driver-password",
			"storage-driver-table", "storage-driver-user"),
		library(anyBool, "1.1", "1.35", "docker-only", "enable-load-reader", "log-cadvisor-usage", "storage-driver-secure"),
		library(anyText, "1.7", "1.19", "ir-data-source", "ir-dbname", "ir-hawkular", "ir-influxdb-host", "ir-password", "ir-percentile", "ir-user"),
		library(anyBool, "1.7", "1.19", "allow-verification-with-non-compliant-keys", "ir-namespace-only"),
		library(anyText, "1.10", "1.19", "loglevel"),
		library(anyText, "1.10", "1.35",
			"cloud-provider-gce-lb-src-cidrs", "containerd", "default-not-ready-toleration-seconds",
			"default-unreachable-toleration-seconds", "docker-env-metadata-whitelist", "docker-tls-ca", "docker-tls-cert", "docker-tls-key"),
		library(anyBool, "1.10", "1.35", "docker-tls"),
		library(anyText, "1.23", "1.35",
			"cloud-provider-gce-l7lb-src-cidrs", "containerd-env-metadata-whitelist", "containerd-namespace",
			"max-housekeeping-interval", "referenced-reset-interval", "update-machine-info-interval"),
		library(anyBool, "1.23", "1.35", "allow-dynamic-housekeeping", "disable-root-cgroup-stats"),
		library(anyText, "1.30", "1.35", "crio-client-timeout"),
	)
}

func library(own func(*ownFlags) any, since, removed string, names ...string) []flagDef {
	var defs []flagDef
	for _, name := range names {
		defs = append(defs, flagDef{
			name: name, since: since, removed: removed, own: own,
			usage: "no effect, as in kube-proxy: a library had the flag; remove it",
		})
	}
	return defs
}

// warnOfRemoved warns of each given flag that kube-proxy 1.37 does not have,
// unless its value is one of those that need no warning.
func (c *check) warnOfRemoved() {
	for _, group := range removedFlags() {
		for _, def := range group.flags {
			if text, ok := c.given[def.name]; ok && !def.quietFor(text) {
				c.warn("--%s: %s (not in kube-proxy since %s)", def.name, def.usage, def.removed)
			}
		}
	}
}

func (d flagDef) quietFor(text string) bool {
	if b, err := parseBool(text); err == nil {
		if slices.Contains(d.quiet, fmt.Sprint(b)) {
			return true
		}
	}
	return slices.Contains(d.quiet, text)
}

// conntrackMax applies --conntrack-max or the field conntrack.max, which gave the
// size of the table whatever the number of CPUs.
func (c *check) conntrackMax(n *int32) {
	if n == nil || *n == 0 {
		return
	}
	one := int32(1)
	c.config.Conntrack.Min, c.config.Conntrack.MaxPerCore = n, &one
	if n == c.own.conntrackMax {
		c.byFlag["conntrack.min"], c.byFlag["conntrack.maxPerCore"] = "conntrack-max", "conntrack-max"
	}
}
