//go:build !windows

package winservice

import "context"

// Run returns ErrNoManager.
func Run(context.Context, string, Program) error { return ErrNoManager }
