//go:build !linux

package host

import "github.com/sluice-proxy/sluice/internal/config"

// Host is the host that this process runs on, which has no settings.
type Host struct{}

// New returns access to the host.
func New(Options) *Host { return &Host{} }

// Configure changes nothing.
func (*Host) Configure(*config.Config) error { return nil }

// Prepare changes nothing.
func (*Host) Prepare(*config.Config) error { return nil }

// Effects returns none.
func (*Host) Effects() []Effect { return nil }

// Compare returns none.
func (*Host) Compare(*config.Config) []Effect { return nil }
