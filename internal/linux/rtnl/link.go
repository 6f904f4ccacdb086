// Package rtnl lists network interfaces, reads them by name, creates and deletes them, and changes their addresses.
package rtnl

import "errors"

// ErrNotFound is the error for a missing interface.
var ErrNotFound = errors.New("no such interface")

// Network describes the interfaces and the main routing tables of a network namespace.
type Network struct {
	Links  []Link
	Routes int // in the main tables of both families
}

// Link is a network interface.
type Link struct {
	Name   string
	Kind   string // "veth", "bridge", "vxlan"; "device" is hardware
	MTU    int
	Up     bool
	Bridge string // of which it is a port; empty: none
	Uplink bool   // a default route leads through it
}
