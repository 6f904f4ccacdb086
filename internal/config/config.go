// Package config turns kube-proxy's command line and its configuration file
// (KubeProxyConfiguration v1alpha1) into one checked Config.
//
// What counts, in this order: a flag given explicitly, a field of the file, the
// default. An address of a server that is empty or "0", or whose port is 0,
// switches the server off, wherever it is said. All that is wrong is told in
// one error.
package config

import (
	"net/netip"
	"time"
)

// Config is the configuration, complete and checked. It is not changed once
// loaded.
type Config struct {
	Mode      string   // the data plane, one of Options.Modes
	NodeName  string   // trimmed, lower case, never empty
	Manifests []string // files, folders, or "-"; not empty: no API server is used
	Client    Client

	BindAddress netip.Addr     // if specified (not 0.0.0.0 or ::), the node's primary address
	Healthz     netip.AddrPort // not valid: no health server
	Metrics     netip.AddrPort // not valid: no metrics server
	HardFail    bool           // a server that cannot listen ends the process
	Profiling   bool           // pprof on the metrics server

	Detector       Detector
	NodePorts      NodePorts
	Loopback       Loopback // which loopback addresses serve NodePorts
	MasqueradeAll  bool     // source NAT for everything sent to cluster addresses
	MasqueradeMark uint32   // the packet mark, one bit
	ExternalIPs    bool     // false: spec.externalIPs is not served

	SyncPeriod    time.Duration // a change that waits for twice as long makes the proxy unhealthy
	MinSyncPeriod time.Duration // between two writes; 0: write at once
	ResyncPeriod  time.Duration // of the API client's caches; not used, nothing is cached

	OOMScoreAdj int
	Conntrack   Conntrack
	Logging     Logging

	// FeatureGates are the gates that were set, by name.
	FeatureGates map[string]bool

	// What to do instead of running; Version only sets what is reported.
	WriteConfigTo string
	Cleanup       bool
	InitOnly      bool
	Version       Version

	// IgnoreKubeProxy removes kube-proxy's rules although one runs.
	IgnoreKubeProxy bool

	// ReloadJitter bounds the random time that a changed file waits before it takes
	// effect; 0: none.
	ReloadJitter time.Duration

	// effective is the configuration in force, defaults and flags included, as a
	// KubeProxyConfiguration v1alpha1. Loading it gives the same Config, but for
	// what no file can say: Manifests, Client.Master, IgnoreKubeProxy, ReloadJitter,
	// and what to do instead of running.
	effective []byte
}

// PollPeriod is how often to look for what other programs changed, where the
// kernel does not tell: ten times as often as kube-proxy looks, within bounds.
func (c *Config) PollPeriod() time.Duration {
	return min(max(c.SyncPeriod/10, shortestPoll), longestPoll)
}

// Client says how to reach the API server. Without Kubeconfig and Master it is
// the one of the cluster this process runs in.
type Client struct {
	Kubeconfig         string
	Master             string // overrides the server of Kubeconfig
	ContentType        string
	AcceptContentTypes string
	QPS                float32 // negative: no limit
	Burst              int
}

// Detect is a way to tell the pods of this node from other clients.
type Detect string

// The ways, spelled as detectLocalMode does.
const (
	DetectClusterCIDR         Detect = "ClusterCIDR"
	DetectNodeCIDR            Detect = "NodeCIDR"
	DetectBridgeInterface     Detect = "BridgeInterface"
	DetectInterfaceNamePrefix Detect = "InterfaceNamePrefix"
)

// Detector tells pods from other clients. Only what belongs to Mode is set.
type Detector struct {
	Mode         Detect
	ClusterCIDRs []netip.Prefix // any number, of either family; may be empty: nobody is a pod
	Interface    string
	Prefix       string
}

// NodePorts are the addresses that serve NodePorts: the union of what is set.
// At least one is.
type NodePorts struct {
	All       bool // every address of the node
	Primary   bool // the node's primary address of each family
	Localhost bool // 127.0.0.0/8 and ::1
	CIDRs     []netip.Prefix
}

// Loopback says when an address in 127.0.0.0/8 serves NodePorts. ::1 never does.
type Loopback string

// The rules for loopback addresses.
const (
	LoopbackNamed    Loopback = "named"    // when nodePortAddresses means it: localhost, or a part of 127.0.0.0/8
	LoopbackIncluded Loopback = "included" // when it is in any entry, such as all
	LoopbackNever    Loopback = "never"
)

// Conntrack are the kernel's connection tracking settings. Zero leaves a
// setting as it is.
type Conntrack struct {
	MaxPerCore     int // 0: Min is not looked at either
	Min            int
	TCPEstablished time.Duration
	TCPCloseWait   time.Duration
	TCPBeLiberal   bool // false leaves it as it is
	UDP            time.Duration
	UDPStream      time.Duration
}

// Logging says how to log.
type Logging struct {
	Format         string // "text" or "json"
	Verbosity      int
	VModule        []VModule
	FlushFrequency time.Duration
	SplitStream    bool  // of the chosen Format: errors to stderr, the rest to stdout
	InfoBufferSize int64 // of the chosen Format, in bytes
}

// VModule is the verbosity of the source files whose name matches a pattern.
type VModule struct {
	Pattern   string
	Verbosity int
}

// Version is what --version asks for.
type Version struct {
	Print  string // "": nothing, "true": one line, "raw": all that is known
	Report string // not empty: say this version instead of the built-in one
}

// Env are the things Load asks of the world.
type Env struct {
	Hostname func() (string, error)
	ReadFile func(name string) ([]byte, error)
}

// Options say what this build can do.
type Options struct {
	// Modes are the data planes there are, at least one; the first is the default.
	Modes []string

	// Default, if not nil, is asked for one of them when the configuration names
	// none.
	Default func() string
}
