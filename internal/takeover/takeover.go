// Package takeover takes a node over from kube-proxy. It finds the rules that kube-proxy of any mode left in the
// kernel, detects a kube-proxy that still runs, and removes the rules once Sluice's own are in force and no kube-proxy
// would write them again. On systems other than Linux kube-proxy leaves no rules: only other modes of Sluice may.
package takeover

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"
)

// Mechanism is a way in which kube-proxy programs the kernel.
type Mechanism string

// The mechanisms, as the label of the metrics names them.
const (
	IPTablesLegacy Mechanism = "iptables-legacy"
	IPTablesNFT    Mechanism = "iptables-nft"
	IPVS           Mechanism = "ipvs"
	NFTables       Mechanism = "nftables"
)

// Mechanisms returns all mechanisms, sorted.
func Mechanisms() []Mechanism { return []Mechanism{IPTablesLegacy, IPTablesNFT, IPVS, NFTables} }

// Options for New and Cleanup.
type Options struct {
	NetNS int // file descriptor of the network namespace to serve; 0: the current one
	Log   *slog.Logger

	// Ours are the mechanisms in which Sluice's rules have kube-proxy's names: the plane itself removes other rules there.
	Ours []Mechanism

	// Others are the planes that Sluice may have used on this node before. Their rules are removed once Sluice's own are
	// in force, even if a kube-proxy runs. Cleanup ignores them.
	Others []Leftover

	// Address is where kube-proxy serves its diagnostics; empty: 127.0.0.1:10249.
	Address string
	// Dial connects to it. If nil, the connection is in the current network namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// IgnoreKubeProxy removes kube-proxy's rules without looking for one that runs.
	IgnoreKubeProxy bool
	// Record makes an Event of the Node about a kube-proxy that runs; nil: none.
	Record func(note string)
	// RecordLeft makes an Event of the Node about rules that Sluice cannot remove; nil: none.
	RecordLeft func(note string)

	// Soon is the time between searches while there is a kube-proxy or its rules (3 seconds), Rarely else (a minute).
	Soon, Rarely time.Duration
}

func (o Options) withDefaults() Options {
	o.Soon, o.Rarely = cmp.Or(o.Soon, 3*time.Second), cmp.Or(o.Rarely, time.Minute)
	if o.Record == nil {
		o.Record = func(string) {}
	}
	if o.RecordLeft == nil {
		o.RecordLeft = func(string) {}
	}
	return o
}

// Leftover removes the rules that another plane of Sluice may have left.
type Leftover struct {
	Mode   string                                  // of the plane
	Remove func(context.Context) ([]string, error) // returns a few words for each thing that it removed
}

// ServerHeader is the Server header of Sluice's answers at kube-proxy's addresses, which else look like kube-proxy's.
const ServerHeader = "sluice"

// ServiceDevice is the interface with kube-proxy's addresses of Services, which are not addresses of the node.
const ServiceDevice = "kube-ipvs0"
