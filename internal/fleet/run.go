package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Streams are where the output of a command goes. After its context has ended a command may still write.
type Streams struct{ Stdout, Stderr io.Writer }

// ExitError means that a command ran and ended with a status other than 0.
type ExitError struct{ Status int }

// Error returns the message.
func (e *ExitError) Error() string { return fmt.Sprintf("the command ended with status %d", e.Status) }

// errForbidden means that this user may run no commands in the pod.
var errForbidden = errors.New("commands in pods need the right to create pods/exec")

// Run runs a command of Sluice in a pod. It returns when the context ends, although the handshake of a WebSocket, which
// has no context, continues until its deadline.
func (c *Cluster) Run(ctx context.Context, p Pod, args []string, out Streams) (err error) {
	options := remotecommand.StreamOptions{Stdout: out.Stdout, Stderr: out.Stderr}
	done := make(chan error, 1)
	quiet := logr.NewContext(ctx, logr.Discard()) // what fails is in the error
	go func() { done <- c.stream(quiet, c.request(p, args), options) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); ok {
		return &ExitError{exit.Code}
	}
	return err
}

func (c *Cluster) request(p Pod, args []string) *rest.Request {
	req := c.core.Get().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("exec").
		Param("container", p.container).Param("stdout", "true").Param("stderr", "true").Param("command", p.program)
	for _, arg := range args {
		req.Param("command", arg)
	}
	return req
}

// stream runs a command as kubectl does, over a WebSocket or else over SPDY: some proxies know no WebSocket, and for
// the API server it also needs the right to get pods/exec, which many roles lack.
func (c *Cluster) stream(ctx context.Context, req *rest.Request, options remotecommand.StreamOptions) error {
	socket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, req.URL().String())
	if err != nil {
		return err
	}
	err = socket.StreamWithContext(ctx, options)
	failure, refused := errors.AsType[*httpstream.UpgradeFailureError](err)
	if !refused && !httpstream.IsHTTPSProxyError(err) {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, req.URL())
	if err != nil {
		return err
	}
	err = spdy.StreamWithContext(ctx, options)
	if err != nil && refused && apierrors.IsForbidden(failure.Cause) {
		if _, ran := errors.AsType[utilexec.CodeExitError](err); !ran {
			return fmt.Errorf("%w: %w", errForbidden, err)
		}
	}
	return err
}
