//go:build !linux

package control

import (
	"context"
	"errors"
	"net"
)

const successorPath = "/successor"

var errNoSuccessor = errors.New("--replace: this system cannot hand over to another process: stop the running Sluice first")

// Succeed returns an error.
func Succeed(context.Context, Options) (*net.UnixConn, error) { return nil, errNoSuccessor }

func meet(context.Context, Options, string) (*net.UnixConn, error) { return nil, errNoSuccessor }
