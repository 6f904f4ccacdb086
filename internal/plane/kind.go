package plane

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kind is everything that the rest of the program knows about one data plane. Each plane returns its own from a
// function Kind in its folder. Mode, Probe, Open, Preview and Facts are needed; a field that is nil, false or empty
// otherwise means that the plane does not need it.
//
// A plane may use another one, for example for the traffic that it cannot handle itself. Its function Kind then takes
// the Kind of the other as a parameter, calls its functions, and sets On.
type Kind struct {
	Mode  string      // its name in the configuration
	Bind  config.Bind // of several kinds with the same mode, the one for which this is configured
	On    string      // the mode of the plane that it uses, whose rules must not be removed
	Facts Facts       // for explanations

	// Owned names the objects of the plane in the kernel, which other programs must not change: "the tables \"sluice\"".
	Owned string

	ListLocal bool // the plane needs the addresses of this host in route.Host

	// KubeProxyRules are the mechanisms in which rules of the plane may have kube-proxy's names, as package takeover
	// spells them.
	KubeProxyRules []string

	Persistent   bool // Services are served while the process is down
	PartialSyncs bool // kube-proxy has metrics of full and partial syncs in this mode

	// Probe tries whether this kernel and this process can do what the plane needs, and removes everything that it
	// creates. The error has a sentence with the remedy for each problem and wraps probe.ErrPrivilege or probe.ErrFeature.
	Probe func(ctx context.Context, netns int) (Support, error)

	// Beyond tests optional features: without them Open succeeds, and the plane does less. The error is like that of
	// Probe. Nil: there are none.
	Beyond func(Setup) error

	// Open opens the plane for the life of the process. It writes no rules.
	Open func(context.Context, Setup) (*Opened, error)

	// Preview returns a plane whose mechanism is an empty one in memory. It needs no privilege.
	Preview func(Setup) Plane

	// Excess returns the size of a Service that the plane does not program, and the
	// limit with its reason. Empty: the Service is small enough.
	Excess func(*route.Service) (size, limit string)

	// Remove removes all rules of the plane, including those of earlier runs, and returns a few words for each object
	// that it removed. Nil: the rules have kube-proxy's names, and the take-over removes them.
	Remove func(context.Context, Setup) (removed []string, err error)

	// Prepare makes the changes of the host that need more privilege than the proxy has
	// later (--init-only). Cleanup undoes them and those that the parts of the plane made.
	// Several kinds may share a Cleanup: it succeeds if there is nothing to undo.
	Prepare func(context.Context, Setup) error
	Cleanup func(context.Context, Setup) (lines []string, err error)
}

// Support is what a host supports.
type Support struct {
	IPv4, IPv6 bool
	Notes      []string // what is not served and why, one sentence each
}

// Families returns the families that are supported.
func (s Support) Families() []route.Family {
	var all []route.Family
	if s.IPv4 {
		all = append(all, route.IPv4)
	}
	if s.IPv6 {
		all = append(all, route.IPv6)
	}
	return all
}

// IPv6Notes returns the Notes of a Support without IPv6; none if the reason is empty.
func IPv6Notes(reason string) []string {
	if reason == "" {
		return nil
	}
	return []string{"IPv6 is not served: " + reason}
}

// Setup is what a plane is opened with.
type Setup struct {
	Config   *config.Config
	NetNS    int // file descriptor of the network namespace to serve; 0: the current one
	Families []route.Family
	Log      *slog.Logger

	// Listeners are addresses of this host, one for each family, at which only sockets of this program listen. Routes
	// lead there instead of to backends. It is empty except for planes that forward in the process.
	Listeners []netip.Addr

	// Local lists the addresses of this host.
	Local func(context.Context) ([]netip.Addr, error)

	// Inherited is what the same plane of the previous run of the program has handed over.
	Inherited Inherited

	// Peers has the Nodes of the cluster. Nil: the plane passes nothing on to other nodes.
	Peers *cluster.Peers

	// Report is called with problems of objects that a part of the plane finds. It may be nil.
	Report func([]route.Problem)
}

// Inherited is what a plane hands over to the next run of the program in the same process. The zero value is nothing.
type Inherited struct {
	// Sockets listen. The plane chooses their names, and closes the sockets that it does not use.
	Sockets map[string]*os.File
	State   json.RawMessage
}

// Opened is an open plane with its parts.
type Opened struct {
	Plane Plane
	Load  Load // what one write contains
	Parts []Part

	// Reader returns another plane for the same mechanism, which another goroutine uses to
	// compare the kernel with the table. The caller calls done at the end.
	Reader func(context.Context) (reader Plane, done func(), err error)

	// Balance returns what the kernel knows about the backends of a port of a Service, by its index. It is safe for
	// concurrent use. Nil: it counts no connections, and the weights are those of the route.
	Balance func(ctx context.Context, svc *route.Service, port int, host *route.Host) (Balance, error)

	// Traffic returns what the plane counts of the ports of Services. It is safe for concurrent use. Nil: the plane does
	// not count.
	Traffic func(context.Context, *route.Snapshot) (Counted, error)

	// Tracking says what conntrack has of connections to Services.
	Tracking Tracking

	// Shares returns how probable it is at this moment that each backend gets the next connection of a
	// client. It is safe for concurrent use. Nil: that of Facts is all that is known.
	Shares func(Connection) Shares

	// Sockets lists the listening sockets, sorted. It is safe for concurrent use. Nil: the plane opens none.
	Sockets func() []Socket

	// Due returns when the plane has something to write although nothing changed, such as the end of a drain; zero: never.
	// The loop calls it after each write, and at that time passes Plan a change that touches no Service. After that write
	// Due returns a later time, or zero.
	Due func() time.Time

	// Ready has an item when Due may return an earlier time although nothing was written. Nil: it never does.
	Ready <-chan struct{}

	WriteFailed func() // called after each attempt to write that failed

	// Waiting returns what the plane waits for before it can serve; empty: nothing. It is safe for concurrent use.
	Waiting func() string

	// PreserveDestination means that the plane can leave the destination of connections as it is,
	// for Services that ask for it (route.Options).
	PreserveDestination bool

	// Direct returns to which nodes this one passes connections on; nil if no Service requests that. It is safe for
	// concurrent use. A nil Direct: the plane cannot do it.
	Direct func() *Direct

	// Facts are those of the Kind, made more exact by what Open has found out. Nil: those of the Kind.
	// Their functions are safe for concurrent use.
	Facts *Facts

	// WatchTrouble returns why edits by other programs are detected only by periodic
	// comparisons; empty: they are detected at once.
	WatchTrouble func() string

	KubeProxyRules []string // those of the Kind that the plane uses on this host

	// Fallback is set if this host does not support the mode, and the plane is the one of another mode.
	Fallback Fallback

	// HandOver is called before the context of the parts ends, if another run of the program follows in this process. It
	// returns a function that is called after that, and returns what the next run inherits. Nil: nothing.
	HandOver func() (finish func(context.Context) (Inherited, error))

	How string // completes "rules are written" in messages; may be empty

	// Assigned returns the addresses of Services that the plane has given this host. It is safe for
	// concurrent use. Nil: it gives none.
	Assigned func() []netip.Addr

	Close func() error // called last; nil: nothing is open
}

// Socket is a listening socket for a port of a Service.
type Socket struct {
	Service  cluster.Name
	Port     string // its name, or a number if several ports have the same
	Protocol cluster.Protocol
	Pool     route.Pool // where its connections go
	At       netip.AddrPort
	Open     int64 // connections of the port at this moment, those through other sockets included
}

// Balance is what the kernel knows about the backends of a port.
type Balance map[netip.AddrPort]Balanced

// Balanced is what the kernel knows about a backend.
type Balanced struct {
	Weight           uint32 // 0: it gets no new connections
	Active, Inactive int    // connections: open ones, and others that the kernel remembers
}

// Part is code that runs beside the rules of a plane: it ends stale connections, or
// forwards traffic itself. Each field may be nil.
type Part struct {
	Run      func(context.Context) error // beside the loop, until the context ends; called once
	Follower Follower                    // is notified of each change that was written
	SetLocal func([]netip.Addr)          // called with all addresses of this host, whenever they change
	Metrics  []prometheus.Collector      // that no other plane has, one family each
	Close    func() error                // called after Run has returned, or in its place
}

// Fallback is the mode that serves in place of the configured one, and the reason. The zero value: there is none.
type Fallback struct{ Mode, Reason string }

// Follower is notified of a change after it was written. Applied must return at once.
type Follower interface{ Applied(route.Change) }

// Metrics returns the metrics of all parts.
func (o *Opened) Metrics() []prometheus.Collector {
	var all []prometheus.Collector
	for _, p := range o.Parts {
		all = append(all, p.Metrics...)
	}
	return all
}

// Poll implements Watch for a mechanism without notifications: each period it reports
// that there may have been an edit, until the context ends.
func Poll(ctx context.Context, period time.Duration, subscribed func(), report func(Edit)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	subscribed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			report(Edit{Possible: true})
		}
	}
}
