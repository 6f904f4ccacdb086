package takeover

import "context"

// Keeper takes over after the first complete sync, and watches that no other
// kube-proxy is started.
type Keeper struct{}

// New returns a Keeper. ready is closed when Sluice's own rules are in force.
func New(o Options, ready <-chan struct{}) *Keeper { return nil }

// Run takes over and keeps watch until the context ends.
func (k *Keeper) Run(ctx context.Context) error { return nil }

// State is how far the take-over is, at any time and for any goroutine.
func (k *Keeper) State() State { return State{} }

// Cleanup removes at once what kube-proxy left, of all modes, also what still
// has connections. What could not be removed is in the error, and the rest is
// removed all the same.
func Cleanup(ctx context.Context, o Options) (Account, error) { return Account{}, nil }
