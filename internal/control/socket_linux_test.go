package control

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

const socketName = "@sluice-proxy/test"

// Each network namespace has its own sockets. In each of them one process can listen,
// and another after it has closed the socket.
func TestSocketsBelongToANamespace(t *testing.T) {
	here := socket{socketName, kerneltest.Namespace(t)}
	there := socket{socketName, kerneltest.Namespace(t)}
	ctx := t.Context()

	if _, err := here.dial(ctx); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial without a listener: %v, want ECONNREFUSED", err)
	}
	first, err := here.listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := here.listen(ctx); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen twice: %v, want EADDRINUSE", err)
	}
	if _, err := there.dial(ctx); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial in another namespace: %v, want ECONNREFUSED", err)
	}
	other, err := there.listen(ctx)
	if err != nil {
		t.Fatalf("listen in another namespace: %v", err)
	}
	defer func() { _ = other.Close() }()

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := here.listen(ctx)
	if err != nil {
		t.Fatalf("listen after the first closed: %v", err)
	}
	_ = again.Close()
}

// Dial does not wait for a process that has bound the name and does not listen, nor
// for one whose queue of connections is full.
func TestDialDoesNotWait(t *testing.T) {
	o := socket{socketName, kerneltest.Namespace(t)}
	var fd int
	kerneltest.Do(t, o.netns, func() (err error) {
		fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		return err
	})
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: socketName}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.listen(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen at a bound name: %v, want EADDRINUSE", err)
	}
	if _, err := o.dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial a bound name without a listener: %v, want ECONNREFUSED", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	first, err := o.dial(t.Context()) // the queue has room for one connection that was not accepted yet
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err := o.dial(t.Context()); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("dial with a full queue: %v, want EAGAIN", err)
	}
}

func TestBothEndsReadTheCredentialsOfTheOther(t *testing.T) {
	o := socket{socketName, kerneltest.Namespace(t)}
	l, err := o.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := o.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()

	want := peer{pid: os.Getpid(), uid: os.Getuid()}
	for end, conn := range map[string]func() (peer, error){
		"client": func() (peer, error) { return peerOf(client) },
		"server": func() (peer, error) { return peerOf(server) },
	} {
		if got, err := conn(); err != nil || got != want {
			t.Errorf("the %s's peer is %+v, %v, want %+v", end, got, err, want)
		}
	}
	_ = server.Close()
	if _, err := peerOf(server); err == nil {
		t.Error("a closed connection has a peer")
	}
}

func TestSocketInNoNamespace(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	o := socket{socketName, int(f.Fd())}
	const want = "enter network namespace: invalid argument"
	if _, err := o.listen(t.Context()); err == nil || err.Error() != "listen on "+socketName+": "+want {
		t.Errorf("listen: %v, want %q", err, want)
	}
	if _, err := o.dial(t.Context()); err == nil || err.Error() != "connect to "+socketName+": "+want {
		t.Errorf("dial: %v, want %q", err, want)
	}
}
