// Package service runs this program as a service of Windows.
package service

import (
	"context"
	"errors"
)

// ErrNoManager means that no service manager started this process.
var ErrNoManager = errors.New("the service manager of Windows did not start this process")

// Program is the main function of a service. It returns when the context ends.
type Program func(ctx context.Context) error
