//go:build !linux

package takeover

import "context"

// platform is empty: kube-proxy leaves no rules on this system.
type platform struct{}

func newPlatform(Options) platform { return platform{} }

// takeOver finds nothing.
func (c *Controller) takeOver(context.Context) error {
	c.clean = true
	return nil
}

// Remedy is empty: no rules are left.
const Remedy = ""

// Cleanup finds nothing.
func Cleanup(context.Context, Options) (Account, error) { return Account{}, nil }

// Search finds nothing.
func Search(context.Context, Options) (Found, error) { return Found{}, nil }
