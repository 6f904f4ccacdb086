// Package inspect answers what a person asks a running daemon: what is
// programmed on this node and what is not, and how the daemon is. It only looks.
package inspect
