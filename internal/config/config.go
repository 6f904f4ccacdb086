// Package config turns kube-proxy's command line and its configuration file
// (KubeProxyConfiguration v1alpha1) into one checked Config.
//
// A flag given explicitly wins over a field of the file, and that over the default.
// An address of a server that is empty or "0", or whose port is 0, switches the
// server off in flags and in files. One error lists everything that is wrong.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Config is the configuration, complete and checked. It is not changed once loaded.
type Config struct {
	Mode      string   // the data plane, one of Options.Modes
	NodeName  string   // trimmed, lower case, never empty
	Manifests []string // files, folders, or "-"; not empty: no API server is used
	Client    Client

	BindAddress netip.Addr     // if specified (not 0.0.0.0 or ::), the node's primary address
	Healthz     netip.AddrPort // not valid: no health server
	Metrics     netip.AddrPort // not valid: no metrics server
	Drain       netip.AddrPort // where pods of this node wait for the end of their connections; not valid: nowhere
	HardFail    bool           // a server that cannot listen ends the process
	Profiling   bool           // pprof on the metrics server

	Detector       route.DetectorOptions
	NodePorts      route.NodePortOptions
	MasqueradeAll  bool   // source NAT for everything sent to cluster addresses
	MasqueradeMark uint32 // the packet mark, one bit
	ExternalIPs    bool   // false: spec.externalIPs is not served

	// ExternalIPRanges and LoadBalancerIPRanges have the addresses of this sort that Services may have; empty: all.
	ExternalIPRanges, LoadBalancerIPRanges []netip.Prefix

	SyncPeriod    time.Duration // a change that waits for twice as long makes the proxy unhealthy
	MinSyncPeriod time.Duration // between two writes; 0: write at once

	Scheduler string // of Services that name none, one of route.Schedulers except in mode ipvs; empty: that of the mode

	IPVS        IPVS      // of the mode ipvs
	Userspace   Userspace // of the mode userspace
	HNS         HNS       // of the mode kernelspace
	EBPF        EBPF      // of the mode ebpf
	OOMScoreAdj int
	Conntrack   Conntrack
	Logging     Logging

	// FeatureGates are the gates that were set, by name.
	FeatureGates map[string]bool

	// Tasks in place of running; Version may also only set the reported version.
	WriteConfigTo string
	Cleanup       bool
	InitOnly      bool
	Version       Version

	WindowsService bool // run as a service of Windows; no effect elsewhere

	// IgnoreKubeProxy removes kube-proxy's rules although one runs.
	IgnoreKubeProxy bool

	// ReloadJitter bounds the random time that a changed file waits before it takes effect; 0: none.
	ReloadJitter time.Duration

	// Ejection is that of Services without the annotation.
	Ejection cluster.Ejection

	// DirectTunnel is the UDP port of the tunnel to nodes that are not at layer 2; 0: there is none.
	DirectTunnel uint16

	// Direct means that Services are served directly that have no annotation.
	Direct bool

	// effective is the configuration in force, defaults and flags included, as a KubeProxyConfiguration v1alpha1. Loading
	// it gives the same Config, except the fields that only flags set: Manifests, Client.Master, Drain, IgnoreKubeProxy,
	// ReloadJitter, Ejection, DirectTunnel, Direct, and the tasks in place of running.
	effective []byte
}

// PollPeriod returns the time between two polls for changes by other programs, where
// the kernel sends no notifications: a tenth of kube-proxy's period, within bounds.
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

// Conntrack are the kernel's connection tracking settings. Zero does not change a setting.
type Conntrack struct {
	MaxPerCore     int // 0: Min is ignored as well
	Min            int
	TCPEstablished time.Duration
	TCPCloseWait   time.Duration
	TCPBeLiberal   bool // false does not change it
	UDP            time.Duration
	UDPStream      time.Duration
}

// IPVS are settings of the mode ipvs. Zero does not change a timeout of the kernel.
type IPVS struct {
	ExcludeCIDRs []netip.Prefix // virtual servers at these addresses are left alone
	StrictARP    bool           // addresses of Services are not announced by ARP
	TCPTimeout   time.Duration
	TCPFinWait   time.Duration
	UDPTimeout   time.Duration
}

// Userspace are settings of the mode userspace. They are zero in other modes.
type Userspace struct {
	Bind                     Bind
	FirstPort, LastPort      uint16 // of listening sockets, both ends included
	UDPTimeout, DrainTimeout time.Duration
}

// HNS are settings of the mode kernelspace. Other modes use Network to remove the leftovers of this mode.
type HNS struct {
	Network            string     // the name of the HNS network; empty: not set
	SourceVIP          netip.Addr // the source of connections with source NAT; not valid: not set
	DSR                bool       // replies of clusterIPs go to the client directly
	RootEndpoint       string     // the name of the endpoint of this node
	ForwardHealthCheck bool       // health checks at addresses of load balancers go to RootEndpoint
}

// Bind says how clients reach the listening sockets of the mode userspace.
type Bind string

// The ways.
const (
	BindRules    Bind = "rules"    // clients connect to the addresses of Services, which needs privileges
	BindLoopback Bind = "loopback" // clients on this host connect to loopback addresses
)

// Unprivileged reports whether the proxy changes nothing on this host, and needs no privilege.
func (c *Config) Unprivileged() bool { return c.Userspace.Bind == BindLoopback }

// Logging says how to log.
type Logging struct {
	File           string // "": standard error
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

// Version is the value of --version.
type Version struct {
	Print  string // "": nothing, "true": one line, "raw": all that is known
	Report string // not empty: say this version instead of the built-in one
}

// Env gives Load access to files and to the host.
type Env struct {
	Hostname func() (string, error)
	ReadFile func(name string) ([]byte, error)
	Getenv   func(name string) string // nil: no variable is set
}

// Options describe this build.
type Options struct {
	// Modes are the data planes of this build, at least one; the first is the default.
	Modes []string

	// Default, if not nil, chooses one of them when the configuration names none.
	Default func() string

	// Binds are the ways in which the mode userspace works in this build; the first is the default. Empty: all.
	Binds []Bind
}

// Effective returns the configuration in force, defaults and flags included, as
// a KubeProxyConfiguration v1alpha1 in JSON.
func (c *Config) Effective() []byte {
	text, _ := yaml.YAMLToJSON(c.effective) // Load wrote it
	return text
}

// Write writes the configuration in force to WriteConfigTo. It replaces a file as a whole, so that no reader sees half
// of one, and writes to a device, pipe or link directly.
func (c *Config) Write() error {
	info, err := os.Lstat(c.WriteConfigTo)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular():
		err = replace(c.WriteConfigTo, c.effective)
	case err == nil:
		err = os.WriteFile(c.WriteConfigTo, c.effective, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func replace(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".sluice-config-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Differences lists the fields in which two configurations differ, defaults and flags included: "conntrack.min: 5 ->
// 6". It cuts off long values. Values that only flags set are the same in all configurations of one process.
func Differences(old, new *Config) []string {
	from, to := old.leaves(), new.leaves()
	all := maps.Clone(from)
	maps.Copy(all, to)
	var list []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if from[path] != to[path] {
			list = append(list, fmt.Sprintf("%s: %s -> %s", path, display(from[path]), display(to[path])))
		}
	}
	return list
}

// leaves returns the JSON of each field that is not a struct, by its path.
func (c *Config) leaves() map[string]string {
	leaves := map[string]string{}
	addLeaves(leaves, "", c.Effective())
	leaves["hostnameOverride"] = strconv.Quote(c.NodeName) // as it may come from the host
	return leaves
}

func addLeaves(to map[string]string, path string, value json.RawMessage) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil || fields == nil {
		to[path] = string(value)
		return
	}
	for name, v := range fields {
		at := name
		if path != "" {
			at = path + "." + name
		}
		addLeaves(to, at, v)
	}
}

// display returns a value without quotes.
func display(value string) string {
	if value == "" {
		value = "null"
	}
	if plain, err := strconv.Unquote(value); err == nil && plain != "" {
		value = plain
	}
	return text.Short(value)
}
