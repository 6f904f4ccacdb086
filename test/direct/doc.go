// Package direct tests that nodes pass connections of clients outside on to each other, with real packets: three nodes
// behind a router that divides connections among them, each with a daemon, and pods on some of them.
package direct
