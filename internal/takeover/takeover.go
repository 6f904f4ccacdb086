// Package takeover takes a node over from kube-proxy. It finds what kube-proxy
// of any mode has left in the kernel, notices a kube-proxy that still runs, and
// removes the leftovers once Sluice's own rules are in force and nobody would
// put them back.
package takeover

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Mechanism is a way in which kube-proxy programs the kernel.
type Mechanism string

// The mechanisms. The words are those of the label of the metrics.
const (
	IPTablesLegacy Mechanism = "iptables-legacy"
	IPTablesNFT    Mechanism = "iptables-nft"
	IPVS           Mechanism = "ipvs"
	NFTables       Mechanism = "nftables"
)

// Mechanisms are all of them, sorted.
func Mechanisms() []Mechanism { return []Mechanism{IPTablesLegacy, IPTablesNFT, IPVS, NFTables} }

// Options say where and how to take over.
type Options struct {
	NetNS int // file descriptor of the network namespace to serve; 0: the current one
	Log   *slog.Logger

	// Ours are mechanisms that Sluice itself uses on this node under kube-proxy's
	// names. They are left alone: what kube-proxy has there besides is for the
	// plane to remove.
	Ours []Mechanism

	// Others are the planes that Sluice could have used on this node before. What
	// they left goes as soon as Sluice's own rules are in force, whether or not a
	// kube-proxy runs. Cleanup does not look at them.
	Others []Leftover

	// NodePorts are those of the Services known. IPVS serves them at the node's
	// own addresses, where others may have virtual servers too. Nil: any of
	// 30000-32767 is taken for one. After an error nothing of IPVS is removed
	// before it was asked again.
	NodePorts func(context.Context) ([]uint16, error)

	// Address is where kube-proxy serves its diagnostics; 127.0.0.1:10249 if empty.
	Address string
	// Dial connects to it; nil: as usual. For tests, which serve another namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// IgnoreKubeProxy removes kube-proxy's rules although one runs.
	IgnoreKubeProxy bool
	// Record makes an Event of the Node about a kube-proxy that runs; nil: nothing.
	Record func(note string)
	// RecordLeft makes an Event of the Node about rules that Sluice cannot remove;
	// nil: nothing.
	RecordLeft func(note string)
	// Grace is how long a process that may be a kube-proxy is waited for, if it
	// does nothing that only a kube-proxy does; 2 minutes if zero.
	Grace time.Duration

	// Soon is how long to wait before looking again while there is something to
	// wait for, Rarely while there is not. 3 seconds and a minute if zero.
	Soon, Rarely time.Duration
}

// Leftover is what another plane of Sluice may have left.
type Leftover struct {
	Mode   string                                  // the plane's
	Remove func(context.Context) ([]string, error) // says in a few words each what was there
}

// ServerHeader is what Sluice says of itself in the Server header of every
// answer at kube-proxy's addresses: there it looks like kube-proxy otherwise.
const ServerHeader = "sluice"
