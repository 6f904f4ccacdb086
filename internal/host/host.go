// Package host applies settings of the configuration to the host: the size and the timeouts of connection tracking, and
// the OOM score of this process. Settings decides, Apply writes.
//
// A setting is written only if it differs. So a process without the privilege works after another one with it, such as
// --init-only, wrote the settings. Systems other than Linux have none of these settings.
package host

// Options for New.
type Options struct {
	Root  string // folder that stands in for /; "": /
	NetNS int    // file descriptor of the network namespace; 0: the current one
}

// Effect is the outcome of one Setting.
type Effect struct {
	Name   string
	Wanted string
	Was    string // before; empty: unknown
	Is     string // now; empty: unknown
	Err    error  // nil: the host has the wanted value
}
