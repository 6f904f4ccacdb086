// Package preflight finds out whether Sluice can serve a node, before it is started there. Read reads facts and changes
// nothing; Judge decides.
package preflight

import (
	"errors"
	"io/fs"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Level says what a Finding means for a start of Sluice.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // Sluice serves, but something does not work, or was not tested
	Stop    Level = "stop"    // Sluice does not serve, or fights with another proxy
)

// Finding is one line.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"`
	Found   string `json:"found"`
	Remedy  string `json:"remedy,omitempty"`
}

// Stops reports whether Sluice should not be started.
func (f Finding) Stops() bool { return f.Level == Stop }

// Rows returns a row.
func (f Finding) Rows() []text.Row {
	found := f.Found
	if f.Remedy != "" {
		found += "; to do: " + f.Remedy
	}
	cells := []text.Cell{{"LEVEL", string(f.Level)}, {"SUBJECT", f.Subject}, {"FOUND", found}}
	marks := map[Level]text.Mark{Stop: text.Bad, Warning: text.Warning}
	return []text.Row{{Cells: cells, Mark: marks[f.Level]}}
}

// Trial is the outcome of a test.
type Trial struct {
	Err   string // empty: it succeeded
	Right bool   // this process may not do it
}

// TrialOf returns the outcome with an error.
func TrialOf(err error) Trial {
	if err == nil {
		return Trial{}
	}
	return Trial{Err: err.Error(), Right: errors.Is(err, probe.ErrPrivilege) || errors.Is(err, fs.ErrPermission)}
}

// Facts are about a node, and what the configuration wants from it.
type Facts struct {
	Version      string // of this program
	Tested       string // the newest Kubernetes with which it is tested: "1.37"
	Mode, Reason string // the data plane, and why this one
	Unprivileged bool   // Sluice changes nothing on this host

	Host

	Probe  Trial // of what the mode needs
	Notes  []string
	Beyond *Trial // of what it uses besides; nil: nothing

	Sluice    *Daemon // that runs here; nil: none
	Others    takeover.Found
	OthersErr Trial
	Ports     []Port
	PortsErr  Trial
	HardFail  bool // a port that is taken ends Sluice
	Detector  route.DetectorOptions
	Settings  []host.Effect // of conntrack that differ from what the configuration wants

	Source Source
}

// Host has the facts that do not depend on a configuration.
type Host struct {
	System       string // "Linux 6.1.0"
	CPUs         int
	Capabilities []string
	Modules      []string          // that are loaded
	Parameters   map[string]string // of the kernel, by name with slashes; those that it lacks are left out
	Cgroup       string            // where cgroup v2 is mounted; empty: nowhere
	CgroupRoot   Trial             // whether that is the root of all cgroups
	Network      rtnl.Network
	NetworkErr   Trial
	Primary      []netip.Addr // addresses of the node
}

// Daemon is a Sluice. One that does not answer has no mode.
type Daemon struct {
	Version, Mode string
	PID           int
}

// Port is a port that Sluice listens on.
type Port struct {
	Field  string // of the configuration
	At     netip.AddrPort
	Taken  bool
	PID    int    // of the process that listens there; 0: not known
	Holder string // its program
}

// Source is where Services come from.
type Source struct {
	Manifests bool   // from files
	Named     bool   // the configuration names an API server
	Server    string // its URL; empty: not known
	Version   string // of the API server
	Trial
}
