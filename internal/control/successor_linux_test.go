package control

import (
	"context"
	"io"
	"net"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// A process of the same user that connects to a successor before the daemon does cannot hand over to it.
func TestASuccessorIsConnectedToTheDaemon(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	strangers := make(chan struct{}, 1)
	o.Replace = func(_ context.Context, c *net.UnixConn) error {
		go func() {
			_, _ = io.WriteString(c, "daemon")
			_ = c.Close()
		}()
		return nil
	}
	slow := o
	slow.Replace = func(ctx context.Context, c *net.UnixConn) error {
		<-strangers
		return o.Replace(ctx, c)
	}
	serve(t, slow)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		kerneltest.Do(t, o.NetNS, func() error { return connectFirst(ctx, strangers) })
	}()
	c, err := Succeed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got, err := io.ReadAll(c); err != nil || string(got) != "daemon" {
		t.Errorf("received %q, %v, want that of the daemon", got, err)
	}
	stop()
	<-ended
}

// connectFirst connects to a socket of a successor and says something. Then it writes to the channel.
func connectFirst(ctx context.Context, connected chan<- struct{}) error {
	names := regexp.MustCompile(regexp.QuoteMeta(namePrefix) + "[0-9a-f]+")
	for ctx.Err() == nil {
		list, err := os.ReadFile("/proc/thread-self/net/unix")
		if err != nil {
			return err
		}
		for _, name := range names.FindAllString(string(list), -1) {
			c, err := net.Dial("unix", name)
			if err != nil {
				continue // it has ended
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "stranger who has not the proof") // it may have been closed
			select {
			case connected <- struct{}{}:
			default:
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// A daemon that cannot hand over says so.
func TestADaemonThatCannotHandOver(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	if c, err := Succeed(t.Context(), o); err == nil {
		_ = c.Close()
		t.Error("no error")
	}
}
