package inspect

import (
	"net/netip"
	"time"
)

// Status is what one daemon says of itself, for people and programs: `sluice
// status`, /statusz and what watches a node all read it. Times that are zero
// have not come; strings that are empty say that all is well.
type Status struct {
	At      time.Time `json:"at"` // when the answer was made; ages count from it
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Health  Health    `json:"health"`

	Mode     Mode     `json:"mode"`
	Families []string `json:"families,omitempty"` // "IPv4", "IPv6"
	Node     Node     `json:"node"`
	Source   Source   `json:"source"`

	LastSync Sync   `json:"lastSync"` // the latest that went well
	Lag      Lag    `json:"lag"`
	Counts   Counts `json:"counts"`
	Pending  int    `json:"pending"`         // Services not known to be in the kernel as they should be
	Refused  int    `json:"refused"`         // Services whose rules the kernel does not take; these are not pending
	Error    string `json:"error,omitempty"` // of the latest write

	Contest *Contest `json:"contest,omitempty"` // with another program; nil: none

	// WatchTrouble says why changes by other programs are found by comparing
	// all rules now and then, and not by a cheaper way.
	WatchTrouble string `json:"watchTrouble,omitempty"`

	// Busy says why Pending and Refused are missing: a write takes long.
	Busy string `json:"busy,omitempty"`

	Comparisons []Tally  `json:"comparisons,omitempty"` // everything compared with the kernel, by cause
	Repairs     []Tally  `json:"repairs,omitempty"`     // comparisons that found and mended something, by cause
	Adopted     int      `json:"adopted"`               // entries found right at the start
	Takeover    []string `json:"takeover,omitempty"`    // what became of another proxy's rules, a sentence each

	Configuration Configuration `json:"configuration"`
	HostSettings  []HostSetting `json:"hostSettings,omitempty"`
	Servers       []Server      `json:"servers,omitempty"`
	HealthPorts   []HealthPort  `json:"healthPorts,omitempty"` // only those that could not be opened
	Problems      []Problem     `json:"problems,omitempty"`    // with objects; the latest, newest first
}

// State is a word for how a daemon is.
type State string

// The states. Only Healthy makes `sluice status` exit with 0.
const (
	Healthy  State = "healthy"
	Starting State = "starting" // no complete sync yet
	Sick     State = "not healthy"
)

// Health is what /healthz is about.
type Health struct {
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Mode is the data plane in use.
type Mode struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"` // why it was chosen
	How    string `json:"how,omitempty"`    // it writes rules

	// Transient means that Services are not served while the process is down.
	Transient bool `json:"transient,omitempty"`
}

// Node is the Node as this process knows it.
type Node struct {
	Name      string       `json:"name"`
	Zone      string       `json:"zone,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Leaving   bool         `json:"leaving,omitempty"`
}

// Source is where Services come from.
type Source struct {
	Kind      string    `json:"kind"`           // "API server", "manifests"
	From      string    `json:"from,omitempty"` // its URL, or the paths
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"` // connected, or not, since then
	Trouble   string    `json:"trouble,omitempty"`
	LastEvent time.Time `json:"lastEvent,omitzero"`
}

// Sync is one write that went well.
type Sync struct {
	At       time.Time `json:"at,omitzero"` // when it ended
	Took     Duration  `json:"took"`
	Services int       `json:"services"` // touched
	Steps    int       `json:"steps"`
	Cause    string    `json:"cause"` // "change", or why everything was compared
}

// Lag is what came in and is not in force yet.
type Lag struct {
	Oldest   time.Time `json:"oldest,omitzero"` // when the first of it came in; zero: there is none
	Services int       `json:"services"`
	Slices   int       `json:"endpointSlices"`
}

// Contest says that another program keeps changing the rules.
type Contest struct {
	Since   time.Time `json:"since"`
	Repairs int       `json:"repairs"`      // since then
	What    string    `json:"what"`         // it changed last
	By      string    `json:"by,omitempty"` // "nft (thread 812)"; empty: the kernel does not say
}

// Counts are sizes of what is in the kernel, as of the last sync.
type Counts struct {
	Services      int `json:"services"` // programmed ones
	Ports         int `json:"ports"`    // per family
	Fronts        int `json:"fronts"`   // addresses, ports and protocols that clients use
	Backends      int `json:"backends"` // distinct ones of each Service, summed up
	NotProgrammed int `json:"notProgrammed"`
	Rejected      int `json:"rejected"` // problems with objects since the start
}

// Tally counts what happened for one cause.
type Tally struct {
	Cause string    `json:"cause"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Configuration says which one is in force.
type Configuration struct {
	File      string    `json:"file,omitempty"`     // empty: flags only
	Loaded    time.Time `json:"loaded"`             // what is in force
	Refused   string    `json:"refused,omitempty"`  // why a newer file is not in force
	RefusedAt time.Time `json:"refusedAt,omitzero"` // when it was read
	Due       time.Time `json:"due,omitzero"`       // when a changed file takes effect
	Reloads   int       `json:"reloads"`            // changed files that took effect since the process started
}

// HostSetting is a kernel parameter or the like that was set, or should be.
type HostSetting struct {
	Name  string `json:"name"`
	Want  string `json:"want"`
	Was   string `json:"was,omitempty"` // before us
	Is    string `json:"is,omitempty"`
	Error string `json:"error,omitempty"`
}

// Server is an address that this process listens on, or should.
type Server struct {
	Name    string `json:"name"`    // "healthz", "metrics"
	Address string `json:"address"` // empty: it is turned off
	Error   string `json:"error,omitempty"`
}

// HealthPort is a Service's health-check node port that could not be opened.
type HealthPort struct {
	Service string `json:"service"`
	Port    uint16 `json:"port"`
	Error   string `json:"error"`
}

// Problem is something wrong with an object; only what it names is left out.
type Problem struct {
	At     time.Time `json:"at"`
	Object string    `json:"object"` // "Service default/web"
	Field  string    `json:"field,omitempty"`
	Value  string    `json:"value,omitempty"`
	Reason string    `json:"reason"`
	Count  int       `json:"count"` // since the start, of those that differ in the object alone
}

// Duration is written as people write it: "1.2ms".
type Duration time.Duration

// String returns it with three digits or so.
func (d Duration) String() string { return short(time.Duration(d)) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}
