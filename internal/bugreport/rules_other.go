//go:build !linux

package bugreport

import (
	"context"
	"errors"
)

// Rules returns an error: the rules of other systems have no listing.
func Rules(context.Context, int) ([]byte, error) {
	return nil, errors.New("rules are listed on Linux only")
}
