//go:build !windows

package service

import "context"

// Run returns ErrNoManager.
func Run(context.Context, string, Program) error { return ErrNoManager }
