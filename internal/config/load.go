package config

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/strict"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// Load reads the file if a flag names one, applies the flags and the defaults, and checks the result. It returns the
// configuration and warnings. An *InvalidError lists everything that is wrong.
func (f *Flags) Load(env Env, opt Options) (*Config, []string, error) {
	c := &check{
		config:   &v1alpha1.KubeProxyConfiguration{},
		byFlag:   map[string]string{},
		own:      f.own,
		binds:    opt.Binds,
		flags:    f.values,
		problems: slices.Clone(f.problems),
	}
	if err := c.read(env); err != nil {
		return nil, nil, err
	}
	f.apply(c.config)
	c.recordOrigins(f)
	c.warnOfRemoved()
	c.conntrackMax(f.own.ConntrackMax)
	if c.config.Mode == "" {
		c.config.Mode = v1alpha1.ProxyMode(opt.Modes[0])
		if opt.Default != nil {
			c.config.Mode = v1alpha1.ProxyMode(opt.Default())
		}
	}
	c.setDefaults()
	c.winkernelDefaults(env)
	cfg := c.convert(opt)
	cfg.NodeName = c.nodeName(env)
	if len(c.problems) > 0 {
		byLine := func(a, b Problem) int { return a.Line - b.Line } // flags first, then in the order of the file
		slices.SortStableFunc(c.problems, byLine)
		return nil, c.warnings, &InvalidError{Problems: c.problems}
	}
	cfg.effective, _ = yaml.Marshal(c.config) // it was decoded
	return cfg, c.warnings, nil
}

// maxBytes is the size of the largest configuration file that is read.
const maxBytes = 1 << 20

// ReadFile reads a configuration file for Env. It returns an error for a file that is not regular or larger than 1 MiB.
func ReadFile(name string) ([]byte, error) { return textfile.Read(name, maxBytes) }

// recordOrigins records which flags set which fields. Items of a list or map that come
// from the file keep the file as their origin.
func (c *check) recordOrigins(f *Flags) {
	for flag := range f.values {
		for _, path := range f.defs[flag].fields() {
			if path != "logging.vmodule" || !c.isSet(path) {
				c.byFlag[path] = flag
			}
		}
	}
	for gate := range f.mirrored.FeatureGates {
		c.byFlag["featureGates."+gate] = "feature-gates"
	}
}

func (c *check) read(env Env) error {
	if c.own.Config == "" {
		return nil
	}
	data, err := env.ReadFile(c.own.Config)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	c.file, err = decode(c.own.Config, data)
	if err != nil {
		return err
	}
	c.config = c.file.config.DeepCopy()
	c.conntrackMax(c.file.conntrackMax)
	c.problems = append(c.problems, c.file.problems...)
	c.warnings = append(c.warnings, c.file.warnings...)
	return nil
}

// convert checks every setting that has an effect in the chosen mode.
func (c *check) convert(opt Options) *Config {
	in := c.config
	c.positive("configSyncPeriod", in.ConfigSyncPeriod.Duration) // which has no effect: nothing is cached
	cfg := &Config{
		Mode:          string(in.Mode),
		Manifests:     c.own.Manifests,
		HardFail:      in.BindAddressHardFail,
		Profiling:     in.EnableProfiling,
		OOMScoreAdj:   c.between("oomScoreAdj", in.OOMScoreAdj, -1000, 1000),
		FeatureGates:  c.gates(in.FeatureGates),
		WriteConfigTo: c.own.WriteTo,
		Cleanup:       c.own.Cleanup,
		InitOnly:      c.own.InitOnly,
		Version:       c.own.Version,

		IgnoreKubeProxy: c.own.IgnoreKubeProxy,
		WindowsService:  in.WindowsRunAsService,
		ReloadJitter:    c.reloadJitter(),
		Ejection:        parsed(c, "--ejection", c.own.Ejection, route.ParseEjection),
		DirectTunnel:    uint16(c.between("--direct-tunnel-port", &c.own.DirectTunnel, 0, math.MaxUint16)),
		Direct:          parsed(c, "--external", c.own.External, route.ParseExternal),
	}
	cfg.ExternalIPs = enabled(in.FeatureGates, gateExternalIPs)
	cfg.ExternalIPRanges = c.prefixes("--external-ip-ranges", c.own.ExternalIPRanges)
	cfg.LoadBalancerIPRanges = c.prefixes("--load-balancer-ip-ranges", c.own.LoadBalancerIPRanges)
	if cfg.Mode == "ipvs" && !enabled(in.FeatureGates, gateIPVS) {
		c.problem("mode", invalid(cfg.Mode, "the feature gate "+gateIPVS+" is off"))
	}
	c.oneOf("mode", cfg.Mode, opt.Modes)
	c.section(cfg)
	cfg.HNS = c.hns()
	cfg.Client = c.client()
	c.addresses(cfg)
	cfg.Detector = c.detector()
	cfg.NodePorts = c.nodePorts()
	cfg.Conntrack = c.conntrack()
	cfg.Logging = c.logging()
	c.combinations()
	c.unused()
	c.contradictions(cfg)
	return cfg
}

// parsed returns the value of a flag, and reports a problem if the text is not valid.
func parsed[T any](c *check, flag, text string, parse func(string) (T, error)) T {
	v, err := parse(text)
	if err != nil {
		c.problem(flag, invalid(text, err.Error()))
	}
	return v
}

// maxReloadJitter bounds the wait before a changed file takes effect: people expect their changes to take effect soon.
const maxReloadJitter = time.Hour

// reloadJitter returns the longest random wait before a changed file takes effect,
// which spreads the requests of many nodes to the API server.
func (c *check) reloadJitter() time.Duration {
	d := atLeast0(c, "--reload-jitter", c.own.Jitter.Duration)
	if d > maxReloadJitter {
		c.problem("--reload-jitter", invalid(d, "must be 1h or less"))
	}
	return d
}

// addresses sets the addresses of the node and of the servers.
func (c *check) addresses(cfg *Config) {
	in := c.config
	var ok bool
	if cfg.BindAddress, ok = strict.Addr(in.BindAddress); !ok {
		c.problem("bindAddress", invalid(in.BindAddress, "must be an IP address"))
	}
	every, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if cfg.BindAddress.Is6() {
		every, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	health := every
	if cfg.Unprivileged() { // nothing that other hosts reach, unless it is asked for
		health = loopback
	}
	cfg.Healthz = c.server(server{"healthz", &in.HealthzBindAddress, netip.AddrPortFrom(health, 10256)})
	cfg.Metrics = c.server(server{"metrics", &in.MetricsBindAddress, netip.AddrPortFrom(loopback, 10249)})
	if s := c.own.Drain; s != "" {
		at, err := netip.ParseAddrPort(s)
		if err != nil || at.Port() == 0 {
			c.problem("--drain-bind-address", invalid(s, "must be IP:port, such as 0.0.0.0:10261"))
		}
		cfg.Drain = at
	}
}

// nodeName returns the override or the hostname, in lower case as in Kubernetes.
func (c *check) nodeName(env Env) string {
	override := c.config.HostnameOverride
	if override != "" {
		name := strings.ToLower(strings.TrimSpace(override))
		if name == "" {
			c.problem("hostnameOverride", invalid(override, "must not be only spaces"))
		}
		return name
	}
	host, err := env.Hostname()
	name := strings.ToLower(strings.TrimSpace(host))
	switch {
	case err != nil:
		c.problem("hostnameOverride", fmt.Sprintf("Required value: cannot read the hostname: %v", err))
	case name == "":
		c.problem("hostnameOverride", "Required value: this host has no name")
	}
	return name
}

// combinations reports settings that exclude each other. A kubeconfig in the file excludes no flag: the flag wins.
func (c *check) combinations() {
	if len(c.own.Manifests) > 0 {
		for _, flag := range []string{"kubeconfig", "master"} {
			if c.flags[flag] != "" {
				c.problem("--manifests", "Forbidden: cannot be used together with --"+flag+
					": Services come from manifests or from an API server")
			}
		}
		if c.config.ClientConnection.Kubeconfig != "" && c.flags["kubeconfig"] == "" {
			c.warn("clientConnection.kubeconfig is not used: --manifests is set")
		}
	}
	if c.own.Cleanup && c.own.InitOnly {
		c.problem("--cleanup", "Forbidden: cannot be used together with --init-only")
	}
	seen := map[string]bool{}
	for _, path := range c.own.Manifests {
		if path == "" {
			c.problem("--manifests", "Required value: must be a file, a folder, or -")
		} else if seen[path] {
			c.problem("--manifests", fmt.Sprintf("Duplicate value: %q", path))
		}
		seen[path] = true
	}
}

// contradictions warns of a setting that another one cancels.
func (c *check) contradictions(cfg *Config) {
	if cfg.NodePorts.Localhost && cfg.NodePorts.Loopback == route.LoopbackNever {
		why := c.name("iptables.localhostNodePorts") + " is false"
		if cfg.Mode == "ipvs" || cfg.Mode == kernelspaceMode {
			why = "mode " + cfg.Mode + " serves no NodePorts on loopback addresses"
		}
		c.warn("localhost in %s has no effect: %s", c.name("nodePortAddresses"), why)
	}
	if Collide(cfg.Healthz, cfg.Metrics) {
		c.warn("%s %v and %s %v: only one of two servers can listen; change one of the ports",
			c.name("healthzBindAddress"), cfg.Healthz, c.name("metricsBindAddress"), cfg.Metrics)
	}
}

// Collide reports whether two servers cannot listen at the same time.
func Collide(a, b netip.AddrPort) bool {
	if !a.IsValid() || !b.IsValid() || a.Port() != b.Port() {
		return false
	}
	return a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified()
}

// unused warns of settings without effect.
func (c *check) unused() {
	c.unusedInMode()
	version := c.config.ShowHiddenMetricsForVersion
	switch {
	case version == "":
	case !regexp.MustCompile(`^\d+\.\d+$`).MatchString(version):
		c.problem("showHiddenMetricsForVersion", invalid(version, "must be a version such as 1.36"))
	default:
		c.warn("%s has no effect: no metrics are hidden", c.name("showHiddenMetricsForVersion"))
	}
}

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
