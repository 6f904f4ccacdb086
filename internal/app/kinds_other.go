//go:build !linux && !windows

package app

import (
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
)

// Kinds returns the data planes of this build, the default first. A further plane is one more line here.
func Kinds() []plane.Kind {
	return []plane.Kind{
		userspace.Loopback(),
	}
}
